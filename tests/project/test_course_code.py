"""Code as students of the course write it runs unchanged, on both backends of the course."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle.backend.ndarray import NDArray

compact_strides = NDArray.compact_strides

PROGRAM = '''
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import needle as ndl
from needle import nn, optim
import course_code as own

def layers(kind):
    """Yield the layers under test: their name, and a function that makes one of width 6."""
    for bias in (True, False):
        yield f"linear bias={bias}", lambda bias=bias: kind.Linear(6, 6, bias=bias)
    yield "wide", lambda: kind.Sequential(kind.Linear(6, 12), kind.Linear(12, 6))
    yield "relu", lambda: kind.Sequential(kind.Linear(6, 6), kind.ReLU())
    yield "flatten", lambda: kind.Sequential(kind.Flatten(), kind.Linear(6, 6))
    yield "batch norm", lambda: kind.Sequential(
        kind.Linear(6, 6, bias=False), kind.BatchNorm1d(6))
    yield "layer norm", lambda: kind.Sequential(kind.Linear(6, 6), kind.LayerNorm1d(6))
    yield "dropout", lambda: kind.Sequential(kind.Linear(6, 6), kind.Dropout(0.3))
    yield "residual", lambda: kind.Residual(kind.Linear(6, 6))
    yield "all", lambda: kind.Sequential(
        kind.Linear(6, 6), kind.Residual(kind.Sequential(
            kind.Linear(6, 8, bias=False), kind.BatchNorm1d(8), kind.ReLU(), kind.Dropout(0.2),
            kind.Linear(8, 6), kind.LayerNorm1d(6))), kind.Linear(6, 6))

def optimizers(rules):
    """Yield the optimizers under test."""
    yield "sgd", lambda p: rules.SGD(p, lr=0.1)
    yield "momentum", lambda p: rules.SGD(p, lr=0.1, momentum=0.9)
    yield "sgd decay", lambda p: rules.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.01)
    yield "adam", lambda p: rules.Adam(p, lr=0.01)
    yield "adam decay", lambda p: rules.Adam(p, lr=0.01, weight_decay=0.01)

def train(kind, rules, layer, optimizer):
    """Return the parameters after eight steps, and the losses."""
    np.random.seed(3)
    model, loss, losses = layer(), kind.SoftmaxLoss(), []
    opt = optimizer(model.parameters())
    x = np.random.randn(10, 6).astype("float32")
    y = np.random.randint(0, 6, 10)
    model.train()
    for _ in range(8):
        opt.reset_grad()
        out = loss(model(ndl.Tensor(x)), ndl.Tensor(y))
        out.backward()
        opt.step()
        losses.append(float(out.numpy()))
    model.eval()
    return np.concatenate([p.numpy().ravel() for p in model.parameters()]), losses, \\
        model(ndl.Tensor(x)).numpy()

count = 0
for (name, mine), (_, theirs) in zip(layers(own), layers(nn), strict=True):
    for (rule, my_rule), (_, their_rule) in zip(optimizers(own), optimizers(optim), strict=True):
        got = train(own, own, mine, my_rule)
        want = train(nn, optim, theirs, their_rule)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4, err_msg=f"{name}, {rule}")
        count += 1
print("equal", count)
'''


@pytest.mark.parametrize("backend", ["nd", "np"])
def test_a_students_layers_and_optimizers_equal_needles(backend, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), str(Path(__file__).parent)],
        env={**os.environ, "NEEDLE_BACKEND": backend}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "equal 50" in run.stdout


def test_raw_functions_of_a_device(host_device):
    """The course's kernels on handles, as its NDArray calls them."""
    device, rng = host_device, np.random.default_rng(0)
    a, b = rng.standard_normal((2, 6)).astype(np.float32)

    def put(values):
        handle = device.Array(values.size)
        device.from_numpy(values, handle)
        return handle

    def read(handle, *shape):
        return device.to_numpy(handle, shape, compact_strides(shape), 0)

    x, y, out = put(a), put(b), device.Array(6)
    wanted = {"add": a + b, "mul": a * b, "div": a / b, "maximum": np.maximum(a, b),
              "eq": a == b, "ge": a >= b}  # fmt: skip
    for name, value in wanted.items():
        getattr(device, f"ewise_{name}")(x, y, out)
        np.testing.assert_allclose(read(out, 6), value, rtol=1e-6)
    scalars = {"add": a + 2, "mul": a * 2, "div": a / 2, "power": a**2,
               "maximum": np.maximum(a, 2), "eq": a == 2, "ge": a >= 2}  # fmt: skip
    for name, value in scalars.items():
        getattr(device, f"scalar_{name}")(x, 2.0, out)
        np.testing.assert_allclose(read(out, 6), value, rtol=1e-6)
    for name in ("exp", "tanh"):
        getattr(device.mod, f"ewise_{name}")(x, out)
        np.testing.assert_allclose(read(out, 6), getattr(np, name)(a), rtol=1e-6)
    device.compact(x, out, (3, 2), (1, 3), 0)
    np.testing.assert_array_equal(read(out, 3, 2), a.reshape(2, 3).T)
    device.ewise_setitem(y, out, (3, 2), (1, 3), 0)
    np.testing.assert_array_equal(read(out, 2, 3), b.reshape(3, 2).T)
    device.scalar_setitem(2, 7.0, out, (2,), (3,), 1)
    np.testing.assert_array_equal(read(out, 2, 3)[:, 1], [7, 7])
    square = device.Array(9)
    device.matmul(x, y, square, 3, 2, 3)
    np.testing.assert_allclose(read(square, 3, 3), a.reshape(3, 2) @ b.reshape(2, 3), rtol=1e-5)
    two = device.Array(2)
    for name in ("sum", "max"):
        getattr(device, f"reduce_{name}")(x, two, 3)
        np.testing.assert_allclose(read(two, 2), getattr(a.reshape(2, 3), name)(1), rtol=1e-6)
    device.fill(two, 5.0)
    np.testing.assert_array_equal(read(two, 2), [5, 5])
    with pytest.raises(ndl.errors.ShapeError, match="6 numbers are not rows of 4"):
        device.reduce_sum(x, two, 4)


def test_names_of_the_courses_autograd():
    from needle import autograd
    from needle.autograd import Op, Tensor, TensorOp, TensorTuple, TensorTupleOp, Value

    assert Tensor is ndl.Tensor and issubclass(TensorTuple, Value) and TensorOp is TensorTupleOp
    assert issubclass(ndl.ops.Add, Op)
    x = Tensor([1.0, 2.0])
    y = x * 2.0 + x
    order, seen = [], set()
    autograd.topo_sort_dfs(y, seen, order)
    assert order[0] is x and order[-1] is y and len(order) == len(set(order)) == len(seen)
    assert autograd.sum_node_list([x, x, x]).numpy().tolist() == [3, 6]
    assert autograd.sum_node_list([x]) is x
    with pytest.raises(ndl.errors.ArgumentError, match="at least one"):
        autograd.sum_node_list([])
    made = ndl.TensorTuple.make_from_op(ndl.ops.MakeTensorTuple.of(), [x, y])
    assert len(made) == 2 and y.num_outputs == 1
    pair = ndl.TensorTuple.make_const((x.cached_data, y.cached_data))
    assert pair[1].numpy().tolist() == [3, 6] and not pair.requires_grad


def test_init_makes_leaves_and_results():
    class Weight(ndl.Tensor):
        pass

    leaf = Weight.make_const(np.ones(2, np.float32), requires_grad=True)
    assert type(leaf) is Weight and leaf.requires_grad and leaf.is_leaf()
    x = ndl.Tensor([1.0, 3.0])
    result = ndl.Tensor.__new__(ndl.Tensor)
    result._init(ndl.ops.Multiply.of(), [x, leaf])
    assert result.requires_grad and result.inputs[0] is x
    assert result.realize_cached_data().numpy().tolist() == [1, 3]
    result.sum().backward()
    assert leaf.grad.numpy().tolist() == [1, 3]


@pytest.mark.parametrize("lazy", [False, True])
def test_an_op_may_compute_with_numpy(lazy, host_device):
    class Exp(ndl.TensorOp):
        def compute(self, a):
            return np.exp(a)

        def gradient(self, out_grad, node):
            return out_grad * exp(node.inputs[0])

    class Split(ndl.TensorTupleOp):
        def compute(self, a):
            values = np.asarray(a)
            return values[:1], np.float64(values.sum())

    def exp(x):
        return Exp()(x)

    x = ndl.Tensor([0.0, 1.0], device=host_device)
    with ndl.lazy_mode(lazy):
        y = exp(x)
        assert y.shape == (2,) and y.dtype == "float32" and y.device == host_device
        ndl.grad(lambda x: exp(x).sum())(x)
        exp(x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.exp([0, 1]), rtol=1e-6)
        first, total = Split()(x.detach()).tuple()
        assert first.shape == (1,) and total.shape == () and total.item() == 1
        assert total.dtype == "float32"


def test_parameters_are_true_and_array_api_is_the_backends():
    bias = ndl.nn.Parameter(ndl.zeros(3))
    assert bias and ndl.nn.Parameter(ndl.zeros(1))
    with pytest.raises(ndl.errors.ShapeError, match="ambiguous"):
        bool(ndl.zeros(3))
    code = "import needle, numpy; assert needle.array_api is numpy"
    environment = {**os.environ, "NEEDLE_BACKEND": "np"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)

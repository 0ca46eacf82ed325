"""The course's face: NDArray's rules, its modules and devices, and what differs in "np" mode."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
from needle import autograd, ops
from needle import backend_ndarray as nd
from needle.errors import DtypeError, IndexRangeError, ShapeError
from needle.testing import check_gradients


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def in_np_mode(code: str) -> str:
    """Run a program with NEEDLE_BACKEND=np and return what it prints."""
    env = {**os.environ, "NEEDLE_BACKEND": "np", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "import numpy as np, needle as ndl\n" + code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


# ---- NDArray ---------------------------------------------------------------------


def test_arithmetic_of_equal_shapes(device):
    a, b = values(3, 4), np.abs(values(3, 4, seed=1)) + 0.5
    x, y = nd.array(a, device=device), nd.array(b, device=device)
    pairs = {
        "+": (x + y, a + b), "-": (x - y, a - b), "*": (x * y, a * b), "/": (x / y, a / b),
        "neg": (-x, -a), "max": (x.maximum(y), np.maximum(a, b)), "log": (nd.log(y), np.log(b)),
        "exp": (nd.exp(x), np.exp(a)), "tanh": (nd.tanh(x), np.tanh(a)),
        "@": (x @ y.permute((1, 0)), a @ b.T),
    }  # fmt: skip
    for name, (found, expected) in pairs.items():
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert found.dtype == "float32" and found.device == device


def test_arithmetic_with_numbers(device):
    a = np.abs(values(3, 4)) + 0.5
    x = nd.array(a, device=device)
    pairs = [
        (x + 2, a + 2), (2 + x, 2 + a), (x - 1.5, a - 1.5), (1 - x, 1 - a), (x * 3, a * 3),
        (x / 4, a / 4), (1 / x, 1 / a), (x**2, a**2), (x**-0.5, a**-0.5),
        (nd.maximum(x, 1.0), np.maximum(a, 1)), (x * np.float64(2), a * 2),
    ]  # fmt: skip
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
        assert found.dtype == "float32"
    whole = nd.array([1, 2], "int32", device)
    assert (whole * 2).dtype == "int32" and (whole * 0.5).dtype == "float32"
    assert (whole / 2).numpy().tolist() == [0.5, 1.0]


def test_comparisons_are_floats(device):
    a, b = np.array([1.0, 2.0, 3.0], "float32"), np.array([3.0, 2.0, 1.0], "float32")
    x, y = nd.array(a, device=device), nd.array(b, device=device)
    for found, expected in (
        (x == y, a == b), (x != y, a != b), (x < y, a < b), (x <= y, a <= b), (x > 2, a > 2),
        (x >= 2, a >= 2), (x == 2.0, a == 2),
    ):  # fmt: skip
        assert found.dtype == "float32"
        np.testing.assert_array_equal(found.numpy(), expected.astype("float32"))
    with pytest.raises(TypeError):
        hash(x)
    assert (x == "text") is False and (x != None) is True  # noqa: E711


def test_nothing_broadcasts(device):
    x = nd.array(values(3, 4), device=device)
    with pytest.raises(ShapeError, match=r"(?s)add: shapes \(3, 4\) and \(1, 4\) differ.*Tensors"):
        x + x[0:1]
    with pytest.raises(TypeError):
        x + "text"


def test_reductions(device):
    a = values(3, 4)
    x = nd.array(a, device=device)
    np.testing.assert_allclose(x.sum().numpy(), [a.sum()], rtol=1e-5)
    assert x.sum().shape == x.max().shape == (1,)
    np.testing.assert_allclose(nd.sum(x, 0).numpy(), a.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(x.max(axis=1, keepdims=True).numpy(), a.max(1, keepdims=True))
    np.testing.assert_allclose(x.sum((0, 1), keepdims=True).numpy(), [[a.sum()]], rtol=1e-5)


def test_pad_and_functions(device):
    a = values(2, 3)
    x = nd.array(a, device=device)
    np.testing.assert_array_equal(x.pad(((1, 0), (0, 2))).numpy(), np.pad(a, ((1, 0), (0, 2))))
    np.testing.assert_array_equal(nd.flip(x, (0,)).numpy(), a[::-1])
    np.testing.assert_array_equal(nd.reshape(x, (3, 2)).numpy(), a.reshape(3, 2))
    np.testing.assert_array_equal(nd.broadcast_to(x[0:1], (4, 3)).numpy(), a[[0, 0, 0, 0]])
    assert nd.array(a.astype("float64")).dtype == "float32" and nd.array([1]).dtype == "float32"
    assert nd.full((2,), 3, device=device).numpy().tolist() == [3, 3]
    assert nd.empty((2, 3), device=device).shape == (2, 3)
    assert nd.array(x, "float64").dtype == "float64"


def test_subclasses_stay_what_they_are(device):
    class Named(nd.NDArray):
        def shout(self):
            return self.process_slice(slice(-2, None), 0)

    x = Named(values(5, 2), device)
    x.note = "kept"
    assert type(x) is Named and x.shout() == slice(3, 5, 1) and x.note == "kept"
    assert x.shape == (5, 2) and type(x + 1) is nd.NDArray
    assert type(Named(x)) is Named
    for _ in range(100):
        Named(x)


def test_make_and_fields(device):
    x = nd.NDArray.make((2, 3), device=device)
    y = nd.NDArray.make((3, 2), strides=(1, 3), device=device, handle=x._handle, offset=0)
    x.fill(0)
    y[2, 1] = 5
    assert x.numpy()[1, 2] == 5
    assert (x._shape, x._strides, x._offset, x._device) == ((2, 3), (3, 1), 0, device)
    assert nd.NDArray.compact_strides((2, 3, 4)) == (12, 4, 1)


# ---- modules and devices ---------------------------------------------------------


def test_modules():
    import needle.backend_ndarray.ndarray as module

    assert module.NDArray is nd.NDArray is ndl.NDArray and nd.BackendDevice is ndl.Device
    assert ndl.backend_selection.BACKEND == "nd" and ndl.backend_selection.array_api is nd
    assert {nd.cpu().name, nd.cuda().name, nd.cpu_numpy().name} <= {"cpu", "cuda", "cpu_numpy"}
    assert {"cpu", "cuda", "cpu_numpy"} <= {d.name for d in nd.all_devices()}


def test_devices_make_arrays(device):
    np.random.seed(3)
    drawn = device.rand(2, 3), device.randn(4)
    np.random.seed(3)
    np.testing.assert_array_equal(drawn[0].numpy(), np.random.rand(2, 3).astype("float32"))
    np.testing.assert_array_equal(drawn[1].numpy(), np.random.randn(4).astype("float32"))
    assert all(x.device == device and x.dtype == "float32" for x in drawn)
    np.testing.assert_array_equal(device.one_hot(3, [2, 0]).numpy(), np.eye(3)[[2, 0]])
    assert device.one_hot(3, 1).shape == (3,)
    assert device.full((2,), 7, "int64").numpy().tolist() == [7, 7]
    assert device.empty((2, 0)).shape == (2, 0)
    with pytest.raises(IndexRangeError, match="from 0 to 3 for 3 classes"):
        device.one_hot(3, [0, 3])


@pytest.mark.parametrize("m, n, p", [(1, 1, 1), (2, 3, 1)])
def test_tiled_product(m, n, p, host_device):
    t = host_device.__tile_size__
    a, b = values(m * t, n * t), values(n * t, p * t, seed=1)
    x = nd.array(a.reshape(m, t, n, t).transpose(0, 2, 1, 3), device=host_device)
    y = nd.array(b.reshape(n, t, p, t).transpose(0, 2, 1, 3), device=host_device)
    z = nd.empty((m, p, t, t), device=host_device)
    host_device.matmul_tiled(x._handle, y._handle, z._handle, m * t, n * t, p * t)
    found = z.numpy().transpose(0, 2, 1, 3).reshape(m * t, p * t)
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)


# ---- tensors ---------------------------------------------------------------------


def test_ops_of_tensor_and_number():
    x = ndl.Tensor(np.abs(values(3)) + 1)
    for out, expected in (
        (ndl.add_scalar(x, 2), x.numpy() + 2), (ndl.mul_scalar(x, scalar=2), x.numpy() * 2),
        (ndl.divide_scalar(x, np.array([4.0])), x.numpy() / 4),
        (ndl.power_scalar(x, scalar=-1.5), x.numpy() ** -1.5),
    ):  # fmt: skip
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)
        assert len(out.op.gradient_as_tuple(ndl.Tensor(np.ones(3)), out)) == 1
    assert ndl.power_scalar(x, 3).op.scalar == 3


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["add_scalar", "mul_scalar", "divide_scalar", "power_scalar"])
def test_gradients_flow_to_what_is_given_for_a_number(name, lazy):
    function = getattr(ndl, name)
    with ndl.lazy_mode(lazy):
        for shape in ((), (1,), (1, 1)):
            check_gradients(
                lambda x, t: function(x, t * t), np.abs(values(3)) + 1, np.full(shape, 1.3), order=2
            )
        t = ndl.Tensor(1.5, dtype="float64")
        assert function(ndl.Tensor([1.0]), t).dtype == "float32"  # numbers do not widen
        out = function(ndl.Tensor([1, 2], dtype="int64"), t)
        assert out.dtype == "float32" and out.requires_grad
        with ndl.no_grad():
            assert function(ndl.Tensor([1, 2], dtype="int64"), t).dtype == "float32"
        for several in (ndl.Tensor([1.0, 2.0]), np.ones(2)):
            with pytest.raises(ShapeError, match=f"{name}: expected one number, got 2"):
                function(ndl.Tensor([1.0]), several)


def test_dilate_and_undilate():
    a = values(2, 3)
    x = ndl.Tensor(a)
    out = ndl.dilate(x, (1,), 2)
    expected = np.zeros((2, 9), "float32")
    expected[:, ::3] = a
    np.testing.assert_array_equal(out.numpy(), expected)
    np.testing.assert_array_equal(ndl.undilate(out, (1,), 2).numpy(), a)
    np.testing.assert_array_equal(ndl.dilate(x, (0, 1, 2), 0).numpy(), a)
    assert ndl.dilate(x, (0, 5), 1).shape == (4, 3) and ndl.dilate(x, -1, 1).shape == (2, 6)
    (out * out).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * a, rtol=1e-6)
    with pytest.raises(ShapeError, match="negative"):
        ndl.dilate(x, 0, -1)


def test_logsoftmax_wants_rows():
    a = values(3, 4) + np.array([0, 0, 1e5, 0], "float32")
    found = ndl.logsoftmax(ndl.Tensor(a)).numpy()
    expected = a - a.max(1, keepdims=True)
    expected = expected - np.log(np.exp(expected).sum(1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(ShapeError, match="log_softmax"):
        ndl.logsoftmax(ndl.Tensor(values(3)))


def test_the_order_of_a_topological_sort():
    a, b = ndl.Tensor(values(2, 2)), ndl.Tensor(values(2, 2, seed=1))
    product = a @ b
    out = (2.0 * product - a) * product
    order = autograd.find_topo_sort([out])
    assert [t.op and t.op.name for t in order] == [
        None, None, "matmul", "multiply", "negative", "add", "multiply",
    ]  # fmt: skip
    assert order[0] is a and order[1] is b
    expected = [a, b, product, 2.0 * product, -a, 2.0 * product - a, out]
    for found, known in zip(order, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), known.numpy(), rtol=1e-6)
    assert order[-1].inputs[0] is not None


def test_compute_gradient_of_variables_makes_graph():
    x = ndl.Tensor(values(3))
    y = x * x
    autograd.compute_gradient_of_variables(y, ndl.Tensor(np.ones(3)))
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy(), rtol=1e-6)
    assert x.grad.requires_grad


def test_storage_changed_in_place_is_seen():
    x = ndl.Tensor(values(3))
    before = (x * 2.0).numpy()
    x.realize_cached_data().flat[1] += 1.0
    np.testing.assert_allclose((x * 2.0).numpy() - before, [0, 2, 0], atol=1e-6)
    assert x.realize_cached_data().size == 3


def test_dtypes_do_not_mix_in_nd_mode():
    with pytest.raises(DtypeError):
        ndl.Tensor([1.0]) + ndl.Tensor(np.array([1]))


# ---- NEEDLE_BACKEND=np -------------------------------------------------------------


def test_np_mode_infers_dtypes_as_numpy():
    out = in_np_mode(
        "x = ndl.Tensor([1.5]); i = ndl.Tensor([6])\n"
        "print(x.dtype, i.dtype, (x + i).dtype, x.device, ndl.cpu(), ndl.BACKEND)\n"
        "print(ndl.Tensor(np.float32([1])).dtype, type(np.asarray(x.cached_data)).__name__)"
    )
    assert out.split() == [
        "float64", "int64", "float64", "cpu_numpy()", "cpu_numpy()", "np", "float32", "ndarray",
    ]  # fmt: skip


def test_np_mode_gradients_are_graph_and_tensors_true():
    out = in_np_mode(
        "x = ndl.Tensor([6]); y = ndl.Tensor([0, 2]); z = x * x + x * 3\n"
        "z.backward(); g = x.grad; g.backward(); print(g.numpy()[0], x.grad.numpy()[0], bool(y))\n"
        "z.backward(); print(x.grad.numpy()[0])"
    )
    assert out.split() == ["15", "2", "True", "15"]


def test_np_mode_tells_batches_apart():
    out = in_np_mode(
        "x, y = ndl.Tensor([0.0, 0.0]), ndl.Tensor([0.0, 1.0])\n"
        "print((x, x) != (x, y), (x, y) != (ndl.Tensor([0.0, 0.0]), ndl.Tensor([0.0, 1.0])))"
    )
    assert out.split() == ["True", "False"]


def test_other_backends_are_refused():
    env = {**os.environ, "NEEDLE_BACKEND": "tpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "import needle"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode and "NEEDLE_BACKEND=tpu: must be one of nd, np" in done.stderr


def test_names_of_classes():
    assert ops.EWiseAdd is ops.Add and ops.TensorOp is ops.Op
    assert isinstance(ops.TensorTupleOp, type)

"""Products that go on with elementwise functions: they have the bits of separate kernels."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from looped import looped

import needle as ndl
from needle import core, executor, ops
from needle.backend.native import NativeBackend
from needle.compile.epilogue import MatMulEpilogue
from needle.errors import DtypeError, ShapeError

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


@pytest.fixture
def isa(isa, two_threads):
    """Run the test on this instruction set with two threads."""
    return isa


def values(*shape, seed=0, dtype="float32"):
    numbers = np.random.default_rng(seed).standard_normal(shape) * 3
    return ndl.Tensor(numbers).astype(dtype).array


SHAPES = {
    "vector_and_matrix": ((1, 300), (300, 700)),
    "matrix_and_vector": ((700, 300), (300, 1)),
    "few_rows": ((3, 512), (512, 64)),
    "one_tile": ((5, 40), (40, 10)),
    "parts_of_rows": ((130, 257), (257, 300)),
    "parts_of_columns": ((20, 600), (600, 900)),
    "steps": ((150, 1300), (1300, 97)),
    "large": ((300, 520), (520, 260)),
    "small_matrices": ((6, 5, 7), (6, 7, 9)),
    "matrices": ((3, 70, 90), (3, 90, 65)),
    "same_right": ((3, 50, 70), (70, 40)),
    "no_rows": ((0, 4), (4, 3)),
    "no_columns": ((3, 4), (4, 0)),
    "no_terms": ((3, 0), (0, 2)),
}
STEPS = {
    "bias": [("add", 0)],
    "bias_gelu": [("add", 0), ("gelu", -1)],
    "all": [("add", 1), ("tanh", -1), ("subtract", 1), ("relu", -1)],
    "grad": [("gelu_grad", 1)],
}


def operands(steps, out, dtype):
    """A row for the first addition, else arrays of the product's shape."""
    found = []
    for i, (function, place) in enumerate(steps):
        if place >= 0:
            shape = out[-1:] if i == 0 and function == "add" else out
            found.append(values(*shape, seed=2 + i, dtype=dtype))
    return found


def bits(x):
    return np.frombuffer(x.numpy().tobytes(), np.uint8)


def checked(a, b, steps, kept=-1, others=None):
    op = MatMulEpilogue.of(tuple(steps), kept)
    out = (a @ b).shape
    others = operands(steps, out, a.dtype) if others is None else others
    expected = op._by_steps(a, b, others)
    results = []
    for threads in (1, 2):
        core.native.set_threads(threads)
        results.append(op.compute(a, b, *others))
    for found in results:
        pairs = zip(found, expected, strict=True) if kept >= 0 else [(found, expected)]
        for x, y in pairs:
            assert x.spec is y.spec and x.strides == y.strides
            np.testing.assert_array_equal(bits(x), bits(y))


@pytest.fixture
def only(monkeypatch):
    """The separate kernels, at hand for the expected values, must not be a way out."""
    backend = ndl.cpu().backend
    real = backend.matmul_epilogue

    def accepted(*args):
        assert real(*args)
        return True

    monkeypatch.setattr(backend, "matmul_epilogue", accepted)


@looped("shape", SHAPES)
@looped("steps", STEPS)
@looped("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_bits_are_those_of_separate_kernels(isa, only, dtype, steps, shape):
    a, b = SHAPES[shape]
    checked(values(*a, dtype=dtype), values(*b, seed=1, dtype=dtype), STEPS[steps])


@looped("dtype", ["int8", "int32", "int64", "uint8"])
def test_integers(isa, only, dtype):
    a, b = values(33, 20, dtype="float32"), values(20, 19, seed=1)
    a, b = (x.astype("int32").astype(dtype) for x in (a, b))
    row, whole = (values(*s, seed=2).astype("int32").astype(dtype) for s in ((19,), (33, 19)))
    checked(a, b, [("add", 0), ("relu", -1), ("subtract", 1)], others=[row, whole])
    checked(a, b, [("add", 0), ("multiply", 0)], 1, others=[row, whole])


@looped("kept", [0, 1, 2, 3])
@looped("shape", ["parts_of_rows", "steps", "few_rows", "matrices", "no_terms"])
def test_a_value_between_is_a_result_too(isa, only, shape, kept):
    a, b = SHAPES[shape]
    for dtype in ("float32", "bfloat16"):
        checked(values(*a, dtype=dtype), values(*b, seed=1, dtype=dtype), STEPS["all"], kept)


def test_operands_of_any_strides(isa, only):
    a, b = values(90, 133), values(70, 90, seed=1)
    steps = STEPS["bias_gelu"]
    checked(a.permute((1, 0)), b.permute((1, 0)), steps)
    checked(a[::2, ::-1], values(266, 65)[::2], steps)
    checked(values(2, 1, 40, 30), values(3, 30, 20), STEPS["all"])
    checked(values(1, 30).broadcast_to((40, 30)), values(30, 50), steps)
    row, backend = values(1, 40)[:, ::2].broadcast_to((3, 20)), ndl.cpu().backend
    given = [values(3, 20)], values(3, 4), values(4, 20)
    assert not NativeBackend.matmul_epilogue(backend, *given, [("add", 0)], [row], -1)


def test_numbers_that_the_matrix_unit_cannot_take(isa, only):
    for dtype in ("float32", "bfloat16"):
        a, b = values(300, 520, dtype=dtype), values(520, 260, seed=1, dtype=dtype)
        large = ndl.Tensor(np.where(np.arange(300) == 7, 1e30, 1.0)[:, None]).astype(dtype)
        checked((ndl.Tensor(a) * large).array, b, STEPS["bias_gelu"], 1)


def test_layouts_that_separate_kernels_would_keep(isa):
    a, b = values(30, 40), values(40, 20, seed=1)
    turned = values(20, 30, seed=2).permute((1, 0))
    checked(a, b, [("add", 1), ("tanh", -1)], others=[turned])


@looped("row", [(), (1,)])
@looped("shape", SHAPES)
@looped("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_matmul_bias_has_the_bits_of_a_sum(isa, dtype, shape, row):
    a, b = (ndl.Tensor(values(*s).astype(dtype)) for s in SHAPES[shape])
    bias = ndl.Tensor(values(*row, b.shape[-1], seed=2).astype(dtype))
    found, expected = executor.apply(ops.MatMulBias.of(), a, b, bias), a @ b + bias
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_matmul_bias_of_other_operands(isa):
    op = ops.MatMulBias.of()
    a, b = ndl.Tensor(values(6, 1)), ndl.Tensor(values(1, 8))
    wide = ndl.Tensor(values(16, seed=2))
    same = np.testing.assert_array_equal
    same(op(a, b, wide[::2]).numpy(), (a @ b + wide[::2]).numpy())
    same(op(b.T, a.T, wide[:6]).numpy(), (b.T @ a.T + wide[:6]).numpy())
    c = ndl.Tensor(values(8, 8))
    same(op(c, c, wide[::2]).numpy(), (c @ c + wide[::2]).numpy())
    same(op(c, c, wide[:1].broadcast_to((8,))).numpy(), (c @ c + wide[:1]).numpy())
    with pytest.raises(ShapeError, match="inner sizes"):
        op(c, ndl.Tensor(values(7, 8)), wide[:8])
    with pytest.raises(ShapeError, match="bias has shape"):
        op(c, c, c)
    with pytest.raises(ShapeError, match="bias has shape"):
        op(c, c, wide[:1])
    with pytest.raises(DtypeError):
        op(c, c, wide[:8].astype("int32"))


def test_linear_gives_gradients_as_a_product_and_a_sum(isa):
    layer, x = ndl.nn.Linear(7, 5), ndl.Tensor(values(4, 7), requires_grad=True)
    layer(x).tanh().sum().backward()
    found = [x.grad, layer.weight.grad, layer.bias.grad]
    leaves = [ndl.Tensor(t.array, requires_grad=True) for t in (x, layer.weight, layer.bias)]
    (leaves[0] @ leaves[1] + leaves[2]).tanh().sum().backward()
    for grad, leaf in zip(found, leaves, strict=True):
        np.testing.assert_array_equal(grad.numpy(), leaf.grad.numpy())


def test_a_wrong_product_names_the_parameter(isa):
    layer = ndl.nn.Linear(5, 2)
    with pytest.raises(ShapeError, match='inner sizes differ(.|\n)*parameter "weight"'):
        layer(ndl.zeros(8, 3))

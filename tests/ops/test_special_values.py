"""Zeros with signs, infinities and NaN: what the array API standard (2024.12) lists per function,
on every device. The expectations are literal rows of its tables, written out for values.
"""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import core, ops
from needle.standard import linalg

INF, NAN = float("inf"), float("nan")
PI = np.pi
ISAS = core.native.supported_isas() if core.native is not None else ["none"]

UNARY = {
    "absolute": [(-0.0, 0.0), (-INF, INF), (NAN, NAN)],
    "negative": [(0.0, -0.0), (-0.0, 0.0), (INF, -INF), (NAN, NAN)],
    "sign": [(0.0, 0.0), (-0.0, 0.0), (-INF, -1.0), (3.0, 1.0), (NAN, NAN)],
    "square": [(-INF, INF), (-0.0, 0.0), (NAN, NAN)],
    "sqrt": [(-1.0, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (NAN, NAN)],
    "reciprocal": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)],
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (NAN, NAN)],
    "log": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (NAN, NAN)],
    "log2": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (NAN, NAN)],
    "log10": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (NAN, NAN)],
    "log1p": [
        (-2.0, NAN), (-1.0, -INF), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (-INF, NAN), (NAN, NAN),
    ],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "asin": [(2.0, NAN), (-2.0, NAN), (0.0, 0.0), (-0.0, -0.0), (NAN, NAN)],
    "acos": [(2.0, NAN), (-2.0, NAN), (1.0, 0.0), (NAN, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, PI / 2), (-INF, -PI / 2), (NAN, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "acosh": [(0.5, NAN), (1.0, 0.0), (INF, INF), (NAN, NAN)],
    "atanh": [
        (-2.0, NAN), (2.0, NAN), (-1.0, -INF), (1.0, INF), (0.0, 0.0), (-0.0, -0.0), (NAN, NAN),
    ],
    "floor": [(INF, INF), (-INF, -INF), (-0.0, -0.0), (0.0, 0.0), (-0.5, -1.0), (NAN, NAN)],
    "ceil": [(INF, INF), (-INF, -INF), (-0.0, -0.0), (0.0, 0.0), (-0.5, -0.0), (NAN, NAN)],
    "trunc": [(INF, INF), (-INF, -INF), (-0.0, -0.0), (-0.7, -0.0), (NAN, NAN)],
    "round": [(INF, INF), (-0.0, -0.0), (0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0)],
    "isnan": [(INF, False), (NAN, True), (0.0, False)],
    "isinf": [(INF, True), (-INF, True), (NAN, False), (0.0, False)],
    "isfinite": [(INF, False), (-INF, False), (NAN, False), (0.0, True)],
    # not in the standard: the limits
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "sigmoid": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN)],
    "softplus": [(INF, INF), (-INF, 0.0), (NAN, NAN)],
    "relu": [(INF, INF), (-INF, 0.0), (NAN, NAN)],
    "silu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (NAN, NAN)],
    "gelu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (NAN, NAN)],
    "gelu_tanh": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (NAN, NAN)],
    "elu": [(INF, INF), (-INF, -1.0), (NAN, NAN)],
    "leaky_relu": [(INF, INF), (-INF, -INF), (NAN, NAN)],
}  # fmt: skip

BINARY = {
    "add": [
        (INF, -INF, NAN), (-INF, INF, NAN), (INF, INF, INF), (-INF, 2.0, -INF), (2.0, INF, INF),
        (-0.0, -0.0, -0.0), (-0.0, 0.0, 0.0), (0.0, -0.0, 0.0), (2.0, -2.0, 0.0), (NAN, 1.0, NAN),
    ],
    "subtract": [(INF, INF, NAN), (-0.0, 0.0, -0.0), (0.0, 0.0, 0.0), (1.0, INF, -INF)],
    "multiply": [
        (INF, 0.0, NAN), (-0.0, -INF, NAN), (INF, -2.0, -INF), (-INF, -INF, INF), (-0.0, 3.0, -0.0),
        (-0.0, -3.0, 0.0), (NAN, 0.0, NAN),
    ],
    "divide": [
        (INF, INF, NAN), (-INF, INF, NAN), (0.0, -0.0, NAN), (0.0, 2.0, 0.0), (0.0, -2.0, -0.0),
        (-0.0, 2.0, -0.0), (-0.0, -2.0, 0.0), (2.0, 0.0, INF), (2.0, -0.0, -INF), (-2.0, 0.0, -INF),
        (-2.0, -0.0, INF), (INF, 2.0, INF), (INF, -2.0, -INF), (-INF, 2.0, -INF), (-INF, -2.0, INF),
        (2.0, INF, 0.0), (2.0, -INF, -0.0), (-2.0, INF, -0.0), (-2.0, -INF, 0.0), (NAN, 2.0, NAN),
    ],
    "floor_divide": [
        (INF, INF, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN), (0.0, 2.0, 0.0),
        (0.0, -2.0, -0.0), (-0.0, 2.0, -0.0), (-0.0, -2.0, 0.0), (2.0, 0.0, INF), (2.0, -0.0, -INF),
        (-2.0, 0.0, -INF), (-2.0, -0.0, INF), (INF, 2.0, INF), (INF, -2.0, -INF),
        (-INF, 2.0, -INF), (-INF, -2.0, INF), (2.0, INF, 0.0), (2.0, -INF, -0.0),
        (-2.0, INF, -0.0), (-2.0, -INF, 0.0), (NAN, 2.0, NAN), (2.0, NAN, NAN), (-5.0, 2.0, -3.0),
    ],
    "remainder": [
        (INF, 2.0, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN), (0.0, 2.0, 0.0),
        (-0.0, 2.0, 0.0), (0.0, -2.0, -0.0), (-0.0, -2.0, -0.0), (2.0, 0.0, NAN), (-2.0, -0.0, NAN),
        (2.0, INF, 2.0), (2.0, -INF, -INF), (-2.0, INF, INF), (-2.0, -INF, -2.0), (NAN, 2.0, NAN),
        (4.0, 2.0, 0.0), (4.0, -2.0, -0.0), (-5.0, 3.0, 1.0),
    ],
    "power": [
        (3.0, INF, INF), (-3.0, INF, INF), (3.0, -INF, 0.0), (-3.0, -INF, 0.0), (1.0, INF, 1.0),
        (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (1.0, NAN, 1.0), (NAN, 0.0, 1.0), (NAN, -0.0, 1.0),
        (NAN, 2.0, NAN), (2.0, NAN, NAN), (0.5, INF, 0.0), (-0.5, INF, 0.0), (0.5, -INF, INF),
        (INF, 2.0, INF), (INF, -2.0, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF), (-INF, 2.5, INF),
        (-INF, -3.0, -0.0), (-INF, -2.0, 0.0), (0.0, 2.0, 0.0), (0.0, -2.0, INF), (-0.0, 3.0, -0.0),
        (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (-0.0, -3.0, -INF), (-0.0, -2.0, INF),
        (-0.0, -0.5, INF), (-2.0, 0.5, NAN), (-2.0, -1.5, NAN), (-2.0, 3.0, -8.0), (0.0, 0.0, 1.0),
        (0.0, INF, 0.0), (0.0, -INF, INF), (INF, 0.0, 1.0), (-INF, INF, INF), (-INF, -INF, 0.0),
    ],
    "atan2": [
        (2.0, 0.0, PI / 2), (2.0, -0.0, PI / 2), (0.0, 2.0, 0.0), (0.0, 0.0, 0.0), (0.0, -0.0, PI),
        (0.0, -2.0, PI), (-0.0, 2.0, -0.0), (-0.0, 0.0, -0.0), (-0.0, -0.0, -PI), (-0.0, -2.0, -PI),
        (-2.0, 0.0, -PI / 2), (-2.0, -0.0, -PI / 2), (2.0, INF, 0.0), (2.0, -INF, PI),
        (-2.0, INF, -0.0), (-2.0, -INF, -PI), (INF, 2.0, PI / 2), (-INF, 2.0, -PI / 2),
        (INF, INF, PI / 4), (INF, -INF, 3 * PI / 4), (-INF, INF, -PI / 4),
        (-INF, -INF, -3 * PI / 4), (NAN, 1.0, NAN), (1.0, NAN, NAN),
    ],
    "hypot": [(INF, NAN, INF), (NAN, -INF, INF), (-0.0, 0.0, 0.0), (NAN, 1.0, NAN)],
    "copysign": [(1.0, -0.0, -1.0), (1.0, 0.0, 1.0), (-1.0, 0.0, 1.0), (0.0, -2.0, -0.0)],
    "logaddexp": [(NAN, 1.0, NAN), (INF, 1.0, INF), (-INF, -INF, -INF), (INF, -INF, INF)],
    "maximum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, INF), (-INF, 1.0, 1.0)],
    "minimum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, 1.0), (-INF, 1.0, -INF)],
    "nextafter": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (-0.0, 0.0, 0.0), (0.0, -0.0, -0.0)],
    "equal": [(NAN, NAN, False), (0.0, -0.0, True), (INF, INF, True)],
    "not_equal": [(NAN, NAN, True), (0.0, -0.0, False)],
    "less": [(NAN, 1.0, False), (1.0, NAN, False), (-INF, INF, True), (-0.0, 0.0, False)],
    "less_equal": [(NAN, NAN, False), (-0.0, 0.0, True), (INF, INF, True)],
    "greater": [(NAN, 1.0, False), (INF, -INF, True), (0.0, -0.0, False)],
    "greater_equal": [(NAN, NAN, False), (0.0, -0.0, True)],
}  # fmt: skip


@pytest.fixture(params=ISAS)
def isa(request, device):
    """Each instruction set of the native kernels; other devices run once."""
    if core.native is None or device.name != "cpu":
        if request.param != ISAS[0]:
            pytest.skip("a device without instruction sets")
        yield ""
        return
    before = core.native.isa()
    core.native.select_isa(request.param)
    yield request.param
    core.native.select_isa(before)


def check(name, device, dtype, rows):
    """Compare a function's results, signs of zeros included. Values are repeated, so that they
    meet the vector code as well as what follows the last whole vector."""
    columns = [np.tile(np.array(column), 37) for column in zip(*rows, strict=True)]
    tensors = [ndl.Tensor(x, dtype=dtype, device=device) for x in columns[:-1]]
    expected = columns[-1].astype(bool if columns[-1].dtype == bool else dtype)
    found = getattr(ops, name)(*tensors).numpy()
    for row, x, y in zip(rows * 37, found, expected, strict=True):
        same = np.isnan(x) if np.isnan(y) else np.isclose(x, y, 4 * np.finfo(dtype).eps, 0)
        assert same and (np.isnan(y) or np.signbit(x) == np.signbit(y)), f"{name}{row} gave {x}"


@looped("dtype", ["float32", "float64"])
@looped("name", UNARY)
def test_one_operand(name, device, isa, dtype):
    check(name, device, dtype, UNARY[name])


@looped("dtype", ["float32", "float64"])
@looped("name", BINARY)
def test_two_operands(name, device, isa, dtype):
    check(name, device, dtype, BINARY[name])


def test_the_gradient_of_logsumexp_hides_no_nan(device):
    """It is that of PyTorch, but for a sum of nothing, which masks make: there it is zero."""
    rows = [[NAN, 1.0, 2.0], [INF, 1.0, 2.0], [-INF, -INF, -INF], [-INF, 0.0, 0.0]]
    x = ndl.Tensor(rows, device=device)
    ops.logsumexp(x, 1).sum().backward()
    expected = [[NAN, NAN, NAN], [NAN, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


@looped("axis", [0, 1])
@looped("kind, huge", [("float32", 2.0**100), ("float64", 2.0**600)])
def test_the_variance_of_numbers_whose_squares_are_infinite_is_no_nan(kind, huge, axis, device):
    for values, expected in (([huge] * 64, 0.0), ([huge, -huge] * 32, INF), ([huge] * 2**14, 0.0)):
        x = ndl.Tensor([values, values], dtype=kind, device=device)
        x = x if axis else x.transpose()
        np.testing.assert_array_equal(x.var(axis).numpy(), [expected] * 2)


def _std(x):
    return ops.std(x, -1)


DERIVATIVES = {  # function, inputs, gradients: as PyTorch has them
    "std of a constant": (_std, [[[2.0, 2.0, 2.0]]], [[[0.0, 0.0, 0.0]]]),
    "std, one row constant": (
        _std, [[[2.0, 2.0], [1.0, 3.0]]], [[[0.0, 0.0], [-0.5, 0.5]]],
    ),
    "power": (
        ops.power, [[0.0, 0.0, 0.0, 2.0], [0.0, 2.0, -1.0, 0.0]],
        [[0.0, 0.0, -INF, 0.0], [0.0, 0.0, -INF, np.log(2.0)]],
    ),
    "atan2": (
        ops.atan2, [[0.0, 0.0, -0.0, 1.0], [0.0, 2.0, 0.0, 0.0]],
        [[0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]],
    ),
    "logaddexp": (  # of a sum of nothing as that of logsumexp
        ops.logaddexp, [[-INF, -INF, 0.0, INF, INF], [-INF, 0.0, 0.0, 0.0, INF]],
        [[0.0, 0.0, 0.5, 1.0, NAN], [0.0, 1.0, 0.5, 0.0, NAN]],
    ),
}  # fmt: skip


@looped("name", DERIVATIVES)
@looped("kind", ["float16", "float64"])
def test_derivatives(name, kind, device):
    function, inputs, expected = DERIVATIVES[name]
    xs = [ndl.Tensor(x, dtype=kind, device=device) for x in inputs]
    places = tuple(range(len(xs)))
    found = ndl.grad(lambda *xs: function(*xs).sum(), places)(*xs)
    for i, (x, own) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(x.numpy(), np.array(own), rtol=1e-3)
        vs = [np.ones(x.shape) if i == j else None for j in places]
        _, slope = ndl.jvp(lambda *xs: function(*xs), xs, vs)
        wanted = np.array(own).sum(-1) if name.startswith("std") else own
        np.testing.assert_allclose(slope.numpy(), wanted, rtol=1e-3, atol=1e-6)


SECOND = {  # the second derivatives with respect to the first input
    "x ** 0": (lambda x: x**0, [0.0, 2.0], [0.0, 0.0]),
    "x ** 1": (lambda x: x**1, [0.0, 2.0], [0.0, 0.0]),
    "x ** 2.0": (lambda x: ops.power(x, 2.0), [0.0, 2.0], [2.0, 2.0]),
    "x ** 3": (lambda x: x**3, [0.0, 2.0], [0.0, 12.0]),
    "power_scalar": (lambda x: ops.power_scalar(x, 0), [0.0, 2.0], [0.0, 0.0]),
    "std": (lambda x: ops.std(x, 0), [2.0, 2.0], [0.0, 0.0]),
    "atan2": (lambda x: ops.atan2(x, 0.0 * x), [0.0, 2.0], [0.0, 0.0]),
    "logaddexp": (lambda x: ops.logaddexp(x, -x), [-INF, 0.0], [0.0, 1.0]),
    "logaddexp of nothing": (lambda x: ops.logaddexp(x, x - 1.0), [-INF, 0.0], [0.0, 0.0]),
}


@looped("name", SECOND)
def test_second_derivatives(name):
    function, values, expected = SECOND[name]
    x = ndl.Tensor(values, dtype="float64")
    slope = ndl.grad(lambda x: function(x).sum())
    found = ndl.grad(lambda x: slope(x).sum())(x)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(ndl.jvp(slope, x, 1.0)[1].numpy(), expected)
    third = ndl.grad(lambda x: ndl.grad(lambda x: slope(x).sum())(x).sum())(x)
    assert np.isfinite(third.numpy()).all()


@looped("kind", ["float16", "float32", "float64"])
@looped("function", [ops.silu, ops.gelu, ops.gelu_tanh])
def test_smooth_rectifiers_are_straight_far_from_zero(function, kind, device):
    """Also at infinity, where the formulas of their derivatives have 0 times infinity."""
    x = ndl.Tensor([-INF, -200.0, 200.0, INF], dtype=kind, device=device)
    ones = ndl.ones(4, dtype=kind, device=device)
    slope = ndl.grad(lambda x: function(x).sum())
    for found in (slope(x), ndl.jvp(function, x, ones)[1]):
        np.testing.assert_allclose(found.numpy(), [0.0, 0.0, 1.0, 1.0], rtol=0, atol=1e-30)
    for found in (ndl.grad(lambda x: slope(x).sum())(x), ndl.jvp(slope, x, ones)[1]):
        np.testing.assert_allclose(found.numpy(), 0.0, atol=1e-30)


@looped("function", [ops.silu, ops.gelu, ops.gelu_tanh])
def test_second_derivatives_of_smooth_rectifiers_lose_nothing(function):
    """They are small where the gates are next to 1, whose distance from it float32 has not."""
    x = np.linspace(3, 8, 51)
    x = np.concatenate([x, -x])
    wide, narrow = (ndl.Tensor(x, dtype=kind) for kind in ("float64", "float32"))
    slope = ndl.grad(lambda x: function(x).sum())
    exact, found = (ndl.jvp(slope, x, ndl.ones_like(x))[1].numpy() for x in (wide, narrow))
    sloped = slope(wide + 1e-6).numpy() - slope(wide - 1e-6).numpy()
    np.testing.assert_allclose(exact, sloped / 2e-6, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=1e-20)


ORDERS = {  # the product of the Hessian of a scalar function and vectors, in four ways
    "forward over reverse": ndl.hvp,
    "reverse over forward": lambda f, xs, vs: _gradients(lambda *ys: ndl.jvp(f, ys, vs)[1], xs),
    "reverse over reverse": lambda f, xs, vs: _gradients(
        lambda *ys: sum((g * v).sum() for g, v in zip(_gradients(f, ys), vs, strict=True)), xs
    ),
    "linearized": lambda f, xs, vs: ndl.linearize(lambda *ys: _gradients(f, ys), *xs)[1](*vs),
}


def _gradients(function, xs):
    return ndl.grad(function, tuple(range(len(xs))))(*xs)


def test_a_power_of_one_half_is_no_root(device):
    x = ndl.Tensor([-INF, -0.0, 4.0], device=device)
    for result in (x**0.5, ops.power(x, 0.5), ops.power(x, ndl.Tensor(0.5, device=device))):
        np.testing.assert_array_equal(result.numpy(), [INF, 0.0, 2.0])
        assert not np.signbit(result.numpy()).any()


@looped("order", ORDERS)
def test_mixed_derivatives_of_a_power_whose_exponent_is_0(order):
    """The derivative by x and y of x ** y is 1 / x there; it was 0 by way of that by x."""
    x, y = np.array([2.0, 0.5, 1.0]), np.zeros(3)
    xs = tuple(ndl.Tensor(z, dtype="float64") for z in (x, y))
    vs = tuple(ndl.Tensor(v, dtype="float64") for v in (np.full(3, 0.25), np.full(3, 3.0)))
    dx, dy = ORDERS[order](lambda x, y: (x**y).sum(), xs, vs)
    np.testing.assert_allclose(dx.numpy(), 3.0 / x)
    np.testing.assert_allclose(dy.numpy(), 0.25 / x + 3.0 * np.log(x) ** 2)


@looped("order", ORDERS)
def test_the_second_derivative_of_the_huber_loss_where_nothing_is_apart(order):
    """It is 1 within delta, also at 0, where the first derivative of a distance is none."""
    x = ndl.Tensor([1.0, 2.0, 9.0], dtype="float64")
    y = ndl.Tensor([1.0, 2.5, 1.0], dtype="float64")
    vs = ndl.ones(3, dtype="float64"), ndl.zeros(3, dtype="float64")

    def loss(x, y):
        return ops.huber_loss(x, y, reduction="sum")

    dx, dy = ORDERS[order](loss, (x, y), vs)
    np.testing.assert_array_equal(dx.numpy(), [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(dy.numpy(), [-1.0, -1.0, 0.0])


NORMS = {  # order: the gradient at (0, 3, -4), that at 0 is 0; as PyTorch has it
    2: np.array([0.0, 3.0, -4.0]) / 5.0,
    3: np.array([0.0, 9.0, -16.0]) / 91.0 ** (2 / 3),
    1.5: np.array([0.0, 3.0**0.5, -2.0]) / (3.0**1.5 + 8.0) ** (1 / 3),
    0.5: np.array([0.0, 3.0**-0.5, -0.5]) * (3.0**0.5 + 2.0),
    -1: np.zeros(3),
}


@looped("order", NORMS)
def test_a_norm_at_0(order, device):
    x = ndl.Tensor([[0.0, 3.0, -4.0], [0.0, 0.0, 0.0]], device=device, dtype="float64")

    def norm(x):
        return linalg.vector_norm(x, axis=1, ord=order)

    np.testing.assert_allclose(
        norm(x).numpy(), [0.0 if order < 0 else np.linalg.norm(x.numpy()[0], order), 0.0]
    )
    found = ndl.grad(lambda x: norm(x).sum())(x)
    np.testing.assert_allclose(found.numpy(), [NORMS[order], [0.0, 0.0, 0.0]], atol=1e-14)
    slope = ndl.jvp(norm, x, 1.0)[1]
    np.testing.assert_allclose(slope.numpy(), [np.sum(NORMS[order]), 0.0], atol=1e-14)
    if order == 2:
        assert not ndl.grad(lambda x: linalg.matrix_norm(x).sum())(x * 0.0).numpy().any()


@looped("dtype", ["float16", "bfloat16"])
def test_nextafter_in_16_bits(device, dtype):
    """All bits, towards each side: the next number is that of the dtype, not of float32."""
    every = np.arange(2**16, dtype=np.uint16).view(ndl.dtype.as_dtype(dtype).numpy)
    x = ndl.Tensor(every, device=device)
    for towards in (INF, -INF, 0.0, -0.0, 1.0, NAN):
        y = ndl.Tensor(np.array([towards]), dtype=dtype, device=device)
        with np.errstate(all="ignore"):
            expected = np.nextafter(every, y.numpy())
            expected = np.where(every == y.numpy(), y.numpy(), expected)  # -0.0 towards 0.0, as C
        for found in (ops.nextafter(x, y).numpy(), ops.nextafter(x[::-1], y).numpy()[::-1]):
            known = expected == expected
            np.testing.assert_array_equal(found != found, ~known)
            bits = found[known].view(np.uint16)
            np.testing.assert_array_equal(bits, expected[known].view(np.uint16))


@looped("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_wrong_certainty_costs_much(dtype):
    x = ndl.Tensor([np.inf, np.inf, -np.inf, -np.inf, np.nan], dtype=dtype)
    y = ndl.Tensor([0.0, 0.5, 1.0, 0.5, 0.0], dtype=dtype, requires_grad=False)
    losses = ndl.bce_with_logits(x, y, reduction="none")
    assert (losses.numpy()[:4] > 3e4).all() and np.isnan(losses.numpy()[4])
    losses.backward()
    np.testing.assert_array_equal(x.grad.numpy()[:4], [1.0, 0.5, -1.0, -0.5])
    certain = ndl.Tensor([np.inf, -np.inf], dtype=dtype), ndl.Tensor([1.0, 0.0], dtype=dtype)
    losses = ndl.bce_with_logits(*certain, pos_weight=ndl.Tensor([3.0]), reduction="none")
    assert losses.tolist() == [0.0, 0.0]


@looped("overrides", ["on", "off"])
@looped("smoothing", [0.0, 0.25])
@looped("middle", [0.0, 2.0**12, -(2.0**20), 2.0**100])
def test_a_loss_does_not_depend_on_where_logits_lie(device, middle, smoothing, overrides):
    away = np.random.default_rng(0).integers(-8, 9, (3, 5000)) * (middle < 1e30)
    x = ndl.Tensor(middle + away, device=device)
    lse = np.log(np.exp(away).sum(-1, keepdims=True))
    exact = lse[:, 0] - (1 - smoothing) * away[:, 7] - smoothing * away.mean(-1)
    gradient = np.exp(away - lse) - smoothing / 5000
    gradient[:, 7] -= 1 - smoothing
    labels = ndl.Tensor([7, 7, 7], dtype="int64", device=device)
    with ndl.config(overrides=overrides):
        found = ndl.cross_entropy(x, labels, label_smoothing=smoothing, reduction="none")
        found.sum().backward()
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-5, atol=1e-10)


@looped("overrides", ["on", "off"])
@looped("dtype", ["float32", "float64"])
@looped("rows", [3, 20_000])  # of one block, and of many
def test_the_mean_of_a_column_with_an_infinity_is_infinite(device, rows, dtype, overrides):
    values = np.random.default_rng(0).standard_normal((rows, 5))
    values[0, 0] = values[rows // 2, 1] = values[:2, 2] = INF
    values[0, 1], values[[0, -1], 3] = 1.0, [INF, -INF]
    x, one = ndl.Tensor(values, dtype=dtype, device=device), ndl.ones(5, dtype=dtype, device=device)
    with ndl.config(overrides=overrides):
        for norm in (ops.batch_norm, ops.batch_norm_relu):
            _, mean, var = norm(x, one, one)
            np.testing.assert_array_equal(mean.numpy()[:4], [INF, INF, INF, NAN])
            np.testing.assert_allclose(mean.numpy()[4], values[:, 4].mean(), rtol=1e-4, atol=1e-7)
            np.testing.assert_array_equal(np.isnan(var.numpy()), [True] * 4 + [False])


@looped("overrides", ["on", "off"])
def test_an_infinite_logit_beside_the_label_costs_infinitely_much(device, overrides):
    x = ndl.Tensor([[INF, 1.0, 2.0], [-INF, 1.0, 1.0], [1.0, -INF, 0.0]], device=device)
    labels = ndl.Tensor([1, 1, 1], dtype="int64", device=device)
    with ndl.config(overrides=overrides):
        found = ndl.cross_entropy(x, labels, reduction="none").numpy()
    assert found[0] == found[2] == INF
    np.testing.assert_allclose(found[1], np.log(2.0), rtol=1e-6)


@looped("overrides", ["on", "off"])
def test_an_infinity_at_the_border_counts_once_in_cubic_interpolation(device, overrides):
    x = ndl.Tensor([INF, 1.0, 2.0, 3.0], device=device)
    with ndl.config(overrides=overrides):
        found = ops.Interpolate.of(0, (7,), (1.75,), "cubic corners")(x).numpy()
    np.testing.assert_array_equal(found, [INF, INF, 1.0, -INF, 2.0, 2.59375, 3.0])


LEFT_OUT = {
    "clip": (lambda x: x.clip(0.0, 2.0), [0.0, 1.0, 0.0]),
    "relu6": (lambda x: ops.relu6(3.0 * x), [0.0, 3.0, 0.0]),
    "maximum": (lambda x: ops.maximum(x, 0.0), [0.0, 1.0, 1.0]),
    "minimum": (lambda x: -ops.minimum(-x, 0.0), [0.0, 1.0, 1.0]),
    "max": (lambda x: x.max(), [0.0, 0.0, 1.0]),
    "min": (lambda x: -(-x).min(), [0.0, 0.0, 1.0]),
    "softshrink": (lambda x: ops.softshrink(x, 2.0), [0.0, 0.0, 1.0]),
    "floor": (lambda x: ops.floor(x), [0.0, 0.0, 0.0]),
}


@looped("lazy", [False, True])
@looped("name", LEFT_OUT)
def test_an_infinite_gradient_does_not_reach_what_is_left_out(device, name, lazy):
    function, slopes = LEFT_OUT[name]
    x = ndl.Tensor([-1.0, 1.5, 3.0], device=device)
    with ndl.lazy_mode(lazy):
        y = function(x)
        y.backward(ndl.full_like(y, INF))
        _, tangent = ndl.jvp(function, x, ndl.full_like(x, INF))
    chosen = np.array(slopes) > 0
    np.testing.assert_array_equal(x.grad.numpy(), np.where(chosen, INF, 0.0))
    expected = chosen.any() if y.shape == () else chosen
    np.testing.assert_array_equal(tangent.numpy(), np.where(expected, INF, 0.0))


@looped("x", [9.0, 39.0, 50.0, INF])
def test_the_logarithm_of_a_certainty_does_not_move(x, device):
    for dtype in ("float32", "float64"):
        at = ndl.Tensor(x, dtype=dtype, device=device)
        slope = ndl.grad(ndl.log_ndtr)(at).item()
        exact = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) if np.isfinite(x) else 0.0
        np.testing.assert_allclose(slope, exact, rtol=1e-4, atol=1e-40)


def test_the_second_derivative_of_acosh_at_its_end(device):
    x = ndl.Tensor(1.0, dtype="float64", device=device)
    assert ndl.hessian(ndl.acosh)(x).item() == ndl.hvp(ndl.acosh, x, 1.0).item() == -INF
    huge = ndl.Tensor(1e30, device=device)  # whose square is none of float32
    assert ndl.grad(ndl.acosh)(huge).item() == pytest.approx(1e-30)


def test_losses_of_many_rows_in_half_precision(device):
    """Sums of them, and how many there are, are beyond float16."""
    n = 70_000
    x = ndl.Tensor(np.full((n, 2), -0.5), dtype="float16", device=device)
    labels = ndl.Tensor(np.zeros(n), dtype="int64", requires_grad=False, device=device)
    loss = ops.nll_loss(x, labels, ignore_index=1)
    assert loss.dtype == "float16" and loss.item() == 0.5
    loss.backward()
    assert x.grad.numpy()[:, 0].astype(float).sum() == pytest.approx(-1.0, rel=0.02)
    target = ndl.Tensor(np.full((n, 2), 0.9), dtype="float16", device=device)
    found = ops.kl_divergence(x, target).item()
    assert found == pytest.approx(2 * 0.9 * (np.log(0.9) + 0.5), rel=2e-3)

"""Elementwise functions of large arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from devices import ISAS
from large_arrays import FLOATS, check, exact, rows, tensor
from looped import looped

import needle as ndl
from needle import core, executor, ops
from needle.backend import ndarray
from needle.devices import as_device
from needle.ops.elementwise.activation import GELUGrad, GELUTanhGrad, SiLUGrad
from needle.ops.image import interpolation
from needle.testing.checks import cases
from needle.testing.tolerance import assert_close

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


@looped("zen", [0, 4, 5])
@looped("size", [32_768, 40_001])
@looped("dtype", [*FLOATS, "int32"])
def test_elementwise(count_as_zen, zen, dtype, size):
    count_as_zen(zen)
    a, b = (tensor(np.round(100 * rows(1, size, i)[0]), dtype, i) for i in range(2))
    x, y = exact(a), exact(b)
    check(a + b, x + y)
    check(ops.relu(a), np.maximum(x, 0))
    np.testing.assert_array_equal((a < b).numpy(), x < y)
    np.testing.assert_array_equal(ops.where(a < b, a, b).numpy(), np.where(x < y, x, y))
    np.testing.assert_array_equal(a.astype("float64").numpy(), x)


ONE_INPUT = sorted(
    (
        op
        for op in ops.all_ops()
        if issubclass(op, ops.Elementwise) and not op.static and op.operands() == 1
        if "float32" in cases(op)[0].dtypes
    ),
    key=lambda op: op.__name__,
)


@looped("op", ONE_INPUT, ids=lambda op: op.__name__)
def test_functions_have_the_same_bits_past_the_caches(isa, op):
    """Numbers of all sizes: those that functions compute in a slower way come one in a row, too."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-3, 3, 9000), 10 ** rng.uniform(-40, 38, 3000), [np.inf]])
    values = np.concatenate([values, -values, [np.nan, 0.0, -0.0], rng.uniform(0, 1, 17_000)])
    for start in (0, 1):  # of the input; results are aligned
        x = tensor(values, "float32", start)
        rows = x[:41_000].reshape(41, 1000)[:, 8:]
        found = [op.of()(x), op.of()(rows)]
        core.native.set_streaming_bytes(1 << 40)
        expected = [op.of()(x), op.of()(rows)]
        core.native.set_streaming_bytes(4096)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def power(x, y):
    """Return x ** y as the C library has it."""
    odd = y % 2 == 1
    if x == 0 and y < 0:
        return math.copysign(math.inf, x) if odd else math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return math.copysign(math.inf, x) if odd else math.inf
    except ValueError:
        return math.nan


@looped("dtype", ["float32", "float64"])
@looped("y", [2, 3, 4, 5, 1, 0.5, 1.5, -0.5, -1.5, -1, -2, -3])
def test_powers_of_numbers(isa, dtype, y):
    ends = [0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan, -2, 1e-20, -1e-20, 1e30, 1e-38, 1e-42]
    some = np.exp(np.random.default_rng(0).uniform(-20, 20, 1000))
    values = np.concatenate([ends, some, -some]).astype(dtype)
    found = (ndl.Tensor(values, dtype=dtype, requires_grad=False) ** float(y)).numpy()
    with np.errstate(over="ignore"):
        wanted = np.array([power(float(x), y) for x in values]).astype(dtype)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    apart = np.abs(found[finite].astype(np.longdouble) - wanted[finite])
    assert (apart <= 4 * np.spacing(np.abs(wanted[finite]))).all()
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(wanted[number]))


@looped("dtype", ["float32", "float64"])
@looped("op", [SiLUGrad, GELUGrad, GELUTanhGrad])
def test_gradients_of_activations_are_right_far_from_0(isa, dtype, op):
    values = np.concatenate([np.linspace(-60, 60, 4001), [1e4, -1e4, 1e30, -1e30]]).astype(dtype)
    x = ndl.Tensor(np.append(values, [np.inf, -np.inf, np.nan]), dtype=dtype, requires_grad=False)
    found = executor.apply(op.of(), x, ops.full(x.shape, 2.0, dtype=dtype)).numpy()
    near = np.clip(values.astype(np.longdouble), -40, 40)
    wanted = op.samples()[0].reference(near, 2.0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found[:-3], wanted.astype(float), 8 * eps, 8 * eps)
    np.testing.assert_array_equal(found[-3:], [2.0, 0.0, np.nan])


@looped("dtype", ["float32", "float64", "bfloat16", "int16", "int8", "bool"])
@looped("n", [1, 15, 16, 33, 1001])
def test_rows_in_reverse_order_are_copied_and_written(isa, dtype, n):
    values = np.random.default_rng(n).integers(0, 2, (7, n))
    x = ndl.Tensor(values, dtype=dtype, requires_grad=False)
    wanted = ndl.Tensor(np.ascontiguousarray(values[:, ::-1]), dtype=dtype, requires_grad=False)
    assert (x[:, ::-1].contiguous() == wanted).all()
    written = ops.zeros((7, n), dtype=dtype)
    written[:, ::-1] = x
    assert (written == wanted).all()


@looped("axis", [0, 1, 2, (0, 2), None])
@looped("places", [np.s_[..., ::-1], np.s_[::-1, ::-2], np.s_[:, -2:0:-1, ::-3]])
def test_reductions_of_axes_in_reverse_order(isa, places, axis):
    values = np.random.default_rng(0).standard_normal((5, 6, 301))
    x, part = ndl.Tensor(values, dtype="float64", requires_grad=False)[places], values[places]
    for function, wanted in ((ops.summation, np.sum), (ops.amax, np.max), (ops.var, np.var)):
        check(function(x, axis), wanted(part, axis), part.size)
    if not isinstance(axis, tuple):
        np.testing.assert_array_equal(ops.argmax(x, axis).numpy(), np.argmax(part, axis))


@looped("dtype", FLOATS)
def test_elementwise_with_steps_and_broadcasting(isa, dtype):
    a, row = tensor(rows(301, 402), dtype, 1), tensor(rows(1, 201), dtype)
    x = exact(a)
    check(a[:, ::2] + row, x[:, ::2] + exact(row))
    check(a.T[1:] * a.T[:-1], x.T[1:] * x.T[:-1])
    check(a[:, 1::2] - exact(row)[0, 0].item(), x[:, 1::2] - exact(row)[0, 0])


@looped("offset", [0, 1])
@looped("shape", [(192, 130), (131, 256)])
@looped("dtype", [*FLOATS, "int8", "int32"])
def test_transposed_operands_of_large_results(isa, dtype, shape, offset):
    """Their rows have whole lines, or end within one."""
    a = tensor(np.round(100 * rows(*shape)).astype(np.int8), dtype, offset)
    x = a.numpy()
    np.testing.assert_array_equal(a.T.reshape((-1,)).numpy(), x.T.reshape(-1))
    b = ops.reshape(a, shape[::-1])
    check((a.T + b).astype("float64"), (x.T + x.reshape(shape[::-1])).astype(float))


@pytest.mark.parametrize("inner", [32, 33])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_images_are_enlarged(isa, dtype, mode, inner):
    """By two threads, past the caches where pixels are whole vectors; each axis after the other."""
    how = interpolation.NEAREST if mode == "nearest" else interpolation.CENTRES
    x = tensor(rows(2 * 19 * 17, inner).reshape(2, 19, 17, inner), dtype)
    one = ops.Interpolate.of(1, (38,), (2.0,), how), ops.Interpolate.of(2, (51,), (3.0,), how)
    both = ops.Interpolate.of(1, (38, 51), (2.0, 3.0), how)
    check(both(x), exact(one[1](one[0](x))), 100)
    g = tensor(rows(2 * 38 * 51, inner).reshape(2, 38, 51, inner), dtype)
    back = ops.InterpolateGrad.of(1, (38, 51), (2.0, 3.0), how, (19, 17))
    first = ops.InterpolateGrad.of(2, (51,), (3.0,), how, (17,))
    second = ops.InterpolateGrad.of(1, (38,), (2.0,), how, (19,))
    check(back(g), exact(second(first(g))), 100)


@looped("zen", [0, 4, 5])
@looped("dtype", [*FLOATS, "int32"])
def test_results_larger_than_the_second_caches(count_as_zen, zen, dtype):
    core.native.set_streaming_bytes(4 << 20)  # and the second caches have half of that
    count_as_zen(zen)
    values = [np.round(100 * rows(*shape)) for shape in ((701, 1001), (1, 1001), (701, 1))]
    a, row, column = (tensor(v, dtype, 1) for v in values)
    x, y, z = (exact(v) for v in (a, row, column))
    check(a + a, x + x)
    check(a + row, x + y)
    check(column - a, z - x)
    check(a[:, ::2] * 3, x[:, ::2] * 3)
    check(ops.relu(a).T - a.T, np.maximum(-x.T, 0))
    np.testing.assert_array_equal((a < row).numpy(), x < y)
    np.testing.assert_array_equal(a.astype("float64").numpy(), x)
    np.testing.assert_array_equal(exact(-ops.broadcast_to(row, a.shape)), np.repeat(-y, 701, 0))
    if a.dtype.is_floating:
        check(ops.tanh(a / 64), np.tanh(x / 64))


BROADCAST = (
    ((41, 1001), (1001,)),  # a row
    ((41, 1001), (41, 1)),  # a column
    ((41, 1001), ()),  # a number
    ((7, 9001), (9001,)),  # a row that is cut
    ((41, 1), (1, 1001)),  # both
    ((5, 11, 801), (5, 1, 801)),
    ((11, 43, 33), (1, 43, 1)),
    ((301, 100), (100,)),  # rows that are taken together, so many as a buffer holds
    ((3001, 10), (1, 10)),
    ((40, 99, 3), (40, 1, 3)),
)


@looped("zen", [0, 4, 5])
@looped("offset", [0, 1])
@looped("shapes", BROADCAST)
@looped("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_rows_columns_and_numbers(count_as_zen, zen, dtype, shapes, offset):
    count_as_zen(zen)
    values = [np.round(40 * rows(1, int(np.prod(s)), i)).reshape(s) for i, s in enumerate(shapes)]
    a, b = (tensor(v, dtype, offset) for v in values)
    x, y = exact(a), exact(b)
    check(a + b, x + y)
    check(b - a, y - x)  # the one that is repeated comes first
    np.testing.assert_array_equal((a < b).numpy(), x < y)
    np.testing.assert_array_equal(ops.where(a < b, a, b).numpy(), np.where(x < y, x, y))
    np.testing.assert_array_equal(ops.where(a < b, 3, 4).numpy(), np.where(x < y, 3, 4))
    np.testing.assert_array_equal(exact(ops.where(b < 0, a, b)), np.where(y < 0, x, y))
    low, high = (4.5, 30.0) if a.dtype.is_floating else (5, 30)
    repeated = ops.broadcast_to(b, np.broadcast_shapes(*shapes))
    whole = exact(repeated)
    np.testing.assert_array_equal(exact(ops.clip(repeated, low, high)), np.clip(whole, low, high))
    np.testing.assert_array_equal(exact(-repeated), -whole)
    np.testing.assert_array_equal(exact(3 - repeated), 3 - whole)
    for kind in ("float64", "int64", "bfloat16"):
        expected = ops.astype(tensor(whole, "float64"), kind)
        np.testing.assert_array_equal(exact(ops.astype(repeated, kind)), exact(expected))


@looped("dtype", FLOATS)
@looped("shape", [(40_001,), (77, 513)])
def test_programs(isa, dtype, shape):
    device = as_device("cpu")
    a, b = (tensor(rows(1, int(np.prod(shape)), i).reshape(shape), dtype, i) for i in range(2))
    arrays = [executor.primal_array(x) for x in (a, b)]
    outs = [ndarray.empty(shape, a.dtype, device) for _ in range(2)]
    program = (("multiply", (0, 1)), ("maximum", (2, 0)), ("negative", (3,)))
    device.backend.run_fused(program, outs, arrays)
    larger = np.maximum(exact(a) * exact(b), exact(a))
    for out, expected in zip(outs, (larger, -larger), strict=True):
        assert_close(out.numpy(), expected, dtype)


def test_a_sum_may_take_the_place_of_a_term(isa):
    device = as_device("cpu")
    values = rows(1, 40_001)[0].astype(np.float32)
    total = ndarray.array(values, ndl.float32, device)
    device.backend.elementwise("add", total, total, total)
    np.testing.assert_array_equal(total.numpy(), values + values)


def test_gradient_of_a_long_cumulative_product(isa):
    n, zeros = 100_001, (60_000, 80_000)  # n * n numbers would be 80 GB
    values = np.random.default_rng(0).uniform(0.999, 1.001, n)
    values[list(zeros)] = 0
    g = np.random.default_rng(1).uniform(0.5, 1, n)
    x = tensor(values)
    (found,) = ndl.vjp(lambda x: ops.cumprod(x, 0), x)[1](tensor(g))
    sums, total = np.zeros(n), 0.0
    for k in reversed(range(n)):
        total = g[k] + (values[k + 1] * total if k + 1 < n else 0.0)
        sums[k] = total
    before = np.concatenate([[1.0], np.cumprod(values[:-1])])
    assert_close(found.numpy(), before * sums, "float64", n)


@looped("zen", [0, 1, 4, 5])
@looped("special", [np.inf, -np.inf, np.nan])
@looped("dtype", ["float32", "float64"])
def test_extremes_of_lines_with_infinities_and_nan(count_as_zen, zen, dtype, special):
    count_as_zen(zen)
    values = np.random.default_rng(0).standard_normal((41, 9000)).astype(dtype)
    for row, place in enumerate([0, 15, 127, 4095, 4096, 8191, 8192, 8999]):
        values[row, place] = special  # in the last row there is none
    values[2, 5000] = np.nan
    x = tensor(values)
    for ours, theirs in ((ops.amax, np.max), (ops.amin, np.min)):
        np.testing.assert_array_equal(ours(x, 1).numpy(), theirs(values, 1))
        np.testing.assert_array_equal(ours(x[3:], None).numpy(), theirs(values[3:]))
        np.testing.assert_array_equal(ours(x, None).numpy(), theirs(values))


@looped("name", ["and", "or", "xor"])
def test_every_byte_but_0_is_true(isa, name):
    """Memory of others may hold such bools; results are 0 and 1."""
    rows = [2, 0, 255, 1, 0, 8], [1, 1, 2, 0, 0, 6]
    x, y = (np.tile(np.array(row, np.uint8), 7001) for row in rows)
    operands = [ndl.Tensor(row.view(bool), requires_grad=False) for row in (x, y)]
    expected = getattr(np, f"logical_{name}")(x != 0, y != 0).astype(np.uint8)
    aliases = ["not_equal"] if name == "xor" else []
    for function in (f"logical_{name}", f"bitwise_{name}", *aliases):
        found = getattr(ops, function)(*operands).numpy().view(np.uint8)
        np.testing.assert_array_equal(found, expected)

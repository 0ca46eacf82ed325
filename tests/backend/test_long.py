"""What the native kernels do with large inputs only: results stored past the caches, long lines,
many rows. Compared with float64 on every instruction set.

Stores past the caches begin at a size that is set low here; some tests have the true size.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from devices import ISAS

import needle as ndl
from needle import core, executor, ops, optim
from needle.backend import ndarray
from needle.device import as_device
from needle.errors import IndexRangeError
from needle.ops.activation import GELUGrad, GELUTanhGrad, SiLUGrad
from needle.ops.indexing import Take, TakeGrad
from needle.ops.loss import NOTHING, CrossEntropy, CrossEntropyGrad
from needle.ops.norm import LayerNorm, LayerNormGrad, RMSNorm, RMSNormGrad
from needle.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from needle.testing.checks import cases
from needle.testing.tolerance import assert_close

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")

FLOATS = ("float32", "float64", "bfloat16")
LENGTHS = (256, 1001, 1024, 4097)
"""Of rows: the shortest one that is stored past the caches; whole vectors and a rest; whole
vectors only, so that all rows are aligned alike; one more than whole vectors."""

EPS = 1e-5


@pytest.fixture
def isa(isa, two_threads):
    """Run the test on this instruction set, two threads, all but small results past the caches."""
    core.native.set_streaming_bytes(4096)
    yield isa
    core.native.set_streaming_bytes(0)


@pytest.fixture
def count_as_zen(isa):
    """Return what makes the kernels choose as for a generation of AMD's Zen, or for others (0)."""
    yield core.native.count_as_zen
    core.native.count_as_zen(-1)


def tensor(values, dtype=None, offset=0):
    """Return a tensor that begins ``offset`` elements after the start of its memory."""
    flat = np.concatenate([np.zeros(offset, values.dtype), values.reshape(-1)])
    whole = ndl.Tensor(flat, dtype=dtype or str(values.dtype), requires_grad=False, device="cpu")
    return whole[offset:].reshape(values.shape)


def exact(x):
    """Return the numbers that a tensor holds, in float64."""
    return x.numpy().astype(np.float64)


def apply(op, *inputs):
    """Return the results of an op as tensors, in a list."""
    result = executor.apply(op, *inputs)
    return list(result.tuple()) if isinstance(executor.value_of(result), tuple) else [result]


def check(actual, expected, length=1, scale=1.0):
    """Compare results with exact ones; ``scale`` brings values that are all small to about 1.

    A half-precision result is rounded once, from sums in float32.
    """
    kind = str(actual.dtype)
    half = kind in ("bfloat16", "float16")
    assert_close(exact(actual) * scale, expected * scale, kind, 1 if half else length)


def rows(count, n, seed=0):
    return np.random.default_rng(seed).standard_normal((count, n))


def strange(x):
    """Put NaN at a row's start, middle and end, and infinities into other rows."""
    n = x.shape[1]
    x[0, n - 1] = x[1, n // 2] = x[2, 0] = np.nan
    x[3] = -np.inf
    x[4, ::3] = -np.inf
    x[5, n - 2] = np.inf
    return x


# ---- softmax and cross entropy -----------------------------------------------------


def softmax(x):
    with np.errstate(all="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def log_softmax(x):
    with np.errstate(all="ignore"):
        low = x - x.max(-1, keepdims=True)
        return low - np.log(np.exp(low).sum(-1, keepdims=True))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(isa, dtype, n, offset):
    x = tensor(strange(3 * rows(9, n)), dtype, offset)
    check(*apply(Softmax.of(-1), x), softmax(exact(x)), n, n)
    check(*apply(LogSoftmax.of(-1), x), log_softmax(exact(x)), n)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradients_of_softmax(isa, dtype, n, offset):
    x, g = strange(3 * rows(9, n)), tensor(rows(9, n, 1), dtype, offset)
    out, wide = tensor(softmax(x), dtype, offset), exact(g)
    dot = (exact(out) * wide).sum(-1, keepdims=True)
    check(*apply(SoftmaxGrad.of(-1), out, g), exact(out) * (wide - dot), n, n)
    out = tensor(log_softmax(x), dtype, offset)
    total = wide.sum(-1, keepdims=True)
    check(*apply(LogSoftmaxGrad.of(-1), out, g), wide - np.exp(exact(out)) * total, n)


def test_softmax_along_an_axis_with_steps(isa):
    x = tensor(3 * rows(1001, 7), "float32")
    check(*apply(Softmax.of(0), x), softmax(exact(x).T).T, 1001, 1001)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [NOTHING, 3])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy(isa, dtype, n, ignore, smoothing):
    values = 3 * rows(9, n)
    values[1, n - 1] = np.nan
    if not smoothing:
        values[2, 1::2] = -np.inf
    x = tensor(values, dtype, 1)
    labels = np.array([0, n // 2, 2, 3, n - 1, 17, 3, 255, n - 2])
    wide, kept, at = exact(x), labels != ignore, np.arange(9)
    shift = np.where(np.isfinite(wide.max(-1)), wide.max(-1), 0.0)
    rest = np.log(np.exp(wide - shift[:, None]).sum(-1))
    loss = shift + rest - (1 - smoothing) * wide[at, labels]
    if smoothing:
        loss = loss - smoothing * wide.mean(-1)
    found = apply(CrossEntropy.of(ignore, smoothing), x, tensor(labels))
    check(found[0], np.where(kept, loss, 0.0), n)
    check(found[1], shift)
    check(found[2], rest, n)

    g = tensor(rows(1, 9)[0], str(found[1].dtype))
    target = np.full((9, n), smoothing / n)
    target[at, labels] += 1 - smoothing
    grad = exact(g)[:, None] * (np.exp(wide - (shift + rest)[:, None]) - target)
    parts = [tensor(part, str(g.dtype)) for part in (shift, rest)]
    found = apply(CrossEntropyGrad.of(ignore, smoothing), g, x, tensor(labels), *parts)
    check(*found, np.where(kept[:, None], grad, 0.0), n, n)


@pytest.mark.parametrize("bad", [-1, 1001])
def test_a_bad_label_is_named_by_cross_entropy_and_its_gradient(isa, bad):
    x, statistics = tensor(rows(9, 1001), "float32"), tensor(rows(1, 9)[0], "float32")
    labels = tensor(np.array([0, 1, 2, 1000, bad, 5, bad, 7, 8]))
    message = rf"label {bad} at position 4 is not one of 1001 classes"
    with pytest.raises(IndexRangeError, match=rf"^cross_entropy: {message}"):
        apply(CrossEntropy.of(), x, labels)
    with pytest.raises(IndexRangeError, match=rf"^cross_entropy_grad: {message}"):
        apply(CrossEntropyGrad.of(), statistics, x, labels, statistics, statistics)


# ---- norms -------------------------------------------------------------------------


def norm_inputs(dtype, count, n):
    """Return g, x, weight and bias, with a NaN in a row of x."""
    x = rows(count, n) + 3
    x[1, n - 1] = np.nan
    parameters = np.random.default_rng(2).uniform(0.5, 1.5, (2, n))
    g = tensor(rows(count, n, 1), dtype, 1)
    return g, tensor(x, dtype, 1), tensor(parameters[0], dtype), tensor(parameters[1], dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(isa, dtype, n):
    count = 37  # three blocks of rows, the last one odd
    inputs = norm_inputs(dtype, count, n)
    g, x, weight, bias = map(exact, inputs)
    mean, var = x.mean(-1), x.var(-1)
    rstd = 1 / np.sqrt(var + EPS)
    normal = (x - mean[:, None]) * rstd[:, None]
    found = apply(LayerNorm.of(EPS), *inputs[1:])
    for result, expected in zip(found, (normal * weight + bias, mean, rstd), strict=True):
        check(result, expected, n)

    scaled = g * weight
    along = scaled.mean(-1, keepdims=True) + normal * (scaled * normal).mean(-1, keepdims=True)
    expected = (rstd[:, None] * (scaled - along), (g * normal).sum(0), g.sum(0))
    found = apply(LayerNormGrad.of(), *inputs[:3], *found[1:])
    for result, values in zip(found, expected, strict=True):
        check(result, values, n + count)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(isa, dtype, n):
    count = 37
    inputs = norm_inputs(dtype, count, n)[:3]
    g, x, weight = map(exact, inputs)
    rstd = 1 / np.sqrt((x * x).mean(-1) + EPS)
    normal = x * rstd[:, None]
    found = apply(RMSNorm.of(EPS), *inputs[1:])
    for result, expected in zip(found, (normal * weight, rstd), strict=True):
        check(result, expected, n)

    scaled = g * weight
    along = normal * (scaled * normal).mean(-1, keepdims=True)
    expected = (rstd[:, None] * (scaled - along), (g * normal).sum(0))
    found = apply(RMSNormGrad.of(), *inputs, found[1])
    for result, values in zip(found, expected, strict=True):
        check(result, values, n + count)


# ---- rows by index -----------------------------------------------------------------


def ids_of(count, extent):
    """Return ids of which some come often, some never, and some count from the end."""
    random = np.random.default_rng(5)
    ids = random.integers(-extent, extent // 2, count)
    ids[random.permutation(count)[: count // 8]] = 3
    return ids


@pytest.mark.parametrize("n", [16, 256, 1001])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_rows_are_gathered(isa, dtype, n):
    ids = ids_of(150, 200)
    x = tensor(np.round(100 * rows(200, n)), dtype, 1)
    for kind in ("int64", "int32", "int16"):
        (found,) = apply(Take.of(0), x, tensor(ids.astype(kind)))
        np.testing.assert_array_equal(found.numpy(), x.numpy()[ids])


@pytest.mark.parametrize("n", [16, 256, 1001])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64"])
def test_rows_are_added_where_ids_say(isa, dtype, n):
    extent, ids = 203, ids_of(151, 203)
    updates = tensor(np.round(100 * rows(151, n)) / 64, "float64", 1)
    updates = tensor(updates.numpy().astype(dtype if dtype.startswith("int") else float), dtype, 1)
    expected = np.zeros((extent, n))
    np.add.at(expected, ids, exact(updates))
    for kind in ("int64", "int32", "int16"):
        index = tensor(ids.astype(kind))
        (found,) = apply(TakeGrad.of(0, (extent, n)), index, updates)
        assert_close(found.numpy(), expected, dtype, int(np.bincount(ids % extent).max()))


@pytest.mark.parametrize("bad", [-204, 203])
def test_a_bad_id_is_named(isa, bad):
    ids = ids_of(151, 203)
    ids[[70, 90]] = bad
    with pytest.raises(IndexRangeError, match=rf"index {bad}\b"):
        apply(TakeGrad.of(0, (203, 256)), tensor(ids), tensor(rows(151, 256), "float32"))


def test_the_gradient_of_an_embedding(isa):
    ids = ids_of(600, 300) % 300
    weight = ndl.Tensor(rows(300, 64), dtype="float32", requires_grad=True, device="cpu")
    g = tensor(rows(600, 64, 1), "float32")
    (ops.embedding(weight, tensor(ids)) * g).sum().backward()
    expected = np.zeros((300, 64))
    np.add.at(expected, ids, exact(g))
    check(weight.grad, expected, int(np.bincount(ids).max()))


@pytest.mark.parametrize(
    "dtype, n", [("float32", 64), ("float32", 100), ("float64", 33), ("bfloat16", 160)]
)
def test_scatter_add_of_elements(isa, dtype, n):
    count, extent = 1200, 9000  # a result beyond the second cache is added up in strips
    index = np.random.default_rng(4).integers(-extent, extent, (count, n))
    index[::7] = 5
    updates = tensor(rows(count, n), dtype)
    expected = np.zeros((extent, n))
    np.add.at(expected, (index, np.arange(n)), exact(updates))
    for kind in ("int64", "int16"):
        found = ops.scatter_add(tensor(index.astype(kind)), updates, 0, (extent, n))
        assert_close(found.numpy(), expected, dtype, count // 7)
    index[[700, 700, 900], [n - 1, 20, 3]] = extent, extent + 1, -extent - 1
    with pytest.raises(IndexRangeError, match=rf"index {extent + 1}\b"):
        ops.scatter_add(tensor(index), updates, 0, (extent, n))


@pytest.mark.parametrize("zen", [0, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_indices_along_rows(count_as_zen, zen, dtype):
    count_as_zen(zen)
    count, n, extent = 40, 300, 900  # whole blocks and a rest
    random = np.random.default_rng(2)
    index = random.integers(0, extent, (count, n))
    index[7, 130:140] = -random.integers(1, extent, 10)  # its block is walked one by one
    index[:, :5] = 3
    x, updates = tensor(rows(count, extent), dtype), tensor(rows(count, n), dtype)
    picked = np.take_along_axis(exact(x), index, 1)
    np.testing.assert_array_equal(exact(ops.gather(x, tensor(index), 1)), picked)
    expected = np.zeros((count, extent))
    np.add.at(expected, (np.arange(count)[:, None], index), exact(updates))
    added = ops.scatter_add(tensor(index), updates, 1, (count, extent))
    assert_close(added.numpy(), expected, dtype, 8)
    index[[30, 20, 20], [3, 250, 70]] = extent, extent + 1, -extent - 1
    for bad in (
        lambda: ops.gather(x, tensor(index), 1),
        lambda: ops.scatter_add(tensor(index), updates, 1, (count, extent)),
    ):
        with pytest.raises(IndexRangeError, match=rf"index -{extent + 1}\b"):
            bad()


@pytest.mark.parametrize(
    "dtype, n", [("float32", 200), ("float32", 300), ("float64", 100), ("bfloat16", 400)]
)
@pytest.mark.parametrize("zen", [0, 1, 4, 5])
def test_gather_of_elements(count_as_zen, zen, dtype, n):
    count_as_zen(zen)
    count, extent = 2100, 6000  # a table beyond the second cache is read in strips
    index = np.random.default_rng(5).integers(-extent, extent, (count, n))
    table = tensor(rows(extent, n), dtype)
    expected = exact(table)[index, np.arange(n)]
    for kind in ("int64", "int16"):
        found = ops.gather(table, tensor(index.astype(kind)), 0)
        np.testing.assert_array_equal(exact(found), expected)
    part = ops.gather(table[:, 3 : n - 2], tensor(index)[:, 3 : n - 2], 0)
    np.testing.assert_array_equal(exact(part), expected[:, 3 : n - 2])
    places = index[:, 0] + extent * (n - 1)
    found = ops.gather(table.reshape(-1), tensor(places), 0)
    np.testing.assert_array_equal(exact(found), exact(table).reshape(-1)[places])
    index[[700, 700, 900], [n - 1, 20, 3]] = extent, extent + 1, -extent - 1
    with pytest.raises(IndexRangeError, match=rf"index {extent + 1}\b"):
        ops.gather(table, tensor(index), 0)


# ---- sorting -----------------------------------------------------------------------

LONG = 300_001


def floats_to_sort():
    random = np.random.default_rng(7)
    x = random.standard_normal(LONG)
    x[random.integers(0, LONG, 60_000)] = np.round(x[:60_000], 1)  # equal ones
    x[::1000], x[1::1500], x[2::2000], x[3::1700], x[4::1900] = np.nan, 0.0, -0.0, np.inf, -np.inf
    return x


def integers_to_sort(dtype):
    limits, random = np.iinfo(dtype), np.random.default_rng(8)
    x = random.integers(limits.min, limits.max, LONG, dtype, endpoint=True)
    x[::1000], x[1::1001] = limits.min, limits.max
    x[2::5] = x[2 : LONG // 2 : 5][0]
    return x


LINES = {
    "float32": lambda: floats_to_sort().astype(np.float32),
    "float64": floats_to_sort,
    "bfloat16": floats_to_sort,
    "int64": lambda: integers_to_sort(np.int64),
    "int32": lambda: integers_to_sort(np.int32),
    "near int64": lambda: np.iinfo(np.int64).max - np.arange(LONG) * 7919 % 5000,
    "uint8": lambda: integers_to_sort(np.uint8),
}


def order_of(x, descending):
    """Return the stable order: NaN is last, and equal numbers stay in order, either way."""
    if descending:
        x = -x if x.dtype.kind == "f" else ~x
    return np.argsort(x, kind="stable")


def bits(x):
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", LINES)
def test_long_lines_are_sorted(kind, descending):
    values = LINES[kind]()
    x = tensor(values, kind.split()[-1], 1)
    order = order_of(exact(x) if kind == "bfloat16" else x.numpy(), descending)
    best = x.numpy()[order]
    before = core.native.isa()
    try:
        for isa in ISAS:
            core.native.select_isa(isa)
            np.testing.assert_array_equal(ops.argsort(x, descending=descending).numpy(), order)
            found = ops.sort(x, descending=descending).numpy()
            np.testing.assert_array_equal(bits(found), bits(best))
            for k in (1, 10, LONG // 20, LONG // 10):  # by selection, the last one by digits
                found, places = ops.topk(x, k, largest=descending)
                np.testing.assert_array_equal(places.numpy(), order[:k])
                np.testing.assert_array_equal(bits(found.numpy()), bits(best[:k]))
    finally:
        core.native.select_isa(before)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 5000])
def test_lines_with_steps_are_sorted(isa, n):
    x = tensor(np.round(rows(n, 3), 1), "float32")
    order = np.argsort(x.numpy(), 0, kind="stable")
    np.testing.assert_array_equal(ops.argsort(x, 0).numpy(), order)


# ---- reductions --------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((LONG,), 0), ((3, 70_001), 1), ((70_001, 3), 0), ((5001, 41), 0), ((301, 9, 77), (0, 2))],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions(isa, dtype, shape, axis, offset):
    values = np.random.default_rng(9).standard_normal(shape) + 30
    x = tensor(values, dtype, offset)
    wide = exact(x)
    count = wide.size // wide.sum(axis).size
    check(ops.summation(x, axis), wide.sum(axis), count)
    check(ops.mean(x, axis), wide.mean(axis), count)
    check(ops.var(x, axis), wide.var(axis), count)
    np.testing.assert_array_equal(exact(ops.amax(x, axis)), wide.max(axis))
    np.testing.assert_array_equal(exact(ops.amin(x, axis)), wide.min(axis))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("n", [1, 15, 16, 33, 64, 95, 1025, 70_001])
def test_sums_of_bytes(isa, dtype, n):
    values = np.random.default_rng(n).integers(-128, 128, (3, n)).astype(dtype)
    values[0] = np.iinfo(dtype).min if dtype != "bool" else True  # as far as sums can go
    x = tensor(values)
    for each in (x, x[:, ::-1], x[:, ::2], x[1:, 1:], ops.broadcast_to(x[:, :1], x.shape)):
        for axis in (0, 1, None):
            found = ops.summation(each, axis).numpy()
            np.testing.assert_array_equal(found, each.numpy().sum(axis, dtype=np.int64))


@pytest.mark.parametrize("n", [*range(1, 40), 63, 64, 65, 200])
def test_sums_and_products_of_bfloat16(isa, n):
    """Of whole numbers and powers of two that bfloat16 holds: exact in any order."""
    random = np.random.default_rng(n)
    whole, powers = random.integers(-1, 2, (3, n)), 2.0 ** random.integers(-2, 3, (3, n))
    for values, reduce, exactly in ((whole, ops.summation, np.sum), (powers, ops.prod, np.prod)):
        x = tensor(values, "bfloat16")
        for each in (x, x[:, ::-1], x[:, 1:], x[:, ::2]):
            found = reduce(each, 1)
            expected = exactly(each.numpy().astype(np.float64), 1)
            np.testing.assert_array_equal(exact(found), tensor(expected, "bfloat16").numpy())


@pytest.mark.parametrize("n", [127, 1024, 4095, 4096, 4224, 9000, LONG])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_reductions_have_the_same_bits_on_either_processor(count_as_zen, dtype, n):
    lines = 67 if n < 10_000 else 3
    values = (np.random.default_rng(9).standard_normal((lines, n)) * 1000).astype(dtype)
    x = tensor(values)
    reductions = [ops.summation, ops.amax, ops.amin, ops.argmax]
    reductions += [ops.mean, ops.var] if x.dtype.is_floating else []
    for reduce in reductions:
        for axis in (1, None):
            found = []
            for generation in (0, 1, 1, 4, 5):  # twice: every second time from the end
                count_as_zen(generation)
                found.append(reduce(x, axis).numpy())
            for other in found[1:]:
                np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("place", [0, 15, 63, 64, 1000, 1023, 1024, 2999])
def test_the_first_of_equal_extremes_counts(isa, place, dtype):
    values = np.zeros(3000, dtype)
    values[place:] = 7
    assert ops.argmax(tensor(values), 0).item() == place
    assert ops.argmin(tensor(-values), 0).item() == place


@pytest.mark.parametrize("rule", [optim.Adam, optim.SGD])
def test_updates_have_the_same_bits_on_either_processor(count_as_zen, rule):
    values = np.random.default_rng(9).standard_normal((2, LONG)).astype("float32")
    found = []
    for generation in (0, 4):
        count_as_zen(generation)
        p = ndl.Parameter(values[0])
        p.grad = ndl.Tensor(values[1])
        rule([p], lr=0.1).step()
        found.append(p.numpy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("place", [0, 65_535, LONG - 1])
def test_one_nan_is_the_extreme_of_a_long_row(isa, place):
    values = np.random.default_rng(9).standard_normal(LONG)
    values[[place, LONG // 2]] = np.nan, np.inf
    x = tensor(values, "float32", 1)
    for reduce in (ops.amax, ops.amin, ops.summation, ops.mean, ops.var):
        assert np.isnan(reduce(x).item()), reduce
    assert ops.argmax(x).item() == ops.argmin(x).item() == place


# ---- elementwise -------------------------------------------------------------------


@pytest.mark.parametrize("zen", [0, 4, 5])
@pytest.mark.parametrize("size", [32_768, 40_001])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
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


@pytest.mark.parametrize("op", ONE_INPUT, ids=lambda op: op.__name__)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("y", [2, 3, 4, 5, 1, 0.5, 1.5, -0.5, -1.5, -1, -2, -3])
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [SiLUGrad, GELUGrad, GELUTanhGrad])
def test_gradients_of_activations_are_right_far_from_0(isa, dtype, op):
    values = np.concatenate([np.linspace(-60, 60, 4001), [1e4, -1e4, 1e30, -1e30]]).astype(dtype)
    x = ndl.Tensor(np.append(values, [np.inf, -np.inf, np.nan]), dtype=dtype, requires_grad=False)
    found = executor.apply(op.of(), x, ops.full(x.shape, 2.0, dtype=dtype)).numpy()
    near = np.clip(values.astype(np.longdouble), -40, 40)
    wanted = op.samples()[0].reference(near, 2.0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found[:-3], wanted.astype(float), 8 * eps, 8 * eps)
    np.testing.assert_array_equal(found[-3:], [2.0, 0.0, np.nan])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int16", "int8", "bool"])
@pytest.mark.parametrize("n", [1, 15, 16, 33, 1001])
def test_rows_in_reverse_order_are_copied_and_written(isa, dtype, n):
    values = np.random.default_rng(n).integers(0, 2, (7, n))
    x = ndl.Tensor(values, dtype=dtype, requires_grad=False)
    wanted = ndl.Tensor(np.ascontiguousarray(values[:, ::-1]), dtype=dtype, requires_grad=False)
    assert (x[:, ::-1].contiguous() == wanted).all()
    written = ops.zeros((7, n), dtype=dtype)
    written[:, ::-1] = x
    assert (written == wanted).all()


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), None])
@pytest.mark.parametrize("places", [np.s_[..., ::-1], np.s_[::-1, ::-2], np.s_[:, -2:0:-1, ::-3]])
def test_reductions_of_axes_in_reverse_order(isa, places, axis):
    values = np.random.default_rng(0).standard_normal((5, 6, 301))
    x, part = ndl.Tensor(values, dtype="float64", requires_grad=False)[places], values[places]
    for function, wanted in ((ops.summation, np.sum), (ops.amax, np.max), (ops.var, np.var)):
        check(function(x, axis), wanted(part, axis), part.size)
    if not isinstance(axis, tuple):
        np.testing.assert_array_equal(ops.argmax(x, axis).numpy(), np.argmax(part, axis))


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise_with_steps_and_broadcasting(isa, dtype):
    a, row = tensor(rows(301, 402), dtype, 1), tensor(rows(1, 201), dtype)
    x = exact(a)
    check(a[:, ::2] + row, x[:, ::2] + exact(row))
    check(a.T[1:] * a.T[:-1], x.T[1:] * x.T[:-1])
    check(a[:, 1::2] - exact(row)[0, 0].item(), x[:, 1::2] - exact(row)[0, 0])


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("shape", [(192, 130), (131, 256)])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32"])
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
    how = ops.interpolation.NEAREST if mode == "nearest" else ops.interpolation.CENTRES
    x = tensor(rows(2 * 19 * 17, inner).reshape(2, 19, 17, inner), dtype)
    one = ops.Interpolate.of(1, (38,), (2.0,), how), ops.Interpolate.of(2, (51,), (3.0,), how)
    both = ops.Interpolate.of(1, (38, 51), (2.0, 3.0), how)
    check(both(x), exact(one[1](one[0](x))), 100)
    g = tensor(rows(2 * 38 * 51, inner).reshape(2, 38, 51, inner), dtype)
    back = ops.InterpolateGrad.of(1, (38, 51), (2.0, 3.0), how, (19, 17))
    first = ops.InterpolateGrad.of(2, (51,), (3.0,), how, (17,))
    second = ops.InterpolateGrad.of(1, (38,), (2.0,), how, (19,))
    check(back(g), exact(second(first(g))), 100)


@pytest.mark.parametrize("zen", [0, 4, 5])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
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


@pytest.mark.parametrize("zen", [0, 4, 5])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("shapes", BROADCAST)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(40_001,), (77, 513)])
def test_programs(isa, dtype, shape):
    device = as_device("cpu")
    a, b = (tensor(rows(1, int(np.prod(shape)), i).reshape(shape), dtype, i) for i in range(2))
    arrays = [executor.value_of(x) for x in (a, b)]
    outs = [ndarray.empty(shape, a.dtype, device) for _ in range(2)]
    program = [("multiply", (0, 1)), ("maximum", (2, 0)), ("negative", (3,))]
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


@pytest.mark.parametrize("zen", [0, 1, 4, 5])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
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


# ---- products of matrices ------------------------------------------------------------


def laid_out(x, layout):
    """Return a matrix in memory of some layout; with one row or column, all are alike."""
    if layout == "transposed":
        return ops.transpose(tensor(exact(x).T.copy(), str(x.dtype)))
    if layout == "row":
        return ops.broadcast_to(x[:1], x.shape)
    return ops.broadcast_to(x[:, :1], x.shape) if layout == "column" else x


LAYOUTS = ("plain", "transposed", "row", "column")
PAIRS = [*itertools.product(LAYOUTS, LAYOUTS)]
PAIRS.remove(("column", "row"))  # equal terms: their errors do not cancel


@pytest.mark.parametrize(("a_layout", "b_layout"), PAIRS)
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_products_of_several_blocks(isa, dtype, a_layout, b_layout):
    """Blocks of steps and of columns, few rows, tiles not full; for all threads, and for one."""
    for m, k, n in ((61, 403, 1043), (9, 403, 613), (13, 40, 83)):
        a = laid_out(tensor(rows(m, k) / k**0.5, dtype), a_layout)
        b = laid_out(tensor(rows(k, n, 1), dtype), b_layout)
        check(ops.matmul(a, b), exact(a) @ exact(b), k)


SHARED = [(2101, 270, 1043), (1330, 128, 256), (16, 523, 1043), (16, 523, 300), (40, 1100, 300)]
"""Slabs of rows, blocks of steps and of columns; columns, rows or both for each thread."""


@pytest.mark.parametrize("b_layout", ["plain", "transposed"])
@pytest.mark.parametrize("a_layout", ["plain", "transposed"])
@pytest.mark.parametrize(("m", "k", "n"), SHARED)
def test_products_do_not_depend_on_who_helps_whom(isa, m, k, n, a_layout, b_layout):
    """Of more threads than processors, some begin when others have finished."""
    a = laid_out(tensor(rows(m, k) / k**0.5), a_layout)
    b = laid_out(tensor(rows(k, n, 1)), b_layout)
    core.native.set_threads(1)
    product = ops.matmul(a, b)
    check(product, exact(a) @ exact(b), k)
    alone = product.numpy()
    for threads in (2, 7, 2, 7):
        core.native.set_threads(threads)
        np.testing.assert_array_equal(ops.matmul(a, b).numpy(), alone)


def spread(x, low, high):
    """Return x times powers of 2 between two exponents."""
    powers = np.random.default_rng(7).integers(low, high + 1, x.shape)
    return x * 2.0**powers


STRANGE = {
    "ordinary": lambda a, b: (a, b),
    "products as small as the type holds": lambda a, b: (a * 2.0**-63, b * 2.0**-63),
    "denormal": lambda a, b: (a * 2.0**-130, b * 2.0**20),
    "third parts denormal": lambda a, b: (a * 2.0**20, b * 2.0**-112),
    "parts of products denormal": lambda a, b: (a * 2.0**-40, b * 2.0**-65),
    "sums as large as the type holds": lambda a, b: (a * 2.0**63, b * 2.0**55),
    "largest": lambda a, b: (np.clip(a, -0.5, 0.5) * 2 * (2.0**128 - 2.0**104), b * 2.0**-20),
    "of all sizes": lambda a, b: (spread(a, -100, 50), spread(b, -50, 60)),
    "some of all sizes": lambda a, b: (np.where(a > 1, spread(a, -140, 60), a), b),
    "zeros": lambda a, b: (np.where(a > 0, a, 0), b * 0),
}


@pytest.mark.parametrize("numbers", STRANGE)
@pytest.mark.parametrize(("m", "k", "n"), [(200, 64, 300), (70, 600, 130)])
def test_products_of_strange_numbers(isa, numbers, m, k, n):
    """Too small or too large to be multiplied in parts: the error is that of float32, anyway."""
    x, y = STRANGE[numbers](rows(m, k), rows(k, n, 1))
    a, b = tensor(x, "float32"), tensor(y, "float32")
    x, y = exact(a), exact(b)
    found = exact(ops.matmul(a, b))
    bound = 2.0**-24 * 16 * (abs(x) @ abs(y)) + k * 2.0**-149
    assert (abs(found - x @ y) <= bound).all()


def test_products_that_are_not_finite(isa):
    """Rows and columns without such a number keep their values."""
    x, y = rows(200, 64) / 8, rows(64, 300, 1)
    x[3, 5], x[70, 0], x[71, 1], y[9, 250] = np.nan, np.inf, -np.inf, np.inf
    y[0, 17] = 0.0
    a, b = tensor(x, "float32"), tensor(y, "float32")
    with np.errstate(invalid="ignore"):
        expected = exact(a) @ exact(b)
    check(ops.matmul(a, b), expected, 64)


# ---- the true size -----------------------------------------------------------------


def test_results_larger_than_the_caches():
    n = (36 << 20) // 4 // 1001
    values = np.resize(rows(1, 97_003)[0].astype(np.float32), (n, 1001))
    x = tensor(values, offset=1)
    core.native.set_threads(2)
    try:
        np.testing.assert_array_equal((x + x).numpy(), values + values)
        np.testing.assert_array_equal(ops.relu(x).numpy(), np.maximum(values, 0))
        (found,) = apply(Softmax.of(-1), x)
    finally:
        core.native.set_threads(0)
    some = slice(None, None, 97)
    check(found[some], softmax(values[some].astype(np.float64)), 1001, 1001)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
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

"""Reductions of large arrays, and updates."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from large_arrays import FLOATS, LONG, check, exact, tensor
from looped import looped

import needle as ndl
from needle import ops, optim

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


@looped("offset", [0, 1])
@looped(
    "shape, axis",
    [((LONG,), 0), ((3, 70_001), 1), ((70_001, 3), 0), ((5001, 41), 0), ((301, 9, 77), (0, 2))],
)
@looped("dtype", FLOATS)
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


@looped("dtype", ["int8", "uint8", "bool"])
@looped("n", [1, 15, 16, 33, 64, 95, 1025, 70_001])
def test_sums_of_bytes(isa, dtype, n):
    values = np.random.default_rng(n).integers(-128, 128, (3, n)).astype(dtype)
    values[0] = np.iinfo(dtype).min if dtype != "bool" else True  # as far as sums can go
    x = tensor(values)
    for each in (x, x[:, ::-1], x[:, ::2], x[1:, 1:], ops.broadcast_to(x[:, :1], x.shape)):
        for axis in (0, 1, None):
            found = ops.summation(each, axis).numpy()
            np.testing.assert_array_equal(found, each.numpy().sum(axis, dtype=np.int64))


@looped("n", [*range(1, 40), 63, 64, 65, 200])
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


@looped("n", [127, 1024, 4095, 4096, 4224, 9000, LONG])
@looped("dtype", ["float32", "float64", "int64"])
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


@looped("dtype", ["float32", "float64", "int64"])
@looped("place", [0, 15, 63, 64, 1000, 1023, 1024, 2999])
def test_the_first_of_equal_extremes_counts(isa, place, dtype):
    values = np.zeros(3000, dtype)
    values[place:] = 7
    assert ops.argmax(tensor(values), 0).item() == place
    assert ops.argmin(tensor(-values), 0).item() == place


@looped("rule", [optim.Adam, optim.SGD])
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


@looped("place", [0, 65_535, LONG - 1])
def test_one_nan_is_the_extreme_of_a_long_row(isa, place):
    values = np.random.default_rng(9).standard_normal(LONG)
    values[[place, LONG // 2]] = np.nan, np.inf
    x = tensor(values, "float32", 1)
    for reduce in (ops.amax, ops.amin, ops.summation, ops.mean, ops.var):
        assert np.isnan(reduce(x).item()), reduce
    assert ops.argmax(x).item() == ops.argmin(x).item() == place

"""Random and new tensors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    RangeError,
    ShapeError,
)

X = np.random.default_rng(0).normal(size=(4, 5, 6))


def test_dropout_draws_once_per_element_and_keeps_the_expectation():
    np.random.seed(3)
    x = ndl.Tensor(np.ones((40, 50)), requires_grad=False)
    found = ops.dropout(x, 0.25).numpy()
    np.random.seed(3)
    np.testing.assert_allclose(found, (np.random.rand(40, 50) <= 0.75) / 0.75, rtol=1e-6)
    after = np.random.rand()
    np.random.seed(3)
    ops.dropout(x, 0.0)
    assert np.random.rand() == after
    assert ops.dropout(x, 0.25, training=False) is x


def test_a_key_draws_the_same_numbers_and_leaves_the_stream_alone(device):
    np.random.seed(3)
    a, b = (ops.uniform((5,), key=7, device=device).numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ops.uniform((5,), key=7, device="cpu_numpy").numpy(), a)
    after = np.random.rand()
    np.random.seed(3)
    assert np.random.rand() == after


@looped("kind", ["int8", "int16", "int32", "int64", "uint8"])
def test_shifts_by_no_more_and_by_more_than_the_width(kind, device):
    limits = np.iinfo(kind)
    values = np.array([limits.min, limits.max, 1, 0, limits.max // 3], kind)[:, None]
    counts = [n for n in (0, 1, 7, 8, 9, 15, 16, 31, 32, 63, 64, limits.max) if n <= limits.max]
    x, by = (ndl.Tensor(v, device=device) for v in (values, np.array(counts, kind)))
    with np.errstate(all="ignore"):
        right = np.array([[int(v) >> n for n in counts] for v in values[:, 0]])
        left = np.array([[int(v) << min(n, 64) for n in counts] for v in values[:, 0]], object)
    bits = 2 ** (8 * values.itemsize)
    np.testing.assert_array_equal(ops.bitwise_right_shift(x, by).numpy(), right)
    np.testing.assert_array_equal(
        ops.bitwise_left_shift(x, by).numpy().astype(object) % bits, left % bits
    )


RAMPS = (
    (0, 0), (0, 100_001), (3, -50, -7), (0.0, 1.0, 0.1), (0.1, 5, 1), (-7, 7, 3.0), (True, 5),
    (2**60, 2**60 + 9, 3), (0, np.float32(3), np.float32(0.3)), (0, 7e4, 0.7),
)  # fmt: skip


@looped("kind", [None, "float32", "float64", "float16", "int32", "int64", "int8"])
@looped("bounds", RAMPS)
def test_arange_gives_numpys_numbers_to_the_last_bit(device, bounds, kind):
    start, stop, step = (*bounds, 1)[:3]
    expected = start + step * np.arange(max(0, math.ceil((stop - start) / step)))
    if kind in ("int32", "int64", "int8") and len(expected):
        limits = np.iinfo(kind)
        if not limits.min <= int(expected.min()) <= int(expected.max()) <= limits.max:
            with pytest.raises(RangeError, match=f"does not fit into {kind}"):
                ops.arange(*bounds, dtype=kind, device=device)
            return
    found = ops.arange(*bounds, dtype=kind, device=device)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.numpy(), expected.astype(found.dtype.numpy))


@looped("kind", ["float32", "float64", "float16", "int32"])
@looped("start, stop", [(0, 1), (-1.5, 7), (3, 3), (0.1, 1e30), (5e-324, 0)])
def test_linspace_gives_numpys_numbers_to_the_last_bit(device, start, stop, kind):
    for count, endpoint in itertools.product((0, 1, 2, 17, 40_001), (True, False)):
        with np.errstate(all="ignore"):
            exact = np.linspace(start, stop, count, endpoint=endpoint)
            expected = exact.astype(kind)
            if kind == "int32" and (abs(exact) >= 2**31).any():
                with pytest.raises(RangeError, match="does not fit into int32"):
                    ops.linspace(start, stop, count, endpoint=endpoint, dtype=kind, device=device)
                continue
            found = ops.linspace(start, stop, count, endpoint=endpoint, dtype=kind, device=device)
        np.testing.assert_array_equal(found.numpy(), expected)


@looped("kind", ["float32", "int64", "bool", "float16"])
@looped("n, m", [(0, 3), (1, 1), (3, 17), (33, 4), (16, None)])
def test_eye_has_its_ones_on_every_diagonal(device, n, m, kind):
    for k in (-40, -3, -1, 0, 1, 3, 40):
        found = ops.eye(n, m, k=k, dtype=kind, device=device)
        np.testing.assert_array_equal(found.numpy(), np.eye(n, m, k, kind))


@looped(
    "kind", [np.int8, np.uint8, np.int64, np.array, lambda n: np.array([n]),
             lambda n: ndl.Tensor(n, dtype="int32"), lambda n: ndl.Tensor([n], dtype="int64")],
)  # fmt: skip
def test_integers_of_numpy_and_of_tensors_count_as_pythons(kind):
    for x, values in (
        (ops.full((2,), kind(3)), [3, 3]), (ops.arange(kind(3)), [0, 1, 2]),
        (ops.arange(kind(3), kind(9), kind(2)), [3, 5, 7]), (ops.arange(1, kind(3)), [1, 2]),
    ):  # fmt: skip
        assert x.dtype == "int64" and x.tolist() == values
    assert ops.full_like(ndl.Tensor([1.0]), kind(3)).dtype == "float32"
    assert ops.arange(0, kind(3), 0.5).dtype == ops.linspace(0, kind(3), 3).dtype == "float32"
    assert ops.full((2,), kind(3), dtype="int8").dtype == "int8"
    for true in (np.bool_(True), np.array(True), ndl.Tensor(True, dtype="bool")):
        assert ops.full((2,), true).dtype == "bool" and ops.full_like(ndl.Tensor(X), true).all()


@looped("value", [2**53 + 1, 2**63, -(2**64), 10**30])
@looped("kind", ["float16", "bfloat16", "float32", "float64"])
def test_floating_tensors_take_whole_numbers_of_any_length(device, kind, value):
    with np.errstate(over="ignore"):
        exact = np.array(float(value)).astype(ndl.dtype.as_dtype(kind).numpy).item()
    x = ndl.Tensor([0.0, 1.0], dtype=kind, device=device)
    assert (x * 0.0 + value).tolist() == [exact, exact]
    assert ndl.full((2,), value, dtype=kind, device=device).tolist() == [exact, exact]
    assert ndl.where(x > 0, value, x).tolist() == [0.0, exact]


@looped("value", [np.ones(2), np.ones(0), ndl.Tensor([1.0, 2.0]), "a", None, 1j])
def test_full_takes_one_number(value):
    several = not isinstance(value, (str, complex, type(None)))
    said = r"full: expected one number, got \d" if several else "full: expected a real number"
    with pytest.raises(ShapeError if several else ArgumentError, match=said):
        ops.full((2,), value)


def test_new_tensors():
    np.testing.assert_array_equal(ops.arange(1, 2, 0.25).numpy(), [1, 1.25, 1.5, 1.75])
    assert ops.arange(3).dtype == "int64" and ops.arange(5, 1, -2).tolist() == [5, 3]
    np.testing.assert_allclose(ops.linspace(0, 1, 5).numpy(), np.linspace(0, 1, 5))
    np.testing.assert_array_equal(ops.eye(2, 3, k=1).numpy(), np.eye(2, 3, 1))
    assert ops.full((2,), True).dtype == "bool" and ops.full((), 2).dtype == "int64"
    whole = ops.full((2,), ndl.Tensor(2.7), dtype="int64")  # no gradient flows from integers
    assert whole.tolist() == [2, 2] and not whole.requires_grad
    t = ndl.Tensor(2.5, dtype="float64")
    assert ops.full((2,), t).dtype == ops.linspace(0, t, 3).dtype == "float32"
    for indexing in ("xy", "ij"):
        grids = ops.meshgrid(ops.arange(2), ops.arange(3), indexing=indexing)
        expected = np.meshgrid(np.arange(2), np.arange(3), indexing=indexing)
        for found, grid in zip(grids, expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), grid)

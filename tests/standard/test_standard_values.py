"""A few values of the array API standard's functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import needle as ndl
from needle import standard as xp
from needle.errors import (
    DtypeError,
    IndexRangeError,
    ShapeError,
)


def test_masks_of_no_axes_and_of_no_elements(device):
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]], device=device)
    values = x.numpy()
    for index in (True, False, (True, 1), (slice(None), True), (True, [0, 1]), (0, True, None)):
        np.testing.assert_array_equal(x[index].numpy(), values[index])
    assert x[xp.asarray(True, device=device)].shape == (1, 2, 2)
    assert x[xp.zeros((0, 2), dtype=xp.bool, device=device)].shape == (0,)
    with pytest.raises(IndexRangeError, match=r"\(2, 1\) for axes of shape \(2, 2\)"):
        x[xp.ones((2, 1), dtype=xp.bool, device=device)]
    x[xp.asarray(False, device=device)] = 0.0
    assert x.tolist() == values.tolist()
    x[xp.asarray(True, device=device)] = 0.0
    assert not xp.any(x).item()


def test_infinite_quotients_rounded_down(host_device):
    """The standard's floor(x1 / x2), where NumPy has NaN and -1."""
    x = xp.asarray([math.inf, -math.inf, 5.0, -5.0, 7.0], device=host_device)
    y = xp.asarray([2.0, 2.0, -math.inf, math.inf, -2.0], device=host_device)
    found = xp.floor_divide(x, y)
    assert found.tolist() == [math.inf, -math.inf, 0.0, 0.0, -4.0]
    assert xp.signbit(found).tolist() == [False, True, True, True, True]


def test_sets_and_searches():
    x = xp.asarray([[3.0, math.nan], [1.0, math.nan]])
    values, indices, inverse, counts = xp.unique_all(x)
    np.testing.assert_array_equal(values.numpy(), [1.0, 3.0, math.nan, math.nan])
    assert indices.tolist() == [2, 0, 1, 3] and counts.tolist() == [1, 1, 1, 1]
    assert inverse.tolist() == [[1, 2], [0, 3]]
    assert xp.unique_inverse(xp.asarray([2, 1, 2])).inverse_indices.tolist() == [1, 0, 1]
    assert xp.unique_counts(xp.asarray([2, 1, 2])).counts.tolist() == [1, 2]
    edges = xp.asarray([3, 1, 2])
    found = xp.searchsorted(edges, xp.asarray([2]), side="right", sorter=xp.argsort(edges))
    assert found.tolist() == [2]
    assert xp.count_nonzero(xp.asarray([[0, 2], [3, 4]]), axis=0).tolist() == [1, 2]
    assert xp.where(xp.asarray([True, False]), 1, 2.5).dtype == xp.float32
    with pytest.raises(TypeError, match="numbers only"):
        xp.add(1, 2)


def test_sums_up_to_each_element():
    x = xp.asarray([1, 2, 3], dtype=xp.int8)
    assert xp.cumulative_sum(x, include_initial=True).tolist() == [0, 1, 3, 6]
    assert xp.cumulative_prod(x, dtype=xp.int16).dtype == xp.int16
    assert xp.sum(x).dtype == xp.int64 and xp.sum(x, dtype=xp.int8).dtype == xp.int8
    assert xp.cumulative_prod(xp.ones((2, 3)), axis=1, include_initial=True).shape == (2, 4)
    with pytest.raises(ShapeError, match="axis must be given"):
        xp.cumulative_sum(xp.ones((2, 2)))
    y = xp.asarray([1.0, 4.0, 9.0])
    assert xp.diff(y, prepend=y[:1], append=xp.zeros(1)).tolist() == [0.0, 3.0, 5.0, -9.0]
    assert xp.diff(y, n=2).tolist() == [2.0]


def test_arrangement():
    x = xp.asarray([[1, 2], [3, 4]])
    assert xp.repeat(x, xp.asarray([2, 0]), axis=1).tolist() == [[1, 1], [3, 3]]
    assert xp.repeat(x[:0, 0], x[:0, 0]).shape == (0,)
    assert xp.flip(x).tolist() == [[4, 3], [2, 1]] and xp.roll(x, 1).tolist() == [[4, 1], [2, 3]]
    assert xp.concat([x, x], axis=None).shape == (8,)
    assert [y.tolist() for y in xp.unstack(x, axis=1)] == [[1, 3], [2, 4]]
    with pytest.raises(DtypeError, match="not integers"):
        xp.repeat(x, xp.ones(4))


def test_functions_of_the_namespace_are_differentiable():
    x = ndl.Tensor([[2.0, 1.0], [1.0, 3.0]], dtype="float64")
    xp.linalg.slogdet(xp.asarray(x)).logabsdet.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.linalg.inv(x.numpy()).T)
    lazy = xp.linalg.vector_norm(x)
    lazy.backward()
    np.testing.assert_allclose(x.grad.numpy(), x.numpy() / np.linalg.norm(x.numpy()))


def test_a_list_of_tensors_stays_part_of_their_graph():
    x = ndl.Tensor([2.0, 3.0])
    y = xp.asarray([[x[0] * x[1], 1], [x[1], 2.5]])
    assert y.dtype == "float32" and y.tolist() == [[6.0, 1.0], [3.0, 2.5]]
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 3.0])
    whole = xp.asarray([x[0], x[1]], dtype=xp.int64)
    assert whole.tolist() == [2, 3] and not whole.requires_grad
    with ndl.no_grad():
        assert not xp.asarray([x[0], x[1]]).requires_grad
    half = ndl.Tensor(2.0, dtype="bfloat16")
    assert xp.asarray([[half, half]]).dtype == "bfloat16"
    with pytest.raises(ShapeError, match=r"of shapes \(2,\), \(\)"):
        xp.asarray([x, x[0]])

"""Tensors are indexed and assigned to as NumPy's arrays."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    DtypeError,
    IndexRangeError,
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))
K, J = np.array([0, 2, -1]), np.array([[1], [3]])
ALL = slice(None)
ROWS = np.array([True, False, True, True])
INDICES = [
    K, (K, K), (ALL, K), (K, ALL, K), (J, K), (0, K), (ALL, 0, K), (K, 0, slice(1, 4)), X > 0, ROWS,
    (ROWS, 0), (ALL, X[0].mean(1) > 0), (Ellipsis, K), (K, Ellipsis, J), (None, K, None),
    (slice(None, None, -1), K, None, J), [0, 1], (np.zeros(0, int),), (np.array(2), K),
    range(2), (ALL, range(4, 1, -2)), (0, range(0)),
    (ROWS, ALL, [0, 3, 4]), (0, 1, 2), -1, (slice(1, 3), None, Ellipsis), (0, ALL, K),
    (ALL, K, Ellipsis, K), (ALL, 0, Ellipsis, K), (ALL, Ellipsis, K, K), (ALL, K, K, Ellipsis),
    (K, Ellipsis, K, K), (X > 0, Ellipsis), (Ellipsis, X > 0), (None, Ellipsis, X > 0),
    ((0, 1), (1, 2)), ((1, 0), ALL, (3, 3)), ((),), (ALL, ((0, 1), (2, 2))),
]  # fmt: skip


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


@looped("index", INDICES)
@looped("lazy", [False, True])
def test_indexing_reads_as_numpy_does(index, lazy):
    with ndl.lazy_mode(lazy):
        found = tensor(X)[index]
        np.testing.assert_array_equal(found.numpy(), X[index])
    if found.size:
        check_gradients(lambda x: x[index], X, order=2)


@looped("index", [2**63, 2**70, -(2**70), (0, 2**64)])
def test_an_index_beyond_63_bits_is_out_of_range(index):
    x = tensor(X)
    with pytest.raises(IndexRangeError):
        x[index]
    with pytest.raises(IndexRangeError):
        x[index] = 5.0
    np.testing.assert_array_equal(x.numpy(), X)


@looped("index", INDICES)
@looped("lazy", [False, True])
def test_assignment_writes_as_numpy_does(index, lazy):
    values = np.random.default_rng(1).normal(size=X[index].shape)
    for value in (7.0, values):
        expected = X.copy()
        expected[index] = value
        with ndl.lazy_mode(lazy):
            x = tensor(X)
            before = x + 0.0
            x[index] = value
            np.testing.assert_array_equal(x.numpy(), expected)
            np.testing.assert_array_equal(before.numpy(), X)
    if values.size:
        check_gradients(lambda x, v: ops.put(x, index, v), X, values, order=2)


def test_assignment_keeps_a_leaf_a_leaf_and_a_result_in_its_graph():
    leaf = ndl.Tensor([1.0, 2.0, 3.0])
    leaf[1] = 5
    assert leaf.is_leaf() and leaf.requires_grad
    y = leaf * 2.0
    y[0] = 0.0
    y.sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [0, 2, 2])


@looped("lazy", [False, True])
@looped("value", [lambda x: x[0] ** 3, lambda x: 2.0])
def test_derivatives_of_assignments_compose_in_any_order(value, lazy):
    def function(x):
        y = x**3
        y[0] = value(x)
        return y

    with ndl.lazy_mode(lazy):
        check_gradients(function, np.array([0.5, 2.0]), order=2)


def test_assigning_part_of_a_graph_makes_a_leaf_part_of_it():
    value, x = ndl.Tensor([2.0]), ndl.Tensor([1.0, 2.0], requires_grad=False)
    x[0:1] = value
    (3.0 * x).sum().backward()
    assert value.grad.item() == 3.0


def _put_rows(x):
    y = ops.zeros((3, 2), dtype="float64")
    y[1:] = [[x[0] * x[1], 2.0], x[1:]]
    return y


def _put_list(x):
    y = x * 1.0
    y[0:2] = [x[2], x[0] ** 3]
    return y


OF_TENSORS = {
    "list": _put_list, "lists": _put_rows,
    "full": lambda x: ops.full((2, 3), x[0] * x[1], dtype="float64"),
    "full_like": lambda x: ops.full_like(x, x[1:2]),
    "standard.full": lambda x: ndl.standard.full(2, x[0], dtype="float64"),
    "standard.full_like": lambda x: ndl.standard.full_like(x, x.sum()),
    "linspace": lambda x: ops.linspace(x[0], x[1] * x[2], 5, dtype="float64"),
    "linspace of rows": lambda x: ops.linspace(x, [1, 2, 3], 4, endpoint=False, dtype="float64"),
    "standard.linspace": lambda x: ndl.standard.linspace(0, x[0], 3, dtype="float64"),
    "arange": lambda x: ops.arange(x[0], 4.0, x[1], dtype="float64"),
    "asarray": lambda x: ndl.standard.asarray([[x[0] ** 2, 1], (2.5, x[1])], dtype="float64"),
    "asarray of rows": lambda x: ndl.standard.asarray([x * x, [1, 2, 3]], dtype="float64"),
}  # fmt: skip


@looped("lazy", [False, True])
@looped("name", OF_TENSORS)
def test_gradients_flow_through_what_is_made_of_tensors(name, lazy):
    """In reverse and in forward mode, twice; the values are those without gradients."""
    values, make = np.array([0.7, 1.3, 0.4]), OF_TENSORS[name]
    with ndl.lazy_mode(lazy):
        x = ndl.Tensor(values, dtype="float64")
        found = make(x)
        assert found.requires_grad
        with ndl.no_grad():
            plain = make(x)
        assert not plain.requires_grad and plain.spec == found.spec
        np.testing.assert_allclose(found.numpy(), plain.numpy(), rtol=1e-15)
        check_gradients(make, values, order=2)


@looped("shape", [(1, 3), (1, 1, 3), (1, 1)])
def test_leading_axes_of_size_one_are_not_in_the_way_of_an_assignment(shape):
    expected, values = X.copy(), np.full(shape, 5.0)
    place = (0,) * (X.ndim - 1) + (slice(None, 3),)
    expected[place] = values
    x = tensor(X)
    x[place] = values
    np.testing.assert_array_equal(x.numpy(), expected)
    x[(0,) * X.ndim] = np.full((1,), 7.0)
    assert x.numpy().flat[0] == 7.0
    with pytest.raises(ShapeError, match="does not broadcast"):
        x[place] = np.full((2, 3), 5.0)


def test_the_last_of_equal_places_is_written():
    x = tensor(np.zeros(3))
    x[np.array([1, 1, 0])] = tensor([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(x.numpy(), [3, 2, 0])


@looped("index, error",
    [
        (9, IndexRangeError), ((K, 9 * K), IndexRangeError), (1.5, IndexRangeError),
        ([0.5], IndexRangeError), ([[0], [1, 2]], IndexRangeError), (["x"], IndexRangeError),
        ([None], IndexRangeError), ((X > 0)[:2], IndexRangeError), ((0, 0, 0, 0), IndexRangeError),
        ("x", IndexRangeError), ((Ellipsis, Ellipsis), IndexRangeError),
        ((K, np.array([0, 1])), ShapeError),
    ],
)  # fmt: skip
def test_wrong_indices(index, error):
    with pytest.raises(error):
        tensor(X)[index]


@looped("index", [["x"], [[0], [1, 2]], [7], [None]])
def test_take_refuses_what_is_no_index(index):
    with pytest.raises(IndexRangeError):
        ops.take(tensor(X), index, 0)


def test_wrong_values():
    whole = ndl.Tensor(np.arange(4))
    with pytest.raises(DtypeError):
        whole[0] = 1.5
    with pytest.raises(ShapeError):
        whole[:2] = np.zeros(3, int)


def test_numpy_operands_keep_their_precision_beside_float64():
    values = np.full(3, 0.1)
    assert ((tensor(np.zeros(3)) + values).numpy() == values).all()
    assert (ndl.Tensor([0.0]) + np.full(1, 0.1)).dtype == "float32"


def test_comparison_is_elementwise_and_identity_hashes():
    x = tensor(X)
    assert (x == x).all() and not (x != x).any()
    assert x in {x: 1} and x is not None and (x == None) is False  # noqa: E711
    with ndl.config(debug=1):  # makers are kept by identity
        assert "add" in (x + x).maker


@looped(
    "call",
    [
        lambda x: x[np.zeros(3, bool), 7],
        lambda x: x[[], 7],
        lambda x: x[7, []],
        lambda x: x[:, :0][[7]],
        lambda x: ops.take(x[:, :0], ndl.Tensor([7], dtype="int64", device=x.device), 0),
        lambda x: x[:0][[0]],
    ],
)
@looped("fast", ["on", "off"])
def test_an_index_is_in_range_where_there_is_nothing_to_pick(device, call, fast):
    x = ndl.Tensor(np.zeros((3, 5)), requires_grad=False, device=device)
    with ndl.config(fast=fast), pytest.raises(IndexRangeError, match="out of range"):
        call(x)
        device.synchronize()

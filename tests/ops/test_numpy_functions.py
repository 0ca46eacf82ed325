"""Functions of NumPy and PyTorch that are made of ops: NaN, counts, quantiles, lerp, normalize."""

from __future__ import annotations

import math

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


@looped("dtype", ["bool", "int32", "float32", "bfloat16"])
def test_count_nonzero(dtype):
    x = tensor(np.array([[0.0, 2.0, 0.0], [1.0, 3.0, -0.0]])).astype(dtype)
    assert ops.count_nonzero(x).item() == 3
    found = ops.count_nonzero(x, axis=1, keepdims=True)
    assert str(found.dtype) == "int64"
    np.testing.assert_array_equal(found.numpy(), [[1], [2]])


# ---- sums without NaN, differences, joining ------------------------------------------


@looped("axes", [None, 0, (0, 2), -1])
@looped("keepdims", [False, True])
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_sums_and_means_of_what_is_a_number(axes, keepdims):
    x = np.where(X > 0.5, np.nan, X)
    x[1, :, 2] = np.nan
    for name in ("nansum", "nanmean"):
        expected = getattr(np, name)(x, axis=axes, keepdims=keepdims)
        for found in (
            getattr(ops, name)(tensor(x), axes, keepdims),
            getattr(tensor(x), name)(axis=axes, keepdims=keepdims),
        ):
            np.testing.assert_allclose(found.numpy(), expected)
    slope = ndl.grad(lambda x: ops.nanmean(x))(tensor(x)).numpy()
    np.testing.assert_allclose(slope, np.where(np.isnan(x), 0.0, 1 / (~np.isnan(x)).sum()))
    whole = ndl.Tensor([[1, 2], [3, 5]])
    assert ops.nansum(whole).item() == 11 and ops.nanmean(whole).item() == 2.75
    half = ndl.Tensor(np.full(5000, 300.0), dtype="float16")
    assert ops.nanmean(half).item() == 300.0 and ops.nanmean(half).dtype == "float16"


# ---- NumPy's helpers -----------------------------------------------------------------


NUMBERS = ndl.Tensor([1, 2], dtype="int64")


@looped("kind", ["float16", "bfloat16", "float32", "float64"])
def test_nan_to_num(kind, device):
    x = ndl.Tensor([np.nan, np.inf, -np.inf, 1.5, -0.0], dtype=kind, device=device)
    found = ops.nan_to_num(x).numpy().astype(np.float64)
    largest = {"float16": 65504.0, "bfloat16": 255 / 128 * 2.0**127}.get(kind)
    largest = largest or float(np.finfo(kind).max)
    np.testing.assert_array_equal(found, [0.0, largest, -largest, 1.5, -0.0])
    assert found.shape == (5,) and np.signbit(found[4])
    chosen = ops.nan_to_num(x, nan=7.0, posinf=2.0, neginf=-3.0)
    np.testing.assert_array_equal(chosen.numpy().astype(float), [7.0, 2.0, -3.0, 1.5, -0.0])
    half = ops.nan_to_num(x, posinf=2.0).numpy().astype(float)
    np.testing.assert_array_equal(half, [0.0, 2.0, -largest, 1.5, -0.0])


def test_the_gradient_of_nan_to_num_is_of_numbers_alone():
    x = ndl.Tensor([np.nan, np.inf, -np.inf, 1.5], dtype="float64")
    for more in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": 3.0}):
        slope = ndl.grad(lambda x, more=more: (3.0 * ops.nan_to_num(x, **more)).sum())(x)
        assert slope.tolist() == [0.0, 0.0, 0.0, 3.0]
    assert ops.nan_to_num(NUMBERS) is NUMBERS


@looped(
    "x, values",
    [
        ([[1, 5], [2, 7]], [5, 1, 1]), ([1.0, np.nan, np.inf, -0.0], [np.nan, np.inf, 0.0]),
        ([3, 4], []), ([], [1]), (2, [[1, 2]]), ([True, False], [True]), ([1, 2, 3], [1.0, 2.5]),
        ([200], [9]), ([0.5], 0.5),
    ],
)  # fmt: skip
@looped("invert", [False, True])
def test_isin(x, values, invert, device):
    tensors = (ndl.Tensor(v, device=device) for v in (x, values))
    found = ops.isin(*tensors, invert=invert)
    expected = np.isin(np.array(x), np.array(values), invert=invert)
    assert found.dtype == "bool" and found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


@looped("kind", ["int64", "int32", "uint8"])
def test_bincount(kind, device):
    x = np.array([0, 1, 1, 3, 200, 1])
    t = ndl.Tensor(x, dtype=kind, device=device)
    assert ops.bincount(t).tolist() == np.bincount(x).tolist()
    assert ops.bincount(t, minlength=203).shape == (203,) and ops.bincount(t[:0]).shape == (0,)
    assert ops.bincount(t[:0], minlength=2).tolist() == [0, 0]
    weights = np.random.default_rng(0).normal(size=6)
    found = ops.bincount(t, ndl.Tensor(weights, dtype="float64", device=device))
    np.testing.assert_allclose(found.numpy(), np.bincount(x, weights))
    found = ops.bincount(t, weights)  # an array, as float32
    np.testing.assert_allclose(found.numpy(), np.bincount(x, weights), rtol=1e-5)
    slope = ndl.grad(lambda w: (ops.bincount(t, w) ** 2).sum())
    w = ndl.Tensor(weights, dtype="float64", device=device)
    np.testing.assert_allclose(slope(w).numpy(), 2 * np.bincount(x, weights)[x])


@looped(
    "call, error, message",
    [
        (lambda: ops.bincount(ndl.Tensor([0.5])), DtypeError, "bincount.*float32"),
        (lambda: ops.bincount(NUMBERS[None]), ShapeError, r"bincount: x \(1, 2\)"),
        (lambda: ops.bincount(NUMBERS - 3), IndexRangeError, "bincount: x contains -2"),
        (lambda: ops.bincount(NUMBERS, ndl.ones(3)), ShapeError, r"bincount.* weights \(3,\)"),
        (lambda: ops.bincount(NUMBERS, minlength=-1), ArgumentError, "minlength"),
        (lambda: ops.kron("a", ndl.ones(2)), ArgumentError, "kron: expected a tensor"),
    ],
)
def test_helpers_refuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


@looped("shapes", [((2,), (3,)), ((2, 3), (4, 1)), ((2,), (3, 4)), ((), (2, 2)),
                                    ((2, 1, 3), (2,)), ((0, 2), (3, 3))])  # fmt: skip
def test_kron(shapes, device):
    a, b = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes))
    found = ops.kron(*(ndl.Tensor(x, dtype="float64", device=device) for x in (a, b)))
    np.testing.assert_allclose(found.numpy(), np.kron(a, b))
    if found.size:
        check_gradients(ops.kron, a, b)


# ---- small things that PyTorch has -------------------------------------------------------


@looped("axis, keepdims", [(None, False), (None, True), (0, False), (-1, True)])
@looped("q", [0.0, 0.3, 1.0, [0.5], [0.1, 0.25, 1.0], []])
def test_quantiles_are_pytorchs(q, axis, keepdims):
    torch = pytest.importorskip("torch")
    x, theirs = tensor(X), torch.tensor(X, requires_grad=True)
    shares = torch.tensor(q, dtype=torch.float64)
    exact = torch.quantile(theirs, shares, axis, keepdims)
    for lazy in (False, True):
        with ndl.lazy_mode(lazy):
            for given in (q, np.array(q), ndl.Tensor(q, dtype="float64")):
                found = ops.quantile(x, given, axis, keepdims)
                assert found.shape == tuple(exact.shape)
                np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-12)
    if q != []:
        found.sum().backward()
        exact.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-10)
        check_gradients(lambda x: ops.quantile(x, q, axis, keepdims), X, order=2)


@looped("q", [0.31, [0.12, 0.77, 0.43]])
@looped("axis", [None, 0, -1])
def test_gradients_flow_to_the_shares_of_quantiles(q, axis):
    check_gradients(lambda x, q: ops.quantile(x, q, axis), X, np.array(q), order=2)
    shares = ndl.Tensor(q)  # float32, of another dtype than x
    ops.quantile(tensor(X), shares, axis).sum().backward()
    assert shares.grad.dtype == "float32" and (shares.grad.numpy() != 0.0).all()


def test_quantiles_of_nan_integers_and_one_element():
    short = ndl.Tensor([0.5, 0.25], dtype="bfloat16")  # NumPy does not know it
    assert ops.quantile(ndl.Tensor([1.0, 2.0, 3.0]), short).tolist() == [2.0, 1.5]
    x = np.array([[1.0, np.nan, 2.0], [3.0, 1.0, 2.0]])
    np.testing.assert_array_equal(ops.quantile(tensor(x), 0.5, 1).numpy(), [np.nan, 2.0])
    assert ops.quantile(ndl.Tensor([1, 2], dtype="int64"), 0.25).item() == 1.25
    assert ops.quantile(tensor(3.0), 0.9).item() == 3.0
    half = ops.quantile(ndl.Tensor(np.arange(1000), dtype="bfloat16"), 0.5)
    assert half.dtype == "bfloat16" and half.item() == 500.0
    for q, error in ((1.5, OptionError), (-0.1, OptionError), (math.nan, OptionError),
                     ([[0.5]], ShapeError)):  # fmt: skip
        with pytest.raises(error, match="quantile: q"):
            ops.quantile(tensor(x), q)
    with pytest.raises(ShapeError, match="quantile: no elements"):
        ops.quantile(tensor(x[:0]), 0.5)


@looped("weight", [0.0, 0.25, 0.5, 0.9, 1.0, 2.0, X])
def test_lerp_is_pytorchs(weight):
    torch = pytest.importorskip("torch")
    ends = X, X[::-1].copy()
    given = [tensor(weight) if isinstance(weight, np.ndarray) else weight]
    theirs = torch.lerp(*map(torch.tensor, ends), torch.tensor(weight, dtype=torch.float64))
    found = ops.lerp(*map(tensor, ends), *given)
    np.testing.assert_allclose(found.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-15)
    if isinstance(weight, float):
        check_gradients(lambda x, y: ops.lerp(x, y, weight), *ends, order=2)
    else:
        check_gradients(ops.lerp, *ends, weight, order=2)
    assert ops.lerp(0.1, tensor(0.3), 1.0).item() == 0.3


@looped("order", [1, 2, 3, float("inf")])
@looped("axis", [0, 1, -1])
def test_normalize_is_pytorchs(order, axis):
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(X, requires_grad=True)
    exact = torch.nn.functional.normalize(theirs, order, axis)
    x = tensor(X)
    found = ops.normalize(x, order, axis)
    found[0].sum().backward()
    exact[0].sum().backward()
    np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-9, atol=1e-12)
    check_gradients(lambda x: ops.normalize(x, order, axis), X)
    zeros = ops.normalize(ndl.zeros(3, 2, dtype="float16", requires_grad=True))
    assert zeros.tolist() == [[0.0, 0.0]] * 3  # also where eps is 0 in the dtype

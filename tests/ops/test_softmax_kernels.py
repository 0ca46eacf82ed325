"""Softmax along any axis on every instruction set: columns side by side, strips of them, layouts,
special values. Compared with float64."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from looped import looped

import needle as ndl
from needle import core
from needle.testing.tolerance import assert_close

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")

FLOATS = ("float32", "float64", "bfloat16", "float16")
SHAPES = [
    ((3, 5), 0), ((2, 3, 4), 1), ((7, 40, 33), 1), ((5000, 3), 0), ((2, 17, 1, 5), 1),
    ((2, 17, 5, 1), 1), ((1, 4), 0), ((4, 1), 0), ((40, 1100), 0), ((3, 70, 2, 9), 1),
    ((2, 300, 129), 1), ((0, 3), 0), ((3, 0), 0), ((2, 0, 3), 1),
]  # fmt: skip
"""Fewer columns than a vector has lanes, a rest, several strips; one row; axes that join; none."""


@pytest.fixture
def isa(isa, two_threads):
    """Run the test on this instruction set with two threads."""
    return isa


def laid_out(x, dtype, layout):
    """Return a tensor of these values: dense, with reversed axes, or every other column."""
    if layout == "reversed":
        order = tuple(range(x.ndim))[::-1]
        return ndl.permute(ndl.Tensor(np.ascontiguousarray(x.T)).astype(dtype), order)
    if layout == "steps":
        return ndl.Tensor(np.repeat(x, 2, -1)).astype(dtype)[..., ::2]
    return ndl.Tensor(x).astype(dtype)


def exact(x):
    return x.numpy().astype(np.float64)


def log_sum_exp(x, axis):
    with np.errstate(all="ignore"):
        top = x.max(axis, keepdims=True)
        shift = np.where(np.isfinite(top), top, 0)
        return np.log(np.exp(x - shift).sum(axis, keepdims=True)) + shift


def softmax(x, axis):
    with np.errstate(all="ignore"):
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)


def compare(actual, expected, n):
    kind = str(actual.dtype)
    assert actual.shape == expected.shape
    assert_close(exact(actual), expected, kind, n if kind.startswith("float") else 1)


@looped("layout", ["dense", "reversed", "steps"])
@looped("shape, axis", SHAPES)
@looped("dtype", FLOATS)
def test_along_an_axis(isa, dtype, shape, axis, layout):
    values = np.random.default_rng(0).standard_normal(shape) * 3
    x = laid_out(values, dtype, layout)
    n = max(shape[axis], 1)
    if x.size:
        compare(ndl.softmax(x, axis), softmax(exact(x), axis), n)
        compare(ndl.log_softmax(x, axis), np.log(softmax(exact(x), axis)), n)
        compare(ndl.logsumexp(x, axis, keepdims=True), log_sum_exp(exact(x), axis), n)
        compare(ndl.logsumexp(x, axis), log_sum_exp(exact(x), axis).squeeze(axis), n)
    else:
        assert ndl.softmax(x, axis).shape == ndl.log_softmax(x, axis).shape == shape
        assert (exact(ndl.logsumexp(x, axis)) == -np.inf).all()


@looped("layout", ["dense", "reversed", "steps"])
@looped("shape, axis", SHAPES[:-3])
@looped("dtype", FLOATS)
def test_gradients_along_an_axis(isa, dtype, shape, axis, layout):
    values, out_grad = np.random.default_rng(1).standard_normal((2, *shape))
    n = shape[axis]
    g = ndl.Tensor(out_grad).astype(dtype)
    for function in (ndl.softmax, ndl.log_softmax):
        x = laid_out(values, dtype, layout).detach()
        x.requires_grad = True
        out = function(x, axis)
        out.backward(g)
        y, wide = exact(out.detach()), exact(g)
        if function is ndl.softmax:
            expected = y * (wide - (y * wide).sum(axis, keepdims=True))
        else:
            expected = wide - np.exp(y) * wide.sum(axis, keepdims=True)
        compare(x.grad, expected, n)


@looped("axes", [None, (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_logsumexp_over_several_axes(isa, axes):
    x = ndl.Tensor(np.random.default_rng(2).standard_normal((5, 6, 7)))
    for keep in (False, True):
        expected = np.log(np.exp(exact(x)).sum(axes, keepdims=keep))
        compare(ndl.logsumexp(x, axes, keepdims=keep), expected, 210)


@looped("dtype", FLOATS)
def test_special_values_in_columns(isa, dtype):
    values = np.random.default_rng(3).standard_normal((50, 40))
    values[0, 1] = values[25, 2] = values[49, 3] = np.nan
    values[:, 4] = -np.inf
    values[::3, 5] = -np.inf
    values[48, 6] = np.inf
    values[:, 7] = -0.0
    x = ndl.Tensor(values).astype(dtype)
    compare(ndl.softmax(x, 0), softmax(exact(x), 0), 50)
    with np.errstate(all="ignore"):
        expected = exact(x) - exact(x).max(0)
        expected = expected - np.log(np.exp(expected).sum(0))
    compare(ndl.log_softmax(x, 0), expected, 50)
    compare(ndl.logsumexp(x, 0, keepdims=True), log_sum_exp(exact(x), 0), 50)


def test_the_threads_do_not_matter(isa):
    x = ndl.Tensor(np.random.default_rng(4).standard_normal((300, 500)).astype(np.float32))
    results = []
    for threads in (1, 2, 3):
        core.native.set_threads(threads)
        results.append((ndl.softmax(x, 0).numpy(), ndl.logsumexp(x, 0).numpy()))
    for other in results[1:]:
        assert all((a == b).all() for a, b in zip(results[0], other, strict=True))

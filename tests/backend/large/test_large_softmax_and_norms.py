"""Softmax, cross entropy and norms of many and of long rows."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from large_arrays import FLOATS, apply, check, exact, rows, softmax, tensor
from looped import looped

from needle.errors import IndexRangeError
from needle.ops.loss.losses import NOTHING, CrossEntropy, CrossEntropyGrad
from needle.ops.norm.norms import LayerNorm, LayerNormGrad, RMSNorm, RMSNormGrad
from needle.ops.reduction.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


LENGTHS = (256, 1001, 1024, 4097)
"""Of rows: the shortest one that is stored past the caches; whole vectors and a rest; whole
vectors only, so that all rows are aligned alike; one more than whole vectors."""

EPS = 1e-5


def strange(x):
    """Put NaN at a row's start, middle and end, and infinities into other rows."""
    n = x.shape[1]
    x[0, n - 1] = x[1, n // 2] = x[2, 0] = np.nan
    x[3] = -np.inf
    x[4, ::3] = -np.inf
    x[5, n - 2] = np.inf
    return x


def log_softmax(x):
    with np.errstate(all="ignore"):
        low = x - x.max(-1, keepdims=True)
        return low - np.log(np.exp(low).sum(-1, keepdims=True))


@looped("offset", [0, 1])
@looped("n", LENGTHS)
@looped("dtype", FLOATS)
def test_softmax(isa, dtype, n, offset):
    x = tensor(strange(3 * rows(9, n)), dtype, offset)
    check(*apply(Softmax.of(-1), x), softmax(exact(x)), n, n)
    check(*apply(LogSoftmax.of(-1), x), log_softmax(exact(x)), n)


@looped("offset", [0, 1])
@looped("n", LENGTHS)
@looped("dtype", FLOATS)
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


@looped("smoothing", [0.0, 0.1])
@looped("ignore", [NOTHING, 3])
@looped("n", LENGTHS)
@looped("dtype", FLOATS)
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


@looped("bad", [-1, 1001])
def test_a_bad_label_is_named_by_cross_entropy_and_its_gradient(isa, bad):
    x, statistics = tensor(rows(9, 1001), "float32"), tensor(rows(1, 9)[0], "float32")
    labels = tensor(np.array([0, 1, 2, 1000, bad, 5, bad, 7, 8]))
    message = rf"label {bad} at position 4 is not one of 1001 classes"
    with pytest.raises(IndexRangeError, match=rf"^cross_entropy: {message}"):
        apply(CrossEntropy.of(), x, labels)
    with pytest.raises(IndexRangeError, match=rf"^cross_entropy_grad: {message}"):
        apply(CrossEntropyGrad.of(), statistics, x, labels, statistics, statistics)


def norm_inputs(dtype, count, n):
    """Return g, x, weight and bias, with a NaN in a row of x."""
    x = rows(count, n) + 3
    x[1, n - 1] = np.nan
    parameters = np.random.default_rng(2).uniform(0.5, 1.5, (2, n))
    g = tensor(rows(count, n, 1), dtype, 1)
    return g, tensor(x, dtype, 1), tensor(parameters[0], dtype), tensor(parameters[1], dtype)


@looped("n", LENGTHS)
@looped("dtype", FLOATS)
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


@looped("n", LENGTHS)
@looped("dtype", FLOATS)
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

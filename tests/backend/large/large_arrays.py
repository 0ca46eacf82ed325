"""What the tests of large arrays share: tensors at any offset, and how results are compared."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import executor
from needle.testing.tolerance import assert_close

FLOATS = ("float32", "float64", "bfloat16")


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
    return list(result.tuple()) if isinstance(executor.primal_array(result), tuple) else [result]


def check(actual, expected, length=1, scale=1.0):
    """Compare results with exact ones; ``scale`` brings values that are all small to about 1.

    A half-precision result is rounded once, from sums in float32.
    """
    kind = str(actual.dtype)
    half = kind in ("bfloat16", "float16")
    assert_close(exact(actual) * scale, expected * scale, kind, 1 if half else length)


def rows(count, n, seed=0):
    return np.random.default_rng(seed).standard_normal((count, n))


def softmax(x):
    with np.errstate(all="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


LONG = 300_001

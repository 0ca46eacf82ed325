"""What the tests of derivatives share."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import ops


def tensor(values, device=None, requires_grad=False):
    return ndl.Tensor(values, dtype="float64", device=device, requires_grad=requires_grad)


def slope(function):
    """The derivative of a scalar function of a scalar, by forward mode."""
    return lambda x: ndl.jvp(function, (x,), (ops.ones_like(x),))[1]


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)

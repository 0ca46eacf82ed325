"""NumPy's global random stream: arrays of the numbers that ``numpy.random`` draws from it."""

from __future__ import annotations

import numpy as np

from needle import config
from needle import dtype as dtypes
from needle.backend.ndarray import NDArray, Shape, array
from needle.devices import Device
from needle.dtype import DType

_LAST = 1.0 - 2.0**-24
"""The largest float32 below 1."""


def floats(kind: str, shape: Shape, where: Device) -> NDArray:
    """Return ``numpy.random.rand(*shape)`` or ``randn``: float32 (with NEEDLE_BACKEND=np float64).

    Uniform numbers are below 1; float32 would round the last ones up to it.

    Args:
        kind: "rand" or "randn".
        shape: of the result.
        where: the device.
    """
    values = getattr(np.random, kind)(*shape)
    if config.current().backend == "np":
        return array(values, dtypes.float64, where)
    return array(np.minimum(values, _LAST) if kind == "rand" else values, dtypes.float32, where)


def integers(low: int, high: int, shape: Shape, dtype: DType, where: Device) -> NDArray:
    """Return ``numpy.random.randint(low, high, shape)`` in a dtype; at most 2**32 numbers."""
    return array(np.random.randint(low, high, shape), dtype, where)


def permutation(size: int, where: Device) -> NDArray:
    """Return ``numpy.random.permutation(size)``: int64."""
    return array(np.random.permutation(size), dtypes.int64, where)

"""The same values in other memory layouts."""

from __future__ import annotations

import numpy as np

from needle.backend.ndarray import NDArray, empty


def transposed(x: NDArray) -> NDArray:
    """Return x stored with its axes in reverse order."""
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).copy().permute(order)


def sliced(x: NDArray) -> NDArray:
    """Return x as every second element of a larger array that is filled with NaN or ones."""
    big = empty(tuple(2 * n + 1 for n in x.shape), x.dtype, x.device)
    big.fill(np.nan if x.dtype.is_floating else 1)
    part = big.slice([(1, n, 2) for n in x.shape])
    x.device.backend.copy(part, x)
    return part


def flipped(x: NDArray) -> NDArray:
    """Return x with negative strides on every axis."""
    axes = tuple(range(x.ndim))
    return x.flip(axes).copy().flip(axes)


def broadcast(x: NDArray) -> NDArray:
    """Return x's first element along the last axis, repeated with stride 0: other values."""
    if not x.ndim or not x.size:
        return x
    return x.slice([*((0, n, 1) for n in x.shape[:-1]), (0, 1, 1)]).broadcast_to(x.shape)


LAYOUTS = {f.__name__: f for f in (transposed, sliced, flipped, broadcast)}

"""Convolution and interpolation on the native CPU, as a whole.

The algorithm of a convolution depends only on the specs (src/cpu/conv/conv.cc), or on ``config``;
oneDNN is only used if that asks for it. The rest is in src/core/gate/windows.cc.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from needle import config
from needle import dtype as dtypes
from needle.backend import onednn
from needle.backend.axes import normalise_axis
from needle.backend.contract import override
from needle.backend.ndarray import NDArray, array, empty
from needle.core import numbers

_ALGORITHMS = numbers("algorithm")


def _convolution(direction: int) -> Any:
    """Return the override of a direction."""

    def convolution(op: Any, *inputs: NDArray) -> Any:
        chosen = config.current().conv
        if chosen == "onednn":
            return onednn.convolution(direction, op, *inputs)
        if chosen == "im2col":
            return NotImplemented
        native = inputs[0].device.backend.core
        return native.convolution(direction, _ALGORITHMS[chosen], op, *inputs)

    return convolution


for _name, _direction in numbers("convolution").items():
    override("cpu", _name)(_convolution(_direction))


# ---- interpolation -------------------------------------------------------------------


@functools.lru_cache(100)
def _bands(op: Any, i: int, n: int, transposed: bool) -> tuple[Any, Any]:
    """Return where the rows of the matrix of an interpolation's axis begin, and their elements."""
    places, weights = op.neighbours(i, n)
    low, high, m = places.min(0), places.max(0), places.shape[1]
    if not transposed:
        span = int((high - low).max()) + 1
        first = np.minimum(low, n - span)
        at = first[:, None] + np.arange(span)
        point = np.arange(m)[:, None]
    else:  # the points that element k is part of: they are neighbours, since both sides ascend
        k = np.arange(n)
        first, last = np.searchsorted(high, k), np.searchsorted(low, k, side="right")
        span = max(int((last - first).max()), 1)
        first = np.minimum(first, m - span)
        point, at = first[:, None] + np.arange(span), k[:, None]
    return first, np.where(places[:, point] == at, weights[:, point], 0.0).sum(0)


def _dense(x: NDArray) -> NDArray:
    return x if x.strides == x.spec.strides else x.reshape(x.shape) if x.is_dense() else x.copy()


def _banded(op: Any, x: NDArray, elements: tuple[int, ...], transposed: bool) -> Any:
    kind, count = x.dtype, len(elements)
    if kind.kind != "f" or x.size == 0 or count > 2:
        return NotImplemented
    x = _dense(x if kind is dtypes.float64 else x.astype(dtypes.float32, copy=False))
    axis, shape = normalise_axis(op.axis, x.ndim), list(x.shape)
    shape[axis : axis + count] = elements if transposed else op.sizes
    # first, so that too large results are refused before NumPy makes matrices as long
    out = empty(tuple(shape), x.dtype, x.device)
    matrices: list[Any] = [None] * 4
    for i, n in enumerate(elements):
        first, weight = _bands(op, i, n, transposed)
        pair = array(first, dtypes.int64, x.device), array(weight, x.dtype, x.device)
        matrices[2 * i : 2 * i + 2] = pair
    width = () if count == 2 else (1,)
    inner = math.prod(shape[axis + count :])
    flat = [a.reshape((-1, *a.shape[axis : axis + count], *width, inner)) for a in (out, x)]
    x.device.backend.core.banded(*flat, *matrices)
    return out.astype(kind, copy=False)


@override("cpu", "Interpolate")
def interpolate(op: Any, x: NDArray) -> Any:
    """Points of one or two axes between their elements."""
    axis = normalise_axis(op.axis, x.ndim)
    return _banded(op, x, x.shape[axis : axis + len(op.sizes)], False)


@override("cpu", "InterpolateGrad")
def interpolate_grad(op: Any, g: NDArray) -> Any:
    """Spread points over the elements that they were made of."""
    return _banded(op, g, op.elements, True)

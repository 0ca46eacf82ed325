"""Convolution, pooling and interpolation on the native CPU, as a whole.

The kernels (src/cpu/conv, image/pool*.cc, norm/) compute in float32. For convolutions float16 and
bfloat16 images are converted to it and back. The algorithm of a convolution depends only on the
specs (src/cpu/conv/conv.cc), or on ``config``; oneDNN is only used if that asks for it.
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

_DIRECTIONS, _ALGORITHMS = numbers("convolution"), numbers("algorithm")
MOST_PLACES = 256
"""Largest number of elements of a window whose positions fit into uint8."""

Sizes = tuple[int, ...]


def _dense(x: NDArray) -> NDArray:
    return x if x.strides == x.spec.strides else x.reshape(x.shape) if x.is_dense() else x.copy()


def _convolve(
    op: Any, direction: int, shape: Sizes, kernel: Sizes, *inputs: NDArray
) -> NDArray | Any:
    """Return the result of a direction, of the given shape; NotImplemented without a kernel.

    There are two inputs, and optionally a bias for the forward direction.
    """
    chosen, kind = config.current().conv, inputs[0].dtype
    if chosen == "onednn":
        onednn.plugin()  # raises without the library, for every dtype
    small = kind in (dtypes.float16, dtypes.bfloat16)
    if chosen == "im2col" or not (small or kind is dtypes.float32):
        return NotImplemented
    if any(x.dtype is not kind or x.size == 0 for x in inputs):
        return NotImplemented
    out = empty(shape, dtypes.float32, inputs[0].device)
    a, b, *rest = (_dense(x.astype(dtypes.float32, copy=False)) for x in inputs)
    bias, slope = rest[0] if rest else None, getattr(op, "slope", 1.0)
    low = [before for before, _ in op.padding]
    window = kernel, op.stride, op.dilation, low, op.groups
    if chosen == "onednn":
        taken = onednn.convolve(direction, out, a, b, bias, slope, *window)
    else:
        core = out.device.backend.core
        taken = core.convolution(
            direction, _ALGORITHMS[chosen], out, a, b, bias, slope, *window
        )  # fmt: skip
    if not taken:
        return NotImplemented
    return out.astype(kind) if small else out


@override("cpu", "Convolution")
def convolution(op: Any, x: NDArray, w: NDArray) -> Any:
    """Convolution of images."""
    kernel = w.shape[:-2]
    shape = (x.shape[0], *op.out_spatial(x.shape[1:-1], kernel), w.shape[-1])
    return _convolve(op, _DIRECTIONS["forward"], shape, kernel, x, w)


@override("cpu", "ConvolutionBias")
@override("cpu", "ConvolutionActivation")
def convolution_bias(op: Any, x: NDArray, w: NDArray, bias: NDArray) -> Any:
    """Convolution of images with a bias, and optionally ReLU or LeakyReLU."""
    kernel = w.shape[:-2]
    shape = (x.shape[0], *op.out_spatial(x.shape[1:-1], kernel), w.shape[-1])
    return _convolve(op, _DIRECTIONS["forward"], shape, kernel, x, w, bias)


@override("cpu", "ConvolutionInput")
def convolution_input(op: Any, g: NDArray, w: NDArray) -> Any:
    """Its transpose with respect to the images."""
    shape = (g.shape[0], *op.spatial, w.shape[-2] * op.groups)
    return _convolve(op, _DIRECTIONS["input"], shape, w.shape[:-2], g, w)


@override("cpu", "ConvolutionWeight")
def convolution_weight(op: Any, x: NDArray, g: NDArray) -> Any:
    """Its transpose with respect to the weights."""
    shape = (*op.kernel, x.shape[-1] // op.groups, g.shape[-1])
    return _convolve(op, _DIRECTIONS["weight"], shape, op.kernel, x, g)


# ---- max pooling -------------------------------------------------------------------


def _window(op: Any) -> tuple[Any, ...]:
    return op.kernel, op.stride, op.dilation, [before for before, _ in op.padding]


def _poolable(op: Any, *arrays: NDArray) -> bool:
    return math.prod(op.kernel) <= MOST_PLACES and _all_float32(*arrays)


@override("cpu", "MaxPool")
def max_pool(op: Any, x: NDArray) -> Any:
    """Largest elements of windows, and their positions."""
    if not _poolable(op, x):
        return NotImplemented
    shape = op.pooled(x.shape, [("x", x)])
    out, index = empty(shape, x.dtype, x.device), empty(shape, dtypes.uint8, x.device)
    taken = x.device.backend.core.max_pool(out, index, _dense(x), *_window(op))
    return (out, index) if taken else NotImplemented


@override("cpu", "MaxPoolGrad")
def max_pool_grad(op: Any, g: NDArray, index: NDArray) -> Any:
    """Put gradients back at their positions."""
    if not _poolable(op, g) or index.dtype is not dtypes.uint8:
        return NotImplemented
    dx = empty((g.shape[0], *op.spatial, g.shape[-1]), g.dtype, g.device)
    taken = g.device.backend.core.max_pool_grad(dx, _dense(g), _dense(index), *_window(op))
    return dx if taken else NotImplemented


@override("cpu", "MaxPoolTake")
def max_pool_take(op: Any, x: NDArray, index: NDArray) -> Any:
    """Take the elements of windows at known positions."""
    if not _poolable(op, x) or index.dtype is not dtypes.uint8 or index.size == 0:
        return NotImplemented
    out = empty(index.shape, x.dtype, x.device)
    taken = x.device.backend.core.max_pool_take(out, _dense(x), _dense(index), *_window(op))
    return out if taken else NotImplemented


# ---- averages ----------------------------------------------------------------------


def _all_float32(*arrays: NDArray) -> bool:
    return all(x.dtype is dtypes.float32 and x.size > 0 for x in arrays)


def _average(op: Any, grad: bool, shape: Sizes, x: NDArray) -> Any:
    if not _all_float32(x):
        return NotImplemented
    out = empty(shape, x.dtype, x.device)
    low = [before for before, _ in op.padding]
    counted = ([pair[i] for pair in op.counted] for i in (0, 1))
    taken = x.device.backend.core.avg_pool(
        grad, out, _dense(x), op.kernel, op.stride, low, *counted
    )  # fmt: skip
    return out if taken else NotImplemented


@override("cpu", "AvgPool")
def avg_pool(op: Any, x: NDArray) -> Any:
    """Averages of windows."""
    return _average(op, False, op.pooled(x.shape, [("x", x)]), x)


@override("cpu", "AvgPoolGrad")
def avg_pool_grad(op: Any, g: NDArray) -> Any:
    """Spread gradients over their windows."""
    return _average(op, True, (g.shape[0], *op.spatial, g.shape[-1]), g)


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

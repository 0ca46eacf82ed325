"""Lengths and deviations on the native CPU: from plain sums of squares, wherever those fit.

The host reads them here for nothing. Only where one has left the range does the expansion run,
which takes more passes over the memory. A program checks them, and gives up where one has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle.backend import kernels, override
from needle.backend.axes import normalise_axes, normalise_axis
from needle.backend.ndarray import NDArray, array, broadcast_shapes, empty, full
from needle.backend.numpy import view

_LEAST = {dtypes.float32: 2.0**-100, dtypes.float64: 2.0**-800}
"""Sums below this may have lost squares that underflowed."""


def _wide(x: NDArray) -> NDArray:
    return x.astype(dtypes.float32) if x.dtype.itemsize == 2 else x


def _fits(*sums: NDArray) -> bool:
    for each in sums:
        if each.device.backend.core.is_recording():
            _note_fit(each)
            continue
        values = view(each)
        if not ((values >= _LEAST[each.dtype]) & (values < math.inf)).all():
            return False
    return True


def _note_fit(sums: NDArray) -> None:
    """Note a check of what ``_fits`` asks."""
    kind, where = sums.dtype, sums.device
    least, most = full((), _LEAST[kind], kind, where), full((), math.inf, kind, where)
    large = kernels.elementwise("greater_equal", sums, least, dtype=dtypes.bool_)
    finite = kernels.elementwise("less", sums, most, dtype=dtypes.bool_)
    good = kernels.elementwise("minimum", large.astype(dtypes.int32), finite.astype(dtypes.int32))
    sums.device.backend.core.check_range(good, 1, 2, 1)


def _squares(x: NDArray, axes: tuple[int, ...], keepdims: bool) -> NDArray:
    return kernels.reduce("sum", kernels.elementwise("multiply", x, x), axes, keepdims)


@override("cpu", "EuclideanNorm")
def euclidean_norm(op: Any, x: NDArray) -> Any:
    """Root of the sum of squares."""
    axes = normalise_axes(op.axes, x.ndim)
    if x.dtype.kind != "f" or x.size == 0:
        return NotImplemented
    total = _squares(_wide(x), axes, op.keepdims)
    if not _fits(total):
        return op.expanded(x)
    return kernels.elementwise("sqrt", total).astype(x.dtype, copy=False)


@override("cpu", "GlobalNorm")
def global_norm(op: Any, *parts: NDArray) -> Any:
    """Root of the sum of all squares."""
    total: NDArray | None = None
    for x in map(_wide, parts):
        part = _squares(x, tuple(range(x.ndim)), False)
        if total is not None:
            part = kernels.elementwise("add", total, part.astype(total.dtype))
        total = part
    if total is None or not _fits(total):
        return op.expanded(*parts)
    if total.device.backend.core.is_recording():
        return kernels.elementwise("sqrt", total.astype(dtypes.float64))
    return array(np.float64(math.sqrt(float(view(total)))), dtypes.float64, parts[0].device)


@override("cpu", "StandardDeviation")
def standard_deviation(op: Any, x: NDArray) -> Any:
    """Root of the variance, which one pass over the memory gives."""
    axes = normalise_axes(op.axes, x.ndim)
    if x.dtype.kind != "f" or x.size == 0:
        return NotImplemented
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    var = empty(kept, dtypes.float32 if x.dtype.itemsize == 2 else x.dtype, x.device)
    mask = sum(1 << axis for axis in axes)
    code = kernels.reduction_code("variance")
    x.device.backend.core.reduce(code, var, x, mask, op.factor(x))
    if not _fits(var):
        return op.expanded(x)
    out = kernels.elementwise("sqrt", var).astype(x.dtype, copy=False)
    return out if op.keepdims else out.squeeze(axes)


@override("cpu", "CosineSimilarity")
def cosine_similarity(op: Any, x: NDArray, y: NDArray) -> Any:
    """Sum of products, divided by lengths."""
    if x.dtype.kind != "f" or x.dtype is not y.dtype or not x.size * y.size or not op.eps >= 0:
        return NotImplemented
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axis = normalise_axis(op.axis, len(shape))
    a, b = (_wide(z).broadcast_to(shape) for z in (x, y))
    squares = [_squares(z, (axis,), False) for z in (a, b)]
    if not _fits(*squares):
        return op.expanded(x, y)
    least = array(op.eps, a.dtype, x.device)
    sizes = [kernels.elementwise("maximum", kernels.elementwise("sqrt", z), least) for z in squares]
    dots = kernels.reduce("sum", kernels.elementwise("multiply", a, b), (axis,), False)
    bound = kernels.elementwise("multiply", *sizes)
    return kernels.elementwise("divide", dots, bound).astype(x.dtype, copy=False)

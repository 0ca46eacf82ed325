"""Lengths and deviations on the native CPU: one pass over the memory.

Results whose squares leave the range of the dtype are computed again, one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.axes import normalise_axes, normalise_axis
from needle.backend.contract import override
from needle.backend.ndarray import NDArray, array, broadcast_shapes, empty, full
from needle.backend.numpy import view


def _wide(x: NDArray) -> NDArray:
    return x.astype(dtypes.float32) if x.dtype.itemsize == 2 else x


def _reduced(function: str, x: NDArray, axes: tuple[int, ...], factor: float = 1.0) -> NDArray:
    """Return results of float32 or float64 over axes, which stay with size 1."""
    out = empty(tuple(1 if i in axes else n for i, n in enumerate(x.shape)), x.dtype, x.device)
    code = kernels.reduction_code(function)
    return x.device.backend.core.reduce(code, x, axes, out, factor)


def _known(function: str, *arrays: NDArray) -> bool:
    return kernels.reduction_code(function) >= 0 and all(
        x.dtype.kind == "f" and x.size for x in arrays
    )


def _between(x: NDArray, least: float, most: float) -> bool:
    """Return whether all numbers are in [least, most). A program checks it when it runs."""
    core, kind, where = x.device.backend.core, x.dtype, x.device
    if not getattr(core, "is_recording", bool)():
        values = view(x)
        return bool(((values >= least) & (values < most)).all())
    large = kernels.elementwise(
        "greater_equal", x, full((), least, kind, where), dtype=dtypes.bool_
    )
    small = kernels.elementwise("less", x, full((), most, kind, where), dtype=dtypes.bool_)
    good = kernels.elementwise("minimum", large.astype(dtypes.int32), small.astype(dtypes.int32))
    core.check_range(good, 1, 2, 1)
    return True


@override("cpu", "EuclideanNorm")
def euclidean_norm(op: Any, x: NDArray) -> Any:
    """Root of the sum of squares."""
    axes = normalise_axes(op.axes, x.ndim)
    if not _known("norm", x):
        return NotImplemented
    out = _reduced("norm", _wide(x), axes).astype(x.dtype, copy=False)
    return out if op.keepdims else out.squeeze(axes)


@override("cpu", "GlobalNorm")
def global_norm(op: Any, *parts: NDArray) -> Any:
    """Root of the sum of all squares."""
    if not _known("norm", *parts):
        return NotImplemented
    lengths = [_reduced("norm", _wide(x), tuple(range(x.ndim))) for x in parts]
    exact = [x.astype(dtypes.float64, copy=False).reshape((1,)) for x in lengths]
    total = _reduced("norm", kernels.concatenate(tuple(exact), 0), (0,)).reshape(())
    if not _between(total, 0.0, math.inf):  # float64 may hold a length that float32 does not
        return op.expanded(*parts)
    return total


@override("cpu", "StandardDeviation")
def standard_deviation(op: Any, x: NDArray) -> Any:
    """Root of the variance."""
    axes = normalise_axes(op.axes, x.ndim)
    if not _known("deviation", x):
        return NotImplemented
    out = _reduced("deviation", _wide(x), axes, op.factor(x)).astype(x.dtype, copy=False)
    return out if op.keepdims else out.squeeze(axes)


@override("cpu", "CosineSimilarity")
def cosine_similarity(op: Any, x: NDArray, y: NDArray) -> Any:
    """Sum of products, divided by lengths; by the expansion where one of these has no number."""
    if not _known("norm", x, y) or x.dtype is not y.dtype or not op.eps >= 0:
        return NotImplemented
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axis = normalise_axis(op.axis, len(shape))
    a, b = (_wide(z).broadcast_to(shape) for z in (x, y))
    least = array(op.eps, a.dtype, x.device)
    sizes = [
        kernels.elementwise("maximum", _reduced("norm", z, (axis,)).squeeze((axis,)), least)
        for z in (a, b)
    ]
    bound = kernels.elementwise("multiply", *sizes)
    limits = np.finfo(bound.dtype.numpy)
    if not _between(bound, limits.tiny * 2.0**24, limits.max * 2.0**-24):
        return op.expanded(x, y)
    dots = kernels.reduce("sum", kernels.elementwise("multiply", a, b), (axis,), False)
    return kernels.elementwise("divide", dots, bound).astype(x.dtype, copy=False)

"""Lengths on the native CPU: one pass over the memory.

Results whose squares leave the range of the dtype are computed again, one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.axes import normalise_axis
from needle.backend.contract import override
from needle.backend.ndarray import NDArray, array, broadcast_shapes, full
from needle.backend.numpy import view


def _wide(x: NDArray) -> NDArray:
    return x.astype(dtypes.float32) if x.dtype.itemsize == 2 else x


def _are_floats(*arrays: NDArray) -> bool:
    return all(x.dtype.kind == "f" and x.size for x in arrays)


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


@override("cpu", "GlobalNorm")
def global_norm(op: Any, *parts: NDArray) -> Any:
    """Root of the sum of all squares."""
    if not _are_floats(*parts):
        return NotImplemented
    lengths = [kernels.reduce("norm", _wide(x), tuple(range(x.ndim))) for x in parts]
    exact = [x.astype(dtypes.float64, copy=False).reshape((1,)) for x in lengths]
    total = kernels.reduce("norm", kernels.concatenate(tuple(exact), 0), (0,))
    if not _between(total, 0.0, math.inf):  # float64 may hold a length that float32 does not
        return op.expanded(*parts)
    return total


@override("cpu", "CosineSimilarity")
def cosine_similarity(op: Any, x: NDArray, y: NDArray) -> Any:
    """Sum of products, divided by lengths; by the expansion where one of these has no number."""
    if not _are_floats(x, y) or x.dtype is not y.dtype or not op.eps >= 0:
        return NotImplemented
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axis = normalise_axis(op.axis, len(shape))
    a, b = (_wide(z).broadcast_to(shape) for z in (x, y))
    least = array(op.eps, a.dtype, x.device)
    sizes = [
        kernels.elementwise("maximum", kernels.reduce("norm", z, (axis,)), least) for z in (a, b)
    ]
    bound = kernels.elementwise("multiply", *sizes)
    limits = np.finfo(bound.dtype.numpy)
    if not _between(bound, limits.tiny * 2.0**24, limits.max * 2.0**-24):
        return op.expanded(x, y)
    dots = kernels.reduce("sum", kernels.elementwise("multiply", a, b), (axis,), False)
    return kernels.elementwise("divide", dots, bound).astype(x.dtype, copy=False)

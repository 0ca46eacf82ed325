"""New tensors of given values. They require no gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle import graph
from needle.backend import ndarray
from needle.dtype import as_dtype
from needle.errors import DtypeError, OptionError, ShapeError
from needle.ops.base import default_float, fits
from needle.ops.movement import broadcast_to, reshape

Shape = int | Sequence[int]


def _shape(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)


def _make(values: Any, dtype: Any, device: Any) -> Any:
    return graph.wrap(ndarray.array(values, dtype, device))


def full(shape: Shape, value: bool | int | float, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of one value; for dtype None that of the value (floats: float32).

    Raises:
        DtypeError: if an integer dtype cannot hold the value.
    """
    if dtype is None:
        kinds = {bool: dtypes.bool_, int: dtypes.int64}
        dtype = kinds.get(type(value)) or default_float()
    kind = as_dtype(dtype)
    if kind.kind in "iu" and not fits(value, kind):
        raise DtypeError(f"full: the number {value} does not fit into {kind}")
    return graph.wrap(ndarray.full(_shape(shape), value, kind, device))


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of zeros; float32 for dtype None."""
    return full(shape, 0.0, dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of ones; float32 for dtype None."""
    return full(shape, 1.0, dtype=dtype, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor whose values are not set; float32 for dtype None."""
    kind = default_float() if dtype is None else as_dtype(dtype)
    return graph.wrap(ndarray.empty(_shape(shape), kind, device))


def full_like(x: Any, value: float, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of one value with the shape, dtype and device of x."""
    spec = x.spec
    return full(spec.shape, value, dtype=dtype or spec.dtype, device=device or spec.device)


def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros with the shape, dtype and device of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones with the shape, dtype and device of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor with the shape, dtype and device of x whose values are not set."""
    spec = x.spec
    return empty(spec.shape, dtype=dtype or spec.dtype, device=device or spec.device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Return start, start + step, ... below stop (from 0 if only one number is given).

    int64 for whole numbers, else float32, unless a dtype is given.

    Raises:
        OptionError: if step is 0.
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise OptionError("arange: the step must not be 0")
    count = max(0, math.ceil((stop - start) / step))
    if dtype is None:
        whole = all(isinstance(n, (int, np.integer)) for n in (start, stop, step))
        dtype = dtypes.int64 if whole else default_float()
    return _make(start + step * np.arange(count), dtype, device)


def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Return ``num`` evenly spaced numbers from start to stop; float32 for dtype None.

    Raises:
        ShapeError: if num is negative.
    """
    if num < 0:
        raise ShapeError(f"linspace: {num} numbers")
    return _make(np.linspace(start, stop, num, endpoint=endpoint), dtype or default_float(), device)


def eye(n: int, m: int | None = None, *, k: int = 0, dtype: Any = None, device: Any = None) -> Any:
    """Return an n x m matrix (square for None) with ones on diagonal k; float32 for dtype None."""
    return _make(np.eye(n, m, k), dtype or default_float(), device)


def meshgrid(*axes: Any, indexing: str = "xy") -> list[Any]:
    """Return the coordinates of a grid over one-dimensional tensors, one tensor per axis; views.

    Args:
        axes: one-dimensional tensors.
        indexing: "xy" swaps the first two axes of the results, as NumPy does; "ij" does not.

    Raises:
        ShapeError: if a tensor has another number of axes.
        OptionError: for another indexing.
    """
    if indexing not in ("xy", "ij"):
        raise OptionError(f"meshgrid: indexing {indexing!r} is neither 'xy' nor 'ij'")
    for x in axes:
        if len(x.spec.shape) != 1:
            raise ShapeError(f"meshgrid: a tensor has shape {x.spec.shape}, one axis is needed")
    places = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        places[:2] = 1, 0
    shape = [1] * len(axes)
    for place, x in zip(places, axes, strict=True):
        shape[place] = x.spec.shape[0]
    grids = []
    for place, x in zip(places, axes, strict=True):
        own = tuple(-1 if i == place else 1 for i in range(len(axes)))
        grids.append(broadcast_to(reshape(x, own), shape))
    return grids

"""Sums, means, extremes and truth over axes; cumulative sums; differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from needle import ops
from needle.errors import ShapeError
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import Axes, DTypeLike, Tensor

__all__ = [
    "all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std",
    "sum", "var",
]  # fmt: skip


def sum(
    x: Tensor, /, *, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False
) -> Tensor:
    """Sum over axes; of integers in int64 unless a dtype is given."""
    return ops.summation(x, axis, keepdims, dtype=dtype)


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False
) -> Tensor:
    """Product over axes; of integers in int64 unless a dtype is given."""
    return ops.prod(x, axis, keepdims, dtype=dtype)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean over axes."""
    return ops.mean(x, axis, keepdims)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Variance over axes; correction 1 is the unbiased one."""
    return ops.var(x, axis, keepdims, correction=correction)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Standard deviation over axes; correction 1 is the unbiased one."""
    return ops.std(x, axis, keepdims, correction=correction)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Largest value over axes; NaN if one is NaN."""
    return ops.amax(x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Smallest value over axes; NaN if one is NaN."""
    return ops.amin(x, axis, keepdims)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over axes are not zero."""
    return ops.all(x, axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether any element over axes is not zero."""
    return ops.any(x, axis, keepdims)


# ---- along an axis -----------------------------------------------------------------


def _cumulative(
    function: Any, first: int, x: Tensor, axis: int | None, dtype: DTypeLike, include_initial: bool
) -> Tensor:
    x = operands.tensor(x)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"{function.__name__}: {x.ndim} axes, so axis must be given")
        axis = 0
    out = function(x, axis, dtype=dtype)
    if not include_initial:
        return out
    shape = list(out.shape)
    shape[axis] = 1
    start = ops.full(shape, first, dtype=out.dtype, device=out.device)
    return ops.concat((start, out), axis)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Tensor:
    """Cumulative sum along an axis; with ``include_initial`` it starts with 0.

    Raises:
        ShapeError: if axis is None and x does not have one axis.
    """
    return _cumulative(ops.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Tensor:
    """Cumulative product along an axis; with ``include_initial`` it starts with 1.

    Raises:
        ShapeError: if axis is None and x does not have one axis.
    """
    return _cumulative(ops.cumprod, 1, x, axis, dtype, include_initial)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Differences of neighbours along an axis, ``n`` times.

    Args:
        x: a tensor.
        axis: the axis.
        n: how many times.
        prepend: values to put before x along the axis.
        append: values to put after it.

    Raises:
        OptionError: if n is negative.
        ArgumentError: if n or axis is not an integer.
        ShapeError: if x has no axes.
        IndexRangeError: if the axis is out of range.
    """
    axis = operands.axis_of("diff", operands.tensor(x), axis)
    return ops.diff(x, n, axis, prepend, append)

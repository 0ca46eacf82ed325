"""Searching, sorting and sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from needle import executor, graph, ops
from needle.backend import kernels
from needle.errors import ShapeError, explain, unknown
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import Axes, Operand, Tensor

__all__ = [
    "argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "sort", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the first largest value; int64."""
    return ops.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the first smallest value; int64."""
    return ops.argmin(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Count the elements over axes that are not zero; int64."""
    return ops.count_nonzero(x, axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The positions of the elements that are not zero: per axis an int64 tensor."""
    return ops.nonzero(operands.tensor(x))


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Positions to insert the values of x2 into x1, which is sorted, or sorted by ``sorter``.

    Raises:
        ShapeError: if x1 does not have one axis, or ``sorter`` not its shape.
        OptionError: if side is neither "left" nor "right".
    """
    if side not in ("left", "right"):
        raise unknown("searchsorted: side", side, ("left", "right"))
    x1 = operands.tensor(x1)
    if sorter is not None and operands.tensor(sorter).shape != x1.shape:
        raise explain(
            ShapeError, "searchsorted", f"sorter has shape {sorter.shape}, x1 {x1.shape}",
            [("x1", x1), ("sorter", sorter)], "sorter has an index for each element of x1",
            "sorter=argsort(x1)",
        )  # fmt: skip
    edges = x1 if sorter is None else ops.take(x1, sorter, 0)
    return ops.searchsorted(edges, x2, side)


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """Choose: x1 where condition is true, else x2. One of them may be a number."""
    return ops.where(operands.tensor(condition), x1, x2)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis; always stable, NaN last."""
    return ops.sort(x, axis, descending)


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The positions that sort along an axis; always stable, NaN last."""
    return ops.argsort(x, axis, descending)


# ---- sets --------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """Distinct values, their first positions, the position of each element's value, and counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct values, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct values, and for each element the position of its value."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The distinct values in ascending order, with first positions, inverse and counts.

    NaNs are distinct from each other, as the standard has it.
    """
    value = executor.primal_array(operands.tensor(x))
    found = kernels.unique(value, equal_nan=False)
    return UniqueAll(*map(graph.wrap, found))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The distinct values in ascending order, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The distinct values in ascending order, and for each element the position of its value."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """The distinct values in ascending order."""
    value = executor.primal_array(operands.tensor(x))
    return graph.wrap(kernels.unique(value, equal_nan=False, rest=False)[0])

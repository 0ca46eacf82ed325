"""Searching, sorting and sets."""

from __future__ import annotations

from typing import Any, NamedTuple

from needle import executor, graph, ops
from needle.backend import kernels
from needle.errors import ShapeError, explain, unknown
from needle.standard import operands

__all__ = [
    "argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "sort", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Position of the first largest value; int64."""
    return ops.argmax(x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Position of the first smallest value; int64."""
    return ops.argmin(x, axis, keepdims)


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Count the elements over axes that are not zero; int64."""
    return ops.count_nonzero(x, axis, keepdims)


def nonzero(x: Any, /) -> tuple[Any, ...]:
    """The positions of the elements that are not zero: per axis an int64 tensor."""
    return ops.nonzero(operands.tensor(x))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
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


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Choose: x1 where condition is true, else x2. One of them may be a number."""
    return ops.where(operands.tensor(condition), x1, x2)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along an axis; always stable, NaN last."""
    return ops.sort(x, axis, descending)


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The positions that sort along an axis; always stable, NaN last."""
    return ops.argsort(x, axis, descending)


# ---- sets --------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """Distinct values, their first positions, the position of each element's value, and counts."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Distinct values, and how often each occurs."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Distinct values, and for each element the position of its value."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """The distinct values in ascending order, with first positions, inverse and counts.

    NaNs are distinct from each other, as the standard has it.
    """
    value = executor.primal_array(operands.tensor(x))
    found = kernels.unique(value, equal_nan=False)
    return UniqueAll(*map(graph.wrap, found))


def unique_counts(x: Any, /) -> UniqueCounts:
    """The distinct values in ascending order, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The distinct values in ascending order, and for each element the position of its value."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """The distinct values in ascending order."""
    value = executor.primal_array(operands.tensor(x))
    return graph.wrap(kernels.unique(value, equal_nan=False, rest=False)[0])

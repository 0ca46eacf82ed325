"""Indexing by integers, slices, ``...`` and None: a view, one ``Slice``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from needle import core, executor
from needle.backend.axes import normalise_index
from needle.errors import IndexRangeError
from needle.executor import shape_of
from needle.ops.shape.movement import Slice, reshape

if TYPE_CHECKING:
    from needle.typing import Tensor

__all__ = ["native_index"]


def _slice_of(numbers: tuple[int, ...]) -> Slice:
    """Return the op for an index as the native gate encodes it: a mask of axes, then triples."""
    triples = tuple(zip(numbers[1::3], numbers[2::3], numbers[3::3], strict=True))
    return Slice.of(triples, tuple(i for i in range(len(triples)) if numbers[0] >> i & 1))


_native_getitem: Any = None
if core.native is not None:
    core.native.set_make_slice(_slice_of)
    _native_getitem = core.native.getitem


def native_index(x: Tensor, index: Any) -> Any:
    """Return ``basic_index`` by the native gate, or None where the gate does not support it."""
    return None if _native_getitem is None else _native_getitem(x, index)


def basic_index(x: Tensor, index: Any) -> Tensor:
    """Return x indexed by integers, slices, ``...`` and None, as NumPy does: a view.

    Raises:
        IndexRangeError: for an integer out of range or too many indices.
    """
    shape = shape_of(x)
    given = index if isinstance(index, tuple) else (index,)
    count = sum(part is not None and part is not Ellipsis for part in given)
    dots = sum(part is Ellipsis for part in given)
    check_count(count, dots, len(shape))
    ranges: list[tuple[int, int, int]] = []
    dropped: list[int] = []
    new: list[int] = []
    for part in given if dots else (*given, Ellipsis):
        axis = len(ranges)
        if part is None:
            new.append(axis - len(dropped) + len(new))
        elif part is Ellipsis:
            ranges += [(0, n, 1) for n in shape[axis : axis + len(shape) - count]]
        elif isinstance(part, slice):
            start, stop, step = part.indices(shape[axis])
            size = len(range(start, stop, step))
            ranges.append((start, size, step if size > 1 else 1))  # a step may be of any size
        else:
            dropped.append(axis)
            ranges.append((_position(part, axis, shape[axis]), 1, 1))
    result = executor.apply(Slice.of(tuple(ranges), tuple(dropped)), x)
    if new:
        out_shape = list(shape_of(result))
        for axis in new:
            out_shape.insert(axis, 1)
        result = reshape(result, tuple(out_shape))
    return result


def check_count(count: int, dots: int, ndim: int) -> None:
    """Check how many axes an index names, and how often it has ``...``.

    Raises:
        IndexRangeError: if there are more indices than axes, or two ``...``.
    """
    if dots > 1:
        raise IndexRangeError(
            f"index: {dots} times ...\n  rule: ... stands for all axes that are not named, once"
        )
    if count > ndim:
        raise IndexRangeError(f"index: {count} indices for {ndim} dimensions")


def _position(part: int, axis: int, size: int) -> int:
    """Return an integer index counted from 0."""
    try:
        place = operator.index(part)
    except TypeError:
        raise IndexRangeError(
            f"index: {part!r:.60} is not an index\n"
            "  rule: indices are integers, slices, ..., None, integer arrays or masks"
        ) from None
    return normalise_index(place, size, axis)

"""Axes, indices and sizes as users give them: checked, and counted from 0."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import Any

import numpy as np

from needle.errors import ArgumentError, IndexRangeError, ShapeError, called, explain

Shape = tuple[int, ...]


def whole(what: str, value: Any) -> int:
    """Return an argument as a Python int; a float without a fraction is one.

    Raises:
        ArgumentError: if it is no whole number.
    """
    try:
        if isinstance(value, (float, np.floating)) and value == int(value):
            return int(value)
        return operator.index(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{what} is {value!r:.60}, not an integer") from None


def axes_of(axes: Any) -> tuple[Any, ...]:
    """Return axes or sizes given as one number or several as a tuple; it is not checked.

    Raises:
        ArgumentError: if it is neither.
    """
    if isinstance(axes, (tuple, list)):
        return tuple(axes)
    try:
        return (operator.index(axes),)
    except TypeError:
        pass
    try:
        if isinstance(axes, (bytes, bytearray, Mapping, Set)):  # of numbers, but not in this sense
            raise TypeError
        return tuple(axes)
    except TypeError:
        raise ArgumentError(
            f"{called()}: expected an integer or a sequence of integers, got {axes!r:.60}"
        ) from None


def sizes_of(operation: str, shape: Any, itemsize: int = 1) -> Shape:
    """Return the shape of a new array, given as one size or several.

    Raises:
        ArgumentError: if a size is no whole number.
        ShapeError: if one is negative, or one or all bytes do not fit into 63 bits.
    """
    if type(shape) is int:
        shape = (shape,)
    if type(shape) is tuple and _is_plain(shape, itemsize):
        return shape
    sizes = tuple(
        n if type(n) is int else whole(f"{operation}: size", n)
        for n in (axes_of(shape) if not isinstance(shape, float) else (shape,))
    )
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{operation}: shape {sizes} has a negative size")
    if max(sizes, default=0) >= 2**63 or prod(sizes) * itemsize >= 2**63:
        raise ShapeError(f"{operation}: shape {sizes} is too large: sizes or bytes reach 2**63")
    return sizes


def new_shape(shape: Any, size: int, old: Shape | None = None) -> Shape:
    """Return a shape given as numbers or as one sequence, with at most one -1 worked out.

    Raises:
        ShapeError: if the sizes do not make ``size`` elements.
        ArgumentError: if they are no whole numbers.
    """
    if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)):
        shape = axes_of(shape[0])
    new = tuple(n if type(n) is int else whole("reshape: size", n) for n in shape)
    if -1 in new:
        known = -prod(new)
        if new.count(-1) == 1 and known > 0 and size % known == 0:
            return tuple(size // known if n == -1 else n for n in new)
    if prod(new) != size or any(n < 0 for n in new):
        raise explain(
            ShapeError, "reshape", f"{size} elements of shape {old} do not fill {new}",
            rule="the product of the sizes stays the same; one size may be -1",
        )  # fmt: skip
    return new


def _is_plain(sizes: tuple[Any, ...], itemsize: int) -> bool:
    """Return whether sizes are whole and neither below 0 nor too many: what most are."""
    nbytes = itemsize
    for n in sizes:
        if type(n) is not int or n < 0:
            return False
        nbytes *= n or 1
    return nbytes < 2**63


def normalise_axis(axis: int, ndim: int) -> int:
    """Return axis counted from 0.

    Raises:
        ArgumentError: if it is no whole number.
        IndexRangeError: if there is no such axis.
    """
    if type(axis) is not int:
        try:
            axis = operator.index(axis)
        except TypeError:
            raise ArgumentError(f"{called()}: axis is {axis!r:.60}, not an integer") from None
    if not -ndim <= axis < ndim:
        raise IndexRangeError(f"axis {axis} is out of range for {ndim} dimensions")
    return axis + ndim if axis < 0 else axis


def normalise_index(index: int, size: int, axis: int) -> int:
    """Return an index counted from 0.

    Raises:
        IndexRangeError: if there is no such entry.
    """
    if not -size <= index < size:
        raise IndexRangeError(f"index {index} is out of range for axis {axis} of size {size}")
    return index + size if index < 0 else index


def normalise_axes(axes: int | Sequence[int] | None, ndim: int) -> Shape:
    """Return axes as a sorted tuple counted from 0; None means all of them.

    Raises:
        ArgumentError: if they are no whole numbers.
        IndexRangeError: if there is no such axis.
        ShapeError: if an axis is named twice.
    """
    if axes is None:
        return tuple(range(ndim))
    if type(axes) is int and -ndim <= axes < ndim:
        return (axes % ndim,)
    if type(axes) is tuple and _is_normal(axes, ndim):
        return axes
    given = axes_of(axes)
    result = tuple(sorted(normalise_axis(axis, ndim) for axis in given))
    if len(set(result)) != len(result):
        raise ShapeError(f"axes {given} contain an axis twice")
    return result


def _is_normal(axes: tuple[Any, ...], ndim: int) -> bool:
    """Return whether axes are counted from 0, in order and there: most are, and it costs little."""
    before = -1
    for axis in axes:
        if type(axis) is not int or not before < axis < ndim:
            return False
        before = axis
    return True

"""Checks of axes, indices and sizes from users, which are then counted from 0."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import Any

import numpy as np

from needle.errors import ArgumentError, IndexRangeError, ShapeError, called, explain

Shape = tuple[int, ...]


def integer(what: str, value: Any) -> int:
    """Return an argument as a Python int; floats with integer values are accepted.

    Raises:
        ArgumentError: if it is not an integer.
    """
    try:
        if isinstance(value, (float, np.floating)) and value == int(value):
            return int(value)
        return operator.index(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{what} is {value!r:.60}, not an integer") from None


def axes_of(axes: Any) -> tuple[Any, ...]:
    """Return one or several axes or sizes as a tuple, without checking the elements.

    Raises:
        ArgumentError: if the argument is neither an integer nor a sequence.
    """
    if isinstance(axes, (tuple, list)):
        return tuple(axes)
    try:
        return (operator.index(axes),)
    except TypeError:
        pass
    try:
        if isinstance(axes, (bytes, bytearray, Mapping, Set)):  # iterable, but not as axes
            raise TypeError
        return tuple(axes)
    except TypeError:
        raise ArgumentError(
            f"{called()}: expected an integer or a sequence of integers, got {axes!r:.60}"
        ) from None


def sizes_of(operation: str, shape: Any, itemsize: int = 1) -> Shape:
    """Return the shape of a new array, given as one size or several.

    Raises:
        ArgumentError: if a size is not an integer.
        ShapeError: if a size is negative, or a size or the number of bytes reaches 2**63.
    """
    if type(shape) is int:
        shape = (shape,)
    if type(shape) is tuple and _is_plain(shape, itemsize):
        return shape
    sizes = tuple(
        n if type(n) is int else integer(f"{operation}: size", n)
        for n in (axes_of(shape) if not isinstance(shape, float) else (shape,))
    )
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{operation}: shape {sizes} has a negative size")
    if max(sizes, default=0) >= 2**63 or prod(sizes) * itemsize >= 2**63:
        raise ShapeError(f"{operation}: shape {sizes} is too large: sizes or bytes reach 2**63")
    return sizes


def new_shape(shape: Any, size: int, old: Shape | None = None) -> Shape:
    """Return a shape given as numbers or as one sequence; one size may be -1.

    Raises:
        ShapeError: if the sizes do not make ``size`` elements.
        ArgumentError: if a size is not an integer.
    """
    if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)):
        shape = axes_of(shape[0])
    new = tuple(n if type(n) is int else integer("reshape: size", n) for n in shape)
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
    """Return whether sizes are valid ints: a quick check for the usual case."""
    nbytes = itemsize
    for n in sizes:
        if type(n) is not int or n < 0:
            return False
        nbytes *= n or 1
    return nbytes < 2**63


def normalise_axis(axis: int, ndim: int) -> int:
    """Return axis counted from 0.

    Raises:
        ArgumentError: if it is not an integer.
        IndexRangeError: if it is out of range.
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
        IndexRangeError: if it is out of range.
    """
    if not -size <= index < size:
        raise IndexRangeError(f"index {index} is out of range for axis {axis} of size {size}")
    return index + size if index < 0 else index


def normalise_axes(axes: int | Sequence[int] | None, ndim: int) -> Shape:
    """Return axes as a sorted tuple counted from 0; None means all of them.

    Raises:
        ArgumentError: if an axis is not an integer.
        IndexRangeError: if an axis is out of range.
        ShapeError: if an axis occurs twice.
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
    """Return whether axes are valid, counted from 0 and in order: a quick check."""
    before = -1
    for axis in axes:
        if type(axis) is not int or not before < axis < ndim:
            return False
        before = axis
    return True

"""What the functions of this room accept: tensors, whole numbers, shapes, axes; else errors."""

from __future__ import annotations

import operator
from typing import Any

from needle import graph
from needle.backend.axes import normalise_axis
from needle.backend.ndarray import NDArray
from needle.errors import DtypeError, ShapeError

LONGEST = 2**63
"""No axis has so many elements."""


def tensor(name: str, x: Any) -> Any:
    """Return x, which must be a tensor; an NDArray becomes one.

    Raises:
        DtypeError: if x is anything else.
    """
    if isinstance(x, graph.TensorBase):
        return x
    if isinstance(x, NDArray):
        return graph.wrap(x)
    raise DtypeError(
        f"{name}: expected a tensor, got {type(x).__name__}\n  try: needle.standard.asarray(x)"
    )


def whole(name: str, what: str, n: Any) -> int:
    """Return a whole number as a Python one.

    Raises:
        DtypeError: if n is not an integer; a float is none, whatever its value.
    """
    try:
        return operator.index(n)
    except TypeError:
        raise DtypeError(
            f"{name}: {what} is {type(n).__name__} {n!r:.60}\n  rule: a whole number"
        ) from None


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """Return a shape, given as a whole number or a sequence of such, as a tuple.

    Raises:
        DtypeError: if it is anything else.
        ShapeError: if a size is negative, or 2**63 or more.
    """
    sizes: tuple[int, ...]
    try:
        sizes = (operator.index(shape),)
    except TypeError:
        if isinstance(shape, str) or not hasattr(shape, "__iter__"):
            raise DtypeError(
                f"{name}: the shape is {type(shape).__name__} {shape!r:.60}\n"
                "  rule: a whole number, or a sequence of such"
            ) from None
        sizes = tuple(whole(name, "a size", n) for n in shape)
    for n in sizes:
        if not 0 <= n < LONGEST:
            raise ShapeError(f"{name}: a size is {n} in {sizes}\n  rule: from 0 to 2**63 - 1")
    return sizes


def number(name: str, x: Any) -> Any:
    """Return a real number of any kind, or that of a tensor with no axes, as a Python one.

    Raises:
        DtypeError: if x is no real number, or an integer that no float dtype holds.
    """
    found = x
    if not isinstance(x, (int, float)) and hasattr(x, "item") and getattr(x, "shape", None) == ():
        found = x.item()
    try:
        if not isinstance(found, (int, float)):
            raise DtypeError(f"{name}: {type(x).__name__} {x!r:.60} is not a real number")
        float(found)
    except OverflowError:
        raise DtypeError(f"{name}: an integer is larger than any float") from None
    return found


def axis_of(name: str, x: Any, axis: Any) -> int:
    """Return an axis of x, counted from the first one.

    Raises:
        ShapeError: if x has no axes.
        DtypeError: if axis is not a whole number.
        IndexRangeError: if there is no such axis.
    """
    if not x.shape:
        raise ShapeError(f"{name}: a tensor of shape () has no axis {axis}")
    return normalise_axis(whole(name, "axis", axis), len(x.shape))

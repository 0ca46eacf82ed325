"""Checks of the operands of this package's functions: tensors, numbers and axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle import graph
from needle.backend.axes import normalise_axis
from needle.backend.ndarray import NDArray
from needle.errors import DtypeError, ShapeError, no_tensor

if TYPE_CHECKING:
    from needle.typing import Tensor


def tensor(x: Tensor | NDArray) -> Tensor:
    """Return x, which must be a tensor; an NDArray becomes one.

    Raises:
        ArgumentError: if x is anything else.
    """
    if isinstance(x, graph.TensorBase):
        return x
    if isinstance(x, NDArray):
        return graph.wrap(x)
    raise no_tensor(x)


def number(name: str, x: object) -> bool | int | float:
    """Return a real number of any kind, or a tensor without axes, as a Python number.

    Raises:
        DtypeError: if x is not a real number, or is an integer that no float dtype can hold.
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


def axis_of(name: str, x: Tensor, axis: int) -> int:
    """Return an axis of x, counted from the first one.

    Raises:
        ShapeError: if x has no axes.
        ArgumentError: if axis is not an integer.
        IndexRangeError: if the axis is out of range.
    """
    if not x.shape:
        raise ShapeError(f"{name}: a tensor of shape () has no axis {axis}")
    return normalise_axis(axis, len(x.shape))

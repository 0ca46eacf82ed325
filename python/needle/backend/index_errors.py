"""Errors for indices and labels that are out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from needle.backend.ndarray import NDArray, Shape
from needle.errors import IndexRangeError


def bad_index(
    operation: str, index: NDArray, shape: Shape, position: int, size: int
) -> IndexRangeError:
    """Return the error for an index that is out of range.

    Args:
        operation: the op.
        index: all indices.
        shape: the shape that they were broadcast to.
        position: position of the first bad index in that shape, in C order.
        size: number of entries.
    """
    place = np.unravel_index(position, shape)
    last = place[len(shape) - len(index.shape) :]
    own = tuple(0 if n == 1 else int(i) for i, n in zip(last, index.shape, strict=True))
    return IndexRangeError(
        f"{operation}: index {index.numpy()[own]} at position {_place(own)} is out of range for "
        f"{size} entries"
    )


def bad_slice(index: NDArray, position: int, axis: int, size: int) -> Exception:
    """Return the error for the index of a slice, by its position in C order."""
    own = tuple(int(i) for i in np.unravel_index(position, index.shape))
    return outside("index", axis, size)(_place(own), index.numpy()[own])


def outside(operation: str, axis: int, size: int) -> Callable[..., Exception]:
    """Return a function that makes the error for the position of an index into an axis."""

    def describe(position: Any, value: Any = None) -> Exception:
        which = "the index" if value is None else f"{value}"
        return IndexRangeError(
            f"{operation}: {which} at position {position} is out of range for axis {axis} "
            f"with {size} entries"
        )

    return describe


def bad_label(
    operation: str, labels: str, position: int, classes: int, value: Any = None
) -> IndexRangeError:
    """Return the error for the label at a position (in C order) that is not a class.

    Args:
        operation: the op.
        labels: dtype and shape of the labels.
        position: position of the first bad label.
        classes: number of classes.
        value: value of that label, if known.
    """
    which = "the label" if value is None else f"label {value}"
    return IndexRangeError(
        f"{operation}: {which} at position {position} is not one of {classes} classes\n"
        f"  labels: {labels}\n"
        f"  rule: labels are in [0, {classes})"
    )


def _place(position: Shape) -> Any:
    return position[0] if len(position) == 1 else position

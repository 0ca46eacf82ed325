"""How items become a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle.errors import DataError, ShapeError

__all__ = ["collate"]


def collate(items: list[Any]) -> Any:
    """Stack the items of a batch: arrays and numbers along a new first axis, tuples per field.

    Strings (names, captions) are returned unchanged in a tuple.

    Raises:
        ShapeError: if the arrays of a field differ in shape.
        DataError: for an empty list, or if the items differ in their fields.

    >>> x, y = ndl.data.collate([([1.0, 2.0], 0), ([3.0, 4.0], 1)])
    >>> y
    array([0, 1])
    """
    if not items:
        raise DataError("collate: cannot make a batch of 0 items")
    first = items[0]
    if any(isinstance(x, (tuple, list, dict)) for x in items):
        _check_fields(items)
    if isinstance(first, (tuple, list)):
        return tuple(collate(list(field)) for field in zip(*items, strict=True))
    if isinstance(first, dict):
        return {name: collate([item[name] for item in items]) for name in first}
    if all(isinstance(item, (str, bytes)) for item in items):
        return tuple(items)
    if any(item is None for item in items):
        raise DataError(
            "collate: an item of the batch is None\n  try: a return in __getitem__, or a collate_fn"
        )
    arrays = [np.asarray(item) for item in items]
    shapes = sorted({x.shape for x in arrays})
    if len(shapes) > 1:
        raise ShapeError(
            f"collate: items of one batch have different shapes, {shapes[0]} and {shapes[1]}\n"
            "  try: a transform that makes the shapes equal, or a collate_fn that pads"
        )
    return np.stack(arrays)


def _check_fields(items: list[Any]) -> None:
    """Check that all items are tuples of one length, or dicts of the same names."""

    def kind(item: Any) -> str:
        if isinstance(item, dict):
            return f"the fields {sorted(map(str, item))}"
        several = isinstance(item, (tuple, list))
        return f"{len(item)} fields" if several else f"no fields ({type(item).__name__})"

    first = kind(items[0])
    for i, item in enumerate(items):
        if kind(item) != first:
            raise DataError(
                f"collate: item 0 has {first}, item {i} has {kind(item)}\n"
                "  rule: the items of a batch have the same fields\n"
                "  try: a collate_fn"
            )

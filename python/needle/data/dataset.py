"""Datasets: things with a length and an item for each index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle.errors import DataError, IndexRangeError

__all__ = ["Dataset", "NDArrayDataset"]


class Dataset:
    """A collection of items. Subclasses define ``__getitem__`` and ``__len__``.

    Where one item costs much less as part of many, ``batch`` is worth defining too.

    Args:
        transforms: functions applied to an item, one after the other, by ``apply_transforms``.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]] | None = None) -> None:
        self.transforms = transforms

    def __getitem__(self, index: Any) -> Any:
        """Return the item of an index."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of items."""
        raise NotImplementedError

    def apply_transforms(self, x: Any) -> Any:
        """Return x after all transforms."""
        for transform in self.transforms or ():
            x = transform(x)
        return x

    def prepared(self, images: Any) -> Any:
        """Return byte images, one or a batch, as float32 in [0, 1] after all transforms."""
        images = images.astype(np.float32) / np.float32(255)
        if not self.transforms:
            return images
        if images.ndim == 3:
            return self.apply_transforms(images)
        return (
            np.stack([self.apply_transforms(image) for image in images]) if len(images) else images
        )

    def batch(self, indices: np.ndarray[Any, Any]) -> Any:
        """Return the items of these indices as a loader hands them out: stacked, per field."""
        from needle.data.loader import collate

        return collate([self[int(i)] for i in indices])


class NDArrayDataset(Dataset):
    """Arrays side by side: item i is the tuple of their items i.

    Raises:
        DataError: if the arrays differ in length.
    """

    def __init__(self, *arrays: Any) -> None:
        super().__init__()
        if not arrays:
            raise DataError("NDArrayDataset: needs at least one array")
        self.arrays = tuple(np.asarray(x) for x in arrays)
        lengths = [len(x) for x in self.arrays]
        if len(set(lengths)) > 1:
            raise DataError(f"NDArrayDataset: arrays have lengths {lengths}; they must be equal")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        check_index(index, len(self))
        return tuple(x[index] for x in self.arrays)

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        return self[indices]


def check_index(index: Any, length: int) -> None:
    """Raise IndexRangeError if a whole number, or one among several, is not an index.

    An ``IndexError`` also ends a ``for`` over a dataset, as Python's sequences do.
    """
    if isinstance(index, slice):
        return
    given = np.asarray(index)
    if given.dtype.kind in "iu" and given.size:
        low, high = int(given.min()), int(given.max())
        if low < -length or high >= length:
            bad = low if low < -length else high
            raise IndexRangeError(f"index {bad} is out of range for a data set of {length} items")

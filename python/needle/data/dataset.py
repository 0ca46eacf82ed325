"""Datasets: things with a length and an item for each index."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle.errors import DataError, IndexRangeError
from needle.ops import random

__all__ = ["Dataset", "NDArrayDataset", "Subset", "random_split"]


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


class Subset(Dataset):
    """The items of a data set at some indices, in their order.

    Raises:
        IndexRangeError: if an index is out of range.
    """

    def __init__(self, dataset: Any, indices: Any) -> None:
        super().__init__()
        self.dataset, self.indices = dataset, np.asarray(indices, np.int64)
        check_index(self.indices, len(dataset))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        check_index(index, len(self))
        chosen = self.indices[index]
        return self.dataset[chosen if chosen.ndim else int(chosen)]

    def batch(self, indices: np.ndarray[Any, Any]) -> Any:
        if isinstance(self.dataset, Dataset):
            return self.dataset.batch(self.indices[indices])
        return super().batch(indices)


def random_split(dataset: Any, sizes: Sequence[float]) -> list[Subset]:
    """Return a data set in parts that have nothing in common, drawn at random.

    The order is drawn as a ``DataLoader`` draws it: ``needle.manual_seed`` makes it the same again.

    Args:
        dataset: a ``Dataset``, or anything with ``__len__`` and ``__getitem__``.
        sizes: how many items each part has; or which shares, which add up to 1.

    Raises:
        DataError: if the sizes do not add up to that of the data set.
    """
    total, counts = len(dataset), list(sizes)
    if math.isclose(sum(counts), 1.0) and all(0 <= n <= 1 for n in counts) and total != 1:
        ends = [round(total * sum(counts[: i + 1])) for i in range(len(counts))]
        counts = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    if sum(counts) != total or any(n < 0 or n != int(n) for n in counts):
        raise DataError(
            f"random_split: parts of {list(sizes)} of a data set of {total} items\n"
            "  rule: sizes add up to the number of items, or shares to 1"
        )
    order = random.host_permutation(total)
    ends = list(itertools.accumulate(map(int, counts)))
    return [Subset(dataset, order[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


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

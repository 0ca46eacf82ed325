"""Data sets: objects with a length and an item for each index."""

from __future__ import annotations

import bisect
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from needle.data.collate import collate
from needle.errors import ArgumentError, DataError, IndexRangeError, describe, undefined
from needle.ops import random

__all__ = ["ConcatDataset", "Dataset", "NDArrayDataset", "Subset", "random_split"]


class Dataset:
    """A collection of items. Subclasses define ``__getitem__`` and ``__len__``.

    Define ``batch`` too if fetching many items at once is much faster.

    Args:
        transforms: functions that ``apply_transforms`` applies to an item, one after the other.

    >>> class Squares(ndl.data.Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return index * index
    >>> [batch.tolist() for batch in ndl.data.DataLoader(Squares(), batch_size=3)]
    [[0, 1, 4], [9, 16]]
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]] | None = None) -> None:
        self.transforms = transforms

    def __getitem__(self, index: object) -> Any:
        """Return the item of an index."""
        raise undefined(self, "__getitem__")

    def __len__(self) -> int:
        """Return the number of items."""
        raise undefined(self, "__len__")

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

    def fingerprint(self) -> str:
        """Return a short text that differs for different data, by which a saved pass knows it."""
        return f"{type(self).__name__}[{len(self)}]"

    def in_memory(self) -> bool:
        """Say whether batches are copies of arrays in memory, so that threads make them quickly."""
        return False

    def by_item(self) -> bool:
        """Say whether a loader should make items one by one: where each draws random numbers."""
        return bool(self.transforms)

    def batch(self, indices: np.ndarray[Any, Any]) -> Any:
        """Return the items at these indices as a batch: each field stacked."""
        return collate([self[int(i)] for i in indices])


class NDArrayDataset(Dataset):
    """Several arrays of equal length: item i is the tuple of their items i.

    Raises:
        DataError: if the arrays differ in length, or an argument is not an array of items.

    >>> dataset = ndl.data.NDArrayDataset(np.arange(6.0).reshape(3, 2), np.array([0, 1, 1]))
    >>> x, y = dataset[1]
    >>> print(x, y)
    [2. 3.] 1
    """

    def __init__(self, *arrays: Any) -> None:
        super().__init__()
        if not arrays:
            raise DataError("NDArrayDataset: expected at least one array, got none")
        self.arrays = tuple(_items(i, x) for i, x in enumerate(arrays))
        lengths = [len(x) for x in self.arrays]
        if len(set(lengths)) > 1:
            raise DataError(f"NDArrayDataset: expected arrays of equal length, got {lengths}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        check_index(index, len(self))
        return tuple(x[index] for x in self.arrays)

    def fingerprint(self) -> str:
        texts = []
        for x in self.arrays:
            check = 0
            for item in (x[:1], x[-1:]) if x.dtype.kind != "O" else ():
                check = zlib.crc32(np.ascontiguousarray(item).tobytes(), check)
            texts.append(f"{x.dtype}{list(x.shape)}#{check:08x}")
        return f"NDArrayDataset({', '.join(texts)})"

    def in_memory(self) -> bool:
        return True

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        return self[indices]


def _items(place: int, values: object) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"NDArrayDataset: array {place} cannot be converted: {error}") from None
    if array.ndim == 0:
        raise DataError(f"NDArrayDataset: array {place} has 0 axes, so it has no items: {array}")
    return array


class Subset(Dataset):
    """The items of a data set at some indices, in their order.

    Args:
        dataset: a ``Dataset``, or anything with ``__len__`` and ``__getitem__``.
        indices: integers; or a mask, true for the items to take.

    Raises:
        IndexRangeError: if an index is out of range.
        ArgumentError: for other indices, or if the mask and the data set differ in length.

    >>> ndl.data.Subset([10, 20, 30, 40], [3, 0])[0]
    40
    """

    def __init__(self, dataset: Any, indices: Any) -> None:
        super().__init__()
        self.dataset, self.indices = dataset, _indices(indices, len(dataset))
        check_index(self.indices, len(dataset))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        check_index(index, len(self))
        chosen = self.indices[index]
        if chosen.ndim == 0:
            return self.dataset[int(chosen)]
        if isinstance(self.dataset, Dataset) or hasattr(self.dataset, "shape"):
            return self.dataset[chosen]
        return [self.dataset[int(i)] for i in chosen]

    def fingerprint(self) -> str:
        inner = self.dataset.fingerprint() if isinstance(self.dataset, Dataset) else ""
        return f"Subset({inner}, {len(self)}#{zlib.crc32(self.indices.tobytes()):08x})"

    def in_memory(self) -> bool:
        return isinstance(self.dataset, Dataset) and self.dataset.in_memory()

    def by_item(self) -> bool:
        return isinstance(self.dataset, Dataset) and self.dataset.by_item()

    def batch(self, indices: np.ndarray[Any, Any]) -> Any:
        if isinstance(self.dataset, Dataset):
            return self.dataset.batch(self.indices[indices])
        return super().batch(indices)


class ConcatDataset(Dataset):
    """The items of several data sets, one after the other.

    Args:
        datasets: each a ``Dataset``, or anything with ``__len__`` and ``__getitem__``.

    Raises:
        DataError: for an empty list.

    >>> len(ndl.data.ConcatDataset([[1, 2, 3], [4, 5]]))
    5
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        super().__init__()
        self.datasets = tuple(datasets)
        if not self.datasets:
            raise DataError("ConcatDataset: expected at least one data set, got none")
        self.ends = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.ends[-1]

    def by_item(self) -> bool:
        return any(isinstance(x, Dataset) and x.by_item() for x in self.datasets)

    def __getitem__(self, index: Any) -> Any:
        check_index(index, len(self))
        chosen = np.arange(len(self))[index]
        if chosen.ndim:
            return self.batch(chosen)
        part = bisect.bisect_right(self.ends, chosen)
        return self.datasets[part][int(chosen) - (self.ends[part - 1] if part else 0)]


def _indices(given: object, length: int) -> np.ndarray[Any, Any]:
    """Return indices, also those of a mask, as integers."""
    try:
        indices = np.asarray(given)
    except ValueError:  # lists of different lengths
        indices = np.asarray(None)
    if indices.size == 0 and indices.ndim == 1:
        return np.zeros(0, np.int64)
    if indices.dtype.kind == "b" and indices.shape != (length,):
        problem = f"a mask of shape {indices.shape} for {length} items"
    elif indices.dtype.kind not in "iub" or indices.ndim != 1:
        problem = f"indices are {describe(indices)}"
    else:
        return np.flatnonzero(indices) if indices.dtype.kind == "b" else indices.astype(np.int64)
    raise ArgumentError(
        f"Subset: {problem}\n  rule: integers [k], or a mask with one bool for each item"
    )


def random_split(dataset: Any, sizes: Sequence[float]) -> list[Subset]:
    """Split a data set into disjoint random parts.

    The order is drawn as in ``DataLoader``, so ``needle.manual_seed`` makes it reproducible.

    Args:
        dataset: a ``Dataset``, or anything with ``__len__`` and ``__getitem__``.
        sizes: number of items of each part; or fractions that add up to 1.

    Raises:
        ArgumentError: if sizes is not a sequence of numbers.
        DataError: if the sizes do not add up to the size of the data set.

    >>> train, test = ndl.data.random_split(range(10), [0.8, 0.2])
    >>> len(train), len(test)
    (8, 2)
    """
    if not isinstance(sizes, Sequence) or not all(isinstance(n, Real) for n in sizes):
        raise ArgumentError(f"random_split: expected a sequence of sizes, got {sizes!r:.60}")
    total, counts = len(dataset), list(sizes)
    if math.isclose(sum(counts), 1.0) and all(0 <= n <= 1 for n in counts) and total != 1:
        ends = [round(total * sum(counts[: i + 1])) for i in range(len(counts))]
        counts = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    if sum(counts) != total or any(n < 0 or n != int(n) for n in counts):
        raise DataError(
            f"random_split: cannot split {total} items into {list(sizes)}\n"
            "  rule: sizes add up to the number of items, fractions to 1"
        )
    order = random.host_permutation(total)
    ends = list(itertools.accumulate(map(int, counts)))
    return [Subset(dataset, order[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _check_slice(index: slice) -> None:
    try:
        index.indices(0)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"index {index!r:.60}: {error}") from None


def check_index(index: object, length: int) -> None:
    """Check an index, or several of them.

    An ``IndexError`` also ends a ``for`` loop over a data set, as for Python's sequences.

    Raises:
        IndexRangeError: if an index is out of range.
        ArgumentError: if an index is not an integer.
    """
    if index is Ellipsis:
        return
    if isinstance(index, slice):
        _check_slice(index)
        return
    if isinstance(index, tuple):
        raise ArgumentError(
            f"expected an integer index, got {index!r:.60}\n  try: a list for several items"
        )
    try:
        given = np.asarray(index)
    except ValueError:  # lists of different lengths
        given = np.empty(1, object)
    if isinstance(index, int) and given.dtype.kind == "O":  # of more than 64 bits
        raise IndexRangeError(f"index {index} is out of range for a data set of {length} items")
    number = given.dtype.kind == "b" and given.ndim == 0  # True and False are not indices
    if (given.dtype.kind not in "iub" and given.size) or number:
        raise ArgumentError(f"expected an integer index, got {index!r:.60}")
    if given.dtype.kind == "b" and given.shape != (length,):
        raise IndexRangeError(f"a mask of shape {list(given.shape)} for {length} items")
    if given.dtype.kind in "iu" and given.size:
        low, high = int(given.min()), int(given.max())
        if low < -length or high >= length:
            bad = low if low < -length else high
            raise IndexRangeError(f"index {bad} is out of range for a data set of {length} items")

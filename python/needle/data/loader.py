"""DataLoader: batches of a data set, in order or shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle.data.dataset import Dataset
from needle.errors import ArgumentError, DataError, OptionError, ShapeError
from needle.ops import random
from needle.tensors import Tensor

__all__ = ["DataLoader", "collate"]


class DataLoader:
    """Iterate over a data set in batches, as tensors that require no gradient.

    Shuffling draws one ``np.random.permutation`` when a pass begins (from Needle's own generator
    after ``needle.manual_seed``).

    Args:
        dataset: a ``Dataset``, or anything with ``__len__`` and ``__getitem__``.
        batch_size: items per batch; the last batch may be shorter.
        shuffle: whether to draw a new order for every pass.
        drop_last: whether to skip a last batch that is shorter.
        collate_fn: makes a batch (arrays or strings, or a tuple, list or dict of them) from a list
            of items; ``collate`` for None.
        device: device of the tensors; the default device for None.

    Raises:
        OptionError: if batch_size is not a positive integer.
        ArgumentError: if the data set has no length or no items by index, such as a generator.

    >>> dataset = ndl.data.NDArrayDataset(np.ones((10, 3), np.float32), np.arange(10))
    >>> loader = ndl.data.DataLoader(dataset, batch_size=4, shuffle=True)
    >>> [(x.shape, y.shape) for x, y in loader]
    [((4, 3), (4,)), ((4, 3), (4,)), ((2, 3), (2,))]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        device: Any = None,
    ) -> None:
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise OptionError(f"DataLoader: expected batch_size >= 1, got {batch_size!r}")
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ArgumentError(
                f"DataLoader: {type(dataset).__name__} is not a data set\n"
                "  rule: a data set has __len__ and __getitem__\n"
                "  try: list(dataset), if it fits into memory"
            )
        self.dataset, self.batch_size, self.shuffle = dataset, int(batch_size), shuffle
        self.drop_last, self.collate_fn, self.device = drop_last, collate_fn, device
        self._pass: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        items = len(self.dataset)
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has not begun a pass."""
        return {**self.__dict__, "_pass": None}

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass. Several passes of one loader may run at the same time."""
        items = len(self.dataset)
        order = random.host_permutation(items) if self.shuffle else np.arange(items)
        self._pass = self._batches(order)
        return self._pass

    def __next__(self) -> Any:
        """Return the next batch of the latest pass; begin a pass if needed."""
        if self._pass is None:
            iter(self)
        assert self._pass is not None
        return next(self._pass)

    def _batches(self, order: np.ndarray[Any, Any]) -> Iterator[Any]:
        for i in range(len(self)):
            indices = order[i * self.batch_size : (i + 1) * self.batch_size]
            yield to_tensors(self._fetch(indices), self.device)

    def _fetch(self, indices: np.ndarray[Any, Any]) -> Any:
        if self.collate_fn is not None:
            return self.collate_fn([self.dataset[int(i)] for i in indices])
        if isinstance(self.dataset, Dataset):
            return self.dataset.batch(indices)
        return collate([self.dataset[int(i)] for i in indices])


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


def to_tensors(batch: Any, device: Any) -> Any:
    """Return a batch with every array as a tensor without gradient; strings stay."""
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, (tuple, list)):
        return tuple(to_tensors(field, device) for field in batch)
    if isinstance(batch, dict):
        return {name: to_tensors(field, device) for name, field in batch.items()}
    return Tensor(batch, device=device, requires_grad=False)

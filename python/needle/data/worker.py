"""What makes a batch, in a worker or in the caller: fetch, transform, collate."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from needle.data.augment import Augment, CompiledAugment
from needle.data.collate import collate
from needle.data.dataset import Dataset, NDArrayDataset
from needle.data.stream import IterableDataset
from needle.ops import random

__all__ = ["Batch", "Fetch", "Task", "WorkerProblem", "rng"]

PARTS = ("fetch", "transform", "collate", "copy")
"""The parts of making a batch of which the time is taken."""


_BATCH = 1 << 63
"""Sets the numbers of a batch apart from those of its items."""


@dataclass(slots=True)
class Task:
    """The items of a batch: indices; or ``count`` items of a shard from ``start`` on.

    Attributes:
        seed: of the items' random numbers; None: they draw from the generators of the process.
    """

    indices: np.ndarray[Any, Any] | None
    epoch: int
    seed: int | None
    shard: int = 0
    start: int = 0
    count: int = 0

    def name(self) -> str:
        """Return what a message calls it."""
        if self.indices is None:
            return f"items {self.start} to {self.start + self.count - 1} of shard {self.shard}"
        shown = ", ".join(map(str, self.indices[:8].tolist()))
        return f"the items [{shown}{', ...' if len(self.indices) > 8 else ''}]"


@dataclass(slots=True)
class Batch:
    """A batch, the number of its items, and the nanoseconds of each of ``PARTS``."""

    values: Any
    size: int
    times: tuple[int, ...]


@dataclass(slots=True)
class WorkerProblem:
    """An exception in a worker, as it travels to the caller."""

    kind: str
    text: str
    trace: str
    items: str
    error: BaseException | None = field(default=None, compare=False)


def problem_of(error: BaseException, task: Task | None) -> WorkerProblem:
    """Return what the caller needs to know of an exception."""
    trace = "".join(traceback.format_exception(error))
    items = task.name() if task else "no items"
    return WorkerProblem(type(error).__name__, str(error), trace, items, error)


def rng() -> np.random.Generator:
    """Return a NumPy generator for the item that is being made, from (seed, epoch, index).

    In ``batch``, ``collate_fn`` and ``transform`` it is one for the batch, by its first index.
    Outside of a loader with a seed it is a generator from NumPy's global stream. Two calls for one
    item give two generators with different numbers.

    >>> class Noisy(ndl.data.Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index + ndl.data.rng().normal()
    >>> batches = [list(ndl.data.DataLoader(Noisy(), 2, seed=0)) for _ in range(2)]
    >>> (batches[0][1] == batches[1][1]).all().item()
    True
    """
    stream = random.sample()
    if stream is None:
        return np.random.default_rng(np.random.randint(0, 2**31, 2))
    return np.random.Generator(np.random.Philox(key=stream.word() << 32 | stream.word()))


class Fetch:
    """What makes the batch of a task.

    Args:
        dataset: a data set, or a stream.
        collate_fn: makes a batch from a list of items; None: the data set's own way.
        transform: an ``Augment`` of the batch's images, a function of the batch, or None.
        finish: what is done with the batch at last; its second argument says whether nobody else
            has the batch's arrays.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Any = None,
        finish: Callable[[Any, bool], Any] | None = None,
    ) -> None:
        self.dataset, self.collate_fn, self.finish = dataset, collate_fn, finish
        self.transform = transform.compile() if isinstance(transform, Augment) else transform
        self.open: dict[int, tuple[int, int, Iterator[Any]]] = {}  # shard: epoch, position, items

    def __call__(self, task: Task) -> Batch:
        """Return the batch. What draws for a whole batch has numbers of its own, as items have."""
        if task.seed is None:
            return self._timed(task)
        first = task.start if task.indices is None else int(task.indices[0])
        key = _BATCH | task.shard << 40 | first & (_BATCH - 1)
        try:
            random.enter_sample(random.SampleStream(task.seed, task.epoch, key))
            return self._timed(task)
        finally:
            random.enter_sample(None)

    def _timed(self, task: Task) -> Batch:
        clock = [time.perf_counter_ns()]
        if task.indices is None:
            items: Any = self._read(task)
            size = len(items)
            if size == 0:
                return Batch(None, 0, (0,) * len(PARTS))
        else:
            items, size = self._items(task, task.indices), len(task.indices)
        clock.append(time.perf_counter_ns())
        values = items
        if isinstance(items, list):
            values = (self.collate_fn or collate)(items)
        clock.append(time.perf_counter_ns())
        values = self._changed(values, task)
        clock.append(time.perf_counter_ns())
        if self.finish is not None:
            values = self.finish(values, self._fresh(isinstance(items, list)))
        clock.append(time.perf_counter_ns())
        fetch, gather, change, copy = (b - a for a, b in zip(clock, clock[1:], strict=False))
        return Batch(values, size, (fetch, change, gather, copy))

    def _items(self, task: Task, indices: np.ndarray[Any, Any]) -> Any:
        """Return the items as a list, or as a batch where the data set makes one at once."""
        dataset = self.dataset
        whole = isinstance(dataset, Dataset) and self.collate_fn is None
        if whole and self._gathers():
            return None
        own = whole and type(dataset).batch is not Dataset.batch
        if own and not (task.seed is not None and dataset.by_item()):
            return dataset.batch(indices)
        if task.seed is None:
            return [dataset[int(i)] for i in indices]
        whole_batch, found = random.sample(), []
        for i in indices.tolist():
            random.enter_sample(random.SampleStream(task.seed, task.epoch, i))
            found.append(dataset[i])
        random.enter_sample(whole_batch)
        return found

    def _fresh(self, collated: bool) -> bool:
        if not (self.transform is None or isinstance(self.transform, CompiledAugment)):
            return False
        return self.collate_fn is None and (collated or type(self.dataset) is NDArrayDataset)

    def _gathers(self) -> bool:
        """Say whether the transform takes the images from the data set's array itself."""
        one_pass = isinstance(self.transform, CompiledAugment)
        return one_pass and type(self.dataset) is NDArrayDataset

    def _changed(self, values: Any, task: Task) -> Any:
        if self.transform is None:
            return values
        if not isinstance(self.transform, CompiledAugment):
            return self.transform(values)
        indices = task.indices
        if indices is None:
            indices = task.shard * 2**40 + np.arange(task.start, task.start + task.count)
        if values is None:
            images, *rest = self.dataset.arrays
            return self.transform(images, indices, task.epoch), *(x[indices] for x in rest)
        augment = self.transform.augment
        if not isinstance(values, (tuple, list)):
            return augment(values, indices[: len(values)], task.epoch)
        return augment(values[0], indices[: len(values[0])], task.epoch), *values[1:]

    def _read(self, task: Task) -> list[Any]:
        """Return the next items of a shard, fewer at its end."""
        stream: IterableDataset = self.dataset
        epoch, position, items = self.open.pop(task.shard, (-1, -1, iter(())))
        if (epoch, position) != (task.epoch, task.start):
            items = stream.open(task.shard, task.start, task.seed, task.epoch)
        whole_batch = random.sample()
        found = list(itertools.islice(items, task.count))
        random.enter_sample(whole_batch)
        self.open[task.shard] = task.epoch, task.start + len(found), items
        return found

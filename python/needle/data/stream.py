"""Streams: data sets that are read from front to back, in shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from needle.backend.axes import integer
from needle.errors import OptionError, undefined
from needle.ops import random

__all__ = ["IterableDataset", "ShuffleBuffer"]


class IterableDataset:
    """A stream of items in a fixed number of shards. Subclasses define ``items``.

    A shard is read by one worker. The number of shards, not that of the workers, decides which
    items make a batch, so 0, 1, 2 and 8 workers give the same batches: a batch of shard 0, one of
    shard 1, and so on, until all shards have ended.

    Attributes:
        shards: number of shards, an upper limit of the number of workers.
        rank: number of this process among ``world`` processes that share the stream.
        world: number of processes.

    >>> class Numbers(ndl.data.IterableDataset):
    ...     shards = 2
    ...     def items(self, shard, shards):
    ...         yield from range(shard, 10, shards)
    >>> [batch.tolist() for batch in ndl.data.DataLoader(Numbers(), batch_size=3)]
    [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]
    """

    shards: int = 8
    rank: int = 0
    world: int = 1

    def items(self, shard: int, shards: int) -> Iterator[Any]:
        """Yield the items of a shard, the same ones each time."""
        raise undefined(self, "items")

    def seek(self, shard: int, shards: int, start: int) -> Iterator[Any]:
        """Yield the items of a shard from number ``start`` on.

        Define it if the stream can jump there; this one reads what comes before.
        """
        return itertools.islice(self.items(shard, shards), start, None)

    def open(self, shard: int, start: int, seed: int | None, epoch: int) -> Iterator[Any]:
        """Yield the items of a shard of this process from ``start`` on, as a loader does.

        With a seed each item draws numbers of its own, also one that is passed over.
        """
        own, count = shard * self.world + self.rank, self.shards * self.world
        jumps = type(self).seek is not IterableDataset.seek
        items = iter(self.seek(own, count, start) if jumps else self.items(own, count))
        for place in itertools.count(start if jumps else 0):
            if seed is not None:
                random.enter_sample(random.SampleStream(seed, epoch, own << 40 | place))
            try:
                item = next(items, items)
            finally:
                random.enter_sample(None)
            if item is items:
                return
            if place >= start:
                yield item

    def __iter__(self) -> Iterator[Any]:
        """Yield all items, shard after shard."""
        for shard in range(self.shards):
            yield from self.open(shard, 0, None, 0)


class ShuffleBuffer(IterableDataset):
    """A stream whose items are shuffled within windows of ``size`` items of a shard.

    The order is a function of seed, epoch, shard and window, so a pass resumes at any item by
    reading its window again.

    Args:
        dataset: the stream.
        size: items of a window, which are held in memory for each shard.
        seed: of the order; that of the loader is added.

    Raises:
        OptionError: if the size is not positive.

    >>> class Numbers(ndl.data.IterableDataset):
    ...     def items(self, shard, shards):
    ...         yield from range(shard, 80, shards)
    >>> shuffled = ndl.data.ShuffleBuffer(Numbers(), 5)
    >>> sorted(shuffled) == list(range(80))
    True
    """

    def __init__(self, dataset: IterableDataset, size: int, seed: int = 0) -> None:
        self.dataset, self.size, self.seed = dataset, integer("ShuffleBuffer: size", size), seed
        if self.size < 1:
            raise OptionError(f"ShuffleBuffer: expected size >= 1, got {size}")
        self.shards, self.rank, self.world = dataset.shards, dataset.rank, dataset.world

    def items(self, shard: int, shards: int) -> Iterator[Any]:
        return self.dataset.items(shard, shards)

    def open(self, shard: int, start: int, seed: int | None, epoch: int) -> Iterator[Any]:
        window, skip = divmod(start, self.size)
        source = self.dataset.open(shard, window * self.size, seed, epoch)
        while kept := list(itertools.islice(source, self.size)):
            stream = random.SampleStream(self.seed + (seed or 0), epoch, shard << 40 | window)
            low, high, *_ = stream.four()
            order = random.order(len(kept), high << 32 | low, 0)
            yield from (kept[i] for i in order[skip:])
            window, skip = window + 1, 0

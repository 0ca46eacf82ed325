"""Which batches a pass has, from any of its samples on, and how that is saved."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from needle.data.samplers import Order, Sampler, drawn, random_order
from needle.data.worker import Task
from needle.errors import DataError
from needle.ops import random

__all__ = ["Progress", "batch_tasks", "order_of", "sample_tasks", "shard_tasks"]


@dataclass
class Progress:
    """How far a pass is.

    Attributes:
        epoch: number of the pass.
        seed: of the order and of the items' numbers; None: as the process draws.
        position: samples that were handed out.
        order: how an order that was drawn can be drawn again, as JSON.
        shards: samples that were handed out of each shard of a stream.
        ended: whether the pass has ended.
    """

    epoch: int
    seed: int | None = None
    position: int = 0
    order: Any = None
    shards: list[int] = field(default_factory=list)
    ended: bool = False


def order_of(size: int, shuffle: bool, sampler: Any, progress: Progress, own: int | None) -> Order:
    """Return the order of a pass; draw it if ``progress`` does not say how.

    Args:
        size: items of the data set.
        shuffle: whether the order is random.
        sampler: a ``Sampler``, another iterable of indices, or None.
        progress: of the pass; how the order was drawn is noted there.
        own: the loader's seed, or None.

    Raises:
        DataError: if a sampler gives another order than the one that is continued.
    """
    if isinstance(sampler, Sampler):
        return sampler.order(progress.seed or 0, progress.epoch)
    if sampler is not None:
        order = np.fromiter(sampler, np.int64)
        check = zlib.crc32(order.tobytes())
        if progress.order is not None and progress.order != check:
            raise DataError(
                "DataLoader: the sampler gives another order than in the pass that is continued\n"
                "  try: a sampler of needle.data, whose order is a function of seed and epoch"
            )
        progress.order = check
        return drawn(order)
    if not shuffle:
        return lambda start, stop: np.arange(start, min(stop, size))
    if own is not None:
        return random_order(size, own, progress.epoch)
    if progress.order is not None:
        return drawn(_again(size, progress.order))
    progress.order = random.get_state()
    return drawn(random.host_permutation(size))


def saved_order(order: Any) -> Any:
    """Return how an order was drawn, as JSON."""
    if not isinstance(order, tuple):
        return order
    if len(order) == 2:
        return {"philox": list(order)}
    return {"numpy": [base64.b64encode(order[1].tobytes()).decode(), int(order[2])]}


def _again(size: int, order: Any) -> np.ndarray[Any, Any]:
    """Draw an order again, without a change of the process's generators."""
    if isinstance(order, tuple):
        order = saved_order(order)
    if "philox" in order:
        key, counter = order["philox"]
        return random.order(size, key, counter)
    words, place = order["numpy"]
    stream = np.random.RandomState()
    key = np.frombuffer(base64.b64decode(words), np.uint32)
    stream.set_state(("MT19937", key, place, 0, 0.0))
    return stream.permutation(size)


def sample_tasks(
    order: Order, length: int, batch_size: int, drop_last: bool, progress: Progress, workers: int
) -> Iterator[tuple[int, Task]]:
    """Yield (worker, task) of each batch from a position on."""
    for number, start in enumerate(range(progress.position, length, batch_size)):
        indices = order(start, start + batch_size)
        if len(indices) == 0 or (drop_last and len(indices) < batch_size):
            return
        yield number % workers, Task(np.asarray(indices), progress.epoch, progress.seed)


def batch_tasks(batch_sampler: Any, progress: Progress, workers: int) -> Iterator[tuple[int, Task]]:
    """Yield (worker, task) of each batch of a batch sampler from a position on.

    Raises:
        DataError: if no batch begins at the position.
    """
    if hasattr(batch_sampler, "batches"):
        batches = batch_sampler.batches(progress.seed or 0, progress.epoch)
    else:
        batches = batch_sampler
    passed = number = 0
    for batch in batches:
        indices = np.asarray(batch, np.int64)
        if passed >= progress.position:
            yield number % workers, Task(indices, progress.epoch, progress.seed)
            number += 1
        elif passed + len(indices) > progress.position:
            raise DataError(
                f"DataLoader: sample {progress.position}, where the pass goes on, is within a "
                "batch of the batch sampler\n  rule: it gives the same batches as before"
            )
        passed += len(indices)


def shard_tasks(
    progress: Progress, ended: set[int], batch_size: int, workers: int
) -> Iterator[tuple[int, Task]]:
    """Yield (worker, task) of each batch of a stream: of the shards in turn.

    A shard that is in ``ended`` has no more batches. The pass goes on with the shard that has given
    the fewest batches.
    """
    starts = list(progress.shards)
    rounds = [-(-start // batch_size) for start in starts]
    while len(ended) < len(starts):
        turn = min(rounds[s] for s in range(len(starts)) if s not in ended)
        for shard, start in enumerate(starts):
            if shard in ended or rounds[shard] > turn:
                continue
            task = Task(None, progress.epoch, progress.seed, shard, start, batch_size)
            starts[shard] += batch_size
            rounds[shard] += 1
            yield shard % workers, task

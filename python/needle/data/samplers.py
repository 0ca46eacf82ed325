"""Samplers: in which order a pass takes the items of a data set.

An order is a function of seed and epoch, and any part of it can be asked for: that is what makes a
pass resumable at any sample without a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from needle.backend.axes import integer
from needle.errors import OptionError, undefined
from needle.ops import random

__all__ = [
    "DistributedSampler", "LengthBatchSampler", "RandomSampler", "Sampler", "SequentialSampler",
    "WeightedRandomSampler",
]  # fmt: skip

Indices = np.ndarray[Any, Any]
Order = Callable[[int, int], Indices]
"""Positions [start, stop) of an order -> the indices there, int64."""

LARGEST_DRAWN = 2**17
"""Above, a random order is a permutation by formula instead of one that is drawn and kept."""

ROUNDS = 10


def permuted(positions: Indices, size: int, key: int) -> Indices:
    """Return the numbers below ``size`` at these positions of a random order, int64.

    A Feistel network over the next even power of two, whose rounds mix 64 bits (Steele, Lea, Flood,
    "Fast splittable pseudorandom number generators", 2014). What lies beyond ``size`` goes through
    it again (Black, Rogaway, "Ciphers with arbitrary finite domains", 2002). Every position costs
    the same. For small sizes it is not random enough.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)

    def network(x: Indices) -> Indices:
        left, right = x >> shift, x & mask
        for i in range(ROUNDS):
            mixed = right + np.uint64((key + 0x9E3779B97F4A7C15 * (i + 1)) & (2**64 - 1))
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            left, right = right, (left ^ mixed ^ mixed >> np.uint64(31)) & mask
        return left << shift | right

    found = network(np.asarray(positions).astype(np.uint64))
    while (beyond := found >= np.uint64(size)).any():
        found[beyond] = network(found[beyond])
    return found.astype(np.int64)


def _key(seed: int, epoch: int) -> int:
    """Return 64 bits for a pass, which are not those that its items draw."""
    low, high, *_ = random.SampleStream(seed ^ 0x5851F42D4C957F2D, epoch, 2**64 - 1).four()
    return high << 32 | low


def drawn(order: Indices) -> Order:
    """Return an order that is kept as an array."""
    return lambda start, stop: order[start:stop]


def random_order(size: int, seed: int, epoch: int) -> Order:
    """Return a random order of the numbers below ``size``."""
    key = _key(seed, epoch)
    if size <= LARGEST_DRAWN:
        return drawn(random.order(size, key, 0))
    return lambda start, stop: permuted(np.arange(start, min(stop, size)), size, key)


class Sampler:
    """An order of the items of a data set; subclasses define ``__len__`` and ``order``.

    >>> class Backwards(ndl.data.Sampler):
    ...     def __len__(self):
    ...         return 5
    ...     def order(self, seed, epoch):
    ...         return lambda start, stop: np.arange(5)[::-1][start:stop]
    >>> loader = ndl.data.DataLoader(np.arange(5), batch_size=2, sampler=Backwards())
    >>> [batch.tolist() for batch in loader]
    [[4, 3], [2, 1], [0]]
    """

    def __len__(self) -> int:
        """Return the number of samples in a pass."""
        raise undefined(self, "__len__")

    def order(self, seed: int, epoch: int) -> Order:
        """Return a function of positions start and stop that gives the indices there."""
        raise undefined(self, "order")

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of the first epoch from seed 0."""
        return iter(self.order(0, 0)(0, len(self)).tolist())


class SequentialSampler(Sampler):
    """The items of a data set in order.

    >>> list(ndl.data.SequentialSampler([10, 20, 30]))
    [0, 1, 2]
    """

    def __init__(self, dataset: Any) -> None:
        self.size = len(dataset)

    def __len__(self) -> int:
        return self.size

    def order(self, seed: int, epoch: int) -> Order:
        return lambda start, stop: np.arange(start, min(stop, self.size))


class RandomSampler(Sampler):
    """The items of a data set in a random order, each once; or with replacement.

    Args:
        dataset: anything with a length.
        replacement: whether to draw each item from all of them.
        num_samples: samples in a pass; as many as items for None.

    Raises:
        OptionError: if num_samples is not positive, or more than the items without replacement.

    >>> sorted(ndl.data.RandomSampler(range(4)))
    [0, 1, 2, 3]
    """

    def __init__(
        self, dataset: Any, replacement: bool = False, num_samples: int | None = None
    ) -> None:
        self.size, self.replacement = len(dataset), replacement
        self.count = self.size if num_samples is None else _count("RandomSampler", num_samples)
        if self.count > self.size and (not replacement or not self.size):
            raise OptionError(
                f"RandomSampler: {self.count} samples of {self.size} items\n"
                "  rule: without replacement there are no more samples than items"
            )

    def __len__(self) -> int:
        return self.count

    def order(self, seed: int, epoch: int) -> Order:
        if not self.replacement:
            return _first(random_order(self.size, seed, epoch), self.count)
        key, size = _key(seed, epoch), self.size
        return _first(lambda a, b: (_uniforms(key, a, b) * size).astype(np.int64), self.count)


class WeightedRandomSampler(Sampler):
    """Draw items with probabilities proportional to weights.

    Without replacement, the order is that of the keys log(u) / weight (Efraimidis, Spirakis,
    "Weighted random sampling with a reservoir", 2006).

    Args:
        weights: [n], one for each item; at least one is above zero.
        num_samples: samples in a pass.
        replacement: whether an item can be drawn again.

    Raises:
        OptionError: if the weights are not finite numbers >= 0, or too few are above zero.

    >>> set(ndl.data.WeightedRandomSampler([0.0, 1.0, 3.0], num_samples=100)) <= {1, 2}
    True
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True
    ) -> None:
        self.weights = np.asarray(weights, np.float64)
        self.count = _count("WeightedRandomSampler", num_samples)
        self.replacement = replacement
        w = self.weights
        if w.ndim != 1 or not np.isfinite(w).all() or (w < 0).any() or not (w > 0).any():
            raise OptionError(
                f"WeightedRandomSampler: weights {w!r:.80}\n"
                "  rule: one finite number >= 0 for each item, and one of them > 0"
            )
        if not replacement and self.count > (w > 0).sum():
            raise OptionError(
                f"WeightedRandomSampler: {self.count} samples of {(w > 0).sum()} items with a "
                "weight above zero\n  try: replacement=True"
            )

    def __len__(self) -> int:
        return self.count

    def order(self, seed: int, epoch: int) -> Order:
        key = _key(seed, epoch)
        if self.replacement:
            ends = np.cumsum(self.weights)
            last = int(np.flatnonzero(self.weights)[-1])  # a product may be rounded up to the end

            def draw(start: int, stop: int) -> Indices:
                places = _uniforms(key, start, stop) * ends[-1]
                return np.minimum(np.searchsorted(ends, places, side="right"), last)

            return _first(draw, self.count)
        uniforms = 1 - _uniforms(key, 0, len(self.weights))  # above zero
        with np.errstate(divide="ignore"):
            return drawn(np.argsort(-np.log(uniforms) / self.weights, kind="stable")[: self.count])


class DistributedSampler(Sampler):
    """The share of one of several processes: positions rank, rank + world, ... of one order.

    Args:
        dataset: the data set; or another sampler, whose order is shared.
        num_replicas: number of processes.
        rank: number of this process, from 0.
        shuffle: whether the order is random.
        drop_last: whether to leave out what is left over; else the first samples are repeated, so
            that all shares have the same length.

    Attributes:
        real: number of samples of this share that are no repetition, for an exact evaluation.

    Raises:
        OptionError: if the rank is not one of the processes.

    >>> [list(ndl.data.DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:  # fmt: skip
        self.world, self.rank = _count("DistributedSampler", num_replicas), rank
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.world:
            raise OptionError(
                f"DistributedSampler: rank {rank!r:.40} of {num_replicas} processes\n"
                f"  rule: 0 <= rank < {num_replicas}"
            )
        kind = RandomSampler if shuffle else SequentialSampler
        self.inner = dataset if isinstance(dataset, Sampler) else kind(dataset)
        n = len(self.inner)
        self.count = n // self.world if drop_last else -(-n // self.world)
        self.real = min(self.count, max(0, -(-(n - rank) // self.world)))

    def __len__(self) -> int:
        return self.count

    def order(self, seed: int, epoch: int) -> Order:
        whole_order, n = self.inner.order(seed, epoch), len(self.inner)

        def share(start: int, stop: int) -> Indices:
            stop = min(stop, self.count)
            at = self.rank + self.world * np.arange(start, stop)
            if not len(at):
                return np.empty(0, np.int64)
            inside = at[at < n]
            first = int(inside[0]) if len(inside) else 0
            found = whole_order(first, int(inside[-1]) + 1 if len(inside) else 0)
            taken = [found[inside - first]]
            taken += [whole_order(int(p), int(p) + 1) for p in at[at >= n] % max(n, 1)]
            return np.concatenate(taken)

        return share


class LengthBatchSampler:
    """Batches of items of similar length, in random order: for ``DataLoader(batch_sampler=...)``.

    The order is cut into pieces of ``pool`` batches; each is sorted by length and cut into
    batches, whose order is random.

    Args:
        lengths: [n], the length of each item.
        batch_size: most items of a batch.
        max_tokens: most elements of a batch with padding, items times longest; None: no limit.
        shuffle: whether to draw a new order for every pass.
        pool: batches that are sorted together.

    Raises:
        OptionError: if an item alone is longer than max_tokens.

    >>> lengths = [5, 1, 4, 1, 5, 4]
    >>> batches = ndl.data.LengthBatchSampler(lengths, batch_size=2)
    >>> sorted(sorted(lengths[i] for i in batch) for batch in batches)
    [[1, 1], [4, 4], [5, 5]]
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, max_tokens: int | None = None,
        shuffle: bool = True, pool: int = 50,
    ) -> None:  # fmt: skip
        self.lengths = np.asarray(lengths, np.int64)
        self.batch_size = _count("LengthBatchSampler", batch_size)
        self.max_tokens, self.shuffle, self.pool = max_tokens, shuffle, pool
        if max_tokens is not None and self.lengths.max(initial=0) > max_tokens:
            longest = int(self.lengths.argmax())
            raise OptionError(
                f"LengthBatchSampler: item {longest} has length {self.lengths[longest]}, more than "
                f"max_tokens={max_tokens}"
            )

    def batches(self, seed: int, epoch: int) -> list[Indices]:
        """Return the batches of a pass."""
        n = len(self.lengths)
        order = random_order(n, seed, epoch)(0, n) if self.shuffle else np.arange(n)
        found: list[Indices] = []
        for start in range(0, n, self.pool * self.batch_size):
            piece = order[start : start + self.pool * self.batch_size]
            found += self._cut(piece[np.argsort(self.lengths[piece], kind="stable")])
        if not self.shuffle:
            return found
        places = random.order(len(found), _key(seed, epoch), 2**40)
        return [found[i] for i in places]

    def _cut(self, piece: Indices) -> list[Indices]:
        """Cut items, the shortest first, into batches."""
        found, start = [], 0
        limit = self.max_tokens if self.max_tokens is not None else 2**62
        for i in range(1, len(piece) + 1):
            full = i - start == self.batch_size or i == len(piece)
            if full or (i + 1 - start) * self.lengths[piece[i]] > limit:
                found.append(piece[start:i])
                start = i
        return found

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of the first epoch from seed 0."""
        return iter([batch.tolist() for batch in self.batches(0, 0)])

    def __len__(self) -> int:
        """Return the number of batches in a pass, which may differ from pass to pass."""
        return len(self.batches(0, 0))


def _uniforms(key: int, start: int, stop: int) -> Indices:
    """Return numbers in [0, 1) for these positions, multiples of 2**-53."""
    from needle.backend.numpy import philox

    words = philox(key, np.arange(start, stop).astype(np.uint64)).astype(np.uint64)
    return ((words[:, 0] << np.uint64(32) | words[:, 1]) >> np.uint64(11)) * 2.0**-53


def _first(order: Order, count: int) -> Order:
    return lambda start, stop: order(start, max(start, min(stop, count)))


def _count(what: str, value: object) -> int:
    count = integer(what, value)
    if count < 1:
        raise OptionError(f"{what}: expected a number >= 1, got {value!r:.40}")
    return count

"""``needle.data`` under PyTorch's names.

>>> from needle.utils.data import DataLoader, TensorDataset
>>> dataset = TensorDataset(ndl.ones(4, 3), ndl.tensor([0, 1, 0, 1]))
>>> [x.shape for x, y in DataLoader(dataset, batch_size=3)]
[(3, 3), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from needle import data
from needle.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from needle.data import NDArrayDataset as TensorDataset
from needle.data import collate as default_collate
from needle.elsewhere import advice
from needle.errors import OptionError, missing
from needle.ops import random

__all__ = [
    "BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler",
    "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "Subset",
    "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "default_collate",
    "random_split",
]  # fmt: skip


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Split a data set into disjoint random parts. See ``data.random_split``.

    Args:
        dataset: anything with a length and items.
        lengths: number of items of each part; or fractions that add up to 1.
        generator: a ``needle.Generator`` that draws the order.

    >>> train, test = ndl.utils.data.random_split(range(10), [7, 3], ndl.Generator().manual_seed(0))
    >>> len(train), len(test)
    (7, 3)
    """
    with random.drawing(generator):
        return data.random_split(dataset, lengths)


class SubsetRandomSampler:
    """Some indices, in a new random order for every pass.

    >>> sorted(ndl.utils.data.SubsetRandomSampler([4, 2, 7]))
    [2, 4, 7]
    """

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        with random.drawing(self.generator):
            order = random.host_permutation(len(self.indices))
        return iter([int(self.indices[i]) for i in order])

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler:
    """The indices of a sampler, in lists.

    Raises:
        OptionError: if batch_size is not positive.

    >>> list(ndl.utils.data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if batch_size < 1:
            raise OptionError(f"BatchSampler: expected batch_size >= 1, got {batch_size!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


_ELSEWHERE = {
    "ChainDataset": "itertools.chain in the __iter__ of an IterableDataset",
    "StackDataset": "TensorDataset(x, y)",
    "get_worker_info": "needle.data.rng() draws numbers that do not depend on the worker",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.utils.data", name, _ELSEWHERE.get(name) or advice("utils.data", name))

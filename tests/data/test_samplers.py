"""In which order a pass takes the items of a data set."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

from needle import data
from needle.data import samplers
from needle.errors import OptionError


@looped("size", [1, 2, 3, 17, 1000, 4097])
def test_the_formula_permutes(size):
    found = samplers.permuted(np.arange(size), size, 2**64 - 3)
    assert sorted(found) == list(range(size))
    np.testing.assert_array_equal(
        samplers.permuted(np.arange(size)[1:], size, 2**64 - 3), found[1:]
    )


def test_the_formula_is_random_where_it_is_used():
    size, keys = samplers.LARGEST_DRAWN + 1, 4
    orders = [samplers.random_order(size, seed, 0)(0, size) for seed in range(keys)]
    for order in orders:
        assert len(np.unique(order)) == size
        # neighbours are as far from each other as two numbers at random, a third of the range
        assert abs(np.abs(np.diff(order)).mean() / size - 1 / 3) < 5 / np.sqrt(size)
        parts = np.histogram2d(np.arange(size), order, 8)[0]
        expected = size / 64
        assert ((parts - expected) ** 2 / expected).sum() < 64 + 10 * np.sqrt(2 * 64)
    assert np.corrcoef(orders)[np.triu_indices(keys, 1)].max() < 0.02
    assert not np.array_equal(orders[0], samplers.random_order(size, 0, 1)(0, size))


@looped(
    "sampler",
    [
        data.SequentialSampler(range(50)), data.RandomSampler(range(50)),
        data.RandomSampler(range(50), num_samples=20),
        data.RandomSampler(range(50), True, 200),
        data.RandomSampler(range(samplers.LARGEST_DRAWN + 5)),
        data.WeightedRandomSampler(np.arange(50), 30),
        data.WeightedRandomSampler(np.arange(50), 49, replacement=False),
        data.DistributedSampler(range(50), 3, 2), data.DistributedSampler(range(50), 3, 1, False),
        data.DistributedSampler(range(50), 3, 0, drop_last=True),
        data.DistributedSampler(range(2), 5, 4),
    ],
)  # fmt: skip
def test_any_part_of_an_order_can_be_asked_for(sampler):
    n = len(sampler)
    order = sampler.order(3, 4)
    every = order(0, n)
    assert len(every) == n == len(order(0, n + 7)) and len(order(n, n + 7)) == 0
    for start, stop in ((0, 1), (n // 2, n), (n - 1, n), (1, min(9, n))):
        np.testing.assert_array_equal(order(start, stop), every[start:stop])
    np.testing.assert_array_equal(sampler.order(3, 4)(0, n), every)
    assert len(list(sampler)) == n


def test_weights_are_probabilities():
    weights = np.array([0.0, 1, 2, 0, 5, 0])
    found = data.WeightedRandomSampler(weights, 40_000).order(1, 2)(0, 40_000)
    counts = np.bincount(found, minlength=6)
    expected = weights / weights.sum() * 40_000
    assert (counts[weights == 0] == 0).all()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    first = [
        data.WeightedRandomSampler(weights, 3, replacement=False).order(seed, 0)(0, 3)
        for seed in range(1000)
    ]
    assert all(sorted(order) == [1, 2, 4] for order in first)
    counts = np.bincount([order[0] for order in first], minlength=6)[weights > 0]
    expected = weights[weights > 0] / 8 * 1000
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


@looped("n, world, drop", [(10, 3, False), (10, 3, True), (9, 3, False), (2, 5, False)])
def test_processes_share_one_order(n, world, drop):
    shares = [data.DistributedSampler(range(n), world, r, drop_last=drop) for r in range(world)]
    orders = [share.order(5, 6)(0, len(share)) for share in shares]
    assert len({len(order) for order in orders}) == 1
    real = np.concatenate([o[: s.real] for s, o in zip(shares, orders, strict=True)])
    assert len(real) == len(set(real.tolist()))
    assert len(real) == (n // world * world if drop else n)
    merged = np.stack(orders, 1).ravel()[:n]
    np.testing.assert_array_equal(merged, data.RandomSampler(range(n)).order(5, 6)(0, len(merged)))


def test_batches_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    sampler = data.LengthBatchSampler(lengths, 16, max_tokens=600)
    batches = sampler.batches(1, 2)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    padded = [lengths[b].max() * len(b) for b in batches]
    assert max(len(b) for b in batches) == 16 and max(padded) <= 600
    assert sum(padded) < 1.05 * lengths.sum()
    assert len(sampler) == len(list(sampler))
    other = sampler.batches(1, 3)
    assert [b.tolist() for b in batches] != [b.tolist() for b in other]
    means = [lengths[b].mean() for b in batches]
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.4  # their order is random
    loader = data.DataLoader(lengths, batch_sampler=sampler, seed=0)
    assert sum(len(batch) for batch in loader) == 1000


@looped(
    "make",
    [
        lambda: data.RandomSampler(range(3), num_samples=4),
        lambda: data.RandomSampler(range(0), True, 4),
        lambda: data.RandomSampler(range(3), True, 0),
        lambda: data.WeightedRandomSampler([0.0, 0.0], 1),
        lambda: data.WeightedRandomSampler([1.0, -1.0], 1),
        lambda: data.WeightedRandomSampler([1.0, np.nan], 1),
        lambda: data.WeightedRandomSampler([1.0, 0.0], 2, replacement=False),
        lambda: data.DistributedSampler(range(3), 2, 2),
        lambda: data.DistributedSampler(range(3), 0, 0),
        lambda: data.LengthBatchSampler([3, 9], 2, max_tokens=8),
    ],
)
def test_wrong_settings(make):
    with pytest.raises(OptionError):
        make()

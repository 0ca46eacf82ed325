"""``needle.utils``: data sets, loaders and checkpoints under PyTorch's names."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn, utils
from needle.errors import OptionError
from needle.utils.checkpoint import checkpoint
from needle.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return ndl.tensor([float(index)]), index * index


def test_a_loop_as_for_pytorch():
    whole = ConcatDataset([Squares(), Subset(Squares(), [1, 3])])
    loader = DataLoader(whole, 4, shuffle=True, num_workers=0, pin_memory=False)
    seen = [(x, y) for xs, ys in loader for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    assert len(seen) == 12 and all(y == x[0] ** 2 for x, y in seen)
    x, y = TensorDataset(ndl.ones(4, 3), ndl.tensor([0, 1, 2, 3]))[2]
    assert x.shape == (3,) and y == 2


def test_splits_and_samplers_take_a_generator():
    one, two = (random_split(Squares(), [0.5, 0.5], ndl.Generator().manual_seed(1)) for _ in "ab")
    other = random_split(Squares(), lengths=[5, 5], generator=ndl.Generator().manual_seed(2))
    assert list(one[0].indices) == list(two[0].indices) != list(other[0].indices)
    sampler = SubsetRandomSampler(range(100), ndl.Generator().manual_seed(0))
    first = list(sampler)
    assert first != list(sampler) and sorted(first) == list(range(100))
    batches = BatchSampler(range(7), 3, drop_last=True)
    assert list(batches) == [[0, 1, 2], [3, 4, 5]] and len(batches) == 2
    loader = DataLoader(Squares(), batch_sampler=BatchSampler(range(7), 3, drop_last=False))
    assert [len(y) for _, y in loader] == [3, 3, 1]
    with pytest.raises(OptionError, match="batch_size"):
        BatchSampler(range(7), 0, False)
    w = ndl.zeros(3, 4)
    draws = [nn.init.normal_(w, generator=ndl.Generator().manual_seed(5)).numpy() for _ in "ab"]
    assert np.array_equal(*draws) and draws[0].any()


def test_checkpoint_is_called_at_once():
    layer, x = nn.Linear(3, 2), ndl.ones(2, 3)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert layer.weight.grad.shape == (3, 2)
    with pytest.raises(OptionError, match="preserve_rng_state"):
        utils.checkpoint.checkpoint(layer, x, preserve_rng_state=False)
    with pytest.raises(AttributeError, match="needle.data.rng"):
        utils.data.get_worker_info  # noqa: B018
    with pytest.raises(AttributeError, match="needle train"):
        utils.tensorboard  # noqa: B018

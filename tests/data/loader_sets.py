"""Data sets for tests of the loader, which worker processes import as well."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from needle import data


def arrays(n=300):
    """Images that are augmented, and their numbers."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (n, 6, 5, 3)).astype(np.uint8)
    return data.NDArrayDataset(images, np.arange(n))


AUGMENT = data.Augment(
    data.RandomCrops(2), data.RandomFlips(), data.Normalise([90.0], [50.0]), seed=3
)


class Items(data.Dataset):
    """Items that draw random numbers in each of the ways that a data set has."""

    def __init__(self, n=120):
        super().__init__([data.RandomCrop(2), data.RandomFlipHorizontal()])
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        image = np.arange(12.0).reshape(3, 4, 1) + index
        return {"x": self.apply_transforms(image), "noise": data.rng().normal(), "name": f"{index}"}


class Stream(data.IterableDataset):
    """Numbers in 4 shards of different lengths."""

    shards = 4

    def items(self, shard, shards):
        for i in range(shard, 90 + 30 * (shard == 1), shards):
            yield np.array([shard, i]), float(data.rng().random())


class Faulty(data.Dataset):
    """Items that do something at some index."""

    def __init__(self, fault=None, at=20, n=64, width=4):
        super().__init__()
        self.fault, self.at, self.n, self.width = fault, at, n, width

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index == self.at and self.fault is not None:
            getattr(self, self.fault)()
        wide = self.width * (50 if self.fault == "grow" and index >= self.at else 1)
        return np.full(wide, index, np.float32)

    def grow(self):
        pass

    def fail(self):
        raise ValueError("this item is bad")

    def leave(self):
        os._exit(7)

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def sleep(self):
        time.sleep(1000)

    def block(self):
        BLOCKED.wait(60)


BLOCKED = threading.Event()
"""Ends what ``block`` waits for."""


def flat(batch):
    """Return the arrays and texts of a batch, as NumPy arrays."""
    if isinstance(batch, dict):
        batch = tuple(batch[name] for name in sorted(batch))
    if not isinstance(batch, tuple):
        batch = (batch,)
    return [x if isinstance(x, tuple) else x.numpy() for x in batch]


def assert_same(found, expected):
    """Compare two lists of batches, to the last bit."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for x, y in zip(flat(a), flat(b), strict=True):
            np.testing.assert_array_equal(x, y)

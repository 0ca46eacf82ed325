"""Small files in the formats of MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import importlib

import numpy as np

mnist_module = importlib.import_module("needle.data.mnist")  # needle.data.mnist is the function


def idx(values):
    header = (0x800 + values.ndim).to_bytes(4, "big")
    return header + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def write_mnist(folder, n=12, train=True):
    """Write a small MNIST; return its images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(n)
    images = random.integers(0, 256, (n, 28, 28), np.uint8)
    labels = random.integers(0, 10, n).astype(np.uint8)
    for file, values in zip(mnist_module.FILES[train], (images, labels), strict=True):
        (folder / file.name).write_bytes(gzip.compress(idx(values)))
    return images, labels


def binary_batch(pixels, labels):
    """Return a batch of CIFAR-10's binary edition."""
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], pixels], 1).tobytes()

"""Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017, arXiv:1708.07747): pictures of clothes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from needle.data.download import Source
from needle.data.mnist import MNISTDataset, idx_pair
from needle.errors import OptionError

__all__ = ["fashion_mnist"]

CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
FILES = {
    True: (
        Source(
            "train-images-idx3-ubyte.gz", 26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Source(
            "train-labels-idx1-ubyte.gz", 29515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
    ),
    False: (
        Source(
            "t10k-images-idx3-ubyte.gz", 4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Source(
            "t10k-labels-idx1-ubyte.gz", 5148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
}  # fmt: skip


def fashion_mnist(
    folder: str | Path | None = None,
    train: bool = True,
    transforms: Sequence[Callable[[Any], Any]] | None = None,
    report: Callable[[str], None] | None = None,
) -> MNISTDataset:
    """Return Fashion-MNIST's 60,000 training or 10,000 test images, which are like MNIST's.

    Args:
        folder: folder with the four files, in a subfolder ``fashion_mnist`` or directly; they have
            the names of MNIST's files. None takes ``NEEDLE_DATA`` if the files are there, and else
            downloads them once into the cache.
        train: True for the training images, False for the test images.
        transforms: applied to each image.
        report: called with a line for each download.

    Raises:
        DataError: if the files are missing, invalid, or cannot be downloaded.
        OptionError: if train is neither True nor False.

    >>> train = ndl.data.fashion_mnist()  # doctest: +SKIP
    >>> image, label = train[0]  # doctest: +SKIP
    """
    if train not in (True, False):
        raise OptionError(f"fashion_mnist: expected True or False for train, got {train!r:.60}")
    dataset = idx_pair("fashion_mnist", FILES[bool(train)], MIRRORS, folder, transforms, report)
    dataset.classes = CLASSES
    return dataset

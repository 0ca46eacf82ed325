"""CIFAR-10 (Krizhevsky, 2009): 60,000 photographs of 32 x 32 pixels in 10 classes.

There are two editions of the same bytes: binary records, and Python 2 pickles, which are read
without executing them (``cifar_pickle``).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle.data import cifar_pickle
from needle.data.dataset import Dataset, check_index
from needle.data.download import Source, cache_folder, fetch, given_folder, part_of
from needle.errors import DataError, OptionError

__all__ = ["CIFAR10Dataset", "cifar10", "read_cifar_binary", "read_cifar_pickle"]

Bytes = np.ndarray[Any, Any]

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
ARCHIVE = Source(
    "cifar-10-binary.tar.gz", 170052171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)  # fmt: skip
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
PIXELS = 3 * 32 * 32
MOST_BYTES = 64 * 2**20
"""Limit of a file: a batch has 31 MB."""


# ---- the two editions --------------------------------------------------------------


def read_cifar_binary(path: str | Path) -> tuple[Bytes, Bytes]:
    """Return images uint8 [n, 32, 32, 3] and labels uint8 [n] from a file of binary records.

    Raises:
        DataError: if the file is missing, or does not consist of records with labels below 10.
    """
    return _from_records(_content(path), path)


def _from_records(content: bytes, path: object) -> tuple[Bytes, Bytes]:
    if not content or len(content) % (1 + PIXELS):
        raise DataError(f"{path}: {len(content)} bytes, not a multiple of {1 + PIXELS}")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return _checked(records[:, 1:], records[:, 0], path)


def read_cifar_pickle(path: str | Path) -> tuple[Bytes, Bytes]:
    """Return images uint8 [n, 32, 32, 3] and labels uint8 [n] from a batch of the Python edition.

    The reader only builds a dict of bytes, numbers and byte arrays, and executes nothing else.

    Raises:
        DataError: if the file is missing, is not such a dict, or needs anything else.
    """
    try:
        batch = cifar_pickle.load(_content(path))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not isinstance(batch, dict):
        raise DataError(f"{path}: expected a dict of data and labels, got {type(batch).__name__}")
    data, labels = batch.get(b"data"), batch.get(b"labels")
    pixels = data.values if isinstance(data, cifar_pickle.Array) else None
    if pixels is None or not isinstance(labels, list):
        raise DataError(f"{path}: expected an array of data and a list of labels in the dict")
    if not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise DataError(f"{path}: labels must be integers from 0 to 9")
    return _checked(pixels, np.array(labels, np.uint8), path)


def _content(path: str | Path) -> bytes:
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise DataError(f"{path}: {os.path.getsize(path)} bytes, but a batch has 31 MB")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def _checked(pixels: Bytes, labels: Bytes, path: object) -> tuple[Bytes, Bytes]:
    if pixels.shape != (len(labels), PIXELS):
        raise DataError(f"{path}: {len(labels)} labels for pixels of shape {pixels.shape}")
    if not len(labels):
        raise DataError(f"{path}: contains no images")
    if labels.max() > 9:
        raise DataError(f"{path}: label {labels.max()} is out of range for 10 classes")
    planes = pixels.reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels.copy()


# ---- the data set ------------------------------------------------------------------


def _batch_names(train: bool, batches: Sequence[int] | None) -> list[str]:
    if not train:
        return ["test_batch"]
    chosen = range(1, 6) if batches is None else batches
    if not chosen or any(i not in range(1, 6) for i in chosen):
        raise OptionError(f"CIFAR10Dataset: batches={batches}\n  rule: numbers from 1 to 5")
    return [f"data_batch_{i}" for i in chosen]


class CIFAR10Dataset(Dataset):
    """Photographs float32 (3, 32, 32) in [0, 1] with labels 0 to 9, from either edition.

    An index gives (image, label); a slice or an array of indices gives them stacked. Images stay
    bytes [n, 32, 32, 3] in memory and become floats when you access them.

    Attributes:
        images: uint8 [n, 32, 32, 3].
        labels: uint8 [n].
        classes: the names of the labels.

    Args:
        base_folder: folder with ``data_batch_1`` to ``data_batch_5`` and ``test_batch``, or the
            same names ending with ``.bin``.
        train: True for the training images, False for the test images.
        p: not used; programs of the course pass it.
        transforms: applied to each image (32, 32, 3).
        batches: numbers of the training batches to read; all five for None.

    Raises:
        DataError: if a file is missing or invalid.
    """

    classes = CLASSES

    def __init__(
        self,
        base_folder: str | Path,
        train: bool,
        p: float | None = 0.5,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
        batches: Sequence[int] | None = None,
    ) -> None:
        super().__init__(transforms)
        folder, names = Path(base_folder), _batch_names(train, batches)
        missing = [n for n in names if not any((folder / f).is_file() for f in (n, f"{n}.bin"))]
        if missing:
            there = [i for i in range(1, 6) if _has(folder, f"data_batch_{i}")]
            advice = f"\n  try: batches={there}" if train and there and batches is None else ""
            raise DataError(f"{folder} does not contain {', '.join(missing)}{advice}")
        parts = [_read(folder, name) for name in names]
        self.images = np.concatenate([images for images, _ in parts])
        self.labels = np.concatenate([labels for _, labels in parts])

    @property
    def X(self) -> Bytes:
        """All images, float32 [n, 3, 32, 32]: the course's name."""
        return self[:][0]

    @property
    def y(self) -> Bytes:
        """All labels: the course's name."""
        return self.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        check_index(index, len(self))
        return np.moveaxis(self.prepared(self.images[index]), -1, -3), self.labels[index]

    def in_memory(self) -> bool:
        return not self.transforms

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        return self[indices]


def _has(folder: Path, name: str) -> bool:
    return any((folder / file).is_file() for file in (name, f"{name}.bin"))


def _read(folder: Path, name: str) -> tuple[Bytes, Bytes]:
    if (folder / name).is_file():
        return read_cifar_pickle(folder / name)
    return read_cifar_binary(folder / f"{name}.bin")


def cifar10(
    folder: str | Path | None = None,
    train: bool = True,
    transforms: Sequence[Callable[[Any], Any]] | None = None,
    report: Callable[[str], None] | None = None,
) -> CIFAR10Dataset:
    """Return CIFAR-10's 50,000 training or 10,000 test images.

    Args:
        folder: folder with the batches of either edition, directly or in the folder that the
            archive unpacks to. Training batches may be missing; ``report`` then says so. None
            takes ``NEEDLE_DATA`` if the batches are there, and else downloads the archive once
            into the cache.
        train: True for the training images, False for the test images.
        transforms: applied to each image.
        report: called with a line for a download, and for missing batches.

    Raises:
        DataError: if the files are missing, invalid, or cannot be downloaded.

    >>> test = ndl.data.cifar10(train=False)  # doctest: +SKIP
    >>> images, labels = test[:64]  # doctest: +SKIP
    """
    given = given_folder(folder)
    found = _look(given, train) if given is not None else None
    if found is None and folder is not None:
        raise DataError(
            f"cifar10: {folder} contains no batches of CIFAR-10, neither directly nor in "
            "cifar-10-batches-py or cifar-10-batches-bin\n"
            "  try: leave out the folder to download them"
        )
    if found is None:
        found = _unpacked(report)
    there = [i for i in range(1, 6) if _has(found, f"data_batch_{i}")]
    if train and len(there) < 5 and report:
        report(f"{found} contains training batches {there} of 5: {len(there) * 10_000:,} images")
    return CIFAR10Dataset(found, train, None, transforms, there if train else None)


def _look(folder: Path, train: bool) -> Path | None:
    wanted = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    for place in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        if any(_has(place, name) for name in wanted):
            return place
    return None


def _unpacked(report: Callable[[str], None] | None) -> Path:
    """Return the folder of the binary edition in the cache; download it if needed."""
    folder = cache_folder("cifar10")
    target = folder / "cifar-10-batches-bin"
    names = [f"{name}.bin" for train in (True, False) for name in _batch_names(train, None)]
    if all((target / name).is_file() for name in names):
        return target
    archive = fetch("cifar10", ARCHIVE, MIRRORS, folder, report)
    try:
        target.mkdir(exist_ok=True)
        with tarfile.open(archive) as files:
            for name in names:
                _unpack(files, name, target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error})") from None
    return target


def _unpack(files: tarfile.TarFile, name: str, folder: Path) -> None:
    """Extract one file of the archive, by its name, into a folder."""
    part = part_of(folder / name)
    try:
        member = files.extractfile(f"cifar-10-batches-bin/{name}")
        if member is None:
            raise DataError(f"{files.name!r}: contains no file {name}")
        part.write_bytes(member.read())
        os.replace(part, folder / name)
    finally:
        part.unlink(missing_ok=True)

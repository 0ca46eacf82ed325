"""MNIST (LeCun, Cortes, Burges): handwritten digits, in IDX files."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle.data.dataset import Dataset, check_index
from needle.data.download import Source, cache_folder, fetch, given_folder
from needle.errors import DataError, OptionError

__all__ = ["MNISTDataset", "mnist", "read_idx"]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FILES = {
    True: (
        Source(
            "train-images-idx3-ubyte.gz", 9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Source(
            "train-labels-idx1-ubyte.gz", 28881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
    ),
    False: (
        Source(
            "t10k-images-idx3-ubyte.gz", 1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Source(
            "t10k-labels-idx1-ubyte.gz", 4542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
}  # fmt: skip


def read_idx(path: str | Path, ndim: int) -> np.ndarray[Any, Any]:
    """Return the bytes of a gzipped IDX file as an array of ``ndim`` axes.

    Raises:
        DataError: if the file is missing, not a gzipped IDX file, truncated, or too long.
    """
    import gzip

    start = 4 + 4 * ndim
    shape: tuple[int, ...] = ()
    try:
        with gzip.open(path) as file:
            header = file.read(start)
            shape = _idx_shape(path, header, ndim)
            # A few bytes may unpack to any number: the header says how many there should be.
            content = file.read(math.prod(shape) + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is truncated or damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    except (MemoryError, OverflowError):
        raise DataError(f"{path}: the sizes {' x '.join(map(str, shape))} are too large") from None
    if len(content) != math.prod(shape):
        got = "more" if len(content) > math.prod(shape) else len(content)
        raise DataError(
            f"{path}: expected {math.prod(shape)} bytes after the header for the sizes "
            f"{' x '.join(map(str, shape))}, got {got}"
        )
    try:
        return np.frombuffer(content, np.uint8).reshape(shape)
    except ValueError as error:  # one size is 0, and the product of the others is too large
        raise DataError(f"{path}: the sizes {' x '.join(map(str, shape))}: {error}") from None


def _idx_shape(path: str | Path, header: bytes, ndim: int) -> tuple[int, ...]:
    start = 4 + 4 * ndim
    if len(header) < start:
        raise DataError(f"{path}: {len(header)} bytes, but an IDX header alone has {start}")
    magic = int.from_bytes(header[:4], "big")
    if magic != 0x800 + ndim:
        raise DataError(f"{path}: magic number {magic}, expected {0x800 + ndim}")
    return tuple(np.frombuffer(header, ">u4", ndim, 4).tolist())


class MNISTDataset(Dataset):
    """Images float32 (28, 28, 1) in [0, 1] with labels 0 to 9, from a pair of IDX files.

    An index gives (image, label); a slice or an array of indices gives them stacked. Images stay
    bytes in memory and become floats when you access them.

    Attributes:
        classes: the names of the labels.

    Args:
        image_filename: gzipped IDX file of images.
        label_filename: gzipped IDX file of labels.
        transforms: applied to each image (28, 28, 1).

    Raises:
        DataError: if a file is missing or invalid, or the two files do not match.
    """

    classes: tuple[str, ...] = tuple("0123456789")

    def __init__(
        self,
        image_filename: str | Path,
        label_filename: str | Path,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
    ) -> None:
        super().__init__(transforms)
        self.images = read_idx(image_filename, 3)[..., None]
        self.labels = read_idx(label_filename, 1)
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{image_filename} has {len(self.images)} images, but "
                f"{label_filename} has {len(self.labels)} labels"
            )
        if len(self.labels) and self.labels.max() > 9:
            raise DataError(f"{label_filename}: expected labels 0 to 9, got {self.labels.max()}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        check_index(index, len(self))
        return self.prepared(self.images[index]), self.labels[index]

    def in_memory(self) -> bool:
        return not self.transforms

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        return self[indices]


def mnist(
    folder: str | Path | None = None,
    train: bool = True,
    transforms: Sequence[Callable[[Any], Any]] | None = None,
    report: Callable[[str], None] | None = None,
) -> MNISTDataset:
    """Return MNIST's 60,000 training or 10,000 test images.

    Args:
        folder: folder with the four files, directly or in a subfolder ``mnist``. None takes
            ``NEEDLE_DATA`` if the files are there, and else downloads them once into the cache.
        train: True for the training images, False for the test images.
        transforms: applied to each image.
        report: called with a line for each download.

    Raises:
        DataError: if the files are missing, invalid, or cannot be downloaded.
        OptionError: if train is neither True nor False.

    >>> train = ndl.data.mnist()  # doctest: +SKIP
    >>> image, label = train[0]  # doctest: +SKIP
    """
    if train not in (True, False):
        raise OptionError(f"mnist: expected True or False for train, got {train!r:.60}")
    return idx_pair("mnist", FILES[bool(train)], MIRRORS, folder, transforms, report)


def idx_pair(
    name: str,
    sources: Sequence[Source],
    mirrors: Sequence[str],
    folder: str | Path | None,
    transforms: Sequence[Callable[[Any], Any]] | None,
    report: Callable[[str], None] | None,
) -> MNISTDataset:
    """Return the data set of a pair of IDX files, which are downloaded if they are not there.

    Raises:
        DataError: if the files are missing, invalid, or cannot be downloaded.
    """
    given = given_folder(folder)
    direct = folder is not None or name == "mnist"
    found = _look(given, name, sources, direct) if given is not None else None
    if found is None and folder is not None:
        raise DataError(
            f"{name}: {folder} and {Path(folder) / name} do not hold "
            f"{' and '.join(source.name for source in sources)}\n"
            "  try: leave out the folder to download the files"
        )
    if found is None:
        found = cache_folder(name)
        for source in sources:
            fetch(name, source, mirrors, found, report)
    images, labels = (found / source.name for source in sources)
    return MNISTDataset(images, labels, transforms)


def _look(folder: Path, name: str, sources: Sequence[Source], direct: bool) -> Path | None:
    """Return the folder of the files: the one named like the data set, or ``folder`` itself.

    Other data sets have files of MNIST's names, so theirs are not taken from a common folder.
    """
    for place in (folder / name, folder) if direct else (folder / name,):
        if all((place / source.name).is_file() for source in sources):
            return place
    return None

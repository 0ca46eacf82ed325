"""Folders of image files. Decoding needs Pillow (``pip install 'needle-dl[train]'``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle.data.augment import Augment
from needle.data.dataset import Dataset, check_index
from needle.errors import DataError, OptionError
from needle.ops import random

__all__ = ["ImageFolder", "UnpairedImages", "read_image"]

Image = np.ndarray[Any, Any]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")


def read_image(path: str | Path, size: int | tuple[int, int] | None = None) -> Image:
    """Return an image file as uint8 [h, w, 3]; images of 16 bits per colour keep the upper 8.

    Args:
        path: path of the file.
        size: (height, width) to scale to, or one number for a square; None keeps the size.

    Raises:
        DataError: if the file cannot be decoded, or Pillow is not installed.

    >>> image = ndl.data.read_image("cat.jpg", size=64)  # doctest: +SKIP
    """
    try:
        from PIL import Image as pillow
    except ImportError:
        raise DataError(
            f"{path}: reading image files needs Pillow, which is not installed\n"
            "  try: pip install pillow"
        ) from None
    try:
        with pillow.open(path) as file:
            picture = _coloured(file, pillow)
            if size is not None:
                height, width = (size, size) if isinstance(size, int) else size
                picture = picture.resize((width, height), pillow.Resampling.BICUBIC)
            return np.array(picture)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # decoders raise many kinds
        raise DataError(f"{path}: this image cannot be read ({error})") from None


def _coloured(file: Any, pillow: Any) -> Any:
    """Return an image of Pillow with three colours of 8 bits.

    Pillow's own conversion limits grey values of more than 8 bits to 255.
    """
    sixteen = file.mode.startswith("I;16") or (file.mode, file.format) in (
        ("I", "PNG"), ("I", "PPM"),
    )  # fmt: skip
    if sixteen:
        file = pillow.fromarray((np.asarray(file) >> 8).astype(np.uint8))
    elif file.mode in ("I", "F"):
        kind = "integers" if file.mode == "I" else "floats"
        raise ValueError(f"its values are {kind} of 32 bits, whose range is unknown")
    return file.convert("RGB")


def _files(folder: Path) -> list[Path]:
    """Return the image files of a folder in the order of their names."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())


def _readable(files: list[Path], skip_broken: bool, report: Callable[[str], None]) -> list[Path]:
    if not skip_broken:
        return files
    kept = []
    for path in files:
        try:
            read_image(path)
        except DataError as error:
            report(f"skipped {error}")
        else:
            kept.append(path)
    return kept


def _silent(line: str) -> None:
    pass


class ImageFolder(Dataset):
    """Images float32 (3, h, w) in [0, 1] from a folder that has a subfolder for each class.

    An index gives (image, label); a slice or an array of indices gives them stacked.

    Attributes:
        classes: names of the subfolders, sorted; a label is an index into this list.
        files: (path, label) of each item.

    Args:
        folder: folder with the subfolders.
        size: size to scale images to; None keeps their sizes.
        transforms: applied to each image (h, w, 3).
        skip_broken: decode all files at once and skip those that fail, instead of raising when
            one is used.
        report: called with a line for each skipped file.

    Raises:
        DataError: if no subfolder has an image, or a file cannot be decoded.

    >>> pets = ndl.data.ImageFolder("pets", size=64)  # doctest: +SKIP
    >>> image, label = pets[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        size: int | tuple[int, int] | None = None,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
        skip_broken: bool = False,
        report: Callable[[str], None] = _silent,
    ) -> None:
        super().__init__(transforms)
        root = Path(folder)
        if not root.is_dir():
            raise DataError(f"ImageFolder: {root} is not a folder")
        found = {p.name: _files(p) for p in sorted(root.iterdir()) if p.is_dir()}
        self.size, self.classes = size, [name for name, files in found.items() if files]
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in _readable(found[name], skip_broken, report)
        ]
        if not self.files:
            raise DataError(
                f"ImageFolder: {root} has no class folders with images\n"
                f"  rule: {root}/<class>/<image>, where the image ends with {', '.join(SUFFIXES)}"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> tuple[Image, Any]:
        check_index(index, len(self))
        if isinstance(index, slice) or np.ndim(index):
            found: tuple[Image, Any] = self.batch(np.arange(len(self))[index])
            return found
        path, label = self.files[index]
        image = read_image(path, self.size).astype(np.float32) / np.float32(255)
        return np.moveaxis(self.apply_transforms(image), -1, -3), label


class UnpairedImages(Dataset):
    """Unpaired images of two kinds, from two folders.

    Item i is (a, b): image i of the first folder (starting over at its end) and a random image of
    the second, float32 (3, h, w) in [-1, 1]. All images are kept in memory.

    Attributes:
        a, b: all images, uint8 [n, size, size, 3].
        epoch: number of the epoch, for ``augment``; a loader with a seed counts by itself.

    Args:
        folder: folder with both folders.
        names: their names: ("trainA", "trainB") or ("testA", "testB").
        size: size to scale images to.
        skip_broken: skip files that cannot be decoded, instead of raising.
        report: called with a line for each skipped file.
        augment: random transforms of the images of a batch.

    Raises:
        DataError: if a folder has no images, or a file cannot be decoded.
        OptionError: if names are not two names.

    >>> names = "trainA", "trainB"
    >>> pairs = ndl.data.UnpairedImages("horse2zebra", names, size=64)  # doctest: +SKIP
    >>> a, b = pairs[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        names: tuple[str, str] = ("trainA", "trainB"),
        size: int = 64,
        skip_broken: bool = False,
        report: Callable[[str], None] = _silent,
        augment: Augment | None = None,
    ) -> None:
        super().__init__()
        if isinstance(names, str) or len(names) != 2:
            raise OptionError(f"UnpairedImages: expected two folder names, got {names!r:.60}")
        self.augment, self.epoch = augment, 0
        self.a, self.b = (
            _all_images(Path(folder) / name, size, skip_broken, report) for name in names
        )

    def __len__(self) -> int:
        return max(len(self.a), len(self.b))

    def __getitem__(self, index: Any) -> tuple[Image, Image]:
        check_index(index, len(self))
        places = np.arange(len(self))[index]
        pair = self.batch(np.atleast_1d(places))
        return pair if np.ndim(places) else (pair[0][0], pair[1][0])

    def by_item(self) -> bool:
        return True

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Image, Image]:
        others = random.host_integers(0, len(self.b), len(indices))
        own = indices % len(self.a)
        a, b = self.a[own], self.b[others]
        if self.augment is not None:
            stream = random.sample()  # of a loader with a seed, which knows the epoch
            epoch = self.epoch if stream is None else stream.epoch
            a = self.augment(a, own, epoch)
            b = self.augment(b, len(self.a) + others, epoch)
        return _signed(a), _signed(b)


def _all_images(
    folder: Path, size: int, skip_broken: bool, report: Callable[[str], None]
) -> Image:  # fmt: skip
    if not folder.is_dir():
        raise DataError(f"UnpairedImages: {folder} is not a folder")
    files = _readable(_files(folder), skip_broken, report)
    if not files:
        raise DataError(f"UnpairedImages: {folder} has no images ({', '.join(SUFFIXES)})")
    return np.stack([read_image(path, size) for path in files])


def _signed(images: Image) -> Image:
    """Return bytes [n, h, w, c] as float32 [n, c, h, w] in [-1, 1], without moving data."""
    return np.moveaxis(images.astype(np.float32) / np.float32(127.5) - np.float32(1), -1, 1)

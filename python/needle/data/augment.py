"""Random transforms of batches of images [n, h, w, c], with separate random numbers for each item.

The numbers of an item depend only on the seed, the epoch and the item's index, so they are the same
for any batch size, order, or number of processes that prepare the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from needle.backend import images as native
from needle.backend.numpy import philox
from needle.data.dataset import check_index
from needle.data.transforms import pixels
from needle.errors import ArgumentError, DtypeError, OptionError, ShapeError, undefined
from needle.ops.core.attributes import real

__all__ = [
    "Augment", "BatchTransform", "ColourJitter", "CompiledAugment", "Cutout", "Normalise",
    "RandomCrops", "RandomFlips", "Resize",
]  # fmt: skip

Images = np.ndarray[Any, Any]


class BatchTransform:
    """A transform of a batch.

    Attributes:
        draws: number of random numbers that each item needs.
    """

    draws: int = 0

    def __call__(self, images: Images, random: Images) -> Images:
        """Return the new batch [n, h, w, c]; ``random`` is [n, draws], uniform in [0, 1)."""
        raise undefined(self, "__call__")

    def row(self) -> tuple[float, float] | None:
        """Return this transform as a row of ``backend.images.augmented``; None if there is none."""
        return None


class Augment:
    """Apply transforms one after the other.

    >>> augment = ndl.data.Augment(ndl.data.RandomCrops(4), ndl.data.RandomFlips(), seed=0)
    >>> augment(np.zeros((2, 32, 32, 3), np.uint8), indices=[0, 1], epoch=3).shape
    (2, 32, 32, 3)
    """

    def __init__(self, *transforms: BatchTransform, seed: int = 0) -> None:
        self.transforms, self.seed = transforms, seed

    def __call__(self, images: Images, indices: Images, epoch: int = 0) -> Images:
        """Return the new batch.

        Args:
            images: [n, h, w, c], an array or anything that converts to one.
            indices: [n], indices of the items in the data set.
            epoch: number of the epoch.

        Raises:
            ShapeError: if images are not [n, h, w, c], or the number of indices is not n.
        """
        images = np.asarray(images)
        if images.ndim != 4 or len(indices) != len(images):
            raise ShapeError(
                f"Augment: images of shape {images.shape} and {len(indices)} indices\n"
                "  rule: images are [n, h, w, c], with one index each"
            )
        return self._chain(images, np.asarray(indices), epoch, 0)

    def _chain(self, images: Images, indices: Images, epoch: int, first: int) -> Images:
        """Apply the transforms from ``first`` on."""
        total = sum(transform.draws for transform in self.transforms)
        start = sum(transform.draws for transform in self.transforms[:first])
        if first == len(self.transforms):
            return images
        random = uniforms(self.seed, epoch, indices, total)
        for transform in self.transforms[first:]:
            images = transform(images, random[:, start : start + transform.draws])
            start += transform.draws
        return images

    def compile(self) -> CompiledAugment:
        """Return these transforms as one pass over memory, which also gathers the images."""
        return CompiledAugment(self)


class CompiledAugment:
    """An ``Augment`` that takes its images from the array of a data set, in one native pass.

    The pass has the crops and flips at the front, then cutouts, then ``Normalise``. Transforms
    behind them follow one by one, and so do all of them for images that are neither bytes nor
    float32. The bits are those of the ``Augment``.

    >>> images = np.zeros((10, 32, 32, 3), np.uint8)
    >>> augment = ndl.data.Augment(ndl.data.RandomCrops(4), ndl.data.RandomFlips(), seed=0)
    >>> augment.compile()(images, [7, 3], epoch=3).shape
    (2, 32, 32, 3)
    """

    def __init__(self, augment: Augment) -> None:
        self.augment = augment
        rows: list[tuple[float, float]] = []
        scaled: Normalise | None = None
        for transform in augment.transforms:
            row = transform.row()
            moves = row is not None and row[0] != native.STEPS["cutout"]
            if isinstance(transform, Normalise):
                scaled = transform
            elif row is not None and not (moves and rows and rows[-1][0] == native.STEPS["cutout"]):
                rows.append(row)
                continue
            break
        self.rows = np.array(rows, np.float64).reshape(-1, 2)
        self.scaled = scaled
        self.taken = len(rows) + (scaled is not None)

    def __call__(
        self, images: Images, indices: Images, epoch: int = 0, out: Images | None = None
    ) -> Images:
        """Return ``augment(images[indices], indices, epoch)``.

        Args:
            images: [n, h, w, c], those of the whole data set.
            indices: integers [k].
            epoch: number of the epoch.
            out: array for the result, which is used if it fits; a new one for None.

        Raises:
            IndexRangeError: if an index is out of range.
            ArgumentError: if an index is not an integer.
        """
        check_index(indices, len(images))
        index = np.ascontiguousarray(indices, np.int64).reshape(-1)
        plain = index.min(initial=0) >= 0  # an item's numbers come from its index as it was given
        if not (self.taken and plain and native.is_native(images)):
            return self.augment(np.asarray(images)[index], index, epoch)
        factors = self.scaled.factors(images.shape[-1]) if self.scaled else None
        kind = np.dtype(np.float32) if self.scaled else images.dtype
        shape = (len(index), *images.shape[1:])
        fits = out is not None and out.shape == shape and out.dtype == kind
        if out is None or not fits or not out.flags.c_contiguous:
            out = np.empty(shape, kind)
        native.augmented(out, images, index, self.rows, factors, self.augment.seed, epoch)
        return self.augment._chain(out, index, epoch, self.taken)


def uniforms(seed: int, epoch: int, indices: Images, count: int) -> Images:
    """Return ``count`` numbers in [0, 1) for each index, float64 [n, count]: multiples of 2**-32.

    Philox blocks of four words: the key is the seed; the counter consists of the epoch, the index
    and the number of the block.
    """
    index = np.asarray(indices).astype(np.uint64)
    high = (epoch & 0xFFFFFFFF) << 32
    blocks = [philox(seed & (2**64 - 1), index, high | i) for i in range(-(-count // 4))]
    words = np.concatenate(blocks, 1) if blocks else np.zeros((len(index), 0))
    return words[:, :count] * 2.0**-32


class RandomCrops(BatchTransform):
    """Pad images, then crop them to their size at a random position.

    Args:
        padding: pixels on each side.
        mode: "zeros" pads with zeros, "reflect" with the mirror image.

    >>> augment = ndl.data.Augment(ndl.data.RandomCrops(1))
    >>> augment(np.arange(1, 5, dtype=np.uint8).reshape(1, 2, 2, 1), [0])[0, :, :, 0]
    array([[2, 0],
           [4, 0]], dtype=uint8)
    """

    draws = 2

    def __init__(self, padding: int = 4, mode: str = "zeros") -> None:
        if mode not in ("zeros", "reflect"):
            raise OptionError(f"RandomCrops: expected mode 'zeros' or 'reflect', got {mode!r}")
        self.padding, self.mode = pixels("RandomCrops: padding", padding, 0), mode

    def __call__(self, images: Images, random: Images) -> Images:
        places = np.zeros((len(images), 3), np.int32)
        places[:, :2] = (random * (2 * self.padding + 1)).astype(np.int32) - self.padding
        return native.moved(images, places, self.mode == "reflect")

    def row(self) -> tuple[float, float]:
        return native.STEPS[self.mode], self.padding


class RandomFlips(BatchTransform):
    """Mirror images left to right with probability p.

    >>> augment = ndl.data.Augment(ndl.data.RandomFlips(p=1.0))
    >>> augment(np.arange(3.0, dtype=np.float32).reshape(1, 1, 3, 1), [0]).ravel()
    array([2., 1., 0.], dtype=float32)
    """

    draws = 1

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, Real) or not 0 <= p <= 1:
            raise OptionError(f"RandomFlips: expected p in [0, 1], got {p!r:.60}")
        self.p: float = p

    def __call__(self, images: Images, random: Images) -> Images:
        places = np.zeros((len(images), 3), np.int32)
        places[:, 2] = random[:, 0] < self.p
        return native.moved(images, places, False)

    def row(self) -> tuple[float, float]:
        return native.STEPS["flip"], float(self.p)


class Cutout(BatchTransform):
    """Set a square of each image to zero; its centre is anywhere in the image.

    DeVries, Taylor, "Improved regularization of convolutional neural networks with cutout", 2017,
    arXiv:1708.04552.

    >>> augment = ndl.data.Augment(ndl.data.Cutout(2))
    >>> augment(np.ones((1, 4, 4, 1), np.float32), [0])[0, :, :, 0]
    array([[1., 1., 0., 0.],
           [1., 1., 0., 0.],
           [1., 1., 1., 1.],
           [1., 1., 1., 1.]], dtype=float32)
    """

    draws = 2

    def __init__(self, size: int = 8) -> None:
        self.size = pixels("Cutout: size", size, 1)

    def __call__(self, images: Images, random: Images) -> Images:
        start = (random * images.shape[1:3]).astype(np.int32) - self.size // 2
        return native.erased(images, np.concatenate([start, start + self.size], 1))

    def row(self) -> tuple[float, float]:
        return native.STEPS["cutout"], self.size


class Normalise(BatchTransform):
    """Return (images - mean) / std per channel, float32.

    Bytes are not scaled: pass the mean and deviation of the bytes.

    >>> augment = ndl.data.Augment(ndl.data.Normalise(mean=[90.0], std=[50.0]))
    >>> augment(np.array([50, 100, 200], np.uint8).reshape(1, 1, 3, 1), [0]).ravel()
    array([-0.8,  0.2,  2.2], dtype=float32)
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        try:
            centre, spread = (np.atleast_1d(np.asarray(z, np.float32)) for z in (mean, std))
        except (TypeError, ValueError):
            problem = (
                f"Normalise: mean={mean!r:.60}, std={std!r:.60}\n  rule: one number per channel"
            )
            raise ArgumentError(problem) from None
        if not (np.isfinite(centre).all() and np.isfinite(spread).all() and (spread > 0).all()):
            raise OptionError(f"Normalise: mean={mean}, std={std}\n  rule: finite, std > 0")
        if centre.ndim > 1 or spread.ndim > 1 or len({len(centre), len(spread)} - {1}) > 1:
            raise OptionError(f"Normalise: {len(centre)} means, but {len(spread)} deviations")
        self.scale, self.shift = np.broadcast_arrays(1 / spread, -centre * (1 / spread))

    def factors(self, channels: int) -> tuple[Images, Images]:
        """Return scale and shift, float32 [channels].

        Raises:
            ShapeError: for another number of channels than that of the means and deviations.
        """
        if len(self.scale) not in (1, channels):
            raise ShapeError(
                f"Normalise: {len(self.scale)} means and deviations for {channels} channels"
            )
        return np.resize(self.scale, channels), np.resize(self.shift, channels)

    def __call__(self, images: Images, random: Images) -> Images:
        return native.normalised(images, *self.factors(images.shape[-1]))


class Resize(BatchTransform):
    """Scale images to a size, bilinearly, as ``ops.upsample`` does; bytes are rounded.

    >>> augment = ndl.data.Augment(ndl.data.Resize(16))
    >>> augment(np.zeros((2, 32, 32, 3), np.uint8), [0, 1]).shape
    (2, 16, 16, 3)
    """

    def __init__(self, size: int | tuple[int, int]) -> None:
        given = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        if len(given) != 2:
            raise OptionError(
                f"Resize: expected (height, width) or one integer for both, got {size!r:.60}"
            )
        height, width = (pixels("Resize: size", n, 1) for n in given)
        self.size = (height, width)

    def __call__(self, images: Images, random: Images) -> Images:
        if 0 in images.shape[1:3]:
            raise ShapeError(f"Resize: images of shape {images.shape} have no pixels")
        return native.resized(images, self.size)


class ColourJitter(BatchTransform):
    """Change brightness, contrast and saturation by factors in [1 - strength, 1 + strength].

    The order is: multiply by the factor; scale the distance to the image's mean grey; scale the
    distance to each pixel's grey. Values stay in [0, 255] for bytes and in [0, 1] for floats.

    >>> augment = ndl.data.Augment(ndl.data.ColourJitter(brightness=0.5))
    >>> augment(np.zeros((2, 8, 8, 3), np.uint8), [0, 1]).shape
    (2, 8, 8, 3)
    """

    draws = 3

    def __init__(
        self, brightness: float = 0.2, contrast: float = 0.2, saturation: float = 0.2
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        self.strengths = tuple(real(f"ColourJitter: {name}", x) for name, x in given.items())
        if not all(0 <= s <= 1 for s in self.strengths):
            raise OptionError(f"ColourJitter: expected strengths in [0, 1], got {self.strengths}")

    def __call__(self, images: Images, random: Images) -> Images:
        if images.shape[-1] != 3:
            raise ShapeError(f"ColourJitter: expected 3 colours, got shape {images.shape}")
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DtypeError(f"ColourJitter: expected uint8 or floating images, got {images.dtype}")
        top = 255.0 if images.dtype == np.uint8 else 1.0
        factors = (1 + (2 * random - 1) * self.strengths).astype(np.float32)
        return native.jittered(images, factors, top)

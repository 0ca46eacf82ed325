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
from needle.data.transforms import pixels
from needle.errors import ArgumentError, DtypeError, OptionError, ShapeError
from needle.ops.attributes import real

__all__ = [
    "Augment", "BatchTransform", "ColourJitter", "Cutout", "Normalise", "RandomCrops",
    "RandomFlips", "Resize",
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
        raise NotImplementedError


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
        total = sum(transform.draws for transform in self.transforms)
        random = uniforms(self.seed, epoch, np.asarray(indices), total)
        start = 0
        for transform in self.transforms:
            images = transform(images, random[:, start : start + transform.draws])
            start += transform.draws
        return images


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

    def __call__(self, images: Images, random: Images) -> Images:
        if len(self.scale) not in (1, images.shape[-1]):
            raise ShapeError(
                f"Normalise: {len(self.scale)} means and deviations for {images.shape[-1]} channels"
            )
        scale, shift = (np.resize(z, images.shape[-1]) for z in (self.scale, self.shift))
        return native.normalised(images, scale, shift)


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

"""Random changes of whole batches of images [n, h, w, c], each item by random numbers of its own.

The numbers of an item depend on a seed, the pass and the item's index alone: so they are the same
for any batch size, order, or number of processes that prepare the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle.errors import OptionError, ShapeError

__all__ = [
    "Augment", "BatchTransform", "ColourJitter", "Cutout", "Normalise", "RandomCrops",
    "RandomFlips", "Resize",
]  # fmt: skip

Images = np.ndarray[Any, Any]


class BatchTransform:
    """A change of a batch.

    Attributes:
        draws: how many random numbers each item needs.
    """

    draws: int = 0

    def __call__(self, images: Images, random: Images) -> Images:
        """Return the changed batch [n, h, w, c]; ``random`` is [n, draws], uniform in [0, 1)."""
        raise NotImplementedError


class Augment:
    """Apply transforms one after the other.

    >>> augment = Augment(RandomCrops(4), RandomFlips(), Normalise(mean, std), seed=0)
    >>> images = augment(dataset.images[indices], indices, epoch)
    """

    def __init__(self, *transforms: BatchTransform, seed: int = 0) -> None:
        self.transforms, self.seed = transforms, seed

    def __call__(self, images: Images, indices: Images, epoch: int = 0) -> Images:
        """Return the changed batch.

        Args:
            images: [n, h, w, c].
            indices: of the items in the data set, [n].
            epoch: number of the pass.

        Raises:
            ShapeError: if images are no batch, or there are more or fewer indices.
        """
        if images.ndim != 4 or len(indices) != len(images):
            raise ShapeError(
                f"Augment: images {images.shape} and {len(indices)} indices; "
                "images are [n, h, w, c], and each has an index"
            )
        total = sum(transform.draws for transform in self.transforms)
        random = uniforms(self.seed, epoch, np.asarray(indices), total)
        start = 0
        for transform in self.transforms:
            images = transform(images, random[:, start : start + transform.draws])
            start += transform.draws
        return images


def uniforms(seed: int, epoch: int, indices: Images, count: int) -> Images:
    """Return ``count`` numbers in [0, 1) for each index: a hash of seed, epoch, index and place.

    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014), once for each part of the key.
    """
    with np.errstate(over="ignore"):
        state = np.zeros((len(indices), count), np.uint64)
        for part in (seed, epoch, indices.reshape(-1, 1), np.arange(count)):
            state = _mixed(state + np.asarray(part).astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(z: Images) -> Images:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RandomCrops(BatchTransform):
    """Pad images, and cut them to their size at a random place.

    Args:
        padding: pixels on each side.
        mode: what is outside: "zeros", or "reflect" for the image mirrored at its edges.
    """

    draws = 2

    def __init__(self, padding: int = 4, mode: str = "zeros") -> None:
        if padding < 0 or mode not in ("zeros", "reflect"):
            raise OptionError(f"RandomCrops: padding={padding}, mode={mode!r}: zeros or reflect")
        self.padding, self.mode = padding, {"zeros": "constant", "reflect": "reflect"}[mode]

    def __call__(self, images: Images, random: Images) -> Images:
        n, height, width, _ = images.shape
        p = self.padding
        wide = np.pad(images, ((0, 0), (p, p), (p, p), (0, 0)), self.mode)  # type: ignore[call-overload]
        top, left = (random * (2 * p + 1)).astype(np.int64).T
        rows = (top[:, None] + np.arange(height))[:, :, None]
        columns = (left[:, None] + np.arange(width))[:, None, :]
        return wide[np.arange(n)[:, None, None], rows, columns]


class RandomFlips(BatchTransform):
    """Mirror images left to right with probability p."""

    draws = 1

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"RandomFlips: p={p}: must lie in [0, 1]")
        self.p = p

    def __call__(self, images: Images, random: Images) -> Images:
        flipped = random[:, 0] < self.p
        out = images.copy()
        out[flipped] = images[flipped, :, ::-1]
        return out


class Cutout(BatchTransform):
    """Set a square of each image to zero; its middle is anywhere in the image.

    DeVries, Taylor, "Improved regularization of convolutional neural networks with cutout", 2017,
    arXiv:1708.04552.
    """

    draws = 2

    def __init__(self, size: int = 8) -> None:
        if size < 1:
            raise OptionError(f"Cutout: size={size}: must be 1 or more")
        self.size = size

    def __call__(self, images: Images, random: Images) -> Images:
        inside = []
        for axis, size in enumerate(images.shape[1:3]):
            start = (random[:, axis] * size).astype(np.int64)[:, None] - self.size // 2
            places = np.arange(size)
            inside.append((places >= start) & (places < start + self.size))
        hole = inside[0][:, :, None] & inside[1][:, None, :]
        return np.where(hole[..., None], np.zeros((), images.dtype), images)


class Normalise(BatchTransform):
    """Return (images - mean) / std per channel, float32.

    Bytes are taken as they are: give the mean and deviation of bytes.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if any(s <= 0 for s in std):
            raise OptionError(f"Normalise: std={std}: must be above 0")
        self.scale = 1 / np.asarray(std, np.float32)
        self.shift = -np.asarray(mean, np.float32) * self.scale

    def __call__(self, images: Images, random: Images) -> Images:
        return images.astype(np.float32) * self.scale + self.shift


class Resize(BatchTransform):
    """Scale images to a size, bilinearly, as ``ops.upsample`` does; bytes are rounded."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        if min(self.size) < 1:
            raise OptionError(f"Resize: size={size}: must be 1 or more")

    def __call__(self, images: Images, random: Images) -> Images:
        out = images.astype(np.float32)
        for axis, m in enumerate(self.size, 1):
            n = images.shape[axis]
            source = np.maximum((np.arange(m) + 0.5) * n / m - 0.5, 0)
            low = np.minimum(source.astype(np.int64), n - 1)
            share = (source - low).astype(np.float32).reshape(-1, *[1] * (3 - axis))
            high = np.minimum(low + 1, n - 1)
            out = np.take(out, low, axis) * (1 - share) + np.take(out, high, axis) * share
        return _as(out, images.dtype)


class ColourJitter(BatchTransform):
    """Change brightness, contrast and saturation by factors in [1 - strength, 1 + strength].

    In this order: times the factor; away from the mean grey of the image; away from the grey of
    each pixel. Values stay in the range of the dtype: [0, 255] for bytes, [0, 1] for floats.
    """

    draws = 3
    grey = np.array([0.299, 0.587, 0.114], np.float32)
    """Share of each colour in the brightness of a pixel (ITU-R BT.601)."""

    def __init__(
        self, brightness: float = 0.2, contrast: float = 0.2, saturation: float = 0.2
    ) -> None:
        self.strengths = (brightness, contrast, saturation)
        if not all(0 <= s <= 1 for s in self.strengths):
            raise OptionError(f"ColourJitter: {self.strengths}: strengths must lie in [0, 1]")

    def __call__(self, images: Images, random: Images) -> Images:
        if images.shape[-1] != 3:
            raise ShapeError(f"ColourJitter: images {images.shape}; 3 colours are needed")
        top = 255.0 if images.dtype == np.uint8 else 1.0
        factors = (1 + (2 * random - 1) * self.strengths).astype(np.float32)
        bright, contrast, saturation = factors.T[:, :, None, None, None]
        out = np.clip(images.astype(np.float32) * bright, 0, top)
        mean = (out @ self.grey).mean((1, 2)).reshape(-1, 1, 1, 1)
        out = np.clip(mean + (out - mean) * contrast, 0, top)
        pixel = (out @ self.grey)[..., None]
        return _as(np.clip(pixel + (out - pixel) * saturation, 0, top), images.dtype)


def _as(values: Images, kind: Any) -> Images:
    if np.dtype(kind).kind in "iu":
        return np.rint(values).astype(kind)
    return values.astype(kind, copy=False)

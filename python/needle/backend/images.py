"""Transforms of batches of images [n, h, w, c] on the host, from and to NumPy arrays.

Each is defined in NumPy, and has a native kernel (src/cpu/image/images.cc) for bytes and float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import core

Images = np.ndarray[Any, Any]
GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Share of each colour in the brightness of a pixel (ITU-R BT.601)."""

STEPS = core.numbers("augment")
"""Steps of ``augmented``: crops by how they pad, flips, cutouts (src/common/kernels.h)."""


def moved(images: Images, places: Images, reflect: bool) -> Images:
    """Return each image moved: out[y, x] = image[top + y, left + x].

    Args:
        images: [n, h, w, c].
        places: int32 [n, 3]: top, left, and whether to mirror the result in x.
        reflect: whether to pad with the mirror image instead of zeros.
    """
    if _native(images):
        return _filled(
            "move_images", _like(images), images, np.ascontiguousarray(places, np.int32), reflect
        )
    n, height, width, _ = images.shape
    top, left, turned = (column[:, None] for column in places.T)
    rows, columns = top + np.arange(height), left + np.arange(width)
    columns = np.where(turned != 0, columns[:, ::-1], columns)
    index = np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    if reflect:
        return images[index[0], _mirrored(index[1], height), _mirrored(index[2], width)]
    inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    found = images[index[0], index[1].clip(0, height - 1), index[2].clip(0, width - 1)]
    found[~(inside[0][:, :, None] & inside[1][:, None, :])] = 0
    return found


def _mirrored(places: Images, size: int) -> Images:
    """Return the positions that mirrors at the first and the last element show."""
    period = max(2 * (size - 1), 1)
    places = places % period
    return np.minimum(places, period - places) if size > 1 else np.zeros_like(places)


def erased(images: Images, holes: Images) -> Images:
    """Return images with a rectangle of zeros: holes int32 [n, 4], top, left, bottom, right."""
    if _native(images):
        return _filled("erase_images", _like(images), images, np.ascontiguousarray(holes, np.int32))
    _, height, width, _ = images.shape
    top, left, bottom, right = (column[:, None] for column in holes.T)
    rows, columns = np.arange(height), np.arange(width)
    inside = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    found = images.copy()
    found[inside[0][:, :, None] & inside[1][:, None, :]] = 0
    return found


def normalised(images: Images, scale: Images, shift: Images) -> Images:
    """Return images * scale + shift, float32; scale and shift are float32 [c]."""
    if _native(images):
        out = np.empty(images.shape, np.float32)
        return _filled("normalise_images", out, images, scale, shift)
    return images.astype(np.float32) * scale + shift


def resized(images: Images, size: tuple[int, int]) -> Images:
    """Return images scaled to (h, w), bilinearly, as ``ops.upsample`` does; bytes are rounded."""
    if _native(images):
        out = np.empty((len(images), *size, images.shape[-1]), images.dtype)
        return _filled("resize_images", out, images)
    found = images.astype(np.float32)
    for axis, m in enumerate(size, 1):
        n = images.shape[axis]
        source = np.maximum((np.arange(m) + 0.5) * n / m - 0.5, 0)
        low = np.minimum(source.astype(np.int64), n - 1)
        share = (source - low).astype(np.float32).reshape(-1, *[1] * (3 - axis))
        high = np.minimum(low + 1, n - 1)
        found = np.take(found, low, axis) * (1 - share) + np.take(found, high, axis) * share
    return _as(found, images.dtype)


def jittered(images: Images, factors: Images, top: float) -> Images:
    """Return images times the first factor, with the distance to the image's mean grey times the
    second, and the distance to each pixel's grey times the third. Values stay in [0, top].

    Args:
        images: [n, h, w, 3].
        factors: float32 [n, 3].
        top: the largest value.
    """
    if _native(images):
        return _filled("jitter_images", _like(images), images, np.ascontiguousarray(factors), top)
    bright, contrast, saturation = factors.T[:, :, None, None, None]
    found = np.clip(images.astype(np.float32) * bright, 0, top)
    mean = (found @ GREY).mean((1, 2)).reshape(-1, 1, 1, 1)
    found = np.clip(mean + (found - mean) * contrast, 0, top)
    pixel = (found @ GREY)[..., None]
    return _as(np.clip(pixel + (found - pixel) * saturation, 0, top), images.dtype)


def augmented(
    out: Images, images: Images, indices: Images, rows: Images, factors: Any, seed: int, epoch: int
) -> None:
    """Fill ``out`` with the images at ``indices``, changed in one pass by the native kernel.

    Args:
        out: [k, h, w, c], of the images' dtype; float32 with factors.
        images: [n, h, w, c], for which ``is_native``.
        indices: int64 [k].
        rows: float64 [steps, 2], of STEPS and its padding, probability or size.
        factors: float32 scale [c] and shift [c], or None.
        seed: 64 bits.
        epoch: number of the epoch.
    """
    scale, shift = factors or (np.empty(0, np.float32),) * 2
    assert core.native is not None
    core.native.augment_images(
        out, images, indices, rows, scale, shift, seed & (2**64 - 1), epoch & 0xFFFFFFFF
    )


def is_native(images: Any) -> bool:
    """Say whether the native kernel takes these images as they are, without a copy."""
    if not isinstance(images, np.ndarray) or images.ndim != 4:
        return False
    return _native(images) and images.flags.c_contiguous


def _native(images: Images) -> bool:
    known = images.dtype in (np.uint8, np.float32) and images.dtype.isnative
    return core.native is not None and known and images[0:1].size > 0


def _like(images: Images) -> Images:
    return np.empty(images.shape, images.dtype)  # in C order, which empty_like may not be


def _filled(kernel: str, out: Images, images: Images, *rest: Any) -> Images:
    getattr(core.native, kernel)(out, np.ascontiguousarray(images), *rest)
    return out


def _as(values: Images, kind: Any) -> Images:
    if np.dtype(kind).kind in "iu":
        return np.rint(values).astype(kind)
    return values.astype(kind, copy=False)

"""Random transforms of an image (height, width, channels), with the course's random draws."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from needle.backend.axes import integer
from needle.errors import ArgumentError, OptionError, ShapeError, undefined
from needle.ops import random

__all__ = ["RandomCrop", "RandomFlipHorizontal", "Transform"]

Image = np.ndarray[Any, Any]
MOST_PIXELS = 2**24
"""Limit of an axis: positions are int32, and float32 holds all integers up to here."""


class Transform:
    """A function of one item, for the ``transforms`` of a data set.

    >>> class Invert(ndl.data.Transform):
    ...     def __call__(self, image):
    ...         return 1.0 - image
    >>> print(Invert()(np.array([0.0, 0.25])))
    [1.   0.75]
    """

    def __call__(self, x: Any) -> Any:
        """Return the changed item."""
        raise undefined(self, "__call__")


class RandomFlipHorizontal(Transform):
    """Mirror an image left to right with probability p: one uniform draw per call.

    >>> image = np.arange(3.0).reshape(1, 3, 1)
    >>> ndl.data.RandomFlipHorizontal(p=1.0)(image).ravel()
    array([2., 1., 0.])
    """

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, Real) or not 0 <= p <= 1:
            raise OptionError(f"RandomFlipHorizontal: expected p in [0, 1], got {p!r:.60}")
        self.p: float = p

    def __call__(self, img: Image) -> Image:
        """Return the image, mirrored or not."""
        _check_image("RandomFlipHorizontal", img)
        return img[:, ::-1] if random.host_uniform() < self.p else img


class RandomCrop(Transform):
    """Shift an image by up to ``padding`` pixels along both axes and fill with zeros.

    Draws two integers in [-padding, padding] per call, the shift along axis 0 first.

    >>> ndl.data.RandomCrop(padding=2)(np.ones((8, 8, 3))).shape
    (8, 8, 3)
    """

    def __init__(self, padding: int = 3) -> None:
        self.padding = pixels("RandomCrop: padding", padding, 0)

    def __call__(self, img: Image) -> Image:
        """Return the shifted image, of the same size."""
        _check_image("RandomCrop", img)
        shift_x, shift_y = random.host_integers(-self.padding, self.padding + 1, 2)
        pad = self.padding
        padded = np.pad(img, ((pad, pad), (pad, pad)) + ((0, 0),) * (img.ndim - 2))
        height, width = img.shape[:2]
        top, left = pad + shift_x, pad + shift_y
        return padded[top : top + height, left : left + width]


def pixels(what: str, value: object, least: int) -> int:
    """Return a number of pixels.

    Raises:
        OptionError: if it is not an integer, or out of range.
    """
    try:
        count = integer(what, value)
    except ArgumentError:
        count = -1
    if not least <= count < MOST_PIXELS:
        raise OptionError(
            f"{what}={value!r:.60}: must be an integer >= {least} and < {MOST_PIXELS}"
        )
    return count


def _check_image(name: str, img: Image) -> None:
    if np.ndim(img) < 2:
        raise ShapeError(
            f"{name}: expected an image (height, width, channels), got {np.shape(img)}"
        )

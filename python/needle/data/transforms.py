"""Random changes of an image (height, width, channels). They draw as the course's do."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle.errors import OptionError, ShapeError
from needle.ops import random

__all__ = ["RandomCrop", "RandomFlipHorizontal", "Transform"]

Image = np.ndarray[Any, Any]


class Transform:
    """A change of one item, to be named in a data set's ``transforms``."""

    def __call__(self, x: Any) -> Any:
        """Return the changed item."""
        raise NotImplementedError


class RandomFlipHorizontal(Transform):
    """Mirror an image left to right with probability p: one uniform draw per call."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"RandomFlipHorizontal: p={p}: must lie in [0, 1]")
        self.p = p

    def __call__(self, img: Image) -> Image:
        """Return the image, mirrored or not."""
        _check_image("RandomFlipHorizontal", img)
        return img[:, ::-1] if random.host_uniform() < self.p else img


class RandomCrop(Transform):
    """Shift an image by up to ``padding`` pixels along both axes and fill with zeros.

    Draws two whole numbers in [-padding, padding] per call, the shift along axis 0 first.
    """

    def __init__(self, padding: int = 3) -> None:
        if padding < 0:
            raise OptionError(f"RandomCrop: padding={padding}: must not be negative")
        self.padding = padding

    def __call__(self, img: Image) -> Image:
        """Return the shifted image, of the same size."""
        _check_image("RandomCrop", img)
        shift_x, shift_y = random.host_integers(-self.padding, self.padding + 1, 2)
        pad = self.padding
        padded = np.pad(img, ((pad, pad), (pad, pad)) + ((0, 0),) * (img.ndim - 2))
        height, width = img.shape[:2]
        top, left = pad + shift_x, pad + shift_y
        return padded[top : top + height, left : left + width]


def _check_image(name: str, img: Image) -> None:
    if np.ndim(img) < 2:
        raise ShapeError(f"{name}: needs an image (height, width, channels), got {np.shape(img)}")

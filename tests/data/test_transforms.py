"""Random changes of one image: flips and crops."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import data
from needle.errors import (
    OptionError,
    ShapeError,
)


def test_flip_draws_one_number_per_call():
    image = np.random.default_rng(0).random((3, 4, 1))
    np.random.seed(1)
    draws = np.random.rand(20)
    np.random.seed(1)
    flip = data.RandomFlipHorizontal(0.4)
    for draw in draws:
        expected = image[:, ::-1] if draw < 0.4 else image
        np.testing.assert_array_equal(flip(image), expected)


def test_crop_draws_two_shifts_per_call():
    image = np.random.default_rng(0).random((5, 6, 2))
    np.random.seed(2)
    shifts = [np.random.randint(-2, 3, size=2) for _ in range(20)]
    np.random.seed(2)
    crop = data.RandomCrop(2)
    for dx, dy in shifts:
        expected = np.zeros_like(image)
        for i in range(5):
            for j in range(6):
                if 0 <= i + dx < 5 and 0 <= j + dy < 6:
                    expected[i, j] = image[i + dx, j + dy]
        np.testing.assert_array_equal(crop(image), expected)


def test_transforms_follow_manual_seed():
    image = np.arange(49.0).reshape(7, 7, 1)
    results = []
    for _ in range(2):
        ndl.manual_seed(9)
        crop, flip = data.RandomCrop(3), data.RandomFlipHorizontal()
        results.append([flip(crop(image)).tolist() for _ in range(30)])
    ndl.manual_seed(None)
    assert results[0] == results[1]
    assert len({str(r) for r in results[0]}) > 10


def test_wrong_transforms():
    with pytest.raises(OptionError, match=r"got 1.5"):
        data.RandomFlipHorizontal(1.5)
    with pytest.raises(OptionError, match="padding=-1"):
        data.RandomCrop(-1)
    with pytest.raises(ShapeError, match=r"got \(4,\)"):
        data.RandomCrop()(np.ones(4))

"""One native pass over a batch of images gives the bits of the transforms one after the other."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from looped import looped

from needle import core, data
from needle.errors import ArgumentError, IndexRangeError

RNG = np.random.default_rng(0)
SCALE = data.Normalise([90.3, 0.1, 30.0], [50.7, 3.3, 1.7])


def crop(padding=3, mode="zeros"):
    return data.RandomCrops(padding, mode)


CHAINS = [
    (crop(), data.RandomFlips(), SCALE),
    (crop(), data.RandomFlips()),
    (data.RandomFlips(0.7), crop(2, "reflect"), data.Cutout(3), SCALE),
    (crop(9), crop(1, "reflect"), data.RandomFlips(1.0), data.RandomFlips(), data.Cutout(1)),
    (data.Cutout(2), data.Cutout(5), data.Normalise(3, 7)),
    (data.Cutout(2), crop(), SCALE),  # the crop follows by itself
    (crop(), data.ColourJitter(), data.RandomFlips(), SCALE),
    (SCALE, data.RandomFlips()),
    (data.Resize(4), crop()),
    (data.RandomFlips(0.0),),
    (),
]
IMAGES = [
    (RNG.random((n, h, w, 3)) * 256).astype(kind)
    for n, h, w in ((60, 32, 32), (7, 9, 1), (5, 1, 8), (4, 40, 3))
    for kind in ("uint8", "float32", "float64")
]


@looped("chain, images", list(itertools.product(CHAINS, IMAGES)))
def test_one_pass_has_the_bits_of_the_chain(chain, images, isa):
    augment = data.Augment(*chain, seed=2**63 + 5)
    indices = RNG.permutation(np.repeat(np.arange(len(images)), 3))[: 2 * len(images)]
    exact = augment(images[indices], indices, 7)
    found = augment.compile()(images, indices, 7)
    assert found.dtype == exact.dtype
    np.testing.assert_array_equal(found, exact)


@looped("channels", [1, 2, 4, 5])
def test_any_number_of_channels(channels):
    images = RNG.integers(0, 256, (9, 6, 5, channels)).astype(np.uint8)
    augment = data.Augment(crop(), data.RandomFlips(), data.Normalise([3], [5]))
    np.testing.assert_array_equal(
        augment.compile()(images, np.arange(9)), augment(images, np.arange(9))
    )


def test_a_pass_fills_an_array_that_fits():
    images, index = IMAGES[0], np.array([3, 1])
    augment = data.Augment(crop(), SCALE).compile()
    out = np.empty((2, 32, 32, 3), np.float32)
    if core.native is not None:
        assert augment(images, index, 1, out) is out
    for wrong in (out[:1], out[:, ::-1], out.astype(np.float64)):
        np.testing.assert_array_equal(augment(images, index, 1, wrong), augment(images, index, 1))


def test_wrong_indices_are_refused():
    augment = data.Augment(crop()).compile()
    with pytest.raises(IndexRangeError, match="index 60 is out of range"):
        augment(IMAGES[0], [1, 60])
    with pytest.raises(ArgumentError, match="integer index"):
        augment(IMAGES[0], [1.5])
    np.testing.assert_array_equal(
        augment(IMAGES[0], [-1]), augment.augment(IMAGES[0][[-1]], np.array([-1]))
    )
    assert augment(IMAGES[0], []).shape == (0, 32, 32, 3)


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_the_kernel_refuses_what_does_not_fit():
    images, rows = IMAGES[0], np.zeros((1, 2))
    index, none = np.array([3, 1]), np.empty(0, np.float32)
    out, ones = np.empty((2, 32, 32, 3), np.uint8), np.ones(3, np.float32)
    core.native.augment_images(out, images, index, rows, none, none, 0, 0)
    for wrong in (
        (out[:1], index, none, none), (out, np.array([0, 60]), none, none),
        (out, np.array([-1, 0]), none, none), (out, index, ones, ones),
        (out, index, none, ones), (out, index.astype(np.int32), none, none),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            core.native.augment_images(wrong[0], images, wrong[1], rows, *wrong[2:], 0, 0)


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_a_thread_may_compute_alone_with_the_same_bits():
    augment = data.Augment(crop(), SCALE).compile()
    index = np.arange(60)
    found = []

    def work():
        core.native.set_alone(True)
        found.append(augment(IMAGES[0], index))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], augment(IMAGES[0], index))

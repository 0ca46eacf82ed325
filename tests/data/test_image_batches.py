"""Random changes of batches of images, in NumPy and by native kernels."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import core, data, ops
from needle.backend import images as native_images
from needle.errors import DtypeError, OptionError, ShapeError

RNG = np.random.default_rng(0)

# ---- batches -----------------------------------------------------------------------


IMAGES = RNG.integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)


def apply(transform, images=IMAGES, seed=0, epoch=0, indices=None):
    indices = np.arange(len(images)) if indices is None else indices
    return data.Augment(transform, seed=seed)(images, indices, epoch)


def test_an_items_numbers_depend_on_seed_pass_and_index_alone():
    augment = data.Augment(
        data.RandomCrops(2), data.RandomFlips(), data.Cutout(2), data.ColourJitter(), seed=5
    )
    whole = augment(IMAGES, np.arange(6), 3)
    order = np.array([4, 1, 5])
    np.testing.assert_array_equal(augment(IMAGES[order], order, 3), whole[order])
    assert not np.array_equal(augment(IMAGES, np.arange(6), 4), whole)
    other = data.Augment(*augment.transforms, seed=6)
    assert not np.array_equal(other(IMAGES, np.arange(6), 3), whole)


def test_the_numbers_are_uniform_and_independent():
    numbers = data.augment.uniforms(1, 2, np.arange(20_000), 3)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts, _ = np.histogram(numbers, 20)
    assert np.abs(counts - 3000).max() < 5 * np.sqrt(3000)
    correlations = np.corrcoef(numbers.T) - np.eye(3)
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)


@looped("mode, numpys", [("zeros", "constant"), ("reflect", "reflect")])
def test_crops_are_windows_of_the_padded_image(mode, numpys):
    found = apply(data.RandomCrops(2, mode), np.repeat(IMAGES, 30, 0))
    places = set()
    for i, image in enumerate(found):
        wide = np.pad(IMAGES[i // 30], ((2, 2), (2, 2), (0, 0)), numpys)
        fits = [
            (top, left) for top in range(5) for left in range(5)
            if np.array_equal(wide[top : top + 5, left : left + 4], image)
        ]  # fmt: skip
        assert fits
        places.update(fits)
    assert len(places) == 25


def test_flips():
    found = apply(data.RandomFlips(0.5), np.repeat(IMAGES, 100, 0))
    before = np.repeat(IMAGES, 100, 0)
    mirrored = (found == before[:, :, ::-1]).all((1, 2, 3))
    assert (mirrored | (found == before).all((1, 2, 3))).all()
    assert 240 < mirrored.sum() < 360
    np.testing.assert_array_equal(apply(data.RandomFlips(1)), IMAGES[:, :, ::-1])
    np.testing.assert_array_equal(apply(data.RandomFlips(0)), IMAGES)


def test_cutout_removes_a_square():
    images = np.full((200, 8, 9, 3), 7, np.uint8)
    holes = apply(data.Cutout(3), images) == 0
    sizes = holes[..., 0].sum((1, 2))
    assert sizes.max() == 9 and sizes.min() >= 4 and (sizes == 9).any()
    assert (holes.any(2) == holes.any(2)[..., :1]).all() and holes.any(0).all()


def test_normalise_resize_and_jitter():
    found = apply(data.Normalise([1, 2, 3], [4, 5, 6]))
    np.testing.assert_allclose(found, (IMAGES - [1.0, 2, 3]) / [4, 5, 6], rtol=1e-5, atol=1e-5)
    floats = IMAGES.astype(np.float32) / 255
    x = ndl.Tensor(floats.transpose(0, 3, 1, 2))
    exact = ops.upsample(x, (7, 9), mode="bilinear").numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(apply(data.Resize((7, 9)), floats), exact, atol=1e-6)
    assert apply(data.Resize(3)).dtype == np.uint8
    np.testing.assert_array_equal(apply(data.ColourJitter(0, 0, 0)), IMAGES)
    random = np.full((6, 3), 0.75)  # every factor 1.1
    found = data.ColourJitter()(floats, random)
    bright = np.clip(floats * 1.1, 0, 1)
    grey = bright @ [0.299, 0.587, 0.114]
    mean = grey.mean((1, 2))[:, None, None, None]
    sharp = np.clip(mean + (bright - mean) * 1.1, 0, 1)
    pixel = (sharp @ [0.299, 0.587, 0.114])[..., None]
    np.testing.assert_allclose(found, np.clip(pixel + (sharp - pixel) * 1.1, 0, 1), atol=1e-6)


def test_philox_counters_name_the_numbers():
    """Word w of block b of item i in a pass: key = seed, counter = (i, b, pass)."""
    found = data.augment.uniforms(7, 3, np.array([5, 2**40]), 6)
    for row, index in zip(found, (5, 2**40), strict=True):
        for place, value in enumerate(row):
            words = reference_philox(
                7, (index & 0xFFFFFFFF, index >> 32, place // 4, 3)
            )  # fmt: skip
            assert value == words[place % 4] / 2**32


def reference_philox(key, counter):
    """Philox4x32-10 in Python's integers."""
    c, k, mask = list(counter), [key & 0xFFFFFFFF, key >> 32], 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & mask, p >> 32 ^ c[3] ^ k[1], p & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def test_the_reference_is_philox():
    """Vectors that come with the generator's authors' library (Random123, kat_vectors)."""
    assert reference_philox(0, (0,) * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert reference_philox(2**64 - 1, (ones,) * 4) == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip


# ---- native kernels -----------------------------------------------------------------


BATCHES = [
    (RNG.random((n, h, w, c)) * (256 if kind == "uint8" else 1)).astype(kind)
    for n, h, w, c in ((40, 32, 32, 3), (3, 1, 7, 3), (2, 5, 1, 3), (1, 1, 1, 3), (5, 4, 3, 3))
    for kind in ("uint8", "float32")
]


def changes(images):
    """Each change of a batch, as it is asked for: name and arguments."""
    n, height, width, c = images.shape
    random = np.random.default_rng(1)
    places = random.integers(-9, 10, (n, 3)).astype(np.int32)
    places[:, 2] %= 2
    top, left = (random.integers(-5, size + 5, n) for size in (height, width))
    holes = np.stack([top, left, top + 3, left + 4], 1).astype(np.int32)
    numbers = random.normal(size=(2, c)).astype(np.float32)
    factors = random.uniform(0, 2, (n, 3)).astype(np.float32)
    yield native_images.moved, (places, False)
    yield native_images.moved, (places, True)
    yield native_images.erased, (holes,)
    yield native_images.normalised, tuple(numbers)
    for size in ((height, width), (7, 9), (1, 1), (2 * height, 3 * width)):
        yield native_images.resized, (size,)
    yield native_images.jittered, (factors, 255.0 if images.dtype == np.uint8 else 1.0)


@pytest.mark.parametrize("images", BATCHES, ids=lambda x: f"{x.dtype}{x.shape}")
def test_native_changes_agree_with_numpy(images, isa, monkeypatch):
    for change, arguments in changes(images):
        monkeypatch.setattr(core, "native", None)
        exact = change(images, *arguments)
        monkeypatch.undo()
        try:
            # views without an order of their own, and several threads
            strided = np.asfortranarray(images)
            found = [change(images, *arguments), change(strided, *arguments)]
            core.native.set_threads(3)
            found.append(change(images, *arguments))
        finally:
            core.native.set_threads(0)
        for values in found:
            assert values.dtype == exact.dtype and values.shape == exact.shape
            rounded = exact.dtype == np.uint8 and change in (
                native_images.resized, native_images.jittered,
            )  # fmt: skip
            distance = np.abs(values.astype(np.float64) - exact)
            assert distance.max() <= (1 if rounded else 1e-5 * np.abs(exact).max())
            if rounded:
                assert (distance > 0).mean() < 0.01  # only where a sum is nearly a half
            np.testing.assert_array_equal(values, found[0])


def test_other_dtypes_and_empty_batches_are_done_by_numpy():
    for kind in ("float64", "int16"):
        images = IMAGES.astype(kind)
        np.testing.assert_array_equal(apply(data.RandomFlips(1), images), images[:, :, ::-1])
    doubled = np.repeat(np.repeat(IMAGES / 255, 2, 1), 2, 2)
    assert apply(data.Resize((10, 8)), doubled).dtype == np.float64
    none = apply(data.RandomCrops(2), IMAGES[:0])
    assert none.shape == (0, 5, 4, 3)


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_kernels_refuse_what_does_not_fit():
    native, images = core.native, np.zeros((2, 4, 4, 3), np.uint8)
    places, out = np.zeros((2, 3), np.int32), np.empty_like(images)
    native.move_images(out, images, places, False)
    for wrong in (
        (out[:1], images, places), (out, images, places[:1]), (out, images, places[:, :2]),
        (out, images, places.astype(np.int64)), (out.astype(np.float32), images, places),
        (out, images.astype(np.float64), places), (out[:, ::2], images[:, ::2], places),
        (out[..., :2], images[..., :2], places), (out[0], images[0], places),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            native.move_images(*wrong, False)
    with pytest.raises(ValueError, match="3 colours"):
        four = np.zeros((2, 4, 4, 4), np.uint8)
        native.jitter_images(four, four.copy(), np.ones((2, 3), np.float32), 255.0)
    with pytest.raises(ValueError, match="a size above zero"):
        native.resize_images(np.empty((2, 0, 3, 3), np.uint8), images)
    with pytest.raises(ValueError, match="for each channel"):
        numbers = np.ones(2, np.float32)
        native.normalise_images(np.empty(images.shape, np.float32), images, numbers, numbers)


def test_wrong_settings_of_batch_transforms():
    for make in (
        lambda: data.RandomCrops(-1), lambda: data.RandomCrops(1, "wrap"),
        lambda: data.RandomFlips(2), lambda: data.Cutout(0), lambda: data.Resize(0),
        lambda: data.Normalise([0], [0]), lambda: data.ColourJitter(2),
        lambda: data.RandomCrops(1.5), lambda: data.RandomCrops(2**31), lambda: data.Cutout("8"),
        lambda: data.Resize(2.5), lambda: data.Resize((3,)), lambda: data.Resize((3, 10**9)),
        lambda: data.Normalise([0, 0], [1, 1, 1]), lambda: data.Normalise([0], [np.nan]),
        lambda: data.Normalise([np.inf], [1]),
        lambda: data.RandomCrop(1.5), lambda: data.RandomCrop(-1),
    ):  # fmt: skip
        with pytest.raises(OptionError):
            make()
    with pytest.raises(ShapeError, match=r"\(2, 0, 4, 3\) have no pixels"):
        data.Augment(data.Resize(3))(np.zeros((2, 0, 4, 3), np.uint8), [0, 1])
    for mean, std in ((1, 2), ([1, 1, 1], 2), (1, [2, 2, 2])):
        one = data.Augment(data.Normalise(mean, std))(np.full((1, 2, 2, 3), 5.0), [0])
        assert (one == 2).all()
    with pytest.raises(ShapeError, match="images are"):
        apply(data.RandomFlips(), IMAGES[0])
    with pytest.raises(ShapeError, match="2 indices"):
        apply(data.RandomFlips(), indices=np.arange(2))
    with pytest.raises(ShapeError, match="3 colours"):
        apply(data.ColourJitter(), IMAGES[..., :1])
    with pytest.raises(DtypeError, match="int16"):
        apply(data.ColourJitter(), IMAGES.astype(np.int16))
    with pytest.raises(ShapeError, match="2 means and deviations for 3 channels"):
        apply(data.Normalise([1, 2], [1, 1]))

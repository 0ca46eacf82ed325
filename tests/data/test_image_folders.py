"""Folders of images, and unpaired images."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import data
from needle.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture
def pictures(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    made = {}
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png"):
        values = RNG.integers(0, 256, (4, 5, 3)).astype(np.uint8)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pillow.fromarray(values).save(path)
        made[name] = values
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path, made


def test_a_folder_of_images(pictures):
    folder, made = pictures
    dataset = data.ImageFolder(folder)
    assert dataset.classes == ["cats", "dogs"] and len(dataset) == 3
    image, label = dataset[2]
    assert label == 1 and image.dtype == np.float32
    np.testing.assert_array_equal(image, made["dogs/1.png"].transpose(2, 0, 1) / np.float32(255))
    x, y = next(iter(data.DataLoader(data.ImageFolder(folder, size=(6, 7)), 3)))
    assert x.shape == (3, 3, 6, 7) and y.numpy().tolist() == [0, 0, 1]


def test_several_images_of_a_folder(pictures):
    folder, _ = pictures
    dataset = data.ImageFolder(folder, size=4)
    for index in (slice(1, 3), [1, -1], np.array([False, True, True])):
        images, labels = dataset[index]
        np.testing.assert_array_equal(images, np.stack([dataset[1][0], dataset[2][0]]))
        assert labels.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["png", "tif", "ppm"])
def test_grey_of_16_bits_is_scaled_not_cut_off(suffix, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    values = np.array([[0, 255, 256], [40_000, 65_280, 65_535]], np.uint16)
    if suffix == "ppm":  # which Pillow writes from version 10 on
        (tmp_path / "x.ppm").write_bytes(b"P5 3 2 65535\n" + values.astype(">u2").tobytes())
    else:
        pillow.fromarray(values).save(tmp_path / f"x.{suffix}")
    image = data.read_image(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(image, np.stack([values >> 8] * 3, -1))


@pytest.mark.parametrize("kind, said", [("float32", "floats"), ("int32", "integers")])
def test_values_of_32_bits_have_no_known_range(kind, said, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.ones((2, 3), kind)).save(tmp_path / "x.tiff")
    with pytest.raises(DataError, match=f"x.tiff: .* {said} of 32 bits"):
        data.read_image(tmp_path / "x.tiff")


def test_broken_images_are_named_and_skipped_only_if_asked(pictures):
    folder, _ = pictures
    broken = folder / "cats" / "2.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match="2.png: this image cannot be read"):
        data.ImageFolder(folder)[1]
    said = []
    dataset = data.ImageFolder(folder, skip_broken=True, report=said.append)
    assert [p.name for p, _ in dataset.files] == ["1.png", "1.png"]
    assert len(said) == 1 and "2.png" in said[0]
    with pytest.raises(DataError, match="2.png"):
        data.UnpairedImages(folder, ("cats", "dogs"), 4)
    pairs = data.UnpairedImages(folder, ("cats", "dogs"), 4, skip_broken=True)
    assert len(pairs.a) == 1


def test_folders_without_images_are_an_error(pictures, tmp_path):
    folder, _ = pictures
    with pytest.raises(DataError, match="has no class folders with images"):
        data.ImageFolder(folder / "cats")
    with pytest.raises(DataError, match="is not a folder"):
        data.ImageFolder(folder / "birds")
    with pytest.raises(DataError, match="empty has no images"):
        data.UnpairedImages(folder, ("cats", "empty"))
    with pytest.raises(DataError, match="trainA is not a folder"):
        data.UnpairedImages(folder)


def test_unpaired_images_draw_the_second_one(pictures):
    folder, made = pictures
    pairs = data.UnpairedImages(folder, ("cats", "dogs"), 4)
    a, b = pairs[1]
    assert a.shape == b.shape == (3, 4, 4) and len(pairs) == 2
    assert a.min() >= -1 and a.max() <= 1
    np.testing.assert_array_equal(b, np.moveaxis(pairs.b[0] / np.float32(127.5) - 1, -1, 0))
    turned = data.UnpairedImages(folder, ("dogs", "cats"), 4)
    ndl.manual_seed(3)
    seen = {turned[0][1].tobytes() for _ in range(20)}
    ndl.manual_seed(None)
    assert len(turned) == 2 and len(seen) == 2
    np.testing.assert_array_equal(turned[1][0], turned[0][0])


def test_an_index_of_unpaired_images_may_be_negative_a_slice_or_a_mask(pictures):
    folder, _ = pictures
    small = data.UnpairedImages(folder, ("cats", "dogs"), 4)
    small.b = np.concatenate([small.b] * 3)  # of three pairs the last has image 0 of the first kind
    expected = [small[i][0] for i in range(3)]
    np.testing.assert_array_equal(expected[2], expected[0])
    np.testing.assert_array_equal(small[-1][0], expected[2])
    for index in (slice(1, 3), [1, 2], np.array([False, True, True])):
        np.testing.assert_array_equal(small[index][0], expected[1:])
    assert small[[]][0].shape == (0, 3, 4, 4)


def test_tensors_are_augmented_as_arrays():
    images = np.arange(2 * 3 * 3 * 1, dtype=np.float32).reshape(2, 3, 3, 1)
    augment = data.Augment(data.RandomCrops(1), data.RandomFlips(), seed=4)
    expected = augment(images, np.arange(2))
    found = augment(ndl.Tensor(images), ndl.Tensor([0, 1], dtype="int64"))
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)


def test_unpaired_images_are_changed_by_seed_pass_and_index(pictures):
    folder, _ = pictures
    augment = data.Augment(data.RandomCrops(1), data.RandomFlips(), seed=4)
    pairs = data.UnpairedImages(folder, ("cats", "dogs"), 8, augment=augment)
    indices = np.array([1, 0, 1])
    first, again = pairs.batch(indices), pairs.batch(indices[::-1])
    np.testing.assert_array_equal(first[0], again[0][::-1])
    np.testing.assert_array_equal(first[0][0], first[0][2])
    exact = augment(pairs.a[indices], indices, 0) / np.float32(127.5) - 1
    np.testing.assert_array_equal(first[0], np.moveaxis(exact, -1, 1))
    passes = []
    for pairs.epoch in range(8):
        passes.append(pairs.batch(indices)[1].tobytes())
    assert len(set(passes)) > 1

"""Images: CIFAR-10 in both editions, folders of files, and random changes of batches."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest

import needle as ndl
from needle import core, data, ops
from needle.backend import images as native_images
from needle.data import cifar, download
from needle.errors import DataError, DtypeError, IndexRangeError, OptionError, ShapeError

RNG = np.random.default_rng(0)


def short(text):
    return b"U" + bytes([len(text)]) + text


def array(values):
    """The opcodes by which Python 2 pickles a NumPy array of bytes."""
    size = b"".join(b"M" + struct.pack("<H", n) for n in values.shape)
    dtype = b"cnumpy\ndtype\n(" + short(b"u1") + b"K\x00K\x01tR(K\x03" + short(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + short(b"b")
    content = values.tobytes()
    whole = b"T" + struct.pack("<I", len(content)) + content
    return start + b"tR(K\x01(" + size + b"t" + dtype + b"\x89" + whole + b"tb"


def python_batch(pixels, labels):
    numbers = b"".join(b"K" + bytes([n]) for n in labels)
    body = short(b"data") + array(pixels) + short(b"labels") + b"](" + numbers + b"e"
    return b"\x80\x02}(" + body + short(b"batch_label") + short(b"one of five") + b"u."


def binary_batch(pixels, labels):
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], pixels], 1).tobytes()


@pytest.fixture
def batches(tmp_path):
    """Both editions of six batches of three images, in two folders; and the first batch."""
    made = {}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        pixels = RNG.integers(0, 256, (3, 3072)).astype(np.uint8)
        made[name] = (pixels, RNG.integers(0, 10, 3).tolist())
    for folder, make, suffix in (("py", python_batch, ""), ("bin", binary_batch, ".bin")):
        target = tmp_path / f"cifar-10-batches-{folder}"
        target.mkdir()
        for name, batch in made.items():
            (target / f"{name}{suffix}").write_bytes(make(*batch))
    return tmp_path, made


@pytest.mark.parametrize("edition", ["py", "bin"])
def test_both_editions_hold_the_same(batches, edition):
    folder, made = batches
    dataset = data.CIFAR10Dataset(folder / f"cifar-10-batches-{edition}", train=True)
    pixels = np.concatenate([made[f"data_batch_{i}"][0] for i in range(1, 6)])
    labels = np.concatenate([made[f"data_batch_{i}"][1] for i in range(1, 6)])
    assert len(dataset) == 15
    image, label = dataset[4]
    exact = pixels.reshape(-1, 3, 32, 32).astype(np.float32) / 255
    assert image.dtype == np.float32 and label == labels[4]
    np.testing.assert_array_equal(image, exact[4])
    np.testing.assert_array_equal(dataset.X, exact)
    np.testing.assert_array_equal(dataset.y, labels)
    x, y = next(iter(data.DataLoader(dataset, 6)))
    assert x.shape == (6, 3, 32, 32) and x.dtype == "float32" and y.shape == (6,)
    test = data.CIFAR10Dataset(folder / f"cifar-10-batches-{edition}", train=False)
    np.testing.assert_array_equal(test.y, made["test_batch"][1])
    with pytest.raises(IndexRangeError):
        dataset[15]


def test_transforms_see_height_width_channels(batches):
    folder, _ = batches
    seen = []
    dataset = data.CIFAR10Dataset(
        folder / "cifar-10-batches-py", False, transforms=[lambda x: seen.append(x.shape) or x]
    )
    dataset[0], dataset[0:2]
    assert seen == [(32, 32, 3)] * 3


def test_training_batches_may_be_missing_if_named(batches):
    folder = batches[0] / "cifar-10-batches-py"
    for i in (2, 3, 5):
        (folder / f"data_batch_{i}").unlink()
    with pytest.raises(DataError, match=r"data_batch_2, data_batch_3, data_batch_5\n.*\[1, 4\]"):
        data.CIFAR10Dataset(folder, train=True)
    assert len(data.CIFAR10Dataset(folder, train=True, batches=(1, 4))) == 6
    said = []
    assert len(data.cifar10(batches[0], report=said.append)) == 6
    assert "training batches [1, 4] of 5" in said[0]
    with pytest.raises(OptionError, match="numbered 1 to 5"):
        data.CIFAR10Dataset(folder, train=True, batches=(0,))
    with pytest.raises(DataError, match="holds no batches of CIFAR-10"):
        data.cifar10(batches[0] / "elsewhere")


TYPE, RECONSTRUCT = b"\x80\x02cnumpy\ndtype\n", b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"


class Evil:
    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


def boom(*arguments):
    raise AssertionError("the pickle was executed")


ATTACKS = [
    (pickle.dumps({b"data": Evil(boom, 1), b"labels": [1]}, 0), "uses|wants .*boom"),
    (pickle.dumps(Evil(boom, 1), 2), "wants .*boom"),
    (pickle.dumps(Evil(eval, "1"), 2), "wants __builtin__.eval"),
    (pickle.dumps(Evil(eval, "1")), "uses FRAME|uses SHORT_BINUNICODE"),
    (pickle.dumps(Evil(getattr, 1, "real"), 2), "wants __builtin__.getattr"),
    (pickle.dumps({"data": np.zeros(3), "labels": [1]}, 2), "uses BINUNICODE"),
    (pickle.dumps([1, 2], 2), "holds a list"),
    (b"\x80\x02}(" + short(b"labels") + b"](K\x01eu.", "lacks an array"),
    (b"\x80\x02Pother\n.", "uses PERSID"),
    (b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.", "uses DUP"),  # hashing it takes 2**60 steps
    (b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.", "keys that are no texts"),
    (b"\x80\x02})" + b"\x85" * 900_000 + b"K\x01s.", "keys that are no texts"),  # deep
    (TYPE + b")" + b"q\x00h\x00\x86" * 60 + b"\x85R.", "calls something"),  # 2**60 letters
    (TYPE + b"(" + short(b"f8") + b"tR.", "not of plain bytes but of b'f8'"),
    (TYPE + b"(" + short(b"u1") + b"tRK\x01R.", "calls something"),
    (TYPE + b"N}" + short(b"__name__") + b"K\x01sb.", "no array where one belongs"),
    (RECONSTRUCT + b"(" + TYPE[2:] + b"K\x00\x85" + short(b"b") + b"tR.", "calls something"),
    (b"\x80\x02" + b"N" * 1_000_001 + b".", "over 1,000,000 instructions"),
    (b"\x80\x02\x86.", "a value is missing"),
    (b"\x80\x02t.", "no CIFAR-10 batch"),
    (b"\x80\x02h\x05.", "no CIFAR-10 batch"),
    (b"\x80\x02.", "no CIFAR-10 batch"),
    (b"\x80\x02NNa.", "no list where one belongs"),
    (b"\x80\x02T\xff\xff\xff\x7fx.", "no CIFAR-10 batch"),
    (b"no pickle at all", "no CIFAR-10 batch"),
    (b"", "no CIFAR-10 batch"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1, 2])[:5000], "no CIFAR-10 batch"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1]), "1 labels for pixels"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1, 10]), "whole numbers from 0 to 9"),
    (python_batch(np.zeros((2, 1024), np.uint8), [1, 2]), "pixels of shape"),
]


@pytest.mark.parametrize("content, text", ATTACKS, ids=range(len(ATTACKS)))
def test_only_what_a_batch_needs_is_unpickled(tmp_path, content, text):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match=text) as caught:
        data.read_cifar_pickle(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "state",
    [
        b"N", b"(K\x01K\x02K\x03t", b"(K\x01N@\x89" + short(b"abcd") + b"t",
        b"(K\x01(K\x04t@\x88" + short(b"abcd") + b"t",
        b"(K\x01(K\x05t@\x89" + short(b"abcd") + b"t",
        b"(K\x01(K\x04t@\x89K\x07t", b"(K\x01(J\xff\xff\xff\xfft@\x89" + short(b"abcd") + b"t",
        b"(K\x01(" + b"K\x01" * 70 + b"t@\x89" + short(b"a") + b"t",
    ],
)  # fmt: skip
def test_damaged_arrays_are_errors(tmp_path, state):
    kind = TYPE[2:] + b"(" + short(b"u1") + b"tR"
    made = RECONSTRUCT + b"(cnumpy\nndarray\nK\x00\x85" + short(b"b") + b"tR"
    path = tmp_path / "data_batch_1"
    path.write_bytes(made + state.replace(b"@", kind) + b"b.")
    with pytest.raises(DataError, match="damaged|plain bytes|no CIFAR-10 batch"):
        data.read_cifar_pickle(path)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # in a name
@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_is_an_error_or_another_batch(tmp_path, seed):
    random = np.random.default_rng(seed)
    whole = python_batch(random.integers(0, 256, (1, 3072)).astype(np.uint8), [3])
    ends = [*range(120), *range(len(whole) - 120, len(whole))]  # between them are pixels
    path = tmp_path / "data_batch_1"
    for _ in range(300):
        content = bytearray(whole)
        for place in random.choice(ends, random.integers(1, 4)):
            content[place] = random.integers(0, 256)
        path.write_bytes(content)
        try:
            images, labels = data.read_cifar_pickle(path)
        except DataError:
            continue
        assert images.shape == (len(labels), 32, 32, 3) and images.dtype == np.uint8


def test_wrong_binary_files_are_explained(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    with pytest.raises(DataError, match="no such file"):
        data.read_cifar_binary(path)
    path.write_bytes(b"x" * 3074)
    with pytest.raises(DataError, match="no whole records of 3073"):
        data.read_cifar_binary(path)
    path.write_bytes(b"\x0b" + b"x" * 3072)
    with pytest.raises(DataError, match="label 11"):
        data.read_cifar_binary(path)
    with open(path, "wb") as file:
        file.truncate(cifar.MOST_BYTES + 1)
    with pytest.raises(DataError, match="a batch has 31 MB"):
        data.read_cifar_pickle(path)


def test_the_archive_is_downloaded_once_and_only_its_batches_are_unpacked(batches, monkeypatch):
    folder, made = batches
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        for name, batch in {**made, "../../evil": made["test_batch"]}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            content = binary_batch(*batch)
            info.size = len(content)
            files.addfile(info, io.BytesIO(content))
    content, asked = buffer.getvalue(), []

    def open_url(url):
        asked.append(url)
        return io.BytesIO(content)

    source = download.Source(
        cifar.ARCHIVE.name, len(content), hashlib.sha256(content).hexdigest()
    )  # fmt: skip
    monkeypatch.setattr(cifar, "ARCHIVE", source)
    monkeypatch.setattr(download, "open_url", open_url)
    cache = folder / "cache" / "cifar10"
    cache.mkdir(parents=True)
    (cache / "cifar-10-batches-bin").touch()  # a file in the way
    with ndl.config(cache=str(folder / "cache"), data=""):
        with pytest.raises(DataError, match="cifar-10-batches-bin: cannot be written"):
            data.cifar10()
        (cache / "cifar-10-batches-bin").unlink()
        assert len(data.cifar10()) == 15 and len(data.cifar10(train=False)) == 3
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]
    assert not list(folder.rglob("*evil*")) and not list(folder.rglob("*.part-*"))
    with ndl.config(data=str(folder), cache=str(folder / "other")):
        assert len(data.cifar10()) == 15  # what NEEDLE_DATA has is not downloaded
    assert len(asked) == 1


# ---- folders -----------------------------------------------------------------------


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


@pytest.mark.parametrize("kind, said", [("float32", "floats"), ("int32", "whole numbers")])
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
    with pytest.raises(DataError, match="has no image in a folder of its own"):
        data.ImageFolder(folder / "cats")
    with pytest.raises(DataError, match="is no folder"):
        data.ImageFolder(folder / "birds")
    with pytest.raises(DataError, match="empty has no images"):
        data.UnpairedImages(folder, ("cats", "empty"))
    with pytest.raises(DataError, match="trainA is no folder"):
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


@pytest.mark.parametrize("mode, numpys", [("zeros", "constant"), ("reflect", "reflect")])
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

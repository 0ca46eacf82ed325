"""CIFAR-10 in both editions: what is read, what is refused, how it is downloaded."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
from dataset_files import binary_batch

import needle as ndl
from needle import data
from needle.data import cifar, download
from needle.errors import DataError, IndexRangeError, OptionError

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
    with pytest.raises(OptionError, match="numbers from 1 to 5"):
        data.CIFAR10Dataset(folder, train=True, batches=(0,))
    with pytest.raises(DataError, match="contains no batches of CIFAR-10"):
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
    (pickle.dumps({b"data": Evil(boom, 1), b"labels": [1]}, 0), "uses|imports .*boom"),
    (pickle.dumps(Evil(boom, 1), 2), "imports .*boom"),
    (pickle.dumps(Evil(eval, "1"), 2), "imports __builtin__.eval"),
    (pickle.dumps(Evil(eval, "1")), "uses FRAME|uses SHORT_BINUNICODE"),
    (pickle.dumps(Evil(getattr, 1, "real"), 2), "imports __builtin__.getattr"),
    (pickle.dumps({"data": np.zeros(3), "labels": [1]}, 2), "uses BINUNICODE"),
    (pickle.dumps([1, 2], 2), "expected a dict .*, got list"),
    (b"\x80\x02}(" + short(b"labels") + b"](K\x01eu.", "expected an array of data"),
    (b"\x80\x02Pother\n.", "uses PERSID"),
    (b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.", "uses DUP"),  # hashing it takes 2**60 steps
    (b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.", "keys that are not strings"),
    (b"\x80\x02})" + b"\x85" * 900_000 + b"K\x01s.", "keys that are not strings"),  # deep
    (TYPE + b")" + b"q\x00h\x00\x86" * 60 + b"\x85R.", "calls something"),  # 2**60 letters
    (TYPE + b"(" + short(b"f8") + b"tR.", "consists of b'f8', not of plain"),
    (TYPE + b"(" + short(b"u1") + b"tRK\x01R.", "calls something"),
    (TYPE + b"N}" + short(b"__name__") + b"K\x01sb.", "expected array"),
    (RECONSTRUCT + b"(" + TYPE[2:] + b"K\x00\x85" + short(b"b") + b"tR.", "calls something"),
    (b"\x80\x02" + b"N" * 1_000_001 + b".", "over 1,000,000 instructions"),
    (b"\x80\x02\x86.", "a value is missing"),
    (b"\x80\x02t.", "not a CIFAR-10 batch"),
    (b"\x80\x02h\x05.", "not a CIFAR-10 batch"),
    (b"\x80\x02.", "not a CIFAR-10 batch"),
    (b"\x80\x02NNa.", "expected list"),
    (b"\x80\x02T\xff\xff\xff\x7fx.", "not a CIFAR-10 batch"),
    (b"no pickle at all", "not a CIFAR-10 batch"),
    (b"", "not a CIFAR-10 batch"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1, 2])[:5000], "not a CIFAR-10 batch"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1]), "1 labels for pixels"),
    (python_batch(np.zeros((2, 3072), np.uint8), [1, 10]), "integers from 0 to 9"),
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
    with pytest.raises(DataError, match="damaged|plain bytes|not a CIFAR-10 batch"):
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
    with pytest.raises(DataError, match="not a multiple of 3073"):
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

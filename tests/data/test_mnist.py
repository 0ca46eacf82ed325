"""MNIST: its files, and where they are downloaded from."""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dataset_files import idx, mnist_module, write_mnist

import needle as ndl
from needle import data
from needle.data import download
from needle.data import mnist as mnist_function
from needle.errors import (
    DataError,
    IndexRangeError,
)

# ---- MNIST -------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    images, labels = write_mnist(tmp_path)
    return *(tmp_path / file.name for file in mnist_module.FILES[True]), images, labels


def test_mnist_items(pair):
    image_file, label_file, images, labels = pair
    dataset = data.MNISTDataset(str(image_file), str(label_file))
    image, label = dataset[3]
    assert len(dataset) == 12 and image.shape == (28, 28, 1) and image.dtype == np.float32
    np.testing.assert_array_equal(image[..., 0], images[3].astype(np.float32) / 255)
    assert label == labels[3]
    some, ids = dataset[2:5]
    assert some.shape == (3, 28, 28, 1) and ids.tolist() == labels[2:5].tolist()
    with pytest.raises(IndexRangeError, match="index 12"):
        dataset[12]


def test_mnist_transforms_see_one_image_each(pair):
    shapes = []

    def watch(image):
        shapes.append(image.shape)
        return image + 1

    dataset = data.MNISTDataset(*pair[:2], transforms=[watch])
    x, _ = next(iter(data.DataLoader(dataset, 5)))
    assert shapes == [(28, 28, 1)] * 5 and x.shape == (5, 28, 28, 1)
    assert float(x.numpy().min()) >= 1


def test_files_that_are_not_what_they_should_be(pair, tmp_path):
    image_file, label_file, images, labels = pair

    def error(image_bytes=None, label_bytes=None):
        image_file.write_bytes(gzip.compress(idx(images)) if image_bytes is None else image_bytes)
        label_file.write_bytes(gzip.compress(idx(labels)) if label_bytes is None else label_bytes)
        with pytest.raises(DataError) as caught:
            data.MNISTDataset(image_file, label_file)
        text = str(caught.value)
        assert str(image_file if image_bytes is not None else label_file) in text
        return text

    assert "truncated" in error(gzip.compress(idx(images))[:-30])
    assert "Not a gzipped file" in error(b"hello")
    assert "magic number 2049, expected 2051" in error(gzip.compress(idx(labels) + bytes(40)))
    short = gzip.compress(idx(images)[:-5])
    assert "9408 bytes after the header for the sizes 12 x 28 x 28, got 9403" in error(short)
    empty = b"".join(n.to_bytes(4, "big") for n in (0x803, 0, 2**32 - 1, 2**32 - 1))
    assert "0 x 4294967295 x 4294967295: " in error(gzip.compress(empty))
    assert "6 bytes, but an IDX header alone has 16" in error(gzip.compress(idx(images)[:6]))
    assert "12 images" in error(None, gzip.compress(idx(labels[:-1])))
    assert "labels 0 to 9, got 11" in error(None, gzip.compress(idx(np.full(12, 11, np.uint8))))
    image_file.unlink()
    with pytest.raises(DataError, match="no such file"):
        data.MNISTDataset(image_file, label_file)


def test_mnist_is_found_in_a_folder_and_in_its_folder_mnist(tmp_path):
    write_mnist(tmp_path / "mnist", 3)
    write_mnist(tmp_path / "mnist", 4, train=False)
    assert len(mnist_function(tmp_path)) == 3
    assert len(mnist_function(tmp_path / "mnist", train=False)) == 4
    with ndl.config(data=str(tmp_path)):
        assert len(mnist_function()) == 3
    with pytest.raises(DataError, match="do not hold train-images-idx3-ubyte.gz and train-labels"):
        mnist_function(tmp_path / "elsewhere")


# ---- downloads ---------------------------------------------------------------------------


@pytest.fixture
def web(monkeypatch, tmp_path):
    """A web of pages by address, and what was asked of it; nothing is on this machine."""
    pages: dict[str, bytes] = {}
    asked: list[str] = []

    def open_url(url):
        asked.append(url)
        if url not in pages:
            raise OSError("no route to host")
        return io.BytesIO(pages[url])

    monkeypatch.setattr(download, "open_url", open_url)
    with ndl.config(cache=str(tmp_path / "cache"), data=""):
        yield pages, asked


def offered(name, content):
    return download.Source(name, len(content), hashlib.sha256(content).hexdigest())


def fetch(file, folder, *mirrors):
    return download.fetch("test", file, mirrors, folder)


def test_offline_names_every_mirror(web):
    with pytest.raises(DataError) as caught:
        mnist_function()
    text = str(caught.value)
    for mirror in mnist_module.MIRRORS:
        assert f"{mirror}train-images-idx3-ubyte.gz: no route to host" in text
    assert "--data FOLDER" in text and "NEEDLE_DATA" in text


def test_a_named_folder_that_is_missing_is_not_replaced_by_a_download(web, tmp_path):
    _, asked = web
    for read in (mnist_function, data.cifar10):
        with (
            ndl.config(data=str(tmp_path / "missing")),
            pytest.raises(DataError, match="missing: no such folder"),
        ):
            read()
    assert not asked


def test_threads_that_download_one_file_do_not_meet(web, tmp_path, monkeypatch):
    pages, _ = web
    file, both = offered("x", b"content"), threading.Barrier(2)
    pages["a/x"] = b"content"
    inner = download._difference

    def checked(path, source):
        both.wait(60)  # both have written, and none has renamed
        found = inner(path, source)
        both.wait(60)
        return found

    monkeypatch.setattr(download, "_difference", checked)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(file, tmp_path, "a/"), range(2)))
    assert paths == [tmp_path / "x"] * 2 and paths[0].read_bytes() == b"content"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_mirror_that_leads_to_no_address_is_one_that_fails(web, tmp_path, monkeypatch):
    def open_url(url):
        raise ValueError("Invalid IPv6 URL")

    monkeypatch.setattr(download, "open_url", open_url)
    with pytest.raises(DataError, match="a/x: Invalid IPv6 URL"):
        fetch(offered("x", b""), tmp_path, "a/")


def test_mnist_downloads_what_is_missing_once(web, monkeypatch, tmp_path):
    pages, asked = web
    write_mnist(tmp_path / "server", 7)
    mirror = mnist_module.MIRRORS[1]
    files = []
    for file in mnist_module.FILES[True]:
        content = (tmp_path / "server" / file.name).read_bytes()
        pages[mirror + file.name] = content
        files.append(offered(file.name, content))
    monkeypatch.setitem(mnist_module.FILES, True, tuple(files))
    told = []
    (tmp_path / "nothing here").mkdir()
    with ndl.config(data=str(tmp_path / "nothing here")):
        assert len(mnist_function(report=told.append)) == 7
    assert len(asked) == len(told) == 4  # the first mirror does not answer
    assert sorted(p.name for p in (tmp_path / "cache" / "mnist").iterdir()) == sorted(
        file.name for file in files
    )
    assert len(mnist_function()) == 7 and len(asked) == 4


def test_wrong_checksum_names_both_sums_and_leaves_nothing(web, tmp_path):
    pages, _ = web
    file = offered("a.gz", b"right")
    pages["http://x/a.gz"] = b"wrong"
    with pytest.raises(DataError) as caught:
        fetch(file, tmp_path / "to", "http://x/")
    assert hashlib.sha256(b"wrong").hexdigest() in str(caught.value)
    assert file.sha256 in str(caught.value)
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    "content, message",
    [(b"rig", "5 bytes, got 3"), (b"right!!", "5 bytes, got more")],
)
def test_wrong_size_then_the_next_mirror(web, tmp_path, content, message):
    pages, _ = web
    file = offered("a.gz", b"right")
    pages["http://x/a.gz"] = content
    with pytest.raises(DataError, match=message):
        fetch(file, tmp_path / "to", "http://x/")
    pages["http://y/a.gz"] = b"right"
    assert fetch(file, tmp_path / "to", "http://x/", "http://y/").read_bytes() == b"right"


def test_a_damaged_file_in_the_cache_is_named(web, tmp_path):
    (tmp_path / "a.gz").write_bytes(b"wrong")
    with pytest.raises(DataError, match=r"a\.gz: expected SHA-256 .*\n.*delete"):
        fetch(offered("a.gz", b"right"), tmp_path, "http://x/")


def test_a_cache_that_cannot_be_written(web, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fetch(offered("a.gz", b"right"), tmp_path / "file" / "to", "http://x/")


def test_no_more_is_unpacked_than_the_header_says(tmp_path):
    path, head = tmp_path / "a.gz", b"\0\0\x08\x03" + np.array([1, 28, 28], ">u4").tobytes()
    with gzip.open(path, "wb", 1) as file:
        file.write(head)
        for _ in range(200):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="expected 784 bytes .* got more"):
            mnist_module.read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()

"""Data sets, the loader, transforms, MNIST's files and downloads, the standard library's source."""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import needle as ndl
from needle import data
from needle.data import download, source
from needle.data import mnist as mnist_function
from needle.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
)

mnist_module = __import__("sys").modules["needle.data.mnist"]


# ---- data sets and loader ----------------------------------------------------------------


def numbers(n=10):
    return data.NDArrayDataset(np.arange(n, dtype=np.float32) * 2, np.arange(n))


def test_ndarray_dataset():
    dataset = numbers()
    assert len(dataset) == 10
    assert dataset[3] == (6.0, 3) and dataset[-1] == (18.0, 9)
    doubled, ids = dataset[np.array([4, 1])]
    assert doubled.tolist() == [8.0, 2.0] and ids.tolist() == [4, 1]
    assert [len(x) for x in dataset[2:5]] == [3, 3]
    assert [int(i) for _, i in dataset] == list(range(10))
    with pytest.raises(IndexRangeError, match="index 12 is out of range for a data set of 10"):
        dataset[np.array([1, 12])]
    with pytest.raises(DataError, match=r"lengths \[3, 2\]"):
        data.NDArrayDataset(np.ones(3), np.ones(2))


def test_loader_in_order(device):
    loader = data.DataLoader(numbers(), 4, device=device)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert [y.numpy().tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    x, y = batches[0]
    assert (x.dtype, y.dtype, x.device) == ("float32", "int64", device)
    assert not x.requires_grad and not y.requires_grad
    assert [len(y) for _, y in data.DataLoader(numbers(), 4, drop_last=True)] == [4, 4]
    assert len(data.DataLoader(numbers(), 4, drop_last=True)) == 2


def order_of(loader):
    return np.concatenate([y.numpy() for _, y in loader]).tolist()


def test_shuffling_draws_one_permutation_per_pass_from_numpys_stream():
    np.random.seed(3)
    expected = [np.random.permutation(10).tolist() for _ in range(2)]
    np.random.seed(3)
    loader = data.DataLoader(numbers(), 3, shuffle=True)
    assert [order_of(loader), order_of(loader)] == expected


def test_shuffling_after_manual_seed_leaves_numpys_stream_alone():
    untouched = np.random.get_state()[1].tolist()
    orders = []
    for _ in range(2):
        ndl.manual_seed(5)
        loader = data.DataLoader(numbers(1000), 1000, shuffle=True)
        orders.append([order_of(loader), order_of(loader)])
    ndl.manual_seed(None)
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1] and sorted(orders[0][0]) == list(range(1000))
    assert np.random.get_state()[1].tolist() == untouched


def test_a_loader_is_an_iterator_and_passes_run_side_by_side():
    loader = data.DataLoader(numbers(4), 2)
    assert next(loader)[1].numpy().tolist() == [0, 1]
    assert next(loader)[1].numpy().tolist() == [2, 3]
    with pytest.raises(StopIteration):
        next(loader)
    pairs = [(int(a[1].numpy()[0]), int(b[1].numpy()[0])) for a in loader for b in loader]
    assert pairs == [(0, 0), (0, 2), (2, 0), (2, 2)]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_loader_has_no_pass_under_way(duplicate):
    loader = data.DataLoader(numbers(4), 2)
    next(loader)
    assert [y.tolist() for _, y in duplicate(loader)] == [[0, 1], [2, 3]]
    assert next(duplicate(loader))[1].tolist() == [0, 1] and next(loader)[1].tolist() == [2, 3]


class OneByOne(data.Dataset):
    """A data set that knows single items only, as most users write it."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert isinstance(index, int)
        return {"x": np.full((2, 2), index, np.float32), "y": index}


def test_loader_of_single_items():
    batch = next(iter(data.DataLoader(OneByOne(), 3)))
    assert batch["x"].shape == (3, 2, 2) and batch["y"].numpy().tolist() == [0, 1, 2]
    listed = data.DataLoader([(1.0, 2.0), (3.0, 4.0)], 2)
    assert [x.numpy().tolist() for x in next(iter(listed))] == [[1, 3], [2, 4]]


def test_texts_in_a_batch_stay_texts():
    items = [
        {"x": np.ones(2), "name": "a", "tags": ("b", b"c")},
        {"x": np.ones(2), "name": "d", "tags": ("e", b"f")},
    ]
    batch = next(iter(data.DataLoader(items, 2)))
    assert batch["x"].shape == (2, 2) and batch["name"] == ("a", "d")
    assert batch["tags"] == (("b", "e"), (b"c", b"f"))
    own = data.DataLoader(items, 2, collate_fn=lambda items: [x["name"] for x in items])
    assert list(own) == [("a", "d")]
    with pytest.raises(DtypeError, match="<U"):
        list(data.DataLoader([1, "a"], 2))


def test_what_has_no_length_or_no_items_is_no_data_set():
    for dataset in ((x for x in range(3)), {1, 2}, iter([1])):
        with pytest.raises(ArgumentError, match="data set is a .*\n.*__len__.*\n.*list"):
            data.DataLoader(dataset)


def test_collate_fn_sees_the_items():
    loader = data.DataLoader(OneByOne(), 2, collate_fn=lambda items: np.array([len(items), 7]))
    assert [b.numpy().tolist() for b in loader] == [[2, 7], [2, 7], [1, 7]]


def test_items_of_different_shapes_do_not_make_a_batch():
    with pytest.raises(ShapeError, match=r"\(2,\) and \(3,\)"):
        data.collate([np.ones(3), np.ones(2)])


@pytest.mark.parametrize("size", [0, -1, 1.5, "3"])
def test_wrong_batch_size(size):
    with pytest.raises(OptionError, match="batch_size"):
        data.DataLoader(numbers(), size)


# ---- transforms --------------------------------------------------------------------------


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
    with pytest.raises(OptionError, match=r"p=1.5"):
        data.RandomFlipHorizontal(1.5)
    with pytest.raises(OptionError, match="padding=-1"):
        data.RandomCrop(-1)
    with pytest.raises(ShapeError, match=r"got \(4,\)"):
        data.RandomCrop()(np.ones(4))


# ---- MNIST -------------------------------------------------------------------------------


def idx(values):
    header = (0x800 + values.ndim).to_bytes(4, "big")
    return header + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def write_mnist(folder, n=12, train=True):
    """Write a small MNIST; return its images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(n)
    images = random.integers(0, 256, (n, 28, 28), np.uint8)
    labels = random.integers(0, 10, n).astype(np.uint8)
    for file, values in zip(mnist_module.FILES[train], (images, labels), strict=True):
        (folder / file.name).write_bytes(gzip.compress(idx(values)))
    return images, labels


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
    assert "9403 bytes after the header, but its sizes 12 x 28 x 28 need 9408" in error(short)
    empty = b"".join(n.to_bytes(4, "big") for n in (0x803, 0, 2**32 - 1, 2**32 - 1))
    assert "0 x 4294967295 x 4294967295: " in error(gzip.compress(empty))
    assert "6 bytes, an IDX header alone has 16" in error(gzip.compress(idx(images)[:6]))
    assert "12 images" in error(None, gzip.compress(idx(labels[:-1])))
    assert "label 11" in error(None, gzip.compress(idx(np.full(12, 11, np.uint8))))
    image_file.unlink()
    with pytest.raises(DataError, match="there is no such file"):
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
            pytest.raises(DataError, match="missing: there is no such folder"),
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
    "content, message", [(b"rig", "3 bytes instead of 5"), (b"right!!", "more than the 5 bytes")]
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
    with pytest.raises(DataError, match=r"a\.gz: SHA-256 is .*\n.*delete it"):
        fetch(offered("a.gz", b"right"), tmp_path, "http://x/")


def test_a_cache_that_cannot_be_written(web, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fetch(offered("a.gz", b"right"), tmp_path / "file" / "to", "http://x/")


# ---- the standard library's source ---------------------------------------------------------


def test_source_lists_are_sorted_and_disjoint():
    training, held_out = source.TRAINING.split(), source.HELD_OUT.split()
    assert training == sorted(set(training)) and held_out == sorted(set(held_out))
    assert not set(training) & set(held_out)


def test_source_of_this_python():
    training, held_out = data.python_source(), data.python_source(train=False)
    assert training.values.dtype == np.uint8
    assert training.values.size > 2_000_000
    assert 100_000 < held_out.values.size < training.values.size // 10
    assert b"class JSONEncoder" in held_out.values.tobytes()
    assert b"class JSONEncoder(" not in training.values.tobytes()


def test_source_of_a_folder(tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "ast.py").write_bytes(b"a = 1\r\n")
    (tmp_path / "abc.py").write_bytes(b"b = 2\n")
    (tmp_path / "mine.py").write_bytes(b"not in the list")
    found = data.python_source(tmp_path)
    assert found.modules == ("abc", "ast") and found.values.tobytes() == b"b = 2\na = 1\n"
    with pytest.raises(DataError, match="none of the 13 modules"):
        data.python_source(tmp_path, train=False)


def test_random_split():
    ndl.manual_seed(0)
    train, rest = data.random_split(numbers(), [7, 3])
    assert (len(train), len(rest)) == (7, 3)
    assert sorted(int(y) for part in (train, rest) for _, y in part) == list(range(10))
    (x, y), *_ = data.DataLoader(rest, batch_size=3)
    assert y.tolist() == rest.indices.tolist() and x.tolist() == [2.0 * i for i in y.tolist()]
    ndl.manual_seed(0)
    again, _ = data.random_split(numbers(), [0.7, 0.3])
    assert again.indices.tolist() == train.indices.tolist()
    words = data.random_split(["a", "b", "c"], [1 / 3, 1 / 3, 1 / 3])
    assert sorted(part[0] for part in words) == ["a", "b", "c"]


@pytest.mark.parametrize("sizes", [[7, 4], [0.7, 0.2], [11, -1], [5.5, 4.5]])
def test_parts_that_are_not_the_whole(sizes):
    with pytest.raises(DataError, match=r"random_split: parts of .* of 10 items"):
        data.random_split(numbers(), sizes)


def test_a_subset_has_no_more_than_its_indices():
    with pytest.raises(IndexRangeError, match="index 10"):
        data.Subset(numbers(), [1, 10])
    with pytest.raises(IndexRangeError, match="index 2"):
        data.Subset(numbers(), [1, 9])[2]


def test_a_subset_takes_a_mask():
    dataset = numbers(4)
    for mask in ([False, True, False, True], np.array([0, 1, 0, 1], bool)):
        assert data.Subset(dataset, mask).indices.tolist() == [1, 3]
    assert len(data.Subset(dataset, [])) == 0
    assert data.Subset(dataset, range(2, 4)).indices.tolist() == [2, 3]
    assert data.Subset(dataset, ndl.Tensor([2, -1], dtype="int64")).indices.tolist() == [2, -1]


@pytest.mark.parametrize(
    "indices, message",
    [
        ([True, False], r"a mask of shape \(2,\) for 4 items"),
        ([1.7], "float64"),
        (3, r"int64\[\]"),
        ([[0, 1]], r"int64\[1, 2\]"),
        (["a"], "<U1"),
        (None, "object"),
    ],
)
def test_what_are_no_indices_of_a_subset(indices, message):
    with pytest.raises(ArgumentError, match=f"Subset: .*{message}"):
        data.Subset(numbers(4), indices)


def test_a_part_of_a_subset_of_a_list_is_a_list():
    subset = data.Subset(["a", "b", "c"], [2, 0])
    assert subset[0:2] == ["c", "a"] and subset[1] == "a"
    assert data.Subset(np.arange(5), [4, 2, 0])[:2].tolist() == [4, 2]


@pytest.mark.parametrize("arrays", [(5,), (np.ones(2), 3.0), ([[1], [1, 2]],)])
def test_what_has_no_items_makes_no_data_set(arrays):
    with pytest.raises(DataError, match=r"NDArrayDataset: array \d"):
        data.NDArrayDataset(*arrays)


def test_an_index_is_whole():
    with pytest.raises(ArgumentError, match=r"index 1\.5"):
        numbers()[1.5]
    with pytest.raises(ArgumentError, match="index 'a'"):
        data.Subset(numbers(), [1, 2])["a"]


@pytest.mark.parametrize(
    "items, message",
    [
        ([(1, 2), (1, 2, 3)], "item 0 has 2 fields, item 1 has 3"),
        ([{"x": 1}, {"y": 1}], r"fields \['x'\], item 1 has the fields \['y'\]"),
        ([{"x": 1}, {"x": 1, "y": 1}], r"item 1 has the fields \['x', 'y'\]"),
        ([(1, 2), 3], r"2 fields, item 1 has no fields \(int\)"),
        ([], "no items"),
    ],
)
def test_items_of_different_fields_do_not_make_a_batch(items, message):
    with pytest.raises(DataError, match=f"collate: .*{message}"):
        data.collate(items)


def test_data_sets_one_after_the_other():
    both = data.ConcatDataset([numbers(3), data.Subset(numbers(10), [7]), [(1.0, 20), (2.0, 30)]])
    assert len(both) == 6
    assert [int(both[i][1]) for i in range(6)] == [0, 1, 2, 7, 20, 30]
    assert both[-1] == (2.0, 30) and both[1:5][1].tolist() == [1, 2, 7, 20]
    assert [y.tolist() for _, y in data.DataLoader(both, 4)] == [[0, 1, 2, 7], [20, 30]]
    assert data.Subset(both, [5, 3])[:][1].tolist() == [30, 7]
    with pytest.raises(IndexRangeError, match="index 6"):
        both[6]
    with pytest.raises(DataError, match="at least one"):
        data.ConcatDataset([])


@pytest.mark.parametrize(
    "index, error",
    [((1, 0), ArgumentError), (True, ArgumentError), (slice("a", "b"), ArgumentError),
     (np.ones(9, bool), IndexRangeError), (np.ones((10, 2), bool), IndexRangeError)],
)  # fmt: skip
def test_what_is_no_index_of_a_data_set(index, error):
    items = data.NDArrayDataset(np.ones((10, 2)), np.arange(10))
    with pytest.raises(error):
        items[index]


def test_sizes_that_are_no_numbers():
    items = data.NDArrayDataset(np.arange(10))
    for sizes in (10, None, ["a"]):
        with pytest.raises(ArgumentError, match="sizes"):
            data.random_split(items, sizes)

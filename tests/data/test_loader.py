"""Data sets, and the loader of batches."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import data
from needle.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
)


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
    with pytest.raises(DataError, match=r"equal length, got \[3, 2\]"):
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
        with pytest.raises(ArgumentError, match="is not a data set.*\n.*__len__.*\n.*list"):
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
    with pytest.raises(DataError, match=r"random_split: cannot split 10 items"):
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
    with pytest.raises(ArgumentError, match=r"integer index, got 1\.5"):
        numbers()[1.5]
    with pytest.raises(ArgumentError, match="integer index, got 'a'"):
        data.Subset(numbers(), [1, 2])["a"]


@pytest.mark.parametrize(
    "items, message",
    [
        ([(1, 2), (1, 2, 3)], "item 0 has 2 fields, item 1 has 3"),
        ([{"x": 1}, {"y": 1}], r"fields \['x'\], item 1 has the fields \['y'\]"),
        ([{"x": 1}, {"x": 1, "y": 1}], r"item 1 has the fields \['x', 'y'\]"),
        ([(1, 2), 3], r"2 fields, item 1 has no fields \(int\)"),
        ([], "0 items"),
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

"""Data sets from files of numbers: tokens, CSV, Parquet, Fashion-MNIST."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from dataset_files import write_mnist
from looped import looped

import needle as ndl
from needle import data
from needle.errors import ArgumentError, DataError, IndexRangeError, OptionError

# ---- tokens ------------------------------------------------------------------------


def test_windows_of_a_file_of_tokens(tmp_path):
    path, ids = tmp_path / "ids.bin", np.arange(100, 1100)
    assert data.write_tokens(path, [ids[:300], [], ids[300:].tolist()]) == 1000
    for stride in (None, 1, 7, 50):
        dataset = data.TokenFile(path, 20, stride)
        step = stride or 20
        assert len(dataset) == len(range(0, 1000 - 20, step))
        x, y = dataset[len(dataset) - 1]
        start = (len(dataset) - 1) * step
        np.testing.assert_array_equal(x, ids[start : start + 20])
        np.testing.assert_array_equal(y, ids[start + 1 : start + 21])
        assert x.dtype == np.int64 and x.flags.owndata | (x.base is None)
    twin = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(twin[-1][0], dataset[-1][0])
    assert dataset.fingerprint() == twin.fingerprint() != data.TokenFile(path, 10).fingerprint()
    loader = data.DataLoader(dataset, 4, True, seed=0, num_workers=2)
    assert loader.workers == "thread"
    for x, y in loader:
        np.testing.assert_array_equal(x.numpy() + 1, y.numpy())
    loader.close()
    with pytest.raises(IndexRangeError):
        dataset[len(dataset)]


def test_files_that_hold_no_tokens(tmp_path):
    path = tmp_path / "ids.bin"
    with pytest.raises(DataError, match="No such file"):
        data.TokenFile(path, 4)
    path.write_bytes(b"123")
    with pytest.raises(DataError, match="3 bytes\n  rule: a multiple of 2 for uint16"):
        data.TokenFile(path, 1)
    path.write_bytes(b"12" * 4)
    with pytest.raises(DataError, match="at least the 5 tokens"):
        data.TokenFile(path, 4)
    for arguments in ((0,), (1, 0), (1, 1, "float32")):
        with pytest.raises(OptionError):
            data.TokenFile(path, *arguments)
    with pytest.raises(ArgumentError):
        data.TokenFile(path, 1.5)
    for ids in ([65536], [-1]):
        with pytest.raises(DataError, match="for uint16\n  rule: 0 <= id <= 65535"):
            data.write_tokens(tmp_path / "wrong.bin", [[1], ids])
    with pytest.raises(OptionError, match="unknown dtype"):
        data.write_tokens(path, [], "float32")
    with pytest.raises(DataError, match="cannot be written"):
        data.write_tokens(tmp_path / "none" / "x.bin", [])
    assert sorted(x.name for x in tmp_path.iterdir()) == ["ids.bin"]


# ---- tables ------------------------------------------------------------------------

CSV = '\ufeffid,height,name,note\n3,1.5,"Ada, the first",\n-4,,Bo,"two\nlines"\n\n5,2,Cy,x\n'


def test_columns_of_a_csv_file(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV, encoding="utf-8")
    table = data.read_csv(path)
    assert len(table) == 3 and table.columns["id"].dtype == np.int64
    np.testing.assert_array_equal(table.columns["height"], np.float32([1.5, np.nan, 2]))
    assert table[1]["note"] == "two\nlines" and table[-1]["id"] == 5
    (batch,) = data.DataLoader(table, 3)
    assert batch["name"] == ("Ada, the first", "Bo", "Cy") and batch["id"].tolist() == [3, -4, 5]
    assert table[1:]["name"] == ("Bo", "Cy")
    (height,) = data.read_csv(path, ["height"]).select("height")
    x, y = data.NDArrayDataset(height, table.select("id")[0])[0]
    assert (x, y) == (1.5, 3)
    path.write_text("a;b\n1;2\n")
    assert data.read_csv(path, delimiter=";")[0] == {"a": 1, "b": 2}
    path.write_text("a\n99999999999999999999\n")
    assert data.read_csv(path).columns["a"].dtype == np.float32


@looped(
    "text, message",
    [
        (b"", "names in the first line"), (b"a,a\n1,2\n", "different names"),
        (b"a,b\n1,2\n3\n", "line 3 has 1 cells, expected 2"),
        (b"a\n\xff\n", "not a CSV file in UTF"),
        (b'a\n"x"y\n', "not a CSV file"), (b'a\n"x', "not a CSV file"),
        (b"a\n" + b"x" * 200_000, "field larger than"),
    ],
)  # fmt: skip
def test_files_that_are_no_csv(text, message, tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(text)
    with pytest.raises(DataError, match=message):
        data.read_csv(path)


def test_wrong_tables(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="No such file"):
        data.read_csv(tmp_path / "none.csv")
    path = tmp_path / "x.csv"
    path.write_text("age\n1\n")
    with pytest.raises(OptionError, match="did you mean 'age'"):
        data.read_csv(path, ["agee"])
    with pytest.raises(OptionError, match="delimiter"):
        data.read_csv(path, delimiter=",,")
    with pytest.raises(OptionError, match="unknown column 'x'"):
        data.read_csv(path).select("x")
    monkeypatch.setattr("needle.data.columns.MOST_BYTES", 3)
    with pytest.raises(DataError, match="6 bytes, at most 3"):
        data.read_csv(path)
    for columns in ({}, {"a": [1], "b": [1, 2]}):
        with pytest.raises(DataError, match="one length"):
            data.Columns(columns)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'needle-dl\[parquet\]'"):
        data.read_parquet(path)


def test_columns_of_a_parquet_file(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    columns = {"a": [1, 2], "b": [0.5, None], "c": ["x", "yz"], "d": [True, False], "e": [[1], []]}
    parquet.write_table(arrow.table(columns), path)
    table = data.read_parquet(path, ["c", "a", "b", "d"])
    assert list(table.columns) == ["c", "a", "b", "d"] and table[1]["c"] == "yz"
    np.testing.assert_array_equal(table.columns["b"], np.float32([0.5, np.nan]))
    assert table.columns["a"].dtype == np.int64 and table.columns["d"].tolist() == [True, False]
    with pytest.raises(DataError, match="column 'e' has type list"):
        data.read_parquet(path)
    with pytest.raises(OptionError, match="unknown column"):
        data.read_parquet(path, ["z"])
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            data.read_parquet(wrong)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        data.read_parquet(path)


# ---- Fashion-MNIST -------------------------------------------------------------------


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    (tmp_path / "fashion_mnist").mkdir()
    images, labels = write_mnist(tmp_path / "fashion_mnist")
    for folder in (tmp_path, tmp_path / "fashion_mnist"):
        dataset = data.fashion_mnist(folder)
        np.testing.assert_array_equal(dataset.images[..., 0], images)
        assert dataset.classes[int(labels[0])] in data.fashion.CLASSES
    with pytest.raises(DataError, match="mnist.* do not hold"):
        data.mnist(tmp_path)
    with pytest.raises(OptionError, match="True or False"):
        data.fashion_mnist(train="yes")
    write_mnist(tmp_path)  # those of MNIST, in the common folder
    with ndl.config(data=str(tmp_path)):
        np.testing.assert_array_equal(data.fashion_mnist().images[..., 0], images)

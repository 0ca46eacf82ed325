"""The standard library's source as a data set."""

from __future__ import annotations

import numpy as np
import pytest

from needle import data
from needle.data import source
from needle.errors import (
    DataError,
)


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
    with pytest.raises(DataError, match="none of the 13 source files"):
        data.python_source(tmp_path, train=False)

"""NDArray: views, writes, and what shares memory."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from looped import looped
from small_arrays import counted, same_memory

from needle import NDArray
from needle.backend.ndarray import array
from needle.errors import (
    IndexRangeError,
    ShapeError,
)


def check(x: NDArray, expected: np.ndarray, base: NDArray | None = None) -> None:
    """Same values, shape and strides as NumPy; and, with base, the same memory."""
    expected = np.asarray(expected)
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x.shape == expected.shape
    if base is not None:
        assert same_memory(x, base)
        if expected.size > 1 and all(n > 1 for n in expected.shape):
            assert x.strides == tuple(s // expected.itemsize for s in expected.strides)


# ---- views -----------------------------------------------------------------------


VIEWS = {
    "permute": ((2, 3, 4), lambda x: x.permute((2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "permute back": ((2, 3, 4), lambda x: x.permute((-1, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "broadcast": (
        (3, 1), lambda x: x.broadcast_to((2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)),
    ),
    "slice": ((4, 5), lambda x: x[1:3, ::2], lambda x: x[1:3, ::2]),
    "backwards": ((4, 5), lambda x: x[::-1, 3:0:-2], lambda x: x[::-1, 3:0:-2]),
    "integer keeps the axis": ((4, 5), lambda x: x[1, -1], lambda x: x[1:2, 4:5]),
    "empty slice": ((4, 5), lambda x: x[3:1], lambda x: x[3:1]),
    "fewer indices": ((4, 5), lambda x: x[2:], lambda x: x[2:]),
    "flip": ((3, 4), lambda x: x.flip((0, 1)), lambda x: x[::-1, ::-1]),
    "flip one": ((3, 4), lambda x: x.flip(-1), lambda x: x[:, ::-1]),
    "squeeze": ((1, 3, 1), lambda x: x.squeeze(), lambda x: x.squeeze()),
    "squeeze one": ((1, 3, 1), lambda x: x.squeeze(-1), lambda x: x.squeeze(-1)),
    "unsqueeze": ((3, 4), lambda x: x.unsqueeze((0, -1)), lambda x: x[None, :, :, None]),
    "reshape": ((3, 4), lambda x: x.reshape(2, -1), lambda x: x.reshape(2, 6)),
    "reshape, flipped": (
        (4, 6), lambda x: x[::-1].reshape(4, 2, 3), lambda x: x[::-1].reshape(4, 2, 3),
    ),
    "reshape, columns": (
        (4, 6), lambda x: x[:, 1:4].reshape(2, 2, 3), lambda x: x[:, 1:4].reshape(2, 2, 3),
    ),
    "flat": ((3, 4), lambda x: x.flat, lambda x: x.reshape(-1)),
    "windows": (
        (5, 6), lambda x: x.windows((0, 1), (3, 2), 2, (1, 2)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (3, 3))[::2, ::2, :, ::2],
    ),
    "as_strided": (
        (6,), lambda x: x.as_strided((2, 3), (1, 2)),
        lambda x: np.lib.stride_tricks.as_strided(x, (2, 3), (4, 8)),
    ),
}  # fmt: skip


@looped("name", VIEWS)
def test_views_share_memory(name, device):
    shape, view, reference = VIEWS[name]
    values = counted(*shape)
    x = array(values, "float32", device)
    check(view(x), reference(values), x)


def test_reshape_copies_only_where_it_must(device):
    values = counted(4, 6)
    x = array(values, "float32", device)
    check(x.permute((1, 0)).reshape(24), values.T.reshape(24))
    assert not same_memory(x.permute((1, 0)).reshape(24), x)
    assert same_memory(x.permute((1, 0)).reshape(6, 2, 2), x)
    check(x[:, ::2].reshape(4, 3, 1), values[:, ::2].reshape(4, 3, 1), x)


def test_views_of_empty_and_scalar_arrays(device):
    x = array(np.zeros((0, 3)), "float32", device)
    assert x.flip((0, 1)).reshape(3, 0).broadcast_to((2, 3, 0)).numpy().shape == (2, 3, 0)
    assert x.copy().shape == (0, 3) and x.permute((1, 0)).copy().shape == (3, 0)
    s = array(2.5, "float32", device)
    assert s.shape == () and s.item() == 2.5 and s.reshape(1, 1).item() == 2.5
    assert s.broadcast_to((2,)).numpy().tolist() == [2.5, 2.5]


def test_compact_and_dense(device):
    x = array(counted(3, 4), "float32", device)
    assert x.is_compact() and x.compact() is x
    assert not x[1:].is_compact() and x[1:].is_dense()
    turned = x.permute((1, 0))
    assert not turned.is_dense() and turned.compact().is_compact()
    assert x.unsqueeze(0).is_compact()


def test_the_memory_lives_as_long_as_a_view(device):
    view = array(counted(3, 4), "float32", device)[1:2]
    gc.collect()
    for _ in range(10):
        array(np.zeros((3, 4)), "float32", device)
    np.testing.assert_array_equal(view.numpy(), counted(3, 4)[1:2])


# ---- writes ------------------------------------------------------------------------


def test_writes_go_through_views(device):
    values = counted(4, 6)
    x = array(values, "float32", device)
    x.permute((1, 0))[1:3, ::2] = 7.0
    values.T[1:3, ::2] = 7.0
    x.flip(0)[0] = array(counted(6), "float32", device)
    values[::-1][0] = counted(6)
    x[3, 4] = 9
    values[3, 4] = 9
    x[0:2, 0] = [[1.5], [2.5]]
    values[0:2, 0] = [1.5, 2.5]
    x[2].fill(-1)
    values[2] = -1
    np.testing.assert_array_equal(x.numpy(), values)


def test_a_write_casts_and_reshapes(device):
    x = array([1, 2, 3], "int32", device)
    x[0:2] = array([[1.9], [-2.9]], "float32", device)
    assert x.numpy().tolist() == [1, -2, 3]
    with pytest.raises(ShapeError, match="cannot assign 2 elements to 3"):
        x[:] = np.zeros(2)


@looped("kind", ["float32", "int8", "bool"])
def test_what_lies_in_the_same_memory_is_read_before_it_is_written(device, kind):
    pairs = [
        (slice(1, None), slice(None, -1)), (slice(None, -3), slice(3, None)),
        (slice(None), slice(None, None, -1)), (slice(0, 20), slice(0, 40, 2)),
        (slice(0, 40, 2), slice(20, 40)),
    ]  # fmt: skip
    for target, source in pairs:
        for axis in range(2):
            values = counted(40, 41).astype(int) % 97 % (2 if kind == "bool" else 97)
            x = array(values, kind, device)
            view = x.permute((1, 0)) if axis else x
            wanted = values.T if axis else values
            view[target] = view[source]
            wanted[target] = wanted[source].copy()
            np.testing.assert_array_equal(x.numpy(), values)


def test_an_array_is_indexed_by_whole_numbers_and_slices(device):
    x = array(counted(3), "int64", device)
    for index in (1.0, None, ..., [1], "1"):
        with pytest.raises(IndexRangeError, match="integers and slices"):
            x[index]
        with pytest.raises(IndexRangeError, match="integers and slices"):
            x[index] = 5
    x[np.int64(0)] = np.int64(2**62 + 1)
    np.testing.assert_array_equal(x.numpy(), [2**62 + 1, 1, 2])


def test_in_place_through_flat(device):
    x = array(counted(2, 3), "float32", device)
    x.flat[4] += 0.5
    assert x.numpy()[1, 1] == 4.5


def test_numpy_is_a_copy_except_on_the_numpy_device(device):
    x = array(counted(3), "float32", device)
    x.numpy()[0] = 5
    assert x.numpy()[0] == (5 if device == "cpu_numpy" else 0)


def test_copies_are_copies(device):
    x = array(counted(3), "float32", device)
    others = [
        x.copy(),
        copy.deepcopy(x),
        NDArray(x),
        pickle.loads(pickle.dumps(x)),
        x.astype("float32"),
    ]
    x.fill(9)
    for other in others:
        np.testing.assert_array_equal(other.numpy(), counted(3))
        assert other.device == device and other.dtype == "float32"
    assert x.astype("float32", copy=False) is x

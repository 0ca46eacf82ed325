"""Indices that are arrays, assignment in place, and the kernels that look for something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import DEVICES, HOST_DEVICES
from looped import looped

import needle as ndl
from needle import core, ops
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.errors import DtypeError, IndexRangeError, ShapeError

NATIVE = pytest.mark.skipif(core.native is None, reason="needs the native module")
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def place(x: Any) -> int:
    """Return the address of a tensor's memory."""
    return int(x.realize_cached_data().handle.ptr())


# ---- assignment --------------------------------------------------------------------

VALUES = np.arange(48.0, dtype=np.float32).reshape(8, 6)
MASK = VALUES % 3 == 0
WRITES: list[tuple[Any, Any]] = [
    (slice(None, 3), 1.0), (slice(None, 3), -VALUES[:3]), ((3, 4), 7), (..., 2.0), ((), 3),
    ((slice(None, None, -2), slice(1, 4)), VALUES[0, :3]), (slice(2, 2), 1.0), (-1, 1e30),
    (MASK, 1.0), (MASK, -VALUES[MASK]), (MASK[:, 0], 5.0), (np.array([1, -1, 1]), 4.0),
    (np.array([1, -1, 1]), -VALUES[:3]), (np.array([[1], [2]]), -VALUES[:2, None]),
    ((np.array([0, 1, 0]), np.array([5, -1, 5])), np.array([1, 2, 3], np.float32)),
    ((slice(None), np.array([0, 3])), -VALUES[:, :2]), ((None, 2), 1.0), (np.zeros(0, int), 1.0),
]  # fmt: skip


@looped("index, value", WRITES)
@looped("as_tensors", [False, True])
@looped("device", DEVICES)
def test_assignment_changes_nobody_else(index, value, as_tensors, device):
    expected = VALUES.copy()
    expected[index] = value
    if as_tensors and isinstance(index, np.ndarray):
        index = ndl.Tensor(index, device=device)
    if as_tensors and isinstance(value, np.ndarray):
        value = ndl.Tensor(value, device=device, requires_grad=False)
    others = (
        lambda x: None, lambda x: x.detach(), lambda x: x[1:], lambda x: x.T, lambda x: x + 0.0,
        lambda x: x.realize_cached_data(), lambda x: ndl.Tensor(x), lambda x: ops.reshape(x, (48,)),
    )  # fmt: skip
    for other in others:
        x = ndl.Tensor(VALUES, device=device)
        seen = other(x)
        before = None if seen is None else seen.numpy().copy()
        x[index] = value
        np.testing.assert_array_equal(x.numpy(), expected)
        assert seen is None or (seen.numpy() == before).all()
        assert x.is_leaf() and x.requires_grad


@NATIVE
@looped("index, value", WRITES)
def test_assignment_is_in_place_where_nobody_sees_it(index, value):
    x = ndl.Tensor(VALUES, device="cpu")
    address = place(x)
    x[index] = value
    assert place(x) == address
    seen = x.detach()
    x[index] = value
    assert place(x) != address == place(seen)


@looped("device", DEVICES)
@looped("lazy", [False, True])
def test_graphs_keep_what_they_saved(device, lazy):
    with ndl.lazy_mode(lazy):
        x = ndl.Tensor([1.0, 2.0, 3.0], device=device)
        y = (x * x).sum()
        x[1] = 5.0
        x[ndl.Tensor([0], dtype="int64", device=device)] = 7.0
        y.backward()
        np.testing.assert_array_equal(x.grad.numpy(), [2, 4, 6])
        np.testing.assert_array_equal(x.numpy(), [7, 5, 3])


@looped("lazy", [False, True])
@looped("accumulate", [False, True])
def test_a_leaf_that_became_a_result_has_the_gradient_of_the_result(accumulate, lazy):
    with ndl.lazy_mode(lazy):
        x, y, factor = ndl.Tensor([1.0, 2.0]), ndl.Tensor([3.0]), ndl.Tensor([10.0, 100.0])
        before = x * 5.0
        x[1] = 4.0  # a leaf with other data; the graph has the old one, too
        x[0:1] = 2.0 * y
        (x * factor + before).sum().backward(accumulate=accumulate)
        np.testing.assert_array_equal(x.grad.numpy(), [10, 100])
        np.testing.assert_array_equal(y.grad.numpy(), [20])
        np.testing.assert_array_equal(factor.grad.numpy(), [6, 4])
        z = ndl.Tensor([1.0, 2.0])
        before = z * 5.0
        z[0:1] = 2.0 * y
        before.sum().backward(accumulate=accumulate)  # what z was is all that it reaches
        np.testing.assert_array_equal(z.grad.numpy(), [5, 5])


@NATIVE  # memory that others see
def test_arrays_of_numpy_keep_what_they_saw():
    x = ndl.Tensor(VALUES)
    views = np.asarray(x), memoryview(x.realize_cached_data()), np.from_dlpack(x.detach())
    x[0] = -1.0
    assert all((np.asarray(view) == VALUES).all() for view in views)
    shared = VALUES.copy()
    y = ndl.from_dlpack(shared)
    y[0] = -1.0
    assert (shared == VALUES).all() and (y.numpy()[0] == -1).all()


@looped("device", DEVICES)
def test_what_is_read_and_written_is_read_first(device):
    x = ndl.Tensor(VALUES, device=device)
    x[::-1] = x
    np.testing.assert_array_equal(x.numpy(), VALUES[::-1])
    x = ndl.Tensor(np.array([2, 0, 1, 1]), device=device)
    x[x] = x
    np.testing.assert_array_equal(x.numpy(), [0, 1, 2, 1])
    for index in (lambda x: x, lambda x: (x,)):
        x = ndl.Tensor(np.array([1, 2, 0, 1]), device=device)
        x[index(x)] = ndl.Tensor(np.array([3, 0, 2, 1]), device=device)
        np.testing.assert_array_equal(x.numpy(), [2, 1, 0, 1])
    true = ndl.Tensor(np.array([True, False, True]), device=device)
    true[true] = False
    assert not true.numpy().any()
    x = ndl.Tensor(VALUES, device=device)
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy()[1:], VALUES[:-1])


@looped("layout", [lambda x: x.T, lambda x: x[::-1], lambda x: x[:1]])
def test_assignment_to_other_layouts(layout):
    view = layout(ndl.Tensor(VALUES, requires_grad=False)).detach()
    if view.shape[0] == 1:  # each element stands for eight
        view = ops.broadcast_to(view, (8, 6)).detach()
    expected = view.numpy().copy()
    view[1, 2:4] = 100.0
    expected[1, 2:4] = 100.0
    np.testing.assert_array_equal(view.numpy(), expected)


@looped("device", HOST_DEVICES)  # others say later that an index is wrong
@looped("index, value, error",
    [
        (8, 1.0, IndexRangeError), (np.array([0, 1, 8]), 1.0, IndexRangeError),
        ((np.array([0, 1]), np.array([0, -7])), 1.0, IndexRangeError),
        (np.array([0, 1]), np.zeros((3, 6), np.float32), ShapeError),
        (slice(None, 2), np.zeros((3, 6), np.float32), ShapeError),
        (MASK, np.zeros(3, np.float32), ShapeError), (MASK[:3], 1.0, IndexRangeError),
    ],
)  # fmt: skip
def test_a_wrong_assignment_changes_nothing(device, index, value, error):
    for make in (lambda v: v, lambda v: ndl.Tensor(v, device=device)):
        x = ndl.Tensor(VALUES, device=device)
        given = make(index) if isinstance(index, np.ndarray) else index
        with pytest.raises(error):
            x[given] = make(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(x.numpy(), VALUES)


@looped("dtype", ["int8", "uint8", "int64", "bool"])
def test_numbers_must_fit_in_place_too(dtype):
    x = ndl.Tensor(np.zeros(3), dtype=dtype)
    for number in (1.5, 300 if dtype != "int64" else 2**63, -129 if dtype != "int64" else -(2**64)):
        with pytest.raises(DtypeError):
            x[0] = number
    assert not x.numpy().any()
    x[0] = 1
    x[1:] = True
    assert x.numpy().tolist() == [1, 1, 1]
    if dtype == "int64":
        for number in (2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**53 - 1, -(2**63)):
            x[0] = number
            assert x.numpy()[0] == number


@looped("dtype", DTYPES)
@looped("shape", [(1, 16), (40, 17), (3, 64), (200, 16), (64, 15)])
def test_rows_are_put_in_order(dtype, shape):
    random = np.random.default_rng(sum(shape))
    x = random.integers(0, 100, shape).astype(dtype)
    rows = random.integers(-shape[0], shape[0], 70)
    for values in (random.integers(0, 100, (70, shape[1])).astype(dtype), x[0]):
        expected, found = x.copy(), ndl.Tensor(x, dtype=dtype)
        expected[rows] = values
        found[rows] = ndl.Tensor(values, dtype=dtype)
        np.testing.assert_array_equal(found.numpy(), expected)
        expected, found = x.T.copy(), ndl.Tensor(x.T.copy(), dtype=dtype)
        expected[:, rows] = values[0][: shape[1], None] if values.ndim > 1 else x[0][:, None]
        found[:, rows] = ndl.Tensor(expected[:, rows[:1]], dtype=dtype)
        np.testing.assert_array_equal(found.numpy(), expected)


# ---- looking for something ---------------------------------------------------------

SIZES = [(0,), (1,), (63,), (64,), (65,), (4095,), (4096,), (4097,), (3, 0), (0, 3), (70, 130),
         (2, 3, 65), (1, 1, 1, 1), (9000, 5)]  # fmt: skip


@looped("shape", SIZES)
@looped("density", [0.0, 0.03, 0.5, 1.0])
def test_nonzero_and_masks(shape, density):
    random = np.random.default_rng(1)
    true, x = random.random(shape) < density, random.random(shape, np.float32)
    for flipped in (False, True):
        mask = ndl.Tensor(true[::-1].copy())[::-1] if flipped else ndl.Tensor(true)
        found = ops.nonzero(mask)
        assert [part.numpy().tolist() for part in found] == [p.tolist() for p in np.nonzero(true)]
        np.testing.assert_array_equal(ndl.Tensor(x)[mask].numpy(), x[true])
    wide = random.random((*shape, 3), np.float32)
    np.testing.assert_array_equal(ndl.Tensor(wide)[ndl.Tensor(true)].numpy(), wide[true])


@looped("dtype", ["float32", "float16", "int8", "int64"])
def test_nonzero_of_numbers(dtype):
    values = np.array([0, 1, -0.0, np.nan if dtype[0] == "f" else 5, -2], dtype)
    assert ops.nonzero(ndl.Tensor(values, dtype=dtype))[0].numpy().tolist() == [1, 3, 4]


@looped("dtype", (*DTYPES, "bfloat16"))
@looped("count", [0, 1, 2, 3, 15, 64, 1000])
@looped("side", ["left", "right"])
def test_searchsorted(dtype, count, side):
    random = np.random.default_rng(count)
    kind = "float32" if dtype == "bfloat16" else dtype
    edges = np.sort(random.integers(0, 2 if dtype == "bool" else 100, count).astype(kind))
    values = random.integers(0, 2 if dtype == "bool" else 110, (3, 11)).astype(kind)
    if kind.startswith("float"):
        edges[count - count // 5 :] = np.nan
        values.flat[::7], values.flat[1::7], values.flat[2] = np.nan, np.inf, -0.0
    order, expected = ndl.Tensor(edges, dtype=dtype), np.searchsorted(edges, values, side)
    found = ops.searchsorted(order, ndl.Tensor(values, dtype=dtype), side)
    np.testing.assert_array_equal(found.numpy(), expected)
    turned = ops.searchsorted(order, ndl.Tensor(values.T.copy(), dtype=dtype).T, side)
    np.testing.assert_array_equal(turned.numpy(), expected)


@looped("upper", [False, True])
@looped("k", [-(10**9), -3, -1, 0, 1, 2, 7, 10**9])
@looped("dtype", DTYPES)
def test_triangles(upper, k, dtype):
    x = np.arange(1, 121).reshape(4, 5, 6).astype(dtype)
    if dtype.startswith("float"):
        x[..., ::2] = np.nan
    call, reference = (ops.triu, np.triu) if upper else (ops.tril, np.tril)
    k_ = max(min(k, 50), -50)
    for given in (x, x[:, ::-1], x.swapaxes(1, 2), x[:0], x[:, :, :1], x[:, :0]):
        whole = ndl.Tensor(x, dtype=dtype)
        views = {x.shape: whole, (4, 6, 5): whole.permute((0, 2, 1))}
        tensor = views.get(given.shape, ndl.Tensor(given.copy(), dtype=dtype))
        tensor = ndl.Tensor(given.copy(), dtype=dtype) if given.strides[1] < 0 else tensor
        np.testing.assert_array_equal(call(tensor, k).numpy(), reference(given, k_))


@looped("device", DEVICES)
@looped("dtype", DTYPES)
@looped("size", [0, 1, 2, 33, 3000])
def test_unique(device, dtype, size):
    random = np.random.default_rng(size)
    x = random.integers(0, 2 if dtype == "bool" else 50, (size, 2)).astype(dtype)
    if dtype.startswith("float"):
        x.flat[::5], x.flat[1::7], x.flat[2::9] = np.nan, -0.0, 0.0
    named = {"return_index": True, "return_inverse": True, "return_counts": True}
    values, *rest = np.unique(x, **named)
    found = ops.unique(ndl.Tensor(x, dtype=dtype, device=device), **named)
    np.testing.assert_array_equal(found[0].numpy(), values)
    assert found[2].shape == x.shape
    for ours, theirs in zip(found[1:], rest, strict=True):
        np.testing.assert_array_equal(ours.numpy().ravel(), theirs.ravel())
    alone = ops.unique(ndl.Tensor(x, dtype=dtype, device=device))
    np.testing.assert_array_equal(alone.numpy(), values)


@NATIVE
@looped("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_places_of_several_indices(dtype):
    low = 0 if dtype == "uint8" else -1
    rows = np.arange(10000).reshape(100, 100) % (5 - low) + low
    columns = (np.arange(100) % 3).astype(dtype)
    rows = np.where(rows < 0, -5, np.minimum(rows, 4)).astype(dtype)
    given = tuple(array(i, dtype, "cpu") for i in (rows, columns))
    expected = rows.astype(int) % 5 * 3 + columns
    np.testing.assert_array_equal(kernels.linear_index(given, (5, 3)).numpy(), expected)
    columns[97] = 3
    wrong = (given[0], array(columns, dtype, "cpu"))
    with pytest.raises(IndexRangeError, match=r"3 at position 97 .* axis 1 with 3"):
        kernels.linear_index(wrong, (5, 3))


@looped("axis", [0, 1, 2])
@looped("kind", ["int64", "int32", "uint8"])
def test_take_and_gather_without_and_with_a_graph(axis, kind):
    random = np.random.default_rng(axis)
    x = random.random((4, 5, 3), np.float32)
    for shape in ((), (2,), (2, 2), (0,)):
        index = random.integers(0, 3, shape).astype(kind)
        for grad in (False, True):
            tensor = ndl.Tensor(x, requires_grad=grad)
            found = ops.take(tensor, ndl.Tensor(index, dtype=kind), axis)
            np.testing.assert_array_equal(found.numpy(), x.take(index, axis))
            assert found.requires_grad == grad
            if grad:
                found.sum().backward()
                expected = np.zeros_like(x)
                np.add.at(np.moveaxis(expected, axis, 0), index, 1.0)
                np.testing.assert_array_equal(tensor.grad.numpy(), expected)
    with pytest.raises(IndexRangeError):
        ops.take(ndl.Tensor(x), ndl.Tensor(np.array([0, 5])), axis)
    index = random.integers(0, 3, (1, 5, 3) if axis else (2, 1, 3)).astype(kind)
    tensor = ndl.Tensor(x)
    found = ops.gather(tensor, ndl.Tensor(index, dtype=kind), axis)
    shape = tuple(index.shape[i] if i == axis else n for i, n in enumerate(x.shape))
    np.testing.assert_array_equal(
        found.numpy(), np.take_along_axis(x, np.broadcast_to(index, shape).astype(int), axis)
    )


@looped("count", [1, 16, 63])
@looped("largest", [False, True])
@looped("kind", ["random", "ascending", "equal", "nan"])
def test_the_first_ones_of_an_order(count, largest, kind):
    random = np.random.default_rng(count)
    x = random.integers(0, 300, (2, 1031)).astype(np.float32)
    x = {"ascending": np.sort(x), "equal": x * 0, "nan": np.where(x < 200, np.nan, x)}.get(kind, x)
    order = np.argsort(-x if largest else x, 1, kind="stable")[:, :count]
    values, found = ops.topk(ndl.Tensor(x), count, 1, largest)
    np.testing.assert_array_equal(found.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 1))


@looped("device", DEVICES)
def test_indices_that_pick_nothing_are_not_looked_at(device):
    x = ndl.zeros(3, 4, device=device)
    far = ndl.Tensor([[7], [8]], dtype="int64", device=device)
    assert x[far, []].shape == np.zeros((3, 4))[far.numpy(), []].shape == (2, 0)
    x[far, []] = 1.0
    assert not x.any().item()


def test_take_with_a_number_takes_the_axis_away(device):
    x = ndl.Tensor(VALUES, device=device)
    for index, axis in ((1, 0), (-2, 1), (np.int64(3), 0)):
        found = ops.take(x, index, axis)
        np.testing.assert_array_equal(found.numpy(), np.take(VALUES, index, axis))


@looped("device", HOST_DEVICES)
def test_an_index_out_of_range_is_named_with_the_place_where_it_was_given(device):
    x = ndl.Tensor(VALUES, device=device)
    calls = {
        "8 at position 1 is out of range for axis 0 with 8": lambda: ops.take(x, [0, 8], 0),
        "-7 at position 2 is out of range for axis 1 with 6": lambda: x[:, [0, 1, -7]],
        "8 at position 0 ": lambda: x[[8]],
        r"9 at position \(1, 0\) ": lambda: ops.take(x, np.array([[0, 1], [9, 8]]), 0),
        r"8 at position \(\) ": lambda: ops.take(x, 8, 0),
    }
    for message, call in calls.items():
        with pytest.raises(IndexRangeError, match=f"^index: {message}"):
            call()
    with pytest.raises(DtypeError, match="^take: expected integer indices, got float32"):
        ops.take(x, ndl.Tensor([0.5]).to(device), 0)

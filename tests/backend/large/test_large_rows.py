"""Many rows by index, and long lines that are sorted."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from large_arrays import FLOATS, LONG, apply, check, exact, rows, tensor
from looped import looped

import needle as ndl
from needle import core, ops
from needle.errors import IndexRangeError
from needle.ops.index.row_sparse import Take, TakeGrad
from needle.testing.tolerance import assert_close

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


def ids_of(count, extent):
    """Return ids of which some come often, some never, and some count from the end."""
    random = np.random.default_rng(5)
    ids = random.integers(-extent, extent // 2, count)
    ids[random.permutation(count)[: count // 8]] = 3
    return ids


@looped("n", [16, 256, 1001])
@looped("dtype", [*FLOATS, "int32"])
def test_rows_are_gathered(isa, dtype, n):
    ids = ids_of(150, 200)
    x = tensor(np.round(100 * rows(200, n)), dtype, 1)
    for kind in ("int64", "int32", "int16"):
        (found,) = apply(Take.of(0), x, tensor(ids.astype(kind)))
        np.testing.assert_array_equal(found.numpy(), x.numpy()[ids])


@looped("n", [16, 256, 1001])
@looped("dtype", [*FLOATS, "int32", "int64"])
def test_rows_are_added_where_ids_say(isa, dtype, n):
    extent, ids = 203, ids_of(151, 203)
    updates = tensor(np.round(100 * rows(151, n)) / 64, "float64", 1)
    updates = tensor(updates.numpy().astype(dtype if dtype.startswith("int") else float), dtype, 1)
    expected = np.zeros((extent, n))
    np.add.at(expected, ids, exact(updates))
    for kind in ("int64", "int32", "int16"):
        index = tensor(ids.astype(kind))
        (found,) = apply(TakeGrad.of(0, (extent, n)), index, updates)
        assert_close(found.numpy(), expected, dtype, int(np.bincount(ids % extent).max()))


@looped("bad", [-204, 203])
def test_a_bad_id_is_named(isa, bad):
    ids = ids_of(151, 203)
    ids[[70, 90]] = bad
    with pytest.raises(IndexRangeError, match=rf"index {bad}\b"):
        apply(TakeGrad.of(0, (203, 256)), tensor(ids), tensor(rows(151, 256), "float32"))


def test_the_gradient_of_an_embedding(isa):
    ids = ids_of(600, 300) % 300
    weight = ndl.Tensor(rows(300, 64), dtype="float32", requires_grad=True, device="cpu")
    g = tensor(rows(600, 64, 1), "float32")
    (ops.embedding(weight, tensor(ids)) * g).sum().backward()
    expected = np.zeros((300, 64))
    np.add.at(expected, ids, exact(g))
    check(weight.grad, expected, int(np.bincount(ids).max()))


@looped("dtype, n", [("float32", 64), ("float32", 100), ("float64", 33), ("bfloat16", 160)])
def test_scatter_add_of_elements(isa, dtype, n):
    count, extent = 1200, 9000  # a result beyond the second cache is added up in strips
    index = np.random.default_rng(4).integers(-extent, extent, (count, n))
    index[::7] = 5
    updates = tensor(rows(count, n), dtype)
    expected = np.zeros((extent, n))
    np.add.at(expected, (index, np.arange(n)), exact(updates))
    for kind in ("int64", "int16"):
        found = ops.scatter_add(tensor(index.astype(kind)), updates, 0, (extent, n))
        assert_close(found.numpy(), expected, dtype, count // 7)
    index[[700, 700, 900], [n - 1, 20, 3]] = extent, extent + 1, -extent - 1
    with pytest.raises(IndexRangeError, match=rf"index {extent + 1}\b"):
        ops.scatter_add(tensor(index), updates, 0, (extent, n))


@looped("zen", [0, 1, 5])
@looped("dtype", ["float32", "float64", "bfloat16"])
def test_indices_along_rows(count_as_zen, zen, dtype):
    count_as_zen(zen)
    count, n, extent = 40, 300, 900  # whole blocks and a rest
    random = np.random.default_rng(2)
    index = random.integers(0, extent, (count, n))
    index[7, 130:140] = -random.integers(1, extent, 10)  # its block is walked one by one
    index[:, :5] = 3
    x, updates = tensor(rows(count, extent), dtype), tensor(rows(count, n), dtype)
    picked = np.take_along_axis(exact(x), index, 1)
    np.testing.assert_array_equal(exact(ops.gather(x, tensor(index), 1)), picked)
    expected = np.zeros((count, extent))
    np.add.at(expected, (np.arange(count)[:, None], index), exact(updates))
    added = ops.scatter_add(tensor(index), updates, 1, (count, extent))
    assert_close(added.numpy(), expected, dtype, 8)
    index[[30, 20, 20], [3, 250, 70]] = extent, extent + 1, -extent - 1
    for bad in (
        lambda: ops.gather(x, tensor(index), 1),
        lambda: ops.scatter_add(tensor(index), updates, 1, (count, extent)),
    ):
        with pytest.raises(IndexRangeError, match=rf"index -{extent + 1}\b"):
            bad()


@looped("dtype, n", [("float32", 200), ("float32", 300), ("float64", 100), ("bfloat16", 400)])
@looped("zen", [0, 1, 4, 5])
def test_gather_of_elements(count_as_zen, zen, dtype, n):
    count_as_zen(zen)
    count, extent = 2100, 6000  # a table beyond the second cache is read in strips
    index = np.random.default_rng(5).integers(-extent, extent, (count, n))
    table = tensor(rows(extent, n), dtype)
    expected = exact(table)[index, np.arange(n)]
    for kind in ("int64", "int16"):
        found = ops.gather(table, tensor(index.astype(kind)), 0)
        np.testing.assert_array_equal(exact(found), expected)
    part = ops.gather(table[:, 3 : n - 2], tensor(index)[:, 3 : n - 2], 0)
    np.testing.assert_array_equal(exact(part), expected[:, 3 : n - 2])
    places = index[:, 0] + extent * (n - 1)
    found = ops.gather(table.reshape(-1), tensor(places), 0)
    np.testing.assert_array_equal(exact(found), exact(table).reshape(-1)[places])
    index[[700, 700, 900], [n - 1, 20, 3]] = extent, extent + 1, -extent - 1
    with pytest.raises(IndexRangeError, match=rf"index {extent + 1}\b"):
        ops.gather(table, tensor(index), 0)


def floats_to_sort():
    random = np.random.default_rng(7)
    x = random.standard_normal(LONG)
    x[random.integers(0, LONG, 60_000)] = np.round(x[:60_000], 1)  # equal ones
    x[::1000], x[1::1500], x[2::2000], x[3::1700], x[4::1900] = np.nan, 0.0, -0.0, np.inf, -np.inf
    return x


def integers_to_sort(dtype):
    limits, random = np.iinfo(dtype), np.random.default_rng(8)
    x = random.integers(limits.min, limits.max, LONG, dtype, endpoint=True)
    x[::1000], x[1::1001] = limits.min, limits.max
    x[2::5] = x[2 : LONG // 2 : 5][0]
    return x


LINES = {
    "float32": lambda: floats_to_sort().astype(np.float32),
    "float64": floats_to_sort,
    "bfloat16": floats_to_sort,
    "int64": lambda: integers_to_sort(np.int64),
    "int32": lambda: integers_to_sort(np.int32),
    "near int64": lambda: np.iinfo(np.int64).max - np.arange(LONG) * 7919 % 5000,
    "uint8": lambda: integers_to_sort(np.uint8),
}


def order_of(x, descending):
    """Return the stable order: NaN is last, and equal numbers stay in order, either way."""
    if descending:
        x = -x if x.dtype.kind == "f" else ~x
    return np.argsort(x, kind="stable")


def bits(x):
    return x.view(f"u{x.dtype.itemsize}")


@looped("descending", [False, True])
@looped("kind", LINES)
def test_long_lines_are_sorted(kind, descending):
    values = LINES[kind]()
    x = tensor(values, kind.split()[-1], 1)
    order = order_of(exact(x) if kind == "bfloat16" else x.numpy(), descending)
    best = x.numpy()[order]
    before = core.native.isa()
    try:
        for isa in ISAS:
            core.native.select_isa(isa)
            np.testing.assert_array_equal(ops.argsort(x, descending=descending).numpy(), order)
            found = ops.sort(x, descending=descending).numpy()
            np.testing.assert_array_equal(bits(found), bits(best))
            for k in (1, 10, LONG // 20, LONG // 10):  # by selection, the last one by digits
                found, places = ops.topk(x, k, largest=descending)
                np.testing.assert_array_equal(places.numpy(), order[:k])
                np.testing.assert_array_equal(bits(found.numpy()), bits(best[:k]))
    finally:
        core.native.select_isa(before)


@looped("n", [1023, 1024, 1025, 5000])
def test_lines_with_steps_are_sorted(isa, n):
    x = tensor(np.round(rows(n, 3), 1), "float32")
    order = np.argsort(x.numpy(), 0, kind="stable")
    np.testing.assert_array_equal(ops.argsort(x, 0).numpy(), order)

"""Pads, pieces, joining, sorting, differences."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    IndexRangeError,
    OptionError,
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


@looped("mode", ["constant", "reflect", "symmetric", "edge", "wrap"])
def test_pad(mode):
    widths = ((1, 1), (2, 0), (1, 3))
    np.testing.assert_array_equal(ops.pad(tensor(X), widths, mode).numpy(), np.pad(X, widths, mode))
    check_gradients(lambda x: ops.pad(x, widths, mode), X, order=2)


@looped("kind", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@looped("mode", ["reflect", "symmetric", "edge", "wrap"])
def test_pad_by_edges_of_every_dtype_and_layout(device, mode, kind):
    widths = ((2, 0), (0, 3), (16, 5))
    x = ndl.Tensor(np.arange(3 * 4 * 70).reshape(3, 4, 70) % 200, device=device, dtype=kind)
    for view in (x[..., ::2], ops.permute(x, (0, 2, 1))[:, :40], ops.flip(x)):
        pads = tuple(
            (min(a, n - 1), min(b, n - 1)) for n, (a, b) in zip(view.shape, widths, strict=True)
        )
        expected = np.pad(view.numpy(), pads, mode)
        np.testing.assert_array_equal(ops.pad(view, pads, mode).numpy(), expected)


def test_pad_takes_a_value_and_known_modes_only():
    found = ops.pad(tensor([1.0, 2.0]), ((1, 0),), value=7.0)
    np.testing.assert_array_equal(found.numpy(), [7, 1, 2])
    with pytest.raises(OptionError, match="did you mean 'reflect'"):
        ops.pad(tensor([1.0]), ((1, 0),), "reflection")
    with pytest.raises(ShapeError):
        ops.pad(tensor([1.0, 2.0]), ((2, 0),), "reflect")
    with pytest.raises(ShapeError, match="an axis with elements"):
        ops.pad(tensor(np.ones((0, 2))), 1, "edge")
    with pytest.raises(ShapeError, match="reflect by"):
        ops.PadByEdges.of(((9, 0),), "reflect")(tensor([1.0, 2.0]))


# ---- pieces ------------------------------------------------------------------------


@looped("kind", ["float32", "bfloat16", "int64", "bool"])
@looped("shape", [(3, 4, 70), (3, 1, 5), (0, 2, 3), (2, 0, 3), (5, 7, 1)])
def test_joining_views_and_taking_apart(device, shape, kind):
    x = ndl.Tensor(np.arange(np.prod(shape)).reshape(shape) % 200, device=device, dtype=kind)
    turned = ops.permute(ops.permute(x, (2, 0, 1)) * 1, (1, 2, 0)).astype(kind)
    views = [x, ops.flip(x), turned, ops.broadcast_to(x[..., :1], shape)]
    arrays = [v.numpy() for v in views]
    for axis in range(-3, 3):
        np.testing.assert_array_equal(ops.concat(views, axis).numpy(), np.concatenate(arrays, axis))
        whole = ops.stack(views, axis)
        np.testing.assert_array_equal(whole.numpy(), np.stack(arrays, axis))
        for part, array in zip(ops.unbind(whole, axis), arrays, strict=True):
            np.testing.assert_array_equal(part.numpy(), array)
    some = ops.concat([x[:, :1], ops.flip(x)], 1)
    np.testing.assert_array_equal(some.numpy(), np.concatenate([arrays[0][:, :1], arrays[1]], 1))


def test_a_gradient_of_some_of_the_parts():
    check_gradients(lambda x: ops.unbind(x, 1)[2], X, order=2)
    check_gradients(lambda x: ops.unbind(x, 1)[0] * ops.unbind(x, 1)[4], X, order=2)


@looped("axis, sizes, places",
    [
        (0, [1, 3], [1]), (1, (2, 0, 3), [2, 2]), (-1, 4, [4]), (2, 3, [3]), (1, 9, []),
        (0, [4], []), (0, np.int64(3), [3]),
    ],
)  # fmt: skip
def test_split_by_sizes(axis, sizes, places):
    for found in (ops.split(tensor(X), axis, sizes=sizes), tensor(X).split(axis, sizes=sizes)):
        for part, expected in zip(found, np.split(X, places, axis), strict=True):
            np.testing.assert_array_equal(part.numpy(), expected)
    check_gradients(lambda x: ops.split(x, axis, sizes=sizes)[-1], X, order=2)


@looped("n, pieces", [(6, 3), (6, 4), (5, 2), (7, 4), (3, 5), (0, 2)])
def test_chunk_cuts_as_torch_does(n, pieces):
    x, step = np.arange(2.0 * n).reshape(2, n), max(-(-n // pieces), 1)
    expected = [x[:, i : i + step] for i in range(0, n, step)] or [x] * pieces
    for found in (ops.chunk(tensor(x), pieces, 1), tensor(x).chunk(pieces, -1)):
        for part, values in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), values)


@looped(
    "call, error, said",
    [
        (lambda x: ops.split(x, [1, 2]), OptionError, r"split\(x, sizes=\[1, 2\], axis=0\)"),
        (lambda x: ops.split(x, sizes=[1, 2]), ShapeError, r"\[1, 2\] of an axis of size 4"),
        (lambda x: ops.split(x, sizes=[5, -1]), ShapeError, "of an axis of size 4"),
        (lambda x: ops.split(x, sizes=0), ShapeError, "one number is positive"),
        (lambda x: ops.split(x, sizes=1.5), OptionError, "rule: an integer"),
        (lambda x: ops.split(x, 3, sizes=1), IndexRangeError, "axis 3"),
        (lambda x: ops.chunk(x, 0), OptionError, "0 pieces"),
        (lambda x: ops.chunk(x, 2.0), OptionError, "2.0 pieces"),
    ],
)
def test_wrong_pieces(call, error, said):
    with pytest.raises(error, match=said):
        call(tensor(X))


# ---- sorting -----------------------------------------------------------------------


@looped("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_unique_sorts_and_merges_nan(dtype):
    values = np.array([1, np.nan, 0.5, 3, np.nan, 0.5])
    asked = {"return_index": True, "return_inverse": True, "return_counts": True}
    found = ops.unique(ndl.Tensor(values, dtype=dtype), **asked)
    assert found[0].dtype == dtype
    for part, expected in zip(found, np.unique(values, **asked), strict=True):
        np.testing.assert_array_equal(part.astype("float64").numpy(), expected)
    apart = ndl.standard.unique_values(ndl.Tensor(values, dtype=dtype)).astype("float64")
    np.testing.assert_array_equal(apart.numpy(), [0.5, 1, 3, np.nan, np.nan])


@looped("values", [[[1, np.nan, 2, 0], [3, 1, 2, 0]], [[np.nan] * 2] * 2])
@looped("dtype", ["bfloat16", "float32", "float64"])
def test_median_of_nan_is_nan(dtype, values):
    found = ops.median(ndl.Tensor(values, dtype=dtype), 1).astype("float64").numpy()
    low = np.quantile(values, 0.5, axis=1, method="lower")
    np.testing.assert_array_equal(found, low)


@looped("n, axis", [(1, -1), (2, 1), (0, 0), (3, 0), (9, 2)])
def test_diff(n, axis):
    expected = np.diff(X, n, axis)
    for found in (ops.diff(tensor(X), n, axis), tensor(X).diff(n, axis)):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
    if expected.size:
        check_gradients(lambda x: ops.diff(x, n, axis), X, order=2)


def test_what_diff_refuses():
    for n, axis, kind in ((-1, 0, OptionError), (1.5, 0, ArgumentError), (1, 3, IndexRangeError)):
        with pytest.raises(kind):
            ops.diff(tensor(X), n, axis)


@looped("shapes", [((), ()), ((2,), (3,)), ((2, 3), (2, 3)), ((2, 1, 4),) * 3])
def test_joining_side_by_side_and_one_above_the_other(shapes):
    parts = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    for name in ("hstack", "vstack"):
        if name == "vstack" and shapes[0] == (2,):
            with pytest.raises(ShapeError):
                ops.vstack([tensor(x) for x in parts])
            continue
        found = getattr(ops, name)([tensor(x) for x in parts])
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(parts))
    with pytest.raises(ShapeError, match="expected at least one tensor"):
        ops.hstack([])


def test_the_method_diagonal_takes_axes():
    for k, first, second in ((0, 0, 1), (1, -1, 0), (-1, 1, 2)):
        expected = np.diagonal(X, k, first, second)
        np.testing.assert_array_equal(tensor(X).diagonal(k, first, second).numpy(), expected)


def test_more_pieces_than_there_can_be():
    for function in (ops.tensor_split, ops.chunk, ops.vsplit):
        with pytest.raises(OptionError, match="pieces"):
            function(ndl.zeros((0, 3)), 2**70)


def test_padding_with_a_negative_zero():
    found = ops.pad(ndl.ones(1), 1, value=-0.0).numpy()
    assert np.signbit(found).tolist() == [True, False, True]

"""Functions of places that PyTorch has too: pieces, axes, indices, ranks."""

from __future__ import annotations

import numpy as np
import pytest
from beside_pytorch import ODD, PLACES, ROW_SIGNS, A, B, assert_like, needs_torch, tensor
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    DtypeError,
    OptionError,
    ShapeError,
)
from needle.testing import check_gradients

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


def test_signs_may_be_integers_and_lists():
    x, y = ndl.Tensor(A), ndl.Tensor(B)
    signs = ROW_SIGNS.astype(int)
    expected = ops.cosine_embedding_loss(x, y, ndl.Tensor(ROW_SIGNS)).item()
    for given in (signs.tolist(), signs, ndl.Tensor(signs, dtype="int64")):
        assert ops.cosine_embedding_loss(x, y, given).item() == expected


@needs_torch
@looped("values", [[[1, 1, 2], [2, 3, 1]], [1.0, np.nan, np.nan, 2.0, 2.0], [], 3])
@looped("asked", ["", "return_inverse", "return_counts", "both"])
def test_runs_of_equal_elements(values, asked):
    names = ("return_inverse", "return_counts") if asked == "both" else asked.split()
    settings = dict.fromkeys(names, True)
    x = np.array(values)
    expected = torch.unique_consecutive(torch.tensor(x), **settings)
    found = ops.unique_consecutive(ndl.Tensor(x, dtype=str(x.dtype)), **settings)
    if not settings:
        expected, found = (expected,), (found,)
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy(), strict=True)
    method = ndl.Tensor(x).unique_consecutive(*(name in names for name in (
        "return_inverse", "return_counts")))  # fmt: skip
    first = method[0] if settings else method
    np.testing.assert_array_equal(first.numpy(), found[0].numpy())


@looped("right", [False, True])
def test_buckets(right):
    edges, x = np.array([0.0, 1.0, 1.0, 2.0]), np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, 3.0]])
    expected = np.searchsorted(edges, x, "right" if right else "left")
    for found in (ops.bucketize(tensor(x), tensor(edges), right), tensor(x).bucketize(edges, right),
                  tensor(x).bucketize(edges.tolist(), right)):  # fmt: skip
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)
    whole = ndl.Tensor([1, 5], dtype="int64").bucketize(range(1, 4), right)
    assert whole.tolist() == [1 if right else 0, 3]
    assert tensor(x).bucketize([0, 1, 1, 2], right).tolist() == expected.tolist()


def test_scatter_writes_numbers_lists_and_the_last_of_equals():
    x = ndl.zeros(2, 3, dtype="int32")
    assert x.scatter(1, [[0], [2]], 7).tolist() == [[7, 0, 0], [0, 0, 7]]
    assert x.scatter(0, [[1, 1, -1], [1, 0, 0]], np.arange(6).reshape(2, 3)).tolist() == [
        [0, 4, 5], [3, 1, 2],
    ]  # fmt: skip
    assert x.tolist() == [[0] * 3] * 2 and x.dtype == "int32"


@needs_torch
@looped("kind", ["float64", "float16", "int64", "uint8"])
@looped("reduce", ["sum", "prod", "mean", "amax", "amin"])
@looped("own", [True, False])
def test_elements_reduced_at_indices(kind, reduce, own, device):
    """Ties, zeros, numbers that are none, and of integers the least."""
    x = np.array([[2, 0, 2, 3, 1], [0, 5, 1, 1, 2]])
    x = x if own else x + 90  # PyTorch counts it as a tie where it is left out
    v = np.array([[2, 2, 2, 0, 3, 0, 1], [0, 0, 7, 1, 2, 1, 1]])
    index = np.array([[0, 0, 1, 1, 2, 2, 3], [0, 2, 1, 1, 2, 2, 2]])
    if kind == "float64":
        v = np.where(v == 7, np.nan, v)
    if kind == "int64":
        v[1, 2] = np.iinfo(kind).min
    a, b = (ndl.Tensor(z, dtype=kind, device=device) for z in (x, v))
    given = [torch.tensor(z.astype(kind), requires_grad=kind == "float64") for z in (x, v)]
    found = a.scatter_reduce(1, ndl.Tensor(index, device=device), b, reduce, include_self=own)
    expected = given[0].scatter_reduce(1, torch.tensor(index), given[1], reduce, include_self=own)
    assert found.dtype == kind
    np.testing.assert_array_equal(found.numpy(), expected.detach().numpy())
    if kind == "float64":
        ops.where(ops.isnan(found), 0.0, found).sum().backward()
        torch.where(expected.isnan(), 0.0, expected).sum().backward()
        for ours, theirs in zip((a, b), given, strict=True):
            numbers = ~np.isnan(theirs.grad.numpy())
            np.testing.assert_allclose(ours.grad.numpy()[numbers], theirs.grad.numpy()[numbers])


def test_a_reduction_that_is_none():
    with pytest.raises(OptionError, match="did you mean 'amax'"):
        ops.scatter_reduce(tensor(A), 1, PLACES % 3, tensor(A), "max")


@needs_torch
def test_pieces_are_cut_as_pytorch_cuts_them():
    for shape in ((5,), (4, 6), (2, 3, 4), (0, 3)):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        a, b = tensor(x), torch.tensor(x)
        for pieces in (1, 2, 3, 7, [], [1], [1, 3], [2, 1], [-1], [0, 9], (1, -1)):
            for axis in range(-1, len(shape) - 1):
                parts = ops.tensor_split(a, pieces, axis), torch.tensor_split(b, pieces, axis)
                for found, expected in zip(*parts, strict=True):
                    np.testing.assert_array_equal(found.numpy(), expected.numpy(), strict=True)
            for name in ("hsplit", "vsplit"):
                try:
                    expected = getattr(b, name)(pieces)
                except RuntimeError:
                    with pytest.raises(ShapeError, match=name):
                        getattr(a, name)(pieces)
                    continue
                for part, other in zip(getattr(a, name)(pieces), expected, strict=True):
                    np.testing.assert_array_equal(part.numpy(), other.numpy(), strict=True)
    check_gradients(lambda x: ops.tensor_split(x, 4, 1)[0], A, order=2)


def test_axes_are_added_to_several_tensors():
    x, y = tensor(1.0), tensor([1.0, 2.0])
    for found in (ops.atleast_2d(x, y), ops.atleast_2d([x, y])):
        assert [part.shape for part in found] == [(1, 1), (1, 2)]
    assert ops.atleast_3d(x).shape == (1, 1, 1) and ops.atleast_1d(y) is y
    assert ops.atleast_3d(ndl.zeros(0)).shape == (1, 0, 1)


def test_blocks_of_several_kinds():
    found = ops.block_diag(ndl.Tensor([[1, 2]], dtype="int32"), 3, ndl.Tensor([4], dtype="int64"))
    assert found.dtype == "int64" and found.tolist() == [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 4]]
    x = tensor([2.0])
    out = ops.block_diag(ndl.zeros(0, dtype="float64"), x)  # PyTorch's gradient is that of row 0
    (out * tensor([[10.0], [20.0]])).sum().backward()
    assert out.shape == (2, 1) and x.grad.tolist() == [20.0]


def test_slices_at_indices_of_any_kind():
    x = ndl.Tensor(np.arange(6).reshape(2, 3), dtype="int32")
    for index in ([2, 0], np.array([2, 0]), range(2, -1, -2), ndl.arange(-1, 1)):
        assert x.index_fill(1, index, 9).tolist() == [[9, 1, 9], [9, 4, 9]]
    assert x.index_fill(0, 1, ndl.Tensor([7], dtype="int32")).tolist() == [[0, 1, 2], [7, 7, 7]]
    assert x.index_copy(0, [1, 1], np.array([[1, 1, 1], [2, 2, 2]])).tolist()[1] == [2, 2, 2]
    assert x.index_fill(0, [], 9).tolist() == x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.index_add(0, [], ndl.zeros(0, 3, dtype="int32")).tolist() == x.tolist()


def test_the_middle_of_what_is_a_number():
    x = np.array([[1.0, np.nan, 2.0, 5.0], [np.nan] * 4, [np.inf, -np.inf, np.nan, 0.0]])
    np.testing.assert_array_equal(ops.nanmedian(tensor(x)).numpy(), [2.0, np.nan, 0.0])
    given = tensor(x[:1])
    ops.nanmedian(given).sum().backward()
    assert given.grad.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert ops.nanmedian(ndl.Tensor([3, 1, 2], dtype="int64")).item() == 2


@needs_torch
@looped("to", ["float64", "float16", "int32", "uint8"])
@looped("kind", ["float32", "int64", "uint8", "bool"])
def test_what_is_added_up_is_cast_first(kind, to):
    x = np.array([[1, 0, 3], [200, 100, 7]], kind)
    mine, other = ndl.Tensor(x, dtype=kind), torch.tensor(x)
    for name in ("sum", "prod", "cumsum", "cumprod", "mean", "softmax", "log_softmax"):
        if to[0] != "f" and name in ("mean", "softmax", "log_softmax"):
            with pytest.raises(DtypeError, match=f"{name}: dtype is {to}\n(.*\n)+  rule: the re"):
                getattr(mine, name)(1, dtype=to)
            continue
        found = getattr(mine, name)(1, dtype=to)
        expected = getattr(other, name)(1, dtype=getattr(torch, to))
        assert found.dtype == to and str(expected.dtype) == f"torch.{to}"
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2)
        np.testing.assert_array_equal(getattr(ops, name)(mine, 1, dtype=to).numpy(), found.numpy())


def test_a_quantile_beside_infinity_is_what_it_is():
    x = tensor([1.0, 2.0, np.inf])
    for q in (0.5, tensor(0.5), [0.0, 0.5]):
        assert np.isfinite(ops.quantile(x, q).numpy()).all()
    for how in ("linear", "lower", "higher", "nearest", "midpoint"):
        for value in (np.inf, -np.inf):
            assert ops.quantile(tensor([value] * 3), 0.3, interpolation=how).item() == value
    assert ops.quantile(x, 0.3, interpolation="higher").item() == 2.0


@needs_torch
@looped("right", [False, True, None])
@looped("side", ["left", "right", None])
def test_sides_of_equal_edges(side, right):
    edges, x = np.array([0.0, 1.0, 1.0, 2.0]), np.array([[0.0, 1.0], [2.0, 3.0]])
    if None not in (side, right) and (side == "right") is not right:
        with pytest.raises(OptionError, match=f"side='{side}' contradicts right={right}"):
            ops.searchsorted(tensor(edges), tensor(x), side, right=right)
        return
    side = side or ("right" if right else "left")
    for found in (ops.searchsorted(tensor(edges), tensor(x), side, right=right),
                  tensor(edges).searchsorted(tensor(x), side=side, right=right)):  # fmt: skip
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(edges, x, side))


def test_differences_beside_numbers():
    whole = ndl.Tensor([[1, 4], [9, 16]], dtype="int32")
    found = whole.diff(prepend=0, append=whole[:, :1])
    assert found.dtype == "int32" and found.tolist() == [[1, 3, -3], [9, 7, -7]]
    assert tensor(A).diff(2, 0, prepend=0.5).shape == (5, 5)
    assert ops.diff(tensor(A), 0, prepend=1.0).shape == A.shape


@needs_torch
def test_positions_of_the_kth_value():
    values, places = tensor(A).kthvalue(2, 0)
    expected = torch.kthvalue(torch.tensor(A), 2, 0)
    np.testing.assert_array_equal(values.numpy(), expected[0].numpy())
    np.testing.assert_array_equal(places.numpy(), expected[1].numpy())
    assert np.isnan(ops.kthvalue(tensor([np.nan, 1.0]), 2)[0].item()) and not places.requires_grad


def test_new_tensors_of_a_tensor():
    x = ndl.ones(2, dtype="float64")
    for found in (x.new_zeros(2, 3), x.new_zeros((2, 3)), x.new_ones(2, 3) - 1.0,
                  x.new_full((2, 3), 0.0), x.new_tensor(np.zeros((2, 3), "float32"))):  # fmt: skip
        assert found.dtype == "float64" and found.tolist() == [[0.0] * 3] * 2
        assert not found.requires_grad
    assert x.new_empty(3, 0, dtype="int8").shape == (3, 0)
    assert x.new_ones(2, dtype="int8").dtype == "int8" and x.new_zeros(3).shape == (3,)
    copy = x.new_tensor(x)
    copy[0] = 5.0
    assert x.tolist() == [1.0, 1.0] and copy.tolist() == [5.0, 1.0]


@needs_torch
def test_methods_of_the_same_names():
    x, y = tensor(A), tensor(B)
    np.testing.assert_array_equal(
        tensor(ODD).unfold(2, 3, 2).numpy(), torch.tensor(ODD).unfold(2, 3, 2).numpy()
    )
    narrow = x[:, :3]
    for found, expected in (
        (x.addcmul(x, y, value=2.0), A + 2 * A * B),
        (x.addcdiv(x, y), A + A / B),
        (x.rot90(), np.rot90(A)),
        (x[0].diag_embed(1), np.diag(A[0], 1)),
        (narrow.take_along_dim(ndl.Tensor(PLACES), 0), np.take_along_axis(A[:, :3], PLACES, 0)),
    ):
        assert_like(found.numpy(), expected, rtol=1e-12)

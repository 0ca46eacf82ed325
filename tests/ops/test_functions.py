"""Functions made of several ops: indexing, assignment, einsum, losses, new tensors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    RangeError,
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))
K, J = np.array([0, 2, -1]), np.array([[1], [3]])
ALL = slice(None)
ROWS = np.array([True, False, True, True])
INDICES = [
    K, (K, K), (ALL, K), (K, ALL, K), (J, K), (0, K), (ALL, 0, K), (K, 0, slice(1, 4)), X > 0, ROWS,
    (ROWS, 0), (ALL, X[0].mean(1) > 0), (Ellipsis, K), (K, Ellipsis, J), (None, K, None),
    (slice(None, None, -1), K, None, J), [0, 1], (np.zeros(0, int),), (np.array(2), K),
    range(2), (ALL, range(4, 1, -2)), (0, range(0)),
    (ROWS, ALL, [0, 3, 4]), (0, 1, 2), -1, (slice(1, 3), None, Ellipsis), (0, ALL, K),
    (ALL, K, Ellipsis, K), (ALL, 0, Ellipsis, K), (ALL, Ellipsis, K, K), (ALL, K, K, Ellipsis),
    (K, Ellipsis, K, K), (X > 0, Ellipsis), (Ellipsis, X > 0), (None, Ellipsis, X > 0),
    ((0, 1), (1, 2)), ((1, 0), ALL, (3, 3)), ((),), (ALL, ((0, 1), (2, 2))),
]  # fmt: skip


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


# ---- indexing ----------------------------------------------------------------------


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
@pytest.mark.parametrize("lazy", [False, True])
def test_indexing_reads_as_numpy_does(index, lazy):
    with ndl.lazy_mode(lazy):
        found = tensor(X)[index]
        np.testing.assert_array_equal(found.numpy(), X[index])
    if found.size:
        check_gradients(lambda x: x[index], X, order=2)


@pytest.mark.parametrize("index", [2**63, 2**70, -(2**70), (0, 2**64)])
def test_an_index_beyond_63_bits_is_out_of_range(index):
    x = tensor(X)
    with pytest.raises(IndexRangeError):
        x[index]
    with pytest.raises(IndexRangeError):
        x[index] = 5.0
    np.testing.assert_array_equal(x.numpy(), X)


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
@pytest.mark.parametrize("lazy", [False, True])
def test_assignment_writes_as_numpy_does(index, lazy):
    values = np.random.default_rng(1).normal(size=X[index].shape)
    for value in (7.0, values):
        expected = X.copy()
        expected[index] = value
        with ndl.lazy_mode(lazy):
            x = tensor(X)
            before = x + 0.0
            x[index] = value
            np.testing.assert_array_equal(x.numpy(), expected)
            np.testing.assert_array_equal(before.numpy(), X)
    if values.size:
        check_gradients(lambda x, v: ops.put(x, index, v), X, values, order=2)


def test_assignment_keeps_a_leaf_a_leaf_and_a_result_in_its_graph():
    leaf = ndl.Tensor([1.0, 2.0, 3.0])
    leaf[1] = 5
    assert leaf.is_leaf() and leaf.requires_grad
    y = leaf * 2.0
    y[0] = 0.0
    y.sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [0, 2, 2])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("value", [lambda x: x[0] ** 3, lambda x: 2.0], ids=["x[0] ** 3", "2"])
def test_derivatives_of_assignments_compose_in_any_order(value, lazy):
    def function(x):
        y = x**3
        y[0] = value(x)
        return y

    with ndl.lazy_mode(lazy):
        check_gradients(function, np.array([0.5, 2.0]), order=2)


def test_assigning_part_of_a_graph_makes_a_leaf_part_of_it():
    value, x = ndl.Tensor([2.0]), ndl.Tensor([1.0, 2.0], requires_grad=False)
    x[0:1] = value
    (3.0 * x).sum().backward()
    assert value.grad.item() == 3.0


def _put_rows(x):
    y = ops.zeros((3, 2), dtype="float64")
    y[1:] = [[x[0] * x[1], 2.0], x[1:]]
    return y


def _put_list(x):
    y = x * 1.0
    y[0:2] = [x[2], x[0] ** 3]
    return y


OF_TENSORS = {
    "list": _put_list, "lists": _put_rows,
    "full": lambda x: ops.full((2, 3), x[0] * x[1], dtype="float64"),
    "full_like": lambda x: ops.full_like(x, x[1:2]),
    "standard.full": lambda x: ndl.standard.full(2, x[0], dtype="float64"),
    "standard.full_like": lambda x: ndl.standard.full_like(x, x.sum()),
    "linspace": lambda x: ops.linspace(x[0], x[1] * x[2], 5, dtype="float64"),
    "linspace of rows": lambda x: ops.linspace(x, [1, 2, 3], 4, endpoint=False, dtype="float64"),
    "standard.linspace": lambda x: ndl.standard.linspace(0, x[0], 3, dtype="float64"),
    "arange": lambda x: ops.arange(x[0], 4.0, x[1], dtype="float64"),
    "asarray": lambda x: ndl.standard.asarray([[x[0] ** 2, 1], (2.5, x[1])], dtype="float64"),
    "asarray of rows": lambda x: ndl.standard.asarray([x * x, [1, 2, 3]], dtype="float64"),
}  # fmt: skip


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", OF_TENSORS)
def test_gradients_flow_through_what_is_made_of_tensors(name, lazy):
    """In reverse and in forward mode, twice; the values are those without gradients."""
    values, make = np.array([0.7, 1.3, 0.4]), OF_TENSORS[name]
    with ndl.lazy_mode(lazy):
        x = ndl.Tensor(values, dtype="float64")
        found = make(x)
        assert found.requires_grad
        with ndl.no_grad():
            plain = make(x)
        assert not plain.requires_grad and plain.spec == found.spec
        np.testing.assert_allclose(found.numpy(), plain.numpy(), rtol=1e-15)
        check_gradients(make, values, order=2)


@pytest.mark.parametrize("shape", [(1, 3), (1, 1, 3), (1, 1)])
def test_leading_axes_of_size_one_are_not_in_the_way_of_an_assignment(shape):
    expected, values = X.copy(), np.full(shape, 5.0)
    place = (0,) * (X.ndim - 1) + (slice(None, 3),)
    expected[place] = values
    x = tensor(X)
    x[place] = values
    np.testing.assert_array_equal(x.numpy(), expected)
    x[(0,) * X.ndim] = np.full((1,), 7.0)
    assert x.numpy().flat[0] == 7.0
    with pytest.raises(ShapeError, match="does not broadcast"):
        x[place] = np.full((2, 3), 5.0)


def test_the_last_of_equal_places_is_written():
    x = tensor(np.zeros(3))
    x[np.array([1, 1, 0])] = tensor([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(x.numpy(), [3, 2, 0])


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (9, IndexRangeError), ((K, 9 * K), IndexRangeError), (1.5, IndexRangeError),
        ([0.5], IndexRangeError), ([[0], [1, 2]], IndexRangeError), (["x"], IndexRangeError),
        ([None], IndexRangeError), ((X > 0)[:2], IndexRangeError), ((0, 0, 0, 0), IndexRangeError),
        ("x", IndexRangeError), ((Ellipsis, Ellipsis), IndexRangeError),
        ((K, np.array([0, 1])), ShapeError),
    ],
)  # fmt: skip
def test_wrong_indices(index, error):
    with pytest.raises(error):
        tensor(X)[index]


@pytest.mark.parametrize("index", [["x"], [[0], [1, 2]], [7], [None]])
def test_take_refuses_what_is_no_index(index):
    with pytest.raises(IndexRangeError):
        ops.take(tensor(X), index, 0)


def test_wrong_values():
    whole = ndl.Tensor(np.arange(4))
    with pytest.raises(DtypeError):
        whole[0] = 1.5
    with pytest.raises(ShapeError):
        whole[:2] = np.zeros(3, int)


def test_numpy_operands_keep_their_precision_beside_float64():
    values = np.full(3, 0.1)
    assert ((tensor(np.zeros(3)) + values).numpy() == values).all()
    assert (ndl.Tensor([0.0]) + np.full(1, 0.1)).dtype == "float32"


def test_comparison_is_elementwise_and_identity_hashes():
    x = tensor(X)
    assert (x == x).all() and not (x != x).any()
    assert x in {x: 1} and x is not None and (x == None) is False  # noqa: E711
    with ndl.config(debug=1):  # makers are kept by identity
        assert "add" in (x + x).maker


# ---- einsum and pads -----------------------------------------------------------------

EQUATIONS = [
    "ij,jk->ik", "bij,bjk->bik", "ii->i", "ii->", "ij->ji", "ij,ij->", "i,j->ij", "abc,cd,de->abe",
    "ab,b->a", "...ij,...jk->...ik", "ij,jk", "iji->j", "abc->b", "aij,bij->ab", "i,i,i->i",
]  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    rng, sizes = np.random.default_rng(0), {"i": 3, "j": 4, "k": 5, "a": 2, "b": 3, "c": 4}
    arrays = []
    for term in equation.split("->")[0].split(","):
        lead = (2, 3) if "..." in term else ()
        arrays.append(rng.normal(size=lead + tuple(sizes.get(c, 2) for c in term.strip("."))))
    found = ops.einsum(equation, *map(tensor, arrays)).numpy()
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)
    check_gradients(lambda *args: ops.einsum(equation, *args), *arrays, order=2)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij->k", "ij", "ij,ij,ij->i", "ij->ii"])
def test_wrong_equations(equation):
    tensors = [tensor(X[0])] * 2 if equation.count(",") == 1 else [tensor(X[0])]
    if equation == "ij":
        tensors = [tensor(X)]
    with pytest.raises(ShapeError):
        ops.einsum(equation, *tensors)


@pytest.mark.parametrize(
    ("equation", "shape", "said"),
    [
        ("AA->", (3, 1), "'A' of 'AA' has sizes 3 and 1"), ("ii", (1, 4), "sizes 1 and 4"),
        ("ii->i", (1, 4), "sizes 1 and 4"), ("iji->j", (2, 3, 1), "sizes 2 and 1"),
        ("...i...", (2, 3), "stands once"), ("i.j", (2, 3), "letters"),
        ("ij->......", (2, 3), "stands once"), ("i j -> i1", (2, 3), "letters"),
    ],
)  # fmt: skip
def test_einsum_says_what_is_wrong_with_an_operand(equation, shape, said):
    with pytest.raises(ShapeError, match=f"einsum: .*{said}"):
        ops.einsum(equation, tensor(np.ones(shape)))


def test_einsum_of_other_shapes_and_dtypes_after_the_first():
    for n in (2, 3, 2):
        for dtype in ("float32", "float64"):
            x = np.arange(n * 4, dtype=dtype).reshape(n, 4)
            found = ops.einsum("ij,kj->ik", ndl.Tensor(x, dtype=dtype), ndl.Tensor(x, dtype=dtype))
            assert str(found.dtype) == dtype
            np.testing.assert_array_equal(found.numpy(), x @ x.T)
    x = tensor(np.ones((3, 4)))
    assert ops.einsum("ij->ij", x) is not x


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ((3, 4), (4, 5), 1), ((3, 4), (5,), 0), ((2, 3, 4), (3, 4, 5), 2), ((3, 4), (3, 4), 2),
        ((2, 3, 4), (4, 2, 5), ((0, 2), (1, 0))), ((2, 3, 4), (3, 5), ((-2,), (0,))),
        ((0, 3), (3, 2), 1), ((2, 0), (0, 3), 1), ((3,), (3,), 1), ((2, 1), (1, 3), 1),
        ((2, 3), (4, 3), (1, 1)), ((2, 3), (4, 3), (1, [1])),
    ],
)  # fmt: skip
def test_tensordot(a, b, axes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    expected = np.tensordot(x, y, axes)
    for _ in range(2):
        found = ops.tensordot(tensor(x), tensor(y), axes)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
    check_gradients(lambda x, y: ops.tensordot(x, y, axes), x, y, order=2)


@pytest.mark.parametrize("axes", [3, -1, ((0,), (0,)), ((0, 0), (0, 0)), ((0,), (0, 1))])
def test_axes_that_tensordot_refuses(axes):
    with pytest.raises(ShapeError, match="tensordot"):
        ops.tensordot(tensor(np.ones((2, 3))), tensor(np.ones((3, 2))), axes)


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 4, 3), (3,)), ((3,), (2, 3, 4))]
)
def test_products_with_vectors(a, b):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    found = ops.matmul(tensor(x), tensor(y))
    assert found.shape == np.matmul(x, y).shape
    np.testing.assert_allclose(found.numpy(), np.matmul(x, y), rtol=1e-12)
    check_gradients(ops.matmul, x, y, order=2)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "bfloat16"])
def test_count_nonzero(dtype):
    x = tensor(np.array([[0.0, 2.0, 0.0], [1.0, 3.0, -0.0]])).astype(dtype)
    assert ops.count_nonzero(x).item() == 3
    found = ops.count_nonzero(x, axis=1, keepdims=True)
    assert str(found.dtype) == "int64"
    np.testing.assert_array_equal(found.numpy(), [[1], [2]])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_huber_loss_at_special_values(dtype):
    x = ndl.Tensor(np.array([0.0, 0.5, 1.0, 3.0, -3.0, np.inf, -np.inf, np.nan])).astype(dtype)
    zero = ndl.zeros_like(x)
    expected = [0.0, 0.125, 0.5, 2.5, 2.5, np.inf, np.inf, np.nan]
    found = ops.huber_loss(x, zero, reduction="none")
    np.testing.assert_array_equal(found.numpy().astype(np.float64), expected)
    with ndl.config(device="cpu_numpy"):
        there = ops.huber_loss(x.to("cpu_numpy"), zero.to("cpu_numpy"), reduction="none")
    np.testing.assert_array_equal(there.numpy().astype(np.float64), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric", "edge", "wrap"])
def test_pad(mode):
    widths = ((1, 1), (2, 0), (1, 3))
    np.testing.assert_array_equal(ops.pad(tensor(X), widths, mode).numpy(), np.pad(X, widths, mode))
    check_gradients(lambda x: ops.pad(x, widths, mode), X, order=2)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
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


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(3, 4, 70), (3, 1, 5), (0, 2, 3), (2, 0, 3), (5, 7, 1)])
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


@pytest.mark.parametrize(
    ("axis", "sizes", "places"),
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


@pytest.mark.parametrize(("n", "pieces"), [(6, 3), (6, 4), (5, 2), (7, 4), (3, 5), (0, 2)])
def test_chunk_cuts_as_torch_does(n, pieces):
    x, step = np.arange(2.0 * n).reshape(2, n), max(-(-n // pieces), 1)
    expected = [x[:, i : i + step] for i in range(0, n, step)] or [x] * pieces
    for found in (ops.chunk(tensor(x), pieces, 1), tensor(x).chunk(pieces, -1)):
        for part, values in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), values)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x: ops.split(x, [1, 2]), OptionError, r"split\(x, sizes=\[1, 2\], axis=0\)"),
        (lambda x: ops.split(x, sizes=[1, 2]), ShapeError, r"\[1, 2\] of an axis of size 4"),
        (lambda x: ops.split(x, sizes=[5, -1]), ShapeError, "of an axis of size 4"),
        (lambda x: ops.split(x, sizes=0), ShapeError, "one number is positive"),
        (lambda x: ops.split(x, sizes=1.5), OptionError, "a whole number"),
        (lambda x: ops.split(x, 3, sizes=1), IndexRangeError, "axis 3"),
        (lambda x: ops.chunk(x, 0), OptionError, "0 pieces"),
        (lambda x: ops.chunk(x, 2.0), OptionError, "2.0 pieces"),
    ],
)
def test_wrong_pieces(call, error, said):
    with pytest.raises(error, match=said):
        call(tensor(X))


# ---- sorting -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_unique_sorts_and_merges_nan(dtype):
    values = np.array([1, np.nan, 0.5, 3, np.nan, 0.5])
    asked = {"return_index": True, "return_inverse": True, "return_counts": True}
    found = ops.unique(ndl.Tensor(values, dtype=dtype), **asked)
    assert found[0].dtype == dtype
    for part, expected in zip(found, np.unique(values, **asked), strict=True):
        np.testing.assert_array_equal(part.astype("float64").numpy(), expected)
    apart = ndl.standard.unique_values(ndl.Tensor(values, dtype=dtype)).astype("float64")
    np.testing.assert_array_equal(apart.numpy(), [0.5, 1, 3, np.nan, np.nan])


@pytest.mark.parametrize("values", [[[1, np.nan, 2, 0], [3, 1, 2, 0]], [[np.nan] * 2] * 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_median_of_nan_is_nan(dtype, values):
    found = ops.median(ndl.Tensor(values, dtype=dtype), 1).astype("float64").numpy()
    low = np.quantile(values, 0.5, axis=1, method="lower")
    np.testing.assert_array_equal(found, low)


# ---- what does not fit -------------------------------------------------------------

WHOLE = ndl.Tensor(np.array([[1, 2], [3, 4]], "int32"))
MASK = ndl.Tensor(np.array([[True, False], [False, False]]))


@pytest.mark.parametrize(
    ("x", "value"), [(WHOLE, 7), (WHOLE, 2.0), (MASK, 1), (MASK, True), (WHOLE, np.int64(3))]
)
def test_filling_keeps_the_dtype(x, value):
    found = ops.pad(x, ((1, 0), (0, 1)), value=value)
    expected = np.pad(x.numpy(), ((1, 0), (0, 1)), constant_values=value)
    filled = x.masked_fill(MASK, value)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(filled.numpy(), np.where(MASK.numpy(), value, x.numpy()))
    assert found.dtype == filled.dtype == x.dtype


UNFIT = {
    "pad fraction": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value=0.5), DtypeError, "0.5 does"),
    "pad range": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value=2**40), DtypeError, "int32"),
    "pad bool": (lambda: ops.pad(MASK, ((1, 0), (0, 0)), value=2), DtypeError, "2 does not"),
    "pad text": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value="1"), DtypeError, "no number"),
    "pad width": (lambda: ops.pad(WHOLE, ((1.5, 0), (0, 0))), ArgumentError, "width is 1.5"),
    "pad edge": (lambda: ops.pad(WHOLE, ((1.5, 0), (0, 0)), "edge"), ArgumentError, "width is 1.5"),
    "fill": (lambda: WHOLE.masked_fill(MASK, 1.5), DtypeError, "masked_fill: the value 1.5"),
    "fill nan": (lambda: WHOLE.masked_fill(MASK, np.nan), DtypeError, "nan does not fit"),
    "fill infinity": (lambda: WHOLE.masked_fill(MASK, -np.inf), DtypeError, "-inf does not"),
    "fill tensor": (lambda: WHOLE.masked_fill(MASK, tensor(1.5)), DtypeError, "float64"),
    "tril": (lambda: ops.tril(WHOLE, 1.5), ArgumentError, "tril: k is 1.5"),
    "triu": (lambda: ops.triu(WHOLE, "1"), ArgumentError, "triu: k is '1'"),
    "diagonal": (lambda: ops.diagonal(WHOLE, 0.5), ArgumentError, "k is 0.5"),
    "diag": (lambda: ops.diag(WHOLE[0], 0.5), ArgumentError, "k is 0.5"),
    "dilate": (lambda: ops.dilate(WHOLE, 0, 1.5), ArgumentError, "dilation is 1.5"),
    "flip": (lambda: ops.flip(WHOLE, (0, 0)), ShapeError, "twice"),
    "flip negative": (lambda: WHOLE.flip((1, -1)), ShapeError, "twice"),
    "squeeze": (lambda: ops.squeeze(WHOLE[:1], (0, -2)), ShapeError, "twice"),
    "power": (lambda: WHOLE**-1, DtypeError, "int32 to the power -1"),
    "power function": (lambda: ops.power(WHOLE, -2), DtypeError, "negative powers"),
    "power scalar": (lambda: ops.power_scalar(WHOLE, -2), DtypeError, "negative powers"),
    "power of bool": (lambda: MASK.pow(-1), DtypeError, "bool to the power -1"),
}


@pytest.mark.parametrize("fast", ["on", "off"])
@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused(name, fast):
    call, error, said = UNFIT[name]
    with ndl.config(fast=fast), pytest.raises(error, match=said):
        call()


def test_powers_that_stay():
    np.testing.assert_allclose((WHOLE**-1.0).numpy(), 1 / WHOLE.numpy(), rtol=1e-6)
    np.testing.assert_allclose((tensor(2.0) ** -1).numpy(), 0.5)
    assert (WHOLE ** ndl.Tensor(np.array(-1, "int32"))).dtype == "int32"


# ---- losses ------------------------------------------------------------------------

LOGITS, LABELS = X[0], np.array([0, 5, 2, 2, 1])


def test_cross_entropy_reductions():
    rows = -np.log(np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True))[range(5), LABELS]
    x, y = tensor(LOGITS), ndl.Tensor(LABELS)
    np.testing.assert_allclose(ops.cross_entropy(x, y, reduction="none").numpy(), rows)
    assert np.isclose(ops.cross_entropy(x, y).item(), rows.mean())
    kept = rows[LABELS != 2].mean()
    assert np.isclose(ops.cross_entropy(x, y, ignore_index=2).item(), kept)
    floating = ndl.Tensor(LABELS.astype("float32"))
    assert np.isclose(ops.cross_entropy(x, floating).item(), rows.mean())
    probabilities = ops.one_hot(y, 6, "float64")
    assert np.isclose(ops.cross_entropy(x, probabilities).item(), rows.mean())
    log = ops.log_softmax(x)
    assert np.isclose(ops.nll_loss(log, y, ignore_index=2).item(), kept)


def test_floating_labels_alone_have_no_gradient():
    x, labels = ndl.Tensor(LOGITS, requires_grad=False), ndl.Tensor(LABELS.astype("float32"))
    ops.cross_entropy(x * 1.0, labels * 1.0).backward()  # what the logits' would read is gone
    assert labels.grad is None


def test_labels_outside_the_classes(device):
    x = ndl.Tensor(LOGITS, device=device)
    y = ndl.Tensor(np.array([0, 1, 6, 2, 2]), device=device)
    for loss in (ops.cross_entropy, ops.nll_loss):
        with pytest.raises(IndexRangeError, match=r"\blabel .*position 2 .* 6 (classes|entries)"):
            loss(x, y)
            device.synchronize()  # what does not wait for its kernels tells it here


def test_losses_want_equal_shapes_and_known_reductions():
    x = tensor(LOGITS)
    for loss in (ops.mse_loss, ops.l1_loss, ops.huber_loss, ops.bce_with_logits):
        with pytest.raises(ShapeError):
            loss(x, x[:, :1])
        with pytest.raises(OptionError, match="did you mean 'mean'"):
            loss(x, x, reduction="men")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 2])
def test_nll_loss_with_weights_of_classes(ignored, reduction):
    weight = np.array([1.0, 0.5, 2.0, 0.0, 3.0, 0.25])
    log = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    counts = np.where(ignored == LABELS, 0.0, weight[LABELS])
    rows = -log[range(5), LABELS] * counts
    expected = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / counts.sum()}[reduction]
    options = {"weight": weight, "ignore_index": ignored, "reduction": reduction}
    found = ops.nll_loss(tensor(log), ndl.Tensor(LABELS), **options)
    np.testing.assert_allclose(found.numpy(), expected)
    with pytest.raises(ShapeError, match="nll_loss: a weight for each of 6 classes"):
        ops.nll_loss(tensor(log), ndl.Tensor(LABELS), weight=weight[:5])


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.5])
def test_smooth_l1_loss(beta):
    apart = np.abs(X[0] - X[1])
    near = apart**2 / (2 * beta) if beta else apart
    expected = np.where(apart < beta, near, apart - beta / 2)
    found = ops.smooth_l1_loss(tensor(X[0]), tensor(X[1]), beta=beta, reduction="none")
    np.testing.assert_allclose(found.numpy(), expected)
    assert np.isclose(
        ops.smooth_l1_loss(tensor(X[0]), tensor(X[1]), beta=beta).item(), expected.mean()
    )
    check_gradients(lambda x, y: ops.smooth_l1_loss(x, y, beta=beta), X[0], X[1])
    with pytest.raises(OptionError, match="smooth_l1_loss: beta is -1"):
        ops.smooth_l1_loss(tensor(X), tensor(X), beta=-1)


# ---- sums without NaN, differences, joining ------------------------------------------


@pytest.mark.parametrize("axes", [None, 0, (0, 2), -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_sums_and_means_of_what_is_a_number(axes, keepdims):
    x = np.where(X > 0.5, np.nan, X)
    x[1, :, 2] = np.nan
    for name in ("nansum", "nanmean"):
        expected = getattr(np, name)(x, axis=axes, keepdims=keepdims)
        for found in (
            getattr(ops, name)(tensor(x), axes, keepdims),
            getattr(tensor(x), name)(axis=axes, keepdims=keepdims),
        ):
            np.testing.assert_allclose(found.numpy(), expected)
    slope = ndl.grad(lambda x: ops.nanmean(x))(tensor(x)).numpy()
    np.testing.assert_allclose(slope, np.where(np.isnan(x), 0.0, 1 / (~np.isnan(x)).sum()))
    whole = ndl.Tensor([[1, 2], [3, 5]])
    assert ops.nansum(whole).item() == 11 and ops.nanmean(whole).item() == 2.75
    half = ndl.Tensor(np.full(5000, 300.0), dtype="float16")
    assert ops.nanmean(half).item() == 300.0 and ops.nanmean(half).dtype == "float16"


@pytest.mark.parametrize(("n", "axis"), [(1, -1), (2, 1), (0, 0), (3, 0), (9, 2)])
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


@pytest.mark.parametrize("shapes", [((), ()), ((2,), (3,)), ((2, 3), (2, 3)), ((2, 1, 4),) * 3])
def test_joining_side_by_side_and_one_above_the_other(shapes):
    parts = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    for name in ("hstack", "vstack"):
        if name == "vstack" and shapes[0] == (2,):
            with pytest.raises(ShapeError):
                ops.vstack([tensor(x) for x in parts])
            continue
        found = getattr(ops, name)([tensor(x) for x in parts])
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(parts))
    with pytest.raises(ShapeError, match="no tensors"):
        ops.hstack([])


def test_the_method_diagonal_takes_axes():
    for k, first, second in ((0, 0, 1), (1, -1, 0), (-1, 1, 2)):
        expected = np.diagonal(X, k, first, second)
        np.testing.assert_array_equal(tensor(X).diagonal(k, first, second).numpy(), expected)


# ---- random and new tensors ----------------------------------------------------------


def test_dropout_draws_once_per_element_and_keeps_the_expectation():
    np.random.seed(3)
    x = ndl.Tensor(np.ones((40, 50)), requires_grad=False)
    found = ops.dropout(x, 0.25).numpy()
    np.random.seed(3)
    np.testing.assert_allclose(found, (np.random.rand(40, 50) <= 0.75) / 0.75, rtol=1e-6)
    after = np.random.rand()
    np.random.seed(3)
    ops.dropout(x, 0.0)
    assert np.random.rand() == after
    assert ops.dropout(x, 0.25, training=False) is x


def test_a_key_draws_the_same_numbers_and_leaves_the_stream_alone(device):
    np.random.seed(3)
    a, b = (ops.uniform((5,), key=7, device=device).numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ops.uniform((5,), key=7, device="cpu_numpy").numpy(), a)
    after = np.random.rand()
    np.random.seed(3)
    assert np.random.rand() == after


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8"])
def test_shifts_by_no_more_and_by_more_than_the_width(kind, device):
    limits = np.iinfo(kind)
    values = np.array([limits.min, limits.max, 1, 0, limits.max // 3], kind)[:, None]
    counts = [n for n in (0, 1, 7, 8, 9, 15, 16, 31, 32, 63, 64, limits.max) if n <= limits.max]
    x, by = (ndl.Tensor(v, device=device) for v in (values, np.array(counts, kind)))
    with np.errstate(all="ignore"):
        right = np.array([[int(v) >> n for n in counts] for v in values[:, 0]])
        left = np.array([[int(v) << min(n, 64) for n in counts] for v in values[:, 0]], object)
    bits = 2 ** (8 * values.itemsize)
    np.testing.assert_array_equal(ops.bitwise_right_shift(x, by).numpy(), right)
    np.testing.assert_array_equal(
        ops.bitwise_left_shift(x, by).numpy().astype(object) % bits, left % bits
    )


RAMPS = (
    (0, 0), (0, 100_001), (3, -50, -7), (0.0, 1.0, 0.1), (0.1, 5, 1), (-7, 7, 3.0), (True, 5),
    (2**60, 2**60 + 9, 3), (0, np.float32(3), np.float32(0.3)), (0, 7e4, 0.7),
)  # fmt: skip


@pytest.mark.parametrize("kind", [None, "float32", "float64", "float16", "int32", "int64", "int8"])
@pytest.mark.parametrize("bounds", RAMPS)
def test_arange_gives_numpys_numbers_to_the_last_bit(device, bounds, kind):
    start, stop, step = (*bounds, 1)[:3]
    expected = start + step * np.arange(max(0, math.ceil((stop - start) / step)))
    if kind in ("int32", "int64", "int8") and len(expected):
        limits = np.iinfo(kind)
        if not limits.min <= int(expected.min()) <= int(expected.max()) <= limits.max:
            with pytest.raises(RangeError, match=f"does not fit into {kind}"):
                ops.arange(*bounds, dtype=kind, device=device)
            return
    found = ops.arange(*bounds, dtype=kind, device=device)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.numpy(), expected.astype(found.dtype.numpy))


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("start, stop", [(0, 1), (-1.5, 7), (3, 3), (0.1, 1e30), (5e-324, 0)])
def test_linspace_gives_numpys_numbers_to_the_last_bit(device, start, stop, kind):
    for count, endpoint in itertools.product((0, 1, 2, 17, 40_001), (True, False)):
        with np.errstate(all="ignore"):
            exact = np.linspace(start, stop, count, endpoint=endpoint)
            expected = exact.astype(kind)
            if kind == "int32" and (abs(exact) >= 2**31).any():
                with pytest.raises(RangeError, match="does not fit into int32"):
                    ops.linspace(start, stop, count, endpoint=endpoint, dtype=kind, device=device)
                continue
            found = ops.linspace(start, stop, count, endpoint=endpoint, dtype=kind, device=device)
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", ["float32", "int64", "bool", "float16"])
@pytest.mark.parametrize("n, m", [(0, 3), (1, 1), (3, 17), (33, 4), (16, None)])
def test_eye_has_its_ones_on_every_diagonal(device, n, m, kind):
    for k in (-40, -3, -1, 0, 1, 3, 40):
        found = ops.eye(n, m, k=k, dtype=kind, device=device)
        np.testing.assert_array_equal(found.numpy(), np.eye(n, m, k, kind))


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.int64, np.array, lambda n: np.array([n]),
             lambda n: ndl.Tensor(n, dtype="int32"), lambda n: ndl.Tensor([n], dtype="int64")],
)  # fmt: skip
def test_integers_of_numpy_and_of_tensors_count_as_pythons(kind):
    for x, values in (
        (ops.full((2,), kind(3)), [3, 3]), (ops.arange(kind(3)), [0, 1, 2]),
        (ops.arange(kind(3), kind(9), kind(2)), [3, 5, 7]), (ops.arange(1, kind(3)), [1, 2]),
    ):  # fmt: skip
        assert x.dtype == "int64" and x.tolist() == values
    assert ops.full_like(ndl.Tensor([1.0]), kind(3)).dtype == "float32"
    assert ops.arange(0, kind(3), 0.5).dtype == ops.linspace(0, kind(3), 3).dtype == "float32"
    assert ops.full((2,), kind(3), dtype="int8").dtype == "int8"
    for true in (np.bool_(True), np.array(True), ndl.Tensor(True, dtype="bool")):
        assert ops.full((2,), true).dtype == "bool" and ops.full_like(ndl.Tensor(X), true).all()


@pytest.mark.parametrize("value", [2**53 + 1, 2**63, -(2**64), 10**30])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_floating_tensors_take_whole_numbers_of_any_length(device, kind, value):
    with np.errstate(over="ignore"):
        exact = np.array(float(value)).astype(ndl.dtype.as_dtype(kind).numpy).item()
    x = ndl.Tensor([0.0, 1.0], dtype=kind, device=device)
    assert (x * 0.0 + value).tolist() == [exact, exact]
    assert ndl.full((2,), value, dtype=kind, device=device).tolist() == [exact, exact]
    assert ndl.where(x > 0, value, x).tolist() == [0.0, exact]


@pytest.mark.parametrize("value", [np.ones(2), np.ones(0), ndl.Tensor([1.0, 2.0]), "a", None, 1j])
def test_full_takes_one_number(value):
    several = not isinstance(value, (str, complex, type(None)))
    said = r"full: \d elements were given for a number" if several else "full: the value .* is no"
    with pytest.raises(ShapeError if several else ArgumentError, match=said):
        ops.full((2,), value)


def test_new_tensors():
    np.testing.assert_array_equal(ops.arange(1, 2, 0.25).numpy(), [1, 1.25, 1.5, 1.75])
    assert ops.arange(3).dtype == "int64" and ops.arange(5, 1, -2).tolist() == [5, 3]
    np.testing.assert_allclose(ops.linspace(0, 1, 5).numpy(), np.linspace(0, 1, 5))
    np.testing.assert_array_equal(ops.eye(2, 3, k=1).numpy(), np.eye(2, 3, 1))
    assert ops.full((2,), True).dtype == "bool" and ops.full((), 2).dtype == "int64"
    whole = ops.full((2,), ndl.Tensor(2.7), dtype="int64")  # no gradient flows from integers
    assert whole.tolist() == [2, 2] and not whole.requires_grad
    t = ndl.Tensor(2.5, dtype="float64")
    assert ops.full((2,), t).dtype == ops.linspace(0, t, 3).dtype == "float32"
    for indexing in ("xy", "ij"):
        grids = ops.meshgrid(ops.arange(2), ops.arange(3), indexing=indexing)
        expected = np.meshgrid(np.arange(2), np.arange(3), indexing=indexing)
        for found, grid in zip(grids, expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), grid)


def weighted_entropy(x, y, weight, ignore=None, smoothing=0.0):
    """Losses and weights of rows: what PyTorch's ``weight`` means."""
    logp = x - np.log(np.exp(x).sum(-1, keepdims=True))
    classes = x.shape[-1]
    if y.shape == x.shape:
        y = (1 - smoothing) * y + smoothing / classes
        return -(y * weight * logp).sum(-1), np.ones(x.shape[:-1])
    kept = np.ones(y.shape, bool) if ignore is None else y != ignore
    own = weight[np.where(kept, y, 0)] * kept
    picked = np.take_along_axis(logp, np.where(kept, y, 0)[..., None], -1)[..., 0]
    spread = (weight * logp).sum(-1) * kept
    return -(1 - smoothing) * own * picked - smoothing / classes * spread, own


@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("target", ["labels", "probabilities"])
def test_cross_entropy_with_class_weights(target, smoothing, ignore, device):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 5, 3)), np.array([0.5, 2.0, 3.0])
    y = rng.integers(0, 3, (2, 5)) if target == "labels" else rng.dirichlet(np.ones(3), (2, 5))
    rows, own = weighted_entropy(x, y, weight, ignore, smoothing)
    tensors = [ndl.Tensor(v, dtype=str(v.dtype), device=device) for v in (x, y, weight)]
    more = {"ignore_index": ignore, "label_smoothing": smoothing, "weight": tensors[2]}
    for reduction, expected in (
        ("none", rows), ("sum", rows.sum()), ("mean", rows.sum() / own.sum())
    ):  # fmt: skip
        found = ops.cross_entropy(*tensors[:2], reduction=reduction, **more)
        np.testing.assert_allclose(found.numpy(), expected)
    with ndl.config(device=device.name):
        check_gradients(lambda x: ops.cross_entropy(x, tensors[1], **more), x)


def test_class_weights_are_one_for_each_class():
    x, y = tensor(X[0]), ndl.Tensor([0, 1, 2, 3, 4], dtype="int64")
    for wrong in (ndl.ones(5), ndl.ones(1, 6), ndl.Tensor(1.0)):
        with pytest.raises(ShapeError, match=r"cross_entropy.*6 classes"):
            ops.cross_entropy(x, y, weight=wrong)
    with pytest.raises(IndexRangeError, match="label"):
        ops.cross_entropy(x, y + 3, weight=ndl.ones(6))
    loss = nn.CrossEntropyLoss(np.arange(1.0, 7.0), ignore_index=0)
    assert set(loss.state_dict()) == {"weight"} and not list(loss.parameters())
    expected = ops.cross_entropy(x, y, weight=ndl.Tensor(np.arange(1.0, 7.0)), ignore_index=0)
    assert loss(x, y).item() == pytest.approx(expected.item())
    assert not nn.CrossEntropyLoss(ndl.ones(6)).weight.requires_grad


def test_the_weights_of_many_labels_are_added_in_float32():
    x, y = ndl.zeros(5000, 2, dtype="float16"), ndl.zeros(5000, dtype="int64")
    for weight in (ndl.ones(2), np.ones(2)):
        loss = ops.cross_entropy(x, y, weight=weight).item()
        assert loss == pytest.approx(np.log(2), rel=1e-3)


# ---- NumPy's helpers -----------------------------------------------------------------

NUMBERS = ndl.Tensor([1, 2], dtype="int64")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_nan_to_num(kind, device):
    x = ndl.Tensor([np.nan, np.inf, -np.inf, 1.5, -0.0], dtype=kind, device=device)
    found = ops.nan_to_num(x).numpy().astype(np.float64)
    largest = {"float16": 65504.0, "bfloat16": 255 / 128 * 2.0**127}.get(kind)
    largest = largest or float(np.finfo(kind).max)
    np.testing.assert_array_equal(found, [0.0, largest, -largest, 1.5, -0.0])
    assert found.shape == (5,) and np.signbit(found[4])
    chosen = ops.nan_to_num(x, nan=7.0, posinf=2.0, neginf=-3.0)
    np.testing.assert_array_equal(chosen.numpy().astype(float), [7.0, 2.0, -3.0, 1.5, -0.0])
    half = ops.nan_to_num(x, posinf=2.0).numpy().astype(float)
    np.testing.assert_array_equal(half, [0.0, 2.0, -largest, 1.5, -0.0])


def test_the_gradient_of_nan_to_num_is_of_numbers_alone():
    x = ndl.Tensor([np.nan, np.inf, -np.inf, 1.5], dtype="float64")
    for more in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": 3.0}):
        slope = ndl.grad(lambda x, more=more: (3.0 * ops.nan_to_num(x, **more)).sum())(x)
        assert slope.tolist() == [0.0, 0.0, 0.0, 3.0]
    assert ops.nan_to_num(NUMBERS) is NUMBERS


@pytest.mark.parametrize(
    "x, values",
    [
        ([[1, 5], [2, 7]], [5, 1, 1]), ([1.0, np.nan, np.inf, -0.0], [np.nan, np.inf, 0.0]),
        ([3, 4], []), ([], [1]), (2, [[1, 2]]), ([True, False], [True]), ([1, 2, 3], [1.0, 2.5]),
        ([200], [9]), ([0.5], 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("invert", [False, True])
def test_isin(x, values, invert, device):
    tensors = (ndl.Tensor(v, device=device) for v in (x, values))
    found = ops.isin(*tensors, invert=invert)
    expected = np.isin(np.array(x), np.array(values), invert=invert)
    assert found.dtype == "bool" and found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_bincount(kind, device):
    x = np.array([0, 1, 1, 3, 200, 1])
    t = ndl.Tensor(x, dtype=kind, device=device)
    assert ops.bincount(t).tolist() == np.bincount(x).tolist()
    assert ops.bincount(t, minlength=203).shape == (203,) and ops.bincount(t[:0]).shape == (0,)
    assert ops.bincount(t[:0], minlength=2).tolist() == [0, 0]
    weights = np.random.default_rng(0).normal(size=6)
    found = ops.bincount(t, ndl.Tensor(weights, dtype="float64", device=device))
    np.testing.assert_allclose(found.numpy(), np.bincount(x, weights))
    found = ops.bincount(t, weights)  # an array, as float32
    np.testing.assert_allclose(found.numpy(), np.bincount(x, weights), rtol=1e-5)
    slope = ndl.grad(lambda w: (ops.bincount(t, w) ** 2).sum())
    w = ndl.Tensor(weights, dtype="float64", device=device)
    np.testing.assert_allclose(slope(w).numpy(), 2 * np.bincount(x, weights)[x])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ops.bincount(ndl.Tensor([0.5])), DtypeError, "bincount.*float32"),
        (lambda: ops.bincount(NUMBERS[None]), ShapeError, r"bincount: x \(1, 2\)"),
        (lambda: ops.bincount(NUMBERS - 3), IndexRangeError, "bincount: -2 is in x"),
        (lambda: ops.bincount(NUMBERS, ndl.ones(3)), ShapeError, r"bincount.* weights \(3,\)"),
        (lambda: ops.bincount(NUMBERS, minlength=-1), ArgumentError, "minlength"),
        (lambda: ops.kron("a", ndl.ones(2)), ArgumentError, "kron: expected a tensor"),
    ],
)
def test_helpers_refuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((2, 3), (4, 1)), ((2,), (3, 4)), ((), (2, 2)),
                                    ((2, 1, 3), (2,)), ((0, 2), (3, 3))])  # fmt: skip
def test_kron(shapes, device):
    a, b = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes))
    found = ops.kron(*(ndl.Tensor(x, dtype="float64", device=device) for x in (a, b)))
    np.testing.assert_allclose(found.numpy(), np.kron(a, b))
    if found.size:
        check_gradients(ops.kron, a, b)


# ---- small things that PyTorch has -------------------------------------------------------


@pytest.mark.parametrize("axis, keepdims", [(None, False), (None, True), (0, False), (-1, True)])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, [0.5], [0.1, 0.25, 1.0], []])
def test_quantiles_are_pytorchs(q, axis, keepdims):
    torch = pytest.importorskip("torch")
    x, theirs = tensor(X), torch.tensor(X, requires_grad=True)
    shares = torch.tensor(q, dtype=torch.float64)
    exact = torch.quantile(theirs, shares, axis, keepdims)
    for lazy in (False, True):
        with ndl.lazy_mode(lazy):
            for given in (q, np.array(q), ndl.Tensor(q, dtype="float64")):
                found = ops.quantile(x, given, axis, keepdims)
                assert found.shape == tuple(exact.shape)
                np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-12)
    if q != []:
        found.sum().backward()
        exact.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-10)
        check_gradients(lambda x: ops.quantile(x, q, axis, keepdims), X, order=2)


@pytest.mark.parametrize("q", [0.31, [0.12, 0.77, 0.43]])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_gradients_flow_to_the_shares_of_quantiles(q, axis):
    check_gradients(lambda x, q: ops.quantile(x, q, axis), X, np.array(q), order=2)
    shares = ndl.Tensor(q)  # float32, of another dtype than x
    ops.quantile(tensor(X), shares, axis).sum().backward()
    assert shares.grad.dtype == "float32" and (shares.grad.numpy() != 0.0).all()


def test_quantiles_of_nan_integers_and_one_element():
    short = ndl.Tensor([0.5, 0.25], dtype="bfloat16")  # NumPy does not know it
    assert ops.quantile(ndl.Tensor([1.0, 2.0, 3.0]), short).tolist() == [2.0, 1.5]
    x = np.array([[1.0, np.nan, 2.0], [3.0, 1.0, 2.0]])
    np.testing.assert_array_equal(ops.quantile(tensor(x), 0.5, 1).numpy(), [np.nan, 2.0])
    assert ops.quantile(ndl.Tensor([1, 2], dtype="int64"), 0.25).item() == 1.25
    assert ops.quantile(tensor(3.0), 0.9).item() == 3.0
    half = ops.quantile(ndl.Tensor(np.arange(1000), dtype="bfloat16"), 0.5)
    assert half.dtype == "bfloat16" and half.item() == 500.0
    for q, error in ((1.5, OptionError), (-0.1, OptionError), (math.nan, OptionError),
                     ([[0.5]], ShapeError)):  # fmt: skip
        with pytest.raises(error, match="quantile: q"):
            ops.quantile(tensor(x), q)
    with pytest.raises(ShapeError, match="quantile: no elements"):
        ops.quantile(tensor(x[:0]), 0.5)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 0.9, 1.0, 2.0, X])
def test_lerp_is_pytorchs(weight):
    torch = pytest.importorskip("torch")
    ends = X, X[::-1].copy()
    given = [tensor(weight) if isinstance(weight, np.ndarray) else weight]
    theirs = torch.lerp(*map(torch.tensor, ends), torch.tensor(weight, dtype=torch.float64))
    found = ops.lerp(*map(tensor, ends), *given)
    np.testing.assert_allclose(found.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-15)
    if isinstance(weight, float):
        check_gradients(lambda x, y: ops.lerp(x, y, weight), *ends, order=2)
    else:
        check_gradients(ops.lerp, *ends, weight, order=2)
    assert ops.lerp(0.1, tensor(0.3), 1.0).item() == 0.3


@pytest.mark.parametrize("order", [1, 2, 3, float("inf")])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalize_is_pytorchs(order, axis):
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(X, requires_grad=True)
    exact = torch.nn.functional.normalize(theirs, order, axis)
    x = tensor(X)
    found = ops.normalize(x, order, axis)
    found[0].sum().backward()
    exact[0].sum().backward()
    np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-9, atol=1e-12)
    check_gradients(lambda x: ops.normalize(x, order, axis), X)
    zeros = ops.normalize(ndl.zeros(3, 2, dtype="float16", requires_grad=True))
    assert zeros.tolist() == [[0.0, 0.0]] * 3  # also where eps is 0 in the dtype


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[np.zeros(3, bool), 7],
        lambda x: x[[], 7],
        lambda x: x[7, []],
        lambda x: x[:, :0][[7]],
        lambda x: ops.take(x[:, :0], ndl.Tensor([7], dtype="int64", device=x.device), 0),
        lambda x: x[:0][[0]],
    ],
)
@pytest.mark.parametrize("fast", ["on", "off"])
def test_an_index_is_in_range_where_there_is_nothing_to_pick(device, call, fast):
    x = ndl.Tensor(np.zeros((3, 5)), requires_grad=False, device=device)
    with ndl.config(fast=fast), pytest.raises(IndexRangeError, match="out of range"):
        call(x)
        device.synchronize()


def test_a_number_has_no_axes_to_keep():
    x = ndl.Tensor(1.0)
    assert ops.quantile(x, 0.5, keepdims=True).shape == ()
    assert ops.quantile(x, [0.5, 0.6], keepdims=True).shape == (2,)


def test_more_pieces_than_there_can_be():
    for function in (ops.tensor_split, ops.chunk, ops.vsplit):
        with pytest.raises(OptionError, match="pieces"):
            function(ndl.zeros((0, 3)), 2**70)


def test_padding_with_a_negative_zero():
    found = ops.pad(ndl.ones(1), 1, value=-0.0).numpy()
    assert np.signbit(found).tolist() == [True, False, True]


def test_labels_of_negative_log_likelihoods_are_no_bools():
    with pytest.raises(DtypeError, match="bools"):
        nn.NLLLoss()(ndl.zeros((2, 2)), ndl.Tensor([True, False]))


def test_what_cannot_be_ignored():
    with pytest.raises(ArgumentError, match="ignore_index"):
        ops.nll_loss(ndl.zeros((2, 3)), ndl.Tensor([0, 1], dtype="int64"), ignore_index="a")

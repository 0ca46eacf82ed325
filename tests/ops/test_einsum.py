"""einsum, tensordot and other products."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


EQUATIONS = [
    "ij,jk->ik", "bij,bjk->bik", "ii->i", "ii->", "ij->ji", "ij,ij->", "i,j->ij", "abc,cd,de->abe",
    "ab,b->a", "...ij,...jk->...ik", "ij,jk", "iji->j", "abc->b", "aij,bij->ab", "i,i,i->i",
]  # fmt: skip


@looped("equation", EQUATIONS)
def test_einsum(equation):
    rng, sizes = np.random.default_rng(0), {"i": 3, "j": 4, "k": 5, "a": 2, "b": 3, "c": 4}
    arrays = []
    for term in equation.split("->")[0].split(","):
        lead = (2, 3) if "..." in term else ()
        arrays.append(rng.normal(size=lead + tuple(sizes.get(c, 2) for c in term.strip("."))))
    found = ops.einsum(equation, *map(tensor, arrays)).numpy()
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)
    check_gradients(lambda *args: ops.einsum(equation, *args), *arrays, order=2)


@looped("equation", ["ij,jk->ik", "ij->k", "ij", "ij,ij,ij->i", "ij->ii"])
def test_wrong_equations(equation):
    tensors = [tensor(X[0])] * 2 if equation.count(",") == 1 else [tensor(X[0])]
    if equation == "ij":
        tensors = [tensor(X)]
    with pytest.raises(ShapeError):
        ops.einsum(equation, *tensors)


@looped("equation, shape, said",
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


@looped("a, b, axes",
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


@looped("axes", [3, -1, ((0,), (0,)), ((0, 0), (0, 0)), ((0,), (0, 1))])
def test_axes_that_tensordot_refuses(axes):
    with pytest.raises(ShapeError, match="tensordot"):
        ops.tensordot(tensor(np.ones((2, 3))), tensor(np.ones((3, 2))), axes)


@looped(
    "a, b", [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 4, 3), (3,)), ((3,), (2, 3, 4))]
)
def test_products_with_vectors(a, b):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    found = ops.matmul(tensor(x), tensor(y))
    assert found.shape == np.matmul(x, y).shape
    np.testing.assert_allclose(found.numpy(), np.matmul(x, y), rtol=1e-12)
    check_gradients(ops.matmul, x, y, order=2)

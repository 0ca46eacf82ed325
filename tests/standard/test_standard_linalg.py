"""Linear algebra of the array API standard."""

from __future__ import annotations

import math

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import standard as xp
from needle.errors import (
    AxesError,
    OptionError,
    ShapeError,
    SingularError,
)


def test_linear_algebra_against_numpy():
    values = np.random.default_rng(0).normal(size=(2, 4, 3))
    s = values[:, :3] @ values[:, :3].swapaxes(1, 2) + np.eye(3)
    x, square = xp.asarray(values), xp.asarray(s)
    pairs = [
        (xp.linalg.pinv(x), np.linalg.pinv(values)), (xp.linalg.inv(square), np.linalg.inv(s)),
        (xp.linalg.det(square), np.linalg.det(s)),
        (xp.linalg.cholesky(square, upper=True), np.linalg.cholesky(s).swapaxes(1, 2)),
        (xp.linalg.eigvalsh(square), np.linalg.eigvalsh(s)),
        (xp.linalg.svdvals(x), np.linalg.svd(values, compute_uv=False)),
        (xp.linalg.solve(square, x[0, 0]), np.linalg.solve(s, values[:1, 0, :, None])[..., 0]),
        (xp.linalg.matrix_power(square, 5), np.linalg.matrix_power(s, 5)),
        (xp.linalg.matrix_power(square, -2), np.linalg.matrix_power(s, -2)),
        (xp.linalg.matrix_power(square, 0), np.linalg.matrix_power(s, 0)),
        (xp.linalg.cross(x[0, :1], x[1]), np.cross(values[0, :1], values[1])),
        (xp.linalg.slogdet(square).logabsdet, np.linalg.slogdet(s)[1]),
        (xp.linalg.trace(x, offset=1), np.trace(values, 1, 1, 2)),
    ]  # fmt: skip
    orders = (2, -2, 1, -1, math.inf, -math.inf, "fro", "nuc")
    for order in orders:
        for keep in (False, True):
            pairs.append((xp.linalg.matrix_norm(x, ord=order, keepdims=keep),
                          np.linalg.norm(values, order, (-2, -1), keep)))  # fmt: skip
            for axes in ((0, 1), (1, 0), (-1, 0)):
                pairs.append((xp.linalg.norm(x, order, axes, keep),
                              np.linalg.norm(values, order, axes, keep)))  # fmt: skip
        pairs.append((xp.linalg.norm(x[0], order), np.linalg.norm(values[0], order)))
    for axes in (None, 1, (0, 2)):
        pairs.append((xp.linalg.norm(x, axis=axes), np.linalg.norm(values, axis=axes)))
    for power in (2, 1, 0, 3, -1, math.inf, -math.inf):
        pairs.append((xp.linalg.norm(x[0, 0], power), np.linalg.norm(values[0, 0], power)))
        pairs.append((xp.linalg.norm(x, power, -1), np.linalg.norm(values, power, -1)))
        pairs.append((xp.linalg.vector_norm(x, axis=1, ord=power),
                      np.linalg.norm(values, power, 1)))  # fmt: skip
    for found, expected in pairs:
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    u, single, vh = xp.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(((u * single[:, None, :]) @ vh).numpy(), values, rtol=1e-9)
    q, r = xp.linalg.qr(x, mode="complete")
    np.testing.assert_allclose((q @ r).numpy(), values, atol=1e-12)
    assert q.shape == (2, 4, 4)
    assert xp.linalg.matrix_rank(xp.ones((2, 4, 3))).tolist() == [1, 1]
    assert xp.linalg.matrix_rank(xp.zeros((0, 3))).item() == 0


def test_linear_algebra_refuses():
    x = xp.ones((2, 2))
    with pytest.raises(SingularError, match="inv: singular matrix"):
        xp.linalg.inv(x)
    with pytest.raises(SingularError):
        xp.linalg.cholesky(-x)
    with pytest.raises(SingularError, match="solve_triangular: singular matrix"):
        xp.linalg.solve_triangular(xp.triu(x, k=1), x)
    with pytest.raises(OptionError, match="matrix_norm: unknown ord"):
        xp.linalg.matrix_norm(x, ord=3)
    with pytest.raises(AxesError, match=r"norm: ord=2 over 3 axes\n[^$]*needle.norm"):
        xp.linalg.norm(x[None], 2)
    with pytest.raises(OptionError, match="qr: unknown mode"):
        xp.linalg.qr(x, mode="full")
    with pytest.raises(ShapeError, match="sizes 2 and 1"):
        xp.vecdot(x, x[:, :1])
    with pytest.raises(ShapeError, match="three elements"):
        xp.linalg.cross(x, x)
    with pytest.raises(ShapeError, match="at least 2 axes, got 2 and 0"):
        x @ 3.0
    y = ndl.Tensor([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]])
    with pytest.raises(ndl.errors.GradientError, match="svd: the gradient of vectors without"):
        xp.linalg.svd(y).U.sum().backward()
    with pytest.raises(ndl.errors.GradientError, match="qr: the gradient of columns beyond"):
        xp.linalg.qr(y, mode="complete").Q.sum().backward()
    with pytest.raises(ndl.errors.GradientError, match="svd: the gradient of vectors without"):
        ndl.jvp(lambda y: xp.linalg.svd(y).S, y, y)
    with pytest.raises(SingularError, match="singular"):
        xp.linalg.qr(ndl.Tensor([[1.0, 0.0], [0.0, 0.0]])).Q.sum().backward()


@looped("n", [1, 32, 33, 150])
@looped("upper", [False, True])
@looped("unit", [False, True])
def test_triangles_of_many_rows_are_solved_half_by_half(n, upper, unit):
    generator = np.random.default_rng(n)
    a = generator.normal(size=(2, n, n)) / n + 2 * np.eye(n)  # the other triangle is not read
    b = generator.normal(size=(n, 40))
    one = np.eye(n, dtype=bool)
    triangle = np.where(one & unit, 1.0, np.triu(a) if upper else np.tril(a))
    options = {"upper": upper, "unitriangular": unit}

    def solve(x, y, **more):
        return xp.linalg.solve_triangular(x, y, **options, **more)

    x, y = ndl.Tensor(a, dtype="float64"), ndl.Tensor(b, dtype="float64")
    pairs = [
        (solve(x, y), np.linalg.solve(triangle, b[None])),
        (solve(x, y[:, 0]), np.linalg.solve(triangle, b[None])[..., 0]),
        (solve(x, y[:, :3]), np.linalg.solve(triangle, b[None])[..., :3]),
        (solve(x, y.T, left=False), b.T @ np.linalg.inv(triangle)),
        (solve(x, y[:, 0], left=False), b[:, 0] @ np.linalg.inv(triangle)),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
    found, expected = pairs[0]
    (found**2).sum().backward()
    slope = np.linalg.solve(np.swapaxes(triangle, -1, -2), 2 * expected)
    whole = -slope @ np.swapaxes(expected, -1, -2)
    read = (np.triu if upper else np.tril)(whole) * ~(one & unit)
    np.testing.assert_allclose(x.grad.numpy(), read, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(y.grad.numpy(), slope.sum(0), rtol=1e-9, atol=1e-11)


def test_matrix_norms_and_pseudo_inverses_are_differentiable():
    """At singular values that are equal, of a rank that is not full, and twice."""
    x = ndl.Tensor([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]], dtype="float64")
    u, s, vh = np.linalg.svd(x.numpy(), full_matrices=False)
    slopes = {"nuc": u @ vh, 2: np.outer(u[:, 0], vh[0]), -2: np.outer(u[:, 1], vh[1])}
    for ord, slope in slopes.items():
        found = ndl.grad(lambda x, ord=ord: xp.linalg.matrix_norm(x, ord=ord))(x)
        np.testing.assert_allclose(found.numpy(), slope, atol=1e-12)
    for rtol in (1e-3, np.array(1e-3), np.full(1, 1e-3)):
        assert xp.linalg.pinv(x[None], rtol=rtol).shape == (1, 2, 3)
    whole, part = (xp.linalg.qr(x, mode=mode).R.sum() for mode in ("complete", "reduced"))
    part.backward()
    slope = x.grad.numpy()
    whole.backward()
    np.testing.assert_allclose(x.grad.numpy(), slope)
    xp.linalg.svd(x).S.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), slopes["nuc"], atol=1e-12)

    def square(x):
        return (xp.linalg.pinv(x) ** 2).sum()

    np.testing.assert_allclose(ndl.grad(square)(ndl.Tensor(np.eye(3))).numpy(), -2 * np.eye(3))
    low = ndl.Tensor(np.outer([1.0, 2.0, 0.5], [3.0, -1.0]), dtype="float64")
    size = (low.numpy() ** 2).sum()  # of rank 1 the pseudo-inverse is x.T / |x| ** 2
    np.testing.assert_allclose(ndl.grad(square)(low).numpy(), -2 * low.numpy() / size**2)
    ndl.testing.check_gradients(square, x, order=2)

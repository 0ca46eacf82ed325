"""Running sums, products and extremes, and gradients: sizes around the widths of vectors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.testing import assert_close

KINDS = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bool")
SHAPES = (
    (1, 1), (3, 1), (1, 70), (15, 2), (16, 17), (17, 63), (33, 64), (35, 65), (2, 130), (130, 3),
    (0, 5), (5, 0), (600, 4), (3, 40, 5), (17_000, 3),
)  # fmt: skip
LAYOUTS = {
    "dense": lambda x: x,
    "turned": lambda x: ops.permute(x, range(x.ndim)[::-1]),
    "stepping": lambda x: x[:, ::2],
    "backwards": lambda x: ops.flip(x),
    "spread": lambda x: ops.broadcast_to(x[:1], x.shape),
}


def values(shape, kind, seed=0):
    """Return values near 1, of which some are 0."""
    random = np.random.default_rng(seed)
    x = random.choice([0.0, -1.0, 0.75, 1.25, 1.0, -0.8, 1.1], shape, p=[0.02, *[0.98 / 6] * 6])
    return ndl.Tensor(x, dtype=kind, requires_grad=False)


@looped("layout", LAYOUTS)
@looped("kind", KINDS)
@looped("shape", SHAPES)
def test_running_sums_and_products(shape, kind, layout):
    x = LAYOUTS[layout](values(shape, kind))
    for name, axis in itertools.product(("cumsum", "cumprod"), range(x.ndim)):
        found = getattr(ops, name)(x, axis)
        wide = "float32" if x.dtype.itemsize == 2 else x.dtype.name  # as the kernels compute
        wide = wide if x.dtype.kind == "f" else "int64"
        if name == "cumsum" and x.dtype.kind == "f" and x.shape[axis] > 4096:
            wide = "float64"
        exact = getattr(np, name)(x.numpy().astype(wide), axis)
        np.testing.assert_array_equal(found.numpy(), exact.astype(found.dtype.numpy))


def running_extreme(x, axis, better):
    """Return values and positions, line by line; NaN is better than everything."""
    at = np.zeros(x.shape, np.int64)
    lines, places = np.moveaxis(x, axis, 0), np.moveaxis(at, axis, 0)
    for i in range(1, len(lines)):
        best = np.take_along_axis(lines, places[i - 1 : i], 0)[0]
        with np.errstate(invalid="ignore"):  # of bfloat16 NaN
            wins = better(lines[i], best) | (lines[i] != lines[i])
        places[i] = np.where(wins, i, places[i - 1])
    return np.take_along_axis(x, at, axis), at


@looped("layout", LAYOUTS)
@looped("kind", (*KINDS, "int8", "uint8", "int16"))
@looped("shape", SHAPES[:-1])
def test_running_extremes(shape, kind, layout):
    random = np.random.default_rng(0)
    whole = random.choice(np.arange(-3, 4) if kind[0] != "u" else np.arange(7), shape)
    x = ndl.Tensor(whole, dtype=kind, requires_grad=False)
    if x.dtype.kind == "f":
        x = ops.where(random.random(shape) < 0.02, float("nan"), x - 0.5)
    x = LAYOUTS[layout](x)
    better = {"cummax": np.greater_equal, "cummin": np.less_equal}
    for name, axis in itertools.product(better, range(x.ndim)):
        values, positions = getattr(ops, name)(x, axis)
        exact, at = running_extreme(x.numpy(), axis, better[name])
        assert values.dtype == x.dtype and positions.dtype == "int64"
        wide = np.float64 if x.dtype.kind == "f" else np.int64  # NumPy's NaN is equal to itself
        np.testing.assert_array_equal(values.numpy().astype(wide), exact.astype(wide))
        np.testing.assert_array_equal(positions.numpy(), at)


@looped("name", ["cummax", "cummin"])
def test_running_extremes_are_pytorchs(name):
    """Also where elements are equal, NaN, infinite, or a zero with a sign; with their gradients."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(1)
    ends = [-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan]
    for shape, axis in itertools.product(((7, 40), (40, 7), (3, 5, 6)), (0, 1, -1)):
        x, g = random.choice(ends, shape), random.normal(size=shape)
        theirs = torch.tensor(x, requires_grad=True)
        exact = getattr(theirs, name)(axis)
        exact.values.backward(torch.tensor(g))
        ours = ndl.Tensor(x, dtype="float64")
        values, positions = getattr(ours, name)(axis)
        values.backward(ndl.Tensor(g, dtype="float64"))
        assert not positions.requires_grad
        np.testing.assert_array_equal(positions.numpy(), exact.indices.numpy())
        np.testing.assert_array_equal(values.numpy(), exact.values.detach().numpy())
        signs = np.signbit(exact.values.detach().numpy())
        np.testing.assert_array_equal(np.signbit(values.numpy()), signs)
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-14)


def test_running_extremes_of_the_least_and_largest_integers():
    for kind in ("int8", "int64", "uint8"):
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        x = ndl.Tensor(np.array([[least, most, least]], kind).repeat(20, 0), dtype=kind)
        assert x.cummax(1)[0][5].tolist() == [least, most, most]
        assert x.cummin(1)[0][5].tolist() == [least, least, least]
        assert x.cummin(0)[0].tolist() == x.tolist()


def test_running_extremes_of_all_elements():
    x = ndl.Tensor([[3.0, 1.0], [5.0, 4.0]])
    assert [part.tolist() for part in ndl.cummax(x)] == [[3, 3, 5, 5], [0, 0, 2, 2]]
    assert [part.tolist() for part in ndl.cummin(x, -1)] == [[[3, 1], [5, 4]], [[0, 1], [0, 1]]]
    with ndl.lazy_mode():
        values, positions = ndl.cummax(ndl.Tensor([1.0, 2.0, 2.0]), 0)
        assert values.tolist() == [1, 2, 2] and positions.tolist() == [0, 1, 2]


@looped("axis", [0, 1])
def test_running_products_of_special_values(axis):
    x = np.ones((40, 40), np.float32)
    x[3, 5], x[7, 7], x[20, 1], x[1, 30], x[30, 30] = np.inf, 0, np.nan, -0.0, 1e-44
    x[3, 9] = x[9, 5] = 0.0
    with np.errstate(all="ignore"):
        exact = np.cumprod(x, axis)
    found = ops.cumprod(ndl.Tensor(x), axis).numpy()
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(exact))


def test_the_gradient_of_a_product_of_all_is_that_of_a_long_line():
    x = ndl.Tensor(np.where(np.arange(70_000) % 2, 2.0, 0.5), requires_grad=True)
    ops.prod(x).backward()
    assert_close(x.grad.numpy(), 1 / x.numpy().astype("float64"), "float32")


@looped("kind", ["float16", "bfloat16"])
def test_deviations_whose_squares_leave_the_dtype(kind, device):
    for size in (1e-4, 600.0):
        x = ndl.Tensor(np.array([-size, size]), dtype=kind, device=device)
        assert_close(ops.std(x).numpy(), abs(float(x[0].item())), kind)
    assert ops.std(x).dtype == x.dtype and x.std().dtype == x.dtype

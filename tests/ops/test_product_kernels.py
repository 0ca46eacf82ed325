"""Matrix products whose kernels are chosen by shape or dtype, on every instruction set: long rows
times a vector or few, many small matrices, integers, half precision. Compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from devices import ISAS
from looped import looped

import needle as ndl
from needle import core

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


@pytest.fixture
def isa(isa, two_threads):
    """Run the test on this instruction set with two threads."""
    return isa


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def exact(x):
    return x.numpy().astype(np.float64)


def close(actual, a, b, eps):
    """Compare a product with the one in float64, in rounding errors of the terms added up."""
    left, right = exact(a), exact(b)
    expected = np.matmul(left, right)
    room = 4 * eps * (np.matmul(abs(left), abs(right)) + 1e-30)
    assert actual.shape == expected.shape
    assert (abs(exact(actual) - expected) <= room).all()


# ---- long rows ---------------------------------------------------------------------


@looped("n", [1, 3, 16, 4095, 4097, 32768, 65537, 200_000])
@looped("rows", [1, 2, 3, 7])
@looped("dtype", ["float32", "float64"])
def test_long_rows_times_a_vector(isa, dtype, rows, n):
    a, x = ndl.Tensor(normal(rows, n)).astype(dtype), ndl.Tensor(normal(n, seed=1)).astype(dtype)
    eps = np.finfo(dtype).eps
    close(a @ x, a, x, eps)
    close(a[0] @ x, a[0], x, eps)
    close(x @ a.T, x, a.T, eps)


def test_long_rows_of_a_batch_and_of_any_strides(isa):
    a, b = ndl.Tensor(normal(3, 1, 70_000)), ndl.Tensor(normal(3, 70_000, 1, seed=1))
    eps = np.finfo("float32").eps
    close(a @ b, a, b, eps)
    close(a[:, :, ::2] @ b[:, ::2], a[:, :, ::2], b[:, ::2], eps)
    close(a[:, :, ::-1] @ b, a[:, :, ::-1], b, eps)


# ---- few vectors -------------------------------------------------------------------


@looped("few", [2, 3, 4, 5, 6, 7])
@looped("dtype", ["float32", "float64"])
def test_few_vectors_times_contiguous_rows(isa, dtype, few):
    eps = np.finfo(dtype).eps
    for k in (3, 33, 64, 71, 128, 130, 4097, 9000):
        for count in (1, 2, 3, 5, 63) + ((1030,) if k < 200 else ()):
            rows = ndl.Tensor(normal(count, k)).astype(dtype)
            vectors = ndl.Tensor(normal(k, few, seed=1)).astype(dtype)
            close(rows @ vectors, rows, vectors, eps)
            close(vectors.T @ rows.T, vectors.T, rows.T, eps)
            own = vectors.T.contiguous()  # one vector after the other
            close(rows @ own.T, rows, own.T, eps)
            close(own @ rows.T, own, rows.T, eps)


def test_few_vectors_of_a_batch_and_of_any_strides(isa):
    rows, vectors = ndl.Tensor(normal(3, 100, 90)), ndl.Tensor(normal(3, 90, 4, seed=1))
    eps = np.finfo("float32").eps
    for x, y in (
        (rows, vectors), (rows[::-2], vectors[0]), (rows[0], vectors[::2]),
        (rows[:, ::3], vectors[:, :, ::-1]), (rows[:, :, ::-1], vectors), (rows[:1], vectors),
        (vectors.permute((0, 2, 1)), rows.permute((0, 2, 1))),
        (vectors[:, ::-1, 1:].permute((0, 2, 1)), rows[:, ::-2].permute((0, 2, 1))),
    ):  # fmt: skip
        close(x @ y, x, y, eps)


def test_the_threads_do_not_matter_to_few_vectors(isa):
    rows, vectors = ndl.Tensor(normal(1037, 300)), ndl.Tensor(normal(300, 4, seed=1))
    results = []
    for threads in (1, 2, 3):
        core.native.set_threads(threads)
        results.append((rows @ vectors).numpy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# ---- special values ----------------------------------------------------------------


def test_special_values_in_long_rows(isa):
    x, y = np.ones(100_000, np.float32), np.ones(100_000, np.float32)
    x[70_000] = np.inf
    assert (ndl.Tensor(x) @ ndl.Tensor(y)).item() == np.inf
    y[70_000] = 0
    assert np.isnan((ndl.Tensor(x) @ ndl.Tensor(y)).item())
    x[:] = 1e-42  # below the normal numbers
    assert (ndl.Tensor(x) @ ndl.Tensor(np.ones_like(x))).item() > 0


def test_the_threads_do_not_matter_to_long_rows(isa):
    a, x = ndl.Tensor(normal(3, 500_000)), ndl.Tensor(normal(500_000, seed=1))
    results = []
    for threads in (1, 2, 3):
        core.native.set_threads(threads)
        results.append((a @ x).numpy())
    assert all((results[0] == other).all() for other in results[1:])


# ---- half precision ----------------------------------------------------------------


@pytest.fixture(params=[0, 5])
def zen(isa, request):
    """Run the test as on AMD's Zen 5, which multiplies pairs of bfloat16, or on others."""
    core.native.count_as_zen(request.param)
    yield
    core.native.count_as_zen(-1)


def half(values, dtype):
    return ndl.Tensor(values).astype(dtype)


@looped("shape", [(96, 512, 100), (257, 130, 65), (400, 1100, 70), (300, 64, 300)])
@looped("turned", ["", "a", "b", "ab"])
@looped("dtype", ["bfloat16", "float16"])
def test_products_of_halves_are_rounded_once(zen, dtype, shape, turned):
    m, k, n = shape
    a = half(normal(k, m), dtype).T if "a" in turned else half(normal(m, k), dtype)
    b = half(normal(n, k, seed=1), dtype).T if "b" in turned else half(normal(k, n, seed=1), dtype)
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    left, right = exact(a), exact(b)
    expected = left @ right
    sums = 1e-6 * (abs(left) @ abs(right))  # in float32
    assert (abs(exact(a @ b) - expected) <= step * 1.01 * abs(expected) + sums).all()


@looped("scale", [1e-38, 1e-20, 1e-15, 1e15])
def test_products_of_very_small_and_large_halves(zen, scale):
    a, b = normal(300, 300), normal(300, 300, seed=1)
    x, y = half(a * scale, "bfloat16"), half(b, "bfloat16")
    expected = exact(x) @ exact(y)
    room = 2.0**-8 * abs(expected) + 1e-6 * (abs(exact(x)) @ abs(exact(y))) + 1e-40
    assert (abs(exact(x @ y) - expected) <= room).all()
    tiny, wide = half(a * scale, "bfloat16"), half(b * scale, "bfloat16")
    with np.errstate(over="ignore"):
        exactly = (exact(tiny) @ exact(wide)).astype(np.float32)
    found = (tiny @ wide).numpy().astype(np.float32)
    assert (abs(found - exactly) <= 2.0**-7 * abs(exactly) + 1e-5 * scale**2 * 300 + 1e-40).all()


def test_special_values_in_products_of_halves(zen):
    a, b = normal(200, 300), normal(300, 200, seed=1)
    a[3, 7], a[60, 0], b[11, 150], b[200, 70] = np.nan, np.inf, -np.inf, np.nan
    x, y = half(a, "bfloat16"), half(b, "bfloat16")
    with np.errstate(invalid="ignore"):
        expected = exact(x) @ exact(y)
    found = exact(x @ y)
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert (np.isinf(found) == np.isinf(expected)).all()
    fine = np.isfinite(expected)
    off = abs(found[fine] - expected[fine])
    assert (off <= 2.0**-7 * abs(expected[fine]) + 1e-3).all()


# ---- many small matrices, integers -------------------------------------------------


@looped("size", [(3, 3, 3), (1, 5, 7), (8, 8, 8), (16, 16, 16), (17, 33, 20)])
@looped("turned", ["", "a", "b", "ab"])
@looped("dtype", ["float32", "float64"])
def test_many_small_matrices(isa, dtype, size, turned):
    m, k, n = size
    a = normal(333, k, m) if "a" in turned else normal(333, m, k)
    b = normal(333, n, k, seed=1) if "b" in turned else normal(333, k, n, seed=1)
    x, y = ndl.Tensor(a).astype(dtype), ndl.Tensor(b).astype(dtype)
    x = ndl.permute(x, (0, 2, 1)) if "a" in turned else x
    y = ndl.permute(y, (0, 2, 1)) if "b" in turned else y
    close(x @ y, x, y, np.finfo(dtype).eps)
    close(x[::-2] @ y[0], x[::-2], y[0], np.finfo(dtype).eps)
    close(x[0] @ y[3::3], x[0], y[3::3], np.finfo(dtype).eps)


@looped("size", [(1, 1, 1), (5, 3, 2), (4, 9, 16), (7, 40, 33), (130, 65, 64)])
@looped("turned", ["", "a", "b"])
@looped("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_products_of_integers_wrap_around(isa, dtype, size, turned):
    m, k, n = size
    limits, random = np.iinfo(dtype), np.random.default_rng(0)

    def integers(*shape):
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    a, b = integers(3, k, m) if "a" in turned else integers(3, m, k), integers(k, n)
    x = ndl.permute(ndl.Tensor(a), (0, 2, 1)) if "a" in turned else ndl.Tensor(a)
    y = ndl.Tensor(b.T.copy()).T if "b" in turned else ndl.Tensor(b)
    with np.errstate(over="ignore"):
        expected = np.matmul(x.numpy(), y.numpy())
    found = (x @ y).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


# ---- parts of a product ------------------------------------------------------------


@looped("dtype", ["float32", "float64"])
@looped("threads", [2, 3, 4])
def test_the_last_part_of_the_rows_is_computed_whatever_its_height(isa, dtype, threads):
    core.native.set_threads(threads)
    for m in range(9, 65):
        for n in (33, 69, 100):
            k = 300_000 // (m * n) + 40  # enough work for more than one thread
            a, b = (ndl.Tensor(normal(*shape)).astype(dtype) for shape in ((m, k), (k, n)))
            left = ndl.Tensor(np.full((m, n), np.nan)).astype(dtype)  # to be found in memory
            del left
            close(a @ b, a, b, np.finfo(dtype).eps)


@looped("dtype", ["float32", "float64"])
@looped("m", [64, 77, 130, 250])
def test_what_lies_between_adjacent_rows_is_not_multiplied(isa, dtype, m):
    """a.T is packed by whole vectors, which reach into what the view leaves out."""
    around = np.full((600, m + 23), np.nan)
    around[:, 5 : 5 + m] = normal(600, m)
    a = ndl.Tensor(around).astype(dtype)[:, 5 : 5 + m].T
    b = ndl.Tensor(normal(600, 300, seed=1)).astype(dtype)
    close(a @ b, a, b, np.finfo(dtype).eps)
    close(a[:, ::-1] @ b, a[:, ::-1], b, np.finfo(dtype).eps)

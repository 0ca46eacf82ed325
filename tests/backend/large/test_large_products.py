"""Products of large matrices, and results larger than the caches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from devices import ISAS
from large_arrays import FLOATS, apply, check, exact, rows, softmax, tensor
from looped import looped

from needle import core, ops
from needle.ops.reduction.softmax import Softmax

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


# ---- products of matrices ------------------------------------------------------------


def laid_out(x, layout):
    """Return a matrix in memory of some layout; with one row or column, all are alike."""
    if layout == "transposed":
        return ops.transpose(tensor(exact(x).T.copy(), str(x.dtype)))
    if layout == "row":
        return ops.broadcast_to(x[:1], x.shape)
    return ops.broadcast_to(x[:, :1], x.shape) if layout == "column" else x


LAYOUTS = ("plain", "transposed", "row", "column")
PAIRS = [*itertools.product(LAYOUTS, LAYOUTS)]
PAIRS.remove(("column", "row"))  # equal terms: their errors do not cancel


@looped("a_layout, b_layout", PAIRS)
@looped("dtype", [*FLOATS, "float16"])
def test_products_of_several_blocks(isa, dtype, a_layout, b_layout):
    """Blocks of steps and of columns, few rows, tiles not full; for all threads, and for one."""
    for m, k, n in ((61, 403, 1043), (9, 403, 613), (13, 40, 83)):
        a = laid_out(tensor(rows(m, k) / k**0.5, dtype), a_layout)
        b = laid_out(tensor(rows(k, n, 1), dtype), b_layout)
        check(ops.matmul(a, b), exact(a) @ exact(b), k)


SHARED = [(2101, 270, 1043), (1330, 128, 256), (16, 523, 1043), (16, 523, 300), (40, 1100, 300)]
"""Slabs of rows, blocks of steps and of columns; columns, rows or both for each thread."""


@pytest.mark.parametrize("b_layout", ["plain", "transposed"])
@pytest.mark.parametrize("a_layout", ["plain", "transposed"])
@pytest.mark.parametrize(("m", "k", "n"), SHARED)
def test_products_do_not_depend_on_who_helps_whom(isa, m, k, n, a_layout, b_layout):
    """Of more threads than processors, some begin when others have finished."""
    a = laid_out(tensor(rows(m, k) / k**0.5), a_layout)
    b = laid_out(tensor(rows(k, n, 1)), b_layout)
    core.native.set_threads(1)
    product = ops.matmul(a, b)
    check(product, exact(a) @ exact(b), k)
    alone = product.numpy()
    for threads in (2, 7, 2, 7):
        core.native.set_threads(threads)
        np.testing.assert_array_equal(ops.matmul(a, b).numpy(), alone)


def spread(x, low, high):
    """Return x times powers of 2 between two exponents."""
    powers = np.random.default_rng(7).integers(low, high + 1, x.shape)
    return x * 2.0**powers


STRANGE = {
    "ordinary": lambda a, b: (a, b),
    "products as small as the type holds": lambda a, b: (a * 2.0**-63, b * 2.0**-63),
    "denormal": lambda a, b: (a * 2.0**-130, b * 2.0**20),
    "third parts denormal": lambda a, b: (a * 2.0**20, b * 2.0**-112),
    "parts of products denormal": lambda a, b: (a * 2.0**-40, b * 2.0**-65),
    "sums as large as the type holds": lambda a, b: (a * 2.0**63, b * 2.0**55),
    "largest": lambda a, b: (np.clip(a, -0.5, 0.5) * 2 * (2.0**128 - 2.0**104), b * 2.0**-20),
    "of all sizes": lambda a, b: (spread(a, -100, 50), spread(b, -50, 60)),
    "some of all sizes": lambda a, b: (np.where(a > 1, spread(a, -140, 60), a), b),
    "zeros": lambda a, b: (np.where(a > 0, a, 0), b * 0),
}


@looped("numbers", STRANGE)
@looped("m, k, n", [(200, 64, 300), (70, 600, 130)])
def test_products_of_strange_numbers(isa, numbers, m, k, n):
    """Too small or too large to be multiplied in parts: the error is that of float32, anyway."""
    x, y = STRANGE[numbers](rows(m, k), rows(k, n, 1))
    a, b = tensor(x, "float32"), tensor(y, "float32")
    x, y = exact(a), exact(b)
    found = exact(ops.matmul(a, b))
    bound = 2.0**-24 * 16 * (abs(x) @ abs(y)) + k * 2.0**-149
    assert (abs(found - x @ y) <= bound).all()


def test_products_that_are_not_finite(isa):
    """Rows and columns without such a number keep their values."""
    x, y = rows(200, 64) / 8, rows(64, 300, 1)
    x[3, 5], x[70, 0], x[71, 1], y[9, 250] = np.nan, np.inf, -np.inf, np.inf
    y[0, 17] = 0.0
    a, b = tensor(x, "float32"), tensor(y, "float32")
    with np.errstate(invalid="ignore"):
        expected = exact(a) @ exact(b)
    check(ops.matmul(a, b), expected, 64)


# ---- the true size -----------------------------------------------------------------


def test_results_larger_than_the_caches():
    n = (36 << 20) // 4 // 1001
    values = np.resize(rows(1, 97_003)[0].astype(np.float32), (n, 1001))
    x = tensor(values, offset=1)
    core.native.set_threads(2)
    try:
        np.testing.assert_array_equal((x + x).numpy(), values + values)
        np.testing.assert_array_equal(ops.relu(x).numpy(), np.maximum(values, 0))
        (found,) = apply(Softmax.of(-1), x)
    finally:
        core.native.set_threads(0)
    some = slice(None, None, 97)
    check(found[some], softmax(values[some].astype(np.float64)), 1001, 1001)

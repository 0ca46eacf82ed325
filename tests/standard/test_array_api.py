"""needle.standard: the array API standard's names, signatures, dtypes and a few of its values.

The standard's own test suite runs outside the repository: docs/array_api.md says how, and what
of it fails.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import standard as xp
from needle.errors import (
    ArgumentError,
    AxesError,
    DtypeError,
    ExchangeError,
    GradientError,
    IndexRangeError,
    OptionError,
    ShapeError,
    SingularError,
)

# ---- names and signatures --------------------------------------------------------------

SIGNATURES = """
arange(start, /, stop, step, *, dtype, device)
asarray(obj, /, *, dtype, device, copy)
empty(shape, *, dtype, device)
empty_like(x, /, *, dtype, device)
eye(n_rows, n_cols, /, *, k, dtype, device)
from_dlpack(x, /, *, device, copy)
full(shape, fill_value, *, dtype, device)
full_like(x, /, fill_value, *, dtype, device)
linspace(start, stop, /, num, *, dtype, device, endpoint)
meshgrid(*arrays, indexing)
ones(shape, *, dtype, device)
ones_like(x, /, *, dtype, device)
tril(x, /, *, k)
triu(x, /, *, k)
zeros(shape, *, dtype, device)
zeros_like(x, /, *, dtype, device)
astype(x, dtype, /, *, copy, device)
can_cast(from_, to, /)
finfo(type, /)
iinfo(type, /)
isdtype(dtype, kind)
result_type(*arrays_and_dtypes)
clip(x, /, min, max)
take(x, indices, /, *, axis)
take_along_axis(x, indices, /, *, axis)
matmul(x1, x2, /)
matrix_transpose(x, /)
tensordot(x1, x2, /, *, axes)
vecdot(x1, x2, /, *, axis)
broadcast_arrays(*arrays)
broadcast_to(x, /, shape)
concat(arrays, /, *, axis)
expand_dims(x, /, axis)
flip(x, /, *, axis)
moveaxis(x, source, destination, /)
permute_dims(x, /, axes)
repeat(x, repeats, /, *, axis)
reshape(x, /, shape, *, copy)
roll(x, /, shift, *, axis)
squeeze(x, /, axis)
stack(arrays, /, *, axis)
tile(x, repetitions, /)
unstack(x, /, *, axis)
argmax(x, /, *, axis, keepdims)
argmin(x, /, *, axis, keepdims)
count_nonzero(x, /, *, axis, keepdims)
nonzero(x, /)
searchsorted(x1, x2, /, *, side, sorter)
where(condition, x1, x2, /)
unique_all(x, /)
unique_counts(x, /)
unique_inverse(x, /)
unique_values(x, /)
argsort(x, /, *, axis, descending, stable)
sort(x, /, *, axis, descending, stable)
cumulative_prod(x, /, *, axis, dtype, include_initial)
cumulative_sum(x, /, *, axis, dtype, include_initial)
max(x, /, *, axis, keepdims)
mean(x, /, *, axis, keepdims)
min(x, /, *, axis, keepdims)
prod(x, /, *, axis, dtype, keepdims)
std(x, /, *, axis, correction, keepdims)
sum(x, /, *, axis, dtype, keepdims)
var(x, /, *, axis, correction, keepdims)
all(x, /, *, axis, keepdims)
any(x, /, *, axis, keepdims)
diff(x, /, *, axis, n, prepend, append)
linalg.cholesky(x, /, *, upper)
linalg.cross(x1, x2, /, *, axis)
linalg.det(x, /)
linalg.diagonal(x, /, *, offset)
linalg.eigh(x, /)
linalg.eigvalsh(x, /)
linalg.inv(x, /)
linalg.matmul(x1, x2, /)
linalg.matrix_norm(x, /, *, keepdims, ord)
linalg.matrix_power(x, n, /)
linalg.matrix_rank(x, /, *, rtol)
linalg.matrix_transpose(x, /)
linalg.outer(x1, x2, /)
linalg.pinv(x, /, *, rtol)
linalg.qr(x, /, *, mode)
linalg.slogdet(x, /)
linalg.solve(x1, x2, /)
linalg.svd(x, /, *, full_matrices)
linalg.svdvals(x, /)
linalg.tensordot(x1, x2, /, *, axes)
linalg.trace(x, /, *, offset, dtype)
linalg.vecdot(x1, x2, /, *, axis)
linalg.vector_norm(x, /, *, axis, keepdims, ord)
"""

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite
isinf isnan log log1p log2 log10 logical_not negative positive real reciprocal round sign signbit
sin sinh square sqrt tan tanh trunc
"""

BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide
equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or
logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract
"""

ALL = SIGNATURES.strip().split("\n")
ALL += [f"{name}(x, /)" for name in UNARY.split()]
ALL += [f"{name}(x1, x2, /)" for name in BINARY.split()]

METHODS = """
abs add and array_namespace bool complex dlpack dlpack_device eq float floordiv ge getitem gt index
int invert le lshift lt matmul mod mul ne neg or pos pow rshift setitem sub truediv xor radd rsub
rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor rlshift rrshift
"""


@pytest.mark.parametrize("wanted", ALL)
def test_functions_have_the_names_and_signatures_of_the_standard(wanted):
    dotted, _, parameters = wanted.partition("(")
    function = xp
    for name in dotted.split("."):
        function = getattr(function, name)
    assert function.__name__ == name and function.__doc__
    found = inspect.signature(function)
    bare = [p.replace(default=p.empty, annotation=p.empty) for p in found.parameters.values()]
    text = str(inspect.Signature(bare)).replace("*arrays, *,", "*arrays,")
    assert text == f"({parameters}"


def test_arrays_have_the_attributes_and_methods_of_the_standard():
    x = xp.ones((2, 3))
    assert x.__array_namespace__() is xp is x.__array_namespace__(api_version="2022.12")
    with pytest.raises(OptionError, match=r"2031\.12"):
        x.__array_namespace__(api_version="2031.12")
    missing = [name for name in METHODS.split() if not hasattr(x, f"__{name}__")]
    assert not missing
    assert (x.shape, x.ndim, x.size, x.dtype, x.device) == ((2, 3), 2, 6, xp.float32, ndl.cpu())
    assert x.T.shape == x.mT.shape == (3, 2)
    assert x.to_device("cpu_numpy").device == ndl.cpu_numpy()
    with pytest.raises(OptionError, match="no streams"):
        x.to_device("cpu", stream=1)
    assert complex(xp.asarray(2.5)) == 2.5 + 0j
    assert xp.__array_api_version__ == "2024.12"
    assert (xp.e, xp.pi, xp.inf, xp.newaxis) == (math.e, math.pi, math.inf, None)
    assert math.isnan(xp.nan)


def test_what_the_namespace_says_of_itself_is_so():
    info = xp.__array_namespace_info__()
    assert ndl.cpu_numpy() in info.devices() and info.default_device() in info.devices()
    assert ndl.cuda() not in info.devices() or ndl.cuda().enabled()
    limit = info.capabilities()["max dimensions"]
    assert xp.zeros((1,) * limit).ndim == limit
    with pytest.raises(ShapeError):
        xp.zeros((1,) * (limit + 1))
    assert info.default_dtypes()["real floating"] == xp.asarray(1.0).dtype
    assert info.default_dtypes()["integral"] == xp.asarray(1).dtype
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8"}
    assert set(info.dtypes()) == {"bool", "int8", "int16", "int32", "int64", "uint8", "float32",
                                  "float64"}  # fmt: skip
    with pytest.raises(OptionError, match="did you mean"):
        info.dtypes(kind="real float")


# ---- dtypes ----------------------------------------------------------------------------


def test_values_keep_the_dtype_that_the_standard_gives_them():
    cases = [(True, "bool"), (1, "int64"), (1.0, "float32"), ([1, 2.5], "float32"),
             (np.float64(1), "float64"), (np.ones(2), "float64"), (np.ones(2, "int8"), "int8"),
             (memoryview(b"ab"), "uint8"), ([xp.zeros(2, dtype=xp.int16)], "int16"),
             ([xp.zeros(2, dtype=xp.bfloat16)], "bfloat16")]  # fmt: skip
    for value, kind in cases:
        x = xp.asarray(value)
        assert x.dtype == kind and not x.requires_grad, value
    assert xp.asarray([1, 2], dtype=xp.int8).dtype == "int8"
    for bad in (1j, [2.0, 1j]):
        with pytest.raises(DtypeError, match="complex"):
            xp.asarray(bad)
    with pytest.raises(OverflowError):
        xp.asarray(2**63)
    with pytest.raises(OverflowError):
        xp.asarray([300], dtype=xp.int8)


def test_promotion():
    x = xp.asarray([1, 2], dtype=xp.int8)
    assert xp.result_type(x, xp.uint8, 3) == xp.int16 and xp.result_type(x, 1.0) == xp.float32
    assert xp.result_type(xp.float64, 1) == xp.float64 and xp.result_type(xp.bool, 1) == xp.int64
    for bad in ((1, 2.0), (x, xp.float32)):
        with pytest.raises(DtypeError):
            xp.result_type(*bad)
    assert xp.can_cast(x, xp.int64) and not xp.can_cast(xp.int64, xp.int8)
    assert not xp.can_cast(xp.int8, xp.float32)
    assert xp.isdtype(xp.int8, "signed integer") and xp.isdtype(xp.bool, ("numeric", xp.bool))
    assert not xp.isdtype(xp.bool, "numeric") and not xp.isdtype(xp.float32, "complex floating")
    with pytest.raises(OptionError, match="real floating"):
        xp.isdtype(xp.float32, "real")
    with pytest.raises(DtypeError, match="do not mix"):
        xp.add(x, xp.ones(2))


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_limits_of_floats(kind):
    info = xp.finfo(getattr(xp, kind))
    one = xp.ones((), dtype=kind)
    assert info.dtype == kind and info == xp.finfo(one)
    assert (one + info.eps > one).item() and not (one + info.eps / 2 > one).item()
    assert xp.isfinite(one * info.max).item() and not xp.isfinite(one * info.max * 2).item()
    assert (one * info.smallest_normal > 0).item() and info.min == -info.max
    with pytest.raises(DtypeError, match="not floating"):
        xp.finfo(xp.int8)


def test_limits_of_integers():
    assert (xp.iinfo(xp.uint8).min, xp.iinfo(xp.uint8).max) == (0, 255)
    info = xp.iinfo(xp.asarray(1))
    assert (info.bits, info.max, info.dtype) == (64, 2**63 - 1, xp.int64)
    with pytest.raises(DtypeError, match="not an integer"):
        xp.iinfo(xp.float32)


def test_large_integers_are_exact(device):
    """Kernels take numbers as doubles; integers beyond 2 ** 53 must not go that way."""
    n = 2**62 + 1
    assert xp.full((2,), n, device=device).tolist() == [n, n]
    x = xp.asarray([1], device=device)
    assert (x + 2**62).tolist() == [n] and xp.where(x == 1, n, 0).tolist() == [n]
    x[0] = n
    assert x.tolist() == [n] and xp.full((), -n, device=device).item() == -n
    with pytest.raises(DtypeError, match="300 does not fit into int8"):
        xp.full((3,), 300, dtype=xp.int8, device=device)


# ---- memory ----------------------------------------------------------------------------


def test_asarray_copies_as_told(host_device):
    values = np.arange(6.0).reshape(2, 3)
    shared = xp.asarray(values, copy=False, device=host_device)
    kept = xp.asarray(values, copy=True, device=host_device)
    values[0, 0] = 9
    assert shared[0, 0].item() == 9 and kept[0, 0].item() == 0
    assert xp.asarray(shared) is shared and xp.asarray(shared, copy=True) is not shared
    for bad in (lambda: xp.asarray([1.0], copy=False),
                lambda: xp.asarray(values, dtype=xp.float32, copy=False),
                lambda: xp.asarray(shared, dtype=xp.float32, copy=False),
                lambda: xp.reshape(shared.T, (6,), copy=False)):  # fmt: skip
        with pytest.raises(ValueError, match="copy"):
            bad()
    assert xp.reshape(shared, (6,), copy=False).shape == (6,)
    flat = xp.reshape(shared, (6,), copy=True)
    values[0, 0] = 1
    assert flat[0].item() == 9


def test_dlpack_says_what_it_cannot_do():
    x = xp.ones(3)
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="no streams"):
        x.__dlpack__(stream=2)
    with pytest.raises((BufferError, ValueError)):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(GradientError, match=r"part of a graph; export \.detach"):
        xp.from_dlpack(2 * ndl.Tensor([1.0]))
    for kind in ("float32", "bfloat16", "bool", "int8"):
        y = xp.asarray([1, 0, 1], dtype=kind)
        assert xp.from_dlpack(y).dtype == kind and xp.all(xp.from_dlpack(y, copy=True) == y).item()


# ---- what DLPack cannot carry ----------------------------------------------------------


class Gives:
    """Answers as DLPack asks, with what it was told."""

    def __init__(self, capsule, place=(1, 0)):
        self.capsule, self.place = capsule, place

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.place


def test_negative_strides_are_given_as_a_copy(host_device):
    x = xp.asarray([[1.0, 2.0, 3.0]] * 2, device=host_device)
    for y in (xp.flip(x), xp.flip(x, axis=1), xp.astype(xp.flip(x), xp.bfloat16)[:, ::-1]):
        for version in (None, (1, 0)) if y.dtype != "bfloat16" else ():  # NumPy reads no bfloat16
            given = np.from_dlpack(Gives(y.__dlpack__(max_version=version)))  # with its strides
            assert min(given.strides) > 0 and given.shape == (2, 3)
        with pytest.raises(ExchangeError, match=r"strides(.|\n)*x\.clone\(\)"):
            y.__dlpack__(copy=False)
        assert y.clone().__dlpack__(copy=False)  # which the error advises
        with pytest.raises(BufferError, match="strides"):
            xp.from_dlpack(y, copy=False)
        assert xp.from_dlpack(y).tolist() == y.tolist()
    shared = xp.from_dlpack(x[:, 1:], device=host_device, copy=False)
    assert xp.reshape(shared, (2, 2)).tolist() == [[2.0, 3.0]] * 2


def test_torch_reads_what_is_flipped():
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(xp.flip(xp.asarray([1.0, 2.0, 3.0]))).tolist() == [3.0, 2.0, 1.0]


def test_what_is_no_capsule():
    used = Gives(np.ones(3).__dlpack__())
    assert xp.from_dlpack(used).shape == (3,)
    wrong = {
        "used_dltensor'; somebody has taken": used,
        "gave int, no capsule": Gives(3),
        "__dlpack_device__ gave 3": Gives(None, place=3),
    }
    for text, source in wrong.items():
        with pytest.raises(ExchangeError, match=text):
            xp.from_dlpack(source)
    for source in (3, None, np.ones(3).__dlpack__()):
        with pytest.raises(ArgumentError, match="does not offer __dlpack__"):
            xp.from_dlpack(source)


# ---- values ----------------------------------------------------------------------------


def test_masks_of_no_axes_and_of_no_elements(device):
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]], device=device)
    values = x.numpy()
    for index in (True, False, (True, 1), (slice(None), True), (True, [0, 1]), (0, True, None)):
        np.testing.assert_array_equal(x[index].numpy(), values[index])
    assert x[xp.asarray(True, device=device)].shape == (1, 2, 2)
    assert x[xp.zeros((0, 2), dtype=xp.bool, device=device)].shape == (0,)
    with pytest.raises(IndexRangeError, match=r"\(2, 1\) for axes of shape \(2, 2\)"):
        x[xp.ones((2, 1), dtype=xp.bool, device=device)]
    x[xp.asarray(False, device=device)] = 0.0
    assert x.tolist() == values.tolist()
    x[xp.asarray(True, device=device)] = 0.0
    assert not xp.any(x).item()


def test_infinite_quotients_rounded_down(host_device):
    """The standard's floor(x1 / x2), where NumPy has NaN and -1."""
    x = xp.asarray([math.inf, -math.inf, 5.0, -5.0, 7.0], device=host_device)
    y = xp.asarray([2.0, 2.0, -math.inf, math.inf, -2.0], device=host_device)
    found = xp.floor_divide(x, y)
    assert found.tolist() == [math.inf, -math.inf, 0.0, 0.0, -4.0]
    assert xp.signbit(found).tolist() == [False, True, True, True, True]


def test_sets_and_searches():
    x = xp.asarray([[3.0, math.nan], [1.0, math.nan]])
    values, indices, inverse, counts = xp.unique_all(x)
    np.testing.assert_array_equal(values.numpy(), [1.0, 3.0, math.nan, math.nan])
    assert indices.tolist() == [2, 0, 1, 3] and counts.tolist() == [1, 1, 1, 1]
    assert inverse.tolist() == [[1, 2], [0, 3]]
    assert xp.unique_inverse(xp.asarray([2, 1, 2])).inverse_indices.tolist() == [1, 0, 1]
    assert xp.unique_counts(xp.asarray([2, 1, 2])).counts.tolist() == [1, 2]
    edges = xp.asarray([3, 1, 2])
    found = xp.searchsorted(edges, xp.asarray([2]), side="right", sorter=xp.argsort(edges))
    assert found.tolist() == [2]
    assert xp.count_nonzero(xp.asarray([[0, 2], [3, 4]]), axis=0).tolist() == [1, 2]
    assert xp.where(xp.asarray([True, False]), 1, 2.5).dtype == xp.float32
    with pytest.raises(TypeError, match="numbers only"):
        xp.add(1, 2)


def test_sums_up_to_each_element():
    x = xp.asarray([1, 2, 3], dtype=xp.int8)
    assert xp.cumulative_sum(x, include_initial=True).tolist() == [0, 1, 3, 6]
    assert xp.cumulative_prod(x, dtype=xp.int16).dtype == xp.int16
    assert xp.sum(x).dtype == xp.int64 and xp.sum(x, dtype=xp.int8).dtype == xp.int8
    assert xp.cumulative_prod(xp.ones((2, 3)), axis=1, include_initial=True).shape == (2, 4)
    with pytest.raises(ShapeError, match="axis must be given"):
        xp.cumulative_sum(xp.ones((2, 2)))
    y = xp.asarray([1.0, 4.0, 9.0])
    assert xp.diff(y, prepend=y[:1], append=xp.zeros(1)).tolist() == [0.0, 3.0, 5.0, -9.0]
    assert xp.diff(y, n=2).tolist() == [2.0]


def test_arrangement():
    x = xp.asarray([[1, 2], [3, 4]])
    assert xp.repeat(x, xp.asarray([2, 0]), axis=1).tolist() == [[1, 1], [3, 3]]
    assert xp.repeat(x[:0, 0], x[:0, 0]).shape == (0,)
    assert xp.flip(x).tolist() == [[4, 3], [2, 1]] and xp.roll(x, 1).tolist() == [[4, 1], [2, 3]]
    assert xp.concat([x, x], axis=None).shape == (8,)
    assert [y.tolist() for y in xp.unstack(x, axis=1)] == [[1, 3], [2, 4]]
    with pytest.raises(DtypeError, match="not integers"):
        xp.repeat(x, xp.ones(4))


# ---- linear algebra --------------------------------------------------------------------


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
    with pytest.raises(OptionError, match="matrix_norm: ord"):
        xp.linalg.matrix_norm(x, ord=3)
    with pytest.raises(AxesError, match=r"norm: ord=2 over 3 axes\n[^$]*needle.norm"):
        xp.linalg.norm(x[None], 2)
    with pytest.raises(OptionError, match="qr: mode"):
        xp.linalg.qr(x, mode="full")
    with pytest.raises(ShapeError, match="sizes 2 and 1"):
        xp.vecdot(x, x[:, :1])
    with pytest.raises(ShapeError, match="three elements"):
        xp.linalg.cross(x, x)
    with pytest.raises(ShapeError, match="both need 2"):
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


@pytest.mark.parametrize("n", [1, 32, 33, 150])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
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


def test_functions_of_the_namespace_are_differentiable():
    x = ndl.Tensor([[2.0, 1.0], [1.0, 3.0]], dtype="float64")
    xp.linalg.slogdet(xp.asarray(x)).logabsdet.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.linalg.inv(x.numpy()).T)
    lazy = xp.linalg.vector_norm(x)
    lazy.backward()
    np.testing.assert_allclose(x.grad.numpy(), x.numpy() / np.linalg.norm(x.numpy()))


def test_a_list_of_tensors_stays_part_of_their_graph():
    x = ndl.Tensor([2.0, 3.0])
    y = xp.asarray([[x[0] * x[1], 1], [x[1], 2.5]])
    assert y.dtype == "float32" and y.tolist() == [[6.0, 1.0], [3.0, 2.5]]
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 3.0])
    whole = xp.asarray([x[0], x[1]], dtype=xp.int64)
    assert whole.tolist() == [2, 3] and not whole.requires_grad
    with ndl.no_grad():
        assert not xp.asarray([x[0], x[1]]).requires_grad
    half = ndl.Tensor(2.0, dtype="bfloat16")
    assert xp.asarray([[half, half]]).dtype == "bfloat16"
    with pytest.raises(ShapeError, match=r"of shapes \(2,\), \(\)"):
        xp.asarray([x, x[0]])


# ---- other libraries -------------------------------------------------------------------


def test_torch_reads_tensors_with_their_shape():
    torch = pytest.importorskip("torch")
    for kind in ("float32", "bfloat16", "int16", "bool"):
        x = xp.asarray([[1, 0, 1], [0, 1, 1]], dtype=kind)
        y = torch.asarray(x)
        assert y.shape == (2, 3) and str(y.dtype) == f"torch.{kind}"
        assert y.to(torch.int64).tolist() == xp.astype(x, xp.int64).tolist()


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)
def test_scikit_learn_computes_on_tensors_as_the_page_shows():
    """docs/array_api.md: its first block of code prints its second block."""
    page = Path(__file__).parents[2] / "docs" / "array_api.md"
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page.read_text(), re.S)[:2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed

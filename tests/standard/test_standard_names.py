"""needle.standard has the names and signatures of the array API standard."""

from __future__ import annotations

import inspect
import math

import pytest
from looped import looped

import needle as ndl
from needle import standard as xp
from needle.errors import (
    OptionError,
    ShapeError,
)

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


@looped("wanted", ALL)
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

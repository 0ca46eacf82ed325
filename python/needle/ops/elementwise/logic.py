"""Limits, tests, logic and bits of each element. Every class is one row of functions.def."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor
from needle.dtype import DType
from needle.errors import DtypeError, ShapeError
from needle.ops.core.attributes import either, number_in
from needle.ops.core.families import Elementwise
from needle.ops.core.op import cast, export, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import (
    Sample,
    Samples,
    binary_samples,
    integers,
    unary_samples,
    uniform,
)
from needle.ops.elementwise.arithmetic import (
    Comparison,
    absolute,
    cast_like,
    comparable,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    maximum,
    minimum,
    where,
)
from needle.ops.reduction.reduce import all as all_true
from needle.ops.reduction.reduce import any as any_true
from needle.ops.reduction.reduce import summation

if TYPE_CHECKING:
    from needle.typing import Axes, Operand, Reference, Slope, Tensor

__all__ = [
    "BitwiseAnd", "BitwiseInvert", "BitwiseLeftShift", "BitwiseOr", "BitwiseRightShift",
    "BitwiseXor", "Clip", "IsFinite", "IsInf", "IsNaN", "LogicalAnd", "LogicalNot", "LogicalOr",
    "LogicalXor", "allclose", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "clamp", "clip", "contains", "isclose",
    "isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor",
    "nan_to_num", "nanmean", "nansum",
]  # fmt: skip


def _clip_samples() -> list[Sample]:
    x, low, high = uniform((3, 4)), uniform((4,), -1.5, -0.5), uniform((3, 1), 0.5, 1.5)
    return [
        Sample((x, low, high), (), np.clip),
        Sample((x, np.array(-1.0), np.array(1.0)), (), np.clip),
        Sample((x[:0], low, np.array(1.0)), (), np.clip),
        Sample((uniform(()), np.array(-1.0), np.array(1.0)), (), np.clip),
        Sample((x, uniform((3,)), high), raises=ShapeError),
    ]


class Clip(Elementwise):
    """Limit x to [low, high]: min(max(x, low), high). Shapes broadcast."""

    function = "clip"
    saves = ((0, 1, 2), (0, 1, 2), (0, 1, 2))
    samples = staticmethod(_clip_samples)

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, low, high = out.inputs
        if i == 0:
            return logical_and(greater_equal(x, low), less_equal(x, high))
        if i == 1:
            return logical_and(less(x, low), less_equal(low, high))
        return greater(maximum(x, low), high)


class _Test(Elementwise):
    result = dtype.bool_
    is_differentiable = False


def _special() -> list[Sample]:
    values = np.array([[0.0, -1.5, np.inf], [-np.inf, np.nan, 3.0]])
    return [Sample((x,), gradient=False) for x in (values, values[:0], np.array(np.nan))]


def _special_samples(reference: Reference) -> Samples:
    return lambda: [replace(sample, reference=reference) for sample in _special()]


class IsNaN(_Test):
    """Whether x is not a number; bool.

    >>> print(ndl.isnan(Tensor([1.0, float("inf"), float("nan")])))
    [False False  True]
    """

    function = "isnan"
    samples = _special_samples(np.isnan)


class IsInf(_Test):
    """Whether x is infinite; bool.

    >>> print(ndl.isinf(Tensor([1.0, float("inf"), float("nan")])))
    [False  True False]
    """

    function = "isinf"
    samples = _special_samples(np.isinf)


class IsFinite(_Test):
    """Whether x is neither infinite nor NaN; bool.

    >>> print(ndl.isfinite(Tensor([1.0, float("inf"), float("nan")])))
    [ True False False]
    """

    function = "isfinite"
    samples = _special_samples(np.isfinite)


class LogicalNot(Comparison):
    """Whether x is zero; bool.

    >>> print(ndl.logical_not(Tensor([0.0, 2.0])))
    [ True False]
    """

    function = "logical_not"
    samples = unary_samples(-2, 2, np.logical_not, gradient=False)


class LogicalAnd(Comparison):
    """Whether both are not zero; bool.

    >>> print(ndl.logical_and(Tensor([0.0, 1.0, 2.0]), Tensor([1.0, 0.0, 3.0])))
    [False False  True]
    """

    function = "logical_and"
    samples = binary_samples(np.logical_and, gradient=False)


class LogicalOr(Comparison):
    """Whether at least one is not zero; bool.

    >>> print(ndl.logical_or(Tensor([0.0, 1.0, 0.0]), Tensor([0.0, 0.0, 3.0])))
    [False  True  True]
    """

    function = "logical_or"
    samples = binary_samples(np.logical_or, gradient=False)


class LogicalXor(Comparison):
    """Whether exactly one is not zero; bool.

    >>> print(ndl.logical_xor(Tensor([0.0, 1.0, 2.0]), Tensor([1.0, 0.0, 3.0])))
    [ True  True False]
    """

    function = "logical_xor"
    samples = binary_samples(np.logical_xor, gradient=False)


# ---- bits --------------------------------------------------------------------------


def _bit_samples(reference: Reference, count: int = 2, high: int = 100) -> Samples:
    def samples() -> list[Sample]:
        shapes = (((3, 4), (3, 4)), ((3, 1), (4,)), ((0, 4), (1, 4)), ((), ()))
        pairs = [(integers(a, -100, 100, 1), integers(b, 0, high, 2)) for a, b in shapes]
        pairs.append((integers((20,), 0, 256, 3).astype("u1"), integers((20,), 0, 12).astype("u1")))
        return [
            Sample(pair[:count], (), reference, gradient=False) for pair in pairs
        ] + [Sample((uniform((3,)), uniform((3,)))[:count], raises=DtypeError)]  # fmt: skip

    return samples


class _Bits(Elementwise):
    accepts = "iub"
    is_differentiable = False


class BitwiseAnd(_Bits):
    """Bits set in both; logical "and" for bool.

    >>> print(ndl.bitwise_and(Tensor([6, 5], dtype="int64"), 3))
    [2 1]
    """

    function = "bitwise_and"
    samples = _bit_samples(np.bitwise_and)


class BitwiseOr(_Bits):
    """Bits set in at least one; logical "or" for bool.

    >>> print(ndl.bitwise_or(Tensor([6, 5], dtype="int64"), 3))
    [7 7]
    """

    function = "bitwise_or"
    samples = _bit_samples(np.bitwise_or)


class BitwiseXor(_Bits):
    """Bits set in exactly one.

    >>> print(ndl.bitwise_xor(Tensor([6, 5], dtype="int64"), 3))
    [5 6]
    """

    function = "bitwise_xor"
    samples = _bit_samples(np.bitwise_xor)


class BitwiseInvert(_Bits):
    """All bits inverted; logical "not" for bool.

    >>> print(ndl.bitwise_invert(Tensor([0, 5], dtype="int64")))
    [-1 -6]
    """

    function = "bitwise_invert"
    samples = _bit_samples(np.invert, 1)


class BitwiseLeftShift(_Bits):
    """Shift x left by y bits; counts outside the width give 0.

    >>> print(ndl.bitwise_left_shift(Tensor([1, 3], dtype="int64"), 2))
    [ 4 12]
    """

    function = "bitwise_left_shift"
    accepts = "iu"
    samples = _bit_samples(np.left_shift, 2, 12)


class BitwiseRightShift(_Bits):
    """Shift x right by y bits and keep its sign; counts outside the width give 0 or -1.

    >>> print(ndl.bitwise_right_shift(Tensor([8, 13], dtype="int64"), 2))
    [2 3]
    """

    function = "bitwise_right_shift"
    accepts = "iu"
    samples = _bit_samples(np.right_shift, 2, 12)


isnan, isinf, isfinite = map(export, (IsNaN, IsInf, IsFinite))
logical_not, logical_and = map(export, (LogicalNot, LogicalAnd))
logical_or, logical_xor = map(export, (LogicalOr, LogicalXor))
bitwise_and, bitwise_or, bitwise_xor = map(export, (BitwiseAnd, BitwiseOr, BitwiseXor))
bitwise_invert, bitwise_left_shift = map(export, (BitwiseInvert, BitwiseLeftShift))
bitwise_right_shift = export(BitwiseRightShift)


def clip(
    x: Any,
    low: Operand | None = None,
    high: Operand | None = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Tensor:
    """Limit x to [low, high], or [min, max]; None leaves that side open. See ``Clip``.

    Raises:
        OptionError: if a limit is given under both its names.

    >>> print(ndl.clip(Tensor([-2.0, 0.5, 3.0]), 0.0, 1.0))
    [0.  0.5 1. ]
    """
    if min is not None or max is not None:
        low, high = either(low, min, ("low", "min")), either(high, max, ("high", "max"))
    is_floating = executor.spec_of(x).dtype.kind == "f"
    if low is None and high is None:
        return x
    if is_floating:
        low = -math.inf if low is None else low
        high = math.inf if high is None else high
    if low is None or high is None:
        return minimum(x, high) if low is None else maximum(x, low)
    return executor.apply(Clip.of(), x, low, high)


def clamp(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Limit x to [min, max]; None leaves that side open. See ``Clip``.

    >>> print(ndl.clamp(Tensor([-2.0, 0.5, 3.0]), min=0.0, max=1.0))
    [0.  0.5 1. ]
    """
    return clip(x, min, max)


def largest(kind: DType) -> float:
    """Return the largest finite number of a floating dtype."""
    if kind.name == "bfloat16":  # which NumPy does not know
        return (2 - 2**-7) * 2.0**127
    return float(np.finfo(kind.numpy).max)


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Put numbers in place of NaN and infinities; the gradient there is 0.

    Args:
        x: a tensor; one of integers is returned as it is.
        nan: in place of NaN.
        posinf, neginf: in place of infinity and its negative; None: the dtype's largest number, and
            its negative.

    >>> print(ndl.nan_to_num(Tensor([1.0, float("nan")]), nan=-1.0))
    [ 1. -1.]
    """
    (x,) = as_tensors((x,), "nan_to_num")
    kind = x.spec.dtype
    if kind.kind != "f":
        return x
    most = largest(kind)
    out = executor.apply(Clip.of(), where(isnan(x), nan, x), -most, most)
    for number, infinity in ((posinf, math.inf), (neginf, -math.inf)):
        out = out if number is None else where(equal(x, infinity), number, out)
    return out


def nansum(x: Tensor, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Tensor:
    """Sum over axes (all for None), without NaN; the gradient of a NaN is 0.

    >>> print(ndl.nansum(Tensor([1.0, float("nan"), 3.0])))
    4.0
    """
    (x,) = as_tensors((x,), "nansum")
    if x.spec.dtype.kind == "f":
        x = where(isnan(x), 0.0, x)
    return summation(x, axes, keepdims, axis=axis)


def nanmean(x: Tensor, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Tensor:
    """Mean over axes (all for None), without NaN; NaN if all are NaN. Integers become floats.

    float16 and bfloat16 are added up in float32.

    >>> print(ndl.nanmean(Tensor([1.0, float("nan"), 3.0])))
    2.0
    """
    (x,) = promoted((x,), "nanmean", floating=True)
    wide = widened(x)
    count = summation(logical_not(isnan(x)), axes, keepdims, axis=axis)
    return cast_like(nansum(wide, axes, keepdims, axis=axis) / cast_like(count, wide), x)


def contains(x: Tensor, value: Operand) -> bool:
    """Whether any element equals a value: ``value in x``, as in NumPy.

    A list, an array or a tensor broadcasts against x.

    Raises:
        ShapeError: if it is a list of parts with different lengths, or does not broadcast.

    >>> ops.contains(Tensor([1.0, 2.0]), 2.0)
    True
    """
    if isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError:
            raise ShapeError(f"in: {value!r:.60} has parts of different lengths") from None
    if isinstance(value, (bool, int, float, np.number)):
        try:
            value = number_in("in", value, executor.spec_of(x).dtype)
        except DtypeError:  # the dtype has no such number
            return False
    return comparable(value) and bool(any_true(equal(x, value)).item())


def isclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether elements are equal, or |x - y| <= atol + rtol * |y|; bool.

    Integers are compared in float64, float16 and bfloat16 in float32.

    Args:
        x: a tensor.
        y: a tensor or a number; shapes broadcast.
        rtol: tolerance relative to y.
        atol: absolute tolerance.
        equal_nan: whether NaN is close to NaN.

    >>> print(ndl.isclose(Tensor([1.0, 1.0]), Tensor([1.000001, 1.1])))
    [ True False]
    """
    x, y = promoted((x, y), "isclose")
    kind = executor.spec_of(x).dtype
    if kind.kind != "f" or kind.itemsize == 2:
        wide = dtype.float32 if kind.kind == "f" else dtype.float64
        x, y = cast(x, wide), cast(y, wide)
    near = less_equal(absolute(x - y), absolute(y) * rtol + atol)
    found = logical_or(equal(x, y), logical_and(near, isfinite(y)))
    if not equal_nan:
        return found
    return logical_or(found, logical_and(isnan(x), isnan(y)))


def allclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, a Python bool. Arguments as for ``isclose``.

    >>> ndl.allclose(Tensor([1.0]), Tensor([1.000001]))
    True
    """
    return bool(all_true(isclose(x, y, rtol, atol, equal_nan)).item())

"""Functions of each element that are made of other functions, without a kernel of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import OUTPUT, cast, export, promoted, widened
from needle.ops.core.samples import binary_samples, unary_samples
from needle.ops.elementwise.activation import gelu
from needle.ops.elementwise.arithmetic import (
    absolute,
    equal,
    less,
    less_equal,
    maximum,
    minimum,
    not_equal,
    remainder,
    square,
    where,
)
from needle.ops.elementwise.functions import copysign, erf, exp, exp2, log, log1p, sigmoid, sqrt
from needle.ops.elementwise.logic import logical_and, logical_or
from needle.ops.elementwise.trigonometry import sin
from needle.ops.shape.movement import stop_gradient

if TYPE_CHECKING:
    from needle.typing import Operand, Slope, Tensor

__all__ = ["ErfInv", "Erfc", "LogAddExp2", "erfc", "erfinv", "fmod", "logaddexp2", "sinc", "xlogy"]


class Expanded(Elementwise):
    """A function without a row: ``expand`` gives the values, ``derivative`` the derivatives."""

    floating = True
    compute, expanded = Composite.compute, Composite.expanded


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Return the polynomial of x with these coefficients, the constant first."""
    value = coefficients[-1] * x + coefficients[-2]
    for c in coefficients[-3::-1]:
        value = value * x + c
    return value


_erfc = np.vectorize(math.erfc, otypes=[float])

# The square root of 2 in two parts: the first has so few bits that products with float32 are exact.
_ROOT_HIGH, _ROOT_LOW = 1.41421353816986083984375, 2.420323420895793872e-08


class Erfc(Expanded):
    """The complementary error function 1 - erf(x), accurate where it is small.

    Computed in float64 and rounded once. The error in float64 is at most 4 units in the last place;
    far from 0 up to 4e-13 on devices whose ``gelu`` rounds x / sqrt(2).

    >>> print(ndl.erfc(Tensor([0.0, 1.0])))
    [1.     0.1573]
    """

    function = "erfc"
    saves = ((0,),)
    samples = unary_samples(-3, 3, _erfc)

    def expand(self, x: Tensor) -> Tensor:
        wide = cast(x, dtype.float64)
        near = less(wide, 0.5)
        return cast(where(near, 1.0 - erf(wide), _tail(where(near, 1.0, wide))), x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (-2 / math.sqrt(math.pi)) * exp(-square(out.inputs[0]))


def _tail(x: Tensor) -> Tensor:
    """Return erfc(x) for x >= 0.5, float64: 2 Phi(-t), where t = sqrt(2) x and gelu(t) = t Phi(t).

    t is rounded, and Phi(-t) is so steep that the rounding error matters. So the error is computed,
    multiplied by the slope of log(Phi), for which two digits suffice (Birnbaum's bound), and
    subtracted.
    """
    x = minimum(x, 28.0)  # where it is 0, and infinity
    t = math.sqrt(2) * x
    short = cast(cast(x, dtype.float32), dtype.float64)
    off = (_ROOT_HIGH * short - t) + _ROOT_HIGH * (x - short) + _ROOT_LOW * x
    slope = 0.5 * (t + sqrt(square(t) + 4.0))
    return (gelu(-t) / t) * (2.0 * (off * slope) - 2.0)


def _inverse_erf(y: float) -> float:
    """Return erfinv(y) by Newton's method from 0, which converges from below."""
    x = 0.0
    for _ in range(100):
        x -= (math.erf(x) - y) * math.exp(x * x) * math.sqrt(math.pi) / 2
    return x


class ErfInv(Expanded):
    """The inverse of erf; infinite at -1 and 1, NaN beyond.

    Computed in float64 and rounded once: Winitzki's approximation, and three steps of Halley's
    method, with erfc where erf is near 1.

    Source: Winitzki, "A handy approximation for the error function and its inverse", 2008

    >>> print(ndl.erfinv(Tensor([0.0, 0.5])))
    [0.     0.4769]
    """

    function = "erfinv"
    saves = ((OUTPUT,),)
    samples = unary_samples(-0.98, 0.98, np.vectorize(_inverse_erf, otypes=[float]))

    def expand(self, y: Tensor) -> Tensor:
        wide = cast(y, dtype.float64)
        size, inside = absolute(wide), less(absolute(wide), 1.0)
        known = where(inside, size, 0.0)
        near = less(known, 0.5)
        a = 0.147
        rest = log1p(-square(known))
        half = 2 / (math.pi * a) + 0.5 * rest
        x = sqrt((rest / -a) / (sqrt(square(half) - rest / a) + half))
        for _ in range(3):
            over = where(near, erf(x) - known, (1.0 - known) - erfc(x))
            step = (0.5 * math.sqrt(math.pi)) * over * exp(square(x))
            x = x - step / (1.0 + x * step)
        beyond = where(equal(size, 1.0), math.inf, size * math.nan)
        return cast(copysign(where(inside, x, beyond), wide), y.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (0.5 * math.sqrt(math.pi)) * exp(square(out))


erfc, erfinv = map(export, (Erfc, ErfInv))


class LogAddExp2(Expanded):
    """log2(2 ** x + 2 ** y), without overflow.

    >>> print(ndl.logaddexp2(Tensor([0.0, 3.0]), Tensor([0.0, 3.0])))
    [1. 4.]
    """

    function = "logaddexp2"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.logaddexp2)

    def expand(self, x: Tensor, y: Tensor) -> Tensor:
        wide, other = widened(x), widened(y)
        apart = where(equal(wide, other), 0.0, absolute(wide - other))  # also for infinities
        more = log1p(exp2(-apart)) * (1 / math.log(2))
        return cast(maximum(wide, other) + more, x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y = out.inputs[i], out.inputs[1 - i]
        # an empty sum does not depend on its terms, as in logaddexp
        return sigmoid(math.log(2) * (x - where(equal(y, -math.inf), 0.0, y)))


logaddexp2 = export(LogAddExp2)


def fmod(x: Tensor, y: Operand) -> Tensor:
    """Remainder of x / y rounded towards zero, with the sign of x; exact. Integers by zero give 0.

    ``remainder`` has the sign of y.

    >>> print(ndl.fmod(Tensor([7.0, -7.0]), 3.0))
    [ 1. -1.]
    """
    x, y = promoted((x, y), "fmod")
    if x.spec.dtype.kind == "f":
        turn = stop_gradient(copysign(1.0, x))
        return turn * remainder(turn * x, absolute(y))
    rest = remainder(x, y)  # absolute values would overflow for the least integer
    turned = not_equal(less(x, 0), less(rest, 0))
    return where(turned, where(equal(rest, 0), rest, rest - y), rest)


def sinc(x: Tensor) -> Tensor:
    """sin(pi * x) / (pi * x), and 1 at 0; its derivatives are right there too.

    float16 and bfloat16 are computed in float32.

    >>> print(ndl.sinc(Tensor([0.0, 0.5])))
    [1.     0.6366]
    """
    (x,) = promoted((x,), "sinc", floating=True)
    z = widened(x) * math.pi
    near = less(absolute(z), 0.5)  # there by its series: the derivative of the quotient cancels
    series, s = 0.0 * z, square(where(near, z, 0.0))
    for k in range(8, -1, -1):
        series = series * s + (-1) ** k / math.factorial(2 * k + 1)
    return cast(where(near, series, sin(z) / where(near, 1.0, z)), x.spec.dtype)


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """x * log(y), and 0 where x is 0 and y is not NaN; shapes broadcast.

    >>> print(ndl.xlogy(Tensor([0.0, 2.0]), Tensor([0.0, 1.0])))
    [0. 0.]
    """
    x, y = promoted((x, y), "xlogy", floating=True)
    without = logical_or(less_equal(y, 0.0), equal(y, math.inf))
    return x * log(where(logical_and(equal(x, 0.0), without), 1.0, y))

"""The logarithm of the gamma function, and its derivatives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor
from needle.backend.axes import integer
from needle.errors import OptionError
from needle.ops.core.op import cast, export, promoted, widened
from needle.ops.core.primitives import total
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    equal,
    greater_equal,
    less,
    maximum,
    minimum,
    where,
)
from needle.ops.elementwise.functions import log
from needle.ops.elementwise.rounding import round
from needle.ops.elementwise.special import Expanded, polynomial
from needle.ops.elementwise.trigonometry import cos, sin

if TYPE_CHECKING:
    from needle.typing import Numpy, Slope, Tensor

__all__ = ["LGamma", "PolyGamma", "digamma", "lgamma", "multigammaln", "polygamma"]

# Bernoulli's numbers of even index.
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
)  # fmt: skip


def _inverse(x: Tensor, s: int) -> Tensor:
    return x**-s if s > 2 else 1.0 / (x * x if s == 2 else x)


def _zeta(s: int, x: Any) -> Any:
    """Return the sum of (x + k) ** -s over k = 0, 1, ... for x > 0; of s = 1, -digamma(x).

    Euler's and Maclaurin's formula from k = 10 on (Abramowitz, Stegun, 6.3.18 and 23.1.30).
    """
    end = x + 10.0
    r = 1.0 / end
    bends = [
        b * math.perm(s + 2 * j, 2 * j + 1) / math.factorial(2 * j + 2)
        for j, b in enumerate(_BERNOULLI)
    ]
    value = _inverse(end, s) * (0.5 + r * polynomial(bends, r * r))
    value = value + (-log(end) if s == 1 else _inverse(end, s - 1) / (s - 1))
    for k in range(9, -1, -1):
        value = value + _inverse(x + k if k else x, s)  # -0.0 + 0 would be 0.0
    return value


# log(gamma(2 + z)) / z as a polynomial in -z (Abramowitz, Stegun, 6.1.33), and the remainder of
# Stirling's formula for log(gamma(1 / r)), divided by r, in r * r (6.1.41)
_NEAR_2 = (1 - np.euler_gamma, *(-_zeta(k, 2.0) / k for k in range(2, 27)))
_STIRLING = tuple(b / ((2 * j + 1) * (2 * j + 2)) for j, b in enumerate(_BERNOULLI))


def _log_gamma(x: Tensor) -> Tensor:
    """Return log(gamma(x)) for x >= 0.5, float64.

    Where x is below 8.5 it is brought between 1.5 and 2.5, or is z + 1 where z + 2 is.
    """
    low = less(x, 1.5)
    y, product = x, where(low, x, 1.0)
    for _ in range(6):
        more = greater_equal(y, 2.5)
        y = where(more, y - 1.0, y)
        product = where(more, y * product, product)
    z = where(low, x - 1.0, minimum(y, 2.5) - 2.0)
    logarithm = log(product)
    near = z * polynomial(_NEAR_2, -z) + where(low, -logarithm, logarithm)
    large = maximum(x, 8.5)
    r = 1.0 / large
    far = r * polynomial(_STIRLING, r * r) + (0.5 * math.log(2 * math.pi) - 0.5)
    far = (large - 0.5) * (log(large) - 1.0) + far
    return where(less(x, 8.5), near, far)


_ENDS = -(2.0**53)  # from there on down all numbers are whole


class LGamma(Expanded):
    """Logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ...

    Computed in float64 and rounded once. The error in float64 is at most 4 units in the last place
    for x > 0, and at most 2e-14 below, which is relatively more next to its zeros.

    >>> print(ndl.lgamma(Tensor([1.0, 5.0])))  # log(24)
    [0.     3.1781]
    """

    function = "lgamma"
    saves = ((0,),)
    samples = staticmethod(
        lambda: [
            Sample((uniform(shape, -2.9, 12.0),), (), np.vectorize(math.lgamma, otypes=[float]))
            for shape in ((), (3, 4), (2, 0))
        ]
    )

    def expand(self, x: Tensor) -> Tensor:
        wide = cast(x, dtype.float64)
        low = less(wide, 0.5)
        value = _log_gamma(where(low, 1.0 - maximum(wide, _ENDS), wide))
        near = maximum(minimum(wide, 0.5), _ENDS)
        sine = absolute(sin((near - round(near)) * math.pi))  # gamma(x) gamma(1 - x) sin(pi x) = pi
        value = where(low, math.log(math.pi) - log(sine) - value, value)
        return cast(value, x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return digamma(out.inputs[0])


def _of_cotangent(n: int) -> list[int]:
    """Return the n-th derivative of cot(x) as a polynomial in it: coefficients, constant first."""
    p = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(p)][1:]
        p = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return p


class PolyGamma(Expanded):
    """The n-th derivative of digamma, the derivative of log(gamma(x)).

    Computed in float64 and rounded once. The error in float64 is at most 8 units in the last place
    for x > 0, and 2e-15 next to digamma's zero. At -1, -2, ... it is infinite for odd n and NaN for
    even n, where the limits from both sides differ; PyTorch gives -infinity there from n = 2 on.

    Raises:   OptionError for an n outside [0, 170]
    """

    n: int
    function = "polygamma"
    saves = ((0,),)

    @staticmethod
    def samples() -> list[Sample]:
        def reference(n: int) -> Any:
            return lambda x: _reference(n, x)

        cases = (
            (uniform((3, 4), 2.0, 9.0), 0), (np.array(2.5), 1), (uniform((2, 0)), 1),
            (np.array([0.9, 1.4, 3.0]), 3),
        )  # fmt: skip
        wrong = [Sample((np.ones(2),), (n,), raises=OptionError) for n in (-1, 171, 2**62)]
        return [*(Sample((x,), (n,), reference(n)) for x, n in cases), *wrong]

    def expand(self, x: Tensor) -> Tensor:
        n, wide = self.n, cast(x, dtype.float64)
        if not 0 <= n <= 170:  # factorials beyond are beyond float64
            raise OptionError(f"polygamma: n is {n}\n  rule: 0 to 170")
        low = less(wide, 0.0)
        value = _zeta(n + 1, where(low, 1.0 - maximum(wide, _ENDS), wide))
        value = value * float((-1) ** (n + 1) * math.factorial(n))
        near = maximum(where(low, wide, -0.5), _ENDS)
        angle = (near - round(near)) * math.pi
        # digamma(1 - x) - digamma(x) = pi cot(pi x), and as many derivatives
        p = [math.pi ** (n + 1) * c for c in _of_cotangent(n)]
        turned = polynomial(p, cos(angle) / sin(angle))
        if n % 2 == 0:
            turned = where(equal(angle, 0.0), math.nan, turned)
        value = where(low, (value if n % 2 == 0 else -value) - turned, value)
        return cast(value, x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return polygamma(self.n + 1, out.inputs[0])


def _reference(n: int, x: Numpy) -> Numpy:
    """Return polygamma by 5000 terms of its sum, and integrals for the terms after them."""
    points = np.asarray(x)[..., None] + np.arange(5000.0)
    end = points[..., -1] + 0.5
    rest = (-np.log(end) if n == 0 else end**-n / n) - (n + 1) / 24 * end ** (-n - 2)
    sums = [math.fsum(terms) for terms in (points ** (-n - 1)).reshape(-1, 5000)]
    return (-1.0) ** (n + 1) * math.factorial(n) * (np.reshape(sums, rest.shape) + rest)


lgamma = export(LGamma)


def digamma(x: Tensor) -> Tensor:
    """Derivative of ``lgamma``; NaN at -1, -2, ..., infinite at 0. See ``PolyGamma``.

    >>> print(ndl.digamma(Tensor([1.0, 2.0])))
    [-0.5772  0.4228]
    """
    return executor.apply(PolyGamma.of(0), x)


def polygamma(n: int, x: Any) -> Tensor:
    """The n-th derivative of ``digamma``, for n up to 170. See ``PolyGamma``.

    Raises:
        ArgumentError: if n is not an integer.
        OptionError: if it is negative, or above 170, where float64 cannot hold the factorial.

    >>> print(ndl.polygamma(1, Tensor([1.0])))  # pi ** 2 / 6
    [1.6449]
    """
    return executor.apply(PolyGamma.of(integer("polygamma: n", n)), x)


def multigammaln(x: Tensor, p: int) -> Tensor:
    """Logarithm of the gamma function of p dimensions: infinite or NaN for x <= (p - 1) / 2.

        sum of lgamma(x - k / 2) over k = 0, ..., p - 1, and p (p - 1) / 4 * log(pi)

    Raises:
        ArgumentError: if p is not an integer.
        OptionError: if it is below 1 or above 1000.

    >>> print(ndl.multigammaln(Tensor([2.0]), 2))
    [0.4516]
    """
    p = integer("multigammaln: p", p)
    if not 1 <= p <= 1000:
        raise OptionError(f"multigammaln: p is {p}\n  rule: 1 to 1000")
    (x,) = promoted((x,), "multigammaln", floating=True)
    terms = [lgamma(widened(x) - 0.5 * k) for k in range(p)]
    return cast(total(terms) + p * (p - 1) / 4 * math.log(math.pi), x.spec.dtype)

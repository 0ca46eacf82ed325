"""Modified Bessel functions of the first kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor
from needle.errors import OptionError
from needle.ops.core.op import OUTPUT, cast
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    less,
    maximum,
    minimum,
    sign,
    square,
    where,
)
from needle.ops.elementwise.functions import copysign, exp, sqrt
from needle.ops.elementwise.special import Expanded, polynomial

if TYPE_CHECKING:
    from needle.typing import Numpy, Slope, Tensor

__all__ = ["BesselI", "i0", "i0e", "i1", "i1e"]


class BesselI(Expanded):
    """Modified Bessel function of the first kind, of a whole order; scaled: times exp(-abs(x)).

    Computed in float64 and rounded once: by its series up to 20, from there on by Hankel's
    (Abramowitz, Stegun, 9.6.10 and 9.7.1). Higher orders occur in the derivatives of ``i0`` and
    ``i1``. At infinity it is infinite, and 0 if scaled, as in SciPy; PyTorch gives NaN.

    Raises:   OptionError for an order outside [0, 12]
    """

    order: int
    scaled: bool
    function = "bessel_i"
    saves = ((0, OUTPUT),)

    @staticmethod
    def samples() -> list[Sample]:
        def reference(order: int, scaled: bool) -> Any:
            def integral(x: Numpy) -> Numpy:  # over half a period: exact but for rounding
                t = (np.arange(200) + 0.5) * (math.pi / 200)
                x = np.asarray(x)[..., None]
                values = np.exp(x * np.cos(t) - scaled * np.abs(x)) * np.cos(order * t)
                return values.mean(-1)

            return integral

        cases: tuple[tuple[Any, ...], ...] = (
            ((3, 4), 30.0, 0, False), ((), 2.0, 1, False), ((2, 0), 1.0, 0, True),
            ((4, 2), 30.0, 1, True), ((4,), 9.0, 3, True),
        )  # fmt: skip
        made = [
            Sample((uniform(shape, -limit, limit, i),), tuple(static), reference(*static))
            for i, (shape, limit, *static) in enumerate(cases)
        ]
        return [
            *made,
            *(Sample((np.ones(2),), (n, False), raises=OptionError) for n in (-1, 2**62)),
        ]

    def expand(self, x: Tensor) -> Tensor:
        n, wide = self.order, cast(x, dtype.float64)
        if not 0 <= n <= 12:  # Hankel's series of more would need larger numbers than 20
            raise OptionError(f"bessel_i: order is {n}\n  rule: 0 to 12")
        size = absolute(wide) if self.scaled else minimum(absolute(wide), 720.0)  # infinite there
        near, large = minimum(size, 20.0), maximum(size, 20.0)
        factors = [1 / math.factorial(k) / math.factorial(k + n) for k in range(50)]
        small = (0.5 * near) ** n * polynomial(factors, square(0.5 * near)) * exp(-near)
        factors = [1.0]
        for k in range(1, 24):
            factors.append(factors[-1] * ((2 * k - 1) ** 2 - 4 * n * n) / (8 * k))
        far = polynomial(factors, 1.0 / large) / sqrt(2 * math.pi * large)
        value = where(less(size, 20.0), small, far)
        if not self.scaled:
            half = exp(0.5 * size)  # exp(size) is infinite before the function is
            value = value * half * half
        return cast(copysign(value, wide) if n % 2 else value, x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        n, x = self.order, out.inputs[0]
        below, above = (BesselI.of(m, self.scaled) for m in (abs(n - 1), n + 1))
        slope = 0.5 * (executor.apply(below, x) + executor.apply(above, x))
        return slope - sign(x) * out if self.scaled else slope


def i0(x: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 0. See ``BesselI``.

    >>> print(ndl.i0(Tensor([0.0, 1.0])))
    [1.     1.2661]
    """
    return executor.apply(BesselI.of(0, False), x)


def i0e(x: Tensor) -> Tensor:
    """``i0`` times exp(-abs(x)), which is never infinite. See ``BesselI``.

    >>> print(ndl.i0e(Tensor([0.0, 1.0, 1000.0])))
    [1.     0.4658 0.0126]
    """
    return executor.apply(BesselI.of(0, True), x)


def i1(x: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 1. See ``BesselI``.

    >>> print(ndl.i1(Tensor([0.0, 1.0])))
    [0.     0.5652]
    """
    return executor.apply(BesselI.of(1, False), x)


def i1e(x: Tensor) -> Tensor:
    """``i1`` times exp(-abs(x)), which is never infinite. See ``BesselI``.

    >>> print(ndl.i1e(Tensor([0.0, 1.0, 1000.0])))
    [0.     0.2079 0.0126]
    """
    return executor.apply(BesselI.of(1, True), x)

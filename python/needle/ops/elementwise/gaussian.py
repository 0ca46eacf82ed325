"""The distribution function of the normal distribution, and its logarithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from needle import dtype
from needle.ops.core.op import cast, export, promoted
from needle.ops.core.samples import unary_samples
from needle.ops.elementwise.activation import gelu
from needle.ops.elementwise.arithmetic import (
    absolute,
    less,
    minimum,
    square,
    where,
)
from needle.ops.elementwise.functions import erf, exp, log, log1p
from needle.ops.elementwise.special import Expanded

if TYPE_CHECKING:
    from needle.typing import Operand, Slope, Tensor

__all__ = ["Ndtr", "log_ndtr", "ndtr"]

_erfc = np.vectorize(math.erfc, otypes=[float])


class Ndtr(Expanded):
    """Distribution function of the normal distribution: the probability of a value below x.

    Computed in float64 and rounded once, accurate where it is small; float64 as ``Erfc``.

    >>> print(ndl.ndtr(Tensor([-1.96, 0.0, 1.96])))
    [0.025 0.5   0.975]
    """

    function = "ndtr"
    saves = ((0,),)
    samples = unary_samples(-4, 4, lambda x: 0.5 * _erfc(-x / math.sqrt(2)))

    def expand(self, x: Tensor) -> Tensor:
        wide = minimum(cast(x, dtype.float64), 40.0)
        near = less(absolute(wide), 1.0)
        middle = 0.5 + 0.5 * erf(where(near, wide, 0.0) * math.sqrt(0.5))
        away = where(near, 1.0, wide)
        return cast(where(near, middle, gelu(away) / away), x.spec.dtype)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (1 / math.sqrt(2 * math.pi)) * exp(-0.5 * square(out.inputs[0]))


ndtr = export(Ndtr)


def log_ndtr(x: Tensor) -> Tensor:
    """Logarithm of ``ndtr``; it and its derivatives are accurate however far x is from 0.

    Computed in float64 and rounded once; by its series below -20 (Abramowitz, Stegun, 26.2.12).

    >>> print(ndl.log_ndtr(Tensor([-20.0, 0.0])))
    [-203.9172   -0.6931]
    """
    (x,) = promoted((x,), "log_ndtr", floating=True)
    wide = cast(x, dtype.float64)
    far, above = less(wide, -20.0), less(0.0, wide)
    near = where(far, 0.0, wide)
    below = ndtr(where(above, -near, near))
    value = where(above, log1p(-below), log(where(above, 1.0, below)))
    t = where(far, wide, -20.0)
    r: Tensor = 1.0 / square(t)
    series: Operand = 1.0
    for k in range(21, 0, -2):
        series = 1.0 - k * r * series
    tail = -0.5 * square(t) - log(-t) - 0.5 * math.log(2 * math.pi) + log(series)
    return cast(where(far, tail, value), x.spec.dtype)

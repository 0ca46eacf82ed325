"""Rounding of each element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor
from needle.backend.axes import integer
from needle.errors import OptionError
from needle.ops.core.op import cast, export, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import unary_samples
from needle.ops.elementwise.arithmetic import Step, subtract

if TYPE_CHECKING:
    from needle.typing import NDArray, Tensor

__all__ = ["Ceil", "Floor", "Round", "Trunc", "ceil", "floor", "frac", "round", "trunc"]


class _Rounding(Step):
    def compute(self, x: NDArray) -> NDArray:
        return x if x.dtype.kind != "f" else super().compute(x)


class Floor(_Rounding):
    """Round down. Integers stay as they are.

    >>> print(ndl.floor(Tensor([-1.5, 1.5])))
    [-2.  1.]
    """

    function = "floor"
    samples = unary_samples(0.1, 0.9, np.floor)


class Ceil(_Rounding):
    """Round up. Integers stay as they are.

    >>> print(ndl.ceil(Tensor([-1.5, 1.5])))
    [-1.  2.]
    """

    function = "ceil"
    samples = unary_samples(0.1, 0.9, np.ceil)


class Round(_Rounding):
    """Round to the nearest integer, halves to the even one. Integers stay as they are."""

    function = "round"
    samples = unary_samples(0.6, 1.4, np.rint)


class Trunc(_Rounding):
    """Round towards zero. Integers stay as they are.

    >>> print(ndl.trunc(Tensor([-1.5, 1.5])))
    [-1.  1.]
    """

    function = "trunc"
    samples = unary_samples(0.1, 0.9, np.trunc)


floor, ceil, trunc = map(export, (Floor, Ceil, Trunc))


def round(x: Any, decimals: int = 0) -> Tensor:
    """Round to a number of decimals, halves to the even digit; -1 rounds to tens, -2 to hundreds.

    As in NumPy, it rounds ``x * 10 ** decimals``; float16 and bfloat16 in float32. See ``Round``.

    Raises:
        ArgumentError: if decimals is not an integer.
        OptionError: if the dtype cannot hold 10 ** decimals, or if x is integer and decimals < 0.

    >>> print(ndl.round(Tensor([0.5, 1.5, 2.345]), decimals=1))
    [0.5 1.5 2.3]
    """
    if type(decimals) is int and decimals == 0:
        return executor.apply(Round.of(), x)
    decimals, (x,) = integer("round: decimals", decimals), as_tensors((x,), "round")
    kind = executor.spec_of(x).dtype
    if kind.kind != "f" and decimals >= 0:
        return executor.apply(Round.of(), x)
    limit = 0 if kind.kind != "f" else 300 if kind is dtype.float64 else 30
    if abs(decimals) > limit:
        raise OptionError(
            f"round: {decimals} decimals of {kind}\n  rule: from {-limit} to {limit}"
            + ("" if limit else "; integers need no rounding\n  try: x.astype('float64')")
        )
    wide = widened(x)
    scale = 10.0 ** abs(decimals)
    out = round(wide * scale) / scale if decimals > 0 else round(wide / scale) * scale
    return cast(out, kind)


def frac(x: Tensor) -> Tensor:
    """Return the fractional part, with the sign of x: x - trunc(x).

    >>> print(ndl.frac(Tensor([-1.5, 2.25])))
    [-0.5   0.25]
    """
    return subtract(x, trunc(x))

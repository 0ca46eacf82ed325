"""Lengths of vectors and standard deviations, also where squares leave the range of their dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from needle import dtype, executor
from needle.executor import shape_of
from needle.ops.core.attributes import flag, real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, cast, export, widened
from needle.ops.core.operands import constant
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    cast_like,
    equal,
    greater,
    less,
    square,
    where,
)
from needle.ops.elementwise.functions import Sqrt
from needle.ops.reduction.reduce import (
    amax,
    mean,
    normalised,
    reduce_natively,
    reduction_samples,
    summation,
)
from needle.ops.reduction.scan import Var, either
from needle.ops.shape.movement import reshape, stop_gradient
from needle.ops.shape.tuples import stack

if TYPE_CHECKING:
    from needle.typing import Axes, Gradients, Slope, Tensor

__all__ = ["EuclideanNorm", "GlobalNorm", "StandardDeviation", "std"]


class Root(Sqrt):
    """Square root whose derivative at 0 is 0, as for a standard deviation."""

    def derivative(self, out: Tensor, i: int) -> Slope:
        none = equal(out, 0.0)
        return where(none, 0.0, 0.5 / where(none, 1.0, out))


root = export(Root)

_LARGE = {dtype.float32: 50, dtype.float64: 400}
"""Squares of numbers up to 2 to this power, and sums of them, stay in the range."""


def scale_of(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the power of two, 1 for ordinary numbers, that keeps squares of x in the range.

    One for each vector: the elements over axes, which stay with size 1. x is float32 or float64.
    """
    kind, where_to = x.spec.dtype, x.spec.device
    if not x.spec.size:
        return constant(1.0, kind, where_to)
    bits = _LARGE[kind]
    step = 2 * bits if bits == 50 else 600
    most = amax(absolute(stop_gradient(x)), axes, keepdims=True)
    large, small = greater(most, 2.0**bits), less(most, 2.0**-bits)
    return where(large, 2.0**-step, where(small, 2.0**step, constant(1.0, kind, where_to)))


class EuclideanNorm(Composite):
    """Length of vectors: the square root of the sum of squares over axes.

    Squares of numbers near the ends of the range are computed of multiples by a power of two. The
    gradient at 0 is 0, and so are its derivatives.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    """

    axes: tuple[int, ...]
    keepdims: bool = False
    promotes = "floating"
    saves = ((0, OUTPUT),)
    samples = reduction_samples(
        lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims))
    )

    def setup(self) -> None:
        reduce_natively(self, "norm")

    def expand(self, x: Tensor) -> Tensor:
        wide = widened(x)
        scale = scale_of(wide, self.axes)
        out = root(summation(square(wide * scale), self.axes, keepdims=True)) / scale
        return cast_like(reshape(out, self.shape(x)), x)

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of the result."""
        shape = shape_of(x)
        if self.keepdims:
            return tuple(1 if i in self.axes else n for i, n in enumerate(shape))
        return tuple(n for i, n in enumerate(shape) if i not in self.axes)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (along(out.inputs[0], self.axes, out, out_grad),)


def along(x: Tensor, axes: tuple[int, ...], length: Tensor, out_grad: Tensor) -> Tensor:
    """Return out_grad times x / length, which is 0 where the length is; both over axes of x."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape_of(x)))
    size = reshape(widened(length), kept)
    unit = widened(x) / where(equal(size, 0.0), math.inf, size)  # out_grad / size may be too small
    return cast_like(unit * reshape(widened(out_grad), kept), x)


class GlobalNorm(Composite):
    """Length of the vector of all elements of several tensors, in float64.

    Shapes:   any number of tensors -> []
    Dtypes:   floating -> float64
    """

    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform((3, 4)), uniform((5,), seed=1)), (),
                lambda x, y: np.sqrt((x * x).sum() + (y * y).sum()), gradient=False,
                dtypes=("float64",),
            ),
            Sample(
                (uniform((0,)), uniform(())), (), lambda x, y: np.abs(y), gradient=False,
                dtypes=("float64",),
            ),
        ]
    )  # fmt: skip

    def expand(self, *parts: Tensor) -> Tensor:
        return euclidean(stack([euclidean(cast(x, dtype.float64)) for x in parts]))


class StandardDeviation(Composite):
    """Standard deviation over axes: the square root of ``Var``, which may leave the range.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order; 0 where all values are equal
    """

    axes: tuple[int, ...]
    keepdims: bool = False
    correction: float = 0.0
    called = "std"
    promotes = "floating"
    saves = ((0, OUTPUT),)
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape, seed=3),), (axes, keep, correction),
                lambda x, a=axes, k=keep, c=correction: x.std(a, keepdims=k, ddof=c),
            )
            for shape, axes, keep, correction in (
                ((3, 4), (1,), False, 0.0), ((3, 4), (0,), True, 1.0),
                ((2, 3, 4), (0, 2), False, 1.0), ((5,), (0,), False, 0.5),
                ((0, 3), (1,), True, 0.0),
            )
        ]
    )  # fmt: skip

    def setup(self) -> None:
        if self.correction % 1 == 0 and abs(self.correction) < 2**53:
            reduce_natively(self, "deviation", int(self.correction))

    def factor(self, x: Tensor) -> float:
        """Return the factor for the sum of squares."""
        return Var.of(self.axes, self.keepdims, self.correction).factor(x)

    def expand(self, x: Tensor) -> Tensor:
        wide = widened(x)
        centred = wide - mean(wide, self.axes, keepdims=True)
        return cast_like(euclidean(centred, self.axes, self.keepdims) * self.factor(x) ** 0.5, x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        wide = widened(out.inputs[0])
        centred = wide - mean(wide, self.axes, keepdims=True)
        grad = along(centred, self.axes, out, widened(out_grad) * self.factor(wide))
        return (cast_like(grad, out.inputs[0]),)


def euclidean(x: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Length of vectors over axes, all for None. See ``EuclideanNorm``."""
    return executor.apply(EuclideanNorm.of(normalised(x, axes), keepdims), x)


def std(
    x: Tensor,
    axes: Axes = None,
    keepdims: bool = False,
    *,
    axis: Axes = None,
    correction: float = 0.0,
) -> Tensor:
    """Standard deviation over axes (all for None): the square root of ``var``.

    Its derivative where all values are equal is 0. float16 and bfloat16 are computed in float32,
    which holds their squares; squares outside the range of float32 and float64 do no harm.

    >>> print(ndl.std(Tensor([[1.0, 3.0], [2.0, 2.0]]), axis=1))
    [1. 0.]
    """
    chosen = normalised(x, either(axes, axis))
    kept = flag("std: keepdims", keepdims)
    op = StandardDeviation.of(chosen, kept, real("std: correction", correction))
    return executor.apply(op, x)

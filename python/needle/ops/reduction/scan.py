"""Cumulative sums, products and extremes, and functions made of them; also the variance."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import executor
from needle.backend import kernels
from needle.backend.axes import integer, normalise_axis
from needle.dtype import float64
from needle.errors import IndexRangeError, OptionError
from needle.executor import shape_of
from needle.ops.core.attributes import either, flag, real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, Linear, Op, cast, in_dtype, promoted, widened
from needle.ops.core.operands import constant
from needle.ops.core.samples import Sample, Samples, uniform
from needle.ops.elementwise.arithmetic import absolute, cast_like, greater, less, square, where
from needle.ops.elementwise.functions import exp2, log2
from needle.ops.elementwise.logic import clip, logical_and
from needle.ops.elementwise.rounding import round
from needle.ops.index.indexing import ScatterAdd
from needle.ops.reduction.reduce import (
    Reduction,
    mean,
    normalised,
    reduce_natively,
    reducer,
    reduction_samples,
    summation,
)
from needle.ops.shape.movement import broadcast_to, concat, flip, permute, reshape, stop_gradient
from needle.ops.shape.tuples import stack

if TYPE_CHECKING:
    from needle.typing import (
        Axes,
        DTypeLike,
        Gradients,
        NDArray,
        Numpy,
        OutGrads,
        Reference,
        Tensor,
    )

__all__ = [
    "CumMax", "CumMin", "CumProd", "CumSum", "Prod", "Var", "cummax", "cummin", "cumprod",
    "cumsum", "diff", "prod", "var",
]  # fmt: skip


def _scan_samples(reference: Reference) -> Samples:
    def samples() -> list[Sample]:
        zeros = np.array(
            [[0.0, 0.0, 2.0, -1.5, 0.0, 0.5, 3.0], [1.5, 2.0, 0.0, 0.0, 0.0, -1.0, 0.0]]
        )
        cases = (((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1), ((5,), 0), ((2, 0), 1), ((0, 2), 1))
        return [
            *[
                Sample((uniform(shape),), (axis,), lambda x, axis=axis: reference(x, axis=axis))
                for shape, axis in cases
            ],
            Sample((np.array([2.0, 0.0, 3.0, 0.0, 1.0]),), (0,), lambda x: reference(x, axis=0)),
            Sample((zeros,), (1,), lambda x: reference(x, axis=1)),
            Sample((uniform((2, 3)),), (2,), raises=IndexRangeError),
        ]

    return samples


class CumSum(Linear):
    """Cumulative sum along an axis. Integers and bools are summed in int64.

    Shapes:   x [..., n, ...] -> the same
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    called = "cumsum"
    axis: int
    samples = _scan_samples(np.cumsum)

    def compute(self, x: NDArray) -> NDArray:
        return kernels.scan("cumsum", x, self.axis)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (flip(cumsum(flip(out_grad, self.axis), self.axis), self.axis),)


class CumProd(Op):
    """Cumulative product along an axis. Integers are multiplied in int64.

    The gradient needs no division, so it is also right where elements are zero:

        dx[k] = (product before k) * s[k],  s[k] = g[k] + x[k + 1] * s[k + 1]

    Shapes:   x [..., n, ...] -> the same
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    called = "cumprod"
    axis: int
    saves = ((0,),)
    samples = _scan_samples(np.cumprod)

    def compute(self, x: NDArray) -> NDArray:
        return kernels.scan("cumprod", x, self.axis)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (cumprod_gradient(out.inputs[0], out_grad, self.axis),)


def cumprod_gradient(x: Any, g: Any, axis: int) -> Any:
    """Return the gradient of cumprod with respect to x, given that with respect to its result.

        out[k] = (product before k) * s[k],  s[k] = g[k] + x[k + 1] * s[k + 1]

    Products are in float64: of many numbers there, of few in float32, the parts leave the range
    though not the result.
    """
    wide, g = (cast(_last(each, axis), float64) for each in (x, g))
    next_factor = concat([wide[..., 1:], _ones(wide)], -1)
    sums = flip(_recurrence(flip(next_factor, -1), flip(g, -1)), -1)
    return cast_like(_back(_before(wide) * sums, axis), x)


def _last(x: Tensor, axis: int) -> Tensor:
    """Return x with an axis moved to the end."""
    ndim = len(shape_of(x))
    axis = normalise_axis(axis, ndim)
    return permute(x, [i for i in range(ndim) if i != axis] + [axis])


def _back(x: Tensor, axis: int) -> Tensor:
    """Undo ``_last``."""
    ndim = len(shape_of(x))
    axis = normalise_axis(axis, ndim)
    return permute(x, [*range(axis), ndim - 1, *range(axis, ndim - 1)])


def _before(x: Any) -> Any:
    """Return the product of the elements before each one, along the last axis."""
    if shape_of(x)[-1] == 0:
        return x
    return concat([_ones(x), cumprod(x[..., :-1], -1)], -1)


def _ones(x: Tensor) -> Tensor:
    """Return ones in the shape of the first element of each row; empty if rows are empty."""
    shape = (*shape_of(x)[:-1], min(shape_of(x)[-1], 1))
    return broadcast_to(constant(1.0, x.spec.dtype, x.spec.device), shape)


def _recurrence(factor: Any, term: Any) -> Any:
    """Return h with h[i] = factor[i] * h[i - 1] + term[i] along the last axis, h[-1] being 0.

    Two steps together are one such step, so every second element of h comes from a problem of half
    the size: n + n / 2 + n / 4 + ... operations, and as many numbers where they are recorded.

    Source: Blelloch, "Prefix Sums and Their Applications", 1990, section 1.4.
    """
    n = shape_of(term)[-1]
    if n <= 1:
        return term
    if n == 2:
        return concat([term[..., :1], factor[..., 1:] * term[..., :1] + term[..., 1:]], -1)
    if n % 2:
        one = _ones(term)
        longer = _recurrence(concat([factor, one], -1), concat([term, one], -1))
        return longer[..., :-1]
    even, odd = factor[..., ::2], factor[..., 1::2]
    first, second = term[..., ::2], term[..., 1::2]
    after = _recurrence(odd * even, odd * first + second)
    later = even[..., 1:] * after[..., :-1] + first[..., 1:]
    return reshape(stack([concat([first[..., :1], later], -1), after], -1), shape_of(term))


def _extreme_samples(better: Reference) -> Samples:
    """Return the samples of running extremes: ``better`` says which elements take over."""

    def positions(line: Numpy) -> Any:
        best, found = 0, []
        for i, value in enumerate(line):
            best = i if np.isnan(value) or better(value, line[best]) else best
            found.append(best)
        return np.array(found)

    def reference(x: Any, axis: int) -> Any:
        at = np.apply_along_axis(positions, axis, x) if x.size else np.zeros(x.shape, np.int64)
        return np.take_along_axis(x, at, axis), at

    def samples() -> list[Sample]:
        special = np.array([[1.0, 1.0, 0.5, np.nan, 2.0, np.nan], [-np.inf, 0, -0.0, 0, np.inf, 3]])
        cases: list[tuple[Numpy, int]] = [
            (uniform((3, 4)), 0), (uniform((3, 4)), -1), (uniform((2, 3, 4)), 1),
            (uniform((5,)), 0), (uniform((2, 0)), 1), (uniform((0, 2)), 1), (special, 1),
        ]  # fmt: skip
        return [
            Sample(
                (x,), (axis,), lambda x, a=axis: reference(x, a), gradient=x is not special,
            )
            for x, axis in cases
        ] + [Sample((uniform((2, 3)),), (2,), raises=IndexRangeError)]  # fmt: skip

    return samples


class CumMax(Op):
    """Cumulative maximum along an axis, and its position: the last one among equal elements.

    NaN counts as the largest.

    Shapes:   x [..., n, ...] -> values, positions (int64) [..., n, ...]
    Dtypes:   x any -> the same and int64
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    called = "cummax"
    largest: ClassVar[bool] = True
    axis: int
    saves = ((OUTPUT,),)
    samples = _extreme_samples(lambda new, best: new >= best)

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        return kernels.extremes(x, self.axis, self.largest)

    def gradient(self, out_grad: OutGrads, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        if out_grad[0] is None:
            return (None,)
        op = ScatterAdd.of(normalise_axis(self.axis, len(shape)), shape)
        return (executor.apply(op, stop_gradient(out[1]), out_grad[0]),)


class CumMin(CumMax):
    """Cumulative minimum along an axis, and its position: the last one among equal elements.

    NaN counts as the smallest.

    Shapes:   x [..., n, ...] -> values, positions (int64) [..., n, ...]
    Dtypes:   x any -> the same and int64
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    called = "cummin"
    largest = False
    samples = _extreme_samples(lambda new, best: new <= best)


class Prod(Reduction):
    """Product over axes. Integers and bools are multiplied in int64.

    The gradient is also right where elements are zero.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Gradient: x; any order

    >>> print(ndl.prod(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1))
    [ 2. 12.]
    """

    function = "prod"
    casts = True
    saves = ((0,),)
    samples = reduction_samples(np.prod)

    def gradient(self, out_grad: Any, out: Tensor) -> Gradients:
        x, g = out.inputs[0], self.spread(out_grad, out)
        if len(self.axes) == 1:
            return (prod_gradient(x, g, self.axes[0]),)
        shape = shape_of(x)
        kept = [i for i in range(len(shape)) if i not in self.axes]
        order = [*kept, *self.axes]
        turned = permute(x, order)
        rows = (*[shape[i] for i in kept], _size(shape, self.axes))
        grads = reshape(permute(g, order), rows)
        found = prod_gradient(reshape(turned, rows), grads, len(kept))
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return (permute(reshape(found, shape_of(turned)), inverse),)


def prod_gradient(x: Tensor, g: Tensor, axis: int) -> Tensor:
    """Return the gradient of prod over an axis with respect to x, given that of each result.

        out[k] = (product before k) * (product behind k) * g[k]

    Products are in float64, of numbers near 1, with their powers of two apart, so none overflows
    on the way.
    """
    rows = cast(_last(x, axis), float64)
    powers = _powers_of_two(stop_gradient(rows))
    rows = _times_power(rows, -powers)
    others = _before(rows) * flip(_before(flip(rows, -1)), -1)
    wide = others * cast(_last(g, axis), float64)
    power = summation(powers, (len(shape_of(rows)) - 1,), keepdims=True) - powers
    return cast_like(_back(_times_power(wide, power), axis), g)


def _powers_of_two(x: Tensor) -> Tensor:
    """Return the nearest powers of two as whole numbers; 0 for 0, infinities and NaN."""
    size = absolute(x)
    known = logical_and(greater(size, 0.0), less(size, math.inf))
    return round(log2(where(known, size, 1.0)))


def _times_power(x: Tensor, power: Tensor) -> Tensor:
    """Return x times 2 ** power, in three steps, each of which has a number."""
    power = clip(power, -3000.0, 3000.0)
    part = round(power / 3.0)
    return x * exp2(part) * exp2(part) * exp2(power - part - part)


def _size(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _without_room(x: Any, correction: float) -> Any:
    """Return NumPy's variance, without its warning where the divisor is 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return x.var(ddof=correction)


class Var(Composite):
    """Variance over axes: the mean of squared distances from the mean.

        out = sum((x - mean(x)) ** 2) / max(n - correction, 0)

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    """

    axes: tuple[int, ...]
    keepdims: bool = False
    correction: float = 0.0
    saves = ((0,),)
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape, seed=3),), (axes, keep, correction),
                lambda x, a=axes, k=keep, c=correction: x.var(a, keepdims=k, ddof=c),
            )
            for shape, axes, keep, correction in (
                ((3, 4), (1,), False, 0.0), ((3, 4), (0,), True, 1.0),
                ((2, 3, 4), (0, 2), False, 1.0), ((5,), (0,), False, 0.5),
                ((0, 3), (1,), True, 0.0),
            )
        ]
        + [
            Sample(
                (x,), ((0,), False, correction), lambda x, c=correction: _without_room(x, c),
                gradient=False,
            )
            for x, correction in (
                (uniform((2,)), 2.0), (uniform((2,)), 5.0), (np.ones(2), 2.0), (np.ones(1), 1.0),
            )
        ]
    )  # fmt: skip

    promotes = "floating"

    def setup(self) -> None:
        if self.correction % 1 == 0 and abs(self.correction) < 2**53:
            reduce_natively(self, "variance", int(self.correction))

    def factor(self, x: Tensor) -> float:
        """Return the factor for the sum of squares."""
        room = _size(shape_of(x), self.axes) - self.correction
        return 1.0 / room if room > 0 else float("inf")  # as NumPy; 0 * inf is NaN

    def expand(self, x: Tensor) -> Tensor:
        wide = widened(x)
        centred = wide - mean(wide, self.axes, keepdims=True)
        return cast_like(summation(square(centred), self.axes, self.keepdims) * self.factor(x), x)

    def gradient(self, out_grad: OutGrads, out: Tensor) -> Gradients:
        x = out.inputs[0]
        kept = tuple(1 if i in self.axes else n for i, n in enumerate(shape_of(x)))
        wide = widened(x)
        centred = wide - mean(wide, self.axes, keepdims=True)
        grad = centred * (reshape(out_grad, kept) * (2.0 * self.factor(x)))
        return (cast_like(grad, x),)


def cumsum(x: Tensor, axis: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
    """Cumulative sum along an axis (of the flattened x for None). See ``CumSum``.

    x is cast to a ``dtype`` first.

    >>> print(ndl.cumsum(Tensor([1.0, 2.0, 3.0])))
    [1. 3. 6.]
    """
    if dtype is not None:
        return in_dtype(cumsum, dtype, x, axis)
    x, axis = _flat(x, axis)
    return executor.apply(CumSum.of(axis), x)


def cumprod(x: Tensor, axis: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
    """Cumulative product along an axis (of the flattened x for None). See ``CumProd``.

    x is cast to a ``dtype`` first.

    >>> print(ndl.cumprod(Tensor([1.0, 2.0, 3.0])))
    [1. 2. 6.]
    """
    if dtype is not None:
        return in_dtype(cumprod, dtype, x, axis)
    x, axis = _flat(x, axis)
    return executor.apply(CumProd.of(axis), x)


def _extremes(op: type[CumMax], x: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    x, axis = _flat(x, axis)
    values, positions = executor.several(op.of(axis), x)
    return values, stop_gradient(positions) if positions.requires_grad else positions


def cummax(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the cumulative maximum along an axis, and its position.

    Of the flattened x for None. See ``CumMax``.

    >>> values, positions = ndl.cummax(Tensor([1.0, 3.0, 2.0]), 0)
    >>> print(values, positions)
    [1. 3. 3.] [0 1 1]
    """
    return _extremes(CumMax, x, axis)


def cummin(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the cumulative minimum along an axis, and its position.

    Of the flattened x for None. See ``CumMin``.

    >>> values, positions = ndl.cummin(Tensor([3.0, 1.0, 2.0]), 0)
    >>> print(values, positions)
    [3. 1. 1.] [0 1 1]
    """
    return _extremes(CumMin, x, axis)


def _flat(x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    if axis is None:
        return reshape(x, (executor.spec_of(x).size,)), 0
    return x, normalise_axis(axis, len(shape_of(x)))


def diff(
    x: Tensor,
    n: int = 1,
    axis: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Differences of neighbours along an axis, taken ``n`` times.

    Args:
        x: a tensor.
        n: how often.
        axis: along which.
        prepend, append: tensors or numbers to put before and after x first.

    Raises:
        ArgumentError: if n or axis is not an integer.
        OptionError: if n is negative.
        IndexRangeError: if the axis is out of range.

    >>> print(ndl.diff(Tensor([1.0, 4.0, 9.0, 16.0])))
    [3. 5. 7.]
    """
    axis = normalise_axis(axis, len(shape_of(x)))
    if integer("diff: n", n) < 0:
        raise OptionError(f"diff: n is {n}\n  rule: 0 or more")
    if integer("diff: n", n) and not (prepend is None and append is None):
        given = [part for part in (prepend, x, append) if part is not None]
        one = tuple(1 if i == axis else size for i, size in enumerate(shape_of(x)))
        parts = [p if shape_of(p) else broadcast_to(p, one) for p in promoted(tuple(given), "diff")]
        x = concat(parts, axis)
    before = (slice(None),) * axis
    for _ in range(min(integer("diff: n", n), shape_of(x)[axis])):  # the axis is empty after that
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x


prod = reducer(Prod, "prod")


def var(
    x: Tensor,
    axes: Axes = None,
    keepdims: bool = False,
    *,
    axis: Axes = None,
    correction: float = 0.0,
) -> Tensor:
    """Variance over axes (all for None); correction 1 is the unbiased one. See ``Var``.

    >>> print(ndl.var(Tensor([1.0, 2.0, 3.0]), correction=1))
    1.0
    """
    chosen = normalised(x, either(axes, axis))
    kept = flag("var: keepdims", keepdims)
    return executor.apply(Var.of(chosen, kept, real("var: correction", correction)), x)

"""Softmax, its logarithm, and the logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from needle import executor
from needle.backend.axes import axes_of, normalise_axis
from needle.errors import IndexRangeError
from needle.executor import shape_of
from needle.ops.core.attributes import either, flag
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, Op, in_dtype, widened
from needle.ops.core.samples import Sample, Samples, uniform
from needle.ops.elementwise.arithmetic import cast_like, equal, where
from needle.ops.elementwise.functions import exp, log, logaddexp
from needle.ops.elementwise.logic import isfinite
from needle.ops.reduction.reduce import amax, normalised, summation
from needle.ops.shape.movement import concat, reshape, stop_gradient

if TYPE_CHECKING:
    from needle.typing import Axes, DTypeLike, Gradients, Numpy, Reference, Tensor

__all__ = [
    "LogCumSumExp", "LogSoftmax", "LogSoftmaxGrad", "LogSumExp", "Softmax", "SoftmaxGrad",
    "log_softmax", "logcumsumexp", "logsumexp", "softmax",
]  # fmt: skip

# ---- softmax -----------------------------------------------------------------------


def _softmax(x: Numpy, axis: int) -> Numpy:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _log_softmax(x: Numpy, axis: int) -> Numpy:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def _softmax_samples(reference: Reference) -> Samples:
    def samples() -> list[Sample]:
        cases: list[tuple[Numpy, int]] = [
            (uniform((3, 4)), 1), (uniform((3, 4)), 0), (uniform((2, 3, 4)), 1),
            (uniform((5,)), -1), (uniform((3, 1)), 1), (uniform((0, 3)), 1),
        ]  # fmt: skip
        large = Sample(
            (uniform((2, 3)) + 1e5,), (1,), lambda x: reference(x, 1), dtypes=("float64",)
        )
        good = [Sample((x,), (axis,), lambda x, axis=axis: reference(x, axis)) for x, axis in cases]
        return [*good, large, Sample((uniform((2, 3)),), (2,), raises=IndexRangeError)]

    return samples


def _softmax_grad_samples(forward: Reference, reference: Reference) -> Samples:
    def samples() -> list[Sample]:
        cases = (((3, 4), 1), ((2, 3, 4), 1), ((5,), -1), ((0, 3), 1))
        return [
            Sample(
                (forward(uniform(shape), axis), uniform(shape, seed=1)), (axis,),
                lambda out, g, axis=axis: reference(out, g, axis),
            )
            for shape, axis in cases
        ]  # fmt: skip

    return samples


class _Softmax(Composite):
    axis: int = -1
    saves = ((OUTPUT,),)

    promotes = "floating"

    def shifted(self, x: Tensor) -> Tensor:
        """Return x minus its maximum along the axis, so that no exponential overflows."""
        normalised(x, self.axis)
        wide = widened(x)
        if 0 in shape_of(x):
            return wide
        return wide - stop_gradient(amax(wide, self.axis, keepdims=True))


class Softmax(_Softmax):
    """Map x to positive numbers that add up to 1 along an axis.

        out = exp(x) / sum(exp(x))

    Shapes:   x [..., n, ...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    samples = _softmax_samples(_softmax)

    def expand(self, x: Tensor) -> Tensor:
        e = exp(self.shifted(x))
        return cast_like(e / summation(e, self.axis, keepdims=True), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(SoftmaxGrad.of(self.axis), out, out_grad),)


class LogSoftmax(_Softmax):
    """Logarithm of softmax, without overflow and accurate for small probabilities.

        out = x - log(sum(exp(x)))

    Shapes:   x [..., n, ...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    samples = _softmax_samples(_log_softmax)

    def expand(self, x: Tensor) -> Tensor:
        x0 = self.shifted(x)
        return cast_like(x0 - log(summation(exp(x0), self.axis, keepdims=True)), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(LogSoftmaxGrad.of(self.axis), out, out_grad),)


class SoftmaxGrad(Composite):
    """Gradient of softmax from its result: out * (g - sum(out * g)).

    Shapes:   g, out [...] -> the same
    """

    axis: int = -1
    samples = _softmax_grad_samples(
        _softmax, lambda out, g, axis: out * (g - (out * g).sum(axis, keepdims=True))
    )

    def expand(self, out: Tensor, g: Tensor) -> Tensor:
        out0, g0 = widened(out), widened(g)
        return cast_like(out0 * (g0 - summation(out0 * g0, self.axis, keepdims=True)), out)


class LogSoftmaxGrad(Composite):
    """Gradient of log-softmax from its result: g - exp(out) * sum(g).

    Shapes:   g, out [...] -> the same
    """

    axis: int = -1
    samples = _softmax_grad_samples(
        _log_softmax, lambda out, g, axis: g - np.exp(out) * g.sum(axis, keepdims=True)
    )

    def expand(self, out: Tensor, g: Tensor) -> Tensor:
        g0 = widened(g)
        total = summation(g0, self.axis, keepdims=True)
        return cast_like(g0 - exp(widened(out)) * total, out)


def _log_sum_exp(x: Numpy, axes: Axes, keepdims: bool) -> Numpy:
    return np.log(np.exp(x).sum(axes, keepdims=keepdims))


def _log_sum_exp_samples() -> list[Sample]:
    cases: list[tuple[tuple[int, ...], Axes, bool]] = [
        ((3, 4), 1, False), ((3, 4), (0, 1), True), ((2, 3, 4), (0, 2), False), ((5,), None, False),
        ((), None, False), ((0, 3), 1, False), ((3, 1), 1, True),
    ]  # fmt: skip
    large = np.array([[1e10, 1e10], [-1e10, 0.0]])
    infinite = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 1.0]])
    return [
        Sample((uniform(shape),), (axes, keep), lambda x, a=axes, k=keep: _log_sum_exp(x, a, k))
        for shape, axes, keep in cases
    ] + [
        Sample((large,), (1, False), _stable, gradient=False, dtypes=("float64",)),
        Sample((infinite,), (1, False), _stable, gradient=False),
        Sample((np.zeros((3, 0)),), (1, False), _stable, gradient=False),
        Sample((uniform((2, 3)),), (2, False), raises=IndexRangeError),
    ]


def _stable(x: Numpy) -> Numpy:
    return np.logaddexp.reduce(x, axis=1, initial=-np.inf)


def shift_of(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the number to subtract before exponentials: ``finite_max``, without its gradient."""
    return stop_gradient(finite_max(x, axes))


def finite_max(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the largest over axes if it is finite, else 0.

    Shapes:   x -> x with axes of size 1
    """
    if any(shape_of(x)[axis] == 0 for axis in axes):
        return summation(x, axes, keepdims=True)
    top = amax(x, axes, keepdims=True)
    return where(isfinite(top), top, 0.0)


class LogSumExp(Composite):
    """Logarithm of the sum of exponentials over axes (all for None), without overflow.

        out = log(sum(exp(x)))

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    called = "logsumexp"
    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False
    saves = ((0, OUTPUT),)
    samples = staticmethod(_log_sum_exp_samples)

    promotes = "floating"

    def expand(self, x: Tensor) -> Tensor:
        axes = normalised(x, self.axes)
        wide = widened(x)
        shift = shift_of(wide, axes)
        out = log(summation(exp(wide - shift), axes, keepdims=True)) + shift
        return cast_like(reshape(out, self._reduced(shape_of(x), axes)), x)

    def _reduced(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
        if self.keepdims:
            return tuple(1 if i in axes else n for i, n in enumerate(shape))
        return tuple(n for i, n in enumerate(shape) if i not in axes)

    push = Op.push  # the expansion would give 0 / 0 for an empty sum

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x = out.inputs[0]
        axes = normalised(x, self.axes)
        kept = tuple(1 if i in axes else n for i, n in enumerate(shape_of(x)))
        # an empty sum does not depend on its terms; NaN and inf keep theirs
        top = reshape(where(equal(out, -math.inf), 0.0, out), kept)
        return (reshape(out_grad, kept) * exp(x - top),)


def _running(x: Numpy, axis: int) -> Numpy:
    return np.logaddexp.accumulate(x, axis) if x.size else x


def _running_samples() -> list[Sample]:
    cases: list[tuple[tuple[int, ...], int]] = [
        ((3, 4), 0), ((3, 4), 1), ((2, 7, 3), 1), ((5,), -1), ((1,), 0), ((2, 0), 1), ((0, 2), 1),
    ]  # fmt: skip
    far = np.array([[-np.inf, -np.inf, 1.0, 0.0], [1e4, -1e4, 1e4, np.inf], [0, np.nan, 1, 2]])
    return [
        Sample((uniform(shape),), (axis,), lambda x, axis=axis: _running(x, axis))
        for shape, axis in cases
    ] + [
        Sample((far,), (1,), lambda x: _running(x, 1), gradient=False),
        Sample((uniform((2, 3)),), (2,), raises=IndexRangeError),
    ]


class LogCumSumExp(Composite):
    """Logarithm of the sum of exponentials up to each element along an axis, without overflow.

    Each step combines every sum with an earlier one, and doubles the number of elements in it.

    Shapes:   x [..., n, ...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    Source:   Hillis, Steele, "Data Parallel Algorithms", 1986
    """

    called = "logcumsumexp"
    axis: int
    samples = staticmethod(_running_samples)

    promotes = "floating"

    def expand(self, x: Tensor) -> Tensor:
        axis = normalise_axis(self.axis, len(shape_of(x)))
        before, out, step = (slice(None),) * axis, widened(x), 1
        while step < shape_of(x)[axis]:
            first, later, earlier = (
                out[(*before, slice(*part))] for part in ((step,), (step, None), (None, -step))
            )
            out = concat([first, logaddexp(later, earlier)], axis)
            step *= 2
        return cast_like(out, x)


def softmax(x: Tensor, axis: int = -1, *, dtype: DTypeLike = None) -> Tensor:
    """Map x to positive numbers that add up to 1 along an axis. See ``Softmax``.

    x is cast to a ``dtype`` first.

    >>> print(ndl.softmax(Tensor([0.0, 1.0, 2.0])))
    [0.09   0.2447 0.6652]
    """
    if dtype is not None:
        return in_dtype(softmax, dtype, x, axis, floating=True)
    return executor.apply(Softmax.of(axis), x)


def log_softmax(x: Tensor, axis: int = -1, *, dtype: DTypeLike = None) -> Tensor:
    """Logarithm of softmax. See ``LogSoftmax``.

    x is cast to a ``dtype`` first.

    >>> print(ndl.log_softmax(Tensor([0.0, 1.0, 2.0])))
    [-2.4076 -1.4076 -0.4076]
    """
    if dtype is not None:
        return in_dtype(log_softmax, dtype, x, axis, floating=True)
    return executor.apply(LogSoftmax.of(axis), x)


def logsumexp(x: Tensor, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Tensor:
    """Logarithm of the sum of exponentials over axes (all for None). See ``LogSumExp``.

    >>> round(ndl.logsumexp(Tensor([1000.0, 1000.0])).item(), 4)
    1000.6932
    """
    axes = either(axes, axis)
    chosen = axes if axes is None or type(axes) is int else axes_of(axes)
    return executor.apply(LogSumExp.of(chosen, flag("logsumexp: keepdims", keepdims)), x)


def logcumsumexp(x: Tensor, axis: int) -> Tensor:
    """Logarithm of the sum of exponentials up to each element. See ``LogCumSumExp``.

    >>> print(ndl.logcumsumexp(Tensor([0.0, 0.0, 0.0]), 0))
    [0.     0.6931 1.0986]
    """
    return executor.apply(LogCumSumExp.of(axis), x)

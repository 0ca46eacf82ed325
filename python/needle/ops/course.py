"""Ops under the names and with the attributes that the course's programs use.

Where one of Needle's own ops means the same, the name is an alias (at the end); the others are
thin. New programs need none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import executor
from needle.backend import kernels
from needle.backend.ndarray import normalise_axes, normalise_axis
from needle.errors import ShapeError
from needle.ops.base import Composite, Linear, Op
from needle.ops.elementwise import Add, Divide, Multiply, Negative, negative
from needle.ops.functions import Power
from needle.ops.movement import Permute, broadcast_to, reshape, transpose
from needle.ops.samples import Sample, uniform
from needle.ops.softmax import log_softmax


class _Scalar(Composite):
    scalar: float


class AddScalar(_Scalar):
    """Add a number: x + scalar."""

    saves = ((),)
    samples = staticmethod(
        lambda: [Sample((uniform(shape),), (1.5,), lambda x: x + 1.5) for shape in ((2, 3), ())]
    )

    def expand(self, x: Any) -> Any:
        return x + self.scalar

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad,)


class MulScalar(_Scalar):
    """Multiply by a number: x * scalar."""

    saves = ((),)
    samples = staticmethod(
        lambda: [Sample((uniform(shape),), (1.5,), lambda x: x * 1.5) for shape in ((2, 3), ())]
    )

    def expand(self, x: Any) -> Any:
        return x * self.scalar

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad * self.scalar,)


class DivScalar(_Scalar):
    """Divide by a number: x / scalar."""

    saves = ((),)
    samples = staticmethod(
        lambda: [Sample((uniform(shape),), (1.5,), lambda x: x / 1.5) for shape in ((2, 3), ())]
    )

    def expand(self, x: Any) -> Any:
        return x / self.scalar

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad / self.scalar,)


class PowerScalar(_Scalar):
    """Raise to a power that is a number: x ** scalar."""

    saves = ((0,),)
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3), 0.5, 2.0),), (p,), lambda x, p=p: x**p)
            for p in (2.0, 3.0, -1.5, 0.0)
        ]
    )

    def expand(self, x: Any) -> Any:
        return x**self.scalar

    def gradient(self, out_grad: Any, out: Any) -> Any:
        if self.scalar == 0:
            return (out_grad * 0.0,)
        return (out_grad * (self.scalar * out.inputs[0] ** (self.scalar - 1)),)


class Summation(Linear):
    """Sum over axes (one, several, or all for None), which go."""

    axes: int | tuple[int, ...] | None = None
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), (axes,), lambda x, axes=axes: x.sum(axes))
            for axes in (None, 1, (0, 2), -1)
        ]
    )

    def compute(self, x: Any) -> Any:
        return kernels.reduce("sum", x, normalise_axes(self.axes, x.ndim))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        shape = out.node.inputs[0].spec.shape
        gone = normalise_axes(self.axes, len(shape))
        kept = tuple(1 if i in gone else n for i, n in enumerate(shape))
        return (broadcast_to(reshape(out_grad, kept), shape),)


class Transpose(Linear):
    """Swap two axes; the last two for None."""

    axes: tuple[int, int] | None = None
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), (), lambda x: np.swapaxes(x, -1, -2)),
            Sample((uniform((2, 3, 4)),), ((0, 2),), lambda x: np.swapaxes(x, 0, 2)),
            Sample((uniform((3,)),), (), raises=ShapeError),
        ]
    )

    def compute(self, x: Any) -> Any:
        axes = (-2, -1) if self.axes is None else self.axes
        if len(axes) != 2 or x.ndim < 2:
            raise ShapeError(f"transpose: swaps two axes, not {axes} of {x.ndim}")
        i, j = (normalise_axis(axis, x.ndim) for axis in axes)
        order = list(range(x.ndim))
        order[i], order[j] = order[j], order[i]
        return x.permute(order)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (transpose(out_grad, self.axes),)


class Flip(Linear):
    """Reverse the order along axes; a view."""

    axes: int | tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3)),), (axes,), lambda x, axes=axes: np.flip(x, axes))
            for axes in ((0,), (0, 1), -1)
        ]
    )

    def compute(self, x: Any) -> Any:
        return x.flip(self.axes)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (executor.apply(self, out_grad),)


def add_scalar(x: Any, scalar: float) -> Any:
    """x + scalar."""
    return executor.apply(AddScalar(scalar), x)


def mul_scalar(x: Any, scalar: float) -> Any:
    """x * scalar."""
    return executor.apply(MulScalar(scalar), x)


def divide_scalar(x: Any, scalar: float) -> Any:
    """x / scalar."""
    return executor.apply(DivScalar(scalar), x)


def power_scalar(x: Any, scalar: float) -> Any:
    """x ** scalar."""
    return executor.apply(PowerScalar(scalar), x)


def logsoftmax(x: Any) -> Any:
    """Logarithm of softmax over the last axis."""
    return log_softmax(x, -1)


def permute_dims(x: Any, axes: Sequence[int]) -> Any:
    """Reorder the axes (the array API's name of ``permute``)."""
    return executor.apply(Permute.of(tuple(normalise_axis(a, len(x.spec.shape)) for a in axes)), x)


TensorOp = TensorTupleOp = Op
EWiseAdd, EWiseMul, EWiseDiv, EWisePow, Negate = Add, Multiply, Divide, Power, Negative
negate = negative

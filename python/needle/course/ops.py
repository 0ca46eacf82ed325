"""Ops under the names that the course's programs use, in ``needle.ops``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, forward, ops
from needle.backend import kernels
from needle.backend.axes import normalise_axes, normalise_axis
from needle.errors import ShapeError
from needle.ops.core.families import Composite
from needle.ops.core.op import Linear, Op, cast
from needle.ops.core.operands import check_single, default_float, plain_number
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    Add,
    Divide,
    Multiply,
    Negative,
    add,
    divide,
    multiply,
    negative,
)
from needle.ops.elementwise.functions import Power, power
from needle.ops.reduction.softmax import log_softmax
from needle.ops.shape.movement import broadcast_to, reshape, transpose

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Tensor

__all__ = [
    "AddScalar", "DivScalar", "EWiseAdd", "EWiseDiv", "EWiseMul", "EWisePow", "Flip", "MulScalar",
    "Negate", "PowerScalar", "Summation", "TensorOp", "TensorTupleOp", "Transpose", "add_scalar",
    "divide_scalar", "logsoftmax", "mul_scalar", "negate", "power_scalar",
]  # fmt: skip

TensorOp = TensorTupleOp = Op
EWiseAdd, EWiseMul, EWiseDiv, EWisePow, Negate = Add, Multiply, Divide, Power, Negative
negate = negative


def _scalar_samples(
    reference: Callable[[Any, float], Any], scalars: Sequence[float], low: float = -2.0
) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        return [
            Sample((uniform(shape, low, 2.0),), (c,), lambda x, c=c: reference(x, c))
            for c in scalars
            for shape in ((3, 4), (), (0, 2))
        ]

    return samples


class AddScalar(Composite):
    """Add a number: x + scalar.

    Shapes:   x [...] -> the same
    """

    scalar: float
    samples = _scalar_samples(lambda x, c: x + c, (1.5, -2))

    def expand(self, x: Tensor) -> Tensor:
        return x + self.scalar


class MulScalar(Composite):
    """Multiply by a number: x * scalar.

    Shapes:   x [...] -> the same
    """

    scalar: float
    samples = _scalar_samples(lambda x, c: x * c, (1.5, -2))

    def expand(self, x: Tensor) -> Tensor:
        return x * self.scalar


class DivScalar(Composite):
    """Divide by a number: x / scalar.

    Shapes:   x [...] -> the same
    """

    scalar: float
    samples = _scalar_samples(lambda x, c: x / c, (1.5, -2))

    def expand(self, x: Tensor) -> Tensor:
        return x / self.scalar


class PowerScalar(Composite):
    """Raise to the power of a number: x ** scalar.

    Shapes:   x [...] -> the same
    """

    scalar: float
    samples = _scalar_samples(lambda x, c: x**c, (2, -1.5, 0), low=0.5)

    def expand(self, x: Tensor) -> Tensor:
        return x**self.scalar


class Summation(Linear):
    """Sum over axes (one, several, or all for None), and remove them.

    Shapes:   x -> x without the axes
    """

    axes: int | tuple[int, ...] | None = None
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), (axes,), lambda x, axes=axes: x.sum(axes))
            for axes in (None, 1, (0, 2), -1)
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        return kernels.reduce("sum", x, normalise_axes(self.axes, x.ndim))

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        gone = normalise_axes(self.axes, len(shape))
        kept = tuple(1 if i in gone else n for i, n in enumerate(shape))
        return (broadcast_to(reshape(out_grad, kept), shape),)


class Transpose(Linear):
    """Swap two axes; the last two for None.

    Shapes:   x -> x with two axes swapped; a view
    Raises:   ShapeError if there are not two axes; IndexRangeError if the axis is out of range
    """

    axes: tuple[int, int] | None = None
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), (), lambda x: np.swapaxes(x, -1, -2)),
            Sample((uniform((2, 3, 4)),), ((0, 2),), lambda x: np.swapaxes(x, 0, 2)),
            Sample((uniform((3,)),), (), raises=ShapeError),
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        axes = (-2, -1) if self.axes is None else self.axes
        if len(axes) != 2 or x.ndim < 2:
            raise ShapeError(f"transpose: expected two of {x.ndim} axes, got {axes}")
        i, j = (normalise_axis(axis, x.ndim) for axis in axes)
        order = list(range(x.ndim))
        order[i], order[j] = order[j], order[i]
        return x.permute(order)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (transpose(out_grad, self.axes),)


class Flip(Linear):
    """Reverse the order along axes; a view.

    Shapes:   x [...] -> the same
    """

    axes: int | tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3)),), (axes,), lambda x, axes=axes: np.flip(x, axes))
            for axes in ((0,), (0, 1), -1)
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        return x.flip(self.axes)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(self, out_grad),)


def _with_number(op: type[Composite], with_tensor: Any, a: Any, scalar: Any) -> Any:
    """Apply an op of a tensor and a number; to two tensors if derivatives flow to the second."""
    check_single(scalar)
    if not forward.varies(scalar):
        return executor.apply(op(plain_number(scalar)), a)
    scalar = reshape(scalar, ())
    if scalar.spec.dtype.kind == "f" != executor.spec_of(a).dtype.kind:
        a = cast(a, default_float())
    return with_tensor(a, cast(scalar, a.spec.dtype))


def add_scalar(a: Any, scalar: float) -> Tensor:
    """Add a number, or a tensor of one element, to a tensor. See ``AddScalar``.

    >>> print(ndl.add_scalar(Tensor([1.0, 2.0]), 10.0))
    [11. 12.]
    """
    return _with_number(AddScalar, add, a, scalar)


def mul_scalar(a: Any, scalar: float) -> Tensor:
    """Multiply a tensor by a number, or a tensor of one element. See ``MulScalar``.

    >>> print(ndl.mul_scalar(Tensor([1.0, 2.0]), 10.0))
    [10. 20.]
    """
    return _with_number(MulScalar, multiply, a, scalar)


def divide_scalar(a: Any, scalar: float) -> Tensor:
    """Divide a tensor by a number, or a tensor of one element. See ``DivScalar``.

    >>> print(ndl.divide_scalar(Tensor([1.0, 2.0]), 10.0))
    [0.1 0.2]
    """
    return _with_number(DivScalar, divide, a, scalar)


def power_scalar(a: Any, scalar: float) -> Tensor:
    """Raise a tensor to the power of a number, or a tensor of one element. See ``PowerScalar``.

    >>> print(ndl.power_scalar(Tensor([1.0, 2.0]), 3))
    [1. 8.]
    """
    return _with_number(PowerScalar, power, a, scalar)


def logsoftmax(a: Any) -> Tensor:
    """Logarithm of softmax of each row.

    Raises:
        ShapeError: if a does not have two axes.

    >>> print(ndl.logsoftmax(Tensor([[0.0, 0.0]])))
    [[-0.6931 -0.6931]]
    """
    shape = executor.spec_of(a).shape
    if len(shape) != 2:
        raise ShapeError(f"logsoftmax: expected two axes, got shape {shape}; see log_softmax")
    return log_softmax(a, 1)


vars(ops).update({name: globals()[name] for name in __all__})
vars(ops)["__all__"] = sorted({*vars(ops)["__all__"], *__all__})

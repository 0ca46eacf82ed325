"""The ops that the families need: what undoes a broadcast, what repeats it, a tuple of results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend import kernels
from needle.errors import ArgumentError, ShapeError
from needle.ops.core.op import KINDS, Linear, Op
from needle.ops.core.samples import Sample, uniform

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import Gradients, NDArray, OutGrads, Tensor, TensorTuple

__all__ = ["BroadcastTo", "MakeTensorTuple", "SumTo", "make_tuple"]


class BroadcastTo(Linear):
    """Repeat axes of size 1 and add leading axes, without copying.

    Shapes:   x -> shape; a view
    Raises:   ShapeError if x does not broadcast to shape
    """

    shape: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((3, 1)),), ((2, 3, 4),), lambda x: np.broadcast_to(x, (2, 3, 4))),
            Sample((uniform(()),), ((3,),), lambda x: np.broadcast_to(x, (3,))),
            Sample((uniform((1, 3)),), ((0, 3),), lambda x: np.broadcast_to(x, (0, 3))),
            Sample((uniform((3, 4)),), ((3, 3),), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind, self.params = KINDS["broadcast"], self.shape

    def compute(self, x: NDArray) -> NDArray:
        return x.broadcast_to(self.shape)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (sum_to(out_grad, out.node.inputs[0].spec.shape),)


class SumTo(Linear):
    """Sum over the axes that broadcasting from ``shape`` would repeat: the transpose of that.

    Shapes:   x -> shape
    Raises:   ShapeError if shape does not broadcast to that of x
    """

    shape: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), ((3, 1),), lambda x: x.sum((0, 2)).reshape(3, 1)),
            Sample((uniform((2, 3)),), ((),), np.sum),
            Sample((uniform((2, 3)),), ((2, 3),), lambda x: x),
            Sample((uniform((2, 0)),), ((2, 1),), lambda x: np.zeros((2, 1))),
            Sample((uniform((2, 3)),), ((2, 2),), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind, self.params = KINDS["sum to"], self.shape

    def axes_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes of an x of this shape over which it sums."""
        lead = len(shape) - len(self.shape)
        repeated = tuple(i for i, n in enumerate(shape) if i < lead or self.shape[i - lead] != n)
        if lead < 0 or any(i >= lead and self.shape[i - lead] != 1 for i in repeated):
            raise ShapeError(f"sum_to: {self.shape} does not broadcast to {shape}")
        return repeated

    def compute(self, x: NDArray) -> NDArray:
        return kernels.reduce("sum", x, self.axes_of(x.shape), True).reshape(self.shape)

    def flops(self, *specs: Spec) -> int:
        return int(specs[0].size)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(BroadcastTo.of(out.node.inputs[0].spec.shape), out_grad),)


class MakeTensorTuple(Op):
    """Make one value of several tensors.

    Shapes:   several of any shape -> a tuple of them
    """

    structural = True
    samples = staticmethod(
        lambda: [Sample((uniform((3,)), uniform((2, 2))), (), lambda x, y: (x, y))]
    )

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not inputs:
            raise ArgumentError("make_tensor_tuple: expected at least one tensor, got none")
        return super().prepare(inputs)

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        return arrays

    def gradient(self, out_grad: OutGrads, out: Tensor) -> Gradients:
        return tuple(out_grad[i] for i in range(len(out.node.inputs)))


def make_tuple(*tensors: Tensor) -> TensorTuple:
    """Return a TensorTuple of tensors.

    >>> pair = ops.make_tuple(Tensor([1.0]), Tensor([2.0]))
    >>> len(pair)
    2
    """
    made: Any = executor.apply(MakeTensorTuple.of(), *tensors)
    return made


def sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo a broadcast: sum x over the axes that broadcasting from ``shape`` repeated."""
    return x if x.spec.shape == shape else executor.apply(SumTo.of(shape), x)


def spread_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x broadcast to a shape."""
    return x if x.spec.shape == shape else executor.apply(BroadcastTo.of(shape), x)


def total(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors."""
    return functools.reduce(lambda x, y: x + y, terms)

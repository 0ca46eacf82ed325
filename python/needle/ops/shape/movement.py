"""Ops that move elements and compute nothing: most of them only change strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import devices, executor
from needle.backend import kernels
from needle.backend.array import MAX_DIMS, make_spec
from needle.backend.axes import (
    axes_of,
    new_shape,
    normalise_axes,
    normalise_axis,
)
from needle.dtype import as_dtype
from needle.errors import ArgumentError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import either
from needle.ops.core.op import KINDS, Cast, Linear, Op
from needle.ops.core.primitives import BroadcastTo
from needle.ops.core.samples import Sample, uniform

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import Axes, DeviceLike, Gradients, NDArray, Tensor

__all__ = [
    "Concat", "Copy", "Pad", "Permute", "Reshape", "Slice", "SliceGrad",
    "StopGradient", "ToDevice", "astype", "broadcast_to", "concat", "copy", "flip", "permute",
    "reshape", "squeeze", "stop_gradient", "to_device", "transpose", "unsqueeze",
]  # fmt: skip

Ranges = tuple[tuple[int, int, int], ...]


class Reshape(Linear):
    """Give the elements, in C order, a new shape of the same size.

    Shapes:   x -> shape; a view where strides allow it
    Raises:   ShapeError if shape has a different number of elements
    """

    shape: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((3, 4)),), ((2, 6),), lambda x: x.reshape(2, 6)),
            Sample((uniform((3, 4)),), ((12,),), lambda x: x.reshape(12)),
            Sample((uniform(()),), ((1, 1),), lambda x: x.reshape(1, 1)),
            Sample((uniform((0, 4)),), ((2, 0),), lambda x: x.reshape(2, 0)),
            Sample((uniform((3, 4)),), ((5,),), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind, self.params = KINDS["reshape"], self.shape

    def compute(self, x: NDArray) -> NDArray:
        return x.reshape(self.shape)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(Reshape.of(out.node.inputs[0].spec.shape), out_grad),)


class Permute(Linear):
    """Reorder the axes: axis i of the result is axis ``axes[i]`` of x.

    Shapes:   x -> x with its axes in another order; a view
    Raises:   ShapeError if axes is not a permutation of the axes of x
    """

    axes: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((2, 3, 4)),), ((2, 0, 1),), lambda x: x.transpose(2, 0, 1)),
            Sample((uniform((3, 4)),), ((1, 0),), lambda x: x.T),
            Sample((uniform(()),), ((),), lambda x: x),
            Sample((uniform((0, 4)),), ((1, 0),), lambda x: x.T),
            Sample((uniform((3, 4)),), ((0, 0),), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind, self.params = KINDS["permute"], self.axes

    def compute(self, x: NDArray) -> NDArray:
        return x.permute(self.axes)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        inverse = [0] * len(self.axes)
        for i, axis in enumerate(self.axes):
            inverse[axis] = i
        return (executor.apply(Permute.of(tuple(inverse)), out_grad),)


class Slice(Linear):
    """Take a range of each axis: (first index, number of elements, step); drop some axes.

    Attributes:
        ranges: one triple per axis.
        dropped: axes with one element to remove from the result.

    Shapes:   x -> the numbers of elements, without the dropped axes; a view
    Raises:   IndexRangeError if a range leaves its axis
    """

    ranges: Ranges
    dropped: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((4, 5)),), (((1, 2, 1), (4, 3, -2)), ()), lambda x: x[1:3, ::-2]),
            Sample((uniform((4, 5)),), (((2, 1, 1), (0, 5, 1)), (0,)), lambda x: x[2]),
            Sample((uniform((4,)),), (((0, 0, 1),), ()), lambda x: x[:0]),
        ]
    )

    def setup(self) -> None:
        flat = [n for triple in self.ranges for n in triple]
        integers = all(isinstance(n, int) and abs(n) < 2**62 for n in flat)
        integers = integers and all(len(triple) == 3 for triple in self.ranges)
        if integers and list(self.dropped) == sorted({a for a in self.dropped if 0 <= a < 32}):
            self.kind = KINDS["slice"]
            self.params = (sum(1 << axis for axis in self.dropped), *flat)

    def compute(self, x: NDArray) -> NDArray:
        part = x.slice(self.ranges)
        return part.squeeze(self.dropped) if self.dropped else part

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        return (executor.apply(SliceGrad.of(self.ranges, self.dropped, shape), out_grad),)


class SliceGrad(Linear):
    """The transpose of Slice: zeros of ``shape`` with x written to the ranges.

    Shapes:   x, as Slice makes it of shape -> shape
    Raises:   ShapeError if x does not have the shape of the ranges; IndexRangeError if a range
              leaves its axis
    """

    ranges: Ranges
    dropped: tuple[int, ...]
    shape: tuple[int, ...]
    samples = staticmethod(
        lambda: [Sample((uniform((2,)),), (((1, 2, 1),), (), (4,)), lambda x: np.pad(x, 1))]
    )

    def compute(self, x: NDArray) -> NDArray:
        out = kernels.empty(self.shape, x.dtype, x.device)
        backend = x.device.backend
        if x.size != out.size:
            backend.fill(out, 0)
        part = out.slice(self.ranges)
        kept = tuple(n for i, n in enumerate(part.shape) if i not in self.dropped)
        if x.shape != kept:
            raise ShapeError(f"slice_grad: shape {x.shape} for ranges of shape {kept}")
        backend.copy(part, x.reshape(part.shape))
        return out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(Slice.of(self.ranges, self.dropped), out_grad),)


class ToDevice(Linear):
    """Copy to another device."""

    device: Any

    def compute(self, x: NDArray) -> NDArray:
        return x.to(self.device)

    def infer(self, *specs: Spec) -> Spec:
        return make_spec(specs[0].dtype, self.device, specs[0].shape)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(ToDevice.of(out.node.inputs[0].spec.device), out_grad),)


class Copy(Linear):
    """Copy to fresh, dense memory.

    Shapes:   x [...] -> the same
    """

    samples = staticmethod(lambda: [Sample((uniform((3, 4)),), (), lambda x: x)])

    def compute(self, x: NDArray) -> NDArray:
        return x.copy()

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad,)


class StopGradient(Op):
    """Return x; no gradient flows through.

    Shapes:   x [...] -> the same
    """

    is_differentiable = False
    samples = staticmethod(lambda: [Sample((uniform((3, 4)),), (), lambda x: x, gradient=False)])

    def compute(self, x: NDArray) -> NDArray:
        return x


class Concat(Op):
    """Join tensors along an existing axis.

    Shapes:   several [a..., n, b...] -> [a..., sum of the n, b...]
    Raises:   ShapeError if other axes differ
    """

    axis: int
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform((2, 3)), uniform((2, 2), seed=1)), (1,),
                lambda x, y: np.concatenate([x, y], 1),
            ),
            Sample((uniform((0, 3)), uniform((2, 3))), (0,), lambda x, y: np.concatenate([x, y])),
            Sample((uniform((2, 3)), uniform((3, 3))), (1,), raises=ShapeError),
        ]
    )  # fmt: skip

    promotes = "all"

    def compute(self, *arrays: NDArray) -> NDArray:
        return kernels.concatenate(arrays, self.axis)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        grads, start = [], 0
        for node in out.node.inputs:
            size = node.spec.shape[self.axis]
            ranges = [(0, n, 1) for n in node.spec.shape]
            ranges[self.axis] = (start, size, 1)
            start += size
            grads.append(
                executor.apply(Slice.of(tuple(ranges), ()), out_grad) if node.needs else None
            )
        return grads


class Pad(Linear):
    """Pad with zeros: (before, after) per axis.

    Shapes:   x -> x with each axis longer by before + after
    Raises:   ShapeError if there is not one pair per axis, or one is negative
    """

    widths: tuple[tuple[int, int], ...]
    samples = staticmethod(
        lambda: [
            *(
                Sample((uniform(shape),), (widths,), lambda x, w=widths: np.pad(x, w))
                for shape, widths in (
                    ((2, 3), ((1, 0), (2, 1))), ((2, 37), ((1, 2), (3, 1))),
                    ((2, 3, 5), ((0, 1), (2, 1), (0, 0))), ((2, 0), ((0, 0), (1, 2))),
                )
            ),
            Sample((uniform((2, 3)),), (((1, 0),),), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        return kernels.pad(x, self.widths)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        ranges = tuple((low, n, 1) for (low, _), n in zip(self.widths, shape, strict=True))
        return (executor.apply(Slice.of(ranges, ()), out_grad),)


# ---- functions -------------------------------------------------------------------


known_reshapes: dict[object, Reshape] = {}
"""The op for arguments of ``reshape`` seen before, where they do not depend on the tensor."""


def reshape(x: Any, *sizes: Any, shape: Sequence[int] | None = None) -> Tensor:
    """Return x with a new shape; one size may be -1. See ``Reshape``.

    >>> print(ndl.reshape(Tensor([1.0, 2.0, 3.0, 4.0]), (2, -1)))
    [[1. 2.]
     [3. 4.]]
    """
    given = sizes if shape is None else (axes_of(shape),)
    old = executor.spec_of(x)
    op = Reshape.of(new_shape(given, old.size, old.shape))
    flat = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    if all(type(n) is int for n in flat) and flat == op.shape:
        if len(known_reshapes) > 1000:
            known_reshapes.clear()
        known_reshapes[given] = op
    return executor.apply(op, x)


def permute(x: Tensor, *axes: Sequence[int]) -> Tensor:
    """Return x with its axes in another order (array API: permute_dims).

    >>> ndl.permute(ndl.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    ndim = len(shape_of(x))
    return executor.apply(Permute.of(tuple(normalise_axis(a, ndim) for a in axes_of(order))), x)


_TURNS = [Permute.of((*range(n - 2), n - 1, n - 2)) for n in range(2, MAX_DIMS + 1)]


def turned(x: Tensor) -> Tensor:
    """Return x with its last two axes swapped."""
    return executor.apply(_TURNS[x.spec.ndim - 2], x)


def transpose(x: Any, axes: Any = None, *more: int) -> Tensor:
    """Swap two axes, as one argument or two; the last two for None. For any order see ``permute``.

    Raises:
        ShapeError: if there are not two axes, or x has fewer than two.

    >>> print(ndl.transpose(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    [[1. 3.]
     [2. 4.]]
    """
    ndim = executor.spec_of(x).ndim
    if more:
        axes = (axes, *more)
    if axes is None:
        if ndim >= 2:
            return turned(x)
        axes = (-2, -1)
    axes = axes_of(axes)
    if len(axes) != 2 or ndim < 2:
        raise explain(
            ShapeError, "transpose", f"axes {axes} of {ndim} dimensions", [("x", x)],
            "swaps exactly two axes", "permute(x, axes) for any order",
        )  # fmt: skip
    i, j = (normalise_axis(axis, ndim) for axis in axes)
    order = list(range(ndim))
    order[i], order[j] = order[j], order[i]
    return executor.apply(Permute.of(tuple(order)), x)


def broadcast_to(x: Any, shape: Sequence[int]) -> Tensor:
    """Return x repeated to a larger shape without copying. See ``BroadcastTo``.

    >>> print(ndl.broadcast_to(Tensor([1.0, 2.0]), (2, 2)))
    [[1. 2.]
     [1. 2.]]
    """
    return executor.apply(BroadcastTo.of(axes_of(shape)), x)


def squeeze(x: Tensor, axes: Any = None, *, axis: Axes = None) -> Tensor:
    """Return x without these axes of size 1 (all such axes for None).

    Raises:
        ShapeError: if an axis has another size, or is named twice.

    >>> ndl.squeeze(ndl.zeros((1, 3, 1))).shape
    (3,)
    """
    shape = shape_of(x)
    axes = either(axes, axis)
    if axes is None:
        axes = tuple(i for i, n in enumerate(shape) if n == 1)
    gone = normalise_axes(axes, len(shape))
    for axis in gone:
        if shape[axis] != 1:
            raise ShapeError(f"squeeze: axis {axis} has size {shape[axis]}, not 1")
    return reshape(x, tuple(n for i, n in enumerate(shape) if i not in gone))


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """Return x with a new axis of size 1 at this place of the result.

    >>> ndl.unsqueeze(Tensor([1.0, 2.0]), 1).shape
    (2, 1)
    """
    shape = list(shape_of(x))
    shape.insert(normalise_axis(axis, len(shape) + 1), 1)
    return reshape(x, tuple(shape))


def flip(x: Tensor, axes: Any = None, *more: int, axis: Axes = None) -> Tensor:
    """Return x with the elements of these axes (all for None) in reverse order; a view.

    Several axes are given as one argument or one by one.

    >>> print(ndl.flip(Tensor([1.0, 2.0, 3.0])))
    [3. 2. 1.]
    """
    shape = shape_of(x)
    turned = normalise_axes(either((axes, *more) if more else axes, axis), len(shape))
    ranges = tuple(
        (max(n - 1, 0), n, -1) if i in turned else (0, n, 1) for i, n in enumerate(shape)
    )
    return executor.apply(Slice.of(ranges, ()), x)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along an existing axis. See ``Concat``.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or other axes differ.

    >>> print(ndl.concat([Tensor([1.0, 2.0]), Tensor([3.0])]))
    [1. 2. 3.]
    """
    try:
        tensors = tuple(tensors)
    except TypeError:
        raise ArgumentError(
            f"concat: expected a sequence of tensors, got {tensors!r:.60}"
        ) from None
    if not tensors:
        raise ShapeError("concat: expected at least one tensor, got none")
    return executor.apply(Concat.of(normalise_axis(axis, len(shape_of(tensors[0])))), *tensors)


def astype(x: Any, dtype: Any) -> Tensor:
    """Return x in another dtype. See ``Cast``.

    >>> ndl.astype(Tensor([1.7, -1.7]), "int32")
    needle.Tensor([ 1, -1], dtype=int32)
    """
    target = as_dtype(dtype)
    return x if executor.spec_of(x).dtype is target else executor.apply(Cast.of(target), x)


def to_device(x: Any, device: DeviceLike) -> Tensor:
    """Return x on another device. See ``ToDevice``.

    >>> ops.to_device(Tensor([1.0]), ndl.cpu_numpy()).device
    cpu_numpy()
    """
    target = devices.as_device(device)
    return x if executor.spec_of(x).device == target else executor.apply(ToDevice.of(target), x)


def copy(x: Any) -> Tensor:
    """Return a copy of x in fresh memory.

    >>> print(ops.copy(Tensor([1.0, 2.0])))
    [1. 2.]
    """
    return executor.apply(Copy.of(), x)


def stop_gradient(x: Tensor) -> Tensor:
    """Return x as a constant: no gradient flows through. See ``StopGradient``.

    >>> x = Tensor(3.0)
    >>> ndl.grad(lambda x: x * ops.stop_gradient(x))(x).item()
    3.0
    """
    return executor.apply(StopGradient.of(), x)

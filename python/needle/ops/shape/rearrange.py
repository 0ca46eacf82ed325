"""Ops that roll, rotate, repeat or spread elements along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import kernels, ndarray
from needle.backend.axes import axes_of, integer, normalise_axis, sizes_of
from needle.errors import IndexRangeError, OptionError, ShapeError
from needle.executor import shape_of
from needle.ops.core.attributes import either
from needle.ops.core.op import Linear
from needle.ops.core.primitives import BroadcastTo
from needle.ops.core.samples import Sample, Samples, uniform
from needle.ops.index.indexing import take
from needle.ops.shape.creation import made
from needle.ops.shape.movement import (
    Reshape,
    Slice,
    SliceGrad,
    broadcast_to,
    flip,
    permute,
    reshape,
    unsqueeze,
)

if TYPE_CHECKING:
    from needle.typing import Axes, Gradients, NDArray, Numpy, Reference, Tensor

__all__ = [
    "Dilate", "Roll", "UnDilate", "broadcast_arrays", "dilate", "expand_dims", "flatten",
    "moveaxis", "repeat", "roll", "rot90", "swapaxes", "tile", "undilate", "unflatten",
]  # fmt: skip


def _axes(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return axes in the given order, counted from 0; all for None."""
    if axes is None:
        return tuple(range(ndim))
    return tuple(normalise_axis(axis, ndim) for axis in axes_of(axes))


# ---- turning and repeating ---------------------------------------------------------


class Roll(Linear):
    """Move elements along axes by ``shifts`` places; they wrap around at the ends.

    Shapes:   x [...] -> the same
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range; OptionError if there is not one shift
              per axis
    """

    shifts: tuple[int, ...]
    axes: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape),), (shifts, axes), lambda x, s=shifts, a=axes: np.roll(x, s, a)
            )
            for shape, shifts, axes in (
                ((5,), (2,), (0,)), ((3, 4), (-1, 6), (0, 1)), ((2, 0), (1,), (1,)),
                ((3, 4), (1, 1), (0, 0)),
            )
        ]
        + [
            Sample((uniform((2, 3)),), ((1,), (2,)), raises=IndexRangeError),
            Sample((uniform((2, 3)),), ((1, 2), (1,)), raises=OptionError),
        ]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        if len(self.shifts) != len(self.axes):
            raise OptionError(f"roll: shifts {self.shifts} along axes {self.axes}")
        for shift, axis in zip(self.shifts, self.axes, strict=True):
            size = x.shape[normalise_axis(axis, x.ndim)]
            if size and shift % size:
                ranges = [(0, n, 1) for n in x.shape]
                ranges[axis] = (size - shift % size, shift % size, 1)
                end = x.slice(ranges)
                ranges[axis] = (0, size - shift % size, 1)
                x = kernels.concatenate((end, x.slice(ranges)), axis)
        return x

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(Roll.of(tuple(-s for s in self.shifts), self.axes), out_grad),)


def roll(x: Tensor, shifts: int | Sequence[int], axes: Axes = None, *, axis: Axes = None) -> Tensor:
    """Move elements along axes (of the flattened x for None) by ``shifts`` places. See ``Roll``.

    Raises:
        ShapeError: if there is not one shift per axis.

    >>> print(ndl.roll(Tensor([1.0, 2.0, 3.0]), 1))
    [3. 1. 2.]
    """
    axes = either(axes, axis)
    if axes is None:
        size = executor.spec_of(x).size
        flat = roll(reshape(x, (size,)), shifts, 0)
        return reshape(flat, shape_of(x))
    chosen = _axes(axes, len(shape_of(x)))
    places = axes_of(shifts)
    if len(places) == 1:
        places *= len(chosen)
    if len(chosen) == 1:
        chosen *= len(places)
    if len(places) != len(chosen):
        raise ShapeError(f"roll: {len(places)} shifts for {len(chosen)} axes")
    return executor.apply(Roll.of(places, chosen), x)


def _repeat_in_place(x: Tensor, counts: Sequence[int], inner: bool) -> Tensor:
    """Return x with each axis repeated: each element in turn (inner), or the whole axis."""
    shape = shape_of(x)
    split: list[int] = []
    wide: list[int] = []
    for n, count in zip(shape, counts, strict=True):
        split += [n, 1] if inner else [1, n]
        wide += [n, count] if inner else [count, n]
    apart = executor.apply(Reshape.of(tuple(split)), x)
    spread = executor.apply(BroadcastTo.of(tuple(wide)), apart)
    whole = tuple(n * count for n, count in zip(shape, counts, strict=True))
    return executor.apply(Reshape.of(whole), spread)


def tile(x: Tensor, counts: int | Sequence[int]) -> Tensor:
    """Repeat x as a whole, ``counts`` times along each axis (aligned at the last, as NumPy).

    Raises:
        ArgumentError: if a count is not an integer.
        ShapeError: if one is negative, or the result has too many elements.

    >>> print(ndl.tile(Tensor([1.0, 2.0]), 2))
    [1. 2. 1. 2.]
    """
    times = tuple(_count("tile", n) for n in axes_of(counts))
    shape = shape_of(x)
    ndim = max(len(times), len(shape))
    if ndim > len(shape):
        x = reshape(x, (1,) * (ndim - len(shape)) + shape)
    return _repeat_in_place(x, (1,) * (ndim - len(times)) + times, False)


def repeat(x: Any, counts: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Repeat each element along an axis (of the flattened x for None).

    Args:
        x: a tensor.
        counts: one number, or one for each element along the axis.
        axis: where.

    Raises:
        ArgumentError: if a count is not an integer.
        ShapeError: if there is not one count, or one per element; if one is negative, or the result
            has too many elements.

    >>> print(ndl.repeat(Tensor([1.0, 2.0]), 2))
    [1. 1. 2. 2.]
    """
    if axis is None:
        x, axis = reshape(x, (executor.spec_of(x).size,)), 0
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    if not np.iterable(counts):
        count = _count("repeat", counts)
        return _repeat_in_place(x, [count if i == axis else 1 for i in range(len(shape))], True)
    each = executor.primal_array(counts).numpy() if isinstance(counts, graph.TensorBase) else counts
    if not isinstance(each, np.ndarray) or each.dtype.kind not in "iu" or each.ndim != 1:
        each = np.array([_count("repeat", n) for n in axes_of(each)], object)
    if len(each) != shape[axis]:
        raise ShapeError(f"repeat: {len(each)} counts for {shape[axis]} elements")
    _count("repeat", each.min(initial=0))
    sizes_of("repeat", (int(each.sum(dtype=object)),), 8)
    return take(x, made("repeat", _repeated, each.astype(np.int64), x), axis)


def rot90(x: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by 90 degrees k times, from the first of two axes to the second; a view.

    Raises:
        ArgumentError: if k is not an integer.
        ShapeError: if there are not two axes, or both are the same.

    >>> print(ndl.rot90(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    [[2. 4.]
     [1. 3.]]
    """
    chosen = _axes(axes, len(shape_of(x)))
    if len(chosen) != 2 or chosen[0] == chosen[1]:
        raise ShapeError(f"rot90: axes {chosen}\n  rule: two different axes")
    turns = integer("rot90: k", k) % 4
    if turns % 2 == 0:
        return flip(x, chosen) if turns else x
    return flip(swapaxes(x, *chosen), chosen[turns == 3])


def _count(operation: str, value: object) -> int:
    """Return a count of repetitions, checked."""
    count = integer(f"{operation}: count", value)
    if count < 0:
        raise ShapeError(f"{operation}: count {count} is below 0")
    return count


def _repeated(counts: Numpy, like: Tensor) -> NDArray:
    """Return the position of each count, repeated that many times."""
    places = np.repeat(np.arange(len(counts)), counts)
    return ndarray.array(places, dtypes.int64, like.spec.device)


# ---- spreading ---------------------------------------------------------------------


def _dilated(x: Numpy, axes: tuple[int, ...], dilation: int) -> Numpy:
    step = dilation + 1
    out = np.zeros([n * step if i in axes else n for i, n in enumerate(x.shape)])
    out[tuple(slice(None, None, step if i in axes else 1) for i in range(x.ndim))] = x
    return out


def _undilated(x: Numpy, axes: tuple[int, ...], dilation: int) -> Numpy:
    return x[tuple(slice(None, None, dilation + 1 if i in axes else 1) for i in range(x.ndim))]


def _dilation_samples(reference: Reference) -> Samples:
    def samples() -> list[Sample]:
        cases: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
            ((2, 3), (0, 1), 1), ((2, 3), (1,), 2), ((4,), (0,), 0), ((2, 3), (0, 2), 1),
            ((0, 2), (0,), 1), ((5, 7), (0, 1), 2),
        )  # fmt: skip
        return [
            Sample((uniform(shape),), (axes, d), lambda x, a=axes, d=d: reference(x, a, d))
            for shape, axes, d in cases
        ]

    return samples


class Dilate(Linear):
    """Put ``dilation`` zeros after every element on each of the axes (the last one included).

    Axes that x does not have are ignored.

    Shapes:   x [n, ...] -> [n * (1 + dilation), ...]
    Gradient: x; any order
    Raises:   ShapeError if dilation is negative
    """

    axes: tuple[int, ...]
    dilation: int
    samples = _dilation_samples(_dilated)

    def compute(self, x: NDArray) -> NDArray:
        if self.dilation < 0:
            raise ShapeError(f"dilate: dilation {self.dilation} is negative")
        step = self.dilation + 1
        wide = tuple(n * step if i in self.axes else n for i, n in enumerate(x.shape))
        out = ndarray.full(wide, 0, x.dtype, x.device)
        ranges = [(0, n, step if i in self.axes and n > 1 else 1) for i, n in enumerate(x.shape)]
        out.device.backend.copy(out.slice(ranges), x)
        return out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(UnDilate.of(self.axes, self.dilation), out_grad),)


class UnDilate(Linear):
    """Keep every (1 + dilation)-th element on each of the axes: the transpose of dilate.

    Shapes:   x [n, ...] -> [ceil(n / (1 + dilation)), ...]; a view
    Gradient: x; any order
    Raises:   ShapeError if dilation is negative
    """

    axes: tuple[int, ...]
    dilation: int
    samples = _dilation_samples(_undilated)

    def _ranges(self, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        steps = [min(self.dilation + 1, max(n, 1)) for n in shape]
        return tuple(
            (0, -(-n // step), step) if i in self.axes else (0, n, 1)
            for i, (n, step) in enumerate(zip(shape, steps, strict=True))
        )

    def compute(self, x: NDArray) -> NDArray:
        if self.dilation < 0:
            raise ShapeError(f"undilate: dilation {self.dilation} is negative")
        return x.slice(self._ranges(x.shape))

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        return (executor.apply(SliceGrad.of(self._ranges(shape), (), shape), out_grad),)


def dilate(x: Tensor, axes: int | Sequence[int], dilation: int) -> Tensor:
    """Put ``dilation`` zeros after every element on each of the axes. See ``Dilate``.

    >>> print(ops.dilate(Tensor([1.0, 2.0]), 0, 1))
    [1. 0. 2. 0.]
    """
    return executor.apply(Dilate.of(*_dilation("dilate", x, axes, dilation)), x)


def undilate(x: Tensor, axes: int | Sequence[int], dilation: int) -> Tensor:
    """Keep every (1 + dilation)-th element on each of the axes. See ``UnDilate``.

    >>> print(ops.undilate(Tensor([1.0, 0.0, 2.0, 0.0]), 0, 1))
    [1. 2.]
    """
    return executor.apply(UnDilate.of(*_dilation("undilate", x, axes, dilation)), x)


def _dilation(
    name: str, x: Tensor, axes: int | Sequence[int], dilation: int
) -> tuple[tuple[int, ...], int]:
    dilation = integer(f"{name}: dilation", dilation)
    if dilation < 0:
        raise ShapeError(f"{name}: dilation {dilation} is negative")
    ndim = len(shape_of(x))
    listed = [integer(f"{name}: axis", axis) for axis in axes_of(axes)]
    return tuple(a + ndim if a < 0 else a for a in listed), dilation


# ---- axes --------------------------------------------------------------------------


def moveaxis(x: Tensor, source: int | Sequence[int], target: int | Sequence[int]) -> Tensor:
    """Move axes to other places; the others keep their order.

    Raises:
        ShapeError: if source and target differ in length, or an axis is named twice.

    >>> ndl.moveaxis(ndl.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    ndim = len(shape_of(x))
    start, stop = _axes(source, ndim), _axes(target, ndim)
    if len(start) != len(stop) or len(set(start)) != len(start) or len(set(stop)) != len(stop):
        raise ShapeError(f"moveaxis: cannot move axes {start} to {stop}")
    order = [i for i in range(ndim) if i not in start]
    for place, axis in sorted(zip(stop, start, strict=True)):
        order.insert(place, axis)
    return permute(x, order)


def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Swap two axes.

    >>> ndl.swapaxes(ndl.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    order = list(range(len(shape_of(x))))
    i, j = _axes((axis1, axis2), len(order))
    order[i], order[j] = order[j], order[i]
    return permute(x, order)


def flatten(x: Tensor, start: int = 0, stop: int = -1) -> Tensor:
    """Merge the axes from start to stop (included) into one.

    Raises:
        ShapeError: if start comes after stop.

    >>> ndl.flatten(ndl.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    shape = shape_of(x)
    if not shape:
        return reshape(x, (1,))
    i, j = _axes((start, stop), len(shape))
    if i > j:
        raise ShapeError(f"flatten: axis {i} comes after {j}")
    return reshape(x, (*shape[:i], math.prod(shape[i : j + 1]), *shape[j + 1 :]))


def unflatten(x: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    """Split an axis into several: the inverse of ``flatten``. One of the sizes may be -1.

    Raises:
        ArgumentError: if a size is not an integer.
        IndexRangeError: if the axis is out of range.
        ShapeError: if the product of the sizes is not that of the axis.

    >>> ndl.unflatten(ndl.zeros((2, 12)), 1, (3, 4)).shape
    (2, 3, 4)
    """
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    parts = tuple(integer("unflatten: size", n) for n in axes_of(sizes))
    known = math.prod(n for n in parts if n != -1)
    whole_parts = known == shape[axis] if -1 not in parts else known and shape[axis] % known == 0
    if parts.count(-1) > 1 or not whole_parts or min(parts, default=0) < -1:
        raise ShapeError(
            f"unflatten: axis {axis} of size {shape[axis]} into {parts}\n"
            "  rule: the product of the sizes is that of the axis; one may be -1"
        )
    parts = tuple(shape[axis] // known if n == -1 else n for n in parts)
    return reshape(x, (*shape[:axis], *parts, *shape[axis + 1 :]))


def expand_dims(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of size 1 at these places of the result.

    >>> ops.expand_dims(ndl.zeros((2, 3)), (0, 2)).shape
    (1, 2, 1, 3)
    """
    axes = axes_of(axis)
    for place in sorted(_axes(axes, len(shape_of(x)) + len(axes))):
        x = unsqueeze(x, place)
    return x


def broadcast_arrays(*tensors: Tensor) -> list[Tensor]:
    """Broadcast tensors to their common shape; views.

    >>> x, y = ops.broadcast_arrays(Tensor([1.0, 2.0]), Tensor([[3.0], [4.0]]))
    >>> x.shape, y.shape
    ((2, 2), (2, 2))
    """
    shape = ndarray.broadcast_shapes("broadcast_arrays", *[shape_of(x) for x in tensors])
    return [broadcast_to(x, shape) for x in tensors]


def window(x: Any, axis: int, start: int, size: int) -> Tensor:
    """Return ``size`` elements along an axis from ``start``; a view.

    Raises:
        IndexRangeError: if the axis is too short.
    """
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    if not 0 <= start <= start + size <= shape[axis]:
        raise IndexRangeError(f"window: [{start}, {start + size}) of {shape[axis]} elements")
    ranges = [(0, n, 1) for n in shape]
    ranges[axis] = (start, size, 1)
    return executor.apply(Slice.of(tuple(ranges), ()), x)

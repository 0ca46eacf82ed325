"""Ops with several outputs: their result is a ``TensorTuple``. Stacking and its inverse."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, graph
from needle.backend import kernels
from needle.backend.axes import axes_of, integer, normalise_axis
from needle.backend.ndarray import array, full
from needle.dtype import DType
from needle.errors import (
    ArgumentError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
    no_tensor,
)
from needle.executor import shape_of
from needle.ops.core.op import KINDS, PROMOTIONS, Op, cast, promoted
from needle.ops.core.operands import constant, read
from needle.ops.core.samples import Sample, uniform
from needle.ops.shape.movement import broadcast_to, concat, reshape, to_device

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import (
        DeviceLike,
        Gradients,
        NDArray,
        Numpy,
        OutGrads,
        Tensor,
        TensorTuple,
    )

__all__ = [
    "FusedAddScalars", "Split", "Stack", "TupleGetItem", "atleast_1d",
    "atleast_2d", "atleast_3d", "chunk", "column_stack", "dstack", "fused_add_scalars",
    "hsplit", "hstack", "split", "stack", "tensor_split", "tuple_get_item",
    "unbind", "vsplit", "vstack",
]  # fmt: skip

_MOST_PIECES = 1 << 20


class TupleGetItem(Op):
    """Take one tensor of a tuple."""

    index: int
    structural = True

    def setup(self) -> None:
        self.kind, self.params = KINDS["item"], (self.index,)

    def prepare(self, inputs: tuple[TensorTuple, ...]) -> tuple[Any, ...]:
        return inputs  # several tensors together, which other ops refuse

    def compute(self, arrays: Any) -> Any:
        return arrays[self.index]

    def infer(self, *specs: Any) -> Spec:
        return specs[0][self.index]

    def gradient(self, out_grad: Tensor, out: Tensor) -> Any:
        parts: list[Any] = [None] * len(out.node.inputs[0].spec)
        parts[self.index] = out_grad
        return (parts,)


class Stack(Op):
    """Join tensors of equal shape along a new axis.

    Shapes:   several [a..., b...] -> [a..., number of tensors, b...]
    Gradient: all inputs; any order
    Raises:   ShapeError if shapes differ; IndexRangeError if the axis is out of range
    """

    axis: int = 0
    samples = staticmethod(
        lambda: (
            [
                Sample((uniform((2, 3)), uniform((2, 3), seed=1)), (axis,), _stack_at(axis))
                for axis in (0, 1, -1)
            ]
            + [
                Sample((uniform(()), uniform((), seed=1), uniform((), seed=2)), (0,), _stack_at(0)),
                Sample((uniform((0, 2)),), (1,), _stack_at(1)),
                Sample((uniform((2, 3)), uniform((3, 3))), (0,), raises=ShapeError),
                Sample((uniform((2, 3)), uniform((2, 3))), (3,), raises=IndexRangeError),
            ]
        )
    )

    def setup(self) -> None:
        self.kind, self.code, self.params = KINDS["compute"], PROMOTIONS["all"], (-1,)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        first = inputs[0] if len(inputs) == 1 else None
        if type(getattr(first, "spec", None)) is tuple:  # the course's form
            inputs = tuple(inputs[0].tuple())
        return promoted(inputs, self.name)

    def compute(self, *arrays: NDArray) -> NDArray:
        return kernels.stack(arrays, self.axis)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Any:
        parts = split(out_grad, self.axis)
        return tuple(parts[i] for i in range(len(out.node.inputs)))


def _stack_at(axis: int) -> Any:
    return lambda *arrays: np.stack(arrays, axis)


class Split(Op):
    """Split a tensor along an axis and remove that axis: the inverse of stack.

    Shapes:   x [a..., n, b...] -> n tensors [a..., b...]; views
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range
    """

    axis: int = 0
    samples = staticmethod(
        lambda: (
            [
                Sample((uniform((2, 3)),), (axis,), lambda x, axis=axis: _unstack(x, axis))
                for axis in (0, 1, -1)
            ]
            + [
                Sample((uniform((3,)),), (0,), lambda x: _unstack(x, 0)),
                Sample((uniform((2, 0)),), (0,), lambda x: _unstack(x, 0)),
                Sample((uniform((2, 3)),), (2,), raises=IndexRangeError),
            ]
        )
    )

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        return kernels.unstack(x, self.axis)

    def gradient(self, out_grad: Any, out: Tensor) -> Gradients:
        spec = out.node.spec[0]
        none = broadcast_to(constant(0.0, spec.dtype, spec.device), spec.shape)
        parts = [none if part is None else part for part in _parts(out_grad)]
        return (stack(parts, self.axis),)


def _parts(out_grad: Any) -> Sequence[Tensor | None]:
    return out_grad if isinstance(out_grad, list) else out_grad.tuple()


def _unstack(x: Numpy, axis: int) -> tuple[Numpy, ...]:
    return tuple(np.moveaxis(x, axis, 0))


class FusedAddScalars(Op):
    """Two sums in one pass: (x + c0, x + c1).

    Shapes:   x [...] -> two of the same
    Dtypes:   floating; integers and bools become floats
    Gradient: x; any order
    """

    c0: float
    c1: float
    samples = staticmethod(
        lambda: [
            Sample((x,), (1.0, -2.5), lambda x: (x + 1.0, x - 2.5), dtypes=kinds)
            for x, kinds in (
                (uniform((2, 3)), ()),
                (np.array([[3, -1]]), ("float32",)),
                (np.array([True, False]), ("float32",)),
            )
        ]
    )

    promotes = "floating"

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        numbers = [full((), c, x.dtype, x.device) for c in (self.c0, self.c1)]
        return tuple(kernels.elementwise("add", x, number) for number in numbers)

    def gradient(self, out_grad: OutGrads, out: Tensor) -> Gradients:
        first, second = out_grad[0], out_grad[1]
        if first is None or second is None:
            return (second if first is None else first,)
        return (first + second,)


def tuple_get_item(value: TensorTuple, index: int) -> Tensor:
    """Return one tensor of a TensorTuple.

    >>> pair = ops.make_tuple(Tensor([1.0]), Tensor([2.0]))
    >>> print(ops.tuple_get_item(pair, 1))
    [2.]
    """
    if not isinstance(value, graph.TensorBase):
        raise no_tensor(value)
    return executor.apply(TupleGetItem.of(index), value)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of equal shape along a new axis. See ``Stack``.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or shapes differ.

    >>> print(ndl.stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]))
    [[1. 2.]
     [3. 4.]]
    """
    try:
        parts = tuple(tensors[i] for i in range(len(tensors)))
    except (TypeError, KeyError):  # a dict has a length, too
        raise ArgumentError(f"stack: expected a sequence of tensors, got {tensors!r:.60}") from None
    if not parts:
        raise ShapeError("stack: expected at least one tensor, got none")
    return executor.apply(Stack.of(axis), *parts)


def joined(values: Any, kind: DType, device: DeviceLike) -> Tensor:
    """Return (nested) lists of numbers, arrays and tensors as one tensor, by stacking.

    Gradients flow to the tensors.

    Raises:
        ShapeError: if they differ in shape.
    """
    if isinstance(values, graph.TensorBase):
        return to_device(cast(values, kind), device)
    made = read(array, values, kind, device)
    if made is not None:
        return graph.wrap(made)
    return stack([joined(part, kind, device) for part in values])


def split(x: Tensor, axis: int = 0, *, sizes: int | Sequence[int] | None = None) -> Any:
    """Return a TensorTuple of the slices of x along an axis, which is removed. See ``Split``.

    Args:
        x: a tensor.
        axis: along which.
        sizes: None; or the sizes of the pieces along the axis: then the axis stays, and the result
            is a Python tuple of views. One number is the size of all pieces but a smaller last one.

    Raises:
        OptionError: if axis or a size is not an integer.
        ShapeError: if the sizes do not add up to that of the axis, or one is negative.

    >>> a, b = ops.split(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    >>> print(a, b)
    [1. 3.] [2. 4.]
    """
    if isinstance(axis, (list, tuple, np.ndarray)):
        raise explain(
            OptionError, "split", f"axis is {axis!r:.60}", [("x", x)],
            "split(x, axis) splits x along one axis and removes it",
            f"split(x, sizes={axis!r:.60}, axis=0) for pieces of these sizes (as torch.split); "
            "np.split's places [i, j] are the sizes [i, j - i, n - j]",
        )  # fmt: skip
    if sizes is None:
        return executor.apply(Split.of(axis), x)
    shape = executor.shape_of(x)
    axis = normalise_axis(axis, len(shape))
    return _pieces(x, axis, _sizes(x, shape[axis], sizes))


def _sizes(x: Tensor, whole: int, sizes: int | Sequence[int]) -> list[int]:
    """Return the sizes of all pieces of an axis."""
    try:
        found = [operator.index(n) for n in (sizes if isinstance(sizes, Sequence) else (sizes,))]
    except TypeError:
        problem = f"sizes are {sizes!r:.60}"
        rule = "an integer, or a list of them"
        raise explain(OptionError, "split", problem, [("x", x)], rule) from None
    if not isinstance(sizes, Sequence) and (found[0] > 0 or found[0] == whole):
        step = max(found[0], 1)
        found = [min(step, whole - start) for start in range(0, whole, step)] or [0]
    if sum(found) != whole or any(n < 0 for n in found):
        raise explain(
            ShapeError, "split", f"pieces of {sizes!r:.60} of an axis of size {whole}", [("x", x)],
            "sizes add up to that of the axis; one number is positive",
        )  # fmt: skip
    return found


def _pieces(x: Tensor, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    starts = accumulate(sizes, initial=0)
    before = (slice(None),) * axis
    return tuple(
        x[(*before, slice(start, start + n))] for start, n in zip(starts, sizes, strict=False)
    )


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along their second axis, and vectors along their only one, as in NumPy.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or other axes differ.

    >>> print(ndl.hstack([Tensor([1.0, 2.0]), Tensor([3.0])]))
    [1. 2. 3.]
    """
    parts = [_with_axes(x, 1) for x in _several("hstack", tensors)]
    return concat(parts, 0 if parts and len(shape_of(parts[0])) == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along their first axis, vectors as rows.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or other axes differ.

    >>> print(ndl.vstack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]))
    [[1. 2.]
     [3. 4.]]
    """
    return concat([_with_axes(x, 2) for x in _several("vstack", tensors)], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along their third axis; vectors and matrices as slices of it.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or other axes differ.

    >>> ndl.dstack([ndl.zeros((2, 3)), ndl.zeros((2, 3))]).shape
    (2, 3, 2)
    """
    return concat([atleast_3d(x) for x in _several("dstack", tensors)], 2)


def column_stack(tensors: Sequence[Any]) -> Tensor:
    """Join tensors along their second axis, vectors as columns.

    Raises:
        ArgumentError: if they are not a sequence.
        ShapeError: if there are no tensors, or other axes differ.

    >>> print(ndl.column_stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]))
    [[1. 3.]
     [2. 4.]]
    """
    parts = _several("column_stack", tensors)
    return concat([x if len(shape_of(x)) > 1 else reshape(x, (-1, 1)) for x in parts], 1)


def atleast_1d(*tensors: Any) -> Any:
    """Return a tensor with at least one axis; for several tensors a tuple.

    >>> ndl.atleast_1d(Tensor(5.0)).shape
    (1,)
    """
    return _each(tensors, lambda x: _with_axes(x, 1))


def atleast_2d(*tensors: Any) -> Any:
    """Return a tensor with at least two axes, a vector as a row; for several tensors a tuple.

    >>> ndl.atleast_2d(Tensor([1.0, 2.0])).shape
    (1, 2)
    """
    return _each(tensors, lambda x: _with_axes(x, 2))


def atleast_3d(*tensors: Any) -> Any:
    """Return a tensor with at least three axes; for several tensors a tuple.

    Shapes:   [] -> [1, 1, 1], [n] -> [1, n, 1], [m, n] -> [m, n, 1]

    >>> ndl.atleast_3d(Tensor([1.0, 2.0])).shape
    (1, 2, 1)
    """

    def deep(x: Tensor) -> Tensor:
        x = _with_axes(x, 2)
        return x if len(shape_of(x)) > 2 else reshape(x, (*shape_of(x), 1))

    return _each(tensors, deep)


def _each(tensors: tuple[Any, ...], change: Callable[[Any], Tensor]) -> Any:
    """Apply a function to one tensor, or to several, also in a list: then return a tuple."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return tuple(change(x) for x in tensors[0])
    return change(tensors[0]) if len(tensors) == 1 else tuple(change(x) for x in tensors)


def _several(operation: str, tensors: Any) -> tuple[Tensor, ...]:
    try:
        return tuple(tensors)
    except TypeError:
        raise ArgumentError(
            f"{operation}: expected a sequence of tensors, got {tensors!r:.60}"
        ) from None


def _with_axes(x: Tensor, count: int) -> Tensor:
    """Return x with leading axes of size 1, so that it has at least that many axes."""
    shape = shape_of(x)
    return x if len(shape) >= count else reshape(x, (1,) * (count - len(shape)) + shape)


def chunk(x: Tensor, pieces: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Split x along an axis into a number of pieces of equal size: a tuple of views.

    As in PyTorch the last piece may be smaller, and there may be fewer pieces.

    Raises:
        OptionError: if pieces is not a positive integer, or above 2**20 for an empty axis.

    >>> [piece.shape for piece in ndl.chunk(ndl.zeros((5, 2)), 2)]
    [(3, 2), (2, 2)]
    """
    if not isinstance(pieces, (int, np.integer)) or pieces < 1:
        problem = f"{pieces!r:.60} pieces"
        raise explain(OptionError, "chunk", problem, [("x", x)], "a positive integer")
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    whole = shape[axis]
    if not whole:
        _check_count("chunk", x, int(pieces))
        return (x,) * int(pieces)
    step = -(-whole // int(pieces))
    return _pieces(x, axis, [min(step, whole - start) for start in range(0, whole, step)])


def tensor_split(x: Tensor, pieces: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Split x along an axis into a number of pieces, or at given places: a tuple of views.

    As in NumPy's array_split, the first pieces have one element more if the sizes cannot be equal.

    Args:
        x: a tensor.
        pieces: how many; or the places to cut at, as in slices.
        axis: along which.

    Raises:
        ArgumentError: if they are not integers.
        OptionError: if the number of pieces is below 1 or above 2**20.
        IndexRangeError: if the axis is out of range.

    >>> [piece.shape for piece in ndl.tensor_split(ndl.zeros((5, 2)), (1, 3))]
    [(1, 2), (2, 2), (2, 2)]
    """
    return _cut("tensor_split", x, pieces, axis)


def _check_count(name: str, x: Tensor, count: int) -> None:
    if count > _MOST_PIECES:
        raise explain(
            OptionError, name, f"{count} pieces", [("x", x)], f"at most {_MOST_PIECES}"
        )  # fmt: skip


def _cut(
    name: str, x: Tensor, pieces: int | Sequence[int], axis: int, equal: bool = False
) -> tuple[Tensor, ...]:
    """Return the pieces of ``tensor_split``; with ``equal`` only pieces of equal size."""
    axis = normalise_axis(axis, len(shape_of(x)))
    if np.ndim(pieces):
        places = [integer(f"{name}: a place", place) for place in axes_of(pieces)]
        bounds = zip([None, *places], [*places, None], strict=True)
        return tuple(x[(*(slice(None),) * axis, slice(*pair))] for pair in bounds)
    count, size = integer(f"{name}: pieces", pieces), shape_of(x)[axis]
    if count < 1:
        raise explain(OptionError, name, f"{count} pieces", [("x", x)], "at least one")
    _check_count(name, x, count)
    if equal and size % count:
        raise explain(
            ShapeError, name, f"{size} elements along axis {axis} into {count} pieces", [("x", x)],
            "pieces of equal size", f"tensor_split(x, {count}, {axis})",
        )  # fmt: skip
    return _pieces(x, axis, [size // count + (i < size % count) for i in range(count)])


def hsplit(x: Any, pieces: int | Sequence[int]) -> tuple[Any, ...]:
    """Split along the second axis (vectors along the only one): the inverse of ``hstack``.

    Pieces is a number of pieces of equal size, or the places to cut at. See ``tensor_split``.

    Raises:
        ShapeError: if x has no axes, or the pieces are not of equal size.

    >>> left, right = ndl.hsplit(Tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    >>> print(left)
    [[1.]
     [3.]]
    """
    if not shape_of(x):
        raise explain(ShapeError, "hsplit", "x has no axes", [("x", x)], "at least one")
    return _cut("hsplit", x, pieces, min(len(shape_of(x)) - 1, 1), True)


def vsplit(x: Any, pieces: int | Sequence[int]) -> tuple[Any, ...]:
    """Split along the first of at least two axes: the inverse of ``vstack``.

    Pieces is a number of pieces of equal size, or the places to cut at. See ``tensor_split``.

    Raises:
        ShapeError: if x has fewer than two axes, or the pieces are not of equal size.

    >>> top, bottom = ndl.vsplit(Tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    >>> print(bottom)
    [[3. 4.]]
    """
    if len(shape_of(x)) < 2:
        count = len(shape_of(x))
        raise explain(ShapeError, "vsplit", f"x has {count} axes", [("x", x)], "at least two")
    return _cut("vsplit", x, pieces, 0, True)


def unbind(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """Return the slices of x along an axis, which is removed, as a tuple. See ``Split``.

    >>> a, b = ndl.unbind(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> print(a, b)
    [1. 2.] [3. 4.]
    """
    return split(x, axis).tuple()


def fused_add_scalars(x: Tensor, c0: float, c1: float) -> Any:
    """Return a TensorTuple (x + c0, x + c1).

    >>> x, y = ops.fused_add_scalars(Tensor([1.0]), 10.0, 20.0)
    >>> print(x, y)
    [11.] [21.]
    """
    return executor.apply(FusedAddScalars.of(c0, c1), x)

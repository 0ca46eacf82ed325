"""Picking by integer indices, and its transpose: adding at them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import core, executor, graph
from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.axes import axes_of, integer, normalise_axis
from needle.backend.index_errors import outside
from needle.backend.ndarray import array
from needle.dtype import DType, as_dtype
from needle.errors import DtypeError, IndexRangeError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import flag
from needle.ops.core.op import Op
from needle.ops.core.operands import as_tensors
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, integers, uniform
from needle.ops.index.row_sparse import Take
from needle.ops.shape.movement import reshape

if TYPE_CHECKING:
    from needle.typing import DTypeLike, Gradients, NDArray, Numpy, Operand, Tensor, Values

__all__ = [
    "Gather", "Labels", "OneHot", "RowNumbers", "ScatterAdd", "embedding",
    "gather", "one_hot", "scatter_add", "take", "take_along_dim",
]  # fmt: skip


def _gather_samples() -> list[Sample]:
    x = uniform((3, 4))
    cases: list[tuple[Numpy, Numpy, int]] = [
        (x, integers((3, 2), 0, 4), 1),
        (x, integers((5, 4), -3, 3), 0),
        (x, integers((5, 1), 0, 3), 0),
        (uniform((2, 1, 4)), integers((2, 3, 6), 0, 4), 2),
        (x, np.zeros((3, 0), int), 1),
        (uniform((0, 4)), np.zeros((0, 2), int), 1),
    ]
    return [
        Sample((x, index), (axis,), lambda x, i, axis=axis: _take_along(x, i, axis))
        for x, index, axis in cases
    ] + [
        Sample((x, np.array([[0], [4], [1]])), (1,), raises=IndexRangeError, by_value=True),
        Sample((x, np.array([[0], [-5], [1]])), (1,), raises=IndexRangeError, by_value=True),
        Sample((x, np.zeros(3, int)), (1,), raises=ShapeError),
        Sample((x, np.zeros((2, 1), int)), (1,), raises=ShapeError),
        Sample((x, np.zeros((3, 1))), (1,), raises=DtypeError),
    ]


def _take_along(x: Numpy, index: Numpy, axis: int) -> Numpy:
    shape = list(np.broadcast_shapes(np.delete(x.shape, axis), np.delete(index.shape, axis)))
    wide, tall = list(shape), list(shape)
    wide.insert(axis, x.shape[axis])
    tall.insert(axis, index.shape[axis])
    return np.take_along_axis(np.broadcast_to(x, wide), np.broadcast_to(index, tall), axis)


class Gather(Op):
    """Pick along an axis: out[i, j, k] = x[i, index[i, j, k], k] (NumPy's take_along_axis).

    Shapes:   x [..., n, ...], index [..., m, ...] -> [..., m, ...]; the other axes broadcast
    Dtypes:   x any, index integer; negative indices count from the end
    Gradient: x; any order
    Raises:   IndexRangeError naming the first index out of range;
              ShapeError if other axes do not broadcast; DtypeError if index is not integer
    """

    axis: int
    saves = ((1,), ())
    samples = staticmethod(_gather_samples)

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        return kernels.gather(x, index, self.axis)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        axis = normalise_axis(self.axis, len(shape))
        wide = list(out.node.spec.shape)
        wide[axis] = shape[axis]
        op = ScatterAdd.of(axis, tuple(wide))
        return sum_to(executor.apply(op, out.inputs[1], out_grad), shape), None


def _scatter_add(index: Numpy, updates: Numpy, axis: int, shape: tuple[int, ...]) -> Numpy:
    out = np.zeros(shape)
    place = list(np.ogrid[tuple(slice(n) for n in updates.shape)])
    place[axis] = np.broadcast_to(index, updates.shape)
    np.add.at(out, tuple(place), updates)
    return out


def _scatter_samples() -> list[Sample]:
    cases: list[tuple[Numpy, Numpy, int, tuple[int, ...]]] = [
        (integers((3, 5), 0, 4), uniform((3, 5)), 1, (3, 4)),
        (integers((6, 1), -2, 2), uniform((6, 3)), 0, (2, 3)),
        (np.zeros((0, 1), int), uniform((0, 3)), 0, (2, 3)),
        (np.zeros(4, int), uniform((4,)), 0, (1,)),
    ]
    return [
        Sample((index, x), (axis, shape), lambda i, x, a=axis, s=shape: _scatter_add(i, x, a, s))
        for index, x, axis, shape in cases
    ] + [
        Sample((np.array([0, 3]), uniform((2,))), (0, (3,)), raises=IndexRangeError, by_value=True),
        Sample((np.array([[0], [1]]), uniform((2, 3))), (0, (2, 4)), raises=ShapeError),
    ]


class ScatterAdd(Op):
    """Zeros of ``shape`` with updates[i, j, k] added at [i, index[i, j, k], k].

    Shapes:   index [..., m, ...] (broadcasts to updates), updates [..., m, ...] -> shape
    Dtypes:   index integer, updates any
    Gradient: updates; any order
    Raises:   IndexRangeError naming the first index out of range;
              ShapeError if index does not broadcast to updates, or updates do not fit shape
    """

    axis: int
    shape: tuple[int, ...]
    saves = ((), (0,))
    samples = staticmethod(_scatter_samples)

    def compute(self, index: NDArray, updates: NDArray) -> NDArray:
        return kernels.scatter_add(index, updates, self.axis, self.shape)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        if not out.node.inputs[1].needs:
            return None, None
        return None, executor.apply(Gather.of(self.axis), out_grad, out.inputs[0])


class RowNumbers(Op):
    """x as int64, checked to be valid row numbers of a table: the ids of ``embedding``.

    Shapes:   x [...] -> the same
    Dtypes:   integer (or floating with whole values) -> int64
    Raises:   IndexRangeError naming the first number out of range; DtypeError naming the first
              that is not whole
    """

    rows: int
    called = "embedding"
    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample((np.array([[3.0, 2.0]]),), (4,), lambda x: x, gradient=False),
            Sample((np.array([1, 0]),), (4,), lambda x: x, gradient=False),
            Sample((np.zeros(0, int),), (0,), lambda x: x, gradient=False),
            Sample((np.array([1.0, 2.5]),), (4,), raises=DtypeError, by_value=True),
            Sample((np.array([0, 4]),), (4,), raises=IndexRangeError, by_value=True),
            Sample((np.array([0, -1]),), (4,), raises=IndexRangeError, by_value=True),
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        x = kernels.integers("embedding", x)
        wrong = outside("embedding", 0, self.rows)
        x.device.backend.check_range(x, 0, self.rows, None, wrong)
        return x.astype(dtypes.int64, copy=False)


class Labels(Op):
    """x as int64, checked to be valid classes.

    Shapes:   x [...] -> the same
    Dtypes:   integer (or floating with whole values) -> int64
    Raises:   IndexRangeError naming the first label that is not a class
    """

    classes: int
    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample((integers((3, 2), 0, 4),), (4,), lambda x: x, gradient=False),
            Sample((np.array(2.0),), (4,), lambda x: x, gradient=False),
            Sample((np.array([0, 4]),), (4,), raises=IndexRangeError, by_value=True),
            Sample((np.array([0, -1]),), (4,), raises=IndexRangeError, by_value=True),
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        x = kernels.integers(self.name, x)
        kernels.check_labels(self.name, x, self.classes)
        return x.astype(dtypes.int64, copy=False)


class OneHot(Op):
    """1 at position x along a new last axis, else 0.

    Shapes:   x [...] -> [..., classes]
    Dtypes:   x integer (or floating with whole values) -> dtype
    Raises:   IndexRangeError naming the first label that is not a class
    """

    classes: int
    dtype: DType = dtypes.float32
    is_differentiable = False
    samples = staticmethod(
        lambda: (
            [
                Sample((x,), (4, dtypes.float64), lambda x: np.eye(4)[x], gradient=False)
                for x in (integers((3, 2), 0, 4), np.array(3), np.zeros((0,), int))
            ]
            + [
                Sample(
                    (np.array([0, 4]),), (4, dtypes.float64), raises=IndexRangeError, by_value=True
                ),
                Sample(
                    (np.array([0, -1]),), (4, dtypes.float64), raises=IndexRangeError, by_value=True
                ),
            ]
        )
    )

    def compute(self, x: NDArray) -> NDArray:
        x = kernels.integers(self.name, x)
        kernels.check_labels(self.name, x, self.classes)
        steps = kernels.arange(self.classes, dtypes.int64, x.device)
        x = x.astype(dtypes.int64, copy=False).unsqueeze(x.ndim)
        return kernels.elementwise("equal", x, steps, dtype=dtypes.bool_).astype(self.dtype)


# ---- functions -------------------------------------------------------------------

_pick: Any = None
if core.native is not None:
    core.native.set_take(Take.of(0))
    _pick = core.native.pick


def _picked(op: Op, axis: int, slices: bool, x: Tensor, index: Operand) -> Tensor:
    """Return the result of Take (slices) or Gather, natively where that is possible."""
    found = None if _pick is None else _pick(op, axis, slices, x, index)
    return executor.apply(op, x, index) if found is None else found


def gathering(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return ``gather`` along an axis that is counted from 0."""
    return functools.partial(_picked, Gather.of(axis), axis, False)


def gather(x: Tensor, index: Operand, axis: int = -1) -> Tensor:
    """Pick along an axis (NumPy: take_along_axis). See ``Gather``.

    PyTorch's order, ``gather(x, axis, index)``, works too.

    >>> x, index = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1], [0]], dtype="int64")
    >>> print(ndl.gather(x, index, axis=1))
    [[2.]
     [3.]]
    """
    if type(axis) is not int and isinstance(index, (int, np.integer)):
        index, axis = axis, index
    axis = normalise_axis(axis, len(shape_of(x)))
    return _picked(Gather.of(axis), axis, False, x, index)


def take_along_dim(x: Tensor, index: Any, axis: int | None = None) -> Tensor:
    """Pick along an axis as ``gather``; for None, from the flattened x by the flattened index.

    >>> x = Tensor([[3.0, 1.0], [2.0, 4.0]])
    >>> print(ndl.take_along_dim(x, ndl.argsort(x), axis=-1))
    [[1. 3.]
     [2. 4.]]
    """
    x, index = as_tensors((x, beside(x, index)), "take_along_dim")
    if axis is not None:
        return gather(x, index, axis)
    return gather(reshape(x, (x.spec.size,)), reshape(index, (index.spec.size,)), 0)


def scatter_add(index: Operand, updates: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
    """Zeros of a shape with updates added at the indices along an axis. See ``ScatterAdd``.

    >>> index, updates = Tensor([0, 2, 0], dtype="int64"), Tensor([1.0, 2.0, 3.0])
    >>> print(ops.scatter_add(index, updates, axis=0, shape=(4,)))
    [4. 0. 2. 0.]
    """
    return executor.apply(ScatterAdd.of(axis, axes_of(shape)), index, updates)


def listed(index: Any) -> Numpy:
    """Return an index that is a list, a range, an array or a number as an array.

    Raises:
        IndexRangeError: if it holds anything but numbers, or rows of different lengths.
    """
    try:
        values = np.asarray(index)
    except ValueError:
        values = np.asarray(None)
    if values.size == 0 and isinstance(index, (list, tuple, range)):
        return values.astype(np.int64)
    if values.dtype.kind not in "biuf":
        raise IndexRangeError(
            f"index: expected integers, got {index!r:.60}\n"
            "  rule: a list of integers, whose rows have equal lengths"
        )
    return values


def beside(x: Tensor, index: Any) -> Operand:
    """Return an index or labels: numbers and lists as a tensor where x is, others as they are.

    Raises:
        IndexRangeError: for a list of anything but numbers, or of rows of different lengths.
    """
    if not isinstance(index, (int, list, tuple, range)):
        return index
    values = listed(index)
    return graph.wrap(array(values, str(values.dtype), executor.spec_of(x).device))


def take(x: Any, index: Any, axis: int | None = None) -> Tensor:
    """Pick slices along an axis; of the flattened x for None. See ``Take``.

    The index may also be a number, a list or a range; a number removes the axis.

    >>> print(ndl.take(Tensor([[1.0, 2.0], [3.0, 4.0]]), [1, 1, 0], axis=0))
    [[3. 4.]
     [3. 4.]
     [1. 2.]]
    """
    index = beside(x, index)
    if axis is None:
        x, axis = reshape(x, (executor.spec_of(x).size,)), 0
    axis = normalise_axis(axis, len(shape_of(x)))
    return _picked(Take.of(axis), axis, True, x, index)


def embedding(weight: Tensor, ids: Values, *, sparse: bool = False) -> Tensor:
    """Rows of weight [n, d] at ids [...], which may be floating with whole values: [..., d].

    The ids may also be an array, a list or a range. Negative ids are errors.

    With ``sparse``, ``backward`` stores the gradient of a weight that is a leaf as a ``RowSparse``,
    which holds the rows at ids only. Gradients in lazy mode, with ``create_graph`` and of ``grad``
    are always tensors.

    Raises:
        IndexRangeError: naming the first id that is not in [0, n).
        ShapeError: if weight has no axes.

    >>> print(ndl.embedding(Tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), [2, 0]))
    [[4. 5.]
     [0. 1.]]
    """
    weight, ids = as_tensors((weight, beside(weight, ids)), "embedding")
    if len(shape_of(weight)) < 1:
        raise explain(ShapeError, "embedding", "weight has no axes", [("weight", weight)])
    ids = executor.apply(RowNumbers.of(shape_of(weight)[0]), ids)
    op = Take.of(0, True) if flag("embedding: sparse", sparse) else Take.of(0)
    return _picked(op, 0, True, weight, ids)


def one_hot(x: Tensor, classes: int, dtype: DTypeLike = None) -> Tensor:
    """1 at position x along a new last axis, else 0; float32 for dtype None. See ``OneHot``.

    Raises:
        ArgumentError: if classes is not an integer.
        OptionError: if classes is negative.

    >>> print(ndl.one_hot(Tensor([0, 2], dtype="int64"), 3))
    [[1. 0. 0.]
     [0. 0. 1.]]
    """
    kind = dtypes.float32 if dtype is None else as_dtype(dtype)
    classes = integer("one_hot: classes", classes)
    if classes < 0:
        raise OptionError(f"one_hot: {classes} classes\n  rule: 0 or more")
    return executor.apply(OneHot.of(classes, kind), x)

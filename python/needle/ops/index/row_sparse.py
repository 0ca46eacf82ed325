"""Picking slices, and gradients by rows: of a table, for the rows that were looked up only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from needle import executor, graph, tracing
from needle.backend import kernels
from needle.backend.array import make_spec
from needle.backend.axes import normalise_axis
from needle.errors import ArgumentError, DtypeError, IndexRangeError, explain
from needle.ops.core.op import Op
from needle.ops.core.samples import Sample, integers, uniform
from needle.ops.shape.creation import zeros_like
from needle.ops.shape.movement import concat, reshape

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.devices import Device
    from needle.dtype import DType
    from needle.typing import Gradients, NDArray, Numpy, Tensor

__all__ = ["RowSparse", "Take", "TakeGrad"]


def _take_samples() -> list[Sample]:
    x = uniform((4, 3, 5))
    cases: list[tuple[Numpy, Numpy, int]] = [
        (x, integers((2, 6), 0, 3), 1), (x, np.array(-1), 2), (x, integers((0,), 0, 1), 0),
        (uniform((5,)), integers((7,), -5, 5), 0), (uniform((5, 0)), integers((7,), 0, 5), 0),
    ]  # fmt: skip
    return [
        Sample((x, index), (axis,), lambda x, i, axis=axis: np.take(x, i, axis))
        for x, index, axis in cases
    ] + [
        Sample((x, np.array([[0, 3]])), (1,), raises=IndexRangeError, by_value=True),
        Sample((x, np.array([0.0])), (1,), raises=DtypeError),
    ]


class Take(Op):
    """Pick whole slices along an axis: out[i, j..., k] = x[i, index[j...], k] (embedding, take).

    Shapes:   x [a..., n, b...], index [j...] -> [a..., j..., b...]
    Dtypes:   x any, index integer; negative indices count from the end
    Gradient: x; any order. With ``sparse`` (axis 0, no negative indices) ``backward`` stores a
              ``RowSparse`` if x is a leaf
    Raises:   IndexRangeError naming the first index out of range; DtypeError if index is not
              integer
    """

    axis: int = 0
    sparse: bool = False
    saves = ((1,), ())
    samples = staticmethod(_take_samples)

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        axis = normalise_axis(self.axis, x.ndim)
        place = [1] * x.ndim
        place[axis] = index.size
        picked = kernels.gather(x, index.reshape(tuple(place)), axis, index)
        return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        table, index = out.node.inputs[0], out.inputs[1]
        shape = table.spec.shape
        if self.sparse:
            tracing.check("a gradient by rows has a shape that depends on values", "sparse=False")
        if self.sparse and table.op is None and not (graph.recording() or graph.lazy()):
            rows = reshape(index, (index.spec.size,))
            updates = reshape(out_grad, (index.spec.size, *shape[1:]))
            return RowSparse(rows, updates, shape[0], index.spec.size < 2), None
        op = TakeGrad.of(normalise_axis(self.axis, len(shape)), shape)
        return executor.apply(op, index, out_grad), None


class TakeGrad(Op):
    """The transpose of Take: zeros of ``shape`` with the slices of updates added at index.

    Shapes:   updates [a..., j..., b...], index [j...] -> shape
    Dtypes:   updates any, index integer
    """

    axis: int
    shape: tuple[int, ...]
    saves = ((), (0,))
    samples = staticmethod(
        lambda: [
            Sample(
                (np.array([[0, 2], [2, 1]]), uniform((2, 2, 3))), (0, (4, 3)),
                lambda i, x: np.eye(4)[i.reshape(4)].T @ x.reshape(4, 3),
            ),
            Sample((np.array(1), uniform((3,))), (1, (3, 2)), lambda i, x: np.stack([0 * x, x], 1)),
        ]
    )  # fmt: skip

    def compute(self, index: NDArray, updates: NDArray) -> NDArray:
        axis, shape = self.axis, self.shape
        place = [1] * len(shape)
        place[axis] = index.size
        flat = updates.reshape((*shape[:axis], index.size, *shape[axis + 1 :]))
        return kernels.scatter_add(index.reshape(tuple(place)), flat, axis, shape)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        if not out.node.inputs[1].needs:
            return None, None
        return None, executor.apply(Take.of(self.axis), out_grad, out.inputs[0])


class RowSparse:
    """Hold the gradient of a table that is zero except in a few rows.

    ``backward`` stores one in ``.grad`` of a leaf that ``embedding(..., sparse=True)`` read. SGD,
    Adam, AdamW, Adagrad and clipping take it directly. The sum of two is a ``RowSparse``, the sum
    with a tensor is a tensor. For any other use call ``dense()`` first.

    Attributes:
        rows: int64 [n], row numbers; the values of equal rows add up.
        values: [n, ...], the gradients of these rows.
        height: number of rows of the table.
        is_merged: whether all row numbers differ.
    """

    __slots__ = ("height", "is_merged", "rows", "values")

    rows: Tensor
    values: Tensor
    height: int
    is_merged: bool

    def __init__(self, rows: Tensor, values: Tensor, height: int, is_merged: bool = False) -> None:
        self.rows, self.values, self.height, self.is_merged = rows, values, height, is_merged

    @property
    def spec(self) -> Spec:
        """Dtype, device and shape of the table."""
        part = self.values.spec
        return make_spec(part.dtype, part.device, (self.height, *part.shape[1:]))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the table."""
        return (self.height, *self.values.shape[1:])

    @property
    def dtype(self) -> DType:
        """Dtype of the table."""
        return self.values.dtype

    @property
    def device(self) -> Device:
        """Device of the table."""
        return self.values.device

    def dense(self) -> Tensor:
        """Return the gradient as a tensor of the table's shape."""
        return executor.apply(TakeGrad.of(0, self.shape), self.rows, self.values)

    def numpy(self) -> Any:
        """Return the gradient as an array of the table's shape."""
        return self.dense().numpy()

    def detach(self) -> RowSparse:
        """Return this gradient itself: it is part of no graph."""
        return self

    def merge(self) -> RowSparse:
        """Add up the values of equal rows, in their order, and return this gradient.

        The rows are in ascending order afterwards. The bits of ``dense()`` do not change.
        """
        if not self.is_merged:
            rows, _, places, _ = kernels.unique(executor.primal_array(self.rows))
            op = TakeGrad(0, (rows.size, *self.shape[1:]))
            self.values = executor.apply(op, graph.wrap(places), self.values)
            self.rows, self.is_merged = graph.wrap(rows), True
        return self

    def __add__(self, other: RowSparse | Tensor) -> RowSparse | Tensor:
        if not isinstance(other, RowSparse):
            return self.dense() + other
        rows, values = ([a, b] for a, b in ((self.rows, other.rows), (self.values, other.values)))
        return RowSparse(concat(rows), concat(values), self.height)

    def __radd__(self, other: RowSparse | Tensor) -> RowSparse | Tensor:
        return other + self.dense()

    def __repr__(self) -> str:
        return f"RowSparse(rows={self.rows!r}, values={self.values!r}, shape={self.shape})"

    def __getattr__(self, name: str) -> NoReturn:
        text = (
            f"a gradient by rows has no attribute {name!r}\n  try: .dense(), which returns a tensor"
        )
        raise AttributeError(text, name=name, obj=self)

    def _refuse(self, *_: object) -> NoReturn:
        raise explain(
            ArgumentError, "RowSparse", "expected a tensor, got a gradient by rows",
            [("gradient", self)], "", ".dense(), which returns a tensor",
        )  # fmt: skip

    __mul__ = __rmul__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __pow__ = _refuse
    __matmul__ = __rmatmul__ = __neg__ = __abs__ = __getitem__ = __array__ = _refuse
    __float__ = __len__ = _refuse


def parts(grad: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors that hold a gradient; an empty tuple for None."""
    if grad is None:
        return ()
    return (grad.rows, grad.values) if isinstance(grad, RowSparse) else (grad,)


def elements(grad: Any) -> Any:
    """Return a gradient's elements as a tensor: all of them, or those of the merged rows."""
    return grad.merge().values if isinstance(grad, RowSparse) else grad


def each(function: Callable[[Tensor], Tensor], grad: Any) -> Any:
    """Apply an elementwise function that maps 0 to 0 to a gradient, and return the result."""
    new = function(elements(grad))
    return RowSparse(grad.rows, new, grad.height, True) if isinstance(grad, RowSparse) else new


def cleared(grad: Any) -> Any:
    """Return a gradient of zeros of the same kind: by rows, one without rows."""
    if not isinstance(grad, RowSparse):
        return zeros_like(grad)
    return RowSparse(grad.rows[:0], grad.values[:0], grad.height, True)

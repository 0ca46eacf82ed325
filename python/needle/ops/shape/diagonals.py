"""Triangles and diagonals of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from needle import dtype as dtypes
from needle import executor
from needle.backend import kernels, ndarray
from needle.backend.axes import integer, normalise_axis
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.op import Linear, promoted
from needle.ops.core.samples import Sample, uniform
from needle.ops.reduction.reduce import summation
from needle.ops.shape.movement import Pad, concat, permute
from needle.ops.shape.rearrange import moveaxis
from needle.ops.shape.tuples import atleast_2d

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Tensor

__all__ = [
    "Diagonal", "DiagonalGrad", "Triangle", "block_diag", "diag", "diag_embed", "diagonal",
    "trace", "tril", "triu",
]  # fmt: skip


class Triangle(Linear):
    """Keep the elements on and below diagonal k (or on and above it); set the others to 0.

    Shapes:   x [..., n, m] -> the same
    Gradient: x; any order
    Raises:   ShapeError if x has fewer than two axes
    """

    k: int
    upper: bool
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape),), (k, upper),
                lambda x, k=k, upper=upper: np.triu(x, k) if upper else np.tril(x, k),
            )
            for shape, k, upper in (
                ((3, 4), 0, True), ((3, 4), 0, False), ((4, 3), -1, True), ((2, 3, 3), 1, False),
                ((0, 3), 0, True),
            )
        ]
        + [Sample((uniform((3,)),), (0, True), raises=ShapeError)]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        if x.ndim < 2:
            raise ShapeError(f"triangle: expected at least two axes, got shape {x.shape}")
        out = ndarray.empty_of(x.spec)
        if x.device.backend.triangle(out, x, min(max(self.k, -(2**62)), 2**62), self.upper):
            return out
        n, m = x.shape[-2:]
        rows = kernels.arange(n, dtypes.int64, x.device, self.k).reshape((n, 1))
        columns = kernels.arange(m, dtypes.int64, x.device)
        order = (rows, columns) if self.upper else (columns, rows)
        mask = kernels.elementwise("less_equal", *order, dtype=dtypes.bool_)
        return kernels.elementwise("where", mask, x, ndarray.full((), 0, x.dtype, x.device))

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(self, out_grad),)


def triu(x: Tensor, k: int = 0) -> Tensor:
    """Keep the elements on and above diagonal k of the last two axes. See ``Triangle``.

    >>> print(ndl.triu(ndl.ones((3, 3)), k=1))
    [[0. 1. 1.]
     [0. 0. 1.]
     [0. 0. 0.]]
    """
    return executor.apply(Triangle.of(integer("triu: k", k), True), x)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """Keep the elements on and below diagonal k of the last two axes. See ``Triangle``.

    >>> print(ndl.tril(ndl.ones((3, 3))))
    [[1. 0. 0.]
     [1. 1. 0.]
     [1. 1. 1.]]
    """
    return executor.apply(Triangle.of(integer("tril: k", k), False), x)


def _diagonal(x: NDArray, k: int) -> NDArray:
    """Return the view of a diagonal of the last two axes of an array."""
    *outer, n, m = x.shape
    *steps, down, right = x.strides
    size = max(0, min(n, m - k) if k >= 0 else min(n + k, m))
    corner = (k * right if k >= 0 else -k * down) if size else 0
    return x.view((*outer, size), (*steps, down + right), x.offset + corner)


class Diagonal(Linear):
    """The k-th diagonal of the last two axes, as a new last axis; a view.

    Shapes:   x [..., n, m] -> [..., length of the diagonal]
    Gradient: x; any order
    Raises:   ShapeError if x has fewer than two axes
    """

    k: int = 0
    samples = staticmethod(
        lambda: [
            Sample((uniform(shape),), (k,), lambda x, k=k: np.diagonal(x, k, -2, -1))
            for shape, k in (
                ((3, 3), 0), ((3, 4), 1), ((3, 4), -1), ((2, 4, 3), 2), ((3, 4), 5), ((3, 4), -3),
                ((0, 3), 0),
            )
        ]
        + [Sample((uniform((3,)),), (0,), raises=ShapeError)]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        if x.ndim < 2:
            raise ShapeError(f"diagonal: expected at least two axes, got shape {x.shape}")
        return _diagonal(x, self.k)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        return (executor.apply(DiagonalGrad.of(self.k, shape), out_grad),)


class DiagonalGrad(Linear):
    """The transpose of Diagonal: zeros of ``shape`` with x on the k-th diagonal.

    Shapes:   x [..., length of the diagonal] -> shape
    Raises:   ShapeError if x does not have the shape of that diagonal
    """

    k: int
    shape: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            Sample((uniform((3,)),), (0, (3, 3)), np.diag),
            Sample((uniform((2,)),), (1, (2, 3)), lambda x: np.diag(x, 1)[:2]),
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        if len(self.shape) < 2:
            raise ShapeError(f"diagonal: a result of shape {self.shape} has no diagonal")
        out = ndarray.full(self.shape, 0, x.dtype, x.device)
        part = _diagonal(out, self.k)
        if part.shape != x.shape:
            raise ShapeError(f"diagonal: shape {x.shape} for a diagonal of shape {part.shape}")
        out.device.backend.copy(part, x)
        return out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(Diagonal.of(self.k), out_grad),)


def diagonal(x: Tensor, k: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """The k-th diagonal over two axes, as a new last axis; a view. See ``Diagonal``.

    Raises:
        ShapeError: if both axes are the same.

    >>> print(ndl.diagonal(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    [1. 4.]
    """
    ndim = len(shape_of(x))
    axis1, axis2 = integer("diagonal: axis", axis1), integer("diagonal: axis", axis2)
    if ndim >= 2 and (axis1, axis2) != (-2, -1):
        first, second = normalise_axis(axis1, ndim), normalise_axis(axis2, ndim)
        if first == second:
            raise ShapeError(f"diagonal: axis {first} is named twice")
        if (first, second) != (ndim - 2, ndim - 1):
            x = permute(x, [i for i in range(ndim) if i not in (first, second)] + [first, second])
    return executor.apply(Diagonal.of(integer("diagonal: k", k)), x)


def diag(x: Tensor, k: int = 0) -> Tensor:
    """Return the k-th diagonal of a matrix, or the matrix with a given vector on it, else zeros.

    >>> print(ndl.diag(Tensor([1.0, 2.0])))
    [[1. 0.]
     [0. 2.]]
    >>> print(ndl.diag(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    [1. 4.]
    """
    if len(shape_of(x)) != 1:
        return diagonal(x, k)
    k = integer("diag: k", k)
    size = shape_of(x)[0] + abs(k)
    return executor.apply(DiagonalGrad.of(k, (size, size)), x)


def diag_embed(x: Tensor, k: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Matrices with x on their k-th diagonal and zeros elsewhere: the inverse of ``diagonal``.

    Shapes:   x [..., n] -> [..., n + |k|, n + |k|], these axes moved to axis1 and axis2
    Gradient: x; any order
    Raises:   ShapeError if x has no axes, or both axes are the same

    >>> print(ndl.diag_embed(Tensor([1.0, 2.0]), k=1))
    [[0. 1. 0.]
     [0. 0. 2.]
     [0. 0. 0.]]
    """
    k, shape = integer("diag_embed: k", k), shape_of(x)
    if not shape:
        raise ShapeError("diag_embed: expected at least one axis, got shape ()")
    size = shape[-1] + abs(k)
    out = executor.apply(DiagonalGrad.of(k, (*shape[:-1], size, size)), x)
    return moveaxis(out, (-2, -1), (axis1, axis2))


def block_diag(*blocks: Tensor) -> Tensor:
    """Put matrices along the diagonal of a larger one, with zeros elsewhere.

    Vectors and numbers count as matrices with one row.

    Shapes:   several [n, m] -> [sum of n, sum of m]
    Gradient: all; any order
    Raises:   ArgumentError if there are no blocks, or none of them is a tensor; ShapeError if a
              block has more than two axes; DtypeError if the dtypes do not mix

    >>> print(ndl.block_diag(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])))
    [[1. 2. 0.]
     [0. 0. 3.]
     [0. 0. 4.]]
    """
    rows = [atleast_2d(x) for x in promoted(blocks, "block_diag")]
    for x in rows:
        if len(shape_of(x)) > 2:
            raise explain(
                ShapeError, "block_diag", f"a block has shape {shape_of(x)}", [("block", x)],
                "matrices, vectors and numbers",
            )  # fmt: skip
    widths = [shape_of(x)[1] for x in rows]
    return concat(
        [
            executor.apply(Pad.of(((0, 0), (sum(widths[:i]), sum(widths[i + 1 :])))), x)
            for i, x in enumerate(rows)
        ]
    )


def trace(x: Tensor, k: int = 0) -> Tensor:
    """The sum of the k-th diagonal of the last two axes.

    >>> print(ndl.trace(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    5.0
    """
    return summation(diagonal(x, k), -1)

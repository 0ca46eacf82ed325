"""Matrix products."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend import kernels
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.families import Composite, Multilinear
from needle.ops.core.op import KINDS
from needle.ops.core.operands import as_tensors
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, uniform
from needle.ops.shape.movement import Reshape, turned

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.ops.core.op import Op
    from needle.typing import Gradients, NDArray, Tensor

__all__ = ["MatMul", "MatMulBias", "matmul"]


def _case(a: tuple[int, ...], b: tuple[int, ...]) -> Sample:
    return Sample((uniform(a, seed=1), uniform(b, seed=2)), (), np.matmul)


class MatMul(Multilinear):
    """Matrix product of the last two axes; the others broadcast.

    Shapes:   a [..., m, k], b [..., k, n] -> [..., m, n]
    Raises:   ShapeError if the inner sizes differ, or an operand has fewer than 2 axes
    """

    called = "matmul"
    saves = ((1,), (0,))
    samples = staticmethod(
        lambda: [
            _case((3, 4), (4, 5)),
            _case((1, 4), (4, 1)),
            _case((2, 3, 4), (2, 4, 5)),
            _case((2, 1, 3, 4), (3, 4, 2)),
            _case((2, 3), (4, 3, 2)),
            _case((4, 1), (1, 3)),
            _case((2, 1, 3, 1), (2, 1, 4)),
            _case((0, 4), (4, 3)),
            _case((3, 0), (0, 2)),
            Sample((uniform((3, 4)), uniform((3, 4))), raises=ShapeError),
            Sample((uniform((3,)), uniform((3, 4))), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind = KINDS["matmul"]

    promotes = "all"

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return kernels.matmul(a, b)

    def flops(self, *specs: Spec) -> int:
        return int(2 * self.infer(*specs).size * specs[0].shape[-1])

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return _gradients(out_grad, out)


def _gradients(out_grad: Any, out: Any) -> tuple[Any, Any]:
    a, b = out.inputs[:2]
    left, right = out.node.inputs[:2]
    grad_a = sum_to(out_grad @ turned(b), left.spec.shape) if left.needs else None
    grad_b = sum_to(turned(a) @ out_grad, right.spec.shape) if right.needs else None
    return grad_a, grad_b


_MATMUL = MatMul.of()


def _biased(a: tuple[int, ...], b: tuple[int, ...], *row: int) -> Sample:
    inputs = uniform(a, seed=1), uniform(b, seed=2), uniform((*row, b[-1]), seed=3)
    return Sample(inputs, (), lambda a, b, bias: a @ b + bias)


class MatMulBias(Composite):
    """Matrix product of the last two axes, plus a row: a @ b + bias.

    Shapes:   a [..., m, k], b [..., k, n], bias [n] or [1, n] -> [..., m, n]
    Gradient: a, b, bias; any order
    Raises:   ShapeError as ``MatMul``, or if bias is not a row of n elements
    """

    called = "matmul_bias"
    saves = ((1,), (0,), ())
    promotes = "all"
    samples = staticmethod(
        lambda: [
            _biased((3, 4), (4, 5)),
            _biased((3, 4), (4, 5), 1),
            _biased((1, 4), (4, 1)),
            _biased((2, 3, 4), (4, 5)),
            _biased((2, 1, 3, 4), (3, 4, 2), 1),
            _biased((4, 1), (1, 3)),
            _biased((0, 4), (4, 3)),
            _biased((3, 0), (0, 2)),
            Sample((uniform((3, 4)), uniform((4, 2)), uniform((3, 2))), raises=ShapeError),
            Sample((uniform((3, 4)), uniform((4, 1)), uniform((2,))), raises=ShapeError),
            Sample((uniform((3, 4)), uniform((3, 4)), uniform((4,))), raises=ShapeError),
        ]
    )

    def setup(self) -> None:
        self.kind = KINDS["matmul"]

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = super().prepare(inputs)
        specs = [executor.spec_of(x) for x in found[:2]]
        if specs[0].device == specs[1].device:
            try:
                _MATMUL.infer(*specs)
            except ShapeError as error:  # which then names parameters
                raise error.about(found[:2]) from None
        return found

    def expand(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        out = executor.apply(_MATMUL, a, b)
        width = shape_of(out)[-1:]
        if shape_of(bias) not in (width, (1, *width)):
            raise explain(
                ShapeError, self.name, f"bias has shape {shape_of(bias)}, but rows have {width[0]}"
                " elements", [("a", a), ("b", b), ("bias", bias)],
                "a [..., m, k], b [..., k, n], bias [n] or [1, n]",
            )  # fmt: skip
        return out + bias

    def gradient(self, out_grad: Any, out: Tensor) -> Gradients:
        bias = out.node.inputs[2]
        row = sum_to(out_grad, bias.spec.shape) if bias.needs else None
        return *_gradients(out_grad, out), row


def matmul(a: Any, b: Tensor) -> Tensor:
    """Matrix product as NumPy's ``@``: a one-dimensional operand is a row (left) or a column.

    See ``MatMul``.

    >>> print(ndl.matmul(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1.0], [10.0]])))
    [[21.]
     [43.]]
    """
    if getattr(a, "ndim", 0) >= 2 and getattr(b, "ndim", 0) >= 2:
        return executor.apply(_MATMUL, a, b)
    a, b = as_tensors((a, b), "matmul")
    if a.ndim == 0 or b.ndim == 0:
        return executor.apply(_MATMUL, a, b)  # raises, with the shapes
    row, column, kept = _reshapes(a.spec.shape, b.spec.shape)
    a = a if row is None else executor.apply(row, a)
    b = b if column is None else executor.apply(column, b)
    return executor.apply(kept, executor.apply(_MATMUL, a, b))


@functools.lru_cache(maxsize=1000)
def _reshapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Op | None, Op | None, Op | None]:
    """Return the ops that make vectors matrices (None: not needed), and the op that undoes it."""
    row = Reshape.of((1, *a)) if len(a) == 1 else None
    column = Reshape.of((*b, 1)) if len(b) == 1 else None
    columns = () if column is not None else b[-1:]
    kept = a[:-1] if row is None else b[:-2]
    return row, column, Reshape.of((*kept, *columns))

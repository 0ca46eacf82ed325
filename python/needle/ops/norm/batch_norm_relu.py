"""Batch norm fused with the next steps of a residual network: adding a residual, and a rectifier.

One op, so that a device may read the images once in each direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from needle import executor
from needle.backend.axes import normalise_axis
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, widened
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.activation import relu, relu_grad
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.elementwise.functions import rsqrt
from needle.ops.norm.norms import (
    Batch,
    BatchNorm,
    BatchNormGrad,
    batch_norm_grad_of,
    batch_norm_of,
    parameter,
)
from needle.ops.shape.movement import permute

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Tensor, TensorTuple

__all__ = ["BatchNormReLU", "BatchNormReLUGrad", "batch_norm_relu"]

SHAPES = ((4, 3), (2, 3, 5), (2, 2, 2, 3), (0, 4))


def _reference(x: Numpy, weight: Numpy, bias: Numpy, *residual: Numpy) -> tuple[Numpy, ...]:
    out, middle, var = batch_norm_of(x, weight, bias, 0.1)
    return np.maximum(out + sum(residual), 0), middle, var


def _samples() -> list[Sample]:
    made = []
    for shape in SHAPES:
        own = [uniform(shape[-1:], 0.5, 1.5, seed=i) for i in (1, 2)]
        for extra in ([], [uniform(shape, seed=3)]):
            inputs = (uniform(shape), *own, *extra)
            made.append(Sample(inputs, (0.1,), _reference, gradient=0 not in shape))
    wrong = (uniform((2, 3)), uniform((3,)), uniform((3,)), uniform((3, 3)))
    return [*made, Sample(wrong, (0.1,), raises=ShapeError)]


class BatchNormReLU(Batch):
    """Normalise the columns of x over the rows, scale and shift, add a residual, rectify.

        out = max((x - mean) / sqrt(var + eps) * weight + bias + residual, 0)

    Shapes:   x [..., c], weight [c], bias [c], perhaps residual [..., c]
              -> out [..., c], mean [c], var [c]
    Dtypes:   floating; statistics in float32 when x is float16 or bfloat16
    Gradient: all inputs; any order
    Raises:   ShapeError if weight or bias is not [c], or residual not of x's shape; DtypeError if
              dtypes do not mix
    """

    called = "batch_norm_relu"
    saves = ((0, 1, 2, OUTPUT),) * 4
    samples = staticmethod(_samples)

    def compute(self, x: NDArray, *parameters: NDArray) -> NDArray:
        weight, bias, *residual = parameters
        if residual and residual[0].shape != x.shape:
            raise explain(
                ShapeError, self.name, f"residual has shape {residual[0].shape}, x {x.shape}",
                [("x", x), ("weight", weight), ("bias", bias), ("residual", residual[0])],
                "residual has the shape of x",
            )  # fmt: skip
        return super().compute(x, *parameters)

    def expand(
        self, x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor
    ) -> tuple[Tensor, ...]:
        out, middle, var = BatchNorm.of(self.eps).expand(*map(widened, (x, weight, bias)))
        if residual:
            out = out + widened(residual[0])
        return cast_like(relu(out), x), middle, var

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        residual = len(out.node.inputs) == 4
        grad: list[Tensor | None] = [None] * 3
        shared = None
        if out_grad[0] is not None:
            inputs = (*out.inputs[:3], out[1], out[2], *([out[0]] if residual else []))
            op = BatchNormReLUGrad.of(self.eps)
            found = executor.several(op, out_grad[0], *inputs)
            grad, shared = list(found[:3]), found[3] if residual else None
        grads = self.through_statistics(grad, out_grad, out)
        return [*grads, shared] if residual else grads


def _grad_reference(
    g: Numpy, x: Numpy, weight: Numpy, bias: Numpy, middle: Numpy, var: Numpy, *result: Numpy
) -> tuple[Numpy, ...]:
    out = result[0] if result else (x - middle) / np.sqrt(var + 0.1) * weight + bias
    masked = np.where(out > 0, g, 0.0)
    grads = batch_norm_grad_of(masked, x, weight, middle, var, 0.1)
    return (*grads, masked) if result else grads


def _grad_samples() -> list[Sample]:
    made = []
    for shape in SHAPES:
        g, x, out = (uniform(shape, seed=i) for i in range(3))
        own = [uniform(shape[-1:], seed=i) for i in (3, 4, 5)]
        inputs = (g, x, *own, uniform(shape[-1:], 0.5, 2, seed=6))
        made += [Sample((*inputs, *more), (0.1,), _grad_reference) for more in ([], [out])]
    return made


class BatchNormReLUGrad(Composite):
    """Gradients of batch norm with a rectifier, from its statistics.

        h = g where out > 0, else 0;  the rest as ``BatchNormGrad`` with h for g

    Without a residual, out follows from the other inputs; with one it is an input.

    Shapes:   g, x [..., c], weight, bias, mean, var [c], perhaps out [..., c]
              -> dx [..., c], dweight [c], dbias [c], and with out the residual's, h [..., c]
    Gradient: all inputs but out; any order
    """

    eps: float
    called = "batch_norm_relu_grad"
    samples = staticmethod(_grad_samples)

    def expand(
        self,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        middle: Tensor,
        var: Tensor,
        *result: Tensor,
    ) -> tuple[Tensor, ...]:
        if result:
            out = result[0]
        else:
            scale = rsqrt(var + self.eps) * widened(weight)
            out = cast_like((widened(x) - middle) * scale + widened(bias), g)
        masked = relu_grad(out, g)
        grads = BatchNormGrad.of(self.eps).expand(masked, x, weight, middle, var)
        return (*grads, masked) if result else grads


def batch_norm_relu(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    eps: float = 1e-5,
    axis: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise the columns of x (its ``axis``), add a residual of x's shape, rectify.

    Returns:
        The result, the mean and the biased variance. See ``BatchNormReLU``.

    >>> x = Tensor([[1.0, 5.0], [3.0, 5.0]])
    >>> out, mean, var = ops.batch_norm_relu(x)
    >>> print(out, mean, var)
    [[0. 0.]
     [1. 0.]] [2. 5.] [1. 0.]
    """
    ndim = len(shape_of(x))
    axis = normalise_axis(axis, ndim)
    there = [i for i in range(ndim) if i != axis] + [axis]
    back = [*range(axis), ndim - 1, *range(axis, ndim - 1)]
    rows = [permute(z, there) for z in (x, residual) if z is not None]
    parameters = parameter(weight, 1.0, rows[0]), parameter(bias, 0.0, rows[0])
    op = BatchNormReLU.of(real("batch_norm_relu: eps", eps))
    out, middle, var = executor.several(op, rows[0], *parameters, *rows[1:])
    return permute(out, back), middle, var

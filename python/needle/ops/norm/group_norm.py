"""Group norm; instance norm is the case of one channel in each group.

Images lie in memory as [n, *spatial, channels].
"""

from __future__ import annotations

import functools
import math
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend.axes import integer
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, widened
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like, less, square, where
from needle.ops.elementwise.functions import rsqrt
from needle.ops.image.conv import channels_first, channels_last
from needle.ops.norm.norms import parameter, reciprocal_root
from needle.ops.reduction.reduce import mean, summation
from needle.ops.shape.movement import broadcast_to, reshape, stop_gradient

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Tensor, TensorTuple

__all__ = ["GroupNorm", "GroupNormGrad", "group_norm"]

_CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 3, 4), 2), ((2, 3, 2, 6), 3), ((3, 2, 3), 3), ((2, 4), 1), ((0, 2, 4), 2),
)  # fmt: skip


def _reference(groups: int, x: Numpy, weight: Numpy, bias: Numpy) -> tuple[Numpy, ...]:
    out, middle, var = np.zeros(x.shape), *np.zeros((2, x.shape[0], groups))
    width = x.shape[-1] // groups
    for n, i in np.ndindex(x.shape[0], groups):
        own = slice(i * width, (i + 1) * width)
        part = x[n, ..., own]
        middle[n, i], var[n, i] = part.mean(), part.var()
        normal = (part - part.mean()) / np.sqrt(part.var() + 0.1)
        out[n, ..., own] = normal * weight[own] + bias[own]
    return out, middle, var


def _grad_reference(
    groups: int, g: Numpy, x: Numpy, weight: Numpy, middle: Numpy, var: Numpy
) -> tuple[Numpy, ...]:  # fmt: skip
    dx, dweight, dbias = np.zeros(x.shape), np.zeros(weight.shape), np.zeros(weight.shape)
    width = x.shape[-1] // groups
    for n, i in np.ndindex(x.shape[0], groups):
        own = slice(i * width, (i + 1) * width)
        rstd = 1 / np.sqrt(var[n, i] + 0.1)
        normal, slope = (x[n, ..., own] - middle[n, i]) * rstd, g[n, ..., own]
        h = slope * weight[own]
        dx[n, ..., own] = rstd * (h - h.mean() - normal * (h * normal).mean())
        axes = tuple(range(normal.ndim - 1))
        dweight[own] += (slope * normal).sum(axes)
        dbias[own] += slope.sum(axes)
    return dx, dweight, dbias


def _samples() -> list[Sample]:
    made = [
        Sample(
            (uniform(x), uniform(x[-1:], 0.5, 1.5, seed=1), uniform(x[-1:], seed=2)),
            (groups, 0.1), functools.partial(_reference, groups),
            gradient=0 not in x,
        )
        for x, groups in _CASES
    ]  # fmt: skip
    wrong = (((2, 3, 4), (4,), 3), ((2, 3, 4), (3,), 2), ((4,), (4,), 2), ((2, 0, 4), (4,), 2))
    return made + [
        Sample((uniform(x), uniform(w), uniform(w)), (groups, 0.1), raises=ShapeError)
        for x, w, groups in wrong
    ]


def _grad_samples() -> list[Sample]:
    return [
        Sample(
            (
                uniform(x), uniform(x, seed=1), uniform(x[-1:], seed=2),
                uniform((x[0], groups), seed=3), uniform((x[0], groups), 0.5, 2, seed=4),
            ),
            (groups, 0.1), functools.partial(_grad_reference, groups),
        )
        for x, groups in _CASES
    ]  # fmt: skip


class _Grouped(Composite):
    """The base of group norm and its gradient.

    Attributes:
        groups: number of groups of channels.
        eps: added to the variance.
    """

    groups: int
    eps: float = 1e-5

    def apart(self, x: Tensor) -> Tensor:
        """Return [n, *spatial, c] as [n, positions, groups, channels of a group]."""
        n, *spatial, c = shape_of(x)
        return reshape(x, (n, prod(spatial), self.groups, c // self.groups))

    def per_group(self, x: Tensor) -> Tensor:
        """Return [n, groups] or [c] so that it broadcasts against the result of ``apart``."""
        shape = shape_of(x)
        if len(shape) == 2:
            return reshape(x, (shape[0], 1, self.groups, 1))
        return reshape(x, (self.groups, shape[0] // self.groups))


class GroupNorm(_Grouped):
    """Normalise each group of channels of each image over all its positions; scale and shift.

        out = (x - mean) / sqrt(var + eps) * weight + bias

    Shapes:   x [n, *spatial, c], weight [c], bias [c] -> out [n, *spatial, c], mean [n, groups],
              var [n, groups], the biased variance
    Dtypes:   floating; statistics in float32 when x is float16 or bfloat16
    Gradient: x, weight, bias; any order
    Raises:   ShapeError if the channels do not divide into the groups, x is empty, or
              weight or bias is not [c]; DtypeError if dtypes do not mix
    Source:   Wu, He, "Group Normalization", 2018, arXiv:1803.08494, section 3.1
    """

    saves = ((0, 1, OUTPUT),) * 3
    samples = staticmethod(_samples)

    promotes = "floating"

    def compute(self, x: NDArray, weight: NDArray, bias: NDArray) -> tuple[NDArray, ...]:
        rank = x.ndim < 2
        if self.groups < 1 or rank or x.shape[-1] % self.groups or 0 in x.shape[1:] or not (
            weight.shape == bias.shape == x.shape[-1:]
        ):  # fmt: skip
            raise explain(
                ShapeError, self.name, f"x has shape {x.shape}, {self.groups} groups",
                [("x", x), ("weight", weight), ("bias", bias)],
                "x [n, *spatial, c] with elements, weight and bias [c], groups divide c",
            )  # fmt: skip
        return super().compute(x, weight, bias)

    def expand(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        wide = self.apart(widened(x))
        middle = mean(wide, (1, 3), keepdims=True)
        centred = wide - middle
        var = mean(square(centred), (1, 3), keepdims=True)
        normal = centred * reciprocal_root(centred, (1, 3), self.eps)
        out = normal * self.per_group(widened(weight)) + self.per_group(widened(bias))
        statistics = (reshape(z, (shape_of(x)[0], self.groups)) for z in (middle, var))
        return cast_like(reshape(out, shape_of(x)), x), *statistics

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        x, weight = out.inputs[:2]
        grads: list[Any] = [None] * 3
        if out_grad[0] is not None:
            op = GroupNormGrad.of(self.groups, self.eps)
            grads = list(executor.several(op, out_grad[0], x, weight, out[1], out[2]))
        part, count = None, max(prod(shape_of(x)[1:]) // self.groups, 1)
        if out_grad[1] is not None:
            part = self.per_group(out_grad[1]) * (1 / count)
        if out_grad[2] is not None:
            centred = self.apart(widened(x)) - self.per_group(out[1])
            slope = centred * (self.per_group(out_grad[2]) * (2 / count))
            part = slope if part is None else part + slope
        if part is not None:
            n, *spatial, c = shape_of(x)
            whole = broadcast_to(part, (n, prod(spatial), self.groups, c // self.groups))
            whole = cast_like(reshape(whole, shape_of(x)), x)
            grads[0] = whole if grads[0] is None else grads[0] + whole
        return grads


class GroupNormGrad(_Grouped):
    """Gradients of group norm with respect to x, weight and bias, from its statistics.

        rstd = 1 / sqrt(var + eps),  normal = (x - mean) * rstd,  h = g * weight
        dx = rstd * (h - mean(h) - normal * mean(h * normal))
        dweight = sum(g * normal),  dbias = sum(g)

    Shapes:   g, x [n, *spatial, c], weight [c], mean, var [n, groups] -> [n, *spatial, c], [c], [c]
    Gradient: all inputs; any order
    """

    samples = staticmethod(_grad_samples)

    def expand(
        self, g: Tensor, x: Tensor, weight: Tensor, middle: Tensor, var: Tensor
    ) -> tuple[Tensor, ...]:
        slope = self.apart(widened(g))
        centred = self.apart(widened(x)) - self.per_group(middle)
        known, var = less(var, math.inf), self.per_group(var)  # squares may leave the range
        far = reciprocal_root(stop_gradient(centred), (1, 3), self.eps)
        rstd = where(self.per_group(known), rsqrt(var + self.eps), far)
        normal = centred * rstd
        h = slope * self.per_group(widened(weight))
        along = mean(h * normal, (1, 3), keepdims=True)
        dx = rstd * (h - mean(h, (1, 3), keepdims=True) - normal * along)
        sums = (reshape(summation(z, (0, 1)), shape_of(weight)) for z in (slope * normal, slope))
        dweight, dbias = (cast_like(z, weight) for z in sums)
        return cast_like(reshape(dx, shape_of(x)), x), dweight, dbias


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise groups of channels of [n, c, *spatial], each image on its own.

    Args:
        x: images.
        groups: number of groups, which divides c; c gives instance norm, 1 layer norm over all.
        weight: [c], or None for ones.
        bias: [c], or None for zeros.
        eps: added to the variance.

    Returns:
        The result, the means and the biased variances [n, groups]. See ``GroupNorm``.

    >>> x = Tensor([[[1.0], [3.0], [5.0], [9.0]]])
    >>> out, mean, var = ops.group_norm(x, 2)
    >>> print(out, mean, var)
    [[[-1.]
      [ 1.]
      [-1.]
      [ 1.]]] [[2. 7.]] [[1. 4.]]
    """
    if len(shape_of(x)) < 2:
        raise explain(
            ShapeError, "group_norm", f"x has {len(shape_of(x))} axes", [("x", x)],
            "x [n, c, *spatial]",
        )  # fmt: skip
    image = channels_last(x)
    parameters = parameter(weight, 1.0, image), parameter(bias, 0.0, image)
    op = GroupNorm.of(integer("group_norm: groups", groups), real("group_norm: eps", eps))
    out, middle, var = executor.several(op, image, *parameters)
    return channels_first(out), middle, var

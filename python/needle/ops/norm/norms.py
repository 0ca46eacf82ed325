"""Normalisation. Each op also returns the statistics that its gradient reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import executor, graph
from needle.backend.axes import normalise_axis
from needle.errors import ArgumentError, DtypeError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, widened
from needle.ops.core.operands import constant
from needle.ops.core.samples import Sample, Samples, uniform
from needle.ops.elementwise.arithmetic import cast_like, square
from needle.ops.elementwise.functions import hypot, rsqrt
from needle.ops.reduction.euclidean import euclidean
from needle.ops.reduction.reduce import mean, summation
from needle.ops.shape.movement import broadcast_to, permute, reshape, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Reference, Tensor, TensorTuple

__all__ = [
    "BatchNorm", "BatchNormGrad", "LayerNorm", "LayerNormGrad", "RMSNorm", "RMSNormGrad",
    "batch_norm", "layer_norm", "rms_norm",
]  # fmt: skip


def _rows(x: Tensor) -> tuple[int, ...]:
    return tuple(range(len(shape_of(x)) - 1))


class _Norm(Composite):
    eps: float = 1e-5
    saves: ClassVar[Sequence[Sequence[int | str]]] = ((0, 1, OUTPUT),) * 3

    promotes = "floating"

    def compute(self, x: NDArray, *parameters: NDArray) -> NDArray:
        for name, parameter in zip(("weight", "bias"), parameters, strict=False):
            if x.ndim < 1 or parameter.shape != x.shape[-1:]:
                raise explain(
                    ShapeError, self.name, f"{name} has shape {parameter.shape}, x {x.shape}",
                    [("x", x), *zip(("weight", "bias"), parameters, strict=False)],
                    "x [..., d], weight and bias [d]",
                )  # fmt: skip
        return super().compute(x, *parameters)


def _added(grad: Any, part: Any) -> Any:
    return part if grad is None else grad + cast_like(part, grad)


def reciprocal_root(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x * x) + eps) over axes, also where the squares leave the range."""
    count = math.prod(shape_of(x)[axis] for axis in axes)
    size = euclidean(x, axes, keepdims=True) * (count**-0.5 if count else math.nan)
    return 1.0 / hypot(size, math.sqrt(eps) if eps >= 0 else math.nan)


# ---- layer norm --------------------------------------------------------------------


def _layer_norm(x: Numpy, weight: Numpy, bias: Numpy, eps: float) -> tuple[Numpy, ...]:
    rstd = 1 / np.sqrt(x.var(-1) + eps)
    out = (x - x.mean(-1, keepdims=True)) * rstd[..., None] * weight + bias
    return out, x.mean(-1), rstd


SHAPES = ((4, 3), (2, 3, 5), (6,), (3, 1), (0, 4))


def _samples(reference: Reference, parameters: int = 2) -> Samples:
    def samples() -> list[Sample]:
        good = []
        for shape in SHAPES:
            own = [uniform(shape[-1:], 0.5, 1.5, seed=i) for i in range(1, 1 + parameters)]
            good.append(
                Sample(
                    (uniform(shape), *own), (0.1,), lambda *args: reference(*args, 0.1),
                    gradient=0 not in shape,
                )
            )  # fmt: skip
        wrong = (uniform((2, 3)), *[uniform((2,))] * parameters)
        integer = (np.arange(6).reshape(2, 3), *[uniform((3,))] * parameters)
        return [
            *good, Sample(wrong, (0.1,), raises=ShapeError),
            Sample(integer, (0.1,), raises=DtypeError),
        ]  # fmt: skip

    return samples


class LayerNorm(_Norm):
    """Normalise x to zero mean and unit variance along the last axis, then scale and shift.

        out = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(var + eps)

    Shapes:   x [..., d], weight [d], bias [d] -> out [..., d], mean [...], rstd [...]
    Dtypes:   floating; statistics in float32 when x is float16 or bfloat16
    Gradient: x, weight, bias; any order
    Raises:   ShapeError if weight or bias is not [d]; DtypeError if dtypes do not mix
    Source:   Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450, section 3
    """

    samples = _samples(_layer_norm)

    def expand(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        wide = widened(x)
        middle = mean(wide, -1, keepdims=True)
        centred = wide - middle
        rstd = reciprocal_root(centred, (centred.spec.ndim - 1,), self.eps)
        out = centred * rstd * widened(weight) + widened(bias)
        rows = shape_of(x)[:-1]
        return cast_like(out, x), reshape(middle, rows), reshape(rstd, rows)

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        x, weight = out.inputs[:2]
        middle, rstd = out[1], out[2]
        g, mean_grad, rstd_grad = out_grad
        grads: list[Any] = [None] * 3
        if g is not None:
            grads = list(executor.several(LayerNormGrad.of(), g, x, weight, middle, rstd))
        if mean_grad is None and rstd_grad is None:
            return grads
        size = max(shape_of(x)[-1], 1)
        if mean_grad is not None:
            part = broadcast_to(unsqueeze(mean_grad * (1 / size), -1), shape_of(x))
            grads[0] = _added(grads[0], cast_like(part, x))
        if rstd_grad is not None:
            normal = (widened(x) - unsqueeze(middle, -1)) * unsqueeze(rstd, -1)
            part = normal * unsqueeze(rstd_grad * square(rstd) * (-1 / size), -1)
            grads[0] = _added(grads[0], cast_like(part, x))
        return grads


def _layer_norm_grad(
    g: Numpy, x: Numpy, weight: Numpy, middle: Numpy, rstd: Numpy
) -> tuple[Numpy, ...]:
    normal = (x - middle[..., None]) * rstd[..., None]
    scaled = g * weight
    along = (scaled * normal).mean(-1, keepdims=True)
    dx = rstd[..., None] * (scaled - scaled.mean(-1, keepdims=True) - normal * along)
    rows = tuple(range(x.ndim - 1))
    return dx, (g * normal).sum(rows), g.sum(rows)


def _layer_norm_grad_samples() -> list[Sample]:
    return [
        Sample(
            (
                uniform(shape), uniform(shape, seed=1), uniform(shape[-1:], seed=2),
                uniform(shape[:-1], seed=3), uniform(shape[:-1], 0.5, 2, seed=4),
            ),
            (), _layer_norm_grad,
        )
        for shape in SHAPES
    ]  # fmt: skip


class LayerNormGrad(Composite):
    """Gradients of layer norm with respect to x, weight and bias, from its statistics.

        normal = (x - mean) * rstd,  h = g * weight
        dx = rstd * (h - mean(h) - normal * mean(h * normal))
        dweight = sum(g * normal),  dbias = sum(g)

    Shapes:   g, x [..., d], weight [d], mean, rstd [...] -> [..., d], [d], [d]
    Gradient: all inputs; any order
    """

    samples = staticmethod(_layer_norm_grad_samples)

    def expand(
        self, g: Tensor, x: Tensor, weight: Tensor, middle: Tensor, rstd: Tensor
    ) -> tuple[Tensor, ...]:
        g0, scale = widened(g), unsqueeze(rstd, -1)
        normal = (widened(x) - unsqueeze(middle, -1)) * scale
        scaled = g0 * widened(weight)
        along = mean(scaled * normal, -1, keepdims=True)
        dx = scale * (scaled - mean(scaled, -1, keepdims=True) - normal * along)
        dweight, dbias = summation(g0 * normal, _rows(x)), summation(g0, _rows(x))
        return cast_like(dx, x), cast_like(dweight, weight), cast_like(dbias, weight)


# ---- RMS norm ----------------------------------------------------------------------


def _rms_norm(x: Numpy, weight: Numpy, eps: float) -> tuple[Numpy, ...]:
    rstd = 1 / np.sqrt((x * x).mean(-1) + eps)
    return x * rstd[..., None] * weight, rstd


class RMSNorm(_Norm):
    """Scale x to unit root mean square along the last axis, then by the weight.

        out = x * rstd * weight,  rstd = 1 / sqrt(mean(x * x) + eps)

    Shapes:   x [..., d], weight [d] -> out [..., d], rstd [...]
    Dtypes:   floating; statistics in float32 when x is float16 or bfloat16
    Gradient: x, weight; any order
    Raises:   ShapeError if weight is not [d]; DtypeError if dtypes do not mix
    Source:   Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, section 3
    """

    samples = _samples(_rms_norm, 1)

    def expand(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        wide = widened(x)
        rstd = reciprocal_root(wide, (wide.spec.ndim - 1,), self.eps)
        return cast_like(wide * rstd * widened(weight), x), reshape(rstd, shape_of(x)[:-1])

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        x, weight = out.inputs
        rstd = out[1]
        g, rstd_grad = out_grad[0], out_grad[1]
        grads: list[Any] = [None] * 2
        if g is not None:
            grads = list(executor.several(RMSNormGrad.of(), g, x, weight, rstd))
        if rstd_grad is not None:
            factor = rstd_grad * rstd * square(rstd) * (-1 / max(shape_of(x)[-1], 1))
            grads[0] = _added(grads[0], cast_like(widened(x) * unsqueeze(factor, -1), x))
        return grads


def _rms_norm_grad(g: Numpy, x: Numpy, weight: Numpy, rstd: Numpy) -> tuple[Numpy, ...]:
    normal = x * rstd[..., None]
    scaled = g * weight
    dx = rstd[..., None] * (scaled - normal * (scaled * normal).mean(-1, keepdims=True))
    return dx, (g * normal).sum(tuple(range(x.ndim - 1)))


def _rms_norm_grad_samples() -> list[Sample]:
    return [
        Sample(
            (
                uniform(shape), uniform(shape, seed=1), uniform(shape[-1:], seed=2),
                uniform(shape[:-1], 0.5, 2, seed=3),
            ),
            (), _rms_norm_grad,
        )
        for shape in SHAPES
    ]  # fmt: skip


class RMSNormGrad(Composite):
    """Gradients of RMS norm with respect to x and weight, from its statistics.

        normal = x * rstd,  h = g * weight
        dx = rstd * (h - normal * mean(h * normal)),  dweight = sum(g * normal)

    Shapes:   g, x [..., d], weight [d], rstd [...] -> [..., d], [d]
    Gradient: all inputs; any order
    """

    samples = staticmethod(_rms_norm_grad_samples)

    def expand(self, g: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
        g0, scale = widened(g), unsqueeze(rstd, -1)
        normal = widened(x) * scale
        scaled = g0 * widened(weight)
        dx = scale * (scaled - normal * mean(scaled * normal, -1, keepdims=True))
        return cast_like(dx, x), cast_like(summation(g0 * normal, _rows(x)), weight)


# ---- batch norm --------------------------------------------------------------------


def batch_norm_of(x: Numpy, weight: Numpy, bias: Numpy, eps: float) -> tuple[Numpy, ...]:
    """Return batch norm of NumPy arrays, with mean and variance: the samples' reference."""
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        middle, var = x.sum(rows) / _count(x), ((x - x.sum(rows) / _count(x)) ** 2).sum(rows)
        var = var / _count(x)
    return (x - middle) / np.sqrt(var + eps) * weight + bias, middle, var


def _count(x: Any) -> Any:
    return np.float64(np.prod(x.shape[:-1]))


class Batch(_Norm):
    """The base of batch norm and of the ops that fuse more into the same pass."""

    def through_statistics(
        self, grads: list[Tensor | None], out_grad: list[Tensor | None], out: TensorTuple
    ) -> list[Tensor | None]:
        """Return gradients; that of x includes the parts through the mean and the variance."""
        x = out.inputs[0]
        count = max(executor.spec_of(x).size // max(shape_of(x)[-1], 1), 1)
        if out_grad[1] is not None:
            part = broadcast_to(out_grad[1] * (1 / count), shape_of(x))
            grads[0] = _added(grads[0], cast_like(part, x))
        if out_grad[2] is not None:
            part = (widened(x) - out[1]) * (out_grad[2] * (2 / count))
            grads[0] = _added(grads[0], cast_like(part, x))
        return grads


class BatchNorm(Batch):
    """Normalise each column of x to zero mean and unit variance over the rows (all other axes).

        out = (x - mean) / sqrt(var + eps) * weight + bias

    The variance is the biased one: the mean of squared distances.

    Shapes:   x [..., c], weight [c], bias [c] -> out [..., c], mean [c], var [c]
    Dtypes:   floating; statistics in float32 when x is float16 or bfloat16
    Gradient: x, weight, bias; any order
    Raises:   ShapeError if weight or bias is not [c]; DtypeError if dtypes do not mix
    Source:   Ioffe, Szegedy, "Batch Normalization", 2015, arXiv:1502.03167, algorithm 1
    """

    samples = _samples(batch_norm_of)

    def expand(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        wide, rows = widened(x), _rows(x)
        middle = mean(wide, rows)
        centred = wide - middle
        var = mean(square(centred), rows)
        out = centred * (rsqrt(var + self.eps) * widened(weight)) + widened(bias)
        return cast_like(out, x), middle, var

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        x, weight = out.inputs[:2]
        grads: list[Tensor | None] = [None] * 3
        if out_grad[0] is not None:
            op = BatchNormGrad.of(self.eps)
            grads = list(executor.several(op, out_grad[0], x, weight, out[1], out[2]))
        return self.through_statistics(grads, out_grad, out)


def batch_norm_grad_of(
    g: Numpy, x: Numpy, weight: Numpy, middle: Numpy, var: Numpy, eps: float
) -> tuple[Numpy, ...]:
    """Return the gradients of batch norm of NumPy arrays: the samples' reference."""
    rstd = 1 / np.sqrt(var + eps)
    normal = (x - middle) * rstd
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        average, along = g.sum(rows) / _count(x), (g * normal).sum(rows) / _count(x)
    dx = weight * rstd * (g - average - normal * along)
    return dx, (g * normal).sum(rows), g.sum(rows)


def _batch_norm_grad_samples() -> list[Sample]:
    return [
        Sample(
            (
                uniform(shape), uniform(shape, seed=1), uniform(shape[-1:], seed=2),
                uniform(shape[-1:], seed=3), uniform(shape[-1:], 0.5, 2, seed=4),
            ),
            (0.1,), lambda g, x, w, m, v: batch_norm_grad_of(g, x, w, m, v, 0.1),
        )
        for shape in SHAPES
    ]  # fmt: skip


class BatchNormGrad(Composite):
    """Gradients of batch norm with respect to x, weight and bias, from its statistics.

        rstd = 1 / sqrt(var + eps),  normal = (x - mean) * rstd
        dx = weight * rstd * (g - mean(g) - normal * mean(g * normal))
        dweight = sum(g * normal),  dbias = sum(g)

    Shapes:   g, x [..., c], weight, mean, var [c] -> [..., c], [c], [c]
    Gradient: all inputs; any order
    """

    eps: float
    samples = staticmethod(_batch_norm_grad_samples)

    def expand(
        self, g: Tensor, x: Tensor, weight: Tensor, middle: Tensor, var: Tensor
    ) -> tuple[Tensor, ...]:
        g0, rows = widened(g), _rows(x)
        rstd = rsqrt(var + self.eps)
        normal = (widened(x) - middle) * rstd
        along = mean(g0 * normal, rows)
        dx = widened(weight) * rstd * (g0 - mean(g0, rows) - normal * along)
        dweight, dbias = summation(g0 * normal, rows), summation(g0, rows)
        return cast_like(dx, x), cast_like(dweight, weight), cast_like(dbias, weight)


# ---- functions -------------------------------------------------------------------


def parameter(x: Tensor | None, value: float, like: Tensor) -> Tensor:
    """Return weight or bias as one row; one value throughout for None."""
    if x is not None:
        spec = executor.spec_of(x)
        return x if len(spec.shape) == 1 else reshape(x, (spec.size,))
    spec = executor.spec_of(like)
    return broadcast_to(constant(value, spec.dtype, spec.device), spec.shape[-1:])


def _last_axes(name: str, x: Tensor, weight: Tensor | None) -> tuple[int, ...]:
    """Return the trailing axes of x to normalise over: those of the weight."""
    if weight is not None and not isinstance(weight, graph.TensorBase):
        raise explain(
            ArgumentError, name, f"weight is {type(weight).__name__} {weight!r:.60}, not a tensor",
            [("x", x)], "the shape of the weight gives the last axes of x to normalise",
            f"{name}(x) for the last axis, or a weight of ones",
        )  # fmt: skip
    shape, own = shape_of(x), (shape_of(x)[-1:] if weight is None else shape_of(weight))
    if not own or shape[-len(own) :] != own:
        raise explain(
            ShapeError, name, f"weight has shape {own}, x {shape}", [("x", x)],
            "the weight has the shape of the last axes of x",
        )  # fmt: skip
    return own


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise over the last axes of x: as many as the weight has; one for None.

    See ``LayerNorm``.

    >>> print(ndl.layer_norm(Tensor([[1.0, 3.0], [10.0, 30.0]])))
    [[-1.  1.]
     [-1.  1.]]
    """
    own = _last_axes("layer_norm", x, bias if weight is None else weight)
    flat = x if len(own) == 1 else reshape(x, (*shape_of(x)[: -len(own)], math.prod(own)))
    parameters = parameter(weight, 1.0, flat), parameter(bias, 0.0, flat)
    out = executor.apply(LayerNorm.of(real("layer_norm: eps", eps)), flat, *parameters)[0]
    return out if len(own) == 1 else reshape(out, shape_of(x))


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Tensor:
    """Scale the last axes of x (those of the weight, one for None) to unit root mean square.

    See ``RMSNorm``.

    >>> print(ndl.rms_norm(Tensor([3.0, 4.0])))
    [0.8485 1.1314]
    """
    own = _last_axes("rms_norm", x, weight)
    flat = x if len(own) == 1 else reshape(x, (*shape_of(x)[: -len(own)], math.prod(own)))
    out = executor.apply(
        RMSNorm.of(real("rms_norm: eps", eps)), flat, parameter(weight, 1.0, flat)
    )[0]
    return out if len(own) == 1 else reshape(out, shape_of(x))


def batch_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise the columns of x (its ``axis``) over all other axes.

    Returns:
        The result, the mean and the biased variance. See ``BatchNorm``.

    >>> out, mean, var = ndl.batch_norm(Tensor([[1.0], [3.0]]))
    >>> print(out, mean, var)
    [[-1.]
     [ 1.]] [2.] [1.]
    """
    ndim = len(shape_of(x))
    axis = normalise_axis(axis, ndim)
    rows = x if axis == ndim - 1 else permute(x, [i for i in range(ndim) if i != axis] + [axis])
    parameters = parameter(weight, 1.0, rows), parameter(bias, 0.0, rows)
    out, middle, var = executor.several(
        BatchNorm.of(real("batch_norm: eps", eps)), rows, *parameters
    )
    if axis != ndim - 1:
        out = permute(out, [*range(axis), ndim - 1, *range(axis, ndim - 1)])
    return out, middle, var

"""Negative log-likelihoods of targets under predicted distributions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from needle import executor
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.op import promoted
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import Sample
from needle.ops.elementwise.activation import softplus
from needle.ops.elementwise.arithmetic import (
    absolute,
    cast_like,
    greater,
    less_equal,
    maximum,
    squared_difference,
    where,
)
from needle.ops.elementwise.functions import exp, log, sigmoid
from needle.ops.elementwise.logic import clip, largest
from needle.ops.loss.losses import Pairwise, pair_samples, reduced, same_shape
from needle.ops.shape.movement import broadcast_to, stop_gradient, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Gradients, Operand, Tensor

__all__ = ["BCEWithLogits", "bce", "bce_with_logits", "gaussian_nll_loss", "poisson_nll_loss"]


class BCEWithLogits(Pairwise):
    """Binary cross entropy of sigmoid(x) and a target in [0, 1], without overflow.

        out = softplus(x) - x * target

    An infinite x counts as the largest number of its dtype.

    Shapes:   x, target [...] -> [...]
    Gradient: x, target; any order
    """

    saves = ((0, 1), (0,))

    @staticmethod
    def samples() -> list[Sample]:
        inside = pair_samples(lambda x, y: np.logaddexp(x, 0) - x * y, 0.0, 1.0)()
        certain = np.array([np.inf, -np.inf]), np.array([1.0, 0.0])
        return [*inside, Sample(certain, (), lambda x, y: 0.0 * y, gradient=False)]

    def expand(self, x: Tensor, target: Tensor) -> Tensor:
        x = _finite(x)
        return softplus(x) - x * target

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, target = out.inputs
        left, right = out.node.inputs
        return (
            out_grad * (sigmoid(x) - target) if left.needs else None,
            -out_grad * x if right.needs else None,
        )


def _finite(x: Tensor) -> Tensor:
    """Return logits without infinite ones, which would make inf - inf, or inf * 0."""
    most = largest(executor.spec_of(x).dtype)
    return clip(x, -most, most)


def bce(
    x: Tensor, target: Tensor, *, weight: Operand | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of probabilities x and a target in [0, 1].

        out = -(target * log(x) + (1 - target) * log(1 - x))

    Logarithms are limited to at least -100, as in PyTorch; below that the gradient is 0.
    ``bce_with_logits`` takes the logits instead and needs no limit.

    Args:
        x: probabilities; outside [0, 1] the result is NaN.
        target: of the shape of x.
        weight: a weight for each element, of a shape that broadcasts to that of x; None: all equal.
            The mean still divides by the number of elements, as in PyTorch.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes differ, or the weight does not broadcast to them.

    >>> round(ndl.bce(Tensor([0.9, 0.2]), Tensor([1.0, 0.0])).item(), 4)
    0.1643
    """
    x, target = promoted(same_shape("bce", x, target), "bce", floating=True)
    yes, no = map(_limited_log, (x, 1.0 - x))
    loss = -(target * yes + (1.0 - target) * no)
    return reduced(counted("bce", loss, weight), reduction)


def _limited_log(x: Tensor) -> Tensor:
    """Return log(x) where that is above -100, a constant elsewhere: there 1 / x may be infinite."""
    none = less_equal(absolute(x), math.exp(-100.0))
    return where(none, -100.0, log(where(none, 1.0, x)))


def counted(name: str, loss: Tensor, weight: Operand | None) -> Tensor:
    """Return losses times their weights; None: as they are.

    Raises:
        ShapeError: if the weight does not broadcast to the losses.
    """
    if weight is None:
        return loss
    _, weight = as_tensors((loss, weight), name)
    return loss * broadcast_to(cast_like(weight, loss), shape_of(loss))


def bce_with_logits(
    x: Tensor,
    target: Tensor,
    *,
    weight: Operand | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross entropy of sigmoid(x) and the target. See ``BCEWithLogits``.

    ``weight`` gives a weight for each element, as for ``bce``; ``pos_weight`` multiplies the loss
    of targets of 1. Both broadcast to the shape of x.

    >>> round(ndl.bce_with_logits(Tensor([0.0, 3.0]), Tensor([1.0, 1.0])).item(), 4)
    0.3709
    """
    x, target = same_shape("bce_with_logits", x, target)
    loss = executor.apply(BCEWithLogits.of(), x, target)
    if pos_weight is not None:
        x, ones = as_tensors((x, pos_weight), "bce_with_logits")
        loss = loss + (cast_like(ones, loss) - 1.0) * target * softplus(-_finite(x))
    return reduced(counted("bce_with_logits", loss, weight), reduction)


def gaussian_nll_loss(
    x: Tensor,
    target: Operand,
    var: Operand,
    *,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of targets from normal distributions of means x and variances var.

        out = (log(var) + (x - target) ** 2 / var) / 2

    Args:
        x: the means.
        target: of the shape of x.
        var: the variances, a number or of the shape of x, where the last axis may be missing, and
            any axis 1.
        full: whether to add the constant, log(2 pi) / 2.
        eps: the least variance: smaller ones count as eps, also in the gradient.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes do not fit.

    >>> round(ndl.gaussian_nll_loss(Tensor([1.0]), Tensor([3.0]), Tensor([4.0])).item(), 4)
    1.1931
    """
    name = "gaussian_nll_loss"
    x, target = same_shape(name, x, target)
    _, var = as_tensors((x, var), name)
    shape, own = shape_of(x), shape_of(var)
    spread = len(own) == len(shape) and all(k in (1, n) for k, n in zip(own, shape, strict=True))
    if not spread and own not in (shape[:-1], ()):
        raise explain(
            ShapeError, name, f"var has shape {own}, x {shape}", [("x", x), ("var", var)],
            "a variance for each element of x, or each row, or for all along axes of size 1",
        )  # fmt: skip
    x, target, var = promoted((x, target, var), name, floating=True)
    if own and len(own) < len(shape):
        var = unsqueeze(var, -1)
    least = maximum(var, real(f"{name}: eps", eps))
    var = var + stop_gradient(least - var)
    loss = 0.5 * (log(var) + squared_difference(x, target) / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of counts from Poisson distributions.

        out = exp(x) - target * x

    Args:
        x: logarithms of the expected counts; or the counts, without ``log_input``.
        target: of the shape of x.
        log_input: whether x holds logarithms; else out = x - target * log(x + eps).
        full: whether to add Stirling's approximation of log(target!), where the target is over 1.
        eps: keeps the logarithm of 0 finite.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes differ.

    >>> print(ndl.poisson_nll_loss(Tensor([0.0]), Tensor([2.0])))
    1.0
    """
    x, target = promoted(
        same_shape("poisson_nll_loss", x, target), "poisson_nll_loss", floating=True
    )
    small = real("poisson_nll_loss: eps", eps)
    loss = exp(x) - target * x if log_input else x - target * log(x + small)
    if full:
        many = greater(target, 1.0)
        n = where(many, target, 1.0)
        stirling = n * log(n) - n + 0.5 * log(2 * math.pi * n)
        loss = loss + where(many, stirling, 0.0)
    return reduced(loss, reduction)

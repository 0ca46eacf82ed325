"""Negative log-likelihoods under distributions that are predicted."""

from __future__ import annotations

import math
from typing import Any

from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.attributes import real
from needle.ops.elementwise import (
    absolute,
    greater,
    less_equal,
    maximum,
    squared_difference,
    where,
)
from needle.ops.functions import exp, log
from needle.ops.loss import reduced, same_shape
from needle.ops.movement import stop_gradient, unsqueeze
from needle.ops.operands import as_tensors, promoted


def bce(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Binary cross entropy of probabilities x and a target in [0, 1].

        out = -(target * log(x) + (1 - target) * log(1 - x))

    Logarithms are at least -100, as in PyTorch; where they are less there is no gradient.
    ``bce_with_logits`` computes both from what ``sigmoid`` is given, without limits.

    Args:
        x: probabilities; outside [0, 1] the result is NaN.
        target: of the shape of x.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes differ.
    """
    x, target = promoted(same_shape("bce", x, target), "bce", floating=True)
    yes, no = map(_limited_log, (x, 1.0 - x))
    return reduced(-(target * yes + (1.0 - target) * no), reduction)


def _limited_log(x: Any) -> Any:
    """Return log(x) where that is above -100, a constant elsewhere: there 1 / x may be infinite."""
    none = less_equal(absolute(x), math.exp(-100.0))
    return where(none, -100.0, log(where(none, 1.0, x)))


def gaussian_nll_loss(
    x: Any, target: Any, var: Any, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Negative log-likelihood of targets from normal distributions of means x and variances var.

        out = (log(var) + (x - target) ** 2 / var) / 2

    Args:
        x: the means.
        target: of the shape of x.
        var: the variances, a number or of the shape of x, where the last axis may be 1 or missing.
        full: whether to add the constant, log(2 pi) / 2.
        eps: what smaller variances count as; gradients flow as if they were that large.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes do not fit.
    """
    name = "gaussian_nll_loss"
    x, target = same_shape(name, x, target)
    _, var = as_tensors((x, var), name)
    shape, own = shape_of(x), shape_of(var)
    if own not in (shape, (*shape[:-1], 1), shape[:-1], ()):
        raise explain(
            ShapeError, name, f"var has shape {own}, x {shape}",
            [("x", x), ("var", var)], "a variance for each element of x, or each row",
        )  # fmt: skip
    x, target, var = promoted((x, target, var), name, floating=True)
    if own and own == shape[:-1]:
        var = unsqueeze(var, -1)
    least = maximum(var, real(f"{name}: eps", eps))
    var = var + stop_gradient(least - var)
    loss = 0.5 * (log(var) + squared_difference(x, target) / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def poisson_nll_loss(
    x: Any,
    target: Any,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of counts from Poisson distributions.

        out = exp(x) - target * x

    Args:
        x: logarithms of the expected counts; or the counts, without ``log_input``.
        target: of the shape of x.
        log_input: whether x are logarithms; else out = x - target * log(x + eps).
        full: whether to add Stirling's approximation of log(target!), where the target is over 1.
        eps: keeps the logarithm of 0 finite.
        reduction: "mean", "sum", or "none": one loss per element.

    Raises:
        ShapeError: if the shapes differ.
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

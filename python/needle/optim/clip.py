"""Gradient clipping: functions that replace ``.grad`` of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

from needle import executor, ops
from needle.errors import GradientError, NeedleError, OptionError, explain
from needle.ops.core.attributes import flag
from needle.ops.index.row_sparse import each, elements
from needle.ops.reduction.euclidean import GlobalNorm
from needle.tensors import Tensor

__all__ = ["clip_grad_norm", "clip_grad_value"]


def clip_grad_norm(
    params: Iterable[Tensor] | Tensor, max_norm: float, *, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients together so that their Euclidean norm is at most ``max_norm``.

    The factor is ``min(1, max_norm / (norm + 1e-6))``.

    Args:
        params: a tensor or several; tensors without a gradient are skipped.
        max_norm: largest norm allowed.
        error_if_nonfinite: raise when the norm is infinite or not a number.

    Returns:
        The norm before clipping, as a 0-dimensional tensor.

    Raises:
        GradientError: if no tensor has a gradient; or, with ``error_if_nonfinite``, if the norm is
            not finite, naming the gradients that are not.
        OptionError: if max_norm is not a number >= 0, or params are not tensors.

    >>> p = nn.Parameter(Tensor([3.0, 4.0]))
    >>> (p * p).sum().backward()
    >>> optim.clip_grad_norm([p], 1.0).item()
    10.0
    >>> print(p.grad)
    [0.6 0.8]
    """
    _check_limit("clip_grad_norm", "max_norm", max_norm)
    error_if_nonfinite = flag("clip_grad_norm: error_if_nonfinite", error_if_nonfinite)
    having = _having("clip_grad_norm", params)
    if not having:
        raise GradientError("clip_grad_norm: no parameter has a gradient; call backward() first")
    with executor.modes(recording=False):
        grads = [elements(p.grad) for p in having]
        norm = executor.apply(GlobalNorm.of(), *grads)  # squares may leave the range of the dtype
        if error_if_nonfinite and not _finite(norm):
            raise _nonfinite(having, norm)
        factor = ops.minimum(max_norm / (norm + 1e-6), 1.0)
        for p in having:
            p.grad = each(lambda g: g * ops.astype(factor, g.dtype), p.grad)
        exact = any(g.dtype.name == "float64" for g in grads)
        norm = norm if exact else ops.astype(norm, "float32")
    return norm


def clip_grad_value(params: Iterable[Tensor] | Tensor, max_value: float) -> None:
    """Limit every element of every gradient to [-max_value, max_value].

    Raises:
        OptionError: if max_value is not a number >= 0, or params are not tensors.

    >>> p = nn.Parameter(Tensor([0.1, 4.0]))
    >>> (p * p).sum().backward()
    >>> optim.clip_grad_value([p], 1.0)
    >>> print(p.grad)
    [0.2 1. ]
    """
    _check_limit("clip_grad_value", "max_value", max_value)
    having = _having("clip_grad_value", params)
    with executor.modes(recording=False):
        for p in having:
            p.grad = each(lambda g: ops.maximum(ops.minimum(g, max_value), -max_value), p.grad)


def _check_limit(owner: str, name: str, value: object) -> None:
    if not isinstance(value, Real) or not float(value) >= 0:
        raise OptionError(f"{owner}: {name}={value!r:.60}\n  rule: a number >= 0")


def _having(owner: str, params: object) -> list[Tensor]:
    """Return the tensors that have a gradient; a single tensor counts as one, not as its rows."""
    given: list[Any] = [params]
    if isinstance(params, Iterable) and not isinstance(params, Tensor):
        given = list(params)
    for p in given:
        if not isinstance(p, Tensor):
            raise OptionError(
                f"{owner}: expected a tensor, got {type(p).__name__}\n  try: model.parameters()"
            )
    return [p for p in given if p.grad is not None]


def _finite(x: Tensor) -> bool:
    value = float(x)
    return value - value == 0.0


def _nonfinite(params: list[Tensor], norm: Tensor) -> NeedleError:
    bad = [p for p in params if not bool(ops.all(ops.isfinite(elements(p.grad))))]
    return explain(
        GradientError, "clip_grad_norm", f"the norm of the gradients is {float(norm)}",
        [("gradient of", p) for p in bad[:10]], "the norm must be finite",
    )  # fmt: skip

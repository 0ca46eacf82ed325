"""Derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle import autograd, executor
from needle.errors import GradientError
from needle.tensor import Tensor, TensorTuple
from needle.testing.tolerance import DIFFERENCE, DIFFERENCE_STEP


def check_gradients(
    function: Callable[..., Any], *inputs: Any, order: int = 1, seed: int = 0
) -> None:
    """Check the gradients of a function against central differences, in float64.

    Results that are not floating (the positions that a sort gives) are left out.

    One random direction per input: the slope of <u, function(x)> along it, u a random cotangent,
    is measured and compared with the inner product of the gradient and the direction.

    >>> check_gradients(lambda x, y: (x @ y).tanh(), x, y, order=2)

    Args:
        function: takes tensors, returns a tensor or several; it must not depend on anything random.
        inputs: tensors or arrays. Floating ones are cast to float64 and differentiated, away from
            kinks please; others are passed on as they are.
        order: 2 also checks the gradient of the gradient, the cotangent's included.
        seed: of the directions.

    Raises:
        GradientError: naming the input, with both numbers.
    """
    if order not in (1, 2):
        raise GradientError(f"check_gradients: order={order}, must be 1 or 2")
    rng = np.random.default_rng(seed)
    tensors = [_float64(x) for x in inputs]
    with autograd.no_grad():
        outs = _floating(function(*tensors))
    weights = [_like(rng, x) for x in outs]
    count = len(tensors)

    def weighted(*args: Any) -> Any:
        return _inner(_floating(function(*args[:count])), args[count:])

    _check(weighted, [*tensors, *weights], list(range(count)), rng, "gradient")
    if order == 2:
        moved = [i for i, x in enumerate(tensors) if x.dtype == "float64"]
        directions = [_like(rng, tensors[i]) for i in moved]
        pull = autograd.grad(weighted, moved)

        def slope(*args: Any) -> Any:
            return _inner(pull(*args), directions)

        every = list(range(count + len(weights)))
        _check(slope, [*tensors, *weights], every, rng, "second derivative")


def _check(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    chosen: Sequence[int],
    rng: np.random.Generator,
    what: str,
) -> None:
    chosen = [i for i in chosen if inputs[i].dtype == "float64"]
    if not chosen:
        raise GradientError(f"check_gradients: no input is floating, so there is no {what}")
    grads = autograd.grad(function, chosen)(*inputs)
    for i, found in zip(chosen, grads, strict=True):
        if found.shape != inputs[i].shape:
            raise GradientError(
                f"{what}: that of input {i} has shape {found.shape}, the input {inputs[i].shape}"
            )
        direction = rng.standard_normal(inputs[i].shape)
        numerical, scale = _slope(function, inputs, i, direction)
        terms = found.numpy() * direction
        automatic = float(terms.sum())
        allowed = DIFFERENCE * max(1.0, scale, float(np.abs(terms).sum()))
        if not abs(automatic - numerical) <= allowed:
            raise GradientError(
                f"{what}: along a direction of input {i}, {inputs[i].dtype}{inputs[i].shape}, the "
                f"gradient gives {automatic:.10g}, finite differences {numerical:.10g}\n"
                f"  rule: they differ by at most {allowed:.2g}"
            )


def _slope(
    function: Callable[..., Any], inputs: Sequence[Any], i: int, direction: Any
) -> tuple[float, float]:
    """Return the central difference along a direction, and the size of the values."""
    values = []
    for sign in (1.0, -1.0):
        moved = inputs[i].numpy() + sign * DIFFERENCE_STEP * direction
        args = [*inputs[:i], Tensor(moved, dtype="float64", device=inputs[i].device)]
        values.append(function(*args, *inputs[i + 1 :]).item())
    return (values[0] - values[1]) / (2 * DIFFERENCE_STEP), abs(values[0])


def _float64(x: Any) -> Any:
    tensor = x.detach() if isinstance(x, Tensor) else Tensor(x, requires_grad=False)
    return tensor.astype("float64") if tensor.dtype.is_floating else tensor


def _floating(out: Any) -> tuple[Any, ...]:
    """Return the floating results of a function that gives one or several."""
    parts = out.tuple() if isinstance(out, TensorTuple) else out
    parts = parts if isinstance(parts, (tuple, list)) else (parts,)
    return tuple(x for x in parts if x.dtype.is_floating)


def _like(rng: np.random.Generator, x: Any) -> Any:
    spec = executor.spec_of(x)
    values = rng.standard_normal(spec.shape)
    return Tensor(values, dtype="float64", device=spec.device, requires_grad=False)


def _inner(outs: Sequence[Any], weights: Sequence[Any]) -> Any:
    total = None
    for out, weight in zip(outs, weights, strict=True):
        part = (out * weight).sum()
        total = part if total is None else total + part
    return total

"""Derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle import autograd, executor, tree
from needle.derivatives import jvp
from needle.errors import GradientError, unknown
from needle.ops.core.starts import stand_ins
from needle.tensors import Tensor
from needle.testing.tolerance import DIFFERENCE, DIFFERENCE_STEP, TRANSPOSE


def check_gradients(
    function: Callable[..., Any],
    *inputs: Any,
    order: int = 1,
    mode: str = "both",
    seed: int = 0,
) -> None:
    """Check the derivatives of a function against central differences, in float64.

    Results that are not floating, such as the indices of a sort, are ignored.

    The check draws a random direction v for each input and a random cotangent u. It measures the
    slope of <u, function(x)> along v, and compares it with <J'u, v> (reverse mode) and <u, Jv>
    (forward mode, all directions at once). With both modes, these must also agree up to rounding.

    >>> x, y = ndl.rand(2, 3), ndl.rand(3, 2)
    >>> ndl.testing.check_gradients(lambda x, y: (x @ y).tanh(), x, y, order=2)

    Args:
        function: takes tensors, returns a tensor or several; it must not use random numbers.
        inputs: tensors or arrays. Floating ones are cast to float64 and differentiated, so keep
            them away from kinks; others are passed on unchanged.
        order: 2 also checks the derivatives of the first derivatives, also with respect to the
            cotangent; with both modes all four: reverse or forward over reverse or forward.
        mode: "reverse", "forward" or "both".
        seed: seed of the directions.

    Raises:
        GradientError: if derivatives differ, naming the input, the mode and both numbers; or if the
            function returns anything but tensors, or no floating tensor.
        OptionError: for an unknown mode.
    """
    if order not in (1, 2):
        raise GradientError(f"check_gradients: expected order 1 or 2, got {order}")
    if mode not in MODES:
        raise unknown("check_gradients: mode", mode, MODES)
    rng = np.random.default_rng(seed)
    tensors = [_float64(x) for x in inputs]
    checked = tree.checked("check_gradients", function)

    def results(*args: Any) -> Any:
        return _floating(checked(*stand_ins(args)))  # the function may assign to them

    with autograd.no_grad():
        outs = results(*tensors)
    moved = [i for i, x in enumerate(tensors) if x.dtype == "float64"]
    if moved and not outs:
        raise GradientError("check_gradients: no result is floating, so there is no derivative")
    weights = [_like(rng, x) for x in outs]
    count = len(tensors)

    def weighted(*args: Any) -> Any:
        return _inner(results(*args[:count]), args[count:])

    _check({"": weighted}, [*tensors, *weights], moved, rng, mode)
    if order == 2:
        directions = [_like(rng, tensors[i]) for i in moved]
        slopes = {}
        if mode != "forward":
            pull = autograd.grad(weighted, moved)
            slopes[" over reverse"] = lambda *args: _inner(pull(*args), directions)
        if mode != "reverse":
            tangents = iter(directions)
            vs = [next(tangents) if i in moved else None for i in range(count)]
            vs += [None] * len(weights)
            slopes[" over forward"] = lambda *args: jvp(weighted, args, vs)[1]
        _check(
            slopes, [*tensors, *weights], [*moved, *range(count, count + len(weights))], rng, mode
        )


MODES = ("both", "reverse", "forward")


def _check(
    functions: dict[str, Callable[..., Any]],
    inputs: Sequence[Any],
    chosen: Sequence[int],
    rng: np.random.Generator,
    mode: str,
) -> None:
    """Check the derivatives of scalar functions that all compute the same value."""
    if not chosen:
        raise GradientError("check_gradients: no input is floating, so there is no derivative")
    directions = {i: _like(rng, inputs[i]) for i in chosen}
    first = next(iter(functions.values()))
    measured = {i: _slope(first, inputs, i, directions[i].numpy()) for i in chosen}
    for name, function in functions.items():
        slopes = None
        if mode != "forward":
            slopes = _check_reverse("reverse" + name, function, inputs, directions, measured)
        if mode != "reverse":
            _check_forward("forward" + name, function, inputs, directions, measured, slopes)


Slopes = dict[int, tuple[float, float]]
"""For each input, the slope along its direction and the size of the terms of that sum."""


def _check_reverse(
    name: str, function: Any, inputs: Sequence[Any], directions: dict[int, Any], measured: Slopes
) -> Slopes:
    grads = autograd.grad(function, list(directions))(*inputs)
    slopes = {}
    for (i, direction), grad in zip(directions.items(), grads, strict=True):
        if grad.shape != inputs[i].shape:
            raise GradientError(
                f"{name}: the gradient of input {i} has shape {grad.shape}, but the input has "
                f"{inputs[i].shape}"
            )
        terms = grad.numpy() * direction.numpy()
        slopes[i] = float(terms.sum()), float(np.abs(terms).sum())
        _compare(f"{name}, input {i}, {inputs[i].dtype}{inputs[i].shape}", slopes[i], measured[i])
    return slopes


def _check_forward(
    name: str,
    function: Any,
    inputs: Sequence[Any],
    directions: dict[int, Any],
    measured: Slopes,
    slopes: Slopes | None,
) -> None:
    def along(*chosen: int) -> tuple[float, float]:
        vs = [directions[i] if i in chosen else None for i in range(len(inputs))]
        return float(jvp(function, inputs, vs)[1].item()), 0.0

    found = along(*directions)
    try:
        _compare(f"{name}, all inputs", found, _summed(measured))
        if slopes is not None:
            _compare(f"{name} and reverse{name[7:]}", found, _summed(slopes), TRANSPOSE)
    except GradientError:
        for i in directions:  # find the input at fault
            _compare(
                f"{name}, input {i}, {inputs[i].dtype}{inputs[i].shape}", along(i), measured[i]
            )
        raise


def _summed(slopes: Slopes) -> tuple[float, float]:
    return sum(slope for slope, _ in slopes.values()), sum(size for _, size in slopes.values())


def _compare(
    what: str,
    found: tuple[float, float],
    expected: tuple[float, float],
    relative: float = DIFFERENCE,
) -> None:
    allowed = relative * max(1.0, found[1], expected[1])
    if not abs(found[0] - expected[0]) <= allowed:
        other = "finite differences" if relative == DIFFERENCE else "reverse mode"
        raise GradientError(
            f"{what}: along a random direction the derivative is {found[0]:.10g}, by {other} "
            f"{expected[0]:.10g}\n"
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
    return tuple(x for x in tree.flat(out) if x.dtype.is_floating)


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

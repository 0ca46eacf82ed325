"""Optimizer updates of many tensors at once: one call of the device per dtype.

An update reads parameters, gradients and state, and rebinds each parameter to its new array, so
that graphs which hold the old value keep it. Where no other object holds a parameter's memory, the
new values are written in place. State belongs only to the optimizer and changes in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from needle import dtype as dtypes
from needle import executor, finite, graph
from needle.backend.ndarray import NDArray, empty, full
from needle.backend.update import Adadelta, Adagrad, Adam, NAdam, RMSprop, Sgd
from needle.errors import DtypeError, ShapeError, explain

State = dict[Any, NDArray]
"""For each parameter one array of its shape; float32 where the parameter is half precision."""


def _batches(params: Sequence[Any]) -> Iterator[list[Any]]:
    batches: dict[Any, list[Any]] = {}
    for p in params:
        spec = executor.spec_of(p)
        batches.setdefault((spec.device, spec.dtype), []).append(p)
    return iter(batches.values())


def _check(operation: str, params: Sequence[Any]) -> None:
    for p in params:
        spec, grad = executor.spec_of(p), executor.spec_of(p.grad)
        operands = [("parameter", p), ("gradient", p.grad)]
        if spec.shape != grad.shape or spec.device != grad.device:
            raise explain(
                ShapeError, operation, "a gradient does not fit its parameter", operands,
                "both have the same shape and device",
            )  # fmt: skip
        if spec.dtype.kind != "f":
            raise explain(
                DtypeError, operation, f"parameters are floating, not {spec.dtype}", operands
            )


def _states(state: State, params: Sequence[Any], start: float = 0.0) -> list[NDArray]:
    """Return the state of parameters of one dtype and device; it follows them to another device.

    Missing arrays start with that value.
    """
    found = []
    spec = executor.spec_of(params[0])
    kind = dtypes.float32 if spec.dtype.itemsize == 2 else spec.dtype
    for p in params:
        array = state.get(p)
        if array is None:
            array = full(executor.spec_of(p).shape, start, kind, spec.device)
        elif array.spec is not p.spec and (array.dtype, array.device) != (kind, spec.device):
            array = array.to(spec.device).astype(kind, copy=False)
        found.append(array)
    return found


def _arrays(params: Sequence[Any]) -> tuple[list[NDArray], list[NDArray], list[NDArray]]:
    """Return arrays to write to, the parameters' and the gradients'."""
    outs, arrays, grads = [], [], []
    for p in params:
        alone = graph.exclusive(p)  # asked first: from here on we hold the array too
        array = executor.value_of(p)
        arrays.append(array)
        outs.append(
            array
            if alone and array.strides == array.spec.strides
            else empty(array.shape, array.dtype, array.device)
        )
        grads.append(executor.value_of(p.grad).astype(array.dtype, copy=False))
    return outs, arrays, grads


def _rebind(operation: str, params: Sequence[Any], outs: Sequence[NDArray]) -> None:
    for p, out in zip(params, outs, strict=True):
        graph.set_array(p, out)
    if finite.on():
        for p, out in zip(params, outs, strict=True):
            finite.check_update(operation, p, out)


def _step(
    operation: str,
    params: Sequence[Any],
    states: Sequence[State | None],
    rule: Any,
    start: float = 0.0,
) -> None:
    """Update parameters and their states (None: no state) by the device's method of that name."""
    _check(operation, params)
    prepared = [  # before anything changes: memory may run out
        (batch, *_arrays(batch), [s if s is None else _states(s, batch, start) for s in states])
        for batch in _batches(params)
    ]
    for batch, outs, arrays, grads, held in prepared:
        getattr(outs[0].device.backend, operation)(outs, arrays, grads, *held, rule)
        for state, new in zip(states, held, strict=True):
            if state is not None and new is not None:
                state.update(zip(batch, new, strict=True))
        _rebind(operation, batch, outs)


def adam(params: Sequence[Any], ms: State, vs: State, rule: Adam) -> None:
    """Update parameters that have gradients by one step of Adam.

    Args:
        params: the parameters; all have gradients.
        ms: moving averages of the gradient; missing ones start at zero.
        vs: moving averages of its square, likewise.
        rule: the hyperparameters of this step.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    _step("adam", params, (ms, vs), rule)


def amsgrad(params: Sequence[Any], ms: State, vs: State, tops: State, rule: Adam) -> None:
    """Update parameters that have gradients by one step of AMSGrad.

    Arguments are as for ``adam``, plus the largest averages of the square so far.
    """
    _step("amsgrad", params, (ms, vs, tops), rule)


def nadam(params: Sequence[Any], ms: State, vs: State, rule: NAdam) -> None:
    """Update parameters that have gradients by one step of NAdam; arguments as for ``adam``."""
    _step("nadam", params, (ms, vs), rule)


def adadelta(params: Sequence[Any], vs: State, ds: State, rule: Adadelta) -> None:
    """Update parameters that have gradients by one step of Adadelta.

    Args:
        params: the parameters; all have gradients.
        vs: moving averages of the gradient's square; missing ones start at zero.
        ds: moving averages of the square of steps, likewise.
        rule: the hyperparameters of this step.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    _step("adadelta", params, (vs, ds), rule)


def sgd(params: Sequence[Any], velocities: State | None, rule: Sgd) -> None:
    """Update parameters that have gradients by one step of gradient descent.

    Args:
        params: the parameters; all have gradients.
        velocities: the momentum of each; missing ones start at zero. None without momentum.
        rule: the hyperparameters of this step.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    _check("sgd", params)
    prepared = [  # not by ``_step``, which is slower
        (batch, *_arrays(batch), None if velocities is None else _states(velocities, batch))
        for batch in _batches(params)
    ]
    for batch, outs, arrays, grads, moving in prepared:
        outs[0].device.backend.sgd(outs, arrays, grads, moving, rule)
        if velocities is not None and moving is not None:
            velocities.update(zip(batch, moving, strict=True))
        _rebind("sgd", batch, outs)


def rmsprop(
    params: Sequence[Any], vs: State, means: State | None, us: State | None, rule: RMSprop
) -> None:
    """Update parameters that have gradients by one step of RMSprop.

    Args:
        params: the parameters; all have gradients.
        vs: moving averages of the gradient's square; missing ones start at zero.
        means: moving averages of the gradient, likewise; None unless it is centered.
        us: the momentum of each, likewise; None without momentum.
        rule: the hyperparameters of this step.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    _step("rmsprop", params, (vs, means, us), rule)


def adagrad(params: Sequence[Any], sums: State, start: float, rule: Adagrad) -> None:
    """Update parameters that have gradients by one step of Adagrad.

    Args:
        params: the parameters; all have gradients.
        sums: sums of the gradient's squares.
        start: the value at which missing sums start.
        rule: the hyperparameters of this step.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    _step("adagrad", params, (sums,), rule, start)

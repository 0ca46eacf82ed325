"""Optimizer updates of many tensors at once: one call of the device per dtype.

An update reads parameters, gradients and state, and rebinds each parameter to its new array, so
that graphs which hold the old value keep it. Where no other object holds a parameter's memory, the
new values are written in place. State belongs only to the optimizer and changes in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from needle import dtype as dtypes
from needle import executor, graph, nancheck
from needle.backend import kernels
from needle.backend.ndarray import NDArray, empty, empty_of, full
from needle.backend.update import Adadelta, Adagrad, Adam, NAdam, RMSprop, Sgd
from needle.errors import DtypeError, ShapeError, explain
from needle.ops.core.base import Op
from needle.ops.index.row_sparse import RowSparse

State = dict[Any, NDArray]
"""For each parameter one array of its shape; float32 where the parameter is half precision."""


class Batch(NamedTuple):
    """One update, not done yet: ``run`` does it.

    Attributes:
        operation: the device's method.
        params: the parameters; all have gradients.
        states: the states in the method's order, None for one that the rule does without.
        rule: the numbers of this step.
        start: the value at which missing states start.
        climbs: whether gradients are negated first.
    """

    operation: str
    params: list[Any]
    states: tuple[State | None, ...]
    rule: Any
    start: float = 0.0
    climbs: bool = False


def run(batch: Batch) -> None:
    """Update the parameters of a batch and their states.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    if batch.operation == "sgd":
        sgd(batch.params, batch.states[0], batch.rule)
    else:
        _step(batch.operation, batch.params, batch.states, batch.rule, batch.start)


class Update(Op):
    """An optimizer's step for parameters of one dtype, as a node of the graph.

    Its inputs are the parameters, their gradients, each state of each parameter, and the rule's
    numbers in order. No gradient flows through it.

    Attributes:
        operation: the device's method.
        count: number of parameters.
        kinds: for each state of the method whether it is there.
        rule: the rule, with its flags; its numbers are 0.

    Shapes:   params, grads, states: count of each; numbers [n] -> new params, new states
    Dtypes:   numbers float64, states as ``states_of`` makes them
    """

    operation: str
    count: int
    kinds: tuple[bool, ...]
    rule: Any
    is_differentiable = False

    def compute(self, *arrays: Any) -> Any:
        return self.stepped(arrays, [False] * len(arrays))

    def flops(self, *specs: Any) -> int:
        return sum(spec.size for spec in specs[:-1])

    def stepped(self, arrays: Sequence[Any], free: Sequence[bool]) -> tuple[Any, ...]:
        """Return the new parameters and states; those of free inputs may be written in place."""
        n = self.count
        *groups, (numbers,) = [arrays[i : i + n] for i in range(0, len(arrays), n)]
        params, grads, *states = groups
        grads = [g.astype(p.dtype, copy=False) for p, g in zip(params, grads, strict=True)]
        outs = [
            p if owned and p.strides == p.spec.strides else empty_of(p.spec)
            for p, owned in zip(params, free, strict=False)
        ]
        new = [
            [x if owned else x.copy() for x, owned in zip(state, free[i * n :], strict=False)]
            for i, state in enumerate(states, 2)
        ]
        rest = iter(new)
        given = [next(rest) if there else None for there in self.kinds]
        where = params[0].device.backend
        where.update_by(self.operation, outs, params, grads, given, self.rule, numbers)
        return (*outs, *(x for state in new for x in state))


def by_dtype(params: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the parameters of each device and dtype."""
    batches: dict[Any, list[Any]] = {}
    for p in params:
        spec = executor.spec_of(p)
        batches.setdefault((spec.device, spec.dtype), []).append(p)
    return iter(batches.values())


def check_fit(operation: str, params: Sequence[Any]) -> list[Any]:
    """Check parameters and their gradients; return those whose gradient is by rows."""
    tables = []
    for p in params:
        if type(p.grad) is RowSparse:
            tables.append(p)
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
    return tables


def states_of(state: State, params: Sequence[Any], start: float = 0.0) -> list[NDArray]:
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
        array = executor.primal_array(p)
        arrays.append(array)
        outs.append(
            array
            if alone and array.strides == array.spec.strides
            else empty(array.shape, array.dtype, array.device)
        )
        grads.append(executor.primal_array(p.grad).astype(array.dtype, copy=False))
    return outs, arrays, grads


def _rebind(operation: str, params: Sequence[Any], outs: Sequence[NDArray]) -> None:
    for p, out in zip(params, outs, strict=True):
        graph.set_array(p, out)
    if nancheck.on():
        for p, out in zip(params, outs, strict=True):
            nancheck.check_update(operation, p, out)


def _write_rows(out: NDArray, index: NDArray, rows: NDArray) -> None:
    """Write distinct rows of a table in place: on devices without ``put`` by whole tables."""
    if out.device.backend.puts:
        kernels.put(out, index, rows, 0)
        return
    there = full(index.shape, True, dtypes.bool_, out.device)
    hit = kernels.scatter_add(index, there, 0, (out.shape[0], *index.shape[1:]))
    kernels.choose(out, hit, kernels.scatter_add(index, rows, 0, out.shape), out)


@contextmanager
def _by_rows(
    params: Sequence[Any], tables: Sequence[Any], states: Sequence[State | None], start: float = 0.0
) -> Iterator[list[Any]]:
    """Replace tables by tensors of the rows that have gradients, and write these back at the end.

    Rows of the states are in the states under these tensors meanwhile. Other rows do not change.
    """
    held = [state for state in states if state is not None]
    stand_ins: dict[Any, Any] = {}
    changes: list[tuple[Any, Any, Any, list[NDArray]]] = []  # before any: memory may run out
    try:
        for p in tables:
            grad = p.grad.merge()
            rows = executor.primal_array(grad.rows)
            index = rows.reshape((rows.size, *[1] * (len(grad.shape) - 1)))
            alone = graph.exclusive(p)
            array = executor.primal_array(p)
            whole = [states_of(state, [p], start)[0] for state in held]
            part = stand_ins[p] = graph.wrap(kernels.gather(array, index, 0))
            part.grad, part.name = grad.values, p.name
            for state, slot in zip(held, whole, strict=True):
                state[part] = kernels.gather(slot, index, 0)
            dense = alone and array.strides == array.spec.strides
            changes.append((p, index, array if dense else array.copy(), whole))
        yield [stand_ins.get(p, p) for p in params]
        for p, index, out, whole in changes:
            _write_rows(out, index, executor.primal_array(stand_ins[p]))
            for state, slot in zip(held, whole, strict=True):
                _write_rows(slot, index, state[stand_ins[p]])
                state[p] = slot
            graph.set_array(p, out)
    finally:
        for part in stand_ins.values():
            for state in held:
                state.pop(part, None)


def _step(
    operation: str,
    params: Sequence[Any],
    states: Sequence[State | None],
    rule: Any,
    start: float = 0.0,
) -> None:
    """Update parameters and their states (None: no state) by the device's method of that name."""
    if tables := check_fit(operation, params):
        with _by_rows(params, tables, states, start) as params:
            return _step(operation, params, states, rule, start)
    prepared = [  # before anything changes: memory may run out
        (batch, *_arrays(batch), [s if s is None else states_of(s, batch, start) for s in states])
        for batch in by_dtype(params)
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
    if tables := check_fit("sgd", params):
        with _by_rows(params, tables, [velocities]) as params:
            return sgd(params, velocities, rule)
    prepared = [  # not by ``_step``, which is slower
        (batch, *_arrays(batch), None if velocities is None else states_of(velocities, batch))
        for batch in by_dtype(params)
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

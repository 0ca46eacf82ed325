"""Optimizer updates of many tensors at once: one call of the device per dtype.

An update reads parameters, gradients and state, and rebinds each parameter to its new array, so
that graphs which hold the old value keep it. Where no other object holds a parameter's memory, the
new values are written in place. State belongs only to the optimizer and changes in place.

What is computed is the optimizer's formula (``formula.py``), as a fused program; a device may have
a kernel of its own for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from needle import config, executor, graph, nancheck
from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.ndarray import Arrays, NDArray, array, empty, empty_of, full
from needle.devices import Device
from needle.errors import DtypeError, ShapeError, explain
from needle.ops.core.formula import Formula, Program, trace
from needle.ops.core.op import Op
from needle.ops.index.row_sparse import RowSparse

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import Tensor

State = dict["Tensor", NDArray]
"""For each parameter one array of its shape; float32 where the parameter is half precision."""


class Kernel(NamedTuple):
    """A formula that a device may compute by a kernel of its own.

    Attributes:
        name: the kernel: see ``Backend.update_kernel``.
        formula: what it computes.
        numbers: name and value of each flag, and the names of the other numbers with None.
    """

    name: str
    formula: Formula
    numbers: tuple[tuple[str, bool | None], ...]


class Batch(NamedTuple):
    """One update, not done yet: ``run`` does it.

    Attributes:
        name: of the optimizer, for errors.
        formula: what is computed.
        params: the parameters; all have gradients.
        states: the states in the formula's order, None for one that it does without.
        numbers: what the formula knows as ``numbers``: floats, and flags.
        start: the value at which missing states start.
        kernel: the device's kernel that may compute the formula; empty: none.
        climbs: whether gradients are negated first.
    """

    name: str
    formula: Formula
    params: list[Tensor]
    states: tuple[State | None, ...]
    numbers: dict[str, float]
    start: float = 0.0
    kernel: str = ""
    climbs: bool = False

    def has_kernel(self, spec: Spec) -> bool:
        """Return whether the device updates parameters like this one by a kernel of its own."""
        own = self.kernel and config.current().overrides == "on"
        return bool(own and spec.device.backend.update_kernel(self.kernel, spec.dtype))

    def rule(self, own: bool, dtype: str) -> tuple[Kernel | Program, Sequence[float]]:
        """Return the device's kernel or the formula's program for a dtype, and its numbers."""
        values = self.numbers
        if not own:
            kept = tuple(s is not None for s in self.states)
            return trace(self.formula, kept, values, _half(dtype))
        flags = tuple((k, x if type(x) is bool else None) for k, x in values.items())
        floats = [x for x in values.values() if type(x) is not bool]
        return Kernel(self.kernel, self.formula, flags), floats


def _half(dtype: str) -> str:
    return dtype if dtypes.as_dtype(dtype).itemsize == 2 else ""


def numbers_dtype(own: bool, spec: Spec) -> dtypes.DType:
    """Return the dtype of the numbers of an update of parameters like this one."""
    return dtypes.float64 if own or spec.dtype is dtypes.float64 else dtypes.float32


def _update(
    rule: Kernel | Program,
    numbers: NDArray | Sequence[float],
    outs: Arrays,
    params: Arrays,
    grads: Arrays,
    states: Sequence[Arrays | None],
) -> None:
    """Compute new parameters into outs, which may be the old ones; states change in place.

    Args:
        rule: what is computed.
        numbers: of the rule: an array [n] on the device; for a kernel also a list.
        outs: new parameters; these and all others are dense.
        params: of one dtype and device.
        grads: of their dtype.
        states: arrays for each parameter, or None for a state that is not there.
    """
    backend, dtype = outs[0].device.backend, outs[0].dtype
    if isinstance(rule, Kernel):
        kernel = backend.update_kernel(rule.name, dtype)
        flags = [flag for _, flag in rule.numbers if flag is not None]
        if kernel is not None:
            kernel(numbers, flags, outs, params, grads, *states)
            return
        values = iter(backend.download(numbers).tolist())
        known = {k: next(values) if x is None else x for k, x in rule.numbers}
        kept = tuple(s is not None for s in states)
        rule, found = trace(rule.formula, kept, known, _half(dtype.name))
        numbers = _numbers(found, outs[0].spec, False)
    held = [s for s in states if s is not None]
    backend.run_each(
        rule.steps, list(zip(outs, *held, strict=True)),
        list(zip(params, grads, *held, strict=True)), numbers, rule.results,
    )  # fmt: skip


def _numbers(values: Sequence[float], spec: Spec, own: bool) -> NDArray:
    return array(np.array(values), numbers_dtype(own, spec), spec.device)


def run(batch: Batch) -> None:
    """Update the parameters of a batch and their states.

    Raises:
        ShapeError, DtypeError: naming the parameter that does not fit its gradient.
    """
    if tables := check_fit(batch.name, batch.params):
        with _by_rows(batch.params, tables, batch.states, batch.start) as params:
            run(batch._replace(params=params))
        return
    prepared = []  # before anything changes: memory may run out
    for params in by_dtype(batch.params):
        held = [s if s is None else states_of(s, params, batch.start) for s in batch.states]
        spec = executor.spec_of(params[0])
        own = batch.has_kernel(spec)
        rule, numbers = batch.rule(own, spec.dtype.name)
        given = numbers if own else _numbers(numbers, spec, own)
        prepared.append((params, held, rule, given, _arrays(params)))
    for params, held, rule, given, (outs, arrays, grads) in prepared:
        _update(rule, given, outs, arrays, grads, held)
        for state, new in zip(batch.states, held, strict=True):
            if state is not None and new is not None:
                state.update(zip(params, new, strict=True))
        _rebind(batch.name, params, outs)


class Update(Op):
    """An optimizer's step for parameters of one dtype, as a node of the graph.

    Its inputs are the parameters, their gradients, each state of each parameter, and the rule's
    numbers in order. No gradient flows through it. Parameters do not depend on each other: one
    update of n of them is n updates of one.

    Attributes:
        count: number of parameters.
        kept: for each state of the formula whether it is there.
        rule: what is computed: ``Kernel`` or ``Program``.

    Shapes:   params, grads, states: count of each; numbers [n] -> new params, new states
    Dtypes:   states as ``states_of`` makes them; numbers as ``numbers_dtype`` says
    """

    count: int
    kept: tuple[bool, ...]
    rule: Kernel | Program
    is_differentiable = False

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        n = self.count
        return (*specs[:n], *specs[2 * n : -1])

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        return self.stepped(arrays, [False] * len(arrays))

    def flops(self, *specs: Spec) -> int:
        return sum(spec.size for spec in specs[:-1])

    def stepped(self, arrays: Arrays, free: Sequence[bool]) -> tuple[NDArray, ...]:
        """Return the new parameters and states; those of free inputs may be written in place."""
        n = self.count
        *groups, (numbers,) = [arrays[i : i + n] for i in range(0, len(arrays), n)]
        params, grads, *states = groups
        grads = [_dense(g.astype(p.dtype, copy=False)) for p, g in zip(params, grads, strict=True)]
        outs = [
            p if owned and _is_dense(p) else empty_of(p.spec)
            for p, owned in zip(params, free, strict=False)
        ]
        new = [
            [x if owned and _is_dense(x) else x.copy() for x, owned in zip(s, mine, strict=True)]
            for s, mine in ((s, free[i * n : i * n + n]) for i, s in enumerate(states, 2))
        ]
        rest = iter(new)
        given = [next(rest) if there else None for there in self.kept]
        _update(self.rule, numbers, outs, [_dense(p) for p in params], grads, given)
        return (*outs, *(x for state in new for x in state))


def _is_dense(x: NDArray) -> bool:
    return x.strides == x.spec.strides


def _dense(x: NDArray) -> NDArray:
    return x if x.strides == x.spec.strides else x.copy()


def by_dtype(params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Return the parameters of each device and dtype."""
    batches: dict[tuple[Device, dtypes.DType], list[Tensor]] = {}
    for p in params:
        spec = executor.spec_of(p)
        batches.setdefault((spec.device, spec.dtype), []).append(p)
    return iter(batches.values())


def check_fit(operation: str, params: Sequence[Tensor]) -> list[Tensor]:
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


def states_of(state: State, params: Sequence[Tensor], start: float = 0.0) -> list[NDArray]:
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


def _arrays(params: Sequence[Tensor]) -> tuple[list[NDArray], list[NDArray], list[NDArray]]:
    """Return arrays to write to, the parameters' and the gradients'."""
    outs, arrays, grads = [], [], []
    for p in params:
        alone = graph.exclusive(p)  # asked first: from here on we hold the array too
        array = executor.primal_array(p)
        dense = _is_dense(array)
        arrays.append(array if dense else array.copy())
        outs.append(array if alone and dense else empty(array.shape, array.dtype, array.device))
        grads.append(_dense(executor.primal_array(p.grad).astype(array.dtype, copy=False)))
    return outs, arrays, grads


def _rebind(operation: str, params: Sequence[Tensor], outs: Sequence[NDArray]) -> None:
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
    params: Sequence[Tensor],
    tables: Sequence[Tensor],
    states: Sequence[State | None],
    start: float = 0.0,
) -> Iterator[list[Tensor]]:
    """Replace tables by tensors of the rows that have gradients, and write these back at the end.

    Rows of the states are in the states under these tensors meanwhile. Other rows do not change.
    """
    held = [state for state in states if state is not None]
    stand_ins: dict[Tensor, Tensor] = {}
    changes: list[
        tuple[Tensor, NDArray, NDArray, list[NDArray]]
    ] = []  # before any: memory may run out
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

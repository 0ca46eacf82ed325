"""Trace: run a function once with values that wait, and find what it read and changed.

Nothing stays changed: a journal notes each tensor before it changes, and all is put back. What the
function read of tensors older than the trace becomes a cell, and so does what it changed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from needle import dtype as dtypes
from needle import executor, graph, tracing
from needle.backend.array import make_spec
from needle.compile import cells
from needle.ops import random
from needle.ops.core import operands, update
from needle.ops.core.starts import Placeholder, become
from needle.ops.elementwise.functions import negative
from needle.ops.index.row_sparse import RowSparse

_PLACE = Placeholder(-1, None)
ALONE = 1 << 12
"""Elements from which on a parameter has an update of its own."""


class Step(NamedTuple):
    """One call of an optimizer's ``step``.

    Attributes:
        optimizer: the optimizer.
        having: for each group the parameters that were updated.
        rules: for each batch how it is computed: whether by the device's own kernel or by the
            formula's program, and for which dtypes.
        signature: of the updates: see ``signature``.
    """

    optimizer: Any
    having: list[list[Any]]
    rules: list[set[tuple[bool, str]]]
    signature: Any


class Numbers(NamedTuple):
    """The numbers of an update: those of a batch of a step, for a device's kernel or a program."""

    step: int
    batch: int
    own: bool
    dtype: str


class Stream(NamedTuple):
    """The key and the counter of all draws of a call."""


def signature(
    batches: Sequence[Any], rules: Sequence[set[tuple[bool, str]]]
) -> tuple[Any, list[dict[tuple[bool, str], Sequence[float]]]]:
    """Return what must be the same in each call about an optimizer's updates, and their numbers."""
    if len(batches) != len(rules):
        return None, []
    found = [{how: b.rule(*how) for how in hows} for b, hows in zip(batches, rules, strict=True)]
    same = [
        (
            b.name,
            b.climbs,
            list(map(id, b.params)),
            [s is None for s in b.states],
            {how: rule for how, (rule, _) in known.items()},
        )
        for b, known in zip(batches, found, strict=True)
    ]
    return same, [{how: numbers for how, (_, numbers) in known.items()} for known in found]


def _parts(params: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the parameters of each update: a large one is alone, so that its gradient dies early.

    The small ones of a dtype are together: a kernel for each takes longer than they do.
    """
    for batch in update.by_dtype(params):
        small = [p for p in batch if p.size < ALONE]
        yield from ([small] if small else [])
        yield from ([p] for p in batch if p.size >= ALONE)


class Trace:
    """What a thread's trace knows; ops, modules and optimizers tell it what they do.

    Attributes:
        since: the number of the first tensor or node made within it.
        counter: of the generator when it began.
        drawn: by how much a call moves it.
        steps: the optimizers' steps.
        places: the nodes of numbers, and what they are.
        slots: for each state and parameter the tensor of its value now, and its cell.
        buffers: for each buffer that was assigned to, its tensor before.
        modules: the modules that were called.
        made: the modules that were made within it.
        consumed: gradients that an update read and that are None afterwards, by identity.
        before: how each older tensor was that the function changed, by identity.
        lines: the user's line of each node, by identity.
        end: the number of the first tensor or node made after it.
        static_graph: the graph of ``needle.static`` that is being defined, or None.
    """

    static_graph: Any = None

    def __init__(self, keep_grads: bool = False) -> None:
        self.keep_grads = keep_grads
        self.generator = random.generator_now()
        self.counter = 0 if self.generator is None else self.generator.counter
        self.drawn = 0
        self.steps: list[Step] = []
        self.places: dict[Any, Numbers | Stream] = {}
        self.slots: dict[tuple[int, Any], tuple[Any, Any]] = {}
        self.slot_leaves: dict[Any, cells.Slot] = {}
        self.buffers: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self.modules: dict[int, Any] = {}
        self.made: dict[int, Any] = {}
        self.consumed: dict[int, Any] = {}
        self.lines: dict[int, str] = {}
        self.journal: list[Any] = []
        self.before: dict[int, Any] = {}
        self.end = 0
        self._counted: list[tuple[Any, Any]] = []
        self._streams: dict[Any, Any] = {}
        self._specs: dict[Any, Any] = {}
        self.since = graph.next_serial()

    # ---- what others tell it -------------------------------------------------------

    def knows(self, tensor: Any) -> bool:
        """Return whether a tensor that is older may be read: a number that is a constant."""
        return operands.is_constant(tensor)

    def infer(self, op: Any, specs: tuple[Any, ...]) -> Any:
        """Return the spec of an op's result, and remember it."""
        key = (op, *specs)
        found = self._specs.get(key)
        if found is None:
            found = self._specs[key] = op.infer(*specs)
        return found

    def stream(self, device: Any) -> Any:
        """Return the operand of draws on a device."""
        if device not in self._streams:
            spec = make_spec(dtypes.int64, device, (2,))
            self._streams[device] = self._place(spec, Stream())
        return self._streams[device]

    def _place(self, spec: Any, what: Any) -> Any:
        made = graph.pend(_PLACE, (), spec, False)
        self.places[made.node] = what
        return made

    def calls(self, module: Any) -> None:
        """Note a module that is called."""
        if id(module) not in self.made:
            self.modules[id(module)] = module

    def below(self) -> list[Any]:
        """Return the modules in those that were called, but were not called themselves."""
        found: dict[int, Any] = {}
        waiting = list(self.modules.values())
        while waiting:
            for _, x, _ in waiting.pop()._own():
                if hasattr(x, "_own") and id(x) not in self.modules and id(x) not in found:
                    found[id(x)] = x
                    waiting.append(x)
        return list(found.values())

    def assigns(self, module: Any, name: str, value: Any) -> None:
        """Note a buffer that is assigned to; refuse any other attribute that changes.

        Raises:
            TraceError: for another attribute.
        """
        old = module.__dict__.get(name)
        if not module.__dict__:  # it is made here
            self.made[id(module)] = module
        elif id(module) in self.made:
            pass
        elif name in module._buffers:
            self.buffers.setdefault((id(module.__dict__), name), (module.__dict__, name, old))
        elif old is not value or name not in module.__dict__:
            raise tracing.refused(
                f"{type(module).__name__}.{name} is set, which would happen in the first call only",
                "register_buffer for a tensor that changes from call to call; keep other changes "
                "outside the function",
            )

    def step(self, optimizer: Any) -> None:
        """Add an optimizer's step as nodes."""
        having = [[p for p in g["params"] if p.grad is not None] for g in optimizer.groups]
        batches = optimizer.begin(having)
        place = len(self.steps)
        rules: list[set[tuple[bool, str]]] = []
        self.steps.append(Step(optimizer, having, rules, None))
        with executor.modes(recording=False):
            for i, batch in enumerate(batches):
                rules.append(set())
                for params in _parts(batch.params):
                    spec = params[0].spec
                    how = batch.has_kernel(spec), spec.dtype.name
                    rules[i].add(how)
                    self._update(batch._replace(params=params), Numbers(place, i, *how))
        self.steps[place] = Step(optimizer, having, rules, signature(batches, rules)[0])
        advance(optimizer, batches)
        self._counted.append((optimizer, batches))

    def _update(self, batch: Any, place: Numbers) -> None:
        params = batch.params
        if any(isinstance(p.grad, RowSparse) for p in params):
            raise tracing.refused(
                "an optimizer's step takes a gradient by rows, whose shape depends on values",
                "Embedding(sparse=False), or the step outside the function",
            )
        update.check_fit(batch.name, params)
        grads = [p.grad for p in params]
        if not self.keep_grads:
            self.consumed.update((id(g), g) for g in grads)
        kept = [s for s in batch.states if s is not None]
        slots = [self._slot(s, p, batch) for s in kept for p in params]
        rule, numbers = batch.rule(place.own, place.dtype)
        dtype = update.numbers_dtype(place.own, params[0].spec)
        spec = make_spec(dtype, params[0].spec.device, (len(numbers),))
        op = update.Update.of(len(params), tuple(s is not None for s in batch.states), rule)
        inputs = [
            *params, *(negative(g) if batch.climbs else g for g in grads), *slots,
            self._place(spec, place),
        ]  # fmt: skip
        specs = tuple(x.spec for x in (*params, *slots))
        parts = graph.pend(op, inputs, specs, False).tuple()
        for p, new in zip(params, parts, strict=False):
            become(p, new)
        keys = [(id(s), p) for s in kept for p in params]
        for key, new in zip(keys, parts[len(params) :], strict=True):
            self.slots[key] = (new, self.slots[key][1])

    def _slot(self, state: Any, p: Any, batch: Any) -> Any:
        """Return the tensor of a state's value now."""
        if (id(state), p) not in self.slots:
            (array,) = update.states_of(state, [p], batch.start)
            tensor = graph.wrap(array)
            cell = cells.Slot(state, p, array.spec, batch.start)
            self.slot_leaves[graph.leaf(tensor)] = cell
            self.slots[id(state), p] = (tensor, cell)
        return self.slots[id(state), p][0]

    # ---- around the function -----------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace what runs in the block."""
        outer = graph.set_journal(self.journal)
        try:
            with tracing.entered(self), executor.modes(lazy=True):
                yield
        finally:
            graph.set_journal(outer)

    def restore(self) -> None:
        """Put back tensors, buffers, counts and the generator."""
        while self._counted:
            advance(*self._counted.pop(), -1)
        for entry in reversed(self.journal):
            if type(entry) is tuple:
                graph.restore(*entry)
        for attributes, name, tensor in self.buffers.values():
            attributes[name] = tensor
        self.end = graph.next_serial()
        self.journal.clear()
        self.slots.clear()
        self.consumed.clear()
        if self.generator is not None:
            self.drawn = self.generator.counter - self.counter
            self.generator.counter = self.counter
            random.keep(self.generator)

    def forget(self) -> None:
        """Drop all nodes: what is alive then is held from outside."""
        for notes in (
            self.places,
            self.slot_leaves,
            self._streams,
            self._specs,
            self.before,
            self.made,
        ):
            notes.clear()


def advance(optimizer: Any, batches: Sequence[Any], by: int = 1) -> None:
    """Count a step of an optimizer; with ``by=-1`` take it back."""
    for batch in batches:
        optimizer.counted(batch, by)
    optimizer.t += by


def kept_outside(trace: Trace) -> str | None:
    """Return the line of a tensor made while tracing that something outside holds, or None."""
    if tracing.active:  # another thread traces: its tensors look the same
        return None

    def lines() -> list[str]:
        return [
            trace.lines.get(id(x.node), "?")
            for x in graph.tensors()
            if trace.since <= x.serial < trace.end and x.array is None and x.node is not None
        ]

    if lines():
        gc.collect()
        return next(iter(lines()), None)
    return None

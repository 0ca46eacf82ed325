"""Sources and Stores: how arrays come into a program and go out, quickly, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any

import numpy as np

from needle import core, executor, graph
from needle.backend.ndarray import NDArray, empty_of
from needle.compile import cells
from needle.compile.build import Bound
from needle.compile.trace import Numbers, Stream
from needle.ops import random


def _gather(tensors: list[Any], specs: list[Any]) -> tuple[list[Any], list[bool]] | None:
    """Return the arrays of tensors, and for each whether nobody else holds it.

    None if one has another spec than expected, is not dense, waits, or is no tensor.
    """
    if not all(isinstance(x, graph.TensorBase) for x in tensors):
        return None
    alone = [graph.exclusive(x) for x in tensors]
    arrays = [x.array for x in tensors]
    for found, spec in zip(arrays, specs, strict=True):
        if found is None or found.spec is not spec or found.strides != spec.strides:
            return None
    return arrays, alone


def _set_arrays(tensors: list[Any], arrays: list[NDArray]) -> None:
    for x, new in zip(tensors, arrays, strict=True):
        graph.set_array(x, new)


if core.native is not None:
    _gather, _set_arrays = core.native.gather_arrays, core.native.set_arrays


class _Slots:
    """The states of one kind of an optimizer, at some sources."""

    def __init__(self, state: dict[Any, NDArray]) -> None:
        self.state = state
        self.slots: list[cells.Slot] = []
        self.parameters: list[Any] = []
        self.at: list[int] = []
        self.known: list[Any] = []  # as they were in the last call; at first something else

    def add(self, slot: cells.Slot, at: int) -> None:
        self.slots.append(slot)
        self.parameters.append(slot.parameter)
        self.at.append(at)
        self.known.append(self)

    def gather(self) -> list[Any] | None:
        found: list[Any] = list(map(self.state.get, self.parameters))
        if all(map(is_, found, self.known)):
            return found
        for i, x in enumerate(found):
            if x is self.known[i]:
                continue
            slot = self.slots[i]
            x = slot.array() if x is None else x
            if x.spec is not slot.spec or x.strides != x.spec.strides:
                return None
            found[i] = self.known[i] = x
        return found


class Sources:
    """Brings the arrays of all sources."""

    def __init__(self, bound: Bound) -> None:
        self.held: list[Any] = []
        self.buffers: list[cells.Buffer] = []
        self.rest: list[tuple[int, Any, Any, Any]] = []
        self.numbers: list[tuple[int, Numbers, Any]] = []
        self.streams: list[tuple[int, Any]] = []
        slots: dict[int, _Slots] = {}
        held_at: list[int] = []
        buffers_at: list[int] = []
        every = zip(bound.sources, bound.specs, bound.strides, strict=True)
        for i, (cell, spec, strides) in enumerate(every):
            kind = type(cell)
            if kind is Numbers:
                self.numbers.append((i, cell, spec))
            elif kind is Stream:
                self.streams.append((i, spec))
            elif kind is cells.Held and strides is None:
                self.held.append(cell.owner)
                held_at.append(i)
            elif kind is cells.Buffer and strides is None:
                self.buffers.append(cell)
                buffers_at.append(i)
            elif kind is cells.Slot:
                slots.setdefault(id(cell.state), _Slots(cell.state)).add(cell, i)
            else:
                self.rest.append((i, cell, spec, strides))
        self.slots = list(slots.values())
        self.specs = [bound.specs[i] for i in (*held_at, *buffers_at)]
        at = [*held_at, *buffers_at, *(i for part in self.slots for i in part.at)]
        at += [x[0] for part in (self.rest, self.numbers, self.streams) for x in part]
        self.count = len(at)
        self._sorted = _picker(sorted(range(len(at)), key=at.__getitem__))

    def gather(self, arguments: list[Any]) -> tuple[list[Any], list[bool]] | None:
        """Return the arrays, and which may be written; None if one is not as expected.

        Numbers and streams are still missing.
        """
        tensors = [*self.held, *[attributes.get(name) for attributes, name in self.buffers]]
        held = _gather(tensors, self.specs) or self._waiting(tensors)
        if held is None:
            return None
        arrays, alone = held
        for part in self.slots:
            kept = part.gather()
            if kept is None:
                return None
            arrays += kept
            alone += [True] * len(kept)
        for _, cell, spec, strides in self.rest:
            found, exclusive = cells.found(cell, arguments)
            if found is None or found.spec is not spec:
                return None
            if found.strides != (spec.strides if strides is None else strides):
                return None
            arrays.append(found)
            alone.append(exclusive)
        missing = self.count - len(arrays)
        arrays += [None] * missing
        alone += [False] * missing
        return self._sorted(arrays), self._sorted(alone)

    def _waiting(self, tensors: list[Any]) -> tuple[list[Any], list[bool]] | None:
        """Return what ``_gather`` does, once tensors have values that wait: lazy mode."""
        waiting = [x for x in tensors if isinstance(x, graph.TensorBase) and x.array is None]
        for x in waiting:
            executor.array_of(x)
        return _gather(tensors, self.specs) if waiting else None

    def fill(self, arrays: list[Any], numbers: Sequence[Sequence[Any]]) -> None:
        """Add numbers and streams: those of each batch of each step of a call."""
        for i, cell, spec in self.numbers:
            values = numbers[cell.step][cell.batch][cell.own, cell.dtype]
            arrays[i] = _uploaded(np.array(values), spec)
        for i, spec in self.streams:
            generator = random.generator_now()
            assert generator is not None
            place = np.array([generator.seed, generator.counter], np.uint64).view(np.int64)
            arrays[i] = _uploaded(place, spec)


def _picker(places: list[int]) -> Callable[[list[Any]], list[Any]]:
    """Return a function that picks from a list what is at these places."""
    if len(places) < 2:  # then itemgetter gives no tuple
        return lambda values: [values[i] for i in places]
    pick = itemgetter(*places)
    return lambda values: list(pick(values))


def _uploaded(values: Any, spec: Any) -> NDArray:
    """Return a new array of the numbers of one spec, whatever their dtype."""
    made = empty_of(spec)
    if values.dtype != spec.dtype.numpy:
        with np.errstate(all="ignore"):
            values = values.astype(spec.dtype.numpy)
    spec.device.backend.upload(made, values)
    return made


class Stores:
    """Take the arrays that cells hold after a call."""

    def __init__(self, bound: Bound) -> None:
        self.held: list[Any] = []
        self.held_at: list[int] = []
        self.states: dict[int, tuple[dict[Any, NDArray], list[Any], list[int]]] = {}
        self.rest: list[tuple[int, Any]] = []
        self.results = bound.results
        self.delivered = bound.delivered
        for at, (_, index) in enumerate(bound.listing.stores):
            cell = bound.sources[index]
            if type(cell) is cells.Held:
                self.held.append(cell.owner)
                self.held_at.append(at)
            elif type(cell) is cells.Slot:
                _, parameters, places = self.states.setdefault(id(cell.state), (cell.state, [], []))
                parameters.append(cell.parameter)
                places.append(at)
            else:
                self.rest.append((at, cell))

    def put(self, arguments: list[Any], outputs: list[Any], stored: list[Any]) -> None:
        """Store the arrays of a run."""
        _set_arrays(self.held, [stored[i] for i in self.held_at])
        for state, parameters, places in self.states.values():
            state.update(zip(parameters, [stored[i] for i in places], strict=True))
        for i, cell in self.rest:
            cell.put(arguments, stored[i])
        for cell, x in zip(self.delivered, outputs[self.results :], strict=True):
            cell.put(arguments, x)

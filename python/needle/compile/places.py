"""Sources and Stores: how arrays come into a program and go out, quickly, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import core, graph
from needle.backend.ndarray import NDArray, array
from needle.compile import cells
from needle.compile.build import Bound
from needle.compile.trace import Numbers, Stream
from needle.ops import random


def _gather(tensors: list[Any], specs: list[Any]) -> tuple[list[Any], list[bool]] | None:
    """Return the arrays of tensors, and for each whether nobody else holds it.

    None if one has another spec than expected, or is not dense.
    """
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
        self.known: list[Any] = []  # as they were in the last call

    def add(self, slot: cells.Slot, at: int) -> None:
        self.slots.append(slot)
        self.parameters.append(slot.parameter)
        self.at.append(at)
        self.known.append(None)

    def gather(self) -> list[Any] | None:
        found: list[Any] = list(map(self.state.get, self.parameters))
        for i, x in enumerate(found):
            if x is self.known[i] and x is not None:
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
        self.count = len(bound.sources)
        self.held: list[Any] = []
        self.specs: list[Any] = []
        self.at: list[int] = []
        self.rest: list[tuple[int, Any, Any, Any]] = []
        self.numbers: list[tuple[int, Numbers, Any]] = []
        self.streams: list[tuple[int, Any]] = []
        slots: dict[int, _Slots] = {}
        every = zip(bound.sources, bound.specs, bound.strides, strict=True)
        for i, (cell, spec, strides) in enumerate(every):
            kind = type(cell)
            if kind is Numbers:
                self.numbers.append((i, cell, spec))
            elif kind is Stream:
                self.streams.append((i, spec))
            elif kind is cells.Held and strides is None:
                self.held.append(cell.owner)
                self.specs.append(spec)
                self.at.append(i)
            elif kind is cells.Slot:
                slots.setdefault(id(cell.state), _Slots(cell.state)).add(cell, i)
            else:
                self.rest.append((i, cell, spec, strides))
        self.slots = list(slots.values())

    def gather(self, arguments: list[Any]) -> tuple[list[Any], list[bool]] | None:
        """Return the arrays, and which may be written; None if one is not as expected.

        Numbers and streams are still missing.
        """
        for x in self.held:
            if x.array is None:  # lazy mode
                cells.found(cells.Held(x), arguments)
        held = _gather(self.held, self.specs)
        if held is None:
            return None
        arrays: list[Any] = [None] * self.count
        alone = [False] * self.count
        for i, found, exclusive in zip(self.at, *held, strict=True):
            arrays[i], alone[i] = found, exclusive
        for part in self.slots:
            kept = part.gather()
            if kept is None:
                return None
            for i, found in zip(part.at, kept, strict=True):
                arrays[i], alone[i] = found, True
        for i, cell, spec, strides in self.rest:
            found, exclusive = cells.found(cell, arguments)
            if found is None or found.spec is not spec:
                return None
            if found.strides != (spec.strides if strides is None else strides):
                return None
            arrays[i], alone[i] = found, exclusive
        return arrays, alone

    def fill(self, arrays: list[Any], batches: Sequence[Any]) -> None:
        """Add numbers and streams, for the updates of a call."""
        for i, cell, spec in self.numbers:
            _, numbers = batches[cell.step][1][cell.batch].rule(cell.own, cell.dtype)
            arrays[i] = array(np.array(numbers), spec.dtype, spec.device)
        for i, spec in self.streams:
            generator = random.generator_now()
            assert generator is not None
            place = np.array([generator.seed, generator.counter], np.uint64).view(np.int64)
            arrays[i] = array(place, spec.dtype, spec.device)


class Stores:
    """Take the arrays that cells hold after a call."""

    def __init__(self, bound: Bound) -> None:
        self.held: list[Any] = []
        self.held_at: list[int] = []
        self.rest: list[tuple[int, Any]] = []
        self.results = bound.results
        self.delivered = bound.delivered
        for at, (_, index) in enumerate(bound.listing.stores):
            cell = bound.sources[index]
            if type(cell) is cells.Held:
                self.held.append(cell.owner)
                self.held_at.append(at)
            else:
                self.rest.append((at, cell))

    def put(self, arguments: list[Any], outputs: list[Any], stored: list[Any]) -> None:
        """Store the arrays of a run."""
        _set_arrays(self.held, [stored[i] for i in self.held_at])
        for i, cell in self.rest:
            if type(cell) is cells.Slot:
                cell.state[cell.parameter] = stored[i]
            else:
                cell.put(arguments, stored[i])
        for cell, x in zip(self.delivered, outputs[self.results :], strict=True):
            cell.put(arguments, x)

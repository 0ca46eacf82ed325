"""What a checkpoint is read into: modules, optimizers, arrays. All is compared first.

Each class takes a target and its part of the state, with a ``Stored`` in the place of each tensor.
It says in ``faults`` what does not fit, gives memory for each tensor, and puts the values in their
places at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from needle import executor, graph
from needle.backend.ndarray import NDArray, empty
from needle.dtype import as_dtype
from needle.errors import ArgumentError, DataError, NeedleError, describe
from needle.io.reader import Entry
from needle.nn import Module

MOST_TOLD = 20
"""Most differences that a message lists."""


class Stored(NamedTuple):
    """A tensor in a file of a checkpoint."""

    file: str
    name: str
    entry: Entry

    def fault(self, name: str, shape: Any, kind: Any) -> Iterator[str]:
        """Yield how it differs from a tensor that is there."""
        have = (tuple(shape), as_dtype(kind))
        if have != (self.entry.shape, self.entry.kind):
            shown = [f"{k}[{', '.join(map(str, s)):.60}]" for s, k in (have, self.entry[1::-1])]
            yield f"wrong: {name} is {shown[0]}, the checkpoint has {shown[1]}"


class Part:
    """A target and its part of a state.

    Attributes:
        faults: what does not fit.
        arrays: for tensors of the checkpoint, the array that its values are read into.
    """

    def __init__(self, name: str, target: Any, saved: Any) -> None:
        self.name, self.target, self.saved = name, target, saved
        self.faults: list[str] = []
        self.arrays: dict[Stored, NDArray | np.ndarray[Any, Any]] = {}

    def prepare(self) -> None:
        """Fill ``arrays``; nothing of the target changes."""

    def finish(self, part: Any) -> None:
        """Put the values in their places. ``part`` is the state with tensors."""
        self.target.load_state_dict(part)

    def compare(self, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Note names that one side lacks, and what is not a tensor."""
        self.faults += [f"missing: {name}" for name in wanted if name not in found]
        self.faults += [f"unexpected: {name}" for name in found if name not in wanted]


class ModulePart(Part):
    """Parameters and buffers, which must be the checkpoint's in names, shapes and dtypes."""

    def __init__(self, name: str, target: Any, saved: Any) -> None:
        super().__init__(name, target, saved)
        self.given = dict(saved)
        for alias, first in getattr(saved, "aliases", {}).items():
            self.given.setdefault(alias, saved[first])
        self.items: dict[str, Any] = dict(target._saved())
        self.compare(self.items, self.given)
        self._compare_tensors()

    def _compare_tensors(self) -> None:
        first_of: dict[int, str] = {}
        for key, item in self.items.items():
            stored = self.given.get(key)
            if stored is None:
                continue
            if not isinstance(stored, Stored):
                self.faults.append(f"wrong: {key} is not a tensor in the checkpoint")
                continue
            self.faults += stored.fault(key, item.shape, item.dtype)
            first = first_of.setdefault(id(item), key)
            if self.given.get(first) != stored:
                self.faults.append(f"wrong: {key} is {first} here, not in the checkpoint")

    def prepare(self) -> None:
        for key, item in self.items.items():
            stored = self.given[key]
            if stored not in self.arrays:
                self.arrays[stored] = _writable(item)

    def finish(self, part: Any) -> None:
        taken: dict[Stored, int] = {}
        for key, item in self.items.items():
            stored = self.given[key]
            array = self.arrays[stored]
            if taken.setdefault(stored, id(item)) != id(item):  # tied there, not here
                array = array.copy()
            graph.set_array(item, array)


def _writable(item: Any) -> NDArray:
    """Return the array of a tensor if nobody else sees it, or else a new one like it."""
    alone = item.array is not None and graph.exclusive(item)
    if alone:
        return executor.primal_array(item)
    return empty(item.shape, item.dtype, item.device)


class OptimizerPart(Part):
    """The arrays of an optimizer: those it has are used again."""

    def __init__(self, name: str, target: Any, saved: Any) -> None:
        super().__init__(name, target, saved)
        mine = {key: executor.primal_array(x) for key, x in target.state_dict(copy=False).items()
                if isinstance(x, graph.TensorBase)}  # fmt: skip
        self.values = dict(saved)
        for key, stored in saved.items():
            if isinstance(stored, Stored):
                array = mine.get(key)
                fits = array is not None and not [*stored.fault(key, array.shape, array.dtype)]
                device = target.params[0].device
                self.values[key] = (
                    array if fits else empty(stored.entry.shape, stored.entry.kind, device)
                )
                self.arrays[stored] = self.values[key]
        try:  # a copy of the optimizer says what is wrong; it has the same parameters
            twin = copy.copy(target)
            twin.groups = [type(group)(group, twin) for group in target.groups]
            twin.state = {slot: {} for slot in target.state}
            twin.load_state_dict(self.values, copy=False)
        except NeedleError as error:
            self.faults.append(f"wrong: {str(error).removeprefix('load_state_dict: ')}")

    def finish(self, part: Any) -> None:
        self.target.load_state_dict(self.values, copy=False)


class ArraysPart(Part):
    """Arrays and tensors by name, in nested dicts and lists."""

    def __init__(self, name: str, target: Any, saved: Any) -> None:
        super().__init__(name, target, saved)
        self.places = dict(_leaves(target, ""))
        self.given = {key: x for key, x in _leaves(saved, "") if isinstance(x, Stored)}
        self.compare(self.places, self.given)
        for key, stored in self.given.items():
            x = self.places.get(key)
            if x is not None:
                self.faults += stored.fault(key, x.shape, x.dtype)
                if isinstance(x, np.ndarray) and not x.flags.writeable:
                    self.faults.append(f"wrong: {key} cannot be written")

    def prepare(self) -> None:
        for key, stored in self.given.items():
            x = self.places[key]
            self.arrays.setdefault(stored, _writable(x) if isinstance(x, graph.TensorBase) else x)

    def finish(self, part: Any) -> None:
        for key, stored in self.given.items():
            x, array = self.places[key], self.arrays[stored]
            if isinstance(x, graph.TensorBase):
                graph.set_array(x, array)
            elif x is not array:  # one tensor there, two here
                np.copyto(x, np.asarray(array))


def _leaves(x: object, place: str) -> Iterator[tuple[str, Any]]:
    """Yield what is in nested dicts, lists and tuples, by its path."""
    if isinstance(x, Stored) or not isinstance(x, (Mapping, list, tuple)):
        yield place, x
        return
    for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
        yield from _leaves(part, f"{place}/{key}" if place else str(key))


def parts(targets: Mapping[str, Any], state: Any) -> list[Part]:
    """Return each target with its part of a state; nothing has changed yet.

    Raises:
        ArgumentError: for a target that nothing can be read into.
        Misfit: with all differences between the targets and the state.
    """
    found, faults = [], []
    for name, target in targets.items():
        kind = _kind(name, target)
        if name not in state:
            faults.append(f"{name}: the checkpoint has no such part")
            continue
        part = kind(name, target, state[name])
        found.append(part)
        faults += [f"{name}: {fault}" for fault in part.faults]
    if faults:
        more = [f"and {len(faults) - MOST_TOLD:,} more"] if len(faults) > MOST_TOLD else []
        raise Misfit("\n  ".join([f"{len(faults):,} differences", *faults[:MOST_TOLD], *more]))
    for part in found:
        part.prepare()
    return found


def _kind(name: str, target: object) -> type[Part]:
    if isinstance(target, Module):
        return ModulePart
    if hasattr(target, "_places"):
        return OptimizerPart
    if hasattr(target, "load_state_dict"):
        return Part
    if isinstance(target, (Mapping, list)):
        return ArraysPart
    raise ArgumentError(
        f"load_into: {name}: expected a module, an optimizer, or arrays by name, "
        f"got {describe(target)}"
    )


class Misfit(DataError):
    """A checkpoint that does not fit what it is read into."""

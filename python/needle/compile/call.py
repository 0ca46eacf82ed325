"""Call: a program with its places outside, ready to run for arguments of one kind."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from needle import graph, tracing
from needle.backend.ndarray import array
from needle.backend.update import numbers_of, steady
from needle.compile import cells, tree
from needle.compile.build import Bound, Results
from needle.compile.trace import Numbers, Stream, Trace, advance, signature
from needle.errors import GradientError
from needle.ops import random
from needle.ops.base import Op


class _Outside(Op):
    """The result of a compiled function, whose graph is not there."""

    called = "compiled function"

    def compute(self, *arrays: Any) -> Any:
        raise GradientError("a compiled function has no node to compute again")

    def gradient(self, out_grad: Any, out: Any) -> Any:
        raise GradientError(
            "backward: the tensor is the result of a compiled function\n"
            "  rule: gradients do not flow into or out of a compiled function\n"
            "  try: call backward() inside the function, or .detach() the result"
        )


class ChangedError(Exception):
    """The program does not fit: an optimizer updates other parameters now."""


class Call:
    """A program for one kind of call.

    Attributes:
        bound: the listing and its places outside.
        arguments: how many of the sources are arguments.
    """

    def __init__(
        self, bound: Bound, found: Results, trace: Trace, frame: Any, mode: str, settings: Any
    ) -> None:
        from needle.compile.passes import run_passes

        self._frame, self._settings = frame, settings
        self.arguments = sum(type(x) is cells.Argument for x in bound.sources)
        self._cleared, self._needs, self._asked = found.cleared, found.needs, found.asked
        self._steps, self._generator = trace.steps, trace.generator is not None
        self._words = trace.drawn
        self._modules = [(m, _settings_of(m)) for m in trace.modules.values()]
        self._frozen = [
            (x.owner, x.owner.requires_grad) for x in bound.sources if type(x) is cells.Held
        ]
        self._changes = tracing.changes
        self.listing = run_passes(bound.listing, settings.check == "spec")
        self.bound = bound._replace(listing=self.listing)
        self.program = _program(self.listing, mode)

    # ---- whether it may run --------------------------------------------------------------

    def fits(self, arguments: list[Any], settings: Any) -> bool:
        """Return whether the program does what the function would do now."""
        if settings is not self._settings and settings != self._settings:
            return False
        if self._changes != tracing.changes:
            if any(_settings_of(m) != known for m, known in self._modules):
                return False
            if any(x.requires_grad != needs for x, needs in self._frozen):
                return False
            self._changes = tracing.changes
        for cell, there in self._asked:
            if (cell.tensor(arguments).grad is not None) != there:
                return False
        for step in self._steps:
            if len(step.optimizer.groups) != len(step.having):
                return False
        if self._generator is (random.generator_now() is None) and self._words:
            return False
        bound = self.bound
        for cell, spec, strides in zip(bound.sources, bound.specs, bound.strides, strict=True):
            if type(cell) is cells.Slot and cell.parameter not in cell.state:
                continue
            if type(cell) not in (cells.Argument, Numbers, Stream):
                array = cells.found(cell, arguments)[0]
                if array is None or array.spec is not spec:
                    return False
                if array.strides != (spec.strides if strides is None else strides):
                    return False
        return True

    # ---- running ---------------------------------------------------------------------------

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the program; on an error nothing is changed.

        Raises:
            ChangedError: if another program is needed.
        """
        batches: list[Any] = []
        try:
            self._begin(batches)
            arrays, exclusive = self._arrays(arguments, batches)
            outputs, stored = self.program.run(arrays, exclusive)
        except BaseException:
            for optimizer, made in reversed(batches):
                advance(optimizer, made, -1)
            raise
        generator = random.generator_now()
        if generator is not None:
            generator.counter += self._words
        del arrays
        self._store(arguments, outputs, stored)
        results = map(self._wrapped, outputs, self._needs)
        return tree.filled(self._frame, results)

    def _begin(self, batches: list[Any]) -> None:
        for step in self._steps:
            made = step.optimizer.begin(step.having)
            if signature(made) != step.signature:
                raise ChangedError
            batches.append((step.optimizer, made))
            advance(step.optimizer, made)

    def _arrays(self, arguments: list[Any], batches: list[Any]) -> tuple[list[Any], list[bool]]:
        arrays, exclusive = [], []
        for cell, spec in zip(self.bound.sources, self.bound.specs, strict=True):
            if type(cell) is Numbers:
                rule = batches[cell.step][1][cell.batch].rule
                numbers = np.array(numbers_of(steady(rule)))
                arrays.append(array(numbers, spec.dtype, spec.device))
                exclusive.append(False)
            elif type(cell) is Stream:
                generator = random.generator_now()
                assert generator is not None
                place = np.array([generator.seed, generator.counter], np.uint64).view(np.int64)
                arrays.append(array(place, spec.dtype, spec.device))
                exclusive.append(False)
            else:
                found, alone = cells.found(cell, arguments)
                arrays.append(found)
                exclusive.append(alone)
        return arrays, exclusive

    def _store(self, arguments: list[Any], outputs: list[Any], stored: list[Any]) -> None:
        for (_, index), x in zip(self.listing.stores, stored, strict=True):
            self.bound.sources[index].put(arguments, x)
        for cell, x in zip(self.bound.delivered, outputs[self.bound.results :], strict=True):
            cell.put(arguments, x)
        for cell in self._cleared:
            cell.put(arguments, None)

    def _wrapped(self, array: Any, needs: bool) -> Any:
        if needs:
            return graph.record(_OUTSIDE, (), array)
        return graph.wrap(array)


_OUTSIDE = _Outside.of()


def _settings_of(module: Any) -> list[Any]:
    """Return the attributes of a module that are no buffers, as they compare."""
    return [
        (name, value if isinstance(value, (int, float, str, bool)) else id(value))
        for name, value in module.__dict__.items()
        if name not in module._buffers
    ]


def _program(listing: Any, mode: str) -> Any:
    """Return the native program of a listing, or else the Python one."""
    from needle.compile.program import PythonProgram

    if mode != "python":
        try:
            lower = importlib.import_module("needle.compile.lower").lower
        except ImportError:
            return PythonProgram(listing)
        found = lower(listing)
        if found is not None:
            return found
    return PythonProgram(listing)

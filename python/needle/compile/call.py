"""Call: a program with its places outside, ready to run for arguments of one kind."""

from __future__ import annotations

from typing import Any

from needle import core, graph, tracing
from needle.compile import cells, frames, lower, rules
from needle.compile.again import again
from needle.compile.build import Bound, Results
from needle.compile.epilogue import join
from needle.compile.fuse import fuse
from needle.compile.passes import rewritten, run_passes
from needle.compile.places import Sources, Stores
from needle.compile.program import PythonProgram
from needle.compile.trace import Trace, advance, signature
from needle.errors import GradientError
from needle.ops import random
from needle.ops.core.attributes import exact
from needle.ops.core.op import Op


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
        traced: the listing as it was traced, but for ops that only stop gradients: they hold
            tensors of the trace.
        arguments: how many of the sources are arguments.
        frame: the structure of the result.
        mode: as ``compile`` takes it.
        needs: for each result, whether gradients would flow to it.
        shortened: ``tracing.changes`` when the native module took over its plain calls; or None.
        mode: that of ``compile``.
        why: why the program is one in Python; empty if it is native.
    """

    def __init__(
        self, bound: Bound, found: Results, trace: Trace, frame: Any, mode: str, settings: Any
    ) -> None:
        self.frame, self.mode, self._settings = frame, mode, settings
        self.shortened: Any = None
        self.arguments = sum(type(x) is cells.Argument for x in bound.sources)
        self._cleared, self.needs, self._asked = found.cleared, found.needs, found.asked
        self.steps, self._generator = trace.steps, trace.generator is not None
        self.words = trace.drawn
        self._modules = [(m, _settings_of(m)) for m in trace.modules.values()]
        self._below = [(m, _parts_of(m)) for m in trace.below()]
        self._frozen = [
            (x.owner, x.owner.requires_grad) for x in bound.sources if type(x) is cells.Held
        ]
        used = (
            [] if trace.static_graph else [*trace.modules.values(), *(x for x, _ in self._frozen)]
        )
        self._watches = [(w, w.count) for w in map(tracing.watch, used)]
        self._changes = tracing.changes
        self.traced = rewritten(bound.listing, rules.stop)
        self.listing = run_passes(bound.listing, settings.check == "spec")
        self.bound = bound._replace(listing=self.listing)
        self._sources, self._stores = Sources(self.bound), Stores(self.bound)
        self.program, self.why = _program(self.listing, mode)
        self._process = _process()

    # ---- whether it may run --------------------------------------------------------------

    def prepared(self, arguments: list[Any], settings: Any) -> Any:
        """Return the arrays for a run, or None where the function would do something else now."""
        if settings is not self._settings and settings != self._settings:
            return None
        if self._changes != tracing.changes and not self._as_before():
            return None
        if self._process != _process():
            return None
        for cell, there in self._asked:
            if (cell.tensor(arguments).grad is not None) != there:
                return None
        for step in self.steps:
            if len(step.optimizer.groups) != len(step.having):
                return None
        if self.words and self._generator is (random.generator_now() is None):
            return None
        return self._sources.gather(arguments)

    def has_effects(self) -> bool:
        """Return whether a run touches optimizers, random numbers or gradients."""
        return bool(self.steps or self.words or self._cleared or self._asked)

    def _as_before(self) -> bool:
        """Return whether modules have the settings that they had, and tensors the same needs."""
        if any(_settings_of(m) != known for m, known in self._modules):
            return False
        if any(_parts_of(m) != known for m, known in self._below):
            return False
        if any(watch.count != known for watch, known in self._watches):
            return False
        if any(x.requires_grad != needs for x, needs in self._frozen):
            return False
        self._changes = tracing.changes
        return True

    # ---- running ---------------------------------------------------------------------------

    def run(self, arguments: list[Any], prepared: tuple[list[Any], list[bool]]) -> Any:
        """Run the program with what ``prepared`` returned; on an error nothing is changed.

        Raises:
            ChangedError: if another program is needed.
        """
        arrays, exclusive = prepared
        batches: list[Any] = []
        try:
            self._begin(arrays, batches)
            outputs, stored = self.program.run(arrays, exclusive)
        except BaseException:
            self._take_back(batches)
            raise
        if self.words:
            random.skip(self.words)
        arrays.clear()
        self._stores.put(arguments, outputs, stored)
        for cell in self._cleared:
            cell.put(arguments, None)
        return frames.filled(self.frame, map(_wrapped, outputs, self.needs))

    def _begin(self, arrays: list[Any], batches: list[Any]) -> None:
        """Count the optimizers' steps, which go to ``batches``, and fill in the numbers."""
        numbers = []
        for step in self.steps:
            made = step.optimizer.begin(step.having)
            known, values = signature(made, step.rules)
            if known != step.signature:
                raise ChangedError
            numbers.append(values)
            batches.append((step.optimizer, made))
            advance(step.optimizer, made)
        self._sources.fill(arrays, numbers)

    def _take_back(self, batches: list[Any]) -> None:
        for optimizer, made in reversed(batches):
            advance(optimizer, made, -1)

    def measure(self, prepared: tuple[list[Any], list[bool]], times: int) -> list[float]:
        """Return the mean seconds of each row of the program over some runs; nothing changes.

        Raises:
            NeedleError: what a run raises.
        """
        batches: list[Any] = []
        try:
            self._begin(prepared[0], batches)
            return list(self.program.measure(prepared[0], times))
        finally:
            self._take_back(batches)


def _wrapped(array: Any, needs: bool) -> Any:
    return graph.record(OUTSIDE, (), array) if needs else graph.wrap(array)


OUTSIDE = _Outside.of()


def _settings_of(module: Any) -> list[Any]:
    """Return the attributes of a module as they compare; of buffers whether they are there."""
    return [
        (name, _compared(value, name in module._buffers)) for name, value in module.__dict__.items()
    ]


def _parts_of(module: Any) -> list[Any]:
    """Return what compares of a module that is not called: its mode, and its parts but buffers."""
    parts = [(name, _Same(x)) for name, x, _ in module._own() if name not in module._buffers]
    return [module.training, *parts]


def _compared(value: Any, is_buffer: bool) -> Any:
    if is_buffer:
        return value is None
    if hasattr(type(value), "compared"):  # hooks
        return value.compared()
    if isinstance(value, (list, tuple)):
        return [_compared(x, False) for x in value]
    return exact(value) if isinstance(value, (int, float, str, bool)) else _Same(value)


class _Same:
    """An object that is compared by identity; it is held, so that no other has its number."""

    __slots__ = ("held",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.held is self.held


def _program(listing: Any, mode: str) -> tuple[Any, str]:
    """Return the native program of a listing, or else the Python one and why."""
    if mode == "python":
        return PythonProgram(listing), "as asked for"
    listing = again(listing)
    found = lower.lower(fuse(join(listing)) if mode == "on" else listing)
    return (PythonProgram(listing), lower.why()) if found is None else (found, "")


def _process() -> Any:
    """Return what plans depend on beside settings."""
    return None if core.native is None else core.native.isa()

"""A listing as a native program: the device plans every kernel once, without running it.

The nodes' own ``compute`` runs in a dry mode of the native module: memory is virtual, and kernels
are noted instead of run. So overrides, expansions, views and the choice of kernels are those of
eager mode, and no op has a second rule for programs. Where ``compute`` reads values, as in linear
algebra and where integers are drawn, each run of the program calls it again, with arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from needle import config, core, executor
from needle.backend.ndarray import NDArray
from needle.compile.listing import Listing, Program
from needle.compile.program import PythonProgram, computed
from needle.errors import NotRecorded


class Row(NamedTuple):
    """One kernel of a native program.

    Attributes:
        node: position in the listing's order of the node that it is part of; -1: a copy at the end.
        kernel: what the kernel does, as far as the op's name does not say it.
        nbytes: bytes that it reads and writes at most.
        places: for each buffer (kind, number, offset in bytes): "value" (in the memory of the
            interval of that number), "source", "result" (outputs, then stores), "constant", or
            "none".
    """

    node: int
    kernel: str | None
    nbytes: int
    places: list[tuple[str, int, int]]


class Interval(NamedTuple):
    """Memory in the arena while it is in use: of a value, and of those computed in its place.

    Attributes:
        nbytes: its size.
        first: the first kernel that uses it.
        last: the kernel after the last one that does.
        offset: where it lies.
    """

    nbytes: int
    first: int
    last: int
    offset: int


class NativeProgram:
    """A listing whose kernels run one after the other in C++, in memory that was planned before."""

    def __init__(self, listing: Listing, native: Any) -> None:
        self.listing, self.native = listing, native

    def run(
        self, arrays: Sequence[NDArray], exclusive: Sequence[bool]
    ) -> tuple[list[NDArray], list[NDArray]]:
        """Run once; see ``Program``."""
        found = self.native.run(arrays, exclusive)
        if found is None:  # nothing was stored; the definition raises what eager mode raises
            return self._definition().run(arrays, exclusive)
        return found

    def _definition(self) -> Program:
        return PythonProgram(self.listing)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all values that are neither sources nor results."""
        return self.native.arena_bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the largest workspace of a kernel."""
        return self.native.workspace_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of the results that get new memory in each call."""
        return self.native.result_bytes

    def rows(self) -> list[Row]:
        """Return all kernels in the order in which they run."""
        return [Row(*row) for row in self.native.rows()]

    def intervals(self) -> list[Interval]:
        """Return all values in the arena."""
        return [Interval(*interval) for interval in self.native.intervals()]

    def measure(self, arrays: Sequence[NDArray], times: int = 10) -> list[float]:
        """Return the mean seconds of each kernel over so many runs, which store nothing.

        Raises:
            NeedleError: what a run with these arrays raises.
            NotRecorded: if the program cannot run with them, but eager mode can.
        """
        found = self.native.measure(arrays, times)
        if found is None:
            self._definition().run(arrays, [False] * len(arrays))
            raise NotRecorded("measure: a kernel refused its input, but eager mode accepts it")
        return found


class _Last(threading.local):
    why = ""


_last = _Last()


def why() -> str:
    """Return why this thread's last ``lower`` returned None; empty if it did not."""
    return _last.why


def lower(listing: Listing) -> NativeProgram | None:
    """Return the native program of a listing for the device ``cpu``, or None.

    None without the native module, and where an op cannot be noted: ``why`` says which. Plans are
    those of this moment's settings, threads and instruction set.

    Raises:
        NeedleError: what an op raises in eager mode for these specs.
    """
    _last.why = _obstacle(listing)
    if _last.why:
        return None
    try:
        native = _record(listing)
    except NotRecorded as error:
        _last.why = str(error)
        return None
    if config.current().check == "poison":
        native.poison()
    return NativeProgram(listing, native)


def _obstacle(listing: Listing) -> str:
    if core.native is None:
        return "there is no native module"
    for node in (*listing.sources, *listing.order):
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if not spec.device.backend.records:
                return f"{node.op} is on {spec.device}"
    return ""


def _record(listing: Listing) -> Any:
    """Return the native program that the dry run of a listing notes.

    Raises:
        NotRecorded: naming the op that cannot be noted.
    """
    recording = core.native.Recording()  # type: ignore[union-attr]
    with _dry(recording), executor.modes(recording=False, lazy=False):
        values: dict[Any, Any] = {node: array for node, array in listing.constants}
        for node in listing.sources:
            values[node] = recording.source(node.spec, _layout(node))
        for i, node in enumerate(listing.order):
            recording.set_node(i)
            values[node] = _noted(recording, node, [values[below] for below in node.inputs])
        recording.set_node(-1)
        outputs = [values[node] for node in listing.outputs]
        stores = [values[node] for node, _ in listing.stores]
        program = recording.finish(outputs, stores, [cell for _, cell in listing.stores])
        del values, outputs, stores
    if recording.live:
        raise NotRecorded("an op keeps memory from one call to the next")
    return program


def _layout(node: Any) -> tuple[int, ...]:
    """Return the strides for which a source is planned; empty for a dense one."""
    strides = getattr(node.op, "strides", None) or ()
    return strides if min(strides, default=0) >= 0 else ()


@contextmanager
def _dry(recording: Any) -> Iterator[None]:
    recording.start()
    try:
        yield
    finally:
        recording.stop()


def _noted(recording: Any, node: Any, arrays: list[Any]) -> Any:
    try:
        return node.op.compute(*arrays)
    except NotRecorded as error:
        if not all(isinstance(x, NDArray) for x in arrays):
            raise NotRecorded(f"{node.op.name}: {error}") from None
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    found = recording.host(partial(_on_host, node), arrays, specs)
    return tuple(found) if isinstance(node.spec, tuple) else found[0]


def _on_host(node: Any, *arrays: NDArray) -> tuple[NDArray, ...]:
    """Return the results of a node, which a run asks for; errors are those of eager mode."""
    with executor.modes(recording=False, lazy=False):
        found = computed(node, arrays)
    return found if isinstance(found, tuple) else (found,)

"""PythonProgram: the definition of a program, for every device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from needle import executor, graph
from needle.backend.ndarray import NDArray
from needle.compile.listing import Listing
from needle.errors import NeedleError
from needle.ops.core.update import Update


def computed(node: Any, given: Sequence[Any]) -> Any:
    """Return the value of a node; its error is that of eager mode, with the user's line."""
    try:
        return node.op.compute(*given)
    except (MemoryError, OverflowError, NeedleError) as error:
        raise executor.placed(node, error)  # noqa: B904  (a name here would keep the error)


def node_device(node: Any) -> Any:
    """Return where a node's value is."""
    spec = node.spec[0] if type(node.spec) is tuple else node.spec
    return spec.device


class PythonProgram:
    """Run the nodes of a listing in order, each by its op's ``compute``.

    A value is dropped after its last use. Values that a caller sees are copied where they share
    memory with a source, a constant or each other.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        kept = {*listing.outputs, *(node for node, _ in listing.stores)}
        last: dict[Any, int] = {}
        for i, node in enumerate(listing.order):
            for below in node.inputs:
                last[below] = i
        self._dying: list[list[Any]] = [[] for _ in listing.order]
        for node, i in last.items():
            if node not in kept:
                self._dying[i].append(node)
        self._last = last
        self._cell_of = {node: i for i, node in enumerate(listing.sources)}
        self._stored = {index for _, index in listing.stores}

    def measure(self, arrays: Sequence[NDArray], times: int = 10) -> list[float]:
        """Return the mean seconds of each node over so many runs, which store nothing."""
        total = [0.0] * len(self.listing.order)
        moments: list[float] = []
        for _ in range(times):
            moments[:] = [time.perf_counter()]
            self.run(arrays, [False] * len(arrays), lambda: moments.append(time.perf_counter()))
            for i, (start, end) in enumerate(pairwise(moments)):
                total[i] += end - start
        return [seconds / times for seconds in total]

    def run(
        self,
        arrays: Sequence[NDArray],
        exclusive: Sequence[bool],
        after: Callable[[], None] | None = None,
    ) -> tuple[list[NDArray], list[NDArray]]:
        """Run once, see ``Program``; call ``after`` after each node."""
        values: dict[Any, Any] = dict(self.listing.constants)
        values.update(zip(self.listing.sources, arrays, strict=True))
        with executor.modes(recording=False, lazy=False):
            for i, node in enumerate(self.listing.order):
                given = [values[below] for below in node.inputs]
                if type(node.op) is Update:
                    values[node] = node.op.stepped(given, self._free(node, i, exclusive))
                else:
                    values[node] = computed(node, given)
                del given
                for below in self._dying[i]:
                    del values[below]
                if after is not None:
                    node_device(node).backend.synchronize()
                    after()
            return self._results(values, arrays)

    def _free(self, node: Any, i: int, exclusive: Sequence[bool]) -> list[bool]:
        """Return which inputs of an update may be written: cells that nothing reads later."""
        later = self.listing.order[i + 1 :]
        safe = all(type(x.op).__name__ in ("Update", "TupleGetItem", "Start") for x in later)
        found = []
        for below in node.inputs:
            place = self._cell_of.get(below)
            mine = place is not None and place in self._stored and exclusive[place]
            found.append(bool(safe and mine and self._last[below] == i))
        return found

    def _results(
        self, values: dict[Any, Any], arrays: Sequence[NDArray]
    ) -> tuple[list[NDArray], list[NDArray]]:
        """Return outputs and stored arrays, copied where they share memory."""
        stores = self.listing.stores
        wanted = [*self.listing.outputs, *(node for node, _ in stores)]
        places = [None] * len(self.listing.outputs) + [arrays[index] for _, index in stores]
        held = [graph.wrap(values[node]) for node in wanted]
        values.clear()
        found = []
        for x, place in zip(held, places, strict=True):
            alone = x.array is place or graph.exclusive(x)
            found.append(x.array if alone else x.array.copy())
        count = len(self.listing.outputs)
        return found[:count], found[count:]

"""``forecast`` and ``profile``: what the operations of a function cost, before and after a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from needle import config, devices, executor, nancheck, tree
from needle.backend.memory import size_text
from needle.compile import Compiled, compile, memory
from needle.compile.call import Call
from needle.compile.explain import bytes_of
from needle.compile.memory import shown
from needle.compile.program import node_device
from needle.errors import ArgumentError
from needle.io.programs import LoadedProgram
from needle.ops.core import work
from needle.tools.limits import Limits, limits

HEAD = ("op", "result", "MFLOP", "MB", "predicted us", "measured us", "line")
MOST = 20
"""Rows of a table; the costliest come first."""


class Row(NamedTuple):
    """What an operation costs.

    Attributes:
        op: its name.
        result: what it gives: dtype and shape.
        line: the line of the user's that asked for it.
        flops: operations on numbers, about; see ``Op.flops``.
        nbytes: bytes that it reads and writes at most.
        predicted: seconds that it takes at least, as the device's limits say.
        measured: seconds that it took; None in a forecast.
        start: seconds from the beginning of the run.
    """

    op: str
    result: str
    line: str
    flops: int
    nbytes: int
    predicted: float
    measured: float | None
    start: float


class Costs:
    """The costs of a function's operations. Its text is a table of the most expensive ones.

    Attributes:
        name: of the function.
        rows: the operations, in the order in which they run.
        memory: bytes that a program needs besides its arguments and what it finds outside; None
            if it is not known.
        limits: what the device can do at most.
    """

    def __init__(self, name: str, rows: Sequence[Row], known: Limits, memory: int | None) -> None:
        self.name, self.rows, self.limits, self.memory = name, list(rows), known, memory

    @property
    def predicted(self) -> float:
        """The predicted seconds of all operations."""
        return sum(row.predicted for row in self.rows)

    @property
    def measured(self) -> float | None:
        """The measured seconds of all operations; None in a forecast."""
        found = [row.measured for row in self.rows if row.measured is not None]
        return sum(found) if found else None

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as trace events, which Perfetto and chrome://tracing show.

        Args:
            path: of the JSON file.
        """
        events = [_event(row, row.start, row.measured or row.predicted) for row in self.rows]
        content = {"traceEvents": events, "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(content, indent=1) + "\n")

    def __str__(self) -> str:
        key = _predicted if self.measured is None else _measured
        rows = sorted(self.rows, key=key, reverse=True)
        table: list[tuple[str, ...]] = [
            ("op", "result", "MFLOP", "MB", "predicted us", "measured us", "line")
        ]
        table += [_cells(row) for row in rows[:MOST]]
        if self.measured is None:
            table = [(*row[:5], row[6]) for row in table]
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                text.ljust(n) if i < 2 or i == len(row) - 1 else text.rjust(n)
                for i, (text, n) in enumerate(zip(row, wide, strict=True))
            ).rstrip()
            for row in table
        ]
        if len(rows) > MOST:
            lines.append(f"... and {len(rows) - MOST} operations more")
        return "\n".join([f"{self.name}: {self._total()}", *lines])

    __repr__ = __str__

    def _total(self) -> str:
        parts = [
            f"{len(self.rows)} operations",
            f"{sum(r.flops for r in self.rows) / 1e6:,.1f} MFLOP",
        ]
        parts.append(f"{sum(r.nbytes for r in self.rows) / 1e6:,.1f} MB read and written")
        if self.memory is not None:
            parts.append(f"{size_text(self.memory)} of memory")
        parts.append(f"predicted {self.predicted * 1e3:.3g} ms")
        if self.measured is not None:
            parts.append(f"measured {self.measured * 1e3:.3g} ms")
        return ", ".join(parts)


def _predicted(row: Row) -> float:
    return row.predicted


def _measured(row: Row) -> float:
    return row.measured or 0.0


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (row.flops / 1e6, row.nbytes / 1e6, row.predicted * 1e6, (row.measured or 0) * 1e6)
    return row.op, row.result, *(f"{x:,.3g}" if x < 100 else f"{x:,.0f}" for x in numbers), row.line


def _event(row: Row, start: float, seconds: float) -> dict[str, Any]:
    more = {"result": row.result, "line": row.line, "flops": row.flops, "bytes": row.nbytes}
    return {
        "name": row.op, "ph": "X", "ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3),
        "pid": 1, "tid": 1, "args": {**more, "predicted_us": round(row.predicted * 1e6, 3)},
    }  # fmt: skip


def forecast(function: Callable[..., Any], *args: Any) -> Costs:
    """Return what a call of a function would cost, without running it.

    The function is traced and planned as ``compile`` does it, but nothing runs and nothing
    changes. An operation takes at least its work divided by what the device can do: the larger of
    operations / peak and bytes / bandwidth (``needle doctor`` shows both numbers).

    Args:
        function: what ``compile`` or ``load_program`` returned, or a function to compile.
        args: arguments of a call.

    Raises:
        ArgumentError: if function cannot be called.
        TraceError: if it reads values.

    >>> step = ndl.compile(lambda x, w: ndl.ops.tanh(x @ w).sum())
    >>> costs = ndl.forecast(step, ndl.ones(64, 32), ndl.ones(32, 16))
    >>> [row.op for row in costs.rows], costs.rows[0].flops
    (['matmul', 'tanh', 'sum'], 65536)
    """
    compiled = _compiled("forecast", function)
    call, _ = compiled.planned(*args)
    return _costs(compiled.__name__, call, None)


def profile(
    function: Callable[..., Any],
    *args: Any,
    path: str | os.PathLike[str] | None = None,
    times: int = 10,
) -> Costs:
    """Run a function and return what each of its operations cost.

    A compiled function's program runs several times and stores nothing: parameters, optimizers and
    random numbers stay as they were. Any other function is called once, as it is, and each
    operation that it calls, and those of its gradients, is measured on its own.

    Args:
        function: the function.
        args: its arguments.
        path: JSON file for the trace (see ``Costs.save_trace``); None writes none.
        times: how often a program runs; the rows have the mean.

    Raises:
        ArgumentError: if function cannot be called, times is not positive, or path is no path.

    >>> found = ndl.profile(lambda x: (x @ x).sum(), ndl.ones(8, 8))
    >>> [row.op for row in found.rows], found.measured > 0
    (['matmul', 'sum'], True)
    """
    tree.check_function("profile", function)
    if type(times) is not int or times < 1:
        raise ArgumentError(f"profile: times is {times!r:.60}\n  rule: an integer above 0")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"profile: path is {path!r:.60}\n  rule: that of a file, or None")
    if isinstance(function, (Compiled, LoadedProgram)):
        call, prepared = function.planned(*args)
        found = _costs(function.__name__, call, call.measure(prepared, times))
    else:
        found = _watched(function, args)
    if path is not None:
        found.save_trace(path)
    return found


def _compiled(name: str, function: Any) -> Any:
    tree.check_function(name, function)
    known = isinstance(function, (Compiled, LoadedProgram))
    return function if known else compile(function)


def _costs(name: str, call: Call, measured: Sequence[float] | None) -> Costs:
    """Return the costs of a program, whose kernels are added up for each node."""
    listing = call.program.listing
    native = getattr(call.program, "rows", None)
    kernels = native() if native is not None else None
    nbytes: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for i in range(len(kernels if kernels is not None else listing.order)):
        at = i if kernels is None else kernels[i].node
        size = bytes_of(listing.order[i]) if kernels is None else kernels[i].nbytes
        nbytes[at] = nbytes.get(at, 0) + size
        seconds[at] = seconds.get(at, 0.0) + (0.0 if measured is None else measured[i])
    known = limits(node_device((listing.order or listing.sources or listing.outputs)[0]))
    rows: list[Row] = []
    for at, size in nbytes.items():
        node = listing.order[at] if at >= 0 else None
        text = "copy of a result" if node is None else node.op.name
        result = "" if node is None else shown(node.spec)
        line = None if node is None else executor.line_of(node)
        flops = 0 if node is None else node.op.flops(*[below.spec for below in node.inputs])
        spent = seconds[at] if measured is not None else None
        start = rows[-1].start + (rows[-1].measured or rows[-1].predicted) if rows else 0.0
        least = known.seconds(flops, size)
        rows.append(Row(text, result, line or "", flops, size, least, spent, start))
    return Costs(name, rows, known, None if call.why else memory.forecast(call.program))


def _watched(function: Callable[..., Any], args: tuple[Any, ...]) -> Costs:
    """Call a function once, and return what its operations cost."""
    seen: list[nancheck.Seen] = []

    def note(x: nancheck.Seen) -> None:
        for part in x.result if type(x.result) is tuple else (x.result,):
            part.spec.device.backend.synchronize()
        seen.append(x._replace(arrays=[_spec(a) for a in x.arrays], result=_spec(x.result)))

    with config.override(finite="on", compile="off"), nancheck.observed(note):
        function(*args)
    first = seen[0].result if seen else None
    where = first[0].device if type(first) is tuple else first.device if first else None
    known = limits(where or devices.default_device())
    began = seen[0].began if seen else 0.0
    rows = []
    for x in seen:
        flops = x.op.flops(*x.arrays)
        size = sum(work.nbytes(spec) for spec in (*x.arrays, x.result)) if flops else 0
        rows.append(
            Row(x.op.name, shown(x.result), _line(x.place), flops, size,
                known.seconds(flops, size), x.ended - x.began, x.began - began)
        )  # fmt: skip
    return Costs(tree.name_of(function), rows, known, None)


def _line(place: str) -> str:
    """Return the line of a place, and of which op's gradient it is part."""
    cause, _, line = place.rpartition("called at ")
    return f"{line} ({cause.split('(')[0].rstrip(', ')})" if cause else line


def _spec(result: Any) -> Any:
    return tuple(x.spec for x in result) if type(result) is tuple else result.spec

"""What a program's memory holds when most of it is in use."""

from __future__ import annotations

from typing import Any, NamedTuple

from needle import executor
from needle.compile.lower import NativeProgram, Row

SHOWN = 8
"""Values at the peak that ``told`` names: the largest."""


class Value(NamedTuple):
    """A value in the arena.

    Attributes:
        nbytes: its size.
        op: what computed it, as ``explain`` names it.
        line: the user's line that asked for it, if it is known.
    """

    nbytes: int
    op: str
    line: str | None


class Peak(NamedTuple):
    """The moment of a run with the most bytes of values.

    Attributes:
        kernel: which kernel runs then.
        nbytes: bytes of all values in the arena.
        alive: these values, the largest first.
    """

    kernel: int
    nbytes: int
    alive: list[Value]


def named(node: Any, kernel: str | None) -> str:
    """Return a node's op, its kernel unless the op has the same name, and what it computes."""
    name = f"{node.op.name} ({kernel})" if kernel and kernel != node.op.name else node.op.name
    return f"{name} {shown(node.spec)}"


def shown(spec: Any) -> str:
    """Return dtype and shape of a spec, or of the first one of several and their number."""
    first, more = (spec[0], f" x {len(spec)}") if type(spec) is tuple else (spec, "")
    return f"{first.dtype}{list(first.shape)}{more}"


def told(program: NativeProgram) -> list[str]:
    """Return the memory of a program as lines of text."""
    most = peak(program)
    lines = [
        f"memory of a call: {forecast(program):,} bytes, of which values {program.arena_bytes:,}, "
        f"workspace {program.workspace_bytes:,}, results {program.result_bytes:,}"
    ]
    if most.alive:
        lines.append(f"peak: {most.nbytes:,} bytes of values at kernel {most.kernel}, alive:")
    largest = most.alive[:SHOWN]
    wide = max((len(x.op) for x in largest), default=0)
    lines += [f"  {x.op:{wide}}  {x.nbytes:>11,}  {x.line or ''}".rstrip() for x in largest]
    if rest := most.alive[SHOWN:]:
        lines.append(f"  and {len(rest)} smaller, {sum(x.nbytes for x in rest):,} bytes")
    return lines


def forecast(program: NativeProgram) -> int:
    """Return the bytes that a run takes besides what is there before it."""
    return program.arena_bytes + program.workspace_bytes + program.result_bytes


def peak(program: NativeProgram) -> Peak:
    """Return the peak of a program: what is alive at that moment must be there at once."""
    rows, intervals = program.rows(), program.intervals()
    change = [0] * (len(rows) + 1)
    for x in intervals:
        change[x.first] += x.nbytes
        change[x.last] -= x.nbytes
    most = kernel = held = 0
    for i, more in enumerate(change):
        held += more
        if held > most:
            most, kernel = held, i
    there = [(i, x) for i, x in enumerate(intervals) if x.first <= kernel < x.last]
    there.sort(key=lambda pair: -pair[1].nbytes)
    alive = [_value(program, rows, i, x.first, kernel, x.nbytes) for i, x in there]
    return Peak(kernel, most, alive)


def _value(
    program: NativeProgram, rows: list[Row], place: int, first: int, now: int, nbytes: int
) -> Value:
    """Return the value in a place now: the last that was computed there."""
    made = first
    for i in range(first, now + 1):
        if rows[i].places and rows[i].places[0][:2] == ("value", place):
            made = i
    node = program.listing.order[rows[made].node]
    return Value(nbytes, named(node, rows[made].kernel), executor.line_of(node))

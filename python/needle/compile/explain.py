"""explain: what the programs of a compiled function do, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from needle import executor, tree
from needle.compile import memory
from needle.compile.call import Call
from needle.compile.compiled import Compiled
from needle.compile.epilogue import alone, join
from needle.compile.fuse import Groups
from needle.errors import ArgumentError
from needle.errors import explain as explained
from needle.ops.core import work


def explain(function: Any) -> str:
    """Return what each program of a compiled function does: a line for each kernel.

    A line has the kernel's op and the shape of its result, the bytes that it reads and writes, and
    the line of the user's that asked for it. Then follow the memory that a call takes, the values
    that are alive when most of it is in use, and pairs of ops that were not fused into one kernel,
    with the reason. Programs in Python have a line for each node, and no more.

    Args:
        function: what ``compile`` returned, after a call.

    Raises:
        ArgumentError: if it is not a compiled function.

    >>> double = ndl.compile(lambda x: x * 2)
    >>> y = double(Tensor([1.0]))
    >>> "multiply" in ndl.explain(double)
    True
    """
    if not isinstance(function, Compiled):
        raise explained(
            ArgumentError, "explain",
            f"expected a compiled function, got {tree.kind(function)}",
            advice="needle.compile(function), and a call of it",
        )  # fmt: skip
    calls = function.calls()
    if not calls:
        return f"{function.__name__}: no program yet; call it first"
    return "\n\n".join(f"{function.__name__}, program {i}: {_told(x)}" for i, x in enumerate(calls))


def _told(call: Call) -> str:
    listing, bound = call.listing, call.bound
    given = ", ".join(map(str, bound.specs[: call.arguments]))
    kinds = [type(x).__name__.lower() for x in bound.sources[call.arguments :]]
    found = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    lines = [f"takes ({given}); reads {found or 'nothing else'}"]
    lines += [f"  constant {node.spec}" for node, _ in listing.constants if node.spec.size > 1]
    rows = _rows(call)
    wide = max((len(text) for text, _, _ in rows), default=0)
    lines += [f"  {text:{wide}}  {nbytes:>11,}  {line or ''}" for text, nbytes, line in rows]
    total = sum(nbytes for _, nbytes, _ in rows)
    if call.why:
        lines.append(f"{len(rows)} nodes, in Python ({call.why})")
    else:
        lines.append(f"{len(rows)} kernels; {total:,} bytes read and written")
        lines += memory.told(call.program)
    return "\n".join([*lines, *_refusals(call)])


def _refusals(call: Call) -> Iterator[str]:
    """Yield a line for each kind of nodes that could not be fused."""
    if call.why or call.mode != "on":
        return
    refused = [*alone(call.listing), *Groups(join(call.listing)).refused]
    kinds = Counter((below.op.name, node.op.name, why) for node, below, why in refused)
    for (below, node, why), count in kinds.items():
        times = f", {count} times" if count > 1 else ""
        yield f"not fused: {below} into {node}: {why}{times}"


def _rows(call: Call) -> list[tuple[str, int, str | None]]:
    """Return (text, bytes, line) of each kernel of a program, or of each node."""
    listing = call.program.listing  # with fused nodes
    native = getattr(call.program, "rows", None)
    if native is None:
        return [(memory.named(x, None), bytes_of(x), executor.line_of(x)) for x in listing.order]
    found = []
    for row in native():
        node = listing.order[row.node] if row.node >= 0 else None
        text = "copy of a result" if node is None else memory.named(node, row.kernel)
        found.append((text, row.nbytes, None if node is None else executor.line_of(node)))
    return found


def bytes_of(node: Any) -> int:
    """Return the bytes that a node reads and writes at most."""
    return work.nbytes((node.spec, *(x.spec for x in node.inputs)))

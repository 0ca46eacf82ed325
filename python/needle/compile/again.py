"""Again: large results of cheap functions are computed a second time instead of kept.

Backward reads many values that forward made, and they wait for it. Where the operand of an
elementwise function waits too, its result need not: the function is computed again, in time. It is
the same kernel on the same values, so it has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle.compile.listing import Listing
from needle.compile.passes import rewritten
from needle.ops.core.families import Elementwise

SMALLEST = 1 << 20
"""Bytes from which on a result is not kept; smaller ones are few beside them."""
WAIT = 16
"""Nodes that run between two readers of such a result, at least."""


def again(listing: Listing) -> Listing:
    """Return the listing with a second node for the late readers of each such result."""
    late = _late(listing)
    made: dict[Any, Any] = {}

    def second(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
        if node not in late:
            return None
        given = list(inputs)
        for k, below in enumerate(node.inputs):
            if below in late[node]:
                if below not in made:
                    made[below] = work.make(inputs[k].op, inputs[k].inputs, below.spec)
                given[k] = made[below]
        return work.make(node.op, given, node.spec)

    return rewritten(listing, second) if late else listing


def _late(listing: Listing) -> dict[Any, set[Any]]:
    """Return for each late reader what it reads that is computed again."""
    readers: dict[Any, list[int]] = {}
    for i, node in enumerate(listing.order):
        for below in set(node.inputs):
            readers.setdefault(below, []).append(i)
    kept = {*listing.outputs, *(node for node, _ in listing.stores)}
    found: dict[Any, set[Any]] = {}
    for node in listing.order:
        if node in kept or not _is_cheap(node):
            continue
        places = readers[node]
        waits = [(b - a, b) for a, b in zip(places, places[1:], strict=False)]
        wait, first = max(waits, default=(0, 0))
        (operand,) = node.inputs
        if wait < WAIT or (operand not in kept and readers[operand][-1] < first):
            continue
        for i in places:
            if i >= first:
                found.setdefault(listing.order[i], set()).add(node)
    return found


def _is_cheap(node: Any) -> bool:
    op, spec = node.op, node.spec
    return (
        isinstance(op, Elementwise)
        and type(op).compute is Elementwise.compute
        and len(node.inputs) == 1
        and spec.size * spec.dtype.itemsize >= SMALLEST
    )

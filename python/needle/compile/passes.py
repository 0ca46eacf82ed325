"""Passes: each takes a listing and returns one that computes the same, with fewer nodes.

Two were left out, for nothing is left to gain. Masks from integers: a draw of uniform numbers is
one kernel, and what compares them joins others. Updates together: the trace makes one of all small
parameters (``trace.ALONE``); large ones are alone, so that their gradients die early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle import executor, graph
from needle.compile import rules
from needle.compile.listing import Listing
from needle.errors import NeedleError

PASSES = (
    rules.stop, rules.fold, rules.simplify, rules.expand, rules.Cse, rules.join,
)  # fmt: skip
"""The rules in their order. A class is a rule that remembers: one object for each run."""


def run_passes(listing: Listing, check: bool = False) -> Listing:
    """Return the listing after all passes.

    Args:
        listing: nodes as they were traced.
        check: whether to infer all specs again after each.

    Raises:
        NeedleError: if a spec changed.
    """
    for rule in PASSES:
        listing = rewritten(listing, rule() if isinstance(rule, type) else rule)
        if check:
            check_specs(listing, rule)
    return listing


Rule = Callable[["Rewriting", Any, Sequence[Any]], Any]


class Rewriting:
    """A listing on its way: rules ask it to make nodes.

    Attributes:
        arrays: the arrays of the constants.
        new: what takes the place of each node so far.
        line: the user's line of the node that a rule looks at.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.arrays: dict[Any, Any] = dict(listing.constants)
        self.new = {x: x for x in (*listing.sources, *self.arrays)}
        self.order: list[Any] = []
        self.line: str | None = None

    def make(self, op: Any, inputs: Sequence[Any], spec: Any) -> Any:
        """Return a new node."""
        made = graph.pend(op, [graph.tensor_of(x) for x in inputs], spec, False).node
        self.order.append(made)
        if self.line is not None:
            executor.note_line(made, self.line)
        return made

    def constant(self, array: Any) -> Any:
        """Return a new leaf."""
        made = graph.leaf(graph.wrap(array))
        self.arrays[made] = array
        return made

    def constant_leaf(self, node: Any) -> None:
        """Take a leaf, whose tensor or consumer holds its array."""
        self.arrays[node] = node.value

    def adopt(self, nodes: Sequence[Any]) -> None:
        """Take nodes that were made elsewhere, inputs first."""
        self.order += nodes
        for node in nodes:
            if self.line is not None:
                executor.note_line(node, self.line)


def rewritten(listing: Listing, rule: Rule) -> Listing:
    """Return the listing with a rule applied to each node, and without nodes that nobody needs.

    Args:
        listing: the listing.
        rule: a function of the rewriting, a node and its new inputs; it returns a node that takes
            the place, or None to keep the op.
    """
    work = Rewriting(listing)
    new = work.new
    for node in listing.order:
        inputs = [new[x] for x in node.inputs]
        work.line = executor.line_of(node)
        made = rule(work, node, inputs)
        if made is None:
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            if same:
                work.order.append(node)
            made = node if same else work.make(node.op, inputs, node.spec)
        new[node] = made
    outputs = [new[x] for x in listing.outputs]
    stores = [(new[x], i) for x, i in listing.stores]
    return alive(work, outputs, stores)


def alive(work: Rewriting, outputs: list[Any], stores: list[tuple[Any, int]]) -> Listing:
    """Return the listing of the nodes that outputs and stores need, updates last."""
    needed = {*outputs, *(x for x, _ in stores)}
    for node in reversed(work.order):
        if node in needed:
            needed.update(node.inputs)
    order = list(dict.fromkeys(x for x in work.order if x in needed))
    constants = [(x, array) for x, array in work.arrays.items() if x in needed]
    return Listing(order, list(work.listing.sources), constants, outputs, stores)


def check_specs(listing: Listing, rule: Any) -> None:
    """Infer the spec of each node again.

    Raises:
        NeedleError: if one differs.
    """
    for node in listing.order:
        found = node.op.infer(*[x.spec for x in node.inputs])
        if found != node.spec:
            raise NeedleError(
                f"compile: after the pass {rule.__name__}, {node.op} gives {found}, "
                f"expected {node.spec}"
            )


def printed(listing: Listing) -> str:
    """Return a listing as text: a line for each node."""
    names = {x: f"s{i}" for i, x in enumerate(listing.sources)}
    names |= {x: f"c{i}" for i, (x, _) in enumerate(listing.constants)}
    lines = []
    for i, node in enumerate(listing.order):
        names[node] = f"v{i}"
        inputs = ", ".join(names[x] for x in node.inputs)
        lines.append(f"v{i} = {node.op}({inputs})   {node.spec}")
    lines += [f"s{i} <- {names[x]}" for x, i in listing.stores]
    return "\n".join([*lines, f"return {', '.join(names[x] for x in listing.outputs)}"])

"""build: from what a trace found to a listing, and where its sources come from and results go."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from needle import executor, graph, tracing
from needle.compile import cells
from needle.compile.listing import Listing
from needle.compile.trace import Numbers, Stream, Trace
from needle.ops.core.starts import Placeholder
from needle.ops.core.update import Update
from needle.ops.index.row_sparse import RowSparse


class Results(NamedTuple):
    """What a traced function leaves, as nodes.

    Attributes:
        outputs: the results.
        kept: values of cells after the call, each with its cell.
        cleared: cells of gradients that are None after the call.
        needs: for each result, whether gradients would flow to it.
        asked: tensors whose gradient was read before it was set, and whether there was one.
        values: arrays of the nodes above that are leaves.
    """

    outputs: list[Any]
    kept: list[tuple[Any, Any]]
    cleared: list[Any]
    needs: list[bool]
    asked: list[tuple[Any, bool]]
    values: dict[Any, Any]


class Bound(NamedTuple):
    """A listing with its places outside.

    Attributes:
        sources: for each source its cell, or ``Numbers`` or ``Stream``.
        specs: the spec of each source.
        strides: the strides of each source's array; None for a dense one.
        delivered: cells that take the outputs behind the function's results, in order.
        results: how many outputs are the function's results.
    """

    listing: Listing
    sources: list[Any]
    specs: list[Any]
    strides: list[Any]
    delivered: list[Any]
    results: int


class _Before(NamedTuple):
    """A tensor as it was before the trace, and whether its gradient was read before it was set."""

    tensor: Any
    array: Any
    node: Any
    requires_grad: bool
    grad: Any
    asked: bool


def _before(trace: Trace) -> dict[int, _Before]:
    """Return the first note of each tensor that is older than the trace."""
    found: dict[int, _Before] = {}
    asked: dict[int, Any] = {}
    for entry in trace.journal:
        tensor = entry[0] if type(entry) is tuple else entry
        if tensor.serial >= trace.since:
            continue
        if type(entry) is tuple:
            found.setdefault(id(tensor), _Before._make((*entry, id(tensor) in asked)))
        elif id(tensor) not in found:
            asked[id(tensor)] = tensor
    for key, tensor in asked.items():
        if key not in found:
            node, needs = tensor.node, tensor.requires_grad
            found[key] = _Before(tensor, tensor.array, node, needs, tensor.grad, True)
    return found


def results(trace: Trace, arguments: Sequence[Any], tensors: Sequence[Any]) -> Results:
    """Return what the function leaves; call it before the trace is undone.

    Args:
        trace: the trace, whose function has returned.
        arguments: the tensors that the function was called with, older than the trace.
        tensors: the function's results.

    Raises:
        TraceError: if it changed something that a program does not.
    """
    places = {id(x): cells.Argument(i) for i, x in enumerate(arguments)}
    kept: list[tuple[Any, Any]] = []
    cleared: list[Any] = []
    asked: list[tuple[Any, bool]] = []
    trace.before = _before(trace)
    for was in trace.before.values():
        x = was.tensor
        cell = places.get(id(x)) or cells.Held(x)
        if x.array is not was.array or (x.node is not was.node and x.array is None):
            kept.append((x, cell))
        if x.requires_grad != was.requires_grad and (was.node is None or was.node.op is None):
            raise tracing.refused(
                f"requires_grad of {x.name or 'a tensor'} is {x.requires_grad} after the call",
                "set it outside the function",
            )
        if was.asked:
            asked.append((cell, was.grad is not None))
        if x.grad is not was.grad:
            _keep_grad(trace, x.grad, cells.Grad(cell), kept, cleared)
    for attributes, name, tensor in trace.buffers.values():
        now = attributes[name]
        if now is None and tensor is not None:
            raise tracing.refused(f"the buffer {name} becomes None", "do that outside the function")
        if now is not tensor:
            kept.append((now, cells.Buffer(attributes, name)))
    kept += trace.slots.values()
    left = [*tensors, *(x for x, _ in kept)]
    return Results(
        [graph.leaf(x) for x in tensors], [(graph.leaf(x), cell) for x, cell in kept], cleared,
        [x.requires_grad for x in tensors], asked,
        {graph.leaf(x): x.array for x in left if x.array is not None},
    )  # fmt: skip


def _keep_grad(trace: Trace, grad: Any, cell: Any, kept: list[Any], cleared: list[Any]) -> None:
    if isinstance(grad, RowSparse):
        raise tracing.refused(
            "a gradient by rows is left, whose shape depends on values", "Embedding(sparse=False)"
        )
    if grad is None or id(grad) in trace.consumed:
        cleared.append(cell)
    else:
        kept.append((grad, cell))


class Builder:
    """Copies the nodes of a trace, with placeholders for what comes from outside."""

    def __init__(
        self, trace: Trace, found: Results, arguments: Sequence[Any], given: Sequence[Any]
    ) -> None:
        self.given = set(map(id, given))
        self.trace, self.found = trace, found
        self.places = {id(x): cells.Argument(i) for i, x in enumerate(arguments)}
        self.buffers = {
            id(x): cells.Buffer(module.__dict__, name)
            for module in (*trace.below(), *trace.modules.values())
            for name in module._buffers
            if (x := module.__dict__.get(name)) is not None
        }
        for attributes, name, x in trace.buffers.values():
            self.buffers[id(x)] = cells.Buffer(attributes, name)
        self.grads: dict[int, Any] = {}
        self.arrays: dict[int, Any] = {}
        for was in trace.before.values():
            self.arrays[id(was.tensor)] = was.array
            if was.grad is not None:
                of = self.places.get(id(was.tensor)) or cells.Held(was.tensor)
                self.grads[id(was.grad)] = cells.Grad(of)
        self.sources: list[Any] = []
        self.made: list[Any] = []  # tensors of the sources
        self.index: dict[Any, int] = {}
        self.constants: list[Any] = []
        self.new: dict[Any, Any] = {}
        for i, x in enumerate(arguments):
            self._source(cells.Argument(i), x.spec, _strides(x.array))

    def _source(self, cell: Any, spec: Any, strides: Any) -> Any:
        key = key_of(cell)
        if key not in self.index:
            i = self.index[key] = len(self.sources)
            self.sources.append(cell)
            self.made.append(graph.pend(Placeholder(i, strides), (), spec, False))
        return self.made[self.index[key]]

    def start(self, node: Any) -> Any:
        """Return the tensor of a node that is not copied, or None."""
        place = self.trace.places.get(node)
        if place is not None:
            return self._source(place, node.spec, None)
        if node in self.trace.slot_leaves:
            return self._source(self.trace.slot_leaves[node], node.spec, _strides(node.value))
        if node.op is not None and node.serial >= self.trace.since:
            return None
        tensor = graph.receiver_of(node)
        if node.op is not None and tensor is None:
            tensor = graph.tensor_of(node)
        if node.op is not None and node.needs:
            raise tracing.refused(
                f"a tensor that the function finds, the result of {node.op}, is part of a graph "
                "made outside", "pass it as an argument, or .detach() it",
            )  # fmt: skip
        return self._outside(node, tensor)

    def _outside(self, node: Any, tensor: Any) -> Any:
        old = tensor is not None and tensor.serial < self.trace.since
        value = self.found.values.get(node, node.value)
        if old and node.op is None:
            old = self.arrays.get(id(tensor), tensor.array) is value
        if not old or self.trace.knows(tensor):
            made = graph.wrap(value)
            self.constants.append((graph.leaf(made), value))
            return made
        if id(tensor) in self.given:
            raise tracing.refused(
                "a tensor is an argument and is also found from outside", "use the argument alone"
            )
        cell: Any = self.places.get(id(tensor)) or self.buffers.get(id(tensor))
        cell = cell or self.grads.get(id(tensor)) or cells.Held(tensor)
        return self._source(cell, tensor.spec, _strides(tensor.array))

    def order(self, roots: Sequence[Any]) -> list[Any]:
        """Copy all nodes below; return the copies in the order of the function.

        What waits for an optimizer comes last, so that nothing else can fail after it.
        """
        order: list[tuple[bool, int, Any]] = []
        late: set[Any] = set()
        stack = [(root, False) for root in reversed(roots)]
        while stack:
            node, ready = stack.pop()
            if node in self.new:
                continue
            if ready:
                inputs = [self.new[below] for below in node.inputs]
                self.new[node] = made = graph.pend(node.op, inputs, node.spec, False)
                if type(node.op) is Update or not late.isdisjoint(node.inputs):
                    late.add(node)
                order.append((node in late, node.serial, made.node))
                if (line := self.trace.lines.get(id(node))) is not None:
                    executor.note_line(made.node, line)
                continue
            tensor = self.start(node)
            if tensor is not None:
                self.new[node] = tensor
                continue
            stack.append((node, True))
            stack.extend((below, False) for below in reversed(node.inputs))
        order.sort(key=itemgetter(0, 1))
        return [made for *_, made in order]


def _strides(array: Any) -> Any:
    """Return the strides of an array, or None for a dense one."""
    return None if array is None or array.strides == array.spec.strides else array.strides


def key_of(cell: Any) -> Any:
    """Return a key that is the same for cells of one place."""
    if type(cell) is cells.Buffer:
        return cells.Buffer, id(cell.attributes), cell.name
    if type(cell) is cells.Slot:
        return cells.Slot, id(cell.state), id(cell.parameter)
    if type(cell) is cells.Held:
        return cells.Held, id(cell.owner)
    if type(cell) is cells.Grad:
        return cells.Grad, key_of(cell.of)
    return cell if type(cell) is not Stream else Stream


def bound(trace: Trace, found: Results, arguments: Sequence[Any], given: Sequence[Any]) -> Bound:
    """Return the listing of a trace that is undone, over nodes of its own.

    Args:
        trace: the trace.
        found: what its function left.
        arguments: the tensors that the function was called with.
        given: the user's tensors, of which they are copies.

    Raises:
        TraceError: if the function found a tensor that is also an argument, or is part of a graph.
    """
    builder = Builder(trace, found, arguments, given)
    early = (cells.Buffer, cells.Grad)  # updates come last: nothing that can fail follows them
    last = sorted(found.kept, key=lambda pair: type(pair[1]) not in early)
    roots = [*found.outputs, *(node for node, _ in last)]
    order = builder.order(roots)
    outputs = [graph.leaf(builder.new[node]) for node in found.outputs]
    pairs = [(graph.leaf(builder.new[node]), cell) for node, cell in last]
    return placed(builder, order, outputs, pairs)


def placed(
    builder: Builder, order: list[Any], results: list[Any], kept: list[tuple[Any, Any]]
) -> Bound:
    """Return the listing of nodes that a builder copied.

    Args:
        builder: the builder.
        order: the nodes, each after its inputs.
        results: the nodes of the results.
        kept: nodes of values, and the cells that take them.
    """
    outputs, stores, delivered = list(results), [], []
    for value, cell in kept:
        at = builder.index.get(key_of(cell))
        storable = type(cell) in (cells.Slot, cells.Held, cells.Argument)
        if at is not None and storable and builder.made[at].spec is value.spec:
            stores.append((value, at))
        else:
            outputs.append(value)
            delivered.append(cell)
    sources = [x.node for x in builder.made]
    return Bound(
        Listing(order, sources, builder.constants, outputs, stores),
        builder.sources, [x.spec for x in builder.made], [x.node.op.strides for x in builder.made],
        delivered, len(results),
    )  # fmt: skip


def needed(bound: Bound) -> Bound:
    """Return a listing without the nodes and the sources that its results do not need."""
    listing = bound.listing
    used = {*listing.outputs, *(node for node, _ in listing.stores)}
    used |= {listing.sources[at] for _, at in listing.stores}
    for node in reversed(listing.order):
        if node in used:
            used.update(node.inputs)
    places = [i for i, x in enumerate(listing.sources) if x in used]
    new = {old: i for i, old in enumerate(places)}
    kept = Listing(
        [x for x in listing.order if x in used],
        [listing.sources[i] for i in places],
        [pair for pair in listing.constants if pair[0] in used],
        listing.outputs,
        [(node, new[at]) for node, at in listing.stores],
    )

    def picked(values: list[Any]) -> list[Any]:
        return [values[i] for i in places]

    parts = picked(bound.sources), picked(bound.specs), picked(bound.strides)
    return Bound(kept, *parts, bound.delivered, bound.results)


__all__ = [
    "Bound",
    "Builder",
    "Numbers",
    "Results",
    "bound",
    "key_of",
    "needed",
    "placed",
    "results",
]

"""Graphs that are defined first and run later: Graph, Placeholder, Operation, gradients.

They are made of the same nodes as everything else: within ``with Graph():`` operations wait, and a
``Session`` (session.py) makes a program of those that it needs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from needle import devices, graph, tracing
from needle import dtype as dtypes
from needle.backend.array import make_spec
from needle.compile import cells
from needle.compile.build import Builder, Results, key_of
from needle.compile.trace import Trace
from needle.errors import ArgumentError, FeedError, GradientError, ShapeError
from needle.ops.core.starts import Placeholder as Source
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

_graphs: list[weakref.ref[Graph]] = []

Variable = Parameter
"""A tensor that an optimizer learns, or that the program assigns to: the same as a Parameter."""


class Feed(Source):
    """The value of a placeholder, which a session brings.

    Raises:   FeedError if it is computed without one
    """

    called = "placeholder"

    def compute(self, *arrays: Any) -> Any:
        raise FeedError(
            "a placeholder has no value of its own\n"
            "  try: Session().run(fetches, feed_dict={placeholder: value})"
        )


class Placeholder(Tensor):
    """A value that each run of a session is fed with.

    Args:
        shape: the shape of what is fed.
        dtype: its element type.
        name: what messages call it.
        device: its device; the default device for None.

    Raises:
        ArgumentError: outside of ``with Graph():``.

    >>> with ndl.static.Graph():
    ...     x = ndl.static.Placeholder((2,))
    ...     y = x * x
    >>> ndl.static.Session().run(y, feed_dict={x: [1.0, 3.0]}).tolist()
    [1.0, 9.0]
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DTypeLike = "float32",
        name: str = "",
        device: DeviceLike = None,
    ) -> None:
        owner = Graph.current()
        if owner is None:
            raise ArgumentError("Placeholder: expected to be made within `with static.Graph():`")
        sizes = tuple(shape)
        if any(not isinstance(n, int) or n < 0 for n in sizes):
            raise ShapeError(f"Placeholder: expected sizes >= 0, got {sizes}")
        spec = make_spec(dtypes.as_dtype(dtype), devices.as_device(device), sizes)
        graph.init_tensor(self, None, False)
        outer = graph.set_journal(None)  # it stays when the block ends
        graph.rebind(self, graph.pend(Feed(len(owner.placeholders), None), (), spec, False))
        graph.set_journal(outer)
        self.name = name or f"placeholder_{len(owner.placeholders)}"
        owner.placeholders.append(self)


class Assignment(NamedTuple):
    """A value and the place outside the graph that takes it at the end of a run."""

    tensor: Any
    cell: Any


class Operation:
    """A node of a graph: what it computes, from what, and into what.

    Attributes:
        name: the op's name and a number that is unique in the graph.
        type: the class of the op.
        inputs: the operations whose values it reads.
        spec: dtype, shape and device of its value.
    """

    def __init__(self, node: Any, name: str, inputs: list[Operation]) -> None:
        self.node, self.name, self.inputs = node, name, inputs
        self.type = type(node.op).__name__ if node.op is not None else "Value"
        self.spec = node.spec

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(x.name for x in self.inputs)}) -> {self.spec}"


class Train:
    """What ``minimize`` returns: running it makes one step of the optimizer.

    Attributes:
        optimizer: the optimizer.
        loss: the tensor that it makes smaller.
        assignments: new values of parameters, of the optimizer's state and of modules' buffers.
        step: the number of the step among those of the graph.
    """

    def __init__(self, optimizer: Any, loss: Any, assignments: list[Assignment], step: int) -> None:
        self.optimizer, self.loss, self.assignments, self.step = optimizer, loss, assignments, step

    def __repr__(self) -> str:
        return f"Train({type(self.optimizer).__name__}, {len(self.assignments)} assignments)"


class Graph:
    """A graph that is defined within a ``with`` block and run by a ``Session``.

    In the block operations wait: shapes and dtypes are known and checked at once, values are not.
    Variables and modules are made before it. When the block ends, variables, modules and
    optimizers are as they were before: only runs change them.

    Raises:
        ArgumentError: if the block is entered twice, or within another graph; at its end, if a
            variable was made in it.
        TraceError: in the block, if the value of a tensor is read.
    """

    def __init__(self) -> None:
        self.placeholders: list[Placeholder] = []
        self.trains: list[Train] = []
        self.trace: Trace | None = None
        self.builder: Any = None
        self.order: list[Any] = []
        self.leaves: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._stack = ExitStack()

    @staticmethod
    def of(x: Any) -> Graph | None:
        """Return the latest graph that has a tensor, or None."""
        for found in reversed([g for ref in _graphs if (g := ref()) is not None]):
            held = found.builder is not None and key_of(cells.Held(x)) in found.builder.index
            if id(x) in found.leaves or held or any(x is t for t in found.trains):
                return found
        return None

    @staticmethod
    def current() -> Graph | None:
        """Return the graph whose block this thread is in, or None."""
        found = tracing.current()
        return getattr(found, "static_graph", None)

    def __enter__(self) -> Graph:
        if self.trace is not None or tracing.current() is not None:
            raise ArgumentError("Graph: expected a new graph, outside of other graphs' blocks")
        self.trace = Trace()
        self.trace.static_graph = self
        self._stack.enter_context(self.trace.running())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        assert self.trace is not None
        self._stack.close()
        live = [] if kind is not None else list(self._made())
        self.leaves = {id(x): graph.leaf(x) for x in live}
        values = {graph.leaf(x): x.array for x in live if x.array is not None}
        self.trace.restore()
        if kind is None:
            self._finish(live, values)

    def _made(self) -> Iterator[Any]:
        """Yield the tensors that were made in the block."""
        assert self.trace is not None
        for x in graph.tensors():
            made = x.serial >= self.trace.since and (x.array is not None or x.node is not None)
            if made and type(x.spec) is not tuple:
                yield x
        for train in self.trains:
            yield from (a.tensor for a in train.assignments)

    def _finish(self, live: list[Any], values: dict[Any, Any]) -> None:
        """Copy the graph, with sources for all that comes from outside."""
        assert self.trace is not None
        inside = next((x for x in live if isinstance(x, Parameter)), None)
        if inside is not None:
            raise ArgumentError(
                f"Graph: a variable{f' {inside.name!r}' if inside.name else ''} was made in the "
                "block\n  rule: variables and modules are made before it"
            )
        found = Results([], [], [], [], [], values)
        for i, x in enumerate(self.placeholders):
            self.trace.places[x.node] = cells.Argument(i)  # type: ignore[assignment]
        self.builder = Builder(self.trace, found, [], [])
        self.order = self.builder.order([x for x in self.leaves.values() if x not in values])
        self._keep = live  # their identities are keys
        _graphs[:] = [ref for ref in _graphs if ref() is not None]
        _graphs.append(weakref.ref(self))

    def minimize(self, optimizer: Any, loss: Tensor) -> Train:
        """Return what makes a step of an optimizer when a session runs it.

        It computes the gradients of ``loss`` by the optimizer's parameters and updates them.
        Buffers that modules have changed in the graph so far, such as running statistics, are
        stored by the same step. ``optimizer.minimize(loss)`` in the graph's block does this.
        """
        trace = self.trace
        assert trace is not None
        step, before = len(trace.steps), dict(trace.slots)
        with _undone():
            optimizer.reset_grad()
            loss.backward(retain_graph=True)
            changed = [p for g in optimizer.groups for p in g["params"] if p.grad is not None]
            optimizer.step()
            assignments = [Assignment(p.detach(), cells.Held(p)) for p in changed]
        new = [pair for key, pair in trace.slots.items() if before.get(key) is not pair]
        assignments += [Assignment(x, cell) for x, cell in new]
        trace.slots.clear()
        trace.slots.update(before)
        assignments += [
            Assignment(attributes[name], cells.Buffer(attributes, name))
            for attributes, name, was in trace.buffers.values()
            if attributes[name] is not was
        ]
        train = Train(optimizer, loss, assignments, step)
        self.trains.append(train)
        return train

    def node_of(self, x: Any) -> Any:
        """Return the node of a tensor of the graph, or of a variable that it reads.

        Raises:
            ArgumentError: if the graph has not got it.
        """
        found = self.leaves.get(id(x))
        made = None if found is None else self.builder.new.get(found)
        if made is None and isinstance(x, Parameter):
            place = self.builder.index.get(key_of(cells.Held(x)))
            made = None if place is None else self.builder.made[place]
        if made is None:
            raise ArgumentError(f"expected a tensor of this graph, got {x!r:.80}")
        return graph.leaf(made)

    def operations(self) -> list[Operation]:
        """Return the operations of the graph, each after its inputs."""
        found: dict[Any, Operation] = {}
        counts: dict[str, int] = {}
        sources = [x.node for x in self.builder.made]
        constants = [node for node, _ in self.builder.constants]
        for node in (*sources, *constants, *self.order):
            word = node.op.name if node.op is not None else "constant"
            counts[word] = counts.get(word, -1) + 1
            inputs = [found[x] for x in node.inputs]
            found[node] = Operation(node, f"{word}_{counts[word]}", inputs)
        return list(found.values())

    def __repr__(self) -> str:
        names = ", ".join(x.name or "?" for x in self.placeholders)
        return f"Graph({len(self.order)} operations, placeholders: {names})"


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> list[Any]:
    """Return the gradients of a scalar by tensors, as tensors of the same graph.

    They can be fetched, computed with and differentiated again.

    Args:
        loss: a scalar of the graph.
        inputs: variables, or results of the graph; None stands for those that loss does not
            depend on.

    Raises:
        ArgumentError: outside of a graph's block.
        GradientError: if an input does not require a gradient.
    """
    if Graph.current() is None:
        raise ArgumentError("gradients: expected to be called within `with static.Graph():`")
    for x in inputs:
        if not x.requires_grad:
            raise GradientError(f"gradients: {x.name or 'an input'} does not require a gradient")
    with _undone():
        for x in inputs:
            x.grad = None
        loss.backward(create_graph=True)
        return [x.grad for x in inputs]


@contextmanager
def _undone() -> Iterator[None]:
    """Put back, at the end of the block, the tensors that it changed."""
    journal: list[Any] = []
    outer = graph.set_journal(journal)
    try:
        yield
    finally:
        graph.set_journal(outer)
        for entry in reversed(journal):
            if type(entry) is tuple:
                graph.restore(*entry)

"""Nodes at the start of graphs: of functions that are differentiated, traced or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from needle import executor, graph
from needle.errors import ArgumentError
from needle.ops.core.op import Identity, Linear, Op, variables
from needle.ops.core.operands import has_gradients

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Tensor
    from needle.value import Value


class Start(Op):
    """Return x as the start of a new graph: no gradient flows to x.

    While a function is traced, a leaf with a gradient that gets a new value stands for this.
    """

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (None,)


def is_start(x: Value) -> bool:
    """Return whether a tensor is a leaf: no op made it, or it got its value while it is traced."""
    op = x.op
    return op is None or type(op) is Start


def started(value: Tensor) -> Tensor:
    """Return a leaf with a gradient whose value waits to be computed."""
    return graph.pend(Start.of(), (value,), value.spec, True)


def become(x: Value, value: Any, requires_grad: bool | None = None) -> None:
    """Give a leaf a value that waits to be computed; it stays a leaf."""
    needs = x.requires_grad if requires_grad is None else requires_grad
    graph.rebind(x, graph.pend(Start.of(), (value,), value.spec, needs))


class Again(Linear):
    """Return x for a second run of what made other nodes of it, which stay apart."""

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad,)


def again(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the same values that start a graph, of nodes equal to no other ones."""
    return [graph.pend(Again(), (x,), x.spec, has_gradients(x.spec.dtype)) for x in inputs]


class Placeholder(Op):
    """A value that a program's call brings: an argument, a cell, or numbers.

    Raises:   ArgumentError if it is computed

    Attributes:
        index: its place among the program's sources.
        strides: of its array, in elements; None for a dense one.
    """

    index: int
    strides: tuple[int, ...] | None
    is_differentiable = False

    def compute(self, *arrays: NDArray) -> NDArray:
        raise ArgumentError(f"source {self.index} of a program has no value outside a call")


def stand_ins(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return other tensors of the same values, for a user's function, which may assign to them.

    After ``x[i] = y`` x stands for another value, and gradients with respect to x would be those
    with respect to that value.
    """
    return [executor.apply(Identity.of(), x) for x in tensors]


def starts(inputs: Sequence[Tensor]) -> tuple[list[graph.Node], list[Tensor]]:
    """Return nodes to differentiate with respect to, and their tensors for a user's function.

    None of the tensors is a leaf: a leaf stays a leaf when assigned to, and loses its old value.
    """
    tensors = variables(inputs)
    nodes = [graph.leaf(x) for x in tensors]
    with executor.modes(recording=True):
        return nodes, [x if x.op is not None else stand_ins([x])[0] for x in tensors]

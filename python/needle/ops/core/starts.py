"""Nodes at the start of graphs while a function is traced: see ``needle.compile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from needle import graph
from needle.ops.core.base import Linear, Op
from needle.ops.core.operands import has_gradients

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Tensor


class Start(Op):
    """Return x as the start of a new graph: no gradient flows to x.

    While a function is traced, a leaf with a gradient that gets a new value stands for this.
    """

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Any, out: Tensor) -> Gradients:
        return (None,)


def is_start(x: Any) -> bool:
    """Return whether a tensor is a leaf: no op made it, or it got its value while it is traced."""
    op = x.op
    return op is None or type(op) is Start


def started(value: Any) -> Any:
    """Return a leaf with a gradient whose value waits to be computed."""
    return graph.pend(Start.of(), (value,), value.spec, True)


def become(x: Any, value: Any, requires_grad: bool | None = None) -> None:
    """Give a leaf a value that waits to be computed; it stays a leaf."""
    needs = x.requires_grad if requires_grad is None else requires_grad
    graph.rebind(x, graph.pend(Start.of(), (value,), value.spec, needs))


class Again(Linear):
    """Return x for a second run of what made other nodes of it, which stay apart."""

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Any, out: Tensor) -> Gradients:
        return (out_grad,)


def again(inputs: Sequence[Any]) -> list[Any]:
    """Return tensors of the same values that start a graph, of nodes equal to no other ones."""
    return [graph.pend(Again(), (x,), x.spec, has_gradients(x.spec.dtype)) for x in inputs]

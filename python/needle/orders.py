"""Orders of a graph's nodes: the Python definition of walks, which are loops, not recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def topo(
    nodes: Iterable[Any], needs: bool = False, stop: frozenset[Any] | None = None
) -> list[Any]:
    """Return all nodes below, inputs first, depth first in the order of inputs; no recursion.

    Args:
        needs: visit only nodes through which gradients flow.
        stop: nodes below which the walk stops.
    """
    return _ordered(nodes, lambda node: node.needs or not needs, stop or frozenset())


def pending_order(nodes: Iterable[Any]) -> list[Any]:
    """Return the nodes below that have not run, inputs first."""
    return _ordered(nodes, lambda node: not node.done)


def _ordered(
    nodes: Iterable[Any], wanted: Callable[[Any], bool], stop: frozenset[Any] = frozenset()
) -> list[Any]:
    order: list[Any] = []
    seen: set[int] = set()
    for root in nodes:
        stack = [(root, 0)] if id(root) not in seen and wanted(root) else []
        seen.add(id(root))
        while stack:
            node, i = stack.pop()
            inputs = () if node in stop else node.inputs
            while i < len(inputs):
                below = inputs[i]
                i += 1
                if id(below) not in seen and wanted(below):
                    seen.add(id(below))
                    stack.append((node, i))
                    stack.append((below, 0))
                    break
            else:
                order.append(node)
    return order

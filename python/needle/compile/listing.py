"""Listing, the nodes of a traced function in order; and Program, what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from needle.backend.ndarray import NDArray
from needle.graph import Node


class Listing(NamedTuple):
    """What a program computes: nodes of the graph, in an order in which they can run.

    Passes take a listing and return another one; the nodes themselves never change.

    Attributes:
        order: the nodes that are computed, each after its inputs; views are among them, the nodes
            of ``sources`` and ``constants`` are not.
        sources: the nodes whose arrays a call brings: arguments, then cells, then numbers. Their
            ops are ``Placeholder``, which has the arrays' strides.
        constants: leaves, and the arrays that the program keeps for them.
        outputs: the nodes whose values a call returns, in new memory each time. The same node may
            be there twice.
        stores: for a value, the position in ``sources`` of the cell that holds it after the call.
    """

    order: list[Node]
    sources: list[Node]
    constants: list[tuple[Node, NDArray]]
    outputs: list[Node]
    stores: list[tuple[Node, int]]


class Program(Protocol):
    """A listing that can run; it may run again and again."""

    def run(
        self, arrays: Sequence[NDArray], exclusive: Sequence[bool]
    ) -> tuple[list[NDArray], list[NDArray]]:
        """Run once.

        Args:
            arrays: one for each source, with its spec.
            exclusive: for each source, whether nobody else holds its array and memory, so that a
                store may write there.

        Returns:
            the arrays of ``outputs``, which share memory with nothing else; and for each store the
            array that its cell holds from now on.

        Raises:
            NeedleError: what the op raises in eager mode. Nothing was stored then.
        """
        ...

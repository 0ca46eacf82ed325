"""Where the nodes of a graph go in a picture: layers by the longest path, then few crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SWEEPS = 8
"""How often each layer is sorted by its neighbours, downwards and upwards in turn."""
MOST = 12
"""Nodes of a row; a layer of more is several rows."""
STOPS = 6
"""Most stops of long edges for each node; where there would be more, there are none."""


class Stop(NamedTuple):
    """A place in a layer that an edge over several layers goes through."""

    source: Any
    target: Any
    layer: int


class Layers(NamedTuple):
    """A layout.

    Attributes:
        rows: nodes and stops, from the top and from the left.
        stops: for each edge (input, node) that has some, its stops in order.
    """

    rows: list[list[Any]]
    stops: dict[tuple[Any, Any], list[Stop]]


def layers(below: Mapping[Any, Sequence[Any]]) -> Layers:
    """Return the nodes in layers, inputs above what reads them.

    A node is one layer below the lowest of its inputs; one without inputs is just above what reads
    it first. Within a layer nodes go where the nodes that they are joined to are on average.

    Args:
        below: for each node its inputs; nodes come after their inputs.

    >>> from needle.tools.layout import layers
    >>> layers({"x": [], "w": [], "y": ["x"], "z": ["y", "w"]}).rows
    [['x'], ['w', 'y'], ['z']]
    """
    depth = _depths(below)
    rows = _rows(depth)
    at = {node: i for i, row in enumerate(rows) for node in row}
    edges = [(x, node) for node, inputs in below.items() for x in dict.fromkeys(inputs)]
    stops = {(a, b): [Stop(a, b, i) for i in range(at[a] + 1, at[b])] for a, b in edges}
    stops = {edge: found for edge, found in stops.items() if found}
    if sum(map(len, stops.values())) > STOPS * len(below):
        stops = {}
    up: dict[Any, list[Any]] = {node: [] for node in below}
    down: dict[Any, list[Any]] = {node: [] for node in below}
    for a, b in edges:
        chain = [a, *stops.get((a, b), ()), b]
        for i, x in enumerate(chain[1:]):
            up.setdefault(x, []).append(chain[i])
            down.setdefault(chain[i], []).append(x)
    for chain in stops.values():
        for stop in chain:
            rows[stop.layer].append(stop)
    for sweep in range(SWEEPS):
        _sort(rows, down if sweep % 2 else up)
    return Layers(rows, stops)


def _depths(below: Mapping[Any, Sequence[Any]]) -> dict[Any, int]:
    depth: dict[Any, int] = {}
    first: dict[Any, int] = {}  # the layer of what reads it first
    for node, inputs in below.items():
        depth[node] = 1 + max((depth[x] for x in inputs), default=-1)
        for x in inputs:
            first[x] = min(first.get(x, depth[node]), depth[node])
    return {x: first[x] - 1 if x in first and not below[x] else depth[x] for x in depth}


def _rows(depth: Mapping[Any, int]) -> list[list[Any]]:
    """Return the layers as rows of at most MOST nodes."""
    found: list[list[Any]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node, at in depth.items():
        found[at].append(node)
    return [layer[i : i + MOST] for layer in found for i in range(0, len(layer), MOST)]


def _sort(rows: list[list[Any]], joined: Mapping[Any, Sequence[Any]]) -> None:
    """Sort each row by the mean place of what its nodes are joined to, from the middle."""
    place = {x: i - len(row) / 2 for row in rows for i, x in enumerate(row)}
    for row in rows:
        means = {}
        for x in row:
            others = joined.get(x)
            means[x] = sum(place[y] for y in others) / len(others) if others else place[x]
        row.sort(key=means.__getitem__)
        place.update({x: i - len(row) / 2 for i, x in enumerate(row)})

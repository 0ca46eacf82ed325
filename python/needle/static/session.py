"""Session: runs what is fetched of a static graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from needle import config, tree
from needle.compile import build, cells, frames
from needle.compile.call import Call
from needle.compile.trace import Numbers
from needle.errors import ArgumentError, FeedError, NeedleError
from needle.static.graph import Graph, Placeholder, Train
from needle.tensors import Parameter, Tensor


class Session:
    """Runs static graphs; see ``run``.

    A session has no state but the programs that it has made: variables hold their values
    themselves, so two sessions and eager code see the same ones.

    Args:
        graph: the graph; None to find it by what is fetched or fed.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = graph
        self._calls: dict[Any, tuple[Call, Any]] = {}  # and what the keys are identities of

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def run(self, fetches: Any, feed_dict: Mapping[Placeholder, Any] | None = None) -> Any:
        """Return the values of tensors; only what they need is computed.

        Args:
            fetches: a tensor of the graph, a variable, or what ``minimize`` returned, which makes
                a step and has the value None; or nested tuples, lists and dicts of these. All
                values are those before the steps.
            feed_dict: the value of each placeholder that the fetches need: a tensor, an array or
                nested lists of its shape.

        Returns:
            tensors in the structure of ``fetches``, in new memory.

        Raises:
            FeedError: for a placeholder without value, or a value that does not fit.
            ArgumentError: for something that is not of the graph.
        """
        feed = dict(feed_dict or {})
        wanted: list[Any] = []
        frame = _flat(fetches, wanted)
        graph = self.graph or _graph_of(wanted, feed)
        if not graph.order and not graph.builder:
            raise ArgumentError("run: expected a graph whose `with` block has ended")
        settings = config.current()
        mode = "python" if settings.compile == "off" else settings.compile
        key = (id(graph), mode, settings, *map(id, wanted))
        if key not in self._calls:
            made = _program(graph, wanted, mode, settings)
            self._calls[key] = made, (graph, wanted)
        call = self._calls[key][0]
        values = _fed(graph, call, feed)
        prepared = call.prepared(values, settings)
        if prepared is None:
            raise NeedleError(
                "run: a variable has another shape, dtype or device than when the graph was "
                "defined, or random numbers have no seed\n  try: manual_seed, or a new graph"
            )
        found = call.run(values, prepared)
        return _filled(frame, iter(found), wanted)


def _flat(fetches: Any, wanted: list[Any]) -> Any:
    """Add what is fetched to a list; return the structure with numbers in its place."""
    if isinstance(fetches, (list, tuple)):
        return tree.like(fetches, [_flat(x, wanted) for x in fetches])
    if isinstance(fetches, dict):
        return {name: _flat(x, wanted) for name, x in fetches.items()}
    if not isinstance(fetches, (Tensor, Train)):
        raise ArgumentError(f"run: expected tensors to fetch, got {tree.kind(fetches)}")
    wanted.append(fetches)
    return len(wanted) - 1


def _filled(frame: Any, values: Any, wanted: list[Any]) -> Any:
    """Return the structure with values; None for steps of optimizers."""
    if isinstance(frame, (list, tuple)):
        return tree.like(frame, [_filled(x, values, wanted) for x in frame])
    if isinstance(frame, dict):
        return {name: _filled(x, values, wanted) for name, x in frame.items()}
    return None if isinstance(wanted[frame], Train) else next(values)


def _graph_of(wanted: list[Any], feed: dict[Any, Any]) -> Graph:
    """Return the graph of what is fetched or fed."""
    for x in (*feed, *wanted):
        found = getattr(x, "graph", None)
        if isinstance(found, Graph):
            return found
    for x in wanted:
        found = Graph.of(x)
        if found is not None:
            return found
    raise ArgumentError("run: no graph has these tensors\n  try: Session(graph)")


def _program(graph: Graph, wanted: list[Any], mode: str, settings: Any) -> Call:
    """Return the program of what is fetched."""
    trains = list(dict.fromkeys(x for x in wanted if isinstance(x, Train)))
    steps = {train.step: i for i, train in enumerate(trains)}
    results = [graph.node_of(x) for x in wanted if not isinstance(x, Train)]
    kept = _assigned(graph, trains)
    bound = build.placed(graph.builder, graph.order, results, kept)
    bound = build.needed(bound)
    assert graph.trace is not None
    trace = copy.copy(graph.trace)
    trace.steps = [graph.trace.steps[train.step] for train in trains]
    trace.modules = {}  # their settings were read when the graph was defined
    sources = [
        x._replace(step=steps[x.step]) if isinstance(x, Numbers) else x for x in bound.sources
    ]
    found = build.Results([], [], [], [False] * len(results), [], {})
    frame = [frames.TENSOR] * len(results)
    return Call(bound._replace(sources=sources), found, trace, frame, mode, settings)


def _assigned(graph: Graph, trains: list[Train]) -> list[tuple[Any, Any]]:
    """Return the nodes that steps assign, and the cells that take them; updates come last.

    Raises:
        ArgumentError: if two steps change the same variable.
    """
    found: dict[Any, tuple[Any, Any]] = {}
    for train in sorted(trains, key=lambda x: x.step):
        for value, cell in train.assignments:
            key = build.key_of(cell)
            if key in found and type(cell) is not cells.Buffer:
                raise ArgumentError(
                    "run: two steps change the same variable, and each begins with its old value\n"
                    "  try: a run for each step"
                )
            found[key] = graph.node_of(value), cell
    return sorted(found.values(), key=lambda pair: type(pair[1]) is not cells.Buffer)


def _fed(graph: Graph, call: Call, feed: dict[Any, Any]) -> list[Any]:
    """Return the values of the placeholders; None for those that are not needed."""
    for x in feed:
        if not any(x is y for y in graph.placeholders):
            raise FeedError(f"run: fed with {x!r:.60}, which is no placeholder of the graph")
    used = {x.place for x in call.bound.sources if isinstance(x, cells.Argument)}
    values: list[Any] = []
    for i, x in enumerate(graph.placeholders):
        if i not in used:
            values.append(None)
        elif x not in feed:
            raise FeedError(f"run: the placeholder {x.name!r}, {x.spec}, has no value")
        else:
            values.append(_value(x, feed[x]))
    return values


def _value(x: Placeholder, given: Any) -> Tensor:
    """Return what a placeholder is fed with as a dense tensor of its spec."""
    if isinstance(given, Parameter) or not isinstance(given, Tensor):
        given = Tensor(given, requires_grad=False)
    value = given.detach().to(x.device).astype(x.dtype)
    if value.shape != x.shape:
        raise FeedError(f"run: the placeholder {x.name!r} is {x.spec}, got shape {value.shape}")
    if value.array.strides != value.spec.strides:
        value = value + 0 if value.dtype.kind != "b" else value.copy()
    return value

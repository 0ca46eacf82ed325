"""``draw``: a graph as a page with a picture, in which each node tells what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from needle import executor, graph
from needle.compile import Compiled, cells
from needle.compile.listing import Listing
from needle.compile.memory import shown
from needle.errors import ArgumentError
from needle.io.programs import LoadedProgram
from needle.tools.formula import SIGNS
from needle.tools.layout import Stop, layers
from needle.tools.report.page import document
from needle.tree import kind

WIDE, HIGH = 132, 34
"""Size of a node."""
ACROSS, DOWN = 16, 34
"""Space between nodes, and between layers."""
LETTERS = 19
"""Most letters of a line in a node."""

STYLE = """
body { max-width: none; } .graphs { display: flex; gap: 1rem; align-items: flex-start; }
.graphs > figure { margin: 0; flex: 1 1 0; min-width: 0; } figcaption { font-weight: 600; }
.scroll { overflow: auto; max-height: 78vh; background: var(--card); border-radius: 8px; }
.scroll svg { display: block; margin: 0 auto; }
.node rect { fill: var(--paper); stroke: var(--faint); } .node { cursor: pointer; }
.node.given rect { stroke: var(--c0); stroke-dasharray: 4 2; }
.node.result rect { stroke: var(--c1); stroke-width: 2; }
svg .node text { fill: var(--ink); font-size: 11px; text-anchor: middle; }
svg .node text + text { fill: var(--faint); font-size: 9.5px; }
.edge { fill: none; stroke: var(--faint); stroke-opacity: .45; }
.edge.on { stroke: var(--c1); stroke-opacity: 1; stroke-width: 2; }
.node.on rect { fill: color-mix(in srgb, var(--c1) 18%, var(--paper)); }
#told { position: sticky; bottom: 0; min-height: 4.6rem; white-space: pre-wrap; margin: .6rem 0 0; }
"""

SCRIPT = """
for (const svg of document.querySelectorAll(".scroll svg")) {
  const wide = svg.width.baseVal.value, high = svg.height.baseVal.value;
  const zoom = svg.closest("figure").querySelector("input");
  const size = () => { svg.setAttribute("width", wide * zoom.value);
    svg.setAttribute("height", high * zoom.value); };
  zoom.value = Math.max(.35, Math.min(1, svg.parentNode.clientWidth / wide));
  zoom.oninput = size; size();
  svg.parentNode.scrollLeft = (svg.parentNode.scrollWidth - svg.parentNode.clientWidth) / 2;
  let kept = null;
  const show = node => {
    for (const x of svg.querySelectorAll(".on")) x.classList.remove("on");
    if (!node) return;
    document.getElementById("told").textContent = node.querySelector("title").textContent;
    node.classList.add("on");
    const id = node.dataset.node;
    for (const x of svg.querySelectorAll(`[data-from="${id}"], [data-to="${id}"]`))
      x.classList.add("on");
  };
  svg.onmouseover = event => show(event.target.closest(".node") || kept);
  svg.onclick = event => { kept = event.target.closest(".node"); show(kept); };
}
"""


class Graph(NamedTuple):
    """A graph to draw.

    Attributes:
        title: what stands above it.
        nodes: the nodes, each after its inputs.
        names: of nodes that come from outside.
        results: the nodes of results.
    """

    title: str
    nodes: Sequence[Any]
    names: dict[Any, str]
    results: set[Any]


def draw(what: Any, path: str | os.PathLike[str]) -> None:
    """Draw a graph as one HTML file, which opens in a browser without a network.

    Of a compiled function there are two pictures side by side: its graph as it was traced, and what
    the passes made of it, which runs. A node shows its op and its result; pointing at it shows the
    operands and the line of yours that asked for it, and marks what it reads and who reads it.

    Args:
        what: a tensor with a graph, several in a list or tuple, a loaded program, or what
            ``compile`` returned, after a call; of its programs the last one is drawn.
        path: of the file.

    Raises:
        ArgumentError: for anything else, or a compiled function without a program.

    >>> import tempfile
    >>> f = ndl.compile(lambda x: ndl.ops.tanh(x * 2).sum())
    >>> y = f(ndl.ones(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ndl.draw(f, folder + "/f.html")
    ...     open(folder + "/f.html").read().count("<svg")
    2
    """
    Path(path).write_text(page(what), encoding="utf-8")


def page(what: Any) -> str:
    """Return the page that ``draw`` writes."""
    if isinstance(what, (Compiled, LoadedProgram)):
        name, graphs = what.__name__, _programs(what)
    else:
        name, graphs = "graph", [_of_tensors(what)]
    figures = "".join(
        f'<figure><figcaption>{escape(x.title)} <input type="range" min=".1" max="2" step=".05" '
        f'value="1" aria-label="size"></figcaption><div class="scroll">{svg(x, i)}</div></figure>'
        for i, x in enumerate(graphs)
    )
    body = (
        f'<style>{STYLE}</style><h1>{escape(name)}</h1><div class="graphs">{figures}</div>'
        '<pre id="told">Point at a node, or click it.</pre>'
        f"<script>{SCRIPT}</script>"
    )
    return document(name, body)


# ---- what there is to draw -------------------------------------------------------------


def _of_tensors(what: Any) -> Graph:
    tensors = list(what) if isinstance(what, (list, tuple)) else [what]
    for x in tensors:
        if not isinstance(x, graph.TensorBase):
            raise ArgumentError(
                f"draw: expected a tensor or a compiled function, got {kind(x)}\n"
                "  try: the result of a function, or needle.compile(function) after a call"
            )
    roots = [graph.leaf(x) for x in tensors]
    nodes = graph.topo(roots)
    names = {x: _called(graph.tensor_of(x)) for x in nodes if not x.inputs}
    if all(x in names for x in roots):
        raise ArgumentError(
            "draw: the tensor has no graph\n"
            "  rule: results keep a graph where an input requires gradients, and in lazy mode"
        )
    return Graph(f"{len(nodes)} nodes", nodes, names, set(roots))


def _programs(function: Compiled | LoadedProgram) -> list[Graph]:
    calls = function.calls()
    if not calls:
        raise ArgumentError(f"draw: {function.__name__} has no program yet; call it first")
    call = calls[-1]
    given = [_given(x) for x in call.bound.sources]
    before = _of_listing("as traced", call.traced, given)
    return [before, _of_listing("as it runs", call.program.listing, given)]


def _of_listing(title: str, listing: Listing, given: Sequence[str]) -> Graph:
    names = dict(zip(listing.sources, given, strict=True))
    names.update((node, _called(graph.wrap(array))) for node, array in listing.constants)
    used = {x for node in listing.order for x in node.inputs}
    used.update(listing.outputs, (node for node, _ in listing.stores))
    nodes = [*(x for x in names if x in used), *listing.order]
    results = {*listing.outputs, *(node for node, _ in listing.stores)}
    return Graph(f"{title}: {len(listing.order)} operations", nodes, names, results)


def _called(x: Any) -> str:
    """Return the name of a tensor that is given, or its value if that is one number."""
    if x.name or x.requires_grad or x.size != 1 or x.array is None:
        return x.name or "tensor"
    return f"{x.item():.6g}"


def _given(source: Any) -> str:
    """Return the name of what a program reads."""
    if type(source) is cells.Argument:
        return f"argument {source.place + 1}"
    if type(source) is cells.Held:
        return source.owner.name or "tensor"
    if type(source) is cells.Buffer:
        return str(source.name)
    if type(source) is cells.Slot:
        return f"state of {source.parameter.name or 'a parameter'}"
    return type(source).__name__.lower()


# ---- the picture -----------------------------------------------------------------------


def svg(found: Graph, number: int = 0) -> str:
    """Return the picture of a graph; the number keeps its nodes apart from those of others."""
    known = layers({node: node.inputs for node in found.nodes})
    widths = [sum(map(_width, row)) for row in known.rows]
    wide, high = max(widths) + ACROSS, len(known.rows) * (HIGH + DOWN)
    place: dict[Any, tuple[float, float]] = {}  # the middle of the top
    for y, (row, width) in enumerate(zip(known.rows, widths, strict=True)):
        x = (wide - width) / 2
        for what in row:
            place[what] = x + _width(what) / 2, y * (HIGH + DOWN) + DOWN / 2
            x += _width(what)
    ids = {node: f"{number}-{i}" for i, node in enumerate(found.nodes)}
    edges = []
    for node in found.nodes:
        for below in dict.fromkeys(node.inputs):
            stops = known.stops.get((below, node), ())
            curve = _curve([place[x] for x in (below, *stops, node)])
            ends = f'data-from="{ids[below]}" data-to="{ids[node]}"'
            edges.append(f'<path class="edge" {ends} d="{curve}"/>')
    boxes = [_box(found, node, place[node], ids[node]) for node in found.nodes]
    size = f'width="{wide:g}" height="{high:g}" viewBox="0 0 {wide:g} {high:g}"'
    return f'<svg {size} role="img">{"".join(edges)}{"".join(boxes)}</svg>'


def _width(what: Any) -> int:
    """Return the width of a node, or of a stop of an edge, with the space beside it."""
    return ACROSS if isinstance(what, Stop) else WIDE + ACROSS


def _curve(places: Sequence[tuple[float, float]]) -> str:
    """Return the path of an edge from below its first place, through stops, to its last one."""
    x, y = places[0][0], places[0][1] + HIGH
    parts = [f"M{x:g} {y:g}"]
    for u, v in places[1:]:
        bend = max(DOWN / 2, (v - y) / 3)
        parts.append(f"C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}")
        x, y = u, v + HIGH
        if (u, v) != places[-1]:
            parts.append(f"L{x:g} {y:g}")
    return "".join(parts)


def _box(found: Graph, node: Any, at: tuple[float, float], name: str) -> str:
    classes = "node" + " given" * (node in found.names) + " result" * (node in found.results)
    head = found.names.get(node) or node.op.name
    sign = SIGNS.get(head, "")
    lines = [f"{head} {sign}".strip(), shown(node.spec)]
    texts = "".join(
        f'<text x="{at[0]:g}" y="{at[1] + 14 + 13 * i:g}">{escape(_short(line))}</text>'
        for i, line in enumerate(lines)
    )
    box = f'<rect x="{at[0] - WIDE / 2:g}" y="{at[1]:g}" width="{WIDE}" height="{HIGH}" rx="5"/>'
    told = f"<title>{escape(_told(found, node))}</title>"
    return f'<g class="{classes}" data-node="{name}">{told}{box}{texts}</g>'


def _told(found: Graph, node: Any) -> str:
    """Return what a node tells: its op, operands, result, and the user's line."""
    result = f"-> {shown(node.spec)}"
    if node in found.names:
        return f"{found.names[node]}\n{result}"
    operands = ", ".join(shown(x.spec) for x in node.inputs)
    line = executor.line_of(node)
    return "\n".join([str(node.op), f"({operands})", result, *([f"at {line}"] if line else [])])


def _short(text: str) -> str:
    return text if len(text) <= LETTERS + 3 else text[:LETTERS] + "..."

"""A run as notebooks show it: how it ended, its figures, and its first curves."""

from __future__ import annotations

from html import escape
from typing import Any

from needle.tools.report import facts as fact
from needle.tools.report.page import shown
from needle.tools.report.svg import chart

_STYLE = """<style>
.needle-run { font: 13px/1.5 system-ui, sans-serif; --c0: #3b5bdb; --c1: #e8590c; --c2: #2b8a3e;
  --c3: #ae3ec9; --c4: #0c8599; --c5: #c2255c; }
.needle-run .charts { display: flex; flex-wrap: wrap; gap: 1rem; }
.needle-run figure { width: 420px; margin: .4rem 0; } .needle-run svg { width: 100%; height: auto; }
.needle-run svg text { fill: #667; font-size: 11px; } .needle-run .grid { stroke: #d8dbe0; }
.needle-run polyline { fill: none; stroke-width: 1.6; }
.needle-run polyline, .needle-run circle { stroke: var(--c); }
.needle-run circle { fill: var(--c); }
.needle-run .key { margin-right: 1rem; }
.needle-run .key::before { content: "\\2014\\2002"; font-weight: bold; color: var(--c); }
.needle-run .c0 { --c: var(--c0); } .needle-run .c1 { --c: var(--c1); }
.needle-run .c2 { --c: var(--c2); } .needle-run .c3 { --c: var(--c3); }
</style>"""
MOST = 2
"""Number of curves."""


def card(facts: dict[str, Any]) -> str:
    """Return the HTML of the facts of a run (``facts.read``)."""
    figures = facts["series"]
    names = [name for names in fact.sections(figures).values() for name in names][:MOST]
    charts = "".join(
        f"<figure><b>{escape(name)}</b>{chart(fact.lines_of(figures, name))}</figure>"
        for name in names
    )
    values = " · ".join(
        f"{escape(name)} <b>{escape(shown(value))}</b>" for name, value in facts["summary"].items()
    )
    return (
        f'{_STYLE}<div class="needle-run"><b>{escape(facts["recipe"])}</b> '
        f"{escape(facts['name'])}. {escape(facts['verdict'])}<br>{values}"
        f'<div class="charts">{charts}</div></div>'
    )

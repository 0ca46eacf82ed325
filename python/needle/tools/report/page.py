"""The page of a report: HTML that is made of its facts, and opens without a network."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from needle.tools.report import facts as fact
from needle.tools.report.svg import chart, matrix

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #667; --line: #d8dbe0;
  --card: #f6f7f9; --c0: #3b5bdb; --c1: #e8590c; --c2: #2b8a3e; --c3: #ae3ec9; --c4: #0c8599;
  --c5: #c2255c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6eb; --paper: #16181c; --faint: #99a;
  --line: #3a3e45; --card: #1f2227; --c0: #748ffc; --c1: #ffa94d; --c2: #69db7c; --c3: #da77f2;
  --c4: #3bc9db; --c5: #faa2c1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .9rem; margin: 0 0 .3rem; font-weight: 600; }
.figures, .charts { display: grid; gap: .8rem; }
.figures { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); margin: 1rem 0; }
.charts { grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); }
.card { background: var(--card); border-radius: 8px; padding: .7rem .9rem; overflow-x: auto; }
.card b { display: block; font-size: 1.15rem; } .card small, .note { color: var(--faint); }
svg.chart { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 11px; }
svg .grid { stroke: var(--line); } polyline { fill: none; stroke-width: 1.6; }
.keys { font-size: .8rem; } .key { margin-right: 1rem; white-space: nowrap; }
.key b { display: inline; font-size: inherit; }
.key::before { content: "\\2014\\2002"; font-weight: bold; color: var(--c); }
polyline, circle { stroke: var(--c); } circle { fill: var(--c); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
pre { background: var(--card); padding: .8rem; border-radius: 8px; overflow: auto;
  white-space: pre-wrap; max-height: 30rem; }
table { border-collapse: collapse; font-size: .9rem; } td, th { padding: .15rem .7rem .15rem 0;
  text-align: left; vertical-align: top; } td { word-break: break-word; }
.matrix td, .matrix th { padding: .2rem .5rem; text-align: right; }
.matrix td { background: color-mix(in srgb, var(--c0) calc(var(--share) * 75%), transparent); }
img { max-width: 100%; background: #fff; border-radius: 4px; }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0; }
"""


def page(facts: dict[str, Any]) -> str:
    """Return the HTML page of the facts of a run (``facts.read``)."""
    figures = facts["series"]
    body = [
        f"<h1>{escape(facts['recipe'] or facts['name'])}</h1>",
        f'<p class="note">{escape(facts["name"])}. {escape(facts["verdict"])}</p>',
        _cards(facts["summary"]),
    ]
    for title, names in fact.sections(figures).items():
        charts = "".join(_card(name, chart(fact.lines_of(figures, name))) for name in names)
        body.append(_section(title, f'<div class="charts">{charts}</div>'))
    if facts["confusion"]:
        table = matrix(facts["confusion"]["counts"], facts["confusion"]["names"])
        note = '<p class="note">Rows: the true class. Columns: the predicted class.</p>'
        body.append(_section("Confusion matrix", f'{note}<div class="card">{table}</div>'))
    samples = "".join(
        f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in facts["texts"].items()
    )
    samples += "".join(
        f'<h3>{escape(p["name"])}</h3><img alt="" src="{escape(p["data"])}">'
        for p in facts["pictures"]
    )
    if samples:
        body.append(_section("Samples and pictures", samples))
    body.append(_section("Make this run again", f"<pre>{escape(facts['command'])}</pre>"))
    for title in ("settings", "data", "environment"):
        body.append(_folded(title.capitalize(), table_of(facts[title])))
    model = "\n".join([*facts["model"], "", facts["optimizer"]])
    body.append(_folded("Model and optimizer", f"<pre>{escape(model)}</pre>"))
    return document(facts["name"], "".join(body))


def document(title: str, body: str) -> str:
    """Return a whole HTML document."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><body>{body}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{content}</div>' if content else ""


def _cards(values: dict[str, Any]) -> str:
    cells = "".join(
        f'<div class="card"><small>{escape(name)}</small><b>{escape(shown(value))}</b></div>'
        for name, value in values.items()
    )
    return f'<div class="figures">{cells}</div>'


def shown(value: Any) -> str:
    """Return a value of the facts as a short text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, str):
        return value
    return json.dumps(value)


def table_of(values: dict[str, Any]) -> str:
    """Return names and values as a table."""
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(shown(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<table>{rows}</table>"

"""Runs beside one another: their curves in one chart, and what their configurations differ in."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from needle.errors import OptionError
from needle.tools.report import facts as fact
from needle.tools.report.page import document, shown
from needle.tools.report.svg import Line, chart


def compare(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return what several runs have: differences of their configurations, figures and curves.

    Raises:
        OptionError: if there are fewer than two runs.
    """
    if len(paths) < 2:
        raise OptionError("compare: expected at least two runs")
    runs = [fact.read(path) for path in paths]
    names = _unique([run["name"] for run in runs], [str(path) for path in paths])
    return {
        "runs": names,
        "verdicts": {n: run["verdict"] for n, run in zip(names, runs, strict=True)},
        "differences": differences(names, runs),
        "summary": _table(names, [run["summary"] for run in runs]),
        "series": {n: run["series"] for n, run in zip(names, runs, strict=True)},
    }


def _unique(names: list[str], paths: list[str]) -> list[str]:
    """Return the names of runs, or their paths, or these with numbers, to tell runs apart."""
    for found in (names, paths):
        if len(set(found)) == len(found):
            return found
    return [f"{path} #{i}" for i, path in enumerate(paths, 1)]


def _table(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return values by their name, then by run; a run without one has None."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {k: {n: row.get(k) for n, row in zip(names, rows, strict=True)} for k in keys}


def differences(names: Sequence[str], runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings, data, versions and models that are not the same in all runs."""
    flat = []
    for run in runs:
        values = {"recipe": run["recipe"], "parameters": run["parameters"],
                  "optimizer": run["optimizer"], "model": "\n".join(run["model"])}  # fmt: skip
        for part in ("settings", "data", "environment"):
            values |= {f"{part}.{k}": v for k, v in run[part].items() if k != "command"}
        flat.append(values)
    table = _table(names, flat)
    return {k: row for k, row in table.items() if any(v != row[names[0]] for v in row.values())}


def page(found: dict[str, Any]) -> str:
    """Return the HTML page of a comparison."""
    names = found["runs"]
    body = [f"<h1>{len(names)} runs</h1>"]
    verdicts = "".join(f"<li>{escape(n)}: {escape(v)}</li>" for n, v in found["verdicts"].items())
    body.append(f"<ul>{verdicts}</ul>")
    body.append("<h2>Figures</h2>" + _html(names, found["summary"]))
    body.append("<h2>Differences</h2>")
    if found["differences"]:
        body.append(_html(names, found["differences"]))
    else:
        body.append('<p class="note">The configurations are the same.</p>')
    figures = dict.fromkeys(k for run in found["series"].values() for k in run)
    charts = ""
    for name in figures:
        lines: list[Line] = []
        for run, series in found["series"].items():
            if name in series:
                lines += fact.lines_of(series, name, f"{run} ")
        charts += f'<div class="card"><h3>{escape(name)}</h3>{chart(lines)}</div>'
    body.append(f'<h2>Curves</h2><div class="charts">{charts}</div>')
    return document("Comparison", "".join(body))


def _html(names: Sequence[str], table: dict[str, dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(key)}</th>"
        + "".join(f"<td>{escape(shown(row[name]))}</td>" for name in names)
        + "</tr>"
        for key, row in table.items()
    )
    return f'<div class="card"><table><tr><th></th>{head}</tr>{rows}</table></div>'


def text(found: dict[str, Any]) -> str:
    """Return a comparison as lines for a terminal."""
    lines = [f"{name}: {found['verdicts'][name]}" for name in found["runs"]]
    for title in ("summary", "differences"):
        lines += ["", title + (":" if found[title] else ": none")]
        for key, row in found[title].items():
            values = [shown(v).replace("\n", " ") for v in row.values()]
            lines.append(f"  {key:24.24} " + "  ".join(f"{v:>20.40}" for v in values))
    return "\n".join(lines)

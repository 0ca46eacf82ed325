"""Write every figure as one HTML page: python bench/report.py [FILE.html].

The page has the areas and each run of bench/summary.json, and every row of the raw results that
are in bench/results. It needs nothing else: no network, no scripts.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import tables
from harness import shown

PAGE = Path(__file__).with_name("report.html")
SMALL, MIDDLE = 2 << 20, 24 << 20
"""Bytes up to which a row is held against the bytes per second of 64 Ki and 1 Mi floats."""
LONG = 24
"""Characters from which on a cell may take several lines."""
STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #f6f8fa; --bad: #b42318;
  --text: #1f2328; --back: #ffffff; --faint: #59636e; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #151b23; --bad: #ff8a7a;
  --text: #e6edf3; --back: #0d1117; --faint: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  margin: 0 auto; padding: 1rem; max-width: 90rem; }
h2 { margin-top: 2.5rem; } p { max-width: 45rem; } .faint { color: var(--faint); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
td.long { white-space: normal; min-width: 9rem; max-width: 22rem; }
th { vertical-align: bottom; } thead th { white-space: normal; min-width: 4.5rem; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--back); }
@media (max-width: 40rem) { th:first-child, td:first-child { white-space: normal; } }
tr.missed td { color: var(--bad); font-weight: 600; } tbody tr:hover td { background: var(--soft); }
summary { cursor: pointer; padding: .3rem 0; } code { background: var(--soft); }
"""
INTRODUCTION = """
Each row is one computation, made by Needle and by PyTorch in turns in one process. The ratio is
Needle's median time (or memory) divided by that of the best way to run PyTorch: below 1 Needle is
faster (or smaller). bench/README.md describes the method.
"""


# ---- figures -------------------------------------------------------------------------


def fraction(row: dict[str, Any], limits: dict[str, Any]) -> float | None:
    """Return the part of the machine's limit that Needle reaches in a row, or None."""
    if "needle" not in row or not limits or "missing" in limits:
        return None
    seconds = row["needle"]["median"]
    if row.get("flops"):
        return row["flops"] / seconds / limits["flops"]
    if not row.get("bytes"):
        return None
    size = "64 Ki" if row["bytes"] <= SMALL else "1 Mi" if row["bytes"] <= MIDDLE else "16 Mi"
    return row["bytes"] / seconds / limits["bytes"][size]


def raw() -> dict[str, dict[str, Any]]:
    """Return the raw results in bench/results by subject and machine."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(record.RESULTS.glob("*/*.json")):
        results = json.loads(path.read_text())
        found.setdefault(results["subject"], {})[path.parent.name] = results
    return found


# ---- HTML ----------------------------------------------------------------------------


def escaped(text: Any) -> str:
    """Return text as HTML, with `code` marked."""
    parts = html.escape(str(text), quote=False).replace("**", "").split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def table(cells: tables.Cells, missed: frozenset[int] = frozenset()) -> str:
    """Return a table, its first line as head; ``missed`` are lines that do not meet a target."""

    def line(values: list[str], tag: str, kind: str = "") -> str:
        long = [' class="long"' if tag == "td" and len(value) > LONG else "" for value in values]
        inside = "".join(
            f"<{tag}{mark}>{escaped(value)}</{tag}>"
            for value, mark in zip(values, long, strict=True)
        )
        return f"<tr{kind}>{inside}</tr>"

    body = (
        line(values, "td", ' class="missed"' if i in missed else "")
        for i, values in enumerate(cells[1:])
    )
    head = line(cells[0], "th")
    return (
        f'<div class="wide"><table><thead>{head}</thead>'
        f"<tbody>{chr(10).join(body)}</tbody></table></div>"
    )


def rows(results: dict[str, Any]) -> str:
    """Return the table of a subject's raw rows on one machine."""
    cells = [
        ["row", "Needle", "best peer", "which", "ratio", "of minima", "target", "of the limit"]
    ]
    limits = results.get("limits") or {}
    for row in results["rows"]:
        ours = theirs = ""
        if "needle" in row:
            ours = shown(row["needle"]["median"], row["unit"])
            theirs = shown(row["peers"][row["best_peer"]]["median"], row["unit"])
        part = fraction(row, limits)
        cells.append([
            row["name"], ours, theirs, row.get("best_peer", ""), f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f}", "" if row["target"] is None else f"{row['target']:.2g}",
            "" if part is None else f"{part:.0%}",
        ])  # fmt: skip
    missed = frozenset(i for i, row in enumerate(results["rows"]) if row["met"] is False)
    return table(cells, missed)


def runs(summary: dict[str, Any], subject: str) -> str:
    """Return the table of a subject's runs, a line per machine."""
    cells = [["machine", "geometric mean", "largest ratio", "its row", "targets met", "peer",
              "PyTorch", "threads", "date", "commit"]]  # fmt: skip
    for machine, entry in summary["subjects"][subject].items():
        name, ratio = entry.get("worst", ("", None))
        cells.append([
            tables.title(summary, machine), f"{entry['mean']:.2f}" if "mean" in entry else "",
            "" if ratio is None else f"{ratio:.2f}", name,
            f"{entry['met']} of {entry['targets']}" if "met" in entry else "",
            entry.get("peer", ""), entry["versions"].get("torch", ""),
            str(entry.get("threads", "")), entry["date"], entry["commit"],
        ])  # fmt: skip
    return table(cells)


def named(entry: dict[str, Any]) -> str:
    """Return the table of the rows whose figures the summary keeps."""
    cells = [["row", "Needle", "peer", "ratio"]]
    for name, (ours, theirs, unit) in entry["named"].items():
        cells.append([name, shown(ours, unit), shown(theirs, unit), f"{ours / theirs:.2f}"])
    return table(cells)


def details(summary: dict[str, Any], subject: str, found: dict[str, Any]) -> Iterator[str]:
    """Yield what a subject has on each machine: all of its rows, or those of the summary."""
    for machine, entry in summary["subjects"][subject].items():
        results = found.get(machine, {})
        inside, note = "", "rows kept in the summary"
        if results.get("rows"):
            inside, note = rows(results), f"{entry['rows']} rows, {results['command']}"
        elif "named" in entry:
            inside = named(entry)
        elif "figures" in entry:
            inside = table([["figure", ""], *([k, str(v)] for k, v in entry["figures"].items())])
        if inside:
            title = escaped(tables.title(summary, machine))
            note = f'<span class="faint">{escaped(note)}</span>'
            yield f"<details><summary>{title}: {note}</summary>{inside}</details>"


def page() -> str:
    """Return the whole page."""
    summary, found = record.load(), raw()
    parts = ["<h1>Needle beside PyTorch</h1>", f"<p>{escaped(INTRODUCTION.strip())}</p>"]
    parts += ["<h2>Areas</h2>", "<p>Geometric mean of the ratios (largest ratio).</p>"]
    parts.append(table(tables.areas(summary)))
    for subject in summary["subjects"]:
        parts += [f"<h2>{escaped(subject)}</h2>", runs(summary, subject)]
        parts += details(summary, subject, found.get(subject, {}))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Needle: benchmarks</title>\n<style>{STYLE}</style></head>\n"
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def main() -> None:
    """Do as the command line says."""
    make = argparse.ArgumentParser(description="Write every figure as one HTML page.")
    make.add_argument("path", nargs="?", type=Path, default=PAGE, metavar="FILE.html")
    path = make.parse_args().path
    path.write_text(page())
    print(path)


if __name__ == "__main__":
    main()

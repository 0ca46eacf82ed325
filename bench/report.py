"""The tables of bench/README.md, written from bench/results/PROCESSOR/SUBJECT.json.

python bench/report.py           write them
python bench/report.py --check   exit code 1 if README.md is not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness import RESULTS, shown

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: written by report.py -->", "<!-- end of results -->"
ORDER = (
    "startup", "eager", "gemm", "training", "memory", "main_job", "elementwise", "reduce",
    "softmax_loss", "norm", "optimizer", "indexing", "sort", "functions", "convolution",
    "images", "resnet", "cifar_accuracy", "gpu",
)  # fmt: skip
SMALL, MIDDLE = 2 << 20, 24 << 20
"""Bytes up to which a row is held against the bytes per second of 64 Ki and 1 Mi floats."""


def load() -> dict[str, list[dict[str, Any]]]:
    """Return the committed results by subject: one for each processor that it was measured on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        found.setdefault(path.stem, []).append(json.loads(path.read_text()))
    return {name: found[name] for name in ORDER if name in found}


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


def percent(part: float | None) -> str:
    """Return a fraction as text."""
    return "" if part is None else f"{part:.0%}"


def verdict(row: dict[str, Any]) -> str:
    """Return whether the target is met, as text."""
    return {None: "", True: "yes", False: "**no**"}[row.get("met")]


def disturbed(row: dict[str, Any]) -> bool:
    """Return whether other programs took the processors away in too many rounds of a row."""
    return any(not peer.get("quiet", True) for peer in row.get("peers", {}).values())


def table(results: dict[str, Any]) -> list[str]:
    """Return the table of a subject: a line per row."""
    moving = any(apart(row) for row in results["rows"])
    lines = [
        "| what | Needle | peer | ratio | of minima | at most | met | of the limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    if moving:
        lines = [lines[0] + " ns apart |", lines[1] + "---|"]
    for row in results["rows"]:
        ours = peer = ""
        if "needle" in row:
            best = row["best_peer"]
            ours = shown(row["needle"]["median"], row["unit"])
            peer = f"{shown(row['peers'][best]['median'], row['unit'])} ({best})"
        target = "" if row["target"] is None else f"{row['target']:.2g}"
        lines.append(
            f"| {row['name']} | {ours} | {peer} | {row['ratio']:.2f} | {row['ratio_min']:.2f} | "
            f"{target} | {verdict(row)} | {percent(fraction(row, results.get('limits')))} |"
            + (f" {apart(row)} |" if moving else "")
        )
    return lines


def apart(row: dict[str, Any]) -> str:
    """Return how far the processors were from each other, in ns, before and after a row."""
    times = row["peers"][row["best_peer"]].get("apart") if "needle" in row else None
    return ", ".join(f"{t * 1e9:.0f}" for t in times) if times else ""


def grid(results: dict[str, Any]) -> list[str]:
    """Return the table of the elementwise functions: a line each, a column per layout and size."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    rest = []
    for row in results["rows"]:
        if "needle" not in row:
            rest.append(row)
            continue
        name, layout, size = row["name"].rsplit(", ", 2)
        mark = "" if row["met"] else "**"
        part = percent(fraction(row, results.get("limits")))
        columns[f"{layout} {size}"] = None
        cells.setdefault(name, {})[f"{layout} {size}"] = f"{mark}{row['ratio']:.2f}{mark} {part}"
    lines = ["| ratio, part of the limit | " + " | ".join(columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, found in cells.items():
        lines.append(f"| {name} | " + " | ".join(found.get(c, "") for c in columns) + " |")
    summary = [f"{r['name']}: {r['ratio']:.2f} (at most {r['target']}, {verdict(r)})" for r in rest]
    judged = [row for row in results["rows"] if "needle" in row]
    met = sum(row["met"] for row in judged)
    return [f"{met} of {len(judged)} rows meet their target. " + "; ".join(summary), "", *lines]


def accuracies(results: dict[str, Any]) -> list[str]:
    """Return the table of trainings: a line per seed, a column per framework."""
    found = {(run["seed"], run["framework"]): run["accuracy"] for run in results["runs"]}
    seeds = sorted({seed for seed, _ in found})
    lines = ["| accuracy on 10,000 test images | Needle | PyTorch |", "|---|---|---|"]
    for seed in seeds:
        both = " | ".join(f"{found[seed, name]:.2%}" for name in ("needle", "pytorch"))
        lines.append(f"| seed {seed} | {both} |")
    mean = results["mean"]
    return [*lines, f"| mean | {mean['needle']:.2%} | {mean['pytorch']:.2%} |"]


def on_gpu(results: dict[str, Any]) -> list[str]:
    """Return the text of what gpu.py measured."""
    names = ("driver", "compiler", "needle", "torch", "numpy", "python")
    facts = [f"{name} {results[name]}" for name in names if results[name]]
    head = (f"**{results['device']}**", f"`{results['command']}`", results["date"], results["arch"])
    lines = ["; ".join((*head, *facts)), ""]
    lines += ["| what | figure | target | met |", "|---|---|---|---|"]
    for name, figure in results["figures"].items():
        met = "**no**" if figure["reached"] == "no" else figure["reached"]
        lines.append(f"| {name} | {figure['value']:.3g} | {figure['target']} | {met} |")
    return [*lines, ""]


def section(name: str, results: dict[str, Any]) -> list[str]:
    """Return the text of a subject on one processor."""
    if name == "gpu":
        return on_gpu(results)
    machine, limits = results["machine"], results.get("limits") or {}
    facts = [
        f"**{machine['cpu']}**", f"`{results['command']}`", results["date"][:10],
        f"{machine['cores']} cores, {results['threads']} threads", " ".join(machine["isa"]),
        *(f"{k} {v}" for k, v in results.get("versions", {}).items()),
    ]  # fmt: skip
    if "flops" in limits:
        rates = ", ".join(f"{v / 1e9:.0f} at {k}" for k, v in limits["bytes"].items())
        facts.append(f"limits {limits['flops'] / 1e9:.0f} GFLOP/s, GB/s: {rates} floats")
    if "apart" in limits:
        facts.append(f"{limits['apart'] * 1e9:.0f} ns between processors")
    noisy = sum(disturbed(row) for row in results["rows"])
    if noisy:
        facts.append(f"{noisy} rows had too few undisturbed rounds: all of theirs count")
    body = {"elementwise": grid, "cifar_accuracy": accuracies}.get(name, table)(results)
    return ["; ".join(facts), "", *body, ""]


def text() -> str:
    """Return all tables."""
    lines: list[str] = []
    for name, found in load().items():
        lines += [f"### {name}", ""]
        for results in found:
            lines += section(name, results)
    return "\n".join(lines) if lines else "No results yet.\n"


def current() -> str:
    """Return README.md as it has to be."""
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{text()}\n{END}{after}"


def write() -> None:
    """Write README.md."""
    README.write_text(current())


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if README.read_text() == current() else "bench/README.md: run bench/report.py")
    write()

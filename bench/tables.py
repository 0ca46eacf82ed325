"""The tables of README.md and docs/performance.md, written from bench/summary.json.

python bench/tables.py           write them
python bench/tables.py --check   exit with 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
from harness import shown

PAGES = (record.ROOT / "README.md", record.ROOT / "docs" / "performance.md")
MARKED = re.compile(r"(<!-- table (\w+):[^>]*-->\n)(.*?)(<!-- end of table -->)", re.S)
AREAS = (
    ("operations on 16 elements, small nets", "eager", ""),
    ("elementwise functions", "elementwise", ""),
    ("products of matrices", "gemm", ""),
    ("sum, mean, max, var, argmax", "reduce", ""),
    ("softmax, cross entropy", "softmax_loss", ""),
    ("layer norm, RMS norm", "norm", ""),
    ("embedding, gather, scatter_add", "indexing", ""),
    ("sort, argsort, topk", "sort", ""),
    ("other functions, 1024 x 1024", "functions", "functions"),
    ("other functions, 16 x 16", "functions", "calls"),
    ("convolutions, forward", "convolution", "forward"),
    ("convolutions, to the input", "convolution", "to the input"),
    ("convolutions, to the weights", "convolution", "to the weights"),
    ("batch norm and ReLU", "images", "batch norm and ReLU"),
    ("max pooling", "images", "max pooling"),
    ("upsampling", "images", "upsampling"),
    ("Adam", "optimizer", ""),
    ("MLP-ResNet, training", "training", ""),
    ("ResNet-9, training", "resnet", "training"),
    ("ResNet-9, inference", "resnet", "inference"),
    ("recurrent layers", "sequence", "recurrent"),
    ("causal attention", "sequence", "attention"),
    ("language models, training", "sequence", "steps"),
    ("generation with a cache", "sequence", "generation"),
    ("compiled training steps", "compile", "steps"),
    ("compiled calls, 16 elements", "compile", "calls"),
    ("compiled chains of functions", "compile", "chains"),
    ("compiled inference", "compile", "inference"),
    ("memory of compiled steps, beside eager ones", "compile", "memory"),
    ("peak memory", "memory", ""),
    ("`import needle`", "startup", ""),
)
"""Title, subject, and the group of its rows; "" stands for all of them."""
FRONT_MACHINE = "intel-xeon-model-207-avx512-2-cores"
FRONT = (
    ("`x + y`, 16 elements", "eager", "x + y"),
    ("product of two 1024 x 1024 matrices", "gemm", "sgemm 1024, a @ b"),
    ("3x3 convolution, 128 channels", "convolution", "3x3 128-128@28 n32, forward"),
    ("cross entropy, 640 x 10000, with gradient", "softmax_loss",
     "cross entropy 640 x 10000, forward and backward"),
    ("training step, ResNet-9, batch 128", "resnet",
     "training step, the course's ResNet-9, Adam, batch 128"),
    ("peak memory, training an MLP", "memory", "peak memory: import, MLP-ResNet, 200 steps"),
)  # fmt: skip
"""Title, subject and row of the table in README.md."""
Cells = list[list[str]]


def title(summary: dict[str, Any], machine: str) -> str:
    """Return a machine's name for people: processor family, instruction set, cores."""
    found = summary["machines"][machine]
    cores = f", {found['cores']} cores" if "cores" in found else ""
    return f"{found['name']}, {found['isa']}{cores}"


def machines(summary: dict[str, Any]) -> list[str]:
    """Return the machines that have rows measured beside PyTorch on the CPU."""
    return [name for name, found in summary["machines"].items() if "cores" in found]


def areas(summary: dict[str, Any]) -> Cells:
    """Return the geometric mean of each area's ratios on each machine, and the largest ratio."""

    def cell(entry: dict[str, Any], group: str) -> str:
        mean, worst = entry["groups"][group] if group else (entry["mean"], entry["worst"][1])
        return f"{mean:.2f}" if entry["rows"] == 1 else f"{mean:.2f} ({worst:.2f})"

    columns = machines(summary)
    made = [["area", *(title(summary, name) for name in columns)]]
    for text, subject, group in AREAS:
        entries = summary["subjects"].get(subject, {})
        there = {m: e for m, e in entries.items() if not group or group in e["groups"]}
        found = [cell(there[name], group) if name in there else "" for name in columns]
        made += [[text, *found]] if any(found) else []  # a new subject: not measured yet
    return [*made, ["**targets met**", *(targets(summary, name) for name in columns)]]


def targets(summary: dict[str, Any], machine: str) -> str:
    """Return how many rows of all subjects meet their target on a machine."""
    found = [entries[machine] for entries in summary["subjects"].values() if machine in entries]
    met, all_of_them = (sum(entry.get(name, 0) for entry in found) for name in ("met", "targets"))
    return f"{met:,} of {all_of_them:,}"


def rows(summary: dict[str, Any]) -> Cells:
    """Return the ratio of each named row on each machine."""
    columns = machines(summary)
    made = [["row", *(title(summary, name) for name in columns)]]
    for subject, names in record.NAMED.items():
        for name in names if subject != "main_job" else ():
            entries = summary["subjects"].get(subject, {})
            found = [entries.get(m, {}).get("named", {}).get(name) for m in columns]
            shares = [f"{x[0] / x[1]:.2f}" if x else "" for x in found]
            made += [[f"{subject}: {name}", *shares]] if any(shares) else []
    return made


def front(summary: dict[str, Any]) -> Cells:
    """Return the table of README.md: some rows on one machine."""
    made = [["what", "Needle", "PyTorch", "ratio"]]
    for text, subject, name in FRONT:
        ours, theirs, unit = summary["subjects"][subject][FRONT_MACHINE]["named"][name]
        made.append([text, shown(ours, unit), shown(theirs, unit), f"{ours / theirs:.2f}"])
    return made


def results(summary: dict[str, Any]) -> Cells:
    """Return what whole trainings reach."""
    made = [["what", "machine", "Needle", "peer"]]
    for subject in ("cifar_accuracy", "main_job"):
        for machine, entry in summary["subjects"].get(subject, {}).items():
            for name, (ours, theirs, unit) in entry["named"].items():
                both = [shown(value, unit) for value in (ours, theirs)]
                if subject == "cifar_accuracy":
                    both = [f"{value:.1%}" for value in (ours, theirs)]
                made.append([name, title(summary, machine), *both])
    return made


def gpu(summary: dict[str, Any]) -> Cells:
    """Return the figures of the device cuda."""
    entries = summary["subjects"].get("gpu", {})
    made = [["figure", *(title(summary, name) for name in entries)]]
    for name in dict.fromkeys(name for entry in entries.values() for name in entry["figures"]):
        found = [entry["figures"].get(name) for entry in entries.values()]
        made.append([name, *("" if value is None else f"{value:,.4g}" for value in found)])
    return made


TABLES: dict[str, Callable[[dict[str, Any]], Cells]] = {
    "areas": areas, "rows": rows, "front": front, "results": results, "gpu": gpu,
}  # fmt: skip


def markdown(cells: Cells) -> str:
    """Return a table as Markdown, with its figures to the right."""
    marks = ["---", *["---:"] * (len(cells[0]) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], marks, *cells[1:]])


def current(page: Path) -> str:
    """Return a page with the tables that summary.json gives."""
    summary = record.load()

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{markdown(TABLES[found[2]](summary))}\n\n{found[4]}"

    return MARKED.sub(table, page.read_text())


def main() -> None:
    """Do as the command line says."""
    old = [page for page in PAGES if page.read_text() != current(page)]
    if "--check" in sys.argv:
        names = ", ".join(str(page.relative_to(record.ROOT)) for page in old)
        sys.exit(f"{names}: run python bench/tables.py" if old else 0)
    for page in old:
        page.write_text(current(page))


if __name__ == "__main__":
    main()

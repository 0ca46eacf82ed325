"""Keep results: raw ones in bench/results (ignored by git), their summary in bench/summary.json.

python bench/record.py FILE...   put raw result files, of another machine too, into the summary

summary.json has one line for each subject on each machine. Recording a run replaces its line.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
SUMMARY = ROOT / "bench" / "summary.json"
ISAS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "fma": "", "avx512_bf16": ""}
"""Instruction sets that figures depend on, and the names of those that name a machine."""
NAMED = {
    "startup": ("import needle, NumPy's import included",),
    "eager": (
        "x + y", "x + y, recorded", "x + 2.0", "x.reshape(4, 4)", "x[2:5]",
        "(x * y + x).sum(), forward and backward", "60-op residual MLP, forward and backward",
    ),
    "elementwise": ("exp, contiguous, 1 Mi",),
    "gemm": tuple(f"sgemm {n}, a @ b" for n in (256, 512, 1024, 2048)),
    "training": ("MLP-ResNet step, MNIST shapes, batch 100, Adam",),
    "memory": (
        "peak memory: import, MLP-ResNet, 200 steps",
        "peak memory: import, DAWNBench ResNet-9, batch 64, 5 steps",
    ),
    "main_job": ("needle train, wall time", "needle train, held-out modules"),
    "reduce": ("sum 4096 x 4096, axis 0", "sum 4096 x 4096, axis 1"),
    "softmax_loss": ("softmax 4096 x 4096", "cross entropy 640 x 10000, forward and backward"),
    "norm": ("layer_norm 4096 x 1024, forward and backward",),
    "optimizer": ("Adam, 16 Mi parameters",),
    "indexing": ("embedding 10000 x 256, 4096 ids, forward and backward",),
    "sort": ("sort 1 Mi", "topk 100 of 1 Mi"),
    "convolution": ("3x3 128-128@28 n32, forward",),
    "resnet": (
        "training step, DAWNBench ResNet-9, SGD Nesterov, batch 64",
        "training step, the course's ResNet-9, Adam, batch 128",
        "inference, the course's ResNet-9, batch 1",
        "inference, the course's ResNet-9, batch 128",
    ),
    "compile": (
        "MLP-ResNet step, batch 100, Adam",
        "training step, DAWNBench ResNet-9, SGD Nesterov, batch 64",
        "training step, the course's ResNet-9, Adam, batch 128",
        "training step, LSTM language model, Adam",
        "training step, Transformer language model, AdamW",
        "training step, apps/gpt.py, one document",
        "(x*y+x).sum(), forward and backward, 16 elements",
        "inference, the course's ResNet-9, batch 1",
        "inference, the course's ResNet-9, batch 128",
        "inference, Transformer, batch 1, 256 tokens",
        "memory of a step: MLP-ResNet, batch 100, Adam",
        "memory of a step: the course's ResNet-9, batch 128, Adam",
    ),
}  # fmt: skip
"""Rows that README.md and docs/performance.md quote: the summary keeps their figures."""


# ---- machines ------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory, system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (text.partition(":") for text in lines)}
    cpu, flags = said.get("model name", platform.processor()), said.get("flags", "").split()
    if said.get("vendor_id") == "AuthenticAMD":  # virtual machines' names say no more than "EPYC"
        cpu += f", family {said['cpu family']}"
    elif said.get("vendor_id") == "GenuineIntel":  # or "Xeon"
        cpu += f", model {said['model']}"
    return {
        "cpu": cpu, "cores": os.cpu_count(), "isa": sorted(set(ISAS) & set(flags)),
        "system": platform.platform(), "libc": "-".join(platform.libc_ver()),
    }  # fmt: skip


def isa(found: dict[str, Any]) -> str:
    """Return the name of a machine's largest instruction set."""
    return next((name for flag, name in ISAS.items() if name and flag in found["isa"]), "")


def key(found: dict[str, Any]) -> str:
    """Return the name of a machine in file names: processor family, instruction set, cores."""
    words = re.sub(r"\([^)]*\)|\bProcessor\b|@.*|,|\bAVX2\b", " ", found["cpu"]).lower().split()
    words += [isa(found).lower().replace("-", "")] + [f"{found['cores']}-cores"]
    return "-".join(filter(None, words))


def commit() -> str:
    """Return the commit that is measured, with "-dirty" where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    command += ["--exclude=*"]  # no tags
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


# ---- entries -------------------------------------------------------------------------


def entry(results: dict[str, Any]) -> dict[str, Any]:
    """Return what summary.json keeps of a subject's raw results."""
    made: dict[str, Any] = {}
    rows = [row for row in results.get("rows", ()) if "needle" in row]
    if rows:
        worst = max(rows, key=lambda row: row["ratio"])
        made["mean"] = mean(rows)
        made["worst"] = [worst["name"], short(worst["ratio"])]
        made["rows"] = len(rows)
        made["targets"] = sum(row["target"] is not None for row in rows)
        made["met"] = sum(row["met"] is True for row in rows)
        made["peer"] = peer({name for row in rows for name in row["peers"]})
        made |= groups(rows)
        named = {row["name"]: figures(row) for row in rows if row["name"] in quoted(results)}
        made |= {"named": named} if named else {}
    made |= others(results)
    versions = results.get("versions", {})
    made["versions"] = {name: versions[name] for name in versions if versions[name]}
    made |= {"threads": results["threads"]} if "threads" in results else {}
    return made | {"date": results["date"][:10], "commit": results.get("commit", "")}


def peer(names: set[str]) -> str:
    """Return whom Needle was compared with; the best of several ways to run PyTorch counts."""
    ways = [way for way in ("eager", "torch.compile") if any(n.startswith(way) for n in names)]
    jax = " and JAX jit" if any(n.endswith("JAX jit") for n in names) else ""
    return "PyTorch, " + " and ".join(ways) + jax if ways else ", ".join(sorted(names))


def mean(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of the rows' ratios."""
    return short(math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows)))


def groups(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the geometric mean and the largest ratio of each group, if there are several."""
    names = list(dict.fromkeys(row["group"] for row in rows))
    parts = {name: [row for row in rows if row["group"] == name] for name in names}
    found = {n: [mean(part), short(max(r["ratio"] for r in part))] for n, part in parts.items()}
    return {"groups": found} if len(found) > 1 else {}


def quoted(results: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the rows whose figures are kept."""
    return NAMED.get(results["subject"], ())


def figures(row: dict[str, Any]) -> list[Any]:
    """Return Needle's figure, the best peer's and the unit."""
    theirs = row["peers"][row["best_peer"]]["median"]
    return [short(row["needle"]["median"]), short(theirs), row.get("unit", "s")]


def others(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the subjects have that are not made of rows: accuracies and a GPU's figures."""
    if results["subject"] == "cifar_accuracy":
        means = [short(results["mean"][name]) for name in ("needle", "pytorch")]
        return {"named": {"accuracy of the course's ResNet-9": [*means, "of test images"]}}
    if results["subject"] != "gpu":
        return {}
    found = results["figures"].items()
    return {
        "rows": len(found), "targets": sum(bool(figure["target"]) for _, figure in found),
        "met": sum(figure["reached"] == "yes" for _, figure in found),
        "figures": {name: short(figure["value"]) for name, figure in found},
    }  # fmt: skip


def short(value: float) -> float:
    """Return a number with four digits."""
    return float(f"{value:.4g}")


# ---- summary.json --------------------------------------------------------------------


def load() -> dict[str, Any]:
    """Return the summary: its machines, and its subjects with an entry for each machine."""
    if not SUMMARY.exists():
        return {"machines": {}, "subjects": {}}
    return json.loads(SUMMARY.read_text())


def record(results: dict[str, Any]) -> None:
    """Put raw results into summary.json: one entry, and the machine if it is new."""
    if results.get("quick") or any(flag in results["command"] for flag in ("--quick", "--only")):
        raise ValueError(f"expected a whole run, got {results['command']!r}")
    known, found = load(), results["machine"]
    name = key(found) if "cores" in found else found["cpu"].lower().replace(" ", "-")
    kept = {"name": found["cpu"], "cpu": found["cpu"], "isa": isa(found) or found["isa"][0]}
    kept |= {"cores": found["cores"]} if "cores" in found else {}
    known["machines"].setdefault(name, kept)
    known["subjects"].setdefault(results["subject"], {})[name] = entry(results)
    SUMMARY.write_text(text(known))


def text(summary: dict[str, Any]) -> str:
    """Return the summary as JSON with one line per entry, so that differences can be read."""
    machines = lines(summary["machines"], "  ")
    subjects = ",\n".join(
        f"  {json.dumps(name)}: {{\n{lines(entries, '   ')}\n  }}"
        for name, entries in sorted(summary["subjects"].items())
    )
    return f'{{\n "machines": {{\n{machines}\n }},\n "subjects": {{\n{subjects}\n }}\n}}\n'


def lines(entries: dict[str, Any], indent: str) -> str:
    """Return a line per entry, sorted by name."""
    return ",\n".join(
        f"{indent}{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(entries.items())
    )


if __name__ == "__main__":
    for path in sys.argv[1:]:
        record(json.loads(Path(path).read_text()))

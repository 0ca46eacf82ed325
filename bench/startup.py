"""What ``import needle`` costs: a new process each time, in turn with one that imports NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import harness

BUDGET = 0.05
"""Seconds that Needle may cost beyond NumPy."""
MEASURE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(modules: str, bytecode: str) -> float:
    """Return how long a new process takes to import ``modules``."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", MEASURE.format(modules)]
    env["PYTHONPYCACHEPREFIX"] = bytecode
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def measure(repeats: int) -> dict[str, Any]:
    """Return the row: NumPy and Needle against NumPy and the budget, and against PyTorch."""
    names = ("numpy", "numpy, needle", "torch")
    with tempfile.TemporaryDirectory() as bytecode:
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            seconds(name, bytecode)  # writes the bytecode
        for _ in range(repeats):
            for name in names:
                times[name].append(seconds(name, bytecode))
    times["numpy"] = [found + BUDGET for found in times["numpy"]]
    own = harness.figures(times["numpy, needle"])
    peers = {}
    for name, label in {"numpy": "NumPy + 50 ms", "torch": "import torch"}.items():
        theirs = harness.figures(times[name])
        ratio, ratio_min = own["median"] / theirs["median"], own["min"] / theirs["min"]
        peers[label] = {**theirs, "needle": own, "ratio": ratio, "ratio_min": ratio_min}
    row = {
        "name": "import needle, NumPy's import included", "group": "startup",
        "goals": "foundation", "target": 1.0, "peers": peers,
    }  # fmt: skip
    return harness.judged(row)


def main() -> None:
    """Do as the command line says."""
    args = harness.parser("startup").parse_args()
    harness.save("startup", [measure(1 if args.quick else 15)], args, versions=harness.versions())


if __name__ == "__main__":
    main()

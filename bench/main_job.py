"""The main job, ``needle train``, as a user runs it: seconds and bits per byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

SECONDS = 90.0


def run(quick: bool) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the whole process, and its last figures on held-out data."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "needle", "train", "--out", str(out)]
        command += ["--threads", str(harness.THREADS), "--quiet"]
        if quick:
            command += ["--steps", "3", "--batch-size", "16", "--data", small_source(folder)]
        start = time.perf_counter()
        subprocess.run(command, env=harness.environment("stock"), check=True)
        seconds = time.perf_counter() - start
        records = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return seconds, next(r for r in reversed(records) if r.get("final"))


def small_source(folder: str) -> str:
    """Copy two modules of the standard library, one of them held out; return where they are."""
    target = Path(folder) / "source"
    target.mkdir()
    for name in ("tabnanny.py", "stat.py"):
        shutil.copy(Path(sysconfig.get_paths()["stdlib"]) / name, target)
    return str(target)


def row(name: str, unit: str, value: float, peers: dict[str, float], target: float) -> Any:
    """Return the row of a value that must be below that of the first peer."""
    own = {"median": value, "min": value}
    theirs = {
        peer: {
            "median": other, "min": other, "needle": own, "ratio": value / other,
            "ratio_min": value / other,
        }
        for peer, other in peers.items()
    }  # fmt: skip
    first = next(iter(peers))
    return {
        "name": name, "group": "main job", "goals": "foundation", "unit": unit, "target": target,
        "needle": own, "peers": theirs, "best_peer": first, "ratio": theirs[first]["ratio"],
        "ratio_min": theirs[first]["ratio"], "met": theirs[first]["ratio"] <= target,
    }  # fmt: skip


def main() -> None:
    """Run it once, print the rows, and save them."""
    args = harness.parser("main_job").parse_args()
    seconds, found = run(args.quick)
    compressors = {name: found[name] for name in ("zlib", "bz2", "lzma")}
    rows = [
        row("needle train, wall time", "s", seconds, {"the limit": SECONDS}, 1.0),
        row("needle train, held-out modules", "bits per byte", found["bits_per_byte"],
            compressors, 1.0),
    ]  # fmt: skip
    harness.save("main_job", rows, args)


if __name__ == "__main__":
    main()

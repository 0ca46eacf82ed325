"""Saving and loading a state of 100 Mi numbers, beside what its bytes alone cost in the same run.

Peers are NumPy and the system: a write of the same memory, a copy into memory that was touched
before. An asynchronous save runs beside forward and backward passes (matrix products); *blocked* is
the time that the step waits for it, *whole cost* what the step and the update after it take longer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

from needle import Tensor, nn
from needle.io import Checkpoints, writer
from needle.ops import matmul

PARTS = 16
ROUNDS = 11


class Model(nn.Module):
    """Parameters alone."""

    def __init__(self, numbers: int) -> None:
        width = numbers // PARTS // 64
        self.parts = [nn.Parameter(Tensor(np.ones((width, 64), "float32"))) for _ in range(PARTS)]


def seconds(function: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Subject:
    """The state, the folder, and what is timed."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.model, self.other = (Model(2**16 if quick else 100 * 2**20) for _ in range(2))
        self.state = {"model": self.model.state_dict()}
        self.arrays = {k: np.asarray(x) for k, x in self.model.state_dict().items()}
        self.copies = {k: np.array(x) for k, x in self.arrays.items()}
        self.checkpoints = Checkpoints(folder / "run", keep_last=1, keep_best=0)
        self.checkpoints.save_async(0, self.state)  # touches the memory of the copies
        self.checkpoints.wait()
        size = 64 if quick else 2048
        self.x = Tensor(np.ones((size, size), "float32"))

    def copy(self) -> None:
        """Copy the state into memory that was touched before."""
        for name, x in self.arrays.items():
            np.copyto(self.copies[name], x)

    def plain(self, name: str) -> None:
        """Write the same bytes by the system alone."""
        with open(self.folder / name, "wb", buffering=0) as file:
            for x in self.arrays.values():
                view = memoryview(x).cast("B")
                for start in range(0, len(view), writer.PIECE):
                    file.write(view[start : start + writer.PIECE])
            if name == "flushed":
                os.fsync(file.fileno())

    def flushed(self) -> None:
        """Write them to the disk, then remove those of the round before, as a checkpoint does."""
        old = self.folder / "old"
        if (self.folder / "flushed").exists():
            os.rename(self.folder / "flushed", old)
        self.plain("flushed")
        old.unlink(missing_ok=True)

    def file(self) -> None:
        """Write the file without waiting for the disk."""
        writer.write(self.folder / "file", self.arrays, durable=False)

    def save(self) -> None:
        """Save a checkpoint, to the disk."""
        self.checkpoints.save(1, self.state)

    def load(self) -> None:
        """Load the checkpoint into the parameters."""
        self.checkpoints.load_into({"model": self.other})  # whose memory nobody else holds

    def step(self) -> None:
        """Work as long as a forward and a backward pass would."""
        for _ in range(2 if self.quick else 8):
            matmul(self.x, self.x)

    def step_with_save(self) -> tuple[float, float]:
        """Return how long a step with a save takes, and for how much of it it waits."""
        began = time.perf_counter()
        self.checkpoints.save_async(1, {"model": self.model.state_dict()})
        blocked = time.perf_counter() - began
        self.step()
        before = time.perf_counter()
        self.checkpoints.finish()
        now = time.perf_counter()
        return now - began, blocked + now - before

    def fresh(self) -> None:
        """Remove the files of the round before, and let the disk come to rest."""
        for name in ("plain", "file"):
            (self.folder / name).unlink(missing_ok=True)
        os.sync()


def measure(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Return the rows."""
    subject = Subject(folder, quick)
    times: dict[str, list[float]] = {}
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: subject.plain("plain"), "file": subject.file,
        "flushed": subject.flushed, "save": subject.save,
        "copy": subject.copy, "load": subject.load, "step": subject.step,
    }  # fmt: skip
    for _ in range(2 if quick else ROUNDS):
        for name, run in runs.items():
            subject.fresh()
            times.setdefault(name, []).append(seconds(run))
        subject.fresh()
        whole, blocked = subject.step_with_save()
        subject.checkpoints.wait()
        times.setdefault("blocked", []).append(blocked)
        times.setdefault("with a save", []).append(whole)
    found = {name: harness.figures(seconds) for name, seconds in times.items()}
    found["cost"] = {
        key: max(found["with a save"][key] - usual, 1e-6) for key, usual in found["step"].items()
    }
    return [
        row("save a checkpoint, without waiting for the disk", "file", "plain",
            "write of the bytes", 1.25, found),
        row("save a checkpoint, to the disk", "save", "flushed",
            "write, flush, removal of the old", 1.25, found),
        row("load a checkpoint into the parameters", "load", "copy", "one copy", 1.2, found),
        row("asynchronous save: blocked", "blocked", "copy", "one copy", 0.1, found),
        row("asynchronous save: whole cost in the step", "cost", "copy", "one copy", 1.2, found),
    ]  # fmt: skip


def row(
    name: str, own: str, other: str, peer: str, target: float, found: dict[str, Any]
) -> dict[str, Any]:
    """Return a row of the report."""
    ours, theirs = found[own], found[other]
    ratio, ratio_min = ours["median"] / theirs["median"], ours["min"] / theirs["min"]
    peers = {peer: {**theirs, "needle": ours, "ratio": ratio, "ratio_min": ratio_min}}
    return harness.judged(
        {"name": name, "group": "checkpoint", "goals": "pipeline", "target": target, "peers": peers}
    )


def main() -> None:
    """Do as the command line says."""
    args = harness.parser("checkpoint").parse_args()
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    try:
        rows = [x for x in measure(folder, args.quick) if args.only in x["name"]]
    finally:
        shutil.rmtree(folder)
    harness.save("checkpoint", rows, args, versions=harness.versions())


if __name__ == "__main__":
    main()

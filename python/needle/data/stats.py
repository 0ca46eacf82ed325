"""Where the time of a loader goes."""

from __future__ import annotations

from collections import deque
from typing import Any

from needle.data.worker import PARTS

__all__ = ["Stats"]

RECENT = 20
"""Steps over which a loader is judged."""

KEPT = 1000
"""Waits that percentiles are made of."""

SLOW = 0.1
"""Share of a step above which waiting for a batch is worth a line."""

ADVICE = {
    "fetch": "more workers, or a data set with a method `batch` that reads many items at once",
    "transform": "more workers, or transforms of whole batches (ndl.data.Augment)",
    "collate": "a data set with a method `batch` that returns arrays",
    "copy": "workers='thread', which hands batches over without a copy",
}


class Stats:
    """Sums of nanoseconds, and the latest waits."""

    def __init__(self) -> None:
        self.batches = self.samples = self.epochs = 0
        self.total = dict.fromkeys(("wait", *PARTS), 0)
        self.epoch = dict(self.total)
        self.waits: deque[int] = deque(maxlen=KEPT)
        self.steps: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self.before = 0  # when the latest batch was handed out

    def begin(self) -> None:
        """Begin a pass."""
        self.epochs += 1
        self.epoch = dict.fromkeys(self.epoch, 0)
        self.steps.clear()
        self.before = 0

    def add(self, size: int, times: tuple[int, ...], begin: int, end: int) -> None:
        """Add a batch that was asked for at ``begin`` and handed out at ``end``."""
        self.batches += 1
        self.samples += size
        wait = end - begin
        for name, value in zip(("wait", *PARTS), (wait, *times), strict=True):
            self.total[name] += value
            self.epoch[name] += value
        self.waits.append(wait)
        if self.before:  # the first batch of a pass waits for all that comes before it
            self.steps.append((wait, end - self.before))
        self.before = end

    def bottleneck(self) -> str | None:
        """Return a line if training waits for batches, else None."""
        waited, passed = (sum(x) for x in zip(*self.steps, strict=True)) if self.steps else (0, 1)
        if len(self.steps) < RECENT or waited <= SLOW * passed:
            return None
        part = max(PARTS, key=lambda name: self.epoch[name])
        made = sum(self.epoch[name] for name in PARTS) or 1
        return (
            f"the loader is the bottleneck: {100 * waited / passed:.0f} % of a step waits for its "
            f"batch; most of making one is {part} ({100 * self.epoch[part] / made:.0f} %). "
            f"Try {ADVICE[part]}."
        )

    def report(self) -> dict[str, Any]:
        """Return all figures, times in seconds."""
        waits = sorted(self.waits) or [0]
        return {
            "batches": self.batches,
            "samples": self.samples,
            "epochs": self.epochs,
            "seconds": {name: value / 1e9 for name, value in self.total.items()},
            "epoch_seconds": {name: value / 1e9 for name, value in self.epoch.items()},
            "wait_p50": waits[len(waits) // 2] / 1e9,
            "wait_p95": waits[len(waits) * 95 // 100] / 1e9,
            "bottleneck": self.bottleneck(),
        }

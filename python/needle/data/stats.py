"""Where the time of a loader goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from needle.data.worker import PARTS

__all__ = ["Stats"]

NAMES = ("wait", *PARTS)

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
        self.before_epoch = [0] * len(NAMES)
        self.epoch = [0] * len(NAMES)
        self.waits: deque[int] = deque(maxlen=KEPT)
        self.steps: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self.before = 0  # when the latest batch was handed out

    def begin(self) -> None:
        """Begin a pass."""
        self.epochs += 1
        self.before_epoch = self._total()
        self.epoch = [0] * len(NAMES)
        self.steps.clear()
        self.before = 0

    def _total(self) -> list[int]:
        return [a + b for a, b in zip(self.before_epoch, self.epoch, strict=True)]

    def add(self, size: int, times: Sequence[int], begin: int, end: int) -> None:
        """Add a batch that was asked for at ``begin`` and handed out at ``end``."""
        self.batches += 1
        self.samples += size
        wait, epoch = end - begin, self.epoch
        epoch[0] += wait
        for i, value in enumerate(times, 1):
            epoch[i] += value
        self.waits.append(wait)
        if self.before:  # the first batch of a pass waits for all that comes before it
            self.steps.append((wait, end - self.before))
        self.before = end

    def bottleneck(self) -> str | None:
        """Return a line if training waits for batches, else None."""
        waited, passed = (sum(x) for x in zip(*self.steps, strict=True)) if self.steps else (0, 1)
        if len(self.steps) < RECENT or waited <= SLOW * passed:
            return None
        epoch = dict(zip(NAMES[1:], self.epoch[1:], strict=True))
        part, made = max(epoch, key=lambda name: epoch[name]), sum(epoch.values()) or 1
        return (
            f"the loader is the bottleneck: {100 * waited / passed:.0f} % of a step waits for its "
            f"batch; most of making one is {part} ({100 * epoch[part] / made:.0f} %). "
            f"Try {ADVICE[part]}."
        )

    def report(self) -> dict[str, Any]:
        """Return all figures, times in seconds."""
        waits = sorted(self.waits) or [0]
        return {
            "batches": self.batches,
            "samples": self.samples,
            "epochs": self.epochs,
            "seconds": _seconds(self._total()),
            "epoch_seconds": _seconds(self.epoch),
            "wait_p50": waits[len(waits) // 2] / 1e9,
            "wait_p95": waits[len(waits) * 95 // 100] / 1e9,
            "bottleneck": self.bottleneck(),
        }


def _seconds(values: list[int]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in zip(NAMES, values, strict=True)}

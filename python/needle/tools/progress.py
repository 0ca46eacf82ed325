"""Progress of training: a bar in a terminal if rich is installed, else plain lines."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import Any

LINES = 20
"""Approximate number of plain lines for a run."""


class Progress:
    """Plain lines on standard output. ``quiet`` keeps only those of ``line``."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.total = 0
        self.item = ""
        self.smooth: dict[str, float] = {}

    def start(self, total: int, item: str) -> None:
        """Begin a run with a number of steps; ``item`` names the items counted per second."""
        self.total, self.item = total, item
        self.began = time.perf_counter()

    def step(self, done: int, loss: float, shown: dict[str, float], rate: float) -> None:
        """Show a step: its loss, further metrics, and the number of items per second."""
        for name, value in {"loss": loss, **shown}.items():
            old = self.smooth.get(name, value)
            self.smooth[name] = old + (value - old) * max(0.02, 1.0 / done)
        seconds = time.perf_counter() - self.began
        self.show(done, rate, seconds * (self.total - done) / done)

    def show(self, done: int, rate: float, left: float) -> None:
        """Print a line for the first step, and about twenty lines in total."""
        if not self.quiet and (
            done == 1 or done * LINES // self.total > (done - 1) * LINES // self.total
        ):
            print(f"step {done}/{self.total}  {self.text(rate, left)}", flush=True)

    def text(self, rate: float, left: float) -> str:
        """Return the current metrics as text."""
        parts = [f"{label(name)} {value:.3f}" for name, value in self.smooth.items()]
        parts += [f"{quantity(rate)} {self.item}/s", f"{clock(left)} left"]
        return "  ".join(parts)

    def evaluated(self, place: str, figures: dict[str, float]) -> None:
        """Show the metrics on held-out data; ``place`` is the progress of the run."""
        shown = "  ".join(f"{label(name)} {value:.4f}" for name, value in figures.items())
        self.note(f"{place}  held-out: {shown}")

    def note(self, text: str) -> None:
        """Print a line that is not a result."""
        if not self.quiet:
            self.line(text)

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def close(self) -> None:
        """End the display of progress."""


class Bar(Progress):
    """A progress bar by rich, on its own console."""

    def __init__(self, console: Any = None) -> None:
        super().__init__()
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.rich: Any = RichProgress(
            MofNCompleteColumn(), BarColumn(bar_width=None), TextColumn("{task.fields[text]}"),
            expand=True, console=console,
        )  # fmt: skip

    def start(self, total: int, item: str) -> None:
        super().start(total, item)
        self.task = self.rich.add_task("", total=total, text="")
        self.rich.start()

    def show(self, done: int, rate: float, left: float) -> None:
        self.rich.update(self.task, completed=done, text=self.text(rate, left))

    def line(self, text: str) -> None:
        self.rich.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.rich.stop()


def choose(quiet: bool) -> Progress:
    """Return a bar in a terminal if rich is installed, else plain lines."""
    if quiet or not sys.stdout.isatty() or find_spec("rich") is None:
        return Progress(quiet)
    return Bar()


def label(name: str) -> str:
    """Return the name of a metric as readable text."""
    return name.replace("_per_", "/").replace("_", " ")


def quantity(value: float) -> str:
    """Return a number with three digits and a unit prefix: 51.2k."""
    for prefix in ("", "k", "M"):
        if abs(value) < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g}G"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours: 1:05, 2:00:00."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

"""Progress of training: a bar in a terminal or a notebook, else plain lines."""

from __future__ import annotations

import html
import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LINES = 20
"""Approximate number of plain lines for a run."""
INTERVAL = 0.1
"""Seconds between two pictures of a bar."""


class Progress:
    """Plain lines on standard output. ``quiet`` keeps only those of ``line``.

    When nobody reads standard output any more, all further output goes to a file.

    Attributes:
        log: that file; None to drop the output.
        lost: whether this has happened.
    """

    log: Path | None = None
    lost = False

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.total = 0
        self.item = ""
        self.smooth: dict[str, float] = {}
        self.first, self.shown = 0, 0.0

    def start(self, total: int, item: str, done: int = 0) -> None:
        """Begin a run with a number of steps, some of which were made before.

        ``item`` names the items counted per second.
        """
        self.total, self.item, self.first = total, item, done
        self.began = time.perf_counter()
        self._call("open")

    def step(self, done: int, loss: float, shown: dict[str, float], rate: float) -> None:
        """Show a step: its loss, further metrics, and the number of items per second."""
        for name, value in {"loss": loss, **shown}.items():
            old = self.smooth.get(name, value)
            self.smooth[name] = old + (value - old) * max(0.02, 1.0 / done)
        now = time.perf_counter()
        if self.due(done, now):
            self.shown = now
            left = (now - self.began) * (self.total - done) / max(1, done - self.first)
            self._call("show", done, rate, left)

    def due(self, done: int, now: float) -> bool:
        """Return whether a step is to be shown: the first one, and about twenty in total."""
        return not self.quiet and (
            done == self.first + 1 or done * LINES // self.total > (done - 1) * LINES // self.total
        )

    def show(self, done: int, rate: float, left: float) -> None:
        """Print a line for a step."""
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
        self._call("write", text)

    def write(self, text: str) -> None:
        """Print a line, or raise OSError."""
        print(text, flush=True)

    def close(self) -> None:
        """End the display of progress."""
        self._call("shut")

    def open(self) -> None:
        """Begin the display."""

    def shut(self) -> None:
        """End the display."""

    def _call(self, name: str, *args: Any) -> None:
        """Call a method that prints; if nobody reads any more, plain lines go to the log."""
        try:
            getattr(Progress if self.lost else type(self), name)(self, *args)
        except OSError as error:  # a closed pipe, or a terminal that is gone
            output_to(None if self.lost else self.log)
            self.lost = True
            print(f"standard output is gone ({error.strerror}); the run goes on", flush=True)
            getattr(Progress, name)(self, *args)


def output_to(path: Path | None) -> None:
    """Make a file, or nothing, the standard output of this process from now on."""
    try:
        file = open(os.devnull if path is None else path, "a", encoding="utf-8")  # noqa: SIM115
    except OSError:
        file = open(os.devnull, "a", encoding="utf-8")  # noqa: SIM115
    with suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
        os.dup2(file.fileno(), sys.__stdout__.fileno())  # type: ignore[union-attr]
    sys.stdout = file


class Bar(Progress):
    """A progress bar by rich, on its own console."""

    def __init__(self, console: Any = None) -> None:
        super().__init__()
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.rich: Any = RichProgress(
            MofNCompleteColumn(), BarColumn(bar_width=None), TextColumn("{task.fields[text]}"),
            expand=True, console=console, auto_refresh=False,
        )  # fmt: skip

    def start(self, total: int, item: str, done: int = 0) -> None:
        self.task = self.rich.add_task("", total=total, text="")
        super().start(total, item, done)

    def due(self, done: int, now: float) -> bool:
        return now - self.shown >= INTERVAL or done == self.total

    def show(self, done: int, rate: float, left: float) -> None:
        self.rich.update(self.task, completed=done, text=self.text(rate, left), refresh=True)

    def write(self, text: str) -> None:
        self.rich.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def open(self) -> None:
        self.rich.start()

    def shut(self) -> None:
        self.rich.stop()


class Notebook(Progress):
    """One bar in a notebook, which is drawn again and again; lines go below it."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None

    def due(self, done: int, now: float) -> bool:
        return now - self.shown >= INTERVAL or done == self.total

    def show(self, done: int, rate: float, left: float) -> None:
        shell = import_module("IPython.display")
        text = html.escape(f"{done}/{self.total}  {self.text(rate, left)}")
        picture = shell.HTML(f'<progress max="{self.total}" value="{done}"></progress> {text}')
        if self.handle is None:
            self.handle = shell.display(picture, display_id=True)
        else:
            self.handle.update(picture)


def choose(quiet: bool = False) -> Progress:
    """Return a bar in a notebook, or in a terminal if rich is installed, else plain lines."""
    if quiet:
        return Progress(quiet)
    if in_notebook():
        return Notebook()
    return Bar() if sys.stdout.isatty() and find_spec("rich") is not None else Progress()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


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

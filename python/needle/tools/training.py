"""``needle train``: one run, from an empty folder to the final picture."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec

from needle.recipes import Recipe, Settings
from needle.recipes.loop import train
from needle.tools import plot, report
from needle.tools.run import RunFolder
from needle.train import Result, progress
from needle.train.stop import Stop

MOST_NAMED = 5
"""Number of pictures to list by name; beyond that only their number is printed."""


def run(
    recipe: type[Recipe],
    settings: Settings,
    out: str | None = None,
    quiet: bool = False,
    resume: RunFolder | None = None,
    record: bool = False,
    as_json: bool = False,
    save_every: int | None = None,
    workers: tuple[int, str | None] = (0, None),
) -> int:
    """Train, print the results and their files; return the exit code.

    Args:
        recipe: the recipe to train.
        settings: settings of the user.
        out: the folder of the run; None for a new one.
        quiet: whether to print only the result.
        resume: the folder of a run to continue.
        record: whether to record fingerprints; a run that is continued does as before.
        as_json: whether to print only the result, as JSON.
        save_every: steps between checkpoints; None for those between evaluations.
        workers: number and kind of those that make batches ahead.

    Raises:
        OptionError: if the output folder cannot be written.
        LockedError: if another run uses it.
        NeedleError: as ``loop.train``.
    """
    folder = resume or RunFolder.create(recipe.name, out)
    show = Silent() if as_json else progress.choose(quiet)
    show.log = folder.path / "log.txt"
    try:
        with Stop().listening() as stop, folder.locked():
            if resume is None:  # another run may have been here since
                folder.check_unused()
            result = train(
                recipe,
                settings,
                folder,
                show,
                stop,
                resume is not None,
                record,
                save_every,
                workers,
            )
    finally:
        folder.discard_if_empty()
    if result.stopped is None:
        _conclude(recipe, folder, result, show)
    if as_json:
        print(json.dumps({"run": str(folder.path), **asdict(result)}))
    return 0 if result.stopped is None else _stopped(folder, result)


class Silent(progress.Progress):
    """No progress and no lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def line(self, text: str) -> None:
        """Print nothing."""


def _stopped(folder: RunFolder, result: Result) -> int:
    """Say on standard error how to go on; return the exit code."""
    assert result.stopped is not None
    name = signal.Signals(result.stopped).name
    message = f"stopped by {name} after step {result.steps}; the last weights are in"
    weights = folder.path / "weights.safetensors"
    with suppress(OSError):  # the terminal may be gone
        print(
            f"needle: {message} {weights}; needle resume {folder.path} continues the run",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    return 128 + result.stopped


def _conclude(
    recipe: type[Recipe], folder: RunFolder, result: Result, show: progress.Progress
) -> None:
    """Draw the picture, and say which files there are."""
    _say_what_is_missing(show)
    took = f"{result.steps:,} steps in {progress.clock(result.seconds)}"
    files = ["metrics.jsonl", "config.json", "weights.safetensors"]
    if plot.available():
        picture = plot.draw_loss(folder, recipe.name, recipe.curve, recipe.curve_unit)
        files += [picture] if picture else []
    files += _pictures(folder, files)
    files.append(report.write(folder.path).name)
    show.line(f"{took}; saved in {folder.path}: {', '.join(files)}")


def _pictures(folder: RunFolder, known: list[str]) -> list[str]:
    """Return the new pictures of a run: their names, or their number."""
    found = sorted(p.name for p in folder.path.glob("*.png") if p.name not in known)
    return found if len(found) <= MOST_NAMED else [f"{len(found)} pictures"]


def _say_what_is_missing(show: progress.Progress) -> None:
    without = {"rich": "plain lines instead of a bar", "matplotlib": "no picture of the loss"}
    missing = [name for name in without if find_spec(name) is None]
    if missing:
        show.note(
            f"{' and '.join(missing)} not installed: {', '.join(without[n] for n in missing)}; "
            "pip install 'needle-dl[train]' installs both"
        )

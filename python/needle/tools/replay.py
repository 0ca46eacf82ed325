"""A part of a run again, with a fingerprint of the result of every op."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from needle import config, executor, nancheck, recipes
from needle.backend.ndarray import NDArray
from needle.errors import OptionError, describe
from needle.recipes.loop import RecipeTrainer
from needle.tools.run import RunFolder
from needle.train.callbacks import Callback, Out
from needle.train.progress import Progress
from needle.train.recorder import fingerprint
from needle.train.stop import Stop

PACKAGE = Path(config.__file__).parent


class Reached(Exception):
    """The replay is at its end."""


class Watch(Callback):
    """Log the results of ops, and the parameters after each update, of the steps in a range.

    Args:
        first: the last step before the range.
        last: the last step of it.
        keep: number of the entry whose values are kept, or None.
    """

    def __init__(self, first: int, last: int, keep: int | None = None) -> None:
        self.first, self.last, self.keep = first, last, keep
        self.entries: list[dict[str, Any]] = []
        self.values: np.ndarray[Any, Any] | None = None
        self.done = 0
        self.model: Any = None

    def begin(self, t: Any) -> None:
        self.done, self.model = t.done, t.model

    def step(self, t: Any, out: Out) -> None:
        self.done = t.done
        if t.done > self.first:
            for name, p in t.model.named_parameters():
                self.note("the update of", name, p)
        if t.done >= self.last:
            raise Reached

    def op(self, seen: nancheck.Seen) -> None:
        """Take the result of an op."""
        if self.model is not None and self.model.training and self.first <= self.done < self.last:
            inside = seen.place.startswith("in the")
            place = seen.place if inside else f"called at {_caller()}"
            for part in seen.result if type(seen.result) is tuple else (seen.result,):
                self.note(str(seen.op), place, part)

    def note(self, what: str, place: str, x: Any) -> None:
        """Add an entry."""
        array = x if isinstance(x, NDArray) else executor.primal_array(x)
        if len(self.entries) == self.keep:
            self.values = np.array(array.numpy())
            raise Reached
        step = self.done + (not what.startswith("the update"))
        entry = {"step": step, "what": what, "place": place, "value": describe(array)}
        self.entries.append({**entry, "crc": fingerprint(array, whole=True)})


def _caller() -> str:
    """Return the innermost line of a model, a recipe or a program that is being run."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE not in path.parents or path.parent.name in ("models", "recipes"):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def replay(run: str, watch: Watch, start: int = 0) -> None:
    """Train as a run did until the watch has seen its range.

    Nothing is written into the run's folder.

    Args:
        run: the run's folder.
        watch: what is told.
        start: step of the checkpoint to begin at; 0 for the beginning.

    Raises:
        OptionError: if the run was not made by a recipe.
        DataError: if its files are damaged or its data is gone.
    """
    known = RunFolder(Path(run)).config()
    chosen = known["chosen"]
    settings = recipes.Settings(**chosen)
    threads = json.loads((Path(run) / "config.json").read_text())["environment"].get("threads")
    with (
        tempfile.TemporaryDirectory() as folder,
        config.override(**known["where"], threads=threads, finite="on"),
        nancheck.observed(watch.op),
    ):
        recipe = recipes.get(known["recipe"])
        state = RunFolder(Path(run)).checkpoints.load(start) if start else None
        _train(recipe, replace(settings), RunFolder(Path(folder)), watch, state)


def _train(kind: Any, settings: Any, folder: RunFolder, watch: Watch, state: Any) -> None:
    from needle.ops import random

    random.manual_seed(settings.seed)
    recipe = kind(settings, lambda text: None)
    if recipe.seconds is not None:
        raise OptionError("diff: the run has no fixed number of steps; use --steps")
    trainer = RecipeTrainer(recipe, folder, Progress(quiet=True), Stop())
    trainer.callbacks.append(watch)
    if state is not None:
        state["run"]["metrics"] = 0  # the folder has no lines
        known = [type(x).__name__ for x in trainer.callbacks]
        state["callbacks"] = {k: v for k, v in state["callbacks"].items() if k in known}
        folder.checkpoints.save(state["run"]["step"], state)
    with suppress(Reached):
        trainer.fit(recipe.epochs, recipe.steps, resume=state is not None)


def main(arguments: list[str]) -> None:
    """Replay a run in a process of its own: RUN START FIRST LAST OUT [KEEP]."""
    run, start, first, last, out, *keep = arguments
    watch = Watch(int(first), int(last), int(keep[0]) if keep else None)
    replay(run, watch, int(start))
    if keep:
        np.save(out, watch.values if watch.values is not None else np.zeros(0))
    else:
        Path(out).write_text(json.dumps(watch.entries))


if __name__ == "__main__":
    main(sys.argv[1:])

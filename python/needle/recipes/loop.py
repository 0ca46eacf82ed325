"""The training loop that all recipes share."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from needle import executor, nn
from needle.errors import DataError, NeedleError, explain
from needle.ops import random
from needle.recipes.recipe import Recipe, Settings
from needle.tools.progress import Progress
from needle.tools.run import RunFolder, environment
from needle.tools.stop import Stop, Stopped

WHOLE = ("step", "place", "seed", "counter", "pass_seed", "pass_counter", "items", "recent_steps")
NUMBERS = (*WHOLE, "recent_loss", "busy")
"""Names of the numbers in a checkpoint that describe the run itself."""
MEASURED = 2.0
"""Most seconds for measuring steps, where a run's length is given in seconds."""


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        figures: metrics of the final evaluation; empty if the run was stopped.
        steps: number of updates.
        seconds: duration, including evaluations.
        stopped: the signal that stopped the run, or None.
    """

    figures: dict[str, float]
    steps: int
    seconds: float
    stopped: int | None = None


def train(
    kind: type[Recipe],
    settings: Settings,
    folder: RunFolder,
    progress: Progress,
    stop: Stop,
    resume: bool = False,
) -> Result:
    """Train a recipe's model, and save everything in the run's folder.

    When ``stop`` asks for it, the run finishes the step, saves the weights and ends. Every
    evaluation writes a checkpoint. With ``resume`` the run continues from the folder's checkpoint,
    and ends as if it had never been stopped.

    Raises:
        NeedleError: if the loss is not finite; the weights before that step are saved.
        DataError: if the data or the checkpoint is missing or invalid, or they do not match.
    """
    before = random.get_state()
    random.manual_seed(settings.seed)
    try:
        recipe = kind(settings, progress.note)
        if recipe.seconds is not None:
            choose_steps(recipe, recipe.seconds, progress, stop)
        run = _Run(recipe, folder, progress, stop)
        if resume:
            run.resume()
        else:
            run.save_config()
            recipe.keep(folder)
        try:
            run.steps()
            figures = run.evaluate(final=True)
        except Stopped as stopped:
            figures = {}
            signal: int | None = stopped.signal
            run.save()
        else:
            signal = None
        finally:
            progress.close()
            folder.save_weights(run.model)
        if signal is None:
            for line in recipe.conclude(run.model, figures):
                progress.line(line)
        return Result(figures, run.done, time.perf_counter() - run.began, signal)
    finally:
        random.set_state(before)


def choose_steps(recipe: Recipe, seconds: float, progress: Progress, stop: Stop) -> None:
    """Set a recipe's number of steps to what fits into a number of seconds.

    Steps of another model of the same kind are measured first. The number becomes one of the
    settings, so a run that is resumed has the same schedule.
    """
    before, kept = random.get_state(), recipe.state()
    model = recipe.model()
    optimizer = recipe.optimizer(model, 1000)
    times = []
    start = now = time.perf_counter()
    for batch in recipe.batches():
        loss = recipe.loss(model, batch)
        loss.item()
        recipe.update(optimizer, loss)
        last, now = now, time.perf_counter()
        times.append(now - last)
        if now - start > min(MEASURED, seconds / 10) or stop.signal is not None:
            break
    recipe.load_state(kept)
    random.set_state(before)
    step = statistics.median(times) if times else seconds
    recipe.steps = max(1, round((seconds - (now - start)) / step))
    recipe.settings = replace(recipe.settings, steps=recipe.steps)
    progress.note(
        f"a step takes {1000 * step:.1f} ms, so {recipe.steps:,} steps fit into {seconds:g} s; "
        "a slower machine makes fewer, --steps fixes their number"
    )


class _Run:
    """One run: the model, its progress and its records."""

    recipe_state: dict[str, Any] | None = None

    def __init__(self, recipe: Recipe, folder: RunFolder, progress: Progress, stop: Stop) -> None:
        self.recipe, self.folder, self.progress, self.stop = recipe, folder, progress, stop
        per_epoch = recipe.steps_per_epoch()
        if per_epoch < 1:
            raise DataError(f"{recipe.name}: no training data: {recipe.describe_data()}")
        self.per_epoch = per_epoch
        self.total = recipe.steps or (recipe.epochs or 1) * per_epoch
        self.model = recipe.model()
        self.optimizer = recipe.optimizer(self.model, self.total)
        self.done = 0
        self.place, self.pass_began = 0, random.get_state()  # position in the pass over the data
        self.skip = 0
        self.recent_loss, self.recent_steps = 0.0, 0  # for the next line of metrics
        self.items, self.busy = 0, 0.0
        self.began = time.perf_counter()
        self.record_every = max(1, self.total // 500)

    def save_config(self) -> None:
        """Write the description of the run into its folder."""
        recipe, per_epoch = self.recipe, self.per_epoch
        self.folder.save_config(
            {
                "recipe": recipe.name,
                "chosen": asdict(recipe.settings),
                "settings": {
                    "steps": self.total, "epochs": round(self.total / per_epoch, 3),
                    "batch_size": recipe.batch_size, "lr": recipe.lr,
                    "seed": recipe.settings.seed, "data": recipe.settings.data,
                    "preset": recipe.settings.preset,
                },
                "architecture": recipe.architecture(),
                "model": repr(self.model).splitlines(),
                "parameters": sum(p.size for p in self.model.parameters()),
                "optimizer": repr(self.optimizer),
                "data": recipe.describe_data(),
                "environment": environment(),
            }
        )  # fmt: skip

    def steps(self) -> None:
        """Make all updates and evaluations."""
        self.progress.start(self.total, self.recipe.item)
        if self.done == self.total or self.recipe.finished():
            return
        every = self.recipe.evaluate_every(self.total)
        self.model.train()
        if self._owes_evaluation(every):
            self.evaluate(final=False)
            self.save()
            self.recipe_state = self.recipe.state()
            if self.recipe.finished():
                return
        for batch in self._batches():
            self.recent_loss += self._step(batch)
            self.recent_steps += 1
            if self.done % self.record_every == 0 or self.done == self.total:
                self._record(self.recent_loss / self.recent_steps)
                self.recent_loss, self.recent_steps = 0.0, 0
            self.stop.check()
            if self.done == self.total:
                return
            if self.done % every == 0:
                self.evaluate(final=False)
                self.save()
                if self.recipe.finished():
                    return

    def _owes_evaluation(self, every: int) -> bool:
        """Return whether the run was stopped before a due evaluation."""
        if self.done == 0 or self.done % every:
            return False
        lines = self.folder.metrics()
        return not any(x["split"] == "held-out" and x["step"] == self.done for x in lines)

    def _batches(self) -> Iterator[Any]:
        """Yield batches, pass after pass; after ``resume`` from the position of the checkpoint."""
        now = random.get_state()
        while True:
            if self.skip:
                random.set_state(self.pass_began)
            else:
                self.pass_began = random.get_state()
            self.recipe.passes = (self.done - self.skip) // self.per_epoch
            for place, batch in enumerate(self.recipe.batches(), 1):
                self.place = place
                if place > self.skip:
                    yield batch
                elif place == self.skip:
                    self._reached(now)
            self.skip = 0

    def _reached(self, now: Any) -> None:
        """Continue from here, with the same order of the pass and the same random numbers."""
        random.set_state(now)
        if self.recipe_state:
            self.recipe.load_state(self.recipe_state)

    # ---- checkpoints -------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint: everything that the rest of the run depends on."""
        seed, counter = random.get_state()
        numbers = {"step": self.done, "place": self.place, "seed": seed, "counter": counter}
        numbers["pass_seed"], numbers["pass_counter"] = self.pass_began
        recent = {"recent_loss": self.recent_loss, "recent_steps": self.recent_steps}
        parts = {
            "run": {**numbers, **recent, "items": self.items, "busy": self.busy},
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "recipe": self.recipe.state(),
        }
        state = {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}
        self.folder.save_checkpoint(state)

    def resume(self) -> None:
        """Restore the folder's checkpoint. Raises DataError if it does not fit this run."""
        state = self.folder.load_checkpoint()
        parts: dict[str, dict[str, Any]] = {"run": {}, "model": {}, "optimizer": {}, "recipe": {}}
        for key, value in state.items():
            part, _, name = key.partition(".")
            parts.setdefault(part, {})[name] = value
        run = parts["run"]
        for name in NUMBERS:
            value = run.get(name)
            if not isinstance(value, int if name in WHOLE else (int, float)):
                raise DataError(f"{self.folder.path}: the checkpoint has no number 'run.{name}'")
            if name in WHOLE and not 0 <= value < 2**64:
                raise DataError(f"{self.folder.path}: the checkpoint has 'run.{name}' = {value}")
        self._check_place(run["step"], run["place"])
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.recipe_state = parts["recipe"]
        if self.recipe_state:
            self.recipe.load_state(self.recipe_state)
        self.done = run["step"]
        self.place = self.skip = run["place"]  # the next checkpoint may come before any new batch
        self.recipe.passes = (self.done - self.skip) // self.per_epoch
        self.items, self.busy = run["items"], run["busy"]
        self.recent_loss, self.recent_steps = run["recent_loss"], run["recent_steps"]
        self.pass_began = (run["pass_seed"], run["pass_counter"])
        random.set_state((run["seed"], run["counter"]))
        self.folder.forget_after(self.done)

    def _check_place(self, step: int, place: int) -> None:
        """Check that a step and a position in a pass are possible with this data."""
        fits = 0 <= place <= min(step, self.per_epoch) and (step - place) % self.per_epoch == 0
        if not fits or step > self.total:
            raise DataError(
                f"{self.folder.path}: the checkpoint is at step {step}, {place} batches into an "
                f"epoch; with this data an epoch has {self.per_epoch} batches, and the run "
                f"{self.total} steps\n"
                "  rule: a run continues with the data that it started with\n"
                "  try: --data with the previous folder"
            )

    def _step(self, batch: Any) -> float:
        start = time.perf_counter()
        lr = self.optimizer.current_lr
        loss = self.recipe.loss(self.model, batch)
        value = float(loss.item())
        if not math.isfinite(value):
            rate, usual = self.recipe.lr, type(self.recipe).lr
            raise explain(
                NeedleError, "train", f"the loss is {value} at step {self.done + 1}",
                advice=f"--lr {min(rate / 3, usual):.1g} (the learning rate was {rate:.2g})",
            )  # fmt: skip
        self.recipe.update(self.optimizer, loss)
        self.done += 1
        self.items += self.recipe.items_per_step()
        self.lr = lr
        self.busy += time.perf_counter() - start
        self.progress.step(
            self.done, value, self.recipe.shown(value), self.items / max(self.busy, 1e-9)
        )
        return value

    def _record(self, loss: float) -> None:
        seconds = time.perf_counter() - self.began
        self.folder.record(
            split="train", step=self.done, epoch=round(self.done / self.per_epoch, 4),
            seconds=round(seconds, 3), loss=loss, **self.recipe.shown(loss),
            lr=self.lr,
            **{f"{self.recipe.item}_per_second": round(self.items / self.busy, 1)},
        )  # fmt: skip

    def evaluate(self, final: bool) -> dict[str, float]:
        """Return and record the figures on held-out data."""
        figures = evaluate(self.recipe, self.model, self.stop, final)
        self.folder.record(
            split="held-out", step=self.done, epoch=round(self.done / self.per_epoch, 4),
            seconds=round(time.perf_counter() - self.began, 3), final=final, **figures,
        )  # fmt: skip
        place = f"step {self.done}/{self.total}"
        if self.recipe.epochs and self.done % self.per_epoch == 0:
            place = f"epoch {self.done // self.per_epoch}/{self.recipe.epochs}"
        self.progress.evaluated(place, dict(list(figures.items())[:1]) if final else figures)
        with executor.modes(recording=False):
            self.recipe.draw(self.model.eval(), self.folder, self.done, final)
        self.model.train()
        return figures


def evaluate(recipe: Recipe, model: nn.Module, stop: Stop, final: bool) -> dict[str, float]:
    """Return a recipe's metrics on held-out data."""
    model.eval()
    try:
        with executor.modes(recording=False):
            return recipe.evaluate(model, stop.check, final)
    finally:
        model.train()

"""The training loop that all recipes share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from needle import executor, nn
from needle.errors import NeedleError, explain
from needle.ops import random
from needle.recipes.recipe import Recipe, Settings
from needle.tools.progress import Progress
from needle.tools.run import RunFolder, environment
from needle.tools.stop import Stop, Stopped


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        figures: those of the final evaluation; empty if the run was stopped.
        steps: updates made.
        seconds: how long that took, evaluations included.
        stopped: the signal that stopped it, or None.
    """

    figures: dict[str, float]
    steps: int
    seconds: float
    stopped: int | None = None


def train(
    kind: type[Recipe], settings: Settings, folder: RunFolder, progress: Progress, stop: Stop
) -> Result:
    """Train a recipe's model, and save everything in the run's folder.

    When ``stop`` says so, the step is finished, the weights are saved, and the run ends.

    Raises:
        NeedleError: if the loss is no longer finite; the weights before that are saved.
        DataError: as the recipe's data.
    """
    before = random.get_state()
    random.manual_seed(settings.seed)
    try:
        recipe = kind(settings, progress.note)
        run = _Run(recipe, folder, progress, stop)
        try:
            run.steps()
            figures = run.evaluate(final=True)
        except Stopped as stopped:
            figures = {}
            signal: int | None = stopped.signal
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


class _Run:
    """One run: the model, how far it is, and what is recorded of it."""

    def __init__(self, recipe: Recipe, folder: RunFolder, progress: Progress, stop: Stop) -> None:
        self.recipe, self.folder, self.progress, self.stop = recipe, folder, progress, stop
        per_epoch = recipe.steps_per_epoch()
        self.per_epoch = per_epoch
        self.total = recipe.steps or (recipe.epochs or 1) * per_epoch
        self.model = recipe.model()
        self.optimizer = recipe.optimizer(self.model, self.total)
        self.done = 0
        self.items, self.busy = 0, 0.0
        self.began = time.perf_counter()
        self.record_every = max(1, self.total // 500)
        folder.save_config(
            {
                "recipe": recipe.name,
                "settings": {
                    "steps": self.total, "epochs": round(self.total / per_epoch, 3),
                    "batch_size": recipe.batch_size, "lr": recipe.lr,
                    "seed": recipe.settings.seed, "data": recipe.settings.data,
                },
                "model": repr(self.model).splitlines(),
                "parameters": sum(p.size for p in self.model.parameters()),
                "optimizer": repr(self.optimizer),
                "data": recipe.describe_data(),
                "environment": environment(),
            }
        )  # fmt: skip

    def steps(self) -> None:
        """Make all updates, with evaluations in between."""
        self.progress.start(self.total, self.recipe.item)
        every = self.recipe.evaluate_every(self.total)
        self.model.train()
        recent: list[float] = []
        for batch in self._batches():
            recent.append(self._step(batch))
            self.stop.check()
            if self.done % self.record_every == 0 or self.done == self.total:
                self._record(sum(recent) / len(recent))
                recent = []
            if self.done == self.total:
                return
            if self.done % every == 0:
                self.evaluate(final=False)

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self.recipe.batches()

    def _step(self, batch: Any) -> float:
        start = time.perf_counter()
        lr = self.optimizer.current_lr
        loss = self.recipe.loss(self.model, batch)
        value = float(loss.item())
        if not math.isfinite(value):
            raise explain(
                NeedleError, "train", f"the loss is {value} at step {self.done + 1}",
                advice=f"--lr {self.recipe.lr / 3:.1g} (it was {self.recipe.lr:.2g})",
            )  # fmt: skip
        self.optimizer.minimize(loss)
        self.done += 1
        self.items += self.recipe.batch_size
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
        return figures


def evaluate(recipe: Recipe, model: nn.Module, stop: Stop, final: bool) -> dict[str, float]:
    """Return a recipe's figures on held-out data."""
    model.eval()
    try:
        with executor.modes(recording=False):
            return recipe.evaluate(model, stop.check, final)
    finally:
        model.train()

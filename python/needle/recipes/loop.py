"""How a recipe trains: a ``Trainer`` made of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from needle.errors import DataError
from needle.ops import random
from needle.recipes.recipe import Recipe
from needle.recipes.settings import Settings
from needle.tools.run import RunFolder, environment
from needle.train import Callback, Evaluate, Memory, Norms, Result, Trainer
from needle.train.progress import Progress
from needle.train.recorder import RECORD, Recorder
from needle.train.step import Update
from needle.train.stop import Stop

MEASURED = 2.0
"""Most seconds for measuring steps, where a run's length is given in seconds."""


def train(
    kind: type[Recipe],
    settings: Settings,
    folder: RunFolder,
    progress: Progress,
    stop: Stop,
    resume: bool = False,
    record: bool = False,
    save_every: int | None = None,
    workers: tuple[int, str | None] = (0, None),
) -> Result:
    """Train a recipe's model, and save everything in the run's folder.

    When ``stop`` asks for it, the run finishes the step, saves everything and ends. With ``resume``
    it continues from the folder's checkpoint, and ends as if it had never been stopped. Besides
    those after evaluations there are checkpoints every ``save_every`` steps. Number and kind of
    ``workers`` that make batches ahead change nothing else.

    Raises:
        NonFiniteError: for NaN or infinities; the weights before that step are saved.
        DataError: if the data or the checkpoint is missing or invalid, or they do not match.
    """
    before = random.get_state()
    random.manual_seed(settings.seed)
    try:
        recipe = kind(settings, progress.note)
        if workers[0]:
            recipe.num_workers, recipe.workers = workers
        if recipe.seconds is not None:
            choose_steps(recipe, recipe.seconds, progress, stop)
        trainer = RecipeTrainer(recipe, folder, progress, stop)
        if record or (folder.path / RECORD).exists():
            trainer.callbacks.append(Recorder(folder.path))
        trainer.save_every = save_every
        if not resume:
            recipe.keep(folder)
            folder.save_config(describe(trainer))  # last: what has it can be resumed
        try:
            result = trainer.fit(recipe.epochs, recipe.steps, resume)
        finally:
            folder.save_weights(trainer.model)
        if result.stopped is None:
            for line in recipe.conclude(trainer.model, result.figures):
                progress.line(line)
        return result
    finally:
        random.set_state(before)


def choose_steps(recipe: Recipe, seconds: float, progress: Progress, stop: Stop) -> None:
    """Set a recipe's number of steps to what fits into a number of seconds.

    Steps of another model of the same kind are measured first. The number becomes one of the
    settings, so a run that is resumed has the same schedule.
    """
    before, kept = random.get_state(), recipe.state()
    model = recipe.model()
    update = Update(model, recipe.optimizer(model, 1000), recipe.loss, recipe.clip)
    step = update.compiled() if recipe.compiled else update.one
    times = []
    start = now = time.perf_counter()
    loader = recipe.batches()
    recipe.begin_pass()
    for batch in loader:
        step(recipe.prepared(batch))
        last, now = now, time.perf_counter()
        times.append(now - last)
        if now - start > min(MEASURED, seconds / 10) or stop.signal is not None:
            break
    del loader  # and its workers
    recipe.load_state(kept)
    random.set_state(before)
    usual = statistics.median(times) if times else seconds
    recipe.steps = max(1, round((seconds - (now - start)) / usual))
    recipe.settings = replace(recipe.settings, steps=recipe.steps)
    progress.note(
        f"a step takes {1000 * usual:.1f} ms, so {recipe.steps:,} steps fit into {seconds:g} s; "
        "a slower machine makes fewer, --steps fixes their number"
    )


class RecipeTrainer(Trainer):
    """The trainer of a recipe.

    Attributes:
        recipe: the recipe.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, progress: Progress, stop: Stop) -> None:
        self.recipe = recipe
        if recipe.steps_per_epoch() < 1:
            raise DataError(f"{recipe.name}: no training data: {recipe.describe_data()}")
        model, steps = recipe.model(), recipe.steps
        steps = steps or (recipe.epochs or 1) * recipe.steps_per_epoch()
        judge = Evaluate(
            lambda model: recipe.evaluate(model, stop.check, self.final),
            recipe.evaluate_every(steps), recipe.mode,
        )  # fmt: skip
        folder.checkpoints.mode = recipe.mode
        super().__init__(
            model, recipe.optimizer(model, steps), recipe.loss, recipe.batches(), evaluate=judge,
            compile=recipe.compiled, clip=recipe.clip,
            callbacks=[Own(recipe, folder), Norms(), Memory()],
            folder=folder, stop=stop, progress=progress, item=recipe.item,
        )  # fmt: skip

    def shown(self, loss: float) -> dict[str, float]:
        return self.recipe.shown(loss)

    def prepared(self, batch: Any) -> Any:
        return self.recipe.prepared(batch)

    def count(self, batch: Any) -> int:
        return self.recipe.items_per_step()

    def advice(self) -> str:
        rate, usual = self.recipe.lr, type(self.recipe).lr
        return f"--lr {min(rate / 3, usual):.1g} (the learning rate was {rate:.2g})"


class Own(Callback):
    """What a recipe does besides steps: pictures, its own state, and ending early."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self.recipe, self.folder = recipe, folder

    def epoch(self, t: Trainer, number: int) -> None:
        self.recipe.passes = number
        self.recipe.begin_pass()

    def evaluated(self, t: Trainer, figures: dict[str, float]) -> None:
        self.recipe.draw(t.model, self.folder, t.done, t.final)
        if not t.final and self.recipe.finished():
            t.finish("the recipe's figure does not get better")

    def state_dict(self) -> dict[str, Any]:
        return self.recipe.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.recipe.load_state(dict(state))


def describe(trainer: RecipeTrainer) -> dict[str, Any]:
    """Return the description of a run for config.json."""
    recipe, per_epoch = trainer.recipe, len(trainer.loader)
    total = recipe.steps or (recipe.epochs or 1) * per_epoch
    return {
        "recipe": recipe.name,
        "chosen": asdict(recipe.settings),
        "settings": {
            "steps": total, "epochs": round(total / per_epoch, 3),
            "batch_size": recipe.batch_size, "lr": recipe.lr,
            "seed": recipe.settings.seed, "data": recipe.settings.data,
            "preset": recipe.settings.preset,
        },
        "architecture": recipe.architecture(),
        "model": repr(trainer.model).splitlines(),
        "parameters": sum(p.size for p in trainer.model.parameters()),
        "optimizer": repr(trainer.optimizer),
        "data": recipe.describe_data(),
        "environment": environment(),
    }  # fmt: skip

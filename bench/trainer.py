"""The share of a step that Needle's trainer takes: loop, loader, metrics, checkpoints.

    python bench/trainer.py [--recipe NAME] [--steps N] [--repeat N] [--data PATH] [--out FILE]

Each repetition trains the recipe's model twice with the same batches: by a loop of five lines over
batches that were made before, and by the trainer with its loader, in a folder. What the trainer
takes more, as a share of its time, should be below 3 %. The two alternate, and the medians count.
Evaluations and checkpoints are reported apart, because the user chooses how many there are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import needle as ndl
from needle import optim, recipes, train
from needle.recipes.loop import RecipeTrainer
from needle.tools.run import RunFolder

TARGET = 0.03


class Twice:
    """One recipe, whose model is trained by hand and by the trainer."""

    def __init__(self, name: str, steps: int, data: str | None) -> None:
        self.kind, self.steps, self.data = recipes.get(name), steps, data

    def recipe(self) -> Any:
        """Return a recipe that begins anew."""
        ndl.manual_seed(0)
        settings = recipes.Settings(data=self.data, steps=self.steps)
        return self.kind(settings, lambda line: None)

    def by_hand(self) -> float:
        """Return the seconds of the steps alone."""
        recipe = self.recipe()
        model = recipe.model()
        optimizer = recipe.optimizer(model, self.steps)
        loader, batches = recipe.batches(), []
        while len(batches) < self.steps:
            batches += [batch for batch, _ in zip(loader, range(self.steps), strict=False)]
        recipe.begin_pass()
        start = time.perf_counter()
        for batch in batches[: self.steps]:
            loss = recipe.loss(model, batch)
            loss.item()
            optimizer.reset_grad()
            loss.backward()
            if recipe.clip is not None:
                optim.clip_grad_norm(optimizer.params, recipe.clip)
            optimizer.step()
        return time.perf_counter() - start

    def by_trainer(self, folder: str) -> dict[str, float]:
        """Return the seconds of the whole loop, and of what is apart in it."""
        recipe = self.recipe()
        run = RunFolder.create(recipe.name, folder)
        trainer = RecipeTrainer(recipe, run, train.Progress(quiet=True), train.Stop())
        trainer.evaluation = None
        apart = {"save": 0.0}
        save = trainer.save

        def timed(wait: bool = True) -> None:
            start = time.perf_counter()
            save(wait=True)
            apart["save"] += time.perf_counter() - start

        trainer.save = timed  # type: ignore[method-assign]
        start = time.perf_counter()
        trainer.fit(steps=self.steps)
        whole = time.perf_counter() - start
        return {"loop": whole - apart["save"], **apart, "loader": trainer.waited}


def measure(twice: Twice, repeat: int) -> dict[str, float]:
    """Return the medians of several repetitions."""
    hand, loops = [], []
    for _ in range(repeat):
        hand.append(twice.by_hand())
        with tempfile.TemporaryDirectory() as folder:
            loops.append(twice.by_trainer(str(Path(folder) / "run")))
    n = twice.steps
    step, loop, loader = (
        1000 * statistics.median(values) / n
        for values in (hand, [x["loop"] for x in loops], [x["loader"] for x in loops])
    )
    return {
        "step_ms": step, "trainer_ms": loop, "loader_ms": loader,
        "share": (loop - step) / loop,
        "share_without_loader": (loop - loader - step) / loop,
        "two_saves_ms": 1000 * statistics.median(x["save"] for x in loops),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=recipes.DEFAULT)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--data", help="folder or file of the data")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--out", help="file for the figures")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.repeat = 2, 1
    found = measure(Twice(args.recipe, args.steps, args.data), args.repeat)
    for name, value in found.items():
        print(f"{name:22} {value:8.2%}" if "share" in name else f"{name:22} {value:8.3f}")
    reached = "reached" if found["share"] < TARGET else "NOT reached"
    print(f"the target, below {TARGET:.0%} of a step: {reached}")
    if args.out:
        Path(args.out).write_text(json.dumps({"recipe": args.recipe, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The share of a step that Needle's trainer takes: loop, loader, metrics, progress, checkpoints.

    python bench/trainer.py [--recipe NAME] [--steps N] [--repeat N] [--data PATH] [--out FILE]

The recipe's model is trained in a folder, as ``needle train`` does it. Of the time of the whole
loop, what is not spent in forward pass, backward pass and update is the trainer's own: it should be
below 3 %. Both are taken in the same steps, so that a busy machine disturbs both alike.
Evaluations and checkpoints are reported apart, because the user chooses how many there are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import needle as ndl
from needle import recipes, train
from needle.recipes.loop import RecipeTrainer
from needle.tools.run import RunFolder
from needle.train.step import Update

TARGET = 0.03


def timed(spent: Counter[str], name: str, function: Any) -> Any:
    """Return a function that adds the seconds of each call to ``spent``."""

    def call(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            spent[name] += time.perf_counter() - start

    return call


def run(name: str, steps: int, data: str | None, folder: str) -> dict[str, float]:
    """Train a recipe; return milliseconds per step, and shares."""
    ndl.manual_seed(0)
    recipe = recipes.get(name)(recipes.Settings(data=data, steps=steps), lambda line: None)
    found = RunFolder.create(recipe.name, folder)
    trainer = RecipeTrainer(recipe, found, train.Progress(), train.Stop())
    trainer.evaluation, spent = None, Counter[str]()
    trainer.save = timed(spent, "saves", trainer.save)  # type: ignore[method-assign]
    own, Update.one = Update.one, timed(spent, "step", Update.one)  # type: ignore[method-assign]
    trainer._steps = timed(spent, "loop", trainer._steps)  # type: ignore[method-assign]
    try:
        trainer.fit(steps=steps)
    finally:
        Update.one = own  # type: ignore[method-assign]
    each = 1000 / steps
    return {
        "step_ms": each * spent["step"], "loop_ms": each * spent["loop"],
        "loader_ms": each * trainer.waited, "save_ms": 1000 * spent["saves"] / 2,
        "share": 1 - spent["step"] / spent["loop"],
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
    rows = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            rows.append(run(args.recipe, args.steps, args.data, str(Path(folder) / "run")))
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    for name, value in found.items():
        print(f"{name:12} {value:8.2%}" if name == "share" else f"{name:12} {value:8.3f}")
    reached = "reached" if found["share"] < TARGET else "NOT reached"
    print(f"the target, below {TARGET:.0%} of a step: {reached}")
    if args.out:
        Path(args.out).write_text(json.dumps({"recipe": args.recipe, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Accuracy of the recipe resnet9-cifar10 in Needle and in PyTorch: the same starts and batches.

    python bench/cifar_accuracy.py --data FOLDER [--seeds N] [--out FILE]

Trains on what the folder has of CIFAR-10's training batches, 20 epochs, and prints the accuracy on
the 10,000 test images for each seed. With ``--out`` (bench/results/MACHINE/cifar_accuracy.json)
results are kept, and what the file has is not trained again; ``python bench/record.py FILE`` puts
them into the summary. Batch norm differs: PyTorch's
running variance is the unbiased one, the course's is not. ``--quick`` runs one epoch on a few
random images instead; ``--steps`` stops early, to see how long a training takes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import record
import resnet_twin as twin
import torch

import needle as ndl
from needle.recipes import Settings, get
from needle.train.stop import Stop


class Run:
    """The recipe with a seed: the same draws, and so starts and batches, for both frameworks."""

    def __init__(self, folder: str, seed: int, **settings: int) -> None:
        ndl.manual_seed(seed)
        chosen = Settings(data=folder, seed=seed, **settings)
        self.recipe = get("resnet9-cifar10")(chosen, lambda line: None)
        self.steps = self.recipe.epochs * self.recipe.steps_per_epoch()
        self.model = self.recipe.model()

    def batches(self, most: int | None):
        """Yield the batches of all passes, or the first of them."""
        made, loader = 0, self.recipe.batches()
        for _ in range(self.recipe.epochs):
            for batch in loader:
                if made == most:
                    return
                made += 1
                yield batch

    def needle(self, most: int | None) -> float:
        """Train Needle's model; return its accuracy."""
        optimizer = self.recipe.optimizer(self.model, self.steps)
        for batch in self.batches(most):
            optimizer.minimize(self.recipe.loss(self.model, batch))
        return self.recipe.evaluate(self.model.eval(), Stop().check, True)["accuracy"]

    def pytorch(self, most: int | None) -> float:
        """Train PyTorch's; return its accuracy."""
        model, rates = twin.course_resnet9(), self.recipe.optimizer(self.model, self.steps)
        twin.copy_values(model, self.model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.recipe.lr, weight_decay=0.01)
        for step, (x, y) in enumerate(self.batches(most)):
            optimizer.param_groups[0]["lr"] = rates.lr(step)
            optimizer.zero_grad()
            labels = torch.tensor(y.numpy().astype(np.int64))
            torch.nn.functional.cross_entropy(
                model(torch.tensor(x.permute((0, 3, 1, 2)).numpy())), labels
            ).backward()
            optimizer.step()
        model.eval()
        test = self.recipe.test
        images = self.recipe.plain(test.images, np.arange(len(test))).transpose(0, 3, 1, 2)
        with torch.no_grad():
            found = model(torch.tensor(np.ascontiguousarray(images))).argmax(1).numpy()
        return float((found == test.labels).mean())


FRAMEWORKS = {"needle": Run.needle, "pytorch": Run.pytorch}


def measure(folder: str, seed: int, framework: str, most: int | None, **settings: int) -> Any:
    """Train with a seed; return a line of the results."""
    run = Run(folder, seed, **settings)
    start = time.perf_counter()
    accuracy = FRAMEWORKS[framework](run, most)
    seconds = time.perf_counter() - start
    steps = run.steps if most is None else min(most, run.steps)
    return {
        "seed": seed, "framework": framework, "accuracy": accuracy, "steps": steps,
        "images": len(run.recipe.train), "seconds": round(seconds, 1),
    }  # fmt: skip


def all_runs(folder: str, seeds: int, most: int | None, out: Path | None, **settings: int) -> Any:
    """Make the runs that the file lacks, and write it after each; return the lines of all."""
    lines = json.loads(out.read_text())["runs"] if out and out.exists() else []
    for seed in range(seeds):
        for framework in FRAMEWORKS:
            if any((line["seed"], line["framework"]) == (seed, framework) for line in lines):
                continue
            lines.append(measure(folder, seed, framework, most, **settings))
            print(shown(lines[-1]), flush=True)
            if out:
                part = out.with_suffix(".part")
                part.write_text(json.dumps(summary(lines), indent=1) + "\n")
                part.replace(out)
    return lines


def shown(line: Any) -> str:
    """Return a run as text."""
    return (
        f"seed {line['seed']}, {line['framework']}: {line['accuracy']:.2%}, "
        f"{line['steps']} steps on {line['images']} images in {line['seconds']} s"
    )


def summary(lines: Any) -> Any:
    """Return what the file holds: the runs, the means, and how many points lie between them."""
    means = {}
    for framework in FRAMEWORKS:
        own = [line["accuracy"] for line in lines if line["framework"] == framework]
        means[framework] = float(np.mean(own)) if own else None
    both = None not in means.values()
    points = 100 * (means["needle"] - means["pytorch"]) if both else None
    kept = [{key: line[key] for key in line if key != "seconds"} for line in lines]
    return {
        "subject": "cifar_accuracy",
        "command": "python bench/cifar_accuracy.py --data FOLDER --out FILE",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": record.commit(), "machine": record.machine(), "threads": harness.THREADS,
        "versions": harness.versions(),
        "mean": means, "points": points, "runs": kept, "rows": [],
    }  # fmt: skip


def random_images(folder: str) -> None:
    """Write a few random images in the binary edition."""
    random = np.random.default_rng(0)
    for name in ("data_batch_1", "test_batch"):
        records = random.integers(0, 256, (20, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        (Path(folder) / f"{name}.bin").write_bytes(records.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy beside PyTorch's.")
    parser.add_argument("--data", help="folder of CIFAR-10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop each training after so many steps")
    parser.add_argument("--quick", action="store_true", help="random images, one epoch")
    parser.add_argument("--out", type=Path, help="keep the results here, and go on from there")
    args = parser.parse_args()
    if args.steps is not None and args.out:
        parser.error("--steps is no whole training: its results are not kept (--out)")
    torch.set_num_threads(ndl.config.thread_count())
    if args.quick:
        with tempfile.TemporaryDirectory() as folder:
            random_images(folder)
            lines = all_runs(folder, 1, args.steps, args.out, epochs=1, batch_size=10)
    elif args.data:
        lines = all_runs(args.data, args.seeds, args.steps, args.out)
    else:
        parser.error("--data FOLDER, or --quick")
    found = summary(lines)
    if found["points"] is not None:
        mean = found["mean"]
        print(
            f"mean: Needle {mean['needle']:.2%}, PyTorch {mean['pytorch']:.2%}, "
            f"{found['points']:+.2f} points"
        )


if __name__ == "__main__":
    main()

"""Accuracy of the recipe resnet9-cifar10 in Needle and in PyTorch: the same starts and batches.

    python bench/cifar_accuracy.py --data FOLDER [--seeds N] [--out FILE]

Trains on what the folder has of CIFAR-10's training batches, 20 epochs, and prints the accuracy on
the 10,000 test images for each seed. Batch norm differs: PyTorch's running variance is the unbiased
one, the course's is not. ``--quick`` runs one epoch on a few random images instead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import resnet_twin as twin
import torch

import needle as ndl
from needle.recipes import Settings, get
from needle.tools.stop import Stop


def accuracies(folder: str, seed: int, **settings: int) -> tuple[float, float]:
    """Train both side by side; return the accuracies."""
    ndl.manual_seed(seed)
    chosen = Settings(data=folder, seed=seed, **settings)
    recipe = get("resnet9-cifar10")(chosen, lambda line: None)
    steps = recipe.epochs * recipe.steps_per_epoch()
    model = recipe.model()
    other = twin.course_resnet9()
    twin.copy_values(other, model.parameters())
    optimizer = recipe.optimizer(model, steps)
    theirs = torch.optim.AdamW(other.parameters(), lr=recipe.lr, weight_decay=0.01)
    for epoch in range(recipe.epochs):
        recipe.passes = epoch
        for x, y in recipe.batches():
            theirs.param_groups[0]["lr"] = optimizer.current_lr
            optimizer.minimize(recipe.loss(model, (x, y)))
            theirs.zero_grad()
            labels = torch.tensor(y.numpy().astype(np.int64))
            torch.nn.functional.cross_entropy(other(torch.tensor(x.numpy())), labels).backward()
            theirs.step()
    ours = recipe.evaluate(model.eval(), Stop().check, True)["accuracy"]
    other.eval()
    images = recipe.plain(recipe.test.images, np.arange(len(recipe.test))).transpose(0, 3, 1, 2)
    with torch.no_grad():
        found = other(torch.tensor(np.ascontiguousarray(images))).argmax(1).numpy()
    return ours, float((found == recipe.test.labels).mean())


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
    parser.add_argument("--quick", action="store_true", help="random images, one epoch")
    parser.add_argument("--out", help="write the accuracies here, as JSON")
    args = parser.parse_args()
    if args.quick:
        with tempfile.TemporaryDirectory() as folder:
            random_images(folder)
            both = [accuracies(folder, 0, epochs=1, batch_size=10)]
    elif args.data:
        both = [accuracies(args.data, seed) for seed in range(args.seeds)]
    else:
        parser.error("--data FOLDER, or --quick")
    for seed, (ours, theirs) in enumerate(both):
        print(f"seed {seed}: Needle {ours:.2%}, PyTorch {theirs:.2%}")
    mean = np.mean(both, axis=0)
    points = 100 * (mean[0] - mean[1])
    print(f"mean: Needle {mean[0]:.2%}, PyTorch {mean[1]:.2%}, {points:+.2f} points")
    if args.out:
        Path(args.out).write_text(json.dumps({"needle_and_pytorch": both}) + "\n")


if __name__ == "__main__":
    main()

"""Accuracy of the recipe resnet9-cifar10 in Needle and in PyTorch: the same starts and batches.

    python bench/cifar_accuracy.py FOLDER [seeds]

Trains on CIFAR-10's first training batch alone (10,000 images), 20 epochs, and prints the accuracy
on the 10,000 test images for each seed. Batch norm differs: PyTorch's running variance is the
unbiased one, the course's is not.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn as tnn

import needle as ndl
from needle.recipes import Settings, get
from needle.tools.stop import Stop


def conv_bn(a: int, b: int, k: int, s: int) -> tnn.Module:
    conv = tnn.Conv2d(a, b, k, s, (k - 1) // 2)
    return tnn.Sequential(conv, tnn.BatchNorm2d(b), tnn.ReLU())


class Residual(tnn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fn = tnn.Sequential(conv_bn(width, width, 3, 1), conv_bn(width, width, 3, 1))

    def forward(self, x):
        return x + self.fn(x)


def peer(model) -> tnn.Module:
    """PyTorch's ResNet-9 with the values of Needle's."""
    made = tnn.Sequential(
        conv_bn(3, 16, 7, 4), conv_bn(16, 32, 3, 2), Residual(32), conv_bn(32, 64, 3, 2),
        conv_bn(64, 128, 3, 2), Residual(128), tnn.Flatten(), tnn.Linear(128, 128), tnn.ReLU(),
        tnn.Linear(128, 10),
    )  # fmt: skip
    for theirs, ours in zip(made.parameters(), model.parameters(), strict=True):
        values = ours.numpy()
        if values.ndim == 4:
            values = values.transpose(3, 2, 0, 1)
        elif values.ndim == 2 and theirs.ndim == 2:
            values = values.T
        with torch.no_grad():
            theirs.copy_(torch.tensor(np.ascontiguousarray(values)).reshape(theirs.shape))
    return made


def accuracies(folder: str, seed: int) -> tuple[float, float]:
    """Train both side by side; return the accuracies."""
    ndl.manual_seed(seed)
    recipe = get("resnet9-cifar10")(Settings(data=folder, seed=seed), lambda line: None)
    steps = recipe.epochs * recipe.steps_per_epoch()
    model = recipe.model()
    other = peer(model)
    optimizer = recipe.optimizer(model, steps)
    theirs = torch.optim.AdamW(other.parameters(), lr=recipe.lr, weight_decay=0.01)
    for epoch in range(recipe.epochs):
        recipe.passes = epoch
        for x, y in recipe.batches():
            theirs.param_groups[0]["lr"] = optimizer.current_lr
            optimizer.minimize(recipe.loss(model, (x, y)))
            theirs.zero_grad()
            labels = torch.tensor(y.numpy().astype(np.int64))
            tnn.functional.cross_entropy(other(torch.tensor(x.numpy())), labels).backward()
            theirs.step()
    ours = recipe.evaluate(model.eval(), Stop().check, True)["accuracy"]
    other.eval()
    images = recipe.plain(recipe.test.images, np.arange(len(recipe.test))).transpose(0, 3, 1, 2)
    with torch.no_grad():
        found = other(torch.tensor(np.ascontiguousarray(images))).argmax(1).numpy()
    return ours, float((found == recipe.test.labels).mean())


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    both = [accuracies(sys.argv[1], seed) for seed in range(count)]
    for seed, (ours, theirs) in enumerate(both):
        print(f"seed {seed}: Needle {ours:.2%}, PyTorch {theirs:.2%}")
    mean = np.mean(both, axis=0)
    points = 100 * (mean[0] - mean[1])
    print(f"mean: Needle {mean[0]:.2%}, PyTorch {mean[1]:.2%}, {points:+.2f} points")

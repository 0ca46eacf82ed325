"""resnet9-cifar10: the course's ResNet-9 on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from needle import nn, ops, optim
from needle.data import (
    Augment,
    NDArrayDataset,
    Normalise,
    RandomCrops,
    RandomFlips,
    cifar10,
)
from needle.models.resnet9 import ResNet9
from needle.recipes.recipe import ImageRecipe, Shuffled
from needle.tensors import Tensor
from needle.tools import pictures, plot
from needle.tools.run import RunFolder

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
"""Mean and deviation of the bytes of the training images, by colour."""
ROWS = 500
"""Number of images that an evaluation computes together."""
SHOWN = 40
"""Number of wrong predictions in the picture."""


class CifarRecipe(ImageRecipe):
    """Train on randomly shifted and mirrored training images; evaluate on the test images."""

    name = "resnet9-cifar10"
    summary = "the course's ResNet-9 on CIFAR-10, with pictures of its mistakes"
    mode = "max"
    batch_size = 128
    lr = 3e-3
    epochs = 20

    def load(self, report: Callable[[str], None]) -> None:
        self.train = cifar10(self.settings.data, train=True, report=report)
        self.test = cifar10(self.settings.data, train=False, report=report)
        seed, normalise = self.settings.seed, Normalise(MEAN, STD)
        self.augment = Augment(RandomCrops(4), RandomFlips(), normalise, seed=seed)
        self.plain = Augment(normalise)
        self.predicted = np.zeros(0, np.int64)

    def model(self) -> nn.Module:
        return ResNet9()

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        warmup = max(1, steps // 10)
        schedule = optim.Warmup(warmup, optim.Cosine(self.lr, max(1, steps - warmup)))
        return optim.AdamW(model.parameters(), lr=schedule, weight_decay=0.01)

    def batches(self) -> Any:
        dataset = NDArrayDataset(self.train.images, self.train.labels)
        return self.loader(
            dataset, batch_size=self.batch_size, sampler=Shuffled(len(dataset)),
            transform=self.augment,
        )  # fmt: skip

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        loss: Tensor = self.loss_function(model(ops.permute(x, (0, 3, 1, 2))), y)
        return loss

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        total, predicted = 0.0, []
        for start in range(0, len(self.test), ROWS):
            check()
            images = self.test.images[start : start + ROWS]
            labels = Tensor(self.test.labels[start : start + ROWS], requires_grad=False)
            logits = model(_images(self.plain(images, np.arange(len(images)))))
            total += self.loss_function(logits, labels).item() * len(images)
            predicted.append(logits.numpy().argmax(1))
        self.predicted = np.concatenate(predicted)
        accuracy = float((self.predicted == self.test.labels).mean())
        return {"accuracy": accuracy, "loss": total / len(self.test)}

    def draw(self, model: nn.Module, folder: RunFolder, step: int, final: bool) -> None:
        if not plot.available():
            return
        held_out = [line for line in folder.metrics() if line["split"] == "held-out"]
        epochs, accuracies = ([line[k] for line in held_out] for k in ("epoch", "accuracy"))
        labels = ("epoch", "accuracy on the test images")
        pictures.draw_shares(folder.path / "accuracy.png", epochs, accuracies, labels)
        if not final:
            return
        names, true = self.test.classes, self.test.labels
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (true, self.predicted), 1)
        title = f"accuracy {accuracies[-1]:.2%} on {len(true):,} test images"
        pictures.draw_confusion(folder.path / "confusion.png", counts, names, title)
        wrong = np.flatnonzero(self.predicted != true)[:SHOWN]
        titles = [f"{names[true[i]]}\nseen as {names[self.predicted[i]]}" for i in wrong]
        pictures.draw_predictions(
            folder.path / "wrong.png", self.test.images[wrong], titles, 8,
            f"the first {len(wrong)} wrong predictions",
        )  # fmt: skip

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        accuracy = figures["accuracy"]
        trained = f"{len(self.train):,} training images"
        return [f"accuracy on {len(self.test):,} test images: {accuracy:.2%} ({trained})"]


def _images(values: np.ndarray[Any, Any]) -> Tensor:
    """Return images [n, h, w, c] as a tensor [n, c, h, w], without moving data."""
    tensor = Tensor(np.ascontiguousarray(values, np.float32), requires_grad=False)
    return ops.permute(tensor, (0, 3, 1, 2))


RECIPE = CifarRecipe

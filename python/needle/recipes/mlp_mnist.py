"""mlp-mnist: the course's MLP-ResNet on MNIST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle import nn, optim
from needle.data import DataLoader, mnist
from needle.errors import DataError
from needle.models.mlp_resnet import MLPResNet
from needle.recipes.recipe import ImageRecipe, Shuffled

TARGET = 0.98


class MnistRecipe(ImageRecipe):
    """Train on the 60,000 training images; evaluate on the 10,000 test images."""

    name = "mlp-mnist"
    summary = "an MLP with residual blocks on MNIST; 98.0 % test accuracy within 10 epochs"
    mode = "max"
    batch_size = 100
    lr = 1e-3
    epochs = 10
    hidden = 256

    def load(self, report: Callable[[str], None]) -> None:
        self.train = mnist(self.settings.data, train=True, report=report)
        self.test = mnist(self.settings.data, train=False, report=report)
        if not len(self.test):
            raise DataError("mlp-mnist: the test files contain no images")

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), MLPResNet(28 * 28, self.hidden))

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        schedule = optim.Cosine(self.lr, steps)
        return optim.AdamW(model.parameters(), lr=schedule, weight_decay=0.01)

    def batches(self) -> Any:
        order = Shuffled(len(self.train))
        return self.loader(self.train, batch_size=self.batch_size, sampler=order)

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        right, total = 0, 0.0
        for x, y in DataLoader(self.test, 500):
            check()
            logits = model(x)
            right += int((logits.numpy().argmax(axis=1) == y.numpy()).sum())
            total += self.loss_function(logits, y).item() * len(y)
        return {"accuracy": right / len(self.test), "loss": total / len(self.test)}

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        accuracy = figures["accuracy"]
        verdict = "reached" if accuracy >= TARGET else "NOT reached"
        return [
            f"accuracy on {len(self.test):,} test images: {accuracy:.2%}",
            f"  the target, {TARGET:.1%}: {verdict}",
        ]


RECIPE = MnistRecipe

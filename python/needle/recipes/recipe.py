"""What a recipe declares. ``loop.train`` does the rest, the same for all recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from needle import nn, optim
from needle.errors import OptionError
from needle.tensor import Tensor

if TYPE_CHECKING:
    from needle.tools.run import RunFolder

MOST = 2**31 - 1
"""Items of a batch, and steps or epochs of a run."""


@dataclass(frozen=True)
class Settings:
    """What the user may choose; None means the recipe's own value.

    Attributes:
        data: folder of the data.
        epochs: passes over the training data.
        steps: updates, instead of ``epochs``.
        batch_size: items per update.
        lr: highest learning rate.
        seed: of the initial weights, the order of the data and dropout.

    Raises:
        OptionError: for a value of another kind, or out of range.
    """

    data: str | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check("data", self.data, self.data is None or isinstance(self.data, str), "a path")
        for name in ("epochs", "steps", "batch_size", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            most = math.inf if name == "seed" else MOST
            right = type(value) is int and least <= value <= most
            limit = f" and at most {most}" if most < math.inf else ""
            _check(
                name, value, right or (value is None and least == 1),
                f"an integer, at least {least}{limit}",
            )  # fmt: skip
        rate = self.lr if isinstance(self.lr, (int, float)) else math.nan
        _check("lr", self.lr, self.lr is None or 0 < rate < math.inf, "a positive number")


def _check(name: str, value: Any, right: bool, rule: str) -> None:
    if not right:
        option = "--" + name.replace("_", "-")
        raise OptionError(f"{option}: got {value!r:.60}\n  rule: {rule}")


class Recipe:
    """Base of all recipes. A new one declares the attributes below and defines the methods.

    Attributes:
        name: what ``needle train`` calls it.
        summary: one line for ``needle train --list``.
        item: what one row of a batch is, in the plural: "bytes", "images".
        curve: the figure that the picture shows, and what its axis is called.
        batch_size, lr, steps, epochs: used where ``settings`` leaves them open; one of the last
            two is None.
        settings: what the user chose.
        loss_function: the loss of logits and labels.
        passes: passes over the training data that are behind; the loop counts.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    item: ClassVar[str]
    curve: ClassVar[str] = "loss"
    curve_unit: ClassVar[str] = "loss (nats)"
    batch_size: int
    lr: float
    steps: int | None = None
    epochs: int | None = None
    loss_function: nn.Module = nn.SoftmaxLoss()
    passes: int = 0

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        """Take over the settings and load the data; ``report`` is told of lengthy things."""
        self.settings = settings
        self.batch_size = settings.batch_size or self.batch_size
        self.lr = settings.lr or self.lr
        if settings.steps or settings.epochs:
            self.steps, self.epochs = settings.steps, settings.epochs
        self.load(report)

    def load(self, report: Callable[[str], None]) -> None:
        """Load the data. Raises DataError if they are missing or not what they should be."""
        raise NotImplementedError

    def describe_data(self) -> dict[str, Any]:
        """Return what config.json shall say about the data."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """Return the model with its initial weights."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        """Return the optimizer of a run of so many steps, with its schedule."""
        raise NotImplementedError

    def steps_per_epoch(self) -> int:
        """Return the number of batches in a pass over the training data."""
        raise NotImplementedError

    def batches(self) -> Iterator[Any]:
        """Yield the batches of a pass over the training data."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch: unless a recipe says otherwise, of logits and labels."""
        x, y = batch
        loss: Tensor = self.loss_function(model(x), y)
        return loss

    def shown(self, loss: float) -> dict[str, float]:
        """Return what is shown and recorded of a training loss, beside itself."""
        return {}

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        """Return the figures on held-out data; the first one is the recipe's target.

        Args:
            model: in evaluation mode; nothing is recorded.
            check: to be called now and then; raises if the run shall stop.
            final: whether this is the last evaluation; others may use a part of the data.
        """
        raise NotImplementedError

    def evaluate_every(self, steps: int) -> int:
        """Return after how many steps the model is evaluated."""
        return max(1, steps // 10)

    def draw(self, model: nn.Module, folder: RunFolder, step: int, final: bool) -> None:
        """Draw pictures into the run's folder after an evaluation; the model is as it was there."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must have beside model, optimizer and random numbers.

        Tensors or numbers by name. Random numbers of ``needle.ops.random`` need no mention.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Return to a state."""

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        """Return the lines to print at the end, from the figures of the final evaluation."""
        raise NotImplementedError

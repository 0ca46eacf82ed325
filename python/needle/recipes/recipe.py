"""Base class of recipes. ``loop.train`` does everything that is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import nn, optim
from needle.data import DataLoader, Dataset
from needle.errors import OptionError, unknown
from needle.ops import random
from needle.recipes.settings import Settings, apply
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.tools.run import RunFolder


class Shuffled:
    """The order of a pass, drawn from Needle's generator when the pass begins."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(random.host_permutation(self.size).tolist())


class Groups:
    """The indices of each batch, as a function of the pass alone.

    Args:
        count: number of batches in a pass.
        make: takes the number of a pass and yields the indices of its batches.
    """

    def __init__(self, count: int, make: Callable[[int], Iterator[Any]]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return self.make(0)

    def batches(self, seed: int, epoch: int) -> Iterator[Any]:
        """Yield the indices of the batches of a pass."""
        return self.make(epoch)


class Items(Dataset):
    """A data set in memory whose ``batch`` computes pairs for the indices of a batch."""

    def __getitem__(self, index: Any) -> Any:
        x, y = self.batch(np.array([index]))
        return x[0], y[0]

    def in_memory(self) -> bool:
        return True

    def batch(self, indices: Any) -> Any:
        """Return the first and the second parts of the items at these indices."""
        raise NotImplementedError


class Recipe:
    """Base of all recipes. A new one declares the attributes below and defines the methods.

    Attributes:
        name: name for ``needle train``.
        summary: one line for ``needle train --list``.
        item: plural name of the items in a batch: "bytes", "images".
        curve: the metric that the picture shows, and the label of its axis.
        mode: whether the target is better when it is smaller, "min", or larger, "max".
        presets: values of other attributes, by the name of the preset. The class itself has the
            values of the first one.
        batch_size, lr: defaults for ``settings``.
        steps, epochs, seconds: length of a run, unless ``settings`` gives it; exactly one is not
            None. With ``seconds`` the loop measures at the start how many steps fit in.
        clip: largest norm of the gradient, or None.
        compiled: whether to compile ``loss``; False if it does more than compute with tensors,
            such as counting its calls. Tensors that it keeps from batch to batch are buffers of
            a module, or are assigned in place (see ``needle.compile``).
        settings: settings of the user.
        loss_function: the loss of logits and labels.
        passes: number of completed passes over the training data, counted by the loop.
        num_workers, workers: of the loaders; the batches are the same with any.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    item: ClassVar[str]
    curve: ClassVar[str] = "loss"
    curve_unit: ClassVar[str] = "loss (nats)"
    mode: ClassVar[str] = "min"
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    batch_size: int
    lr: float
    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    clip: float | None = None
    loss_function: nn.Module = nn.SoftmaxLoss()
    passes: int = 0
    num_workers: int = 0
    workers: str | None = None
    compiled: bool = True

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        """Store the settings and load the data; ``report`` is called before long operations."""
        self.settings = settings
        if settings.preset is not None:
            if not self.presets:
                raise OptionError(f"--preset: {self.name} has no presets")
            if settings.preset not in self.presets:
                raise unknown(f"{self.name}: preset", settings.preset, self.presets)
            for name, value in self.presets[settings.preset].items():
                setattr(self, name, value)
        apply(self, settings.own)
        self.batch_size = settings.batch_size or self.batch_size
        self.lr = settings.lr or self.lr
        if settings.steps or settings.epochs:
            self.steps, self.epochs, self.seconds = settings.steps, settings.epochs, None
        self.load(report)

    def load(self, report: Callable[[str], None]) -> None:
        """Load the data. Raises DataError if it is missing or invalid."""
        raise NotImplementedError

    def describe_data(self) -> dict[str, Any]:
        """Return the description of the data for config.json."""
        raise NotImplementedError

    def architecture(self) -> dict[str, Any]:
        """Return the description of the model for config.json, enough to build it again."""
        return {}

    def keep(self, folder: RunFolder) -> None:
        """Write other files that the weights need into the run's folder."""

    def model(self) -> nn.Module:
        """Return the model with its initial weights."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        """Return the optimizer, with its schedule, for a run of a number of steps."""
        raise NotImplementedError

    def steps_per_epoch(self) -> int:
        """Return the number of batches in a pass over the training data."""
        raise NotImplementedError

    def items_per_step(self) -> int:
        """Return the number of items in a batch."""
        return self.batch_size

    def batches(self) -> Any:
        """Return a loader of the training data: each iteration is a pass."""
        raise NotImplementedError

    def loader(self, dataset: Any, **settings: Any) -> DataLoader:
        """Return a loader with the recipe's seed and workers."""
        return DataLoader(
            dataset, seed=self.settings.seed, num_workers=self.num_workers, workers=self.workers,
            **settings,
        )  # fmt: skip

    def begin_pass(self) -> None:
        """Prepare for the first batch of a pass, whose number is ``passes``."""

    def prepared(self, batch: Any) -> Any:
        """Return what ``loss`` gets for a batch: with what is drawn on the host, for example."""
        return batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch; by default, the loss function of logits and labels."""
        x, y = batch
        loss: Tensor = self.loss_function(model(x), y)
        return loss

    def shown(self, loss: float) -> dict[str, float]:
        """Return the metrics to show and record together with a training loss."""
        return {}

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        """Return the figures on held-out data; the first one is the recipe's target.

        Args:
            model: the model, in evaluation mode and without recording.
            check: function to call regularly; it raises if the run is asked to stop.
            final: whether this is the last evaluation; others may use a part of the data.
        """
        raise NotImplementedError

    def evaluate_every(self, steps: int) -> int:
        """Return the number of steps between evaluations."""
        return max(1, steps // 10)

    def finished(self) -> bool:
        """Return whether to end the run early; the loop asks after each evaluation."""
        return False

    def draw(self, model: nn.Module, folder: RunFolder, step: int, final: bool) -> None:
        """Draw pictures into the run's folder after an evaluation of the same model."""

    def state(self) -> dict[str, Any]:
        """Return the recipe's own part of a checkpoint: tensors or numbers by name.

        Model, optimizer and the state of ``needle.ops.random`` are saved anyway.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        """Return the lines to print at the end, from the figures of the final evaluation."""
        raise NotImplementedError


class ImageRecipe(Recipe):
    """Base of the recipes that learn images ``train``; ``test`` judges them after each pass."""

    item = "images"
    train: Any
    test: Any

    def describe_data(self) -> dict[str, Any]:
        return {"training_images": len(self.train), "test_images": len(self.test)}

    def steps_per_epoch(self) -> int:
        return -(-len(self.train) // self.batch_size)

    def evaluate_every(self, steps: int) -> int:
        return self.steps_per_epoch()

"""byte-mlp: an MLP-ResNet that predicts the next byte of the standard library's source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle import nn
from needle.models.byte_mlp import features
from needle.recipes.language import constant
from needle.recipes.recipe import Groups, Items
from needle.recipes.standard_library import StandardLibrary
from needle.tensors import Tensor

Bytes = np.ndarray[Any, Any]
QUICK = 32_768
"""Number of held-out bytes for an evaluation during training, spread over all of them."""
ROWS = 2048
"""Number of bytes that an evaluation predicts at once."""


class ByteWindows(Items):
    """The bytes of a text, each with the features of those before it.

    Args:
        text: begins with ``context`` bytes that are not predicted.
        context: number of bytes before each one.
    """

    def __init__(self, text: Bytes, context: int) -> None:
        super().__init__()
        self.text, self.context = text, context

    def __len__(self) -> int:
        return len(self.text) - self.context

    def batch(self, indices: Bytes) -> Any:
        windows = np.lib.stride_tricks.sliding_window_view(self.text, self.context + 1)[indices]
        return features(windows[:, :-1]), windows[:, -1]


class ByteRecipe(StandardLibrary):
    """Train on bytes at random positions of the training modules; evaluate on held-out modules."""

    name = "byte-mlp"
    summary = "a byte-level language model of Python's standard library; below zlib's bits per byte"
    batch_size = 512
    lr = 6e-3
    steps = 6000
    context = 16

    def load(self, report: Callable[[str], None]) -> None:
        super().load(report)
        start = np.full(self.context, ord("\n"), np.uint8)
        self.training_text = np.concatenate([start, self.source.values])
        self.held_out_text = np.concatenate([start, self.held_out.values])

    def architecture(self) -> dict[str, Any]:
        return {"model": "ByteMLP", "context": self.context}

    def steps_per_epoch(self) -> int:
        return -(-self.source.values.size // self.batch_size)

    def batches(self) -> Any:
        dataset = ByteWindows(self.training_text, self.context)
        return self.loader(dataset, batch_sampler=Groups(self.steps_per_epoch(), self._places))

    def _places(self, epoch: int) -> Iterator[Any]:
        """Yield the positions of the bytes of each batch of a pass."""
        random = np.random.default_rng([self.settings.seed, epoch] if epoch else self.settings.seed)
        for _ in range(self.steps_per_epoch()):
            yield random.integers(0, self.source.values.size, self.batch_size)

    def _windows(self, text: Bytes, places: Bytes) -> tuple[Tensor, Tensor]:
        """Return the features of the bytes before each position, and the bytes at the positions."""
        x, y = ByteWindows(text, self.context).batch(places)
        return constant(x), constant(y)

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        size = self.held_out.values.size
        places = np.arange(size)
        if not final and size > QUICK:
            places = np.linspace(0, size - 1, QUICK).astype(np.int64)
        total = 0.0
        for i in range(0, len(places), ROWS):
            check()
            x, y = self._windows(self.held_out_text, places[i : i + ROWS])
            logits = model(x).astype("float64")  # whatever the order of sums
            total += self.loss_function(logits, y).item() * len(y)
        return self.figures(total / len(places), final)


RECIPE = ByteRecipe

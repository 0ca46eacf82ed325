"""byte-mlp: an MLP-ResNet that predicts the next byte of the standard library's source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle import nn, optim
from needle.models.byte_mlp import features
from needle.recipes.language import constant
from needle.recipes.standard_library import StandardLibrary
from needle.tensors import Tensor

Bytes = np.ndarray[Any, Any]
QUICK = 32_768
"""Number of held-out bytes for an evaluation during training, spread over all of them."""
ROWS = 2048
"""Number of bytes that an evaluation predicts at once."""


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

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        rate = self.warm_cosine(steps)
        return optim.AdamW(model.parameters(), lr=rate, beta2=0.98, weight_decay=0.01)

    def steps_per_epoch(self) -> int:
        return -(-self.source.values.size // self.batch_size)

    def batches(self) -> Iterator[Any]:
        key = [self.settings.seed, self.passes] if self.passes else self.settings.seed
        random = np.random.default_rng(key)
        for _ in range(self.steps_per_epoch()):
            places = random.integers(0, self.source.values.size, self.batch_size)
            yield self._windows(self.training_text, places)

    def _windows(self, text: Bytes, places: Bytes) -> tuple[Tensor, Tensor]:
        """Return the features of the bytes before each position, and the bytes at the positions."""
        windows = np.lib.stride_tricks.sliding_window_view(text, self.context + 1)[places]
        return constant(features(windows[:, :-1])), constant(windows[:, -1])

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

"""byte-mlp: an MLP-ResNet that predicts the next byte of the standard library's source."""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle import nn, optim
from needle.data import python_source
from needle.models.byte_mlp import ByteMLP, features
from needle.recipes.recipe import Recipe
from needle.tensor import Tensor

Bytes = np.ndarray[Any, Any]
QUICK = 32_768
"""Number of held-out bytes for an evaluation during training, spread over all of them."""
ROWS = 2048
"""Number of bytes that an evaluation predicts at once."""


class ByteRecipe(Recipe):
    """Train on bytes at random positions of the training modules; evaluate on held-out modules."""

    name = "byte-mlp"
    summary = "a byte-level language model of Python's standard library; below zlib's bits per byte"
    item = "bytes"
    curve = "bits_per_byte"
    curve_unit = "bits per byte"
    batch_size = 512
    lr = 6e-3
    steps = 6000
    context = 16
    warmup = 100

    def load(self, report: Callable[[str], None]) -> None:
        self.source = python_source(self.settings.data, train=True)
        self.held_out = python_source(self.settings.data, train=False)
        start = np.full(self.context, ord("\n"), np.uint8)
        self.training_text = np.concatenate([start, self.source.values])
        self.held_out_text = np.concatenate([start, self.held_out.values])

    def describe_data(self) -> dict[str, Any]:
        return {
            "training_bytes": self.source.values.size,
            "training_modules": len(self.source.modules),
            "held_out_bytes": self.held_out.values.size,
            "held_out_modules": self.held_out.modules,
        }

    def model(self) -> nn.Module:
        return ByteMLP(self.context)

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        warmup = min(self.warmup, max(1, steps // 10))
        schedule = optim.Warmup(warmup, optim.Cosine(self.lr, max(1, steps - warmup)))
        return optim.AdamW(model.parameters(), lr=schedule, beta2=0.98, weight_decay=0.01)

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
        return _tensor(features(windows[:, :-1])), _tensor(windows[:, -1])

    def shown(self, loss: float) -> dict[str, float]:
        return {"bits_per_byte": loss / math.log(2)}

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
        figures = {"bits_per_byte": total / len(places) / math.log(2)}
        return {**figures, **self._compressors()} if final else figures

    def _compressors(self) -> dict[str, float]:
        """Return the bits per byte that compressors need for the held-out bytes."""
        text = self.held_out.values.tobytes()
        packed = {
            "zlib": zlib.compress(text, 9),
            "bz2": bz2.compress(text, 9),
            "lzma": lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
        }
        return {name: 8 * len(small) / len(text) for name, small in packed.items()}

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        ours, zlibs = figures["bits_per_byte"], figures["zlib"]
        modules, size = len(self.held_out.modules), self.held_out.values.size
        rest = "   ".join(f"{name} {figures[name]:.3f}" for name in ("zlib", "bz2", "lzma"))
        lines = [
            f"bits per byte on {modules} held-out modules ({size:,} bytes):",
            f"  {self.name} {ours:.3f}   {rest}",
            f"  the target, below zlib: {'reached' if ours < zlibs else 'NOT reached'}, "
            f"{ours / zlibs - 1:+.1%}",
            "a sample of its output:",
        ]
        return lines + ["  | " + line for line in self._sample(model).splitlines()]

    def _sample(self, model: nn.Module, size: int = 400, temperature: float = 0.6) -> str:
        """Return text that the model writes after the start of a class."""
        written = np.frombuffer(b"\n" * self.context + b"class ", np.uint8).tolist()
        random = np.random.default_rng(self.settings.seed)
        model.eval()
        for _ in range(size):
            window = np.array([written[-self.context :]], np.uint8)
            logits = model(_tensor(features(window))).numpy()[0].astype(np.float64) / temperature
            p = np.exp(logits - logits.max())
            written.append(int(random.choice(256, p=p / p.sum())))
        text = bytes(written[self.context :]).decode("utf-8", "replace")
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _tensor(values: Bytes) -> Tensor:
    return Tensor(np.ascontiguousarray(values), requires_grad=False)


RECIPE = ByteRecipe

"""What recipes that learn the source of Python's standard library share."""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable
from typing import Any

from needle import nn, optim
from needle.data import ByteTokenizer, python_source
from needle.recipes.language import LanguageRecipe


class StandardLibrary(LanguageRecipe):
    """Base of the recipes that learn some modules as bytes, and are judged by other modules."""

    item = "bytes"
    curve = "bits_per_byte"
    curve_unit = "bits per byte"

    def load(self, report: Callable[[str], None]) -> None:
        self.source = python_source(self.settings.data, train=True)
        self.held_out = python_source(self.settings.data, train=False)
        self.tokenizer = ByteTokenizer()

    def describe_data(self) -> dict[str, Any]:
        return {
            "training_bytes": self.source.values.size,
            "training_modules": len(self.source.modules),
            "held_out_bytes": self.held_out.values.size,
            "held_out_modules": self.held_out.modules,
        }

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        rate = self.warm_cosine(steps)
        return optim.AdamW(model.parameters(), lr=rate, beta2=0.98, weight_decay=0.01)

    def shown(self, loss: float) -> dict[str, float]:
        return {"bits_per_byte": loss / math.log(2)}

    def figures(self, loss: float, final: bool) -> dict[str, float]:
        """Return the bits per byte of a mean loss on held-out bytes; finally the compressors'."""
        return {**self.shown(loss), **(self._compressors() if final else {})}

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
        return [
            f"bits per byte on {modules} held-out modules ({size:,} bytes):",
            f"  {self.name} {ours:.3f}   {rest}",
            f"  the target, below zlib: {'reached' if ours < zlibs else 'NOT reached'}, "
            f"{ours / zlibs - 1:+.1%}",
            *self.sample(model, self.tokenizer.encode("class "), 400, 0.6),
        ]

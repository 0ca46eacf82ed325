"""gpt: a decoder-only Transformer on any text file, byte by byte or word by word."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle import nn, optim
from needle.data import TextFile
from needle.errors import DataError, OptionError
from needle.recipes.language import NO_TARGET, LanguageRecipe, constant, perplexity
from needle.recipes.recipe import Groups, Items
from needle.tensors import Tensor

Ids = np.ndarray[Any, Any]
QUICK = 64
"""Windows of the held-out part that an evaluation during training looks at."""
ROWS = 16
"""Windows that an evaluation reads at once."""


def pairs(ids: Ids, places: Ids) -> tuple[Ids, Ids]:
    """Return the tokens at places, and those behind them, int64."""
    return ids[places].astype(np.int64), ids[places + 1].astype(np.int64)


class Windows(Items):
    """The windows of a text, by where they begin.

    Args:
        ids: tokens.
        length: number of tokens of a window.
    """

    def __init__(self, ids: Ids, length: int) -> None:
        super().__init__()
        self.ids, self.length = ids, length

    def __len__(self) -> int:
        return len(self.ids) - self.length

    def batch(self, indices: Ids) -> Any:
        return pairs(self.ids, indices[:, None] + np.arange(self.length))


class GPTRecipe(LanguageRecipe):
    """Learn the windows of a file's first nine tenths, in a random order; judge by the rest.

    A pass moves the windows by a random number of tokens, and reads each of them once. Held-out
    windows follow one another, and every token counts but the first one of the part.

    Attributes:
        level: "bytes" or "words".
        context, width, layers, heads, dropout: of ``models.GPT``.
    """

    name = "gpt"
    summary = "a GPT on a text of your own (--data FILE), byte by byte or word by word"
    item = "tokens"
    curve_unit = "loss (nats per token)"
    presets = {"bytes": {}, "words": {"level": "words", "dropout": 0.2}}
    level = "bytes"
    batch_size = 16
    lr = 2e-3
    steps = 3000
    clip = 1.0
    context = 128
    width = 192
    layers = 4
    heads = 6
    dropout = 0.0

    def load(self, report: Callable[[str], None]) -> None:
        """Read the file. Raises OptionError without --data, DataError for a file too short."""
        if self.settings.data is None:
            raise OptionError("gpt: expected --data FILE, a text to learn")
        self.text = TextFile(self.settings.data, self.level)
        self.tokenizer = self.text.tokenizer
        sizes = len(self.text.train), len(self.text.held_out)
        if sizes[0] <= self.context or sizes[1] < 2:
            raise DataError(
                f"{self.text.path}: {sizes[0]} tokens to learn and {sizes[1]} held out\n"
                f"  rule: more than {self.context} to learn, and 2 or more held out"
            )

    def describe_data(self) -> dict[str, Any]:
        text = self.text
        return {
            "level": self.level, "vocabulary": len(self.tokenizer),
            "training_tokens": len(text.train), "held_out_tokens": len(text.held_out),
            "held_out_bytes": text.held_out_bytes,
        }  # fmt: skip

    def architecture(self) -> dict[str, Any]:
        return {
            "model": "GPT", "vocabulary": len(self.tokenizer), "context": self.context,
            "width": self.width, "layers": self.layers, "heads": self.heads,
            "dropout": self.dropout,
        }  # fmt: skip

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        rate = self.warm_cosine(steps)
        return optim.AdamW(model.parameters(), lr=rate, beta2=0.95, weight_decay=0.1)

    def windows(self) -> int:
        """Return the number of windows in a pass."""
        return max(1, (len(self.text.train) - 1) // self.context - 1)

    def steps_per_epoch(self) -> int:
        return -(-self.windows() // self.batch_size)

    def items_per_step(self) -> int:
        return self.batch_size * self.context

    def batches(self) -> Any:
        dataset = Windows(self.text.train, self.context)
        return self.loader(dataset, batch_sampler=Groups(self.steps_per_epoch(), self._firsts))

    def _firsts(self, epoch: int) -> Iterator[Any]:
        """Yield where the windows of each batch of a pass begin."""
        random = np.random.default_rng([self.settings.seed, epoch])
        spare = len(self.text.train) - 1 - self.windows() * self.context
        firsts = random.integers(spare + 1) + self.context * random.permutation(self.windows())
        for start in range(0, len(firsts), self.batch_size):
            yield firsts[start : start + self.batch_size]

    def _pairs(self, ids: Ids, places: Ids) -> tuple[Tensor, Tensor]:
        """Return the tokens at places, and those behind them."""
        x, y = pairs(ids, places)
        return constant(x), constant(y)

    def loss(self, model: Any, batch: Any) -> Tensor:
        loss: Tensor = model.loss(*batch)
        return loss

    def evaluate(self, model: Any, check: Callable[[], None], final: bool) -> dict[str, float]:
        ids = self.text.held_out
        last = len(ids) - 2  # the last token that has one behind it
        firsts = np.arange(0, last + 1, self.context)
        total, count = 0.0, 0
        for start in range(0, len(firsts) if final else min(QUICK, len(firsts)), ROWS):
            check()
            places = firsts[start : start + ROWS, None] + np.arange(self.context)
            inside = places <= last
            x, y = self._pairs(ids, np.minimum(places, last))
            labels = np.where(inside, y.numpy(), NO_TARGET)
            counted = int(inside.sum())
            total += float(model.loss(x, constant(labels)).item()) * counted
            count += counted
        return self._figures(total / count)

    def _figures(self, loss: float) -> dict[str, float]:
        if self.level == "bytes":
            return {"bits_per_byte": loss / math.log(2), "loss": loss}
        return {"perplexity": perplexity(loss), "loss": loss}

    def shown(self, loss: float) -> dict[str, float]:
        return dict(list(self._figures(loss).items())[:1])

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        name, value = next(iter(figures.items()))
        tokens = f"{len(self.text.held_out):,} held-out tokens"
        prompt = self.text.held_out[: self.context // 4]
        return [
            f"{name.replace('_', ' ')} of {tokens}: {value:.3f}",
            *self.sample(model, prompt, 2 * self.context, 0.8),
        ]


RECIPE = GPTRecipe

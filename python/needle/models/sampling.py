"""How a language model's next token is drawn from its logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from needle import autograd
from needle.backend.numpy import philox
from needle.errors import OptionError

Array = np.ndarray[Any, Any]
Reader = Callable[[Array], Array]
"""Reads the next ids of a text, [n] with n >= 1, and returns the logits of the id behind them."""


class Sampler:
    """Draws a token for each row of logits, on the host.

    Args:
        temperature: divides the logits; 0 takes the likeliest token, of equal ones the first.
        top_k: draw among the k likeliest tokens only; all for None.
        top_p: draw among the fewest likeliest tokens whose probabilities reach p together.
        seed: of the numbers. Row i of call n uses a number of its own, whatever else is drawn.

    Raises:
        OptionError: for numbers out of range.

    Source: top-p is from Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020,
    arXiv:1904.09751

    >>> from needle.models.sampling import Sampler
    >>> Sampler(temperature=0.0)(np.array([[0.1, 2.0, 0.3]]))
    array([1])
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> None:
        _check("temperature", temperature, 0 <= temperature < math.inf, "a number from 0 on")
        _check("top_k", top_k, top_k is None or top_k >= 1, "a positive integer")
        _check("top_p", top_p, top_p is None or 0 < top_p <= 1, "a number above 0, up to 1")
        _check("seed", seed, 0 <= seed < 2**64, "an integer from 0 to 2**64 - 1")
        self.temperature, self.top_k, self.top_p, self.seed = temperature, top_k, top_p, seed
        self.calls = 0

    def __call__(self, logits: Array) -> Array:
        """Return a token for each row.

        Shapes:   logits [n, vocabulary] -> int64 [n]
        """
        call = self.calls
        self.calls += 1
        if self.temperature == 0:
            return logits.argmax(axis=-1)
        counters = (np.arange(len(logits), dtype=np.uint64) << np.uint64(32)) + np.uint64(call)
        words = philox(self.seed, counters)[:, 0].astype(np.float64)
        return np.array([self._draw(*row) for row in zip(logits, words / 2.0**32, strict=True)])

    def _draw(self, logits: Array, number: float) -> int:
        """Return the token whose stretch of [0, 1) holds a number, the likeliest first."""
        scaled = logits.astype(np.float64) / self.temperature
        kept = min(self.top_k or scaled.size, scaled.size)
        order = np.argsort(-scaled, kind="stable")[:kept]
        weights = np.exp(scaled[order] - scaled[order[0]])
        sums = np.cumsum(weights / weights.sum())
        if self.top_p is not None:
            kept = int(np.searchsorted(sums, self.top_p)) + 1
            sums, order = sums[:kept], order[:kept]
        place = int(np.searchsorted(sums, number * sums[-1], side="right"))
        return int(order[min(place, len(order) - 1)])


def continuation(
    model: Any, prompt: Sequence[int] | Array, count: int, sampler: Sampler
) -> Iterator[int]:
    """Continue a text of any length, and yield each id as it is drawn.

    Args:
        model: a module whose ``reader()`` returns a ``Reader``.
        prompt: ids, at least one.
        count: ids to add.
        sampler: draws them.
    """
    training = model.training
    model.eval()
    try:
        read, ids = model.reader(), np.asarray(prompt)
        for _ in range(count):
            with autograd.no_grad():
                logits = read(ids)
            ids = sampler(logits[None])
            yield int(ids[0])
    finally:
        model.train(training)


def _check(name: str, value: object, right: bool, rule: str) -> None:
    if not right:
        raise OptionError(f"{name}: expected {rule}, got {value!r}")

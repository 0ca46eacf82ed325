"""Sorting a million numbers, and the largest hundred of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from harness import Case, Options, both, compiled, main, op


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    n, k = (64, 5) if options.quick else (1 << 20, 100)
    x, t = both(np.random.default_rng(0).standard_normal(n, np.float32))
    sort, argsort, topk = op("sort"), op("argsort"), op("topk")
    more = {"target": 1.0, "goals": "ops", "group": "sort"}
    if sort is not None:
        yield Case(
            "sort 1 Mi", lambda: sort(x), lambda: torch.sort(t)[0],
            compiled(lambda t: torch.sort(t)[0], t), **more,
        )  # fmt: skip
    if argsort is not None:
        # equal numbers may come in any order; PyTorch's stable order is ours
        yield Case(
            "argsort 1 Mi", lambda: argsort(x), lambda: torch.argsort(t, stable=True),
            compiled(lambda t: torch.argsort(t, stable=True), t), **more,
        )  # fmt: skip
    if topk is not None:
        yield Case(
            "topk 100 of 1 Mi", lambda: topk(x, k)[0], lambda: torch.topk(t, k)[0],
            compiled(lambda t: torch.topk(t, k)[0], t), **more,
        )  # fmt: skip


if __name__ == "__main__":
    main("sort", cases, seconds=2.0)

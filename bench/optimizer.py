"""Fused optimizer updates: 16 Mi parameters in one tensor, in 16, and in many small ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from harness import Case, Options, both, compiled, main

import needle as ndl


def adam_case(name: str, count: int, size: int, target: float | None) -> Case:
    """Return the row of Adam on ``count`` tensors of ``size`` parameters."""
    random = np.random.default_rng(0)
    values = random.standard_normal(size, np.float32)
    pairs = [both(values, grad=True, apart=True) for _ in range(count)]
    grads = both(values * 0.1)
    for p, q in pairs:
        p.grad, q.grad = grads
    ours = ndl.optim.Adam([p for p, _ in pairs], lr=1e-3)
    theirs = torch.optim.Adam([q for _, q in pairs], lr=1e-3, fused=True)
    return Case(
        name, ours.step, theirs.step, compiled(theirs.step), target=target, goals="ops",
        group="optimizer", bytes=7 * 4.0 * count * size,  # read p, g, m, v; write p, m, v
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    whole = 1 << (8 if options.quick else 24)
    yield adam_case("Adam, 16 Mi parameters", 1, whole, 1.0)
    yield adam_case("Adam, 16 x 1 Mi parameters", 16, whole // 16, 1.0)
    yield adam_case("Adam, 100 x 1,000 parameters", 100, min(1000, whole), None)


if __name__ == "__main__":
    main("optimizer", cases, seconds=2.0)

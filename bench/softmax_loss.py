"""Softmax, its logarithm, and cross entropy forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, both, compiled, main, op

F = torch.nn.functional


def loss_case(n: int, classes: int) -> Case | None:
    """Return the row of cross entropy with its gradient."""
    cross_entropy = op("cross_entropy")
    if cross_entropy is None:
        return None
    random = np.random.default_rng(1)
    x, t = both(random.standard_normal((n, classes), np.float32), grad=True)
    y, ty = both(random.integers(0, classes, n))

    def ours() -> Any:
        cross_entropy(x, y).backward()
        return x.grad

    def theirs(function: Any = F.cross_entropy) -> Any:
        t.grad = None
        function(t, ty).backward()
        return t.grad

    return Case(
        f"cross entropy {n} x {classes}, forward and backward", ours, theirs,
        lambda compiler: partial(theirs, compiler(F.cross_entropy)), target=0.5, goals="ops",
        group="loss", bytes=3 * 4.0 * n * classes,  # logits read twice, their gradient written
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    shapes = [(8, 16)] if options.quick else [(4096, 4096), (640, 10000)]
    for n, classes in shapes:
        x, t = both(np.random.default_rng(0).standard_normal((n, classes), np.float32))
        for name in ("softmax", "log_softmax"):
            ours, theirs = op(name), getattr(torch, name)
            if ours is not None:
                yield Case(
                    f"{name} {n} x {classes}", lambda f=ours, x=x: f(x, 1),
                    lambda f=theirs, t=t: f(t, 1), compiled(theirs, t, 1), target=0.8, goals="ops",
                    group="softmax", bytes=2 * 4.0 * n * classes,
                )  # fmt: skip
    case = loss_case(*shapes[-1])
    if case is not None:
        yield case


if __name__ == "__main__":
    main("softmax_loss", cases, seconds=1.5)

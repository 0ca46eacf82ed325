"""Reductions of a 4096 x 4096 matrix over each axis and over all of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from harness import Case, Options, both, compiled, main, op

KINDS = {
    "sum": ("summation", torch.sum),
    "max": ("amax", torch.amax),
    "mean": ("mean", torch.mean),
    "var": ("var", lambda x, axis: torch.var(x, axis, correction=0)),
    "argmax": ("argmax", torch.argmax),
}


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    n = 64 if options.quick else 4096
    x, t = both(np.random.default_rng(0).standard_normal((n, n), np.float32))
    for name, (ours, theirs) in KINDS.items():
        function = op(ours)
        if function is None:
            continue
        for axis, place in ((0, "axis 0"), (1, "axis 1"), (None, "all")):
            whole = axis is None and name == "max"
            arguments = () if whole else (axis,)
            other = torch.max if whole else theirs
            yield Case(
                f"{name} 4096 x 4096, {place}", lambda f=function, a=axis: f(x, a),
                lambda f=other, a=arguments: f(t, *a), compiled(other, t, *arguments), target=0.9,
                goals="ops", group="reduce", bytes=4.0 * n * n,
            )  # fmt: skip


if __name__ == "__main__":
    main("reduce", cases, seconds=0.5)

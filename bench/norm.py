"""Layer norm and RMS norm, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, both, main, op

F = torch.nn.functional
SHAPES = ((4096, 1024), (8192, 768))


def norm_case(name: str, rows: int, d: int) -> Case | None:
    """Return the row of a norm with all its gradients."""
    function = op(name)
    if function is None:
        return None
    random = np.random.default_rng(0)
    count = 3 if name == "layer_norm" else 2
    values = [random.standard_normal((rows, d) if i == 0 else d, np.float32) for i in range(count)]
    tensors = [both(v, grad=True) for v in values]
    (x, *rest), (t, *t_rest) = zip(*tensors, strict=True)
    g, tg = both(random.standard_normal((rows, d), np.float32))

    def ours() -> Any:
        function(x, *rest).backward(g)
        return x.grad

    def theirs(normalise: Any = getattr(F, name)) -> Any:  # noqa: B008  # read once
        for p in (t, *t_rest):
            p.grad = None
        normalise(t, (d,), *t_rest, eps=1e-5).backward(tg)
        return t.grad

    return Case(
        f"{name} {rows} x {d}, forward and backward", ours, theirs,
        lambda compiler: partial(theirs, compiler(getattr(F, name))), target=0.7, goals="ops",
        group="norm", bytes=5 * 4.0 * rows * d,  # x, out; then g, x, dx
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for name in ("layer_norm", "rms_norm"):
        for rows, d in [(8, 16)] if options.quick else SHAPES:
            case = norm_case(name, rows, d)
            if case is not None:
                yield case


if __name__ == "__main__":
    main("norm", cases, seconds=1.5)

"""Embedding, gather and scatter-add, with and without gradients: a table of 10000 x 256."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, both, compiled, main, op

Pair = tuple[Any, Any]
"""A tensor of Needle and the same of PyTorch."""
MORE = {"target": 0.7, "goals": "ops", "group": "indexing"}


def forward_case(
    name: str, ours: Callable[..., Any], theirs: Callable[..., Any], pairs: list[Pair], moved: float
) -> Case:
    """Return the row of a function; ``moved``: bytes that it must at least move."""
    mine, others = zip(*pairs, strict=True)
    return Case(
        name, partial(ours, *mine), partial(theirs, *others), compiled(theirs, *others),
        bytes=moved, **MORE,
    )  # fmt: skip


def gradient_case(
    name: str, ours: Callable[..., Any], theirs: Callable[..., Any], pairs: list[Pair], g: Pair,
    moved: float,
) -> Case:  # fmt: skip
    """Return the row of a function of which the first argument is differentiated, from ``g``."""
    (x, *rest), (t, *t_rest) = zip(*pairs, strict=True)

    def own() -> Any:
        ours(x, *rest).backward(g[0])
        return x.grad

    def other(function: Callable[..., Any]) -> Any:
        t.grad = None
        function(t, *t_rest).backward(g[1])
        return t.grad

    return Case(
        f"{name}, forward and backward", own, partial(other, theirs),
        lambda compiler: partial(other, compiler(theirs)), bytes=moved, **MORE,
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    rows, d, count = (20, 4, 8) if options.quick else (10_000, 256, 4096)
    random = np.random.default_rng(0)
    table = both(random.standard_normal((rows, d), np.float32), grad=True)
    picked = both(random.standard_normal((count, d), np.float32), grad=True)  # rows, or their g
    x, updates = (tuple(t.detach() for t in pair) for pair in (table, picked))
    ids, index = (both(random.integers(0, rows, shape)) for shape in (count, (count, d)))
    whole, part, indices = 4.0 * rows * d, 4.0 * count * d, 8.0 * count * d
    embedding, gather, scatter_add = op("embedding"), op("gather"), op("scatter_add")
    if embedding is not None:
        yield gradient_case(
            f"embedding {rows} x {d}, {count} ids", embedding,
            lambda t, i: torch.nn.functional.embedding(i, t), [table, ids], updates,
            4 * part + whole,  # rows read and written; the same of their gradients; zeros
        )  # fmt: skip
    if gather is not None:
        name, own = f"gather {count} x {d} from {rows} x {d}, axis 0", partial(gather, axis=0)
        moved = indices + 2 * part
        yield forward_case(name, own, _gather, [x, index], moved)
        yield gradient_case(name, own, _gather, [table, index], updates, 2 * moved + 2 * whole)
    if scatter_add is not None:
        name = f"scatter_add {count} x {d} into {rows} x {d}, axis 0"
        shape = (rows, d)

        def ours(updates: Any, index: Any) -> Any:
            return scatter_add(index, updates, 0, shape)

        def theirs(updates: Any, index: Any) -> Any:
            return torch.zeros(shape).scatter_add_(0, index, updates)

        moved = indices + 2 * part + 2 * whole
        yield forward_case(name, ours, theirs, [updates, index], moved)
        yield gradient_case(name, ours, theirs, [picked, index], x, moved + indices + 2 * part)


def _gather(x: Any, index: Any) -> Any:
    return torch.gather(x, 0, index)


if __name__ == "__main__":
    main("indexing", cases, seconds=1.0)

"""Embedding, gather and scatter-add: 4096 rows of a table of 10000 x 256."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import Case, Options, both, compiled, main, op

F = torch.nn.functional


def embedding_case(rows: int, d: int, count: int) -> Case | None:
    """Return the row of an embedding with the gradient of its table."""
    embedding = op("embedding")
    if embedding is None:
        return None
    random = np.random.default_rng(0)
    table, t_table = both(random.standard_normal((rows, d), np.float32), grad=True)
    ids, t_ids = both(random.integers(0, rows, count))
    g, tg = both(random.standard_normal((count, d), np.float32))

    def ours() -> Any:
        embedding(table, ids).backward(g)
        return table.grad

    def theirs() -> Any:
        t_table.grad = None
        F.embedding(t_ids, t_table).backward(tg)
        return t_table.grad

    return Case(
        f"embedding {rows} x {d}, {count} ids, forward and backward", ours, theirs, target=0.7,
        goals="ops", group="indexing", bytes=4.0 * d * (2 * count + 2 * count + rows),
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    rows, d, count = (20, 4, 8) if options.quick else (10_000, 256, 4096)
    case = embedding_case(rows, d, count)
    if case is not None:
        yield case
    random = np.random.default_rng(1)
    x, t = both(random.standard_normal((rows, d), np.float32))
    index, t_index = both(random.integers(0, rows, (count, d)))
    updates, t_updates = both(random.standard_normal((count, d), np.float32))
    gather, scatter_add = op("gather"), op("scatter_add")
    moved = (4.0 + 4.0 + 8.0) * count * d
    if gather is not None:
        yield Case(
            f"gather {count} x {d} from {rows} x {d}, axis 0", lambda: gather(x, index, 0),
            lambda: torch.gather(t, 0, t_index), compiled(torch.gather, t, 0, t_index), target=0.7,
            goals="ops", group="indexing", bytes=moved,
        )  # fmt: skip
    if scatter_add is not None:
        yield Case(
            f"scatter_add {count} x {d} into {rows} x {d}, axis 0",
            lambda: scatter_add(index, updates, 0, (rows, d)),
            lambda: torch.zeros(rows, d).scatter_add_(0, t_index, t_updates), target=0.7,
            goals="ops", group="indexing", bytes=moved + 2 * 4.0 * rows * d,
        )  # fmt: skip


if __name__ == "__main__":
    main("indexing", cases, seconds=1.0)

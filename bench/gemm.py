"""Products of matrices: sizes, transposes, batches, skinny ones."""

from __future__ import annotations

from collections.abc import Iterator
from operator import matmul

import numpy as np
from harness import Case, Goal, Options, both, compiled, main

import needle as ndl

SIZES = (32, 64, 128, 256, 512, 1024, 2048)
SKINNY = ((16, 1024, 256), (640, 10000, 100), (100, 784, 100), (1024, 256, 128))
TRANSPOSES = {"a @ b": (0, 0), "a.T @ b": (1, 0), "a @ b.T": (0, 1), "a.T @ b.T": (1, 1)}


def product(
    name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], flips: tuple[int, int]
) -> Case:
    """Return the row of one product; a flipped matrix lies transposed in memory."""
    random = np.random.default_rng(0)
    ours, theirs = [], []
    for shape, flip in zip((a_shape, b_shape), flips, strict=True):
        stored = (*shape[:-2], shape[-1], shape[-2]) if flip else shape
        x, t = both(random.standard_normal(stored, np.float32))
        ours.append(ndl.ops.transpose(x) if flip else x)
        theirs.append(t.mT if flip else t)
    (a, b), (ta, tb) = ours, theirs
    flops = 2.0 * np.prod(a_shape) * b_shape[-1]
    large = len(a_shape) == 2 and a_shape[0] == a_shape[1] >= 256 and flips == (0, 0)
    return Case(
        name, lambda: a @ b, lambda: ta @ tb, compiled(matmul, ta, tb), target=1.0, group="gemm",
        goals="foundation" if large else "ops", flops=float(flops),
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for n in SIZES[:2] if options.quick else SIZES:
        for name, flips in TRANSPOSES.items():
            yield product(f"sgemm {n}, {name}", (n, n), (n, n), flips)
    for m, n, k in [(8, 9, 10)] if options.quick else SKINNY:
        yield product(f"sgemm {m} x {n} x {k}", (m, k), (k, n), (0, 0))
    count, n = (2, 8) if options.quick else (64, 128)
    for name, flips in TRANSPOSES.items():
        yield product(f"batched {count} x {n}^3, {name}", (count, n, n), (count, n, n), flips)


if __name__ == "__main__":
    goal = Goal("sgemm", 0.93, groups=("gemm",))
    main("gemm", cases, mallocs=("stock", "tuned"), goals=[goal])

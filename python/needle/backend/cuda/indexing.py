"""Gather and scatter_add."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from needle.backend.array import dense_strides
from needle.backend.contract import Describe
from needle.backend.cuda import sorting
from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import geometry, select
from needle.backend.cuda.launch import Family, Launcher, blocks_for
from needle.backend.cuda.table import BITS, CPP
from needle.dtype import FLOATS, INTEGERS
from needle.errors import IndexRangeError

INDEX_TYPES = tuple(CPP[kind] for kind in INTEGERS)


def gather(backend: Launcher, out: Any, x: Any, index: Any, axis: int) -> int:
    """Pick along an axis; see ``Backend.gather``. Bad indices are raised later: ``errors.py``."""
    if not out.size:
        return -1
    without_axis = tuple(0 if i == axis else s for i, s in enumerate(x.strides))
    g = geometry(out.shape, out.strides, without_axis, index.strides, keep_order=True)
    kind, index_kind, size = BITS[x.dtype.itemsize], CPP[index.dtype], x.shape[axis]
    found = backend.function(
        "index.cu", f"gather<{kind}, {index_kind}, {g.index}>", lambda: _gathers(index_kind)
    )
    word, ticket = backend.pending.ticket(_outside("gather", out.shape, size))
    backend.launch(
        found, blocks_for(g.count), address(out), address(x), address(index), g.words, size,
        x.strides[axis], word, ticket,
    )  # fmt: skip
    return -1


def _outside(operation: str, shape: tuple[int, ...], size: int) -> Describe:
    """Return what makes the error for an index, by its position in an array of this shape."""

    def describe(position: int) -> Exception:
        place = tuple(int(i) for i in np.unravel_index(position, shape))
        where = place[0] if len(place) == 1 else place
        return IndexRangeError(
            f"{operation}: the index at position {where} is out of range for {size} entries"
        )

    return describe


def _gathers(index_kind: str) -> Iterable[str]:
    return [f"gather<{kind}, {index_kind}, i32>" for kind in BITS.values()]


def scatter_add(backend: Launcher, out: Any, index: Any, updates: Any, axis: int) -> int:
    """Add at indices; see ``Backend.scatter_add``. The order of additions is that of updates.

    Updates are sorted by where they go (the axes along which the index does not change move as
    whole rows), then each place adds up its own.
    """
    if not updates.size:
        return -1
    moving = [
        i for i in range(index.ndim) if i == axis or (index.strides[i] and index.shape[i] > 1)
    ]
    rows = [i for i in range(index.ndim) if i not in moving]
    count_shape = select(index.shape, moving)
    out_steps = tuple(0 if i == axis else out.strides[i] for i in moving)
    places = select(dense_strides(tuple(index.shape)), moving)
    keys_of = geometry(
        count_shape, select(index.strides, moving), out_steps, places, keep_order=True
    )
    count = keys_of.count
    keys, order = backend.allocate(8 * count), backend.allocate(8 * count)
    size = out.shape[axis]
    word, ticket = backend.pending.ticket(_outside("scatter_add", updates.shape, size))
    found = backend.function("index.cu", f"scatter_keys<{CPP[index.dtype]}>", _keys)
    backend.launch(
        found, blocks_for(count), keys.address, order.address, address(index), keys_of.words,
        size, out.strides[axis], word, ticket,
    )  # fmt: skip
    keys, order = sorting.sort_pairs(backend, keys, order, count, count)
    row = geometry(select(updates.shape, rows), select(out.strides, rows),
                   select(updates.strides, rows))  # fmt: skip
    along = geometry(count_shape, select(updates.strides, moving), keep_order=True)
    found = backend.function("index.cu", f"scatter_sum<{CPP[out.dtype]}>", _sums)
    backend.launch(
        found, blocks_for(count * row.count), address(out), address(updates), keys.address,
        order.address, along.words, row.words,
    )  # fmt: skip
    return -1


def _keys() -> Iterable[str]:
    return [f"scatter_keys<{kind}>" for kind in INDEX_TYPES]


def _sums() -> Iterable[str]:
    return [f"scatter_sum<{kind}>" for kind in CPP.values() if kind != "bool"]


def check_range(
    backend: Launcher, x: Any, low: int, high: int, kept: int | None, describe: Describe
) -> None:
    """See ``Backend.check_range``; the error is raised later."""
    kernel = ("check_range", CPP[x.dtype], _ranges)
    _check(backend, x, kernel, describe, low, high, int(kept is not None), kept or 0)


def check_whole(backend: Launcher, x: Any, describe: Describe) -> None:
    """See ``Backend.check_whole``; the error is raised later."""
    _check(backend, x, ("check_whole", CPP[x.dtype], _whole), describe)


def _ranges() -> Iterable[str]:
    return [f"check_range<{kind}>" for kind in INDEX_TYPES]


def _whole() -> Iterable[str]:
    return [f"check_whole<{CPP[kind]}>" for kind in FLOATS]


def _check(
    backend: Launcher, x: Any, kernel: tuple[str, str, Family], describe: Describe, *parts: int
) -> None:
    g = geometry(x.shape, x.strides, keep_order=True)
    if not g.count:
        return
    name, kind, family = kernel
    found = backend.function("index.cu", f"{name}<{kind}>", family)
    word, ticket = backend.pending.ticket(describe)
    backend.launch(found, blocks_for(g.count), address(x), g.words, *parts, word, ticket)

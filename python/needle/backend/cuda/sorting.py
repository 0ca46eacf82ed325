"""Sorting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import geometry, power_of_two, select
from needle.backend.cuda.launch import Launcher, blocks_for
from needle.backend.cuda.table import CPP
from needle.backend.ndarray import empty

if TYPE_CHECKING:
    from needle.backend.cuda.arena import Block

CHUNK = 1024


def sort_pairs(
    backend: Launcher, keys: Block, indices: Block, total: int, length: int
) -> tuple[Block, Block]:
    """Sort lines of (key, index) by key, and by index where keys are equal.

    Args:
        backend: the backend.
        keys: uint64 [total], lines one after another.
        indices: int64 [total], ascending in each line.
        total: number of pairs.
        length: length of a line.

    Returns:
        The sorted keys and indices, in these or in other blocks.
    """
    chunk = min(CHUNK, max(2, power_of_two(length)))
    chunks = -(-length // chunk)
    backend.launch(
        backend.function("sort.cu", "sort_chunks"), total // length * chunks, keys.address,
        indices.address, length, chunk, chunks, block=chunk // 2,
    )  # fmt: skip
    run = chunk
    if run < length:
        spare_keys, spare_indices = backend.allocate(8 * total), backend.allocate(8 * total)
    while run < length:
        backend.launch(
            backend.function("sort.cu", "sort_merge"), blocks_for(total), spare_keys.address,
            spare_indices.address, keys.address, indices.address, total, length, run,
        )  # fmt: skip
        keys, spare_keys = spare_keys, keys
        indices, spare_indices = spare_indices, indices
        run *= 2
    return keys, indices


def sort(backend: Launcher, values: Any, indices: Any, x: Any, axis: int, descending: bool) -> None:
    """Sort along an axis; see ``Backend.sort``."""

    if not values.size:
        return
    if values.shape != x.shape:  # the first ones of the order: sort all, and copy those
        ranges = [(0, n, 1) for n in values.shape]
        every, positions = (empty(x.shape, y.dtype, x.device) for y in (values, indices))
        sort(backend, every, positions, x, axis, descending)
        backend.copy(values, every.slice(ranges))
        backend.copy(indices, positions.slice(ranges))
        return
    axes = [*(i for i in range(x.ndim) if i != axis), axis] if x.ndim else []
    shape, length = select(x.shape, axes), x.shape[axis] if x.ndim else 1
    g = geometry(shape, select(x.strides, axes), keep_order=True)
    keys, places = backend.allocate(8 * x.size), backend.allocate(8 * x.size)
    kind = CPP[x.dtype]
    found = backend.function("sort.cu", f"sort_keys<{kind}, {g.index}>", _family)
    backend.launch(
        found, blocks_for(g.count), keys.address, places.address, address(x), g.words, length,
        int(descending),
    )  # fmt: skip
    keys, places = sort_pairs(backend, keys, places, x.size, length)
    steps = [select(y.strides, axes) for y in (values, indices, x)]
    axis_step = steps[2][-1] if x.ndim else 0
    steps[2] = (*steps[2][:-1], 0) if x.ndim else ()
    g = geometry(shape, *steps, keep_order=True)
    found = backend.function("sort.cu", f"sort_results<{kind}, {g.index}>", _family)
    backend.launch(
        found, blocks_for(g.count), address(values), address(indices), address(x), places.address,
        g.words, axis_step,
    )  # fmt: skip


def _family() -> Iterable[str]:
    for kind in CPP.values():
        yield f"sort_keys<{kind}, i32>"
        yield f"sort_results<{kind}, i32>"
    yield "sort_chunks"
    yield "sort_merge"

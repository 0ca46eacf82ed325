"""Shapes and strides as kernels take them: axes merged where they can be, in 8-byte words."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

MAX_DIMS = 16
LIMIT = 2**31 - 1
"""Limit of 32-bit indices."""

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """A common shape and the strides of several operands.

    Attributes:
        shape: sizes of the merged axes.
        strides: of each operand.
        count: number of elements.
        words: the struct ``Geometry`` of prelude.cuh.
        index: the C++ type that can hold positions and offsets.
    """

    shape: Strides
    strides: tuple[Strides, ...]
    count: int
    words: bytes
    index: str

    def dense(self) -> int | None:
        """Return a bit mask of the operands (but the first) that are single values.

        None if some operand is neither that nor dense in the order of the first.
        """
        if len(self.shape) > 1:
            return None
        steps = [strides[0] if self.shape else 1 for strides in self.strides]
        if any(step not in (0, 1) for step in steps) or (steps[0] != 1 and self.count > 1):
            return None
        return sum(1 << i for i, step in enumerate(steps[1:]) if step == 0)


@lru_cache(maxsize=8192)
def geometry(shape: Strides, *strides: Strides, keep_order: bool = False) -> Geometry:
    """Return the geometry of operands of one shape.

    Args:
        shape: sizes.
        strides: of each operand, in elements; 0 repeats.
        keep_order: whether positions must count in C order. Otherwise the axes are ordered by the
            first operand's strides.
    """
    axes = [i for i, n in enumerate(shape) if n != 1]
    if not keep_order:
        axes.sort(key=lambda i: (-abs(strides[0][i]), i))
    merged: list[tuple[int, list[int]]] = []
    for i in axes:
        size, steps = shape[i], [s[i] for s in strides]
        if merged and all(a == b * size for a, b in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    sizes = tuple(size for size, _ in merged)
    each = tuple(tuple(steps[k] for _, steps in merged) for k in range(len(strides)))
    count = prod(shape)
    return Geometry(sizes, each, count, _pack(sizes, each, count), _index(sizes, each, count))


def _pack(shape: Strides, strides: tuple[Strides, ...], count: int) -> bytes:
    rows = [shape or (1,), *(row or (0,) for row in strides)]
    padded = [n for row in rows for n in (*row, *(0,) * (MAX_DIMS - len(row)))]
    return struct.pack(f"{2 + len(padded)}q", max(len(shape), 1), count, *padded)


def _index(shape: Strides, strides: tuple[Strides, ...], count: int) -> str:
    spans = [sum((n - 1) * abs(s) for n, s in zip(shape, row, strict=True)) for row in strides]
    # positions run up to a block beyond the end
    return "i32" if max(count + 2048, *spans) <= LIMIT else "i64"


def pack(*parts: int | float | bytes) -> bytes:
    """Return a kernel's parameters as 8-byte words."""
    return b"".join(
        part
        if isinstance(part, bytes)
        else struct.pack("d", part)
        if isinstance(part, float)
        else (part & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
        for part in parts
    )


def select(row: Sequence[int], axes: Sequence[int]) -> Strides:
    """Return the entries of some axes."""
    return tuple(row[i] for i in axes)


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below n (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()

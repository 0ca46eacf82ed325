"""Hypothesis strategies: shapes, dtypes and arrays in any memory layout (needs hypothesis)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from needle.backend.ndarray import NDArray, array

if TYPE_CHECKING:
    from needle.typing import DeviceLike

Shape = tuple[int, ...]


def shapes(max_dims: int = 4, max_size: int = 5) -> st.SearchStrategy[Shape]:
    """Shapes, including 0-d and empty ones."""
    return st.lists(st.integers(0, max_size), max_size=max_dims).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, values: Any, dtype: str, device: DeviceLike) -> NDArray:
    """An array of these values with its axes permuted, reversed, or spread in memory."""
    values = np.asarray(values)
    ndim = values.ndim
    order = draw(st.permutations(range(ndim)))
    steps = draw(st.lists(st.sampled_from([1, -1, 2, -2]), min_size=ndim, max_size=ndim))
    inverse = [order.index(axis) for axis in range(ndim)]
    spread = np.zeros([n * abs(steps[i]) for i, n in enumerate(values.shape)], values.dtype)
    where = tuple(slice(None, None, step) for step in steps)
    spread[where] = values
    stored = array(spread.transpose(order), dtype, device).permute(inverse)
    ranges = []
    for n, step in zip(values.shape, steps, strict=True):
        ranges.append((0 if step > 0 or not n else n * abs(step) - 1, n, step))
    return stored.slice(ranges)


@st.composite
def arrays(
    draw: st.DrawFn, device: DeviceLike, dtype: str = "float32", shape: Shape | None = None
) -> NDArray:
    """An array of small integers (their sums are exact) in any layout."""
    chosen = draw(shapes()) if shape is None else shape
    seed = draw(st.integers(0, 2**32 - 1))
    low = 0 if dtype in ("uint8", "bool") else -8
    high = 2 if dtype == "bool" else 9
    values = np.random.default_rng(seed).integers(low, high, chosen).astype(np.float64)
    return draw(layouts(values, dtype, device))


@st.composite
def broadcastable(draw: st.DrawFn, count: int = 2) -> tuple[Shape, ...]:
    """Shapes that broadcast together."""
    whole = draw(shapes())
    parts = []
    for _ in range(count):
        drop = draw(st.integers(0, len(whole)))
        ones = draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
        parts.append(tuple(1 if o else n for n, o in zip(whole, ones, strict=True))[drop:])
    return tuple(parts)

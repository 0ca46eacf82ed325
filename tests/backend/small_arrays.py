"""What the tests of arrays share."""

from __future__ import annotations

import numpy as np

from needle import NDArray, core

NATIVE = core.native is not None


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def same_memory(a: NDArray, b: NDArray) -> bool:
    return a.handle.ptr() == b.handle.ptr()

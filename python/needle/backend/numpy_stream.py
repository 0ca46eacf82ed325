"""NumPy's global random stream: arrays of what ``numpy.random`` draws from it.

Where they are many a kernel draws them, in a quarter to a half of NumPy's time: the same bits, and
NumPy goes on behind them.
"""

from __future__ import annotations

import platform
from math import prod

import numpy as np

from needle import config, core, device
from needle import dtype as dtypes
from needle.backend.ndarray import NDArray, Shape, array, empty
from needle.device import Device
from needle.dtype import DType

_MANY = 2**15
"""From so many numbers on the kernel is faster: NumPy's state is copied there and back."""

_STATE = np.dtype(
    [("key", np.uint32, 624), ("place", np.int32), ("has_spare", "?"), ("spare", float)], align=True
)
"""The kernel's ``MersenneTwister``."""

_KINDS = {"rand": 0, "randn": 1, "randint": 2, "permutation": 3}

_KNOWN = platform.machine().lower() in ("x86_64", "amd64")
"""Elsewhere compilers may have fused NumPy's multiplications and additions: other last bits."""


def floats(kind: str, shape: Shape, where: Device) -> NDArray:
    """Return ``numpy.random.rand(*shape)`` or ``randn``: float32 (with NEEDLE_BACKEND=np float64).

    Args:
        kind: "rand" or "randn".
        shape: of the result.
        where: the device.
    """
    if config.current().backend == "np":
        return array(getattr(np.random, kind)(*shape), dtypes.float64, where)
    found = _drawn(kind, shape, dtypes.float32)
    if found is not None:
        return found.to(where)
    return array(getattr(np.random, kind)(*shape), dtypes.float32, where)


def integers(low: int, high: int, shape: Shape, dtype: DType, where: Device) -> NDArray:
    """Return ``numpy.random.randint(low, high, shape)`` in a dtype; at most 2**32 numbers."""
    found = _drawn("randint", shape, dtypes.int64, low, high - 1 - low)
    if found is None:
        return array(np.random.randint(low, high, shape), dtype, where)
    return found.astype(dtype, copy=False).to(where)


def permutation(size: int, where: Device) -> NDArray:
    """Return ``numpy.random.permutation(size)``: int64."""
    found = _drawn("permutation", (size,), dtypes.int64) if size < 2**32 else None
    return array(np.random.permutation(size), "int64", where) if found is None else found.to(where)


def _drawn(kind: str, shape: Shape, dtype: DType, low: int = 0, last: int = 0) -> NDArray | None:
    """Return what the kernel draws, on the CPU, or None where NumPy has to."""
    if core.native is None or not _KNOWN or prod(shape) < _MANY:
        return None
    out = empty(shape, dtype, device.as_device("cpu"))
    with np.random.get_bit_generator().lock:  # type: ignore[attr-defined]
        full = np.random.get_state(legacy=False)
        if full["bit_generator"] != "MT19937":  # somebody has set another
            return None
        inner = full["state"]
        state = np.array((inner["key"], inner["pos"], full["has_gauss"], full["gauss"]), _STATE)
        core.native.draw(_KINDS[kind], out, state, low, last)
        inner["key"], inner["pos"] = state["key"], int(state["place"])
        full["has_gauss"], full["gauss"] = int(state["has_spare"]), float(state["spare"])
        np.random.set_state(full)
    return out

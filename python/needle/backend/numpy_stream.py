"""NumPy's global random stream: arrays of the numbers that ``numpy.random`` draws from it.

Native kernels draw the same bits from the memory of NumPy's own generator, faster than NumPy, and
leave the generator in the same state.
"""

from __future__ import annotations

import ctypes
import platform
from math import prod
from typing import Any

import numpy as np

from needle import config, core
from needle import dtype as dtypes
from needle.backend.ndarray import NDArray, Shape, array, empty
from needle.devices import Device, as_device
from needle.dtype import DType

_UNIFORM, _NORMAL, _INTEGERS, _ORDER = range(4)

_CPU = as_device("cpu")
_draw: Any = None if core.native is None else core.native.draw

_FEW = 16
"""Up to this number of normal numbers NumPy is faster."""

_LAST = 1.0 - 2.0**-24
"""The largest float32 below 1."""

_KNOWN = platform.machine().lower() in ("x86_64", "amd64")
"""On other machines compilers may fuse NumPy's multiplications and additions, which rounds once."""

_memory: tuple[Any, Any] = None, None
"""The latest bit generator, and its memory: 624 words and the position in them."""


def floats(kind: str, shape: Shape, where: Device) -> NDArray:
    """Return ``numpy.random.rand(*shape)`` or ``randn``: float32 (with NEEDLE_BACKEND=np float64).

    Uniform numbers are below 1; float32 would round the last ones up to it.

    Args:
        kind: "rand" or "randn".
        shape: of the result.
        where: the device.
    """
    if config.current().backend == "np":
        return array(getattr(np.random, kind)(*shape), dtypes.float64, where)
    draw = _uniform if kind == "rand" else _normal
    found = draw(shape)
    if found is not None:
        return found if where is _CPU else found.to(where)
    values = getattr(np.random, kind)(*shape)
    return array(np.minimum(values, _LAST) if kind == "rand" else values, dtypes.float32, where)


def integers(low: int, high: int, shape: Shape, dtype: DType, where: Device) -> NDArray:
    """Return ``numpy.random.randint(low, high, shape)`` in a dtype; at most 2**32 numbers."""
    found = _drawn(_INTEGERS, shape, dtypes.int64, low, high - 1 - low)
    if found is None:
        return array(np.random.randint(low, high, shape), dtype, where)
    return found.astype(dtype, copy=False).to(where)


def permutation(size: int, where: Device) -> NDArray:
    """Return ``numpy.random.permutation(size)``: int64."""
    found = _drawn(_ORDER, (size,), dtypes.int64) if size < 2**32 else None
    return array(np.random.permutation(size), "int64", where) if found is None else found.to(where)


def _uniform(shape: Shape) -> NDArray | None:
    return _drawn(_UNIFORM, shape, dtypes.float32)


def _drawn(kind: int, shape: Shape, dtype: DType, low: int = 0, last: int = 0) -> NDArray | None:
    """Return the numbers of the kernel, on the CPU, or None if NumPy must draw them."""
    generator, memory = _stream()
    if memory is None:
        return None
    out = empty(shape, dtype, _CPU)
    with generator.lock:
        _draw(kind, out, memory, low, last, ())
    return out


def _normal(shape: Shape) -> NDArray | None:
    """Return normal numbers, or None if NumPy must draw them.

    Normal numbers are drawn in pairs, and NumPy keeps a second number that was not used. That
    number comes first, and NumPy draws a missing last number.
    """
    (generator, memory), size = _stream(), prod(shape)
    if memory is None or size <= _FEW:
        return None
    out, place = empty(shape, dtypes.float32, _CPU), memory[-1]
    known: tuple[float, ...] = (np.random.standard_normal(),)
    if memory[-1] != place:  # a new pair
        known = (*known, np.random.standard_normal())
    with generator.lock:
        _draw(_NORMAL, out, memory, 0, 0, known)
    if (size - len(known)) % 2:
        np.frombuffer(out.handle, np.float32)[-1] = np.random.standard_normal()
    return out


def _stream() -> tuple[Any, Any]:
    """Return the bit generator, and its memory; None if it is not a known Mersenne Twister."""
    global _memory
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    found = _memory
    if generator is not found[0]:
        found = _memory = generator, _checked(generator)
    return found


def _checked(generator: Any) -> Any:
    if core.native is None or not _KNOWN or type(generator) is not np.random.MT19937:
        return None
    memory = (ctypes.c_uint32 * 625).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    return memory if (*state["key"].tolist(), state["pos"]) == tuple(memory) else None

"""NDArray and its functions under the course's names: ``needle.backend_ndarray``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle.backend import ndarray as arrays
from needle.backend.ndarray import NDArray
from needle.devices import Device, all_devices, cpu, cpu_numpy, cuda, default_device

__all__ = [
    "BackendDevice", "NDArray", "all_devices", "array", "broadcast_to", "cpu", "cpu_numpy", "cuda",
    "default_device", "empty", "exp", "flip", "full", "log", "maximum", "reshape", "sum", "tanh",
]  # fmt: skip

BackendDevice = Device


def array(a: Any, dtype: Any = "float32", device: Any = None) -> NDArray:
    """Return a copy of an array, nested list or number; float32 unless dtype says otherwise."""
    if isinstance(a, NDArray):
        return NDArray(a, device, dtype or "float32")
    return arrays.array(a, dtype or "float32", device)


def empty(shape: Sequence[int], dtype: Any = "float32", device: Any = None) -> NDArray:
    """Return an array whose values are not set."""
    return arrays.empty(tuple(shape), dtype or "float32", device)


def full(
    shape: Sequence[int], fill_value: float, dtype: Any = "float32", device: Any = None
) -> NDArray:
    """Return an array of one value."""
    return arrays.full(tuple(shape), fill_value, dtype or "float32", device)


def broadcast_to(array: NDArray, new_shape: Sequence[int]) -> NDArray:
    """Return a view with axes of size 1 repeated."""
    return array.broadcast_to(new_shape)


def reshape(array: NDArray, new_shape: Sequence[int]) -> NDArray:
    """Return the elements under another shape."""
    return array.reshape(new_shape)


def maximum(a: NDArray, b: Any) -> NDArray:
    """Return the larger of each two elements."""
    return a.maximum(b)


def log(a: NDArray) -> NDArray:
    """Return the natural logarithm of each element."""
    return a.log()


def exp(a: NDArray) -> NDArray:
    """Return e to the power of each element."""
    return a.exp()


def tanh(a: NDArray) -> NDArray:
    """Return the hyperbolic tangent of each element."""
    return a.tanh()


def sum(a: NDArray, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> NDArray:
    """Return the sum over an axis; the total, for None, has shape (1,)."""
    return a.sum(axis, keepdims)


def flip(a: NDArray, axes: int | Sequence[int]) -> NDArray:
    """Return a view with the elements of these axes in reverse order."""
    return a.flip(axes)

"""The course's functions of a device: ``device.rand(2, 3)``, and on raw memory
``device.ewise_add(a, b, out)``.

The memory of an array is its ``_handle``. As in the course it holds float32 numbers without gaps,
and results are written to ``out``. ``Array(size)`` makes one. The course writes these functions in
C++ and CUDA; here they are calls of the device's own kernels, so that its programs run on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from needle import devices
from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend import ndarray as arrays
from needle.backend.ndarray import NDArray
from needle.devices import Device
from needle.errors import IndexRangeError, ShapeError

Handle = Any
Shape = Sequence[int]

_BINARY = {
    "add": "add", "mul": "multiply", "div": "divide", "power": "power", "maximum": "maximum",
    "eq": "equal", "ge": "greater_equal",
}  # fmt: skip
_UNARY = ("log", "exp", "tanh")


TILE = 8
"""Size of the tiles of ``matmul_tiled``."""


# ---- arrays ------------------------------------------------------------------------


def rand(device: Device, *shape: int, dtype: Any = "float32") -> NDArray:
    """Return uniform numbers in [0, 1) from NumPy's global stream."""
    return arrays.array(np.random.rand(*shape), dtype or "float32", device)


def randn(device: Device, *shape: int, dtype: Any = "float32") -> NDArray:
    """Return standard normal numbers from NumPy's global stream."""
    return arrays.array(np.random.randn(*shape), dtype or "float32", device)


def one_hot(device: Device, n: int, i: Any, dtype: Any = "float32") -> NDArray:
    """Return rows of the identity matrix of size n.

    Raises:
        IndexRangeError: if an index is not below n.
    """
    index = np.asarray(i).astype(np.int64)
    if index.size and not (-n <= index.min() and index.max() < n):
        raise IndexRangeError(
            f"one_hot: indices from {index.min()} to {index.max()} for {n} classes"
        )
    return arrays.array(np.eye(n)[index], dtype or "float32", device)


def empty(device: Device, shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array whose values are not set."""
    return arrays.empty(tuple(shape), dtype or "float32", device)


def full(device: Device, shape: Shape, fill_value: float, dtype: Any = "float32") -> NDArray:
    """Return an array of one value."""
    return arrays.full(tuple(shape), fill_value, dtype or "float32", device)


def matmul_tiled(device: Device, a: Any, b: Any, out: Any, m: int, n: int, p: int) -> None:
    """Multiply float32 handles that hold matrices as tiles [rows, columns, tile, tile]."""

    def matrix(handle: Any, rows: int, columns: int) -> NDArray:
        tiles = NDArray.make((rows // TILE, columns // TILE, TILE, TILE), None, device, handle)
        return tiles.permute((0, 2, 1, 3))

    product = matrix(a, m, n).reshape((m, n)) @ matrix(b, n, p).reshape((n, p))
    tiles = product.reshape((m // TILE, TILE, p // TILE, TILE))
    device.backend.copy(matrix(out, m, p), tiles)


# ---- raw memory --------------------------------------------------------------------


def _flat(device: Any, handle: Handle, size: int | None = None, offset: int = 0) -> Any:
    """Return the float32 numbers of a handle as a vector; all of them for None."""
    held = getattr(handle, "nbytes", None)
    if size is None:
        if held is None:
            raise ShapeError(f"a handle of {type(handle).__name__} does not know its size")
        size = held // 4
    return NDArray.make((size,), device=device, handle=handle, offset=offset)


def _strided(
    device: Any, handle: Handle, shape: Shape, strides: Shape | None, offset: int = 0
) -> Any:
    found = None if strides is None else tuple(strides)
    return NDArray.make(tuple(shape), found, device, handle, offset)


def array(device: Any, size: int) -> Handle:
    """Return memory for ``size`` float32 numbers; they are not set."""
    return arrays.empty((size,), "float32", device).handle


def to_numpy(device: Any, a: Handle, shape: Shape, strides: Shape, offset: int = 0) -> np.ndarray:
    """Return a copy of a strided view of the memory."""
    return np.array(_strided(device, a, shape, strides, offset).numpy())


def from_numpy(device: Any, a: Any, out: Handle) -> None:
    """Copy the numbers of a NumPy array, in C order, to ``out``."""
    values = np.ascontiguousarray(a, dtype=np.float32).reshape(-1)
    device.backend.upload(_flat(device, out, values.size), values)


def fill(device: Any, out: Handle, value: float) -> None:
    """Set every number."""
    device.backend.fill(_flat(device, out), value)


def compact(
    device: Any, a: Handle, out: Handle, shape: Shape, strides: Shape, offset: int = 0
) -> None:
    """Copy a strided view of ``a`` to ``out``, without gaps."""
    device.backend.copy(
        _strided(device, out, shape, None), _strided(device, a, shape, strides, offset)
    )


def ewise_setitem(
    device: Any, a: Handle, out: Handle, shape: Shape, strides: Shape, offset: int = 0
) -> None:
    """Copy ``a``, which has no gaps, to a strided view of ``out``."""
    device.backend.copy(
        _strided(device, out, shape, strides, offset), _strided(device, a, shape, None)
    )


def scalar_setitem(
    device: Any, size: int, value: float, out: Handle, shape: Shape, strides: Shape, offset: int = 0
) -> None:
    """Set a strided view of ``out`` to one number; ``size`` is not needed."""
    device.backend.fill(_strided(device, out, shape, strides, offset), value)


def _assign(device: Any, out: Handle, values: Any) -> None:
    device.backend.copy(_strided(device, out, values.shape, None), values)


def _binary(function: str, kind: Any, device: Any, a: Handle, b: Handle, out: Handle) -> None:
    x = _flat(device, a)
    _assign(device, out, kernels.elementwise(function, x, _flat(device, b, x.size), dtype=kind))


def _scalar(function: str, kind: Any, device: Any, a: Handle, value: float, out: Handle) -> None:
    x = _flat(device, a)
    y = arrays.full((), value, x.dtype, device).broadcast_to(x.shape)
    _assign(device, out, kernels.elementwise(function, x, y, dtype=kind))


def _unary(function: str, device: Any, a: Handle, out: Handle) -> None:
    _assign(device, out, kernels.elementwise(function, _flat(device, a)))


def matmul(device: Any, a: Handle, b: Handle, out: Handle, m: int, n: int, p: int) -> None:
    """Write the product of matrices [m, n] and [n, p]."""
    _assign(device, out, _strided(device, a, (m, n), None) @ _strided(device, b, (n, p), None))


def _reduce(function: str, device: Any, a: Handle, out: Handle, reduce_size: int) -> None:
    x = _flat(device, a)
    if reduce_size < 1 or x.size % reduce_size:
        raise ShapeError(f"reduce_{function}: {x.size} numbers are not rows of {reduce_size}")
    rows = x.reshape((x.size // reduce_size, reduce_size))
    _assign(device, out, kernels.reduce(function, rows, (1,), False))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Array": array, "to_numpy": to_numpy, "from_numpy": from_numpy, "fill": fill,
    "compact": compact, "ewise_setitem": ewise_setitem, "scalar_setitem": scalar_setitem,
    "matmul": matmul, "reduce_sum": partial(_reduce, "sum"), "reduce_max": partial(_reduce, "max"),
    "rand": rand, "randn": randn, "one_hot": one_hot, "empty": empty, "full": full,
}  # fmt: skip
for _name, _function in _BINARY.items():
    _kind = dtypes.bool_ if "equal" in _function else None
    _FUNCTIONS[f"ewise_{_name}"] = partial(_binary, _function, _kind)
    _FUNCTIONS[f"scalar_{_name}"] = partial(_scalar, _function, _kind)
for _name in _UNARY:
    _FUNCTIONS[f"ewise_{_name}"] = partial(_unary, _name)


def _tiled(device: Device) -> Callable[..., Any]:
    if not hasattr(device.backend, "adopt"):
        raise AttributeError("only devices in host memory have it")
    return partial(matmul_tiled, device)


devices.further |= {name: partial(partial, function) for name, function in _FUNCTIONS.items()}
devices.further |= {
    "mod": lambda device: device, "matmul_tiled": _tiled, "__tile_size__": lambda device: TILE,
}  # fmt: skip

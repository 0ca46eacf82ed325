"""Memory shared with other libraries: DLPack in, without copying."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import device as devices
from needle import dtype as dtypes
from needle.backend.array import make_array, make_spec
from needle.backend.ndarray import NDArray, array
from needle.errors import DeviceError, DtypeError

HOST = (1, 3)
"""DLPack's numbers of host memory: plain, and pinned by CUDA."""


def from_dlpack(x: Any, device: Any = None, copy: bool | None = None) -> NDArray:
    """Return an array over the memory of another library's array.

    Args:
        x: a NumPy array, or anything with ``__dlpack__``.
        device: a device that computes in host memory; the default device for None.
        copy: True: always; False: never, raise BufferError; None: only where the memory cannot be
            shared (not aligned, other byte order, another device).

    Raises:
        DeviceError: if x is not in host memory.
        DtypeError: if x has a dtype that Needle, or NumPy as go-between, lacks.
    """
    values = x if isinstance(x, np.ndarray) else _as_numpy(x)
    where = devices.as_device(device)
    kind = dtypes.as_dtype(values.dtype)
    if copy or not _can_share(values, where):
        if copy is False:
            raise BufferError(f"from_dlpack: {where} cannot share this memory without a copy")
        return array(values, kind, where)
    step = values.itemsize
    strides = tuple(s // step for s in values.strides)
    backwards = [(n - 1) * -s for n, s in zip(values.shape, strides, strict=True) if s < 0]
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(values.shape, strides, strict=True))
    index: Any = (*(slice(None, None, -1 if s < 0 else 1) for s in strides), ...)
    lowest = values[index]  # ...: a view also of 0-d values
    flat = np.lib.stride_tricks.as_strided(lowest, (span if values.size else 0,), (step,))
    handle = where.backend.adopt(flat)
    offset = sum(backwards) if values.size else 0
    return make_array(make_spec(kind, where, values.shape), handle, offset, strides)


def _as_numpy(x: Any) -> Any:
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} does not offer __dlpack__")
    if x.__dlpack_device__()[0] not in HOST:
        raise DeviceError(
            f"from_dlpack: the memory is on DLPack device {x.__dlpack_device__()}, not on the host"
        )
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise DtypeError(f"from_dlpack: {type(x).__name__} of {x.dtype}: {error}") from error


def _can_share(values: Any, where: Any) -> bool:
    whole = all(s % values.itemsize == 0 for s in values.strides)
    shares = hasattr(where.backend, "adopt")
    return bool(shares and whole and values.flags.aligned and values.dtype.isnative)

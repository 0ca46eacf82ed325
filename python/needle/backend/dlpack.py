"""Memory shared with other libraries by DLPack, both ways, without copying.

NumPy makes the capsules, owns their memory, and reads the capsules of other libraries. It does not
know bfloat16, so such values pass through it as uint16, and this module sets the byte of the
capsule that holds the kind of number (DLPack, dlpack.h: DLDataType.code).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from needle import devices
from needle import dtype as dtypes
from needle.backend.array import make_array, make_spec
from needle.backend.ndarray import NDArray, array
from needle.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    ExchangeError,
    NeedleError,
    OptionError,
)

HOST = (1, 3)
"""DLPack's numbers of host memory: plain, and pinned by CUDA."""

DEVICES = {2: "cuda", 12: "cuda-emu"}
"""Needle's devices by DLPack's number of their kind (dlpack.h: DLDeviceType)."""

UNSIGNED, BFLOAT = 1, 4
"""DLPack's codes of unsigned integers and of bfloat16."""

NEGOTIATES = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy accepts the arguments of ``__dlpack__``; older versions ignore them."""

CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Offset of the code in the structure of a capsule of that name, on a 64-bit machine."""


def to_dlpack(
    x: NDArray,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule over the memory of an array.

    Args:
        x: an array.
        stream: stream of the reader; see ``cuda.dlpack.give``. None for host memory, which has no
            streams.
        max_version: the newest version of DLPack that the reader knows.
        dl_device: device that the reader asks for: the current one, or host memory, (1, 0).
        copy: True: always copy; False: never; None: if needed, as for a negative stride, which
            DLPack allows but which makes PyTorch end the process.

    Raises:
        ExchangeError: if stream, dl_device or copy=False cannot be satisfied.
    """
    if any(step < 0 for step in x.strides):
        if copy is False:
            raise ExchangeError(
                f"dlpack: {x.spec} has strides {x.strides}; some libraries cannot read them\n"
                "  try: copy=None, or share a copy of the tensor: x.clone()"
            )
        copy = True
    backend = x.device.backend
    here = tuple(backend.dlpack_device())
    if here[0] not in HOST:
        if dl_device is None or dl_device == here:
            return backend.to_dlpack(x, stream, max_version, copy)
        if dl_device[0] not in HOST:
            raise ExchangeError(f"dlpack: {x.device} is DLPack's {here}, not {dl_device}")
    if stream is not None:
        raise ExchangeError(f"dlpack: host memory has no streams, got stream {stream!r}")
    if copy is False and not hasattr(backend, "adopt"):
        raise ExchangeError(f"dlpack: {x.device} cannot share its memory without a copy")
    values = backend.download(x)
    if x.dtype is not dtypes.bfloat16:
        return _capsule(values, max_version, dl_device, copy)
    capsule = _capsule(values.view(np.uint16), max_version, dl_device, copy)
    _set_code(capsule, BFLOAT)
    return capsule


NDArray.__dlpack__ = to_dlpack


def _capsule(values: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    if NEGOTIATES:
        return values.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)
    if dl_device is not None and dl_device[0] not in HOST:
        raise ExchangeError(f"dlpack: the memory is on the host, not on {dl_device}")
    return (values.copy() if copy else values).__dlpack__()


def _code(capsule: Any) -> Any:
    """Return the byte of a DLPack capsule that says which kind of number it holds."""
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if type(capsule).__name__ != "PyCapsule":
        raise ExchangeError(
            f"from_dlpack: expected a capsule from __dlpack__, got {type(capsule).__name__}"
        )
    name = python.PyCapsule_GetName(capsule)
    if name not in CODE_AT:
        used = "; it was used before" if str(name).startswith("b'used") else ""
        raise ExchangeError(f"from_dlpack: a capsule named {name!r}{used}")
    return ctypes.c_uint8.from_address(python.PyCapsule_GetPointer(capsule, name) + CODE_AT[name])


def _set_code(capsule: Any, code: int) -> None:
    _code(capsule).value = code


class _Unsigned:
    """Offers bfloat16 memory through DLPack as uint16, which NumPy can read."""

    def __init__(self, source: Any, copy: bool | None) -> None:
        self.source = source
        self.copy = copy
        self.is_bfloat = False
        self.refusal: BufferError | NeedleError | None = None

    def __dlpack__(self, **kwargs: Any) -> Any:
        try:
            capsule = self._capsule(kwargs)
            code = _code(capsule)
        except (BufferError, NeedleError) as error:
            self.refusal = error
            raise
        if code.value == BFLOAT:
            code.value = UNSIGNED
            self.is_bfloat = True
        return capsule

    def _capsule(self, kwargs: dict[str, Any]) -> Any:
        if self.copy is False:
            try:
                return self.source.__dlpack__(**{**kwargs, "copy": False})
            except TypeError:  # older than that argument, so it never copies
                pass
        return self.source.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()


def from_dlpack(x: Any, device: Any = None, copy: bool | None = None) -> NDArray:
    """Return an array over the memory of another library's array.

    Args:
        x: a NumPy array, or anything with ``__dlpack__``.
        device: device of the result. None keeps arrays on their GPU, and moves host memory to the
            default device.
        copy: True: always copy; False: never, raise ExchangeError; None: only if the memory cannot
            be shared (not aligned, other byte order, another device).

    Raises:
        DeviceError: if x is on a device that Needle does not have.
        ArgumentError: if x does not support DLPack.
        DtypeError: if Needle, or NumPy for host memory, lacks the dtype of x.
        ExchangeError: if copy=False is not possible, or x does not return a fresh capsule.
    """
    try:
        return _adopted(x, device, copy)
    except OptionError as error:
        raise DtypeError(f"from_dlpack: {error}") from None


def _adopted(x: Any, device: Any, copy: bool | None) -> NDArray:
    if not isinstance(x, np.ndarray):
        place = _place(x)
        if place[0] not in HOST:
            return _from_device(x, *place, device, copy)
    values = x if isinstance(x, np.ndarray) else _as_numpy(x, copy)
    where = devices.as_device(device)
    kind = dtypes.as_dtype(values.dtype)
    if copy or not _can_share(values, where):
        if copy is False:
            raise ExchangeError(f"from_dlpack: {where} cannot share this memory without a copy")
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


def _place(x: Any) -> tuple[int, int]:
    """Return DLPack's numbers of the device of x."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise ArgumentError(
            f"from_dlpack: {type(x).__name__} does not offer __dlpack__ and __dlpack_device__\n"
            "  rule: pass the array itself (of NumPy or another library), not a capsule"
        )
    found = x.__dlpack_device__()
    try:
        kind, number = found
        return int(kind), int(number)
    except (TypeError, ValueError):
        raise ExchangeError(
            f"from_dlpack: expected two integers from __dlpack_device__, got {found!r:.60}"
        ) from None


def _from_device(x: Any, kind: int, number: int, device: Any, copy: bool | None) -> NDArray:
    """Return an array over memory that is not the host's."""
    if kind not in DEVICES or DEVICES[kind] not in {d.name for d in devices.all_devices()}:
        raise DeviceError(
            f"from_dlpack: the memory is on DLPack's device ({kind}, {number}), which Needle does "
            f"not know\n  known: host memory, {', '.join(f'{n} ({k})' for k, n in DEVICES.items())}"
        )
    where = devices.as_device(f"{DEVICES[kind]}:{number}")
    target = where if device is None else devices.as_device(device)
    if target != where and copy is False:
        raise ExchangeError(f"from_dlpack: {target} cannot share memory of {where} without a copy")
    shared = where.backend.from_dlpack(x)
    if target != where:
        return shared.to(target)
    return shared.copy() if copy else shared


def _as_numpy(x: Any, copy: bool | None) -> Any:
    wrapped = _Unsigned(x, copy)
    try:
        values = np.from_dlpack(wrapped)
        return values.view(dtypes.bfloat16.numpy) if wrapped.is_bfloat else values
    except (BufferError, RuntimeError) as error:
        if wrapped.refusal is not None:
            raise wrapped.refusal from None
        kind = getattr(x, "dtype", "an unknown dtype")
        raise DtypeError(f"from_dlpack: {type(x).__name__} of {kind}: {error}") from error


def _can_share(values: Any, where: Any) -> bool:
    whole = all(s % values.itemsize == 0 for s in values.strides)
    shares = hasattr(where.backend, "adopt")
    return bool(shares and whole and values.flags.aligned and values.dtype.isnative)

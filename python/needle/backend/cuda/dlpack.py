"""DLPack for device memory: makes and reads capsules as defined by dlpack.h.

The stream rules are those of the Python array API standard (``__dlpack__``): the reader names the
stream in which it will use the memory, and the producer lets that stream wait for its own work. The
host does not wait.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from math import prod
from typing import TYPE_CHECKING, Any

from needle import devices
from needle import dtype as dtypes
from needle.backend.array import dense_strides, make_array, make_spec
from needle.backend.cuda.arena import Foreign, address
from needle.backend.cuda.launch import Launcher
from needle.errors import DeviceError, ExchangeError

if TYPE_CHECKING:
    from needle.backend.ndarray import NDArray

NO_SYNC, LEGACY = -1, 1
"""Numbers that the standard gives to "do not wait" and to CUDA's legacy default stream."""

CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
"""DLDataTypeCode."""
READ_ONLY, IS_COPIED = 1, 2
"""Bits of DLManagedTensorVersioned.flags."""
VERSION = (1, 0)


class _Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("number", c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("device", _Device), ("ndim", c_int32), ("dtype", _Type),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
"""Names of capsules, which tell their version and whether they were used."""
_LAYOUTS: dict[bytes, Any] = {PLAIN: _Managed, VERSIONED: _Versioned}

_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)

_python = ctypes.PyDLL(None)
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, _DESTRUCTOR]
_name = _python.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_rename = _python.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
# of a capsule that is being destroyed, which must not be touched as an object
_is_valid = ctypes.PyDLL(None)["PyCapsule_IsValid"]
_is_valid.argtypes = [c_void_p, ctypes.c_char_p]
_dying_pointer = ctypes.PyDLL(None)["PyCapsule_GetPointer"]
_dying_pointer.restype, _dying_pointer.argtypes = c_void_p, [c_void_p, ctypes.c_char_p]


# ---- giving ----------------------------------------------------------------------------

_given: dict[int, tuple[Any, ...]] = {}
"""By address of a capsule's structure: the structure, shape, strides, array and stream."""


def give(
    backend: Launcher,
    x: NDArray,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule over the memory of an array.

    Args:
        backend: backend of the array's device.
        x: an array.
        stream: stream of the reader: the number of a stream; None or 1: CUDA's legacy default
            stream; 2: the default stream of each thread; -1: the reader synchronizes itself.
        max_version: the newest version of DLPack that the reader knows.
        copy: True: share a copy.

    Raises:
        ExchangeError: for a stream that the standard does not allow, such as 0; and for read-only
            memory, if the reader only knows versions without a read-only flag.
    """
    reader = _reader(x, stream)
    x = x.copy() if copy else x
    name = VERSIONED if max_version is not None and max_version >= VERSION else PLAIN
    readonly = bool(x.handle.readonly)
    if readonly and name == PLAIN:
        raise ExchangeError(
            f"dlpack: read-only memory needs version {'.'.join(map(str, VERSION))} of DLPack, "
            f"max_version is {max_version}"
        )
    place = address(x)  # after this, the current stream has waited for x
    if reader is not None:
        backend.driver.wait(reader, backend.streams.record())
    made = _LAYOUTS[name]()
    shape, strides = (c_int64 * x.ndim)(*x.shape), (c_int64 * x.ndim)(*x.strides)
    made.tensor = _Tensor(
        place if x.size else None, _Device(*backend.driver.properties.dlpack), x.ndim,
        _type(x.dtype), shape, strides, 0,
    )  # fmt: skip
    made.deleter = ctypes.cast(_deleter, c_void_p)
    if name == VERSIONED:
        made.major, made.minor = VERSION
        made.flags = (READ_ONLY if readonly else 0) | (IS_COPIED if copy else 0)
    where = ctypes.addressof(made)
    _given[where] = (made, shape, strides, x, backend, reader)
    return _new(where, name, _destructor)


def _reader(x: NDArray, stream: Any) -> int | None:
    """Return the reader's stream, or None if it does not need to wait."""
    if stream is None:
        return LEGACY
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise ExchangeError(f"dlpack: expected the number of a stream, got {stream!r}")
    if stream == 0 or stream < NO_SYNC:
        raise ExchangeError(
            f"dlpack: stream {stream} of {x.device}\n"
            "  rule: the number of a stream, or 1 for the legacy default stream, 2 for the default "
            "stream of each thread, -1 for no wait; 0 is ambiguous, so it is not allowed"
        )
    return None if stream == NO_SYNC else stream


def _type(kind: Any) -> _Type:
    name = str(kind).rstrip("0123456789")
    return _Type(CODES[name], 8 * kind.itemsize, 1)


def _take_back(where: int) -> None:
    """Release the memory; work in the reader's stream may still run."""
    *_, x, backend, reader = _given.pop(where)
    if reader is not None:
        try:
            x.handle.used_by(backend.driver.record(reader))
        except DeviceError:  # the stream no longer exists
            backend.driver.synchronize()


def _destroy(capsule: int) -> None:
    for name in (PLAIN, VERSIONED):
        if _is_valid(capsule, name):  # the capsule was not used
            _take_back(_dying_pointer(capsule, name))


_deleter, _destructor = _DELETER(_take_back), _DESTRUCTOR(_destroy)
for _called_at_exit in (_deleter, _destructor):  # maybe when this module is gone
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_called_at_exit))


# ---- taking ----------------------------------------------------------------------------


def take(backend: Launcher, x: Any) -> NDArray:
    """Return an array over the memory of another library's array on this device.

    The other library gets it back when no tensor holds it and no stream uses it anymore.

    Raises:
        OptionError: if x has a dtype that Needle lacks.
        ExchangeError: if the capsule is invalid.
    """
    stream = backend.streams.current
    try:
        capsule = x.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # older than max_version
        capsule = x.__dlpack__(stream=stream)
    name = _name(capsule)
    if name not in _LAYOUTS:
        raise ExchangeError(
            f"from_dlpack: a capsule named {name!r}, not {PLAIN!r} or {VERSIONED!r}"
        )
    where = _pointer(capsule, name)
    made = _LAYOUTS[name].from_address(where)
    if name == VERSIONED and made.major != VERSION[0]:
        raise ExchangeError(
            f"from_dlpack: version {made.major}.{made.minor} of DLPack is not known"
        )
    tensor, readonly = made.tensor, name == VERSIONED and bool(made.flags & READ_ONLY)
    kind, shape, strides = _read(backend, tensor)
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))
    nbytes = span * kind.itemsize if prod(shape) else 0
    place, deleter = (tensor.data or 0) + tensor.byte_offset, made.deleter
    if place % kind.itemsize:
        raise ExchangeError(f"from_dlpack: memory at {place:#x} is not aligned for {kind}")
    _rename(capsule, USED[name])

    def give_back() -> None:
        if deleter:
            _DELETER(deleter)(where)

    handle = Foreign(backend.arena, place, nbytes, readonly, give_back)
    return make_array(make_spec(kind, devices.as_device(backend.name), shape), handle, 0, strides)


def _read(backend: Launcher, tensor: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Return dtype, shape and strides."""
    found = (tensor.device.type, tensor.device.number)
    if found != backend.driver.properties.dlpack:
        raise ExchangeError(f"from_dlpack: the capsule is of device {found}, not of {backend.name}")
    names = {code: name for name, code in CODES.items()}
    code, bits = names.get(tensor.dtype.code, f"code {tensor.dtype.code} "), tensor.dtype.bits
    if tensor.dtype.lanes != 1:
        raise ExchangeError(f"from_dlpack: {tensor.dtype.lanes} lanes of {code}{bits}, not 1")
    kind = dtypes.as_dtype("bool" if code == "bool" else f"{code}{bits}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense_strides(shape)
    return kind, shape, strides

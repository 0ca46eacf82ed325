"""Convolution by oneDNN, where Needle was built with it and the library is installed.

The plug-in (src/onednn) is opened on first use, after the library: ``libdnnl.so.3`` of the package
onednn-cpu-gomp, or of the system. If either is missing, Needle reports the reason and works
without. Nothing else is linked with it. Its own memory is not in ``memory_info``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from needle import config
from needle import dtype as dtypes
from needle.backend.ndarray import NDArray, empty
from needle.errors import DeviceError

PACKAGE, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
DONE, NOT_TAKEN = 0, 1
_ROOM = 256
"""Size of the buffer for a message of the library."""

Sizes = Sequence[int]


class _Geometry(ctypes.Structure):
    """As ``Geometry`` in src/onednn/convolution.cc."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("axes", "n", "c", "k", "groups")),
        *(
            (name, ctypes.c_int64 * 3)
            for name in ("image", "out", "kernel", "stride", "dilation", "low")
        ),
    ]


def _candidates() -> list[str]:
    """Return possible paths of the library: of the package, the prefix, and the loader."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())).resolve() for file in files if file.name == LIBRARY]
    found.append(Path(sys.prefix) / "lib" / LIBRARY)
    return [*(str(path) for path in dict.fromkeys(found) if path.exists()), LIBRARY]


@functools.cache
def find() -> tuple[ctypes.CDLL | None, str]:
    """Return the plug-in and the library's version and path; or None and the reason."""
    plugin = Path(__file__).parents[1] / "_onednn.so"
    if not plugin.exists():
        return None, "Needle was built without oneDNN (rebuild with USE_DNNL=1 pip install ...)"
    errors = []
    for path in _candidates():
        try:
            ctypes.CDLL(path)  # the plug-in then finds it by its name
            opened = ctypes.CDLL(str(plugin))
        except OSError as error:
            errors.append(str(error))
        else:
            numbers = (ctypes.c_int32 * 3)()
            opened.needle_onednn_version(numbers)
            return opened, f"{'.'.join(map(str, numbers))}, {path}"
    return None, f"{LIBRARY} was not found (pip install {PACKAGE}==2023.2.0): {'; '.join(errors)}"


def plugin() -> ctypes.CDLL:
    """Return the plug-in.

    Raises:
        DeviceError: with the reason why it is missing.
    """
    opened, reason = find()
    if opened is None:
        raise DeviceError(
            f"NEEDLE_CONV=onednn: oneDNN cannot be used: {reason}\n"
            "  try: im2col, direct or winograd, or leave NEEDLE_CONV unset"
        )
    return opened


def _address(x: NDArray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.handle.ptr() + x.offset * x.dtype.itemsize)


def convolution(direction: int, op: Any, *inputs: NDArray) -> Any:
    """Return the result of an op of a direction; NotImplemented if oneDNN cannot compute it.

    Raises:
        DeviceError: if oneDNN is missing, for every dtype, or fails.
    """
    plugin()
    kind, floats = inputs[0].dtype, (dtypes.float32, dtypes.float16, dtypes.bfloat16)
    if kind not in floats or any(x.dtype is not kind or x.size == 0 for x in inputs):
        return NotImplemented
    shape = op.infer(*(x.spec for x in inputs)).shape
    kernel = op.kernel if hasattr(op, "kernel") else inputs[1].shape[:-2]
    out = empty(shape, dtypes.float32, inputs[0].device)
    a, b, *bias = (x.astype(dtypes.float32, copy=False).compact() for x in inputs)
    low, slope = [before for before, _ in op.padding], getattr(op, "slope", 1.0)
    window = kernel, op.stride, op.dilation, low, op.groups
    if not convolve(direction, out, a, b, bias[0] if bias else None, slope, *window):
        return NotImplemented
    return out.astype(kind, copy=False)


def convolve(
    direction: int, out: NDArray, a: NDArray, b: NDArray, bias: NDArray | None, slope: float,
    kernel: Sizes, stride: Sizes, dilation: Sizes, low: Sizes, groups: int,
) -> bool:  # fmt: skip
    """Compute a direction; return False if oneDNN cannot.

    All arrays are float32 and dense.

    Raises:
        DeviceError: if oneDNN is missing, or fails.
    """
    library = plugin()
    x, w, y = ((a, b, out), (out, b, a), (a, out, b))[direction]
    triple = ctypes.c_int64 * 3
    spatial = (x.shape[1:-1], y.shape[1:-1], kernel, stride, dilation, low)
    how = _Geometry(
        len(kernel), x.shape[0], x.shape[-1], y.shape[-1], groups,
        *(triple(*sizes) for sizes in spatial),
    )  # fmt: skip
    message = ctypes.create_string_buffer(_ROOM)
    status = library.needle_onednn_convolution(
        ctypes.c_int32(direction), ctypes.byref(how), *map(_address, (x, w, y, bias)),
        ctypes.c_float(slope), ctypes.c_int32(config.thread_count()), message,
        ctypes.c_int64(_ROOM),
    )  # fmt: skip
    if status not in (DONE, NOT_TAKEN):
        said: Any = message.value.decode(errors="replace")
        raise DeviceError(f"convolution by oneDNN: {said}; images {x.shape}, weights {w.shape}")
    return bool(status == DONE)

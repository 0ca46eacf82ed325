"""Dtypes and their limits, and the standard's inspection API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import devices, graph, ops
from needle import dtype as dtypes
from needle.backend.array import MAX_DIMS
from needle.dtype import DType, as_dtype
from needle.errors import DtypeError, unknown
from needle.ops.core.operands import default_float
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Operand, Tensor

__all__ = [
    "__array_namespace_info__", "astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type",
]  # fmt: skip

KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (dtypes.bool_,),
    "signed integer": tuple(d for d in dtypes.ALL if d.kind == "i"),
    "unsigned integer": tuple(d for d in dtypes.ALL if d.kind == "u"),
    "integral": dtypes.INTEGERS,
    "real floating": dtypes.FLOATS,
    "complex floating": (),
    "numeric": (*dtypes.INTEGERS, *dtypes.FLOATS),
}
"""Dtypes by the standard's names of their kinds."""

BEYOND = (dtypes.float16, dtypes.bfloat16)
"""Dtypes of Needle that are not in the standard."""


def _dtype_of(x: object) -> DType:
    return x.spec.dtype if isinstance(x, graph.TensorBase) else as_dtype(x)


def astype(
    x: Tensor, dtype: DTypeLike, /, *, copy: bool = True, device: DeviceLike = None
) -> Tensor:
    """Return x in another dtype, on another device if asked; x itself only without ``copy``."""
    out = ops.astype(operands.tensor(x), dtype)
    out = out if device is None else ops.to_device(out, device)
    return ops.copy(x) if copy and out is x else out


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> bool:
    """Return whether a dtype (or that of a tensor) promotes to another one."""
    target = as_dtype(to)
    return dtypes.promote(_dtype_of(from_), target) is target


def isdtype(dtype: DTypeLike, kind: str | DType | tuple[str | DType, ...] | None) -> bool:
    """Return whether a dtype is of a kind: a dtype, a name of ``KINDS``, or a tuple of them.

    Raises:
        OptionError: for an unknown kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise unknown("isdtype: kind", kind, KINDS)
        return dtype in KINDS[kind]
    return as_dtype(dtype) is as_dtype(kind)


def result_type(*arrays_and_dtypes: Operand | DTypeLike) -> DType:
    """Return the dtype that tensors, dtypes and Python numbers promote to.

    Raises:
        DtypeError: if they do not mix, or there are only Python numbers.
    """
    numbers = [x for x in arrays_and_dtypes if isinstance(x, (bool, int, float))]
    typed = [_dtype_of(x) for x in arrays_and_dtypes if not isinstance(x, (bool, int, float))]
    if not typed:
        raise DtypeError("result_type: expected at least one tensor or dtype")
    result = dtypes.result_type(*typed)
    for number in numbers:
        weak = dtypes.scalar_dtype(number, result)
        result = result if result.kind == "f" else weak
    return result


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a floating dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DTypeLike | Tensor, /) -> FloatInfo:
    """Return the limits of a floating dtype, or that of a tensor.

    Raises:
        DtypeError: if it is not floating.
    """
    kind = _dtype_of(type)
    if kind.kind != "f":
        raise DtypeError(f"finfo: {kind} is not floating")
    limits_of: Any = np.finfo
    if kind is dtypes.bfloat16:
        import ml_dtypes

        limits_of = ml_dtypes.finfo
    found = limits_of(kind.numpy)
    smallest = float(found.smallest_normal)
    limits = float(found.eps), float(found.max), float(found.min), smallest
    return FloatInfo(8 * kind.itemsize, *limits, kind)


def iinfo(type: DTypeLike | Tensor, /) -> IntegerInfo:
    """Return the limits of an integer dtype, or that of a tensor.

    Raises:
        DtypeError: if it is not an integer dtype.
    """
    kind = _dtype_of(type)
    if kind.kind not in "iu":
        raise DtypeError(f"iinfo: {kind} is not an integer dtype")
    found = np.iinfo(kind.numpy)
    return IntegerInfo(8 * kind.itemsize, int(found.max), int(found.min), kind)


class Info:
    """The capabilities of the namespace: the standard's inspection API."""

    def capabilities(self) -> dict[str, object]:
        """Return which optional behaviour is supported."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MAX_DIMS,
        }

    def default_device(self) -> devices.Device:
        """Return the device of new tensors."""
        return devices.default_device()

    def default_dtypes(self, *, device: DeviceLike = None) -> dict[str, DType]:
        """Return the default dtypes."""
        devices.as_device(device)
        return {
            "real floating": default_float(),
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(
        self,
        *,
        device: DeviceLike = None,
        kind: str | DType | tuple[str | DType, ...] | None = None,
    ) -> dict[str, DType]:
        """Return the dtypes of the standard, by name: all, or those of a kind (or a tuple)."""
        devices.as_device(device)
        chosen = [d for d in dtypes.ALL if d not in BEYOND]
        return {str(d): d for d in chosen if kind is None or isdtype(d, kind)}

    def devices(self) -> list[devices.Device]:
        """Return the devices that can be used here."""
        return [d for d in devices.all_devices() if d.enabled()]


def __array_namespace_info__() -> Info:
    """Return the capabilities of the namespace."""
    return Info()

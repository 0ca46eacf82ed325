"""Element types and their promotion (Python array API standard 2024.12, section "Type promotion").

A ``DType`` is its name: ``x.dtype == "float32"`` holds, and so does ``x.dtype == np.float32``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from needle.errors import DtypeError, unknown


class DType(str):
    """An element type. Compares equal to its name and to the NumPy dtype of that name."""

    __slots__ = ("code", "itemsize", "kind", "_numpy")
    code: int
    """Position in the native table."""
    itemsize: int
    """Bytes per element."""
    kind: str
    """"f" floating, "i" signed integer, "u" unsigned integer, "b" bool."""

    _numpy: np.dtype[Any] | None

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (bfloat16 comes from ml_dtypes)."""
        if self._numpy is None:
            import ml_dtypes

            self._numpy = np.dtype(ml_dtypes.bfloat16)
        return self._numpy

    @property
    def is_floating(self) -> bool:
        """Whether gradients make sense."""
        return self.kind == "f"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type) and issubclass(other, np.generic):
            return self.numpy.type is other
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return f"needle.{self!s}"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (str(self),)


def _make(code: int, name: str, kind: str, itemsize: int) -> DType:
    self = DType(name)
    self.code, self.kind, self.itemsize = code, kind, itemsize
    self._numpy = None if name == "bfloat16" else np.dtype(name)
    return self


# The order is that of `enum DType` in src/common/kernels.h.
float32 = _make(0, "float32", "f", 4)
float64 = _make(1, "float64", "f", 8)
bfloat16 = _make(2, "bfloat16", "f", 2)
float16 = _make(3, "float16", "f", 2)
int8 = _make(4, "int8", "i", 1)
int16 = _make(5, "int16", "i", 2)
int32 = _make(6, "int32", "i", 4)
int64 = _make(7, "int64", "i", 8)
uint8 = _make(8, "uint8", "u", 1)
bool_ = _make(9, "bool", "b", 1)

ALL = (float32, float64, bfloat16, float16, int8, int16, int32, int64, uint8, bool_)
FLOATS = ALL[:4]
INTEGERS = ALL[4:9]
_by_name: dict[Any, DType] = {str(d): d for d in ALL}
_by_name.update({bool: bool_, int: int64, float: float32, "float": float32, "int": int64})
_by_name.update({d.numpy: d for d in ALL if d != "bfloat16"})
_by_name.update({d.numpy.type: d for d in ALL if d != "bfloat16"})


def as_dtype(dtype: Any) -> DType:
    """Return the ``DType`` for a name, a NumPy dtype, a Python type, or itself.

    Raises:
        OptionError: if there is no such element type.
    """
    if type(dtype) is DType:
        return dtype
    try:
        return _by_name[dtype]
    except (KeyError, TypeError):
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
        if name in _by_name:
            return _by_name[name]
        raise unknown("dtype", str(name), map(str, ALL)) from None


def _promotions() -> dict[tuple[DType, DType], DType]:
    chains = [(int8, int16, int32, int64), (float16, float32, float64), (bfloat16, float32)]
    table = {(d, d): d for d in ALL}
    for chain in chains:
        for i, low in enumerate(chain):
            for high in chain[i:]:
                table[low, high] = table[high, low] = high
    table[bfloat16, float64] = table[float64, bfloat16] = float64
    table[bfloat16, float16] = table[float16, bfloat16] = float32
    for signed, result in ((int8, int16), (int16, int16), (int32, int32), (int64, int64)):
        table[uint8, signed] = table[signed, uint8] = result
    return table


PROMOTION = _promotions()


def promote(a: DType, b: DType) -> DType | None:
    """Return the dtype both promote to, or None where the standard leaves it undefined."""
    return PROMOTION.get((a, b))


def result_type(*dtypes: DType) -> DType:
    """Return the common dtype.

    Raises:
        DtypeError: if the dtypes do not mix (a float and an integer, a number and a bool).
    """
    result = dtypes[0]
    for other in dtypes[1:]:
        both = promote(result, other)
        if both is None:
            raise DtypeError(f"dtypes {result} and {other} do not mix; cast one with .astype()")
        result = both
    return result


def scalar_dtype(value: bool | int | float, like: DType) -> DType:
    """Return the dtype a Python scalar takes beside an array of dtype ``like`` (weak scalars).

    A float beside an integer or bool array gives float32, an integer beside a bool array int64.
    """
    if isinstance(value, bool) or (isinstance(value, int) and like.kind != "b"):
        return like
    if isinstance(value, int):
        return int64
    return like if like.kind == "f" else float32

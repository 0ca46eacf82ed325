"""Element types and their promotion (Python array API standard 2024.12, section "Type promotion").

``x.dtype == "float32"`` holds, and so does ``x.dtype == np.float32``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from needle.errors import DtypeError, RangeError, unknown

__all__ = [
    "DType", "bfloat16", "bool_", "float16", "float32", "float64", "int8", "int16", "int32",
    "int64", "result_type", "uint8",
]  # fmt: skip


class DType:
    """An element type. Compares equal to its name and to the NumPy dtype of that name.

    NumPy accepts it as a dtype, and as a dictionary key it equals its name.
    """

    __slots__ = ("name", "code", "itemsize", "kind", "_numpy")
    name: str
    """As in the array API standard, and "bfloat16"."""
    code: int
    """Position in the native table."""
    itemsize: int
    """Bytes per element."""
    kind: str
    """"f" floating, "i" signed integer, "u" unsigned integer, "b" bool."""

    def __init__(self, code: int, name: str, kind: str, itemsize: int) -> None:
        self.code, self.name, self.kind, self.itemsize = code, name, kind, itemsize
        self._numpy: np.dtype[Any] | None = None if name == "bfloat16" else np.dtype(name)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (bfloat16 comes from ml_dtypes)."""
        if self._numpy is None:
            import ml_dtypes

            self._numpy = np.dtype(ml_dtypes.bfloat16)
        return self._numpy

    dtype = numpy  # NumPy reads this attribute in np.zeros(3, x.dtype)

    @property
    def is_floating(self) -> bool:
        """Whether gradients make sense."""
        return self.kind == "f"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other
        if isinstance(other, str):
            return self.name == other
        if isinstance(other, np.dtype):
            return self.numpy == other
        if isinstance(other, type) and issubclass(other, np.generic):
            return self.numpy.type is other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    def __repr__(self) -> str:
        return f"needle.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


# The order is that of `enum DType` in src/common/kernels.h.
float32 = DType(0, "float32", "f", 4)
float64 = DType(1, "float64", "f", 8)
bfloat16 = DType(2, "bfloat16", "f", 2)
float16 = DType(3, "float16", "f", 2)
int8 = DType(4, "int8", "i", 1)
int16 = DType(5, "int16", "i", 2)
int32 = DType(6, "int32", "i", 4)
int64 = DType(7, "int64", "i", 8)
uint8 = DType(8, "uint8", "u", 1)
bool_ = DType(9, "bool", "b", 1)

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
        OptionError: for an unknown dtype.
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
    """Return the dtype that both promote to, or None where the standard leaves it undefined."""
    return PROMOTION.get((a, b))


def result_type(*dtypes: DType) -> DType:
    """Return the common dtype.

    Raises:
        DtypeError: if the dtypes do not mix (a float and an integer, a number and a bool), or if
            no dtype is given.
    """
    if not dtypes:
        raise DtypeError("result_type: expected at least one dtype, got none")
    result = dtypes[0]
    for other in dtypes[1:]:
        both = promote(result, other)
        if both is None:
            raise DtypeError(f"dtypes {result} and {other} do not mix; cast one with .astype()")
        result = both
    return result


def scalar_dtype(value: bool | int | float, like: DType) -> DType:
    """Return the dtype of a Python scalar combined with an array of dtype ``like`` (weak scalars).

    A float with an integer or bool array gives float32, an integer with a bool array int64.
    """
    if isinstance(value, bool) or (isinstance(value, int) and like.kind != "b"):
        return like
    if isinstance(value, int):
        return int64
    return like if like.kind == "f" else float32


def fits(x: float, kind: DType) -> bool:
    """Return whether a number lies in the range of an integer dtype."""
    low, high = _limits(kind)
    return low <= x < high


@cache
def _limits(kind: DType) -> tuple[int, int]:
    """Return the smallest number of an integer dtype, and the largest one plus 1."""
    bits = 8 * kind.itemsize
    return (0, 2**bits) if kind.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))


def check_range(values: Any, target: DType) -> None:
    """Refuse numbers of a NumPy array that an integer dtype cannot hold.

    Raises:
        RangeError: naming the first number out of range; NaN is out of range.
    """
    limits = np.iinfo(target.numpy)
    outside = ~((values >= limits.min) & (values < limits.max + 1))  # also true for NaN
    if outside.any():
        raise RangeError(
            f"array: {values[outside].flat[0]} does not fit into {target}\n"
            f"  rule: from {limits.min} to {limits.max}\n"
            "  try: a wider dtype, or a NumPy array, whose numbers wrap around"
        )


def check_numbers(values: Any) -> None:
    """Check that a NumPy array holds real numbers.

    NumPy would cast other values: None to NaN, strings to numbers, complex numbers to their real
    parts.

    Raises:
        DtypeError: for strings, objects, complex numbers and dates.
    """
    kind = values.dtype.kind
    if kind == "O":
        fit = all(map(is_number, {*map(type, values.flat)}))
    else:  # "V" is also NumPy's kind of bfloat16 and similar types
        fit = kind in "biuf" or (kind == "V" and values.dtype.type is not np.void)
    if not fit:
        raise no_numbers(values)


def no_numbers(values: Any) -> DtypeError:
    """Return the error about a NumPy array that does not hold real numbers."""
    return DtypeError(f"values of type {values.dtype} cannot be stored in an array")


def is_number(kind: type) -> bool:
    """Return whether objects of a type are real numbers: of Python or NumPy, or fractions."""
    if issubclass(kind, (np.generic, np.ndarray)):
        return issubclass(kind, (np.integer, np.floating, np.bool_))
    return hasattr(kind, "__float__")

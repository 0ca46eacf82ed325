"""The elementwise functions of functions.def, and their dtypes."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from needle import dtype as dtypes
from needle.backend.cuda.jit import KERNELS
from needle.dtype import DType

CPP: dict[DType | str, str] = {
    "float32": "float", "float64": "double", "bfloat16": "bf16", "float16": "f16", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool",
}  # fmt: skip
"""Names of dtypes in kernels."""

BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Types that move elements of a number of bytes."""

_GROUPS = {
    "FLOATS": dtypes.FLOATS,
    "INTEGERS": dtypes.INTEGERS,
    "NUMBERS": (*dtypes.FLOATS, *dtypes.INTEGERS),
    "INTEGRAL": (*dtypes.INTEGERS, dtypes.bool_),
    "ALL": dtypes.ALL,
}


class Row(NamedTuple):
    """One function."""

    arity: int
    dtypes: tuple[DType, ...]
    gives_bool: bool


@cache
def functions() -> dict[str, Row]:
    """Return the rows of functions.def by name."""
    text = (KERNELS / "functions.def").read_text()
    found = re.findall(r"^(UNARY|BINARY|TERNARY)\((\w+), (\w+), (\w+),", text, re.MULTILINE)
    arities = {"UNARY": 1, "BINARY": 2, "TERNARY": 3}
    return {
        name: Row(arities[kind], _GROUPS[group], result == "BOOL")
        for kind, name, group, result in found
    }

"""The elementwise functions of functions.def, and their dtypes."""

from __future__ import annotations

import os.path
import re
from functools import cache
from typing import NamedTuple

from needle import dtype as dtypes
from needle.dtype import DType

TABLE = os.path.join(os.path.dirname(__file__), "cuda", "kernels", "functions.def")
"""Its path, as a text: ``import needle`` does without pathlib."""

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
    with open(TABLE) as file:
        text = file.read()
    found = re.findall(r"^(UNARY|BINARY|TERNARY)\((\w+), (\w+), (\w+),", text, re.MULTILINE)
    arities = {"UNARY": 1, "BINARY": 2, "TERNARY": 3}
    return {
        name: Row(arities[kind], _GROUPS[group], result == "BOOL")
        for kind, name, group, result in found
    }

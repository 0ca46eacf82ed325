"""The names of dtypes in kernels."""

from __future__ import annotations

from needle.dtype import DType

CPP: dict[DType | str, str] = {
    "float32": "float", "float64": "double", "bfloat16": "bf16", "float16": "f16", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool",
}  # fmt: skip
"""Names of dtypes in kernels."""

BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Types that move elements of a number of bytes."""

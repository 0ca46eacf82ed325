"""Signatures of the functions of ops without attributes, for ``help`` and editors."""

from __future__ import annotations

import functools
import inspect

_OF_TWO = frozenset({
    "Add", "Atan2", "BitwiseAnd", "BitwiseLeftShift", "BitwiseOr", "BitwiseRightShift",
    "BitwiseXor", "CopySign", "Divide", "Equal", "FloorDivide", "Greater", "GreaterEqual", "Hypot",
    "Less", "LessEqual", "LogAddExp", "LogAddExp2", "LogicalAnd", "LogicalOr", "LogicalXor",
    "Maximum", "Minimum", "Multiply", "NextAfter", "NotEqual", "ReLUGrad", "Remainder",
    "SigmoidGrad", "SquaredDifference", "Subtract", "TanhGrad",
})  # fmt: skip


def signature_of(op: str) -> inspect.Signature:
    """Return the signature of the function of an op, by the name of its class."""
    return _signature(3 if op == "Where" else 1 + (op in _OF_TWO))


@functools.cache
def _signature(count: int) -> inspect.Signature:
    names = ("condition", "x", "y") if count == 3 else ("x", "y")[:count]
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])

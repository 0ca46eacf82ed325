"""Elementwise functions, under the standard's names and with its signatures.

Of two operands one may be a Python number. Integers given to a function that the standard defines
for floating dtypes only are cast to the default float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle import graph, ops
from needle.errors import DtypeError, explain
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import Operand, Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign",
    "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip


def _unary(function: Callable[..., Tensor], name: str = "") -> Callable[[Tensor], Tensor]:
    """Return an op's function with the standard's signature and name."""

    def call(x: Tensor, /) -> Tensor:
        return function(x)

    return _named(call, function, name)


def _binary(
    function: Callable[..., Tensor], name: str = ""
) -> Callable[[Operand, Operand], Tensor]:
    def call(x1: Operand, x2: Operand, /) -> Tensor:
        return function(x1, x2)

    return _named(call, function, name)


def _named(call: Any, function: Any, name: str) -> Any:
    call.__name__ = call.__qualname__ = name or function.__name__
    call.__doc__ = function.__doc__
    return call


abs = _unary(ops.absolute, "abs")
negative, sign, square, reciprocal = map(
    _unary, (ops.negative, ops.sign, ops.square, ops.reciprocal)
)
floor, ceil, round, trunc = map(_unary, (ops.floor, ops.ceil, ops.round, ops.trunc))
exp, expm1, log, log1p = map(_unary, (ops.exp, ops.expm1, ops.log, ops.log1p))
log2, log10, sqrt = map(_unary, (ops.log2, ops.log10, ops.sqrt))
sin, cos, tan = map(_unary, (ops.sin, ops.cos, ops.tan))
asin, acos, atan = map(_unary, (ops.asin, ops.acos, ops.atan))
sinh, cosh, tanh = map(_unary, (ops.sinh, ops.cosh, ops.tanh))
asinh, acosh, atanh = map(_unary, (ops.asinh, ops.acosh, ops.atanh))
isnan, isinf, isfinite = map(_unary, (ops.isnan, ops.isinf, ops.isfinite))
logical_not, bitwise_invert = map(_unary, (ops.logical_not, ops.bitwise_invert))

add, subtract, multiply, divide = map(_binary, (ops.add, ops.subtract, ops.multiply, ops.divide))
floor_divide, remainder = map(_binary, (ops.floor_divide, ops.remainder))
pow = _binary(ops.power, "pow")
maximum, minimum = map(_binary, (ops.maximum, ops.minimum))
atan2, hypot, logaddexp = map(_binary, (ops.atan2, ops.hypot, ops.logaddexp))
copysign, nextafter = map(_binary, (ops.copysign, ops.nextafter))
equal, not_equal = map(_binary, (ops.equal, ops.not_equal))
less, less_equal = map(_binary, (ops.less, ops.less_equal))
greater, greater_equal = map(_binary, (ops.greater, ops.greater_equal))
logical_and, logical_or, logical_xor = map(
    _binary, (ops.logical_and, ops.logical_or, ops.logical_xor)
)
bitwise_and, bitwise_or, bitwise_xor = map(
    _binary, (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor)
)
bitwise_left_shift, bitwise_right_shift = map(
    _binary, (ops.bitwise_left_shift, ops.bitwise_right_shift)
)


def positive(x: Tensor, /) -> Tensor:
    """Return x itself."""
    return operands.tensor(x)


def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign bit is set: of negative numbers, -0.0 and NaNs with that bit; bool."""
    if operands.tensor(x).dtype.kind == "f":
        return ops.less(ops.copysign(1.0, x), 0.0)
    return ops.less(x, 0)


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limit x to [min, max], in the dtype of x; None leaves that side open.

    Args:
        x: a tensor.
        min: the lower limit: a number, or a tensor that broadcasts.
        max: the upper limit: a number, or a tensor that broadcasts.

    Raises:
        DtypeError: if the dtype kinds of a limit and x differ: integers take integer limits only.
    """
    x = operands.tensor(x)
    if min is None and max is None:
        return ops.copy(x)
    for limit, name in ((min, "min"), (max, "max")):
        _check_limit(x, limit, name)
    return ops.astype(ops.clip(x, min, max), x.dtype)


def _check_limit(x: Tensor, limit: Any, name: str) -> None:
    """Refuse limits that the dtype of x would truncate, and limits that are not numbers."""
    if limit is None or isinstance(limit, (bool, int)):
        return
    typed = isinstance(limit, graph.TensorBase) or hasattr(limit, "__array__")
    if typed and (limit.dtype.kind == "f") == (x.dtype.kind == "f"):
        return
    if isinstance(limit, float) and x.dtype.kind == "f":
        return
    raise explain(
        DtypeError, "clip", f"{name} is not of the kind of x", [("x", x), (name, limit)],
        "floats are limited by floats, integers by integers; a Python integer limits both",
        f'x.astype("float32"), or an integer as {name}',
    )  # fmt: skip


# The complex functions are defined for real numbers too.


def real(x: Tensor, /) -> Tensor:
    """Return x itself: the real part of a real number."""
    return operands.tensor(x)


def imag(x: Tensor, /) -> Tensor:
    """Return zeros: the imaginary part of a real number."""
    return ops.zeros_like(operands.tensor(x))


def conj(x: Tensor, /) -> Tensor:
    """Return x itself: the conjugate of a real number."""
    return operands.tensor(x)

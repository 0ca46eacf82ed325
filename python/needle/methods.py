"""Methods of tensors that only call the op of the same name.

They have their own class to keep tensors.py short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle import ops
from needle.aliases import Aliases, _unary, _with_other
from needle.errors import ArgumentError, AxesError, OptionError, explain, unknown
from needle.executor import shape_of, spec_of
from needle.ops.core.operands import declined

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import DeviceLike, Index, Operand


def _operator(function: Callable[..., Any], reflected: str) -> Callable[[Any, Any], Any]:
    """Return the method of an operator: it calls a function, or else the other operand's method."""

    def operator(self: Any, other: Any) -> Any:
        try:
            return function(self, other)
        except ArgumentError:
            return declined(other, reflected)

    return operator


def _converted(dtype: str) -> Callable[[Any], Tensor]:
    """Return the method that converts to a dtype."""

    def method(self: Any) -> Tensor:
        return ops.astype(self, dtype)

    method.__doc__ = f"Convert to {dtype}."
    return method


def _reflected(function: Callable[..., Tensor]) -> Callable[[Any, Operand], Tensor]:
    """Return the method of an operator whose left operand is the other one."""
    return lambda self, other: function(other, self)


class Methods(Aliases):
    """The methods that NumPy and PyTorch have on arrays."""

    __slots__ = ()

    # ---- operators -------------------------------------------------------------

    def __eq__(self, other: Any) -> Any:
        """Whether elements are equal; a tensor of bools. False if other is not a number."""
        if not ops.comparable(other):
            return NotImplemented
        return ops.equal(self, other)

    def __ne__(self, other: Any) -> Any:
        if not ops.comparable(other):
            return NotImplemented
        return ops.not_equal(self, other)

    __hash__ = object.__hash__  # by identity, so that tensors can be keys

    __lt__ = _operator(ops.less, "__gt__")
    __le__ = _operator(ops.less_equal, "__ge__")
    __gt__ = _operator(ops.greater, "__lt__")
    __ge__ = _operator(ops.greater_equal, "__le__")

    __floordiv__ = _operator(ops.floor_divide, "__rfloordiv__")

    __rfloordiv__ = _reflected(ops.floor_divide)
    __mod__ = _operator(ops.remainder, "__rmod__")

    __rmod__ = _reflected(ops.remainder)
    __and__ = _operator(ops.bitwise_and, "__rand__")

    __rand__ = _reflected(ops.bitwise_and)
    __or__ = _operator(ops.bitwise_or, "__ror__")

    __ror__ = _reflected(ops.bitwise_or)
    __xor__ = _operator(ops.bitwise_xor, "__rxor__")

    __rxor__ = _reflected(ops.bitwise_xor)
    __lshift__ = _operator(ops.bitwise_left_shift, "__rlshift__")

    __rlshift__ = _reflected(ops.bitwise_left_shift)
    __rshift__ = _operator(ops.bitwise_right_shift, "__rrshift__")

    __rrshift__ = _reflected(ops.bitwise_right_shift)

    def __invert__(self) -> Tensor:
        return ops.bitwise_invert(self)

    __divmod__ = _operator(
        lambda x, y: (ops.floor_divide(x, y), ops.remainder(x, y)), "__rdivmod__"
    )

    def __rdivmod__(self, other: Operand) -> Any:
        return ops.floor_divide(other, self), ops.remainder(other, self)

    def __round__(self, digits: Any = None) -> Tensor:
        """Round to ``digits`` decimals, 0 for None; the dtype stays. See ``ops.round``."""
        return ops.round(self, 0 if digits is None else digits)

    __contains__ = ops.contains

    def __setitem__(self, index: Index, value: Operand) -> None:
        """Assign to a place. Results computed before keep the old value. See ``ops.setitem``."""
        ops.setitem(self, index, value)

    # ---- the array API standard ------------------------------------------------

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """The module ``needle.standard``: Needle under the standard's names.

        Raises:
            OptionError: for a version that the module does not support.
        """
        from needle import standard  # loaded only on demand

        known = ("2021.12", "2022.12", "2023.12", standard.__array_api_version__)
        if api_version is not None and api_version not in known:
            raise unknown("array API version", api_version, known)
        return standard

    @property
    def mT(self) -> Tensor:
        """The matrices transposed: the last two axes swapped.

        Raises:
            AxesError: if there are fewer than two.
        """
        if len(shape_of(self)) < 2:
            raise explain(AxesError, "mT", "there are fewer than two axes", [("x", self)])
        return ops.transpose(self)

    def to_device(self, device: DeviceLike, /, *, stream: object = None) -> Any:
        """Move to a device. There are no streams.

        Raises:
            OptionError: if a stream is given.
        """
        if stream is not None:
            raise OptionError(f"to_device: {device} has no streams, {stream!r} was given")
        return ops.to_device(self, device)

    def __complex__(self) -> complex:
        """The value of a single element as a Python complex number."""
        return complex(self.item())  # type: ignore[attr-defined]  # of the class that mixes it in

    # ---- of each element -------------------------------------------------------

    exp = _unary(ops.exp)
    log = _unary(ops.log)
    sqrt = _unary(ops.sqrt)
    rsqrt = _unary(ops.rsqrt)
    square = _unary(ops.square)
    tanh = _unary(ops.tanh)
    sigmoid = _unary(ops.sigmoid)
    relu = _unary(ops.relu)
    abs = _unary(ops.absolute)
    sign = _unary(ops.sign)
    reciprocal = _unary(ops.reciprocal)
    exp2 = _unary(ops.exp2)
    expm1 = _unary(ops.expm1)
    log2 = _unary(ops.log2)
    log10 = _unary(ops.log10)
    log1p = _unary(ops.log1p)
    sin = _unary(ops.sin)
    cos = _unary(ops.cos)
    tan = _unary(ops.tan)
    asin = _unary(ops.asin)
    acos = _unary(ops.acos)
    atan = _unary(ops.atan)
    sinh = _unary(ops.sinh)
    cosh = _unary(ops.cosh)
    asinh = _unary(ops.asinh)
    acosh = _unary(ops.acosh)
    atanh = _unary(ops.atanh)
    erf = _unary(ops.erf)

    def softplus(self) -> Tensor:
        """log(1 + exp(x))."""
        return ops.softplus(self)

    silu = _unary(ops.silu)
    gelu = ops.gelu
    floor = _unary(ops.floor)
    ceil = _unary(ops.ceil)
    round = ops.round
    trunc = _unary(ops.trunc)
    isnan = _unary(ops.isnan)
    isinf = _unary(ops.isinf)
    isfinite = _unary(ops.isfinite)
    logical_not = _unary(ops.logical_not)

    def pow(self, exponent: Operand) -> Tensor:
        """x to a power."""
        return ops.power(self, exponent)

    def clip(
        self,
        low: Operand | None = None,
        high: Operand | None = None,
        *,
        min: Operand | None = None,
        max: Operand | None = None,
    ) -> Tensor:
        """Limit to [low, high], which may be called min and max. See ``ops.clip``."""
        return ops.clip(self, low, high, min=min, max=max)

    maximum = _with_other(ops.maximum, "The larger of two, elementwise.")
    minimum = _with_other(ops.minimum, "The smaller of two, elementwise.")
    masked_fill = ops.masked_fill

    # ---- over axes -------------------------------------------------------------

    norm = ops.norm
    prod = ops.prod
    any = ops.any
    all = ops.all
    var = ops.var
    std = ops.std
    argmax = ops.argmax
    argmin = ops.argmin
    logsumexp = ops.logsumexp
    cumsum = ops.cumsum
    cumprod = ops.cumprod
    cummax = ops.cummax
    cummin = ops.cummin
    softmax = ops.softmax
    log_softmax = ops.log_softmax
    sort = ops.sort
    argsort = ops.argsort
    topk = ops.topk
    nonzero = ops.nonzero
    unique = ops.unique

    # ---- arrangement -----------------------------------------------------------

    squeeze = ops.squeeze
    unsqueeze = ops.unsqueeze
    flip = ops.flip
    gather = ops.gather
    take = ops.take
    flatten = ops.flatten
    swapaxes = ops.swapaxes
    unbind = ops.unbind
    roll = ops.roll
    tile = ops.tile
    repeat = ops.repeat
    tril = ops.tril
    triu = ops.triu
    diagonal = ops.diagonal
    trace = ops.trace

    dot = _with_other(ops.matmul, "Matrix product.")
    clone = ops.copy

    def numel(self) -> int:
        """Number of elements."""
        return int(spec_of(self).size)

    float = _converted("float32")
    double = _converted("float64")
    half = _converted("float16")
    bfloat16 = _converted("bfloat16")
    int = _converted("int32")
    long = _converted("int64")
    bool = _converted("bool")

"""Methods of tensors that only call the op of the same name.

They have their own class to keep tensors.py short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from needle import ops
from needle.aliases import Aliases
from needle.errors import ArgumentError, AxesError, OptionError, explain, unknown
from needle.executor import shape_of, spec_of
from needle.ops.operands import declined

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import DeviceLike, DTypeLike

Axes = int | Sequence[int] | None


def _operator(function: Callable[..., Any], reflected: str) -> Callable[[Any, Any], Any]:
    """Return the method of an operator: it calls a function, or else the other operand's method."""

    def operator(self: Any, other: Any) -> Any:
        try:
            return function(self, other)
        except ArgumentError:
            return declined(other, reflected)

    return operator


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

    def __rfloordiv__(self, other: Any) -> Tensor:
        return ops.floor_divide(other, self)

    __mod__ = _operator(ops.remainder, "__rmod__")

    def __rmod__(self, other: Any) -> Tensor:
        return ops.remainder(other, self)

    __and__ = _operator(ops.bitwise_and, "__rand__")

    def __rand__(self, other: Any) -> Tensor:
        return ops.bitwise_and(other, self)

    __or__ = _operator(ops.bitwise_or, "__ror__")

    def __ror__(self, other: Any) -> Tensor:
        return ops.bitwise_or(other, self)

    __xor__ = _operator(ops.bitwise_xor, "__rxor__")

    def __rxor__(self, other: Any) -> Tensor:
        return ops.bitwise_xor(other, self)

    __lshift__ = _operator(ops.bitwise_left_shift, "__rlshift__")

    def __rlshift__(self, other: Any) -> Tensor:
        return ops.bitwise_left_shift(other, self)

    __rshift__ = _operator(ops.bitwise_right_shift, "__rrshift__")

    def __rrshift__(self, other: Any) -> Tensor:
        return ops.bitwise_right_shift(other, self)

    def __invert__(self) -> Tensor:
        return ops.bitwise_invert(self)

    __divmod__ = _operator(
        lambda x, y: (ops.floor_divide(x, y), ops.remainder(x, y)), "__rdivmod__"
    )

    def __rdivmod__(self, other: Any) -> Any:
        return ops.floor_divide(other, self), ops.remainder(other, self)

    def __round__(self, digits: Any = None) -> Tensor:
        """Round to ``digits`` decimals, 0 for None; the dtype stays. See ``ops.round``."""
        return ops.round(self, 0 if digits is None else digits)

    def __contains__(self, value: Any) -> bool:
        """Whether any element equals the value, which may broadcast. See ``ops.contains``."""
        return ops.contains(self, value)

    def __setitem__(self, index: Any, value: Any) -> None:
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

    def to_device(self, device: DeviceLike, /, *, stream: Any = None) -> Any:
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

    def exp(self) -> Tensor:
        """Exponential."""
        return ops.exp(self)

    def log(self) -> Tensor:
        """Natural logarithm."""
        return ops.log(self)

    def sqrt(self) -> Tensor:
        """Square root."""
        return ops.sqrt(self)

    def rsqrt(self) -> Tensor:
        """Reciprocal square root."""
        return ops.rsqrt(self)

    def square(self) -> Tensor:
        """Square."""
        return ops.square(self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return ops.tanh(self)

    def sigmoid(self) -> Tensor:
        """Logistic function."""
        return ops.sigmoid(self)

    def relu(self) -> Tensor:
        """Rectifier."""
        return ops.relu(self)

    def abs(self) -> Tensor:
        """Absolute value."""
        return ops.absolute(self)

    def sign(self) -> Tensor:
        """Sign: -1, 0 or 1."""
        return ops.sign(self)

    def reciprocal(self) -> Tensor:
        """1 / x."""
        return ops.reciprocal(self)

    def exp2(self) -> Tensor:
        """Two to the power x."""
        return ops.exp2(self)

    def expm1(self) -> Tensor:
        """exp(x) - 1, accurate near 0."""
        return ops.expm1(self)

    def log2(self) -> Tensor:
        """Logarithm to base 2."""
        return ops.log2(self)

    def log10(self) -> Tensor:
        """Logarithm to base 10."""
        return ops.log10(self)

    def log1p(self) -> Tensor:
        """log(1 + x), accurate near 0."""
        return ops.log1p(self)

    def sin(self) -> Tensor:
        """Sine."""
        return ops.sin(self)

    def cos(self) -> Tensor:
        """Cosine."""
        return ops.cos(self)

    def tan(self) -> Tensor:
        """Tangent."""
        return ops.tan(self)

    def asin(self) -> Tensor:
        """Inverse sine."""
        return ops.asin(self)

    def acos(self) -> Tensor:
        """Inverse cosine."""
        return ops.acos(self)

    def atan(self) -> Tensor:
        """Inverse tangent."""
        return ops.atan(self)

    def sinh(self) -> Tensor:
        """Hyperbolic sine."""
        return ops.sinh(self)

    def cosh(self) -> Tensor:
        """Hyperbolic cosine."""
        return ops.cosh(self)

    def asinh(self) -> Tensor:
        """Inverse hyperbolic sine."""
        return ops.asinh(self)

    def acosh(self) -> Tensor:
        """Inverse hyperbolic cosine."""
        return ops.acosh(self)

    def atanh(self) -> Tensor:
        """Inverse hyperbolic tangent."""
        return ops.atanh(self)

    def erf(self) -> Tensor:
        """Error function."""
        return ops.erf(self)

    def softplus(self) -> Tensor:
        """log(1 + exp(x))."""
        return ops.softplus(self)

    def silu(self) -> Tensor:
        """x * sigmoid(x)."""
        return ops.silu(self)

    def gelu(self, approximate: str | bool = "none") -> Tensor:
        """x times the normal distribution function of x; "tanh": an approximation."""
        return ops.gelu(self, approximate)

    def floor(self) -> Tensor:
        """Round down."""
        return ops.floor(self)

    def ceil(self) -> Tensor:
        """Round up."""
        return ops.ceil(self)

    def round(self, decimals: Any = 0) -> Tensor:
        """Round to a number of decimals, halves to the even digit. See ``ops.round``."""
        return ops.round(self, decimals)

    def trunc(self) -> Tensor:
        """Round towards zero."""
        return ops.trunc(self)

    def isnan(self) -> Tensor:
        """Whether an element is not a number."""
        return ops.isnan(self)

    def isinf(self) -> Tensor:
        """Whether an element is infinite."""
        return ops.isinf(self)

    def isfinite(self) -> Tensor:
        """Whether an element is neither infinite nor NaN."""
        return ops.isfinite(self)

    def logical_not(self) -> Tensor:
        """Whether an element is zero."""
        return ops.logical_not(self)

    def pow(self, exponent: Any) -> Tensor:
        """x to a power."""
        return ops.power(self, exponent)

    def clip(
        self, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
    ) -> Tensor:
        """Limit to [low, high], which may be called min and max. See ``ops.clip``."""
        return ops.clip(self, low, high, min=min, max=max)

    def maximum(self, other: Any) -> Tensor:
        """The larger of two, elementwise."""
        return ops.maximum(self, other)

    def minimum(self, other: Any) -> Tensor:
        """The smaller of two, elementwise."""
        return ops.minimum(self, other)

    def masked_fill(self, mask: Any, value: Any) -> Tensor:
        """Replace elements by the value where mask is true; the dtype stays."""
        return ops.masked_fill(self, mask, value)

    # ---- over axes -------------------------------------------------------------

    def norm(
        self, ord: Any = 2, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None
    ) -> Tensor:
        """Length of vectors over axes (all for None). See ``ops.norm``."""
        return ops.norm(self, ord, axes, keepdims, axis=axis)

    def prod(
        self,
        axes: Axes = None,
        keepdims: bool = False,
        *,
        axis: Axes = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Product, over axes (all for None)."""
        return ops.prod(self, axes, keepdims, axis=axis, dtype=dtype)

    def any(self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Tensor:
        """Whether any element is not zero, over axes (all for None)."""
        return ops.any(self, axes, keepdims, axis=axis)

    def all(self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Tensor:
        """Whether all elements are not zero, over axes (all for None)."""
        return ops.all(self, axes, keepdims, axis=axis)

    def var(
        self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None, correction: float = 0
    ) -> Tensor:
        """Variance over axes (all for None); correction 1 is the unbiased one."""
        return ops.var(self, axes, keepdims, axis=axis, correction=correction)

    def std(
        self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None, correction: float = 0
    ) -> Tensor:
        """Standard deviation over axes (all for None); correction 1 is the unbiased one."""
        return ops.std(self, axes, keepdims, axis=axis, correction=correction)

    def argmax(self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Any:
        """Position of the largest value. See ``ops.ArgMax``."""
        return ops.argmax(self, axes, keepdims, axis=axis)

    def argmin(self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Any:
        """Position of the smallest value. See ``ops.ArgMin``."""
        return ops.argmin(self, axes, keepdims, axis=axis)

    def logsumexp(self, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None) -> Any:
        """Logarithm of the sum of exponentials over axes (all for None)."""
        return ops.logsumexp(self, axes, keepdims, axis=axis)

    def cumsum(self, axis: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
        """Cumulative sum along an axis (of the flattened tensor for None)."""
        return ops.cumsum(self, axis, dtype=dtype)

    def cumprod(self, axis: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
        """Cumulative product along an axis (of the flattened tensor for None)."""
        return ops.cumprod(self, axis, dtype=dtype)

    def cummax(self, axis: int | None = None) -> Any:
        """Cumulative maximum along an axis, and its position. See ``ops.cummax``."""
        return ops.cummax(self, axis)

    def cummin(self, axis: int | None = None) -> Any:
        """Cumulative minimum along an axis, and its position. See ``ops.cummin``."""
        return ops.cummin(self, axis)

    def softmax(self, axis: int = -1, *, dtype: DTypeLike = None) -> Tensor:
        """Positive numbers that add up to 1 along an axis."""
        return ops.softmax(self, axis, dtype=dtype)

    def log_softmax(self, axis: int = -1, *, dtype: DTypeLike = None) -> Tensor:
        """Logarithm of softmax."""
        return ops.log_softmax(self, axis, dtype=dtype)

    def sort(self, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
        """The elements in order along an axis; always stable. See ``ops.Sort``."""
        return ops.sort(self, axis, descending)

    def argsort(self, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
        """The positions that sort along an axis; always stable. See ``ops.Sort``."""
        return ops.argsort(self, axis, descending)

    def topk(self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """The k largest (or smallest) values along an axis, and their positions."""
        return ops.topk(self, k, axis, largest, sorted)

    def nonzero(self, *, as_tuple: bool = True) -> Any:
        """The positions of all elements that are not zero, per axis. See ``ops.nonzero``."""
        return ops.nonzero(self, as_tuple=as_tuple)

    def unique(
        self, *, return_index: Any = False, return_inverse: Any = False, return_counts: Any = False
    ) -> Any:
        """The distinct values in ascending order. See ``ops.unique``."""
        return ops.unique(
            self,
            return_index=return_index,
            return_inverse=return_inverse,
            return_counts=return_counts,
        )

    # ---- arrangement -----------------------------------------------------------

    def squeeze(self, axes: Any = None, *, axis: Any = None) -> Tensor:
        """Remove axes of size 1 (all such for None)."""
        return ops.squeeze(self, axes, axis=axis)

    def unsqueeze(self, axis: int) -> Tensor:
        """Insert an axis of size 1."""
        return ops.unsqueeze(self, axis)

    def flip(self, axes: Any = None, *more: int, axis: Any = None) -> Tensor:
        """Reverse the order along axes (all for None)."""
        return ops.flip(self, axes, *more, axis=axis)

    def gather(self, index: Any, axis: Any = -1) -> Tensor:
        """Pick along an axis, one index per element; in either order. See ``ops.gather``."""
        return ops.gather(self, index, axis)

    def take(self, index: Any, axis: int | None = None) -> Tensor:
        """Pick slices along an axis. See ``ops.Take``."""
        return ops.take(self, index, axis)

    def flatten(self, start: int = 0, stop: int = -1) -> Tensor:
        """Merge the axes from start to stop into one."""
        return ops.flatten(self, start, stop)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Swap two axes."""
        return ops.swapaxes(self, axis1, axis2)

    def unbind(self, axis: int = 0) -> Any:
        """The slices along an axis, as a tuple."""
        return ops.unbind(self, axis)

    def roll(self, shifts: int | Sequence[int], axes: Axes = None, *, axis: Axes = None) -> Tensor:
        """Move elements along axes; they wrap around at the ends."""
        return ops.roll(self, shifts, axes, axis=axis)

    def tile(self, counts: int | Sequence[int]) -> Tensor:
        """Repeat the whole tensor along each axis."""
        return ops.tile(self, counts)

    def repeat(self, counts: int | Sequence[int], axis: int | None = None) -> Tensor:
        """Repeat each element along an axis."""
        return ops.repeat(self, counts, axis)

    def tril(self, k: int = 0) -> Tensor:
        """Keep the elements on and below diagonal k; set the others to 0."""
        return ops.tril(self, k)

    def triu(self, k: int = 0) -> Tensor:
        """Keep the elements on and above diagonal k; set the others to 0."""
        return ops.triu(self, k)

    def diagonal(self, k: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
        """The k-th diagonal of two axes, as a new last axis."""
        return ops.diagonal(self, k, axis1, axis2)

    def trace(self, k: int = 0) -> Tensor:
        """The sum of the k-th diagonal of the last two axes."""
        return ops.trace(self, k)

    def dot(self, other: Any) -> Tensor:
        """Matrix product."""
        return ops.matmul(self, other)

    def clone(self) -> Tensor:
        """A copy in new memory; gradients flow through."""
        return ops.copy(self)

    def numel(self) -> int:
        """Number of elements."""
        return int(spec_of(self).size)

    def float(self) -> Tensor:
        """Convert to float32."""
        return ops.astype(self, "float32")

    def double(self) -> Tensor:
        """Convert to float64."""
        return ops.astype(self, "float64")

    def half(self) -> Tensor:
        """Convert to float16."""
        return ops.astype(self, "float16")

    def bfloat16(self) -> Tensor:
        """Convert to bfloat16."""
        return ops.astype(self, "bfloat16")

    def int(self) -> Tensor:
        """Convert to int32."""
        return ops.astype(self, "int32")

    def long(self) -> Tensor:
        """Convert to int64."""
        return ops.astype(self, "int64")

    def bool(self) -> Tensor:
        """Convert to bool."""
        return ops.astype(self, "bool")

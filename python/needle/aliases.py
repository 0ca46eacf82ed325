"""Methods under PyTorch's names. Each calls an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from needle import ops
from needle.backend.axes import axes_of, integer, normalise_axis
from needle.errors import ArgumentError, AxesError, IndexRangeError, explain, unknown
from needle.executor import shape_of, spec_of
from needle.inspection import Inspection, attribute, sizes_in
from needle.ops.core.attributes import flag, real
from needle.ops.core.op import promoted
from needle.ops.core.operands import as_tensors
from needle.ops.shape.rearrange import window

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import Operand


def _times(x: Any, factor: Any) -> Any:
    """Return x times a number of PyTorch's ``alpha=`` and ``beta=``; x itself for 1."""
    if type(factor) in (int, float):
        return x if factor == 1 else x * factor
    real("alpha and beta", factor)
    return x * factor


def _unary(function: Callable[..., Tensor]) -> Callable[[Any], Tensor]:
    """Return a function of one tensor as a method: functions that are objects bind no tensor."""

    def method(self: Any) -> Tensor:
        return function(self)

    return _named(method, function)


def _with_other(function: Callable[..., Tensor], doc: str = "") -> Callable[[Any, Operand], Tensor]:
    """Return a function of two tensors as a method, whose argument is ``other``."""

    def method(self: Any, other: Operand) -> Tensor:
        return function(self, other)

    return _named(method, function, doc)


def _named(method: Any, function: Any, doc: str = "") -> Any:
    method.__name__ = method.__qualname__ = function.__name__
    method.__doc__ = doc or function.__doc__
    return method


class Aliases(Inspection):
    """Methods of PyTorch that Needle has as operators, as functions, or under another name."""

    __slots__ = ()

    # ---- of each element -------------------------------------------------------

    def add(self, other: Operand, *, alpha: float = 1) -> Tensor:
        """x + alpha * other."""
        return ops.add(self, _times(other, alpha))

    def sub(self, other: Operand, *, alpha: float = 1) -> Tensor:
        """x - alpha * other."""
        return ops.subtract(self, _times(other, alpha))

    mul = _with_other(ops.multiply, "x * other.")

    def div(self, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """x / other. Rounding mode "floor" rounds down, "trunc" towards zero; both keep integers.

        Raises:
            OptionError: for an unknown rounding mode.
        """
        if rounding_mode is None:
            return ops.divide(self, other)
        if rounding_mode == "floor":
            return ops.floor_divide(self, other)
        if rounding_mode != "trunc":
            raise unknown("div: rounding_mode", rounding_mode, ("floor", "trunc"))
        x, other = promoted((self, other), "div")
        if x.spec.dtype.kind == "f":
            return ops.trunc(ops.divide(x, other))
        return ops.floor_divide(ops.subtract(x, ops.fmod(x, other)), other)

    neg = _unary(ops.negative)

    subtract, multiply, divide, true_divide, negative = sub, mul, div, div, neg

    floor_divide = _with_other(ops.floor_divide, "x // other.")
    remainder = _with_other(ops.remainder, "x % other, with the sign of other.")
    fmod = _with_other(ops.fmod)
    frac = ops.frac
    xlogy = _with_other(ops.xlogy)
    heaviside = ops.heaviside
    sinc = ops.sinc
    erfc = _unary(ops.erfc)
    erfinv = _unary(ops.erfinv)

    atan2 = _with_other(ops.atan2, "Angle of the point (other, x).")
    copysign = _with_other(ops.copysign, "|x| with the sign of other.")
    hypot = _with_other(ops.hypot, "sqrt(x**2 + other**2), without overflow.")
    logaddexp = _with_other(ops.logaddexp, "log(exp(x) + exp(other)), without overflow.")
    logaddexp2 = _with_other(ops.logaddexp2, "log2(2**x + 2**other), without overflow.")
    lgamma = _unary(ops.lgamma)
    digamma = ops.digamma

    def polygamma(self, n: int) -> Tensor:
        """The n-th derivative of ``digamma``."""
        return ops.polygamma(n, self)

    def isclose(
        self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """Whether |x - other| <= atol + rtol * |other|. See ``ops.isclose``."""
        return ops.isclose(self, other, rtol, atol, equal_nan)

    def allclose(
        self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Whether all elements are close to other's. See ``ops.isclose``."""
        return ops.allclose(self, other, rtol, atol, equal_nan)

    addcmul = ops.addcmul
    addcdiv = ops.addcdiv
    logit = ops.logit
    leaky_relu = ops.leaky_relu
    elu = ops.elu

    clamp = ops.clamp

    def clamp_min(self, min: Operand) -> Tensor:
        """The larger of x and min."""
        return ops.clip(self, min)

    def clamp_max(self, max: Operand) -> Tensor:
        """The smaller of x and max."""
        return ops.clip(self, None, max)

    def lerp(self, other: Tensor, weight: Operand) -> Tensor:
        """Interpolate between x and other. See ``ops.lerp``."""
        return ops.lerp(self, other, weight)

    nan_to_num = ops.nan_to_num

    eq = _with_other(ops.equal, "x == other.")
    ne = _with_other(ops.not_equal, "x != other.")
    lt = _with_other(ops.less, "x < other.")
    le = _with_other(ops.less_equal, "x <= other.")
    gt = _with_other(ops.greater, "x > other.")
    ge = _with_other(ops.greater_equal, "x >= other.")
    logical_and = _with_other(ops.logical_and, "Whether neither is zero.")
    logical_or = _with_other(ops.logical_or, "Whether at least one is not zero.")
    logical_xor = _with_other(ops.logical_xor, "Whether exactly one is not zero.")
    bitwise_and = _with_other(ops.bitwise_and, "x & other.")
    bitwise_or = _with_other(ops.bitwise_or, "x | other.")
    bitwise_xor = _with_other(ops.bitwise_xor, "x ^ other.")
    bitwise_not = _unary(ops.bitwise_invert)

    def where(self, condition: Operand, other: Operand) -> Tensor:
        """x where the condition is true, else other."""
        return ops.where(condition, self, other)

    # ---- over axes -------------------------------------------------------------

    amax = ops.amax
    amin = ops.amin
    count_nonzero = ops.count_nonzero
    nansum = ops.nansum
    nanmean = ops.nanmean
    diff = ops.diff
    logcumsumexp = ops.logcumsumexp
    median = ops.median
    nanmedian = ops.nanmedian
    mode = ops.mode
    kthvalue = ops.kthvalue
    quantile = ops.quantile
    argwhere = ops.argwhere

    def searchsorted(
        self, values: Any, side: str | None = None, *, right: bool | None = None
    ) -> Tensor:
        """Positions to insert values into x, which is sorted. See ``ops.searchsorted``."""
        return ops.searchsorted(self, values, side, right=right)

    bucketize = ops.bucketize

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The elements that differ from the one before. See ``ops.unique_consecutive``."""
        return ops.unique_consecutive(
            self, return_inverse=return_inverse, return_counts=return_counts
        )

    # ---- arrangement -----------------------------------------------------------

    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in a new shape; unlike PyTorch's it copies where it must."""
        return ops.reshape(self, *shape)

    def view_as(self, other: Operand) -> Tensor:
        """The same elements in the shape of another tensor."""
        return ops.reshape(self, attribute(other, "shape"))

    reshape_as = view_as

    def ravel(self) -> Tensor:
        """All elements along one axis."""
        return ops.reshape(self, (spec_of(self).size,))

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """Repeat to a larger shape without copying; -1 keeps an axis."""
        sizes = axes_of(sizes_in(shape))
        own = shape_of(self)
        lead = len(sizes) - len(own)
        kept = [own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(sizes)]
        return ops.broadcast_to(self, kept)

    def expand_as(self, other: Operand) -> Tensor:
        """Repeat to the shape of another tensor, without copying."""
        return ops.broadcast_to(self, attribute(other, "shape"))

    moveaxis = ops.moveaxis

    movedim = moveaxis

    def t(self) -> Any:
        """The matrix transposed; tensors with fewer than two axes stay as they are.

        Raises:
            AxesError: if there are more than two.
        """
        ndim = len(shape_of(self))
        if ndim > 2:
            raise explain(AxesError, "t", f"x has {ndim} axes", [("x", self)], "a matrix", "x.mT")
        return ops.transpose(self) if ndim == 2 else self

    unflatten = ops.unflatten

    def narrow(self, axis: int, start: int, length: int) -> Tensor:
        """``length`` elements along an axis, from ``start`` on.

        Raises:
            ArgumentError: if the start or the length is not an integer.
            IndexRangeError: if the axis is too short.
        """
        shape = shape_of(self)
        size = shape[normalise_axis(axis, len(shape))]
        start, length = integer("narrow: start", start), integer("narrow: length", length)
        first = start + size if start < 0 else start
        if not 0 <= first <= first + length <= size:
            raise IndexRangeError(
                f"narrow: {length} elements from {start} of the {size} along axis {axis}"
            )
        return window(self, axis, first, length)

    def select(self, axis: int, index: int) -> Tensor:
        """One slice along an axis, which is removed."""
        place = normalise_axis(axis, len(shape_of(self)))
        return ops.getitem(self, (*(slice(None),) * place, index))

    pad = ops.pad

    def repeat_interleave(self, counts: int | Sequence[int], axis: int | None = None) -> Tensor:
        """Repeat each element along an axis (``repeat``; PyTorch's own repeat is ``tile``)."""
        return ops.repeat(self, counts, axis)

    split = ops.split
    chunk = ops.chunk
    tensor_split = ops.tensor_split
    hsplit = ops.hsplit
    vsplit = ops.vsplit

    def index_select(self, axis: int, index: Operand) -> Tensor:
        """Pick slices along an axis."""
        return ops.take(self, index, axis)

    take_along_dim = ops.take_along_dim
    diag_embed = ops.diag_embed
    rot90 = ops.rot90

    def unfold(self, axis: int, size: int, step: int) -> Any:
        """All windows along an axis, as a new last axis; a view. See ``ops.Windows``."""
        return ops.windows(self, (axis,), (size,), (step,), (1,))

    scatter = ops.scatter

    def scatter_add(self, axis: int, index: Operand, updates: Tensor) -> Any:
        """Add updates at indices along an axis, which are as many as indices or more."""
        sizes = shape_of(index)
        if len(sizes) == len(shape_of(updates)):  # the first updates are for the indices
            updates = ops.getitem(updates, tuple(slice(0, n) for n in sizes))
        return ops.add(self, ops.scatter_add(index, updates, axis, shape_of(self)))

    scatter_reduce = ops.scatter_reduce
    index_add = ops.index_add
    index_copy = ops.index_copy
    index_fill = ops.index_fill

    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
        """Write values at a tuple of indices, or add them there; returns a new tensor.

        Raises:
            ArgumentError: if the indices are no tuple.
        """
        if not isinstance(indices, (tuple, list)):
            raise ArgumentError(f"index_put: expected a tuple of indices, got {indices!r:.60}")
        place = tuple(indices)
        if not flag("index_put: accumulate", accumulate):
            return ops.put(self, place, values)
        counted = ops.reshape(ops.arange(0, spec_of(self).size), shape_of(self))
        places = ops.getitem(ops.to_device(counted, spec_of(self).device), place)
        given = ops.broadcast_to(values, shape_of(places))
        flat = ops.reshape(self, (spec_of(self).size,))
        added = ops.index_add(flat, 0, ops.reshape(places, (-1,)), ops.reshape(given, (-1,)))
        return ops.reshape(added, shape_of(self))

    def masked_scatter(self, mask: Operand, source: Any) -> Any:
        """Write the first elements of source, in order, where a mask is true."""
        mask = ops.broadcast_to(mask, shape_of(self))
        count = int(ops.count_nonzero(mask).item())
        return ops.put(self, mask, ops.getitem(ops.reshape(source, (-1,)), slice(0, count)))

    def masked_select(self, mask: Operand) -> Tensor:
        """The elements where a mask is true, as a vector; both broadcast."""
        own, chosen = ops.broadcast_arrays(*as_tensors((self, mask), "masked_select"))
        return ops.getitem(own, chosen)

    # ---- products --------------------------------------------------------------

    mm = bmm = mv = ops.matmul

    def addmm(self, y: Tensor, z: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
        """beta * x + alpha * (y @ z)."""
        return ops.add(_times(self, beta), _times(ops.matmul(y, z), alpha))

    baddbmm = addmv = addmm

    inverse, det = ops.inv, ops.det

    cholesky = ops.cholesky

    def dist(self, other: Operand, p: float = 2) -> Tensor:
        """The norm of x - other."""
        return ops.norm(ops.subtract(self, other), p)

    diag = ops.diag
    bincount = ops.bincount
    outer = ops.outer

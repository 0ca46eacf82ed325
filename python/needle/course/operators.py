"""NDArray's operators and indexing by the course's rules.

Indexing keeps every axis; operands have equal shapes, or one is a number; comparisons return 0.0
and 1.0; a sum of all elements has shape (1,). ``Tensor`` follows the array API standard instead.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from needle import devices
from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.array import dense_strides, make_array, make_spec
from needle.backend.axes import normalise_axes, normalise_index
from needle.backend.ndarray import NDArray, array, check_writable, empty
from needle.devices import Device
from needle.errors import IndexRangeError, ShapeError, explain

Shape = Sequence[int]


class Operators:
    """Indexing, arithmetic, comparisons, reductions and fields that ``NDArray`` gets."""

    # ---- indexing ------------------------------------------------------------

    def process_slice(self, sl: builtins.slice, dim: int) -> builtins.slice:
        """Return a slice with start, stop and step as numbers."""
        start, stop, step = sl.indices(_array(self).shape[dim])
        return builtins.slice(start, stop, step)

    def __getitem__(self, index: Any) -> NDArray:
        x = _array(self)
        return x.slice(_ranges(x, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        x = _array(self)
        target = x.slice(_ranges(x, index))
        check_writable(x)
        if not isinstance(value, NDArray):
            if np.ndim(value) == 0:
                target.fill(value.item() if isinstance(value, np.generic) else value)
                return
            value = array(value, x.dtype, x.device)
        source = _array(value)
        if _share(x, source):
            source = source.copy()  # or kernels would write before they have read
        if source.size != target.size:
            raise ShapeError(f"cannot assign {source.size} elements to {target.size}")
        if source.device != x.device:
            source = source.to(x.device)
        x.device.backend.copy(target, source.reshape(target.shape))

    # ---- arithmetic ------------------------------------------------------------

    def __add__(self, other: Any) -> NDArray:
        return _binary("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> NDArray:
        return _binary("subtract", self, other)

    def __rsub__(self, other: Any) -> NDArray:
        return _binary("subtract", self, other, swapped=True)

    def __mul__(self, other: Any) -> NDArray:
        return _binary("multiply", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> NDArray:
        return _binary("divide", _floating(self), other)

    def __rtruediv__(self, other: Any) -> NDArray:
        return _binary("divide", _floating(self), other, swapped=True)

    def __pow__(self, other: Any) -> NDArray:
        return _binary("power", self, other)

    def __neg__(self) -> NDArray:
        return _compute("negative", _array(self))

    def __matmul__(self, other: Any) -> NDArray:
        return kernels.matmul(_array(self), _operand(self, other))

    def maximum(self, other: Any) -> NDArray:
        """Return the elementwise maximum with an array of this shape, or a number."""
        return _binary("maximum", self, other)

    def log(self) -> NDArray:
        """Return the natural logarithm of each element."""
        return _compute("log", _floating(self))

    def exp(self) -> NDArray:
        """Return e to the power of each element."""
        return _compute("exp", _floating(self))

    def tanh(self) -> NDArray:
        """Return the hyperbolic tangent of each element."""
        return _compute("tanh", _floating(self))

    # ---- comparisons -------------------------------------------------------------

    def __eq__(self, other: object) -> NDArray:  # type: ignore[override]  # elementwise
        return _compare("equal", self, other)

    def __ne__(self, other: object) -> NDArray:  # type: ignore[override]  # elementwise
        return _compare("not_equal", self, other)

    def __lt__(self, other: Any) -> NDArray:
        return _compare("less", self, other)

    def __le__(self, other: Any) -> NDArray:
        return _compare("less_equal", self, other)

    def __gt__(self, other: Any) -> NDArray:
        return _compare("greater", self, other)

    def __ge__(self, other: Any) -> NDArray:
        return _compare("greater_equal", self, other)

    __hash__ = None  # type: ignore[assignment]  # == compares elements

    # ---- reductions, padding -----------------------------------------------------

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> NDArray:
        """Return the sum over an axis, or several; the total, for None, has shape (1,)."""
        return _reduce("sum", self, axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> NDArray:
        """Return the largest values along an axis; that of all, for None, has shape (1,)."""
        return _reduce("max", self, axis, keepdims)

    def pad(self, axes: Sequence[tuple[int, int]]) -> NDArray:
        """Return the array with zeros around it: (before, after) for each axis."""
        return kernels.pad(_array(self), tuple((int(a), int(b)) for a, b in axes))

    # ---- fields and constructors --------------------------------------------------

    @property
    def _shape(self) -> Shape:
        return _array(self).shape

    @property
    def _strides(self) -> Shape:
        return _array(self).strides

    @property
    def _offset(self) -> int:
        return _array(self).offset

    @property
    def _device(self) -> Device:
        return _array(self).device

    @property
    def _handle(self) -> Any:
        return _array(self).handle

    @staticmethod
    def make(
        shape: Shape,
        strides: Shape | None = None,
        device: Any = None,
        handle: Any = None,
        offset: int = 0,
        dtype: Any = "float32",
    ) -> NDArray:
        """Return an array over a handle (a new one for None), without checks."""
        spec = make_spec(dtypes.as_dtype(dtype), devices.as_device(device), tuple(shape))
        if handle is None:
            return empty(spec.shape, spec.dtype, spec.device)
        return make_array(spec, handle, offset, None if strides is None else tuple(strides))

    @staticmethod
    def compact_strides(shape: Shape) -> Shape:
        """Return the strides of a dense array of this shape."""
        return dense_strides(tuple(shape))


def _array(x: Any) -> NDArray:
    return cast("NDArray", x)


def _ranges(x: NDArray, index: Any) -> list[tuple[int, int, int]]:
    """Return (first, count, step) per axis; an integer keeps its axis, with size 1."""
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > x.ndim:
        raise IndexRangeError(f"{len(given)} indices for {x.ndim} dimensions")
    ranges = []
    for axis, size in enumerate(x.shape):
        part = given[axis] if axis < len(given) else builtins.slice(None)
        if isinstance(part, builtins.slice):
            start, stop, step = part.indices(size)
            ranges.append((start, len(range(start, stop, step)), step))
        else:
            ranges.append((normalise_index(_place(part), size, axis), 1, 1))
    return ranges


def _share(x: NDArray, y: NDArray) -> bool:
    """Return whether two arrays are views of the same memory."""
    if x.device != y.device or not hasattr(x.handle, "ptr"):  # meta has none
        return False
    return bool(x.handle.ptr() == y.handle.ptr())


def _place(part: Any) -> int:
    try:
        return operator.index(part)
    except TypeError:
        raise IndexRangeError(
            f"index: {part!r:.60} cannot index an NDArray\n  rule: integers and slices\n"
            "  try: a Tensor, which takes the same indices as NumPy's arrays"
        ) from None


def _floating(x: Any) -> NDArray:
    array = _array(x)
    return array if array.dtype.is_floating else array.astype(dtypes.float32)


def _operand(x: Any, other: Any) -> Any:
    """Return other as an array beside x, or NotImplemented."""
    if isinstance(other, NDArray):
        return other
    if isinstance(other, (np.ndarray, np.generic, bool, int, float, list, tuple)):
        target = _array(x)
        if np.ndim(other) == 0 and not isinstance(other, np.ndarray):
            number = other.item() if isinstance(other, np.generic) else other
            kind = dtypes.scalar_dtype(cast(float, number), target.dtype)
            return array(number, kind, target.device)
        return array(other, target.dtype, target.device)
    return NotImplemented


def _pair(function: str, x: Any, other: Any) -> Any:
    y = _operand(x, other)
    if y is NotImplemented:
        return y
    left, right = _array(x), _array(y)
    if right.shape not in ((), left.shape):
        raise explain(
            ShapeError, function, f"shapes {left.shape} and {right.shape} differ",
            [("x", left), ("y", right)], "NDArray operands need equal shapes, or one is a number",
            "broadcast_to(shape), or use Tensors, which broadcast",
        )  # fmt: skip
    if left.dtype is not right.dtype:
        common = dtypes.result_type(left.dtype, right.dtype) if right.shape else right.dtype
        left, right = left.astype(common, copy=False), right.astype(common, copy=False)
    return left, right


def _compute(function: str, *arrays: NDArray, dtype: Any = None) -> NDArray:
    return kernels.elementwise(function, *arrays, dtype=dtype)


def _binary(function: str, x: Any, other: Any, swapped: bool = False) -> Any:
    pair = _pair(function, x, other)
    if pair is NotImplemented:
        return pair
    return _compute(function, *(reversed(pair) if swapped else pair))


def _compare(function: str, x: Any, other: Any) -> Any:
    pair = _pair(function, x, other)
    if pair is NotImplemented:
        return pair
    kind = pair[0].dtype if pair[0].dtype.is_floating else dtypes.float32
    return _compute(function, *pair, dtype=dtypes.bool_).astype(kind)


def _reduce(function: str, x: Any, axis: Any, keepdims: bool) -> NDArray:
    array = _array(x)
    found = kernels.reduce(function, array, normalise_axes(axis, array.ndim), keepdims)
    return found if axis is not None or keepdims else found.reshape((1,))


for _name, _member in vars(Operators).items():
    if callable(_member) or isinstance(_member, (property, staticmethod)) or _name == "__hash__":
        setattr(NDArray, _name, _member)

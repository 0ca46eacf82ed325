"""NDArray's operators and indexing, and functions of devices, by the course's rules.

Indexing keeps every axis; operands have equal shapes, or one is a number; comparisons return 0.0
and 1.0; a sum of all elements has shape (1,). ``Tensor`` follows the array API standard instead.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from needle import devices
from needle import dtype as dtypes
from needle.backend.axes import normalise_axes, normalise_index
from needle.errors import IndexRangeError, ShapeError, explain

if TYPE_CHECKING:
    from needle.backend.ndarray import NDArray


class CourseArray:
    """Indexing, arithmetic, comparisons and reductions of NDArray."""

    __slots__ = ()

    # ---- indexing ------------------------------------------------------------

    def process_slice(self, sl: builtins.slice, dim: int) -> builtins.slice:
        """Return a slice with start, stop and step as numbers."""
        start, stop, step = sl.indices(_array(self).shape[dim])
        return builtins.slice(start, stop, step)

    def __getitem__(self, index: Any) -> NDArray:
        x = _array(self)
        return x.slice(_ranges(x, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        from needle.backend.ndarray import array, check_writable

        x = _array(self)
        target = x.slice(_ranges(x, index))
        check_writable(x)
        if not isinstance(value, CourseArray):
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
        from needle.backend import kernels

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
        from needle.backend import kernels

        return kernels.pad(_array(self), tuple((int(a), int(b)) for a, b in axes))


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
    from needle.backend.ndarray import array

    if isinstance(other, CourseArray):
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
    from needle.backend import kernels

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
    from needle.backend import kernels

    array = _array(x)
    found = kernels.reduce(function, array, normalise_axes(axis, array.ndim), keepdims)
    return found if axis is not None or keepdims else found.reshape((1,))


class CourseDevice:
    """The course's functions of a device: array creation, and the tiled product."""

    name: str

    def rand(self, *shape: int, dtype: Any = "float32") -> NDArray:
        """Return uniform numbers in [0, 1) from NumPy's global stream."""
        return self._make(np.random.rand(*shape), dtype)

    def randn(self, *shape: int, dtype: Any = "float32") -> NDArray:
        """Return standard normal numbers from NumPy's global stream."""
        return self._make(np.random.randn(*shape), dtype)

    def one_hot(self, n: int, i: Any, dtype: Any = "float32") -> NDArray:
        """Return rows of the identity matrix of size n.

        Raises:
            IndexRangeError: if an index is not below n.
        """
        index = np.asarray(i).astype(np.int64)
        if index.size and not (-n <= index.min() and index.max() < n):
            raise IndexRangeError(
                f"one_hot: indices from {index.min()} to {index.max()} for {n} classes"
            )
        return self._make(np.eye(n)[index], dtype)

    def empty(self, shape: Sequence[int], dtype: Any = "float32") -> NDArray:
        """Return an array whose values are not set."""
        from needle.backend.ndarray import empty

        return empty(tuple(shape), dtype or "float32", devices.as_device(self.name))

    def full(self, shape: Sequence[int], fill_value: float, dtype: Any = "float32") -> NDArray:
        """Return an array of one value."""
        from needle.backend.ndarray import full

        return full(tuple(shape), fill_value, dtype or "float32", devices.as_device(self.name))

    def _make(self, values: Any, dtype: Any) -> NDArray:
        from needle.backend.ndarray import array

        return array(values, dtype or "float32", devices.as_device(self.name))


class CourseTiles:
    """The tiled product of the course's CPU module."""

    name: str
    __tile_size__ = 8

    def matmul_tiled(self, a: Any, b: Any, out: Any, m: int, n: int, p: int) -> None:
        """Multiply float32 handles that hold matrices as tiles [rows, columns, tile, tile]."""
        from needle.backend.ndarray import NDArray

        t, where = self.__tile_size__, devices.as_device(self.name)

        def matrix(handle: Any, rows: int, columns: int) -> NDArray:
            tiles = NDArray.make((rows // t, columns // t, t, t), device=where, handle=handle)
            return tiles.permute((0, 2, 1, 3))

        product = matrix(a, m, n).reshape((m, n)) @ matrix(b, n, p).reshape((n, p))
        self.copy(matrix(out, m, p), product.reshape((m // t, t, p // t, t)))

    def copy(self, out: Any, x: Any) -> None:
        raise NotImplementedError

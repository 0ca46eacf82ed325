"""NDArray: shape, strides, offset, device, handle and dtype. Views never touch memory.

Structural operations live here once for all devices, with their checks; kernels.py holds the
operations that compute. Operators and indexing follow the course: its room puts them here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import config, devices, errors
from needle import dtype as dtypes
from needle.backend.array import (
    Array,
    Spec,
    dense_strides,
    make_array,
    make_spec,
    native_function,
    set_array_class,
)
from needle.backend.axes import new_shape, normalise_axes, normalise_axis
from needle.devices import Device
from needle.dtype import DType
from needle.errors import IndexRangeError, OptionError, ShapeError, explain

Shape = tuple[int, ...]
_reshaped, _permuted, _broadcast, _sliced, _empty, _empty_of, _copy = map(
    native_function, ("reshaped", "permuted", "broadcast", "sliced", "empty", "empty_of", "copy")
)

if TYPE_CHECKING:
    from needle.course.operators import Operators
    from needle.typing import DeviceLike, DTypeLike, Numpy, Values

    class _Base(Operators, Array): ...
else:
    _Base = Array


def broadcast_shapes(operation: str, *shapes: Shape) -> Shape:
    """Return the common shape by NumPy's rule.

    Raises:
        ShapeError: if two sizes of one axis differ and neither is 1.
    """
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, ndim - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    raise ShapeError(
                        f"{operation}: shapes do not broadcast, axis {i - ndim} has sizes "
                        f"{result[i]} and {size}\n  shapes: {', '.join(map(str, shapes))}\n"
                        "  rule: aligned at the last axis, sizes are equal or one of them is 1"
                    )
                result[i] = size
    return tuple(result)


def default_dtype(values: Numpy, typed: bool) -> DType:
    """Return the dtype for values whose dtype the user did not give.

    With ``NEEDLE_BACKEND=np`` as NumPy infers. Otherwise float32 for floating values and for
    Python numbers; typed integers and bools keep theirs.

    Args:
        values: the values as a NumPy array.
        typed: whether the user passed a NumPy array rather than Python numbers.
    """
    kind = values.dtype.kind
    if kind == "V" and values.dtype.name == "bfloat16":  # NumPy calls it void
        return dtypes.bfloat16
    if kind in "OSUVcmM":
        raise dtypes.no_numbers(values)
    if config.current().backend == "np":
        return dtypes.as_dtype(values.dtype)
    if kind == "f":
        return dtypes.float32 if values.dtype == np.float64 else dtypes.as_dtype(values.dtype)
    if kind in "iu" and not typed:
        return dtypes.float32
    return dtypes.as_dtype(values.dtype)


def _reshape_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Return the strides of a reshaped view, or None if it needs a copy."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result: list[int] = []
    i = 0
    group: list[tuple[int, int]] = []
    room = 1
    for size in new:
        if size == 1:
            result.append(result[-1] if result else 1)
            continue
        while room < size and i < len(old):
            group.append(old[i])
            room *= old[i][0]
            i += 1
        if room % size:
            return None
        if any(a[1] != b[0] * b[1] for a, b in zip(group, group[1:], strict=False)):
            return None
        room //= size
        result.append(group[-1][1] * room)
        if room == 1:
            group = []
    return tuple(result)


class NDArray(_Base):
    """A strided view of memory on a device.

    Args:
        other: an NDArray, NumPy array, nested list or number; it is copied.
        device: device of the array; for None, the device of other, or the default device.
        dtype: element type; see ``default_dtype`` for None.
    """

    __slots__ = ()
    spec: Spec
    handle: Any
    offset: int
    shape: Shape
    strides: Shape
    dtype: DType
    device: Device
    ndim: int
    size: int

    def __new__(cls, other: Values, device: DeviceLike = None, dtype: DTypeLike = None) -> NDArray:
        if isinstance(other, NDArray):
            made = other.astype(dtype or other.dtype, copy=True)
            made = made if device is None else made.to(device)
        else:
            made = array(other, dtype, device)
        if cls is NDArray:
            return made
        return make_array(made.spec, made.handle, made.offset, made.strides, cls)

    # ---- views ---------------------------------------------------------------

    def view(self, shape: Shape, strides: Shape, offset: int) -> NDArray:
        """Return a view of the same memory; no checks."""
        return make_array(make_spec(self.dtype, self.device, shape), self.handle, offset, strides)

    def as_strided(self, shape: Shape, strides: Shape) -> NDArray:
        """Return a view with these strides, from the same first element; no checks."""
        return self.view(tuple(shape), tuple(strides), self.offset)

    def is_compact(self) -> bool:
        """Return whether the elements lie in C order without gaps, the whole handle."""
        nbytes = getattr(self.handle, "nbytes", None)
        whole = nbytes is None or nbytes == self.size * self.dtype.itemsize
        return self.is_dense() and whole and self.offset == 0

    def is_dense(self) -> bool:
        """Return whether the elements lie in C order without gaps."""
        if self.strides == self.spec.strides or self.size == 0:
            return True
        pairs = zip(self.shape, self.strides, self.spec.strides, strict=True)
        return all(n == 1 or a == b for n, a, b in pairs)

    def compact(self) -> NDArray:
        """Return self if compact, else a compact copy."""
        return self if self.is_compact() else self.copy()

    def copy(self) -> NDArray:
        """Return a dense copy."""
        made = _copy(self, self.dtype, False)
        if made is not None:
            return made
        out = empty(self.shape, self.dtype, self.device)
        self.device.backend.copy(out, self)
        return out

    def reshape(self, *shape: int | Sequence[int]) -> NDArray:
        """Return the elements in C order under another shape: a view where strides allow it.

        One size may be -1. Raises ShapeError if the sizes differ.
        """
        made = _reshaped(self, shape[0] if len(shape) == 1 else shape)
        if made is not None:
            return made
        new = new_shape(shape, self.size, self.shape)
        strides = (
            dense_strides(new)
            if self.is_dense()
            else _reshape_strides(self.shape, self.strides, new)
        )
        if strides is None:
            return self.copy().reshape(new)
        return self.view(new, strides, self.offset)

    def permute(self, axes: Sequence[int]) -> NDArray:
        """Return a view with the axes in another order."""
        made = _permuted(self, axes)
        if made is not None:
            return made
        order = tuple(normalise_axis(axis, self.ndim) for axis in axes)
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"permute: {tuple(axes)} is not an order of {self.ndim} axes")
        shape, strides = self.shape, self.strides
        return self.view(
            tuple(shape[i] for i in order), tuple(strides[i] for i in order), self.offset
        )

    def broadcast_to(self, shape: Sequence[int]) -> NDArray:
        """Return a view with axes of size 1 repeated and leading axes added, all of stride 0."""
        made = _broadcast(self, shape)
        if made is not None:
            return made
        new = tuple(shape)
        lead = len(new) - self.ndim
        sizes = zip(self.shape, new[lead:], strict=False)
        if lead < 0 or any(n not in (1, m) for n, m in sizes) or any(n < 0 for n in new):
            raise explain(
                ShapeError, "broadcast_to", f"shape {self.shape} does not broadcast to {new}",
                rule="aligned at the last axis, sizes are equal or the source's is 1",
            )  # fmt: skip
        kept = zip(self.shape, self.strides, new[lead:], strict=True)
        strides = (0,) * lead + tuple(s if n == m else 0 for n, s, m in kept)
        return self.view(new, strides, self.offset)

    def slice(self, ranges: Sequence[tuple[int, int, int]]) -> NDArray:
        """Return a view: per axis (first index, number of elements, step).

        Raises:
            IndexRangeError: if a range leaves its axis.
        """
        made = _sliced(self, ranges)
        if made is not None:
            return made
        strides = self.strides
        if len(ranges) != self.ndim or any(len(r) != 3 for r in ranges):
            raise ShapeError(f"slice: expected three numbers for each of {self.ndim} axes")
        for axis, ((first, count, step), n) in enumerate(zip(ranges, self.shape, strict=True)):
            last = first + (count - 1) * step
            if count and not (count > 0 and 0 <= first < n and 0 <= last < n):
                raise IndexRangeError(
                    f"slice: {count} elements from {first} in steps of {step} exceed axis {axis} "
                    f"of size {n}"
                )
        offset = self.offset + sum(r[0] * s for r, s in zip(ranges, strides, strict=True))
        return self.view(
            tuple(r[1] for r in ranges),
            tuple(r[2] * s for r, s in zip(ranges, strides, strict=True)),
            offset,
        )

    def flip(self, axes: int | Sequence[int]) -> NDArray:
        """Return a view with the elements of these axes in reverse order."""
        flipped = normalise_axes(axes, self.ndim)
        return self.slice(
            [
                (max(n - 1, 0), n, -1) if axis in flipped else (0, n, 1)
                for axis, n in enumerate(self.shape)
            ]
        )

    def squeeze(self, axes: int | Sequence[int] | None = None) -> NDArray:
        """Return a view without these axes of size 1 (all such axes for None)."""
        if axes is None:
            axes = [i for i, n in enumerate(self.shape) if n == 1]
        gone = normalise_axes(axes, self.ndim)
        for axis in gone:
            if self.shape[axis] != 1:
                raise ShapeError(f"squeeze: expected size 1 of axis {axis}, got {self.shape[axis]}")
        kept = [i for i in range(self.ndim) if i not in gone]
        made = _reshaped(self, [self.shape[i] for i in kept])
        if made is not None:
            return made
        strides = self.strides
        return self.view(
            tuple(self.shape[i] for i in kept), tuple(strides[i] for i in kept), self.offset
        )

    def unsqueeze(self, axes: int | Sequence[int]) -> NDArray:
        """Return a view with new axes of size 1 at these places of the result."""
        count = 1 if isinstance(axes, int) else len(axes)
        new = normalise_axes(axes, self.ndim + count)
        shape = list(self.shape)
        for axis in new:
            shape.insert(axis, 1)
        return self.reshape(shape)

    def windows(
        self,
        axes: Sequence[int],
        sizes: Sequence[int],
        steps: Sequence[int] | int = 1,
        dilations: Sequence[int] | int = 1,
    ) -> NDArray:
        """Return a view of all windows: each axis becomes a count, window axes are appended.

        Shapes: [..., n, ...] -> [..., (n - dilation * (size - 1) - 1) // step + 1, ..., size]
        Raises: ShapeError if a window is larger than its axis; OptionError if the numbers of
                axes, sizes, steps and dilations differ.
        """
        steps = [steps] * len(axes) if isinstance(steps, int) else steps
        dilations = [dilations] * len(axes) if isinstance(dilations, int) else dilations
        if not len(axes) == len(sizes) == len(steps) == len(dilations):
            raise OptionError(
                f"windows: axes {tuple(axes)}, sizes {tuple(sizes)}, steps {tuple(steps)}, "
                f"dilations {tuple(dilations)} have different lengths"
            )
        shape, strides = list(self.shape), list(self.strides)
        for axis, size, step, dilation in zip(axes, sizes, steps, dilations, strict=True):
            axis = normalise_axis(axis, self.ndim)
            span = dilation * (size - 1) + 1
            if size < 1 or step < 1 or dilation < 1 or span > self.shape[axis]:
                raise ShapeError(
                    f"windows: size {size} with dilation {dilation}, step {step} does not fit "
                    f"axis {axis} of size {self.shape[axis]}"
                )
            whole = self.shape[axis]  # a longer step would leave the axis
            shape.append(size)
            strides.append(self.strides[axis] * min(dilation, whole))
            shape[axis] = (whole - span) // step + 1
            strides[axis] = self.strides[axis] * min(step, whole)
        return self.view(tuple(shape), tuple(strides), self.offset)

    # ---- values --------------------------------------------------------------

    @property
    def flat(self) -> NDArray:
        """The elements in C order: a one-dimensional view where possible."""
        return self.reshape((self.size,))

    def fill(self, value: float) -> None:
        """Set every element, in place."""
        check_writable(self)
        self.device.backend.fill(self, value)

    def numpy(self) -> Numpy:
        """Return the values as a NumPy array: a copy, or a view on the NumPy device."""
        self.device.backend.synchronize()
        values = self.device.backend.download(self)
        return values if self.device.name == "cpu_numpy" else np.array(values)

    def to(self, device: DeviceLike) -> NDArray:
        """Return self, or a copy on another device."""
        target = devices.as_device(device)
        if target is self.device or target == self.device:
            return self
        out = empty(self.shape, self.dtype, target)
        target.backend.upload(out, self.device.backend.download(self))
        return out

    def astype(self, dtype: DTypeLike, copy: bool = True) -> NDArray:
        """Return a copy with another element type, in self's memory order (self if it is the same
        and not copy)."""
        target = dtypes.as_dtype(dtype)
        if target is self.dtype and not copy:
            return self
        made = _copy(self, target, True)
        if made is not None:
            return made
        spec = make_spec(target, self.device, self.shape)
        handle = self.device.backend.allocate(spec.size * target.itemsize)
        out = make_array(spec, handle, 0, kept_order(self.shape, (self,)))
        self.device.backend.copy(out, self)
        return out

    def item(self) -> bool | int | float:
        """Return the value of a one-element array as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item: expected an array of one element, got {self.size} elements")
        return self.device.backend.download(self).item()

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> Numpy:
        self.device.backend.synchronize()
        values = self.device.backend.download(self)
        if _overlaps(values):  # as with NumPy's own broadcast_to
            values.flags.writeable = False
        if copy is None:  # NumPy before 2 has no such value
            return np.asarray(values, dtype)
        return np.array(values, dtype, copy=copy)

    __dlpack__: Callable[..., Any]
    """``dlpack.to_dlpack``, which that module puts here."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.backend.dlpack_device()

    def __len__(self) -> int:
        if not self.shape:
            raise errors.LengthError("len: a 0-dimensional array has no length")
        return self.shape[0]

    def __str__(self) -> str:
        return self._shown("{values}")

    def __repr__(self) -> str:
        return self._shown("NDArray({values}, device={device})")

    def _shown(self, text: str) -> str:
        try:
            return text.format(values=np.asarray(self), device=self.device)
        except (errors.NeedleError, MemoryError):  # repr must always return a text
            return f"NDArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def __deepcopy__(self, memo: object) -> NDArray:
        return self.copy()

    def __reduce__(self) -> tuple[object, ...]:
        return NDArray, (self.numpy(), self.device, self.dtype)


set_array_class(NDArray)

Arrays = Sequence[NDArray]
Rows = Sequence[Arrays]
"""For each of several tensors its arrays."""


def _overlaps(values: Numpy) -> bool:
    """Return whether several elements may share memory."""
    span = 1
    for step, n in sorted((abs(s), n) for s, n in zip(values.strides, values.shape, strict=True)):
        if n > 1 and step < span:
            return True
        span += (n - 1) * step
    return False


def check_writable(x: NDArray) -> None:
    """Raise ValueError if the array lies in memory that was shared as read-only."""
    handle = x.handle
    shared = isinstance(handle, np.ndarray) and not handle.flags.writeable
    if shared or getattr(handle, "readonly", False):
        raise ValueError("the array shares read-only memory; copy it first")


def kept_order(shape: Shape, arrays: tuple[NDArray, ...]) -> Shape | None:
    """Return dense strides in the memory order of the first operand of full shape (NHWC stays)."""
    for x in arrays:
        if x.shape == shape and x.strides != x.spec.strides and 0 not in x.strides:
            order = sorted(range(len(shape)), key=lambda i: (-abs(x.strides[i]), i))
            strides, step = [0] * len(shape), 1
            for axis in reversed(order):
                strides[axis] = step
                step *= shape[axis]
            return tuple(strides)
        if x.shape == shape:
            return None
    return None


def empty(shape: Shape, dtype: DTypeLike = "float32", device: DeviceLike = None) -> NDArray:
    """Return a dense array whose values are not set."""
    made = _empty(shape, dtype, device)
    if made is not None:
        return made
    where, kind = devices.as_device(device), dtypes.as_dtype(dtype)
    made = _empty(shape, kind, where)
    if made is not None:
        return made
    spec = make_spec(kind, where, tuple(shape))
    if any(n < 0 for n in spec.shape):
        raise ShapeError(f"shape {spec.shape} has a negative size")
    return empty_of(spec)


def empty_of(spec: Spec) -> NDArray:
    """Return a dense array with this spec whose values are not set."""
    made = _empty_of(spec)
    if made is not None:
        return made
    return make_array(spec, spec.device.backend.allocate(spec.size * spec.dtype.itemsize))


def full(
    shape: Shape, value: float, dtype: DTypeLike = "float32", device: DeviceLike = None
) -> NDArray:
    """Return a dense array of one value."""
    where = devices.as_device(device)
    return full_of(make_spec(dtypes.as_dtype(dtype), where, tuple(shape)), value)


def full_of(spec: Spec, value: float) -> NDArray:
    """Return a dense array of one value with this spec."""
    return spec.device.backend.filled(spec, value)


def _large(values: Numpy) -> Numpy:
    """Return numbers that NumPy keeps as objects (fractions, long integers) as float64."""
    if not values.size or not all(map(dtypes.is_number, {*map(type, values.flat)})):
        return values
    try:
        return values.astype(np.float64)
    except OverflowError:
        raise errors.RangeError("array: an integer is too large for any dtype") from None


def array(values: Values, dtype: DTypeLike = None, device: DeviceLike = None) -> NDArray:
    """Return a dense copy of a NumPy array, nested list or number; see ``default_dtype``.

    Raises:
        ShapeError: for lists of different lengths.
        DtypeError: for values that are not real numbers: text, None, complex numbers, dates.
        RangeError: for numbers in a list that the integer dtype, or any dtype, cannot hold. Arrays
            already have a dtype and wrap around as in NumPy's ``astype``.
    """
    typed = hasattr(values, "dtype")
    try:
        source = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            f"array: nested lists have different lengths or depths\n  {error}"
        ) from None
    if source.dtype == object and not typed:
        source = _large(source)
    target = default_dtype(source, typed) if dtype is None else dtypes.as_dtype(dtype)
    if source.dtype.kind not in "fiub":
        dtypes.check_numbers(source)
    if not typed and target.kind in "iu" and source.size and source.dtype.kind in "iuf":
        dtypes.check_range(source, target)
    out = empty(source.shape, target, device)
    if source.dtype != target.numpy:
        with np.errstate(all="ignore"):
            source = source.astype(target.numpy)
    out.device.backend.upload(out, source)
    return out

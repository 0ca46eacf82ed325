"""New tensors of given values. They require no gradient, unless the values are tensors that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import devices, executor, forward, graph
from needle import dtype as dtypes
from needle.backend import kernels, memory, ndarray
from needle.backend.axes import integer, sizes_of
from needle.dtype import DType, as_dtype, fits
from needle.errors import ArgumentError, DtypeError, OptionError, RangeError, ShapeError
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.op import cast
from needle.ops.core.operands import check_single, default_float, plain_number
from needle.ops.shape.movement import broadcast_to, reshape, to_device

if TYPE_CHECKING:
    from needle.devices import Device
    from needle.typing import DeviceLike, DTypeLike, NDArray, Operand, Tensor

__all__ = [
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "meshgrid", "ones",
    "ones_like", "zeros", "zeros_like",
]  # fmt: skip

Shape = int | Sequence[int]


def made(operation: str, make: Callable[..., Any], *args: Any) -> Tensor:
    """Return a tensor of the array that ``make(*args)`` gives.

    Raises:
        OutOfMemoryError: if the device has no memory for it; the error names the operation.
    """
    try:
        out = graph.wrap(make(*args))
        executor.note_leaf(out, operation)
        return out
    except MemoryError as error:
        raise memory.typed(error).during(operation, ()) from None


def _full(operation: str, shape: Shape, value: float, kind: DType, device: DeviceLike) -> Tensor:
    sizes = sizes_of(operation, shape)
    return made(operation, ndarray.full, sizes, value, kind, device)


def full(
    shape: Shape, value: bool | int | float, *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor of one value. Gradients flow to the value if it is a tensor.

    Args:
        shape: one size or several.
        value: a Python or NumPy number, or a tensor of one element.
        dtype: for None bool, int64 or float32: for a bool, an integer (of any size) or a float.
        device: the device of the result; the default device for None.

    Raises:
        ArgumentError: if the value is not a number.
        DtypeError: if an integer dtype cannot hold the value.
        ShapeError: if a size is negative, or the value has several elements.

    >>> print(ndl.full((2, 2), 7.0))
    [[7. 7.]
     [7. 7.]]
    """
    number = value
    if type(value) not in (int, float, bool):
        check_single(value)
        if _flows(dtype, value):
            one = _beside(value, as_dtype(dtype or default_float()), devices.as_device(device))
            return broadcast_to(reshape(one, ()), sizes_of("full", shape))
        number = plain_number(value)
        if not isinstance(number, (int, float)):
            raise ArgumentError(f"full: expected a real number, got {value!r:.60}")
    if dtype is None:
        kinds = {bool: dtypes.bool_, int: dtypes.int64}
        dtype = kinds.get(type(number)) or default_float()
    kind = as_dtype(dtype)
    if kind.kind in "iu" and not fits(number, kind):
        raise DtypeError(f"full: the number {number} does not fit into {kind}")
    return _full("full", shape, number, kind, device)


def _flows(dtype: Any, *values: Any) -> bool:
    """Return whether derivatives flow to values from a new tensor of this dtype made of them."""
    if not any(forward.varies(x) and x.spec.dtype.is_floating for x in values):
        return False
    return dtype is None or as_dtype(dtype).is_floating


def _beside(x: Operand, kind: DType, where: Device) -> Tensor:
    """Return a number, an array or a tensor as a tensor of a dtype on a device."""
    if not isinstance(x, graph.TensorBase):
        return graph.wrap(ndarray.array(x, kind, where))
    return to_device(cast(x, kind), where)


def zeros(shape: Shape, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return a tensor of zeros; float32 for dtype None.

    >>> print(ndl.zeros((2, 3)))
    [[0. 0. 0.]
     [0. 0. 0.]]
    """
    return _full("zeros", shape, 0, as_dtype(dtype or default_float()), device)


def ones(shape: Shape, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return a tensor of ones; float32 for dtype None.

    >>> print(ndl.ones((2, 3)))
    [[1. 1. 1.]
     [1. 1. 1.]]
    """
    return _full("ones", shape, 1, as_dtype(dtype or default_float()), device)


def empty(
    *shape: int | Sequence[int], dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor whose values are not set; float32 for dtype None.

    The sizes are given as a sequence or one by one.

    >>> ndl.empty((2, 3)).shape
    (2, 3)
    """
    kind = default_float() if dtype is None else as_dtype(dtype)
    sizes = shape[0] if len(shape) == 1 else shape
    return made("empty", ndarray.empty, sizes_of("empty", sizes), kind, device)


def full_like(x: Any, value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return a tensor of one value with the shape, dtype and device of x. See ``full``.

    >>> print(ndl.full_like(Tensor([1.0, 2.0]), 7.0))
    [7. 7.]
    """
    spec = executor.spec_of(x)
    return full(spec.shape, value, dtype=dtype or spec.dtype, device=device or spec.device)


def zeros_like(x: Tensor, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return zeros with the shape, dtype and device of x.

    >>> print(ndl.zeros_like(Tensor([5.0, 6.0])))
    [0. 0.]
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return ones with the shape, dtype and device of x.

    >>> print(ndl.ones_like(Tensor([5.0, 6.0])))
    [1. 1.]
    """
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return a tensor with the shape, dtype and device of x whose values are not set.

    >>> ndl.empty_like(Tensor([1.0, 2.0])).shape
    (2,)
    """
    spec = executor.spec_of(x)
    return empty(spec.shape, dtype=dtype or spec.dtype, device=device or spec.device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Return start, start + step, ... below stop (from 0 if only one number is given).

    The dtype is int64 for integers, else float32, unless one is given. Numbers may be NumPy
    numbers or tensors of one element; gradients flow to start and step.

    Raises:
        ArgumentError: if they are not numbers.
        OptionError: if step is 0, or they are not finite.
        RangeError: if an integer dtype cannot hold one of them.
        ShapeError: if there are too many of them.

    >>> ndl.arange(1, 10, 3)
    needle.Tensor([1, 4, 7], dtype=int64)
    """
    if stop is None:
        start, stop = 0, start
    numbers = [start, stop, step]
    kinds = {*map(type, numbers)}
    plain = kinds <= {int, float}
    if not plain:
        numbers = [plain_number(n) for n in numbers]
    count = _count(*numbers)
    integers = float not in kinds if plain else all(isinstance(n, int) for n in numbers)
    kind = as_dtype(dtype or (dtypes.int64 if integers else default_float()))
    usual = kind is dtypes.int64 and -_FAR < numbers[0] < _FAR and -_FAR < numbers[1] < _FAR
    if not usual and count and kind.kind in "iu":
        _check_ends("arange", (numbers[0], numbers[0] + (count - 1) * numbers[2]), kind)
    if not plain and _flows(kind, start, step):
        steps = made("arange", kernels.arange, count, dtypes.float64, device)
        lowest, width = (_beside(x, dtypes.float64, steps.spec.device) for x in (start, step))
        return cast(lowest + width * steps, kind)
    first, by = numbers[0] if count else 0, numbers[2]  # the dtype may not hold the first of none
    if not (-_FAR < first < _FAR and -_FAR < by < _FAR):  # kernels take integers of 64 bits
        if kind.kind == "f":
            first, by = real("arange: start", first), real("arange: step", by)
        elif not fits(int(by), dtypes.int64):  # then there are two at most
            values = [first + i * by for i in range(count)]
            return made("arange", ndarray.array, values, kind, device)
    return made("arange", kernels.arange, count, kind, device, first, by)


_FAR = 2**62


def _check_ends(operation: str, ends: tuple[Any, Any], kind: DType) -> None:
    for end in ends:
        if not fits(int(end), kind):
            raise RangeError(
                f"{operation}: from {ends[0]} to {ends[1]}: {end} does not fit into {kind}\n"
                "  try: a wider dtype, or .astype, which wraps around"
            )


def _count(start: Any, stop: Any, step: Any) -> int:
    """Return the number of elements of ``arange``."""
    try:
        if step == 0:
            raise OptionError("arange: the step must not be 0")
        exact = isinstance(stop - start, int) and isinstance(step, int)
        count = max(0, -((start - stop) // step) if exact else math.ceil((stop - start) / step))
    except (ValueError, OverflowError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"arange: from {start} to {stop} in steps of {step}\n  rule: finite numbers"
        ) from None
    except TypeError:
        raise ArgumentError(
            f"arange: from {start!r:.60} to {stop!r:.60} in steps of {step!r:.60}\n"
            "  rule: three numbers"
        ) from None
    return sizes_of("arange", count, 8)[0]


def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    endpoint: bool = True,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Return ``num`` evenly spaced numbers from start to stop; float32 for dtype None.

    Gradients flow to start and stop if they are tensors.

    Raises:
        ArgumentError: if num is not an integer, start or stop not a number, endpoint not a bool.
        RangeError: if an integer dtype cannot hold one of them.
        ShapeError: if num is negative, or start and stop are arrays that do not broadcast.

    >>> print(ndl.linspace(0, 1, 5))
    [0.   0.25 0.5  0.75 1.  ]
    """
    if not isinstance(endpoint, (bool, np.bool_, int)):
        raise ArgumentError(f"linspace: endpoint is {endpoint!r:.60}, neither True nor False")
    (count,), kind = sizes_of("linspace", (num,), 8), as_dtype(dtype or default_float())
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)):  # integers of any size
        start, stop = real("linspace: start", start), real("linspace: stop", stop)
        return made("linspace", _line, start, stop, count, endpoint, kind, device)
    _check_numbers(start, stop)
    if _flows(kind, start, stop):
        parts = made("linspace", _line, 0, 1, count, endpoint, dtypes.float64, device)
        ends = [_beside(x, dtypes.float64, parts.spec.device) for x in (start, stop)]
        ndim = max(len(shape_of(x)) for x in ends)
        parts = reshape(parts, (count, *(1,) * ndim))
        return cast(ends[0] * (1.0 - parts) + ends[1] * parts, kind)
    return made("linspace", _line, start, stop, count, endpoint, kind, device)


def _check_numbers(start: Any, stop: Any) -> None:
    for what, end in (("start", start), ("stop", stop)):
        if not isinstance(end, (int, float, graph.TensorBase)) and not _is_real(end):
            raise ArgumentError(f"linspace: {what} is {end!r:.60}, not a number")
    ndarray.broadcast_shapes("linspace", *map(np.shape, (start, stop)))


def _is_real(x: object) -> bool:
    try:
        return np.asarray(x).dtype.kind in "biuf"
    except ValueError:  # lists of several lengths
        return False


_RAMPS = (dtypes.float32, dtypes.float64)


def _line(
    start: float, stop: float, count: int, endpoint: bool, kind: DType, device: DeviceLike
) -> NDArray:
    """Return the array of ``linspace``, by NumPy except in simple cases."""
    plain = type(start) is float and type(stop) is float and kind in _RAMPS
    step = (stop - start) / (count - endpoint) if plain and count > 1 else 0.0
    if step == 0:
        with np.errstate(all="ignore"):  # infinite ends
            values = np.linspace(start, stop, count, endpoint=endpoint)
        if kind.kind in "iu":
            dtypes.check_range(values, kind)
        return ndarray.array(values, kind, device)
    out = kernels.arange(count, kind, device, start, step)
    if endpoint and (count - 1) * step + start != stop:  # rounding missed it
        out.slice([(count - 1, 1, 1)]).fill(stop)
    return out


def eye(
    n: int, m: int | None = None, *, k: int = 0, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return an n x m matrix (square for None) with ones on diagonal k; float32 for dtype None.

    Raises:
        ArgumentError: if a size or k is not an integer.
        ShapeError: if a size is negative.

    >>> print(ndl.eye(3, k=1))
    [[0. 1. 0.]
     [0. 0. 1.]
     [0. 0. 0.]]
    """
    rows, columns = sizes_of("eye", (n, n if m is None else m), 8)
    place, kind = integer("eye: k", k), dtype or default_float()
    return made("eye", _unit, rows, columns, place, kind, device)


def _unit(rows: int, columns: int, k: int, kind: DType | str, device: DeviceLike) -> NDArray:
    """Return the array of ``eye``."""
    out = ndarray.full((rows, columns), 0, kind, device)
    size = min(rows, columns - k) if k >= 0 else min(rows + k, columns)
    if size > 0:
        out.view((size,), (columns + 1,), k if k >= 0 else -k * columns).fill(1)
    return out


def meshgrid(*axes: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid over one-dimensional tensors, one tensor per axis; views.

    Args:
        axes: one-dimensional tensors.
        indexing: "xy" swaps the first two axes of the results, as NumPy does; "ij" does not.

    Raises:
        ShapeError: if a tensor has another number of axes.
        OptionError: for another indexing.

    >>> xs, ys = ndl.meshgrid(ndl.arange(3), ndl.arange(2))
    >>> print(xs, ys)
    [[0 1 2]
     [0 1 2]] [[0 0 0]
     [1 1 1]]
    """
    if indexing not in ("xy", "ij"):
        raise OptionError(f"meshgrid: indexing {indexing!r} is neither 'xy' nor 'ij'")
    for x in axes:
        if len(shape_of(x)) != 1:
            raise ShapeError(f"meshgrid: expected tensors with one axis, got shape {x.spec.shape}")
    places = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        places[:2] = 1, 0
    shape = [1] * len(axes)
    for place, x in zip(places, axes, strict=True):
        shape[place] = x.spec.shape[0]
    grids = []
    for place, x in zip(places, axes, strict=True):
        own = tuple(-1 if i == place else 1 for i in range(len(axes)))
        grids.append(broadcast_to(reshape(x, own), shape))
    return grids

"""New tensors. They require no gradient, unless they are made of tensors that do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import devices, forward, graph, ops, tree
from needle import dtype as dtypes
from needle.backend import dlpack, memory
from needle.backend.axes import integer, sizes_of
from needle.backend.ndarray import NDArray, array
from needle.errors import DtypeError, OptionError, RangeError, ShapeError
from needle.ops.core.operands import as_array, default_float, read
from needle.ops.shape.tuples import joined
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Tensor

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "meshgrid", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

_PYTHON = (bool, int, float, complex, list, tuple, range)


def asarray(
    obj: Any, /, *, dtype: DTypeLike = None, device: DeviceLike = None, copy: bool | None = None
) -> Tensor:
    """Return a tensor of the values of obj; a tensor stays part of its graph, in a list too.

    For dtype None bools, integers and floats of Python become bool, int64 and the default float;
    everything else keeps its dtype.

    Args:
        obj: a number, nested sequences, a tensor, a NumPy array, or an object with DLPack, the
            buffer protocol or ``__array__``.
        dtype: element type.
        device: the device; for None that of obj, or the default device.
        copy: True: always; False: never, raise OptionError; None: only where it is needed.

    Raises:
        DtypeError: if obj is not made of real numbers.
        OptionError: if obj has a dtype that Needle lacks.
        ShapeError: for sequences of different lengths.
        RangeError: for numbers that the dtype cannot hold; it is also an OverflowError.
        OptionError: for copy=False where memory cannot be shared.
    """
    if isinstance(obj, NDArray):
        obj = graph.wrap(obj)
    if not isinstance(obj, graph.TensorBase):
        if isinstance(obj, _PYTHON) and not hasattr(obj, "dtype"):  # NumPy's float64 is a float
            return _of_python(obj, dtype, device, copy)
        return _of_foreign(obj, dtype, device, copy)
    out: Any = obj if dtype is None else ops.astype(obj, dtype)
    out = out if device is None else ops.to_device(out, device)
    if out is not obj and copy is False:
        raise OptionError(f"asarray: {obj.spec} cannot become {out.spec} without a copy")
    return ops.copy(obj) if copy and out is obj else out


def _of_python(obj: Any, dtype: DTypeLike, device: DeviceLike, copy: bool | None) -> Tensor:
    if copy is False:
        raise OptionError("asarray: Python numbers have no memory to share; copy is False")
    values = read(_numbers, obj)
    varies = values is None and any(map(forward.varies, tree.flat(obj)))
    values = _numbers(as_array(obj)) if values is None else values
    kind = None if dtype is None else dtypes.as_dtype(dtype)
    beyond = values.dtype.kind == "O" or (values.dtype == np.uint64 and values.max() >= 2**63)
    if beyond and (kind is None or kind.kind in "iu"):
        raise RangeError(f"asarray: {obj!r:.60} does not fit into {kind or dtypes.int64}")
    if kind is None:
        wide = values.dtype == np.float64
        kind = default_float() if wide else dtypes.as_dtype(values.dtype)
    elif kind.kind in "iu" and values.dtype.kind in "iuf":
        values = obj  # numbers without a dtype are refused if out of range
    if varies:
        return joined(obj, kind, devices.as_device(device))
    return graph.wrap(array(values, kind, device))


def _numbers(obj: object) -> Any:
    """Return Python numbers as a NumPy array, of objects if they are integers beyond int64."""
    try:
        values = np.asarray(obj)
    except ValueError as error:
        raise ShapeError(
            f"asarray: sequences within a sequence differ in length or depth\n  {error}"
        ) from None
    if values.dtype.kind == "c":
        raise DtypeError("asarray: there are no complex dtypes")
    integers = values.dtype.kind == "O" and all(type(n) in (bool, int) for n in values.flat)
    if values.dtype.kind in "biuf" or values.dtype.name == "bfloat16" or integers:
        return values
    raise _not_numbers(obj)


def _not_numbers(obj: object) -> DtypeError:
    return DtypeError(
        f"asarray: {type(obj).__name__} {obj!r:.60} is not made of numbers\n"
        "  rule: bools, integers and floats, nested sequences and arrays of these"
    )


def _of_foreign(obj: object, dtype: DTypeLike, device: DeviceLike, copy: bool | None) -> Tensor:
    """Return the values of a foreign array, without a copy if possible."""
    foreign = obj if hasattr(obj, "__dlpack__") else np.asarray(obj)
    if isinstance(foreign, np.ndarray):
        kind = foreign.dtype  # NumPy sees bfloat16 as a void dtype
        if kind.kind in "OSUmMV" and kind.name not in dtypes.ALL:
            raise _not_numbers(obj)
    try:
        out = graph.wrap(dlpack.from_dlpack(foreign, device, copy))
    except BufferError as error:
        raise OptionError(f"asarray: {error}") from None
    if dtype is None or dtypes.as_dtype(dtype) is out.dtype:
        return out
    if copy is False:
        raise OptionError(f"asarray: {out.dtype} cannot become {dtype} without a copy")
    return ops.astype(out, dtype)


def from_dlpack(x: object, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of another library's array. See ``needle.from_dlpack``."""
    if device is None and isinstance(x, graph.TensorBase):
        device = x.spec.device
    return graph.wrap(dlpack.from_dlpack(x, device, copy))


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Return start, start + step, ... below stop. See ``ops.arange``.

    Raises:
        OptionError: if step is 0, or a number not finite.
        DtypeError: if one is not a real number.
        ShapeError: for 2**63 elements or more.
        OutOfMemoryError: if the device has no memory for them.
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = [operands.number("arange", n) for n in (first, last, step)]
    low, high, by = numbers
    if not all(map(math.isfinite, numbers)):
        raise OptionError(f"arange: from {low} to {high} by {by}; these must be finite")
    length = (high - low) / by if by else 0  # ops.arange refuses a step of 0
    integers = all(isinstance(n, int) for n in numbers)
    kind = dtype or (dtypes.int64 if integers else default_float())
    with _room("arange", min(length, 2**63), kind, device):
        return ops.arange(start, stop, step, dtype=dtype, device=device)


@contextmanager
def _room(name: str, length: float, dtype: DTypeLike, device: DeviceLike) -> Iterator[None]:
    """Check the device's memory before NumPy allocates on the host; convert NumPy's errors."""
    if length >= 2**63:
        raise ShapeError(f"{name}: 2**63 elements or more")
    nbytes = max(0, math.ceil(length)) * dtypes.as_dtype(dtype).itemsize
    try:
        memory.ask(devices.as_device(device).backend, nbytes)
        yield
    except MemoryError as error:
        raise memory.typed(error).during(name, ()) from None


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    endpoint: bool = True,
) -> Tensor:
    """Return ``num`` evenly spaced numbers from start to stop.

    Raises:
        ArgumentError: if num is not an integer.
        DtypeError: if start or stop is not a real one.
        ShapeError: if num is negative, or 2**63 or more.
        OutOfMemoryError: if the device has no memory for them.
    """
    ends = [operands.number("linspace", x) for x in (start, stop)]
    if not (forward.varies(start) or forward.varies(stop)):
        start, stop = ends
    num = integer("linspace: num", num)
    with _room("linspace", num, dtype or default_float(), device):
        return ops.linspace(start, stop, num, endpoint=endpoint, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Return a matrix with ones on diagonal k.

    Raises:
        ArgumentError: if a size or k is not an integer.
        ShapeError: if a size is negative, or there would be 2**63 elements or more.
        OutOfMemoryError: if the device has no memory for them.
    """
    rows, columns = sizes_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    with _room("eye", rows * columns, dtype or default_float(), device):
        return ops.eye(rows, columns, k=k, dtype=dtype, device=device)


def empty(
    shape: int | Sequence[int], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor whose values are not set."""
    return ops.empty(shape, dtype=dtype, device=device)


def zeros(
    shape: int | Sequence[int], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor of zeros."""
    return ops.zeros(shape, dtype=dtype, device=device)


def ones(
    shape: int | Sequence[int], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor of ones."""
    return ops.ones(shape, dtype=dtype, device=device)


def full(
    shape: int | Sequence[int],
    fill_value: float,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Return a tensor of one value."""
    operands.number("full", fill_value)
    return ops.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return a tensor like x whose values are not set."""
    return ops.empty_like(operands.tensor(x), dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return zeros like x."""
    return ops.zeros_like(operands.tensor(x), dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """Return ones like x."""
    return ops.ones_like(operands.tensor(x), dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: float, *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Return a tensor of one value like x."""
    x = operands.tensor(x)
    operands.number("full_like", fill_value)
    return ops.full_like(x, fill_value, dtype=dtype, device=device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid over vectors, one tensor per axis."""
    return ops.meshgrid(*arrays, indexing=indexing)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Keep the elements on and below diagonal k of the last two axes; set the others to 0."""
    return ops.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Keep the elements on and above diagonal k of the last two axes; set the others to 0."""
    return ops.triu(x, k)

"""New tensors. None of them needs a gradient, except ``asarray`` of a tensor that does."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle import graph, ops
from needle.backend import exchange
from needle.backend.ndarray import NDArray, array
from needle.errors import DtypeError
from needle.ops.base import default_float

_PYTHON = (bool, int, float, complex, list, tuple, range)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """Return a tensor of the values of obj; a tensor stays part of its graph.

    For dtype None bools, integers and floats of Python become bool, int64 and the default float;
    everything else keeps its dtype.

    Args:
        obj: a number, nested sequences, a tensor, a NumPy array, or what offers DLPack, the buffer
            protocol or ``__array__``.
        dtype: element type.
        device: where to; for None where obj is, else the default device.
        copy: True: always; False: never, raise ValueError; None: only where it is needed.

    Raises:
        DtypeError, OptionError: if obj has a dtype that Needle lacks.
        ValueError: for copy=False where memory cannot be shared.
    """
    if isinstance(obj, NDArray):
        obj = graph.wrap(obj)
    if not isinstance(obj, graph.TensorBase):
        if isinstance(obj, _PYTHON) and not hasattr(obj, "dtype"):  # NumPy's float64 is a float
            return _of_python(obj, dtype, device, copy)
        return _of_foreign(obj, dtype, device, copy)
    out = obj if dtype is None else ops.astype(obj, dtype)
    out = out if device is None else ops.to_device(out, device)
    if out is not obj and copy is False:
        raise ValueError(f"asarray: {obj.spec} cannot become {out.spec} without a copy")
    return ops.copy(obj) if copy and out is obj else out


def _of_python(obj: Any, dtype: Any, device: Any, copy: bool | None) -> Any:
    if copy is False:
        raise ValueError("asarray: Python numbers have no memory to share; copy is False")
    if dtype is not None:
        kind = dtypes.as_dtype(dtype)
        return graph.wrap(array(np.asarray(obj, kind.numpy), kind, device))
    values = np.asarray(obj)
    if values.dtype.name == "bfloat16":  # a list of such tensors
        return graph.wrap(array(values, dtypes.bfloat16, device))
    if values.dtype.kind == "c":
        raise DtypeError("asarray: there are no complex dtypes")
    if values.dtype.kind in "uO":  # not even int64 holds them
        raise OverflowError(f"asarray: {obj!r:.60} does not fit into int64")
    if values.dtype == np.float64:
        kind = default_float()
    else:
        kind = dtypes.as_dtype(values.dtype)
    return graph.wrap(array(values, kind, device))


def _of_foreign(obj: Any, dtype: Any, device: Any, copy: bool | None) -> Any:
    """Return the values of a foreign array, in its own memory where that is possible."""
    foreign = obj if hasattr(obj, "__dlpack__") else np.asarray(obj)
    try:
        out = graph.wrap(exchange.from_dlpack(foreign, device, copy))
    except BufferError as error:
        raise ValueError(f"asarray: {error}") from None
    if dtype is None or dtypes.as_dtype(dtype) is out.dtype:
        return out
    if copy is False:
        raise ValueError(f"asarray: {out.dtype} cannot become {dtype} without a copy")
    return ops.astype(out, dtype)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """Return a tensor over the memory of another library's array. See ``needle.from_dlpack``."""
    if device is None and isinstance(x, graph.TensorBase):
        device = x.spec.device
    return graph.wrap(exchange.from_dlpack(x, device, copy))


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Return start, start + step, ... below stop. See ``ops.arange``."""
    return ops.arange(start, stop, step, dtype=dtype, device=device)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Any:
    """Return ``num`` evenly spaced numbers from start to stop."""
    return ops.linspace(start, stop, num, endpoint=endpoint, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Return a matrix with ones on diagonal k."""
    return ops.eye(n_rows, n_cols, k=k, dtype=dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor whose values are not set."""
    return ops.empty(shape, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of zeros."""
    return ops.zeros(shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of ones."""
    return ops.ones(shape, dtype=dtype, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of one value."""
    return ops.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor like x whose values are not set."""
    return ops.empty_like(x, dtype=dtype, device=device)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros like x."""
    return ops.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones like x."""
    return ops.ones_like(x, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of one value like x."""
    return ops.full_like(x, fill_value, dtype=dtype, device=device)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """Return the coordinates of a grid over vectors, one tensor per axis."""
    return ops.meshgrid(*arrays, indexing=indexing)


def tril(x: Any, /, *, k: int = 0) -> Any:
    """Keep what is on and below diagonal k of the last two axes."""
    return ops.tril(x, k)


def triu(x: Any, /, *, k: int = 0) -> Any:
    """Keep what is on and above diagonal k of the last two axes."""
    return ops.triu(x, k)

"""Ops that users define: their ``compute`` may use NumPy and return its arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle import devices
from needle.backend import ndarray
from needle.errors import DeviceError


def wrapping(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``compute`` of a user's op; NumPy arrays that it returns become arrays.

    On the device meta, which has no values, one that reads values runs on ones instead: the shape
    and dtype of its result are all that is asked for.
    """

    @functools.wraps(compute)
    def run(self: Any, *arrays: Any) -> Any:
        try:
            out = compute(self, *arrays)
        except DeviceError:
            if not arrays or any(x.device != devices.meta() for x in arrays):
                raise
            ones = [ndarray.full(x.shape, 1, x.dtype, devices.cpu_numpy()) for x in arrays]
            out = compute(self, *ones)
        if isinstance(out, tuple):
            return tuple(_as_result(x, arrays) for x in out)
        return _as_result(out, arrays)

    return run


def _as_result(x: Any, inputs: Sequence[Any]) -> Any:
    """Return a NumPy array or number as an array on the device of the inputs.

    It keeps a dtype that an input has; else it takes the dtype that a tensor of it would have.
    """
    if not inputs:
        return x
    where = inputs[0].device
    if isinstance(x, ndarray.NDArray):
        return x.to(where) if where == devices.meta() else x
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    kind = next((a.dtype for a in inputs if a.dtype == x.dtype), None)
    if where == devices.meta():
        found = ndarray.array(x, kind, devices.cpu_numpy())
        return ndarray.empty(found.shape, found.dtype, where)
    return ndarray.array(x, kind, where)

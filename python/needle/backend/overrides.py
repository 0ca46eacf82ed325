"""Composites that the native CPU computes as a whole, in one pass over the memory if possible.

Most of these overrides are native functions (src/core/gate/composites.cc). They take the op and the
arrays, like the op's ``expand``, and return NotImplemented for arrays that the kernel does not
support.
"""

from __future__ import annotations

from typing import Any

from needle import core
from needle.backend import kernels
from needle.backend.contract import override
from needle.backend.ndarray import NDArray

for _op, _function in core.native.overrides.items() if core.native is not None else ():
    override("cpu", _op)(_function)


@override("cpu", "Put")
def put(op: Any, x: NDArray, values: NDArray, places: NDArray) -> Any:
    """A copy, written to."""
    if values.dtype is not x.dtype:
        return NotImplemented
    out = x.copy()
    kernels.put(out, places, values, 0)
    return out

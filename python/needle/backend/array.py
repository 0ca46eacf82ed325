"""The base types ``Spec`` and ``Array``: of the native module, or else of reference.py."""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

from needle import core, dtype, reference
from needle.backend.loading import CPU
from needle.reference import MAX_DIMS, dense_strides

if TYPE_CHECKING:
    from needle.reference import Array, Spec

__all__ = [
    "MAX_DIMS", "Array", "Spec", "arrays", "dense_strides", "make_array", "make_spec",
    "set_array_class", "native_function",
]  # fmt: skip

_source: Any = reference if core.native is None else core.native

if not TYPE_CHECKING:
    Spec, Array = _source.Spec, _source.Array
make_spec, make_array, arrays = _source.make_spec, _source.make_array, _source.arrays
set_array_class = _source.set_array_class


def _copied(spec: Any) -> tuple[Any, ...]:
    return _made, (spec.dtype, spec.device, spec.shape)


def _made(*parts: Any) -> Any:
    return make_spec(*parts)


copyreg.pickle(Spec, _copied)


def native_function(name: str) -> Any:
    """Return the native function of this name, which returns an array or None.

    Each computes the same as a Python function, for arrays of the native CPU and simple valid
    arguments; otherwise it returns None. All return None while the gate is closed, and without the
    native module.
    """
    return _undecided if core.native is None else getattr(core.native, name)


def _undecided(*_: Any) -> None:
    return None


if core.native is not None:
    core.native.set_world(dtype.ALL, CPU)

"""Whole slices of a tensor that are written or added along an axis, at indices."""

from __future__ import annotations

from typing import Any

from needle import executor, graph
from needle.backend.axes import normalise_axis
from needle.errors import DtypeError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.indexing import ScatterAdd, beside
from needle.ops.movement import broadcast_to, reshape
from needle.ops.operands import as_tensors, check_single
from needle.ops.select import put


def _given(operation: str, x: Any, axis: int, index: Any, values: Any = None) -> tuple[Any, ...]:
    """Return x, the axis from 0 on, an index of one axis, and the values as tensors.

    Raises:
        DtypeError: if the index is not integer.
        ShapeError: if there is not one slice for each index.
    """
    x, index = as_tensors((x, beside(x, index)), operation)
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    named = [("x", x), ("index", index)]
    if index.spec.dtype.kind not in "iu":
        what = f"an index of {index.spec.dtype}"
        raise explain(DtypeError, operation, what, named, "integers, one for each slice")
    if values is not None:
        values = as_tensors((x, values), operation)[1]
    wanted = (*shape[:axis], index.spec.size, *shape[axis + 1 :])
    if len(shape_of(index)) > 1:
        what = f"the index has shape {shape_of(index)}"
        raise explain(ShapeError, operation, what, named, "a row of indices")
    if values is not None and shape_of(values) != wanted:
        what = f"slices have shape {shape_of(values)}, not {wanted}"
        raise explain(ShapeError, operation, what, named, "a slice for each index of a row")
    return x, axis, reshape(index, (-1,)), values


def index_fill(x: Any, axis: int, index: Any, value: Any) -> Any:
    """Return x with a value in the slices along an axis that a row of indices names.

    Raises:
        DtypeError: if the dtype of x has no such value, or the index is not integer.
        ShapeError: if the index has several axes, or the value several elements.
        IndexRangeError: naming the first index that is out of range.
    """
    x, axis, index, _ = _given("index_fill", x, axis, index)
    check_single(value)
    value = reshape(value, ()) if isinstance(value, graph.TensorBase) else value
    return put(x, (*(slice(None),) * axis, index), value)


def index_copy(x: Any, axis: int, index: Any, slices: Any) -> Any:
    """Return x with slices written along an axis, one at each index; of equal ones the last.

    Raises:
        DtypeError: if the dtype of the slices does not fit, or the index is not integer.
        ShapeError: if there is not one slice for each index.
        IndexRangeError: naming the first index that is out of range.
    """
    x, axis, index, slices = _given("index_copy", x, axis, index, slices)
    return put(x, (*(slice(None),) * axis, index), slices)


def index_add(x: Any, axis: int, index: Any, slices: Any) -> Any:
    """Return x with slices added along an axis, one at each index.

    Raises:
        DtypeError: if the dtypes do not mix, or the index is not integer.
        ShapeError: if there is not one slice for each index.
        IndexRangeError: naming the first index that is out of range.
    """
    x, axis, index, slices = _given("index_add", x, axis, index, slices)
    shape = shape_of(x)
    rows = reshape(index, (-1, *(1,) * (len(shape) - 1 - axis)))
    rows = broadcast_to(rows, shape_of(slices))
    return x + executor.apply(ScatterAdd.of(axis, shape), rows, slices)

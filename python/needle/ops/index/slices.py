"""Writing, adding and reducing slices and elements at indices along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor, graph
from needle.backend import kernels, ndarray
from needle.backend.axes import normalise_axis
from needle.errors import DtypeError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import flag
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, Op, cast, promoted, widened
from needle.ops.core.operands import as_tensors, check_single
from needle.ops.core.samples import Sample, integers, uniform
from needle.ops.elementwise.arithmetic import (
    cast_like,
    equal,
    floor_divide,
    greater,
    maximum,
    minimum,
    negative,
    where,
)
from needle.ops.elementwise.logic import bitwise_invert, logical_not
from needle.ops.index.indexing import ScatterAdd, beside, take
from needle.ops.index.select import Put, getitem, places_along, put
from needle.ops.index.sorting import argsort
from needle.ops.shape.movement import broadcast_to, concat, reshape

if TYPE_CHECKING:
    from needle.typing import Gradients, Numpy, Operand, Tensor

__all__ = ["ScatterExtreme", "index_add", "index_copy", "index_fill", "scatter_reduce"]


def _given(
    operation: str, x: Tensor, axis: int, index: Operand, values: Tensor | None = None
) -> tuple[Any, ...]:
    """Return x, the axis from 0 on, an index of one axis, and the values as tensors.

    Raises:
        DtypeError: if the index is not integer.
        ShapeError: if there is not one slice for each index.
    """
    x, places = as_tensors((x, beside(x, index)), operation)
    shape = shape_of(x)
    axis = normalise_axis(axis, len(shape))
    named = [("x", x), ("index", places)]
    if places.spec.dtype.kind not in "iu":
        what = f"an index of {places.spec.dtype}"
        raise explain(DtypeError, operation, what, named, "integers, one for each slice")
    if values is not None:
        values = as_tensors((x, values), operation)[1]
    wanted = (*shape[:axis], places.spec.size, *shape[axis + 1 :])
    if len(shape_of(places)) > 1:
        what = f"the index has shape {shape_of(places)}"
        raise explain(ShapeError, operation, what, named, "a row of indices")
    if values is not None and shape_of(values) != wanted:
        what = f"slices have shape {shape_of(values)}, not {wanted}"
        raise explain(ShapeError, operation, what, named, "a slice for each index of a row")
    return x, axis, reshape(places, (-1,)), values


def index_fill(x: Tensor, axis: int, index: Operand, value: Any) -> Tensor:
    """Return x with a value written to the slices along an axis that a row of indices selects.

    Raises:
        DtypeError: if the dtype of x cannot hold the value, or the index is not integer.
        ShapeError: if the index has several axes, or the value several elements.
        IndexRangeError: naming the first index that is out of range.

    >>> print(ndl.index_fill(ndl.zeros((2, 2)), 1, [0], 7.0))
    [[7. 0.]
     [7. 0.]]
    """
    x, axis, index, _ = _given("index_fill", x, axis, index)
    check_single(value)
    value = reshape(value, ()) if isinstance(value, graph.TensorBase) else value
    return put(x, (*(slice(None),) * axis, index), value)


def index_copy(x: Any, axis: int, index: Any, slices: Any) -> Any:
    """Return x with slices written along an axis, one at each index; the last one per index counts.

    Raises:
        DtypeError: if the dtype of the slices does not fit, or the index is not integer.
        ShapeError: if there is not one slice for each index.
        IndexRangeError: naming the first index that is out of range.

    >>> print(ndl.index_copy(ndl.zeros((2, 2)), 0, [1], Tensor([[5.0, 6.0]])))
    [[0. 0.]
     [5. 6.]]
    """
    x, axis, index, slices = _given("index_copy", x, axis, index, slices)
    return put(x, (*(slice(None),) * axis, index), slices)


def index_add(x: Any, axis: int, index: Any, slices: Any) -> Any:
    """Return x with slices added along an axis, one at each index.

    Raises:
        DtypeError: if the dtypes do not mix, or the index is not integer.
        ShapeError: if there is not one slice for each index.
        IndexRangeError: naming the first index that is out of range.

    >>> print(ndl.index_add(ndl.zeros((2, 2)), 0, [1, 1], ndl.ones((2, 2))))
    [[0. 0.]
     [2. 2.]]
    """
    x, axis, index, slices = _given("index_add", x, axis, index, slices)
    shape = shape_of(x)
    rows = reshape(index, (-1, *(1,) * (len(shape) - 1 - axis)))
    rows = broadcast_to(rows, shape_of(slices))
    return x + executor.apply(ScatterAdd.of(axis, shape), rows, slices)


# ---- reduced at indices --------------------------------------------------------------


def _counts(places: Tensor, counted: Tensor, size: int) -> Tensor:
    """Count how often each place occurs."""
    return executor.apply(ScatterAdd.of(0, (size,)), places, cast(counted, dtype.int64))


def _extremes(function: Any, include: bool) -> Any:
    def reference(x: Numpy, values: Numpy, places: Numpy) -> Numpy:
        out = x.copy()
        for place in np.unique(places % len(x)) if len(places) else ():
            found = values[places % len(x) == place]
            out[place] = function([*found, *([x[place]] if include else [])])
        return out

    return reference


class ScatterExtreme(Composite):
    """x with the largest (or smallest) of the values at each place; x counts too if included.

    Values are written in ascending order, and the last one stays. Ties share the gradient equally;
    x shares it only if it is included (in PyTorch's derivative always).

    Shapes:   x [n], values [m], places [m] integer -> [n]
    Dtypes:   x and values the same
    Gradient: x, values; any order
    Raises:   IndexRangeError naming the first place out of range
    """

    smallest: bool
    include_self: bool
    saves = ((0, 1, 2, OUTPUT), (0, 1, 2, OUTPUT), ())
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform((n,)), uniform((m,), seed=1), integers((m,), -n, n)), (low, include),
                _extremes(np.min if low else np.max, include),
            )
            for n, m, low, include in (
                (4, 9, False, True), (4, 9, True, False), (3, 0, False, True), (2, 3, True, True),
            )
        ]
    )  # fmt: skip

    def expand(self, x: Tensor, values: Tensor, places: Tensor) -> Tensor:
        keys = values
        if self.smallest:  # the negative of the least integer overflows
            keys = negative(values) if x.spec.dtype.is_floating else bitwise_invert(values)
        order = argsort(keys, 0)
        found = executor.apply(Put.of(), x, take(values, order, 0), take(places, order, 0))
        if not self.include_self:
            return found
        return minimum(x, found) if self.smallest else maximum(x, found)

    push = Op.push  # ties share here; the expansion would follow the value written last

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        (x, values, places), size = out.inputs, out.node.spec.size
        wins = equal(values, take(out, places, 0))
        hit = greater(_counts(places, equal(places, places), size), 0)
        own = equal(x, out) if self.include_self else logical_not(hit)
        ties = _counts(places, wins, size) + cast(own, dtype.int64)
        wide = widened(out_grad)  # half precision has no number for many ties
        share = cast_like(wide / cast_like(maximum(ties, 1), wide), out_grad)
        return where(own, share, 0.0), where(wins, take(share, places, 0), 0.0), None


def scatter_reduce(
    x: Tensor,
    axis: int,
    index: Any,
    values: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Reduce values into x along an axis, at the places that index gives.

    Args:
        x: a tensor, which stays as it is.
        axis: along which.
        index: integers, as for ``scatter``.
        values: as for ``scatter``, of the dtype of x.
        reduce: "sum", "prod", "mean" (rounded down for integers), "amax" or "amin".
        include_self: whether the elements of x count too at places that get values.

    Raises:
        OptionError: for an unknown reduction.
        ShapeError, DtypeError, IndexRangeError: as ``scatter``.

    >>> index, values = Tensor([0, 0, 1], dtype="int64"), Tensor([1.0, 5.0, 2.0])
    >>> print(ndl.scatter_reduce(ndl.zeros((2,)), 0, index, values, "amax"))
    [5. 2.]
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise unknown("scatter_reduce: reduce", reduce, ("sum", "prod", "mean", "amax", "amin"))
    include = flag("scatter_reduce: include_self", include_self)
    x, values = promoted((x, values), "scatter_reduce")
    x, index, values = places_along("scatter_reduce", x, axis, index, values)
    shape, size, count = shape_of(x), x.spec.size, values.spec.size
    if not count:
        return x
    steps = graph.wrap(kernels.arange(size, dtype.int64, x.spec.device))
    places = reshape(getitem(reshape(steps, shape), index), (count,))
    x, values = reshape(x, (size,)), reshape(values, (count,))
    kind = x.spec.dtype
    if reduce == "mean":  # of which half precision may have no sum, and no number of them
        x, values = widened(x), widened(values)
    if reduce in ("amax", "amin"):
        op = ScatterExtreme.of(reduce == "amin", include)
        return reshape(executor.apply(op, x, values, places), shape)
    if reduce == "prod":
        return reshape(_products(x, values, places, include), shape)
    counts = _counts(places, equal(places, places), size)
    out = x if include else where(greater(counts, 0), 0, x)
    out = out + executor.apply(ScatterAdd.of(0, (size,)), places, values)
    if reduce == "mean":
        counts = cast_like(maximum(counts + int(include), 1), x)
        out = out / counts if x.spec.dtype.is_floating else floor_divide(out, counts)
    return reshape(cast(out, kind), shape)


def _products(x: Tensor, values: Tensor, places: Tensor, include: bool) -> Tensor:
    """Return x [n] times the values at each place, or the products of the values only.

    Values are sorted by place; then each is multiplied by the one 1, 2, 4, ... before it if both
    have the same place, so the last of each place is the product of all.
    """
    order = argsort(places, 0)
    places, values = take(places, order, 0), take(values, order, 0)
    step, count = 1, places.spec.size
    while step < count:
        together = equal(places[step:], places[:-step])
        before = where(together, values[:-step], 1)
        values = concat([values[:step], values[step:] * before])
        step *= 2
    if not include:
        return executor.apply(Put.of(), x, values, places)
    ones = graph.wrap(ndarray.full(shape_of(x), 1, x.spec.dtype, x.spec.device))
    return x * executor.apply(Put.of(), ones, values, places)

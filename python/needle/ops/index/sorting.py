"""Sorting and searching. Where the shape of a result depends on values, it is computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import kernels, ndarray
from needle.backend.axes import integer, normalise_axis
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
    unknown,
)
from needle.executor import shape_of
from needle.ops.core.attributes import flag
from needle.ops.core.op import OUTPUT, Op, cast, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    cast_like,
    equal,
    floor_divide,
    lerp,
    maximum,
    minimum,
    not_equal,
    where,
)
from needle.ops.elementwise.logic import isfinite, isnan, logical_and, logical_not, logical_or
from needle.ops.index.indexing import ScatterAdd, beside, gather, take
from needle.ops.reduction.reduce import amax, amin, summation
from needle.ops.reduction.scan import cumsum
from needle.ops.shape.creation import full_like, ones_like, zeros
from needle.ops.shape.movement import (
    concat,
    permute,
    reshape,
    squeeze,
    stop_gradient,
    to_device,
    unsqueeze,
)
from needle.ops.shape.rearrange import moveaxis, window
from needle.ops.shape.tuples import stack

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Gradients, NDArray, Numpy, Operand, Tensor, TensorTuple

__all__ = [
    "SearchSorted", "Sort", "argsort", "argwhere", "bincount", "bucketize", "isin", "kthvalue",
    "median", "nanmedian", "nonzero", "quantile", "searchsorted", "sort", "topk", "unique",
    "unique_consecutive",
]  # fmt: skip


def _sorted(x: Any, axis: int, descending: bool) -> Any:
    order = np.argsort(-x if descending else x, axis=axis, kind="stable")
    return np.take_along_axis(x, order, axis), order


def _sort_samples() -> list[Sample]:
    cases: list[tuple[Any, int, bool]] = [
        (uniform((3, 4)), 1, False), (uniform((3, 4)), 0, True), (uniform((5,)), -1, False),
        (np.array([[1.0, 0.0, 1.0, 0.0]]), 1, True), (uniform((2, 0)), 1, False),
        (np.array([2.0, np.nan, 1.0]), 0, False),
    ]  # fmt: skip
    return [
        Sample(
            (x,), (axis, down), lambda x, a=axis, d=down: _sorted(x, a, d),
            gradient=len(set(x.ravel().tolist())) == x.size and not np.isnan(x).any(),
        )
        for x, axis, down in cases
    ] + [
        Sample(
            (x,), (axis, down, count),
            lambda x, a=axis, d=down, n=count: [y.take(range(n), a) for y in _sorted(x, a, d)],
        )
        for x, axis, down, count in (
            (uniform((3, 4)), 1, True, 2), (uniform((3, 4)), 0, False, 3),
            (uniform((2, 3)), 1, True, 0),
        )
    ] + [
        Sample((uniform((2, 3)),), (2, False), raises=IndexRangeError),
        Sample((uniform((2, 3)),), (1, False, 4), raises=IndexRangeError),
    ]  # fmt: skip


class Sort(Op):
    """Sort along an axis; stable, NaN last. The second result has the elements' old positions.

    With a ``count`` only the first ``count`` elements.

    Shapes:   x [..., n, ...] -> values, positions (int64) [..., n or count, ...]
    Dtypes:   x any -> the same and int64
    Gradient: x; any order
    Raises:   IndexRangeError if the axis is out of range, or fewer elements than ``count``
    """

    axis: int = -1
    descending: bool = False
    count: int | None = None
    saves = ((OUTPUT,),)
    samples = staticmethod(_sort_samples)

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        return kernels.sort(x, self.axis, self.descending, self.count)

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        axis = normalise_axis(self.axis, len(shape))
        if out_grad[0] is None:
            return (None,)
        positions = stop_gradient(out[1])
        return (executor.apply(ScatterAdd.of(axis, shape), positions, out_grad[0]),)


def _search_samples() -> list[Sample]:
    edges = np.array([-1.0, 0.0, 0.0, 0.5, 2.0])
    with_nan = np.array([0.0, 1.0, 2.0, np.nan, np.nan])
    values = np.array([[-3.0, 0.0, 0.25], [2.0, 5.0, -1.0]])
    return [
        Sample((edges, values), (side,), lambda e, v, s=side: np.searchsorted(e, v, s),
               gradient=False)
        for side in ("left", "right")
    ] + [
        Sample((with_nan, np.array([np.nan, 1.0, 9.0])), (side,),
               lambda e, v, s=side: np.searchsorted(e, v, s), gradient=False)
        for side in ("left", "right")
    ] + [
        Sample((edges[:0], values), ("left",), np.searchsorted, gradient=False),
        Sample((edges, np.array(0.3)), ("left",), np.searchsorted, gradient=False),
        Sample((values, edges), ("left",), raises=ShapeError),
        Sample((edges, values), ("up",), raises=OptionError),
    ]  # fmt: skip


class SearchSorted(Op):
    """Positions to insert values into sorted edges: before equal ones ("left") or after ("right").

    NaN comes last in the order.

    Shapes:   edges [n] in ascending order, values [...] -> int64 [...]
    Dtypes:   edges and values the same -> int64
    Raises:   ShapeError if edges are not one-dimensional; OptionError for another side
    """

    side: str = "left"
    called = "searchsorted"
    is_differentiable = False
    samples = staticmethod(_search_samples)

    promotes = "all"

    def compute(self, edges: NDArray, values: NDArray) -> NDArray:
        if self.side not in ("left", "right"):
            raise unknown("searchsorted: side", self.side, ("left", "right"))
        if edges.ndim != 1:
            raise ShapeError(f"searchsorted: expected edges with one axis, got shape {edges.shape}")
        kernels.same_device(self.name, edges, values)
        count, device = edges.size, edges.device
        out = ndarray.empty(values.shape, dtypes.int64, device)
        if device.backend.searchsorted(out, edges, values, self.side == "right"):
            return out
        low = ndarray.full((values.size,), 0, dtypes.int64, device)
        if count == 0:
            return low.reshape(values.shape)
        flat = values.reshape((values.size,))
        missing = None
        if values.dtype.kind == "f":
            missing = kernels.elementwise("not_equal", flat, flat, dtype=dtypes.bool_)
        high = ndarray.full((values.size,), count, dtypes.int64, device)
        one, last = (ndarray.full((), n, dtypes.int64, device) for n in (1, count - 1))
        ordered = "less" if self.side == "left" else "less_equal"
        for _ in range(count.bit_length()):  # halve the interval [low, high) of each value
            both = kernels.elementwise("add", low, high)
            middle = kernels.elementwise("bitwise_right_shift", both, one)
            inside = kernels.elementwise("minimum", middle, last)
            edge = kernels.gather(edges, inside, 0)
            above = kernels.elementwise(ordered, edge, flat, dtype=dtypes.bool_)
            if missing is not None:  # NaN is above every number; on the left of its equals
                number = kernels.elementwise("equal", edge, edge, dtype=dtypes.bool_)
                if self.side == "right":
                    number = kernels.elementwise("equal", number, number, dtype=dtypes.bool_)
                below = kernels.elementwise("bitwise_and", number, missing)
                above = kernels.elementwise("bitwise_or", above, below)
            open_ = kernels.elementwise("less", low, high, dtype=dtypes.bool_)
            up = kernels.elementwise("bitwise_and", above, open_)
            next_ = kernels.elementwise("add", middle, one)
            low, high = (
                kernels.elementwise("where", up, next_, low),
                kernels.elementwise("where", up, high, middle),
            )
        return low.reshape(values.shape)


def sort(x: Tensor, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """Return x sorted along an axis; always stable, NaN last. See ``Sort``.

    >>> print(ndl.sort(Tensor([3.0, 1.0, 2.0]), descending=True))
    [3. 2. 1.]
    """
    flag("sort: stable", stable)
    return executor.apply(Sort.of(axis, flag("sort: descending", descending)), x)[0]


def argsort(x: Tensor, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """Return the positions (int64) that sort x along an axis, always stable. See ``Sort``.

    >>> print(ndl.argsort(Tensor([3.0, 1.0, 2.0])))
    [1 2 0]
    """
    flag("argsort: stable", stable)
    order = Sort.of(axis, flag("argsort: descending", descending))
    return stop_gradient(executor.apply(order, x)[1])


def topk(
    x: Tensor, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest (or smallest) values along an axis, in order, and their positions.

    They are in order also if not ``sorted``. NaN comes last in both orders, as in ``sort``; in
    PyTorch it counts as the largest.

    Raises:
        IndexRangeError: if k is negative or above the size of the axis.

    >>> values, positions = ndl.topk(Tensor([3.0, 1.0, 2.0]), 2)
    >>> print(values, positions)
    [3. 2.] [0 2]
    """
    k, _ = integer("topk: k", k), flag("topk: sorted", sorted)
    values, indices = executor.several(Sort.of(axis, flag("topk: largest", largest), k), x)
    return values, stop_gradient(indices) if indices.requires_grad else indices


def kthvalue(x: Tensor, k: int, axis: int = -1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the k-th smallest value along an axis, counted from 1, and its position; NaN is last.

    Raises:
        ArgumentError: if k is not an integer.
        IndexRangeError: if k is not in 1, ..., size of the axis.

    >>> value, position = ndl.kthvalue(Tensor([3.0, 1.0, 2.0]), 2)
    >>> print(value, position)
    2.0 2
    """
    axis, k = normalise_axis(axis, len(shape_of(x))), integer("kthvalue: k", k)
    keepdims = flag("kthvalue: keepdims", keepdims)
    if not 1 <= k <= shape_of(x)[axis]:
        raise explain(
            IndexRangeError, "kthvalue", f"k is {k} of {shape_of(x)[axis]} along axis {axis}",
            [("x", x)], "k counts from 1",
        )  # fmt: skip
    values, places = (window(part, axis, k - 1, 1) for part in topk(x, k, axis, False))
    kept = flag("kthvalue: keepdims", keepdims)
    return (values, places) if kept else (squeeze(values, axis), squeeze(places, axis))


def median(x: Tensor, axis: int = -1) -> Tensor:
    """Return the middle value along an axis (the lower of two); NaN if one is NaN.

    Raises:
        ShapeError: if the axis is empty.

    >>> print(ndl.median(Tensor([3.0, 1.0, 2.0])))
    2.0
    """
    axis = normalise_axis(axis, len(shape_of(x)))
    size = shape_of(x)[axis]
    if size == 0:
        raise explain(ShapeError, "median", f"no elements along axis {axis}", [("x", x)])
    values = sort(x, axis)
    middle = window(values, axis, (size - 1) // 2, 1)
    if x.spec.dtype.kind == "f":
        last = window(values, axis, size - 1, 1)  # where NaN is, if there is one
        middle = where(isnan(last), last, middle)
    return squeeze(middle, axis)


def nanmedian(x: Tensor, axis: int = -1) -> Tensor:
    """Return the middle value along an axis (the lower of two) without NaN; NaN if all are NaN.

    Raises:
        ShapeError: if the axis is empty.

    >>> print(ndl.nanmedian(Tensor([3.0, float("nan"), 2.0, 5.0])))
    3.0
    """
    (x,) = as_tensors((x,), "nanmedian")
    axis = normalise_axis(axis, len(shape_of(x)))
    if x.spec.dtype.kind != "f" or shape_of(x)[axis] == 0:
        return median(x, axis)
    numbers = summation(logical_not(isnan(x)), axis, keepdims=True)
    middle = maximum(floor_divide(numbers - 1, 2), 0)
    return squeeze(gather(sort(x, axis), middle, axis), axis)


_BETWEEN = ("linear", "lower", "higher", "nearest", "midpoint")


def _placed(places: Numpy, interpolation: str) -> Numpy:
    """Return places between elements, moved as ``interpolation`` says."""
    if interpolation == "midpoint":
        return (np.floor(places) + np.ceil(places)) / 2
    move = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}.get(interpolation)
    return places if move is None else move(places)


def _shares(q: Operand | list[float]) -> Numpy:
    """Return the shares given to ``quantile`` as a float64 array."""
    if isinstance(q, graph.TensorBase):  # also bfloat16, which NumPy does not know
        return executor.primal_array(cast(stop_gradient(q), dtypes.float64)).numpy()
    try:
        shares = np.asarray(q)
    except ValueError:  # lists of several lengths
        shares = np.empty(0, object)
    if shares.dtype.kind not in "biuf":
        raise ArgumentError(f"quantile: expected a number or a list of numbers as q, got {q!r:.60}")
    return shares.astype(np.float64)


def _parts(q: Operand, low: Numpy, size: int, device: DeviceLike) -> Tensor:
    """Return the distance of each share from its lower neighbour, computed from q; float64 [n]."""
    places = cast(to_device(reshape(q, (-1,)), device), dtypes.float64) * (size - 1.0)
    return places - graph.wrap(ndarray.array(low, dtypes.float64, device))


def quantile(
    x: Tensor,
    q: Operand,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Return the values below which a share q of the elements lies, along an axis (all for None).

    The result is NaN if an element is NaN.

    Args:
        x: a tensor.
        q: a number in [0, 1], or several, which give the result a new first axis. Gradients flow
            to q if it is a tensor.
        axis: along which; None for the flattened x.
        keepdims: whether to keep the axes, with size 1.
        interpolation: the value between two elements: "linear", "lower", "higher", "nearest" (the
            one at an even place if both are equally near) or "midpoint". Gradients flow to q only
            for "linear".

    Raises:
        ArgumentError: if q is not a number.
        OptionError: if q is not in [0, 1], or for an unknown interpolation.
        ShapeError: if x is empty, or q has several axes.

    >>> print(ndl.quantile(Tensor([0.0, 1.0, 2.0, 3.0]), 0.5))
    1.5
    """
    (x,) = promoted((x,), "quantile", floating=True)
    ndim = len(shape_of(x))
    flat = reshape(x, (x.spec.size,)) if axis is None else x
    along = 0 if axis is None else normalise_axis(axis, ndim)
    shares, size = _shares(q), shape_of(flat)[along]
    if shares.ndim > 1 or size == 0:
        what = f"q has shape {shares.shape}" if size else f"no elements along axis {along}"
        raise explain(ShapeError, "quantile", what, [("x", x)], "q is a number, or some in a row")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise OptionError(f"quantile: q={q!r:.60}\n  rule: shares from 0 to 1")
    if interpolation not in _BETWEEN:
        raise unknown("quantile: interpolation", interpolation, _BETWEEN)
    values = sort(widened(flat), along)
    places = _placed(shares.reshape(-1) * (size - 1), interpolation)
    low = np.floor(places).astype(np.int64)
    behind = (-1, *(1,) * (len(shape_of(flat)) - 1 - along))
    if isinstance(q, graph.TensorBase) and q.spec.dtype.is_floating and interpolation == "linear":
        parts = reshape(_parts(q, low, size, x.spec.device), behind)
        between = cast(parts, values.spec.dtype)
    else:
        numbers = (places - low).reshape(behind)
        between = graph.wrap(ndarray.array(numbers, values.spec.dtype, x.spec.device))
    first, second = (take(values, at, along) for at in (low, np.minimum(low + 1, size - 1)))
    out = lerp(first, second, between)
    alone = logical_or(equal(between, 0.0), equal(first, second))
    endless = logical_not(isfinite(second - first))  # a part of it would be NaN
    out = where(logical_and(alone, endless), first, out)
    last = window(values, along, size - 1, 1)  # where NaN is, if there is one
    out = where(isnan(last), last, out)
    keepdims = flag("quantile: keepdims", keepdims) and ndim > 0  # a number has no axes
    if axis is None and keepdims:
        out, along = reshape(out, (*(1,) * (ndim - 1), -1)), max(ndim - 1, 0)
    if shares.ndim == 0:
        return cast_like(out if keepdims else squeeze(out, along), x)
    out = moveaxis(out, along, 0)
    return cast_like(unsqueeze(out, along + 1) if keepdims else out, x)


def searchsorted(
    edges: Any, values: Operand, side: str | None = None, *, right: bool | None = None
) -> Tensor:
    """Return the positions at which to insert values into sorted edges. See ``SearchSorted``.

    Args:
        edges: a tensor, [n] in ascending order.
        values: a tensor, or a number.
        side: "left" inserts before equal edges (also for None), "right" after them.
        right: another way to give the side: True for "right".

    Raises:
        OptionError: if side and right contradict each other.

    >>> print(ndl.searchsorted(Tensor([1.0, 2.0, 3.0]), Tensor([0.5, 2.0, 9.0])))
    [0 1 3]
    """
    if right is not None:
        named = "right" if flag("searchsorted: right", right) else "left"
        if side not in (None, named):
            raise OptionError(f"searchsorted: side={side!r} contradicts right={right}")
        side = named
    side = "left" if side is None else side
    return executor.apply(SearchSorted.of(side), edges, values)


def bucketize(x: Tensor, edges: Tensor, right: bool = False) -> Tensor:
    """Return the number of the bucket between sorted edges for each element of x; int64.

    Bucket 0 is below all edges. A value equal to an edge falls into the bucket before it, or after
    it for ``right``. The edges may also be a list. See ``SearchSorted``.

    >>> print(ndl.bucketize(Tensor([0.5, 1.5, 9.0]), Tensor([1.0, 2.0])))
    [0 1 2]
    """
    if isinstance(edges, (list, tuple, range)):
        given = beside(x, edges)
        edges = cast_like(given, x) if executor.spec_of(x).dtype.kind == "f" else given
    return searchsorted(edges, x, "right" if right else "left")


def isin(x: Tensor, values: Tensor, *, invert: bool = False) -> Tensor:
    """Return whether each element of x is among the values (with ``invert``: is not); bool.

    NaN is not equal to any value.

    Shapes:   x [...], values of any shape -> [...]
    Raises:   DtypeError if the dtypes do not mix

    >>> print(ndl.isin(Tensor([1, 2, 3]), Tensor([1, 3])))
    [ True False  True]
    """
    x, values = promoted((x, values), "isin")
    count = values.spec.size
    if count == 0:
        return full_like(x, invert, dtype="bool")
    edges = sort(reshape(values, (count,)))
    found = equal(take(edges, minimum(searchsorted(edges, x), count - 1)), x)
    return logical_not(found) if invert else found


# ---- shapes that depend on values --------------------------------------------------


def nonzero(x: Any, *, as_tuple: bool = True) -> Any:
    """Return the positions of all elements that are not zero: per axis an int64 tensor.

    Without ``as_tuple``, which is PyTorch's default, they are the rows of one; see ``argwhere``.

    >>> rows, columns = ndl.nonzero(Tensor([[0.0, 5.0], [6.0, 0.0]]))
    >>> print(rows, columns)
    [0 1] [1 0]
    """
    if not flag("nonzero: as_tuple", as_tuple):
        return argwhere(x)
    (x,) = as_tensors((x,), "nonzero")
    return tuple(map(graph.wrap, kernels.nonzero(executor.primal_array(x))))


def argwhere(x: Tensor) -> Tensor:
    """Return the positions of all elements that are not zero: int64 [count, axes].

    >>> print(ndl.argwhere(Tensor([[0.0, 5.0], [6.0, 0.0]])))
    [[0 1]
     [1 0]]
    """
    found = nonzero(x)
    return permute(stack(found), (1, 0))


def unique(
    x: Any,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Return the distinct values of x in ascending order, with optional positions and counts.

    Args:
        x: a tensor, of any shape.
        return_index: where each first occurs in the flattened x.
        return_inverse: for each element of x the position of its value.
        return_counts: how often each occurs.

    Returns:
        The values, or a tuple of them and the rest in this order.

    >>> values, counts = ndl.unique(Tensor([2, 1, 2]), return_counts=True)
    >>> print(values, counts)
    [1. 2.] [1 2]
    """
    (x,) = as_tensors((x,), "unique")
    asked = (True, return_index, return_inverse, return_counts)
    found = kernels.unique(executor.primal_array(x), rest=any(asked[1:]))
    chosen = tuple(graph.wrap(part) for part, want in zip(found, asked, strict=False) if want)
    return chosen if len(chosen) > 1 else chosen[0]


def unique_consecutive(x: Any, *, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """Return the flattened x without elements that are equal to the one before them.

    NaN is not equal to any value.

    Args:
        x: a tensor, of any shape.
        return_inverse: for each element of x the position of its value.
        return_counts: how many equal ones each stands for.

    Returns:
        The values, or a tuple of them and the rest in this order.

    >>> print(ndl.unique_consecutive(Tensor([1, 1, 2, 1])))
    [1. 2. 1.]
    """
    (x,) = as_tensors((x,), "unique_consecutive")
    flat = reshape(stop_gradient(x), (x.spec.size,))
    starts = concat([ones_like(flat[:1], dtype="bool"), not_equal(flat[1:], flat[:-1])])
    (places,) = nonzero(starts)
    found = [take(flat, places, 0)]
    if return_inverse:
        found.append(reshape(cumsum(cast(starts, dtypes.int64), 0) - 1, shape_of(x)))
    if return_counts:
        end = full_like(places[:1], x.spec.size)
        found.append(concat([places[1:], end]) - places)
    return tuple(found) if len(found) > 1 else found[0]


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """Count how often each of 0, 1, 2, ... occurs in x, or sum the weights of each.

    Shapes:   x [n], weights [n] -> [max(largest of x + 1, minlength)]
    Dtypes:   x integers -> int64, or that of the weights
    Gradient: weights
    Raises:   DtypeError if x is not integer; ShapeError if x does not have one axis, or the
              weights differ in shape; IndexRangeError if a value is negative; ArgumentError for a
              negative minlength

    >>> print(ndl.bincount(Tensor([0, 2, 2], dtype="int64")))
    [1 0 2]
    """
    (x,) = as_tensors((x,), "bincount")
    weights = ones_like(x, dtype="int64") if weights is None else weights
    x, weights = as_tensors((x, weights), "bincount")
    if x.spec.dtype.kind not in "iu":
        raise DtypeError(f"bincount: expected integers, got {x.spec.dtype}")
    shapes = shape_of(x), shape_of(weights)
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise ShapeError(f"bincount: x {shapes[0]} and weights {shapes[1]}, both must be [n]")
    minlength = integer("bincount: minlength", minlength)
    if minlength < 0:
        raise ArgumentError(f"bincount: minlength {minlength} is negative")
    if x.spec.size == 0:
        return zeros((minlength,), dtype=weights.spec.dtype, device=x.spec.device)
    least, most = (int(value.item()) for value in (amin(x), amax(x)))
    if least < 0:
        raise IndexRangeError(f"bincount: x contains {least}; values must be 0 or more")
    length = max(most + 1, minlength)
    return executor.apply(ScatterAdd.of(0, (length,)), x, weights)

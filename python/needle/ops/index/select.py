"""Indexing as in NumPy, also with integer arrays and masks, and assignment to such places.

Values never change: an assignment makes a new value, and the variable then stands for that. The
memory of the old value is reused only where no other object holds it.
"""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import core, executor, forward, graph, nancheck, tracing
from needle import dtype as dtypes
from needle.backend import kernels, ndarray
from needle.backend.axes import normalise_axis
from needle.backend.index_errors import outside
from needle.backend.ndarray import broadcast_shapes
from needle.errors import DtypeError, IndexRangeError, ShapeError, explain, user_line
from needle.executor import shape_of
from needle.ops.core.attributes import number_in
from needle.ops.core.families import Composite
from needle.ops.core.op import Op, cast
from needle.ops.core.operands import as_array, as_tensors, constant, read
from needle.ops.core.samples import Sample, integers, uniform
from needle.ops.core.starts import become, is_start
from needle.ops.elementwise.arithmetic import cast_like, greater, not_equal, where
from needle.ops.index.basic_index import basic_index, check_count, native_index
from needle.ops.index.indexing import ScatterAdd, beside, listed, take
from needle.ops.index.sorting import argsort, nonzero
from needle.ops.shape.movement import (
    Reshape,
    broadcast_to,
    concat,
    permute,
    reshape,
    stop_gradient,
)
from needle.ops.shape.tuples import joined

if TYPE_CHECKING:
    from needle.typing import Gradients, Index, NDArray, Numpy, Operand, Tensor

__all__ = ["LinearIndex", "Put", "getitem", "masked_fill", "put", "scatter", "setitem"]

_native_setitem: Any = None if core.native is None else core.native.setitem


class LinearIndex(Op):
    """The position in C order of indices into several axes; negative ones count from the end.

    Shapes:   one integer tensor per axis; they broadcast -> int64
    Raises:   IndexRangeError naming the first index out of range; ShapeError if they do
              not broadcast, or there is not one per axis
    """

    sizes: tuple[int, ...]
    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample(
                (integers((2, 3), -4, 4), integers((3,), 0, 5)), ((4, 5),),
                lambda i, j: np.where(i < 0, i + 4, i) * 5 + j, gradient=False,
            ),
            Sample((np.array([0, -1]),), ((3,),), lambda i: i % 3, gradient=False),
            Sample((np.array([0]), np.array([5])), ((4, 5),), raises=IndexRangeError,
                   by_value=True),
            Sample((np.array([0, 1]), np.array([1, 2, 3])), ((4, 5),), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, *indices: NDArray) -> NDArray:
        return kernels.linear_index(indices, self.sizes)


# ---- reading -----------------------------------------------------------------------


def getitem(x: Any, index: Any) -> Tensor:
    """Return x indexed as in NumPy; integer arrays and masks copy, everything else is a view.

    Raises:
        IndexRangeError: for an index out of range, too many indices, an object that is not an
            index, or a mask whose shape differs from that of its axes.

    >>> print(ops.getitem(Tensor([[1.0, 2.0], [3.0, 4.0]]), (0, -1)))
    2.0
    """
    result = native_index(x, index)
    if result is not None:
        return result
    given = _parts(index)
    if all(map(_is_integers, given)) and 0 < len(given) <= len(shape_of(x)):
        return _pick(x, 0, list(given))  # the same result as with _located
    if len(given) == 1 and _is_mask_of(given[0], x):
        return take(*_flattened(x, given[0]), 0)
    if not any(_is_array(part) for part in given):
        return basic_index(x, given)
    return _pick(*_located(x, given))


def _parts(index: Index) -> tuple[Any, ...]:
    """Return the parts of an index; a tuple within it counts as a list of numbers."""
    given = index if isinstance(index, tuple) else (index,)
    return tuple([list(part) if isinstance(part, tuple) else part for part in given])


def _is_mask_of(part: Any, x: Tensor) -> bool:
    """Return whether a part of an index is a tensor of bools for the first axes of x."""
    if not isinstance(part, graph.TensorBase) or part.spec.dtype.kind != "b":
        return False
    return part.spec.ndim > 0 and shape_of(x)[: part.spec.ndim] == part.spec.shape


def _flattened(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with the axes of a mask as one, and the places there where it is true."""
    spec = mask.spec
    if spec.ndim > 1:
        x = executor.apply(Reshape.of((spec.size, *shape_of(x)[spec.ndim :])), x)
        mask = executor.apply(Reshape.of((spec.size,)), mask)
    return x, nonzero(mask)[0]


def _is_integers(part: object) -> bool:
    """Return whether a part of an index is a tensor of integers, of one axis or more."""
    if not isinstance(part, graph.TensorBase):
        return False
    spec = executor.spec_of(part)
    return spec.ndim > 0 and spec.dtype.kind in "iu" and not part.requires_grad


def _is_array(part: object) -> bool:
    if isinstance(part, graph.TensorBase):
        return len(shape_of(part)) > 0 or part.spec.dtype.kind == "b"
    if isinstance(part, (np.ndarray, np.bool_, bool)):
        return np.ndim(part) > 0 or np.asarray(part).dtype.kind == "b"
    return isinstance(part, (list, range))


def _is_all(part: slice | None) -> bool:
    return isinstance(part, slice) and part.start is part.stop is part.step is None


def _as_indices(part: Operand | list[int], like: Tensor) -> Tensor:
    """Return an index given as tensor, array, list or number as an integer or bool tensor."""
    if isinstance(part, graph.TensorBase):
        found = part
    else:
        values = listed(part)
        found = graph.wrap(ndarray.array(values, str(values.dtype), like.spec.device))
    if found.spec.dtype.kind not in "iub":
        raise explain(
            IndexRangeError, "index", f"expected integers or bools, got {found.spec.dtype}",
            [("x", like), ("index", found)], "indices are integers, slices, ..., None or masks",
        )  # fmt: skip
    return stop_gradient(found) if found.requires_grad else found


def _masked(mask: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the integer indices of a mask over axes of this shape."""
    own = shape_of(mask)
    if len(own) != len(shape) or any(
        n not in (size, 0) for n, size in zip(own, shape, strict=True)
    ):
        raise IndexRangeError(f"index: a mask of shape {own} for axes of shape {shape}")
    if not shape:  # it adds an axis, of size 1 or 0
        return nonzero(reshape(mask, (1,)))
    return nonzero(mask)


def _expanded(x: Tensor, given: tuple[Any, ...]) -> list[Tensor | int | slice | None]:
    """Return the parts of an index: arrays and masks as tensors, ``...`` as slices of its axes.

    A ``...`` for no axis stays, because it separates the arrays on its two sides.
    """
    parts = [
        p if p is None or p is Ellipsis or isinstance(p, slice) or not _is_array(p)
        else _as_indices(p, x)
        for p in given
    ]  # fmt: skip

    def width(part: Any) -> int:
        if part is None or part is Ellipsis:
            return 0
        is_mask = isinstance(part, graph.TensorBase) and part.spec.dtype.kind == "b"
        return len(shape_of(part)) if is_mask else 1

    missing = len(shape_of(x)) - sum(map(width, parts))
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    check_count(len(shape_of(x)) - missing, len(dots), len(shape_of(x)))
    place = dots[0] if dots else len(parts)
    between = [slice(None)] * missing or dots[:1] and [Ellipsis]
    return [*parts[:place], *between, *parts[place + len(dots) :]]


def _flat_mask(x: Tensor, parts: list[Any]) -> tuple[Tensor, list[Any]]:
    """Return x and an index with the axes of a mask as one, if it is the only array there."""
    arrays = [i for i, part in enumerate(parts) if isinstance(part, graph.TensorBase)]
    others = [part for part in parts if isinstance(part, int | np.integer)]
    if len(arrays) != 1 or others or parts[arrays[0]].spec.dtype.kind != "b":
        return x, parts
    place, shape = arrays[0], shape_of(x)
    own = shape_of(parts[place])
    axis = sum(part is not None and part is not Ellipsis for part in parts[:place])
    if len(own) < 2 or shape[axis : axis + len(own)] != own:
        return x, parts
    size = parts[place].spec.size
    mask = executor.apply(Reshape.of((size,)), parts[place])
    x = executor.apply(Reshape.of((*shape[:axis], size, *shape[axis + len(own) :])), x)
    return x, [*parts[:place], mask, *parts[place + 1 :]]


def _number(index: int, x: Tensor, axis: int) -> Any:
    size = shape_of(x)[axis]
    if not -size <= index < size:  # even if another part of the index picks nothing
        raise outside("index", axis, size)((), index)
    return _as_indices(index, x)


def _located(x: Any, given: tuple[Any, ...]) -> tuple[Any, int, list[Any]]:
    """Return a view of x and integer indices into its axes from a first one on."""
    basic: list[Any] = []  # slices and None, which are applied first
    axes: list[int] = []  # axes of that result that arrays index
    indices: list[Any] = []
    runs: list[int] = []  # position of each array within the index: are they neighbours?
    axis = 0
    x, parts = _flat_mask(x, _expanded(x, given))
    for position, part in enumerate(parts):
        if part is Ellipsis:
            continue
        if part is None or isinstance(part, slice):
            basic.append(part)
            axis += part is not None
            continue
        own = part if isinstance(part, graph.TensorBase) else _number(int(part), x, axis)
        if own.spec.dtype.kind == "b":
            found = _masked(own, shape_of(x)[axis : axis + len(shape_of(own))])
        else:
            found = (own,)
        adds = own.spec.dtype.kind == "b" and not shape_of(own)
        for each in found:
            axes.append(len(basic))
            basic.append(None if adds else slice(None))
            indices.append(each)
        runs.append(position)
        axis += 0 if adds else len(found)
    y = x if all(map(_is_all, basic)) else basic_index(x, tuple(basic))
    together = runs == list(range(runs[0], runs[-1] + 1))
    first = axes[0] if together else 0
    rest = [i for i in range(len(basic)) if i not in axes]
    if axes != list(range(first, first + len(axes))):
        y = permute(y, [*rest[:first], *axes, *rest[first:]])
    return y, first, indices


def _pick(y: Tensor, first: int, indices: list[Tensor]) -> Tensor:
    """Return y at integer indices into the axes from ``first`` on."""
    if len(indices) == 1:
        return take(y, indices[0], first)
    shape = shape_of(y)
    sizes = shape[first : first + len(indices)]
    place = executor.apply(LinearIndex.of(sizes), *indices)
    merged = prod(sizes)
    y = executor.apply(Reshape.of((*shape[:first], merged, *shape[first + len(indices) :])), y)
    return take(y, place, first)


# ---- writing -----------------------------------------------------------------------


def _put(x: Numpy, values: Numpy, places: Numpy) -> Numpy:
    out = x.copy()
    out[places] = values
    return out


class Put(Composite):
    """x with values written to places; the last of several values for one place counts.

    Shapes:   x [n], values [m], places [m] integer -> [n]
    Dtypes:   x and values the same
    Gradient: x, values; any order
    Raises:   ShapeError if shapes do not fit; IndexRangeError naming the first place out of range
    """

    saves = ((2,), (2,), ())
    samples = staticmethod(
        lambda: [
            Sample((uniform((6,)), uniform((3,), seed=1), np.array([4, 0, -1])), (), _put),
            Sample((uniform((4,)), uniform((5,), seed=1), np.array([1, 3, 1, 1, 3])), (), _put),
            Sample((uniform((4,)), uniform((0,)), np.zeros(0, int)), (), _put),
            Sample((uniform((4,)), uniform((1,)), np.array([4])), raises=IndexRangeError,
                   by_value=True),
            Sample((uniform(()), uniform((1,)), np.array([0])), raises=ShapeError),
            Sample((uniform((4,)), uniform(()), np.array(0)), raises=ShapeError),
            Sample((uniform((4,)), uniform((2,)), np.array([0])), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, x: NDArray, values: NDArray, places: NDArray) -> NDArray:
        if x.ndim != 1 or places.ndim != 1 or values.shape != places.shape:
            raise ShapeError(
                f"put: shapes {x.shape}, {values.shape} and {places.shape}\n"
                "  rule: x [n], values [m], places [m]"
            )
        return super().compute(x, values, places)

    def expand(self, x: Tensor, values: Tensor, places: Tensor) -> Tensor:
        places, wins, hit = _winners(places, shape_of(x)[0])
        # bools are added as numbers: there is one summand at most
        summed = values if x.spec.dtype.kind != "b" else cast(values, dtypes.uint8)
        chosen = where(wins, summed, constant(0, summed.spec.dtype, x.spec.device))
        written = executor.apply(ScatterAdd.of(0, shape_of(x)), places, chosen)
        return where(hit, cast_like(written, x), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        places, wins, hit = _winners(out.inputs[2], out.node.spec.shape[0])
        return where(hit, 0.0, out_grad), where(wins, take(out_grad, places, 0), 0.0), None


def _winners(places: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return places counted from 0, which values stay (the last per place), and which are hit."""
    places = executor.apply(LinearIndex.of((size,)), places)
    count = shape_of(places)[0]
    if count == 0:
        nothing = graph.wrap(ndarray.full((size,), False, dtypes.bool_, places.spec.device))
        return places, not_equal(places, places), nothing
    order = argsort(places, 0)
    ranked = take(places, order, 0)
    changes = not_equal(ranked[1:], ranked[:-1])
    end = graph.wrap(ndarray.full((1,), True, dtypes.bool_, places.spec.device))
    last = cast(concat([changes, end]), dtypes.int64)
    wins = greater(executor.apply(ScatterAdd.of(0, (count,)), order, last), 0)
    one = cast(wins, dtypes.int64)
    hit = greater(executor.apply(ScatterAdd.of(0, (size,)), places, one), 0)
    return places, wins, hit


def put(x: Any, index: Any, value: Any) -> Tensor:
    """Return x with a value written to ``x[index]``; x itself stays as it is.

    Args:
        x: a tensor.
        index: as in NumPy: integers, slices, ``...``, None, integer arrays, masks.
        value: a number, or a tensor that broadcasts to ``x[index]``; extra leading axes of size 1
            are removed. Lists of tensors are stacked.

    Raises:
        DtypeError: if the value's dtype does not fit into that of x, or a number is out of its
            range.
        ShapeError: if the value does not broadcast to the place.

    >>> print(ops.put(Tensor([1.0, 2.0, 3.0]), [0, 2], 9.0))
    [9. 2. 9.]
    """
    value = _fitting(x, value)
    _watch(x, value)
    shape, size = shape_of(x), x.spec.size
    whole = _as_indices(index, x) if _is_array(index) else None
    is_mask = whole is not None and whole.spec.dtype.kind == "b" and shape_of(whole) == shape
    if is_mask and value.spec.size == 1:
        return where(whole, reshape(value, ()), x)
    steps = graph.wrap(kernels.arange(size, dtypes.int64, x.spec.device))
    places = getitem(reshape(steps, shape), index)
    spread = broadcast_to(_without_leading_ones(value, len(shape_of(places))), shape_of(places))
    count = places.spec.size
    flat = (reshape(x, (size,)), reshape(spread, (count,)), reshape(places, (count,)))
    return reshape(executor.apply(Put.of(), *flat), shape)


def scatter(x: Tensor, axis: int, index: Operand, values: Operand) -> Tensor:
    """Return x with values written along an axis: out[i, index[i, j, k], k] = values[i, j, k].

    Args:
        x: a tensor, which stays as it is.
        axis: along which.
        index: integers, one for each value. Along other axes it may be shorter than x. The last of
            several values for one place counts; negative indices count from the end.
        values: a number, or a tensor of at least the size of the index along each axis.

    Raises:
        ShapeError: if x, index and values differ in their number of axes, or one is too short.
        IndexRangeError: naming the first index that is out of range.
        DtypeError: if the values' dtype does not fit into that of x, or the index is not integer.

    >>> index, values = Tensor([2, 0], dtype="int64"), Tensor([5.0, 6.0])
    >>> print(ndl.scatter(ndl.zeros((3,)), 0, index, values))
    [6. 0. 5.]
    """
    return put(*places_along("scatter", x, axis, index, values))


def places_along(operation: str, x: Any, axis: int, index: Any, values: Any) -> tuple[Any, ...]:
    """Return x, the index of ``scatter`` as one index per axis, and the values for it.

    Raises:
        ShapeError, DtypeError: as ``scatter``.
    """
    (x, index), shape = as_tensors((x, beside(x, index)), operation), shape_of(x)
    axis, own = normalise_axis(axis, len(shape)), shape_of(index)
    given: list[tuple[str, Any]] = (
        [("values", values)] if isinstance(values, (graph.TensorBase, np.ndarray)) else []
    )
    limits = [tuple(own[axis] if i == axis < len(own) else n for i, n in enumerate(shape))]
    limits += [part.shape for _, part in given]
    if index.spec.dtype.kind not in "iu" or any(
        len(limit) != len(own) or any(map(operator.gt, own, limit)) for limit in limits
    ):
        raise explain(
            ShapeError if index.spec.dtype.kind in "iu" else DtypeError, operation,
            f"an index of {index.spec.dtype} and shape {own}", [("x", x), ("index", index), *given],
            "integers, with as many axes as x and values; an axis is no longer than that of the "
            f"values, nor, but for axis {axis}, than that of x",
        )  # fmt: skip
    places: list[Any] = []
    for i, n in enumerate(own):
        steps = graph.wrap(kernels.arange(n, dtypes.int64, x.spec.device))
        places.append(reshape(steps, tuple(n if j == i else 1 for j in range(len(own)))))
    places[axis] = index
    return x, tuple(places), values[tuple(map(slice, own))] if given else values


def _watch(x: Tensor, value: Any) -> None:
    """With ``finite``, refuse operands with a NaN, if they are computed."""
    if not nancheck.on():
        return
    ready = [(name, part) for name, part in (("x", x), ("value", value)) if part.array is not None]
    named = [(name, executor.primal_array(part)) for name, part in ready]
    nancheck.check_operands("assignment", named, user_line())


def _without_leading_ones(value: Any, ndim: int) -> Tensor:
    shape = shape_of(value)
    extra = max(len(shape) - ndim, 0)
    return reshape(value, shape[extra:]) if extra and set(shape[:extra]) == {1} else value


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Replace elements by a value where mask is true; the dtype stays that of x.

    Args:
        x: a tensor.
        mask: bools; it broadcasts with x.
        value: a number, or a tensor that broadcasts.

    Raises:
        DtypeError: if the dtype of x cannot hold the value.

    >>> x = Tensor([1.0, -2.0])
    >>> print(ndl.masked_fill(x, x < 0, 0.0))
    [1. 0.]
    """
    if not isinstance(value, (graph.TensorBase, np.ndarray)):
        value = number_in("masked_fill", value, executor.spec_of(x).dtype)
    return where(mask, _fitting(x, value), x)


def _fitting(x: Any, value: Any) -> Any:
    kind = executor.spec_of(x).dtype
    if isinstance(value, (bool, int, float, np.integer, np.bool_)):
        return constant(number_in("assignment", value, kind), kind, x.spec.device)
    if not isinstance(value, graph.TensorBase):
        try:
            values = read(np.asarray, value)
        except ValueError as error:
            raise ShapeError(
                f"assignment: lists within a list have different lengths or depths\n  {error}"
            ) from None
        if values is not None and values.dtype.kind in "OSUcmM":
            raise DtypeError(f"assignment: {value!r:.60} is not made of real numbers")
        if values is None and kind.kind == "f":
            return joined(value, kind, x.spec.device)
        values = as_array(value) if values is None else values
        value = graph.wrap(ndarray.array(values, str(values.dtype), x.spec.device))
    own = value.spec.dtype
    widens = own.kind == "b" or (kind.kind == "f" and own.kind in "iu")
    if dtypes.promote(own, kind) is None and not widens:
        raise DtypeError(f"assignment: {own} values do not fit into a {kind} tensor")
    return cast(value, kind)


def setitem(x: Any, index: Any, value: Any) -> None:
    """Assign: ``x[index] = value``.

    Results computed from x before keep the old value. A leaf stays a leaf with new data, unless
    the value is part of a graph: then x becomes part of it too, and ``backward`` computes the
    gradient with respect to its new value. A result of a graph becomes a new result; under
    ``no_grad`` it has no graph, as after ``x *= 2``.

    >>> x = Tensor([1.0, 2.0, 3.0])
    >>> ops.setitem(x, 1, 9.0)
    >>> print(x)
    [1. 9. 3.]
    """
    if _native_setitem is not None and _native_setitem(x, index, value):
        return
    value = _fitting(x, value)
    is_leaf = is_start(x) and not forward.top((x, value))
    flows = graph.recording() and value.requires_grad
    if is_leaf and not flows and graph.lazy() and (tracing.current() or not x.requires_grad):
        with executor.modes(recording=False):
            become(x, put(x, index, value))
    elif is_leaf and not flows:
        with executor.modes(recording=False, lazy=False):
            if x.spec.device.backend.puts:
                _write(x, index, value)
            else:
                graph.set_array(x, executor.array_of(put(x, index, value)))
    else:
        graph.rebind(x, put(x, index, value))


def _write(x: Tensor, index: Any, value: Any) -> None:
    """Write a value of its dtype to a leaf: in place where no other object holds its memory."""
    _watch(x, value)
    given = _parts(index)
    is_read = any(part is x for part in (value, *given))
    alone = graph.exclusive(x) and not is_read  # asked first: from here on we hold the array too
    array, values = executor.array_of(x), executor.array_of(value)
    kernels.same_device("assignment", array, values)
    alone = alone and array.strides == array.spec.strides
    if value.spec.size == 1 and len(given) == 1 and _is_array(index):
        mask = executor.array_of(_as_indices(index, x))
        if mask.dtype.kind == "b" and mask.shape == array.shape:
            out = array if alone else ndarray.empty_of(array.spec)
            kernels.choose(out, mask, values.reshape(()), array)
            graph.set_array(x, out)
            return
    out = array if alone else array.copy()
    _write_to(graph.wrap(out), given, values)
    graph.set_array(x, out)


def _write_to(x: Tensor, given: tuple[object, ...], values: NDArray) -> None:
    """Write an array to places of x, whose array is dense and held by no other object."""
    if not any(_is_array(part) for part in given):
        target = executor.array_of(basic_index(x, given))
        target.device.backend.copy(target, _spread(values, target.shape))
        return
    view, first, indices = _located(x, given)
    y, found = executor.array_of(view), [executor.array_of(i) for i in indices]
    end = first + len(found)
    place = broadcast_shapes("index", *[i.shape for i in found])
    values = _spread(values, (*y.shape[:first], *place, *y.shape[end:]))
    where = found[0] if len(found) == 1 else kernels.linear_index(tuple(found), y.shape[first:end])
    count, size = prod(place), prod(y.shape[first:end])
    merged = y.reshape((*y.shape[:first], size, *y.shape[end:]))
    kernels.put(
        merged,
        where.reshape((*[1] * first, count, *[1] * (y.ndim - end))),
        values.reshape((*y.shape[:first], count, *y.shape[end:])),
        first,
    )
    if not y.is_dense() and len(found) > 1:  # then merged may be a copy
        y.device.backend.copy(y, merged.reshape(y.shape))


def _spread(values: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Return an array broadcast to a place, without extra leading axes of size 1."""
    extra = max(values.ndim - len(shape), 0)
    if extra and set(values.shape[:extra]) == {1}:
        values = values.reshape(values.shape[extra:])
    return values.broadcast_to(shape)

"""Operations on arrays; each checks shapes, dtypes and devices once, for every device.

An op's ``compute`` calls these; on the meta device they infer its shapes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from needle import core
from needle import dtype as dtypes
from needle.backend.array import make_array, make_spec, native_function
from needle.backend.axes import normalise_axis
from needle.backend.index_errors import bad_index, bad_label, bad_slice, outside
from needle.backend.ndarray import NDArray, Shape, array, broadcast_shapes, empty, full, kept_order
from needle.dtype import DType
from needle.errors import DeviceError, DtypeError, IndexRangeError, ShapeError, explain

MOST_WORK = 2**60
"""Limit of the multiplications in a matrix product, as in src/cpu/gemm/gemm.cc."""

_NAMES = ("x", "y", "z", "w")
_FUNCTIONS, _REDUCTIONS = core.numbers("function"), core.numbers("reduction")
_elementwise, _reduce, _joined, _taken_apart, _padded, _gathered = map(
    native_function, ("elementwise", "reduce", "joined", "taken_apart", "padded", "gathered_along")
)


def _named(arrays: tuple[NDArray, ...]) -> list[tuple[str, NDArray]]:
    return list(zip(_NAMES, arrays, strict=False))


def same_device(operation: str, *arrays: NDArray) -> None:
    """Check that all operands are on one device.

    Raises:
        DeviceError: if they are not.
    """
    first = arrays[0].device
    for x in arrays:
        if x.device is not first and x.device != first:
            raise explain(
                DeviceError, operation, f"operands on devices {first} and {x.device}",
                _named(arrays), advice="move one with .to(device)",
            )  # fmt: skip


def same_dtype(operation: str, *arrays: NDArray) -> DType:
    """Check that the operands have one dtype, and return it.

    Raises:
        DtypeError: if they do not.
    """
    first = arrays[0].dtype
    for x in arrays:
        if x.dtype is not first:
            raise explain(
                DtypeError, operation, f"dtypes {first} and {x.dtype} differ", _named(arrays),
                advice="cast one with .astype(dtype)",
            )  # fmt: skip
    return first


def elementwise(function: str, *arrays: NDArray, dtype: DType | None = None) -> NDArray:
    """Apply an elementwise function to broadcast operands.

    Args:
        function: a row of functions.def.
        arrays: operands of one dtype (``where``: a bool condition first).
        dtype: of the result; that of the operands for None.
    """
    if (made := _elementwise(_FUNCTIONS.get(function), dtype, *arrays)) is not None:
        return made
    same_device(function, *arrays)
    common = same_dtype(function, *(arrays[1:] if function == "where" else arrays))
    shapes = [x.shape for x in arrays]
    shape = shapes[0]
    if any(other != shape for other in shapes):
        shape = broadcast_shapes(function, *shapes)
    device = arrays[0].device
    spec = make_spec(common if dtype is None else dtype, device, shape)
    handle = device.backend.allocate(spec.size * spec.dtype.itemsize)
    out = make_array(spec, handle, 0, kept_order(shape, arrays))
    device.backend.elementwise(
        function, out, *[x if x.shape == shape else x.broadcast_to(shape) for x in arrays]
    )
    return out


def reduced_dtype(function: str, dtype: DType) -> DType:
    """Return the dtype of a reduction: small integers and bools are summed in int64."""
    if function in ("any", "all"):
        return dtypes.bool_
    if function in ("argmax", "argmin"):
        return dtypes.int64
    if function in ("sum", "prod") and dtype.kind != "f":
        return dtypes.int64
    return dtype


def reduce(function: str, x: NDArray, axes: Shape, keepdims: bool = False) -> NDArray:
    """Reduce over axes (counted from 0, sorted).

    Raises:
        ShapeError: for max, min, argmax or argmin of no elements.
        IndexRangeError: if an axis is out of range.
    """
    if (made := _reduce(_REDUCTIONS.get(function), x, axes, keepdims)) is not None:
        return made
    if axes and (
        axes[0] < 0 or any(a >= b for a, b in zip(axes, (*axes[1:], x.ndim), strict=True))
    ):
        raise IndexRangeError(
            f"{function}: axes {axes} of {x.ndim} dimensions\n"
            f"  rule: axes count from 0, in ascending order, each once"
        )
    if function in ("argmax", "argmin") and not axes and x.ndim:  # of one element each
        return full(x.shape, 0, dtypes.int64, x.device)
    empty_axis = any(x.shape[axis] == 0 for axis in axes)
    if empty_axis and function in ("max", "min", "argmax", "argmin"):
        raise ShapeError(f"{function}: no elements along axes {axes} of shape {x.shape}")
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    out = empty(kept, reduced_dtype(function, x.dtype), x.device)
    x.device.backend.reduce(function, out, x, axes)
    return out if keepdims else out.squeeze(axes)


def scan(function: str, x: NDArray, axis: int) -> NDArray:
    """Cumulate ("cumsum" or "cumprod") along an axis."""
    dtype = dtypes.int64 if x.dtype.kind != "f" else x.dtype
    out = empty(x.shape, dtype, x.device)
    x.device.backend.scan(function, out, x, normalise_axis(axis, x.ndim))
    return out


def extremes(x: NDArray, axis: int, largest: bool) -> tuple[NDArray, NDArray]:
    """Return the largest or smallest elements up to each along an axis, and their positions."""
    values = empty(x.shape, x.dtype, x.device)
    positions = empty(x.shape, dtypes.int64, x.device)
    x.device.backend.extremes(values, positions, x, normalise_axis(axis, x.ndim), largest)
    return values, positions


def matmul(a: NDArray, b: NDArray) -> NDArray:
    """Matrix product of [..., m, k] and [..., k, n]; batch axes broadcast.

    Raises:
        ShapeError: if the inner sizes differ, or an operand has fewer than 2 axes; for 2**60
            multiplications or more, which views that repeat elements can reach.
    """
    same_device("matmul", a, b)
    dtype = same_dtype("matmul", a, b)
    if dtype is dtypes.bool_:
        raise explain(
            DtypeError, "matmul", "not defined for bool", [("a", a), ("b", b)],
            "floating or integer dtypes",
            'x.astype("int32")',
        )  # fmt: skip
    rule = "a[..., m, k] @ b[..., k, n] -> [..., m, n]"
    operands = [("a", a), ("b", b)]
    if a.ndim < 2 or b.ndim < 2:
        problem = f"expected operands with at least 2 axes, got {a.ndim} and {b.ndim}"
        raise explain(ShapeError, "matmul", problem, operands, rule)
    if a.shape[-1] != b.shape[-2]:
        turned = b.shape[-1] == a.shape[-1]
        raise explain(
            ShapeError, "matmul", f"inner sizes differ, {a.shape[-1]} and {b.shape[-2]}",
            operands, rule,
            "a @ b.transpose()   (b looks like a weight stored as [out, in])" if turned else "",
        )  # fmt: skip
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    work = prod((*batch, *a.shape[-2:], b.shape[-1]))
    if work >= MOST_WORK:
        raise explain(
            ShapeError, "matmul", f"{work} multiplications", operands, "fewer than 2**60"
        )  # fmt: skip
    if a.shape[-1] == 1 and dtype.kind == "f":  # there is no sum
        return elementwise("multiply", a, b)
    out = empty((*batch, a.shape[-2], b.shape[-1]), dtype, a.device)
    a.device.backend.matmul(
        out, a.broadcast_to((*batch, *a.shape[-2:])), b.broadcast_to((*batch, *b.shape[-2:]))
    )
    return out


def _check_index(operation: str, index: NDArray) -> None:
    if index.dtype.kind not in "iu":
        raise explain(
            DtypeError, operation, f"expected integer indices, got {index.dtype}",
            [("index", index)], advice='index.astype("int64")',
        )  # fmt: skip


def _check_range(index: NDArray, axis: int, size: int) -> None:
    if index.size:
        wrong = outside("index", axis, size)
        index.device.backend.check_range(index, -size, size, None, wrong)


def has_values(x: NDArray) -> bool:
    """Return whether the array holds data, as opposed to one of the meta device."""
    return x.device.name != "meta"


def integers(operation: str, x: NDArray) -> NDArray:
    """Return integers unchanged, and floats with integer values as int64.

    Raises:
        DtypeError: naming the first number that is not an integer; for bools.
    """
    if x.dtype.kind in "iu":
        return x
    if x.dtype.kind == "b":
        raise explain(DtypeError, operation, "expected integers, got bools", [("x", x)])
    text = f"{x.dtype}{list(x.shape)}"

    def not_integer(position: int, value: Any = None) -> Exception:
        which = "the number" if value is None else f"{value}"
        return DtypeError(
            f"{operation}: {which} at position {position} is not an integer\n  x: {text}\n"
            "  rule: indices and labels are integers, or floats with integer values"
        )

    x.device.backend.check_whole(x, not_integer)
    return x.astype(dtypes.int64)


def as_labels(operation: str, logits: NDArray, labels: NDArray) -> NDArray:
    """Return labels as integers, one for each row of logits.

    Raises:
        ShapeError: if their shape is not that of the logits without the last axis.
    """
    same_device(operation, logits, labels)
    if logits.ndim < 1 or labels.shape != logits.shape[:-1]:
        raise explain(
            ShapeError, operation, f"labels have shape {labels.shape}, logits {logits.shape}",
            [("logits", logits), ("labels", labels)], "logits [..., classes], labels [...]",
        )  # fmt: skip
    return integers(operation, labels)


def check_labels(operation: str, labels: NDArray, classes: int, ignore: int | None = None) -> None:
    """Check that every integer label is in [0, classes), or is the ignored label.

    Raises:
        IndexRangeError: naming the first label out of range.
    """
    spec = labels.spec

    def wrong(position: int, value: Any = None) -> Exception:
        text = f"{spec.dtype}{list(spec.shape)}"
        return bad_label(operation, text, position, classes, value)

    labels.device.backend.check_range(labels, 0, classes, ignore, wrong)


def arange(count: int, dtype: DType, device: Any, start: float = 0, step: float = 1) -> NDArray:
    """Return start, start + step, ...: ``count`` numbers, as NumPy computes them."""
    out = empty((count,), dtype, device)
    if has_values(out):
        with np.errstate(all="ignore"):
            values = start + step * np.arange(count)
            out.device.backend.upload(out, values.astype(dtype.numpy, copy=False))
    return out


def linear_index(indices: tuple[NDArray, ...], sizes: Shape) -> NDArray:
    """Return int64 places in C order of indices (they broadcast) into axes of these sizes.

    Raises:
        IndexRangeError: naming the first index out of range.
    """
    same_device("index", *indices)
    for index in indices:
        _check_index("index", index)
    device = indices[0].device
    shape = broadcast_shapes("index", *[index.shape for index in indices])
    out = empty(shape, dtypes.int64, device)
    if out.size == 0:  # as in NumPy, no device checks an index whose result is empty
        return out
    spread = [index.broadcast_to(shape) for index in indices]
    if len(indices) == len(sizes) and device.backend.linear_index(out, spread, sizes):
        return out
    total: NDArray | None = None
    for axis, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        _check_range(index, axis, size)
        zero, width = (array(n, dtypes.int64, device) for n in (0, size))
        wide = index.astype(dtypes.int64, copy=False)
        below = elementwise("less", wide, zero, dtype=dtypes.bool_)
        wide = elementwise("where", below, elementwise("add", wide, width), wide)
        total = wide if total is None else elementwise("multiply", total, width)
        total = total if total is wide else elementwise("add", total, wide)
    assert total is not None
    return total


def gather(x: NDArray, index: NDArray, axis: int, given: NDArray | None = None) -> NDArray:
    """Pick along an axis: out[i, j, k] = x[i, index[i, j, k], k] (NumPy's take_along_axis).

    x and index broadcast against each other on the other axes.

    Args:
        x: the array.
        index: integers.
        axis: counted from 0 or from the end.
        given: the user's index, if it has another shape (for indices of slices).

    Raises:
        IndexRangeError: naming the first index out of range.
    """
    if (made := _gathered(x, index, axis)) is not None:
        return made
    same_device("gather", x, index)
    _check_index("gather" if given is None else "take", index)
    if x.ndim != index.ndim:
        raise ShapeError(f"gather: x has {x.ndim} axes, but index has {index.ndim}")
    axis = normalise_axis(axis, x.ndim)
    other = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    shape = broadcast_shapes("gather", other, index.shape)
    out = empty(shape, x.dtype, x.device)
    source = x.broadcast_to(tuple(x.shape[axis] if i == axis else n for i, n in enumerate(shape)))
    where = index.broadcast_to(shape)
    if out.size == 0:
        _check_range(index, axis, x.shape[axis])
        return out
    bad = x.device.backend.gather(out, source, where, axis)
    if bad >= 0 and given is not None:
        raise bad_slice(given, int(np.unravel_index(bad, shape)[axis]), axis, x.shape[axis])
    if bad >= 0:
        raise bad_index("gather", index, shape, bad, x.shape[axis])
    return out


def scatter_add(index: NDArray, updates: NDArray, axis: int, shape: Shape) -> NDArray:
    """Return zeros of ``shape`` with updates[i, j, k] added at [i, index[i, j, k], k].

    Raises:
        IndexRangeError: naming the first index out of range.
    """
    same_device("scatter_add", index, updates)
    _check_index("scatter_add", index)
    axis = normalise_axis(axis, updates.ndim)
    if len(shape) != updates.ndim or any(
        n != m for i, (n, m) in enumerate(zip(shape, updates.shape, strict=True)) if i != axis
    ):
        raise explain(
            ShapeError, "scatter_add", f"updates {updates.shape} into {shape} along axis {axis}",
            [("index", index), ("updates", updates)], "shapes agree outside the axis",
        )  # fmt: skip
    out = empty(shape, updates.dtype, updates.device)
    where = index.broadcast_to(updates.shape)
    if updates.dtype is dtypes.bool_:  # whether any is true
        return scatter_add(index, updates.astype(dtypes.int64), axis, shape).astype(dtypes.bool_)
    bad = out.device.backend.scatter_add(out, where, updates, axis)
    if bad >= 0:
        raise bad_index("scatter_add", index, updates.shape, bad, shape[axis])
    return out


def choose(out: NDArray, mask: NDArray, x: NDArray, y: NDArray) -> None:
    """Write x where the mask is true, else y; they broadcast to out, which may be y."""
    same_device("where", out, mask, x, y)
    spread = [z.broadcast_to(out.shape) for z in (mask, x, y)]
    out.device.backend.elementwise("where", out, *spread)


def put(out: NDArray, index: NDArray, values: NDArray, axis: int) -> None:
    """Write out[i, index[i, j, k], k] = values[i, j, k]; the last value wins at equal places.

    index broadcasts to values.

    Raises:
        IndexRangeError: naming the first index out of range; then out is unchanged.
    """
    same_device("put", out, index, values)
    same_dtype("put", out, values)
    _check_index("put", index)
    bad = out.device.backend.put(out, index.broadcast_to(values.shape), values, axis)
    if bad >= 0:
        raise bad_index("put", index, values.shape, bad, out.shape[axis])


def sort(
    x: NDArray, axis: int, descending: bool = False, count: int | None = None
) -> tuple[NDArray, NDArray]:
    """Return values and int64 indices, sorted along an axis (the first ``count``); NaN last.

    Raises:
        IndexRangeError: if there are fewer than ``count``.
    """
    axis = normalise_axis(axis, x.ndim)
    size = x.shape[axis]
    if count is not None and not 0 <= count <= size:
        raise explain(
            IndexRangeError, "topk", f"{count} of the {size} elements along axis {axis}",
            [("x", x)], "from 0 to the size of the axis",
        )  # fmt: skip
    shape = x.shape if count is None else (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values = empty(shape, x.dtype, x.device)
    indices = empty(shape, dtypes.int64, x.device)
    x.device.backend.sort(values, indices, x, axis, descending)
    return values, indices


def nonzero(x: NDArray) -> tuple[NDArray, ...]:
    """Return, per axis, the int64 positions of the elements that are not zero."""
    if x.ndim == 0:
        raise ShapeError("nonzero: a 0-dimensional array has no axes")
    found = x.device.backend.nonzero(x if x.dtype is dtypes.bool_ else x.astype(dtypes.bool_))
    if found is None:
        return tuple(array(part, dtypes.int64, x.device) for part in np.nonzero(x.numpy()))
    count = found.shape[1]
    return tuple(found.view((count,), (1,), axis * count) for axis in range(x.ndim))


def unique(x: NDArray, equal_nan: bool = True, rest: bool = True) -> tuple[NDArray, ...]:
    """Return the distinct values in order and, with the rest, where they first occur, the inverse
    and the counts."""
    size = x.size
    values, order = sort(x.reshape((size,)), 0)
    starts = _runs(values, equal_nan)
    (first,) = nonzero(starts)
    distinct = gather(values, first, 0)
    if not rest:
        return (distinct,)
    ends = concatenate((first, array([size], dtypes.int64, x.device)), 0)
    counts = elementwise("subtract", ends.slice([(1, first.size, 1)]), first)
    one = array(1, dtypes.int64, x.device)
    number = elementwise("subtract", scan("cumsum", starts, 0), one)
    inverse = scatter_add(order, number, 0, (size,))  # each place once
    return distinct, gather(order, first, 0), inverse.reshape(x.shape), counts


def _runs(values: NDArray, equal_nan: bool) -> NDArray:
    """Return the positions at which sorted values differ from those before."""
    size = values.size
    if size == 0:
        return empty((0,), dtypes.bool_, values.device)
    backend = values.device.backend
    starts = full((size,), True, dtypes.bool_, values.device)
    changes = starts.slice([(1, size - 1, 1)])
    before, after = (values.slice([(i, size - 1, 1)]) for i in (0, 1))
    backend.elementwise("not_equal", changes, before, after)
    if equal_nan and values.dtype.kind == "f":  # behind NaN is NaN only
        number = elementwise("equal", before, before, dtype=dtypes.bool_)
        backend.elementwise("bitwise_and", changes, changes, number)
    return starts


def random_bits(shape: Shape, key: Any, counter: int, dtype: DType, device: Any) -> NDArray:
    """Return an array of Philox4x32-10 bits; key may be a stream (ops/random/stream.py)."""
    out = empty(shape, dtype, device)
    backend = out.device.backend
    draw: Any = backend.random_bits if isinstance(key, int) else backend.random_bits_of
    draw(out, key, counter)
    return out


def concatenate(arrays: tuple[NDArray, ...], axis: int) -> NDArray:
    """Join along an axis.

    Raises:
        ShapeError: if another axis differs in size.
    """
    if (made := _joined(arrays, axis, False)) is not None:
        return made
    same_device("concat", *arrays)
    same_dtype("concat", *arrays)
    first = arrays[0]
    axis = normalise_axis(axis, first.ndim)
    for x in arrays:
        same = x.ndim == first.ndim and all(
            n == m for i, (n, m) in enumerate(zip(x.shape, first.shape, strict=True)) if i != axis
        )
        if not same:
            raise ShapeError(
                f"concat: shapes {first.shape} and {x.shape} differ outside axis {axis}"
            )
    total = sum(x.shape[axis] for x in arrays)
    out = empty(
        tuple(total if i == axis else n for i, n in enumerate(first.shape)),
        first.dtype, first.device,
    )  # fmt: skip
    start = 0
    for x in arrays:
        ranges = [(0, n, 1) for n in x.shape]
        ranges[axis] = (start, x.shape[axis], 1)
        out.device.backend.copy(out.slice(ranges), x)
        start += x.shape[axis]
    return out


def stack(arrays: tuple[NDArray, ...], axis: int) -> NDArray:
    """Join along a new axis, counted in the result.

    Raises:
        ShapeError: if shapes differ.
    """
    axis = normalise_axis(axis, arrays[0].ndim + 1)
    if (made := _joined(arrays, axis, True)) is not None:
        return made
    for x in arrays:
        if x.shape != arrays[0].shape:
            raise ShapeError(f"stack: shapes {arrays[0].shape} and {x.shape} differ")
    return concatenate(tuple(x.unsqueeze(axis) for x in arrays), axis)


def unstack(x: NDArray, axis: int) -> tuple[NDArray, ...]:
    """Return the views that x consists of along an axis, without it: the inverse of stack."""
    axis = normalise_axis(axis, x.ndim)
    if (made := _taken_apart(x, axis)) is not None:
        return made
    ranges = [(0, n, 1) for n in x.shape]
    parts = []
    for i in range(x.shape[axis]):
        ranges[axis] = (i, 1, 1)
        parts.append(x.slice(ranges).squeeze(axis))
    return tuple(parts)


def pad(x: NDArray, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> NDArray:
    """Pad with a constant: widths (before, after) per axis.

    Raises:
        ShapeError: if there is not one pair per axis, or a size is negative or too large.
    """
    if value == 0 and (made := _padded(x, widths, 0)) is not None:
        return made
    if len(widths) != x.ndim or any(w < 0 for pair in widths for w in pair):
        raise ShapeError(
            f"pad: widths {widths} for {x.ndim} axes\n  rule: one pair >= 0 for each axis"
        )
    shape = tuple(n + low + high for n, (low, high) in zip(x.shape, widths, strict=True))
    if any(n >= 2**63 for n in shape):
        raise ShapeError(f"pad: widths {widths} give sizes of 2**63 or more")
    out = empty(shape, x.dtype, x.device)
    out.device.backend.fill(out, value)
    inner = out.slice([(low, n, 1) for n, (low, _) in zip(x.shape, widths, strict=True)])
    out.device.backend.copy(inner, x)
    return out


def function_code(name: str) -> int:
    """Return the number of an elementwise function in the native table, or -1."""
    return int(_FUNCTIONS.get(name, -1))


def cast_code(kind: DType) -> int:
    """Return the number of a cast in native fused programs."""
    return len(_FUNCTIONS) + kind.code


def reduction_code(name: str) -> int:
    """Return the number of a reduction in the native table, or -1."""
    return int(_REDUCTIONS.get(name, -1))

"""What functions along an axis mean in PyTorch, where that differs: see dims.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle.backend.axes import normalise_axes, normalise_axis
from needle.errors import OptionError
from needle.executor import shape_of
from needle.ops.core.attributes import flag
from needle.ops.core.dims import Extremes, means
from needle.ops.core.operands import as_tensors
from needle.ops.elementwise.arithmetic import equal, maximum, where
from needle.ops.elementwise.logic import isnan, logical_or
from needle.ops.index.indexing import gather
from needle.ops.index.sorting import argsort, median, nanmedian
from needle.ops.reduction.reduce import argmax, argmin
from needle.ops.reduction.scan import cummax
from needle.ops.shape.movement import flip, squeeze, stop_gradient

if TYPE_CHECKING:
    from needle.typing import Tensor

__all__ = ["mode"]

Given = dict[str, Any]
Inner = Callable[..., Any]


def _along(name: str, given: Given) -> tuple[Any, int]:
    """Return x and the axis of a call.

    Raises:
        OptionError: if there are several axes.
    """
    x, axis = given["x"], given.get("axes", given.get("axis", -1))
    if not isinstance(axis, int):
        raise OptionError(f"{name}: dim={axis!r:.60}\n  rule: one dim, for values and indices")
    return x, normalise_axis(axis, len(shape_of(x)))


def _picked(x: Tensor, indices: Tensor, axis: int, keep: bool) -> Extremes:
    """Return the elements at indices, which have the axis with size 1, and the indices."""
    indices = stop_gradient(indices)
    values = gather(x, indices, axis)
    if flag("keepdim", keep):
        return Extremes(values, indices)
    return Extremes(squeeze(values, axis), squeeze(indices, axis))


_PAIR = "the result is (values, indices)"


@means("max", "min", words=f"{_PAIR} along one dim")
def _extreme(function: Inner, given: Given) -> Any:
    if given.get("axes") is None:
        return function(**given)
    x, axis = _along(function.__name__, given)
    position = argmax if function.__name__ == "max" else argmin
    return _picked(x, position(x, axis, True), axis, given.get("keepdims", False))


@means("median", "nanmedian", words=_PAIR)
def _middle(function: Inner, given: Given) -> Any:
    x, axis = _along("median", given)
    keep = given.pop("keepdim", False)
    found = (nanmedian if function.__name__ == "nanmedian" else median)(x, axis)
    values = found.reshape([1 if i == axis else n for i, n in enumerate(shape_of(x))])
    same = equal(x, values)
    if x.spec.dtype.kind == "f":
        same = logical_or(same, isnan(x) & isnan(values))
    return _picked(x, argmax(same, axis, True), axis, keep)


@means("sort", words=_PAIR)
def _sorted(function: Inner, given: Given) -> Any:
    x, axis = _along("sort", given)
    if not flag("sort: descending", given.pop("descending", False)):
        return _picked(x, argsort(**given), axis, True)
    turned = flip(argsort(**{**given, "x": flip(x, axis)}), axis)  # NaN first, and stable
    return _picked(x, shape_of(x)[axis] - 1 - turned, axis, True)


@means("cummax", "cummin", "kthvalue", "mode", words=_PAIR)
def _pair(function: Inner, given: Given) -> Any:
    return Extremes(*function(**given))


@means("topk", words=_PAIR)
def _largest(function: Inner, given: Given) -> Any:
    x, axis = _along("topk", given)
    if x.spec.dtype.kind != "f" or given.get("largest") is False:
        return Extremes(*function(**given))
    known = where(isnan(x), math.inf, x)  # NaN counts as the largest
    return _picked(x, function(**{**given, "x": known})[1], axis, True)


@means("var", "std", words="the sum of squares is divided by n - 1")
def _unbiased(function: Inner, given: Given) -> Tensor:
    name = function.__name__
    if "unbiased" in given:
        if "correction" in given:
            raise OptionError(f"{name}: unbiased and correction are two names of one argument")
        given["correction"] = int(flag(f"{name}: unbiased", given.pop("unbiased")))
    return function(**{"correction": 1, **given})


@means("squeeze", words="axes of another size stay")
def _squeezed(function: Inner, given: Given) -> Tensor:
    shape, axes = shape_of(given["x"]), given.get("axes")
    if axes is None:
        return function(**given)
    known = normalise_axes(axes, len(shape))
    return function(given["x"], tuple(axis for axis in known if shape[axis] == 1))


@means("split", words="the first argument is the size of the pieces, or their sizes")
def _pieces(function: Inner, given: Given) -> tuple[Tensor, ...]:
    x, *more = given.values()
    sizes = [given[n] for n in ("axis", "split_size", "split_size_or_sections") if n in given]
    if len(sizes) != 1 or "sizes" in given:
        raise OptionError(f"split: expected one size or list of sizes, got {len(more) - 1}")
    return function(x, given.get("dim", 0), sizes=sizes[0])


@means("permute", words="all axes at once")
def _permuted(function: Inner, given: Given) -> Tensor:
    return function(given["x"], given["dims"])


@means("transpose", words="the two axes")
def _swapped(function: Inner, given: Given) -> Tensor:
    if given.keys() != {"x", "dim0", "dim1"}:
        raise OptionError("transpose: expected dim0 and dim1, and no other axes")
    return function(given["x"], given["dim0"], given["dim1"])


@means("diagonal", words="the first two axes are the default")
def _diagonal(function: Inner, given: Given) -> Tensor:
    return function(**{"axis1": 0, "axis2": 1, **given})


@means("index_add", words="``alpha`` scales the source")
def _added(function: Inner, given: Given) -> Tensor:
    alpha = given.pop("alpha", 1)
    return function(**{**given, "slices": given["slices"] * alpha})


def mode(x: Tensor, axis: int = -1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the most frequent value along an axis, the smallest of several, and its last position.

    Gradients flow to that element. NaN is not equal to any value.

    Raises:
        ShapeError: if the axis is empty.

    >>> value, position = ndl.mode(Tensor([2.0, 1.0, 1.0, 2.0]))
    >>> print(value, position)
    1.0 2
    """
    (x,) = as_tensors((x,), "mode")
    axis = normalise_axis(axis, len(shape_of(x)))
    order = argsort(x, axis)
    values = gather(stop_gradient(x), order, axis)
    places = argsort(order * 0, axis)  # 0, 1, 2, ... along the axis
    before = gather(values, maximum(places - 1, 0), axis)
    starts = cummax(where(equal(values, before), 0, places), axis)[0]
    ends = argmax(places - starts, axis, True)
    found = _picked(x, gather(order, ends, axis), axis, flag("mode: keepdims", keepdims))
    return found.values, found.indices

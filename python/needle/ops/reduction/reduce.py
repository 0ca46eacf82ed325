"""Reductions over axes."""

from __future__ import annotations

import builtins
import functools
import math
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from needle import dtype, executor, graph
from needle.backend import kernels
from needle.backend.axes import normalise_axes
from needle.errors import ArgumentError, OptionError, ShapeError, called, explain
from needle.executor import shape_of
from needle.ops.core.attributes import either, flag
from needle.ops.core.dims import documented, reads, speak
from needle.ops.core.docs import split_example
from needle.ops.core.op import KINDS, OUTPUT, Linear, Op, in_dtype, widened
from needle.ops.core.primitives import BroadcastTo
from needle.ops.core.samples import Sample, Samples, uniform
from needle.ops.elementwise.arithmetic import cast_like, equal, not_equal, where
from needle.ops.shape.movement import reshape

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.dtype import DType
    from needle.typing import Axes, DTypeLike, Gradients, NDArray, Numpy, Reference, Tensor

__all__ = [
    "AllTrue", "AnyTrue", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Sum", "all",
    "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "max_", "mean", "min_", "sum_",
    "summation",
]  # fmt: skip


def reduction_samples(reference: Reference, empty: bool = True, gradient: bool = True) -> Samples:
    """Return samples of a reduction over one, several and all axes."""

    def samples() -> list[Sample]:
        cases: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
            ((3, 4), (0,), False), ((3, 4), (1,), True), ((2, 3, 4), (0, 2), False),
            ((2, 3, 4), (0, 1, 2), True), ((5,), (0,), False), ((), (), False),
            ((1, 1), (1,), False),
        ]  # fmt: skip
        if empty:
            cases += [((2, 0), (1,), False), ((0, 3), (1,), True)]
        return [
            Sample(
                (uniform(shape, seed=i),), (axes, keep),
                lambda x, axes=axes, keep=keep: reference(x, axis=axes, keepdims=keep),
                gradient=gradient,
            )
            for i, (shape, axes, keep) in enumerate(cases)
        ]  # fmt: skip

    return samples


def _truth_samples(reference: Reference) -> Samples:
    def samples() -> list[Sample]:
        cases: list[tuple[Numpy, tuple[int, ...], bool]] = [
            (uniform((3, 4)) > 0, (0,), False), (uniform((3, 4)) > 1, (0, 1), True),
            (np.zeros((2, 0), bool), (1,), False), (np.array([0.0, 2.0, 0.0]), (0,), False),
            (np.array([[0, 2], [0, 0]]), (1,), False), (np.array(True), (), False),
        ]  # fmt: skip
        return [
            Sample(
                (x,), (axes, keep), lambda x, a=axes, k=keep: reference(x, axis=a, keepdims=k),
                gradient=False,
            )
            for x, axes, keep in cases
        ]  # fmt: skip

    return samples


def reduce_natively(op: Any, function: str, *more: int) -> None:
    """Let the native gate run an op over ``axes``, with ``keepdims``, where it has the function."""
    code = kernels.reduction_code(function)
    if code >= 0 and list(op.axes) == sorted({a for a in op.axes if 0 <= a < 32}):
        op.kind, op.code = KINDS["reduce"], code
        op.params = (sum(1 << axis for axis in op.axes), int(op.keepdims), *more)


class Reduction(Op):
    """A reduction over ``axes``, which stay with size 1 if ``keepdims``."""

    axes: tuple[int, ...]
    keepdims: bool

    function: ClassVar[str]
    casts: ClassVar[bool] = False
    """Whether its function takes a dtype."""

    def setup(self) -> None:
        self.aligned = self.keepdims or self.axes == tuple(range(len(self.axes)))
        reduce_natively(self, self.function)

    def compute(self, x: NDArray) -> NDArray:
        return kernels.reduce(self.function, x, self.axes, self.keepdims)

    def flops(self, *specs: Spec) -> int:
        return int(specs[0].size)

    def spread(self, x: Tensor, out: Tensor) -> Tensor:
        """Return x, shaped like the result, broadcast over the reduced axes."""
        shape = out.node.inputs[0].spec.shape
        if not self.aligned:  # with the last axes of the shape
            kept = tuple(1 if i in self.axes else n for i, n in enumerate(shape))
            x = reshape(x, kept)
        return executor.apply(_broadcast_to(shape), x)


_broadcast_to = functools.lru_cache(1000)(BroadcastTo.of)  # each backward of a sum asks


class Sum(Reduction, Linear):
    """Sum over axes. Integers and bools are summed in int64.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floats stay; integers and bools -> int64

    >>> print(ndl.sum(Tensor([[1.0, 2.0], [3.0, 4.0]])))
    10.0
    >>> print(ndl.sum(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0))
    [4. 6.]
    """

    function = "sum"
    casts = True
    samples = reduction_samples(np.sum)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (self.spread(out_grad, out),)


class Mean(Reduction, Linear):
    """Arithmetic mean over axes; NaN for an empty x.

    Shapes:   x -> x without the axes (of size 1 with keepdims)

    >>> print(ndl.mean(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1))
    [1.5 3.5]
    """

    function = "mean"
    casts = True
    samples = reduction_samples(np.mean, empty=False)

    promotes = "floating"

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        count = 1
        for axis in self.axes:
            count *= shape[axis]
        return (self.spread(out_grad * (1.0 / max(count, 1)), out),)


class _Extreme(Reduction):
    saves = ((0, OUTPUT),)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x = out.inputs[0]
        chosen = equal(x, self.spread(out, out))
        # in float32 where x has half precision, in which many ties have no number
        ties = summation(cast_like(chosen, widened(x)), self.axes, keepdims=True)
        none = where(equal(ties, 0.0), math.nan, 0.0)  # the extreme is NaN
        share = reshape(widened(out_grad), shape_of(ties)) / ties
        return (where(chosen, cast_like(share, x), cast_like(none, x)),)


class Max(_Extreme):
    """Largest value over axes; NaN if one is NaN. Ties share the gradient equally.

    Shapes:   x -> x without the axes (of size 1 with keepdims)

    >>> print(ndl.amax(Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=0))
    [3. 2.]
    """

    function = "max"
    samples = reduction_samples(np.max, empty=False)


class Min(_Extreme):
    """Smallest value over axes; NaN if one is NaN. Ties share the gradient equally.

    Shapes:   x -> x without the axes (of size 1 with keepdims)

    >>> print(ndl.amin(Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=0))
    [1. 0.]
    """

    function = "min"
    samples = reduction_samples(np.min, empty=False)


class _Argument(Reduction):
    is_differentiable = False

    def compute(self, x: NDArray) -> NDArray:
        if len(self.axes) not in (1, x.ndim):
            raise OptionError(
                f"{self.name}: axes {self.axes} of an array of {x.ndim} axes\n"
                "  rule: the position along one axis, or in the flattened array"
            )
        return super().compute(x)


def _position_samples(reference: Reference) -> Samples:
    def position(x: Numpy, axes: tuple[int, ...], keep: bool) -> object:
        if len(axes) == 1:
            return reference(x, axis=axes[0], keepdims=keep)
        return reference(x, keepdims=keep)

    def samples() -> list[Sample]:
        cases: list[tuple[Numpy, tuple[int, ...], bool]] = [
            (uniform((3, 4)), (0,), False), (uniform((3, 4)), (1,), True),
            (uniform((2, 3, 4)), (0, 1, 2), False), (uniform((5,)), (0,), True),
            (uniform((0, 3)), (1,), False), (np.array([1.0, 2.0, 2.0, 1.0, 1.0]), (0,), False),
            (np.array([[1.0, np.nan], [np.nan, 2.0]]), (1,), False),
        ]  # fmt: skip
        good = [
            Sample((x,), (axes, keep), lambda x, a=axes, k=keep: position(x, a, k), gradient=False)
            for x, axes, keep in cases
        ]
        return [
            *good,
            Sample((uniform((2, 0)),), ((1,), False), raises=ShapeError),
            Sample((uniform((2, 3, 4)),), ((1, 2), False), raises=OptionError),
        ]

    return samples


class ArgMax(_Argument):
    """Position (int64) of the first largest value along one axis, or along all of them.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   any -> int64
    Raises:   ShapeError if x is empty; OptionError for some axes of several

    >>> print(ndl.argmax(Tensor([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [1 0]
    """

    function = "argmax"
    called = "argmax"
    samples = _position_samples(np.argmax)


class ArgMin(_Argument):
    """Position (int64) of the first smallest value along one axis, or along all of them.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   any -> int64
    Raises:   ShapeError if x is empty; OptionError for some axes of several

    >>> print(ndl.argmin(Tensor([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [0 1]
    """

    function = "argmin"
    called = "argmin"
    samples = _position_samples(np.argmin)


class AnyTrue(Reduction):
    """Whether any element over axes is not zero; bool. False for an empty x.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   any -> bool

    >>> print(ndl.any(Tensor([[0.0, 2.0], [0.0, 0.0]]), axis=1))
    [ True False]
    """

    called = "any"
    function = "any"
    is_differentiable = False
    samples = _truth_samples(np.any)


class AllTrue(Reduction):
    """Whether all elements over axes are not zero; bool. True for an empty x.

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   any -> bool

    >>> print(ndl.all(Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=1))
    [ True False]
    """

    called = "all"
    function = "all"
    is_differentiable = False
    samples = _truth_samples(np.all)


def normalised(x: Tensor, axes: Axes) -> tuple[int, ...]:
    """Return axes of x as a sorted tuple counted from 0; all for None."""
    return normalise_axes(axes, len(shape_of(x)))


def _of(known: dict[Any, Any], cls: Any, x: Tensor, axes: Axes, keepdims: bool) -> Op:
    """Return the op of a reduction, and cache it, so that the axes are worked out only once."""
    try:
        op = cls.of(normalised(x, axes), keepdims)
    except ArgumentError:
        if not (issubclass(cls, _Extreme) and isinstance(axes, (graph.TensorBase, np.ndarray))):
            raise
        other = "maximum" if cls is Max else "minimum"
        raise explain(
            ArgumentError, called(), f"expected axes, got {axes!r:.60}", [("x", x)],
            "reduces one tensor over axes", f"{other}(x, y) for two tensors, elementwise",
        ) from None  # fmt: skip
    plain = axes if isinstance(axes, tuple) else (0 if axes is None else axes,)
    if builtins.all(type(axis) is int for axis in plain):  # a tensor's number may change
        if len(known) > 1000:
            known.clear()
        kinds = tuple(map(type, axes)) if isinstance(axes, tuple) else type(axes)
        known[x.spec.ndim, axes, keepdims, kinds] = op
    return op


class Reducer(Protocol):
    """The public function of a reduction."""

    def __call__(
        self,
        x: Tensor,
        axes: Axes = None,
        keepdims: bool = False,
        *,
        axis: Axes = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Reduce x over axes."""

    def __get__(self, x: Tensor, cls: Any = None) -> ReducerMethod:
        """The reduction of x, where the function is a method."""


class ReducerMethod(Protocol):
    """A reduction as a method of a tensor."""

    def __call__(
        self,
        axes: Axes = None,
        keepdims: bool = False,
        *,
        axis: Axes = None,
        dtype: DTypeLike = None,
    ) -> Tensor:
        """Reduce the tensor over axes."""


def _in_dtype(
    cls: Any, function: Any, x: Tensor, axes: Axes, keepdims: bool, kind: DType
) -> Tensor:
    """Return a reduction in a dtype, if the reduction has that argument."""
    if not cls.casts:
        problem = f"{function.__name__}: unexpected argument 'dtype'"
        raise ArgumentError(f"{problem}\n  try: x.astype({kind!r:.60})")
    return in_dtype(function, kind, x, axes, keepdims, floating=cls is Mean)


def reducer(cls: type[Reduction], name: str) -> Reducer:
    """Return the public function of a reduction: ``mean = reducer(Mean, "mean")``."""
    known: dict[Any, Any] = {}  # the ops of its calls

    def function(
        x: Any, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None, dtype: Any = None,
        dim: Any = ..., keepdim: Any = ...,
    ) -> Any:  # fmt: skip
        if dim is not ... or keepdim is not ...:
            own = {"x": x, "axes": axes, "keepdims": keepdims, "axis": axis, "dtype": dtype}
            return speak(function, at, own, {"dim": dim, "keepdim": keepdim})
        if axis is not None:
            axes = either(axes, axis)
        if dtype is not None:
            return _in_dtype(cls, function, x, axes, keepdims, dtype)
        if keepdims is not False and keepdims is not True:  # 1 would be found as True
            keepdims = flag(f"{name}: keepdims", keepdims)
        kinds = tuple(map(type, axes)) if type(axes) is tuple else type(axes)  # 1.0 is not an axis
        try:
            op = known[x.spec.ndim, axes, keepdims, kinds]
        except (KeyError, TypeError, AttributeError):  # axes are a list; x is not a tensor
            op = _of(known, cls, x, axes, keepdims)
        return executor.apply(op, x)

    at = reads(function, name)
    function.__name__ = function.__qualname__ = name
    function.checks = {}  # type: ignore[attr-defined]  # it has checked its flag itself (kinds.py)
    function.__code__ = function.__code__.replace(co_name=name)  # the name in errors
    function.__module__ = cls.__module__
    first = (cls.__doc__ or "").partition("\n")[0]
    more = " x is cast to a ``dtype`` first." if cls.casts else ""
    _, example = split_example(cls.__doc__ or "")
    text = f"{first} All axes for None.{more} See ``{cls.__name__}``.\n\n{example}".rstrip()
    function.__doc__ = documented(text, name, ["dim", "keepdim"])
    return function


summation, mean = reducer(Sum, "summation"), reducer(Mean, "mean")
amax, amin = reducer(Max, "amax"), reducer(Min, "amin")
sum_, max_, min_ = reducer(Sum, "sum"), reducer(Max, "max"), reducer(Min, "min")
any, all = reducer(AnyTrue, "any"), reducer(AllTrue, "all")
argmax, argmin = reducer(ArgMax, "argmax"), reducer(ArgMin, "argmin")


def count_nonzero(
    x: Tensor, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None
) -> Tensor:
    """Count the elements over axes (all for None) that are not zero; int64.

    >>> print(ndl.count_nonzero(Tensor([[1.0, 0.0], [3.0, 4.0]]), axis=0))
    [2 1]
    """
    truth = x if executor.spec_of(x).dtype is dtype.bool_ else not_equal(x, 0)
    return summation(truth, axes, keepdims, axis=axis)

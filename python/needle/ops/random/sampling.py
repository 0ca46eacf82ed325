"""Tensors of random numbers, and dropout.

They draw as random.py describes: from NumPy's global stream, at once, until the user seeds
Needle's own generator or gives a key. From then on a draw is an op of draws.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from needle import dtype as dtypes
from needle import executor, tracing
from needle.backend import kernels, numpy_stream
from needle.backend.axes import integer, sizes_of
from needle.devices import as_device
from needle.dtype import DType, as_dtype, fits
from needle.errors import ArgumentError, DtypeError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops import random
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import Op, cast, promoted
from needle.ops.core.operands import constant, default_float
from needle.ops.core.samples import Sample
from needle.ops.core.samples import uniform as values
from needle.ops.elementwise.arithmetic import less_equal, minimum, where
from needle.ops.elementwise.functions import log
from needle.ops.index.sorting import topk
from needle.ops.random.draws import RandomIntegers, RandomNormal, RandomOrder, RandomUniform
from needle.ops.reduction.reduce import argmax
from needle.ops.shape.creation import made
from needle.ops.shape.movement import unsqueeze

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Gradients, NDArray, Tensor

__all__ = [
    "Dropout", "Weights", "bernoulli", "dropout", "multinomial", "normal", "permutation",
    "randint", "uniform",
]  # fmt: skip

Shape = int | Sequence[int]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _shape_first(function: _Function) -> _Function:
    """Allow positional numbers only after a sequence of sizes.

    After a number they are in NumPy's order, as in ``normal(0, 1)``: the mean would be taken for
    the shape, which gives an empty tensor or one of the wrong size. With the sizes last, as a
    sequence or as ``size=``, the order is PyTorch's: ``randint(0, 10, (2, 3))``.
    """
    name, code = function.__name__, function.__code__
    numbers = ", ".join(code.co_varnames[1 : code.co_argcount])

    @functools.wraps(function)
    def checked(*given: tuple[int, ...], **named: Any) -> Tensor:
        if "size" in named:
            given = (*given, named.pop("size"))
        ordered = len(given) > 1 and isinstance(given[0], (int, float, np.number))
        if ordered and isinstance(given[-1], (tuple, list)):
            low = (0,) if name == "randint" and len(given) == 2 else ()
            given = (given[-1], *low, *given[:-1])
        elif ordered:
            raise explain(
                ArgumentError, name, f"the shape comes first; got {given[0]!r}",
                rule="positional numbers follow a shape that is a tuple or a list",
                advice=f"{name}((5,), {numbers}), or name them",
            )  # fmt: skip
        return function(*given, **named)

    found: Any = checked
    found.__code__ = found.__code__.replace(co_name=name)  # the name in errors
    return found


def _draw(
    name: str, op: Any, shape: tuple[int, ...], device: DeviceLike, key: int | None
) -> Tensor:
    """Return values in [0, 1) or normal ones: by an op, or at once from NumPy's stream."""
    source = random.generator(key)
    if source is None:
        kind = "randn" if op is RandomNormal else "rand"
        return made(name, numpy_stream.floats, kind, shape, as_device(device))
    count = math.prod(shape)
    taken = source.take(count + count % 2 if op is RandomNormal else count)  # normal ones: pairs
    return _applied(lambda *of: op(shape, *of), taken, device, key)


def draw(kind: str, shape: tuple[int, ...], device: DeviceLike, key: int | None) -> Tensor:
    """Return float32 values of "rand" or "randn", as an op, for the generator that governs."""
    return _draw(kind, RandomUniform if kind == "rand" else RandomNormal, shape, device, key)


def _applied(op: Any, taken: tuple[int, int], device: DeviceLike, key: int | None) -> Tensor:
    """Return the result of a draw; while a function is traced, from the stream of its calls.

    Args:
        op: makes the op of a seed and a counter.
        taken: what the generator gave.
        device: of the result.
        key: the seed for this draw only, or None.
    """
    trace = tracing.current()
    if trace is None or key is not None:
        return executor.apply(op(*taken), _place(device))
    return executor.apply(op(None, taken[1] - trace.counter), trace.stream(as_device(device)))


def _place(device: DeviceLike) -> Tensor:
    """Return an operand that gives the device to an op without operands."""
    return constant(0.0, dtypes.float32, as_device(device))


def _as(x: Tensor, kind: DTypeLike) -> Tensor:
    return x if kind is None else cast(x, as_dtype(kind))


def _check_floating(name: str, kind: DTypeLike) -> None:
    if kind is not None and not as_dtype(kind).is_floating:
        raise DtypeError(
            f"{name}: dtype is {as_dtype(kind)}\n  rule: a floating dtype\n"
            "  try: randint for integers, or .astype of the result"
        )


@_shape_first
def uniform(
    shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
    key: int | None = None,
) -> Tensor:
    """Return a tensor of values drawn uniformly from [low, high).

    They are drawn in float32, also for float64.

    Args:
        shape: of the result.
        low: smallest value.
        high: upper bound, which is not drawn.
        device: the device of the result; the default device for None.
        dtype: a floating one; float32 for None, float64 with ``NEEDLE_BACKEND=np``.
        key: seed for this draw only; None draws from the current generator or NumPy's stream.

    Raises:
        ArgumentError: if positional numbers follow a shape that is a number: ``uniform(0, 1)``.
        OptionError: if high is below low, one is NaN, or the dtype cannot hold low, high and
            high - low.
        DtypeError: if dtype is not floating.
        ShapeError: if a size is negative.

    >>> x = ndl.uniform((100,), -1.0, 1.0)
    >>> (x >= -1.0).all().item(), (x < 1.0).all().item()
    (True, True)
    """
    sizes = sizes_of("uniform", shape, 8)
    low, high = real("uniform: low", low), real("uniform: high", high)
    if not low <= high:
        raise OptionError(f"uniform: the range [{low:g}, {high:g})\n  rule: low <= high")
    _check_floating("uniform", dtype)
    drawn = default_float()
    kind = drawn if dtype is None else as_dtype(dtype)
    as_drawn = low == 0.0 and high == 1.0
    last = None if as_drawn and kind is drawn else _last_below(low, high, kind, drawn)
    x = _as(_draw("uniform", RandomUniform, sizes, device, key), dtype)
    x = x if as_drawn else x * (high - low) + low
    return x if last is None else minimum(x, last)


def below(operation: str, low: float, high: float, kind: DType) -> float:
    """Return the largest number of a dtype in [low, high), or low if the dtype has no such number.

    Raises:
        OptionError: if the dtype cannot hold low, high and high - low.
    """
    number = kind.numpy.type
    with np.errstate(all="ignore"):
        end = number(high)
        if not all(math.isfinite(number(x)) for x in (low, high, high - low)):
            raise OptionError(
                f"{operation}: the range [{low:g}, {high:g}) in {kind}\n"
                "  rule: low, high and high - low are finite there"
            )
        return max(float(end if float(end) < high else np.nextafter(end, number(-math.inf))), low)


@functools.lru_cache(maxsize=1000)
def _last_below(low: float, high: float, kind: DType, drawn: DType) -> float | None:
    """Return the largest number below high, of a dtype; None if no draw is rounded up to high."""
    last, number = below("uniform", low, high, kind), kind.numpy.type
    largest = 1.0 - float(np.finfo(drawn.numpy).epsneg)
    with np.errstate(all="ignore"):
        steps = (
            number(largest) * number(high - low) + number(low), number(largest * (high - low) + low)
        )  # fmt: skip
    return None if all(float(reached) < high for reached in steps) else last


@_shape_first
def normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
    key: int | None = None,
) -> Tensor:
    """Return a tensor of normally distributed values. Arguments as for ``uniform``.

    They are drawn in float32, also for float64.

    Raises:
        ArgumentError: if positional numbers follow a shape that is a number: ``normal(0, 1)``.
        OptionError: if std is negative or NaN.
        DtypeError: if dtype is not floating.
        ShapeError: if a size is negative.

    >>> ndl.normal((2, 3), mean=10.0, std=0.1).shape
    (2, 3)
    """
    sizes = sizes_of("normal", shape, 8)
    mean, std = real("normal: mean", mean), real("normal: std", std)
    if not std >= 0:
        raise OptionError(f"normal: std={std}\n  rule: std >= 0")
    _check_floating("normal", dtype)
    x = _as(_draw("normal", RandomNormal, sizes, device, key), dtype)
    return x if (mean, std) == (0.0, 1.0) else x * std + mean


def bernoulli(
    shape: Shape,
    p: float = 0.5,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = "bool",
    key: int | None = None,
) -> Tensor:
    """Return a tensor of bools that are true with probability p.

    Raises:
        OptionError: if p is not in [0, 1].
        ShapeError: if a size is negative.

    >>> ndl.bernoulli((2, 3), p=0.3).dtype
    needle.bool
    """
    sizes = sizes_of("bernoulli", shape, 8)
    p = real("bernoulli: p", p)
    if not 0.0 <= p <= 1.0:
        raise OptionError(f"bernoulli: p={p} is not in [0, 1]")
    chosen = less_equal(_draw("bernoulli", RandomUniform, sizes, device, key), p)
    return cast(chosen, as_dtype(dtype))


@_shape_first
def randint(
    shape: Shape,
    low: int,
    high: int,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = "int64",
    key: int | None = None,
) -> Tensor:
    """Return a tensor of integers drawn uniformly from [low, high).

    Raises:
        ArgumentError: if low or high is not an integer, or they are given by position after a
            shape that is a number: ``randint(0, 10, 5)``.
        OptionError: if the range is empty, or has more than 2**31 integers.
        DtypeError: if an integer dtype cannot hold all of them.
        ShapeError: if a size is negative.

    >>> ndl.randint((2, 3), 0, 10).shape
    (2, 3)
    """
    low, high = integer("randint: low", low), integer("randint: high", high)
    sizes, kind = sizes_of("randint", shape, 8), as_dtype(dtype)
    if low >= high:
        raise OptionError(f"randint: there is no integer in [{low}, {high})")
    if high - low > 2**31:
        raise OptionError(f"randint: more than 2**31 integers in [{low}, {high})")
    if not _holds(kind, low, high):
        raise DtypeError(f"randint: integers in [{low}, {high}) do not fit into {kind}")
    source, count = random.generator(key), math.prod(sizes)
    if source is None:
        return made("randint", random.randint, low, high, sizes, kind, device)
    taken = source.take(count)
    drawn = _applied(lambda *of: RandomIntegers(sizes, low, high - 1, *of), taken, device, key)
    return cast(drawn, kind)


def _holds(kind: Any, low: int, high: int) -> bool:
    """Return whether a dtype holds all integers in [low, high); floating dtypes round."""
    if kind.kind == "b":
        return low >= 0 and high <= 2
    return kind.kind == "f" or (fits(low, kind) and fits(high - 1, kind))


def permutation(n: int, *, device: DeviceLike = None, key: int | None = None) -> Tensor:
    """Return a tensor of 0, 1, ..., n - 1 (int64) in random order.

    Raises:
        ArgumentError: if n is not an integer.
        ShapeError: if n is negative.

    >>> print(ndl.sort(ndl.permutation(5)))
    [0 1 2 3 4]
    """
    (size,), source = sizes_of("permutation", (n,), 8), random.generator(key)
    if source is None:
        return made("permutation", random.permutation, size, device)
    return _applied(lambda *of: RandomOrder(size, *of), source.take(2 * size), device, key)


class Weights(Op):
    """Weights along the last axis, divided by the largest, so that large ones do not overflow.

    Shapes:   x [..., n] -> the same; n is at least 1
    Dtypes:   floating
    Raises:   OptionError if one is negative, infinite or NaN, or all of a row are 0
    """

    is_differentiable = False
    promotes = "floating"
    called = "multinomial"
    samples = staticmethod(
        lambda: [
            *[
                Sample((values(shape, 0.0, 3.0),), (), lambda x: x / x.max(-1, keepdims=True),
                       gradient=False)
                for shape in ((3, 4), (5,), (0, 2))
            ],
            *[
                Sample((np.array([[1.0, 2.0], row]),), (), raises=OptionError, by_value=True)
                for row in ([-1.0, 2.0], [np.nan, 2.0], [2.0, np.inf], [0.0, 0.0])
            ],
        ]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        most = kernels.reduce("max", x, (x.ndim - 1,), True)
        if x.size and kernels.has_values(x):
            axes = tuple(range(x.ndim))
            least, last = (kernels.reduce("min", y, axes).item() for y in (x, most))
            first = kernels.reduce("max", most, axes).item()
            if not (least >= 0 and last > 0 and first < math.inf):
                raise explain(
                    OptionError, self.name,
                    f"weights from {least} to {first}, the largest of a row is {last}",
                    [("weights", x)], "finite, not negative, and not all 0 in a row",
                )  # fmt: skip
        return kernels.elementwise("divide", x, most)


def multinomial(
    weights: Tensor, count: int = 1, replacement: bool = False, *, key: int | None = None
) -> Tensor:
    """Draw positions along the last axis with probabilities in proportion to the weights.

    The result is int64 [..., count] for weights [..., n]. Weights are not negative and need not add
    up to 1. A position of weight 0 is drawn only without replacement, when no other is left. Each
    position gets an exponentially distributed waiting time divided by its weight, and those with
    the shortest times are drawn.

    Raises:
        ShapeError: if the weights have no axes, or the last one is empty.
        OptionError: if count is negative, or larger than n without replacement; if a weight is
            negative, infinite or NaN, or all of a row are 0.

    Source: Efraimidis, Spirakis, "Weighted random sampling with a reservoir", 2006

    >>> print(ndl.multinomial(Tensor([0.0, 1.0, 0.0]), 4, replacement=True))
    [1 1 1 1]
    """
    (x,) = promoted((weights,), "multinomial", floating=True)
    shape, count = shape_of(x), integer("multinomial: count", count)
    if not shape or shape[-1] == 0:
        raise explain(ShapeError, "multinomial", "there is nothing to draw from", [("weights", x)])
    if count < 0 or not replacement and count > shape[-1]:
        raise OptionError(
            f"multinomial: {count} of {shape[-1]} positions\n"
            "  rule: 0 or more; at most the number of positions unless replacement=True"
        )
    sizes = sizes_of("multinomial", (*shape[:-1], count, shape[-1]), 8) if replacement else shape
    x = executor.apply(Weights.of(), x)
    u = _draw("multinomial", RandomUniform, sizes, x.spec.device, key)
    waiting = -log(1.0 - u) + 1e-30  # not 0, or 0 / 0 were NaN
    speed = (unsqueeze(x, -2) if replacement else x) / waiting
    return argmax(speed, -1) if replacement else topk(speed, count)[1]


class Dropout(Composite):
    """Set elements to zero where mask is false, and scale the others by 1 / (1 - p).

    The mask is an input, so that the op itself is not random.

    Shapes:   x, mask [...] -> [...]
    Dtypes:   x floating, mask bool
    Gradient: x; any order
    Source:   Srivastava et al., "Dropout", 2014, section 10 (scaling while training)
    """

    p: float
    saves = ((1,), ())
    samples = staticmethod(
        lambda: [
            Sample(
                (values(shape), values(shape, seed=1) > 0), (0.25,),
                lambda x, mask: np.where(mask, x / 0.75, 0.0),
            )
            for shape in ((3, 4), (), (0, 2))
        ]
        + [Sample((values((3,)), np.ones(3, bool)), (1.0,), lambda x, mask: 0 * x)]
    )  # fmt: skip

    def expand(self, x: Tensor, mask: Tensor) -> Tensor:
        return where(mask, x * (1.0 / (1.0 - self.p) if self.p < 1 else 0.0), 0.0)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return executor.apply(self, out_grad, out.inputs[1]), None


def dropout(x: Tensor, p: float = 0.5, training: bool = True, *, key: int | None = None) -> Tensor:
    """Set each element to zero with probability p and scale the others by 1 / (1 - p).

    It draws one uniform number per element, also for p = 0. Outside training it returns x.

    Raises:
        OptionError: if p is not in [0, 1].

    >>> x = ndl.ones((1000,))
    >>> kept = ops.dropout(x, 0.5) != 0
    >>> 400 < ndl.count_nonzero(kept).item() < 600
    True
    """
    p = real("dropout: p", p)
    if not 0.0 <= p <= 1.0:
        raise OptionError(f"dropout: p={p} is not in [0, 1]")
    if not training:
        return x
    spec = executor.spec_of(x)
    mask = bernoulli(spec.shape, 1.0 - p, device=spec.device, key=key)
    return executor.apply(Dropout.of(p), x, mask)

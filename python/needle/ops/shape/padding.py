"""Padding with a number, or with elements of the padded tensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, graph
from needle.backend import kernels, ndarray
from needle.backend.array import dense_strides, native_function
from needle.backend.axes import axes_of, integer
from needle.core import numbers
from needle.dtype import as_dtype
from needle.errors import ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import number_in
from needle.ops.core.op import Linear
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import where
from needle.ops.shape.movement import Pad

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Tensor

__all__ = ["PadByEdges", "PadByEdgesGrad", "pad"]

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Place = tuple[Shape, Shape, int]
"""Shape, strides and offset of a part of a dense array."""

Range = tuple[int, int, int]
"""First element, number of elements and step along an axis."""

PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge",
             "circular": "wrap", "wrap": "wrap", "symmetric": "symmetric"}  # fmt: skip

_padded = native_function("padded")
_NUMBERS = numbers("pad")

# ---- places ------------------------------------------------------------------------


def _place(shape: Shape, ranges: Sequence[Range]) -> Place:
    strides = dense_strides(shape)
    offset = sum(first * s for (first, _, _), s in zip(ranges, strides, strict=True))
    steps = tuple(step * s for (_, _, step), s in zip(ranges, strides, strict=True))
    return tuple(count for _, count, _ in ranges), steps, offset


def _strips(mode: str, n: int, before: int, after: int) -> list[tuple[Range, Range]]:
    """Return the strips around n elements, and their sources: ranges of the padded axis.

    An edge is one element.
    """
    end = before + n
    low, high = {
        "reflect": ((2 * before, before, -1), (end - 2, after, -1)),
        "symmetric": ((2 * before - 1, before, -1), (end - 1, after, -1)),
        "edge": ((before, 1, 1), (end - 1, 1, 1)),
        "wrap": ((n, before, 1), (before, after, 1)),
    }[mode]
    strips = [((0, before, 1), low), ((end, after, 1), high)]
    return [strip for strip in strips if strip[0][1]]


def _check(shape: Shape, widths: Pairs, mode: str) -> None:
    if mode not in PAD_MODES.values():
        raise unknown("pad mode", mode, PAD_MODES)
    if len(widths) != len(shape) or any(w < 0 for pair in widths for w in pair):
        raise ShapeError(f"pad: widths {widths} for {len(shape)} axes; one pair >= 0 for each")
    for axis, (n, pair) in enumerate(zip(shape, widths, strict=True)):
        reach = {"reflect": max(n - 1, 0), "edge": 2**63 - 1 - n if n else 0}.get(mode, n)
        if max(pair) > reach or n + sum(pair) >= 2**63:
            raise ShapeError(
                f"pad: {mode} by {pair} of axis {axis} with {n} elements\n"
                "  rule: reflect: less than the size of the axis; symmetric, circular: at most the "
                "size; replicate: an axis with elements"
            )


@functools.lru_cache(maxsize=1000)
def _places(shape: Shape, widths: Pairs, mode: str) -> tuple[Shape, Place, list[Any]]:
    """Return the padded shape, where x is in it, and (axis, strip, source) in the order of work.

    Axes are padded in order: each over the padded axes before it and the unpadded axes after it.

    Raises:
        ShapeError: if there is not one pair >= 0 per axis, or it reaches further than the mode.
    """
    _check(shape, widths, mode)
    padded = tuple(n + low + high for n, (low, high) in zip(shape, widths, strict=True))
    ranges = [(low, n, 1) for n, (low, _) in zip(shape, widths, strict=True)]
    inner, moves = _place(padded, ranges), []
    for axis, (n, pair) in enumerate(zip(shape, widths, strict=True)):
        for strip, source in _strips(mode, n, *pair):
            both = [[*ranges[:axis], part, *ranges[axis + 1 :]] for part in (strip, source)]
            moves.append((axis, *(_place(padded, part) for part in both)))
        ranges[axis] = (0, padded[axis], 1)
    return padded, inner, moves


# ---- ops ---------------------------------------------------------------------------

_CASES: tuple[tuple[Shape, Pairs, str], ...] = (
    ((5,), ((2, 4),), "reflect"), ((3, 4), ((1, 0), (2, 3)), "reflect"),
    ((3, 4), ((3, 1), (0, 4)), "symmetric"), ((3, 1), ((0, 2), (3, 1)), "edge"),
    ((2, 3, 4), ((2, 1), (0, 0), (4, 3)), "wrap"), ((2, 0), ((1, 1), (0, 0)), "edge"),
    ((2, 37), ((1, 0), (3, 4)), "reflect"), ((2, 3, 5), ((0, 0), (1, 2), (0, 0)), "symmetric"),
)  # fmt: skip


class PadByEdges(Linear):
    """Pad with elements of x: (before, after) per axis.

    Modes: "reflect" mirrors at the edge elements, "symmetric" repeats them and mirrors, "edge"
    repeats them only, "wrap" continues at the other end.

    Shapes:   x -> x with each axis longer by before + after
    Gradient: x; any order
    Raises:   ShapeError if there is not one pair per axis, or it reaches further than the mode
    """

    widths: Pairs
    mode: str
    samples = staticmethod(
        lambda: [
            *(
                Sample((uniform(shape),), (w, mode), lambda x, w=w, mode=mode: np.pad(x, w, mode))
                for shape, w, mode in _CASES
            ),
            Sample((uniform((2, 3)),), (((1, 0),), "edge"), raises=ShapeError),
        ]
    )

    def compute(self, x: NDArray) -> NDArray:
        made = _padded(x, self.widths, _NUMBERS.get(self.mode))
        if made is not None:
            return made
        padded, inner, moves = _places(x.shape, self.widths, self.mode)
        out = ndarray.empty(padded, x.dtype, x.device)
        copy = x.device.backend.copy
        copy(out.view(*inner), x)
        for _, strip, source in moves:
            target, values = out.view(*strip), out.view(*source)
            copy(target, values if source[0] == strip[0] else values.broadcast_to(strip[0]))
        return out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        return (executor.apply(PadByEdgesGrad.of(self.widths, self.mode, shape), out_grad),)


def _grad_samples() -> list[Sample]:
    around: Any = np.pad

    def sums(g: Numpy, shape: Shape, widths: Pairs, mode: str) -> Numpy:
        size = int(np.prod(shape))
        places = around(np.arange(size).reshape(shape), widths, mode)
        return np.bincount(places.ravel(), g.ravel(), size).reshape(shape)

    good = [
        Sample((uniform(around(np.empty(a[0]), a[1], a[2]).shape),), (a[1], a[2], a[0]),
               lambda g, a=a: sums(g, *a))
        for a in _CASES
    ]  # fmt: skip
    return [*good, Sample((uniform((4,)),), (((1, 1),), "edge", (3,)), raises=ShapeError)]


class PadByEdgesGrad(Linear):
    """The transpose of PadByEdges: each padded element is added to its source.

    Shapes:   x, as PadByEdges makes it of ``shape`` -> shape
    Gradient: x; any order
    Raises:   ShapeError if x has another shape
    """

    widths: Pairs
    mode: str
    shape: Shape
    samples = staticmethod(_grad_samples)

    def compute(self, x: NDArray) -> NDArray:
        padded, inner, moves = _places(self.shape, self.widths, self.mode)
        if x.shape != padded:
            problem = f"{self.shape} with {self.widths} around it has shape {padded}"
            raise explain(ShapeError, self.name, problem, [("x", x)])
        sums = x.copy()
        for axis, strip, source in reversed(moves):
            target, values = sums.view(*source), sums.view(*strip)
            if source[0] != strip[0]:
                values = kernels.reduce("sum", values, (axis,), keepdims=True)
            x.device.backend.elementwise("add", target, target, values)
        return sums.view(*inner)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(PadByEdges.of(self.widths, self.mode), out_grad),)


# ---- functions ---------------------------------------------------------------------


def pad(
    x: Tensor,
    widths: int | Sequence[int | Sequence[int]],
    mode: str = "constant",
    value: float = 0.0,
) -> Tensor:
    """Pad x with (before, after) elements per axis.

    Args:
        x: a tensor.
        widths: how many elements, per axis; one pair or one number holds for all axes, as in NumPy.
        mode: "constant"; "reflect" (without the edge), "symmetric" (with it), "replicate" (the
            edge), "circular".
        value: for mode "constant"; the result keeps the dtype of x.

    Raises:
        ArgumentError: if widths are not integers.
        ShapeError: if widths do not fit x, or reach further than reflect can.
        OptionError: for another mode.
        DtypeError: if the dtype of x cannot hold the value.

    >>> print(ndl.pad(Tensor([1.0, 2.0, 3.0]), (2, 1)))
    [0. 0. 1. 2. 3. 0.]
    >>> print(ndl.pad(Tensor([1.0, 2.0, 3.0]), (2, 1), mode="reflect"))
    [3. 2. 1. 2. 3. 2.]
    """
    shape = shape_of(x)
    pairs = _pairs(widths, len(shape))
    if not isinstance(mode, str) or mode not in PAD_MODES:
        raise unknown("pad mode", mode, PAD_MODES)
    if mode == "constant":
        out = executor.apply(Pad.of(pairs), x)
        number = number_in("pad", value, out.spec.dtype)
        zero = number == 0 and math.copysign(1.0, number) > 0
        return out if zero else _fill_around(out, shape, pairs, number)
    if len(pairs) == len(shape) and not any(map(any, pairs)):
        return x
    return executor.apply(PadByEdges.of(pairs, PAD_MODES[mode]), x)


def _pairs(widths: object, ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the widths of ``pad`` as one pair per axis."""
    if type(widths) is tuple and len(widths) == ndim and all(map(_is_pair, widths)):
        return widths
    given = axes_of(widths)
    if given and not any(map(np.iterable, given)):
        given = (given,)
    rows = [axes_of(part) for part in given]
    rows = rows * ndim if len(rows) == 1 else rows
    if {*map(len, rows)} not in ({1}, {2}, set()):
        raise ShapeError(
            f"pad: widths {widths!r:.60} for {ndim} axes\n"
            "  rule: one number, one pair (before, after), or a pair for each axis"
        )
    return tuple((integer("pad: width", row[0]), integer("pad: width", row[-1])) for row in rows)


def _is_pair(row: tuple[int, ...]) -> bool:
    return type(row) is tuple and len(row) == 2 and type(row[0]) is type(row[1]) is int


def _fill_around(
    out: Tensor, shape: tuple[int, ...], pairs: tuple[tuple[int, ...], ...], value: float
) -> Tensor:
    spec = out.spec
    inside = graph.wrap(ndarray.full(shape, True, as_dtype("bool"), spec.device))
    return where(executor.apply(Pad.of(pairs), inside), out, value)

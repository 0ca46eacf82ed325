"""Interpolation along axes, and its transpose: what upsampling is made of."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import memory, ndarray
from needle.backend.axes import normalise_axis
from needle.errors import ShapeError, explain
from needle.ops.base import Composite, Linear
from needle.ops.elementwise import where
from needle.ops.indexing import TakeGrad, take
from needle.ops.samples import Sample, uniform

Sizes = tuple[int, ...]
Floats = tuple[float, ...]


NEAREST, CENTRES, CORNERS = "nearest", "centres", "corners"


def _neighbours(n: int, m: int, scale: float, how: str) -> tuple[Any, Any, Any]:
    """Return for m points of an axis of n the elements left and right, and the share of the right.

    Point p lies at (p + 0.5) / scale - 0.5, at least 0; with CORNERS at p * (n - 1) / (m - 1). With
    NEAREST both are the element floor(p / scale).
    """
    points = np.arange(m)
    if how == NEAREST:
        source = np.floor(points / scale)
    elif how == CORNERS:
        source = points * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        source = np.maximum((points + 0.5) / scale - 0.5, 0.0)
    low = np.minimum(np.floor(source), n - 1).astype(np.int64)
    if how == NEAREST:
        return low, low, np.zeros(m)
    return low, np.minimum(low + 1, n - 1), np.minimum(source - low, 1.0)


def _interpolated(x: Any, attributes: Any, transposed: Any = ()) -> Any:
    """Return x times the matrices that interpolate, or their transposes to these sizes."""
    first, sizes, scales, how = attributes
    first %= x.ndim
    for i, given in enumerate(zip(sizes, scales, strict=True)):
        n = transposed[i] if transposed else x.shape[first + i]
        low, high, share = _neighbours(n, *given, how)
        places = np.arange(n)
        left, right = low[:, None] == places, high[:, None] == places
        matrix = left * (1.0 - share)[:, None] + right * share[:, None]
        matrix = matrix.T if transposed else matrix
        x = np.moveaxis(np.tensordot(matrix, x, (1, first + i)), 0, first + i)
    return x


_CASES: tuple[tuple[Sizes, Any], ...] = (
    ((2, 3, 4), (1, (6,), (2.0,), CENTRES)),
    ((3, 5), (0, (7,), (2.4,), CENTRES)),
    ((3, 5), (1, (2,), (0.4,), CENTRES)),
    ((2, 4, 3), (-2, (7,), (1.75,), CORNERS)),
    ((4,), (0, (1,), (0.25,), CORNERS)),
    ((1, 2), (0, (3,), (3.0,), CENTRES)),
    ((2, 3, 4), (1, (6,), (2.0,), NEAREST)),
    ((5, 2), (0, (3,), (0.6,), NEAREST)),
    ((0, 2), (1, (4,), (2.0,), CENTRES)),
    ((2, 3, 4, 5), (1, (6, 8), (2.0, 2.0), CENTRES)),
    ((2, 3, 4), (1, (5, 3), (5 / 3, 0.75), CORNERS)),
    ((4, 3), (0, (8, 2), (2.0, 0.7), NEAREST)),
    ((2, 2, 3, 2, 1), (-4, (3, 4, 2), (1.5, 4 / 3, 1.0), CENTRES)),
)


def _resized(shape: Sizes, axis: int, sizes: Sizes) -> Sizes:
    axis = normalise_axis(axis, len(shape))
    return (*shape[:axis], *sizes, *shape[axis + len(sizes) :])


class _Interpolation(Linear, Composite):
    """What both directions share.

    Attributes:
        axis: the first of the axes, which are neighbours.
        sizes: how many points, for each axis.
        scales: how many times more they are than elements; not used with CORNERS.
        how: NEAREST takes elements, the others means of two; with CORNERS the first and the last
            points are the first and the last elements.
    """

    axis: int
    sizes: Sizes
    scales: Floats
    how: str
    saves = ((),)

    promotes = "floating"

    def neighbours(self, i: int, n: int) -> tuple[Any, Any, Any]:
        """Return the elements left and right of each point of axis i, of n, the right's share."""
        return _neighbours(n, self.sizes[i], self.scales[i], self.how)

    def first_axis(self, x: Any) -> int:
        """Return the first axis, counted from the front.

        Raises:
            ShapeError: if there are not as many axes.
        """
        shape = executor.spec_of(x).shape
        axis = normalise_axis(self.axis, len(shape))
        if not 0 < len(self.sizes) == len(self.scales) <= len(shape) - axis:
            raise explain(
                ShapeError, self.name, f"{len(self.sizes)} sizes and {len(self.scales)} scales "
                f"from axis {axis} on", [("x", x)], "one for each axis",
            )  # fmt: skip
        return axis

    def parts(self, n: int, like: Any) -> list[tuple[Any, Any]]:
        """Return, for the only axis, of n, the elements beside each point and their factors.

        First those on the left, then those on the right. A factor takes a tensor of points. Where
        it is 0 it leaves out what it would multiply.
        """
        low, high, share = self.neighbours(0, n)
        spec = executor.spec_of(like)
        column = share.reshape(-1, *(1 for _ in spec.shape[self.axis % len(spec.shape) + 1 :]))

        def constant(values: Any, kind: Any) -> Any:
            return graph.wrap(ndarray.array(values, kind, spec.device))

        def factor(weight: Any) -> Any:
            some, weights = constant(weight != 0, dtypes.bool_), constant(weight, spec.dtype)
            return lambda points: where(some, points * weights, 0.0)

        places = (constant(low, dtypes.int64), constant(high, dtypes.int64))
        return list(zip(places, (factor(1.0 - column), factor(column)), strict=True))

    def _keeps(self, size: int, scale: float, n: int) -> bool:
        """Return whether an axis stays as it is."""
        return size == n and (scale == 1.0 or self.how == CORNERS)

    def check(self, x: Any, elements: Sizes) -> None:
        """Check that there are elements and points.

        Raises:
            ShapeError: if there are none.
        """
        if min((*elements, *self.sizes)) < 1:
            raise explain(
                ShapeError, self.name, f"from {elements} elements to {self.sizes} points",
                [("x", x)], "sizes are at least 1",
            )  # fmt: skip


class Interpolate(_Interpolation):
    """Take points of axes, each a mean of the two elements beside it, or the nearest element.

        point p is at (p + 0.5) / scale - 0.5, at least 0, or at p * (n - 1) / (size - 1)

    Several axes are interpolated one after the other.

    Shapes:   x [a..., n..., b...] -> [a..., size..., b...]
    Dtypes:   floating
    Gradient: x; any order
    Raises:   ShapeError if there are no elements or no points
    """

    samples = staticmethod(
        lambda: [
            *(
                Sample((uniform(x),), a, lambda x, a=a: _interpolated(x, a))
                for x, a in _CASES
            ),
            Sample((uniform((2, 0)),), (1, (3,), (1.0,), CENTRES), raises=ShapeError),
            Sample((uniform((2, 3)),), (1, (3, 4), (1.0, 1.0), CENTRES), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, x: Any) -> Any:
        axis = self.first_axis(x)
        self.check(x, x.shape[axis : axis + len(self.sizes)])
        # before the places and shares of as many points are worked out on the host
        nbytes = prod(_resized(x.shape, axis, self.sizes)) * x.dtype.itemsize
        memory.ask(x.device.backend, nbytes)
        return super().compute(x)

    def expand(self, x: Any) -> Any:
        axis = self.first_axis(x)
        if len(self.sizes) > 1:
            shape = executor.spec_of(x).shape[axis:]
            for i, given in enumerate(zip(self.sizes, self.scales, shape, strict=False)):
                if not self._keeps(*given):
                    op = Interpolate.of(axis + i, given[:1], given[1:2], self.how)
                    x = executor.apply(op, x)
            return x
        n = executor.spec_of(x).shape[axis]
        (low, left), (high, right) = self.parts(n, x)
        if self.how == NEAREST:
            return take(x, low, axis)
        return left(take(x, low, axis)) + right(take(x, high, axis))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x = out.node.inputs[0]
        axis = normalise_axis(self.axis, len(x.spec.shape))
        elements = x.spec.shape[axis : axis + len(self.sizes)]
        op = InterpolateGrad.of(axis, self.sizes, self.scales, self.how, elements)
        return (executor.apply(op, out_grad),)


class InterpolateGrad(_Interpolation):
    """The transpose of Interpolate: spread each point over the elements that it was made of.

    Shapes:   g [a..., size..., b...] -> [a..., n..., b...]
    Dtypes:   floating
    Gradient: g, by Interpolate; any order
    Raises:   ShapeError if the axes of g have other sizes
    """

    elements: Sizes
    samples = staticmethod(
        lambda: [
            *(
                Sample(
                    (uniform(_resized(x, a[0], a[1])),), (*a, _elements(x, a)),
                    lambda g, x=x, a=a: _interpolated(g, a, _elements(x, a)),
                )
                for x, a in _CASES
            ),
            Sample((uniform((2, 3)),), (1, (4,), (2.0,), CENTRES, (2,)), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, g: Any) -> Any:
        axis = self.first_axis(g)
        self.check(g, self.elements)
        points = g.shape[axis : axis + len(self.sizes)]
        if points != self.sizes or len(self.elements) != len(points):
            raise explain(
                ShapeError, self.name, f"from axis {axis} on g has {points} points, "
                f"not {self.sizes}", [("g", g)], "g has the shape of the interpolation's result",
            )  # fmt: skip
        return super().compute(g)

    def expand(self, g: Any) -> Any:
        axis = self.first_axis(g)
        if len(self.sizes) > 1:
            for i, given in enumerate(zip(self.sizes, self.scales, self.elements, strict=True)):
                if not self._keeps(*given):
                    op = InterpolateGrad.of(axis + i, given[:1], given[1:2], self.how, given[2:])
                    g = executor.apply(op, g)
            return g
        (low, left), (high, right) = self.parts(self.elements[0], g)
        back = TakeGrad.of(axis, _resized(executor.spec_of(g).shape, axis, self.elements))
        if self.how == NEAREST:
            return executor.apply(back, low, g)
        return executor.apply(back, low, left(g)) + executor.apply(back, high, right(g))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        op = Interpolate.of(self.axis, self.sizes, self.scales, self.how)
        return (executor.apply(op, out_grad),)


def _elements(shape: Sizes, attributes: Any) -> Sizes:
    axis = normalise_axis(attributes[0], len(shape))
    return shape[axis : axis + len(attributes[1])]

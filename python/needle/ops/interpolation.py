"""Interpolation along an axis, and its transpose: what upsampling is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import ndarray
from needle.backend.axes import normalise_axis
from needle.errors import ShapeError, explain
from needle.ops.base import Composite, Linear
from needle.ops.elementwise import where
from needle.ops.indexing import TakeGrad, take
from needle.ops.samples import Sample, uniform

Sizes = tuple[int, ...]


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


def _matrix(n: int, attributes: Any) -> Any:
    """Return the m x n matrix that interpolates."""
    low, high, share = _neighbours(n, *attributes)
    places = np.arange(n)
    left, right = low[:, None] == places, high[:, None] == places
    return left * (1.0 - share)[:, None] + right * share[:, None]


def _along(x: Any, axis: int, matrix: Any) -> Any:
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


_CASES: tuple[tuple[Sizes, int, Any], ...] = (
    ((2, 3, 4), 1, (6, 2.0, CENTRES)),
    ((3, 5), 0, (7, 2.4, CENTRES)),
    ((3, 5), 1, (2, 0.4, CENTRES)),
    ((2, 4, 3), -2, (7, 1.75, CORNERS)),
    ((4,), 0, (1, 0.25, CORNERS)),
    ((1, 2), 0, (3, 3.0, CENTRES)),
    ((2, 3, 4), 1, (6, 2.0, NEAREST)),
    ((5, 2), 0, (3, 0.6, NEAREST)),
    ((0, 2), 1, (4, 2.0, CENTRES)),
)


def _size(shape: Sizes, axis: int, m: int) -> Sizes:
    axis %= len(shape)
    return (*shape[:axis], m, *shape[axis + 1 :])


class _Interpolation(Linear, Composite):
    """What both directions share.

    Attributes:
        axis: along which.
        size: how many points.
        scale: how many times more they are than elements; not used with CORNERS.
        how: NEAREST takes elements, the others means of two; with CORNERS the first and the last
            points are the first and the last elements.
    """

    axis: int
    size: int
    scale: float
    how: str
    saves = ((),)

    promotes = "floating"

    def neighbours(self, n: int) -> tuple[Any, Any, Any]:
        """Return the elements left and right of each point of an axis of n, the right's share."""
        return _neighbours(n, self.size, self.scale, self.how)

    def parts(self, n: int, like: Any) -> list[tuple[Any, Any]]:
        """Return, for an axis of n, the elements left and right of each point and their factors.

        A factor takes a tensor of points. Where it is 0 it leaves out what it would multiply.
        """
        low, high, share = self.neighbours(n)
        spec = executor.spec_of(like)
        column = share.reshape(-1, *(1 for _ in spec.shape[self.axis % len(spec.shape) + 1 :]))

        def constant(values: Any, kind: Any) -> Any:
            return graph.wrap(ndarray.array(values, kind, spec.device))

        def factor(weight: Any) -> Any:
            some, weights = constant(weight != 0, dtypes.bool_), constant(weight, spec.dtype)
            return lambda points: where(some, points * weights, 0.0)

        places = (constant(low, dtypes.int64), constant(high, dtypes.int64))
        return list(zip(places, (factor(1.0 - column), factor(column)), strict=True))

    def check(self, x: Any, n: int) -> None:
        """Check that there are elements and points.

        Raises:
            ShapeError: if there are none.
        """
        if min(n, self.size) < 1:
            raise explain(
                ShapeError, self.name, f"from {n} elements to {self.size} points", [("x", x)],
                "sizes are at least 1",
            )  # fmt: skip


class Interpolate(_Interpolation):
    """Take points of an axis, each a mean of the two elements beside it, or the nearest element.

        point p is at (p + 0.5) / scale - 0.5, at least 0, or at p * (n - 1) / (size - 1)

    Shapes:   x [a..., n, b...] -> [a..., size, b...]
    Dtypes:   floating
    Gradient: x; any order
    Raises:   ShapeError if there are no elements or no points
    """

    samples = staticmethod(
        lambda: [
            *(
                Sample(
                    (uniform(x),), (axis, *a),
                    lambda x, axis=axis, a=a: _along(x, axis, _matrix(x.shape[axis], a)),
                )
                for x, axis, a in _CASES
            ),
            Sample((uniform((2, 0)),), (1, 3, 1.0, CENTRES), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, x: Any) -> Any:
        self.check(x, x.shape[normalise_axis(self.axis, x.ndim)])
        return super().compute(x)

    def expand(self, x: Any) -> Any:
        axis = normalise_axis(self.axis, len(executor.spec_of(x).shape))
        n = executor.spec_of(x).shape[axis]
        (low, left), (high, right) = self.parts(n, x)
        if self.how == NEAREST:
            return take(x, low, axis)
        return left(take(x, low, axis)) + right(take(x, high, axis))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        shape = out.node.inputs[0].spec.shape
        op = InterpolateGrad.of(
            self.axis,
            self.size,
            self.scale,
            self.how,
            shape[normalise_axis(self.axis, len(shape))],
        )
        return (executor.apply(op, out_grad),)


class InterpolateGrad(_Interpolation):
    """The transpose of Interpolate: spread each point over the elements that it was made of.

    Shapes:   g [a..., size, b...] -> [a..., n, b...]
    Dtypes:   floating
    Gradient: g, by Interpolate; any order
    Raises:   ShapeError if the axis of g has another size
    """

    n: int
    samples = staticmethod(
        lambda: [
            *(
                Sample(
                    (uniform(_size(x, axis, a[0])),), (axis, *a, x[axis]),
                    lambda g, x=x, axis=axis, a=a: _along(g, axis, _matrix(x[axis], a).T),
                )
                for x, axis, a in _CASES
            ),
            Sample((uniform((2, 3)),), (1, 4, 2.0, CENTRES, 2), raises=ShapeError),
        ]
    )  # fmt: skip

    def compute(self, g: Any) -> Any:
        axis = normalise_axis(self.axis, g.ndim)
        self.check(g, self.n)
        if g.shape[axis] != self.size:
            raise explain(
                ShapeError, self.name, f"axis {axis} has {g.shape[axis]} points, not {self.size}",
                [("g", g)], "g has the shape of the interpolation's result",
            )  # fmt: skip
        return super().compute(g)

    def expand(self, g: Any) -> Any:
        shape = executor.spec_of(g).shape
        axis = normalise_axis(self.axis, len(shape))
        (low, left), (high, right) = self.parts(self.n, g)
        back = TakeGrad.of(axis, _size(shape, axis, self.n))
        if self.how == NEAREST:
            return executor.apply(back, low, g)
        return executor.apply(back, low, left(g)) + executor.apply(back, high, right(g))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        op = Interpolate.of(self.axis, self.size, self.scale, self.how)
        return (executor.apply(op, out_grad),)

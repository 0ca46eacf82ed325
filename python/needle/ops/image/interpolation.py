"""Interpolation along axes, and its transpose: the parts of upsampling.

Each axis is multiplied by a banded matrix or its transpose. The kernel of the native
CPU takes two axes in one pass.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import kernels, memory, ndarray
from needle.backend.axes import normalise_axis, sizes_of
from needle.errors import OptionError, ShapeError, explain
from needle.ops.core.families import Composite
from needle.ops.core.op import Linear
from needle.ops.core.primitives import total
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import where
from needle.ops.index.indexing import take
from needle.ops.index.row_sparse import TakeGrad

if TYPE_CHECKING:
    from needle.dtype import DType
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor

__all__ = ["Interpolate", "InterpolateGrad"]

Sizes = tuple[int, ...]
Floats = tuple[float, ...]


NEAREST, CENTRES, CORNERS = "nearest", "centres", "corners"
CUBIC_CENTRES, CUBIC_CORNERS = "cubic centres", "cubic corners"
_PLACE = 64
"""Bytes on the host for the places and weights, up to four each, of one point."""


def _neighbours(n: int, m: int, scale: float, how: str) -> tuple[Numpy, Numpy]:
    """Return the elements, and their weights, for m points of an axis of n: [taps, m] each.

    Point p lies at (p + 0.5) / scale - 0.5, at corners at p * (n - 1) / (m - 1). With NEAREST it is
    the element floor(p / scale), else between two, or the middle two of four. Beyond its ends an
    axis goes on with the first and the last element.
    """
    points = np.arange(m)
    if how == NEAREST:
        source = np.floor(points / scale)
    elif how in (CORNERS, CUBIC_CORNERS):
        source = points * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        source = (points + 0.5) / scale - 0.5
    cubic = how in (CUBIC_CENTRES, CUBIC_CORNERS)
    source = source if cubic else np.clip(source, 0, n - 1)
    steps = np.arange(-1, 3) if cubic else np.arange(1 if how == NEAREST else 2)
    places = np.floor(source) + steps[:, None]
    away = np.abs(source - places)
    weights = _cubic(away) if cubic else 1.0 - away
    places = np.clip(places, 0, n - 1).astype(np.int64)
    for i in range(1, len(steps)):  # an element has one weight: of infinity, two would make NaN
        again = places[i] == places[i - 1]
        weights[i] += np.where(again, weights[i - 1], 0.0)
        weights[i - 1][again] = 0.0
    return places, weights


def _cubic(x: Numpy) -> Numpy:
    """Return Keys' kernel at distances up to 2, with PyTorch's slope of -3/4 at 1.

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 15
    """
    a = -0.75
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, far)


def _interpolated(x: Any, attributes: Any, transposed: Any = ()) -> Any:
    """Return x times the matrices that interpolate, or their transposes to these sizes."""
    first, sizes, scales, how = attributes
    first %= x.ndim
    for i, given in enumerate(zip(sizes, scales, strict=True)):
        n = transposed[i] if transposed else x.shape[first + i]
        places, weights = _neighbours(n, *given, how)
        matrix = (weights[..., None] * (places[..., None] == np.arange(n))).sum(0)
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
    ((3, 5), (1, (7,), (1.4,), CUBIC_CENTRES)),
    ((2, 4, 3, 2), (1, (9, 2), (2.25, 2 / 3), CUBIC_CORNERS)),
    ((2, 2, 3, 2, 1), (-4, (3, 4, 2), (1.5, 4 / 3, 1.0), CENTRES)),
)


def _resized(shape: Sizes, axis: int, sizes: Sizes) -> Sizes:
    axis = normalise_axis(axis, len(shape))
    return (*shape[:axis], *sizes, *shape[axis + len(sizes) :])


class _Interpolation(Linear, Composite):
    """The base of both directions.

    Attributes:
        axis: the first of the axes, which are neighbours.
        sizes: number of points along each axis.
        scales: ratio of points to elements along each axis; not used with CORNERS.
        how: NEAREST takes elements, CENTRES and CORNERS means of two, the others of four; at
            corners the first and the last points are the first and the last elements.
    """

    axis: int
    sizes: Sizes
    scales: Floats
    how: str
    saves = ((),)

    promotes = "floating"

    def setup(self) -> None:
        if not all(0.0 < scale < float("inf") for scale in self.scales):
            raise OptionError(f"{self.name}: scales are {self.scales}\n  rule: above 0, and finite")

    def neighbours(self, i: int, n: int) -> tuple[Numpy, Numpy]:
        """Return the elements beside each point of axis i, of n, and their weights: [taps, m]."""
        return _neighbours(n, self.sizes[i], self.scales[i], self.how)

    def first_axis(self, x: Operand) -> int:
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

    def parts(self, n: int, like: Tensor) -> list[tuple[Any, Any]]:
        """Return, for the only axis, of n, the elements beside each point and their factors.

        A factor multiplies a tensor of points; a factor of 0 gives 0 also for infinite points.
        """
        places, weights = self.neighbours(0, n)
        spec = executor.spec_of(like)
        column = (-1, *(1 for _ in spec.shape[self.axis % len(spec.shape) + 1 :]))

        def constant(values: Numpy, kind: DType) -> Tensor:
            return graph.wrap(ndarray.array(values, kind, spec.device))

        def factor(weight: Numpy) -> Any:
            some, weights = constant(weight != 0, dtypes.bool_), constant(weight, spec.dtype)
            return lambda points: where(some, points * weights, 0.0)

        return [
            (constant(place, dtypes.int64), factor(weight.reshape(column)))
            for place, weight in zip(places, weights, strict=True)
        ]

    def _keeps(self, size: int, scale: float, n: int) -> bool:
        """Return whether an axis stays as it is."""
        return size == n and (scale == 1.0 or self.how in (CORNERS, CUBIC_CORNERS))

    def check(self, x: NDArray, elements: Sizes) -> None:
        """Check the numbers of elements and points.

        Raises:
            ShapeError: if there are none, or more than can be counted.
        """
        for size in self.sizes:
            sizes_of(self.name, (size,), _PLACE)
        if min((*elements, *self.sizes)) < 1:
            raise explain(
                ShapeError, self.name, f"from {elements} elements to {self.sizes} points",
                [("x", x)], "sizes are at least 1",
            )  # fmt: skip


class Interpolate(_Interpolation):
    """Take points of axes, each a mean of the elements beside it, or the nearest element.

        point p is at (p + 0.5) / scale - 0.5 or at p * (n - 1) / (size - 1)

    Several axes are interpolated one after the other.

    Shapes:   x [a..., n..., b...] -> [a..., size..., b...]
    Dtypes:   floating
    Gradient: x; any order
    Raises:   ShapeError if there are no elements or no points; OptionError if a scale is not
              above 0 and finite
    """

    samples = staticmethod(
        lambda: [
            *(
                Sample((uniform(x),), a, lambda x, a=a: _interpolated(x, a))
                for x, a in _CASES
            ),
            Sample((uniform((2, 0)),), (1, (3,), (1.0,), CENTRES), raises=ShapeError),
            Sample((uniform((2, 3)),), (1, (3, 4), (1.0, 1.0), CENTRES), raises=ShapeError),
            Sample((uniform((2, 3)),), (1, (2**61,), (1.0,), CENTRES), raises=OptionError),
            Sample((uniform((2, 3)),), (1, (3,), (float("nan"),), CENTRES), raises=OptionError),
            Sample((uniform((2, 3)),), (1, (3,), (0.0,), NEAREST), raises=OptionError),
        ]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        axis = self.first_axis(x)
        self.check(x, x.shape[axis : axis + len(self.sizes)])
        shape = _resized(x.shape, axis, self.sizes)
        if not kernels.has_values(x):
            return ndarray.empty(shape, x.dtype, x.device)
        # before the places and shares of as many points are worked out on the host
        nbytes = prod(shape) * x.dtype.itemsize
        memory.ask(x.device.backend, nbytes or _PLACE * max(self.sizes))
        return super().compute(x)

    def expand(self, x: Tensor) -> Tensor:
        axis = self.first_axis(x)
        if len(self.sizes) > 1:
            shape = executor.spec_of(x).shape[axis:]
            for i, given in enumerate(zip(self.sizes, self.scales, shape, strict=False)):
                if not self._keeps(*given):
                    op = Interpolate.of(axis + i, given[:1], given[1:2], self.how)
                    x = executor.apply(op, x)
            return x
        n = executor.spec_of(x).shape[axis]
        parts = self.parts(n, x)
        if self.how == NEAREST:
            return take(x, parts[0][0], axis)
        return total([factor(take(x, places, axis)) for places, factor in parts])

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x = out.node.inputs[0]
        axis = normalise_axis(self.axis, len(x.spec.shape))
        elements = x.spec.shape[axis : axis + len(self.sizes)]
        op = InterpolateGrad.of(axis, self.sizes, self.scales, self.how, elements)
        return (executor.apply(op, out_grad),)


class InterpolateGrad(_Interpolation):
    """The transpose of Interpolate: spread each point over the elements it was made of.

    Shapes:   g [a..., size..., b...] -> [a..., n..., b...]
    Dtypes:   floating
    Gradient: g, by Interpolate; any order
    Raises:   ShapeError if the axes of g have other sizes; OptionError if a scale is not above 0
              and finite
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

    def compute(self, g: NDArray) -> NDArray:
        axis = self.first_axis(g)
        self.check(g, self.elements)
        points = g.shape[axis : axis + len(self.sizes)]
        if points != self.sizes or len(self.elements) != len(points):
            raise explain(
                ShapeError, self.name, f"from axis {axis} on g has {points} points, "
                f"not {self.sizes}", [("g", g)], "g has the shape of the interpolation's result",
            )  # fmt: skip
        if not kernels.has_values(g):
            return ndarray.empty(_resized(g.shape, axis, self.elements), g.dtype, g.device)
        return super().compute(g)

    def expand(self, g: Tensor) -> Tensor:
        axis = self.first_axis(g)
        if len(self.sizes) > 1:
            for i, given in enumerate(zip(self.sizes, self.scales, self.elements, strict=True)):
                if not self._keeps(*given):
                    op = InterpolateGrad.of(axis + i, given[:1], given[1:2], self.how, given[2:])
                    g = executor.apply(op, g)
            return g
        parts = self.parts(self.elements[0], g)
        back = TakeGrad.of(axis, _resized(executor.spec_of(g).shape, axis, self.elements))
        if self.how == NEAREST:
            return executor.apply(back, parts[0][0], g)
        return total([executor.apply(back, places, factor(g)) for places, factor in parts])

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        op = Interpolate.of(self.axis, self.sizes, self.scales, self.how)
        return (executor.apply(op, out_grad),)


def _elements(shape: Sizes, attributes: Any) -> Sizes:
    axis = normalise_axis(attributes[0], len(shape))
    return shape[axis : axis + len(attributes[1])]

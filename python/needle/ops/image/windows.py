"""All windows of an array as a view, and the transpose: overlapping sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend import ndarray
from needle.backend.axes import axes_of, normalise_axis
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.op import Linear
from needle.ops.core.samples import Sample, uniform

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Tensor

__all__ = ["Windows", "WindowsGrad", "windows"]

_CASES: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], ...] = (
    ((5,), ((0,), (3,), (1,), (1,))),
    ((2, 6, 3), ((1,), (2,), (2,), (3,))),
    ((5, 7, 2), ((0, 1), (2, 3), (1, 2), (2, 1))),
    ((2, 0, 3), ((2,), (2,), (1,), (1,))),
    ((3, 2), ((0,), (1,), (2,), (1,))),
)


def _positions(attributes: Any, shape: tuple[int, ...]) -> Any:
    """Yield, per place in the window, that place and where its elements are in x."""
    axes, sizes, steps, dilations = attributes
    for place in product(*map(range, sizes)):
        index = [slice(None)] * len(shape)
        for axis, size, step, dilation, k in zip(axes, sizes, steps, dilations, place, strict=True):
            span = shape[axis] - dilation * (size - 1)
            index[axis] = slice(dilation * k, dilation * k + span, step)
        yield place, tuple(index)


def _windows(x: Numpy, *attributes: tuple[int, ...]) -> Numpy:
    parts = [x[index] for _, index in _positions(attributes, x.shape)]
    return np.stack(parts, -1).reshape(*parts[0].shape, *attributes[1])


def _overlap(y: Any, *attributes: Any) -> Any:
    *windows, shape = attributes
    out = np.zeros(shape)
    for place, index in _positions(windows, shape):
        out[index] += y[(..., *place)]
    return out


def _grad_samples() -> list[Sample]:
    good = [
        Sample(
            (uniform(_windows(uniform(shape), *a).shape),), (*a, shape),
            lambda y, a=a, shape=shape: _overlap(y, *a, shape),
        )
        for shape, a in _CASES
    ]  # fmt: skip
    wrong = Sample((uniform((3, 3)),), ((0,), (3,), (1,), (1,), (6,)), raises=ShapeError)
    return [*good, wrong]


class Windows(Linear):
    """All windows over some axes, as a view: these axes count the windows, window axes come last.

    Shapes:   x [..., n, ...] -> [..., (n - dilation * (size - 1) - 1) // step + 1, ..., size]
    Gradient: x; any order
    Raises:   ShapeError if a window is larger than its axis; OptionError if the numbers of axes,
              sizes, steps and dilations differ
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    samples = staticmethod(
        lambda: [
            *(
                Sample((uniform(shape),), a, lambda x, a=a: _windows(x, *a))
                for shape, a in _CASES
            ),
            Sample((uniform((3, 4)),), ((1,), (3,), (1,), (2,)), raises=ShapeError),
            Sample((uniform((3, 4)),), ((1,), (3,), (1, 1), (1,)), raises=OptionError),
        ]
    )  # fmt: skip

    def compute(self, x: NDArray) -> NDArray:
        return x.windows(self.axes, self.sizes, self.steps, self.dilations)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        shape = out.node.inputs[0].spec.shape
        op = WindowsGrad.of(self.axes, self.sizes, self.steps, self.dilations, shape)
        return (executor.apply(op, out_grad),)


class WindowsGrad(Linear):
    """The transpose of Windows: every window is added to its place in zeros of ``shape``.

    Shapes:   x, as Windows makes it of ``shape`` -> shape
    Gradient: x; any order
    Raises:   ShapeError if x has another shape; OptionError as Windows
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    shape: tuple[int, ...]
    samples = staticmethod(_grad_samples)

    def compute(self, x: NDArray) -> NDArray:
        out = ndarray.full(self.shape, 0, x.dtype, x.device)
        expected = out.windows(self.axes, self.sizes, self.steps, self.dilations).shape
        if x.shape != expected:
            raise explain(
                ShapeError, self.name, f"the windows of {self.shape} are {expected}", [("x", x)]
            )
        backend, ndim = x.device.backend, len(self.shape)
        for place in product(*map(range, self.sizes)):
            ranges = [(0, n, 1) for n in self.shape]
            for axis, k, step, dilation in zip(
                self.axes, place, self.steps, self.dilations, strict=True
            ):
                ranges[axis] = (dilation * k, x.shape[axis], step)
            part = out.slice(ranges)
            piece = x.slice([*((0, n, 1) for n in part.shape), *((k, 1, 1) for k in place)])
            backend.elementwise("add", part, part, piece.squeeze(range(ndim, x.ndim)))
        return out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        op = Windows.of(self.axes, self.sizes, self.steps, self.dilations)
        return (executor.apply(op, out_grad),)


def windows(
    x: Any,
    axes: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
    dilations: Sequence[int],
) -> Tensor:
    """Return all windows over some axes of x, as a view. See ``Windows``.

    >>> print(ops.windows(Tensor([1.0, 2.0, 3.0, 4.0]), (0,), (2,), (1,), (1,)))
    [[1. 2.]
     [2. 3.]
     [3. 4.]]
    """
    places = tuple(normalise_axis(axis, len(shape_of(x))) for axis in axes_of(axes))
    return executor.apply(Windows.of(places, *map(axes_of, (sizes, steps, dilations))), x)

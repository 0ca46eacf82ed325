"""Convolution fused with the next steps of a network: a bias, and a rectifier.

One op each, so that a device may finish a result while it is in registers. ``fold_batch_norm``
makes layers that use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import executor
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, widened
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.activation import leaky_relu, relu, relu_grad
from needle.ops.elementwise.arithmetic import cast_like, greater, where
from needle.ops.image.convolution import Convolution, Pairs, Sizes, convolution_cases, convolved
from needle.ops.reduction.reduce import summation

if TYPE_CHECKING:
    from needle.typing import NDArray, Numpy, Tensor

__all__ = ["ConvolutionActivation", "ConvolutionBias"]


def _biased(x: Numpy, w: Numpy, bias: Numpy, rest: Any) -> Numpy:
    return convolved(x, w, *rest) + bias


def _samples() -> list[Sample]:
    made = []
    for x, w, rest in convolution_cases():
        inputs = (x, w, uniform(w.shape[-1:], seed=2))
        made.append(Sample(inputs, rest, lambda x, w, b, a=rest: _biased(x, w, b, a)))
    x, w, rest = convolution_cases()[0]
    wrong = ((x, w, uniform((3,))), (x, w, uniform((1, 2))), (x, w[:, :, :2], uniform((2,))))
    return [*made, *(Sample(inputs, rest, raises=ShapeError) for inputs in wrong)]


def _activated(x: Numpy, w: Numpy, bias: Numpy, rest: Numpy, slope: float) -> Numpy:
    out = _biased(x, w, bias, rest)
    return np.where(out > 0, out, slope * out)


def _activated_samples() -> list[Sample]:
    made = []
    for i, (x, w, rest) in enumerate(convolution_cases()):
        static = (*rest, (0.0, 0.2)[i % 2])
        inputs = (x, w, uniform(w.shape[-1:], seed=2))
        made.append(
            Sample(inputs, static, lambda x, w, b, a=static: _activated(x, w, b, a[:-1], a[-1]))
        )  # fmt: skip
    return [*made, Sample(inputs, (*rest, -0.1), raises=OptionError)]


class ConvolutionBias(Composite):
    """Convolve images, and add a bias to each channel.

    Shapes:   x [n, *spatial, c], w [*kernel, c / groups, o], bias [o] -> [n, *out, o]
    Dtypes:   floating; sums in float32 when x is float16 or bfloat16
    Gradient: x and w as ``Convolution``, bias; any order
    Raises:   ShapeError as ``Convolution``, or if bias is not [o]; DtypeError if dtypes do not mix

    Attributes:
        stride, padding, dilation, groups: as ``Convolution``.
    """

    stride: Sizes
    padding: Pairs
    dilation: Sizes
    groups: int
    saves: ClassVar[Sequence[Sequence[int | str]]] = ((1,), (0,), ())
    samples = staticmethod(_samples)

    @property
    def plain(self) -> Convolution:
        """The convolution without the bias."""
        op = Convolution.of(self.stride, self.padding, self.dilation, self.groups)
        assert isinstance(op, Convolution)
        return op

    def out_spatial(self, spatial: Sizes, kernel: Sizes) -> Sizes:
        """Return the spatial sizes of the result."""
        return self.plain.out_spatial(spatial, kernel)

    promotes = "floating"

    def compute(self, x: NDArray, w: NDArray, bias: NDArray) -> NDArray:
        self.plain.check(x.shape, w.shape, None, [("x", x), ("w", w), ("bias", bias)])
        if bias.shape != w.shape[-1:]:
            raise explain(
                ShapeError, self.name, f"bias has shape {bias.shape}, but there are {w.shape[-1]} "
                "output channels", [("x", x), ("w", w), ("bias", bias)],
                "w [*kernel, c / groups, o], bias [o]",
            )  # fmt: skip
        return super().compute(x, w, bias)

    def expand(self, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        out = executor.apply(self.plain, widened(x), widened(w)) + widened(bias)
        return cast_like(self.activated(out), x)

    def activated(self, out: Tensor) -> Tensor:
        """Return the result, given the sum."""
        return out

    def before(self, out_grad: Tensor, out: Tensor) -> Tensor:
        """Return the gradient with respect to the sum."""
        return out_grad

    def gradient(self, out_grad: Any, out: Any) -> Any:
        g = self.before(out_grad, out)
        bias = None
        if out.node.inputs[2].needs:
            rows = tuple(range(len(shape_of(g)) - 1))
            bias = cast_like(summation(widened(g), rows), g)
        return *self.plain.gradient_as_tuple(g, out), bias


class ConvolutionActivation(ConvolutionBias):
    """Convolve images, add a bias, and multiply results below zero by a slope.

    Shapes:   as ``ConvolutionBias``
    Dtypes:   floating; sums in float32 when x is float16 or bfloat16
    Gradient: x, w, bias; any order
    Raises:   as ``ConvolutionBias``; OptionError if the slope is negative

    Attributes:
        slope: 0 for the rectifier, above for the leaky one.
    """

    slope: float
    saves = ((1, OUTPUT), (0, OUTPUT), (OUTPUT,))
    samples = staticmethod(_activated_samples)

    def compute(self, x: NDArray, w: NDArray, bias: NDArray) -> NDArray:
        if not self.slope >= 0:
            raise OptionError(f"{self.name}: slope {self.slope}: must not be negative")
        return super().compute(x, w, bias)

    def activated(self, out: Tensor) -> Tensor:
        return relu(out) if self.slope == 0 else leaky_relu(out, self.slope)

    def before(self, out_grad: Tensor, out: Tensor) -> Tensor:
        if self.slope == 0:
            return relu_grad(out, out_grad)
        return where(greater(out, 0.0), out_grad, out_grad * self.slope)

"""Trigonometric and hyperbolic functions of each element, and their inverses.

Every class is one row of src/common/functions.def; its ``derivative`` serves reverse and forward
mode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from needle.ops.core.families import Elementwise
from needle.ops.core.op import OUTPUT, export, widened
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import binary_samples, unary_samples
from needle.ops.elementwise.arithmetic import cast_like, equal, square, where
from needle.ops.elementwise.functions import hypot, rsqrt

if TYPE_CHECKING:
    from needle.typing import Gradients, Slope, Tensor

__all__ = [
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cos", "Cosh", "Sin", "Sinh",
    "Tan", "Tanh", "TanhGrad", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh",
    "cos", "cosh", "sin", "sinh", "tan", "tanh", "tanh_grad",
]  # fmt: skip


class Sin(Elementwise):
    """Sine of an angle in radians.

    >>> print(ndl.sin(Tensor([0.0, 1.0])))
    [0.     0.8415]
    """

    function = "sin"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, np.sin)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return cos(out.inputs[0])


class Cos(Elementwise):
    """Cosine of an angle in radians.

    >>> print(ndl.cos(Tensor([0.0, 1.0])))
    [1.     0.5403]
    """

    function = "cos"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, np.cos)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -sin(out.inputs[0])


class Tan(Elementwise):
    """Tangent of an angle in radians.

    >>> print(ndl.tan(Tensor([0.0, 1.0])))
    [0.     1.5574]
    """

    function = "tan"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-1.2, 1.2, np.tan)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 + out * out


class Asin(Elementwise):
    """Inverse sine; NaN outside [-1, 1].

    >>> print(ndl.asin(Tensor([0.0, 1.0])))
    [0.     1.5708]
    """

    function = "asin"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.9, 0.9, np.arcsin)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return rsqrt(1.0 - square(out.inputs[0]))


class Acos(Elementwise):
    """Inverse cosine; NaN outside [-1, 1].

    >>> print(ndl.acos(Tensor([1.0, 0.0])))
    [0.     1.5708]
    """

    function = "acos"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.9, 0.9, np.arccos)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -rsqrt(1.0 - square(out.inputs[0]))


class Atan(Elementwise):
    """Inverse tangent.

    >>> print(ndl.atan(Tensor([0.0, 1.0])))
    [0.     0.7854]
    """

    function = "atan"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.arctan)

    def derivative(self, out: Tensor, i: int) -> Slope:
        x = out.inputs[0]
        return cast_like(1.0 / (1.0 + square(widened(x))), x)


class Atan2(Elementwise):
    """Angle of the point (y, x): atan(x / y) in the right quadrant; its derivative at 0 is 0.

    >>> print(ndl.atan2(Tensor([1.0, -1.0]), Tensor([1.0, -1.0])))
    [ 0.7854 -2.3562]
    """

    function = "atan2"
    floating = True
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.arctan2, 0.5, 2.0, second=(-2.0, -0.5))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y = out.inputs
        length = self._length(x, y)
        return (-x if i else y) / length / length

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, y = out.inputs
        length = self._length(x, y)
        share = out_grad / length
        return tuple(
            sum_to(share * (side / length), node.spec.shape) if node.needs else None
            for side, node in zip((y, -x), out.node.inputs, strict=True)
        )

    @staticmethod
    def _length(x: Tensor, y: Tensor) -> Tensor:
        length = hypot(x, y)  # its square may leave the range
        return where(equal(length, 0.0), math.inf, length)


class Sinh(Elementwise):
    """Hyperbolic sine.

    >>> print(ndl.sinh(Tensor([0.0, 1.0])))
    [0.     1.1752]
    """

    function = "sinh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.sinh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return cosh(out.inputs[0])


class Cosh(Elementwise):
    """Hyperbolic cosine.

    >>> print(ndl.cosh(Tensor([0.0, 1.0])))
    [1.     1.5431]
    """

    function = "cosh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.cosh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return sinh(out.inputs[0])


class Tanh(Elementwise):
    """Hyperbolic tangent.

    >>> print(ndl.tanh(Tensor([-1.0, 0.0, 2.0])))
    [-0.7616  0.      0.964 ]
    """

    function = "tanh"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-3, 3, np.tanh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 - out * out

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (tanh_grad(out, out_grad),)


class TanhGrad(Elementwise):
    """The gradient of the hyperbolic tangent, of its output x: y * (1 - x * x).

    >>> print(ops.tanh_grad(Tensor([0.5]), Tensor([2.0])))
    [1.5]
    """

    function = "tanh_grad"
    floating = True
    saves = ((0, 1), (0,))
    samples = binary_samples(lambda x, y: y * (1 - x * x))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y = out.inputs
        return 1.0 - x * x if i else -2.0 * x * y


class Asinh(Elementwise):
    """Inverse hyperbolic sine.

    >>> print(ndl.asinh(Tensor([0.0, 1.0])))
    [0.     0.8814]
    """

    function = "asinh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.arcsinh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 / hypot(out.inputs[0], 1.0)  # the square may leave the range


class Acosh(Elementwise):
    """Inverse hyperbolic cosine; NaN below 1.

    >>> print(ndl.acosh(Tensor([1.0, 2.0])))
    [0.    1.317]
    """

    function = "acosh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(1.2, 3, np.arccosh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        x = out.inputs[0]
        return rsqrt(x - 1.0) * rsqrt(x + 1.0)  # the product overflows, and hides its ends


class Atanh(Elementwise):
    """Inverse hyperbolic tangent; NaN outside [-1, 1].

    >>> print(ndl.atanh(Tensor([0.0, 0.5])))
    [0.     0.5493]
    """

    function = "atanh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.8, 0.8, np.arctanh)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 / (1.0 - square(out.inputs[0]))


sin, cos, tan = map(export, (Sin, Cos, Tan))
asin, acos, atan, atan2 = map(export, (Asin, Acos, Atan, Atan2))
sinh, cosh, tanh, tanh_grad = map(export, (Sinh, Cosh, Tanh, TanhGrad))
asinh, acosh, atanh = map(export, (Asinh, Acosh, Atanh))

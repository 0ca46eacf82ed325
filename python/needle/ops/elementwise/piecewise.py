"""Activation functions made of other ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.op import promoted
from needle.ops.elementwise.activation import elu, leaky_relu, softplus
from needle.ops.elementwise.arithmetic import absolute, divide, less_equal, negative, where
from needle.ops.elementwise.logic import clip
from needle.ops.elementwise.trigonometry import tanh
from needle.ops.reduction.softmax import softmax
from needle.ops.shape.movement import reshape

if TYPE_CHECKING:
    from needle.tensors import Tensor

__all__ = [
    "celu", "hardshrink", "hardtanh", "log_sigmoid", "prelu", "relu6", "softmin", "softshrink",
    "tanhshrink", "threshold",
]  # fmt: skip


def hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x limited to [low, high]. See ``Clip``.

    >>> print(ndl.hardtanh(Tensor([-3.0, 0.5, 2.0])))
    [-1.   0.5  1. ]
    """
    return clip(x, low, high)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6). See ``Clip``.

    >>> print(ndl.relu6(Tensor([-1.0, 3.0, 8.0])))
    [0. 3. 6.]
    """
    return clip(x, 0.0, 6.0)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x where it is above a threshold, else a value.

    >>> print(ndl.threshold(Tensor([-1.0, 0.5, 2.0]), 1.0, 0.0))
    [0. 0. 2.]
    """
    return where(less_equal(x, threshold), value, x)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0.

    >>> print(ndl.hardshrink(Tensor([-1.0, 0.3, 2.0])))
    [-1.  0.  2.]
    """
    return where(less_equal(absolute(x), lambd), 0.0, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd; 0 where |x| <= lambd.

    Raises:
        OptionError: if lambd is negative.

    >>> print(ndl.softshrink(Tensor([-1.0, 0.3, 2.0])))
    [-0.5  0.   1.5]
    """
    size = real("softshrink: lambd", lambd)
    if not size >= 0:
        raise OptionError(f"softshrink: lambd is {lambd}\n  rule: 0 or more")
    (x,) = promoted((x,), "softshrink", floating=True)
    return where(less_equal(absolute(x), size), 0.0, x - clip(x, -size, size))


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x).

    >>> print(ndl.tanhshrink(Tensor([0.0, 2.0])))
    [0.    1.036]
    """
    (x,) = promoted((x,), "tanhshrink", floating=True)
    return x - tanh(x)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x / alpha) - 1); smooth for every alpha, unlike ``elu``.

    Raises:
        OptionError: if alpha is not positive.

    Source:   Barron, "Continuously Differentiable Exponential Linear Units", 2017, arXiv:1704.07483

    >>> print(ndl.celu(Tensor([-1.0, 2.0])))
    [-0.6321  2.    ]
    """
    alpha = real("celu: alpha", alpha)
    if not alpha > 0:
        raise OptionError(f"celu: alpha is {alpha}\n  rule: positive")
    return elu(divide(x, alpha)) * alpha


def softmin(x: Tensor, axis: int = -1) -> Tensor:
    """Positive numbers that add up to 1 along an axis: ``softmax`` of -x.

    >>> print(ndl.softmin(Tensor([1.0, 2.0])))
    [0.7311 0.2689]
    """
    return softmax(negative(x), axis)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where x > 0, else weight * x: ``leaky_relu`` with learned slopes.

    Shapes:   x [n, c, ...], weight [c] or [1] -> [n, c, ...]
    Gradient: x, weight; any order
    Raises:   ShapeError if weight is neither [1] nor [c]
    Source:   He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852

    >>> print(ndl.prelu(Tensor([[-2.0, 3.0]]), Tensor([0.25])))
    [[-0.5  3. ]]
    """
    shape, own = shape_of(x), shape_of(weight)
    channels = shape[1] if len(shape) > 1 else 1
    if own not in ((1,), (channels,)):
        raise explain(
            ShapeError, "prelu", f"weight has shape {own}, x {shape}",
            [("x", x), ("weight", weight)], "weight is [1], or [c] of x [n, c, ...]",
        )  # fmt: skip
    slopes = (1, channels, *(1,) * (len(shape) - 2)) if own != (1,) else (1,) * len(shape)
    return leaky_relu(x, reshape(weight, slopes))


def log_sigmoid(x: Tensor) -> Tensor:
    """Logarithm of the logistic function, without overflow: -softplus(-x).

    >>> print(ndl.log_sigmoid(Tensor([0.0, -100.0])))
    [  -0.6931 -100.    ]
    """
    return negative(softplus(negative(x)))

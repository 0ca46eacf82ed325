"""Activation functions of each element."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import executor
from needle.backend.axes import normalise_axis
from needle.errors import IndexRangeError, OptionError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import OUTPUT, export, promoted, widened
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, Samples, binary_samples, unary_samples, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    cast_like,
    greater,
    maximum,
    minimum,
    square,
    where,
)
from needle.ops.elementwise.functions import exp, expm1, sigmoid
from needle.ops.elementwise.logic import clip
from needle.ops.elementwise.trigonometry import cosh, tanh
from needle.ops.shape.rearrange import window

if TYPE_CHECKING:
    from needle.typing import Gradients, Numpy, Operand, Reference, Slope, Tensor

__all__ = [
    "ELU", "GELU", "GELUGrad", "GELUTanh", "GELUTanhGrad", "GLU", "HardSigmoid", "HardSwish",
    "LeakyReLU", "LeakyReLUGrad", "Mish", "ReLU", "ReLUGrad", "SELU", "SiLU", "SoftSign",
    "Softplus", "elu", "gelu", "gelu_tanh", "glu", "hardsigmoid", "hardswish", "leaky_relu",
    "mish", "relu", "relu_grad", "selu", "silu", "softplus", "softsign",
]  # fmt: skip

_erf = np.vectorize(math.erf, otypes=[float])


class ReLU(Elementwise):
    """Rectifier: max(x, 0); its derivative at 0 is 0.

    >>> print(ndl.relu(Tensor([-1.0, 0.0, 2.0])))
    [0. 0. 2.]
    """

    function = "relu"
    saves = ((OUTPUT,),)
    samples = unary_samples(0.1, 3, lambda x: np.maximum(x, 0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return greater(out, 0.0)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (relu_grad(out, out_grad),)


class ReLUGrad(Elementwise):
    """The gradient of the rectifier: y where x > 0, else 0. x may be its input or its output.

    >>> print(ops.relu_grad(Tensor([-1.0, 2.0]), Tensor([10.0, 10.0])))
    [ 0. 10.]
    """

    function = "relu_grad"
    saves = ((), (0,))
    samples = binary_samples(lambda x, y: np.where(x > 0, y, 0.0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return greater(out.inputs[0], 0.0) if i else 0.0

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        left, right = out.node.inputs
        grad = sum_to(relu_grad(out.inputs[0], out_grad), right.spec.shape) if right.needs else None
        return None, grad


class Softplus(Elementwise):
    """log(1 + exp(x)), without overflow."""

    function = "softplus"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, lambda x: np.logaddexp(x, 0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return sigmoid(out.inputs[0])


class _Smooth(Elementwise):
    """A function whose gradient is one too: the formula of its derivative would take many passes.

    Attributes:
        grad: the op of its gradient.
    """

    floating = True
    saves = ((0,),)
    grad: ClassVar[type[Elementwise]]

    @abstractmethod
    def bend(self, x: Any) -> Any:
        """Return the second derivative at x; 0, not NaN, at infinity."""

    def derivative(self, out: Tensor, i: int) -> Slope:
        return executor.apply(self.grad.of(), out.inputs[0], 1.0)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(self.grad.of(), out.inputs[0], out_grad),)


class _SmoothGrad(Elementwise):
    floating = True
    saves = ((0, 1), (0,))
    smooth: ClassVar[type[_Smooth]]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.smooth.grad = cls

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y = out.inputs
        return executor.apply(self, x, 1.0) if i else y * self.smooth.of().bend(x)


class SiLU(_Smooth):
    """x * sigmoid(x) (Elfwing et al., 2017; also called swish).

    >>> print(ndl.silu(Tensor([-1.0, 0.0, 2.0])))
    [-0.2689  0.      1.7616]
    """

    function = "silu"
    samples = unary_samples(-4, 4, lambda x: x / (1 + np.exp(-x)))

    def bend(self, x: Tensor) -> Tensor:
        x = clip(x, -1e3, 1e3)  # beyond it is 0
        gate, rest = sigmoid(x), sigmoid(-x)  # 1 - gate would be 0 where rest is not yet
        return gate * rest * (2.0 + x * (rest - gate))


def _silu_slope(x: Numpy) -> Numpy:
    gate = 1 / (1 + np.exp(-x))
    return gate * (1 + x * (1 - gate))


class SiLUGrad(_SmoothGrad):
    """The gradient of SiLU at x: y times its derivative."""

    function = "silu_grad"
    smooth = SiLU
    samples = binary_samples(lambda x, y: y * _silu_slope(x))


def _gelu(x: Numpy) -> Numpy:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _density(x: Tensor) -> Tensor:
    return exp(-0.5 * square(x)) * (1 / math.sqrt(2 * math.pi))


class GELU(_Smooth):
    """x times the normal distribution function of x (Hendrycks, Gimpel, 2016)."""

    function = "gelu"
    samples = unary_samples(-4, 4, _gelu)

    def bend(self, x: Tensor) -> Tensor:
        x = clip(x, -50.0, 50.0)  # beyond it is 0
        return _density(x) * (2.0 - square(x))


def _gelu_slope(x: Numpy) -> Numpy:
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * density


class GELUGrad(_SmoothGrad):
    """The gradient of GELU at x: y times its derivative."""

    function = "gelu_grad"
    smooth = GELU
    samples = binary_samples(lambda x, y: y * _gelu_slope(x))


_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(x: Numpy) -> Numpy:
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + _CUBIC * x**3)))


class GELUTanh(_Smooth):
    """GELU with the tanh approximation (Hendrycks, Gimpel, 2016, section 2).

    >>> print(ndl.gelu_tanh(Tensor([-1.0, 0.0, 2.0])))
    [-0.1588  0.      1.9546]
    """

    function = "gelu_tanh"
    samples = unary_samples(-4, 4, _gelu_tanh)

    def bend(self, x: Tensor) -> Tensor:
        x = clip(x, -10.0, 10.0)  # beyond it is less than 1e-34
        angle = _ROOT * (x + _CUBIC * x * square(x))
        inner = _ROOT * (1.0 + (3 * _CUBIC) * square(x))
        change = (3 * _CUBIC * _ROOT) * x - tanh(angle) * square(inner)
        return (inner + x * change) / square(cosh(angle))  # 1 - tanh^2 would be 0 too early


def _gelu_tanh_slope(x: Numpy) -> Numpy:
    turn = np.tanh(_ROOT * (x + _CUBIC * x**3))
    return 0.5 * (1 + turn) + 0.5 * x * (1 - turn**2) * _ROOT * (1 + 3 * _CUBIC * x**2)


class GELUTanhGrad(_SmoothGrad):
    """The gradient of GELUTanh at x: y times its derivative."""

    function = "gelu_tanh_grad"
    smooth = GELUTanh
    samples = binary_samples(lambda x, y: y * _gelu_tanh_slope(x))


def _beside_zero(number: float, reference: Reference, *seeds: int) -> list[Sample]:
    """Samples of x on either side of 0, a number, and further operands as x."""
    return [
        Sample(
            (
                uniform(shape, 0.1, 2.0) * sign,
                np.array(number),
                *(uniform(shape, seed=seed) for seed in seeds),
            ),
            (),
            reference,
        )
        for shape in ((3, 4), (), (2, 0))
        for sign in (1.0, -1.0)
    ]


class LeakyReLU(Elementwise):
    """Leaky rectifier: x where x > 0, else slope * x."""

    function = "leaky_relu"
    floating = True
    saves = ((0, 1), (0,))
    samples = staticmethod(lambda: _beside_zero(0.2, lambda x, y: np.where(x > 0, x, y * x)))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, slope = out.inputs
        return where(greater(x, 0.0), 1.0, slope) if i == 0 else minimum(x, 0.0)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        (x, slope), (left, right) = out.inputs, out.node.inputs
        grad = executor.apply(LeakyReLUGrad.of(), x, slope, out_grad) if left.needs else None
        return (
            grad if grad is None else sum_to(grad, left.spec.shape),
            sum_to(out_grad * minimum(x, 0.0), right.spec.shape) if right.needs else None,
        )


class LeakyReLUGrad(Elementwise):
    """The gradient of the leaky rectifier at x, y (the slope): z where x > 0, else y * z."""

    function = "leaky_relu_grad"
    floating = True
    saves = ((), (0, 2), (0, 1))
    samples = staticmethod(lambda: _beside_zero(0.2, lambda x, y, z: np.where(x > 0, z, y * z), 2))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, slope, z = out.inputs
        if i == 0:
            return 0.0
        return where(greater(x, 0.0), 0.0, z) if i == 1 else where(greater(x, 0.0), 1.0, slope)


class ELU(Elementwise):
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert et al., 2015)."""

    function = "elu"
    floating = True
    saves = ((0, 1), (0,))
    samples = staticmethod(
        lambda: _beside_zero(0.7, lambda x, y: np.where(x > 0, x, y * np.expm1(x)))
    )

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, alpha = out.inputs
        below = minimum(x, 0.0)
        return where(greater(x, 0.0), 1.0, alpha * exp(below)) if i == 0 else expm1(below)


# ---- made of others ----------------------------------------------------------------


class _Made(Composite):
    """A function of each element by its formula, in float32 where x is half precision."""

    promotes = "floating"
    saves = ((0,),)

    def expand(self, x: Tensor) -> Tensor:
        return cast_like(self.formula(widened(x)), x)

    @abstractmethod
    def formula(self, x: Any) -> Any:
        """Return the function at x."""


def _made_samples(reference: Reference, *kinks: float) -> Samples:
    """Return samples of a function of each element; its derivatives are not asked at kinks."""

    def samples() -> list[Sample]:
        values = np.linspace(-5.3, 5.1, 24)
        assert not np.isin(values, kinks).any()
        ends = np.array([*kinks, -200.0, 200.0, np.inf, np.nan])
        return [
            *[Sample((values.reshape(shape),), (), reference) for shape in ((24,), (4, 6))],
            *[Sample((uniform(shape),), (), reference) for shape in ((), (2, 0))],
            Sample((ends,), (), reference, gradient=False),
        ]

    return samples


def _mish(x: Numpy) -> Numpy:
    return x * np.tanh(np.logaddexp(x, 0))


class Mish(_Made):
    """x * tanh(softplus(x)) (Misra, 2019, arXiv:1908.08681).

    Shapes:   x [...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order

    >>> print(ndl.mish(Tensor([-1.0, 0.0, 2.0])))
    [-0.3034  0.      1.944 ]
    """

    samples = _made_samples(_mish)

    def formula(self, x: Tensor) -> Tensor:
        return maximum(x, -1e3) * tanh(softplus(x))  # not infinity times 0


_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805


class SELU(_Made):
    """Scaled ELU, under which signals keep mean 0 and variance 1.

        out = scale * (x if x > 0 else alpha * (exp(x) - 1)),  scale = 1.0507, alpha = 1.6733

    Shapes:   x [...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Source:   Klambauer et al., "Self-Normalizing Neural Networks", 2017, arXiv:1706.02515

    >>> print(ndl.selu(Tensor([-1.0, 1.0])))
    [-1.1113  1.0507]
    """

    called = "selu"
    samples = _made_samples(
        lambda x: _SCALE * np.where(x > 0, x, _ALPHA * np.expm1(np.minimum(x, 0))), 0.0
    )

    def formula(self, x: Tensor) -> Tensor:
        return _SCALE * elu(x, _ALPHA)


def _hard_sigmoid(x: Numpy) -> Numpy:
    return np.clip(x + 3, 0, 6) / 6


class HardSigmoid(_Made):
    """A sigmoid of three straight pieces: (x + 3) / 6, limited to [0, 1].

    Shapes:   x [...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order

    >>> print(ndl.hardsigmoid(Tensor([-4.0, 0.0, 1.5])))
    [0.   0.5  0.75]
    """

    called = "hardsigmoid"
    samples = _made_samples(_hard_sigmoid, -3.0, 3.0)

    def formula(self, x: Tensor) -> Tensor:
        return clip(x + 3.0, 0.0, 6.0) * (1 / 6)


class HardSwish(_Made):
    """x * hardsigmoid(x) (Howard et al., "Searching for MobileNetV3", 2019, arXiv:1905.02244).

    Shapes:   x [...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order

    >>> print(ndl.hardswish(Tensor([-1.0, 1.0, 4.0])))
    [-0.3333  0.6667  4.    ]
    """

    called = "hardswish"
    samples = _made_samples(lambda x: x * _hard_sigmoid(x), -3.0, 3.0)

    def formula(self, x: Tensor) -> Tensor:
        return x * clip(x + 3.0, 0.0, 6.0) * (1 / 6)


def _soft_sign(x: Numpy) -> Numpy:
    with np.errstate(invalid="ignore"):
        return x / (1 + np.abs(x))


class SoftSign(_Made):
    """x / (1 + |x|).

    Shapes:   x [...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order

    >>> print(ndl.softsign(Tensor([-1.0, 3.0])))
    [-0.5   0.75]
    """

    called = "softsign"
    samples = _made_samples(_soft_sign)

    def formula(self, x: Tensor) -> Tensor:
        return x / (1.0 + absolute(x))


def _gated(x: Numpy, axis: int) -> Numpy:
    first, gate = np.split(x, 2, axis)
    return first / (1 + np.exp(-gate))


class GLU(Composite):
    """Gated linear unit: the first half along an axis, times the sigmoid of the second.

    Shapes:   x [..., 2 n, ...] -> [..., n, ...]
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   ShapeError if the axis has an odd size; IndexRangeError if the axis is out of range
    Source:   Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2016,
              arXiv:1612.08083
    """

    called = "glu"
    axis: int = -1
    promotes = "floating"
    saves = ((0,),)
    samples = staticmethod(
        lambda: (
            [
                Sample((uniform(shape),), (axis,), lambda x, a=axis: _gated(x, a))
                for shape, axis in (
                    ((4,), 0),
                    ((3, 6), -1),
                    ((4, 3), 0),
                    ((2, 4, 3), 1),
                    ((2, 0), 1),
                )
            ]
            + [
                Sample((uniform((2, 3)),), (1,), raises=ShapeError),
                Sample((uniform((2, 4)),), (2,), raises=IndexRangeError),
            ]
        )
    )

    def expand(self, x: Tensor) -> Tensor:
        axis = normalise_axis(self.axis, len(shape_of(x)))
        if (size := shape_of(x)[axis]) % 2:
            raise explain(
                ShapeError, "glu", f"axis {axis} has size {size}", [("x", x)], "the size is even"
            )
        wide = widened(x)
        first, gate = (window(wide, axis, start, size // 2) for start in (0, size // 2))
        return cast_like(first * sigmoid(gate), x)


mish, selu, hardsigmoid, hardswish, softsign = map(
    export, (Mish, SELU, HardSigmoid, HardSwish, SoftSign)
)


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half along an axis, times the sigmoid of the second. See ``GLU``.

    >>> print(ndl.glu(Tensor([1.0, 2.0, 0.0, 100.0])))  # [1, 2] * sigmoid([0, 100])
    [0.5 2. ]
    """
    return executor.apply(GLU.of(axis), x)


relu, relu_grad, silu, gelu_tanh = map(export, (ReLU, ReLUGrad, SiLU, GELUTanh))
_softplus = export(Softplus)


def softplus(x: Any, beta: float = 1.0, threshold: float = math.inf) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow. See ``Softplus``.

    Args:
        x: a tensor.
        beta: how sharp the bend at 0 is.
        threshold: the result is x where beta * x is above it (in PyTorch 20 by default).

    Raises: OptionError if beta is not positive

    >>> print(ndl.softplus(Tensor([-1.0, 0.0, 100.0])))
    [  0.3133   0.6931 100.    ]
    """
    if type(beta) is type(threshold) is float and beta == 1 and threshold == math.inf:
        return _softplus(x)
    beta, threshold = real("softplus: beta", beta), real("softplus: threshold", threshold)
    if not 0 < beta < math.inf:
        raise OptionError(f"softplus: beta is {beta}\n  rule: positive")
    (x,) = promoted((x,), "softplus", floating=True)
    steep = widened(x) * beta
    bend = _softplus(steep) * (1 / beta)
    return where(greater(steep, threshold), x, cast_like(bend, x))


def gelu(x: Tensor, approximate: str | bool = "none") -> Tensor:
    """x times the normal distribution function of x. See ``GELU``.

    Args:
        x: a tensor.
        approximate: "none" or False; "tanh" or True for the approximation of ``GELUTanh``.

    Raises: OptionError for another approximation

    >>> print(ndl.gelu(Tensor([-1.0, 0.0, 2.0])))
    [-0.1587  0.      1.9545]
    """
    if approximate not in ("none", "tanh", False, True):
        raise unknown("gelu: approximate", str(approximate), ("none", "tanh"))
    return executor.apply((GELU if approximate in ("none", False) else GELUTanh).of(), x)


def leaky_relu(x: Tensor, slope: Operand = 0.01) -> Tensor:
    """x where x > 0, else slope * x. See ``LeakyReLU``.

    >>> print(ndl.leaky_relu(Tensor([-2.0, 3.0]), slope=0.1))
    [-0.2  3. ]
    """
    return executor.apply(LeakyReLU.of(), x, slope)


def elu(x: Tensor, alpha: Operand = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1). See ``ELU``.

    >>> print(ndl.elu(Tensor([-1.0, 2.0]), alpha=0.5))
    [-0.3161  2.    ]
    """
    return executor.apply(ELU.of(), x, alpha)

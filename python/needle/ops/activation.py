"""Activation functions of each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import executor
from needle.ops.base import OUTPUT, Composite, Elementwise, export, promoted, sum_to
from needle.ops.elementwise import greater, minimum, square, where
from needle.ops.functions import erf, exp, expm1, sigmoid, tanh
from needle.ops.samples import Sample, binary_samples, unary_samples, uniform

_erf = np.vectorize(math.erf, otypes=[float])


class ReLU(Elementwise):
    """Rectifier: max(x, 0); its derivative at 0 is 0."""

    function = "relu"
    saves = ((OUTPUT,),)
    samples = unary_samples(0.1, 3, lambda x: np.maximum(x, 0))

    def derivative(self, out: Any, i: int) -> Any:
        return greater(out, 0.0)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (relu_grad(out, out_grad),)


class ReLUGrad(Elementwise):
    """The gradient of the rectifier: y where x > 0, else 0. x may be its input or its output."""

    function = "relu_grad"
    saves = ((), (0,))
    samples = binary_samples(lambda x, y: np.where(x > 0, y, 0.0))

    def derivative(self, out: Any, i: int) -> Any:
        return greater(out.inputs[0], 0.0) if i else 0.0

    def gradient(self, out_grad: Any, out: Any) -> Any:
        left, right = out.node.inputs
        grad = sum_to(relu_grad(out.inputs[0], out_grad), right.spec.shape) if right.needs else None
        return None, grad


class Softplus(Elementwise):
    """log(1 + exp(x)), without overflow."""

    function = "softplus"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, lambda x: np.logaddexp(x, 0))

    def derivative(self, out: Any, i: int) -> Any:
        return sigmoid(out.inputs[0])


class SiLU(Elementwise):
    """x * sigmoid(x) (Elfwing et al., 2017; also called swish)."""

    function = "silu"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, lambda x: x / (1 + np.exp(-x)))

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        gate = sigmoid(x)
        return gate * (1.0 + x * (1.0 - gate))


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


class GELU(Elementwise):
    """x times the normal distribution function of x (Hendrycks, Gimpel, 2016)."""

    function = "gelu"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, _gelu)

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        density = exp(-0.5 * square(x)) * (1 / math.sqrt(2 * math.pi))
        return 0.5 * (1.0 + erf(x * math.sqrt(0.5))) + x * density


_ROOT = math.sqrt(2 / math.pi)


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3)))


class GELUTanh(Elementwise):
    """GELU with the tanh approximation (Hendrycks, Gimpel, 2016, section 2)."""

    function = "gelu_tanh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, _gelu_tanh)

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        bend = tanh(_ROOT * (x + 0.044715 * x * square(x)))
        slope = _ROOT * (1.0 + (3 * 0.044715) * square(x))
        return 0.5 * (1.0 + bend) + 0.5 * x * (1.0 - square(bend)) * slope


class LeakyReLU(Composite):
    """Leaky rectifier: x where x > 0, else slope * x."""

    called = "leaky_relu"

    slope: float = 0.01
    saves = ((0,),)
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape, 0.1, 2.0) * sign,), (0.2,), lambda x: np.where(x > 0, x, 0.2 * x)
            )
            for shape in ((3, 4), (), (2, 0))
            for sign in (1.0, -1.0)
        ]
    )

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return promoted(inputs, self.name, floating=True)

    def expand(self, x: Any) -> Any:
        return where(greater(x, 0.0), x, x * self.slope)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (where(greater(out.inputs[0], 0.0), out_grad, out_grad * self.slope),)


class ELU(Composite):
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert et al., 2015)."""

    alpha: float = 1.0
    saves = ((0,),)
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape, 0.1, 2.0) * sign,), (0.7,),
                lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
            )
            for shape in ((3, 4), (), (2, 0))
            for sign in (1.0, -1.0)
        ]
    )  # fmt: skip

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return promoted(inputs, self.name, floating=True)

    def expand(self, x: Any) -> Any:
        return where(greater(x, 0.0), x, self.alpha * expm1(minimum(x, 0.0)))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x = out.inputs[0]
        slope = where(greater(x, 0.0), 1.0, self.alpha * exp(minimum(x, 0.0)))
        return (out_grad * slope,)


relu, relu_grad, softplus = map(export, (ReLU, ReLUGrad, Softplus))
silu, gelu, gelu_tanh = map(export, (SiLU, GELU, GELUTanh))


def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    """x where x > 0, else slope * x. See ``LeakyReLU``."""
    return executor.apply(LeakyReLU.of(float(slope)), x)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha * (exp(x) - 1). See ``ELU``."""
    return executor.apply(ELU.of(float(alpha)), x)


def log_sigmoid(x: Any) -> Any:
    """Logarithm of the logistic function, without overflow: -softplus(-x)."""
    return -softplus(-x)

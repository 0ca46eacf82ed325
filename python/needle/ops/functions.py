"""Powers, exponentials, logarithms and trigonometry of each element.

Every class is one row of src/common/functions.def; its ``derivative`` serves reverse and forward
mode.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import executor, forward, graph
from needle.backend import kernels
from needle.backend.array import make_array, make_spec
from needle.backend.ndarray import full
from needle.dtype import DType, bool_, int16
from needle.errors import DtypeError, explain
from needle.ops.attributes import real
from needle.ops.base import OUTPUT, Elementwise, export, sum_to
from needle.ops.elementwise import (
    absolute,
    equal,
    greater,
    less,
    negative,
    sign,
    square,
    where,
)
from needle.ops.operands import cast, promoted, widened
from needle.ops.samples import Sample, binary_samples, unary_samples, uniform

# ---- powers, exponentials and logarithms -------------------------------------------


class Power(Elementwise):
    """Raise to a power: x ** y. 0 ** 0 is 1, and both of its derivatives are 0 there."""

    function = "power"
    saves = ((0, 1), (0, OUTPUT))
    samples = binary_samples(np.power, 0.5, 2.0, second=(-2.0, 3.0))

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        if i == 0:
            y = out.inputs[1]
            none = equal(y, 0.0)  # and no x ** -1, whose derivatives at 0 are infinite
            if forward.varies(y):  # else where x is a number too: 1 / x is the mixed derivative
                none = where(greater(absolute(x), 0.0), False, none)
            return where(none, 0.0, y) * x ** where(none, 0.0, y - 1.0)
        # at x = 0 out is 0, 1 or infinite: the derivative is 0, 0 or -infinite
        none = equal(x, 0.0)
        return out * where(none, 1.0 - out, log(where(none, 1.0, x)))


class Exp(Elementwise):
    """Exponential: e to the power x."""

    function = "exp"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-5, 5, np.exp)

    def derivative(self, out: Any, i: int) -> Any:
        return out


class Log(Elementwise):
    """Natural logarithm; -inf at 0, NaN below."""

    function = "log"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 / out.inputs[0]

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad / out.inputs[0],)  # one pass instead of two


class Sqrt(Elementwise):
    """Square root; NaN below 0."""

    function = "sqrt"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(0.1, 5, np.sqrt)

    def derivative(self, out: Any, i: int) -> Any:
        return 0.5 / out


class Rsqrt(Elementwise):
    """Reciprocal square root: 1 / sqrt(x)."""

    function = "rsqrt"
    floating = True
    saves = ((0, OUTPUT),)
    samples = unary_samples(0.1, 5, lambda x: 1 / np.sqrt(x))

    def derivative(self, out: Any, i: int) -> Any:
        return -0.5 * out / out.inputs[0]


class Exp2(Elementwise):
    """Two to the power x."""

    function = "exp2"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-5, 5, np.exp2)

    def derivative(self, out: Any, i: int) -> Any:
        return out * math.log(2)


class Expm1(Elementwise):
    """exp(x) - 1, accurate near 0."""

    function = "expm1"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-3, 3, np.expm1)

    def derivative(self, out: Any, i: int) -> Any:
        return out + 1.0


class Log2(Elementwise):
    """Logarithm to base 2; -inf at 0, NaN below."""

    function = "log2"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log2)

    def derivative(self, out: Any, i: int) -> Any:
        return (1 / math.log(2)) / out.inputs[0]


class Log10(Elementwise):
    """Logarithm to base 10; -inf at 0, NaN below."""

    function = "log10"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log10)

    def derivative(self, out: Any, i: int) -> Any:
        return (1 / math.log(10)) / out.inputs[0]


class Log1p(Elementwise):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""

    function = "log1p"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.5, 3, np.log1p)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 / (1.0 + out.inputs[0])

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad / (1.0 + out.inputs[0]),)


class LogAddExp(Elementwise):
    """log(exp(x) + exp(y)), without overflow."""

    function = "logaddexp"
    floating = True
    saves = ((0, 1, OUTPUT), (0, 1, OUTPUT))
    samples = binary_samples(np.logaddexp)

    def derivative(self, out: Any, i: int) -> Any:
        # a sum of nothing, exp(-inf) + exp(-inf), moves with none of its terms, as in logsumexp
        other = where(equal(out, -math.inf), 0.0, out.inputs[1 - i])
        return sigmoid(out.inputs[i] - other)


class Hypot(Elementwise):
    """Length of the vector (x, y): sqrt(x * x + y * y), without overflow."""

    function = "hypot"
    floating = True
    saves = ((0, OUTPUT), (1, OUTPUT))
    samples = binary_samples(np.hypot, 0.5, 2.0)

    def derivative(self, out: Any, i: int) -> Any:
        return out.inputs[i] / out


class CopySign(Elementwise):
    """The magnitude of x with the sign of y."""

    function = "copysign"
    floating = True
    saves = ((0, OUTPUT), ())
    samples = binary_samples(np.copysign, 0.5, 2.0)

    def derivative(self, out: Any, i: int) -> Any:
        return 0.0 if i else sign(out.inputs[0]) * sign(out)


class NextAfter(Elementwise):
    """The next floating number of its dtype after x towards y."""

    function = "nextafter"
    floating = True
    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample((uniform((3, 4), seed=1), uniform((4,), seed=2)), (), np.nextafter, None, False,
                   ("float64",)),
        ]
    )  # fmt: skip

    def setup(self) -> None:
        """Leave the native gate out: it would compute dtypes of 16 bits in float32."""

    def compute(self, x: Any, y: Any) -> Any:
        # in float32 the next number is so near that it is rounded to x again
        short = x.dtype is y.dtype and x.dtype.itemsize == 2
        return _next_of_16_bits(x, y) if short else super().compute(x, y)


def _next_of_16_bits(x: Any, y: Any) -> Any:
    """Return the next number after x towards y: bits of one sign count up with the magnitude."""
    run = kernels.elementwise

    def number(value: float, kind: DType = x.dtype) -> Any:
        return full((), value, kind, x.device)

    def relation(name: str, *arrays: Any) -> Any:
        return run(name, *arrays, dtype=bool_)

    def as_bits(z: Any, kind: DType) -> Any:
        return make_array(make_spec(kind, z.device, z.shape), z.handle, z.offset, z.strides)

    grows = relation("equal", relation("less", x, y), relation("greater", x, number(0.0)))
    step = run("where", grows, number(1, int16), number(-1, int16))
    moved = as_bits(run("add", as_bits(x, int16), step), x.dtype)
    smallest = as_bits(number(1, int16), x.dtype)
    moved = run("where", relation("equal", x, number(0.0)), run("copysign", smallest, y), moved)
    moved = run("where", relation("equal", x, y), y, moved)
    for z in (x, y):
        moved = run("where", relation("isnan", z), z, moved)
    return moved


# ---- trigonometry ------------------------------------------------------------------


class Sin(Elementwise):
    """Sine of an angle in radians."""

    function = "sin"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, np.sin)

    def derivative(self, out: Any, i: int) -> Any:
        return cos(out.inputs[0])


class Cos(Elementwise):
    """Cosine of an angle in radians."""

    function = "cos"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-4, 4, np.cos)

    def derivative(self, out: Any, i: int) -> Any:
        return -sin(out.inputs[0])


class Tan(Elementwise):
    """Tangent of an angle in radians."""

    function = "tan"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-1.2, 1.2, np.tan)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 + out * out


class Asin(Elementwise):
    """Inverse sine; NaN outside [-1, 1]."""

    function = "asin"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.9, 0.9, np.arcsin)

    def derivative(self, out: Any, i: int) -> Any:
        return rsqrt(1.0 - square(out.inputs[0]))


class Acos(Elementwise):
    """Inverse cosine; NaN outside [-1, 1]."""

    function = "acos"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.9, 0.9, np.arccos)

    def derivative(self, out: Any, i: int) -> Any:
        return -rsqrt(1.0 - square(out.inputs[0]))


class Atan(Elementwise):
    """Inverse tangent."""

    function = "atan"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.arctan)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 / (1.0 + square(out.inputs[0]))


class Atan2(Elementwise):
    """Angle of the point (y, x): atan(x / y) in the right quadrant; its derivative at 0 is 0."""

    function = "atan2"
    floating = True
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.arctan2, 0.5, 2.0, second=(-2.0, -0.5))

    def derivative(self, out: Any, i: int) -> Any:
        x, y = out.inputs
        return self._slope(x, y, self._squared(x, y), i)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x, y = out.inputs
        squared = self._squared(x, y)
        return tuple(
            sum_to(out_grad * self._slope(x, y, squared, i), node.spec.shape)
            if node.needs
            else None
            for i, node in enumerate(out.node.inputs)
        )

    @staticmethod
    def _squared(x: Any, y: Any) -> Any:
        squared = square(x) + square(y)
        return where(equal(squared, 0.0), 1.0, squared)

    @staticmethod
    def _slope(x: Any, y: Any, squared: Any, i: int) -> Any:
        return -x / squared if i else y / squared


class Sinh(Elementwise):
    """Hyperbolic sine."""

    function = "sinh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.sinh)

    def derivative(self, out: Any, i: int) -> Any:
        return cosh(out.inputs[0])


class Cosh(Elementwise):
    """Hyperbolic cosine."""

    function = "cosh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.cosh)

    def derivative(self, out: Any, i: int) -> Any:
        return sinh(out.inputs[0])


class Tanh(Elementwise):
    """Hyperbolic tangent."""

    function = "tanh"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-3, 3, np.tanh)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 - out * out

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (tanh_grad(out, out_grad),)


class TanhGrad(Elementwise):
    """The gradient of the hyperbolic tangent, of its output x: y * (1 - x * x)."""

    function = "tanh_grad"
    floating = True
    saves = ((0, 1), (0,))
    samples = binary_samples(lambda x, y: y * (1 - x * x))

    def derivative(self, out: Any, i: int) -> Any:
        x, y = out.inputs
        return 1.0 - x * x if i else -2.0 * x * y


class Asinh(Elementwise):
    """Inverse hyperbolic sine."""

    function = "asinh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.arcsinh)

    def derivative(self, out: Any, i: int) -> Any:
        return rsqrt(square(out.inputs[0]) + 1.0)


class Acosh(Elementwise):
    """Inverse hyperbolic cosine; NaN below 1."""

    function = "acosh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(1.2, 3, np.arccosh)

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        return rsqrt(x - 1.0) * rsqrt(x + 1.0)  # the product overflows, and hides its ends


class Atanh(Elementwise):
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""

    function = "atanh"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.8, 0.8, np.arctanh)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 / (1.0 - square(out.inputs[0]))


# ---- sigmoid and erf ---------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[float])


class Sigmoid(Elementwise):
    """Logistic function: 1 / (1 + exp(-x))."""

    function = "sigmoid"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-4, 4, lambda x: 1 / (1 + np.exp(-x)))

    def derivative(self, out: Any, i: int) -> Any:
        return out * (1.0 - out)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (sigmoid_grad(out, out_grad),)


class SigmoidGrad(Elementwise):
    """The gradient of the logistic function, of its output x: y * x * (1 - x)."""

    function = "sigmoid_grad"
    floating = True
    saves = ((0, 1), (0,))
    samples = binary_samples(lambda x, y: y * x * (1 - x))

    def derivative(self, out: Any, i: int) -> Any:
        x, y = out.inputs
        return x * (1.0 - x) if i else y * (1.0 - 2.0 * x)


class Erf(Elementwise):
    """Error function."""

    function = "erf"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, _erf)

    def derivative(self, out: Any, i: int) -> Any:
        return (2 / math.sqrt(math.pi)) * exp(-square(out.inputs[0]))


exp, exp2, expm1 = map(export, (Exp, Exp2, Expm1))
log, log2, log10, log1p = map(export, (Log, Log2, Log10, Log1p))
sqrt, rsqrt, hypot, logaddexp = map(export, (Sqrt, Rsqrt, Hypot, LogAddExp))
copysign, nextafter = map(export, (CopySign, NextAfter))
sin, cos, tan = map(export, (Sin, Cos, Tan))
asin, acos, atan, atan2 = map(export, (Asin, Acos, Atan, Atan2))
sinh, cosh, tanh, tanh_grad = map(export, (Sinh, Cosh, Tanh, TanhGrad))
asinh, acosh, atanh = map(export, (Asinh, Acosh, Atanh))
sigmoid, sigmoid_grad, erf = map(export, (Sigmoid, SigmoidGrad, Erf))


def logit(x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)): what ``sigmoid`` undoes; with eps of x limited to [eps, 1 - eps].

    float16 and bfloat16 are computed in float32.
    """
    (x,) = promoted((x,), "logit", floating=True)
    wide = widened(x)
    if eps is not None:
        low, high = real("logit: eps", eps), 1.0 - real("logit: eps", eps)
        wide = where(less(wide, low), low, where(greater(wide, high), high, wide))
    return cast(log(wide) - log1p(negative(wide)), x.spec.dtype)


def power(x: Any, y: Any) -> Any:
    """Raise to a power: x ** y. See ``Power``.

    Raises:
        DtypeError: for a negative whole number as exponent of integers.
    """
    if isinstance(y, int) and y < 0 and isinstance(x, graph.TensorBase):
        kind = x.spec.dtype
        if kind.kind != "f":
            raise explain(
                DtypeError, "power", f"{kind} to the power {y}", [("x", x)],
                "integers have no negative powers", f"x ** {float(y)}, which is floating",
            )  # fmt: skip
    return executor.apply(_power, x, y)


_power = Power.of()

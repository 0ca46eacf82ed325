"""Powers, exponentials, logarithms, the sigmoid and the error function of each element.

Every class is one row of src/common/functions.def; its ``derivative`` serves reverse and forward
mode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, forward, graph
from needle.backend import kernels
from needle.backend.array import make_array, make_spec
from needle.backend.ndarray import full
from needle.dtype import DType, bool_, int16
from needle.errors import DtypeError, explain
from needle.ops.core.attributes import real
from needle.ops.core.families import Elementwise
from needle.ops.core.op import OUTPUT, cast, export, promoted, widened
from needle.ops.core.samples import Sample, binary_samples, unary_samples, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    equal,
    greater,
    less,
    negative,
    sign,
    square,
    where,
)

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Operand, Slope, Tensor

__all__ = [
    "CopySign", "Erf", "Exp", "Exp2", "Expm1", "Hypot", "Log", "Log10", "Log1p", "Log2",
    "LogAddExp", "NextAfter", "Power", "Rsqrt", "Sigmoid", "SigmoidGrad", "Sqrt", "copysign",
    "erf", "exp", "exp2", "expm1", "hypot", "log", "log10", "log1p", "log2", "logaddexp",
    "logit", "nextafter", "power", "rsqrt", "sigmoid", "sigmoid_grad", "sqrt",
]  # fmt: skip

# ---- powers, exponentials and logarithms -------------------------------------------


class Power(Elementwise):
    """Raise to a power: x ** y. 0 ** 0 is 1, and both of its derivatives are 0 there."""

    function = "power"
    saves = ((0, 1), (0, OUTPUT))
    samples = binary_samples(np.power, 0.5, 2.0, second=(-2.0, 3.0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x = out.inputs[0]
        if i == 0:
            y = out.inputs[1]
            none = equal(y, 0.0)  # avoids x ** -1, whose derivatives at 0 are infinite
            if forward.varies(y):  # else where x is a number too: 1 / x is the mixed derivative
                none = where(greater(absolute(x), 0.0), False, none)
            return where(none, 0.0, y) * x ** where(none, 0.0, y - 1.0)
        # at x = 0 out is 0, 1 or infinite: the derivative is 0, 0 or -infinite
        none = equal(x, 0.0)
        return out * where(none, 1.0 - out, log(where(none, 1.0, x)))


class Exp(Elementwise):
    """Exponential: e to the power x.

    >>> print(ndl.exp(Tensor([0.0, 1.0])))
    [1.     2.7183]
    """

    function = "exp"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-5, 5, np.exp)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out


class Log(Elementwise):
    """Natural logarithm; -inf at 0, NaN below.

    >>> print(ndl.log(Tensor([1.0, 10.0])))
    [0.     2.3026]
    """

    function = "log"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 / out.inputs[0]

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad / out.inputs[0],)  # one pass instead of two


class Sqrt(Elementwise):
    """Square root; NaN below 0.

    >>> print(ndl.sqrt(Tensor([4.0, 9.0])))
    [2. 3.]
    """

    function = "sqrt"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(0.1, 5, np.sqrt)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 0.5 / out


class Rsqrt(Elementwise):
    """Reciprocal square root: 1 / sqrt(x).

    >>> print(ndl.rsqrt(Tensor([1.0, 4.0])))
    [1.  0.5]
    """

    function = "rsqrt"
    floating = True
    saves = ((0, OUTPUT),)
    samples = unary_samples(0.1, 5, lambda x: 1 / np.sqrt(x))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -0.5 * out / out.inputs[0]


class Exp2(Elementwise):
    """Two to the power x.

    >>> print(ndl.exp2(Tensor([0.0, 3.0])))
    [1. 8.]
    """

    function = "exp2"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-5, 5, np.exp2)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out * math.log(2)


class Expm1(Elementwise):
    """exp(x) - 1, accurate near 0.

    >>> print(ndl.expm1(Tensor([0.0, 1.0])))
    [0.     1.7183]
    """

    function = "expm1"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-3, 3, np.expm1)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out + 1.0


class Log2(Elementwise):
    """Logarithm to base 2; -inf at 0, NaN below.

    >>> print(ndl.log2(Tensor([1.0, 8.0])))
    [0. 3.]
    """

    function = "log2"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log2)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (1 / math.log(2)) / out.inputs[0]


class Log10(Elementwise):
    """Logarithm to base 10; -inf at 0, NaN below.

    >>> print(ndl.log10(Tensor([1.0, 100.0])))
    [0. 2.]
    """

    function = "log10"
    floating = True
    saves = ((0,),)
    samples = unary_samples(0.1, 5, np.log10)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (1 / math.log(10)) / out.inputs[0]


class Log1p(Elementwise):
    """log(1 + x), accurate near 0; -inf at -1, NaN below.

    >>> print(ndl.log1p(Tensor([0.0, 1.0])))
    [0.     0.6931]
    """

    function = "log1p"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-0.5, 3, np.log1p)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0 / (1.0 + out.inputs[0])

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad / (1.0 + out.inputs[0]),)


class LogAddExp(Elementwise):
    """log(exp(x) + exp(y)), without overflow.

    >>> print(ndl.logaddexp(Tensor([0.0, 1000.0]), Tensor([0.0, 1000.0])))
    [   0.6931 1000.6932]
    """

    function = "logaddexp"
    floating = True
    saves = ((0, 1, OUTPUT), (0, 1, OUTPUT))
    samples = binary_samples(np.logaddexp)

    def derivative(self, out: Tensor, i: int) -> Slope:
        # exp(-inf) + exp(-inf), an empty sum, does not depend on its terms, as in logsumexp
        other = where(equal(out, -math.inf), 0.0, out.inputs[1 - i])
        return sigmoid(out.inputs[i] - other)


class Hypot(Elementwise):
    """Length of the vector (x, y): sqrt(x * x + y * y), without overflow; its derivative at 0 is 0.

    >>> print(ndl.hypot(Tensor([3.0]), Tensor([4.0])))
    [5.]
    """

    function = "hypot"
    floating = True
    saves = ((0, OUTPUT), (1, OUTPUT))
    samples = binary_samples(np.hypot, 0.5, 2.0)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out.inputs[i] / where(equal(out, 0.0), math.inf, out)


class CopySign(Elementwise):
    """The magnitude of x with the sign of y.

    >>> print(ndl.copysign(Tensor([2.0, 3.0]), Tensor([-1.0, 1.0])))
    [-2.  3.]
    """

    function = "copysign"
    floating = True
    saves = ((0, OUTPUT), ())
    samples = binary_samples(np.copysign, 0.5, 2.0)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 0.0 if i else sign(out.inputs[0]) * sign(out)


class NextAfter(Elementwise):
    """The next floating number of its dtype after x towards y.

    >>> ops.nextafter(Tensor([1.0]), 2.0).item() - 1.0
    1.1920928955078125e-07
    """

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

    def compute(self, x: NDArray, y: NDArray) -> NDArray:
        # in float32 the next number is so near that it is rounded to x again
        short = x.dtype is y.dtype and x.dtype.itemsize == 2
        return _next_of_16_bits(x, y) if short else super().compute(x, y)


def _next_of_16_bits(x: NDArray, y: NDArray) -> NDArray:
    """Return the next number after x towards y: bits of one sign count up with the magnitude."""
    run = kernels.elementwise

    def number(value: float, kind: DType = x.dtype) -> NDArray:
        return full((), value, kind, x.device)

    def relation(name: str, *arrays: NDArray) -> NDArray:
        return run(name, *arrays, dtype=bool_)

    def as_bits(z: NDArray, kind: DType) -> NDArray:
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


# ---- sigmoid and erf ---------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[float])


class Sigmoid(Elementwise):
    """Logistic function: 1 / (1 + exp(-x)).

    >>> print(ndl.sigmoid(Tensor([-1.0, 0.0, 2.0])))
    [0.2689 0.5    0.8808]
    """

    function = "sigmoid"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-4, 4, lambda x: 1 / (1 + np.exp(-x)))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out * (1.0 - out)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (sigmoid_grad(out, out_grad),)


class SigmoidGrad(Elementwise):
    """The gradient of the logistic function, of its output x: y * x * (1 - x).

    >>> print(ops.sigmoid_grad(Tensor([0.5]), Tensor([2.0])))
    [0.5]
    """

    function = "sigmoid_grad"
    floating = True
    saves = ((0, 1), (0,))
    samples = binary_samples(lambda x, y: y * x * (1 - x))

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y = out.inputs
        return x * (1.0 - x) if i else y * (1.0 - 2.0 * x)


class Erf(Elementwise):
    """Error function.

    >>> print(ndl.erf(Tensor([0.0, 1.0])))
    [0.     0.8427]
    """

    function = "erf"
    floating = True
    saves = ((0,),)
    samples = unary_samples(-3, 3, _erf)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return (2 / math.sqrt(math.pi)) * exp(-square(out.inputs[0]))


exp, exp2, expm1 = map(export, (Exp, Exp2, Expm1))
log, log2, log10, log1p = map(export, (Log, Log2, Log10, Log1p))
sqrt, rsqrt, hypot, logaddexp = map(export, (Sqrt, Rsqrt, Hypot, LogAddExp))
copysign, nextafter = map(export, (CopySign, NextAfter))
sigmoid, sigmoid_grad, erf = map(export, (Sigmoid, SigmoidGrad, Erf))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of ``sigmoid``; with eps, x is first limited to [eps, 1 - eps].

    float16 and bfloat16 are computed in float32.

    >>> print(ndl.logit(Tensor([0.5, 0.9])))
    [0.     2.1972]
    """
    (x,) = promoted((x,), "logit", floating=True)
    wide = widened(x)
    if eps is not None:
        low, high = real("logit: eps", eps), 1.0 - real("logit: eps", eps)
        wide = where(less(wide, low), low, where(greater(wide, high), high, wide))
    return cast(log(wide) - log1p(negative(wide)), x.spec.dtype)


def power(x: Any, y: Operand) -> Tensor:
    """Raise to a power: x ** y. See ``Power``.

    Raises:
        DtypeError: for integers and a negative integer as exponent.

    >>> print(ndl.power(Tensor([1.0, 2.0, 3.0]), 2.0))
    [1. 4. 9.]
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

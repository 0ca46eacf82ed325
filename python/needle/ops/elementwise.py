"""Functions of each element. Every class is one row of src/common/functions.def.

``derivative(out, i)`` is the partial derivative with respect to input i; reverse and forward mode
both come from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import dtype, executor
from needle.ops.base import OUTPUT, Elementwise, cast, export, promoted, sum_to
from needle.ops.samples import Sample, binary_samples, unary_samples, uniform

# ---- arithmetic ----------------------------------------------------------------


class Add(Elementwise):
    """Add two tensors: x + y. Shapes broadcast."""

    function = "add"
    samples = binary_samples(np.add)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x, y = out.node.inputs
        return (
            sum_to(out_grad, x.spec.shape) if x.needs else None,
            sum_to(out_grad, y.spec.shape) if y.needs else None,
        )


class Subtract(Elementwise):
    """Subtract: x - y. Shapes broadcast."""

    function = "subtract"
    samples = binary_samples(np.subtract)

    def derivative(self, out: Any, i: int) -> Any:
        return -1.0 if i else 1.0

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x, y = out.node.inputs
        return (
            sum_to(out_grad, x.spec.shape) if x.needs else None,
            sum_to(-out_grad, y.spec.shape) if y.needs else None,
        )


class Multiply(Elementwise):
    """Multiply elementwise: x * y. Shapes broadcast."""

    function = "multiply"
    saves = ((1,), (0,))
    samples = binary_samples(np.multiply)

    def derivative(self, out: Any, i: int) -> Any:
        return out.inputs[1 - i]

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x, y = out.inputs
        left, right = out.node.inputs
        return (
            sum_to(out_grad * y, left.spec.shape) if left.needs else None,
            sum_to(out_grad * x, right.spec.shape) if right.needs else None,
        )


class Divide(Elementwise):
    """Divide: x / y. Integers are cast to the default float."""

    function = "divide"
    floating = True
    saves = ((1,), (1, OUTPUT))
    samples = binary_samples(np.divide, second=(0.5, 2.0))

    def derivative(self, out: Any, i: int) -> Any:
        y = out.inputs[1]
        return -out / y if i else 1.0 / y

    def gradient(self, out_grad: Any, out: Any) -> Any:
        left, right = out.node.inputs
        scaled = out_grad / out.inputs[1]
        return (
            sum_to(scaled, left.spec.shape) if left.needs else None,
            sum_to(-scaled * out, right.spec.shape) if right.needs else None,
        )


class Power(Elementwise):
    """Raise to a power: x ** y. 0 ** 0 is 1."""

    function = "power"
    saves = ((0, 1), (0, OUTPUT))
    samples = binary_samples(np.power, 0.5, 2.0, second=(-2.0, 3.0))

    def derivative(self, out: Any, i: int) -> Any:
        x = out.inputs[0]
        if i == 0:
            y = out.inputs[1]
            return where(equal(y, 0.0), 0.0, y * x ** (y - 1.0))
        return where(equal(out, 0.0), 0.0, out * log(x))


class Negative(Elementwise):
    """Negate: -x."""

    function = "negative"
    samples = unary_samples(-3, 3, np.negative)

    def derivative(self, out: Any, i: int) -> Any:
        return -1.0

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (-out_grad,)


class Square(Elementwise):
    """Square: x * x."""

    function = "square"
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.square)

    def derivative(self, out: Any, i: int) -> Any:
        return 2.0 * out.inputs[0]


class Abs(Elementwise):
    """Absolute value; its derivative at 0 is 0."""

    function = "abs"
    saves = ((0,),)
    samples = unary_samples(0.5, 3, np.abs)

    def derivative(self, out: Any, i: int) -> Any:
        return sign(out.inputs[0])


class Sign(Elementwise):
    """Sign: -1, 0 or 1."""

    function = "sign"
    saves = ((0,),)
    samples = unary_samples(0.5, 3, np.sign)

    def derivative(self, out: Any, i: int) -> Any:
        return 0.0 * out.inputs[0]


class Maximum(Elementwise):
    """The larger of two; NaN if one is. Where they are equal each gets half of the gradient."""

    function = "maximum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.maximum)

    def derivative(self, out: Any, i: int) -> Any:
        mine, other = out.inputs[i], out.inputs[1 - i]
        return 0.5 * (
            cast_like(greater(mine, other), out) + cast_like(greater_equal(mine, other), out)
        )


class Minimum(Elementwise):
    """The smaller of two; NaN if one is. Where they are equal each gets half of the gradient."""

    function = "minimum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.minimum)

    def derivative(self, out: Any, i: int) -> Any:
        mine, other = out.inputs[i], out.inputs[1 - i]
        below, equal_too = less(mine, other), less_equal(mine, other)
        return 0.5 * (cast_like(below, out) + cast_like(equal_too, out))


# ---- exponentials and logarithms -----------------------------------------------


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


# ---- activations ---------------------------------------------------------------


class Tanh(Elementwise):
    """Hyperbolic tangent."""

    function = "tanh"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-3, 3, np.tanh)

    def derivative(self, out: Any, i: int) -> Any:
        return 1.0 - out * out


class Sigmoid(Elementwise):
    """Logistic function: 1 / (1 + exp(-x))."""

    function = "sigmoid"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(-4, 4, lambda x: 1 / (1 + np.exp(-x)))

    def derivative(self, out: Any, i: int) -> Any:
        return out * (1.0 - out)


class ReLU(Elementwise):
    """Rectifier: max(x, 0); its derivative at 0 is 0."""

    function = "relu"
    saves = ((OUTPUT,),)
    samples = unary_samples(0.1, 3, lambda x: np.maximum(x, 0))

    def derivative(self, out: Any, i: int) -> Any:
        return cast_like(greater(out, 0.0), out)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (relu_grad(out, out_grad),)


class ReLUGrad(Elementwise):
    """The gradient of the rectifier: y where x > 0, else 0. x may be its input or its output."""

    function = "relu_grad"
    saves = ((), (0,))
    samples = binary_samples(lambda x, y: np.where(x > 0, y, 0.0))

    def derivative(self, out: Any, i: int) -> Any:
        x, y = out.inputs
        return cast_like(greater(x, 0.0), x) if i else 0.0 * x

    def gradient(self, out_grad: Any, out: Any) -> Any:
        left, right = out.node.inputs
        grad = sum_to(relu_grad(out.inputs[0], out_grad), right.spec.shape) if right.needs else None
        return None, grad


# ---- comparisons and choice ----------------------------------------------------


class _Comparison(Elementwise):
    result = dtype.bool_
    is_differentiable = False


class Equal(_Comparison):
    """Whether x == y, elementwise; bool."""

    function = "equal"
    samples = binary_samples(np.equal, gradient=False)


class NotEqual(_Comparison):
    """Whether x != y, elementwise; bool."""

    function = "not_equal"
    samples = binary_samples(np.not_equal, gradient=False)


class Less(_Comparison):
    """Whether x < y, elementwise; bool."""

    function = "less"
    samples = binary_samples(np.less, gradient=False)


class LessEqual(_Comparison):
    """Whether x <= y, elementwise; bool."""

    function = "less_equal"
    samples = binary_samples(np.less_equal, gradient=False)


class Greater(_Comparison):
    """Whether x > y, elementwise; bool."""

    function = "greater"
    samples = binary_samples(np.greater, gradient=False)


class GreaterEqual(_Comparison):
    """Whether x >= y, elementwise; bool."""

    function = "greater_equal"
    samples = binary_samples(np.greater_equal, gradient=False)


def _where_samples() -> list[Sample]:
    condition = uniform((3, 4)) > 0
    return [
        Sample((condition, uniform((3, 4), seed=1), uniform((3, 4), seed=2)), (), np.where),
        Sample((condition, uniform((4,), seed=1), uniform((), seed=2)), (), np.where),
        Sample((condition[:0], uniform((0, 4), seed=1), uniform((1, 4), seed=2)), (), np.where),
    ]


class Where(Elementwise):
    """Choose: x where condition (bool) is true, else y. Shapes broadcast."""

    function = "where"
    saves = ((), (0,), (0,))
    samples = staticmethod(_where_samples)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        condition, *rest = inputs
        chosen = promoted(tuple(rest), self.name)
        if executor.spec_of(condition).dtype is not dtype.bool_:
            condition = not_equal(condition, 0)
        return (condition, *chosen)

    def derivative(self, out: Any, i: int) -> Any:
        mask = cast_like(out.inputs[0], out)
        return 0.0 if i == 0 else mask if i == 1 else 1.0 - mask

    def gradient(self, out_grad: Any, out: Any) -> Any:
        nodes, condition = out.node.inputs, out.inputs[0]
        x, y = nodes[1], nodes[2]
        return (
            None,
            sum_to(where(condition, out_grad, 0.0), x.spec.shape) if x.needs else None,
            sum_to(where(condition, 0.0, out_grad), y.spec.shape) if y.needs else None,
        )


class BitwiseAnd(Elementwise):
    """Bits set in both; logical and for bool."""

    function = "bitwise_and"
    is_differentiable = False
    samples = staticmethod(
        lambda: [
            Sample((np.arange(12).reshape(3, 4), np.array(6)), (), np.bitwise_and, gradient=False)
        ]
    )


def cast_like(x: Any, like: Any) -> Any:
    """Return x in the dtype of another tensor."""
    return cast(x, executor.spec_of(like).dtype)


add, subtract, multiply, divide = map(export, (Add, Subtract, Multiply, Divide))
power, negative, square, sign = map(export, (Power, Negative, Square, Sign))
absolute, maximum, minimum = map(export, (Abs, Maximum, Minimum))
exp, log, sqrt, rsqrt = map(export, (Exp, Log, Sqrt, Rsqrt))
tanh, sigmoid, relu, relu_grad = map(export, (Tanh, Sigmoid, ReLU, ReLUGrad))
equal, not_equal, less, less_equal = map(export, (Equal, NotEqual, Less, LessEqual))
greater, greater_equal, where = map(export, (Greater, GreaterEqual, Where))
bitwise_and = export(BitwiseAnd)

"""Arithmetic, comparisons and choice of each element.

Every class is one row of src/common/functions.def.

``derivative(out, i)`` is the partial derivative with respect to input i; reverse and forward mode
both come from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor, graph
from needle.errors import ArgumentError
from needle.ops.core.attributes import real
from needle.ops.core.families import Elementwise
from needle.ops.core.op import OUTPUT, cast, export, promoted, widened
from needle.ops.core.operands import as_tensors, constant, default_float
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, binary_samples, integers, unary_samples, uniform

if TYPE_CHECKING:
    from needle.devices import Device
    from needle.typing import Gradients, Operand, Slope, Tensor

__all__ = [
    "Abs", "Add", "Divide", "Equal", "FloorDivide", "Greater", "GreaterEqual", "Less",
    "LessEqual", "Maximum", "Minimum", "Multiply", "Negative", "NotEqual", "Reciprocal",
    "Remainder", "Sign", "Square", "SquaredDifference", "SquaredDifferenceGrad", "Subtract",
    "Where", "absolute", "add", "addcdiv", "addcmul", "comparable", "divide", "equal",
    "floor_divide", "greater", "greater_equal", "heaviside", "lerp", "less", "less_equal",
    "maximum", "minimum", "multiply", "negative", "not_equal", "reciprocal", "remainder",
    "sign", "square", "squared_difference", "subtract", "where",
]  # fmt: skip

# ---- arithmetic ----------------------------------------------------------------


class Add(Elementwise):
    """Add two tensors: x + y. Shapes broadcast.

    >>> print(ndl.add(Tensor([1.0, 2.0]), 10.0))
    [11. 12.]
    """

    function = "add"
    samples = binary_samples(np.add)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 1.0

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, y = out.node.inputs
        return (
            sum_to(out_grad, x.spec.shape) if x.needs else None,
            sum_to(out_grad, y.spec.shape) if y.needs else None,
        )


class Subtract(Elementwise):
    """Subtract: x - y. Shapes broadcast.

    >>> print(ndl.subtract(Tensor([3.0, 4.0]), Tensor([1.0, 2.0])))
    [2. 2.]
    """

    function = "subtract"
    samples = binary_samples(np.subtract)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -1.0 if i else 1.0

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, y = out.node.inputs
        return (
            sum_to(out_grad, x.spec.shape) if x.needs else None,
            sum_to(-out_grad, y.spec.shape) if y.needs else None,
        )


class Multiply(Elementwise):
    """Multiply elementwise: x * y. Shapes broadcast.

    >>> print(ndl.multiply(Tensor([1.0, 2.0]), Tensor([3.0, 4.0])))
    [3. 8.]
    """

    function = "multiply"
    saves = ((1,), (0,))
    samples = binary_samples(np.multiply)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return out.inputs[1 - i]

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, y = out.inputs
        left, right = out.node.inputs
        return (
            sum_to(out_grad * y, left.spec.shape) if left.needs else None,
            sum_to(out_grad * x, right.spec.shape) if right.needs else None,
        )


class Divide(Elementwise):
    """Divide: x / y. Integers are cast to the default float.

    >>> print(ndl.divide(Tensor([1.0, 2.0]), Tensor([4.0, 4.0])))
    [0.25 0.5 ]
    """

    function = "divide"
    floating = True
    saves = ((1,), (1, OUTPUT))
    samples = binary_samples(np.divide, second=(0.5, 2.0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        y = out.inputs[1]
        return -out / y if i else 1.0 / y

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        left, right = out.node.inputs
        scaled = out_grad / out.inputs[1]
        return (
            sum_to(scaled, left.spec.shape) if left.needs else None,
            sum_to(-scaled * out, right.spec.shape) if right.needs else None,
        )


class Negative(Elementwise):
    """Negate: -x.

    >>> print(ndl.negative(Tensor([1.0, -2.0])))
    [-1.  2.]
    """

    function = "negative"
    samples = unary_samples(-3, 3, np.negative)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -1.0

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (-out_grad,)


class Square(Elementwise):
    """Square: x * x.

    >>> print(ndl.square(Tensor([-2.0, 3.0])))
    [4. 9.]
    """

    function = "square"
    saves = ((0,),)
    samples = unary_samples(-3, 3, np.square)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 2.0 * out.inputs[0]


class SquaredDifference(Elementwise):
    """Square of the difference: (x - y) ** 2. Shapes broadcast.

    >>> print(ops.squared_difference(Tensor([1.0, 5.0]), Tensor([3.0, 4.0])))
    [4. 1.]
    """

    function = "squared_difference"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(lambda x, y: np.square(np.subtract(x, y)))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return executor.apply(SquaredDifferenceGrad.of(), out.inputs[i], out.inputs[1 - i], 1.0)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        left, right = out.node.inputs
        slope = executor.apply(SquaredDifferenceGrad.of(), *out.inputs, out_grad)  # for both
        return (
            sum_to(slope, left.spec.shape) if left.needs else None,
            sum_to(-slope, right.spec.shape) if right.needs else None,
        )


def _near_squares() -> list[Sample]:
    return [
        Sample(
            tuple(uniform(shape, seed=seed) for seed, shape in enumerate(shapes)), (),
            lambda x, y, z: 2 * (x - y) * z,
        )
        for shapes in (((3, 4), (3, 4), (3, 4)), ((3, 1), (4,), ()), ((2, 0), (2, 0), ()))
    ]  # fmt: skip


class SquaredDifferenceGrad(Elementwise):
    """The gradient of the squared difference with respect to x: 2 * (x - y) * z."""

    function = "squared_difference_grad"
    floating = True
    saves = ((2,), (2,), (0, 1))
    samples = staticmethod(_near_squares)

    def derivative(self, out: Tensor, i: int) -> Slope:
        x, y, z = out.inputs
        return executor.apply(self, x, y, 1.0) if i == 2 else z * (-2.0 if i else 2.0)


class Abs(Elementwise):
    """Absolute value; its derivative at 0 is 0.

    >>> print(ndl.abs(Tensor([-2.0, 3.0])))
    [2. 3.]
    """

    function = "abs"
    saves = ((0,),)
    samples = unary_samples(0.5, 3, np.abs)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return sign(out.inputs[0])


class Reciprocal(Elementwise):
    """Reciprocal: 1 / x. Integers are cast to the default float.

    >>> print(ndl.reciprocal(Tensor([2.0, 4.0])))
    [0.5  0.25]
    """

    function = "reciprocal"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(0.5, 3, lambda x: 1 / x)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -out * out


class FloorDivide(Elementwise):
    """Divide and round down: floor(x / y). Integers by zero give 0; the derivative is 0.

    >>> print(ndl.floor_divide(Tensor([7, -7]), 2))
    [ 3. -4.]
    """

    function = "floor_divide"
    samples = binary_samples(np.floor_divide, second=(0.5, 2.0), gradient=False)

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 0.0


class Remainder(Elementwise):
    """Remainder of x / y rounded down, with the sign of y. Integers by zero give 0.

    >>> print(ndl.remainder(Tensor([7.0, -7.0]), 3.0))
    [1. 2.]
    """

    function = "remainder"
    saves = ((), (0, 1))
    samples = binary_samples(np.remainder, 0.1, 0.9, second=(1.0, 2.0))

    def derivative(self, out: Tensor, i: int) -> Slope:
        return -floor_divide(*out.inputs) if i else 1.0


class Maximum(Elementwise):
    """The larger of two; NaN if one is. Where they are equal each gets half of the gradient.

    >>> print(ndl.maximum(Tensor([1.0, 5.0]), Tensor([3.0, 4.0])))
    [3. 5.]
    """

    function = "maximum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.maximum)

    def derivative(self, out: Tensor, i: int) -> Slope:
        mine, other = out.inputs[i], out.inputs[1 - i]
        return greater(mine, other), equal(mine, other)


class Minimum(Elementwise):
    """The smaller of two; NaN if one is. Where they are equal each gets half of the gradient.

    >>> print(ndl.minimum(Tensor([1.0, 5.0]), Tensor([3.0, 4.0])))
    [1. 4.]
    """

    function = "minimum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.minimum)

    def derivative(self, out: Tensor, i: int) -> Slope:
        mine, other = out.inputs[i], out.inputs[1 - i]
        return less(mine, other), equal(mine, other)


# ---- steps: constant between jumps -----------------------------------------------


class Step(Elementwise):
    """A function that is constant between its jumps: its derivative is 0."""

    def derivative(self, out: Tensor, i: int) -> Slope:
        return 0.0


class Sign(Step):
    """Sign: -1, 0 or 1; NaN for NaN.

    >>> print(ndl.sign(Tensor([-2.0, 0.0, 3.0])))
    [-1.  0.  1.]
    """

    function = "sign"
    samples = unary_samples(0.5, 3, np.sign)


# ---- comparisons and choice -------------------------------------------------


class Comparison(Elementwise):
    """Compares elements of any dtype; the result is bool."""

    result = dtype.bool_
    accepts = "fiub"
    is_differentiable = False

    def prepare(self, inputs: tuple[Operand, ...]) -> tuple[Tensor, ...]:
        specs = [x.spec for x in inputs if isinstance(x, graph.TensorBase)]
        kinds = [spec.dtype for spec in specs if type(spec) is not tuple]
        if len(kinds) == 1 and kinds[0].kind in "iub":
            inputs = tuple(_within(x, kinds[0]) for x in inputs)
        return super().prepare(inputs)


def _within(x: Operand, kind: dtype.DType) -> Operand:
    """Return an integer beyond the range of a dtype as an infinity, which compares the same way.

    So comparisons with Python's integers are exact, as in NumPy.
    """
    if type(x) is int and not dtype.fits(x, dtype.scalar_dtype(x, kind)):
        return math.inf if x > 0 else -math.inf
    return x


class Equal(Comparison):
    """Whether x == y, elementwise; bool.

    >>> print(ndl.equal(Tensor([1.0, 2.0]), Tensor([1.0, 3.0])))
    [ True False]
    """

    function = "equal"
    samples = binary_samples(np.equal, gradient=False)


class NotEqual(Comparison):
    """Whether x != y, elementwise; bool.

    >>> print(ndl.not_equal(Tensor([1.0, 2.0]), Tensor([1.0, 3.0])))
    [False  True]
    """

    function = "not_equal"
    samples = binary_samples(np.not_equal, gradient=False)


class Less(Comparison):
    """Whether x < y, elementwise; bool.

    >>> print(ndl.less(Tensor([1.0, 2.0, 3.0]), 2.0))
    [ True False False]
    """

    function = "less"
    samples = binary_samples(np.less, gradient=False)


class LessEqual(Comparison):
    """Whether x <= y, elementwise; bool.

    >>> print(ndl.less_equal(Tensor([1.0, 2.0, 3.0]), 2.0))
    [ True  True False]
    """

    function = "less_equal"
    samples = binary_samples(np.less_equal, gradient=False)


class Greater(Comparison):
    """Whether x > y, elementwise; bool.

    >>> print(ndl.greater(Tensor([1.0, 2.0, 3.0]), 2.0))
    [False False  True]
    """

    function = "greater"
    samples = binary_samples(np.greater, gradient=False)


class GreaterEqual(Comparison):
    """Whether x >= y, elementwise; bool.

    >>> print(ndl.greater_equal(Tensor([1.0, 2.0, 3.0]), 2.0))
    [False  True  True]
    """

    function = "greater_equal"
    samples = binary_samples(np.greater_equal, gradient=False)


def _where_samples() -> list[Sample]:
    condition = uniform((3, 4)) > 0
    return [
        Sample((condition, uniform((3, 4), seed=1), uniform((3, 4), seed=2)), (), np.where),
        Sample((condition, uniform((4,), seed=1), uniform((), seed=2)), (), np.where),
        Sample((condition[:0], uniform((0, 4), seed=1), uniform((1, 4), seed=2)), (), np.where),
        *(  # all values but zero are true
            Sample((x, uniform((3, 4), seed=1), uniform((3, 4), seed=2)), (), np.where)
            for x in (uniform((3, 4), 0.2, 2.0) * condition, integers((3, 4), -1, 2))
        ),
    ]


class Where(Elementwise):
    """Choose: x where condition (bool) is true, else y. Shapes broadcast.

    >>> x = Tensor([-1.0, 2.0])
    >>> print(ndl.where(x > 0, x, 0.0))
    [0. 2.]
    """

    function = "where"
    saves = ((), (0,), (0,))
    samples = staticmethod(_where_samples)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(inputs) != 3:
            raise ArgumentError(f"where: expected 3 operands, got {len(inputs)}")
        condition, *rest = inputs
        if not isinstance(condition, graph.TensorBase) or type(condition.spec) is tuple:
            condition = as_tensors(inputs, self.name)[0]
        if all(isinstance(x, (bool, int, float)) for x in rest):
            rest[0] = self._as_tensor(rest, executor.spec_of(condition).device)
        chosen = promoted(tuple(rest), self.name)
        if executor.spec_of(condition).dtype is not dtype.bool_:
            condition = not_equal(condition, 0)
        return (condition, *chosen)

    @staticmethod
    def _as_tensor(numbers: Sequence[float], where: Device) -> Tensor:
        """Return the first of two numbers as a tensor of the dtype to which both promote."""
        kinds = {bool: dtype.bool_, int: dtype.int64}
        known = [kinds.get(type(x), default_float()) for x in numbers]
        widest = max(known, key=[dtype.bool_, dtype.int64, default_float()].index)
        return constant(numbers[0], widest, where)

    def derivative(self, out: Tensor, i: int) -> Slope:
        condition = out.inputs[0]
        return 0.0 if i == 0 else condition if i == 1 else equal(condition, False)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        nodes, condition = out.node.inputs, out.inputs[0]
        x, y = nodes[1], nodes[2]
        return (
            None,
            sum_to(where(condition, out_grad, 0.0), x.spec.shape) if x.needs else None,
            sum_to(where(condition, 0.0, out_grad), y.spec.shape) if y.needs else None,
        )


def cast_like(x: Any, like: Tensor) -> Tensor:
    """Return x in the dtype of another tensor."""
    return cast(x, executor.spec_of(like).dtype)


add, subtract, multiply, divide = map(export, (Add, Subtract, Multiply, Divide))
squared_difference = export(SquaredDifference)
negative, square, absolute, reciprocal = map(export, (Negative, Square, Abs, Reciprocal))
floor_divide, remainder = map(export, (FloorDivide, Remainder))
maximum, minimum, sign = map(export, (Maximum, Minimum, Sign))
equal, not_equal, less, less_equal = map(export, (Equal, NotEqual, Less, LessEqual))
greater, greater_equal, where = map(export, (Greater, GreaterEqual, Where))


def heaviside(x: Operand, values: Operand) -> Tensor:
    """Return 0 where x is below 0, 1 above, and values where it is 0; NaN for NaN.

    Gradient: values, where x is 0; that of x is 0

    >>> print(ndl.heaviside(Tensor([-1.0, 0.0, 1.0]), 0.5))
    [0.  0.5 1. ]
    """
    x, values = promoted((x, values), "heaviside")
    return where(equal(x, 0), values, maximum(sign(x), 0))


def lerp(x: Any, y: Tensor, weight: Operand) -> Tensor:
    """Interpolate between x and y: x + weight * (y - x), which is exactly y where the weight is 1.

    Shapes:   x, y and weight broadcast
    Gradient: x, y, weight; any order

    >>> print(ndl.lerp(Tensor([0.0, 10.0]), Tensor([4.0, 20.0]), 0.25))
    [ 1.  12.5]
    """
    if isinstance(weight, np.ndarray):
        x, y, weight = as_tensors((x, y, weight), "lerp")
    x, y = promoted((x, y), "lerp", floating=True)
    kind = x.spec.dtype
    x, y = widened(x), widened(y)  # half precision may have no number for the difference
    step = subtract(y, x)
    if isinstance(weight, graph.TensorBase):
        behind = subtract(y, step * subtract(1.0, weight))
        out = where(less(weight, 0.5), x + step * weight, behind)
        return cast(out, dtype.promote(weight.spec.dtype, kind) or kind)
    weight = real("lerp: weight", weight)
    return cast(x + step * weight if weight < 0.5 else y - step * (1.0 - weight), kind)


def addcmul(x: Any, y: Operand, z: Operand, *, value: float = 1.0) -> Tensor:
    """x + value * y * z; shapes broadcast.

    >>> print(ndl.addcmul(Tensor([1.0]), Tensor([2.0]), Tensor([3.0]), value=0.5))
    [4.]
    """
    value = real("addcmul: value", value)
    return add(x, multiply(y, z) if value == 1 else multiply(multiply(y, value), z))


def addcdiv(x: Any, y: Operand, z: Operand, *, value: float = 1.0) -> Tensor:
    """x + value * y / z; shapes broadcast.

    >>> print(ndl.addcdiv(Tensor([1.0]), Tensor([6.0]), Tensor([3.0]), value=0.5))
    [2.]
    """
    value = real("addcdiv: value", value)
    return add(x, divide(y if value == 1 else multiply(y, value), z))


def comparable(x: object) -> bool:
    """Return whether a tensor can be compared with x elementwise."""
    return isinstance(x, (bool, int, float, np.ndarray, np.generic, graph.TensorBase))

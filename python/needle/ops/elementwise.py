"""Arithmetic, rounding, comparisons and choice of each element.

Every class is one row of src/common/functions.def.

``derivative(out, i)`` is the partial derivative with respect to input i; reverse and forward mode
both come from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import dtype, executor, graph
from needle.backend.axes import whole
from needle.errors import ArgumentError, OptionError
from needle.ops.attributes import real
from needle.ops.base import OUTPUT, Elementwise, export, sum_to
from needle.ops.operands import as_tensors, cast, constant, default_float, promoted, widened
from needle.ops.samples import Sample, binary_samples, integers, unary_samples, uniform

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


class SquaredDifference(Elementwise):
    """Square of the difference: (x - y) ** 2. Shapes broadcast."""

    function = "squared_difference"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(lambda x, y: np.square(np.subtract(x, y)))

    def derivative(self, out: Any, i: int) -> Any:
        return executor.apply(SquaredDifferenceGrad.of(), out.inputs[i], out.inputs[1 - i], 1.0)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        left, right = out.node.inputs
        slope = executor.apply(SquaredDifferenceGrad.of(), *out.inputs, out_grad)  # once for both
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

    def derivative(self, out: Any, i: int) -> Any:
        x, y, z = out.inputs
        return executor.apply(self, x, y, 1.0) if i == 2 else z * (-2.0 if i else 2.0)


class Abs(Elementwise):
    """Absolute value; its derivative at 0 is 0."""

    function = "abs"
    saves = ((0,),)
    samples = unary_samples(0.5, 3, np.abs)

    def derivative(self, out: Any, i: int) -> Any:
        return sign(out.inputs[0])


class Reciprocal(Elementwise):
    """Reciprocal: 1 / x. Integers are cast to the default float."""

    function = "reciprocal"
    floating = True
    saves = ((OUTPUT,),)
    samples = unary_samples(0.5, 3, lambda x: 1 / x)

    def derivative(self, out: Any, i: int) -> Any:
        return -out * out


class FloorDivide(Elementwise):
    """Divide and round down: floor(x / y). Integers by zero give 0; the derivative is 0."""

    function = "floor_divide"
    samples = binary_samples(np.floor_divide, second=(0.5, 2.0), gradient=False)

    def derivative(self, out: Any, i: int) -> Any:
        return 0.0


class Remainder(Elementwise):
    """Remainder of x / y rounded down, with the sign of y. Integers by zero give 0."""

    function = "remainder"
    saves = ((), (0, 1))
    samples = binary_samples(np.remainder, 0.1, 0.9, second=(1.0, 2.0))

    def derivative(self, out: Any, i: int) -> Any:
        return -floor_divide(*out.inputs) if i else 1.0


class Maximum(Elementwise):
    """The larger of two; NaN if one is. Where they are equal each gets half of the gradient."""

    function = "maximum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.maximum)

    def derivative(self, out: Any, i: int) -> Any:
        mine, other = out.inputs[i], out.inputs[1 - i]
        return greater(mine, other), equal(mine, other)


class Minimum(Elementwise):
    """The smaller of two; NaN if one is. Where they are equal each gets half of the gradient."""

    function = "minimum"
    saves = ((0, 1), (0, 1))
    samples = binary_samples(np.minimum)

    def derivative(self, out: Any, i: int) -> Any:
        mine, other = out.inputs[i], out.inputs[1 - i]
        return less(mine, other), equal(mine, other)


# ---- steps: constant between jumps -----------------------------------------------


class _Step(Elementwise):
    def derivative(self, out: Any, i: int) -> Any:
        return 0.0


class Sign(_Step):
    """Sign: -1, 0 or 1; NaN of NaN."""

    function = "sign"
    samples = unary_samples(0.5, 3, np.sign)


class _Rounding(_Step):
    def compute(self, x: Any) -> Any:
        return x if x.dtype.kind != "f" else super().compute(x)


class Floor(_Rounding):
    """Round down. Integers stay as they are."""

    function = "floor"
    samples = unary_samples(0.1, 0.9, np.floor)


class Ceil(_Rounding):
    """Round up. Integers stay as they are."""

    function = "ceil"
    samples = unary_samples(0.1, 0.9, np.ceil)


class Round(_Rounding):
    """Round to the nearest integer, halves to the even one. Integers stay as they are."""

    function = "round"
    samples = unary_samples(0.6, 1.4, np.rint)


class Trunc(_Rounding):
    """Round towards zero. Integers stay as they are."""

    function = "trunc"
    samples = unary_samples(0.1, 0.9, np.trunc)


# ---- comparisons and choice -------------------------------------------------


class Comparison(Elementwise):
    """Compares elements of any dtype; the result is bool."""

    result = dtype.bool_
    accepts = "fiub"
    is_differentiable = False

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        specs = [x.spec for x in inputs if isinstance(x, graph.TensorBase)]
        kinds = [spec.dtype for spec in specs if type(spec) is not tuple]
        if len(kinds) == 1 and kinds[0].kind in "iub":
            inputs = tuple(_within(x, kinds[0]) for x in inputs)
        return super().prepare(inputs)


def _within(x: Any, kind: dtype.DType) -> Any:
    """Return an integer beyond those of a dtype as the infinity that compares with them as it does.

    So comparisons with Python's integers are exact, as NumPy's.
    """
    if type(x) is int and not dtype.fits(x, dtype.scalar_dtype(x, kind)):
        return math.inf if x > 0 else -math.inf
    return x


class Equal(Comparison):
    """Whether x == y, elementwise; bool."""

    function = "equal"
    samples = binary_samples(np.equal, gradient=False)


class NotEqual(Comparison):
    """Whether x != y, elementwise; bool."""

    function = "not_equal"
    samples = binary_samples(np.not_equal, gradient=False)


class Less(Comparison):
    """Whether x < y, elementwise; bool."""

    function = "less"
    samples = binary_samples(np.less, gradient=False)


class LessEqual(Comparison):
    """Whether x <= y, elementwise; bool."""

    function = "less_equal"
    samples = binary_samples(np.less_equal, gradient=False)


class Greater(Comparison):
    """Whether x > y, elementwise; bool."""

    function = "greater"
    samples = binary_samples(np.greater, gradient=False)


class GreaterEqual(Comparison):
    """Whether x >= y, elementwise; bool."""

    function = "greater_equal"
    samples = binary_samples(np.greater_equal, gradient=False)


def _where_samples() -> list[Sample]:
    condition = uniform((3, 4)) > 0
    return [
        Sample((condition, uniform((3, 4), seed=1), uniform((3, 4), seed=2)), (), np.where),
        Sample((condition, uniform((4,), seed=1), uniform((), seed=2)), (), np.where),
        Sample((condition[:0], uniform((0, 4), seed=1), uniform((1, 4), seed=2)), (), np.where),
        *(  # what is not zero is true
            Sample((x, uniform((3, 4), seed=1), uniform((3, 4), seed=2)), (), np.where)
            for x in (uniform((3, 4), 0.2, 2.0) * condition, integers((3, 4), -1, 2))
        ),
    ]


class Where(Elementwise):
    """Choose: x where condition (bool) is true, else y. Shapes broadcast."""

    function = "where"
    saves = ((), (0,), (0,))
    samples = staticmethod(_where_samples)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(inputs) != 3:
            raise ArgumentError(f"where: takes 3 operands, {len(inputs)} were given")
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
    def _as_tensor(numbers: Sequence[float], where: Any) -> Any:
        """Return the first of two numbers in the dtype that both have without any tensor."""
        kinds = {bool: dtype.bool_, int: dtype.int64}
        known = [kinds.get(type(x), default_float()) for x in numbers]
        widest = max(known, key=[dtype.bool_, dtype.int64, default_float()].index)
        return constant(numbers[0], widest, where)

    def derivative(self, out: Any, i: int) -> Any:
        condition = out.inputs[0]
        return 0.0 if i == 0 else condition if i == 1 else equal(condition, False)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        nodes, condition = out.node.inputs, out.inputs[0]
        x, y = nodes[1], nodes[2]
        return (
            None,
            sum_to(where(condition, out_grad, 0.0), x.spec.shape) if x.needs else None,
            sum_to(where(condition, 0.0, out_grad), y.spec.shape) if y.needs else None,
        )


def cast_like(x: Any, like: Any) -> Any:
    """Return x in the dtype of another tensor."""
    return cast(x, executor.spec_of(like).dtype)


add, subtract, multiply, divide = map(export, (Add, Subtract, Multiply, Divide))
squared_difference = export(SquaredDifference)
negative, square, absolute, reciprocal = map(export, (Negative, Square, Abs, Reciprocal))
floor_divide, remainder = map(export, (FloorDivide, Remainder))
maximum, minimum, sign = map(export, (Maximum, Minimum, Sign))
floor, ceil, trunc = map(export, (Floor, Ceil, Trunc))
equal, not_equal, less, less_equal = map(export, (Equal, NotEqual, Less, LessEqual))
greater, greater_equal, where = map(export, (Greater, GreaterEqual, Where))


def round(x: Any, decimals: int = 0) -> Any:
    """Round to so many decimals, halves to the even digit; below 0 to tens, hundreds and so on.

    As NumPy: by way of ``x * 10 ** decimals``, in float32 for float16 and bfloat16. See ``Round``.

    Raises:
        ArgumentError: if decimals are no whole number.
        OptionError: if 10 ** decimals is beyond the dtype, or x are integers and decimals below 0.
    """
    if type(decimals) is int and decimals == 0:
        return executor.apply(Round.of(), x)
    decimals, (x,) = whole("round: decimals", decimals), as_tensors((x,), "round")
    kind = executor.spec_of(x).dtype
    if kind.kind != "f" and decimals >= 0:
        return executor.apply(Round.of(), x)
    limit = 0 if kind.kind != "f" else 300 if kind is dtype.float64 else 30
    if abs(decimals) > limit:
        raise OptionError(
            f"round: {decimals} decimals of {kind}\n  rule: from {-limit} to {limit}"
            + ("" if limit else "; integers are whole as they are\n  try: x.astype('float64')")
        )
    wide = widened(x)
    scale = 10.0 ** abs(decimals)
    out = round(wide * scale) / scale if decimals > 0 else round(wide / scale) * scale
    return cast(out, kind)


def frac(x: Any) -> Any:
    """Return what is behind the point, with the sign of x: x - trunc(x)."""
    return subtract(x, trunc(x))


def heaviside(x: Any, values: Any) -> Any:
    """Return 0 where x is below 0, 1 above, and values where it is 0; NaN of NaN.

    Gradient: values, where x is 0; that of x is 0
    """
    x, values = promoted((x, values), "heaviside")
    return where(equal(x, 0), values, maximum(sign(x), 0))


def lerp(x: Any, y: Any, weight: Any) -> Any:
    """Return what lies between x and y: x + weight * (y - x), which is y where the weight is 1.

    Shapes:   x, y and weight broadcast
    Gradient: x, y, weight; any order
    """
    if isinstance(weight, np.ndarray):
        x, y, weight = as_tensors((x, y, weight), "lerp")
    x, y = promoted((x, y), "lerp", floating=True)
    step = subtract(y, x)
    if isinstance(weight, graph.TensorBase):
        behind = subtract(y, step * subtract(1.0, weight))
        return where(less(weight, 0.5), x + step * weight, behind)
    weight = real("lerp: weight", weight)
    return x + step * weight if weight < 0.5 else y - step * (1.0 - weight)


def addcmul(x: Any, y: Any, z: Any, *, value: float = 1.0) -> Any:
    """x + value * y * z; shapes broadcast."""
    return add(x, multiply(y, z) if value == 1 else multiply(multiply(y, value), z))


def addcdiv(x: Any, y: Any, z: Any, *, value: float = 1.0) -> Any:
    """x + value * y / z; shapes broadcast."""
    return add(x, divide(y if value == 1 else multiply(y, value), z))


def comparable(x: Any) -> bool:
    """Return whether a tensor can be compared with x elementwise."""
    return isinstance(x, (bool, int, float, np.ndarray, np.generic, graph.TensorBase))

"""Systems of equations, determinants and lengths of matrices.

They are computed by LAPACK, through NumPy, on the host, whatever the device; float16 and bfloat16
in float32. Gradients are matrix formulas made of other ops (Giles, "An extended collection of
matrix derivative results for forward and reverse mode algorithmic differentiation", 2008).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import executor
from needle.backend import kernels, ndarray
from needle.backend.ndarray import broadcast_shapes
from needle.errors import ShapeError, SingularError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import either, flag, operand_count, real
from needle.ops.core.op import OUTPUT, Op, promoted, widened
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import (
    absolute,
    cast_like,
    equal,
    greater,
    less,
    maximum,
    not_equal,
    where,
)
from needle.ops.elementwise.logic import logical_and
from needle.ops.linalg.matmul import matmul
from needle.ops.reduction.euclidean import euclidean
from needle.ops.reduction.reduce import amax, amin, normalised, summation
from needle.ops.shape.diagonals import tril, triu
from needle.ops.shape.movement import reshape, squeeze, stop_gradient, turned, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Axes, Gradients, NDArray, Numpy, Tensor, TensorTuple

__all__ = [
    "Determinant", "Inverse", "LogDeterminant", "Solve", "SolveTriangular", "det", "inv",
    "norm", "normalize", "slogdet", "solve", "solve_triangular",
]  # fmt: skip

Shape = tuple[int, ...]
EXACT = ("float64", "float32")


def regular(shape: Shape, seed: int = 0) -> Numpy:
    """Return well-conditioned matrices."""
    return uniform(shape, seed=seed) + 4 * np.eye(shape[-1])


_SHAPES = ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3))
BAD = [Sample((np.ones(shape),), raises=ShapeError) for shape in ((3,), (3, 4))]
_SINGULAR = Sample((np.ones((2, 2)),), raises=SingularError, by_value=True)


def square_samples(matrices: Any, reference: Any) -> list[Sample]:
    """Return samples of a function of square matrices."""
    good = [Sample((matrices(s),), (), reference, dtypes=EXACT) for s in _SHAPES]
    return [*good, *BAD]


class OnHost(Op):
    """A function of matrices that NumPy computes; ``shapes`` gives the shapes of the results."""

    square: ClassVar[bool] = True
    promotes = "floating"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.takes = operand_count(cls.evaluate)

    def shapes(self, *given: Any) -> tuple[Shape, ...]:
        """Return the shapes of the results."""
        raise NotImplementedError

    def evaluate(self, *values: Any) -> Any:
        """Return the results of NumPy arrays: one, or a tuple."""
        raise NotImplementedError

    def compute(self, *arrays: NDArray) -> NDArray | tuple[NDArray, ...]:
        kernels.same_device(self.name, *arrays)
        first = arrays[0]
        shape = first.shape
        if len(shape) < 2 or (self.square and shape[-1] != shape[-2]):
            rule = f"{'square ' if self.square else ''}matrices are the last two axes"
            raise explain(ShapeError, self.name, f"shape {shape}", [("x", first)], rule)
        results = self.shapes(*[x.shape for x in arrays])
        if not kernels.has_values(first):
            made = tuple(ndarray.empty(s, first.dtype, first.device) for s in results)
        else:
            found = self._evaluated(arrays)
            made = tuple(ndarray.array(part, first.dtype, first.device) for part in found)
        return made if len(made) > 1 else made[0]

    def _evaluated(self, arrays: tuple[NDArray, ...]) -> tuple[Numpy, ...]:
        wide = np.float32 if arrays[0].dtype.itemsize == 2 else arrays[0].dtype.numpy
        try:
            with np.errstate(all="ignore"):
                found = self.evaluate(*[x.numpy().astype(wide, copy=False) for x in arrays])
        except np.linalg.LinAlgError as error:
            named = list(zip(("x", "y"), arrays, strict=False))
            raise explain(SingularError, self.name, str(error).lower(), named) from None
        return found if isinstance(found, tuple) else (found,)


# ---- systems and determinants ------------------------------------------------------


class Inverse(OnHost):
    """The inverse of matrices.

    Shapes:   x [..., n, n] -> [..., n, n]
    Gradient: x; any order
    Raises:   ShapeError if x is not square; SingularError if a matrix has no inverse
    """

    called = "inv"
    saves = ((OUTPUT,),)
    samples = staticmethod(lambda: [*square_samples(regular, np.linalg.inv), _SINGULAR])

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        return (x,)

    def evaluate(self, x: Numpy) -> Numpy:
        return np.linalg.inv(x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        across = turned(out)
        return (-matmul(matmul(across, out_grad), across),)


def _solved(name: str, a: Shape, b: Shape) -> tuple[Shape, ...]:
    if len(b) < 2 or b[-2] != a[-1]:
        raise ShapeError(f"{name}: a has shape {a}, b {b}\n  rule: a [..., n, n], b [..., n, m]")
    return ((*broadcast_shapes(name, a[:-2], b[:-2]), *b[-2:]),)


def _answers(a: Numpy, b: Numpy) -> Numpy:
    """Return NumPy's solution of a @ x = b for matrices b.

    NumPy before 2 takes b for vectors where it has one axis less than a.
    """
    return np.linalg.solve(a, b[None] if b.ndim == a.ndim - 1 else b)


class Solve(OnHost):
    """The solution of a @ x = b for matrices b.

    Shapes:   a [..., n, n], b [..., n, m] -> [..., n, m]; the leading axes broadcast
    Gradient: a, b; any order
    Raises:   ShapeError if the shapes do not fit; SingularError if a matrix has no inverse
    """

    saves = ((0, OUTPUT), (0,))
    samples = staticmethod(
        lambda: [
            *[
                Sample((regular(a), uniform(b, seed=1)), (), _answers, dtypes=EXACT)
                for a, b in (((3, 3), (3, 2)), ((2, 3, 3), (3, 3)), ((2, 2), (3, 2, 1)),
                             ((3, 3), (3, 0)))
            ],
            Sample((uniform((3, 3)), uniform((2, 3))), raises=ShapeError),
            Sample((uniform((3, 3)), uniform((3,))), raises=ShapeError),
            Sample((uniform((3,)), uniform((3,))), raises=ShapeError),
            Sample((np.ones((2, 2)), uniform((2, 1))), raises=SingularError, by_value=True),
        ]
    )  # fmt: skip

    def shapes(self, a: Shape, b: Shape) -> tuple[Shape, ...]:
        return _solved(self.name, a, b)

    def evaluate(self, a: Numpy, b: Numpy) -> Numpy:
        return _answers(a, b)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        nodes = out.node.inputs
        grad_b = solve(turned(out.inputs[0]), out_grad)
        grad_a = -matmul(grad_b, turned(out)) if nodes[0].needs else None
        return (
            None if grad_a is None else sum_to(grad_a, nodes[0].spec.shape),
            sum_to(grad_b, nodes[1].spec.shape) if nodes[1].needs else None,
        )


_LEAF = 32
"""Triangles of up to this many rows are solved like any matrix."""


def _substituted(a: Numpy, b: Numpy, upper: bool, unit: bool) -> Numpy:
    """Solve a triangle half by half: the first half's solution changes the other's right side."""
    n = a.shape[-1]
    if n <= _LEAF:
        small = _triangle(a, upper, unit)
        few = b.shape[-1] <= n  # else a product with the inverse takes a third of the time
        return _answers(small, b) if few else np.linalg.inv(small) @ b
    first, last = slice(n // 2), slice(n // 2, n)
    if upper:
        first, last = last, first
    x = _substituted(a[..., first, first], b[..., first, :], upper, unit)
    rest = b[..., last, :] - a[..., last, first] @ x
    y = _substituted(a[..., last, last], rest, upper, unit)
    return np.concatenate((y, x) if upper else (x, y), -2)


class SolveTriangular(OnHost):
    """The solution of a @ x = b for a triangular matrix a, by substitution, block by block.

    Blocks of 32 rows on the diagonal are solved by LAPACK, or inverted if b has more columns.

    The other triangle of a is not read, and neither is its diagonal if ``unit`` is true.

    Shapes:   a [..., n, n], b [..., n, m] -> [..., n, m]; the leading axes broadcast
    Gradient: a, b; any order
    Raises:   ShapeError if the shapes do not fit; SingularError if there is a 0 on the diagonal
    """

    upper: bool = False
    unit: bool = False
    saves = ((0, OUTPUT), (0,))
    samples = staticmethod(
        lambda: [
            *[
                Sample(
                    (regular(a), uniform(b, seed=1)), options,
                    lambda a, b, o=options: _answers(_triangle(a, *o), b),
                    dtypes=EXACT,
                )
                for a, b, options in (
                    ((3, 3), (3, 2), (False, False)), ((2, 3, 3), (3, 4), (True, False)),
                    ((2, 2), (3, 2, 1), (False, True)), ((3, 3), (3, 0), (True, True)),
                    ((0, 3, 3), (0, 3, 1), ()),
                )
            ],
            Sample((uniform((3, 3)), uniform((2, 3))), raises=ShapeError),
            Sample((uniform((3,)), uniform((3,))), raises=ShapeError),
            Sample((np.triu(np.ones((2, 2)), 1), uniform((2, 1))), raises=SingularError,
                   by_value=True),
        ]
    )  # fmt: skip

    def shapes(self, a: Shape, b: Shape) -> tuple[Shape, ...]:
        return _solved(self.name, a, b)

    def evaluate(self, a: Numpy, b: Numpy) -> Numpy:
        return _substituted(a, b, self.upper, self.unit)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        nodes = out.node.inputs
        turned_back = SolveTriangular.of(not self.upper, self.unit)
        grad_b = executor.apply(turned_back, turned(out.inputs[0]), out_grad)
        grad_a = None
        if nodes[0].needs:
            whole = -sum_to(matmul(grad_b, turned(out)), nodes[0].spec.shape)
            grad_a = triu(whole, int(self.unit)) if self.upper else tril(whole, -int(self.unit))
        return grad_a, sum_to(grad_b, nodes[1].spec.shape) if nodes[1].needs else None


def _triangle(a: Numpy, upper: bool = False, unit: bool = False) -> Numpy:
    """Return one triangle of NumPy matrices, with ones on its diagonal if ``unit``."""
    if unit:
        return (np.triu(a, 1) if upper else np.tril(a, -1)) + np.eye(a.shape[-1], dtype=a.dtype)
    return np.triu(a) if upper else np.tril(a)


class Determinant(OnHost):
    """The determinant of matrices.

    Shapes:   x [..., n, n] -> [...]
    Gradient: x, where it has an inverse; any order
    Raises:   ShapeError if x is not square
    """

    called = "det"
    saves = ((0, OUTPUT),)
    samples = staticmethod(lambda: square_samples(regular, np.linalg.det))

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        return (x[:-2],)

    def evaluate(self, x: Numpy) -> Numpy:
        return np.linalg.det(x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (turned(inv(out.inputs[0])) * _spread(out_grad * out),)


class LogDeterminant(OnHost):
    """The sign of the determinant of matrices, and the logarithm of its absolute value.

    Shapes:   x [..., n, n] -> two of [...]
    Gradient: x, where it has an inverse; any order
    Raises:   ShapeError if x is not square
    """

    called = "slogdet"
    saves = ((0,),)
    samples = staticmethod(lambda: square_samples(regular, np.linalg.slogdet))

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        return x[:-2], x[:-2]

    def evaluate(self, x: Numpy) -> tuple[Numpy, ...]:
        return tuple(np.linalg.slogdet(x))

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        if out_grad[1] is None:
            return (None,)
        return (turned(inv(out.inputs[0])) * _spread(out_grad[1]),)


def _spread(x: Tensor) -> Tensor:
    """Return x with two axes of size 1 at the end."""
    return reshape(x, (*shape_of(x), 1, 1))


# ---- functions -----------------------------------------------------------------------


def norm(
    x: Tensor, ord: float | str = 2, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None
) -> Tensor:
    """Length of vectors: (sum |x| ** ord) ** (1 / ord) over axes, all for None.

    The elements over several axes count as one vector, so ord 2 is the Frobenius norm of a matrix.
    The gradient at 0 is 0, as in PyTorch. float16 and bfloat16 are summed in float32; integers
    become floats.

    Args:
        x: a tensor.
        ord: a number; inf gives the largest |x|, -inf the smallest, 0 the number of elements that
            are not zero. "fro" and None mean 2.
        axes: one or several.
        keepdims: whether to keep the axes, with size 1.
        axis: another name for axes.

    Raises:
        OptionError: if ord is another str.

    >>> print(ndl.norm(Tensor([3.0, 4.0])))
    5.0
    >>> print(ndl.norm(Tensor([[3.0, 4.0], [6.0, 8.0]]), axis=1))
    [ 5. 10.]
    """
    axes = either(axes, axis)
    (x,) = promoted((x,), "norm", floating=True)
    if isinstance(ord, str) and ord != "fro":
        raise unknown("norm: ord", ord, ("fro",))
    ord = 2 if ord is None or isinstance(ord, str) else ord
    ord = real("norm: ord", ord)
    if ord == 0:
        return cast_like(summation(not_equal(x, 0), axes, keepdims), x)
    wide = widened(x)
    if ord == 2:
        return cast_like(euclidean(wide, axes, keepdims), x)
    size = absolute(wide)
    if math.isinf(ord):
        out = (amax if ord > 0 else amin)(size, axes, keepdims)
    elif ord == 1:
        out = summation(size, axes, keepdims)
    else:
        unit = _unit(size, ord, normalised(x, axes))
        total = summation(_power_of_some(size / unit, ord), axes, keepdims)
        out = _power_of_some(total, 1 / ord) * reshape(unit, shape_of(total))
    return cast_like(out, x)


def _unit(size: Tensor, ord: float, axes: tuple[int, ...]) -> Tensor:
    """Return the size that rules each vector's norm; of multiples of it no power overflows."""
    if not size.spec.size:
        return summation(size, axes, keepdims=True) + 1.0
    most = (amax if ord > 0 else amin)(stop_gradient(size), axes, keepdims=True)
    return where(logical_and(greater(most, 0.0), less(most, math.inf)), most, 1.0)


def normalize(x: Tensor, ord: float | str = 2, axis: int = -1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along an axis by their length, or by eps where they are shorter. See ``norm``.

    float16 and bfloat16 are computed in float32, which holds eps.

    Shapes:   x [..., n, ...] -> the same
    Raises:   OptionError if ord is another str

    >>> print(ndl.normalize(Tensor([[3.0, 4.0], [0.0, 2.0]])))
    [[0.6 0.8]
     [0.  1. ]]
    """
    (x,) = promoted((x,), "normalize", floating=True)
    wide = widened(x)
    return cast_like(wide / maximum(norm(wide, ord, axis, True), real("normalize: eps", eps)), x)


def _power_of_some(x: Tensor, exponent: float) -> Tensor:
    """Return x ** exponent; its derivative at 0 is 0, as for a length."""
    none = equal(x, 0)
    return where(none, 0 if exponent > 0 else math.inf, where(none, 1, x) ** exponent)


def inv(x: Tensor) -> Tensor:
    """The inverse of matrices. See ``Inverse``.

    >>> print(ops.inv(Tensor([[2.0, 0.0], [0.0, 4.0]])))
    [[0.5  0.  ]
     [0.   0.25]]
    """
    return executor.apply(Inverse.of(), x)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The solution of a @ x = b for matrices b, or a vector b. See ``Solve``.

    >>> print(ops.solve(Tensor([[2.0, 0.0], [1.0, 1.0]]), Tensor([4.0, 5.0])))
    [2. 3.]
    """
    if len(shape_of(b)) != 1:
        return executor.apply(Solve.of(), a, b)
    out = executor.apply(Solve.of(), a, unsqueeze(b, -1))
    return reshape(out, shape_of(out)[:-1])


def solve_triangular(
    a: Any, b: Any, *, upper: bool = False, left: bool = True, unit: bool = False
) -> Any:
    """The solution of a @ x = b for a triangular matrix a, and matrices b or a vector b.

    Args:
        a: square matrices; only one triangle is read.
        b: the right sides.
        upper: whether it is the upper triangle.
        left: whether to solve a @ x = b; else x @ a = b.
        unit: whether to read the diagonal as ones.

    See ``SolveTriangular``.

    >>> print(ops.solve_triangular(Tensor([[2.0, 0.0], [1.0, 1.0]]), Tensor([[4.0], [5.0]])))
    [[2.]
     [3.]]
    """
    a, b = promoted((a, b), "solve_triangular", floating=True)
    upper, left, unit = (
        flag(f"solve_triangular: {name}", value)
        for name, value in (("upper", upper), ("left", left), ("unit", unit))
    )
    if len(shape_of(b)) == 1:
        column = unsqueeze(b, -1) if left else unsqueeze(b, -2)
        out = solve_triangular(a, column, upper=upper, left=left, unit=unit)
        return squeeze(out, -1 if left else -2)
    if not left:
        return turned(solve_triangular(turned(a), turned(b), upper=not upper, unit=unit))
    return executor.apply(SolveTriangular.of(upper, unit), a, b)


def det(x: Tensor) -> Tensor:
    """The determinant of matrices. See ``Determinant``.

    >>> round(ops.det(Tensor([[1.0, 2.0], [3.0, 5.0]])).item(), 4)
    -1.0
    """
    return executor.apply(Determinant.of(), x)


def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the determinant and the logarithm of its absolute value.

    >>> sign, logarithm = ops.slogdet(Tensor([[0.0, 2.0], [2.0, 0.0]]))
    >>> sign.item(), round(logarithm.item(), 4)
    (-1.0, 1.3863)
    """
    sign, logarithm = executor.several(LogDeterminant.of(), x)
    return sign, logarithm

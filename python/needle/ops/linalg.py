"""Systems of equations, determinants and factorizations of matrices.

They are computed by LAPACK, through NumPy, on the host, whatever the device; float16 and bfloat16
in float32. Gradients are matrix formulas made of other ops (Giles, "An extended collection of
matrix derivative results for forward and reverse mode algorithmic differentiation", 2008; Murray,
"Differentiation of the Cholesky decomposition", 2016, arXiv:1602.07527). QR and the singular value
decomposition have none: ``backward`` through them raises GradientError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from needle import executor
from needle.backend import kernels, ndarray
from needle.backend.ndarray import broadcast_shapes
from needle.errors import ArgumentError, ShapeError, SingularError, explain, unknown
from needle.executor import shape_of
from needle.ops.attributes import Axes, either
from needle.ops.base import OUTPUT, Op, sum_to
from needle.ops.creation import eye
from needle.ops.elementwise import (
    absolute,
    cast_like,
    equal,
    not_equal,
    square,
    where,
)
from needle.ops.matmul import matmul
from needle.ops.movement import reshape, turned, unsqueeze
from needle.ops.operands import promoted
from needle.ops.rearrange import tril
from needle.ops.reduce import amax, amin, summation
from needle.ops.samples import Sample, uniform
from needle.ops.scan import root
from needle.ops.softmax import widened

Shape = tuple[int, ...]
_EXACT = ("float64", "float32")


def _regular(shape: Shape, seed: int = 0) -> Any:
    """Return well-conditioned matrices."""
    return uniform(shape, seed=seed) + 4 * np.eye(shape[-1])


def _symmetric(shape: Shape) -> Any:
    """Return symmetric matrices with eigenvalues well apart, all positive."""
    x = uniform(shape, -0.5, 0.5)
    return x + np.swapaxes(x, -1, -2) + np.diag(3.0 + 2.0 * np.arange(shape[-1]))


_SHAPES = ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3))
_BAD = [Sample((uniform((3,)),), raises=ShapeError), Sample((uniform((3, 4)),), raises=ShapeError)]
_SINGULAR = Sample((np.ones((2, 2)),), raises=SingularError, by_value=True)


def _square_samples(matrices: Any, reference: Any) -> list[Sample]:
    good = [Sample((matrices(s),), (), reference, dtypes=_EXACT) for s in _SHAPES]
    return [*good, *_BAD]


class _OnHost(Op):
    """A function of matrices that NumPy computes: ``shapes`` says what comes out of what."""

    square: ClassVar[bool] = True

    operands: ClassVar[int] = 1

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(inputs) != self.operands:
            raise ArgumentError(f"{self.name}: takes {self.operands} operands, not {len(inputs)}")
        return promoted(inputs, self.name, floating=True)

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        """Return the shapes of the results."""
        raise NotImplementedError

    def evaluate(self, *values: Any) -> Any:
        """Return the results of NumPy arrays: one, or a tuple."""
        raise NotImplementedError

    def compute(self, *arrays: Any) -> Any:
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

    def _evaluated(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        wide = np.float32 if arrays[0].dtype.itemsize == 2 else arrays[0].dtype.numpy
        try:
            with np.errstate(all="ignore"):
                found = self.evaluate(*[x.numpy().astype(wide, copy=False) for x in arrays])
        except np.linalg.LinAlgError as error:
            named = list(zip(("x", "y"), arrays, strict=False))
            raise explain(SingularError, self.name, str(error).lower(), named) from None
        return found if isinstance(found, tuple) else (found,)


# ---- systems and determinants ------------------------------------------------------


class Inverse(_OnHost):
    """The inverse of matrices.

    Shapes:   x [..., n, n] -> [..., n, n]
    Gradient: x; any order
    Raises:   ShapeError if x is not square; SingularError if a matrix has no inverse
    """

    called = "inv"
    saves = ((OUTPUT,),)
    samples = staticmethod(lambda: [*_square_samples(_regular, np.linalg.inv), _SINGULAR])

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        return (given[0],)

    def evaluate(self, *values: Any) -> Any:
        return np.linalg.inv(*values)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        across = turned(out)
        return (-matmul(matmul(across, out_grad), across),)


class Solve(_OnHost):
    """The solution of a @ x = b for matrices b.

    Shapes:   a [..., n, n], b [..., n, m] -> [..., n, m]; the leading axes broadcast
    Gradient: a, b; any order
    Raises:   ShapeError if the shapes do not fit; SingularError if a matrix has no inverse
    """

    operands = 2
    saves = ((0, OUTPUT), (0,))
    samples = staticmethod(
        lambda: [
            *[
                Sample((_regular(a), uniform(b, seed=1)), (), np.linalg.solve, dtypes=_EXACT)
                for a, b in (((3, 3), (3, 2)), ((2, 3, 3), (3, 4)), ((2, 2), (3, 2, 1)),
                             ((3, 3), (3, 0)))
            ],
            Sample((uniform((3, 3)), uniform((2, 3))), raises=ShapeError),
            Sample((uniform((3, 3)), uniform((3,))), raises=ShapeError),
            Sample((uniform((3,)), uniform((3,))), raises=ShapeError),
            Sample((np.ones((2, 2)), uniform((2, 1))), raises=SingularError, by_value=True),
        ]
    )  # fmt: skip

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        a, b = given
        if len(b) < 2 or b[-2] != a[-1]:
            raise ShapeError(f"solve: a has shape {a}, b {b}\n  rule: a [..., n, n], b [..., n, m]")
        return ((*broadcast_shapes("solve", a[:-2], b[:-2]), *b[-2:]),)

    def evaluate(self, *values: Any) -> Any:
        return np.linalg.solve(*values)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        nodes = out.node.inputs
        grad_b = solve(turned(out.inputs[0]), out_grad)
        grad_a = -matmul(grad_b, turned(out)) if nodes[0].needs else None
        return (
            None if grad_a is None else sum_to(grad_a, nodes[0].spec.shape),
            sum_to(grad_b, nodes[1].spec.shape) if nodes[1].needs else None,
        )


class Determinant(_OnHost):
    """The determinant of matrices.

    Shapes:   x [..., n, n] -> [...]
    Gradient: x, where it has an inverse; any order
    Raises:   ShapeError if x is not square
    """

    called = "det"
    saves = ((0, OUTPUT),)
    samples = staticmethod(lambda: _square_samples(_regular, np.linalg.det))

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        return (given[0][:-2],)

    def evaluate(self, *values: Any) -> Any:
        return np.linalg.det(*values)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (turned(inv(out.inputs[0])) * _spread(out_grad * out),)


class LogDeterminant(_OnHost):
    """The sign of the determinant of matrices, and the logarithm of its absolute value.

    Shapes:   x [..., n, n] -> two of [...]
    Gradient: x, where it has an inverse; any order
    Raises:   ShapeError if x is not square
    """

    called = "slogdet"
    saves = ((0,),)
    samples = staticmethod(lambda: _square_samples(_regular, np.linalg.slogdet))

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        return given[0][:-2], given[0][:-2]

    def evaluate(self, *values: Any) -> Any:
        return tuple(np.linalg.slogdet(*values))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        if out_grad[1] is None:
            return (None,)
        return (turned(inv(out.inputs[0])) * _spread(out_grad[1]),)


def _spread(x: Any) -> Any:
    """Return x with two axes of size 1 at the end."""
    return reshape(x, (*shape_of(x), 1, 1))


# ---- factorizations ----------------------------------------------------------------


def _of_lower(grad: Any) -> Any:
    """Return the gradient for a lower triangle from that for a symmetric matrix."""
    n = shape_of(grad)[-1]
    doubled = tril(grad + turned(grad))
    return doubled - grad * eye(n, dtype=grad.spec.dtype, device=grad.spec.device)


def _cholesky(x: Any) -> Any:
    return np.linalg.cholesky(np.tril(x) + np.swapaxes(np.tril(x, -1), -1, -2))


class Cholesky(_OnHost):
    """The lower triangular factor of symmetric positive definite matrices: x = out @ out.T.

    Only the lower triangle of x is read.

    Shapes:   x [..., n, n] -> [..., n, n]
    Gradient: the lower triangle of x; any order
    Raises:   ShapeError if x is not square; SingularError if a matrix is not positive definite
    """

    saves = ((OUTPUT,),)
    samples = staticmethod(
        lambda: [
            *_square_samples(_symmetric, _cholesky),
            Sample((-np.eye(2),), raises=SingularError, by_value=True),
        ]
    )

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        return (given[0],)

    def evaluate(self, *values: Any) -> Any:
        return np.linalg.cholesky(*values)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        lower = tril(out)
        inner = tril(matmul(turned(lower), tril(out_grad)))
        n = shape_of(inner)[-1]
        half = inner - 0.5 * inner * eye(n, dtype=inner.spec.dtype, device=inner.spec.device)
        left = solve(turned(lower), half)
        grad = turned(solve(turned(lower), turned(left)))
        return (_of_lower(0.5 * (grad + turned(grad))),)


def _eigh(x: Any) -> Any:
    return tuple(np.linalg.eigh(x))


def _where_finite(function: Callable[[Any], Any], x: Any) -> tuple[Any, ...]:
    """Decompose matrices; those with a NaN or an infinity, where LAPACK may never end, give NaN."""
    finite = np.isfinite(x).all((-2, -1))
    if finite.all():
        return tuple(function(x))
    whole = finite[..., None, None]
    parts = [np.array(part) for part in function(np.where(whole, x, x.dtype.type(0)))]
    for part in parts:
        part[~finite] = np.nan
    return tuple(parts)


class Eigh(_OnHost):
    """Eigenvalues, in ascending order, and eigenvectors (columns) of symmetric matrices.

    Only the lower triangle of x is read. Gradients of the vectors need distinct eigenvalues.

    Shapes:   x [..., n, n] -> [..., n], [..., n, n]
    Gradient: the lower triangle of x; any order
    Raises:   ShapeError if x is not square

    All is NaN of a matrix that is not finite there.
    """

    saves = ((OUTPUT,),)
    samples = staticmethod(lambda: _square_samples(_symmetric, _eigh))

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        return given[0][:-1], given[0]

    def evaluate(self, *values: Any) -> Any:
        (x,) = values
        return _where_finite(np.linalg.eigh, np.tril(x))  # which reads no more of it

    def gradient(self, out_grad: Any, out: Any) -> Any:
        values, vectors = out[0], out[1]
        n = shape_of(values)[-1]
        one = eye(n, dtype=values.spec.dtype, device=values.spec.device)
        inner: Any = 0.0
        if out_grad[0] is not None:
            inner = one * unsqueeze(out_grad[0], -1)
        if out_grad[1] is not None:
            apart = unsqueeze(values, -2) - unsqueeze(values, -1) + one
            turn = matmul(turned(vectors), out_grad[1])
            inner = inner + turn * (1.0 - one) / apart
        grad = matmul(matmul(vectors, inner), turned(vectors))
        return (_of_lower(0.5 * (grad + turned(grad))),)


class QR(_OnHost):
    """Orthogonal columns and an upper triangle whose product x is; no gradient.

    Shapes:   x [..., m, n] -> [..., m, k], [..., k, n]; k = min(m, n), or m if complete
    Raises:   ShapeError if x has fewer than two axes
    """

    called = "qr"
    complete: bool = False
    square = False
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape),), (complete,),
                lambda x, c=complete: tuple(np.linalg.qr(x, "complete" if c else "reduced")),
                dtypes=_EXACT, gradient=False,
            )
            for shape, complete in (((4, 3), False), ((4, 3), True), ((2, 2, 4), False))
        ]
        + _BAD[:1]
    )  # fmt: skip

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        *stack, m, n = given[0]
        k = m if self.complete else min(m, n)
        return (*stack, m, k), (*stack, k, n)

    def evaluate(self, *values: Any) -> Any:
        (x,) = values
        return tuple(np.linalg.qr(x, "complete" if self.complete else "reduced"))


class SVD(_OnHost):
    """Singular value decomposition: x = u @ diag(s) @ vh, s in descending order; no gradient.

    Shapes:   x [..., m, n] -> [..., m, i], [..., k], [..., j, n]; k = min(m, n); i and j are k,
              or m and n if full
    Raises:   ShapeError if x has fewer than two axes

    All is NaN of a matrix that is not finite.
    """

    called = "svd"
    full: bool = True
    square = False
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(shape),), (full,), lambda x, f=full: tuple(np.linalg.svd(x, f)),
                dtypes=_EXACT, gradient=False,
            )
            for shape, full in (((4, 3), False), ((4, 3), True), ((2, 2, 4), False))
        ]
        + _BAD[:1]
    )  # fmt: skip

    def shapes(self, *given: Shape) -> tuple[Shape, ...]:
        *stack, m, n = given[0]
        k = min(m, n)
        rows, columns = (m, n) if self.full else (k, k)
        return (*stack, m, rows), (*stack, k), (*stack, columns, n)

    def evaluate(self, *values: Any) -> Any:
        return _where_finite(lambda x: np.linalg.svd(x, full_matrices=self.full), *values)


# ---- functions -----------------------------------------------------------------------


def norm(
    x: Any, ord: Any = 2, axes: Axes = None, keepdims: bool = False, *, axis: Axes = None
) -> Any:
    """Length of vectors: (sum |x| ** ord) ** (1 / ord) over axes, all for None.

    Several axes are one vector together, so 2 is Frobenius' norm of a matrix. Where there is no
    direction, at 0, the gradient is 0, as PyTorch's. float16 and bfloat16 are summed up in
    float32; integers become floats.

    Args:
        x: a tensor.
        ord: inf the largest, -inf the smallest, 0 the number of elements that are not zero;
            "fro" and None are 2.
        axes: one or several.
        keepdims: whether the axes stay, of size 1.
        axis: another name of axes.

    Raises:
        OptionError: if ord is another word.
    """
    axes = either(axes, axis)
    (x,) = promoted((x,), "norm", floating=True)
    ord = 2 if ord is None or ord == "fro" else ord
    if isinstance(ord, str):
        raise unknown("norm: ord", ord, ("fro",))
    if ord == 0:
        return cast_like(summation(not_equal(x, 0), axes, keepdims), x)
    size = absolute(widened(x))
    if math.isinf(ord):
        out = (amax if ord > 0 else amin)(size, axes, keepdims)
    elif ord == 1:
        out = summation(size, axes, keepdims)
    elif ord == 2:
        out = root(summation(square(size), axes, keepdims))
    else:
        out = _power_of_some(summation(_power_of_some(size, ord), axes, keepdims), 1 / ord)
    return cast_like(out, x)


def _power_of_some(x: Any, exponent: float) -> Any:
    """Return x ** exponent; its derivative where x is 0 is 0, as that of a length."""
    none = equal(x, 0)
    return where(none, 0 if exponent > 0 else math.inf, where(none, 1, x) ** exponent)


def inv(x: Any) -> Any:
    """The inverse of matrices. See ``Inverse``."""
    return executor.apply(Inverse.of(), x)


def solve(a: Any, b: Any) -> Any:
    """The solution of a @ x = b for matrices b, or a vector b. See ``Solve``."""
    if len(shape_of(b)) != 1:
        return executor.apply(Solve.of(), a, b)
    out = executor.apply(Solve.of(), a, unsqueeze(b, -1))
    return reshape(out, shape_of(out)[:-1])


def det(x: Any) -> Any:
    """The determinant of matrices. See ``Determinant``."""
    return executor.apply(Determinant.of(), x)


def slogdet(x: Any) -> tuple[Any, Any]:
    """The sign of the determinant and the logarithm of its absolute value."""
    return executor.apply(LogDeterminant.of(), x).tuple()


def cholesky(x: Any) -> Any:
    """The lower triangular factor of symmetric positive definite matrices. See ``Cholesky``."""
    return executor.apply(Cholesky.of(), x)


def eigh(x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of symmetric matrices. See ``Eigh``."""
    return executor.apply(Eigh.of(), x).tuple()


def qr(x: Any, complete: bool = False) -> tuple[Any, Any]:
    """Orthogonal columns and an upper triangle whose product x is. See ``QR``."""
    return executor.apply(QR.of(bool(complete)), x).tuple()


def svd(x: Any, full: bool = True) -> tuple[Any, Any, Any]:
    """Singular value decomposition. See ``SVD``."""
    return executor.apply(SVD.of(bool(full)), x).tuple()


def pinv(x: Any, rtol: Any = None) -> Any:
    """The pseudo-inverse of matrices; singular values up to rtol times the largest count as 0.

    Args:
        x: matrices [..., m, n].
        rtol: a number, or a tensor [...]; max(m, n) times the dtype's epsilon for None.
    """
    u, s, vh = svd(x, full=False)
    inverse = where(significant(s, shape_of(x), rtol), 1.0 / s, 0.0)
    return matmul(turned(vh) * unsqueeze(inverse, -2), turned(u))


def significant(s: Any, shape: Shape, rtol: Any = None) -> Any:
    """Return which singular values of a matrix of this shape are not 0 but for rounding; bool."""
    if rtol is None:
        kind = s.spec.dtype.numpy if s.spec.dtype.itemsize > 2 else np.float32
        rtol = max(shape[-2:]) * float(np.finfo(kind).eps)
    if not shape_of(s)[-1]:
        return s > 0.0
    limit = cast_like(rtol, s) if hasattr(rtol, "spec") else rtol
    return s > unsqueeze(amax(s, -1) * limit, -1)

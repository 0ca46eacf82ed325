"""Factorizations of matrices, and functions that use them.

They are computed as ``linalg`` says. Gradients after Murray, "Differentiation of the Cholesky
decomposition", 2016, arXiv:1602.07527; Roberts and Roberts, "QR and LQ decomposition matrix
backpropagation algorithms", 2020, arXiv:2009.10071; Townsend, "Differentiating the singular value
decomposition", 2016; Golub and Pereyra, "The differentiation of pseudo-inverses", 1973.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, graph
from needle.backend import ndarray
from needle.backend.ndarray import broadcast_shapes
from needle.errors import GradientError, NeedleError, ShapeError, SingularError, explain
from needle.executor import shape_of
from needle.ops.core.op import OUTPUT, promoted
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.linalg.matmul import matmul
from needle.ops.linalg.solve import BAD, EXACT, OnHost, Shape, solve_triangular, square_samples
from needle.ops.reduction.reduce import amax
from needle.ops.shape.creation import eye
from needle.ops.shape.diagonals import tril, triu
from needle.ops.shape.movement import concat, turned, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Gradients, Numpy, Operand, Tensor, TensorTuple

__all__ = [
    "Cholesky", "Eigh", "PseudoInverse", "QR", "SVD", "cholesky", "eigh", "pinv", "qr",
    "significant", "svd",
]  # fmt: skip


def symmetric(shape: Shape) -> Numpy:
    """Return symmetric matrices with eigenvalues well apart, all positive."""
    x = uniform(shape, -0.5, 0.5)
    return x + np.swapaxes(x, -1, -2) + np.diag(3.0 + 2.0 * np.arange(shape[-1]))


def _of_lower(grad: Tensor) -> Tensor:
    """Return the gradient for a lower triangle from that for a symmetric matrix."""
    n = shape_of(grad)[-1]
    doubled = tril(grad + turned(grad))
    return doubled - grad * eye(n, dtype=grad.spec.dtype, device=grad.spec.device)


def _cholesky(x: Numpy) -> Numpy:
    return np.linalg.cholesky(np.tril(x) + np.swapaxes(np.tril(x, -1), -1, -2))


class Cholesky(OnHost):
    """The lower triangular factor of symmetric positive definite matrices: x = out @ out.T.

    Only the lower triangle of x is read.

    Shapes:   x [..., n, n] -> [..., n, n]
    Gradient: the lower triangle of x; any order
    Raises:   ShapeError if x is not square; SingularError if a matrix is not positive definite
    """

    saves = ((OUTPUT,),)
    samples = staticmethod(
        lambda: [
            *square_samples(symmetric, _cholesky),
            Sample((-np.eye(2),), raises=SingularError, by_value=True),
        ]
    )

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        return (x,)

    def evaluate(self, x: Numpy) -> Numpy:
        return np.linalg.cholesky(x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        lower = tril(out)
        inner = tril(matmul(turned(lower), tril(out_grad)))
        n = shape_of(inner)[-1]
        half = inner - 0.5 * inner * eye(n, dtype=inner.spec.dtype, device=inner.spec.device)
        left = solve_triangular(turned(lower), half, upper=True)
        grad = turned(solve_triangular(turned(lower), turned(left), upper=True))
        return (_of_lower(0.5 * (grad + turned(grad))),)


def _eigh(x: Numpy) -> tuple[Numpy, ...]:
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


class Eigh(OnHost):
    """Eigenvalues, in ascending order, and eigenvectors (columns) of symmetric matrices.

    Only the lower triangle of x is read. Gradients of the vectors need distinct eigenvalues.

    Shapes:   x [..., n, n] -> [..., n], [..., n, n]
    Gradient: the lower triangle of x; any order
    Raises:   ShapeError if x is not square

    The results are NaN if that triangle is not finite.
    """

    saves = ((OUTPUT,),)
    samples = staticmethod(lambda: square_samples(symmetric, _eigh))

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        return x[:-1], x

    def evaluate(self, x: Numpy) -> tuple[Numpy, ...]:
        return _where_finite(np.linalg.eigh, np.tril(x))  # which reads no more of it

    def gradient(self, out_grad: list[Tensor], out: TensorTuple) -> Gradients:
        values, vectors = out[0], out[1]
        n = shape_of(values)[-1]
        one = eye(n, dtype=values.spec.dtype, device=values.spec.device)
        inner: Tensor | float = 0.0
        if out_grad[0] is not None:
            inner = one * unsqueeze(out_grad[0], -1)
        if out_grad[1] is not None:
            apart = unsqueeze(values, -2) - unsqueeze(values, -1) + one
            turn = matmul(turned(vectors), out_grad[1])
            inner = inner + turn * (1.0 - one) / apart
        grad = matmul(matmul(vectors, inner), turned(vectors))
        return (_of_lower(0.5 * (grad + turned(grad))),)


def _whole_samples(reference: Any, is_smooth: Callable[[int, int], bool]) -> list[Sample]:
    """Return samples of a factorization with an option for complete bases.

    Args:
        reference: the factorization of x, with the option.
        is_smooth: whether complete bases of m x n matrices have gradients.
    """
    cases = ((4, 3), False), ((4, 3), True), ((2, 2, 4), False), ((2, 3, 3), True)
    good = [
        Sample(
            (uniform(shape),), (whole,), lambda x, whole=whole: tuple(reference(x, whole)),
            dtypes=EXACT, gradient=not whole or is_smooth(*shape[-2:]),
        )
        for shape, whole in cases
    ]  # fmt: skip
    return [*good, *BAD[:1]]


class QR(OnHost):
    """Orthogonal columns q and an upper triangle r with q @ r = x.

    Shapes:   x [..., m, n] -> [..., m, k], [..., k, n]; k = min(m, n), or m if complete
    Gradient: x, whose first k columns must be independent; any order
    Raises:   ShapeError if x has fewer than two axes; from the gradient GradientError for the
              columns that only complete adds (x does not determine them; in forward mode
              always), SingularError if columns depend on each other
    """

    called = "qr"
    complete: bool = False
    square = False
    saves = ((OUTPUT,),)
    samples = staticmethod(
        lambda: _whole_samples(
            lambda x, complete: np.linalg.qr(x, "complete" if complete else "reduced"),
            lambda m, n: m <= n,
        )
    )

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        *stack, m, n = x
        k = m if self.complete else min(m, n)
        return (*stack, m, k), (*stack, k, n)

    def evaluate(self, x: Numpy) -> tuple[Numpy, ...]:
        return tuple(np.linalg.qr(x, "complete" if self.complete else "reduced"))

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        q, r = out[0], out[1]
        grad_q, grad_r = (
            part * 0.0 if given is None else given
            for part, given in zip((q, r), out_grad, strict=True)
        )
        k, n = shape_of(r)[-2:]
        if k > n:  # beyond n there are zeros in r, and columns of q that x does not determine
            if out_grad[0] is not None:
                raise _undefined(self.name, "complete", "columns beyond those of x", out)
            q, r, k = q[..., :n], r[..., :n, :], n
            grad_q, grad_r = grad_q[..., :n], grad_r[..., :n, :]
        grad_r = triu(grad_r)
        behind = matmul(q, grad_r[..., k:])  # of columns that follow from the others
        grad_q = grad_q + matmul(q, matmul(r[..., k:], turned(grad_r[..., k:])))
        r, grad_r = r[..., :k], grad_r[..., :k]
        inner = matmul(r, turned(grad_r)) - matmul(turned(grad_q), q)
        inner = tril(inner) + turned(tril(inner, -1))
        first = turned(solve_triangular(r, turned(grad_q + matmul(q, inner)), upper=True))
        return (first if n == k else concat([first, behind], -1),)


class SVD(OnHost):
    """Singular value decomposition: x = u @ diag(s) @ vh, s in descending order.

    Gradients of the vectors need distinct singular values, which are not 0 if x is not square.

    Shapes:   x [..., m, n] -> [..., m, i], [..., k], [..., j, n]; k = min(m, n); i and j are k,
              or m and n if full
    Gradient: x; any order
    Raises:   ShapeError if x has fewer than two axes; GradientError from the gradient of the
              vectors that only full adds: x does not determine them (in forward mode always)

    The results are NaN for a matrix that is not finite.
    """

    called = "svd"
    full: bool = True
    square = False
    saves = ((OUTPUT,),)
    samples = staticmethod(lambda: _whole_samples(np.linalg.svd, lambda m, n: m == n))

    def shapes(self, x: Shape) -> tuple[Shape, ...]:
        *stack, m, n = x
        k = min(m, n)
        rows, columns = (m, n) if self.full else (k, k)
        return (*stack, m, rows), (*stack, k), (*stack, columns, n)

    def evaluate(self, x: Numpy) -> tuple[Numpy, ...]:
        return _where_finite(lambda x: np.linalg.svd(x, full_matrices=self.full), x)

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        u, s, vh = out[0], out[1], out[2]
        grad_u, grad_s, grad_vh = out_grad
        rows, columns, k = shape_of(u)[-2], shape_of(vh)[-1], shape_of(s)[-1]
        for given, size in ((grad_u, shape_of(u)[-1]), (grad_vh, shape_of(vh)[-2])):
            if given is not None and size > k:
                raise _undefined(self.name, "full", "vectors without a singular value", out)
        u, vh = u[..., :k], vh[..., :k, :]
        one = eye(k, dtype=s.spec.dtype, device=s.spec.device)
        across, along = unsqueeze(s, -1), unsqueeze(s, -2)
        apart = (along - across) * (along + across) + one
        inner = one * (0.0 if grad_s is None else unsqueeze(grad_s, -1))
        grad: Tensor | float = 0.0
        if grad_u is not None:
            turn = matmul(turned(u), grad_u)
            inner = inner + (turn - turned(turn)) * (1.0 - one) / apart * along
            if rows > k:
                grad = grad + matmul((grad_u - matmul(u, turn)) / along, vh)
        if grad_vh is not None:
            turn = matmul(vh, turned(grad_vh))
            inner = inner + across * ((turn - turned(turn)) * (1.0 - one) / apart)
            if columns > k:
                grad = grad + matmul(u / along, grad_vh - matmul(turned(turn), vh))
        return (matmul(matmul(u, inner), vh) + grad,)


def _undefined(name: str, option: str, what: str, out: TensorTuple) -> NeedleError:
    return explain(
        GradientError, name, f"the gradient of {what}", [("x", out.inputs[0])],
        "they are not determined by x, so they have no derivative", f"{option}=False",
    )  # fmt: skip


class PseudoInverse(OnHost):
    """The pseudo-inverse of matrices; singular values up to rtol times the largest count as 0.

    Shapes:   x [..., m, n], rtol [...] -> [..., n, m]; the leading axes broadcast
    Gradient: x, among matrices of its rank; any order
    Raises:   ShapeError if x has fewer than two axes, or rtol does not broadcast

    The results are NaN for a matrix that is not finite.
    """

    called = "pinv"
    square = False
    saves = ((0, OUTPUT), ())
    samples = staticmethod(
        lambda: [
            *[
                Sample(
                    (uniform(shape), np.full(shape[:-2], 1e-6)), (),
                    lambda x, rtol: np.linalg.pinv(x, rtol), dtypes=EXACT,
                )
                for shape in ((4, 3), (2, 2, 4), (1, 3, 3), (3, 0), (0, 2, 3))
            ],
            Sample(
                (uniform((3, 2)), np.full((2, 1), 1e-6)), (),
                lambda x, rtol: np.linalg.pinv(np.broadcast_to(x, (2, 1, 3, 2)), rtol),
                dtypes=EXACT,
            ),
            Sample((uniform((3,)), np.zeros(())), raises=ShapeError),
            Sample((uniform((2, 3, 3)), np.zeros(3)), raises=ShapeError),
        ]
    )  # fmt: skip

    def shapes(self, x: Shape, rtol: Shape) -> tuple[Shape, ...]:
        *stack, m, n = x
        return ((*broadcast_shapes("pinv", tuple(stack), rtol), n, m),)

    def evaluate(self, x: Numpy, rtol: Numpy) -> Numpy:
        u, s, vh = _where_finite(lambda x: np.linalg.svd(x, full_matrices=False), x)
        some = s > rtol[..., None] * s.max(-1, keepdims=True, initial=0.0)
        inverse = np.where(some, 1.0, 0.0).astype(x.dtype) / np.where(some, s, 1)
        return np.swapaxes(vh, -1, -2) * inverse[..., None, :] @ np.swapaxes(u, -1, -2)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        if not out.node.inputs[0].needs:  # only rtol needs one
            return None, None
        x, across, slope = out.inputs[0], turned(out), turned(out_grad)
        grad = matmul(slope - matmul(x, matmul(out, slope)), matmul(out, across))
        grad = grad + matmul(matmul(across, out), slope - matmul(matmul(slope, out), x))
        grad = grad - matmul(matmul(across, out_grad), across)
        return (sum_to(grad, shape_of(x)), None)


# ---- functions -----------------------------------------------------------------------


def cholesky(x: Tensor) -> Tensor:
    """The lower triangular factor of symmetric positive definite matrices. See ``Cholesky``.

    >>> print(ops.cholesky(Tensor([[4.0, 2.0], [2.0, 5.0]])))
    [[2. 0.]
     [1. 2.]]
    """
    return executor.apply(Cholesky.of(), x)


def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices. See ``Eigh``.

    >>> values, vectors = ndl.linalg.eigh(Tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> print(values)
    [1. 3.]
    """
    values, vectors = executor.several(Eigh.of(), x)
    return values, vectors


def qr(x: Tensor, complete: bool = False) -> tuple[Tensor, Tensor]:
    """Orthogonal columns q and an upper triangle r with q @ r = x. See ``QR``.

    >>> q, r = ndl.linalg.qr(Tensor([[3.0, 1.0], [4.0, 2.0]]))
    >>> ndl.allclose(q @ r, Tensor([[3.0, 1.0], [4.0, 2.0]]), atol=1e-5)
    True
    """
    q, r = executor.several(QR.of(bool(complete)), x)
    return q, r


def svd(x: Tensor, full: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition. See ``SVD``.

    >>> u, s, vh = ndl.linalg.svd(Tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> print(s)
    [4. 3.]
    """
    u, s, vh = executor.several(SVD.of(bool(full)), x)
    return u, s, vh


def pinv(x: Tensor, rtol: Operand | None = None) -> Tensor:
    """The pseudo-inverse of matrices; singular values up to rtol times the largest count as 0.

    Args:
        x: matrices [..., m, n].
        rtol: a number, or a tensor [...]; max(m, n) times the dtype's epsilon for None.

    >>> print(ndl.linalg.pinv(Tensor([[2.0, 0.0], [0.0, 0.0]])))
    [[0.5 0. ]
     [0.  0. ]]
    """
    (x,) = promoted((x,), "pinv", floating=True)
    return executor.apply(PseudoInverse.of(), x, _limit(x, shape_of(x), rtol))


def significant(s: Tensor, shape: Shape, rtol: Operand | None = None) -> Tensor:
    """Return which singular values of a matrix of this shape are above rounding errors; bool."""
    if not shape_of(s)[-1]:
        return s > 0.0
    return s > unsqueeze(amax(s, -1) * _limit(s, shape, rtol), -1)


def _limit(x: Any, shape: Shape, rtol: Any) -> Any:
    """Return rtol as a tensor of the dtype of x, its default for None."""
    spec = executor.spec_of(x)
    if rtol is None:
        kind = spec.dtype.numpy if spec.dtype.itemsize > 2 else np.float32
        rtol = max(shape[-2:], default=0) * float(np.finfo(kind).eps)
    if not hasattr(rtol, "spec"):
        rtol = graph.wrap(ndarray.array(np.asarray(rtol), spec.dtype, spec.device))
    return cast_like(rtol, x)

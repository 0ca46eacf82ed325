"""Linear algebra: the standard's main functions and its extension ``linalg``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from needle import ops
from needle.backend.axes import axes_of, integer, normalise_axis
from needle.elsewhere import advice
from needle.errors import AxesError, DtypeError, ShapeError, explain, missing, unknown
from needle.ops.core.dims import speak_all
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import Axes, DTypeLike, Operand, Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Matrix product; a one-dimensional operand is a row (left) or a column."""
    return ops.matmul(x1, x2)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Swap the last two axes."""
    return ops.transpose(x)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Sum of products over axes of x1 and axes of x2.

    Args:
        x1: a tensor.
        x2: a tensor.
        axes: a number: the last axes of x1 are summed with as many first axes of x2; or a pair: the
            axes of x1 and those of x2.

    Raises:
        DtypeError: if axes are neither.
        ShapeError: if an axis is given twice, or the sizes of paired axes differ.
    """
    if not isinstance(axes, (tuple, list)):
        return ops.tensordot(x1, x2, integer("tensordot: axes", axes))
    if len(axes) != 2 or not all(isinstance(part, (tuple, list)) for part in axes):
        raise DtypeError(
            f"tensordot: axes are {axes!r:.60}\n"
            "  rule: how many, or a pair of sequences: the axes of x1, and those of x2"
        )
    pairs = [
        [operands.axis_of("tensordot", operands.tensor(x), axis) for axis in part]
        for x, part in zip((x1, x2), axes, strict=True)
    ]
    for part in pairs:
        if len(set(part)) < len(part):
            raise explain(
                ShapeError, "tensordot", f"axes {axes} name an axis twice", [("x1", x1), ("x2", x2)]
            )
    return ops.tensordot(x1, x2, (pairs[0], pairs[1]))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sum of the products along an axis; the other axes broadcast."""
    return ops.vecdot(x1, x2, axis)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of the elements of two vectors."""
    return ops.outer(x1, x2)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """A diagonal of the last two axes, a view."""
    return ops.diagonal(operands.tensor(x), offset)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DTypeLike = None) -> Tensor:
    """The sum of a diagonal of the last two axes; of integers in int64 unless told otherwise."""
    x = operands.tensor(x)
    out = ops.trace(x if dtype is None else ops.astype(x, dtype), offset)
    return out if dtype is None else ops.astype(out, dtype)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Cross product of vectors of three elements along an axis; the other axes broadcast.

    Raises:
        ShapeError: if that axis does not have three elements.
        IndexRangeError: if the axis is out of range.
    """
    for x in (x1, x2):
        operands.axis_of("cross", operands.tensor(x), axis)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise explain(
            ShapeError,
            "cross",
            f"axis {axis} does not have three elements",
            [("x1", x1), ("x2", x2)],
        )
    x1, x2 = ops.broadcast_arrays(x1, x2)
    a, b = ops.unbind(x1, axis), ops.unbind(x2, axis)
    turns = ((1, 2), (2, 0), (0, 1))
    return ops.stack([a[i] * b[j] - a[j] * b[i] for i, j in turns], axis)


# ---- norms -------------------------------------------------------------------------


def vector_norm(
    x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The length of vectors: (sum |x| ** ord) ** (1 / ord) over axes, all for None.

    Its derivative at 0 is 0.

    Args:
        x: a tensor.
        axis: one axis or several, whose elements count as one vector.
        keepdims: whether to keep the axes, with size 1.
        ord: a number; inf gives the largest, -inf the smallest, 0 the number of nonzero elements.
    """
    return ops.norm(x, ord, axis, keepdims)


def norm(
    x: Tensor,
    ord: float | str | None = None,
    axes: Axes = None,
    keepdims: bool = False,
    *,
    axis: Axes = None,
) -> Tensor:
    """A norm of vectors or matrices; beyond the standard, as in NumPy and PyTorch.

    Without ord it is the root of the sum of squares over axes, all for None. With ord it is
    ``vector_norm`` over one axis and ``matrix_norm`` over two; axes may be None for a vector or a
    matrix. ``needle.norm`` treats all axes as one vector.

    Args:
        x: a tensor.
        ord: see the two functions.
        axes: one or two; without ord any number.
        keepdims: whether to keep the axes, with size 1.
        axis: another name for axes.

    Raises:
        AxesError: for ord with more than two axes, or no axes.
        OptionError: for an unknown ord.
    """
    axes = ops.either(axes, axis)
    if ord is None:
        return ops.norm(x, 2, axes, keepdims)
    x = operands.tensor(x)
    given = axes_of(range(x.ndim) if axes is None else axes)
    if len(given) == 1:
        return ops.norm(x, ord, given, keepdims)
    if len(given) != 2:
        raise explain(
            AxesError, "norm", f"ord={ord} over {len(given)} axes", [("x", x)],
            "a vector has one axis, a matrix two", "axis=..., or needle.norm: one vector of all",
        )  # fmt: skip
    out = matrix_norm(ops.moveaxis(x, given, (-2, -1)), ord=ord)
    places = tuple(normalise_axis(a, x.ndim) for a in given)
    return ops.expand_dims(out, places) if keepdims else out


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Tensor:
    """A norm of matrices.

    Args:
        x: matrices [..., m, n].
        keepdims: whether to keep the two axes, with size 1.
        ord: "fro" the square root of the sum of squares, "nuc" the sum of the singular values, 2
            and -2 the largest and smallest of them, 1 and -1 the largest and smallest sum of
            absolute values of a column, inf and -inf of a row.

    Raises:
        OptionError: for an unknown ord.
    """
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    extreme = ops.amin if ord in (-1, -2, -float("inf")) else ops.amax
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        out = ops.summation(values, -1) if ord == "nuc" else extreme(values, -1)
    elif ord in (1, -1):
        out = extreme(ops.summation(ops.absolute(x), -2), -1)
    elif ord in (float("inf"), -float("inf")):
        out = extreme(ops.summation(ops.absolute(x), -1), -1)
    else:
        raise unknown("matrix_norm: ord", str(ord), ("fro", "nuc", "1", "-1", "2", "-2", "inf"))
    return ops.reshape(out, (*out.shape, 1, 1)) if keepdims else out


# ---- the extension -------------------------------------------------------------------


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """Orthogonal columns, and an upper triangle."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """x = U @ diag(S) @ Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SignedLogDeterminant(NamedTuple):
    """The sign of the determinant, and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular factor of symmetric positive definite matrices."""
    lower = ops.cholesky(x)
    return ops.transpose(lower) if upper else lower


def det(x: Tensor, /) -> Tensor:
    """The determinant of matrices."""
    return ops.det(x)


def eigh(x: Tensor, /) -> Eigh:
    """Eigenvalues and eigenvectors of symmetric matrices; the lower triangle is read."""
    return Eigh(*ops.eigh(x))


def eigvalsh(x: Tensor, /) -> Tensor:
    """Eigenvalues of symmetric matrices; the lower triangle is read."""
    return ops.eigh(x)[0]


def inv(x: Tensor, /) -> Tensor:
    """The inverse of matrices."""
    return ops.inv(x)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """x multiplied by itself n times; the inverse for negative n, the identity for 0.

    Raises:
        ArgumentError: if n is not an integer.
        ShapeError: if x are not square matrices.
    """
    x, n = operands.tensor(x), integer("matrix_power: n", n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise explain(
            ShapeError, "matrix_power", f"shape {x.shape}", [("x", x)],
            "square matrices are the last two axes",
        )  # fmt: skip
    return _power(x, n)


def _power(x: Tensor, n: int) -> Tensor:
    if n < 0:
        return _power(ops.inv(x), -n)
    if n == 0:
        one = ops.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        return ops.copy(ops.broadcast_to(one, x.shape))
    half = _power(x, n // 2) if n > 1 else None
    if half is None:
        return x
    out = ops.matmul(half, half)
    return ops.matmul(out, x) if n % 2 else out


def matrix_rank(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """The number of singular values that are larger than rtol times the largest; int64."""
    return ops.summation(ops.significant(svdvals(x), x.shape, rtol), -1)


def pinv(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """The pseudo-inverse of matrices. See ``ops.pinv``."""
    return ops.pinv(x, rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QR:
    """Orthogonal columns Q and an upper triangle R with Q @ R = x.

    Raises:
        OptionError: if mode is neither "reduced" nor "complete".
    """
    if mode not in ("reduced", "complete"):
        raise unknown("qr: mode", mode, ("reduced", "complete"))
    return QR(*ops.qr(x, mode == "complete"))


def slogdet(x: Tensor, /) -> SignedLogDeterminant:
    """The sign of the determinant, and the logarithm of its absolute value."""
    return SignedLogDeterminant(*ops.slogdet(x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The solution of x1 @ x = x2, for a vector or matrices x2."""
    return ops.solve(x1, x2)


def solve_triangular(
    a: Tensor, b: Tensor, /, *, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The solution of a @ x = b for a triangular matrix a; beyond the standard.

    See ``ops.solve_triangular``.
    """
    return ops.solve_triangular(a, b, upper=upper, left=left, unit=unitriangular)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Singular value decomposition."""
    return SVD(*ops.svd(x, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values of matrices, in descending order."""
    return ops.svd(x, False)[1]


speak_all(globals(), {"norm"})


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.standard.linalg", name, advice("linalg", name))

"""Products over named axes, made of matrix products; cosines, covariances and correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend.axes import axes_of, integer, normalise_axis
from needle.errors import ArgumentError, IndexRangeError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import cast, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like, maximum, multiply
from needle.ops.elementwise.logic import clip
from needle.ops.linalg.matmul import matmul
from needle.ops.reduction.euclidean import euclidean
from needle.ops.reduction.reduce import mean, summation
from needle.ops.shape.diagonals import diagonal
from needle.ops.shape.movement import Permute, Reshape, turned
from needle.ops.shape.rearrange import broadcast_arrays

if TYPE_CHECKING:
    from needle.ops.core.op import Op
    from needle.typing import Numpy, Operand, Tensor

__all__ = [
    "CosineSimilarity", "corrcoef", "cosine_similarity", "cov", "einsum", "kron", "outer",
    "tensordot", "vecdot",
]  # fmt: skip


def _cosine(x: Numpy, y: Numpy, axis: int, eps: float) -> Numpy:
    x, y = np.broadcast_arrays(x, y)
    norms = [np.maximum(np.sqrt((z * z).sum(axis)), eps) for z in (x, y)]
    return (x * y).sum(axis) / (norms[0] * norms[1])


def _cosine_samples() -> list[Sample]:
    x = uniform((3, 4))
    cases: list[tuple[Numpy, Numpy, int, float]] = [
        (x, uniform((3, 4), seed=1), -1, 1e-8), (x, uniform((3, 4), seed=1), 0, 1e-8),
        (x, uniform((4,), seed=1), 1, 1e-8), (uniform((2, 1, 3)), uniform((4, 3)), -1, 1e-8),
        (0.1 * x, uniform((3, 4), seed=1), 1, 2.0), (uniform((0, 3)), uniform((1, 3)), 1, 1e-8),
    ]  # fmt: skip
    return [
        Sample((x, y), (axis, eps), lambda x, y, a=axis, e=eps: _cosine(x, y, a, e))
        for x, y, axis, eps in cases
    ] + [
        Sample((x, uniform((3, 3))), (-1, 1e-8), raises=ShapeError),
        Sample((x, x), (2, 1e-8), raises=IndexRangeError),
        Sample((x, x), (-1, -1.0), raises=OptionError),
    ]


class CosineSimilarity(Composite):
    """Cosine of the angle between x and y along an axis; norms are at least eps.

        out = sum(x * y) / (max(|x|, eps) * max(|y|, eps))

    Shapes:   x, y [..., n, ...], which broadcast -> without the axis
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x, y; any order
    Raises:   ShapeError if the shapes do not broadcast; IndexRangeError if the axis is out of
              range; OptionError if eps is negative
    """

    axis: int = -1
    eps: float = 1e-8
    promotes = "floating"
    samples = staticmethod(_cosine_samples)

    def expand(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = broadcast_arrays(widened(x), widened(y))
        axis = normalise_axis(self.axis, len(shape_of(a)))
        if not self.eps >= 0:
            raise OptionError(f"cosine_similarity: eps is {self.eps}\n  rule: 0 or more")
        units = [z / maximum(euclidean(z, axis, keepdims=True), self.eps) for z in (a, b)]
        return cast(summation(units[0] * units[1], axis), x.spec.dtype)


def cosine_similarity(x: Tensor, y: Tensor, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between x and y along an axis. See ``CosineSimilarity``.

    >>> print(ndl.cosine_similarity(Tensor([[1.0, 0.0]]), Tensor([[3.0, 4.0], [0.0, 1.0]])))
    [0.6 0. ]
    """
    return executor.apply(CosineSimilarity.of(axis, real("cosine_similarity: eps", eps)), x, y)


def cov(x: Tensor, *, correction: float = 1.0) -> Tensor:
    """Covariances of the rows of x; each column is an observation. Correction 0 divides by n.

    Shapes:   x [d, n] -> [d, d]; x [n] -> []
    Gradient: x; any order
    Raises:   ShapeError if x does not have one or two axes, or has no columns

    >>> print(ndl.cov(Tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]])))
    [[ 1. -2.]
     [-2.  4.]]
    """
    centred, x = _centred("cov", x)
    room = max(shape_of(x)[-1] - real("cov: correction", correction), 0.0)
    return cast_like(_products(centred) / room, x)


def corrcoef(x: Tensor) -> Tensor:
    """Correlation coefficients, in [-1, 1], of the rows of x; each column is an observation.

    NaN for a row whose values are all equal.

    Shapes:   x [d, n] -> [d, d]; x [n] -> []
    Gradient: x; any order
    Raises:   ShapeError if x does not have one or two axes, or has no columns

    >>> print(ndl.corrcoef(Tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]])))
    [[ 1. -1.]
     [-1.  1.]]
    """
    centred, x = _centred("corrcoef", x)
    if len(shape_of(centred)) == 1:
        size = euclidean(centred)
        return cast_like(size / size, x)
    rows = centred / euclidean(centred, -1, keepdims=True)
    return cast_like(clip(_products(rows), -1.0, 1.0), x)


def _centred(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows without their means, half-precision ones in float32, and x as a tensor."""
    (x,) = promoted((x,), name, floating=True)
    shape = shape_of(x)
    if len(shape) not in (1, 2) or not shape[-1]:
        raise explain(
            ShapeError, name, f"x has shape {shape}", [("x", x)],
            "a row for each variable, a column for each observation",
        )  # fmt: skip
    wide = widened(x)
    return wide - mean(wide, -1, keepdims=True), x


def _products(rows: Tensor) -> Tensor:
    return matmul(rows, turned(rows) if len(shape_of(rows)) == 2 else rows)


def outer(x: Operand, y: Operand) -> Tensor:
    """All products of the elements of two vectors: out[i, j] = x[i] * y[j].

    Raises:
        ShapeError: if one is not a vector.

    >>> print(ndl.outer(Tensor([1.0, 2.0]), Tensor([3.0, 4.0, 5.0])))
    [[ 3.  4.  5.]
     [ 6.  8. 10.]]
    """
    x, y = as_tensors((x, y), "outer")
    if len(shape_of(x)) != 1 or len(shape_of(y)) != 1:
        raise explain(ShapeError, "outer", "expected two vectors", [("x", x), ("y", y)])
    column, row = Reshape.of((*shape_of(x), 1)), Reshape.of((1, *shape_of(y)))
    return executor.apply(column, x) * executor.apply(row, y)


def kron(x: Tensor, y: Tensor) -> Tensor:
    """The Kronecker product: each element of x times all of y.

    Shapes:   x [a...], y [b...], with axes of size 1 in front of the one that has fewer -> [ab...]

    >>> print(ndl.kron(Tensor([1.0, 10.0]), Tensor([1.0, 2.0, 3.0])))
    [ 1.  2.  3. 10. 20. 30.]
    """
    x, y = as_tensors((x, y), "kron")
    ndim = max(len(shape_of(z)) for z in (x, y))
    left, right = ((1,) * (ndim - len(shape_of(z))) + shape_of(z) for z in (x, y))
    blocks = Reshape.of(tuple(n for size in left for n in (size, 1)))
    inside = Reshape.of(tuple(n for size in right for n in (1, size)))
    sizes = tuple(a * b for a, b in zip(left, right, strict=True))
    return executor.apply(Reshape.of(sizes), executor.apply(blocks, x) * executor.apply(inside, y))


def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Sum of the products along an axis, in the dtype of the products; other axes broadcast.

    Raises:
        ShapeError: if the sizes of that axis differ.

    >>> print(ndl.vecdot(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([10.0, 1.0])))
    [12. 34.]
    """
    x, y = as_tensors((x, y), "vecdot")
    sizes = [shape_of(z)[normalise_axis(axis, len(shape_of(z)))] for z in (x, y)]
    if sizes[0] != sizes[1]:
        problem = f"axis {axis} has sizes {sizes[0]} and {sizes[1]}"
        raise explain(ShapeError, "vecdot", problem, [("x", x), ("y", y)])
    product = x * y
    return cast(summation(product, axis), product.spec.dtype)


def tensordot(
    x: Tensor, y: Tensor, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> Tensor:
    """Sum of products over axes of x and axes of y.

    Args:
        x: a tensor.
        y: a tensor.
        axes: a number: the last axes of x are summed with as many first axes of y; or a pair: the
            axes of x and those of y, one or several each.

    Raises:
        ArgumentError: if axes are neither an integer nor two integers, or of several of them.
        ShapeError: if the sizes of paired axes differ, or an axis is named twice.

    >>> x, y = ndl.ones((2, 3, 4)), ndl.ones((3, 4, 5))
    >>> ndl.tensordot(x, y, axes=2).shape
    (2, 5)
    """
    x, y = as_tensors((x, y), "tensordot")
    if isinstance(axes, np.ndarray) and axes.ndim:
        axes = tuple(axes)
    if isinstance(axes, (tuple, list)) and len(axes) == 2:
        chosen: Any = tuple(  # a tensor's number may change behind the plan
            tuple(n if type(n) is int else normalise_axis(n, len(shape_of(z))) for n in axes_of(of))
            for z, of in zip((x, y), axes, strict=True)
        )
    else:
        chosen = integer("tensordot: axes", axes)
    return _plan_of(("tensordot", chosen, shape_of(x), shape_of(y)), _tensordot_equation, x, y)


def _tensordot_equation(key: tuple[Any, ...], operands: Sequence[Tensor]) -> str:
    axes, ndim, ndim_y = key[1], len(key[2]), len(key[3])
    named = [("x", operands[0]), ("y", operands[1])]
    if isinstance(axes, (int, np.integer)):
        if axes < 0 or axes > min(ndim, ndim_y):
            raise explain(ShapeError, "tensordot", f"{axes} axes", named)
        left, right = list(range(ndim - axes, ndim)), list(range(axes))
    else:
        left = [normalise_axis(axis, ndim) for axis in axes[0]]
        right = [normalise_axis(axis, ndim_y) for axis in axes[1]]
    for axes_of_one in (left, right):
        if len(set(axes_of_one)) < len(axes_of_one):
            raise explain(ShapeError, "tensordot", f"{axes_of_one} name an axis twice", named)
    if [key[2][i] for i in left] != [key[3][i] for i in right]:
        problem = f"axes {left} of x and {right} of y differ in size"
        raise explain(ShapeError, "tensordot", problem, named)
    x, y = ascii_letters[:ndim], list(ascii_letters[ndim : ndim + ndim_y])
    for i, j in zip(left, right, strict=True):
        y[j] = x[i]
    kept = [letter for i, letter in enumerate(x) if i not in left]
    kept += [letter for j, letter in enumerate(y) if j not in right]
    return f"{x},{''.join(y)}->{''.join(kept)}"


# ---- einsum ------------------------------------------------------------------------


def einsum(equation: str, *tensors: Tensor) -> Tensor:
    """Sum of products in Einstein's notation: ``einsum("bij,bjk->bik", x, y)``.

    Each letter names an axis; letters that do not occur in the result are summed over. ``...``
    stands for leading axes that broadcast. Without ``->`` the result has the letters that occur
    once, in alphabetical order. Tensors are multiplied from left to right, by matrix products.

    Raises:
        ArgumentError: if the equation is not a str.
        ShapeError: if the letters do not fit the tensors, or sizes of one letter differ.

    >>> a, b = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> print(ndl.einsum("ij,jk->ik", a, b))
    [[1. 4.]
     [3. 8.]]
    >>> print(ndl.einsum("ii", a))  # the trace
    5.0
    """
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: expected the equation as a str, got {equation!r:.60}")
    operands = as_tensors(tensors, "einsum")
    return _plan_of((equation, *map(shape_of, operands)), _einsum_equation, *operands)


def _einsum_equation(key: tuple[str | tuple[int, ...], ...], operands: Sequence[Tensor]) -> str:
    return str(key[0])


def _plan_of(key: tuple[object, ...], equation: Callable[..., str], *operands: Tensor) -> Tensor:
    """Return the result of the plan for this key; the first call makes the plan."""
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) > 1000:
            _plans.clear()
        plan = _plans[key] = _Plan(equation(key, operands), operands)
    return plan.run(operands)


def _fail(equation: str, problem: str, tensors: Sequence[Tensor]) -> Exception:
    named = [(f"x{i}", x) for i, x in enumerate(tensors)]
    return explain(ShapeError, "einsum", f"{equation!r}: {problem}", named)


def _parse(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the letters of each tensor and of the result; ``...`` becomes letters too."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in [*terms, result]:
        rest = term.replace("...", "", 1)
        if rest and not rest.isalpha():
            raise _fail(equation, f"in {term!r} axes are letters, and ... stands once", tensors)
    if len(terms) != len(tensors):
        raise _fail(equation, f"{len(terms)} terms for {len(tensors)} tensors", tensors)
    free = [letter for letter in ascii_letters if letter not in equation]
    longest = 0
    for i, (term, x) in enumerate(zip(terms, tensors, strict=True)):
        named = len(term.replace("...", ""))
        extra = len(shape_of(x)) - named
        if extra < 0 or (extra and "..." not in term):
            raise _fail(equation, f"{term!r} for {len(shape_of(x))} axes", tensors)
        longest = max(longest, extra)
        terms[i] = term.replace("...", "".join(free[-extra:]) if extra else "")
    batch = "".join(free[-longest:]) if longest else ""
    if not arrow:
        every = "".join(terms)
        once = sorted(letter for letter in set(every) if every.count(letter) == 1)
        return terms, batch + "".join(letter for letter in once if letter not in batch)
    result = result.replace("...", batch)
    if len(set(result)) != len(result):
        raise _fail(equation, "the result names an axis twice", tensors)
    return terms, result


def _sizes(equation: str, terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(terms, tensors, strict=True):
        own: dict[str, int] = {}
        for letter, n in zip(term, shape_of(x), strict=True):
            if own.setdefault(letter, n) != n:  # a diagonal: here size 1 does not broadcast
                problem = f"axis {letter!r} of {term!r} has sizes {own[letter]} and {n}"
                raise _fail(equation, problem, tensors)
            known = sizes.get(letter, 1)
            if known != 1 and n not in (1, known):
                raise _fail(equation, f"axis {letter!r} has sizes {known} and {n}", tensors)
            sizes[letter] = max(known, n) if n and known else 0
    return sizes


class _Plan:
    """A plan to compute an equation for operands of given shapes: a list of steps.

    Values are numbered: first the operands, then the result of each step.
    """

    def __init__(self, equation: str, operands: Sequence[Tensor]) -> None:
        terms, result = _parse(equation, operands)
        self._sizes = _sizes(equation, terms, operands)
        self._operands = len(operands)
        self._steps: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = []
        parts = [
            self._prepared(i, term, shape_of(x))
            for i, (term, x) in enumerate(zip(terms, operands, strict=True))
        ]
        x, letters = parts[0]
        for i in range(1, len(parts)):
            later = {letter for _, term in parts[i + 1 :] for letter in term} | set(result)
            x, letters = self._product(x, letters, *parts[i], later)
        x, letters = self._summed(x, letters, set(result))
        missing = [letter for letter in result if letter not in letters]
        if missing:
            raise ShapeError(f"einsum: {equation!r} has no axis {missing[0]!r} on the left")
        x = self._ordered(x, letters, result)
        if not self._steps:  # a tensor of its own all the same
            self._apply(Permute.of(tuple(range(len(result)))), x)

    def run(self, operands: Sequence[Tensor]) -> Tensor:
        """Return the result for operands of the shapes of the plan."""
        values = list(operands)
        for function, arguments in self._steps:
            values.append(function(*[values[i] for i in arguments]))
        return values[-1]

    def _add(self, function: Callable[..., Tensor], *arguments: int) -> int:
        self._steps.append((function, arguments))
        return self._operands + len(self._steps) - 1

    def _apply(self, op: Op, x: int) -> int:
        return self._add(partial(executor.apply, op), x)

    def _prepared(self, x: int, term: str, shape: tuple[int, ...]) -> tuple[int, str]:
        """Make one axis of those of a repeated letter; drop axes of size 1 that broadcast."""
        for letter in sorted(set(term)):
            while term.count(letter) > 1:
                first = term.index(letter)
                second = term.index(letter, first + 1)
                x = self._add(partial(diagonal, k=0, axis1=first, axis2=second), x)
                shape = (
                    *(n for i, n in enumerate(shape) if i not in (first, second)), shape[first],
                )  # fmt: skip
                term = term.replace(letter, "", 2) + letter
        kept = [i for i, letter in enumerate(term) if shape[i] == self._sizes[letter]]
        if len(kept) < len(term):
            x = self._apply(Reshape.of(tuple(shape[i] for i in kept)), x)
        return x, "".join(term[i] for i in kept)

    def _summed(self, x: int, letters: str, needed: set[str]) -> tuple[int, str]:
        gone = [i for i, letter in enumerate(letters) if letter not in needed]
        if gone:
            x = self._add(partial(summation, axes=gone), x)
        return x, "".join(letter for letter in letters if letter in needed)

    def _ordered(self, x: int, letters: str, order: str) -> int:
        if letters == order:
            return x
        return self._apply(Permute.of(tuple(letters.index(letter) for letter in order)), x)

    def _grouped(self, x: int, letters: str, groups: Sequence[str]) -> int:
        """Order the axes by groups, each of which becomes one axis."""
        x = self._ordered(x, letters, "".join(groups))
        if all(len(group) == 1 for group in groups):
            return x
        shape = tuple(prod(self._sizes[letter] for letter in group) for group in groups)
        return self._apply(Reshape.of(shape), x)

    def _product(self, x: int, left: str, y: int, right: str, later: set[str]) -> tuple[int, str]:
        """Multiply two values, and sum over the letters that are not needed later."""
        x, left = self._summed(x, left, later | set(right))
        y, right = self._summed(y, right, later | set(left))
        batch = "".join(letter for letter in left if letter in right and letter in later)
        inner = "".join(letter for letter in left if letter in right and letter not in later)
        rows = "".join(letter for letter in left if letter not in right)
        columns = "".join(letter for letter in right if letter not in left)
        a = self._grouped(x, left, [*batch, rows, inner])
        b = self._grouped(y, right, [*batch, inner, columns])
        out = self._add(matmul if inner else multiply, a, b)
        letters = batch + rows + columns
        if len(rows) != 1 or len(columns) != 1:
            out = self._apply(Reshape.of(tuple(self._sizes[letter] for letter in letters)), out)
        return out, letters


_plans: dict[tuple[object, ...], _Plan] = {}
"""By equation or axes, and shapes."""

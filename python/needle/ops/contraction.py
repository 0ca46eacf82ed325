"""Products over named axes, made of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from needle.backend.axes import normalise_axis
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.matmul import matmul
from needle.ops.movement import permute, reshape
from needle.ops.operands import as_tensors, cast
from needle.ops.rearrange import diagonal
from needle.ops.reduce import summation


def _size(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total


def outer(x: Any, y: Any) -> Any:
    """All products of the elements of two vectors: out[i, j] = x[i] * y[j].

    Raises:
        ShapeError: if one is not a vector.
    """
    x, y = as_tensors((x, y), "outer")
    if len(shape_of(x)) != 1 or len(shape_of(y)) != 1:
        raise explain(ShapeError, "outer", "two vectors are needed", [("x", x), ("y", y)])
    return reshape(x, (-1, 1)) * reshape(y, (1, -1))


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Sum of the products along an axis, in the dtype of the products; other axes broadcast.

    Raises:
        ShapeError: if the sizes of that axis differ.
    """
    x, y = as_tensors((x, y), "vecdot")
    sizes = [shape_of(z)[normalise_axis(axis, len(shape_of(z)))] for z in (x, y)]
    if sizes[0] != sizes[1]:
        problem = f"axis {axis} has sizes {sizes[0]} and {sizes[1]}"
        raise explain(ShapeError, "vecdot", problem, [("x", x), ("y", y)])
    product = x * y
    return cast(summation(product, axis), product.spec.dtype)


def tensordot(x: Any, y: Any, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Sum of products over axes of x and axes of y.

    Args:
        x: a tensor.
        y: a tensor.
        axes: how many last axes of x meet the first ones of y; or the axes of x, and those of y.

    Raises:
        ShapeError: if the sizes of axes that meet differ.
    """
    x, y = as_tensors((x, y), "tensordot")
    ndim = len(shape_of(x))
    if isinstance(axes, (int, np.integer)):
        left, right = list(range(ndim - axes, ndim)), list(range(axes))
        if axes < 0 or axes > min(ndim, len(shape_of(y))):
            raise explain(ShapeError, "tensordot", f"{axes} axes", [("x", x), ("y", y)])
    else:
        left = [normalise_axis(axis, ndim) for axis in axes[0]]
        right = [normalise_axis(axis, len(shape_of(y))) for axis in axes[1]]
    met = [shape_of(x)[i] for i in left]
    if met != [shape_of(y)[i] for i in right]:
        raise explain(
            ShapeError, "tensordot", f"axes {left} of x and {right} of y differ in size",
            [("x", x), ("y", y)],
        )  # fmt: skip
    rows = [i for i in range(ndim) if i not in left]
    columns = [i for i in range(len(shape_of(y))) if i not in right]
    a = reshape(permute(x, rows + left), (_size([shape_of(x)[i] for i in rows]), _size(met)))
    b = reshape(permute(y, right + columns), (_size(met), _size([shape_of(y)[i] for i in columns])))
    shape = [shape_of(x)[i] for i in rows] + [shape_of(y)[i] for i in columns]
    return reshape(matmul(a, b), tuple(shape))


# ---- einsum ------------------------------------------------------------------------


def einsum(equation: str, *tensors: Any) -> Any:
    """Sum of products in Einstein's notation: ``einsum("bij,bjk->bik", x, y)``.

    Each letter names an axis; those that the result lacks are summed over. ``...`` stands for
    leading axes that broadcast. Without ``->`` the result has, in alphabetical order, the letters
    that occur once. Tensors are multiplied from left to right, by matrix products.

    Raises:
        ShapeError: if the letters do not fit the tensors, or sizes of one letter differ.
    """
    operands = as_tensors(tensors, "einsum")
    terms, result = _parse(equation, operands)
    sizes = _sizes(equation, terms, operands)
    parts = [_prepared(x, term, sizes) for x, term in zip(operands, terms, strict=True)]
    x, letters = parts[0]
    for i in range(1, len(parts)):
        later = {letter for _, term in parts[i + 1 :] for letter in term} | set(result)
        x, letters = _product(x, letters, *parts[i], later, sizes)
    x, letters = _summed(x, letters, set(result))
    missing = [letter for letter in result if letter not in letters]
    if missing:
        raise ShapeError(f"einsum: {equation!r} has no axis {missing[0]!r} on the left")
    return permute(x, [letters.index(letter) for letter in result])


def _fail(equation: str, problem: str, tensors: Sequence[Any]) -> Exception:
    named = [(f"x{i}", x) for i, x in enumerate(tensors)]
    return explain(ShapeError, "einsum", f"{equation!r}: {problem}", named)


def _parse(equation: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
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


def _sizes(equation: str, terms: Sequence[str], tensors: Sequence[Any]) -> dict[str, int]:
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


def _prepared(x: Any, term: str, sizes: dict[str, int]) -> tuple[Any, str]:
    """Return a tensor with repeated letters made one; axes of size 1 that broadcast are dropped."""
    for letter in sorted(set(term)):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            x = diagonal(x, 0, first, second)
            term = term.replace(letter, "", 2) + letter
    kept = [i for i, letter in enumerate(term) if shape_of(x)[i] == sizes[letter]]
    x = reshape(x, tuple(shape_of(x)[i] for i in kept)) if len(kept) < len(term) else x
    return x, "".join(term[i] for i in kept)


def _summed(x: Any, letters: str, needed: set[str]) -> tuple[Any, str]:
    gone = [i for i, letter in enumerate(letters) if letter not in needed]
    if gone:
        x = summation(x, gone)
    return x, "".join(letter for letter in letters if letter in needed)


def _product(
    x: Any, left: str, y: Any, right: str, later: set[str], sizes: dict[str, int]
) -> tuple[Any, str]:
    """Return the product of two tensors, summed over the letters that are not needed later."""
    x, left = _summed(x, left, later | set(right))
    y, right = _summed(y, right, later | set(left))
    batch = [letter for letter in left if letter in right and letter in later]
    inner = [letter for letter in left if letter in right and letter not in later]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]

    def grouped(z: Any, letters: str, *groups: list[str]) -> Any:
        order = [letters.index(letter) for letter in [*batch, *groups[0], *groups[1]]]
        shape = [sizes[letter] for letter in batch]
        shape += [_size([sizes[letter] for letter in group]) for group in groups]
        return reshape(permute(z, order), tuple(shape))

    out = matmul(grouped(x, left, rows, inner), grouped(y, right, inner, columns))
    letters = "".join([*batch, *rows, *columns])
    return reshape(out, tuple(sizes[letter] for letter in letters)), letters

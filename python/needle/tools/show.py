"""``show``: a function and its derivatives as formulas, with values computed in three ways."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from needle import autograd, executor, graph, reverse, tree
from needle.derivatives import jvp
from needle.errors import ArgumentError, GradientError
from needle.ops.core.starts import stand_ins
from needle.ops.reduction.reduce import summation
from needle.tensors import Tensor
from needle.tools.formula import Reader, Term, shared, text_of

POINTS = ((0.5, 1.5, 2.5, 0.25, 1.25, 0.75), (2.0, 0.75, 1.25, 3.0, 0.5, 1.5))
"""Default points at which derivatives are compared: values of the inputs in order."""
STEP = 2.0**-13
MOST = 6
"""Number of elements of an input in the table."""
LONGEST = 300
"""Limit of operations of a function and its gradient."""


def show(function: Callable[..., Any], *points: Any) -> None:
    """Print a function as a formula, its derivative by each input, and their values.

    The formulas are read from the graph: both the function and reverse mode run in lazy mode. They
    are simplified for reading (``x * 1``, ``x + 0``), and terms that occur several times get names.
    If the result is not a scalar, u stands for the gradient with respect to it. A table for each
    point follows, in float64: the derivative (of the sum of u times the result) by differences, by
    forward mode and by reverse mode, for at most six elements of each input.

    Args:
        function: takes tensors, returns one tensor.
        points: points to compare at: tuples with a number, array or tensor for each input, or just
            the input for a function of one input. Without points the inputs are scalars.

    Raises:
        GradientError: if the function does not return a floating tensor, depends on none of its
            inputs, or is too long for a formula.
        ArgumentError: if function is not callable, or points have different numbers of values.

    >>> ndl.show(lambda x: x * ops.sin(x), 2.0)
    f(x)  = x * sin(x)
    df/dx = sin(x) + x * cos(x)
    <BLANKLINE>
    at x = 2
                numerical       forward       reverse
      df/dx   0.07700375...   0.07700375...   0.07700375...
    """
    print(shown(function, *points))


def shown(function: Callable[..., Any], *points: Any) -> str:
    """Return the text that ``show`` prints.

    Raises:
        ArgumentError: as ``show``.
    """
    tree.check_function("show", function)
    names = _parameters(function, points)
    chosen = [p if isinstance(p, tuple) else (p,) for p in points]
    chosen = chosen or [values[: len(names)] for values in POINTS]
    for values in chosen:
        if len(values) != len(names):
            raise ArgumentError(
                f"show: a point has {len(values)} values for {len(names)} inputs\n"
                "  rule: a point is a tuple with a value for each input; "
                f"the default points serve up to {len(POINTS[0])} inputs"
            )
    inputs = [[_float64(x) for x in point] for point in chosen]
    lines = _formulas(function, names, inputs[0])
    for point in inputs:
        lines += ["", *_table(function, names, point)]
    return "\n".join(lines)


def _parameters(function: Any, points: Sequence[Any]) -> list[str]:
    """Return the names of the inputs: as many as a point has, or as the function requires."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        found = []
    names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if points:
        count = len(points[0]) if isinstance(points[0], tuple) else 1
    else:
        count = len([p for p in found if p.name in names and p.default is p.empty]) or 1
    return names[:count] if len(names) >= count else list("xyzvw"[:count])


def _float64(x: Any) -> Any:
    values = x.numpy() if isinstance(x, Tensor) else np.asarray(x)
    floating = values.dtype.kind == "f" or values.ndim == 0
    return Tensor(values, dtype="float64" if floating else None, requires_grad=floating)


def _name(function: Any, names: Sequence[str]) -> str:
    """Return the name of the function: a letter that is not an input's."""
    name = getattr(function, "__name__", "f")
    return _free(names, name if len(name) == 1 else "f", *"fgh")


def _free(names: Sequence[str], *letters: str) -> str:
    """Return the first letter that is not an input's name."""
    more = (f"{letters[-1]}{i}" for i in count(1))
    return next(x for x in chain(letters, more) if x not in names)


# ---- formulas --------------------------------------------------------------------------


def _formulas(function: Any, names: Sequence[str], inputs: Sequence[Any]) -> list[str]:
    leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    seeds = _free(names, *"uvw")
    with executor.modes(recording=True, lazy=True):
        out = function(*stand_ins(leaves))
        _check(function, out)
        moving = [i for i, x in enumerate(leaves) if x.requires_grad]
        known = {graph.leaf(x): name for x, name in zip(leaves, names, strict=True)}
        seed = reverse.full_like(out, 1.0)
        if out.size != 1:
            known[graph.leaf(seed)] = seeds
        grads = reverse.collect([out], [seed], [leaves[i] for i in moving], True)
        _check_size([out, *grads])
        reader = Reader(known)
        roots = [reader.read(graph.leaf(x)) for x in (out, *grads)]
    own = _name(function, names)
    labels = [f"{own}({', '.join(names)})", *(f"d{own}/d{names[i]}" for i in moving)]
    named = shared(roots, own, [*names, own, seeds, *reader.constants])
    return _aligned(labels, roots, named, reader.constants)


def _check(function: Any, out: Any) -> None:
    if not isinstance(out, Tensor) or not out.dtype.is_floating:
        kind = str(out.dtype) if isinstance(out, Tensor) else type(out).__name__
        raise GradientError(
            f"show: expected the function to return one floating tensor, got {kind}"
        )
    if not out.requires_grad:
        raise GradientError("show: the result does not depend on any input")


def _check_size(results: Sequence[Any]) -> None:
    count = len(graph.topo([graph.leaf(x) for x in results]))
    if count > LONGEST:
        raise GradientError(
            f"show: the function and its gradient have {count} operations\n"
            f"  rule: at most {LONGEST} operations, so that the formulas can be read\n"
            "  try: a part of the function, or fewer steps of a loop"
        )


def _aligned(
    labels: list[str], roots: list[Term], named: dict[Term, str], constants: dict[str, Any]
) -> list[str]:
    value, *slopes = roots
    rows = [(labels[0], text_of(value, named))]
    rows += [(name, text_of(x, named)) for x, name in named.items() if x != value]
    rows += [
        (a, named.get(x) or text_of(x, named)) for a, x in zip(labels[1:], slopes, strict=True)
    ]
    wide = max(len(label) for label, _ in rows)
    lines = [f"{label:<{wide}} = {text}" for label, text in rows]
    kinds = {
        name: f"{spec.dtype}[{', '.join(map(str, spec.shape))}]" for name, spec in constants.items()
    }
    return lines + [f"{name:<{wide}} : {kind}" for name, kind in kinds.items()]


# ---- numbers ---------------------------------------------------------------------------


def _table(function: Any, names: Sequence[str], inputs: Sequence[Any]) -> list[str]:
    with autograd.no_grad():
        shape = function(*stand_ins(inputs)).shape
    weights = _float64(np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape)).detach()

    def total(*args: Any) -> Any:
        return summation(
            function(*stand_ins(args)) * weights
        )  # the function may assign to its inputs

    moving = [i for i, x in enumerate(inputs) if x.requires_grad]
    grads = autograd.grad(total, moving)(*inputs)
    rows = []
    for i, grad in zip(moving, grads, strict=True):
        x = inputs[i]
        for place in list(np.ndindex(x.shape))[:MOST]:
            unit = np.zeros(x.shape)
            unit[place] = 1.0
            vs = [unit if j == i else None for j in range(len(inputs))]
            numbers = _difference(total, inputs, i, unit), jvp(total, inputs, vs)[1].item()
            label = f"d{_name(function, names)}/d{names[i]}" + (str(list(place)) if place else "")
            rows.append((label, *numbers, float(grad.numpy()[place])))
    where = [f"{n} = {_value(x)}" for n, x in zip(names, inputs, strict=True)]
    where += [f"{_free(names, *'uvw')} = {_value(weights)}"] if weights.size != 1 else []
    return [f"at {', '.join(where)}", *_columns(rows)]


def _difference(total: Any, inputs: Sequence[Any], i: int, unit: Any) -> float:
    """Return the slope from four points nearby, with an error of the order of STEP ** 4."""
    values = []
    for steps in (-2, -1, 1, 2):
        moved = Tensor(inputs[i].numpy() + steps * STEP * unit, dtype="float64")
        with autograd.no_grad():
            values.append(total(*inputs[:i], moved, *inputs[i + 1 :]).item())
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * STEP)


def _value(x: Any) -> str:
    if x.size > MOST:
        return f"{x.dtype}{list(x.shape)}"
    if x.size == 1:
        return f"{x.item():g}"
    return np.array2string(x.numpy(), separator=", ", precision=6).replace("\n", "")


def _columns(rows: Sequence[tuple[str, float, float, float]]) -> list[str]:
    table = [["", "numerical", "forward", "reverse"]]
    table += [[label, *(f"{n + 0.0:.8g}" for n in numbers)] for label, *numbers in rows]
    widths = [max(len(row[k]) for row in table) for k in range(4)]
    return [
        "  " + row[0].ljust(widths[0]) + "".join(f"   {row[k]:>{widths[k]}}" for k in (1, 2, 3))
        for row in table
    ]

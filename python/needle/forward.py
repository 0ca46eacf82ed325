"""Dual numbers, which forward mode puts in the place of arrays.

While ``jvp`` runs a function, a tensor that depends on its inputs holds a ``Dual`` instead of an
array: the value and the tangent, two tensors without that level. ``executor`` computes an op on
such tensors by the op's ``push``, which sees only values and tangents. Nothing else is stored, so a
value and its tangent are freed with the tensor that holds them.

Every ``jvp`` has a level, a number higher than all earlier ones. A value and a tangent may hold
duals of lower levels. An op handles the highest level among its inputs first; inputs without that
level are constants there, even if they have lower levels. So nested derivatives are kept apart
(Siskind, Pearlmutter, "Nesting forward-mode AD in a functional framework", 2008).

``Dual`` is a subclass of ``Array`` without memory. So the graph records and frees it like any
array, and the native gate, which takes arrays with memory only, needs no check of its own: programs
without forward mode pay nothing. In lazy mode the duals are there at once, and what they hold
waits. ``executor.primal_array`` reads below all levels (what users and optimizers see);
``executor.array_of`` gives the dual.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from needle import graph, tree
from needle.backend.array import Array, make_array

_levels = itertools.count(1)


class Dual(Array):
    """A value and its tangent (None: zero) at one level, without memory of its own."""

    __slots__ = ("level", "primal", "tangent")
    level: int
    primal: Any
    tangent: Any


def dual(level: int, primal: Any, tangent: Any) -> Dual:
    """Return the dual of two tensors of one spec."""
    self: Dual = make_array(primal.spec, None, 0, None, Dual)
    self.level, self.primal, self.tangent = level, primal, tangent
    return self


def top(tensors: Sequence[Any]) -> int:
    """Return the highest level among tensors; 0 if none holds a dual."""
    level = 0
    for x in tensors:
        array = x.array
        if type(array) is Dual:
            level = max(level, array.level)
        elif type(array) is tuple:
            level = max(level, *(part.level for part in array if type(part) is Dual), 0)
    return level


def varies(x: Any, leaves: bool = True) -> bool:
    """Return whether derivatives flow to x: it requires a gradient and is recorded, or is a dual.

    Args:
        x: anything; only tensors vary.
        leaves: whether leaves that require a gradient count.
    """
    if not isinstance(x, graph.TensorBase):
        return False
    if x.requires_grad and graph.recording() and (leaves or x.op is not None):
        return True
    array = x.array
    return type(array) is Dual and (array.tangent is not None or varies(array.primal, leaves))


def needs(tensors: Sequence[Any]) -> bool:
    """Return whether a gradient flows to one of the tensors, or into a dual that it holds."""
    return any(x is not None and (x.requires_grad or _dual_needs(x.array)) for x in tensors)


def _dual_needs(array: Any) -> bool:
    return type(array) is Dual and needs((array.primal, array.tangent))


def unbox(tensors: Sequence[Any], level: int) -> tuple[list[Any], list[Any]]:
    """Return the values of tensors below a level, and their tangents there (None: zero)."""
    primals, tangents = [], []
    for x in tensors:
        array = x.array
        own = type(array) is Dual and array.level == level
        primals.append(array.primal if own else x)
        tangents.append(array.tangent if own else None)
    return primals, tangents


def box(level: int, out: Any, tangent: Any) -> Any:
    """Return the array, or tuple of arrays, of a result with its tangent."""
    if tangent is None and out.array is not None:
        return out.array
    if type(out.spec) is not tuple:
        return dual(level, out, tangent)  # also for a postponed constant without an array
    tangents = [None] * len(out.spec) if tangent is None else tangent
    return tuple(box(level, out[i], part) for i, part in enumerate(tangents))


def push(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """Return a function's result and its tangent, given tangents of some inputs.

    Both have the structure of the result: a tensor, or (nested) tuples and lists of them. A zero
    tangent is None, in the arguments and in the result.
    """
    level = next(_levels)
    pairs = zip(primals, tangents, strict=True)
    inputs = [x if t is None else graph.wrap(dual(level, x, t)) for x, t in pairs]
    return split(function(*inputs), level)


def split(out: Any, level: int) -> tuple[Any, Any]:
    """Return a result without its level, and its tangent there."""
    if isinstance(out, (tuple, list)):
        primals, tangents = [], []
        for part in out:
            primal, tangent = split(part, level)
            primals.append(primal)
            tangents.append(tangent)
        return tree.like(out, primals), tree.like(out, tangents)
    if type(out.spec) is tuple:
        return split(out.tuple(), level)
    (primal,), (tangent,) = unbox((out,), level)
    return primal, tangent

"""Augmented assignments: ``x += y`` adds to x, which keeps its dtype and shape.

Where no gradient flows, x stays the same object with a new value, as with ``x[...] = x + y``: other
variables for it see the new value, and ``with no_grad(): w -= lr * w.grad`` updates the leaf w.
Where a gradient flows, the variable is bound to a new tensor, the result of an op; with
``NEEDLE_BACKEND=np`` always, as in the course.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from needle import config, executor, forward, graph, ops, tracing
from needle.errors import ArgumentError, DtypeError, NeedleError, ShapeError, explain
from needle.ops.starts import become, is_start

_apply = executor.apply


def _kept(x: Any, out: Any, sign: str, other: Any) -> Any:
    """Return the result of ``x <sign> other``, which must have the dtype and shape of x.

    With ``NEEDLE_BACKEND=np`` any result is allowed, as in the course.

    Raises:
        ArgumentError: if it is not a tensor, because the other operand defines the operator.
        DtypeError: if the dtype would change.
        ShapeError: if the shape would change.
    """
    if not isinstance(out, graph.TensorBase):
        raise explain(
            ArgumentError, f"x {sign}= y", f"x would become a {type(out).__name__}",
            [("x", x), ("y", other)], "x stays a tensor", f"x = x {sign} y",
        )  # fmt: skip
    new, old = out.spec, x.spec
    same = new.dtype is old.dtype and new.shape == old.shape
    if same or config.current().backend == "np":
        return out
    kind: type[NeedleError] = ShapeError if new.dtype is old.dtype else DtypeError
    raise explain(
        kind, f"x {sign}= y", f"x would become {new.dtype}{list(new.shape)}",
        [("x", x), ("y", other)], "an augmented assignment keeps dtype and shape",
        f"x = x {sign} y",
    )  # fmt: skip


def _assigned(x: Any, out: Any) -> Any:
    """Return x with the value of out if out requires no gradient, else out."""
    fixed = x.requires_grad and not is_start(x)
    if out.requires_grad or fixed or forward.top((x, out)) or config.current().backend == "np":
        return out
    if out.array is None and not x.requires_grad:  # lazy mode
        graph.rebind(x, out)
    elif tracing.current() is not None:
        become(x, out)
    else:
        graph.set_array(x, executor.held(out))
    return x


def _of_op(op: Any, sign: str) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        out = _apply(op, self, other)
        if out.spec is not self.spec:
            out = _kept(self, out, sign, other)
        return _assigned(self, out)

    return augmented


def _of_operator(function: Callable[[Any, Any], Any], sign: str) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        return _assigned(self, _kept(self, function(self, other), sign, other))

    return augmented


class Augmented:
    """The augmented assignments of tensors."""

    __slots__ = ()

    __iadd__ = _of_op(ops.Add.of(), "+")
    __isub__ = _of_op(ops.Subtract.of(), "-")
    __imul__ = _of_op(ops.Multiply.of(), "*")
    __itruediv__ = _of_op(ops.Divide.of(), "/")
    __ifloordiv__ = _of_operator(operator.floordiv, "//")
    __imod__ = _of_operator(operator.mod, "%")
    __ipow__ = _of_operator(operator.pow, "**")
    __imatmul__ = _of_operator(operator.matmul, "@")
    __iand__ = _of_operator(operator.and_, "&")
    __ior__ = _of_operator(operator.or_, "|")
    __ixor__ = _of_operator(operator.xor, "^")
    __ilshift__ = _of_operator(operator.lshift, "<<")
    __irshift__ = _of_operator(operator.rshift, ">>")

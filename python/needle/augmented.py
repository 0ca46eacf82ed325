"""Augmented assignments: ``x += y`` lets x stand for the sum, of the dtype and shape that x had.

Of a leaf that requires gradients, where nothing is recorded, it gives the leaf new data instead, as
``x[...] = x + y`` does: so ``with no_grad(): w -= lr * w.grad`` is a step of w, which stays a leaf.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from needle import config, executor, forward, graph, ops
from needle.errors import DtypeError, NeedleError, ShapeError, explain

_apply = executor.apply


def _kept(x: Any, out: Any, sign: str, other: Any) -> Any:
    """Return the result of ``x <sign> other``, which must have the dtype and shape of x.

    With ``NEEDLE_BACKEND=np`` anything goes, as in the course.

    Raises:
        DtypeError: if the dtype would change.
        ShapeError: if the shape would change.
    """
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
    """Return the result of an assignment to x: x with new data if it is a leaf to be updated."""
    is_leaf = x.node is None or x.node.op is None
    if not is_leaf or not x.requires_grad or graph.recording() or forward.top((x, out)):
        return out
    graph.set_array(x, executor.held(out))
    return x


def _of_op(op: Any, sign: str) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        out = _apply(op, self, other)
        if out.spec is not self.spec:
            out = _kept(self, out, sign, other)
        return _assigned(self, out) if self.requires_grad else out

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

"""The checks of ``check_finite``, which find the first NaN or infinity, and their messages.

The Python definition of the gate and ``realize`` compute through ``compute`` here while the setting
``finite`` is on. The results of ops that the user called and of ops in gradients are checked.
Inside an op (in the expansion of a composite) masked infinities are allowed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from needle import config, dtype
from needle.backend import kernels
from needle.errors import NonFiniteError, describe, explain


class Seen(NamedTuple):
    """What an observer is told: an op, its arrays, its result, and when it began and ended.

    Attributes:
        place: where it was called, or the op whose gradient it is part of.
    """

    op: Any
    arrays: Sequence[Any]
    result: Any
    place: str
    began: float
    ended: float


class _State(threading.local):
    inside = False  # an op is being computed
    cause = ""  # the op whose gradient or tangent is being built
    region = ""  # the checkpoint that runs again, and where it was called
    pushed: Any = None  # the op whose value is computed together with its tangent
    observer: Any = None  # is given results in place of the check


_state = _State()
_places: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def on() -> bool:
    """Return whether results must be checked."""
    return config.current().finite == "on"


def watches(node: Any) -> bool:
    """Return whether the result of a postponed node must be checked, now or when it was made."""
    return on() or (len(_places) > 0 and node in _places)


def note(node: Any, line: str) -> None:
    """Remember the user's line that made a node, or the op whose gradient it is part of."""
    if node is not None:
        cause = _state.cause if node.op is not _state.pushed else ""
        _places[node] = cause or f"called at {line}{_state.region}"


def unwatched(function: Any, *args: Any) -> Any:
    """Return ``function(*args)`` without checking the ops that it runs."""
    outer, _state.inside = _state.inside, True
    try:
        return function(*args)
    finally:
        _state.inside = outer


def compute(op: Any, arrays: Sequence[Any], line: str = "", node: Any = None) -> Any:
    """Return ``op.compute(*arrays)``, checked.

    Raises:
        NonFiniteError: if it has a NaN, or an infinity while the inputs have none.
    """
    if _state.inside:
        return op.compute(*arrays)
    began = time.perf_counter()
    result = unwatched(op.compute, *arrays)
    if _state.observer is not None:
        ended = time.perf_counter()
        seen = Seen(op, arrays, result, _place(op, line, node), began, ended)
        unwatched(_state.observer, seen)
        return result
    for part in result if type(result) is tuple else (result,):
        if _is_suspect(part):
            _judge(op, arrays, part, _place(op, line, node))
    return result


def _place(op: Any, line: str, node: Any) -> str:
    """Return where an op was called, or the op whose gradient it is part of."""
    place = _places.get(node, "") if node is not None else ""
    place = place or (_state.cause if op is not _state.pushed else "")
    return place or (f"called at {line}" if line else "")


@contextmanager
def observed(observer: Callable[[Seen], None]) -> Iterator[None]:
    """Call the observer for each result that would be checked, in this thread.

    Nothing is checked meanwhile. The setting ``finite`` must be on.
    """
    outer, _state.observer = _state.observer, observer
    try:
        yield
    finally:
        _state.observer = outer


def gradient(op: Any, out_grad: Any, out: Any) -> Any:
    """Return ``op.gradient(out_grad, out)``; errors in it name the op and its line."""
    if _state.cause:  # inside the gradient of a composite, which is named already
        return op.gradient(out_grad, out)
    place = _places.get(out.node, "")
    _state.cause = f"in the gradient of {op}" + (f", {place}" if place else "")
    try:
        return op.gradient(out_grad, out)
    finally:
        _state.cause = ""


def push(op: Any, primals: Any, tangents: Any, line: str) -> Any:
    """Return ``op.push(primals, tangents)``; errors in the tangent name the op and its line."""
    if _state.cause:
        return op.push(primals, tangents)
    _state.cause, _state.pushed = f"in the tangent of {op}, called at {line}", op
    try:
        return op.push(primals, tangents)
    finally:
        _state.cause, _state.pushed = "", None


@contextmanager
def again() -> Iterator[None]:
    """Name the ops of a region that runs again for its gradient, and then the region."""
    outer = _state.cause, _state.region
    _state.cause, _state.region = "", f"\n  {_state.cause}" if _state.cause else ""
    try:
        yield
    finally:
        _state.cause, _state.region = outer


def check_operands(operation: str, named: Sequence[tuple[str, Any]], line: str) -> None:
    """Check the arrays that an operation made of several ops starts from.

    Raises:
        NonFiniteError: if one has a NaN.
    """
    for _, x in named:
        if _count("isnan", x):
            raise explain(
                NonFiniteError, operation, f"{_found(x)}\n  called at {line}", named,
                "check_finite() stops at the first use of a NaN",
            )  # fmt: skip


def check_update(operation: str, parameter: Any, new: Any) -> None:
    """Check the new value of a parameter.

    Raises:
        NonFiniteError: if it is not finite.
    """
    if _is_suspect(new):
        raise explain(
            NonFiniteError, operation, f"the update made {_found(new)}",
            [("parameter", parameter), ("gradient", parameter.grad)],
            "check_finite() stops at the first of them",
            "a smaller learning rate, or clipped gradients",
        )  # fmt: skip


def _is_suspect(x: Any) -> bool:
    return x.dtype.is_floating and not _every(kernels.elementwise("isfinite", x, dtype=dtype.bool_))


def _every(x: Any) -> bool:
    return bool(kernels.reduce("all", x, tuple(range(x.ndim)), False).item())


def _count(test: str, x: Any) -> int:
    if not x.dtype.is_floating:
        return 0
    hits = kernels.elementwise(test, x, dtype=dtype.bool_)
    return int(kernels.reduce("sum", hits, tuple(range(x.ndim)), False).item())


def _found(x: Any) -> str:
    """Return the counts as text: ``1 NaN and 2 infinities in float32[3] cpu()``."""
    nans, infinities = _count("isnan", x), _count("isinf", x)
    parts = [f"{nans} NaN"] if nans else []
    if infinities:
        parts.append(f"{infinities} infinit{'y' if infinities == 1 else 'ies'}")
    return f"{' and '.join(parts)} in {describe(x)}"


def _judge(op: Any, arrays: Sequence[Any], result: Any, place: str) -> None:
    """Raise if a result has a NaN, or an infinity that no input has."""
    flat = [x for x in arrays if type(x) is not tuple]
    named = [("xyzuvw"[i] if i < 6 else f"x{i}", x) for i, x in enumerate(flat)]
    before = [(name, x) for name, x in named if _is_suspect(x)]
    if before and not _count("isnan", result):
        return
    known = "; ".join(f"{name} already had {_found(x)}" for name, x in before)
    raise explain(
        NonFiniteError, op.name,
        f"{_found(result)}" + (f"\n  {place}" if place else ""), named,
        "check_finite() stops at the first op that makes a NaN or an infinity; "
        + (known or "all inputs were finite"),
    )  # fmt: skip

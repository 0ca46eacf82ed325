"""Results of functions: a tensor, or (nested) tuples and lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from needle import graph
from needle.errors import ArgumentError, GradientError, explain


def kind(x: Any) -> str:
    """Return the name of the type of a result."""
    return type(x).__name__


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of a callable object."""
    return str(getattr(function, "__name__", kind(function)))


def check_function(name: str, function: Any) -> None:
    """Refuse an object that is not callable, such as the result of a function.

    Raises:
        ArgumentError: if it is not callable.
    """
    if not callable(function):
        tensor = isinstance(function, graph.TensorBase)
        raise explain(
            ArgumentError, name, f"expected a function, got {kind(function)}",
            [("given", function)] if tensor else [],
            f"{name}(f, ...) is about f: a function of tensors that returns tensors",
            "y.backward(), then x.grad, if you have the result y already" if tensor else "",
        )  # fmt: skip


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a check that it returns tensors.

    A TensorTuple becomes a tuple.

    Raises:
        ArgumentError: if it is not a function.
        GradientError: when called, if a result is not a tensor.
    """
    check_function(name, function)

    def call(*args: Any, **named: Any) -> Any:
        out = function(*args, **named)
        for part in flat(out):
            if not isinstance(part, graph.TensorBase):
                raise GradientError(
                    f"{name}: the function returned {kind(part)}\n"
                    "  rule: it returns a tensor, or (nested) tuples and lists of tensors"
                )
        return plain(out)

    call.__name__ = name_of(function)
    return call


def plain(out: Any) -> Any:
    """Return a structure with each TensorTuple replaced by a tuple."""
    return rebuilt(out, lambda x: x.tuple() if _is_tuple(x) else x)


def _is_tuple(x: Any) -> bool:
    return isinstance(x, graph.TensorBase) and type(x.spec) is tuple


def is_several(x: Any) -> bool:
    """Return whether x is a tuple, a list or a TensorTuple."""
    return isinstance(x, (tuple, list)) or _is_tuple(x)


def flat(out: Any) -> list[Any]:
    """Return the tensors of a result in order."""
    if isinstance(out, (tuple, list)):
        return [x for part in out for x in flat(part)]
    return [out]


def rebuilt(out: Any, part: Callable[[Any], Any]) -> Any:
    """Return the structure of a result with each tensor replaced."""
    if isinstance(out, (tuple, list)):
        return like(out, [rebuilt(x, part) for x in out])
    return part(out)


def like(out: tuple[Any, ...] | list[Any], parts: Iterable[Any]) -> Any:
    """Return parts in the type of out: a list, a tuple, or the same named tuple."""
    make = getattr(out, "_make", list if isinstance(out, list) else tuple)
    return make(parts)


def aligned(name: str, out: Any, values: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a result's tensors and the parts of ``values`` in the same places.

    Raises:
        GradientError: if ``values`` differs in structure; None stands for any part.
    """
    if not isinstance(out, (tuple, list)):
        return [(out, values)]
    if values is None:
        return [(x, None) for x in flat(out)]
    values = plain(values) if _is_tuple(values) else values
    if not isinstance(values, (tuple, list)) or len(values) != len(out):
        given = len(values) if isinstance(values, (tuple, list)) else f"one {kind(values)}"
        raise GradientError(
            f"{name}: {given} for a {kind(out)} of {len(out)} results\n"
            "  rule: one value for each result, in the structure that the function returned; "
            "None for zero"
        )
    return [pair for x, v in zip(out, values, strict=True) for pair in aligned(name, x, v)]

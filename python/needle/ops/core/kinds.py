"""Flags and words of public functions: what is annotated ``bool`` must be one, for all of them.

A wrapper checks them before the function runs. Within Needle functions are called as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from needle import graph
from needle.errors import OptionError
from needle.ops.core.attributes import flag

_F = TypeVar("_F", bound=Callable[..., Any])


def checked(function: _F, name: str = "") -> _F:
    """Return a function that refuses what is no flag and no word; itself if it takes neither."""
    kinds = {p: kind for p, kind in function.__annotations__.items() if kind in _CHECKS}
    kinds |= {p: "str" for p in function.__annotations__.keys() & _WORDS - kinds.keys()}
    kinds.pop("return", None)
    inner = inspect.unwrap(function)
    if not kinds or hasattr(function, "checks") or hasattr(inner, "checks"):
        return function
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    places = [(i, p, _CHECKS[kinds[p]]) for i, p in enumerate(names) if p in kinds]
    checks = {p: _CHECKS[kind] for p, kind in kinds.items()}
    title = name or function.__name__
    first = places[0][0] if places else len(names)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > first:
            for place, parameter, check in places:
                if place < len(args):
                    check(title, parameter, args[place])
        for parameter in kwargs:
            if parameter in checks:
                checks[parameter](title, parameter, kwargs[parameter])
        return function(*args, **kwargs)

    out: Any = call
    out.__code__ = out.__code__.replace(co_name=function.__name__)  # the name in errors
    out.checks = checks
    return out


def check_all(scope: dict[str, object]) -> None:
    """Check the flags of the functions in a module's scope."""
    for name, function in list(scope.items()):
        if name[0] != "_" and inspect.isfunction(function):
            scope[name] = checked(function, name)


def check_layers(scope: dict[str, object]) -> None:
    """Check the flags of the classes in a module's scope, when one is made."""
    for name, cls in list(scope.items()):
        if name[0] != "_" and inspect.isclass(cls) and inspect.isfunction(cls.__init__):
            cls.__init__ = checked(cls.__init__, name)  # type: ignore[method-assign]


def _check_flag(name: str, parameter: str, value: bool) -> None:
    if value is not True and value is not False and value is not ...:
        flag(f"{name}: {parameter}", value)


def _check_word(name: str, parameter: str, value: object) -> None:
    if isinstance(value, (np.ndarray, graph.TensorBase)):  # cannot be compared with words
        raise OptionError(f"{name}: {parameter} is {value!r:.60}, not a str")


_WORDS = {"dtype", "device", "mode", "approximate", "copy", "padding_mode"}
"""Parameters of any annotation that are compared with words."""

_CHECKS: dict[str, Callable[[str, str, Any], None]] = {"bool": _check_flag, "str": _check_word}

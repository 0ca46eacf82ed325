"""Checks of an op's attributes and of its number of operands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from needle.dtype import DType, fits
from needle.errors import ArgumentError, DtypeError, OptionError

__all__ = ["either"]


def operand_count(method: Any) -> int | None:
    """Return how many operands a method of an op takes; None: any number."""
    method = inspect.unwrap(method) if callable(method) else None
    code = getattr(method, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or method.__defaults__:
        return None
    return int(code.co_argcount) - 1


def exact(value: object) -> Any:
    """Return a key that tells 1, 1.0 and True apart, and 0.0 and -0.0, which are all equal."""
    if type(value) is tuple:
        return tuple(map(exact, value))
    return (type(value), value, type(value) is float and math.copysign(1.0, value))


def save_mask(entry: Sequence[int | str], output: int) -> int:
    """Return an entry of ``saves`` as bits: one per input, and bit ``output`` for the result."""
    bits = 0
    for item in entry:
        bits |= 1 << (min(item, 62) if isinstance(item, int) else output)
    return bits


def _integer(value: object) -> bool:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        return False
    if not -(2**63) <= value < 2**63:
        raise OptionError(f"an attribute does not fit into 64 bits: {value}")
    return True


def _numbers(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_integer, value))


def _pairs(value: object) -> bool:
    return isinstance(value, tuple) and all(_numbers(x) and len(x) == 2 for x in value)


MOST = 2**42
"""Limit of the sizes, steps and paddings of windows: what is computed of them fits 64 bits."""


def _small(value: int) -> bool:
    if not -MOST <= value <= MOST:
        raise OptionError(
            f"a size, a step or a padding of windows is {value}\n  rule: at most 2**42 = {MOST}"
        )
    return True


_KINDS: dict[str, Callable[[Any], bool]] = {
    "int": _integer,
    "int | None": lambda value: value is None or _integer(value),
    "bool": lambda value: isinstance(value, (bool, np.bool_)),
    "float": lambda value: isinstance(value, (int, float, np.number)),
    "str": lambda value: isinstance(value, str),
    "DType": lambda value: isinstance(value, DType),
    "tuple[int, ...]": _numbers,
    "Sizes": lambda value: _numbers(value) and all(map(_small, value)),
    "Floats": lambda value: isinstance(value, tuple) and all(isinstance(x, float) for x in value),
    "tuple[tuple[int, int], ...]": _pairs,
    "Pairs": lambda value: _pairs(value) and all(map(_small, chain.from_iterable(value))),
}
"""Checks for attributes with these annotations; an op checks others itself."""


def real(what: str, value: Any) -> float:
    """Return an argument as a float.

    Raises:
        ArgumentError: if it is not a number.
    """
    if type(value) is float:
        return value
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{what} is {value!r:.60}, not a number")


def flag(what: str, value: object) -> bool:
    """Return an argument as a bool. Numbers are refused: ``x.sum(0, 1)`` means two axes.

    Raises:
        ArgumentError: if it is neither True nor False.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    axes = isinstance(value, int) and what.endswith("keepdims")
    advice = "\n  try: several axes as a tuple, (0, 1)" if axes else ""
    raise ArgumentError(f"{what} is {value!r:.60}, neither True nor False{advice}")


def number_in(operation: str, value: object, kind: DType) -> bool | int | float:
    """Return a number as a value of a dtype.

    Raises:
        DtypeError: if the dtype cannot hold the number.
    """
    if not isinstance(value, (bool, int, float, np.number, np.bool_)):
        raise DtypeError(f"{operation}: the value {value!r:.60} is not a number")
    number = value.item() if isinstance(value, np.generic) else value
    if kind.kind == "f":
        try:
            return float(number)
        except OverflowError:
            bits = int(number).bit_length()
            problem = f"{operation}: an integer of {bits} bits does not fit into {kind}"
            raise DtypeError(problem) from None
    inside = number in (0, 1) if kind.kind == "b" else fits(number, kind)
    if not inside or number != int(number):
        raise DtypeError(
            f"{operation}: the value {value!r} does not fit into a {kind} tensor\n"
            f"  rule: the dtype stays {kind}\n  try: cast the tensor first, x.astype(...)"
        )
    return bool(number) if kind.kind == "b" else int(number)


def either(first: Any, second: Any, names: tuple[str, str] = ("axes", "axis")) -> Any:
    """Return the argument that a function was given under one of two names.

    Raises:
        OptionError: if both were given.

    >>> ops.either(None, 1)
    1
    """
    if first is not None and second is not None:
        given = " and ".join(f"{n}={x!r:.60}" for n, x in zip(names, (first, second), strict=True))
        raise OptionError(f"{given} are two names of one argument")
    return first if second is None else second


def check_attribute(op: Any, name: str) -> None:
    """Raise ArgumentError or OptionError if an attribute does not match its annotation."""
    kind = next((c.__annotations__[name] for c in type(op).__mro__ if name in _own(c)), "Any")
    value = getattr(op, name)
    if kind in _KINDS and not _KINDS[kind](value):
        raise ArgumentError(f"{op.name}: {name} is {kind}, not {value!r:.60}")
    if name == "eps" and not value >= 0.0:
        raise OptionError(f"{op.name}: eps is {value}\n  rule: not negative")


def _own(cls: type) -> Any:
    return cls.__dict__.get("__annotations__", ())

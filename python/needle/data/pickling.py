"""What of an object cannot be pickled, by name."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from needle.errors import DataError, explain

__all__ = ["check_picklable", "culprit"]

DEEPEST = 20
"""Levels of attributes and elements that are looked into."""


def check_picklable(name: str, value: object) -> None:
    """Check that an object can be sent to another process.

    Raises:
        DataError: if it cannot, with the name of the deepest part that cannot.
    """
    try:
        pickle.dumps(value, protocol=5)
    except Exception:
        place, problem = culprit(name, value)
        raise explain(
            DataError,
            "DataLoader",
            f"{place} cannot be pickled: {problem}",
            rule="worker processes get a copy of the data set and its functions",
            advice="functions defined at the top of a module, files that are opened when the first "
            "item is read; or workers='thread'",
        ) from None


def culprit(name: str, value: object) -> tuple[str, str]:
    """Return the name of the deepest part of an object that cannot be pickled, and why."""
    problem = _problem(value) or ""
    for _ in range(DEEPEST):
        for inner_name, inner in _parts(name, value):
            found = _problem(inner)
            if found is not None:
                name, value, problem = inner_name, inner, found
                break
        else:
            break
    return name, problem


def _problem(value: object) -> str | None:
    try:
        pickle.dumps(value, protocol=5)
    except Exception as error:  # any class may raise anything
        return str(error) or type(error).__name__
    return None


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object consists of, by the names that a program would use."""
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", x) for key, x in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{name}[{i}]", x) for i, x in enumerate(value))
    try:
        state = value.__reduce_ex__(5)[2] if not isinstance(value, type) else None
    except Exception:  # as for files, which have no state
        return
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f"{name}.{key}", x) for key, x in part.items())

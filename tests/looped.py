"""Families of quick cases as one test: all of them run, and what fails is gathered.

An item of pytest costs more than many a case; thousands of them take minutes.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import os
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from fresh_state import fresh

SHOWN = 3
"""Of how many failures the whole message and the place are shown."""


class Gathered:
    """Runs cases one after the other, each undisturbed, and fails once for all of them.

    The environment variable ``ONLY`` chooses the cases whose label it is, or matches.
    """

    def __init__(self, variable: str) -> None:
        self.variable, self.only = variable, os.environ.get(variable)
        self.ran = self.skipped = 0
        self.failed: list[tuple[str, BaseException]] = []

    def run(self, label: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Run a case; keep what it raises."""
        if self.only and label != self.only and not fnmatch.fnmatchcase(label, self.only):
            return
        self.ran += 1
        try:
            with fresh():
                function(*args, **kwargs)
        except pytest.skip.Exception:
            self.skipped += 1
        except (Exception, pytest.fail.Exception) as error:
            self.failed.append((label, error))

    def finish(self) -> None:
        """Fail if a case failed; skip if none ran."""
        if self.failed:
            pytest.fail("\n".join(self.report()), pytrace=False)
        if self.ran == self.skipped:
            pytest.skip("no case to run here")

    def report(self) -> Iterator[str]:
        """Yield all labels, then the first failures, each with the command that repeats it."""
        yield f"{len(self.failed)} of {self.ran} cases failed:"
        yield from (f"  {label}: {type(error).__name__}" for label, error in self.failed)
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        for label, error in self.failed[:SHOWN]:
            command = f"{self.variable}={shlex.quote(label)} python -m pytest {shlex.quote(test)}"
            yield f"\n--- {command}\n{''.join(traceback.format_exception(error)[-4:])}"


def looped(
    names: str, values: Iterable[Any], ids: Callable[[Any], str] | None = None
) -> Callable[[Any], Any]:
    """Decorate a test as ``pytest.mark.parametrize`` does, but loop over the values inside it.

    Several of them loop inside each other; what is left of the parameters are fixtures, which all
    cases share. ``ONLY_CASE='shape=(3,), kind=float32'`` runs that case alone. For cases that take
    some milliseconds: of longer ones pytest-xdist can run several at a time, if they are items.
    """
    keys = [key.strip() for key in names.split(",")]
    cases = []
    for i, value in enumerate(values):
        case = dict(zip(keys, value if len(keys) > 1 else (value,), strict=True))
        cases.append((", ".join(_text(key, x, i, ids) for key, x in case.items()), case))

    def decorate(test: Any) -> Any:
        function, inner = getattr(test, "family", (test, None))
        family = cases
        if inner is not None:
            family = [(f"{a}, {b}", x | y) for a, x in cases for b, y in inner]

        @functools.wraps(function)
        def run(**fixtures: Any) -> None:
            gathered = Gathered("ONLY_CASE")
            for label, case in family:
                gathered.run(label, function, **fixtures, **case)
            gathered.finish()

        given = inspect.signature(test).parameters.values()
        left = [parameter for parameter in given if parameter.name not in keys]
        run.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        run.family = function, family  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorate


def _text(key: str, value: Any, index: int, ids: Callable[[Any], str] | None) -> str:
    """Return how a case is called: by what it is, or by its place where that has no short name."""
    if ids is not None:
        return f"{key}={ids(value)}"
    if isinstance(value, (str, int, float, tuple)) or value is None:
        text = str(value)
    else:
        text = str(getattr(value, "__name__", "<"))
    return f"{key}={index if '<' in text or len(text) > 60 else text}"

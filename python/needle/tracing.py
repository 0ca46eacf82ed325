"""The trace that a thread makes, if any: where a function becomes a program.

While it is on, nothing may be computed: a value that is read would be a constant of the program.
What would read one asks here, and raises TraceError.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from needle.errors import TraceError, user_line


class _State(threading.local):
    trace: Any = None


_state = _State()
active = 0
"""How many threads trace; a quick test before asking which."""


def current() -> Any:
    """Return the trace of this thread, or None."""
    return _state.trace if active else None


@contextmanager
def entered(trace: Any) -> Iterator[None]:
    """Make a trace the one of this thread; None pauses it."""
    global active
    outer, _state.trace = _state.trace, trace
    active += 1
    try:
        yield
    finally:
        active -= 1
        _state.trace = outer


changes = 0
"""How often settings of modules changed: only then programs compare what they depend on."""


def changed(old: object = None) -> None:
    """Note that a module, or what requires gradients, changed; ``old``: what a module held."""
    global changes
    changes += 1
    if old is not None:
        replaced(old)


class Watch:
    """Counts how often a tensor or a module was taken out of a module, for programs that use it."""

    __slots__ = ("__weakref__", "count")

    def __init__(self) -> None:
        self.count = 0


_watched: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()


def watch(x: object) -> Watch:
    """Return what counts for a tensor or a module, which the caller keeps alive with it."""
    return _watched.setdefault(id(x), Watch())


def replaced(old: object) -> None:
    """Note that a module does not hold an object any more, or those of a tuple or list."""
    if isinstance(old, (tuple, list)):
        for x in old:
            replaced(x)
    elif (found := _watched.get(id(old))) is not None:
        found.count += 1
        changed()


def refused(problem: str, advice: str, rule: str = "") -> TraceError:
    """Return the error for something that a traced function may not do."""
    rule = rule or "a compiled function runs once as Python; later calls run its program alone"
    return TraceError(
        f"compile: {problem}\n  called at {user_line()}\n  rule: {rule}\n  try: {advice}"
    )


def check(problem: str, advice: str) -> None:
    """Refuse something while this thread traces.

    Raises:
        TraceError: if it does.
    """
    if active and _state.trace is not None:
        raise refused(problem, advice)


def read(tensor: Any) -> TraceError:
    """Return the error for a tensor whose value is read."""
    maker = f"the result of {tensor.op}" if tensor.op is not None else "a tensor"
    name = f' "{tensor.name}"' if tensor.name else ""
    return refused(
        f"the value of {maker}{name}, {tensor.spec}, is read while the function is traced",
        "return the tensor, or compute with tensors (where, minimum); numbers and settings are "
        "arguments named in static=; printing and decisions stay outside the function",
        "values are known only when the program runs",
    )


def check_read(tensor: Any) -> None:
    """Refuse to read a tensor that is older than this thread's trace.

    Raises:
        TraceError: if there is a trace, and the tensor is not made within it.
    """
    trace = _state.trace
    if trace is not None and tensor.serial < trace.since and not trace.knows(tensor):
        raise read(tensor)

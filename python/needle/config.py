"""Settings: one frozen value in a context variable, and the only reader of ``NEEDLE_*``.

>>> import needle
>>> with needle.config(debug=1):
...     pass
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

from needle.errors import OptionError, unknown


@dataclass(frozen=True)
class Config:
    """All switches. Each is set by the variable ``NEEDLE_<NAME>`` at start.

    Attributes:
        backend: "nd" (native CPU and float32 by default) or "np" (the NumPy device, dtypes as
            NumPy infers them, and the course's rule that gradients are part of the graph).
        device: name of the default device; empty means what ``backend`` says.
        mode: "eager" or "lazy".
        native: "on", or "off" to run on the Python definitions alone.
        fast: "on", or "off" to send every operation through ``executor.apply``'s Python definition.
        overrides: "on", or "off" to compute every composite by its expansion.
        debug: 0 silent; 1 errors and warnings name the lines that made each tensor.
        isa: instruction set of the native kernels; empty means the best one.
        threads: number of threads of the native kernels; 0 means all cores.
        data: folder of the data sets.
        cache: folder for downloads and compiled kernels.
        emulator: "off", or "on" for the device ``cuda-emu``, which runs CUDA kernels on the host.
    """

    backend: str = "nd"
    device: str = ""
    mode: str = "eager"
    native: str = "on"
    fast: str = "on"
    overrides: str = "on"
    debug: int = 0
    isa: str = ""
    threads: int = 0
    data: str = ""
    cache: str = ""
    emulator: str = "off"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"NEEDLE_{name.upper()}={getattr(self, name)}: must be one of "
                    + ", ".join(allowed)
                )
        if self.debug < 0 or self.threads < 0:
            raise OptionError(f"debug={self.debug}, threads={self.threads}: must not be negative")


_CHOICES = {
    "backend": ("nd", "np"),
    "mode": ("eager", "lazy"),
    "native": ("on", "off"),
    "fast": ("on", "off"),
    "overrides": ("on", "off"),
    "emulator": ("on", "off"),
}


def _from_environment() -> Config:
    values: dict[str, object] = {}
    for field in fields(Config):
        text = os.environ.get(f"NEEDLE_{field.name.upper()}")
        if text is None:
            continue
        try:
            values[field.name] = int(text) if field.type == "int" else text
        except ValueError:
            raise OptionError(
                f"NEEDLE_{field.name.upper()}={text}: must be a whole number"
            ) from None
    return Config(**values)  # type: ignore[arg-type]  # values come from fields(Config)


_initial = _from_environment()
_current: ContextVar[Config] = ContextVar("needle_config", default=_initial)
_listeners: list[Callable[[Config], None]] = []


def current() -> Config:
    """Return the settings in force here."""
    return _current.get()


def initial() -> Config:
    """Return the settings that the environment gave at start."""
    return _initial


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """Return the number of threads that the kernels use: ``threads``, or what OpenMP is told."""
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return current().threads or (int(limit) if limit.isdigit() else cores())


def on_change(listener: Callable[[Config], None]) -> None:
    """Call ``listener`` with the settings now and whenever they change in some context."""
    _listeners.append(listener)
    listener(current())


@contextmanager
def override(**changes: object) -> Iterator[Config]:
    """Change settings within a ``with`` block, for this thread or task only.

    Raises:
        OptionError: for an unknown name, with the nearest known one, or a value out of range.
    """
    known = {field.name for field in fields(Config)}
    for name in changes:
        if name not in known:
            raise unknown("config", name, known)
    token = _current.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        for listener in _listeners:
            listener(current())
        yield current()
    finally:
        _current.reset(token)
        for listener in _listeners:
            listener(current())


class _Callable(types.ModuleType):
    """Lets users write ``with needle.config(debug=1):``."""

    __call__ = staticmethod(override)


sys.modules[__name__].__class__ = _Callable

"""Settings: one frozen value in a context variable, and the only reader of ``NEEDLE_*``.

>>> with ndl.config(threads=1):
...     print(ndl.ones(2) + 1.0)
[2. 2.]
"""

from __future__ import annotations

import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

from needle.errors import NeedleError, OptionError, unknown

MOST_THREADS = 64
"""Limit of the native kernels, as in src/cpu/base/threads.h."""


@dataclass(frozen=True)
class Config:
    """All settings. The environment variable ``NEEDLE_<NAME>`` sets each one at start.

    Attributes:
        backend: "nd" (native CPU, and float32 by default) or "np" (NumPy device, dtypes as NumPy
            infers them, and the course's rule that gradients are part of the graph).
        device: name of the default device; empty: chosen by ``backend``.
        mode: "eager" or "lazy".
        native: "on", or "off" to run without the native module.
        fast: "on", or "off" to run every operation by the Python definition of ``executor.apply``.
        overrides: "on", or "off" to compute every composite by its expansion.
        conv: method of convolutions on the native CPU: "im2col", "direct", "winograd", "onednn" (a
            build option); empty: chosen by the shapes. See ``needle.ops.image.convolution``.
        finite: "off", or "on" to stop at the first op that makes a NaN or an infinity.
        debug: 0; or 1 to name in errors and warnings the lines that made each tensor.
        isa: instruction set of the native kernels; empty: the best one.
        threads: number of threads of the native kernels, at most 64; 0: all cores.
        compile: how compiled functions run: "on"; "nofuse" without fused kernels; "python" without
            the native runner; "off" as if they were not compiled.
        check: of compiled programs: "spec" to infer all specs again after each pass; "poison" to
            overwrite values that no later kernel may read.
        products: method of matrix products on the native CPU: "fast", or "rows" for results whose
            rows have the same bits however many rows there are. For the whole process.
        memory_limit: largest number of bytes for the arrays of one device, as a number or as text
            like "512MiB"; 0: no limit. Larger arrays raise OutOfMemoryError.
        data: folder of the data sets.
        cache: folder for downloads and compiled kernels.
        emulator: "off"; "on" for the device ``cuda-emu``, which runs CUDA kernels on the host;
            "late" to run each kernel only when its result is needed; "asan" to run under the
            address sanitizer, whose library must already be loaded.
    """

    backend: str = "nd"
    device: str = ""
    mode: str = "eager"
    native: str = "on"
    fast: str = "on"
    overrides: str = "on"
    finite: str = "off"
    conv: str = ""
    debug: int = 0
    isa: str = ""
    threads: int = 0
    compile: str = "on"
    check: str = ""
    products: str = "fast"
    memory_limit: int = 0
    data: str = ""
    cache: str = ""
    emulator: str = "off"

    def __post_init__(self) -> None:
        if isinstance(self.memory_limit, str):
            object.__setattr__(self, "memory_limit", _bytes(self.memory_limit))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"NEEDLE_{name.upper()}={getattr(self, name)}: must be one of "
                    + ", ".join(filter(None, allowed))
                )
        for name in ("isa", "data", "cache"):
            if not isinstance(getattr(self, name), (str, os.PathLike)):
                raise OptionError(f"NEEDLE_{name.upper()}={getattr(self, name)}: must be a string")
        for name in ("debug", "threads", "memory_limit"):
            value = getattr(self, name)
            most, text = (_MOST_BYTES, "2**63") if name == "memory_limit" else (2**31, "2**31")
            integer = isinstance(value, int) and (name == "debug" or not isinstance(value, bool))
            if not integer or not 0 <= value < most:
                raise OptionError(
                    f"NEEDLE_{name.upper()}={value!r}: must be an integer >= 0 and less than {text}"
                )


_ONCE = ("native", "isa", "emulator")
"""Settings that are read at import only."""

_CHOICES = {
    "backend": ("nd", "np"),
    "mode": ("eager", "lazy"),
    "native": ("on", "off"),
    "fast": ("on", "off"),
    "overrides": ("on", "off"),
    "finite": ("on", "off"),
    "emulator": ("on", "off", "asan", "late"),
    "products": ("fast", "rows"),
    "compile": ("on", "nofuse", "python", "off"),
    "check": ("", "spec", "poison"),
    "conv": ("", "im2col", "direct", "winograd", "onednn"),
}


_MOST_BYTES = 2**63
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _bytes(text: str) -> int:
    """Return the number of bytes for a text such as "64MiB", "1.5 GiB" or "4096"."""
    found = re.fullmatch(r"(\d{1,100})(?:\.(\d{1,100}))? *([A-Za-z]*)", text.strip(), re.ASCII)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if found is None or found[3].lower() not in units:
        raise OptionError(
            f"NEEDLE_MEMORY_LIMIT={text}: must be a number of bytes, KiB, MiB, GiB or TiB"
        )
    fraction = found[2] or ""  # computed in integers, because a float has only 53 bits
    value = int(found[1] + fraction) * units[found[3].lower()] // 10 ** len(fraction)
    if value >= _MOST_BYTES:
        raise OptionError(f"NEEDLE_MEMORY_LIMIT={text}: must be less than 2**63 bytes (8388608TiB)")
    return value


def _from_environment() -> Config:
    values: dict[str, object] = {}
    for field in fields(Config):
        text = os.environ.get(f"NEEDLE_{field.name.upper()}")
        if not text:  # an empty variable counts as unset
            continue
        try:
            plain = field.type == "int" and field.name != "memory_limit"
            values[field.name] = int(text) if plain else text
        except ValueError:
            raise OptionError(f"NEEDLE_{field.name.upper()}={text}: must be an integer") from None
    return Config(**values)  # type: ignore[arg-type]  # values come from fields(Config)


problem: NeedleError | None = None
"""Error of the environment, which the command line prints in one line."""


def refuse(error: NeedleError | str) -> None:
    """Raise an error of the environment; for the command line, keep it as ``problem`` instead.

    This package is imported before the command's own code can catch an exception.
    """
    global problem
    error = OptionError(error) if isinstance(error, str) else error
    if not _is_command():
        raise error
    problem = problem or error


def _is_command() -> bool:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    return program in ("needle", "needle.exe") or sys.orig_argv[1:3] == ["-m", "needle"]


def _initial_settings() -> Config:
    try:
        return _from_environment()
    except OptionError as error:
        refuse(error)
        return Config()


_initial = _initial_settings()
_current: ContextVar[Config] = ContextVar("needle_config", default=_initial)
_switched: Callable[..., AbstractContextManager[None]]  # of the executor, which sets it


def current() -> Config:
    """Return the current settings of this thread or task."""
    return _current.get()


def variable() -> ContextVar[Config]:
    """Return the context variable that holds the settings."""
    return _current


def initial() -> Config:
    """Return the settings from the environment at start."""
    return _initial


def environment(**changes: str) -> dict[str, str]:
    """Return an environment for a child process that imports the same packages as this one.

    Its variables ``NEEDLE_<NAME>`` have the given values.
    """
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return {**os.environ, **paths, **{f"NEEDLE_{k.upper()}": v for k, v in changes.items()}}


def cores() -> int:
    """Return the number of processor cores that this process may use.

    A container's quota counts, of control groups of version 1 and 2: part of a core as a whole one.
    """
    known = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        known = len(os.sched_getaffinity(0))
    return min([known, *map(math.ceil, _quotas())])


def _quotas(root: str = "/sys/fs/cgroup", listing: str = "/proc/self/cgroup") -> Iterator[float]:
    """Yield the quotas, in cores, of this process's control groups and of those around them."""
    for line in _lines(listing):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        path = path.strip("/")
        while True:
            yield from _quota(os.path.join(root, controllers, path), not controllers)
            if not path:
                break
            path = os.path.dirname(path)


def _quota(folder: str, unified: bool) -> Iterator[float]:
    if unified:
        found = " ".join(_lines(os.path.join(folder, "cpu.max"))).split()
    else:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        found = [word for name in files for word in _lines(os.path.join(folder, name))]
    if len(found) == 2 and all(word.isdigit() for word in found) and int(found[1]) > 0:
        yield max(int(found[0]) / int(found[1]), 1.0)


def _lines(path: str) -> list[str]:
    """Return the lines of a file of the system; none if it cannot be read."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def thread_count() -> int:
    """Return the number of kernel threads: ``threads``, or ``OMP_NUM_THREADS``."""
    limit = re.match(r"\s*(\d{1,9})\s*(,|$)", os.environ.get("OMP_NUM_THREADS", ""), re.ASCII)
    told = int(limit[1]) if limit else 0
    return min(current().threads or told or cores(), MOST_THREADS)


def on_override(
    switched: Callable[[ContextVar[Config], Config, Set[str]], AbstractContextManager[None]],
) -> None:
    """Let ``override`` enter ``switched(variable, settings, names of those that change)``.

    That block sets the variable and switches everything that depends on the settings. It is native
    if possible, so that no signal can arrive between the two or before switching back.
    """
    global _switched
    _switched = switched


@contextmanager
def override(**changes: object) -> Iterator[Config]:
    """Change settings within a ``with`` block, for this thread or task only.

    Some settings belong to the thread, not to a single task: ``mode``, ``memory_limit`` on the
    native CPU, and ``fast="off"`` (other tasks then only lose speed). While a task waits within
    such a block, other tasks of the thread run with its settings. ``threads`` and ``products``
    apply to the whole process. The block entered last takes precedence; after all blocks are left,
    in any order, the settings are as before.

    Raises:
        OptionError: for an unknown name, a value out of range, or a setting that is only read at
            start: ``native``, ``isa``, ``emulator``.
        DeviceError: for an unknown device.
    """
    known = {field.name for field in fields(Config)}
    for name in changes:
        if name not in known:
            raise unknown("config: setting", name, known)
    for name in _ONCE:
        now = getattr(current(), name)
        if changes.get(name, now) != now:
            raise OptionError(
                f"config: {name} is read once, when needle is imported; it is {now!r}\n"
                f"  try: set NEEDLE_{name.upper()}={changes[name]} before the program starts"
            )
    settings = replace(current(), **changes)  # type: ignore[arg-type]
    with _switched(_current, settings, changes.keys()):
        yield settings


class _Callable(types.ModuleType):
    """Let users write ``with needle.config(debug=1):``."""

    __call__ = staticmethod(override)


sys.modules[__name__].__class__ = _Callable

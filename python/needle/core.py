"""The compiled module, or None and the reason why it is missing.

Everything in it also exists in Python, so that Needle imports and works without it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from types import ModuleType

from needle import config

native: ModuleType | None = None
native_error: str | None = None


def _load() -> None:
    global native, native_error
    if config.current().native == "off":
        native_error = "switched off by NEEDLE_NATIVE=off"
        return
    try:
        from needle import _core  # type: ignore[attr-defined]  # it has no stub
    except ImportError as error:
        from importlib.util import find_spec

        missing = find_spec("needle._core") is None
        _do_without(
            "it was not built at install time" if missing else str(error),
            "Install a C++17 compiler, then reinstall with NEEDLE_REQUIRE_NATIVE=1, which shows "
            "why the build fails.",
        )
        return
    try:
        _core.select_isa(config.current().isa)
    except ValueError as error:
        if not _core.supported_isas():
            _do_without(
                str(error),
                "To rebuild it for this processor, run 'pip install --force-reinstall --no-deps "
                ".' in Needle's folder.",
            )
            return
        config.refuse(str(error))  # a wrong NEEDLE_ISA must not disable the kernels
        _core.select_isa("")
    _core.set_threads(-config.cores())
    _core.set_threads(config.current().threads)
    _core.set_products(config.current().products == "rows")
    _core.start_memory_limit(config.current().memory_limit)
    native = _core


def numbers(kind: str) -> Mapping[str, int]:
    """Return the native module's numbers by name, of functions, kinds of ops, modes, algorithms.

    Without the module they are any numbers, each of one name.
    """
    if native is None:
        return defaultdict(itertools.count(1).__next__)
    found: dict[str, int] = native.numbers(kind)
    return found


def _do_without(reason: str, remedy: str) -> None:
    global native_error
    import warnings

    native_error = reason
    warnings.warn(
        f"needle runs without its native module ({reason}); only the numpy backend works. {remedy}",
        RuntimeWarning,
        stacklevel=3,
    )


_load()

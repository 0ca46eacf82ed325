"""The build backend that pip calls: scikit-build-core, with three additions.

- Where the native module cannot be compiled, the wheel holds the Python part alone.
  ``NEEDLE_REQUIRE_NATIVE=1`` and ``USE_DNNL=1`` make that an error. (An override ``if.failed`` of
  scikit-build-core does this too, but pip then compiles while it says "Preparing metadata".)
- Objects are kept in ``build/``, so that the next installation from this folder reuses them.
- pip hides the output of a build. One line on the terminal says what is compiled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scikit_build_core.build as backend
from scikit_build_core.build import *  # noqa: F403  # the other hooks are as they are there
from scikit_build_core.errors import CMakeNotFoundError

Settings = dict[str, Any]

PYTHON_ONLY = {
    "wheel.cmake": "false",
    "wheel.py-api": "py3",
    "wheel.build-tag": "0_no_native_module",
}


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel, without the native module where that cannot be compiled."""
    settings = config_settings or {}
    folder = Path(settings.get("build-dir", f"build/{sys.implementation.cache_tag}")).absolute()
    try:
        if not os.access(".", os.W_OK):
            return backend.build_wheel(wheel_directory, settings, metadata_directory)
        with _alone(folder):
            settings = {"build-dir": str(folder), **_keep_nanobind(folder), **settings}
            _forget_configuration(folder)
            _tell_terminal(f"  needle: compiling in {folder}, minutes the first time")
            return backend.build_wheel(wheel_directory, settings, metadata_directory)
    except (SystemExit, CMakeNotFoundError) as error:
        if _is_on("NEEDLE_REQUIRE_NATIVE") or _is_on("USE_DNNL"):
            raise
        print(f"needle: the native module did not build ({error}); installing the Python part")
    return backend.build_wheel(wheel_directory, {**(config_settings or {}), **PYTHON_ONLY})


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process builds in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        if os.name == "posix":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _keep_nanobind(folder: Path) -> Settings:
    """Copy nanobind to a path that stays: pip's environment for the build has a new one each time.

    Compilers' commands name its headers, and Ninja and ccache compare commands.
    """
    try:
        import nanobind
    except ImportError:  # CMakeLists.txt says what to do
        return {}
    copy = folder / f"nanobind-{nanobind.__version__}"
    if not copy.exists():
        part = copy.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(Path(nanobind.__file__).parent, part)
        part.rename(copy)
    return {"cmake.define.nanobind_DIR": str(copy / "cmake")}


def _forget_configuration(folder: Path) -> None:
    """Remove what CMake found out the last time, but not the objects.

    Options of the last build do not stay, and the compiler is looked for again. Without its own
    notes scikit-build-core does not remove the objects.
    """
    for name in ("CMakeCache.txt", ".skbuild-info.json"):
        (folder / name).unlink(missing_ok=True)
    for found in folder.glob("CMakeFiles/[0-9]*"):  # by version of CMake
        shutil.rmtree(found)


def _tell_terminal(line: str) -> None:
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        terminal.write(f"\n{line}\n")


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "no", "off", "false")

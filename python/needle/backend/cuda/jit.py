"""Compilation of kernels: NVRTC, and the cache on disk.

A ``Unit`` is a kernel file and the instantiations to compile. NVRTC compiles it to a cubin for one
compute capability, never to PTX, which drivers older than the compiler refuse.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from needle import config
from needle.errors import DeviceError

HERE = Path(__file__).parent
KERNELS, EMULATOR = HERE / "kernels", HERE / "emu"
OPTIONS = ("--std=c++17", "--extra-device-vectorization")
"""Options of NVRTC for every architecture."""


@dataclass(frozen=True)
class Unit:
    """A kernel file and the instantiations to compile.

    Attributes:
        file: file name in ``kernels/``.
        expressions: C++ expressions that name kernels, such as ``fill<float, int>``.
        text: source to append to the file's.
    """

    file: str
    expressions: tuple[str, ...]
    text: str = ""

    def source(self) -> str:
        """Return the text to compile."""
        return f'#include "{self.file}"\n{self.text}'


@cache
def sources(*folders: Path) -> bytes:
    """Return all kernel sources as one text, which is part of the keys of cached results."""
    files = sorted(f for folder in folders for f in folder.iterdir() if f.is_file())
    return b"".join(f.name.encode() + b"\0" + f.read_bytes() for f in files)


def key(unit: Unit, *context: str, folders: tuple[Path, ...] = (KERNELS,)) -> str:
    """Return the name of a compiled unit: it depends on sources, options, target and compiler."""
    digest = hashlib.sha256(sources(*folders))
    for part in (unit.file, unit.text, *unit.expressions, *context):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()[:40]


class Cache:
    """Files below ``NEEDLE_CACHE/kernels``, shared by all processes.

    A file is written under a temporary name and renamed, so that readers never see a part of it. If
    the folder cannot be written, or is full, results are kept in the memory of this process, and a
    warning says so once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        root = Path(config.current().cache or Path.home() / ".cache" / "needle")
        self.folder = folder or root / "kernels"
        self._memory: dict[str, Path] = {}
        self._warned = False

    def find(self, name: str) -> Path | None:
        """Return the file of that name, or None."""
        path = self.folder / name
        return path if path.is_file() else self._memory.get(name)

    def put(self, name: str, content: bytes) -> Path:
        """Store a file; return its path."""
        try:
            return _write(self.folder, name, content)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"needle: cannot keep compiled kernels in {self.folder} ({error.strerror}), so "
                    "every process compiles them again; set NEEDLE_CACHE to a writable folder",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._memory[name] = _in_memory(name, content)
            return self._memory[name]


def _in_memory(name: str, content: bytes) -> Path:
    """Return a file without a name, which is deleted when the process ends."""
    handle = os.memfd_create(name)
    with os.fdopen(handle, "wb", closefd=False) as file:
        file.write(content)
    return Path(f"/proc/self/fd/{handle}")


def _write(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, folder / name)
    except BaseException:
        os.unlink(temporary)
        raise
    return folder / name


# ---- NVRTC -----------------------------------------------------------------------------


class Nvrtc:
    """The compiler of the wheel nvidia-cuda-nvrtc; it does not need a driver.

    Raises:
        DeviceError: if the wheels are not installed.
    """

    def __init__(self) -> None:
        try:
            self.nvrtc = import_module("cuda.bindings.nvrtc")
            major, minor = self._check(self.nvrtc.nvrtcVersion())
        except Exception as error:  # the exception differs between releases
            raise DeviceError(
                "NVRTC is missing: pip install 'needle-dl[cuda]'"
                f" ({str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'})"
            ) from None
        self.version = f"nvrtc {major}.{minor}"

    def compile(self, unit: Unit, arch: str, *more: str) -> tuple[bytes, dict[str, str], str]:
        """Compile a unit.

        Args:
            unit: the unit to compile.
            arch: for example ``sm_90``.
            more: further options.

        Returns:
            The cubin; the symbol of each expression; the compiler's log.

        Raises:
            DeviceError: with source, options and log, if it does not compile.
        """
        nvrtc = self.nvrtc
        options = [*OPTIONS, f"--gpu-architecture={arch}", f"--include-path={KERNELS}", *more]
        program = self._check(
            nvrtc.nvrtcCreateProgram(unit.source().encode(), b"unit.cu", 0, [], [])
        )
        try:
            for expression in unit.expressions:
                self._check(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
            encoded = [option.encode() for option in options]
            (code,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
            log = self._text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise DeviceError(failure(unit, options, log.decode(errors="replace")))
            names = {
                expression: self._check(
                    nvrtc.nvrtcGetLoweredName(program, expression.encode())
                ).decode()
                for expression in unit.expressions
            }
            cubin = self._text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            return cubin, names, log.decode(errors="replace")
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, size: Any, get: Any) -> bytes:
        room = bytes(self._check(size(program)))
        self._check(get(program, room))
        return room

    def _check(self, result: tuple[Any, ...]) -> Any:
        code, *values = result
        if int(code):
            raise DeviceError(f"nvrtc: {code}")
        return values[0] if len(values) == 1 else tuple(values)


def failure(unit: Unit, options: list[str], log: str) -> str:
    """Return the message for a kernel that does not compile."""
    return (
        f"kernel {unit.file} does not compile\n  wanted: {', '.join(unit.expressions)}\n"
        f"  options: {' '.join(options)}\n  log: {log.strip()}"
    )


def pack(cubin: bytes, names: dict[str, str]) -> bytes:
    """Return one file for a cubin and its symbols."""
    return json.dumps(names).encode() + b"\n" + cubin


def unpack(content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the cubin and its symbols."""
    head, _, cubin = content.partition(b"\n")
    return cubin, json.loads(head)

"""A driver without a GPU: the same kernels, compiled by the host's compiler, run on the host.

``emu/cuda_emu.h`` stands for CUDA, ``emu/runtime.cc`` for the hardware. What is asked for is done
when the call returns. Memory handed out is poisoned and has guards around it, which are looked at
when it comes back.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from needle.backend.cuda.driver import Event, NoMemory, Properties, Triple
from needle.backend.cuda.jit import EMULATOR, KERNELS, Cache, Unit, failure, key
from needle.errors import DeviceError

COMPILERS = ("g++", "c++")  # the sources use GCC's extensions
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fwrapv",
    "-fno-strict-aliasing", "-fno-gnu-unique", "-fvisibility=hidden", "-U_FORTIFY_SOURCE",
    "-DNEEDLE_EMULATOR",
)  # fmt: skip
RUNTIME_FLAGS = (*FLAGS, "-fvisibility=default")
SANITIZE = ("-fsanitize=address", "-g")
GUARD, GUARD_BYTE, FRESH_BYTE = 256, 0xA5, 0xFF
MEMORY = 4 << 30


class _Now:
    """An event of a device that has always done everything."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class EmuDriver:
    """Runs kernels on the host.

    Attributes:
        order: in which order a block's threads run: 0 as numbered, 1 reversed, 2 shuffled, None
            each in turn, launch by launch.
        launches: how many there were.

    Raises:
        DeviceError: if there is no compiler.
    """

    def __init__(self, sanitize: bool = False) -> None:
        found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
        if found is None:
            raise DeviceError(f"the emulator needs a C++ compiler ({' or '.join(COMPILERS)})")
        self.compiler = found
        self.version = _run([found, "--version"]).splitlines()[0]
        self.sanitize = SANITIZE if sanitize else ()
        self.properties = Properties("emulator", "host", MEMORY, 4, GUARD, whole_families=True)
        self.cache = Cache()
        self.order: int | None = None
        self.launches = 0
        self._lock = threading.RLock()
        self._libraries: list[ctypes.CDLL] = []  # functions must not outlive them
        self._memory: dict[int, ctypes.Array[Any]] = {}
        runtime = Unit("runtime.cc", ())
        self._runtime = ctypes.CDLL(
            str(self._compiled(runtime, EMULATOR, RUNTIME_FLAGS)), ctypes.RTLD_GLOBAL
        )
        self._launch = self._runtime.emu_launch
        self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p,
            ctypes.c_int, ctypes.c_uint64,
        ]  # fmt: skip
        self._poison = self._runtime.emu_poison
        self._poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    # ---- memory ------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        try:
            block = (ctypes.c_char * (nbytes + 64))()
        except (MemoryError, OverflowError, ValueError):  # more than ctypes can count
            raise NoMemory from None
        address = -(-ctypes.addressof(block) // 64) * 64
        self._memory[address] = block
        return address

    def release(self, address: int) -> None:
        self._poison(address, ctypes.sizeof(self._memory[address]) - 64, 0)
        del self._memory[address]

    def lent(self, address: int, nbytes: int) -> None:
        """Poison a block and lay its guards; the arena left room for them."""
        with self._lock:
            self._poison(address - GUARD, nbytes + 2 * GUARD, 0)
            ctypes.memset(address - GUARD, GUARD_BYTE, GUARD)
            ctypes.memset(address, FRESH_BYTE, nbytes)
            ctypes.memset(address + nbytes, GUARD_BYTE, GUARD)
            self._poison(address - GUARD, GUARD, 1)
            self._poison(address + nbytes, GUARD, 1)

    def returned(self, address: int, nbytes: int) -> None:
        """Look at a block's guards.

        Raises:
            DeviceError: if somebody wrote there.
        """
        with self._lock:
            whole = b"\xa5" * GUARD
            for name, start in (("before", address - GUARD), ("behind", address + nbytes)):
                self._poison(start, GUARD, 0)
                if ctypes.string_at(start, GUARD) != whole:
                    raise DeviceError(f"a kernel wrote {name} a block of {nbytes} bytes")

    def to_device(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(to, source, nbytes)

    to_host = to_device

    def set_bytes(self, address: int, value: int, nbytes: int) -> None:
        ctypes.memset(address, value, nbytes)

    # ---- kernels -----------------------------------------------------------------------

    def load(self, unit: Unit) -> dict[str, Any]:
        library = ctypes.CDLL(str(self._compiled(unit, KERNELS, FLAGS)))
        self._libraries.append(library)
        return {
            expression: ctypes.cast(library[f"needle_{i}"], ctypes.c_void_p).value
            for i, expression in enumerate(unit.expressions)
        }

    def _compiled(self, unit: Unit, folder: Path, flags: tuple[str, ...]) -> Path:
        flags = (*flags, *self.sanitize)
        name = key(unit, *flags, self.version, folders=(KERNELS, EMULATOR)) + ".so"
        known = self.cache.find(name)
        if known is not None:
            return known
        entries = "".join(
            f'extern "C" __attribute__((visibility("default"))) void needle_{i}'
            f"(const unsigned char* words) {{ ::emu::call({expression}, words); }}\n"
            for i, expression in enumerate(unit.expressions)
        )
        with tempfile.TemporaryDirectory(prefix="needle-") as work:
            source, target = Path(work) / "unit.cc", Path(work) / "unit.so"
            source.write_text(unit.source() + entries)
            options = [*flags, f"-I{folder}", f"-I{EMULATOR}"]
            done = subprocess.run(
                [self.compiler, *options, str(source), "-o", str(target)],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise DeviceError(failure(unit, options, done.stderr))
            return self.cache.put(name, target.read_bytes())

    def launch(self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes) -> None:
        """Run a kernel.

        Raises:
            DeviceError: for what CUDA leaves undefined, with file and line: a barrier that not all
                reach, a shuffle with absent lanes, too much shared memory.
        """
        with self._lock:
            self.launches += 1
            order = self.launches % 3 if self.order is None else self.order
            sizes = (ctypes.c_uint * 6)(*grid, *block)
            start = ctypes.addressof(sizes)
            problem = self._launch(function, start, start + 12, shared, words, order, self.launches)
            if problem is not None:
                raise DeviceError(f"emulator: {problem.decode()}")

    # ---- order -------------------------------------------------------------------------

    def record(self) -> Event:
        return _Now()

    def synchronize(self) -> None:
        pass


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(f"{' '.join(command)}: {error}") from None


def available() -> bool:
    """Return whether a compiler is there."""
    return any(shutil.which(name) for name in COMPILERS) and os.name == "posix"

"""A driver without a GPU: the same kernels, compiled by the host's compiler, run on the host.

``emu/cuda_emu.h`` replaces CUDA, ``emu/runtime.cc`` the hardware. Allocated memory is poisoned and
has guards around it, which are checked when it is freed. Work is done when the call returns; or, in
late mode, only when a wait needs it, with only the required work of other streams. So a missing
wait shows as a wrong result.

It reports, with file and line, a barrier that not all threads reach, two different barriers,
shuffles from lanes that their mask lacks, and more than 48 KiB of shared memory, which it fills
with nonsense for each block. Threads run in three orders in turn, so that a missing barrier shows
as a difference. It has no memory model, blocks run one after another, and nothing it measures is a
speed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable
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
GPUS = 2
KDL_EXTENSION = 12
"""DLPack's number of other devices (dlpack.h: kDLExtDev)."""


class _Mark:
    """An event: a position in a stream's row of work."""

    def __init__(self, driver: EmuDriver, stream: int) -> None:
        self.driver, self.stream, self.passed = driver, stream, False

    def done(self) -> bool:
        return self.passed

    def wait(self) -> None:
        self.driver.waits += 1
        self.driver.run(self.stream, self)

    def pass_by(self) -> None:
        """Note that the row has come so far."""
        self.passed = True


class EmuDriver:
    """Run kernels on the host.

    Attributes:
        order: order of a block's threads: 0 as numbered, 1 reversed, 2 shuffled, None alternates
            from launch to launch.
        late: whether work is postponed until a wait needs it.
        rows: rows of late work, by stream.
        launches: number of launches.
        waits: number of times that the host waited.

    Raises:
        DeviceError: without a compiler.
    """

    count = GPUS
    _lock = threading.RLock()  # of the runtime, which all emulated GPUs share

    def __init__(self, sanitize: bool = False, number: int = 0) -> None:
        if not 0 <= number < GPUS:
            raise DeviceError(f"emulated GPU {number} does not exist: there are {GPUS}")
        found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
        if found is None:
            raise DeviceError(f"the emulator needs a C++ compiler ({' or '.join(COMPILERS)})")
        self.compiler = found
        self.version = _run([found, "--version"]).splitlines()[0]
        self.sanitize = SANITIZE if sanitize else ()
        self.properties = Properties("emulator", "host", MEMORY, 4, GUARD, whole_families=True,
                                     dlpack=(KDL_EXTENSION, number))  # fmt: skip
        self.cache = Cache()
        self.order: int | None = None
        self.late = False
        self.rows: dict[int, deque[Callable[[], None]]] = defaultdict(deque)
        self.launches = self.waits = 0
        self._streams = itertools.count(16)  # beyond the numbers that stand for default streams
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

    def free(self, address: int) -> None:
        self._finish()
        self._poison(address, ctypes.sizeof(self._memory[address]) - 64, 0)
        del self._memory[address]

    pin = allocate

    def unpin(self, address: int) -> None:
        self._finish()
        del self._memory[address]

    def lent(self, address: int, nbytes: int, stream: int) -> None:
        """Poison a block and lay its guards; the arena left room for them."""

        def lay() -> None:
            self._poison(address - GUARD, nbytes + 2 * GUARD, 0)
            ctypes.memset(address - GUARD, GUARD_BYTE, GUARD)
            ctypes.memset(address, FRESH_BYTE, nbytes)
            ctypes.memset(address + nbytes, GUARD_BYTE, GUARD)
            self._poison(address - GUARD, GUARD, 1)
            self._poison(address + nbytes, GUARD, 1)

        self._ask(stream, lay)

    def returned(self, address: int, nbytes: int, stream: int) -> None:
        """Check a block's guards.

        Raises:
            DeviceError: if a kernel wrote there.
        """

        def look() -> None:
            whole = b"\xa5" * GUARD
            for name, start in (("before", address - GUARD), ("behind", address + nbytes)):
                self._poison(start, GUARD, 0)
                if ctypes.string_at(start, GUARD) != whole:
                    raise DeviceError(f"a kernel wrote {name} a block of {nbytes} bytes")

        self._ask(stream, look)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._ask(stream, lambda: ctypes.memmove(to, source, nbytes))

    def set_bytes(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self._ask(stream, lambda: ctypes.memset(address, value, nbytes))

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

    def launch(
        self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes, stream: int
    ) -> None:
        """Run a kernel.

        Raises:
            DeviceError: with file and line, for undefined behaviour of CUDA: a barrier that not all
                threads reach, a shuffle with missing lanes, too much shared memory.
        """
        with self._lock:
            self.launches += 1
            number = self.launches
        order = number % 3 if self.order is None else self.order
        sizes = (ctypes.c_uint * 6)(*grid, *block)

        def run() -> None:
            start = ctypes.addressof(sizes)
            problem = self._launch(function, start, start + 12, shared, words, order, number)
            if problem is not None:
                raise DeviceError(f"emulator: {problem.decode()}")

        self._ask(stream, run)

    # ---- order -------------------------------------------------------------------------

    def create_stream(self) -> int:
        return next(self._streams)

    def record(self, stream: int) -> Event:
        mark = _Mark(self, stream)
        self._ask(stream, mark.pass_by)
        return mark

    def wait(self, stream: int, event: Event) -> None:
        assert isinstance(event, _Mark)
        self._ask(stream, lambda: event.driver.run(event.stream, event))

    def synchronize(self) -> None:
        self.waits += 1
        self._finish()

    def _ask(self, stream: int, work: Callable[[], Any]) -> None:
        with self._lock:
            if self.late or self.rows[stream]:
                self.rows[stream].append(work)
            else:
                work()

    def run(self, stream: int, until: _Mark | None = None, most: int = -1) -> None:
        """Run a stream's late work: all of it, up to an event, or a number of steps."""
        with self._lock:
            row = self.rows[stream]
            while row and most and not (until is not None and until.passed):
                most -= 1
                row.popleft()()

    def _finish(self) -> None:
        for stream in list(self.rows):
            self.run(stream)


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(f"{' '.join(command)}: {error}") from None


def available() -> bool:
    """Return whether a compiler is installed."""
    return any(shutil.which(name) for name in COMPILERS) and os.name == "posix"

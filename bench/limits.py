"""The limits of the machine, measured: operations and bytes per second, the way between processors.

``limits.c`` is compiled for this very processor, if there is a C compiler, and called from as
many Python threads as the benchmarks use (ctypes releases the interpreter's lock).
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from needle import config

THREADS = 2
SIZES = {"64 Ki": 1 << 16, "1 Mi": 1 << 20, "16 Mi": 1 << 24}
"""Floats in each of the three arrays of the triad; the largest is far beyond the caches."""
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-shared", "-fPIC"]


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the limits, or why there are none.

    Keys: ``flops`` (per second, all threads), ``bytes`` (per second, by floats in an array: the
    best of triad, triad with streaming stores, and reading), ``apart`` (seconds that a line of
    the cache takes from one processor to another; not with a single one), ``missing`` if they
    could not be measured.
    """
    library = _library()
    if isinstance(library, str):
        return {"missing": library}
    return _measure(library, 1 if quick else 15)


def apart() -> float | None:
    """Return the seconds that a line takes from one processor to another now, if that is known."""
    library = _library()
    if isinstance(library, str) or config.cores() < 2:
        return None
    with ThreadPoolExecutor(THREADS) as pool:
        return _apart(pool, library, 4_000, 3)


@functools.cache
def _library() -> ctypes.CDLL | str:
    """Return limits.c, compiled, or why it is not."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler to measure with"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "limits.so"
        source = Path(__file__).with_name("limits.c")
        try:
            subprocess.run([compiler, *FLAGS, str(source), "-o", str(library)], check=True)
        except subprocess.CalledProcessError:
            return f"{compiler} does not compile limits.c"
        return ctypes.CDLL(str(library))


def _measure(library: ctypes.CDLL, repeats: int) -> dict[str, Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        turns = 2_000_000
        fma = [lambda: library.fma_chains(ctypes.c_long(turns))] * THREADS
        operations = THREADS * turns * library.operations_per_turn()
        found = {
            "threads": THREADS, "flops": operations / _best(pool, fma, repeats),
            "bytes": {name: _bytes(pool, library, n, repeats) for name, n in SIZES.items()},
        }  # fmt: skip
        if config.cores() > 1:  # or each way would take a turn of the system
            found["apart"] = _apart(pool, library, 20_000, repeats)
        return found


def _apart(pool: ThreadPoolExecutor, library: ctypes.CDLL, turns: int, repeats: int) -> float:
    """Of so many turns that starting the threads takes little of the time."""
    size = ctypes.c_long(turns)
    both = [lambda: library.serve(size), lambda: library.answer(size)]
    return _best(pool, both, repeats) / (2 * turns)


def _bytes(pool: ThreadPoolExecutor, library: ctypes.CDLL, n: int, repeats: int) -> float:
    arrays = [_aligned(n) for _ in range(3)]
    share = n // THREADS
    inner = max(1, (1 << 22) // n)

    def part(function: Any, count: int, i: int) -> Callable[[], None]:
        where = [ctypes.c_void_p(a.ctypes.data + 4 * i * share) for a in arrays[:count]]
        size = ctypes.c_size_t(share)

        def run() -> None:
            for _ in range(inner):
                function(*where, size)

        return run

    best = 0.0
    for function, count in ((library.triad, 3), (library.triad_stream, 3), (library.read_sum, 1)):
        parts = [part(function, count, i) for i in range(THREADS)]
        best = max(best, 4.0 * n * count * inner / _best(pool, parts, repeats))
    return best


def _aligned(n: int) -> np.ndarray[Any, Any]:
    raw = np.ones(n + 16, np.float32)
    return raw[(-raw.ctypes.data % 64) // 4 :][:n]


def _best(pool: ThreadPoolExecutor, parts: list[Callable[[], Any]], repeats: int) -> float:
    """Return the least seconds in which all threads did their parts."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for done in [pool.submit(part) for part in parts]:
            done.result()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    print(measure())

"""All kernels of the device, except fused programs.

Compiling them beforehand in several processes is faster than one by one in the first run: see
``prepare``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from needle import dtype
from needle.backend.cuda import backend, fused, indexing, overrides, products, reductions, sorting
from needle.backend.cuda.driver import OPTIONS
from needle.backend.cuda.jit import Cache, Nvrtc, Unit, key, pack
from needle.backend.cuda.table import BITS, CPP


def _elementwise() -> Iterable[str]:
    return [e for kind in dtype.ALL for e in backend._all_of(kind)()]


def _copies() -> Iterable[str]:
    copies = [e for to in (*CPP.values(), *BITS.values()) for e in backend._copies(to)()]
    moves = [f"transpose<{name}>" for name in BITS.values()]
    return [*copies, *backend._fills(), *moves, "random_bits"]


def _indexing() -> Iterable[str]:
    gathers = [e for kind in indexing.INDEX_TYPES for e in indexing._gathers(kind)]
    return [*gathers, *indexing._keys(), *indexing._sums(), *indexing._ranges(), *indexing._whole()]


FAMILIES: dict[str, Callable[[], Iterable[str]]] = {
    "elementwise.cu": _elementwise,
    "copy.cu": _copies,
    "reduce.cu": lambda: [e for kind in CPP.values() for e in reductions._family(kind)],
    "scan.cu": lambda: [e for kind in CPP.values() for e in reductions._scan_family(kind)],
    "matmul.cu": lambda: [
        e for kind in dtype.ALL if kind.kind != "b" for e in products._family(kind)
    ],
    "matmul_tc.cu": products._tc_family,
    "index.cu": _indexing,
    "sort.cu": sorting._family,
    "softmax.cu": overrides._softmax_family,
    "norm.cu": overrides._norm_family,
    "update.cu": fused._family,
}
"""The instantiations of each file, with 32-bit indices."""


def expressions(file: str) -> list[str]:
    """Return the instantiations of a file, each once."""
    return list(dict.fromkeys(FAMILIES[file]()))


def prepare(arch: str, files: Iterable[str] = tuple(FAMILIES), processes: int = 0) -> int:
    """Compile all kernels of these files into the cache; return the number of new ones.

    Args:
        arch: for example ``sm_90``.
        files: file names in ``kernels/``.
        processes: number of processes; 0: one for each core.

    Raises:
        DeviceError: if NVRTC is missing, or a kernel does not compile.
    """
    version, cache = Nvrtc().version, Cache()
    units = [Unit(file, (expression,)) for file in files for expression in expressions(file)]
    missing = [
        unit for unit in units if cache.find(key(unit, *OPTIONS, arch, version) + ".cubin") is None
    ]
    workers = min(processes or os.cpu_count() or 1, max(1, len(missing)))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        parts = [missing[i :: 4 * workers] for i in range(4 * workers)]
        for _ in pool.map(_compile, parts, [arch] * len(parts)):
            pass
    return len(missing)


def _compile(units: list[Unit], arch: str) -> None:
    compiler, cache = Nvrtc(), Cache()
    for unit in units:
        cubin, names, _ = compiler.compile(unit, arch)
        cache.put(key(unit, *OPTIONS, arch, compiler.version) + ".cubin", pack(cubin, names))

"""Reductions and scans.

Sums add in an order that does not change from run to run: there are no float atomics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import Geometry, geometry, power_of_two, select
from needle.backend.cuda.launch import Launcher, blocks_for
from needle.backend.cuda.table import CPP

KERNELS = {
    "sum": "Sum", "mean": "Mean", "prod": "Prod", "max": "Max", "min": "Min", "any": "Any",
    "all": "All", "argmax": "ArgMax", "argmin": "ArgMin", "norm": "Norm",
}  # fmt: skip
THREADS = 256
EACH = 32
"""Fewest elements of a thread for which another block pays off."""
BLOCKS = 16
"""Number of blocks for each multiprocessor that keeps all of them busy to the end."""
MAX_PARTS = 4096
STATE_BYTES = 24


def reduce(backend: Launcher, how: tuple[str, tuple[int, ...]], out: Any, x: Any) -> None:
    """Reduce x by a function over axes; see ``Backend.reduce``."""
    function, axes = how
    if not out.size:
        return
    kept_axes = [i for i in range(x.ndim) if i not in axes]
    kept = geometry(
        select(x.shape, kept_axes), select(out.strides, kept_axes), select(x.strides, kept_axes)
    )
    reduced = geometry(
        select(x.shape, axes), select(x.strides, axes), keep_order=function.startswith("arg")
    )
    kernel, kind = KERNELS[function], CPP[x.dtype]
    index = "i64" if "i64" in (kept.index, reduced.index) else "i32"
    along = _along(kept, reduced)
    each = _each(x, kept, reduced, along)
    most = BLOCKS * backend.driver.properties.multiprocessors
    team = _team(kept.count, reduced.count, along, each, most)
    outputs = kept.count if along else kept.count // each
    blocks = -(-outputs * team // THREADS)
    parts, part = _parts(most, blocks, team, reduced.count, each if along else 1)
    found = backend.function(
        "reduce.cu", f"reduce<{kernel}, {kind}, {index}>", lambda: _family(kind)
    )
    workspace = backend.allocate(kept.count * parts * STATE_BYTES) if parts > 1 else None
    backend.launch(
        found, (blocks, parts, 1), address(out), address(x), workspace.address if workspace else 0,
        kept.words, reduced.words, team, int(along), int(each > 1), part,
    )  # fmt: skip
    if workspace is not None:
        finish = backend.function(
            "reduce.cu", f"reduce_finish<{kernel}, {kind}>", lambda: _family(kind)
        )
        only_out = geometry(select(x.shape, kept_axes), select(out.strides, kept_axes))
        backend.launch(
            finish, kept.count, address(out), workspace.address, parts, reduced.count,
            only_out.words,
        )  # fmt: skip


def _along(kept: Geometry, reduced: Geometry) -> bool:
    """Return whether the elements of one output are closer to each other than the outputs."""
    inner = abs(reduced.strides[0][-1]) if reduced.shape else 1
    outer = abs(kept.strides[1][-1]) if kept.shape else inner + 1
    return inner <= outer or kept.count < 8


def _each(x: Any, kept: Geometry, reduced: Geometry, along: bool) -> int:
    """Return the number of neighbours that a thread reads at once: elements or outputs."""
    itemsize = x.dtype.itemsize
    width = 16 // itemsize if along else 2 if itemsize == 8 else 4
    if len(reduced.shape) != 1 or address(x) % (width * itemsize):
        return 1
    steps, others = reduced.strides[0], kept.strides[1]
    if not along:
        steps, others = others[-1:], (*others[:-1], *steps)
        if kept.shape[-1] % width:
            return 1
    return width if steps == (1,) and all(step % width == 0 for step in others) else 1


def _team(outputs: int, count: int, along: bool, each: int, most: int) -> int:
    """Return the number of threads that share an output.

    As many as are useful; but with enough outputs for ``most`` blocks, each thread of a row gets
    EACH elements.
    """
    width = min(THREADS, power_of_two(count))
    if along:
        while width > 8 and width * EACH > count and outputs * width > most * THREADS:
            width //= 2
        return width
    side = min(power_of_two(-(-outputs // each)), 32)
    return min(width, THREADS // side)


def _parts(most: int, blocks: int, team: int, count: int, multiple: int) -> tuple[int, int]:
    """Return the number of parts of each output's elements, and their size."""
    wanted = -(-most // blocks)
    parts = max(1, min(wanted, count // (team * EACH), MAX_PARTS))
    part = -(-count // parts) if count else 0
    part = -(-part // multiple) * multiple
    return max(1, -(-count // part) if part else 1), part


def _family(kind: str) -> Iterable[str]:
    for kernel in KERNELS.values():
        if kernel in ("Mean", "Norm") and kind not in ("float", "double", "f16", "bf16"):
            continue
        yield f"reduce<{kernel}, {kind}, i32>"
        yield f"reduce_finish<{kernel}, {kind}>"


SCANS = {"cumsum": "CumSum", "cumprod": "CumProd", "cummax": "CumMax", "cummin": "CumMin"}


def scan(backend: Launcher, how: tuple[str, int], out: Any, x: Any) -> None:
    """Cumulate by a function along an axis; see ``Backend.scan``."""
    function, axis = how
    if not x.size:
        return
    others = [i for i in range(x.ndim) if i != axis]
    lines = geometry(
        select(x.shape, others), select(out.strides, others), select(x.strides, others)
    )
    count, kernel, kind = x.shape[axis], SCANS[function], CPP[x.dtype]
    steps = (count, out.strides[axis], x.strides[axis])
    places = (address(out), address(x), lines.words)
    side_by_side = lines.count >= 1024 and abs(x.strides[axis]) != 1
    if count <= 32 or side_by_side:
        name, grid = f"scan_lines<{kernel}, {kind}, {lines.index}>", blocks_for(lines.count)
    else:
        name, grid = f"scan<{kernel}, {kind}>", lines.count
    found = backend.function("scan.cu", name, lambda: _scan_family(kind))
    backend.launch(found, grid, *places, *steps)


def _scan_family(kind: str) -> Iterable[str]:
    for kernel in SCANS.values():
        yield f"scan<{kernel}, {kind}>"
        yield f"scan_lines<{kernel}, {kind}, i32>"

"""Matrix products: the choice of kernel and tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import Geometry, geometry, pack
from needle.backend.cuda.launch import Launcher
from needle.backend.cuda.table import CPP
from needle.dtype import DType
from needle.errors import DtypeError

TILES = {
    "large": (128, 128, 8, 8, 8),
    "medium": (64, 64, 8, 4, 4),
    "small": (32, 32, 16, 4, 4),
}
"""Rows, columns and depth of a block's tile, rows and columns of a thread's."""


def matmul(backend: Launcher, _what: None, out: Any, a: Any, b: Any) -> None:
    """Multiply; see ``Backend.matmul``."""
    if out.dtype.kind == "b":
        raise DtypeError(f"matmul: not supported for bool on {backend.name}")
    if not out.size:
        return
    (m, n), k = out.shape[-2:], a.shape[-1]
    batches = geometry(out.shape[:-2], out.strides[:-2], a.strides[:-2], b.strides[:-2])
    sizes = pack(m, n, k, *a.strides[-2:], *b.strides[-2:], *out.strides[-2:])
    if _for_tensor_cores(backend, out.dtype, m, n, k):
        _on_tensor_cores(backend, out, a, b, sizes, batches)
        return
    rows, columns, _, *rest = tile = TILES[_tile(backend, m, n, batches.count, out.dtype)]
    grid = (-(-m // rows), -(-n // columns), min(batches.count, 65535))
    if grid[1] > 65535:
        raise DtypeError(f"matmul: {n} columns are too many for {backend.name}")
    name = _name(out.dtype, tile, a.strides[-1] == 1, b.strides[-2] == 1)
    found = backend.function("matmul.cu", name, lambda: _family(out.dtype))
    threads = rows // rest[0] * (columns // rest[1])
    backend.launch(
        found, grid, address(out), address(a), address(b), sizes, batches.words, block=threads
    )


def _tile(backend: Launcher, m: int, n: int, batches: int, kind: DType) -> str:
    """Return the largest tile that leaves every multiprocessor a block."""
    for name in ("large", "medium"):
        rows, columns = TILES[name][:2]
        blocks = -(-m // rows) * -(-n // columns) * batches
        if blocks >= backend.driver.properties.multiprocessors and min(m, n) >= rows // 2:
            if name == "large" and kind.itemsize == 8:
                continue  # too many registers
            return name
    return "small"


def _family(kind: DType) -> Iterable[str]:
    for name, tile in TILES.items():
        if name != "large" or kind.itemsize < 8:
            for a_deep in (False, True):
                for b_deep in (False, True):
                    yield _name(kind, tile, a_deep, b_deep)


def _name(kind: DType, tile: tuple[int, ...], a_deep: bool, b_deep: bool) -> str:
    numbers = ", ".join(map(str, tile))
    return f"matmul<{CPP[kind]}, {numbers}, {str(a_deep).lower()}, {str(b_deep).lower()}>"


# ---- tensor cores ----------------------------------------------------------------------

ROWS, DEPTH, STAGES, WIDE = 128, 32, 4, 8  # as in matmul_tc.cu
COLUMNS = (256, 128)
"""Columns of a block's tile, and its number of threads."""


def _for_tensor_cores(backend: Launcher, kind: DType, m: int, n: int, k: int) -> bool:
    """Return whether the product is of 16-bit floats and worth a block's tile."""
    half = kind.kind == "f" and kind.itemsize == 2
    return half and backend.driver.properties.tensor_cores and min(m, n, k) >= 32


def _on_tensor_cores(
    backend: Launcher, out: Any, a: Any, b: Any, sizes: bytes, batches: Geometry
) -> None:
    m, n = out.shape[-2:]
    a_deep, a_wide = _layout(a, a.ndim - 2, a.ndim - 1)
    b_deep, b_wide = _layout(b, b.ndim - 1, b.ndim - 2)
    flags = ", ".join(str(flag).lower() for flag in (a_deep, b_deep, a_wide and b_wide))
    columns = _columns(backend, m, n, batches.count)
    name = f"matmul_tc<{CPP[out.dtype]}, {flags}, {columns}>"
    found = backend.function("matmul_tc.cu", name, lambda: _tc_family(columns))
    tiles = -(-m // ROWS) * -(-n // columns)
    backend.launch(
        found, (tiles, 1, min(batches.count, 65535)), address(out), address(a), address(b), sizes,
        batches.words, block=columns, shared=_tc_shared(out.dtype, columns),
    )  # fmt: skip


def _tc_shared(kind: DType, columns: int) -> int:
    """Return the bytes of shared memory of a block."""
    return STAGES * DEPTH * (ROWS + columns) * kind.itemsize


def _columns(backend: Launcher, m: int, n: int, batches: int) -> int:
    """Return the widest tile that leaves one for every multiprocessor."""
    for columns in COLUMNS:
        tiles = -(-m // ROWS) * -(-n // columns) * batches
        if n > columns // 2 and tiles >= backend.driver.properties.multiprocessors:
            return columns
    return COLUMNS[-1]


def _layout(x: Any, across: int, depth: int) -> tuple[bool, bool]:
    """Return whether the summed axis is contiguous, and whether 16 bytes can be read at once.

    The latter requires that every line starts and ends on a boundary of 16 bytes.
    """
    deep = x.strides[depth] == 1 or x.strides[across] != 1
    dense = depth if deep else across
    steps = [x.strides[i] for i in range(x.ndim) if i != dense and x.shape[i] > 1]
    whole = x.strides[dense] == 1 and x.shape[dense] % WIDE == 0
    wide = whole and address(x) % 16 == 0 and all(step % WIDE == 0 for step in steps)
    return deep, wide


def _tc_family(*columns: int) -> Iterable[str]:
    flags = ("false", "true")
    for kind in ("bf16", "f16"):
        for a_deep in flags:
            for b_deep in flags:
                for wide in flags:
                    for width in columns or COLUMNS:
                        yield f"matmul_tc<{kind}, {a_deep}, {b_deep}, {wide}, {width}>"

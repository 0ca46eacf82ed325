"""Matrix products: which kernel, which tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from needle.backend.cuda.geometry import geometry, pack
from needle.backend.cuda.table import CPP
from needle.dtype import DType
from needle.errors import DtypeError

if TYPE_CHECKING:
    from needle.backend.cuda.backend import CudaBackend

TILES = {
    "large": (128, 128, 8, 8, 8),
    "medium": (64, 64, 8, 4, 4),
    "small": (32, 32, 16, 4, 4),
}
"""Rows, columns and depth of a block's tile, rows and columns of a thread's."""


def matmul(backend: CudaBackend, out: Any, a: Any, b: Any) -> None:
    """Multiply; see ``Backend.matmul``."""
    from needle.backend.cuda.backend import address

    if out.dtype.kind == "b":
        raise DtypeError(f"matmul: {backend.name} has no product of bools")
    if not out.size:
        return
    (m, n), k = out.shape[-2:], a.shape[-1]
    batches = geometry(out.shape[:-2], out.strides[:-2], a.strides[:-2], b.strides[:-2])
    rows, columns, depth, *rest = tile = TILES[_tile(backend, m, n, batches.count, out.dtype)]
    sizes = pack(m, n, k, *a.strides[-2:], *b.strides[-2:], *out.strides[-2:])
    grid = (-(-m // rows), -(-n // columns), min(batches.count, 65535))
    if grid[1] > 65535:
        raise DtypeError(f"matmul: {n} columns are more than {backend.name} can do")
    name = f"matmul<{CPP[out.dtype]}, {', '.join(map(str, tile))}>"
    found = backend.function("matmul.cu", name, lambda: _family(out.dtype))
    threads = rows // rest[0] * (columns // rest[1])
    backend.launch(
        found, grid, address(out), address(a), address(b), sizes, batches.words, block=threads
    )


def _tile(backend: CudaBackend, m: int, n: int, batches: int, kind: DType) -> str:
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
            yield f"matmul<{CPP[kind]}, {', '.join(map(str, tile))}>"

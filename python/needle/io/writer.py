"""Files of the safetensors format, written in pieces from the arrays' own memory.

All calls go through ``os``, so tests can make each of them fail, and see what a disk would hold if
the machine stopped there. A file is complete on the disk when ``write`` returns; who writes to a
name that others read gives it a new file (see ``replacing``), or a new folder.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from needle.errors import DataError

CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""The format's name of each dtype."""
TEXTS = "__metadata__"
"""Name of the texts in the header."""
PIECE = 8 * 2**20
"""Bytes of a piece: of one call of the system, and of one checksum."""
PAGE = 4096
ALIGNED = 64
"""The values begin at a multiple of this."""
MOST_BUFFERS = 512
"""Buffers in one call; systems allow 1024 and more."""
MOST_TENSORS = 2**17
"""Most tensors of a file; each takes some kilobytes of who reads it, and 60 bytes of the file."""
MOST_HEADER = 100 * 10**6
"""Most bytes of a header, as all readers of the format have it."""


class Written(NamedTuple):
    """What a file contains.

    Attributes:
        size: in bytes.
        sums: ``checksum`` of each piece of the file.
    """

    size: int
    sums: list[int]


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    texts: Mapping[str, str] | None = None,
    durable: bool = True,
) -> Written:
    """Write arrays to a file.

    The file must not exist, or be empty.

    Args:
        path: the file.
        arrays: dense arrays by name, of the dtypes in ``CODES``.
        texts: the file's metadata.
        durable: whether to wait until the file is on the disk.

    Raises:
        DataError: if the names need a larger header than the format allows, or for too many
            tensors.
        OSError: if the file cannot be written.
    """
    return write_buffers(path, layout(arrays, texts), durable)


def layout(
    arrays: Mapping[str, np.ndarray[Any, Any]], texts: Mapping[str, str] | None
) -> list[memoryview]:
    """Return the content of a file: its header, then each array's memory.

    Raises:
        DataError: if the header is larger than the format allows, or for too many tensors.
    """
    # by how far their sizes can be halved, so that each begins at a multiple of its element
    order = sorted(arrays, key=lambda name: -_lowest_bit(arrays[name].nbytes))
    header: dict[str, Any] = {TEXTS: dict(texts)} if texts else {}
    buffers, end = [], 0
    for name in order:
        x = arrays[name]
        start, end = end, end + x.nbytes
        header[name] = {
            "dtype": CODES[x.dtype.name], "shape": list(x.shape), "data_offsets": [start, end],
        }  # fmt: skip
        if x.nbytes:
            buffers.append(x.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    if len(text) > MOST_HEADER or len(arrays) > MOST_TENSORS:
        raise DataError(
            f"save: {len(arrays):,} tensors, whose names and the texts take {len(text):,} bytes\n"
            f"  rule: at most {MOST_TENSORS:,} tensors and {MOST_HEADER:,} bytes"
        )
    return [memoryview(len(text).to_bytes(8, "little") + text), *buffers]


def _lowest_bit(size: int) -> int:
    return size & -size if size else 2**63


def dense(x: Any) -> np.ndarray[Any, Any]:
    """Return an array as the format has it: in C order, the low byte of a number first."""
    values = np.asarray(x, order="C")
    return (
        values.astype(values.dtype.newbyteorder("<")) if values.dtype.byteorder == ">" else values
    )


def write_buffers(
    path: str | os.PathLike[str], buffers: Iterable[memoryview], durable: bool = True
) -> Written:
    """Write buffers to a file; if durable, wait until it is on the disk. Raises OSError."""
    size, sums = 0, []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces(buffers):
            sums.append(checksum(piece))
            size += sum(map(len, piece))
            write_all(handle, piece)
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    return Written(size, sums)


def checksum(piece: Iterable[memoryview]) -> int:
    """Return the CRC-32 of the sums of a piece's pages.

    A page has 4096 bytes, zeros behind the end; its sum is that of its 64-bit words, the low byte
    first, modulo 2**64. It finds lost, torn, moved and changed pages at the speed of memory, which
    a CRC of all bytes does not.
    """
    sums: list[bytes] = []
    rest = b""
    for part in piece:
        start = 0
        if rest:
            start = min(PAGE - len(rest), len(part))
            rest += part[:start]
            if len(rest) < PAGE:
                continue
            sums.append(_page_sums(rest))
        end = len(part) - (len(part) - start) % PAGE
        if start < end:
            sums.append(_page_sums(part[start:end]))
        rest = bytes(part[end:])
    if rest:
        sums.append(_page_sums(rest + bytes(PAGE - len(rest))))
    return zlib.crc32(b"".join(sums))


def _page_sums(pages: memoryview | bytes) -> bytes:
    words = np.frombuffer(pages, "<u8").reshape(-1, PAGE // 8)
    return np.add.reduce(words, axis=1).astype("<u8").tobytes()


def pieces(buffers: Iterable[memoryview], size: int = PIECE) -> Iterator[list[memoryview]]:
    """Cut buffers into lists that have ``size`` bytes together; the last one may have fewer."""
    piece: list[memoryview] = []
    room = size
    for buffer in buffers:
        start = 0
        while start < len(buffer):
            part = buffer[start : start + room]
            piece.append(part)
            start, room = start + len(part), room - len(part)
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def write_all(handle: int, parts: list[memoryview]) -> None:
    """Write all bytes of the parts, in as many calls as the system needs."""
    left = list(parts)
    while left:
        drop(left, os.writev(handle, left[:MOST_BUFFERS]))


def drop(left: list[memoryview], done: int) -> None:
    """Remove so many bytes from the beginning of a list of buffers."""
    whole = 0
    while whole < len(left) and done >= len(left[whole]):
        done -= len(left[whole])
        whole += 1
    del left[:whole]
    if done:
        left[0] = left[0][done:]


def flush(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are written to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Shared memory in which worker processes put batches, and messages between processes.

The memory has no name (``memfd_create``, or a file that was deleted at once), so nothing can be
left behind.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.errors import DataError, explain

if TYPE_CHECKING:
    pass

__all__ = ["Handle", "Inbox", "Outbox", "Ring", "flatten", "free_memory", "unflatten"]

ALIGNED = 64
PAGE = 4096
MARGIN = 1.25
"""A slot is so much larger than the first batch."""


class Handle:
    """A file descriptor that may be an argument of a new process, which gets a copy of it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.fd),)


def _received(copy: Any) -> Handle:
    return Handle(copy.detach())


def shared_file(size: int = 0) -> int:
    """Return a file descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("needle", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def free_memory() -> int:
    """Return how many bytes this process may still use: those of the system, or of its group."""
    known = [2**62]
    meminfo = _text("/proc/meminfo")
    if found := re.search(r"MemAvailable:\s+(\d+) kB", meminfo):
        known.append(int(found[1]) * 1024)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        a, b = _text(limit).strip(), _text(used).strip()
        if a.isdigit() and b.isdigit():
            known.append(int(a) - int(b))
    return max(0, min(known))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


# ---- arrays in a slot ----------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """An array within a slot."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def flatten(values: object) -> tuple[Any, list[tuple[Field, Any]], int]:
    """Return a batch with a ``Field`` for each array, these arrays, and the bytes they need."""
    found: list[tuple[Field, Any]] = []
    tree = _flatten(values, found)
    field, array = found[-1] if found else (Field("", (), 0), np.empty(0))
    return tree, found, field.start + _aligned(array.nbytes)


def _flatten(value: Any, found: list[tuple[Field, Any]]) -> Any:
    # not a function within the other one: it would refer to itself, and batches to it, until the
    # next collection of garbage
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
        field, array = found[-1] if found else (Field("", (), 0), np.empty(0))
        start = field.start + _aligned(array.nbytes)
        found.append((Field(value.dtype.str, value.shape, start), value))
        return found[-1][0]
    if type(value) in (tuple, list):
        return type(value)(_flatten(x, found) for x in value)
    if type(value) is dict:
        return {key: _flatten(x, found) for key, x in value.items()}
    return value


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def unflatten(values: Any, read: Callable[[Field], Any]) -> Any:
    """Return a batch with ``read(field)`` in the place of each ``Field``."""
    if isinstance(values, Field):
        return read(values)
    if type(values) in (tuple, list):
        return type(values)(unflatten(x, read) for x in values)
    if type(values) is dict:
        return {key: unflatten(x, read) for key, x in values.items()}
    return values


class Ring:
    """Slots of one size in shared memory; both sides map it when its size has changed."""

    def __init__(self, slots: int, fd: int | None = None) -> None:
        self.slots, self.size = slots, 0
        self.fd = shared_file() if fd is None else fd
        self.memory: mmap.mmap | None = None

    def grow(self, needed: int) -> int:
        """Make slots that hold so many bytes and some more; return their size."""
        self.size = -(-int(needed * MARGIN) // PAGE) * PAGE
        os.ftruncate(self.fd, self.slots * self.size)
        return self.size

    def array(self, field: Field, slot: int, size: int) -> Any:
        """Return an array over a field of a slot."""
        if self.memory is None or len(self.memory) < self.slots * size:
            self.memory = mmap.mmap(self.fd, self.slots * size)
        dtype = np.dtype(field.dtype)
        count = int(np.prod(field.shape))
        if count == 0:
            return np.empty(field.shape, dtype)
        start = slot * size + field.start
        return np.frombuffer(self.memory, dtype, count, start).reshape(field.shape)

    def close(self) -> None:
        """Give the memory back when the last array over it has gone."""
        self.memory = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# ---- a pickle with its arrays in shared memory -------------------------------------------


class _Sharing(pickle.Pickler):
    """A pickler that sends arrays of a memory-mapped file as the name of the file."""

    def reducer_override(self, value: Any) -> Any:
        source = value
        while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
            source = source.base
        whole = isinstance(value, np.ndarray) and value.flags.c_contiguous and value.size > 0
        if not whole or not isinstance(source, np.memmap) or source.filename is None:
            return NotImplemented
        while isinstance(source.base, np.memmap):  # a view of one has its offset
            source = source.base
        start = source.offset + value.ctypes.data - source.ctypes.data
        return _mapped, (str(source.filename), value.dtype, start, value.shape)


def _mapped(path: str, dtype: np.dtype[Any], start: int, shape: tuple[int, ...]) -> Any:
    return np.asarray(np.memmap(path, dtype, "c", start, shape))


def share(value: object) -> tuple[int, list[tuple[int, int]]]:
    """Pickle a value into shared memory; return its descriptor, and where its parts are.

    Raises:
        DataError: if it needs more than half of the free memory.
    """
    buffers: list[pickle.PickleBuffer] = []
    text = io.BytesIO()
    _Sharing(text, protocol=5, buffer_callback=buffers.append).dump(value)
    pieces = [text.getbuffer(), *(buffer.raw() for buffer in buffers)]
    parts, end = [], 0
    for piece in pieces:
        parts.append((end, piece.nbytes))
        end += _aligned(piece.nbytes)
    if end > (free := free_memory()) // 2:
        raise explain(
            DataError,
            "DataLoader",
            f"a copy of the data set for worker processes needs {end:,} bytes; {free:,} are free",
            rule="at most half of the free memory",
            advice="workers='thread'; or arrays in files that are mapped: np.load(path, "
            "mmap_mode='r'), ndl.data.TokenFile",
        )
    fd = shared_file(max(end, 1))
    with mmap.mmap(fd, max(end, 1)) as memory:
        for (start, size), piece in zip(parts, pieces, strict=True):
            memory[start : start + size] = piece
    return fd, parts


def receive(fd: int, parts: list[tuple[int, int]]) -> Any:
    """Return a value that was shared, with arrays in memory that is copied where it is changed."""
    memory = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    os.close(fd)
    (start, size), *rest = parts
    return pickle.loads(memory[start : start + size], buffers=[memory[a : a + n] for a, n in rest])


# ---- messages ------------------------------------------------------------------------------


class Inbox:
    """Messages out of a pipe, read without ever waiting for the rest of one."""

    def __init__(self, fd: int) -> None:
        self.fd, self.bytes, self.ended = fd, bytearray(), False
        os.set_blocking(fd, False)

    def read(self) -> list[bytes]:
        """Return the whole messages that are there; note in ``ended`` the end of the pipe."""
        while not self.ended:
            try:
                piece = os.read(self.fd, 1 << 20)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.ended = not piece
            self.bytes += piece
        found = []
        while len(self.bytes) >= 8:
            size = int.from_bytes(self.bytes[:8], "little")
            if len(self.bytes) < 8 + size:
                break
            found.append(bytes(self.bytes[8 : 8 + size]))
            del self.bytes[: 8 + size]
        return found


class Outbox:
    """Messages into a pipe, as much as it takes at once; the rest waits for ``flush``."""

    def __init__(self, fd: int) -> None:
        self.fd, self.bytes = fd, bytearray()
        os.set_blocking(fd, False)

    def send(self, message: bytes) -> None:
        self.bytes += framed(message)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes; drop all if nobody reads any more."""
        while self.bytes:
            try:
                del self.bytes[: os.write(self.fd, self.bytes)]
            except BlockingIOError:
                return
            except OSError:
                self.bytes.clear()


def framed(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(message).to_bytes(8, "little") + message

"""Pinned host memory, a buffer for copies to and from the device.

The device copies from it while the host continues. So a buffer belongs to its copy until that
copy's event has passed, and can be reused only then.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from math import prod
from threading import RLock
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle.backend.cuda.driver import Event, NoMemory
from needle.backend.cuda.geometry import power_of_two
from needle.backend.cuda.launch import Launcher
from needle.errors import OutOfMemoryError, explain

PIECE = 16 << 20
"""Larger copies use several buffers: one is filled while another is copied."""
SMALLEST = 4096
LIMIT = 256 << 20
"""Beyond this total, copies wait for a buffer instead of allocating one."""
AHEAD = 2
"""Number of pieces of a copy to the host in progress while one is read."""


class Buffer:
    """Pinned bytes.

    Attributes:
        address: address of the first byte.
        size: number of bytes.
        events: events of copies that read or write them.
    """

    __slots__ = ("address", "size", "events")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.events: list[Event] = []


class Lease:
    """A buffer that is in use as long as a NumPy array over it exists."""

    def __init__(self, pool: Pinned, buffer: Buffer, shape: tuple[int, ...], kind: Any) -> None:
        self.pool, self.buffer = pool, buffer
        self.array: Any = None
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": kind.str, "data": (buffer.address, False),
        }  # fmt: skip

    def __del__(self) -> None:
        self.pool.dropped.append(self.buffer)  # anywhere, so only leave word


class Pinned:
    """The pinned buffers of a device, by powers of two."""

    def __init__(self, backend: Launcher) -> None:
        self.backend, self.driver = backend, backend.driver
        self.free: dict[int, list[Buffer]] = {}
        self.busy: deque[Buffer] = deque()
        self.dropped: deque[Buffer] = deque()
        self.total = 0
        self.lock = RLock()

    def take(self, nbytes: int) -> Buffer:
        """Return a buffer that no copy uses.

        Raises:
            OutOfMemoryError: if the host has no pinned memory left.
        """
        size = power_of_two(max(nbytes, SMALLEST))
        with self.lock:
            self._collect()
            while not self.free.get(size) and self.busy and self.total + size > LIMIT:
                for event in self.busy[0].events:
                    event.wait()
                self._collect()
            kept = self.free.get(size)
            return kept.pop() if kept else self._made(size)

    def _made(self, size: int) -> Buffer:
        try:
            address = self.driver.pin(size)
        except NoMemory:
            self._trim()
            address = self._last(size)
        self.total += size
        return Buffer(address, size)

    def _last(self, size: int) -> int:
        try:
            return self.driver.pin(size)
        except NoMemory:
            problem = (
                f"the host has no pinned memory left for copies with {self.backend.name}: "
                f"{size} bytes were requested, {self.total} are in use"
            )
            advice = "`del` arrays from pinned(); a higher limit of locked memory (ulimit -l)"
            raise explain(OutOfMemoryError, "copy", problem, advice=advice) from None

    def _trim(self) -> None:
        for buffer in [b for kept in self.free.values() for b in kept]:
            self.driver.unpin(buffer.address)
            self.total -= buffer.size
        self.free.clear()

    def give(self, buffer: Buffer, *events: Event) -> None:
        """Take a buffer back; it is free when these events have passed."""
        buffer.events += events
        with self.lock:
            self.busy.append(buffer)

    def _collect(self) -> None:
        while self.dropped:
            self.busy.append(self.dropped.popleft())
        busy, self.busy = self.busy, deque()
        for buffer in busy:
            buffer.events = [event for event in buffer.events if not event.done()]
            if buffer.events:
                self.busy.append(buffer)
            else:
                self.free.setdefault(buffer.size, []).append(buffer)

    # ---- copies ------------------------------------------------------------------------

    def send(self, to: int, values: np.ndarray[Any, Any]) -> None:
        """Copy a dense array to the device; the host continues, and may reuse the array."""
        lease, stream = _lease(values), self.backend.streams.current
        if lease is not None and lease.pool is self:
            self.driver.copy(to, values.ctypes.data, values.nbytes, stream)
            lease.buffer.events.append(self.driver.record(stream))
            whole = lease.array()
            if whole is not None:  # its copy may be in progress, so it becomes read-only
                whole.flags.writeable = values.flags.writeable = False
            return
        start = values.ctypes.data
        for first in range(0, values.nbytes, PIECE):
            nbytes = min(PIECE, values.nbytes - first)
            buffer = self.take(nbytes)
            ctypes.memmove(buffer.address, start + first, nbytes)
            self.driver.copy(to + first, buffer.address, nbytes, stream)
            self.give(buffer, self.driver.record(stream))

    def fetch(self, values: np.ndarray[Any, Any], source: int) -> None:
        """Copy from the device into a dense array, and wait for it."""
        start, stream = values.ctypes.data, self.backend.streams.current
        pieces: deque[tuple[int, int, Buffer, Event]] = deque()

        def finish() -> None:
            first, nbytes, buffer, event = pieces.popleft()
            event.wait()
            ctypes.memmove(start + first, buffer.address, nbytes)
            self.give(buffer)

        try:
            for first in range(0, values.nbytes, PIECE):
                nbytes = min(PIECE, values.nbytes - first)
                buffer = self.take(nbytes)
                self.driver.copy(buffer.address, source + first, nbytes, stream)
                pieces.append((first, nbytes, buffer, self.driver.record(stream)))
                if len(pieces) > AHEAD:
                    finish()
        finally:  # return buffers in use, also without memory for another
            while pieces:
                finish()

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """Return a NumPy array in pinned memory; see ``Backend.pinned``."""
        kind = np.dtype(dtypes.as_dtype(dtype).numpy)
        buffer = self.take(prod(shape) * kind.itemsize)
        words = np.dtype(f"u{kind.itemsize}") if kind.kind == "V" else kind  # NumPy: bfloat16
        lease = Lease(self, buffer, tuple(shape), words)
        made = np.asarray(lease)
        lease.array = weakref.ref(made)
        return made.view(kind) if kind is not words else made


def _lease(values: Any) -> Lease | None:
    """Return the lease that an array's memory belongs to, or None."""
    while isinstance(values, np.ndarray):
        values = values.base
    return values if isinstance(values, Lease) else None

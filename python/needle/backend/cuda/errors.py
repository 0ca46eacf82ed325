"""Bad indices, which kernels find and later calls report.

Waiting after each gather would stop the host each time. So a kernel notes the first bad value in a
word of device memory, and the next call that waits anyway, a copy to the host or ``synchronize``,
raises the error. From time to time the word is also copied without waiting, so that records of
valid calls can be dropped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from needle import config
from needle.backend.cuda.driver import Event
from needle.backend.cuda.launch import Launcher
from needle.errors import IndexRangeError, user_line

if TYPE_CHECKING:
    from needle.backend.cuda.pinned import Buffer

POSITION_BITS = 40  # as in index.cu
TICKETS = 1 << (64 - POSITION_BITS)
NOTHING = (1 << 64) - 1
EVERY = 1024
"""Number of calls between two copies of the word."""

Describe = Callable[[int], Exception]


class _Look(NamedTuple):
    """A copy of the word in progress."""

    buffer: Buffer
    event: Event
    stream: int
    before: int


class Pending:
    """The word, and the calls of the tickets in it."""

    def __init__(self, backend: Launcher) -> None:
        self.backend = backend
        self.word = backend.allocate(8)
        self._clear()
        backend.driver.synchronize()  # all streams find it clear
        self.calls: dict[int, tuple[int, str, Describe]] = {}
        self.looks: list[_Look] = []
        self.next = 0
        self.lock = RLock()

    def ticket(self, describe: Describe) -> tuple[int, int]:
        """Return the word's address and a number for a call that may find a bad value.

        Args:
            describe: makes the error for the position of the first bad value.

        Raises:
            NeedleError: the error of an earlier call, if it is known by now.
        """
        with self.lock:
            if self.next == TICKETS:
                self.backend.synchronize()  # once in 16 million calls
                self.next = 0
            if self.next % EVERY == EVERY - 1:
                self._settle(wait=False)
                self.look()
            number = self.next
            where = f"\n  called at {user_line()}" if config.current().debug else ""
            self.calls[number] = (self.backend.streams.current, where, describe)
            self.next += 1
            return self.word.address, number

    def look(self) -> None:
        """Request a copy of the word after the work in this thread's stream so far."""
        with self.lock:
            if self.calls:
                buffer, stream = self.backend.pinned_buffers.take(8), self.backend.streams.current
                self.backend.driver.copy(buffer.address, self.word.address, 8, stream)
                event = self.backend.driver.record(stream)
                self.looks.append(_Look(buffer, event, stream, self.next))

    def check(self, everything: bool = False) -> None:
        """Raise the error that a kernel noted, if the requested copies have arrived.

        Args:
            everything: whether all calls are done, because the device was waited for.

        Raises:
            NeedleError: naming the position of the first bad value.
        """
        with self.lock:
            self._settle(wait=True)
            if everything:
                self.calls.clear()

    def _settle(self, wait: bool) -> None:
        looks, self.looks = self.looks, []
        found = NOTHING
        for look in looks:
            if not wait and not look.event.done():
                self.looks.append(look)
                continue
            look.event.wait()
            value = ctypes.c_uint64.from_address(look.buffer.address).value
            found = min(found, value)
            self.backend.pinned_buffers.give(look.buffer)
            done = [n for n, call in self.calls.items() if call[0] == look.stream]
            for number in done if found == NOTHING else ():
                if number < look.before:
                    del self.calls[number]
        if found != NOTHING:
            self._raise(found)

    def _raise(self, found: int) -> None:
        self.backend.driver.synchronize()  # no other kernel notes anything meanwhile
        self._clear()
        number, position = found >> POSITION_BITS, found & ((1 << POSITION_BITS) - 1)
        _, where, describe = self.calls.get(number, (0, "", _unknown))
        for look in self.looks:
            self.backend.pinned_buffers.give(look.buffer)
        self.calls.clear()
        self.looks.clear()
        error = describe(position)
        error.args = (f"{error.args[0]}{where}", *error.args[1:])
        raise error

    def _clear(self) -> None:
        self.backend.driver.set_bytes(self.word.address, 0xFF, 8, self.backend.streams.current)


def _unknown(position: int) -> Exception:
    return IndexRangeError(f"an index at position {position} was out of range in another thread")

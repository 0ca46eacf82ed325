"""Memory in blocks of a few large slabs, kept for reuse.

Each stream has its own slabs. A block is free for reuse in its stream as soon as it is dropped,
because later work in that stream also runs later. A block that another stream used last waits for
that stream's event.

With the native module (src/core/device/port.cc), blocks that are free at once are kept whole for
the next request of their size and stream; the arena counts them as lent until it needs room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from needle import config, core
from needle.backend.array import native_function
from needle.backend.cuda.driver import Driver, Event, NoMemory
from needle.backend.cuda.streams import Streams

ALIGNMENT = 512
SLAB = 64 << 20
SMALL_SLAB = 2 << 20
SMALL = 1 << 20


class Block:
    """Bytes on the device, which return to the arena with the last reference.

    Attributes:
        address: address of the first byte.
        nbytes: number of bytes requested.
        stream: stream that used it last.
        events: events of other libraries that must pass before the bytes are used again.
    """

    __slots__ = ("arena", "address", "nbytes", "stream", "events", "piece", "__weakref__")
    readonly = False

    def __init__(self, arena: Arena, address: int, nbytes: int, piece: _Piece) -> None:
        self.arena, self.address, self.nbytes, self.piece = arena, address, nbytes, piece
        self.stream = piece.stream
        self.events: list[Event] = []

    def ptr(self) -> int:
        """Return the address."""
        return self.address

    @property
    def streams(self) -> Streams:
        """The streams of the device."""
        return self.arena.streams

    def used_by(self, event: Event) -> None:
        """Keep the block from reuse until an event of another stream."""
        self.events.append(event)

    def __del__(self) -> None:
        # anywhere: in another thread, while the arena is at work, at exit; so only leave word
        self.arena.dropped.append(
            (self.address, self.nbytes, self.stream, self.events, self.piece, None)
        )


class Foreign:
    """Bytes of another library, which are given back when no stream uses them anymore.

    Args:
        arena: the arena of the device.
        address: address of the first byte.
        nbytes: number of bytes.
        readonly: whether they must not be written.
        give_back: function that tells the other library.
    """

    __slots__ = ("arena", "address", "nbytes", "stream", "events", "readonly", "give_back",
                 "__weakref__")  # fmt: skip

    def __init__(
        self, arena: Arena, address: int, nbytes: int, readonly: bool, give_back: Callable[[], None]
    ) -> None:
        self.arena, self.address, self.nbytes, self.readonly = arena, address, nbytes, readonly
        self.stream = arena.streams.current
        self.events: list[Event] = []
        self.give_back = give_back

    def ptr(self) -> int:
        """Return the address."""
        return self.address

    streams = Block.streams
    used_by = Block.used_by

    def __del__(self) -> None:
        self.arena.dropped.append(
            (self.address, self.nbytes, self.stream, self.events, None, self.give_back)
        )


class _Dropped:
    """The remainder of a block without references."""

    __slots__ = ("address", "nbytes", "stream", "events", "piece", "give_back")

    def __init__(
        self,
        address: int,
        nbytes: int,
        stream: int,
        events: list[Event],
        piece: _Piece | None,
        give_back: Callable[[], None] | None,
    ) -> None:
        self.address, self.nbytes, self.stream = address, nbytes, stream
        self.events, self.piece, self.give_back = events, piece, give_back


class _Piece:
    """A stretch of a slab, lent or free; neighbours are linked."""

    __slots__ = ("slab", "stream", "start", "size", "free", "before", "behind")

    def __init__(self, slab: int, stream: int, start: int, size: int) -> None:
        self.slab, self.stream, self.start, self.size, self.free = slab, stream, start, size, True
        self.before: _Piece | None = None
        self.behind: _Piece | None = None

    def absorb(self) -> None:
        """Merge with the next piece."""
        assert self.behind is not None
        self.size += self.behind.size
        self.behind = self.behind.behind
        if self.behind is not None:
            self.behind.before = self

    def __lt__(self, other: _Piece) -> bool:
        return (self.size, self.start) < (other.size, other.start)


class Arena:
    """Allocate blocks by best fit, and join neighbouring free ones.

    Args:
        driver: driver that allocates the slabs.
        streams: streams of the device; a block is for the current one.
    """

    def __init__(self, driver: Driver, streams: Streams) -> None:
        self.driver, self.streams = driver, streams
        self.guard = driver.properties.guard
        self.slabs: dict[int, int] = {}
        self.free: dict[int, list[_Piece]] = {}
        self.waiting: list[_Dropped] = []
        self.dropped: deque[tuple[Any, ...]] = deque()
        self.finished: deque[Callable[[], None]] = deque()
        self.lock = Lock()
        self._live = self._peak = 0
        self.port = (
            None if core.native is None
            else core.native.Port(driver, streams, self.dropped, address)
        )  # fmt: skip
        if self.port is not None:
            streams.on_change(self.port.changed)

    @property
    def live(self) -> int:
        """Bytes lent."""
        return self._live if self.port is None else int(self.port.live)

    @property
    def peak(self) -> int:
        """The largest number of bytes lent so far."""
        return self._peak if self.port is None else int(self.port.peak)

    def allocate(self, nbytes: int) -> Block:
        """Return an uninitialised block for this thread's stream.

        Raises:
            NoMemory: if the device is full or the limit is reached.
        """
        if self.port is not None:
            block = self.port.lend(nbytes)
            if block is not None:
                return block
        size = -(-(nbytes + 2 * self.guard) // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        stream = self.streams.current
        with self._locked():
            self._collect()
            settings = config.current()
            if 0 < settings.memory_limit < self.live + nbytes:
                raise NoMemory
            if self.port is not None:
                self.port.limitless = None if settings.memory_limit else settings
            piece = self._fit(size, stream) or self._grow(size, stream)
            self._unlist(piece)
            self._split(piece, size)
            piece.free = False
            place = piece.start + self.guard
            self.driver.lent(place, nbytes, stream)
            if self.port is not None:
                return self.port.block(place, nbytes, piece.size, stream, piece)
            self._live += nbytes
            self._peak = max(self._peak, self._live)
        return Block(self, place, nbytes, piece)

    def statistics(self) -> dict[str, int]:
        """Return bytes: ``live`` (lent), ``cached``, ``peak`` (the most lent), ``limit``."""
        with self._locked():
            self._collect()
            reserved = sum(self.slabs.values())
        limit = config.current().memory_limit
        return {"live": self.live, "cached": reserved - self.live, "peak": self.peak,
                "limit": limit}  # fmt: skip

    def collect(self) -> None:
        """Take back dropped blocks, except those that a stream may still use."""
        with self._locked():
            self._collect()

    def trim(self) -> None:
        """Return empty slabs to the device."""
        with self._locked():
            self._collect(wait=True)
            self._drain()
            self._give_back()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the lists; after unlocking, give memory back to other libraries."""
        try:
            with self.lock:
                yield
        finally:
            while self.finished:
                self.finished.popleft()()

    def _drain(self) -> None:
        """Take back the blocks that are kept whole for the next request."""
        for piece in () if self.port is None else self.port.drain():
            self._put_back(piece)

    def _give_back(self) -> None:
        for pool in self.free.values():
            for piece in [p for p in pool if p.size == self.slabs[p.slab]]:
                self._unlist(piece)
                del self.slabs[piece.slab]
                self.driver.free(piece.slab)

    def _fit(self, size: int, stream: int) -> _Piece | None:
        pool = self.free.get(stream, [])
        place = bisect_left(pool, _Piece(0, stream, 0, size))
        return pool[place] if place < len(pool) else None

    def _grow(self, size: int, stream: int) -> _Piece:
        usual = SMALL_SLAB if size <= SMALL else SLAB
        ways: tuple[Callable[[], None], ...] = (
            self._drain, partial(self._collect, wait=True), self._give_back,
        )  # fmt: skip
        for make_room in ways:
            make_room()
            found = self._fit(size, stream)
            if found is not None:
                return found
            for wanted in (max(usual, size), size):
                try:
                    return self._slab(wanted, stream)
                except NoMemory:
                    continue
        raise NoMemory

    def _slab(self, size: int, stream: int) -> _Piece:
        if 0 < config.current().memory_limit < sum(self.slabs.values()) + size:
            raise NoMemory
        start = self.driver.allocate(size)
        self.slabs[start] = size
        piece = _Piece(start, stream, start, size)
        self._list(piece)
        return piece

    def _split(self, piece: _Piece, size: int) -> None:
        if piece.size - size < ALIGNMENT:
            return
        rest = _Piece(piece.slab, piece.stream, piece.start + size, piece.size - size)
        rest.before, rest.behind = piece, piece.behind
        if piece.behind is not None:
            piece.behind.before = rest
        piece.behind, piece.size = rest, size
        self._list(rest)

    def _put_back(self, piece: _Piece) -> None:
        """Join a piece with its free neighbours and list the whole."""
        if piece.behind is not None and piece.behind.free:
            self._unlist(piece.behind)
            piece.absorb()
        if piece.before is not None and piece.before.free:
            piece = piece.before
            self._unlist(piece)
            piece.absorb()
        piece.free = True
        self._list(piece)

    def _list(self, piece: _Piece) -> None:
        insort(self.free.setdefault(piece.stream, []), piece)

    def _unlist(self, piece: _Piece) -> None:
        pool = self.free[piece.stream]
        pool.pop(bisect_left(pool, piece))

    def _collect(self, wait: bool = False) -> None:
        """Take back dropped blocks, except those whose events have not passed.

        Args:
            wait: whether to wait for those too.
        """
        while self.dropped:
            gone = _Dropped(*self.dropped.popleft())
            if gone.piece is not None and self.port is None:
                self._live -= gone.nbytes
            if gone.piece is None or gone.stream != gone.piece.stream:
                gone.events = [*gone.events, self.driver.record(gone.stream)]
            self.waiting.append(gone)
        waiting, self.waiting = self.waiting, []
        for gone in waiting:
            if wait:
                for event in gone.events:
                    event.wait()
            gone.events = [event for event in gone.events if not event.done()]
            if gone.events:
                self.waiting.append(gone)
            else:
                self._take_back(gone)
        if self.port is not None:
            self.port.waiting = bool(self.waiting)

    def _take_back(self, gone: _Dropped) -> None:
        if gone.give_back is not None:
            self.finished.append(gone.give_back)
        if gone.piece is not None:
            self._put_back(gone.piece)
            self.driver.returned(gone.address, gone.nbytes, gone.piece.stream)


_native_address = native_function("address")


def address(x: Any) -> int:
    """Return the address of an array's first element; pass the array to this thread's stream."""
    place = _native_address(x)
    if place is not None:
        return int(place)
    handle = x.handle
    if handle.streams.several:
        handle.streams.enter(handle)
    return int(handle.address + x.offset * x.dtype.itemsize)

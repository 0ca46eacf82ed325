"""Memory in blocks of a few large slabs, kept for reuse.

A block is free for reuse in its own stream as soon as it is dropped, because what runs next in that
stream runs later. A block that another stream used waits for that stream's event.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock

from needle import config
from needle.backend.cuda.driver import Driver, Event, NoMemory

ALIGNMENT = 512
SLAB = 64 << 20
SMALL_SLAB = 2 << 20
SMALL = 1 << 20


class Block:
    """Bytes on the device; they go back to the arena with the last reference.

    Attributes:
        address: of the first byte.
        nbytes: as asked for.
    """

    __slots__ = ("arena", "address", "nbytes", "piece", "events", "__weakref__")

    def __init__(self, arena: Arena, address: int, nbytes: int, piece: _Piece) -> None:
        self.arena, self.address, self.nbytes, self.piece = arena, address, nbytes, piece
        self.events: list[Event] = []

    def ptr(self) -> int:
        """Return the address."""
        return self.address

    def used_by(self, event: Event) -> None:
        """Keep the block from reuse until an event of another stream."""
        self.events.append(event)

    def __del__(self) -> None:
        # anywhere: in another thread, or while the arena is at work; so only leave word
        self.arena.dropped.append((self.piece, self.address, self.nbytes, self.events))


class _Piece:
    """A stretch of a slab, lent or free; neighbours are linked."""

    __slots__ = ("slab", "start", "size", "free", "before", "behind")

    def __init__(self, slab: int, start: int, size: int) -> None:
        self.slab, self.start, self.size, self.free = slab, start, size, True
        self.before: _Piece | None = None
        self.behind: _Piece | None = None

    def absorb(self) -> None:
        """Take in the piece behind."""
        assert self.behind is not None
        self.size += self.behind.size
        self.behind = self.behind.behind
        if self.behind is not None:
            self.behind.before = self

    def __lt__(self, other: _Piece) -> bool:
        return (self.size, self.start) < (other.size, other.start)


class Arena:
    """Blocks by best fit; neighbouring free ones are joined.

    Args:
        driver: where slabs come from.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.guard = driver.properties.guard
        self.slabs: dict[int, int] = {}
        self.free: list[_Piece] = []
        self.waiting: list[tuple[list[Event], _Piece]] = []
        self.dropped: deque[tuple[_Piece, int, int, list[Event]]] = deque()
        self.lock = Lock()
        self.live = self.peak = self.requests = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block, its content not set.

        Raises:
            NoMemory: if the device or the limit leaves no room.
        """
        size = -(-(nbytes + 2 * self.guard) // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        with self.lock:
            self.requests += 1
            self._collect()
            if 0 < config.current().memory_limit < self.live + nbytes:
                raise NoMemory
            piece = self._fit(size) or self._grow(size)
            self._unlist(piece)
            self._split(piece, size)
            piece.free = False
            self.live += nbytes
            self.peak = max(self.peak, self.live)
            address = piece.start + self.guard
            self.driver.lent(address, nbytes)
        return Block(self, address, nbytes, piece)

    def statistics(self) -> dict[str, int]:
        """Return bytes: ``live`` (lent), ``cached``, ``peak`` (the most lent), ``limit``."""
        with self.lock:
            self._collect()
            reserved = sum(self.slabs.values())
        limit = config.current().memory_limit
        return {"live": self.live, "cached": reserved - self.live, "peak": self.peak,
                "limit": limit}  # fmt: skip

    def trim(self) -> None:
        """Give slabs that hold no block back to the device."""
        with self.lock:
            self._collect(wait=True)
            self._give_back()

    def _give_back(self) -> None:
        for piece in [p for p in self.free if p.size == self.slabs[p.slab]]:
            self._unlist(piece)
            del self.slabs[piece.slab]
            self.driver.release(piece.slab)

    def _fit(self, size: int) -> _Piece | None:
        place = bisect_left(self.free, _Piece(0, 0, size))
        return self.free[place] if place < len(self.free) else None

    def _grow(self, size: int) -> _Piece:
        usual = SMALL_SLAB if size <= SMALL else SLAB
        ways: tuple[Callable[[], None] | None, ...] = (
            None, partial(self._collect, wait=True), self._give_back,
        )  # fmt: skip
        for make_room in ways:
            if make_room is not None:
                make_room()
            found = self._fit(size)
            if found is not None:
                return found
            for wanted in (max(usual, size), size):
                try:
                    return self._slab(wanted)
                except NoMemory:
                    continue
        raise NoMemory

    def _slab(self, size: int) -> _Piece:
        if 0 < config.current().memory_limit < sum(self.slabs.values()) + size:
            raise NoMemory
        start = self.driver.allocate(size)
        self.slabs[start] = size
        piece = _Piece(start, start, size)
        insort(self.free, piece)
        return piece

    def _split(self, piece: _Piece, size: int) -> None:
        if piece.size - size < ALIGNMENT:
            return
        rest = _Piece(piece.slab, piece.start + size, piece.size - size)
        rest.before, rest.behind = piece, piece.behind
        if piece.behind is not None:
            piece.behind.before = rest
        piece.behind, piece.size = rest, size
        insort(self.free, rest)

    def _release(self, piece: _Piece) -> None:
        """Join a piece with its free neighbours and list the whole."""
        if piece.behind is not None and piece.behind.free:
            self._unlist(piece.behind)
            piece.absorb()
        if piece.before is not None and piece.before.free:
            piece = piece.before
            self._unlist(piece)
            piece.absorb()
        piece.free = True
        insort(self.free, piece)

    def _unlist(self, piece: _Piece) -> None:
        self.free.pop(bisect_left(self.free, piece))

    def _collect(self, wait: bool = False) -> None:
        """Take back what was dropped, but for blocks whose events have not passed.

        Args:
            wait: for those too.
        """
        while self.dropped:
            piece, address, nbytes, events = self.dropped.popleft()
            self.live -= nbytes
            self.driver.returned(address, nbytes)
            self.waiting.append((events, piece))
        waiting, self.waiting = self.waiting, []
        for events, piece in waiting:
            if wait:
                for event in events:
                    event.wait()
            left = [event for event in events if not event.done()]
            if left:
                self.waiting.append((left, piece))
            else:
                self._release(piece)

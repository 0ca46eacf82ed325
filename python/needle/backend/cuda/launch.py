"""Launches: what files of kernels need of the device that runs them, and sizes of grids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from needle.backend.cuda.arena import Arena, Block
    from needle.backend.cuda.driver import Driver
    from needle.backend.cuda.errors import Pending
    from needle.backend.cuda.pinned import Pinned
    from needle.backend.cuda.streams import Streams

THREADS = 256
Family = Callable[[], Iterable[str]]
"""Returns the expressions of kernels that are compiled together."""


class Launcher(Protocol):
    """A device that has memory, loads kernels and runs them."""

    name: str
    driver: Driver
    streams: Streams
    arena: Arena
    pinned_buffers: Pinned
    pending: Pending
    functions: dict[tuple[str, str], Any]
    launch: Callable[..., None]

    def allocate(self, nbytes: int) -> Block:
        """Return a block of memory."""

    def copy(self, out: Any, x: Any) -> Any:
        """Copy x to out; see ``Backend.copy``."""

    def download(self, x: Any) -> Any:
        """Return the values of x; see ``Backend.download``."""

    def synchronize(self) -> None:
        """Wait for all work; report what went wrong in it."""

    def function(self, file: str, expression: str, family: Family | None = None) -> Any:
        """Return a kernel; compile it if needed."""


def dense(*arrays: Any) -> list[Any]:
    """Return arrays in C order without gaps, copied where needed."""
    return [x if x.is_dense() else x.copy() for x in arrays]


def aligned(*places: int) -> bool:
    """Return whether all addresses are multiples of 16."""
    return not any(place % 16 for place in places)


def blocks_for(count: int, each: int = 1, threads: int = THREADS) -> int:
    """Return the number of blocks for ``count`` elements, ``each`` per thread."""
    return -(-count // (threads * each))

"""Bad indices, found by kernels and told later.

Waiting after each gather would stop the host each time. So a kernel notes the first index out of
range in a word of device memory, and the error is raised at the next call that waits anyway: a copy
to the host or ``synchronize``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from needle.errors import IndexRangeError

POSITION_BITS = 40  # as in index.cu
TICKETS = 1 << 24
NOTHING = (1 << 64) - 1


class Pending:
    """The word, and what the tickets in it stand for."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.word: Any = None
        self.calls: deque[tuple[int, str, tuple[int, ...], int, str]] = deque(maxlen=4096)
        self.next = 0

    def ticket(
        self, operation: str, shape: tuple[int, ...], size: int, what: str = "index"
    ) -> tuple[int, int]:
        """Return the word's address and a number for a call that may find a bad index.

        Args:
            operation: the op's name.
            shape: of the indices.
            size: of the axis.
            what: what they are.
        """
        if self.word is None:
            self.word = self.backend.allocate(8)
            self._clear()
        if self.next == TICKETS:
            self.backend.synchronize()  # once in 16 million calls
        self.calls.append((self.next, operation, shape, size, what))
        self.next += 1
        return self.word.address, self.next - 1

    def check(self) -> None:
        """Raise what a kernel noted.

        Raises:
            IndexRangeError: naming the place of the first index out of range.
        """
        if not self.calls:
            return
        value = np.empty(1, np.uint64)
        self.backend.driver.to_host(value.ctypes.data, self.word.address, 8)
        found = int(value[0])
        calls = {call[0]: call for call in self.calls}
        self.calls.clear()
        self.next = 0
        if found == NOTHING:
            return
        self._clear()
        number, position = found >> POSITION_BITS, found & ((1 << POSITION_BITS) - 1)
        operation, shape, size, what = calls[number][1:]
        place = tuple(int(i) for i in np.unravel_index(position, shape))
        where = place[0] if len(place) == 1 else place
        raise IndexRangeError(
            f"{operation}: the {what} at position {where} is out of range for {size} entries"
        )

    def _clear(self) -> None:
        self.backend.driver.set_bytes(self.word.address, 0xFF, 8)

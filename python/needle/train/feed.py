"""The batches of a loader, pass after pass, from any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from needle.errors import DataError
from needle.ops import random
from needle.train.state import dump_random, load_random

_END = object()


class Feed:
    """The batches of a loader, in groups; it knows where in the data it is.

    A loader with ``state_dict`` and ``load_state_dict`` is asked for its own position. Of any other
    one the pass is begun again, with the same random numbers, and its first batches are skipped.
    A loader with ``set_epoch`` is told the number of each pass.

    Args:
        loader: anything that can be iterated again and again; each time is one pass.
        begin: is called with the number of a pass before its first batch.

    Attributes:
        epoch: number of passes that were completed before the one of the last batch.
        place: number of batches taken in this pass.
    """

    def __init__(self, loader: Any, begin: Callable[[int], Any] = lambda epoch: None) -> None:
        self.loader, self.begin = loader, begin
        self._over = False
        self.epoch = self.place = 0
        self._began: Any = random.get_state()
        self._pass: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches in a pass; 0 if the loader does not know it."""
        return len(self.loader) if self.has_length() else 0

    def has_length(self) -> bool:
        """Say whether the loader knows the number of batches in a pass; those of streams do not."""
        try:
            return len(self.loader) >= 0
        except TypeError:
            return False

    def group(self, most: int) -> Iterator[Any]:
        """Yield up to a number of batches of one pass; begin the next pass where one is over.

        Raises:
            DataError: if a pass has no batches.
        """
        batch = self._next()
        if batch is _END:
            if self.place == 0:
                raise DataError("the loader has no batches")
            self.epoch, self.place, self._pass, self._over = self.epoch + 1, 0, None, False
            batch = self._next()
        for count in range(1, most + 1):
            if batch is _END:
                return
            self.place += 1
            yield batch
            batch = self._next() if count < most else _END

    def _next(self) -> Any:
        if self._over:
            return _END
        if self._pass is None:
            self._began = random.get_state()
            self._pass = self._iterate()
        batch = next(self._pass, _END)
        self._over = batch is _END and self.place > 0
        return batch

    def _iterate(self) -> Iterator[Any]:
        """Begin a pass."""
        self.begin(self.epoch)
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        state = {"epoch": self.epoch, "place": self.place, "over": self._over}
        if hasattr(self.loader, "state_dict"):
            state["loader"] = self.loader.state_dict()
        return {**state, "began": dump_random(self._began)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position. The random numbers that this draws are not given back.

        Raises:
            DataError: if the loader has fewer batches.
        """
        self.epoch, self.place, self._over = state["epoch"], state["place"], state["over"]
        self._pass = None
        if self.place == 0 or self._over:
            return
        self._began = load_random(state["began"])
        random.set_state(self._began)  # the order of a pass may be drawn when it begins
        if "loader" in state:
            self.begin(self.epoch)
            self.loader.load_state_dict(state["loader"])
            self._pass = iter(self.loader)
            return
        self._pass = self._iterate()
        for _ in range(self.place):
            if next(self._pass, _END) is _END:
                raise DataError(f"the loader has fewer than {self.place} batches")

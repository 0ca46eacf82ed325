"""Stopping between two steps, when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(Exception):
    """Raised when a run is asked to stop.

    Attributes:
        signal: number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Stop:
    """Remember a signal until ``check`` is called. A second signal ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self) -> None:
        """Raise Stopped if a signal arrived."""
        if self.signal is not None:
            raise Stopped(self.signal)

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Remember SIGINT and SIGTERM within a ``with`` block (in the main thread)."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._remember) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        self.signal = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

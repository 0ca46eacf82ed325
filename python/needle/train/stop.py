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
    """Remember a signal until ``check`` is called. A second signal ends the process at once.

    Attributes:
        signal: number of the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self) -> None:
        """Raise Stopped if a signal arrived."""
        if self.signal is not None:
            raise Stopped(self.signal)

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Remember SIGINT, SIGTERM and SIGHUP within a ``with`` block (in the main thread).

        SIGHUP says that the terminal is gone; a process under nohup goes on.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._remember) for number in _numbers()}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        self.signal = number
        for each in _numbers():
            signal.signal(each, signal.SIG_DFL)


def _numbers() -> list[int]:
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers

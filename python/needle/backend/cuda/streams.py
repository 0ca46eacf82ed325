"""Streams: work in one stream runs in order, work in several streams runs concurrently.

Blocks of memory keep them synchronized: a block remembers the stream that used it last, and another
stream that uses it waits, on the device, for that stream's work so far. So results do not depend on
timing; streams that use the same tensors take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from needle.backend.cuda.driver import Driver, Event


def _nobody() -> None:
    pass


class Streams:
    """The streams of a device: one that all threads start with, and others by name.

    Attributes:
        main: the stream of threads that did not choose another.
        several: whether there are others; otherwise blocks need no checks.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.main = driver.create_stream()
        self.several = False
        self._named: dict[str, int] = {}
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._changed: Callable[[], None] = _nobody

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function whenever a thread has chosen a stream."""
        self._changed = changed

    @property
    def current(self) -> int:
        """The stream of this thread."""
        return getattr(self._thread, "stream", self.main) if self.several else self.main

    @contextmanager
    def use(self, name: str) -> Iterator[int]:
        """Send this thread's work to the stream of a name."""
        with self._lock:
            if name not in self._named:
                self._named[name] = self.driver.create_stream()
            self.several = True
        before = self.current
        try:
            self._thread.stream = self._named[name]
            self._changed()
            yield self._named[name]
        finally:
            self._thread.stream = before
            self._changed()

    def enter(self, block: Any) -> None:
        """Let this thread's stream use a block after the stream that used it last."""
        here = self.current
        with self._lock:
            if block.stream != here:
                self.driver.wait(here, self.driver.record(block.stream))
                block.stream = here

    def record(self) -> Event:
        """Return an event for the work in this thread's stream so far."""
        return self.driver.record(self.current)

    def wait(self, event: Event) -> None:
        """Let later work in this thread's stream wait for an event."""
        self.driver.wait(self.current, event)

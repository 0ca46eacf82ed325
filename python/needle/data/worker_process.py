"""What runs in a worker process."""

from __future__ import annotations

import os
import pickle
import random as python_random
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import connection, parent_process
from typing import Any

import numpy as np

from needle import core
from needle.data import slots
from needle.data.worker import Batch, Task, WorkerProblem, problem_of

__all__ = ["work"]


def work(
    number: int, inbox: slots.Handle, outbox: slots.Handle, memory: slots.Handle, count: int,
    payload: slots.Handle, parts: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Make batches until the inbox is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if core.native is not None:
        core.native.set_threads(1)
    worker = _Worker(number, slots.Ring(count, memory.fd), payload.fd, parts)
    while (message := _next(inbox.fd)) is not None:
        job, slot, size, task = pickle.loads(message)
        reply = worker.reply(job, slot, size, task)
        try:
            _write(outbox.fd, slots.framed(reply))
        except OSError:  # the parent has closed its end
            return


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)


def _next(fd: int) -> bytes | None:
    """Return the next message; None if the pipe was closed."""
    head = _read(fd, 8)
    return None if head is None else _read(fd, int.from_bytes(head, "little"))


def _read(fd: int, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = os.read(fd, size - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _write(fd: int, message: bytes) -> None:
    left = memoryview(message)
    while left:
        left = left[os.write(fd, left) :]


class _Worker:
    """The data set in this process, and the slots."""

    def __init__(
        self, number: int, ring: slots.Ring, payload: int, parts: list[tuple[int, int]]
    ) -> None:
        self.number, self.ring, self.payload, self.parts = number, ring, payload, parts
        self.fetch: Any = None
        self.seeded: tuple[Any, int] | None = None

    def reply(self, job: int, slot: int, size: int, task: Task) -> bytes:
        """Return the message for a job: its batch, or why there is none."""
        try:
            if self.fetch is None:
                fetch, init = slots.receive(self.payload, self.parts)
                if init is not None:
                    init(self.number)
                self.fetch = fetch
            self._seed(task)
            return self._made(job, slot, size, self.fetch(task))
        except BaseException as error:
            return pickle.dumps((job, _portable(problem_of(error, task))), 5)

    def _seed(self, task: Task) -> None:
        """Seed the generators of this process for each pass, for data sets that draw from them."""
        if task.seed is not None and self.seeded != (task.seed, task.epoch):
            self.seeded = task.seed, task.epoch
            words = np.random.SeedSequence([task.seed, task.epoch, self.number]).generate_state(2)
            np.random.seed(words[0])
            python_random.seed(int(words[1]))

    def _made(self, job: int, slot: int, size: int, batch: Batch) -> bytes:
        begin = time.perf_counter_ns()
        values, fields, needed = slots.flatten(batch.values)
        fits = 0 < needed <= size
        if fits:
            for field, array in fields:
                self.ring.array(field, slot, size)[...] = array
        else:
            values = batch.values
        times = (*batch.times[:-1], batch.times[-1] + time.perf_counter_ns() - begin)
        return pickle.dumps((job, replace(batch, values=values, times=times), fits, needed), 5)


def _portable(problem: WorkerProblem) -> WorkerProblem:
    """Return a problem that every process can unpickle without running anybody's code."""
    error = problem.error
    if type(error).__module__.partition(".")[0] not in ("builtins", "needle"):
        return replace(problem, error=None)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class may ask for other arguments than it passes on
        return replace(problem, error=None)
    return problem

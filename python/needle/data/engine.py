"""The plan of a pass, and the engines that make its batches in this process.

A plan knows which batch goes to which worker and in which order they come out; it has no clock and
no threads. An engine makes batches: in the caller (``Inline``), in threads (``Threads``) or in
processes (``data/processes.py``).
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from needle import core
from needle.data.worker import Batch, Fetch, Task, WorkerProblem, problem_of

__all__ = ["Died", "Engine", "Failed", "Inline", "Job", "Plan", "Ready", "Threads"]


@dataclass(slots=True)
class Job:
    """A batch to make: its number in the pass, who makes it, and where it may be written."""

    number: int
    worker: int
    slot: int
    task: Task


@dataclass(slots=True)
class Ready:
    """A batch that was made."""

    number: int
    batch: Batch


@dataclass(slots=True)
class Failed:
    """What a worker raised instead of making a batch."""

    number: int
    worker: int
    problem: WorkerProblem


@dataclass(slots=True)
class Died:
    """A worker that ended before its time, and how."""

    worker: int
    how: str


Event = Ready | Failed | Died


class Engine(Protocol):
    """What makes batches.

    ``begin`` is called when a pass begins, with no batch under way; ``close`` may be called twice,
    and at the end of the interpreter.
    """

    workers: int
    depth: int

    def begin(self) -> None: ...

    def submit(self, job: Job) -> None: ...

    def wait(self, limit: float) -> list[Event]: ...

    def describe(self, worker: int) -> str: ...

    def close(self, grace: float = 1.0) -> None: ...


@dataclass
class Plan:
    """Which batches are asked for, and those that wait for their turn.

    Args:
        tasks: (worker, task) of each batch, in order.
        limit: most batches that are asked for and not yet taken.
        slots: places for batches; one is kept until ``give_back``.
    """

    tasks: Iterator[tuple[int, Task]]
    limit: int
    slots: int
    asked: int = 0
    taken: int = 0
    ended: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)
    ready: dict[int, Batch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.slots))

    def ask(self) -> Job | None:
        """Return the next job; None if there is none, or no place for it."""
        if self.ended or self.asked - self.taken >= self.limit or not self.free:
            return None
        found = next(self.tasks, None)
        if found is None:
            self.ended = True
            return None
        job = Job(self.asked, found[0], self.free.pop(), found[1])
        self.jobs[job.number] = job
        self.asked += 1
        return job

    def done(self, number: int, batch: Batch) -> None:
        """Note a batch; they come in any order."""
        assert number in self.jobs and number not in self.ready, f"batch {number} came twice"
        self.ready[number] = batch

    def take(self) -> tuple[Job, Batch] | None:
        """Return the next batch in order; None if it is not there yet."""
        if self.taken not in self.ready:
            return None
        number = self.taken
        self.taken += 1
        return self.jobs.pop(number), self.ready.pop(number)

    def give_back(self, job: Job) -> None:
        """Note that the place of a batch is free again."""
        self.free.append(job.slot)

    @property
    def finished(self) -> bool:
        """Whether all batches were taken."""
        return self.ended and self.taken == self.asked


class Inline:
    """An engine that makes each batch in the caller, when it is waited for."""

    workers, depth = 1, 1

    def __init__(self, fetch: Fetch) -> None:
        self.fetch, self.jobs = fetch, list[Job]()

    def begin(self) -> None:
        pass

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, limit: float) -> list[Event]:
        """Make the next batch; its errors are those of the data set, as they are."""
        job = self.jobs.pop(0)
        return [Ready(job.number, self.fetch(job.task))]

    def describe(self, worker: int) -> str:
        return "the caller"

    def close(self, grace: float = 1.0) -> None:
        self.jobs.clear()


class Threads:
    """An engine of threads, whose native kernels run beside each other, each on one thread.

    Args:
        fetches: what makes a batch, one for each worker.
        depth: batches that a worker is asked for ahead.
        init: called with the worker's number when it begins.
    """

    def __init__(self, fetches: list[Fetch], depth: int, init: Callable[[int], Any] | None) -> None:
        self.fetches, self.init = fetches, init
        self.workers, self.depth = len(fetches), depth
        self.inboxes = [queue.SimpleQueue[Job | None]() for _ in fetches]
        self.outbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.busy: dict[int, Job] = {}
        self.threads = [
            threading.Thread(target=_work, args=(self, i, fetch), daemon=True)
            for i, fetch in enumerate(fetches)
        ]
        for thread in self.threads:
            thread.start()

    def begin(self) -> None:
        pass

    def submit(self, job: Job) -> None:
        self.inboxes[job.worker].put(job)

    def wait(self, limit: float) -> list[Event]:
        try:
            return [self.outbox.get(timeout=limit)]
        except queue.Empty:
            return []

    def describe(self, worker: int) -> str:
        """Return what a thread is doing: its job, and the lines where it is."""
        job, frame = self.busy.get(worker), None
        if (ident := self.threads[worker].ident) is not None:
            frame = sys._current_frames().get(ident)
        where = "".join(traceback.format_stack(frame)[-5:]) if frame else "it has ended\n"
        what = f"it makes {job.task.name()}" if job else "it has nothing to do"
        return f"thread {worker}: {what}\n{where}".rstrip()

    def close(self, grace: float = 1.0) -> None:
        for inbox in self.inboxes:
            inbox.put(None)
        if not sys.is_finalizing():
            for thread in self.threads:
                if thread is not threading.current_thread():
                    thread.join(grace)


def _work(engine: Threads, number: int, fetch: Fetch) -> None:
    """Make batches until the inbox gives None."""
    if core.native is not None:
        core.native.set_alone(True)
    task: Task | None = None
    inbox, outbox = engine.inboxes[number], engine.outbox
    initial = engine.init
    while (job := inbox.get()) is not None:
        engine.busy[number], task = job, job.task
        try:
            if initial is not None:
                initial(number)
                initial = None
            outbox.put(Ready(job.number, fetch(task)))
        except BaseException as error:
            outbox.put(Failed(job.number, number, problem_of(error, task)))
        del engine.busy[number]

"""The engine of worker processes, as the parent sees it.

Each worker has two pipes, one for jobs and one for replies, so that a worker that is killed leaves
no lock behind. Batches travel in slots of shared memory (``data/slots.py``). Nothing here waits
without a limit: pipes are read and written as far as they go, and workers that have ended are seen.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from needle.data import slots
from needle.data.engine import Died, Event, Failed, Job, Ready
from needle.data.worker import Batch, Fetch
from needle.data.worker_process import work
from needle.errors import DataError, explain

__all__ = ["PRELOAD", "Processes"]

PRELOAD = ["numpy", "needle.data.worker_process"]
"""Modules that the fork server imports once for all workers."""

STATES = {
    "T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "waits for a disk",
    "Z": "has ended", "S": "sleeps", "R": "is computing",
}  # fmt: skip

GUARD = (
    "\n  rule: worker processes import the main module; what starts them is below "
    'if __name__ == "__main__":'
)


class _Worker:
    """A worker process and the parent's ends of its pipes."""

    def __init__(self, process: Any, inbox: slots.Inbox, outbox: slots.Outbox) -> None:
        self.process, self.inbox, self.outbox = process, inbox, outbox
        self.replied = self.reported = False

    def died(self) -> str:
        """Return how the process ended."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"{-code}"
            memory = ": was the system short of memory?" if -code == signal.SIGKILL else ""
            return f"was killed by {name}{memory}"
        begun = "" if self.replied else ", before it made a batch" + GUARD
        return f"ended with exit code {code}{begun}"


class Processes:
    """An engine of worker processes.

    Args:
        fetch: what makes a batch; each worker gets a copy, whose arrays all workers share.
        workers: number of processes.
        depth: batches that a worker is asked for ahead.
        init: called in each worker with its number when it begins.
    """

    def __init__(
        self, fetch: Fetch, workers: int, depth: int, init: Callable[[int], Any] | None
    ) -> None:
        self.workers, self.depth = workers, depth
        self.ring = slots.Ring(workers * depth + 2)
        self.outstanding: dict[int, tuple[int, int]] = {}  # job: slot and its size
        self.wanted = 0  # bytes of a batch that did not fit
        self.told = False
        self.team: list[_Worker] = []
        payload, parts = slots.share((fetch, init))
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        context.set_forkserver_preload(PRELOAD)
        try:
            for number in range(workers):
                self.team.append(self._start(context, number, payload, parts))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(payload)

    def _start(self, context: Any, number: int, payload: int, parts: Any) -> _Worker:
        """Start a worker.

        Raises:
            DataError: if the system gives no process, or this one is itself about to start.
        """
        jobs_read, jobs_write = os.pipe()
        replies_read, replies_write = os.pipe()
        arguments = (
            number, slots.Handle(jobs_read), slots.Handle(replies_write),
            slots.Handle(self.ring.fd), self.ring.slots, slots.Handle(payload), parts,
        )  # fmt: skip
        name = f"needle-loader-{number}"
        process = context.Process(target=work, args=arguments, name=name, daemon=True)
        try:
            process.start()
        except (RuntimeError, OSError) as error:
            os.close(jobs_write)
            os.close(replies_read)
            first = " ".join(str(error).split()).partition(". ")[0]
            raise explain(
                DataError, "DataLoader", f"worker {number} cannot be started: {first}" + GUARD
            ) from None
        finally:
            os.close(jobs_read)
            os.close(replies_write)
        return _Worker(process, slots.Inbox(replies_read), slots.Outbox(jobs_write))

    # ---- jobs and replies ----------------------------------------------------------------

    def begin(self) -> None:
        """Grow the slots if a batch did not fit. Later, batches that wait would be overwritten."""
        if self.wanted > self.ring.size:
            self._grow(self.wanted)

    def submit(self, job: Job) -> None:
        size = self.ring.size
        self.outstanding[job.number] = job.slot, size
        self.team[job.worker].outbox.send(pickle.dumps((job.number, job.slot, size, job.task), 5))

    def wait(self, limit: float) -> list[Event]:
        with selectors.DefaultSelector() as selector:
            for i, worker in enumerate(self.team):
                if worker.reported:  # or its end would be seen again and again
                    continue
                selector.register(worker.inbox.fd, selectors.EVENT_READ, i)
                selector.register(worker.process.sentinel, selectors.EVENT_READ, i)
                if worker.outbox.bytes:
                    selector.register(worker.outbox.fd, selectors.EVENT_WRITE, i)
            numbers = sorted({key.data for key, _ in selector.select(limit)})
        found: list[Event] = []
        for i in numbers:
            worker = self.team[i]
            worker.outbox.flush()
            # what it sent before it ended is read before its end is believed
            gone = worker.process.exitcode is not None
            found += [self._event(i, message) for message in worker.inbox.read()]
            if (gone or worker.inbox.ended) and not worker.reported:
                worker.reported = True
                found.append(Died(i, worker.died()))
        return found

    def _event(self, number: int, message: bytes) -> Event:
        self.team[number].replied = True
        job, result, *more = pickle.loads(message)
        slot, size = self.outstanding.pop(job)
        if not isinstance(result, Batch):
            return Failed(job, number, result)
        fits, needed = more
        if fits:
            values = slots.unflatten(result.values, lambda f: self.ring.array(f, slot, size))
            result = Batch(values, result.size, result.times)
        elif needed:
            self._missed(needed, size)
        return Ready(job, result)

    def _missed(self, needed: int, size: int) -> None:
        """Note that a batch came through the pipe because its slot was too small."""
        if needed <= self.ring.size:
            return  # it was asked for before there were slots
        self.wanted = max(self.wanted, needed)
        if self.ring.size == 0:
            self._grow(needed)
        elif not self.told and size:
            self.told = True
            warnings.warn(
                f"DataLoader: a batch of {needed:,} bytes is larger than a slot of {size:,} bytes, "
                "which was made for the first batch; it came through a pipe, which is slower. The "
                "slots grow with the next pass.",
                stacklevel=2,
            )

    def _grow(self, needed: int) -> None:
        """Make larger slots, if half of the free memory has room for them."""
        self.wanted = 0
        free, total = slots.free_memory(), int(self.ring.slots * needed * slots.MARGIN)
        if total <= free // 2:
            self.ring.grow(needed)
        elif not self.told:
            self.told = True
            warnings.warn(
                f"DataLoader: {self.ring.slots} slots of {needed:,} bytes need {total:,} bytes of "
                f"shared memory, more than half of the {free:,} bytes that are free; batches come "
                "through pipes, which is slower. Try a smaller prefetch_factor or batch_size.",
                stacklevel=2,
            )

    def describe(self, worker: int) -> str:
        """Return what the system says of a worker."""
        process = self.team[worker].process
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text()
            state = STATES.get(stat.rpartition(")")[2].split()[0], "is in an unknown state")
        except (OSError, IndexError):
            state = "is alive" if process.is_alive() else "has ended"
        return f"process {process.pid} {state}"

    # ---- the end -----------------------------------------------------------------------

    def close(self, grace: float = 1.0) -> None:
        """End the workers: by closing their pipes, then by SIGTERM, then by SIGKILL."""
        team, self.team = self.team, []
        for worker in team:
            os.close(worker.outbox.fd)
        for end in (lambda p: None, lambda p: p.terminate(), lambda p: p.kill()):
            deadline = time.monotonic() + grace
            living = [worker.process for worker in team if worker.process.exitcode is None]
            for process in living:
                end(process)
            for process in living:
                process.join(max(0.0, deadline - time.monotonic()))
        for worker in team:
            os.close(worker.inbox.fd)
            if worker.process.exitcode is not None:
                worker.process.close()
        self.ring.close()

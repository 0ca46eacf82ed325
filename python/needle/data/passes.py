"""One pass over a data set: asks an engine for batches and hands them out in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from needle.data.engine import Died, Engine, Failed, Job, Plan
from needle.data.order import Progress
from needle.data.stats import Stats
from needle.data.worker import Batch
from needle.errors import DataError, WorkerError, explain

__all__ = ["Pass"]

PIECE = 1.0
"""Seconds of a wait, after which it looks around again."""


class Pass:
    """An iterator over the batches of a pass.

    Args:
        engine: makes the batches.
        plan: which ones, in which order.
        progress: noted as batches are handed out.
        convert: makes tensors of a batch's arrays.
        stats: where times are added.
        timeout: longest wait for a batch in seconds; 0: no limit while the workers live.
        drop_last: whether to leave out short batches of a stream.
        ended: shards of a stream that have ended.
        close: called at the end, with True if the engine cannot go on; keeps its owner alive.
    """

    def __init__(
        self, engine: Engine, plan: Plan, progress: Progress, convert: Callable[[Any], Any],
        stats: Stats, timeout: float, drop_last: bool, ended: set[int],
        close: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self.engine, self.plan, self.progress = engine, plan, progress
        self.convert, self.stats, self.timeout = convert, stats, timeout
        self.drop_last, self.shards_ended, self.close = drop_last, ended, close
        self.failed: dict[int, Failed] = {}
        self.dead: dict[int, Died] = {}  # told when it is their batch's turn
        self.left: str | None = None

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            WorkerError: if a worker raised, ended, or gave nothing in time.
            DataError: if another pass began meanwhile, on the same workers.
        """
        begin = time.perf_counter_ns()
        if self.left is not None:
            raise DataError(f"DataLoader: {self.left}")
        while True:
            if self.progress.ended:
                raise StopIteration
            found = self._advance()
            if found is not None:
                job, batch = found
                break
        values = self._handed_out(job, batch)
        self.stats.add(batch.size, batch.times, begin, time.perf_counter_ns())
        return values

    def _advance(self) -> tuple[Job, Batch] | None:
        """Take the next batch, or do one step towards it."""
        plan = self.plan
        try:
            while (job := plan.ask()) is not None:
                self.engine.submit(job)
            found = plan.take()
            if found is None and plan.finished:
                self._end()
            elif found is None:
                self._wait()
            elif self._is_empty(*found):
                plan.give_back(found[0])
                found = None
        except BaseException:
            self._stop("the pass has ended with an error")
            raise
        return found

    def _is_empty(self, job: Job, batch: Batch) -> bool:
        if job.number in self.failed:
            raise self._error(self.failed.pop(job.number))
        short = job.task.indices is None and batch.size < job.task.count
        return batch.size == 0 or (short and self.drop_last)

    def _handed_out(self, job: Job, batch: Batch) -> Any:
        begin = time.perf_counter_ns()
        values = self.convert(batch.values)
        *made, copied = batch.times
        batch.times = (*made, copied + time.perf_counter_ns() - begin)
        self.plan.give_back(job)
        self.progress.position += batch.size
        if job.task.indices is None:
            self.progress.shards[job.task.shard] += batch.size
        return values

    def _wait(self) -> None:
        """Wait for anything to come from the engine.

        Raises:
            WorkerError: if a worker ended, or nothing came in time.
        """
        begin = time.monotonic()
        while True:
            passed = time.monotonic() - begin
            left = self.timeout - passed if self.timeout else PIECE
            events = self.engine.wait(max(0.0, min(PIECE, left)))
            for event in events:
                self._note(event)
            worker = self.plan.jobs[self.plan.taken].worker
            if worker in self.dead and self.plan.taken not in self.plan.ready:
                raise self._died(self.dead[worker])
            if any(not isinstance(event, Died) for event in events):
                return
            if left <= 0:
                raise self._late()

    def _note(self, event: Any) -> None:
        if isinstance(event, Died):
            self.dead[event.worker] = event
            return
        if isinstance(event, Failed):
            self.failed[event.number] = event
            self.plan.done(event.number, Batch(None, 1, (0, 0, 0, 0)))
            return
        task = self.plan.jobs[event.number].task
        if task.indices is None and event.batch.size < task.count:
            self.shards_ended.add(task.shard)
        self.plan.done(event.number, event.batch)

    def _end(self) -> None:
        self.progress.ended = True
        self.close(False)

    def leave(self, why: str, end_workers: bool = False) -> None:
        """End a pass early; wait for the batches that are being made, or end the workers."""
        if self.progress.ended or self.left is not None:
            return
        begin, broken = time.monotonic(), end_workers
        try:
            while self.plan.asked - self.plan.taken > len(self.plan.ready) and not broken:
                for event in self.engine.wait(PIECE):
                    self._note(event)
                broken = bool(self.dead) or time.monotonic() - begin > (self.timeout or 60)
        finally:
            self._stop(why, broken)

    def _stop(self, why: str, broken: bool = True) -> None:
        self.left = why
        self.close(broken)

    # ---- errors ----------------------------------------------------------------------

    def _error(self, failed: Failed) -> WorkerError:
        problem = failed.problem
        error = explain(
            WorkerError,
            "DataLoader",
            f"worker {failed.worker} raised {problem.kind}: {problem.text}\n  while it made "
            f"{problem.items}\n\n{problem.trace.rstrip()}",
        )
        error.worker, error.items, error.trace = failed.worker, problem.items, problem.trace
        error.__cause__ = problem.error
        return error

    def _died(self, event: Died) -> WorkerError:
        jobs = [job for job in self.plan.jobs.values() if job.worker == event.worker]
        items = jobs[0].task.name() if jobs else "no items"
        error = explain(
            WorkerError, "DataLoader", f"worker {event.worker} {event.how}\n  while it made {items}"
        )
        error.worker, error.items = event.worker, items
        return error

    def _late(self) -> WorkerError:
        job = self.plan.jobs[self.plan.taken]
        error = explain(
            WorkerError,
            "DataLoader",
            f"worker {job.worker} gave no batch within {self.timeout:g} s; it had to make "
            f"{job.task.name()}\n  {self.engine.describe(job.worker)}",
            advice="a longer timeout, if making a batch may take so long",
        )
        error.worker, error.items = job.worker, job.task.name()
        return error

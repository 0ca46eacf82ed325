"""The loop that trains a model: ``Trainer(model, optimizer, loss, loader).fit(epochs=3)``."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from needle import executor, nn
from needle.errors import DataError, OptionError
from needle.ops import random
from needle.train import progress as bars
from needle.train.callbacks import Callback, Ema, Evaluate, FiniteCheck, Out
from needle.train.feed import Feed
from needle.train.folder import Folder
from needle.train.loggers import Logger, Loggers, Values
from needle.train.outside import Outside
from needle.train.state import NUMBERS, check_numbers, dump_random, load_random
from needle.train.step import Loss, Update, compiled
from needle.train.stop import Stop, Stopped

LINES = 500
"""Number of lines of metrics for a run: more than a curve can show."""


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        figures: those of the final evaluation; empty without one, or if the run was stopped.
        steps: number of updates.
        seconds: duration, including evaluations.
        stopped: number of the signal that stopped the run, or None.
    """

    figures: dict[str, float]
    steps: int
    seconds: float
    stopped: int | None = None


class Trainer:
    """Train a model.

    All arguments but four can be left out. With a folder the run can be resumed: whenever it ends,
    ``fit(..., resume=True)`` goes on at the last checkpoint, and gives the same bits as a run that
    was never interrupted. The first checkpoint is written before the first step.

    Args:
        model: the model.
        optimizer: the optimizer, with its schedule.
        loss: ``loss(model, batch)`` returns the mean loss of a batch, or ``(sum, count)``.
        loader: can be iterated again and again; each time is a pass over the training data.
        step: ``step(batch)`` in place of ``loss``, for other kinds of loops: makes an update and
            returns the loss as a number or a scalar tensor. ``optimizer`` is then only saved, and
            its rate shown; ``Optimizers`` makes one of several.
        evaluate: ``evaluate(model)`` returns figures by name, after each pass; or an ``Evaluate``.
        accumulate: number of batches for each update.
        clip: largest norm of the gradient, or None.
        ema: decay of a moving average of the weights, or an ``Ema``; None for none.
        precision: returns a context in which losses are computed, or None.
        compile: whether to compile the function that makes an update (see ``needle.compile``);
            or what takes it and returns a faster one. None: it is compiled where that makes no
            difference: not if it prints, reads values, or counts its calls, say.
        callbacks: see ``Callback``.
        loggers: see ``Logger``; one that fails is switched off.
        folder: folder of the run; None to write nothing.
        save_every: number of steps between checkpoints; None to save after each evaluation.
        keep: number of the last and of the best checkpoints to keep.
        check_finite: whether to end with an error when NaN or infinities appear.
        stop: says when to stop; None to stop at SIGINT, SIGTERM and SIGHUP while ``fit`` runs.
        progress: shows the progress; None to choose a bar or lines.
        item: plural name of the training examples.

    Attributes:
        done: number of updates made.
        total: number of updates of the whole run.
        per_epoch: number of updates in a pass; 0 if the loader does not know its length.
        record_every: number of steps that a line of metrics stands for.

    >>> model = nn.Linear(1, 1)
    >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    >>> loader = ndl.data.DataLoader(ndl.data.NDArrayDataset(x, 3 * x), 16, shuffle=True)
    >>> trainer = ndl.train.Trainer(
    ...     model, optim.SGD(model.parameters(), lr=0.5),
    ...     lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(), loader,
    ...     progress=ndl.train.Progress(quiet=True),
    ... )
    >>> result = trainer.fit(epochs=20)
    >>> result.steps, round(model.weight.item(), 3)
    (80, 3.0)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Loss | None,
        loader: Any,
        *,
        step: Callable[[Any], Any] | None = None,
        evaluate: Callable[[Any], Mapping[str, float]] | Evaluate | None = None,
        accumulate: int = 1,
        clip: float | None = None,
        ema: float | Ema | None = None,
        precision: Callable[[], AbstractContextManager[Any]] | None = None,
        compile: bool | Callable[[Any], Any] | None = None,
        callbacks: Iterable[Callback] = (),
        loggers: Iterable[Logger] = (),
        folder: str | os.PathLike[str] | Folder | None = None,
        save_every: int | None = None,
        keep: tuple[int, int] = (3, 1),
        check_finite: bool = True,
        stop: Stop | None = None,
        progress: bars.Progress | None = None,
        item: str = "items",
    ) -> None:
        if (loss is None) == (step is None):
            raise OptionError("Trainer: expected either a loss or a step function")
        for name, value in (("accumulate", accumulate), ("save_every", save_every)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"Trainer: expected {name} >= 1, got {value!r:.60}")
        self.model, self.optimizer, self.loss, self.loader = model, optimizer, loss, loader
        self.own_step, self.accumulate, self.clip = step, accumulate, clip
        self.precision, self.compile = precision, compile
        self.feed = Feed(loader, self._begin_pass)
        if evaluate is not None and not isinstance(evaluate, Evaluate):
            evaluate = Evaluate(evaluate)
        self.evaluation = evaluate
        self.ema = Ema(ema) if isinstance(ema, float) else ema
        self.finite = FiniteCheck() if check_finite else None
        first = [x for x in (self.finite, self.ema) if x is not None]
        self.callbacks: list[Callback] = [*first, *callbacks]
        if folder is not None and not isinstance(folder, Folder):
            mode = "min" if self.evaluation is None else self.evaluation.mode
            folder = Folder(folder, keep_last=keep[0], keep_best=keep[1], mode=mode)
        self.folder, self.save_every = folder, save_every
        self.stop = stop
        self.progress = bars.choose() if progress is None else progress
        self.loggers = Loggers(loggers, self.progress.note)
        self.item = item
        self.done = self.total = self.per_epoch = self.items = self.recent_steps = 0
        self.recent_loss = self.busy = self.waited = 0.0
        self.evaluated, self.saved, self.ending, self.final = 0, -1, False, False
        self.seconds_before, self.began = 0.0, time.perf_counter()
        self.trouble, self.slow_loader = "", False
        self.figure: float | None = None
        self.record_every, self.by_epochs = 1, False

    # ---- the loop ----------------------------------------------------------------

    def fit(
        self, epochs: int | None = None, steps: int | None = None, resume: bool = False
    ) -> Result:
        """Train for a number of passes or of updates, counted from the run's beginning.

        Args:
            epochs: number of passes over the training data; 1 if ``steps`` is None too.
            steps: number of updates, instead of ``epochs``.
            resume: whether to go on from the folder's last checkpoint, if it has one.

        Raises:
            NonFiniteError: for NaN or infinities, with ``check_finite``.
            DataError: if the checkpoint is damaged or does not fit, or if there are no batches.
            OptionError: if the length of the run is not given in a way that the loader knows.
        """
        self._measure(epochs, steps)
        with ExitStack() as stack:
            if self.stop is None:
                self.stop = stack.enter_context(Stop().listening())
                stack.callback(setattr, self, "stop", None)
            if self.folder is not None:
                stack.enter_context(self.folder.locked())
                stack.callback(self._settle, wait=True)  # before others may write there
            stack.callback(self.loggers.close)
            self._begin(resume)
            figures: dict[str, float] = {}
            signal = None
            try:
                self._steps()
                self._finish_steps()
                if self.evaluation is not None:
                    figures = self.evaluate(final=True)
            except Stopped as stopped:
                figures, signal = {}, stopped.signal
                self.save()
            finally:
                self.progress.close()
            result = Result(figures, self.done, self.seconds(), signal)
            for callback in self.callbacks:
                callback.end(self, result)
            if self.folder is not None:
                self.folder.write_waiting()
        return result

    def _measure(self, epochs: int | None, steps: int | None) -> None:
        """Set the length of the run and of a pass."""
        batches = len(self.feed)
        self.per_epoch = -(-batches // self.accumulate)
        if steps is None and not batches:
            if self.feed.has_length():
                raise DataError("Trainer: the loader has no batches")
            raise OptionError("fit: expected steps=N, because the loader has no length")
        self.total = steps or (epochs or 1) * self.per_epoch
        self.by_epochs = steps is None
        self.record_every = max(1, self.total // LINES)

    def _begin(self, resume: bool) -> None:
        self.began = time.perf_counter()
        self._clipped: Callable[[], Any] = lambda: None
        self._step = self._make_step()
        if self.folder is not None:
            self.folder.remove_parts()
            self.folder.checkpoints.note = self.progress.line
            self.progress.log = self.folder.path / "log.txt"
        state = self.folder.load_checkpoint() if resume and self.folder is not None else None
        if state is not None:
            self.load_state_dict(state)
        for callback in self.callbacks:
            callback.begin(self)
        if state is None:
            if self.folder is not None:
                self.folder.cut(0)
            self.save()
        self.progress.start(self.total, self.item, self.done)

    def _steps(self) -> None:
        """Make the updates, and the evaluations and checkpoints between them."""
        assert self.stop is not None
        self.model.train()
        if 0 < self.done < self.total and not self.ending:
            self._pause()  # the run may have been stopped before what was due
        while self.done < self.total and not self.ending:
            self._advance()
            self.stop.check()
            if self.done < self.total:
                self._pause()

    def _begin_pass(self, number: int) -> None:
        for callback in self.callbacks:
            callback.epoch(self, number)

    def _advance(self) -> None:
        """Make an update, and record it."""
        start = time.perf_counter()
        out = Out(0.0, float(getattr(self.optimizer, "current_lr", 0.0)))
        batches = self.feed.group(self.accumulate)
        out.loss = self._step(self._counted(batches, out))
        out.norm = self._clipped()
        self.done += 1
        self.recent_loss += out.loss
        self.recent_steps += 1
        for callback in self.callbacks:
            callback.step(self, out)
        self.items += out.items
        self.busy += time.perf_counter() - start
        shown = {**self.shown(out.loss), **out.figures}
        self.progress.step(self.done, out.loss, shown, self.items / max(self.busy, 1e-9))
        if self.done % self.record_every == 0 or self.done == self.total:
            self._record_step(out)
            self._judge_loader()

    def _counted(self, batches: Iterable[Any], out: Out) -> Iterable[Any]:
        """Yield batches; measure how long they take and how many examples they have."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            batch = next(iterator, None)
            self.waited += time.perf_counter() - start
            if batch is None:
                return
            out.items += self.count(batch)
            yield self.prepared(batch)

    def _make_step(self) -> Callable[[Iterable[Any]], float]:
        """Return the function that makes an update from batches and returns the mean loss."""
        outside = None
        if self.compile is None:
            roots = self.own_step or self.loss, self.precision, self.model, self.optimizer
            outside = Outside(*roots, tell=self.progress.note)
        if self.own_step is not None:
            own = compiled(self.own_step, self.compile, outside)
            return lambda batches: self._check_loss(float(own(self._copied(next(iter(batches))))))
        assert self.loss is not None
        update = Update(
            self.model, self.optimizer, self.loss, self.clip, self.precision, self._check_loss,
            self._settle,
        )  # fmt: skip
        self._clipped = lambda: update.norm
        run = update.runner(self.compile, self.accumulate > 1, outside)
        if self.compile is False:
            return run
        update.ready = lambda: None  # a program has no place for it
        return lambda batches: run(map(self._copied, batches))

    def _copied(self, batch: Any) -> Any:
        """Return a batch when the state that is being saved may change."""
        self._settle()
        return batch

    def _check_loss(self, value: float) -> float:
        if self.finite is not None:
            self.finite.loss(self, value)
        return value

    def _pause(self) -> None:
        """Evaluate and save, where it is time."""
        due = self.evaluation is not None and self.done % self._evaluate_every() == 0
        if due and self.evaluated != self.done:
            self.evaluate(final=False)
            self.save(wait=False)
        elif self.save_every and self.done % self.save_every == 0 and self.saved != self.done:
            self.save(wait=False)

    def _evaluate_every(self) -> int:
        assert self.evaluation is not None
        return self.evaluation.every or self.per_epoch or self.total

    def _finish_steps(self) -> None:
        """Save the end of the training: what is left then is the final evaluation."""
        if self.finite is not None:
            self.finite.weights(self)
        if self.saved != self.done:
            self.save()

    def finish(self, reason: str) -> None:
        """End the training after this step, or this evaluation: it counts as complete."""
        self.ending = True
        self.progress.note(f"the training ends at step {self.done}: {reason}")

    # ---- evaluations and records -------------------------------------------------

    def evaluate(self, final: bool = False) -> dict[str, float]:
        """Return and record the figures on held-out data.

        Args:
            final: whether this is the last evaluation.
        """
        assert self.evaluation is not None
        self.final, before = final, random.get_state()
        with self._judged():
            try:
                figures = dict(self.evaluation.function(self.model))
            except Stopped:  # it will be made again, and draw the same numbers
                random.set_state(before)
                raise
            self.evaluated = self.done
            self.figure = next(iter(figures.values()), None)
            self.record("held-out", final=final, **figures)
            shown = dict(list(figures.items())[:1]) if final else figures
            self.progress.evaluated(self._place(), shown)
            for callback in self.callbacks:
                callback.evaluated(self, figures)
        return figures

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Put the model into evaluation mode, with its average weights if there are some."""
        average = nullcontext() if self.ema is None else self.ema.applied(self.model)
        self.model.eval()
        try:
            with average, executor.modes(recording=False):
                yield
        finally:
            self.model.train()

    def _place(self) -> str:
        if self.by_epochs and self.done % self.per_epoch == 0:
            return f"epoch {self.done // self.per_epoch}/{self.total // self.per_epoch}"
        return f"step {self.done}/{self.total}"

    def record(self, split: str, **values: Any) -> None:
        """Add a line to metrics.jsonl, and give its numbers to the loggers.

        Args:
            split: "train" or "held-out".
            values: numbers by name.
        """
        epoch = round(self.done / self.per_epoch, 4) if self.per_epoch else self.feed.epoch
        line = {"epoch": epoch, "seconds": round(self.seconds(), 3), **values}
        if self.folder is not None:
            try:
                self.folder.record(split=split, step=self.done, **line)
                self.trouble = ""
            except DataError as error:
                self._tell(error)
        self.log({f"{split}/{k}": v for k, v in line.items() if isinstance(v, (int, float))})

    def log(self, values: Values) -> None:
        """Give numbers, pictures and texts by name to the loggers."""
        self.loggers.log(self.done, values)

    def _record_step(self, out: Out) -> None:
        loss = self.recent_loss / self.recent_steps
        self.recent_loss, self.recent_steps = 0.0, 0
        self.record(
            "train", loss=loss, **{**self.shown(loss), **out.figures, **out.measured}, lr=out.lr,
            loader_seconds=round(self.waited, 3),
            **{f"{self.item}_per_second": round(self.items / self.busy, 1)},
        )  # fmt: skip

    def _judge_loader(self) -> None:
        """Say once if training waits for the loader."""
        if not self.slow_loader and hasattr(self.loader, "stats"):
            line = self.loader.stats()["bottleneck"]
            if line is not None:
                self.progress.note(line)
                self.slow_loader = True

    def shown(self, loss: float) -> dict[str, float]:
        """Return further figures to show and record with a training loss."""
        return {}

    def prepared(self, batch: Any) -> Any:
        """Return what the loss gets for a batch."""
        return batch

    def count(self, batch: Any) -> int:
        """Return the number of training examples in a batch."""
        fields = batch.values() if isinstance(batch, Mapping) else batch
        first = batch if hasattr(batch, "shape") else next(iter(fields))
        return int(first.shape[0]) if getattr(first, "shape", ()) else 1

    def advice(self) -> str:
        """Return what to try when the training diverges."""
        return "a smaller learning rate, or clip=1.0"

    def seconds(self) -> float:
        """Return how long the run has taken, without the time between a stop and its resumption."""
        return self.seconds_before + time.perf_counter() - self.began

    # ---- checkpoints -------------------------------------------------------------

    def save(self, wait: bool = True) -> None:
        """Write a checkpoint: everything that the rest of the run depends on.

        If the disk does not take it, a line says so and the training goes on.

        Args:
            wait: whether to wait until it is on the disk; False: a thread copies and writes it
                while the next step runs, which waits only until the copy is made.

        Raises:
            NonFiniteError: if a parameter is not finite; the last checkpoint stays.
        """
        if self.folder is None:
            return
        if self.finite is not None:
            self.finite.weights(self)
        self._settle(wait=True)
        try:
            self.folder.write_waiting()
            checkpoints = self.folder.checkpoints
            begin = checkpoints.save if wait else checkpoints.save_async
            begin(self.done, self.state_dict(copy=wait), self._figure())
        except (DataError, OSError) as error:
            self._tell(error)
            return
        self.saved, self.trouble = self.done, self.trouble if not wait else ""
        for callback in self.callbacks:
            callback.saved(self)

    def _settle(self, wait: bool = False) -> None:
        """Wait until the state that is being saved is copied; or, if ``wait``, written."""
        if self.folder is None:
            return
        checkpoints = self.folder.checkpoints
        try:
            (checkpoints.wait if wait else checkpoints.finish)()
        except DataError as error:
            self.saved = -1
            self._tell(error)

    def _figure(self) -> float | None:
        """Return the figure that the run is judged by, if it is of this step."""
        return self.figure if self.evaluated == self.done else None

    def _tell(self, error: Exception) -> None:
        """Print a line about a disk that does not take what is written, once for each problem."""
        problem = str(error).splitlines()[0]
        if problem != self.trouble:
            self.progress.line(f"step {self.done}: {problem}; the training goes on")
        self.trouble = problem

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the state of the run as nested dicts of numbers and tensors.

        Args:
            copy: whether it stays as it is in later steps; see ``optim.Optimizer.state_dict``.
        """
        known = inspect.signature(self.optimizer.state_dict).parameters
        own = {"copy": copy} if "copy" in known else {}
        run = {name: getattr(self, name) for name in NUMBERS}
        metrics = self.folder.size() if self.folder is not None else 0
        return {
            "run": {**run, "step": self.done, "seconds": self.seconds(), "metrics": metrics},
            "random": dump_random(random.get_state()),
            "feed": self.feed.state_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(**own),
            "callbacks": {name: s for name, x in self._named() if (s := x.state_dict())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            DataError: if it does not fit this run.
        """
        run = check_numbers(state)
        self._check_place(run["step"], state["feed"]["place"], state["feed"]["epoch"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.feed.load_state_dict(state["feed"])
        known, kept = dict(self._named()), state.get("callbacks", {})
        for name, own in kept.items():
            if name not in known:
                raise DataError(f"the checkpoint has a state of {name}; callbacks: {list(known)}")
            known[name].load_state_dict(own)
        for name in NUMBERS:
            setattr(self, name, run[name])
        self.done = self.saved = run["step"]
        self.seconds_before = run["seconds"]
        random.set_state(load_random(state["random"]))
        if self.folder is not None:
            self.folder.cut(run["metrics"])

    def _named(self) -> list[tuple[str, Callback]]:
        """Return the callbacks by name: that of the class, and a number from the second one on."""
        found: list[tuple[str, Callback]] = []
        for callback in self.callbacks:
            name = type(callback).__name__
            same = sum(type(other) is type(callback) for _, other in found)
            found.append((f"{name}-{same + 1}" if same else name, callback))
        return found

    def _check_place(self, step: int, place: int, epoch: int) -> None:
        """Check that a step and a position in a pass are possible with this data."""
        batches = len(self.feed)
        groups = -(-place // self.accumulate)
        fits = not batches or (place <= batches and step == epoch * self.per_epoch + groups)
        if not fits or step > self.total:
            raise DataError(
                f"the checkpoint is at step {step}, {place} batches into an epoch; with this data "
                f"an epoch has {batches} batches, and the run {self.total} steps\n"
                "  rule: a run continues with the data that it started with\n"
                "  try: the data of the earlier run"
            )

"""What can happen during a training besides the steps: ``Callback`` and those of Needle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from needle import executor, nn, ops
from needle.errors import NonFiniteError, OptionError, explain
from needle.ops.index.row_sparse import elements

MEASURED = 100
"""Number of measurements in a run, of callbacks that are not told how often."""

if TYPE_CHECKING:
    from needle.train.trainer import Result, Trainer


@dataclass
class Out:
    """What a step gave.

    Attributes:
        loss: the mean loss.
        lr: learning rate of the step.
        items: number of training examples.
        figures: further values to show and record; callbacks may add to them.
        measured: values to record only, if the step gets a line of metrics.
        norm: norm of the gradient before it was clipped, a tensor; None if it was not.
    """

    loss: float
    lr: float
    items: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    norm: Any = None
    measured: dict[str, float] = field(default_factory=dict)


class Callback:
    """Base of callbacks: methods that a trainer calls, in the order in which it got them.

    All are optional. What a callback depends on from step to step belongs into its state, or a
    resumed run is another one.
    """

    def begin(self, t: Trainer) -> None:
        """Do something before the first step, also of a resumed run."""

    def epoch(self, t: Trainer, number: int) -> None:
        """Do something before the first batch of a pass, the one with a number from 0 on.

        A run that is resumed within a pass calls it again, before ``load_state_dict``.
        """

    def step(self, t: Trainer, out: Out) -> None:
        """Do something after an update."""

    def evaluated(self, t: Trainer, figures: dict[str, float]) -> None:
        """Do something after an evaluation, with its figures."""

    def saved(self, t: Trainer) -> None:
        """Do something after a checkpoint was made; a thread may still be writing it."""

    def end(self, t: Trainer, result: Result) -> None:
        """Do something at the end."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the callback depends on: numbers and tensors by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""


@dataclass
class Evaluate:
    """When and how to evaluate.

    Attributes:
        function: takes the model, in evaluation mode and without recording; returns figures by
            name, the first of which is the one that the run is judged by.
        every: steps between evaluations; None for a pass over the training data.
        mode: whether the first figure is better when it is smaller, "min", or larger, "max".
    """

    function: Callable[[nn.Module], Mapping[str, float]]
    every: int | None = None
    mode: str = "min"

    def __post_init__(self) -> None:
        check_mode("Evaluate", self.mode)


def check_mode(owner: str, mode: str) -> None:
    """Check that a mode is "min" or "max". Raises OptionError for another one."""
    if mode not in ("min", "max"):
        raise OptionError(f"{owner}: expected mode='min' or 'max', got {mode!r:.60}")


class _Watching(Callback):
    """Base of the callbacks that look for the best value of a figure.

    Args:
        figure: name of a figure of the evaluation; the first one for None.
        mode: "min" if smaller is better, "max" if larger is.
    """

    def __init__(self, figure: str | None = None, mode: str = "min") -> None:
        check_mode(type(self).__name__, mode)
        self.figure, self.mode = figure, mode
        self.best: float | None = None

    def improved(self, figures: Mapping[str, float]) -> bool:
        """Return whether a figure is better than all before, and remember it then."""
        name = next(iter(figures)) if self.figure is None else self.figure
        if name not in figures:
            raise OptionError(f"{type(self).__name__}: no figure {name!r} among {list(figures)}")
        value = figures[name]
        better = self.best is None or (
            value < self.best if self.mode == "min" else value > self.best
        )
        if better:
            self.best = float(value)
        return better


class EarlyStopping(_Watching):
    """End the training after some evaluations without a better figure.

    Args:
        patience: number of evaluations in a row that may be no better than the best one.
        figure: name of a figure of the evaluation; the first one for None.
        mode: "min" if smaller is better, "max" if larger is.
    """

    def __init__(self, patience: int = 3, figure: str | None = None, mode: str = "min") -> None:
        super().__init__(figure, mode)
        self.patience, self.worse = patience, 0

    def evaluated(self, t: Trainer, figures: dict[str, float]) -> None:
        self.worse = 0 if self.improved(figures) else self.worse + 1
        if self.worse >= self.patience:
            t.finish(f"no better figure in {self.worse} evaluations")

    def state_dict(self) -> dict[str, Any]:
        return {"worse": self.worse, **({} if self.best is None else {"best": self.best})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.worse, self.best = state["worse"], state.get("best")


class Best(_Watching):
    """Keep the weights of the best evaluation, and give them to the model at the end.

    The figures of the final evaluation are those of the model before that.

    Args:
        figure: name of a figure of the evaluation; the first one for None.
        mode: "min" if smaller is better, "max" if larger is.
    """

    weights: dict[str, Any] | None = None

    def evaluated(self, t: Trainer, figures: dict[str, float]) -> None:
        if self.improved(figures):
            self.weights = dict(t.model.state_dict())

    def end(self, t: Trainer, result: Result) -> None:
        if self.weights is not None and result.stopped is None:
            t.model.load_state_dict(self.weights, strict=False)

    def state_dict(self) -> dict[str, Any]:
        kept = {} if self.best is None else {"best": self.best}
        return {**kept, **({} if self.weights is None else {"weights": self.weights})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.weights = state.get("best"), state.get("weights")


class Ema(Callback):
    """Keep a moving average of the weights, by which the model is evaluated.

    After step t an average a becomes d a + (1 - d) w, with d = min(decay, (1 + t) / (10 + t)), so
    that it soon forgets the initial weights. Running statistics and integers are taken as they are.

    Args:
        decay: of the average, in [0, 1).
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise OptionError(f"Ema: decay={decay!r:.60} is outside [0, 1)")
        self.decay = decay
        self.average: dict[str, Any] = {}

    def begin(self, t: Trainer) -> None:
        if not self.average:
            self.average = dict(t.model.state_dict())

    def step(self, t: Trainer, out: Out) -> None:
        d = min(self.decay, (1 + t.done) / (10 + t.done))
        learned = {name for name, _ in t.model.named_parameters()}
        with executor.modes(recording=False):
            for name, value in t.model.state_dict().items():
                if name in learned:
                    value = self.average[name] * d + value * (1 - d)
                self.average[name] = value.detach()
            executor.realize([v.node for v in self.average.values() if v.array is None])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averages within a ``with`` block."""
        before = model.state_dict()
        model.load_state_dict(self.average, strict=False)
        try:
            yield
        finally:
            model.load_state_dict(before)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.average)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.average = dict(state)


class FiniteCheck(Callback):
    """End a run that makes NaN or infinities.

    The loss is checked in each step, before the update; the parameters before each checkpoint, so
    that all checkpoints can be used; and the figures of each evaluation.
    """

    def loss(self, t: Trainer, value: float) -> None:
        """Raise NonFiniteError for a loss that is not finite."""
        if not math.isfinite(value):
            self._fail(t, f"the loss is {value} at step {t.done + 1}")

    def weights(self, t: Trainer) -> None:
        """Raise NonFiniteError if a parameter is not finite."""
        for name, p in t.model.named_parameters():
            if p.dtype.is_floating and not _all_finite(p):
                self._fail(t, f"the parameter {name!r} is not finite after step {t.done}")

    def evaluated(self, t: Trainer, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._fail(t, f"the figure {name!r} is {value} after step {t.done}")

    def _fail(self, t: Trainer, problem: str) -> None:
        raise explain(NonFiniteError, "train", problem, advice=t.advice())


class _Measuring(Callback):
    """Base of callbacks that measure now and then.

    Args:
        every: steps between measurements; None for about a hundred in the whole run.
    """

    def __init__(self, every: int | None = None) -> None:
        self.every = every

    def due(self, t: Trainer, step: int) -> bool:
        """Return whether a step is one to measure."""
        usual = t.record_every * max(1, t.total // (MEASURED * t.record_every))
        return step % (self.every or usual) == 0


class Norms(_Measuring):
    """Record the norms of gradients and weights, and how large an update is beside the weights.

    A compiled step leaves no gradients; it tells their norm where it clips them.

    Args:
        every: steps between measurements; None for about a hundred in the whole run.
    """

    def __init__(self, every: int | None = None) -> None:
        super().__init__(every)
        self.before: list[Any] = []

    def begin(self, t: Trainer) -> None:
        self._keep(t)

    def step(self, t: Trainer, out: Out) -> None:
        if self.due(t, t.done):
            params = [p for p in t.model.parameters() if p.requires_grad]
            weights = _norm(p for p in params)
            found = {"weight_norm": weights}
            grads = [elements(p.grad) for p in params if p.grad is not None]
            if out.norm is not None or grads:
                found["gradient_norm"] = float(out.norm) if out.norm is not None else _norm(grads)
            if self.before:
                pairs = zip(params, self.before, strict=True)
                found["update_ratio"] = _norm(p.detach() - q for p, q in pairs) / (weights or 1.0)
            out.measured.update(found)
        self._keep(t)

    def _keep(self, t: Trainer) -> None:
        """Keep the parameters if the next step is one to measure."""
        self.before = []
        if self.due(t, t.done + 1):
            self.before = [p.detach() for p in t.model.parameters() if p.requires_grad]


class Memory(_Measuring):
    """Record the most memory that the device has had in use so far, where it knows.

    Args:
        every: steps between measurements; None for about a hundred in the whole run.
    """

    def step(self, t: Trainer, out: Out) -> None:
        if self.due(t, t.done):
            device = next((p.device for p in t.model.parameters()), None)
            peak = device.backend.memory_info()["peak"] if device is not None else 0
            if peak:
                out.measured["memory_megabytes"] = round(peak / 1e6, 2)


def _all_finite(x: Any) -> bool:
    with executor.modes(recording=False):
        return bool(ops.all(ops.isfinite(x)).item())


def _norm(tensors: Any) -> float:
    """Return the Euclidean norm of all elements of some tensors, computed in float32 or wider."""
    total = 0.0
    with executor.modes(recording=False):
        for x in tensors:
            wide = x.astype("float32") if x.dtype.itemsize < 4 else x
            total += float(ops.summation(ops.square(wide)).item())
    return math.sqrt(total)

"""Schedulers of one schedule, or of a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from needle.errors import OptionError, unknown
from needle.optim.lr_scheduler.base import LRScheduler, assign, each
from needle.optim.optimizer import Optimizer
from needle.optim.schedules import (
    Cosine,
    Exponential,
    Linear,
    Milestones,
    Polynomial,
    Restarts,
    Schedule,
    Step,
)

__all__ = [
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LambdaLR",
    "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "StepLR",
]  # fmt: skip

_Piece = tuple[float, float]

# ---- of one schedule -----------------------------------------------------------------


class StepLR(LRScheduler):
    """Multiply the rate by gamma after every ``step_size`` steps. See ``optim.Step``."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Step(rate, self.step_size, self.gamma)


class MultiStepLR(LRScheduler):
    """Multiply the rate by gamma at each of several steps. See ``optim.Milestones``."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = milestones, gamma
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Milestones(rate, self.milestones, self.gamma)


class ExponentialLR(LRScheduler):
    """Multiply the rate by gamma after every step. See ``optim.Exponential``."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Exponential(rate, self.gamma)


class ConstantLR(LRScheduler):
    """Multiply the rate by a factor for ``total_iters`` steps. See ``optim.Milestones``.

    Raises:
        OptionError: if the factor is not in [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        _check_share("ConstantLR", "factor", factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return lambda step: rate * (self.factor if step < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """Multiply the rate by a factor that changes linearly. See ``optim.Linear``.

    Raises:
        OptionError: if a factor is not in [0, 1], or the first one is 0.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        _check_share("LinearLR", "start_factor", start_factor)
        _check_share("LinearLR", "end_factor", end_factor)
        if start_factor == 0:
            raise OptionError("LinearLR: start_factor=0\n  rule: above 0, at most 1")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Linear(rate * self.start_factor, rate * self.end_factor, self.total_iters)


class PolynomialLR(LRScheduler):
    """Bring the rate to 0 in ``total_iters`` steps. See ``optim.Polynomial``."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Polynomial(rate, self.total_iters, self.power)


class CosineAnnealingLR(LRScheduler):
    """Go to ``eta_min`` in ``T_max`` steps along half a cosine, and back. See ``optim.Cosine``."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min, self.floor = T_max, eta_min, eta_min
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        cosine = Cosine(rate, self.T_max, self.eta_min)
        return lambda step: cosine(_there_and_back(step, self.T_max))


def _there_and_back(x: float, length: float) -> float:
    """Return x in [0, length], folded: what follows length goes back to 0."""
    rest = x % (2 * length)
    return min(rest, 2 * length - rest)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Go to ``eta_min`` along half a cosine, again and again. See ``optim.Restarts``.

    ``step(epoch + i / n)`` takes parts of an epoch, as in PyTorch.
    """

    chains = False

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return Restarts(rate, self.T_0, self.T_mult, self.eta_min)


def _check_share(owner: str, name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise OptionError(f"{owner}: {name}={value}\n  rule: from 0 to 1")


# ---- of functions --------------------------------------------------------------------

Rule = Callable[[int], float]


class LambdaLR(LRScheduler):
    """Multiply the base rate by a function of the step. The function is not saved.

    Raises:
        OptionError: if there is not one function for each group.
    """

    chains = False

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Rule | Sequence[Rule], last_epoch: int = -1
    ) -> None:
        self.lr_lambdas = each("LambdaLR: lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def schedule(self, rate: float, group: int) -> Schedule:
        return lambda step: rate * self.lr_lambdas[group](step)


class MultiplicativeLR(LRScheduler):
    """Multiply the rate by a function of the step, in each step. The function is not saved.

    Raises:
        OptionError: if there is not one function for each group.
    """

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Rule | Sequence[Rule], last_epoch: int = -1
    ) -> None:
        self.lr_lambdas = each("MultiplicativeLR: lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        pairs = zip(self.optimizer.groups, self.lr_lambdas, strict=True)
        first = self._steps == 1
        return [g["lr"] * (1.0 if first else rule(self.last_epoch)) for g, rule in pairs]


class OneCycleLR(LRScheduler):
    """Let the rate rise to ``max_lr`` and fall to almost 0; momentum does the opposite.

    With the settings left out, the rates are those of ``optim.OneCycle``.

    Args:
        optimizer: optimizer whose rate to set.
        max_lr: the highest rate, or one for each group.
        total_steps: number of steps; else ``epochs * steps_per_epoch``.
        epochs: number of epochs.
        steps_per_epoch: steps of one epoch.
        pct_start: share of the steps in which the rate rises.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether momentum (beta1 of Adam) falls and rises too.
        base_momentum: lowest momentum, at the highest rate.
        max_momentum: highest momentum, at the first step.
        div_factor: the first rate is ``max_lr / div_factor``.
        final_div_factor: the last rate is the first one divided by it.
        three_phase: fall to the first rate as fast as the rise was, and only then to the last.
        last_epoch: the step before the next one.

    Raises:
        OptionError: for settings out of range; when a step after the last one is made.
    """

    chains = False

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            total_steps = (epochs or 0) * (steps_per_epoch or 0)
        if total_steps <= 0 or not 0 <= pct_start <= 1:
            raise OptionError(
                f"OneCycleLR: total_steps={total_steps}, pct_start={pct_start}\n"
                "  rule: total_steps (or epochs and steps_per_epoch) > 0, 0 <= pct_start <= 1"
            )
        if anneal_strategy not in ("cos", "linear"):
            raise unknown("OneCycleLR: anneal_strategy", anneal_strategy, ("cos", "linear"))
        self.total_steps, self.pct_start, self.three_phase = total_steps, pct_start, three_phase
        self.anneal_strategy = anneal_strategy
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self._momentum = self._momentum_of(optimizer) if cycle_momentum else ""
        for group, rate in zip(optimizer.groups, each("max_lr", max_lr, optimizer), strict=True):
            if last_epoch == -1:
                group["initial_lr"] = rate / div_factor
        self._lows = each("base_momentum", base_momentum, optimizer)
        self._highs = each("max_momentum", max_momentum, optimizer)
        super().__init__(optimizer, last_epoch)

    @staticmethod
    def _momentum_of(optimizer: Optimizer) -> str:
        for name in ("beta1", "momentum"):
            if name in optimizer.numbers:
                return name
        raise OptionError(
            f"OneCycleLR: {type(optimizer).__name__} has no momentum\n  try: cycle_momentum=False"
        )

    def schedule(self, rate: float, group: int) -> Schedule:
        high, low = rate * self.div_factor, rate / self.final_div_factor
        return self._phases((rate, high), (high, rate), (high, low), (rate, low))

    def _phases(self, up: _Piece, back: _Piece, down: _Piece, end: _Piece) -> Schedule:
        """Return a schedule of two or three pieces, each from a value to another."""
        top, last = float(self.pct_start * self.total_steps) - 1, self.total_steps - 1
        pieces = [(top, *up), (last, *down)]
        if self.three_phase:
            middle = float(2 * self.pct_start * self.total_steps) - 2
            pieces = [(top, *up), (middle, *back), (last, *end)]

        def value(step: float) -> float:
            place = sum(step > stop for stop, _, _ in pieces[:-1])
            start = pieces[place - 1][0] if place else 0.0
            stop, one, other = pieces[place]
            share = (step - start) / ((stop - start) or 1.0)
            if self.anneal_strategy == "linear":
                return float(one + (other - one) * share)
            return Cosine(one, 1.0, other)(_there_and_back(share, 1.0))

        return value

    def step(self, epoch: float | None = None) -> None:
        if self.last_epoch + 1 > self.total_steps:
            raise OptionError(f"OneCycleLR: step {self.last_epoch + 1} of {self.total_steps}")
        super().step(epoch)
        if self._momentum:
            rules = [
                self._phases((high, low), (low, high), (low, high), (high, high))
                for high, low in zip(self._highs, self._lows, strict=True)
            ]
            assign(self.optimizer, self._momentum, [rule(self.last_epoch) for rule in rules])

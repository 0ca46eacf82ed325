"""A learning rate that depends on a metric of the run, and so has a state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from needle.backend.axes import integer
from needle.errors import DataError, OptionError, unknown
from needle.ops.core.attributes import real
from needle.optim.optimizer import Optimizer, check_state, count
from needle.tensors import Tensor

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau:
    """Multiply an optimizer's learning rates by a factor when a metric no longer improves.

    Call ``step(metric)`` after each epoch or evaluation. The optimizer owns and saves the learning
    rates; the state of this object is the best metric and the number of calls since then.

    >>> optimizer = optim.SGD([nn.Parameter(Tensor([1.0]))], lr=0.5)
    >>> plateau = optim.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    >>> for loss in (0.9, 0.9, 0.9):
    ...     plateau.step(loss)
    >>> optimizer.lr
    0.25

    Args:
        optimizer: optimizer whose rates to change; they must be numbers, not schedules.
        mode: "min" if lower metrics are better, "max" if higher ones are.
        factor: factor of the rates, in [0, 1).
        patience: number of calls without an improvement to wait for.
        threshold: smallest change that counts as an improvement.
        threshold_mode: "rel": threshold is relative to the best value; "abs": it is absolute.
        cooldown: number of calls after a change that are not counted.
        min_lr: lower limit of the rates.
        eps: smallest change of a rate; smaller changes are skipped.

    Attributes:
        best: the best value of the metric.
        num_bad_epochs: number of calls since then.
        cooldown_counter: number of calls that will not be counted.

    Raises:
        OptionError: if a setting is out of range, or a rate is a schedule.
        ArgumentError: if a setting is not a number.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        name = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"{name}: expected an optimizer, got {type(optimizer).__name__}")
        for what, given, known in (("mode", mode, ("min", "max")),
                                   ("threshold_mode", threshold_mode, ("rel", "abs"))):  # fmt: skip
            if not isinstance(given, str) or given not in known:
                raise unknown(f"{name}: {what}", str(given), known)
        self.optimizer, self.mode, self.threshold_mode = optimizer, mode, threshold_mode
        self.factor, self.threshold = real("factor", factor), real("threshold", threshold)
        self.min_lr, self.eps = real("min_lr", min_lr), real("eps", eps)
        self.patience, self.cooldown = integer("patience", patience), integer("cooldown", cooldown)
        least = min(self.threshold, self.min_lr, self.eps, self.patience, self.cooldown)
        if not (0 <= self.factor < 1 and least >= 0):
            raise OptionError(
                f"{name}: factor={factor}, patience={patience}, threshold={threshold}, "
                f"cooldown={cooldown}, min_lr={min_lr}, eps={eps}\n"
                "  rule: the factor is below 1, and no setting is negative"
            )
        self._check_rates()
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def step(self, metric: Tensor | float) -> None:
        """Record a metric: a number, or a tensor of one element. NaN never improves.

        Raises:
            ArgumentError: if the metric is not a number.
            OptionError: if a rate has become a schedule.
        """
        self._check_rates()
        value = real("metric", metric)
        if self._improves(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce(vars(self.optimizer))
            for group in self.optimizer.groups:
                self._reduce(group)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _improves(self, value: float) -> bool:
        step = self.threshold
        if self.threshold_mode == "rel":
            step *= 0.0 if math.isinf(self.best) else self.best  # inf - inf is NaN
        return value < self.best - step if self.mode == "min" else value > self.best + step

    def _reduce(self, own: dict[str, Any]) -> None:
        """Reduce the rate among the attributes of the optimizer, or in a group that has its own."""
        old = own.get("lr")
        if old is None or callable(old):  # a schedule that is overridden in every group
            return
        new = max(old * self.factor, self.min_lr)
        if old - new > self.eps:
            own["lr"] = new

    def _check_rates(self) -> None:
        if any(callable(group["lr"]) for group in self.optimizer.groups):
            raise OptionError(
                f"{type(self).__name__}: the learning rate is a schedule, a function of the step\n"
                "  rule: only rates that are numbers can be reduced"
            )

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group."""
        return [float(group["lr"]) for group in self.optimizer.groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that, with the optimizer's state, let a run continue exactly."""
        return {
            "best": self.best,
            "num_bad_epochs": self.num_bad_epochs,
            "cooldown_counter": self.cooldown_counter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, completely or, on an error, not at all.

        Raises:
            DataError: if it is not a state of a ``ReduceLROnPlateau``.
        """
        check_state(state)
        if set(state) != set(self.state_dict()):
            raise DataError(
                f"load_state_dict: the state has {sorted(state)}\n"
                f"  rule: {', '.join(self.state_dict())}"
            )
        best = state["best"]
        if not isinstance(best, (int, float)):
            raise DataError(f"load_state_dict: expected a number for best, got {best!r:.60}")
        numbers = [count(name, state[name]) for name in ("num_bad_epochs", "cooldown_counter")]
        self.best, (self.num_bad_epochs, self.cooldown_counter) = float(best), numbers

"""The base of all schedulers: when which rate is set, and what is saved."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from needle.errors import ArgumentError, DataError, OptionError
from needle.optim.optimizer import Optimizer, check_state, count
from needle.optim.schedules import Schedule

__all__ = ["LRScheduler"]


class LRScheduler:
    """Base of all schedulers. Subclasses define ``schedule`` or, as in PyTorch, ``get_lr``.

    Making a scheduler sets the rate of step 0; each call of ``step`` that of the next one. Where
    something else has changed a rate meanwhile, it is multiplied by what the schedule's own rate
    would be multiplied by, as in PyTorch.

    Attributes:
        base_lrs: the rate of each group of the optimizer, before any scheduler.
        last_epoch: the step whose rate is set.

    Raises:
        ArgumentError: if the first argument is no optimizer.
        OptionError: if a rate is a schedule; or, with last_epoch, no scheduler was there before.
    """

    floor: float = 0.0
    """The rate to which distances are multiplied."""
    chains: bool = True
    """Whether a rate that something else has changed is multiplied, or set anew."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        name = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"{name}: expected an optimizer, got {optimizer!r:.60}")
        if any(callable(group["lr"]) for group in optimizer.groups):
            raise OptionError(
                f"{name}: the optimizer's lr is a schedule\n  rule: its rates are numbers"
            )
        for group in optimizer.groups:
            if last_epoch != -1 and "initial_lr" not in group:
                raise OptionError(
                    f"{name}: last_epoch={last_epoch}, but no scheduler had this optimizer\n"
                    "  try: leave last_epoch out, then load_state_dict(...)"
                )
            group.setdefault("initial_lr", group["lr"])
        self.optimizer = optimizer
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.groups]
        self.last_epoch = last_epoch
        self._last_lr = list(self.base_lrs) if last_epoch == -1 else self._rates(last_epoch)
        self._steps = 0
        self.step()

    def schedule(self, rate: float, group: int) -> Schedule:
        """Return the rate of a group as a function of the step, from its base rate."""
        raise NotImplementedError(f"{type(self).__name__} defines neither schedule() nor get_lr()")

    def _rates(self, step: float) -> list[float]:
        pairs = enumerate(self.base_lrs)
        return [float(self.schedule(rate, i)(step)) for i, rate in pairs]  # type: ignore[arg-type]

    def get_last_lr(self) -> list[float]:
        """Return the rates that this scheduler has set, one for each group."""
        return list(self._last_lr)

    def get_lr(self) -> list[float]:
        """Return the rates of step ``last_epoch``, one for each group."""
        now = self._rates(self.last_epoch)
        if not self.chains:
            return now
        before = self.base_lrs if self.last_epoch == 0 else self._rates(self.last_epoch - 1)
        rates = [float(group["lr"]) for group in self.optimizer.groups]
        return [self._moved(*each) for each in zip(rates, before, now, strict=True)]

    def _moved(self, lr: float, before: float, now: float) -> float:
        if lr == before:
            return now
        if before == self.floor:
            return lr + now - before
        return (lr - self.floor) * (now - self.floor) / (before - self.floor) + self.floor

    def step(self, epoch: float | None = None) -> None:
        """Set the rates of the next step, or of a given one."""
        if self._steps == 1 and self.optimizer.t == 0 and epoch is None:
            warnings.warn(
                "scheduler.step() before optimizer.step(): the first rate is never used; "
                "call optimizer.step() first",
                UserWarning,
                stacklevel=2,
            )
        self._steps += 1
        if len(self.optimizer.groups) != len(self.base_lrs):
            raise OptionError(
                f"{type(self).__name__}: the optimizer had {len(self.base_lrs)} groups, and has "
                f"{len(self.optimizer.groups)}\n  rule: make the scheduler after the last group"
            )
        if epoch is None:
            self.last_epoch += 1
            rates = self.get_lr()
        else:
            self.last_epoch = math.floor(epoch)
            own = type(self).get_lr is not LRScheduler.get_lr
            rates = self.get_lr() if own else self._rates(epoch)
        assign(self.optimizer, "lr", rates)
        self._last_lr = rates

    def state_dict(self) -> dict[str, Any]:
        """Return the state. The rates themselves are saved with the optimizer."""
        return {
            "last_epoch": self.last_epoch,
            "base_lrs": list(self.base_lrs),
            "last_lr": self.get_last_lr(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, completely or, on an error, not at all.

        Raises:
            DataError: if it is not the state of such a scheduler.
        """
        self._check(state)
        self.last_epoch = count("last_epoch", state["last_epoch"])
        self.base_lrs = [float(rate) for rate in state["base_lrs"]]
        self._last_lr = [float(rate) for rate in state["last_lr"]]

    def _check(self, state: Mapping[str, Any]) -> None:
        check_state(state)
        own = self.state_dict()
        if set(state) != set(own):
            raise DataError(
                f"load_state_dict: the state has {sorted(state)}\n  rule: {', '.join(own)}"
            )
        for name, value in own.items():
            given = state[name]
            if isinstance(value, list) and (
                not isinstance(given, Sequence) or len(given) != len(value)
            ):
                raise DataError(
                    f"load_state_dict: expected {len(value)} values for {name}, got {given!r:.60}"
                )
        count("last_epoch", state.get("last_epoch", 0))


def assign(optimizer: Optimizer, name: str, values: Sequence[float]) -> None:
    """Set a number of every group: the optimizer's, where groups have none of their own."""
    pairs = list(zip(optimizer.groups, values, strict=True))
    shared = {value for group, value in pairs if name not in group}
    if len(shared) == 1:
        setattr(optimizer, name, shared.pop())
        pairs = [(group, value) for group, value in pairs if name in group]
    for group, value in pairs:
        group[name] = value


def each(name: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """Return a value for each group, from one or several.

    Raises:
        OptionError: if there are several, but not one for each group.
    """
    if not isinstance(value, (list, tuple)):
        return [value] * len(optimizer.groups)
    if len(value) != len(optimizer.groups):
        raise OptionError(
            f"{name}: {len(value)} values for {len(optimizer.groups)} groups of parameters"
        )
    return list(value)

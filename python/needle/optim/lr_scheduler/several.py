"""Schedulers that call other schedulers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from needle.errors import OptionError
from needle.optim.lr_scheduler.base import LRScheduler, assign
from needle.optim.optimizer import Optimizer, count

__all__ = ["ChainedScheduler", "SequentialLR"]


class _Several(LRScheduler):
    """Base of schedulers that call others."""

    def _take(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> None:
        """Keep the schedulers.

        Raises:
            OptionError: if there are none, or one is of another optimizer, or needs a metric.
        """
        name = type(self).__name__
        if not schedulers:
            raise OptionError(f"{name}: expected at least one scheduler, got none")
        for i, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
                raise OptionError(
                    f"{name}: scheduler {i} is {type(scheduler).__name__}\n"
                    "  rule: schedulers of the same optimizer, without a metric"
                )
        self.optimizer, self._schedulers = optimizer, list(schedulers)
        self.base_lrs = [group["initial_lr"] for group in optimizer.groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all schedulers."""
        return {
            "last_epoch": self.last_epoch,
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            DataError: if it is not the state of such a scheduler.
        """
        self._check(state)
        for scheduler, own in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler._check(own)
        for scheduler, own in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(own)
        self.last_epoch = count("last_epoch", state["last_epoch"])


class SequentialLR(_Several):
    """Follow several schedulers one after the other; ``milestones`` are the steps between them.

    See ``optim.Chain``.

    Raises:
        OptionError: if schedulers and milestones do not fit each other.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise OptionError(
                f"SequentialLR: {len(milestones)} milestones for {len(schedulers)} schedulers\n"
                "  rule: one between two schedulers"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        assign(optimizer, "lr", self.base_lrs)
        for scheduler in self._schedulers:
            scheduler._steps = 0
        self._move(first=True)

    def _move(self, first: bool = False) -> None:
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if first or (place and self._milestones[place - 1] == self.last_epoch):
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def step(self, epoch: float | None = None) -> None:
        """Let the scheduler whose turn it is set the rates of the next step.

        Raises:
            OptionError: if a step is given.
        """
        if epoch is not None:
            raise OptionError("SequentialLR: step() takes no epoch")
        self.last_epoch += 1
        self._move()


class ChainedScheduler(_Several):
    """Let several schedulers change the rate, one after the other, in each step."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if optimizer is None and schedulers:
            optimizer = schedulers[0].optimizer
        self._take(schedulers, optimizer)  # type: ignore[arg-type]
        self.last_epoch = 0
        self._last_lr = [group["lr"] for group in self.optimizer.groups]

    def step(self, epoch: float | None = None) -> None:
        """Let every scheduler make a step.

        Raises:
            OptionError: if a step is given.
        """
        if epoch is not None:
            raise OptionError("ChainedScheduler: step() takes no epoch")
        for scheduler in self._schedulers:
            scheduler.step()
        self.last_epoch += 1
        self._last_lr = [group["lr"] for group in self.optimizer.groups]

"""Schedules: pure functions of the step, which are passed as the learning rate of an optimizer.

The first update is step 0. A schedule has no state to save: resuming a run at step n only needs n.

>>> rate = optim.Warmup(10, optim.Cosine(0.1, 90))
>>> optimizer = optim.Adam(nn.Linear(3, 2).parameters(), lr=rate)
>>> optimizer.current_lr
0.01
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from needle.errors import ArgumentError, OptionError
from needle.ops.core.attributes import real

__all__ = [
    "Chain", "Constant", "Cosine", "Exponential", "Linear", "Milestones", "OneCycle", "Polynomial",
    "Restarts", "Schedule", "Step", "Warmup",
]  # fmt: skip

Schedule = Callable[[int], float]
Rate = float | Schedule
"""A number of an optimizer, or a schedule of it."""


def _value(schedule: Schedule | float, step: int) -> float:
    return float(schedule(step)) if callable(schedule) else float(schedule)


def _finite(owner: object, **numbers: object) -> None:
    """Check the numbers of a schedule when it is made, not when a step uses it."""
    for name, number in numbers.items():
        if not math.isfinite(real(f"{type(owner).__name__}: {name}", number)):
            raise OptionError(f"{type(owner).__name__}: {name}={number} must be finite")


def _positive(owner: object, **numbers: float) -> None:
    _finite(owner, **numbers)
    for name, number in numbers.items():
        if number <= 0:
            raise OptionError(f"{type(owner).__name__}: {name}={number} must be positive")


def _part(owner: object, **schedules: object) -> None:
    _finite(owner, **{name: x for name, x in schedules.items() if not callable(x)})


@dataclass(frozen=True)
class Constant:
    """Keep the same rate.

    >>> optim.Constant(0.1)(1000)
    0.1
    """

    rate: float

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate)

    def __call__(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Step:
    """Multiply the rate by ``factor`` after every ``every`` steps.

    >>> rate = optim.Step(1.0, every=10, factor=0.5)
    >>> [rate(step) for step in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, factor=self.factor)
        _positive(self, every=self.every)

    def __call__(self, step: int) -> float:
        return float(self.rate * self.factor ** (step // self.every))


@dataclass(frozen=True)
class Milestones:
    """Multiply the rate by ``factor`` at each of several steps.

    >>> rate = optim.Milestones(1.0, steps=[10, 30], factor=0.5)
    >>> [rate(step) for step in (0, 10, 30)]
    [1.0, 0.5, 0.25]
    """

    rate: float
    steps: Sequence[int]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, factor=self.factor)
        if not isinstance(self.steps, Iterable):
            raise ArgumentError(
                f"Milestones: expected a sequence of numbers for steps, got {self.steps!r:.60}"
            )
        steps = tuple(self.steps)
        _finite(self, **{f"steps[{i}]": step for i, step in enumerate(steps)})
        object.__setattr__(self, "steps", tuple(sorted(steps)))

    def __call__(self, step: int) -> float:
        return float(self.rate * self.factor ** bisect_right(self.steps, step))


@dataclass(frozen=True)
class Exponential:
    """Multiply the rate by ``factor`` after every step.

    >>> rate = optim.Exponential(1.0, factor=0.5)
    >>> [rate(step) for step in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """

    rate: float
    factor: float

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, factor=self.factor)

    def __call__(self, step: int) -> float:
        return float(self.rate * self.factor**step)


@dataclass(frozen=True)
class Polynomial:
    """Go from ``rate`` to 0 in ``steps`` steps, as a power of the remaining share; then stay.

    >>> rate = optim.Polynomial(1.0, steps=4)
    >>> [rate(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    rate: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate)
        _positive(self, steps=self.steps, power=self.power)

    def __call__(self, step: int) -> float:
        return float(self.rate * max(1.0 - step / self.steps, 0.0) ** self.power)


@dataclass(frozen=True)
class Linear:
    """Go from ``start`` to ``end`` in ``steps`` steps, then stay.

    >>> rate = optim.Linear(0.0, 1.0, steps=4)
    >>> [rate(step) for step in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _finite(self, start=self.start, end=self.end)
        _positive(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Cosine:
    """Go from ``rate`` to ``end`` in ``steps`` steps along half a cosine, then stay.

    Source: Loshchilov and Hutter, "SGDR", 2017, arXiv:1608.03983, without restarts.

    >>> rate = optim.Cosine(1.0, steps=4)
    >>> [round(rate(step), 4) for step in range(6)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0, 0.0]
    """

    rate: float
    steps: float
    end: float = 0.0

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, end=self.end)
        _positive(self, steps=self.steps)

    def __call__(self, step: float) -> float:
        progress = min(step / self.steps, 1.0)
        return self.end + (self.rate - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Restarts:
    """Follow half a cosine from ``rate`` to ``end`` in ``steps`` steps, again and again.

    Each cycle takes ``factor`` times as many steps as the one before.

    Source: Loshchilov and Hutter, "SGDR", 2017, arXiv:1608.03983.

    >>> rate = optim.Restarts(1.0, steps=2, factor=2)
    >>> [round(rate(step), 4) for step in range(8)]
    [1.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 1.0, 0.9619]
    """

    rate: float
    steps: int
    factor: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, factor=self.factor, end=self.end)
        _positive(self, steps=self.steps)
        if self.factor < 1:
            raise OptionError(f"Restarts: factor={self.factor}\n  rule: factor >= 1")

    def __call__(self, step: int) -> float:
        length = self.steps
        if self.factor == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.factor
        return Cosine(self.rate, length, self.end)(step)


@dataclass(frozen=True)
class OneCycle:
    """Rise along half a cosine to ``rate``, fall along another one to almost zero, then stay.

    Step ``peak * steps - 1`` has the highest rate, step ``steps - 1`` the lowest.

    Source: Smith and Topin, "Super-Convergence", 2018, arXiv:1708.07120.

    Args:
        rate: the highest rate.
        steps: total number of steps.
        peak: share of the steps in which the rate rises.
        start: step 0 has the rate ``rate / start``.
        end: the last step has the rate ``rate / start / end``.

    >>> rate = optim.OneCycle(1.0, steps=10)
    >>> [round(rate(step), 4) for step in (0, 2, 6, 9)]
    [0.04, 1.0, 0.3887, 0.0]
    """

    rate: float
    steps: int
    peak: float = 0.3
    start: float = 25.0
    end: float = 1e4

    def __post_init__(self) -> None:
        _finite(self, rate=self.rate, peak=self.peak)
        _positive(self, start=self.start, end=self.end, steps=self.steps)
        if not 1 < self.peak * self.steps < self.steps:
            raise OptionError(
                f"OneCycle: peak={self.peak} of {self.steps} steps\n"
                "  rule: the rate rises for more than one step, and falls for at least one"
            )

    def __call__(self, step: int) -> float:
        up, low = self.peak * self.steps - 1, self.rate / self.start
        if step <= up:
            return Cosine(low, up, self.rate)(step)
        return Cosine(self.rate, self.steps - 1 - up, low / self.end)(step - up)


@dataclass(frozen=True)
class Warmup:
    """Rise linearly to the first rate of ``then``, then follow ``then``.

    Step 0 has the rate ``then(0) / steps``; step ``steps`` is step 0 of ``then``.

    >>> rate = optim.Warmup(4, optim.Step(1.0, every=2, factor=0.5))
    >>> [rate(step) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.5]
    """

    steps: int
    then: Schedule | float

    def __post_init__(self) -> None:
        _part(self, then=self.then)
        _positive(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return _value(self.then, 0) * (step + 1) / self.steps
        return _value(self.then, step - self.steps)


@dataclass(frozen=True, init=False)
class Chain:
    """Follow several schedules (or rates) one after the other, each from its own step 0.

    >>> rate = optim.Chain((1.0, 2), (optim.Linear(1.0, 0.5, 2), 2), 0.1)
    >>> [rate(step) for step in range(6)]
    [1.0, 1.0, 1.0, 0.75, 0.1, 0.1]

    Args:
        parts: pairs (schedule, number of steps); the last part never ends and may be a schedule.
    """

    parts: tuple[Any, ...]

    def __init__(self, *parts: tuple[Schedule | float, int] | Schedule | float) -> None:
        object.__setattr__(self, "parts", parts)
        pairs = [part for part in parts if isinstance(part, tuple)]
        alone = [part for part in parts[-1:] if not isinstance(part, tuple)]
        if not parts or len(pairs + alone) < len(parts) or any(len(pair) != 2 for pair in pairs):
            raise OptionError("Chain: every part but the last must be a pair (schedule, steps)")
        for schedule, steps in pairs:
            _part(self, schedule=schedule)
            _positive(self, steps=steps)
        for schedule in alone:
            _part(self, schedule=schedule)

    def __call__(self, step: int) -> float:
        for schedule, steps in self.parts[:-1]:
            if step < steps:
                return _value(schedule, step)
            step -= steps
        last = self.parts[-1]
        return _value(last[0] if isinstance(last, tuple) else last, step)

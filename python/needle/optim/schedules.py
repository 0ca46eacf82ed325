"""Schedules: pure functions of the step, owned by the optimizer.

The first update is step 0. A schedule is a value: it has no state to save, and resuming a run at
step n needs n alone.

>>> Warmup(10, Cosine(0.1, 90))(0)
0.01
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from needle.errors import OptionError

Schedule = Callable[[int], float]


def _value(schedule: Schedule | float, step: int) -> float:
    return float(schedule(step)) if callable(schedule) else float(schedule)


def _positive(owner: Any, **numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise OptionError(f"{type(owner).__name__}: {name}={number} must be positive")


@dataclass(frozen=True)
class Constant:
    """Always the same rate."""

    rate: float

    def __call__(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Step:
    """Multiply the rate by ``factor`` after every ``every`` steps."""

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive(self, every=self.every)

    def __call__(self, step: int) -> float:
        return float(self.rate * self.factor ** (step // self.every))


@dataclass(frozen=True)
class Linear:
    """Go from ``start`` to ``end`` in ``steps`` steps, then stay."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _positive(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Cosine:
    """Go from ``rate`` to ``end`` in ``steps`` steps along half a cosine, then stay.

    Source: Loshchilov and Hutter, "SGDR", 2017, arXiv:1608.03983, without restarts.
    """

    rate: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        progress = min(step / self.steps, 1.0)
        return self.end + (self.rate - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Warmup:
    """Rise in equal steps to the rate that ``then`` starts with, then follow ``then``.

    Step 0 has rate ``then(0) / steps``; step ``steps`` is step 0 of ``then``.
    """

    steps: int
    then: Schedule | float

    def __post_init__(self) -> None:
        _positive(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return _value(self.then, 0) * (step + 1) / self.steps
        return _value(self.then, step - self.steps)


@dataclass(frozen=True, init=False)
class Chain:
    """Follow several schedules (or rates) one after the other, each from its own step 0.

    >>> Chain((0.1, 1000), (Cosine(0.1, 500), 500), 0.001)

    Args:
        parts: (schedule, number of steps) pairs; the last part lasts for ever and may stand alone.
    """

    parts: tuple[Any, ...]

    def __init__(self, *parts: tuple[Schedule | float, int] | Schedule | float) -> None:
        object.__setattr__(self, "parts", parts)
        pairs = [part for part in parts[:-1] if isinstance(part, tuple)]
        if not parts or len(pairs) != len(parts) - 1:
            raise OptionError("Chain: every part but the last is a pair (schedule, steps)")
        for _, steps in pairs:
            _positive(self, steps=steps)

    def __call__(self, step: int) -> float:
        for schedule, steps in self.parts[:-1]:
            if step < steps:
                return _value(schedule, step)
            step -= steps
        last = self.parts[-1]
        return _value(last[0] if isinstance(last, tuple) else last, step)

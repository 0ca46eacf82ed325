"""Ops that only the course's programs name: those of a tensor and a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle import executor
from needle.errors import ShapeError
from needle.ops.base import Composite
from needle.ops.loss import log_softmax
from needle.ops.samples import Sample, uniform


def _scalar_samples(
    reference: Callable[[Any, float], Any], scalars: Sequence[float], low: float = -2.0
) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        return [
            Sample((uniform(shape, low, 2.0),), (c,), lambda x, c=c: reference(x, c))
            for c in scalars
            for shape in ((3, 4), (), (0, 2))
        ]

    return samples


class AddScalar(Composite):
    """Add a number: x + scalar."""

    scalar: float
    samples = _scalar_samples(lambda x, c: x + c, (1.5, -2))

    def expand(self, x: Any) -> Any:
        return x + self.scalar


class MulScalar(Composite):
    """Multiply by a number: x * scalar."""

    scalar: float
    samples = _scalar_samples(lambda x, c: x * c, (1.5, -2))

    def expand(self, x: Any) -> Any:
        return x * self.scalar


class DivScalar(Composite):
    """Divide by a number: x / scalar."""

    scalar: float
    samples = _scalar_samples(lambda x, c: x / c, (1.5, -2))

    def expand(self, x: Any) -> Any:
        return x / self.scalar


class PowerScalar(Composite):
    """Raise to the power of a number: x ** scalar."""

    scalar: float
    samples = _scalar_samples(lambda x, c: x**c, (2, -1.5, 0), low=0.5)

    def expand(self, x: Any) -> Any:
        return x**self.scalar


def _number(scalar: Any) -> Any:
    """Return a Python number for a number, NumPy's or a one-element array."""
    return scalar.item() if hasattr(scalar, "item") else scalar


def add_scalar(a: Any, scalar: float) -> Any:
    """Add a number to a tensor. See ``AddScalar``."""
    return executor.apply(AddScalar.of(_number(scalar)), a)


def mul_scalar(a: Any, scalar: float) -> Any:
    """Multiply a tensor by a number. See ``MulScalar``."""
    return executor.apply(MulScalar.of(_number(scalar)), a)


def divide_scalar(a: Any, scalar: float) -> Any:
    """Divide a tensor by a number. See ``DivScalar``."""
    return executor.apply(DivScalar.of(_number(scalar)), a)


def power_scalar(a: Any, scalar: float) -> Any:
    """Raise a tensor to the power of a number. See ``PowerScalar``."""
    return executor.apply(PowerScalar.of(_number(scalar)), a)


def logsoftmax(a: Any) -> Any:
    """Logarithm of softmax of each row.

    Raises:
        ShapeError: if a has not two axes.
    """
    shape = executor.spec_of(a).shape
    if len(shape) != 2:
        raise ShapeError(f"logsoftmax: a has shape {shape}, two axes are needed; see log_softmax")
    return log_softmax(a, 1)

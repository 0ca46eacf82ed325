"""Samples: the inputs, static attributes and references from which an op's tests are generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.errors import ShapeError

if TYPE_CHECKING:
    from needle.typing import Numpy, Reference


@dataclass(frozen=True)
class Sample:
    """One call of an op.

    Attributes:
        inputs: float64, int64 or bool NumPy arrays; tests cast floating ones to other dtypes.
        static: the op's static attributes.
        reference: the result in NumPy float64, from the inputs; None for error samples.
        raises: the exception that the call must raise.
        by_value: whether that error depends on values; lazy mode then raises it when it computes.
        gradient: whether gradients are checked here (false at kinks and singular points).
        dtypes: names of the dtypes to run floating inputs in; empty means all floating dtypes.
    """

    inputs: tuple[Any, ...]
    static: tuple[Any, ...] = ()
    reference: Reference | None = None
    raises: type[Exception] | None = None
    gradient: bool = True
    dtypes: Sequence[str] = field(default=())
    by_value: bool = False


Samples = Callable[[], list[Sample]]
"""What ``Op.samples`` is."""


def uniform(shape: Sequence[int], low: float = -2.0, high: float = 2.0, seed: int = 0) -> Numpy:
    """Return float64 values drawn uniformly, the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, tuple(shape))


def integers(shape: Sequence[int], low: int, high: int, seed: int = 0) -> Numpy:
    """Return int64 values in [low, high), the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).integers(low, high, tuple(shape))


SHAPES = ((), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4))
PAIRS = (
    ((3, 4), (3, 4)), ((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((), (3,)), ((2, 0), (1, 0)), ((), ()),
)  # fmt: skip


def unary_samples(low: float, high: float, reference: Reference, gradient: bool = True) -> Samples:
    """Return samples of a function of one operand, over [low, high) and the usual shapes."""

    def samples() -> list[Sample]:
        return [
            Sample((uniform(shape, low, high, i),), (), reference, gradient=gradient)
            for i, shape in enumerate(SHAPES)
        ]

    return samples


def binary_samples(
    reference: Reference,
    low: float = -2.0,
    high: float = 2.0,
    second: tuple[float, float] | None = None,
    gradient: bool = True,
) -> Samples:
    """Return samples of a function of two operands that broadcast, and one that does not."""

    def samples() -> list[Sample]:
        a, b = second or (low, high)
        good = [
            Sample((uniform(s, low, high, 1), uniform(t, a, b, 2)), (), reference, None, gradient)
            for s, t in PAIRS
        ]
        return [*good, Sample((uniform((3, 4)), uniform((2, 4))), raises=ShapeError)]

    return samples

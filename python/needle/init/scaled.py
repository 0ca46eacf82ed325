"""Initial weights whose scale keeps the size of signals from layer to layer.

Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
2010 (xavier); He et al., "Delving deep into rectifiers", 2015, arXiv:1502.01852 (kaiming).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from needle.errors import unknown
from needle.init.basic import rand, randn
from needle.tensor import Tensor

GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}
"""Factor that makes up for what a nonlinearity takes from the variance."""


def _gain(nonlinearity: str) -> float:
    if nonlinearity not in GAINS:
        raise unknown("nonlinearity", nonlinearity, GAINS)
    return GAINS[nonlinearity]


def xavier_uniform(
    fan_in: int,
    fan_out: int,
    gain: float = 1.0,
    *,
    shape: Sequence[int] | None = None,
    device: Any = None,
    dtype: Any = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out)).

    Args:
        fan_in: number of inputs of each output.
        fan_out: number of outputs that each input reaches.
        gain: factor of the standard deviation.
        shape: of the result; (fan_in, fan_out) for None.
        device: where to; the default device for None.
        dtype: element type.
        requires_grad: whether ``backward`` computes its gradient.
        key: seed of Needle's own generator, instead of the stream in use.
    """
    bound = gain * math.sqrt(6 / max(fan_in + fan_out, 1))
    return rand(
        *((fan_in, fan_out) if shape is None else shape), low=-bound, high=bound,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def xavier_normal(
    fan_in: int,
    fan_out: int,
    gain: float = 1.0,
    *,
    shape: Sequence[int] | None = None,
    device: Any = None,
    dtype: Any = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return N(0, std) with std = gain * sqrt(2 / (fan_in + fan_out)). See ``xavier_uniform``."""
    std = gain * math.sqrt(2 / max(fan_in + fan_out, 1))
    return randn(
        *((fan_in, fan_out) if shape is None else shape), std=std,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def kaiming_uniform(
    fan_in: int,
    fan_out: int,
    shape: Sequence[int] | None = None,
    nonlinearity: str = "relu",
    *,
    device: Any = None,
    dtype: Any = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return U(-a, a) with a = gain * sqrt(3 / fan_in), where the nonlinearity sets the gain.

    Args:
        fan_in: number of inputs of each output.
        fan_out: number of outputs that each input reaches.
        shape: of the result; (fan_in, fan_out) for None.
        nonlinearity: one of ``GAINS``.
        device: where to; the default device for None.
        dtype: element type.
        requires_grad: whether ``backward`` computes its gradient.
        key: seed of Needle's own generator, instead of the stream in use.
    """
    bound = _gain(nonlinearity) * math.sqrt(3 / max(fan_in, 1))
    return rand(
        *((fan_in, fan_out) if shape is None else shape), low=-bound, high=bound,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def kaiming_normal(
    fan_in: int,
    fan_out: int,
    shape: Sequence[int] | None = None,
    nonlinearity: str = "relu",
    *,
    device: Any = None,
    dtype: Any = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return N(0, std) with std = gain / sqrt(fan_in). See ``kaiming_uniform``."""
    std = _gain(nonlinearity) / math.sqrt(max(fan_in, 1))
    return randn(
        *((fan_in, fan_out) if shape is None else shape), std=std,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip

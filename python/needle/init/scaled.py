"""Initial weights, scaled so that signals keep their size from layer to layer.

Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
2010 (xavier); He et al., "Delving deep into rectifiers", 2015, arXiv:1502.01852 (kaiming); Saxe,
McClelland, Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
networks", 2014, arXiv:1312.6120 (orthogonal).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from needle import executor, ops
from needle.backend.axes import axes_of
from needle.errors import ShapeError, unknown
from needle.init.basic import floating, leaf, rand, randn, sizes
from needle.ops.core.attributes import real
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0), "leaky_relu": None, "selu": 0.75,
}  # fmt: skip
"""Factor that compensates how much each nonlinearity reduces the variance; None: by its slope."""


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that makes up for what a nonlinearity takes from the variance.

    Args:
        nonlinearity: "linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu" or a layer's name.
        param: negative slope of "leaky_relu"; 0.01 for None.

    Raises:
        OptionError: for another name.
    """
    if not isinstance(nonlinearity, str) or nonlinearity not in GAINS:
        raise unknown("nonlinearity", str(nonlinearity), GAINS)
    gain = GAINS[nonlinearity]
    if gain is None:
        slope = real("calculate_gain: param", 0.01 if param is None else param)
        return math.sqrt(2.0 / (1.0 + slope**2))
    return gain


def _fan(*counts: Any) -> float:
    """Return the number of terms that are added up, at least 1, for the variance."""
    return max(sum(real("init: a fan", n) for n in counts), 1.0)


def kaiming_std(fan: int, nonlinearity: str, slope: float | None = None) -> float:
    """Return the standard deviation of weights of which ``fan`` are added up."""
    return calculate_gain(nonlinearity, slope) / math.sqrt(_fan(fan))


def xavier_uniform(
    fan_in: int,
    fan_out: int,
    gain: float = 1.0,
    *,
    shape: Sequence[int] | None = None,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out)).

    The other settings are those of ``rand``.

    Args:
        fan_in: number of inputs of each output.
        fan_out: number of outputs of each input.
        gain: factor of the standard deviation.
        shape: of the result; (fan_in, fan_out) for None.

    >>> w = ndl.init.xavier_uniform(3, 3)
    >>> w.shape, (abs(w) <= 1).all().item()
    ((3, 3), True)
    """
    bound = real("xavier_uniform: gain", gain) * math.sqrt(6 / _fan(fan_in, fan_out))
    return rand(
        *((fan_in, fan_out) if shape is None else axes_of(shape)), low=-bound, high=bound,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def xavier_normal(
    fan_in: int,
    fan_out: int,
    gain: float = 1.0,
    *,
    shape: Sequence[int] | None = None,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return N(0, std) with std = gain * sqrt(2 / (fan_in + fan_out)). See ``xavier_uniform``.

    >>> ndl.init.xavier_normal(300, 100).shape
    (300, 100)
    """
    std = real("xavier_normal: gain", gain) * math.sqrt(2 / _fan(fan_in, fan_out))
    return randn(
        *((fan_in, fan_out) if shape is None else axes_of(shape)), std=std,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def kaiming_uniform(
    fan_in: int,
    fan_out: int,
    shape: Sequence[int] | None = None,
    nonlinearity: str = "relu",
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return U(-a, a) with a = gain * sqrt(3 / fan_in); the gain depends on the nonlinearity.

    The other settings are those of ``rand``.

    Args:
        fan_in: number of inputs of each output.
        fan_out: number of outputs of each input.
        shape: of the result; (fan_in, fan_out) for None.
        nonlinearity: see ``nn.init.calculate_gain``.

    >>> w = ndl.init.kaiming_uniform(6, 4)
    >>> w.shape, (abs(w) <= 1).all().item()
    ((6, 4), True)
    """
    bound = calculate_gain(nonlinearity) * math.sqrt(3 / _fan(fan_in))
    return rand(
        *((fan_in, fan_out) if shape is None else axes_of(shape)), low=-bound, high=bound,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def kaiming_normal(
    fan_in: int,
    fan_out: int,
    shape: Sequence[int] | None = None,
    nonlinearity: str = "relu",
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return N(0, std) with std = gain / sqrt(fan_in). See ``kaiming_uniform``.

    >>> ndl.init.kaiming_normal(300, 100, nonlinearity="tanh").shape
    (300, 100)
    """
    std = kaiming_std(fan_in, nonlinearity)
    return randn(
        *((fan_in, fan_out) if shape is None else axes_of(shape)), std=std,
        device=device, dtype=dtype, requires_grad=requires_grad, key=key,
    )  # fmt: skip


def orthogonal(
    *shape: int,
    gain: float = 1.0,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return a random matrix with orthogonal rows or columns, whichever are fewer.

    Each has length ``gain``. With more than two axes, all but the first are joined into columns.
    The matrix comes from the QR decomposition of a normal one, so it is uniformly distributed.
    The other settings are those of ``rand``.

    Args:
        shape: sizes, one by one or as one tuple; at least two.
        gain: factor of the matrix.

    Raises:
        ShapeError: for fewer than two axes.
        DtypeError: if dtype is not floating.

    >>> w = ndl.init.orthogonal(3, 3)
    >>> ndl.allclose(w @ w.transpose(), ndl.eye(3), atol=1e-5)
    True
    """
    kind, shape = floating("orthogonal", dtype), sizes("orthogonal", shape, 8)
    gain = real("orthogonal: gain", gain)
    if len(shape) < 2:
        raise ShapeError(f"orthogonal: expected at least 2 axes, got shape {shape}")
    rows, columns = shape[0], math.prod(shape[1:])
    tall = (max(rows, columns), min(rows, columns))
    wide = kind if kind.itemsize > 2 else "float32"
    normal = randn(*tall, device=device, dtype=wide, key=key)
    with executor.modes(recording=False, lazy=False):
        q, r = ops.qr(normal)
        q = q * ops.where(ops.diagonal(r) < 0, -gain, gain)  # signs must not depend on LAPACK
        out = ops.astype(ops.reshape(q if rows >= columns else ops.transpose(q), shape), kind)
    return leaf(executor.primal_array(out), requires_grad)

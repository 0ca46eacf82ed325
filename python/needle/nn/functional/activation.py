"""Activations, softmax and dropout, with PyTorch's names and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle import init, ops
from needle.errors import OptionError
from needle.executor import shape_of
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DTypeLike

__all__ = [
    "celu", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "gelu", "glu",
    "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "log_softmax", "logsigmoid", "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu",
    "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
]  # fmt: skip


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Rectify: ``max(x, 0)``. See ``ops.ReLU``."""
    return ops.relu(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Rectify and limit: ``min(max(x, 0), 6)``."""
    return ops.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Rectify with a slope for negative numbers. See ``ops.leaky_relu``."""
    return ops.leaky_relu(input, negative_slope)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Rectify with a learned slope for negative numbers. See ``ops.prelu``."""
    return ops.prelu(input, weight)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Keep positive x; else ``alpha * (exp(x) - 1)``. See ``ops.elu``."""
    return ops.elu(input, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Scale an ELU such that signals keep mean 0 and variance 1. See ``ops.SELU``."""
    return ops.selu(input)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Keep positive x; else ``alpha * (exp(x / alpha) - 1)``. See ``ops.celu``."""
    return ops.celu(input, alpha)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Multiply x by the normal distribution function of x. See ``ops.gelu``."""
    return ops.gelu(input, approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply x by its sigmoid. See ``ops.SiLU``."""
    return ops.silu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply x by ``tanh(softplus(x))``. See ``ops.Mish``."""
    return ops.mish(input)


def sigmoid(input: Tensor) -> Tensor:
    """Map x to ``1 / (1 + exp(-x))``."""
    return ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Map x to its hyperbolic tangent."""
    return ops.tanh(input)


def logsigmoid(input: Tensor) -> Tensor:
    """Map x to the logarithm of its sigmoid. See ``ops.log_sigmoid``."""
    return ops.log_sigmoid(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Map x to ``log(1 + exp(beta * x)) / beta``, or x itself where beta * x is above a threshold.

    See ``ops.softplus``.
    """
    return ops.softplus(input, beta, threshold)


def softsign(input: Tensor) -> Tensor:
    """Map x to ``x / (1 + abs(x))``."""
    return ops.softsign(input)


def tanhshrink(input: Tensor) -> Tensor:
    """Map x to ``x - tanh(x)``."""
    return ops.tanhshrink(input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Set numbers from -lambd to lambd to 0. See ``ops.hardshrink``."""
    return ops.hardshrink(input, lambd)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Move numbers towards 0 by lambd. See ``ops.softshrink``."""
    return ops.softshrink(input, lambd)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Map x to ``(x + 3) / 6``, limited to [0, 1]."""
    return ops.hardsigmoid(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply x by its hard sigmoid."""
    return ops.hardswish(input)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Limit x to [min_val, max_val]. See ``ops.hardtanh``."""
    return ops.hardtanh(input, min_val, max_val)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Replace numbers that are not above a threshold by a value. See ``ops.threshold``."""
    return ops.threshold(input, threshold, value)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Multiply the first half along an axis by the sigmoid of the second. See ``ops.glu``."""
    return ops.glu(input, dim)


def softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
    """Scale exp(x) to add up to 1 along an axis, which must be given. See ``ops.softmax``."""
    return ops.softmax(input, _axis("softmax", dim, input), dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
    """Return the logarithm of softmax along an axis. See ``ops.log_softmax``."""
    return ops.log_softmax(input, _axis("log_softmax", dim, input), dtype=dtype)


def softmin(input: Tensor, dim: int | None = None, *, dtype: DTypeLike = None) -> Tensor:
    """Return softmax of -x along an axis."""
    x = input if dtype is None else ops.astype(input, dtype)
    return ops.softmin(x, _axis("softmin", dim, input))


def _axis(name: str, dim: int | None, x: Tensor) -> int:
    """Return the axis. PyTorch guesses one where none is given, and warns."""
    if dim is None:
        guess = 0 if len(shape_of(x)) in (0, 1, 3) else 1
        raise OptionError(f"{name}: no axis is given\n  try: dim={guess}, which PyTorch takes")
    return dim


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """Draw from a categorical distribution, such that gradients flow to the logits.

    Shapes: logits [...] -> the same

    Source: Jang, Gu, Poole, "Categorical reparameterization with Gumbel-softmax", 2017,
    arXiv:1611.01144.

    Args:
        logits: logarithms of probabilities, up to a constant.
        tau: temperature; the lower, the nearer are draws to one-hot vectors.
        hard: return one-hot vectors, with the gradient of the soft ones.
        dim: axis of the classes.

    Raises:
        OptionError: if tau is not positive.
    """
    if not tau > 0:
        raise OptionError(f"gumbel_softmax: tau={tau}\n  rule: tau > 0")
    uniform = init.rand(*shape_of(logits), low=2.0**-25, device=logits.device)
    noise = ops.astype(-ops.log(-ops.log(uniform)), logits.dtype)
    soft: Tensor = ops.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    best = ops.argmax(soft.detach(), dim, True)
    places = ops.arange(shape_of(logits)[dim], device=logits.device)
    places = places.reshape([-1 if i == dim % logits.ndim else 1 for i in range(logits.ndim)])
    return ops.astype(ops.equal(places, best), logits.dtype) - soft.detach() + soft


# ---- dropout -----------------------------------------------------------------------


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Set elements to 0 with probability p, and scale the others. See ``ops.dropout``."""
    return ops.dropout(input, p, training)


def _whole_channels(input: Tensor, p: float, training: bool) -> Tensor:
    shape = shape_of(input)
    ones = init.ones(*shape[:2], *(1 for _ in shape[2:]), device=input.device, dtype=input.dtype)
    return input * ops.dropout(ones, p) if training else input


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of [n, c, t] to 0 with probability p, and scale the others."""
    return _whole_channels(input, p, training)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of [n, c, h, w] to 0 with probability p, and scale the others."""
    return _whole_channels(input, p, training)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of [n, c, d, h, w] to 0 with probability p, and scale the others."""
    return _whole_channels(input, p, training)

"""Initial weights in PyTorch's way: functions that fill a tensor, and return it.

``needle.init`` has functions that make new tensors. Both draw from the same generator.

>>> layer = nn.Linear(300, 100)
>>> w = nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
>>> w is layer.weight
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle import init, ops
from needle.autograd import no_grad
from needle.elsewhere import advice
from needle.errors import ShapeError, explain, missing, unknown
from needle.executor import shape_of
from needle.init.scaled import calculate_gain, kaiming_std
from needle.ops import random
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.ops.random.stream import Generator

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_",
    "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_",
    "xavier_uniform_", "zeros_",
]  # fmt: skip


def _filled(tensor: Tensor, values: Tensor) -> Tensor:
    """Give a tensor new values of its dtype and shape."""
    with no_grad():
        tensor[...] = values
    return tensor


def _drawn(
    tensor: Tensor,
    generator: Generator | None,
    draw: Callable[..., Tensor],
    *fans: int,
    **settings: Any,
) -> Tensor:
    """Give a tensor new values that a function of ``init`` draws."""
    if fans:
        settings["shape"] = shape_of(tensor)
    with random.drawing(generator):
        return _filled(tensor, draw(*(fans or shape_of(tensor)), **settings, **_like(tensor)))


def _like(tensor: Tensor) -> dict[str, Any]:
    return {"device": tensor.device, "dtype": tensor.dtype}


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill a tensor with a number."""
    return _filled(tensor, init.constant(*shape_of(tensor), c=val, **_like(tensor)))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill a tensor with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill a tensor with ones."""
    return constant_(tensor, 1.0)


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill a tensor with uniform numbers in [a, b). See ``init.rand``."""
    return _drawn(tensor, generator, init.rand, low=a, high=b)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill a tensor with normal numbers. See ``init.randn``."""
    return _drawn(tensor, generator, init.randn, mean=mean, std=std)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill a tensor with normal numbers within [a, b]. See ``init.trunc_normal``."""
    return _drawn(tensor, generator, init.trunc_normal, mean=mean, std=std, low=a, high=b)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill a matrix with orthogonal rows or columns. See ``init.orthogonal``."""
    return _drawn(tensor, generator, init.orthogonal, gain=gain)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity.

    Raises:
        ShapeError: if it is no matrix.
    """
    if len(shape_of(tensor)) != 2:
        raise explain(ShapeError, "eye_", "expected a matrix", [("tensor", tensor)])
    return _filled(tensor, ops.eye(*shape_of(tensor), **_like(tensor)))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the weight of a convolution, such that it keeps its input's channels.

    Shapes: tensor [o, c / groups, *kernel]

    Raises:
        ShapeError: if it has not 3 to 5 axes, or groups do not divide its first axis.
    """
    shape = shape_of(tensor)
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise explain(
            ShapeError, "dirac_", f"shape {shape} with {groups} groups", [("tensor", tensor)],
            "3 to 5 axes, and groups divide the first",
        )  # fmt: skip
    own = shape[0] // groups
    rows = ops.concat([ops.eye(own, shape[1], **_like(tensor))] * groups, 0)
    middle = tuple(n // 2 for n in shape[2:])
    out = init.zeros(*shape, **_like(tensor))
    out[(slice(None), slice(None), *middle)] = rows
    return _filled(tensor, out)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Fill a matrix with normal numbers, and a share of each column with zeros.

    Raises:
        ShapeError: if it is no matrix.
    """
    if len(shape_of(tensor)) != 2:
        raise explain(ShapeError, "sparse_", "expected a matrix", [("tensor", tensor)])
    rows = shape_of(tensor)[0]
    drawn = init.randn(*shape_of(tensor), std=std, **_like(tensor))
    rank = ops.argsort(ops.argsort(init.rand(*shape_of(tensor), device=tensor.device), 0), 0)
    return _filled(tensor, ops.where(rank < math.ceil(sparsity * rows), 0.0, drawn))


# ---- scaled to the size of the layer -------------------------------------------------


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs an output has, and how many outputs an input has.

    The weight of ``nn.Linear`` is [in, out], of a convolution [out, in, *kernel], as in PyTorch. A
    parameter knows no layer, so a matrix counts as [in, out].

    Raises:
        ShapeError: for fewer than two axes.
    """
    shape = shape_of(tensor)
    if len(shape) < 2:
        raise explain(
            ShapeError, "init", f"shape {shape} has no fans", [("tensor", tensor)],
            "at least two axes",
        )  # fmt: skip
    if len(shape) == 2:
        return shape[0], shape[1]
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill a tensor with uniform numbers. See ``init.xavier_uniform``."""
    return _drawn(tensor, generator, init.xavier_uniform, *_fans(tensor), gain=gain)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill a tensor with normal numbers. See ``init.xavier_normal``."""
    return _drawn(tensor, generator, init.xavier_normal, *_fans(tensor), gain=gain)


def _deviation(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise unknown("init: mode", mode, ("fan_in", "fan_out"))
    return kaiming_std(_fans(tensor)[mode == "fan_out"], nonlinearity, a)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill a tensor with U(-b, b), b = gain * sqrt(3 / fan). See ``init.kaiming_uniform``.

    Args:
        tensor: a weight with at least two axes.
        a: negative slope of "leaky_relu".
        mode: "fan_in" keeps the size of signals, "fan_out" that of gradients.
        nonlinearity: see ``calculate_gain``.
        generator: a ``needle.Generator`` that draws; None for the usual one.
    """
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill a tensor with N(0, std), std = gain / sqrt(fan). See ``kaiming_uniform_``."""
    return normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.nn.init", name, advice("nn.init", name))

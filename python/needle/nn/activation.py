"""Activations, as modules and by name."""

from __future__ import annotations

from collections.abc import Callable

from needle import ops
from needle.errors import unknown
from needle.nn.layers import Identity
from needle.nn.module import Module
from needle.tensor import Tensor


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.clip(x, 0.0, 6.0)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class Softplus(Module):
    """log(1 + exp(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softplus(x)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class GELU(Module):
    """x times the normal distribution function of x; with "tanh" (or True) an approximation.

    Raises:
        OptionError: for another approximation.
    """

    def __init__(self, approximate: str | bool = False) -> None:
        super().__init__()
        if approximate not in ("none", "tanh", False, True):
            raise unknown("GELU: approximate", str(approximate), ("none", "tanh"))
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}" if self.approximate else ""


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"{self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class Softmax(Module):
    """Positive numbers that add up to 1 along an axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


ACTIVATIONS: dict[str, Callable[[], Module]] = {
    "elu": ELU,
    "gelu": GELU,
    "gelu_tanh": lambda: GELU(approximate=True),
    "identity": Identity,
    "leaky_relu": LeakyReLU,
    "relu": ReLU,
    "relu6": ReLU6,
    "sigmoid": Sigmoid,
    "silu": SiLU,
    "softplus": Softplus,
    "tanh": Tanh,
}
"""What ``activation`` knows."""


def activation(name: str) -> Module:
    """Return a new activation module by its name, for example ``"relu"``.

    Raises:
        OptionError: for an unknown name, with the nearest known one.
    """
    if name.lower() not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name.lower()]()

"""Activations, as modules and by name."""

from __future__ import annotations

from needle import ops
from needle.errors import unknown
from needle.nn.layers import Identity
from needle.nn.module import Module
from needle.tensor import Tensor


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


ACTIVATIONS: dict[str, type[Module]] = {
    "identity": Identity,
    "relu": ReLU,
    "sigmoid": Sigmoid,
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

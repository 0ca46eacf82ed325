"""A residual network of fully connected layers."""

from __future__ import annotations

from collections.abc import Callable

from needle import nn

Norm = Callable[[int], nn.Module]


def ResidualBlock(
    dim: int, hidden_dim: int, norm: Norm = nn.BatchNorm1d, drop_prob: float = 0.1
) -> nn.Sequential:
    """Return ``relu(x + norm(linear(dropout(relu(norm(linear(x)))))))``.

    Shapes:   x [n, dim] -> [n, dim]

    Args:
        dim: size of input and output.
        hidden_dim: size between the two linear layers.
        norm: function that makes the norm layer for a size.
        drop_prob: probability of dropout.
    """
    path = nn.Sequential(
        nn.Linear(dim, hidden_dim),
        norm(hidden_dim),
        nn.ReLU(),
        nn.Dropout(drop_prob),
        nn.Linear(hidden_dim, dim),
        norm(dim),
    )
    return nn.Sequential(nn.Residual(path), nn.ReLU())


def MLPResNet(
    dim: int,
    hidden_dim: int = 100,
    num_blocks: int = 3,
    num_classes: int = 10,
    norm: Norm = nn.BatchNorm1d,
    drop_prob: float = 0.1,
) -> nn.Sequential:
    """Return a linear layer, residual blocks with half the width inside, and a linear head.

    Shapes:   x [n, dim] -> [n, num_classes]

    Args:
        dim: size of the input.
        hidden_dim: width of the residual stream.
        num_blocks: number of residual blocks.
        num_classes: size of the output.
        norm: function that makes the norm layer for a size.
        drop_prob: probability of dropout.
    """
    half = hidden_dim // 2
    return nn.Sequential(  # built in the order in which it runs, which fixes the random draws
        nn.Linear(dim, hidden_dim),
        nn.ReLU(),
        *[ResidualBlock(hidden_dim, half, norm, drop_prob) for _ in range(num_blocks)],
        nn.Linear(hidden_dim, num_classes),
    )

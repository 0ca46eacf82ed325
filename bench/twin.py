"""The MLP-ResNet of ``needle.models`` in PyTorch, and the shapes it is measured on.

No Needle in here: ``memory.py`` measures processes that have PyTorch alone.
"""

from __future__ import annotations

import torch

INPUT, HIDDEN, BLOCKS, CLASSES, BATCH, LR = 784, 100, 3, 10, 100, 1e-3


class Residual(torch.nn.Module):
    """fn(x) + x."""

    def __init__(self, fn: torch.nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x) + x


def torch_model(drop: float) -> torch.nn.Module:
    """Return the model."""
    nn, half = torch.nn, HIDDEN // 2
    blocks = []
    for _ in range(BLOCKS):
        path = nn.Sequential(
            nn.Linear(HIDDEN, half), nn.BatchNorm1d(half), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(half, HIDDEN), nn.BatchNorm1d(HIDDEN),
        )  # fmt: skip
        blocks += [Residual(path), nn.ReLU()]
    return nn.Sequential(nn.Linear(INPUT, HIDDEN), nn.ReLU(), *blocks, nn.Linear(HIDDEN, CLASSES))

"""A language model over bytes: an MLP-ResNet that reads the last few."""

from __future__ import annotations

from typing import Any

from needle import init, nn
from needle.tensor import Tensor

VALUES = 256


class Block(nn.Module):
    """Residual block: ``x + second(relu(first(norm(x))))``, the identity at first."""

    def __init__(self, width: int, inner: int, device: Any = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm1d(width, device=device)
        self.first = nn.Linear(width, inner, device=device)
        self.second = nn.Linear(inner, width, device=device)
        self.second.weight.data = init.zeros(inner, width, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(self.norm(x)).relu())


class ByteMLP(nn.Module):
    """Logits of the next byte from the last ``context`` bytes.

    Shapes:   x [n, context], whole numbers below 256 -> [n, 256]

    Args:
        context: bytes that the model sees.
        embedding: numbers per byte.
        width: of the residual stream.
        blocks: number of residual blocks.
        inner: width inside a block; as ``width`` for None.
        device: where the parameters are.
    """

    def __init__(
        self,
        context: int = 16,
        embedding: int = 16,
        width: int = 256,
        blocks: int = 2,
        inner: int | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(VALUES, embedding, device=device)
        self.first = nn.Linear(context * embedding, width, device=device)
        self.blocks = nn.Sequential(
            *[Block(width, inner or width, device=device) for _ in range(blocks)]
        )
        self.norm = nn.LayerNorm1d(width, device=device)
        self.head = nn.Linear(width, VALUES, device=device)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embedding(x)
        flat = rows.reshape((x.shape[0], -1))
        return self.head(self.norm(self.blocks(self.first(flat).relu())))

"""A language model over bytes: an MLP-ResNet that reads the last few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from needle import init, nn, ops
from needle.models.sampling import Reader
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Numpy

VALUES = 256
ORDERS = (2, 3, 4, 6)
"""Lengths of the groups of last bytes that have their own embeddings."""
BITS = 13
"""Number of bits of the hash that identifies a group."""


def features(windows: Numpy) -> Numpy:
    """Return the ids that the model looks up: the bytes themselves, and groups of last bytes.

    For example, the last 3 bytes form a group, whose hash is one of 2**13 ids. Groups with the same
    id share an embedding. So the model sees frequent pieces of words as a whole.

    Shapes:   windows [n, context], uint8 -> [n, context + len(ORDERS)], int32
    """
    columns = [windows.astype(np.int32)]
    first = VALUES
    hashed = np.zeros(len(windows), np.uint32)
    for n in range(1, max(ORDERS) + 1):
        hashed = (hashed + windows[:, -n] + np.uint32(1)) * np.uint32(0x9E3779B1)  # wraps around
        if n in ORDERS:
            columns.append((first + (hashed >> np.uint32(32 - BITS)).astype(np.int32))[:, None])
            first += 2**BITS
    return np.concatenate(columns, axis=1)


class Block(nn.Module):
    """Residual block: ``x + second(relu(first(norm(x)))**2)``, the identity at first.

    Source: the squared rectifier is from So et al., "Primer", 2021, arXiv:2109.08668.
    """

    def __init__(self, width: int, inner: int, device: DeviceLike = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm1d(width, device=device)
        self.first = nn.Linear(width, inner, device=device)
        self.second = nn.Linear(inner, width, device=device)
        self.second.weight.data = init.zeros(inner, width, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(ops.square(self.first(self.norm(x)).relu()))


class ByteMLP(nn.Module):
    """Logits of the next byte from the last ``context`` bytes.

    Shapes:   x [n, context + len(ORDERS)], as ``features`` returns it -> [n, 256]

    Args:
        context: number of bytes that the model sees.
        embedding: size of the embedding of a byte or a group.
        width: width of the residual stream.
        blocks: number of residual blocks.
        inner: width inside a block.
        device: device of the parameters.
    """

    def __init__(
        self,
        context: int = 16,
        embedding: int = 16,
        width: int = 192,
        blocks: int = 2,
        inner: int = 256,
        device: DeviceLike = None,
    ) -> None:
        super().__init__()
        self.context = context
        rows = VALUES + len(ORDERS) * 2**BITS
        self.embedding = nn.Embedding(rows, embedding, device=device)
        self.first = nn.Linear((context + len(ORDERS)) * embedding, width, device=device)
        self.blocks = nn.Sequential(*[Block(width, inner, device) for _ in range(blocks)])
        self.norm = nn.LayerNorm1d(width, device=device)
        self.head = nn.Linear(width, VALUES, device=device)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embedding(x)
        flat = rows.reshape((x.shape[0], -1))
        return self.head(self.norm(self.blocks(ops.square(self.first(flat).relu()))))

    def reader(self) -> Reader:
        """Return a function that reads a text; newlines stand before it."""
        seen = np.full(self.context, ord("\n"), np.uint8)

        def read(ids: Numpy) -> Numpy:
            nonlocal seen
            seen = np.concatenate([seen, ids]).astype(np.uint8)[-self.context :]
            logits = self(Tensor(features(seen[None]), requires_grad=False))
            last: Numpy = logits.numpy()[0]
            return last

        return read

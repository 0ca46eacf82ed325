"""Sequence models in PyTorch, with the structure and the weights of Needle's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

F = nn.functional


class TorchGPT(nn.Module):
    """The twin of ``needle.models.GPT`` with learned positions and tied embeddings."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TorchBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def hidden(self, ids: Any, caches: Any = None, start: int = 0) -> Any:
        """Return what the logits are made of."""
        x = self.embedding(ids) + self.positions.weight[start : start + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, caches and caches[i], start)
        return self.norm(x)

    def forward(self, ids: Any) -> Any:
        """Return the logits."""
        return F.linear(self.hidden(ids), self.embedding.weight)

    def loss(self, ids: Any, labels: Any) -> Any:
        """Return the mean cross entropy."""
        return F.cross_entropy(self(ids).flatten(0, 1), labels.flatten())

    def generate(self, prompt: Any, count: int) -> list[int]:
        """Return the likeliest continuation, with a cache of keys and values."""
        head = self.blocks[0].heads, self.embedding.weight.shape[1] // self.blocks[0].heads
        shape = (1, head[0], prompt.shape[1] + count, head[1])
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.blocks]
        ids, start, found = prompt, 0, []
        with torch.inference_mode():
            for _ in range(count):
                x = self.hidden(ids, caches, start)[:, -1]
                start += ids.shape[1]
                ids = F.linear(x, self.embedding.weight).argmax(-1, keepdim=True)
                found.append(int(ids))
        return found


class TorchBlock(nn.Module):
    """A block of ``TorchGPT``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, cache: Any, start: int) -> Any:
        """Add what attention and the linear layers make of x."""
        b, t, width = x.shape
        shape = (b, t, self.heads, width // self.heads)
        q, k, v = (y.view(shape).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        if cache:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, start : start + t] = new
            k, v = (kept[:, :, : start + t] for kept in cache)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        return x + self.second(F.gelu(self.first(self.norm2(x))))


class TorchLanguageModel(nn.Module):
    """The twin of the course's LanguageModel with an LSTM."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers)
        self.head = nn.Linear(hidden, vocabulary)

    def loss(self, ids: Any, labels: Any) -> Any:
        """Return the mean cross entropy."""
        out, _ = self.lstm(self.embedding(ids))
        return F.cross_entropy(self.head(out).flatten(0, 1), labels.flatten())


class TorchTinyGPT(nn.Module):
    """The twin of ``apps/gpt.py``."""

    def __init__(self, characters: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        layers = [nn.Linear(*size, bias=False) for size in (*sizes, (width, characters))]
        self.qkv, self.out, self.up, self.down, self.head = layers

    def forward(self, ids: Any) -> Any:
        """Return the logits of the next character after each."""
        x = self.characters(ids) + self.places.weight[: len(ids)]
        parts = self.qkv(self.norm(x)).view(len(ids), 3, self.heads, -1)
        q, k, v = parts.permute(1, 2, 0, 3)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(0, 1).reshape(x.shape))
        x = x + self.down(self.up(self.norm(x)).relu())
        return self.head(self.norm(x))

    def norm(self, x: Any) -> Any:
        """Divide by the root of the mean square."""
        return F.rms_norm(x, (self.width,), eps=1e-5)


def tiny_pairs(model: Any, twin: TorchTinyGPT) -> list[tuple[Any, Any]]:
    """Return the tables of ``apps/gpt.py`` with its twin's; copies the matrices at once."""
    block = model.blocks.modules[0]
    pairs = [(getattr(block, n), getattr(twin, n)) for n in ("qkv", "out", "up", "down")]
    with torch.no_grad():
        for ours, theirs in [*pairs, (model.head, twin.head)]:
            theirs.weight.copy_(torch.from_numpy(ours.weight.numpy().T.copy()))
    return [
        (model.characters.weight, twin.characters.weight),
        (model.places.weight, twin.places.weight),
    ]


def copy(pairs: list[tuple[Any, Any]]) -> None:
    """Give PyTorch's parameters the values of Needle's, whose matrices are transposed."""
    with torch.no_grad():
        for ours, theirs in pairs:
            values = torch.from_numpy(ours.numpy().copy())
            theirs.copy_(values if values.shape == theirs.shape else values.T.reshape(theirs.shape))


def gpt_pairs(model: Any, twin: TorchGPT) -> list[tuple[Any, Any]]:
    """Return the parameters of ``models.GPT`` with those of its twin."""
    pairs = [
        (model.embedding.weight, twin.embedding.weight),
        (model.positions.weight, twin.positions.weight),
        (model.norm.weight, twin.norm.weight), (model.norm.bias, twin.norm.bias),
    ]  # fmt: skip
    for ours, theirs in zip(model.blocks, twin.blocks, strict=True):
        layers = [(ours.attention.qkv, theirs.qkv), (ours.attention.out, theirs.out)]
        layers += [(getattr(ours, n), getattr(theirs, n)) for n in ("first", "second")]
        for a, b in layers:
            with torch.no_grad():  # square matrices, too, are transposed
                b.weight.copy_(torch.from_numpy(a.weight.numpy().T.copy()))
            pairs.append((a.bias, b.bias))
        for n in ("norm1", "norm2"):
            a, b = getattr(ours, n), getattr(theirs, n)
            pairs += [(a.weight, b.weight), (a.bias, b.bias)]
    return pairs


def lstm_pairs(cells: Any, twin: nn.LSTM) -> list[tuple[Any, Any]]:
    """Return the biases of Needle's cells with those of PyTorch; copies the matrices at once."""
    pairs = []
    for i, cell in enumerate(cells):
        for name, ours in (("ih", cell.W_ih), ("hh", cell.W_hh)):
            with torch.no_grad():
                getattr(twin, f"weight_{name}_l{i}").copy_(torch.from_numpy(ours.numpy().T.copy()))
        pairs += [
            (cell.bias_ih, getattr(twin, f"bias_ih_l{i}")),
            (cell.bias_hh, getattr(twin, f"bias_hh_l{i}")),
        ]
    return pairs


def trainer(loss: Callable[[], Any], optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return a function that makes one step and returns the loss before it."""

    def step() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    return step

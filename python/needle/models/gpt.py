"""A decoder-only Transformer, and how it continues a text token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import autograd, config, init, nn, ops
from needle.errors import ArgumentError, OptionError, ShapeError
from needle.models.sampling import Reader, Sampler
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

Ids = np.ndarray[Any, Any]


class KVCache:
    """The keys and values of all layers, for the tokens that a model has read so far.

    Attributes:
        capacity: the most tokens that it holds.
        length: tokens that it holds.
        keys: of each layer, [batch, groups, capacity, depth].
        values: the same.
    """

    def __init__(
        self, layers: int, batch: int, groups: int, capacity: int, depth: int,
        device: DeviceLike = None, dtype: DTypeLike = "float32",
    ) -> None:  # fmt: skip
        def empty() -> list[Tensor]:
            return [
                init.zeros(batch, groups, capacity, depth, device=device, dtype=dtype,
                           requires_grad=False)
                for _ in range(layers)
            ]  # fmt: skip

        self.capacity, self.length = capacity, 0
        self.keys, self.values = empty(), empty()

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of new tokens; return those of all tokens, as views.

        The last layer's call does not move ``length``: the model does, when all layers have read.
        """
        start, end = self.length, self.length + k.shape[2]
        for all_tokens, new in ((self.keys[layer], k), (self.values[layer], v)):
            all_tokens[:, :, start:end] = new
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class Attention(nn.Module):
    """Causal self-attention: queries in ``heads`` heads, keys and values in ``groups``."""

    def __init__(
        self, width: int, heads: int, groups: int, rotary: bool, dropout: float, bias: bool,
        device: DeviceLike = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, width // heads
        self.rotary, self.dropout = rotary, dropout
        columns = (heads + 2 * groups) * self.depth
        self.qkv = nn.Linear(width, columns, bias=bias, device=device)
        self.out = nn.Linear(width, width, bias=bias, device=device)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        b, t, width = x.shape
        h, g, d = self.heads, self.groups, self.depth
        pieces = ops.split(self.qkv(x), -1, sizes=[h * d, g * d, g * d])
        q, k, v = (
            piece.reshape((b, t, n, d)).transpose((1, 2))
            for piece, n in zip(pieces, (h, g, g), strict=True)
        )
        if self.rotary:
            start = 0 if cache is None else cache.length
            q, k = (ops.rotary(y, start) for y in (q, k))
        if cache is not None:
            k, v = cache.append(layer, k, v)
        out = ops.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout=self.dropout, training=self.training
        )
        return self.out(out.transpose((1, 2)).reshape((b, t, width)))


class Block(nn.Module):
    """Attention, then two linear layers, each added to what it reads."""

    def __init__(
        self, width: int, inner: int, dropout: float, bias: bool, attention: Attention,
        device: DeviceLike = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm1 = nn.LayerNorm(width, device=device)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, device=device)
        self.first = nn.Linear(width, inner, bias=bias, device=device)
        self.second = nn.Linear(inner, width, bias=bias, device=device)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), cache, layer))
        return x + self.dropout(self.second(ops.gelu(self.first(self.norm2(x)))))


class GPT(nn.Module):
    """A language model: each token is predicted from those before it.

    Norms come before attention and the linear layers, and once more at the end. The logits are
    products with the table of embeddings if ``tied``.

    Shapes:   ids [b, t] -> logits [b, t, vocabulary]
    Raises:   ShapeError for more than ``context`` tokens; IndexRangeError naming the first id that
              is not in the vocabulary
    Source:   Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section
              2.3; grouped queries: Ainslie et al., 2023, arXiv:2305.13245; rotary positions: Su
              et al., 2021, arXiv:2104.09864

    Args:
        vocabulary: number of tokens.
        context: most tokens that it reads at once.
        width: of the residual stream.
        layers: number of blocks.
        heads: heads of queries; they divide width.
        groups: heads of keys and values; they divide heads. As many as heads for None.
        inner: width of the linear layers inside a block; 4 * width for None.
        dropout: in training, of attention's weights and of what each part adds.
        positions: "learned", a row for each place; "rotary", turns queries and keys.
        tied: whether embeddings and logits share a table.
        bias: whether the linear layers have one.
        device: where the parameters are.

    >>> from needle.models import GPT
    >>> model = GPT(vocabulary=256, context=8, width=16, layers=1, heads=2)
    >>> model(np.zeros((2, 8), "int64")).shape
    (2, 8, 256)
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        layers: int,
        heads: int,
        *,
        groups: int | None = None,
        inner: int | None = None,
        dropout: float = 0.0,
        positions: str = "learned",
        tied: bool = True,
        bias: bool = True,
        device: DeviceLike = None,
    ) -> None:
        super().__init__()
        groups = heads if groups is None else groups
        if heads < 1 or width % heads or groups < 1 or heads % groups:
            raise ShapeError(
                f"GPT: width {width}, {heads} heads, {groups} groups\n"
                "  rule: groups divide heads, heads divide width"
            )
        if positions not in ("learned", "rotary"):
            raise OptionError(f"GPT: positions={positions!r}\n  rule: 'learned' or 'rotary'")
        self.vocabulary, self.context, self.groups = vocabulary, context, groups
        self.embedding = nn.Embedding(vocabulary, width, device=device)
        self.positions = (
            nn.Embedding(context, width, device=device) if positions == "learned" else None
        )
        rotary = self.positions is None
        self.blocks = nn.ModuleList(
            [
                Block(
                    width, inner or 4 * width, dropout, bias,
                    Attention(width, heads, groups, rotary, dropout, bias, device), device,
                )
                for _ in range(layers)
            ]
        )  # fmt: skip
        self.norm = nn.LayerNorm(width, device=device)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False, device=device)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self._start(layers)

    def _start(self, layers: int, std: float = 0.02) -> None:
        """Draw the weights, smaller where what they give is added to the residual stream."""
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                p.data = init.zeros(*p.shape, device=p.device)
            elif len(p.shape) == 2:
                added = name.endswith(("attention.out.weight", "second.weight"))
                scale = std / (2 * layers) ** 0.5 if added else std
                p.data = init.randn(*p.shape, std=scale, device=p.device)

    def hidden(self, ids: Any, cache: KVCache | None = None) -> Tensor:
        """Return what the logits are made of, [b, t, width]."""
        ids = ids if isinstance(ids, Tensor) else np.asarray(ids)
        start = 0 if cache is None else cache.length
        t = ids.shape[-1]
        if start + t > self.context:
            raise ShapeError(
                f"GPT: {start + t} tokens, the model has positions for {self.context}\n"
                "  try: a model with a longer context, or a shorter text"
            )
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight[start : start + t]
        x = self.dropout(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, cache, layer)
        if cache is not None:
            cache.length += t
        return self.norm(x)

    def forward(self, ids: Any, cache: KVCache | None = None) -> Tensor:
        x = self.hidden(ids, cache)
        return x @ self.embedding.weight.T if self.head is None else self.head(x)

    def loss(self, ids: Any, labels: Any, ignore_index: int = -100) -> Tensor:
        """Return the mean cross entropy in nats; the logits are never in memory as a whole.

        Shapes:   ids [b, t], labels [b, t] -> []
        """
        x = self.hidden(ids)
        table = self.embedding.weight if self.head is None else self.head.weight
        given = labels if isinstance(labels, Tensor) else Tensor(labels, requires_grad=False)
        return ops.linear_cross_entropy(
            x.reshape((-1, x.shape[-1])), table, ops.reshape(given, -1),
            ignore_index=ignore_index, transposed=self.head is None,
        )  # fmt: skip

    def cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """Return an empty cache for so many texts of up to so many tokens."""
        first = self.blocks[0].attention
        weight = self.embedding.weight
        return KVCache(
            len(self.blocks), batch, first.groups, self.context if capacity is None else capacity,
            first.depth, weight.device, weight.dtype,
        )  # fmt: skip

    def reader(self) -> Reader:
        """Return a function that reads a text of any length.

        Where the context is full, its second half is read again, and the text goes on from there.
        """
        cache = self.cache(1)
        seen = np.empty(0, np.int64)

        def read(ids: Ids) -> Ids:
            nonlocal cache, seen
            seen = np.concatenate([seen, ids])[-self.context :]
            if cache.length + len(ids) > self.context:
                cache, ids = self.cache(1), seen[-max(1, self.context // 2) :]
            return self._last_logits(ids[None], cache)[0]

        return read

    def generate(
        self,
        prompt: Sequence[int] | Ids,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[Any]:
        """Continue a text, or several of one length, and yield each token as it is drawn.

        Args:
            prompt: ids [t], or [b, t] for b texts; at least one token.
            count: tokens to add.
            temperature: divides the logits; 0 takes the likeliest token, of equal ones the first.
            top_k: draw among the k likeliest tokens only.
            top_p: draw among the fewest likeliest tokens whose probabilities reach p together.
            seed: of the draws; each text's numbers depend on its place, not on the others.

        A text gets the same tokens whatever other texts there are, and the logits have the bits
        that the model gives without the cache under ``config(products="rows")``.

        Yields:
            An int for each new token; an int64 array [b] where there are b texts.

        Raises:
            ShapeError: if prompt and new tokens exceed the context, before anything is computed.
            ArgumentError: for an empty prompt.
            OptionError: for numbers out of range.
            IndexRangeError: for an id that is not in the vocabulary.
        """
        ids = np.asarray(prompt)
        if ids.ndim not in (1, 2) or ids.shape[-1] == 0 or ids.dtype.kind not in "iu":
            raise ArgumentError(
                f"generate: expected a prompt of ids [t] or [b, t] with t >= 1, "
                f"got {ids.dtype} {ids.shape}"
            )
        if ids.shape[-1] + count > self.context:
            raise ShapeError(
                f"generate: {ids.shape[-1]} tokens and {count} new ones exceed the context of "
                f"{self.context}\n  try: a shorter prompt, or fewer tokens"
            )
        sampler = Sampler(temperature, top_k, top_p, seed)
        return self._tokens(ids, count, sampler)

    def _tokens(self, ids: Ids, count: int, sampler: Sampler) -> Iterator[Any]:
        rows = ids if ids.ndim == 2 else ids[None]
        cache = self.cache(len(rows), rows.shape[1] + count)
        training = self.training
        self.eval()
        try:
            for _ in range(count):
                with autograd.no_grad(), config.override(products="rows"):
                    logits = self._last_logits(rows, cache)
                rows = sampler(logits)[:, None]
                yield rows[:, 0].copy() if ids.ndim == 2 else int(rows[0, 0])
        finally:
            self.train(training)

    def _last_logits(self, ids: Ids, cache: KVCache) -> Ids:
        """Return the logits of the token behind each text, [b, vocabulary]."""
        x = self.hidden(ids, cache)[:, -1]
        logits = x @ self.embedding.weight.T if self.head is None else self.head(x)
        return logits.numpy()

"""Attention layers: the course's, and PyTorch's by its names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, init, ops
from needle.backend.ndarray import NDArray, array
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.nn.layers import Dropout, Linear
from needle.nn.module import Module
from needle.nn.norm import LayerNorm1d
from needle.nn.settings import check_number, check_sizes, shown
from needle.ops import random
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = ["AttentionLayer", "MultiHeadAttention", "MultiheadAttention", "attention_weights"]

# ---- the course's ------------------------------------------------------------------


class MultiHeadAttention(Module):
    """Mix values by softmax(q k' / sqrt(d)), one operation after the other: the course's attention.

    It also returns the weights, so all of them are in memory. ``AttentionLayer`` computes the same
    without, unless a subclass takes the place of its ``attn``.

    Shapes:   q [b, h, t, d], k [b, h, s, d], v [b, h, s, d]
              -> result [b, h, t, d], weights after dropout [b, h, t, s]

    Args:
        dropout: probability with which a weight is set to 0 in training.
        causal: whether a query sees only the keys up to its own place.
        device: where masks are made; that of q for None.
        dtype: not used; programs of the course pass it.

    >>> q = ndl.rand(1, 2, 3, 4)
    >>> out, weights = nn.MultiHeadAttention(causal=True)(q, q, q)
    >>> out.shape, weights.shape
    ((1, 2, 3, 4), (1, 2, 3, 3))
    """

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        causal: bool = False,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        self.device, self.dtype, self.causal = device, dtype, causal
        self.dropout = Dropout(dropout)

    def create_causal_mask(self, i: int, j: int, device: DeviceLike) -> NDArray:
        """Return [1, 1, i, j]: what is added to scores, the smallest float32 where keys are hid."""
        mask = np.triu(np.ones((1, 1, i, j), np.float32), j - i + 1)
        return array(-np.finfo(np.float32).max * mask, device=device)

    def matmul(self, a: Tensor, b_transpose: Tensor) -> Tensor:
        """Return products of the rows of a with the rows of b."""
        return ops.matmul(a, ops.swapaxes(b_transpose, -1, -2))

    def softmax(self, logit: Tensor) -> Tensor:
        """Return the softmax over the last axis."""
        return ops.softmax(logit)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        (t, d), s = shape_of(q)[2:], shape_of(k)[2]
        scores = self.matmul(q, k) / math.sqrt(d)
        if self.causal:
            device = q.device if self.device is None else self.device
            mask = self.create_causal_mask(t, s, device)
            scores = scores + Tensor(mask, dtype=scores.dtype, requires_grad=False)
        probs = self.dropout(self.softmax(scores))
        return self.matmul(probs, ops.swapaxes(v, -1, -2)), probs


class AttentionLayer(Module):
    """Normalise, project to heads, attend, and project back: the course's attention layer.

    The projections have no bias and are drawn in the order q, k, v, out. In training one uniform
    number is drawn for each weight, also without dropout, as in the course.

    Shapes:   q [b, t, q_features], k [b, s, k_features], v [b, s, v_features]
              -> [b, t, out_features]

    Args:
        q_features: size of the queries.
        num_head: number of heads.
        dim_head: size of a head.
        k_features: size of the keys; that of the queries for None.
        v_features: size of the values; that of the queries for None.
        out_features: size of the result; that of the queries for None.
        dropout: probability with which a weight is set to 0 in training.
        causal: whether a query sees only the keys up to its own place.
        device: where the parameters are; the default device for None.
        dtype: their element type.

    >>> nn.AttentionLayer(8, num_head=2, dim_head=4)(ndl.rand(1, 5, 8)).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        *,
        k_features: int | None = None,
        v_features: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, q_features=q_features, num_head=num_head, dim_head=dim_head)
        self.num_head, self.dim_head = num_head, dim_head
        k_features, v_features, out_features = (
            q_features if n is None else n for n in (k_features, v_features, out_features)
        )
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        self.prenorm_q = LayerNorm1d(q_features, **how)
        self.prenorm_k = LayerNorm1d(k_features, **how)
        self.prenorm_v = LayerNorm1d(v_features, **how)
        inner = num_head * dim_head
        self.q_projection = Linear(q_features, inner, bias=False, **how)
        self.k_projection = Linear(k_features, inner, bias=False, **how)
        self.v_projection = Linear(v_features, inner, bias=False, **how)
        self.attn = MultiHeadAttention(dropout=dropout, causal=causal, **how)
        self.out_projection = Linear(inner, out_features, bias=False, **how)

    def forward(self, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
        k = q if k is None else k
        v = q if v is None else v
        for name, x in (("q", q), ("k", k), ("v", v)):
            if len(shape_of(x)) != 3:
                problem = f"{name} has {len(shape_of(x))} axes"
                raise explain(
                    ShapeError, "AttentionLayer", problem, [(name, x)], "q [b, t, q_features]"
                )
        q = to_heads(self.q_projection(self.prenorm_q(q)), self.num_head)
        k = to_heads(self.k_projection(self.prenorm_k(k)), self.num_head)
        v = to_heads(self.v_projection(self.prenorm_v(v)), self.num_head)
        return self.out_projection(from_heads(self._attend(q, k, v)))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attn = self.attn
        if type(attn) is not MultiHeadAttention:
            result: Tensor = attn(q, k, v)[0]
            return result
        p = attn.dropout.p if attn.dropout.training else 0.0
        if attn.dropout.training and p == 0.0 and random.generator() is None:
            init.rand(*shape_of(q)[:3], shape_of(k)[2])  # as the course's dropout draws
        return ops.scaled_dot_product_attention(q, k, v, is_causal=attn.causal, dropout=p)


def to_heads(x: Tensor, heads: int) -> Tensor:
    """Return [b, t, heads * d] as [b, heads, t, d]."""
    b, t, width = shape_of(x)
    return ops.permute(ops.reshape(x, (b, t, heads, width // heads)), (0, 2, 1, 3))


def from_heads(x: Tensor) -> Tensor:
    """Return [b, heads, t, d] as [b, t, heads * d]."""
    b, heads, t, d = shape_of(x)
    return ops.reshape(ops.permute(x, (0, 2, 1, 3)), (b, t, heads * d))


# ---- PyTorch's ---------------------------------------------------------------------


class MultiheadAttention(Module):
    """Project queries, keys and values to heads, attend, and project back, as PyTorch does.

    Shapes:   query [t, b, embed_dim], key [s, b, kdim], value [s, b, vdim]
              -> [t, b, embed_dim], weights [b, t, s] or None; with ``batch_first`` b comes first

    As in PyTorch a bool mask is true where a key is **not** seen, a floating one is added to the
    scores. Other than there, a query that sees no key gives what zeros give, not NaN, and the
    weights are those before dropout. The projections in are drawn as by ``init.xavier_uniform``,
    that out as in ``Linear``; biases are 0.

    Attributes:
        in_proj_weight: [embed_dim, 3 * embed_dim] for q, k and v; None if kdim or vdim differ.
        q_proj_weight: [embed_dim, embed_dim], where ``in_proj_weight`` is None.
        k_proj_weight: [kdim, embed_dim], likewise.
        v_proj_weight: [vdim, embed_dim], likewise.
        in_proj_bias: [3 * embed_dim], or None.
        out_proj: the projection back.

    Args:
        embed_dim: size of the queries and of the result.
        num_heads: number of heads; it divides embed_dim.
        dropout: probability with which a weight is set to 0 in training.
        bias: whether the projections have biases.
        kdim: size of the keys; embed_dim for None.
        vdim: size of the values; embed_dim for None.
        batch_first: whether the batch is the first axis.
        device: where the parameters are; the default device for None.
        dtype: their element type.

    Raises:
        OptionError: if num_heads does not divide embed_dim.

    >>> layer, x = nn.MultiheadAttention(8, 2, batch_first=True), ndl.rand(1, 5, 8)
    >>> out, weights = layer(x, x, x)
    >>> out.shape, weights.shape
    ((1, 5, 8), (1, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, embed_dim=embed_dim, num_heads=num_heads)
        if num_heads < 1 or embed_dim % num_heads:
            raise OptionError(
                f"MultiheadAttention: num_heads={num_heads}, embed_dim={embed_dim}\n"
                "  rule: num_heads divides embed_dim"
            )
        check_number(self, "dropout", dropout, 0.0, 1.0)
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.batch_first = batch_first
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = [embed_dim, *(embed_dim if n is None else n for n in (kdim, vdim))]
        check_sizes(self, kdim=sizes[1], vdim=sizes[2])
        self.in_proj_weight: Tensor | None = None
        if sizes == [embed_dim] * 3:
            self.in_proj_weight = Parameter(init.xavier_uniform(embed_dim, 3 * embed_dim, **how))
        else:
            drawn = [Parameter(init.xavier_uniform(n, embed_dim, **how)) for n in sizes]
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = drawn
        self.in_proj_bias: Tensor | None = None
        if bias:
            self.in_proj_bias = Parameter(init.zeros(3 * embed_dim, **how))
        self.out_proj = Linear(embed_dim, embed_dim, bias=False, **how)
        if bias:
            self.out_proj.bias = Parameter(init.zeros(1, embed_dim, **how))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result, and the weights if they are needed.

        Args:
            query: what asks.
            key: what it is compared with.
            value: what is mixed.
            key_padding_mask: [b, s].
            need_weights: whether to return the weights, all of which are in memory then.
            attn_mask: [t, s], or [b * num_heads, t, s].
            average_attn_weights: whether to return their mean over the heads, else [b, h, t, s].
            is_causal: whether a query sees only the keys up to its own place.

        Raises:
            ShapeError: if operands or masks have other shapes.
            DtypeError: if a mask is neither bool nor floating.
        """
        q, k, v = self._projected(query, key, value)
        mask = self._mask(shape_of(q), shape_of(k)[2], attn_mask, key_padding_mask)
        p = self.dropout if self.training else 0.0
        out = ops.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, dropout=p)
        result = self.out_proj(from_heads(out))
        result = result if self.batch_first else ops.swapaxes(result, 0, 1)
        if not need_weights:
            return result, None
        weights = attention_weights(q, k, mask, is_causal)
        return result, ops.mean(weights, 1) if average_attn_weights else weights

    def _projected(self, *given: Tensor) -> list[Tensor]:
        """Return queries, keys and values [b, h, t, d]."""
        for name, x in zip(("query", "key", "value"), given, strict=True):
            if len(shape_of(x)) != 3:
                problem = f"{name} has {len(shape_of(x))} axes"
                rule = f"{name} {'[b, t, size]' if self.batch_first else '[t, b, size]'}"
                raise explain(ShapeError, "MultiheadAttention", problem, [(name, x)], rule)
        if not self.batch_first:
            given = tuple(ops.swapaxes(x, 0, 1) for x in given)
        e, bias = self.embed_dim, self.in_proj_bias
        if self.in_proj_weight is not None and given[0] is given[1] is given[2]:
            together = given[0] @ self.in_proj_weight
            together = together if bias is None else together + bias
            made = [together[..., i * e : (i + 1) * e] for i in range(3)]
        else:
            made = [x @ self._weight(i) for i, x in enumerate(given)]
            if bias is not None:
                made = [x + bias[i * e : (i + 1) * e] for i, x in enumerate(made)]
        return [to_heads(x, self.num_heads) for x in made]

    def _weight(self, i: int) -> Tensor:
        """Return the weight of the projection of queries, keys or values."""
        if self.in_proj_weight is None:
            return (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[i]
        return self.in_proj_weight[:, i * self.embed_dim : (i + 1) * self.embed_dim]

    def _mask(
        self, shape: tuple[int, ...], s: int, attn_mask: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        """Return one mask with four axes as the op takes it, or None."""
        b, h, t, _ = shape
        masks = []
        for name, mask, sizes in (
            ("attn_mask", attn_mask, ((t, s), (b * h, t, s))),
            ("key_padding_mask", padding, ((b, s),)),
        ):
            if mask is None:
                continue
            if shape_of(mask) not in sizes:
                raise explain(
                    ShapeError, "MultiheadAttention", f"{name} has shape {shape_of(mask)}",
                    [(name, mask)], " or ".join(map(str, sizes)),
                )  # fmt: skip
            four = (b, 1, 1, s) if name == "key_padding_mask" else (1, 1, t, s)
            masks.append(ops.reshape(mask, (b, h, t, s) if len(shape_of(mask)) == 3 else four))
        seen = [ops.logical_not(m) if _is_bool(m) else m for m in masks]
        if len(seen) < 2:
            return seen[0] if seen else None
        if all(map(_is_bool, seen)):
            return ops.logical_and(*seen)
        return ops.add(*[ops.where(m, 0.0, -math.inf) if _is_bool(m) else m for m in seen])

    def extra_repr(self) -> str:
        settings = {"dropout": (self.dropout, 0.0), "batch_first": (self.batch_first, False)}
        return shown(f"{self.embed_dim}, {self.num_heads}", settings)


def _is_bool(x: Tensor) -> bool:
    return str(executor.spec_of(x).dtype) == "bool"


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Return the weights [b, h, t, s] with which attention mixes values; rows that see no key: 0.

    Args:
        q: queries [b, h, t, d].
        k: keys [b, g, s, d].
        mask: as ``ops.scaled_dot_product_attention`` takes it, with four axes.
        is_causal: likewise.

    >>> q = ndl.zeros(1, 1, 2, 4)
    >>> print(nn.attention_weights(q, q, is_causal=True)[0, 0])
    [[1.  0. ]
     [0.5 0.5]]
    """
    b, h, t, d = shape_of(q)
    op = ops.Attention.of(d**-0.5, is_causal)
    given = () if mask is None else (mask,)
    values = ops.zeros((*shape_of(k)[:3], 1), dtype=k.dtype, device=k.device)
    _, shift, rest = executor.several(op, q, k, values, *given)
    scores = ops.reshape(op.scores(q, k, mask, None), (b, h, t, shape_of(k)[2]))
    return ops.exp(scores - ops.unsqueeze(shift, -1) - ops.unsqueeze(rest, -1))

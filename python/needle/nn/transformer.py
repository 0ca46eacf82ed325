"""Transformers: the course's, PyTorch's layers by its names, and learned positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle import init, ops
from needle.errors import IndexRangeError, ShapeError, explain
from needle.executor import shape_of
from needle.nn.activation import activation as activation_of
from needle.nn.attention import AttentionLayer, MultiheadAttention
from needle.nn.layers import Dropout, Linear
from needle.nn.module import Module
from needle.nn.norm import LayerNorm, LayerNorm1d
from needle.nn.settings import check_sizes
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = [
    "LearnedPositions", "Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer",
    "TransformerLayer",
]  # fmt: skip

Function = Callable[[Tensor], Tensor]


class LearnedPositions(Module):
    """Add a learned vector for each position, drawn from N(0, 1) as in ``Embedding``.

    Shapes:   x [..., t, dim] -> the same
    Raises:   IndexRangeError if there are fewer positions than steps

    Attributes:
        weight: [positions, dim].

    Args:
        positions: how many there are.
        dim: size of x.
        device: where the weight is; the default device for None.
        dtype: its element type.

    >>> nn.LearnedPositions(16, 8)(ndl.zeros(2, 5, 8)).shape
    (2, 5, 8)
    """

    def __init__(
        self, positions: int, dim: int, device: DeviceLike = None, dtype: DTypeLike = "float32"
    ) -> None:
        super().__init__()
        check_sizes(self, positions=positions, dim=dim)
        self.weight = Parameter(init.randn(positions, dim, device=device, dtype=dtype))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Return x with the vectors of positions from start on."""
        most, dim = shape_of(self.weight)
        shape = shape_of(x)
        if len(shape) < 2 or shape[-1] != dim:
            rule = f"x [..., t, {dim}]"
            raise explain(ShapeError, "LearnedPositions", f"x has shape {shape}", [("x", x)], rule)
        stop = start + shape[-2]
        if start < 0 or stop > most:
            raise explain(
                IndexRangeError, "LearnedPositions",
                f"steps {start} to {stop - 1}, there are {most} positions", [("x", x)],
                f"a sequence has at most {most} steps",
            )  # fmt: skip
        return x + self.weight[start:stop]

    def extra_repr(self) -> str:
        return ", ".join(map(str, shape_of(self.weight)))


# ---- the course's ------------------------------------------------------------------


class TransformerLayer(Module):
    """Attention, then two linear layers, each normalised first and added to x: the course's layer.

        x = x + dropout(attention(x))
        x = x + dropout(linear2(dropout(relu(linear1(norm(x))))))

    Shapes:   x [b, t, q_features] -> the same

    Args:
        q_features: size of x.
        num_head: number of heads.
        dim_head: size of a head.
        hidden_size: size between the linear layers.
        dropout: probability of all dropout, in training.
        causal: whether a step sees only those before it and itself.
        device: where the parameters are; the default device for None.
        dtype: their element type.

    >>> nn.TransformerLayer(8, num_head=2, dim_head=4, hidden_size=16)(ndl.rand(1, 5, 8)).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        self.attention = AttentionLayer(
            q_features, num_head, dim_head, dropout=dropout, causal=causal, **how
        )
        self.norm = LayerNorm1d(q_features, **how)
        self.linear1 = Linear(q_features, hidden_size, **how)
        self.linear2 = Linear(hidden_size, q_features, **how)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(x))
        hidden = self.dropout(ops.relu(self.linear1(self.norm(x))))
        return x + self.dropout(self.linear2(hidden))


class Transformer(Module):
    """Add learned positions, then apply layers one after the other: the course's Transformer.

    The positions are drawn first. As a sequence model it returns a state too, which is zeros.

    Shapes:   x [t, b, embedding_size], with ``batch_first`` [b, t, embedding_size] -> the same

    Args:
        embedding_size: size of x.
        hidden_size: size between the linear layers.
        num_layers: number of layers.
        num_head: number of heads.
        dim_head: size of a head.
        dropout: probability of all dropout, in training.
        causal: whether a step sees only those before it and itself.
        device: where the parameters are; the default device for None.
        dtype: their element type.
        batch_first: whether the batch is the first axis.
        sequence_len: number of positions.

    >>> model = nn.Transformer(8, 16, num_layers=2, num_head=2, dim_head=4, batch_first=True)
    >>> out, state = model(ndl.rand(1, 5, 8))
    >>> out.shape
    (1, 5, 8)
    """

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        num_head: int = 8,
        dim_head: int = 32,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        batch_first: bool = False,
        sequence_len: int = 2048,
    ) -> None:
        super().__init__()
        check_sizes(self, num_layers=num_layers)
        self.batch_first = batch_first
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        self.positions = LearnedPositions(sequence_len, embedding_size, **how)
        settings: dict[str, Any] = {"dropout": dropout, "causal": causal, **how}
        self.layers = [
            TransformerLayer(embedding_size, num_head, dim_head, hidden_size, **settings)
            for _ in range(num_layers)
        ]

    def forward(self, x: Tensor, h: object = None) -> tuple[Tensor, Tensor]:
        if len(shape_of(x)) != 3:
            problem = f"x has {len(shape_of(x))} axes"
            raise explain(ShapeError, "Transformer", problem, [("x", x)], "x has three axes")
        x = x if self.batch_first else ops.swapaxes(x, 0, 1)
        x = self.positions(x)
        for layer in self.layers:
            x = layer(x)
        x = x if self.batch_first else ops.swapaxes(x, 0, 1)
        return x, init.zeros_like(x)


# ---- PyTorch's ---------------------------------------------------------------------


class _PyTorchLayer(Module):
    """What encoder and decoder layers share."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Function,
        norms: int,
        settings: dict[str, Any],
    ) -> None:
        super().__init__()
        self.norm_first = settings.pop("norm_first")
        eps, batch_first = settings.pop("layer_norm_eps"), settings.pop("batch_first")
        make: dict[str, Any] = {"batch_first": batch_first, **settings}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, **make)
        if norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, **make)
        self.linear1 = Linear(d_model, dim_feedforward, **settings)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **settings)
        for i in range(1, norms + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, eps, **settings))
        for i in range(1, norms + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = activation_of(activation) if isinstance(activation, str) else activation

    def _added(self, x: Tensor, i: int, part: Function) -> Tensor:
        """Return x and a part of it, with the norm and the dropout of number i."""
        norm, drop = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        result: Tensor = x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))
        return result

    def _forward(self, x: Tensor) -> Tensor:
        """Return what the two linear layers make of x."""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _attend(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Return what self-attention makes of x."""
        return self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0]


class TransformerEncoderLayer(_PyTorchLayer):
    """Self-attention, then two linear layers, each added to x and normalised, as in PyTorch.

    Shapes:   src [t, b, d_model], with ``batch_first`` [b, t, d_model] -> the same

    Masks are those of ``MultiheadAttention``: bool ones are true where a key is **not** seen.

    Args:
        d_model: size of src.
        nhead: number of heads.
        dim_feedforward: size between the linear layers.
        dropout: probability of all dropout, in training.
        activation: between the linear layers, by name or a function.
        layer_norm_eps: added to variances.
        batch_first: whether the batch is the first axis.
        norm_first: whether to normalise what goes in, not the sums.
        bias: whether linear layers, attention and norms have biases.
        device: where the parameters are; the default device for None.
        dtype: their element type.

    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(ndl.rand(1, 5, 8)).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Function = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        settings = {
            "layer_norm_eps": layer_norm_eps, "batch_first": batch_first, "norm_first": norm_first,
            "bias": bias, "device": device, "dtype": dtype,
        }  # fmt: skip
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, 2, settings)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        attend = lambda x: self._attend(x, src_mask, src_key_padding_mask, is_causal)  # noqa: E731
        return self._added(self._added(src, 1, attend), 2, self._forward)


class TransformerDecoderLayer(_PyTorchLayer):
    """Self-attention, attention to a memory, then two linear layers, as in PyTorch.

    Shapes:   tgt [t, b, d_model], memory [s, b, d_model], with ``batch_first`` b comes first
              -> as tgt

    Arguments as of ``TransformerEncoderLayer``.

    >>> layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(ndl.rand(1, 5, 8), memory=ndl.rand(1, 7, 8)).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Function = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        settings = {
            "layer_norm_eps": layer_norm_eps, "batch_first": batch_first, "norm_first": norm_first,
            "bias": bias, "device": device, "dtype": dtype,
        }  # fmt: skip
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, 3, settings)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self._attend(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def recall(x: Tensor) -> Tensor:
            found: Tensor = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask,
                is_causal=memory_is_causal,
            )[0]  # fmt: skip
            return found

        return self._added(self._added(self._added(tgt, 1, attend), 2, recall), 3, self._forward)

"""The course's language model: embedding, sequence model, and a linear layer over all words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle import nn
from needle.errors import unknown
from needle.executor import shape_of
from needle.models.sampling import Reader
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = ["LanguageModel"]


class LanguageModel(nn.Module):
    """Predict the next word at each place of sequences.

    Shapes:   x [t, b] numbers of words, the state as the sequence model has it or None
              -> logits [t * b, output_size] and the new state

    Args:
        embedding_size: size of a word's vector.
        output_size: number of words.
        hidden_size: size of the state; of the Transformer, of its hidden layers.
        num_layers: layers of the sequence model.
        seq_model: "rnn", "lstm", "gru" or "transformer".
        seq_len: most steps that the Transformer has positions for.
        device: where the parameters are; the default device for None.
        dtype: their element type.

    Raises:
        OptionError: for another sequence model.
    """

    def __init__(
        self,
        embedding_size: int,
        output_size: int,
        hidden_size: int,
        num_layers: int = 1,
        seq_model: str = "rnn",
        seq_len: int = 40,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        kinds: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        if seq_model not in (*kinds, "transformer"):
            raise unknown("LanguageModel: seq_model", seq_model, (*kinds, "transformer"))
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(output_size, embedding_size, **how)
        sizes, width = (embedding_size, hidden_size, num_layers), hidden_size
        if seq_model == "transformer":
            self.window: int | None = seq_len
            self.seq_model: Any = nn.Transformer(*sizes, sequence_len=seq_len, **how)
            width = embedding_size
        else:
            self.window = None
            self.seq_model = kinds[seq_model](*sizes, **how)
        self.linear = nn.Linear(width, output_size, **how)

    def forward(self, x: Any, h: Any = None) -> tuple[Tensor, Any]:
        y, state = self.seq_model(self.embedding(x), h)
        t, b, width = shape_of(y)
        return self.linear(y.reshape((t * b, width))), state

    def reader(self) -> Reader:
        """Return a function that reads a text; the Transformer sees its last ``seq_len`` ids."""
        state: Any = None
        seen = np.empty(0, np.int64)

        def read(ids: Any) -> Any:
            nonlocal state, seen
            if self.window is not None:
                ids = seen = np.concatenate([seen, ids])[-self.window :]
            logits, new = self(np.asarray(ids)[:, None], state)
            if self.window is None:
                state = new
            return logits.numpy()[-1]

        return read

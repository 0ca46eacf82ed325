"""A language model over bytes: an LSTM that also looks up how the text went on before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle import nn
from needle.executor import shape_of
from needle.models.byte_mlp import BITS, ORDERS, VALUES, features
from needle.models.sampling import Reader
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike

Bytes = np.ndarray[Any, Any]
CONTEXT = max(ORDERS)
"""Last bytes that are looked up one by one and in groups."""
MATCHES = (4, 6, 10)
"""Lengths of the groups of last bytes that are searched in the text before."""
REACH = 1 << 16
"""How many bytes back such a group is searched."""
NOTHING = VALUES
"""Stands for a group that was not found."""
_FIRST = VALUES + len(ORDERS) * 2**BITS
"""First row of the embeddings of matches."""
ROWS = _FIRST + len(MATCHES) * (VALUES + 1)


def matches(text: Bytes, length: int) -> Bytes:
    """Return for each place the byte that followed when the bytes before it stood there last.

    Groups are compared by 32 bits of a hash, so a few of them are taken for others.

    Shapes:   text [n], uint8 -> [n], uint16; ``NOTHING`` where the group was not there
    Source:   match models: Mahoney, "Adaptive weighing of context models for lossless data
              compression", 2005

    >>> from needle.models.byte_lstm import matches
    >>> matches(np.frombuffer(b"abcabd", np.uint8), 2).tolist()
    [256, 256, 256, 256, 256, 99]
    """
    n = len(text)
    hashed = np.zeros(n, np.uint64)
    for back in range(1, length + 1):
        hashed[back:] += text[: n - back]
        hashed = (hashed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
    # the places behind the hashes keep equal ones in order
    low = np.uint64(32)
    keys = np.sort(hashed >> low << low | np.arange(n, dtype=np.uint64))
    places = (keys & np.uint64(2**32 - 1)).astype(np.int64)
    same = keys[1:] >> low == keys[:-1] >> low
    same &= (places[:-1] >= length) & (places[1:] - places[:-1] <= REACH)
    found = np.full(n, NOTHING, np.uint16)
    found[places[1:][same]] = text[places[:-1][same]]
    return found


class ByteText:
    """What ``ByteLSTM`` looks up at each place of a text.

    Args:
        text: bytes, uint8 [n].
    """

    def __init__(self, text: Bytes) -> None:
        self.size = len(text)
        self.padded = np.concatenate([np.full(CONTEXT, ord("\n"), np.uint8), text])
        self.matches = np.stack([matches(text, length) for length in MATCHES], axis=1)

    def inputs(self, places: Bytes) -> Bytes:
        """Return what is known before places [...]: rows of the embedding, int32 [..., c]."""
        flat = places.reshape(-1)
        windows = np.lib.stride_tricks.sliding_window_view(self.padded, CONTEXT)[flat]
        rows = _rows(windows, self.matches[flat])
        return rows.reshape(*places.shape, rows.shape[1])

    def targets(self, places: Bytes) -> Bytes:
        """Return the bytes at places."""
        return self.padded[places + CONTEXT]


def _rows(windows: Bytes, found: Bytes) -> Bytes:
    firsts = _FIRST + (VALUES + 1) * np.arange(len(MATCHES), dtype=np.int32)
    return np.concatenate([features(windows), found + firsts], axis=1)


class ByteLSTM(nn.Module):
    """Logits of the next byte from an LSTM's state.

    Each step looks up the last bytes, groups of them (see ``features``), and the bytes that
    followed the last groups where these stood before (see ``matches``).

    Shapes:   x [t, b, CONTEXT + len(ORDERS) + len(MATCHES)], as ``ByteText.inputs`` returns it,
              and a state or None -> logits [t * b, 256] and the new state

    Args:
        embedding: numbers per row that is looked up.
        hidden: size of the state.
        layers: number of LSTMs, one after the other.
        device: where the parameters are.
    """

    def __init__(
        self, embedding: int = 16, hidden: int = 256, layers: int = 1, device: DeviceLike = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, embedding, device=device)
        inputs = (CONTEXT + len(ORDERS) + len(MATCHES)) * embedding
        self.lstm = nn.LSTM(inputs, hidden, layers, device=device)
        self.head = nn.Linear(hidden, VALUES, device=device)

    def forward(self, x: Any, h: Any = None) -> tuple[Tensor, Any]:
        rows = self.embedding(x)
        t, b, columns, size = shape_of(rows)
        y, state = self.lstm(rows.reshape((t, b, columns * size)), h)
        return self.head(y.reshape((t * b, -1))), state

    def reader(self) -> Reader:
        """Return a function that reads a text; newlines stand before it."""
        text = bytearray()
        last: list[dict[bytes, int]] = [{} for _ in MATCHES]
        state: Any = None

        def look_up() -> list[int]:
            """Return what followed the last groups before, and remember where they are now."""
            end, found = len(text), []
            for places, length in zip(last, MATCHES, strict=True):
                group = bytes(text[-length:])
                place = places.get(group, -1) if end >= length else -1
                found.append(text[place] if place >= 0 and end - place <= REACH else NOTHING)
                if end >= length:
                    places[group] = end
            return found

        def read(ids: Bytes) -> Bytes:
            nonlocal state
            windows, found = [], []
            for i in ([] if text else [None]) + ids.tolist():  # the first byte has a place, too
                text.extend([] if i is None else [i])
                windows.append(list((b"\n" * CONTEXT + text[-CONTEXT:])[-CONTEXT:]))
                found.append(look_up())
            x = _rows(np.array(windows, np.uint8), np.array(found, np.uint16))
            logits, state = self(x[:, None], state)
            return logits.numpy()[-1]

        return read

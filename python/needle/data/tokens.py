"""Files of tokens, read through a memory map: they may be larger than memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from needle.backend.axes import integer
from needle.data.dataset import Dataset, check_index
from needle.errors import DataError, OptionError, unknown

__all__ = ["TokenFile", "write_tokens"]

DTYPES = ("uint8", "uint16", "int32", "uint32", "int64")


class TokenFile(Dataset):
    """Windows of a file of token ids: inputs, and targets that are one token later.

    Item i is a pair (x, y) of int64 [length]: the tokens from ``i * stride`` on, and those from
    ``i * stride + 1`` on. The file is raw integers in the order of this machine's bytes, as
    ``write_tokens`` and ``array.tofile`` write them. Worker processes map the same pages.

    Args:
        path: path of the file.
        length: tokens of a window.
        stride: tokens from one window to the next; ``length`` for None.
        dtype: of the file: "uint8", "uint16", "int32", "uint32" or "int64".

    Raises:
        DataError: if the file is missing, has part of a token, or is shorter than a window.
        OptionError: for another dtype, or a length or stride below 1.

    >>> tokens = ndl.data.TokenFile("corpus.bin", length=256)  # doctest: +SKIP
    >>> loader = ndl.data.DataLoader(tokens, 64, shuffle=True, seed=0)  # doctest: +SKIP
    """

    def __init__(
        self, path: str | Path, length: int, stride: int | None = None, dtype: str = "uint16"
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise unknown("TokenFile: dtype", dtype, DTYPES)
        self.path, self.dtype = Path(path), np.dtype(dtype)
        self.length = integer("TokenFile: length", length)
        self.stride = self.length if stride is None else integer("TokenFile: stride", stride)
        if self.length < 1 or self.stride < 1:
            raise OptionError(
                f"TokenFile: expected length and stride >= 1, got {length} and {stride}"
            )
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        self.tokens, rest = divmod(size, self.dtype.itemsize)
        if rest or self.tokens < self.length + 1:
            raise DataError(
                f"{path}: {size} bytes\n  rule: a multiple of {self.dtype.itemsize} for {dtype}, "
                f"and at least the {self.length + 1} tokens of a window and its targets"
            )
        self._map: Any = None

    def __len__(self) -> int:
        return (self.tokens - 1 - self.length) // self.stride + 1

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which maps the file again."""
        return {**self.__dict__, "_map": None}

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        check_index(index, len(self))
        return self.batch(np.arange(len(self))[index])

    def batch(self, indices: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        if self._map is None:
            self._map = np.memmap(self.path, self.dtype, mode="r", shape=(self.tokens,))
        places = np.asarray(indices)[..., None] * self.stride + np.arange(self.length + 1)
        found = np.asarray(self._map[places]).astype(np.int64)
        return found[..., :-1].copy(), found[..., 1:].copy()

    def in_memory(self) -> bool:
        return True

    def fingerprint(self) -> str:
        ends = np.concatenate([x[:16] for x in (self[0][0], self[len(self) - 1][1])])
        check = zlib.crc32(ends.tobytes())
        return f"TokenFile({self.tokens} {self.dtype}, {self.length}, {self.stride}, #{check:08x})"


def write_tokens(path: str | Path, pieces: Iterable[Any], dtype: str = "uint16") -> int:
    """Write token ids, piece after piece, to a file for ``TokenFile``; return how many they are.

    The file appears under its name when it is whole.

    Args:
        path: path of the file.
        pieces: arrays or lists of ids.
        dtype: of the file; see ``TokenFile``.

    Raises:
        DataError: if an id does not fit into the dtype, or the file cannot be written.
        OptionError: for another dtype.

    >>> ndl.data.write_tokens("corpus.bin", [[1, 2], [3]])  # doctest: +SKIP
    3
    """
    if dtype not in DTYPES:
        raise unknown("write_tokens: dtype", dtype, DTYPES)
    limits, count = np.iinfo(dtype), 0
    part = Path(f"{path}.part-{os.urandom(4).hex()}")
    try:
        with open(part, "wb") as file:
            for piece in pieces:
                ids = np.asarray(piece, np.int64)
                if ids.size and not limits.min <= ids.min() <= ids.max() <= limits.max:
                    raise DataError(
                        f"write_tokens: ids from {ids.min()} to {ids.max()} for {dtype}\n"
                        f"  rule: {limits.min} <= id <= {limits.max}"
                    )
                file.write(ids.astype(dtype).tobytes())
                count += ids.size
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)
    return count

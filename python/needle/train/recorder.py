"""Fingerprints of a run's numbers, by which ``needle diff`` finds where two runs part."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend.ndarray import NDArray
from needle.errors import DataError
from needle.ops.index.row_sparse import elements
from needle.train.callbacks import Callback, Out
from needle.train.folder import DAMAGE, content

if TYPE_CHECKING:
    from needle.train.trainer import Result, Trainer

RECORD = "record.jsonl"
SHARE = 0.03
"""Largest share of the time that recording may take."""
PIECE, PIECES = 4096, 16
"""Bytes of a piece, and number of pieces, of a large tensor that is not read whole."""


class Recorder(Callback):
    """Record the loss of each step, and fingerprints of parameters and gradients.

    ``record.jsonl`` gets a line for each step that is a multiple of ``every``: the bits of the
    losses since the last line, and a CRC-32 of up to 64 KiB of each tensor. ``every`` is a power
    of two that grows until recording takes at most 3 % of the time, so runs of different speed
    have lines in common.

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / RECORD
        self.every = 1
        self.losses: list[float] = []
        self.spent, self.began = 0.0, 0.0

    def begin(self, t: Trainer) -> None:
        if t.done == 0:
            self.path.unlink(missing_ok=True)
            self._write({"step": 0, "losses": [], **self._fingerprints(t)})
        elif self.path.exists():
            kept = [line for line in read(self.path) if line["step"] <= t.done]
            self.every = kept[-1].get("every", 1) if kept else 1
            self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.losses.clear()
        self.spent, self.began = 0.0, time.perf_counter()

    def step(self, t: Trainer, out: Out) -> None:
        self.losses.append(out.loss)
        if t.done % self.every:
            return
        start = time.perf_counter()
        self._line(t)
        now = time.perf_counter()
        self.spent += now - start
        if self.spent > SHARE * (now - self.began):
            self.every *= 2

    def end(self, t: Trainer, result: Result) -> None:
        if self.losses:
            self._line(t)

    def _line(self, t: Trainer) -> None:
        losses, self.losses = [x.hex() for x in self.losses], []
        line = {"step": t.done, "every": self.every, "losses": losses}
        self._write({**line, **self._fingerprints(t)})

    def _fingerprints(self, t: Trainer) -> dict[str, Any]:
        named = list(t.model.named_parameters())
        grads = {name: elements(p.grad) for name, p in named if p.grad is not None}
        return {
            "parameters": {name: fingerprint(p) for name, p in named},
            "gradients": {name: fingerprint(g) for name, g in grads.items()},
        }

    def _write(self, line: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record, without a last one that was not written completely.

    Raises:
        DataError: if the file cannot be read, or another line is not valid.
    """
    found = []
    lines = content(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            found.append({**values, "step": int(values["step"]), "losses": list(values["losses"])})
        except DAMAGE as error:
            if number < len(lines):
                raise DataError(f"{path}: line {number} is not valid ({error!r:.80})") from None
    return found


def fingerprint(x: Any, whole: bool = False) -> int:
    """Return a CRC-32 of a tensor's bytes: of all, or of pieces of a large one."""
    array = x if isinstance(x, NDArray) else executor.primal_array(x)
    values = np.ascontiguousarray(array.numpy())
    data = values.reshape(-1).view(np.uint8).data
    if whole or len(data) <= PIECE * PIECES:
        return zlib.crc32(data)
    return _of_pieces(data[i : i + PIECE] for i in _starts(len(data)))


def _of_pieces(pieces: Iterable[memoryview]) -> int:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return found


def _starts(size: int) -> list[int]:
    """Return where the pieces of a tensor begin: the first, the last, and between them."""
    return [i * (size - PIECE) // (PIECES - 1) for i in range(PIECES)]

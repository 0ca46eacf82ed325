"""The folder of a run: metrics, checkpoints and weights."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from needle import io
from needle.errors import DataError

WEIGHTS = "weights.safetensors"
MOST_WAITING = 10_000
"""Lines of metrics that wait in memory while the disk does not take them."""
DAMAGE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Exceptions from reading unexpected text."""


class Folder:
    """What a run writes: ``metrics.jsonl``, checkpoints and ``weights.safetensors``.

    Args:
        path: path of the folder.
        settings: of its ``io.Checkpoints``.

    Attributes:
        checkpoints: the checkpoints of the run.
        waiting: lines of metrics that could not be written yet.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self.path = Path(path)
        self.checkpoints = io.Checkpoints(self.path / "checkpoints", **settings)
        self.waiting: list[str] = []
        self._lock: io.FolderLock | None = None

    # ---- metrics -----------------------------------------------------------------

    def record(self, **values: Any) -> None:
        """Add a line to metrics.jsonl, after those that wait.

        NaN and infinities, which JSON does not have, become the texts "nan", "inf" and "-inf".

        Raises:
            DataError: if it cannot be written; then it waits for the next call.
        """
        del self.waiting[: len(self.waiting) - MOST_WAITING + 1]
        plain = {name: _as_json(value) for name, value in values.items()}
        self.waiting.append(json.dumps(plain, allow_nan=False) + "\n")
        self.write_waiting()

    def write_waiting(self) -> None:
        """Write the lines of metrics that wait. Raises DataError if they cannot be written."""
        path = self.path / "metrics.jsonl"
        try:
            if self.waiting:
                with open(path, "ab") as file:
                    file.write("".join(self.waiting).encode())
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror})") from error
        self.waiting.clear()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, without a last line that was not written completely.

        Raises:
            DataError: if any other line is invalid.
        """
        path = self.path / "metrics.jsonl"
        lines = content(path).split(b"\n") if path.exists() else []
        found = []
        for number, line in enumerate(lines, 1):
            try:
                values = {name: _as_number(value) for name, value in json.loads(line).items()}
                found.append({**values, "split": str(values["split"]), "step": int(values["step"])})
            except (*DAMAGE, AttributeError) as error:
                if number < len(lines):  # the last entry is empty, or an incomplete line
                    raise DataError(f"{path}: line {number} is not valid ({error!r})") from None
        return found

    def size(self) -> int:
        """Return the number of bytes of metrics.jsonl, which are on the disk from now on."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return 0
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut(self, size: int) -> None:
        """Shorten metrics.jsonl to a number of bytes: what follows will be written again.

        Raises:
            DataError: if it cannot be written.
        """
        path = self.path / "metrics.jsonl"
        try:
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror})") from error

    # ---- checkpoints and weights -------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder within a ``with`` block; blocks may be nested.

        Raises:
            LockedError: if another run has the lock.
            DataError: if the folder cannot be written.
        """
        if self._lock is not None:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = io.FolderLock(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be locked ({error.strerror})") from error
        try:
            yield
        finally:
            self._lock.release()
            self._lock = None

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the state of the last checkpoint, or None before the first one.

        Raises:
            DataError: if there are checkpoints, but none is complete.
        """
        if not any(self.checkpoints.folder.glob("step-*")):
            return None
        return dict(self.checkpoints.load())

    def save_weights(self, model: Any) -> Path:
        """Write weights.safetensors, completely or not at all; return its path."""
        path = self.path / WEIGHTS
        io.save(path, model.state_dict())
        return path

    def remove_parts(self) -> None:
        """Remove the files that a killed run left half written."""
        for part in self.path.glob(".*.part"):
            with suppress(OSError):
                part.unlink()


def content(path: Path) -> bytes:
    """Return the bytes of a file. Raises DataError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _as_json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value

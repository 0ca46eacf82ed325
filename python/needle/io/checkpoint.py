"""Checkpoints of a run: complete or not there, whatever stops the run.

    checkpoints/latest                 the newest folder's name, and its manifest's digest
    checkpoints/step-00001200/         see ``io/manifest.py``

A folder is written under another name, each file is flushed to the disk, the manifest last, then
the folder; only then it takes its name, and after that ``latest`` names it. Old ones are removed
last. So at each instant one complete checkpoint, old or new, is on the disk.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.errors import ArgumentError, DataError, OptionError, SaveError, describe
from needle.io import manifest, nested, restore, writer
from needle.io.fill import Misfit
from needle.io.manifest import Manifest

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Numpy

LATEST = "latest"
_NO_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # of file systems that flush no folders


class Checkpoints:
    """The checkpoints of one run, in a folder of their own.

    A state is a dict: its parts (``"model"``, ``"optimizer"``, ...) are nested dicts, lists and
    tuples of tensors, numbers and texts. The tensors of each part are one safetensors file, which
    other programs read; all else is one JSON file.

    Args:
        folder: is made when the first checkpoint is saved.
        keep_last: how many of the newest ones stay.
        keep_best: how many of those with the best figures stay besides.
        mode: "min" if a lower figure is better, "max" if a higher one is.
        note: is told what happened, where it is no error; None: a warning of Python.

    Attributes:
        waited: seconds that saves have waited for the one before.

    >>> import tempfile
    >>> model = nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = ndl.io.Checkpoints(folder)
    ...     _ = checkpoints.save(10, {"model": model.state_dict(), "epoch": 1}, figure=0.5)
    ...     state = checkpoints.load()
    ...     [(saved.step, saved.figure) for saved in checkpoints.list()]
    [(10, 0.5)]
    >>> model.load_state_dict(state["model"]), state["epoch"]
    (Mismatch(missing=[], unexpected=[]), 1)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep_last: int = 3,
        keep_best: int = 1,
        mode: str = "min",
        note: Callable[[str], None] | None = None,
    ) -> None:
        if keep_last < 1 or keep_best < 0:
            raise OptionError(
                f"Checkpoints: keep_last={keep_last} and keep_best={keep_best}\n"
                "  rule: at least 1 and 0"
            )
        if mode not in ("min", "max"):
            raise OptionError(f"Checkpoints: expected 'min' or 'max' for mode, got {mode!r}")
        self.folder = Path(folder)
        self.keep_last, self.keep_best, self.mode = keep_last, keep_best, mode
        self.note = note or (lambda text: warnings.warn(text, stacklevel=3))
        self._snapshot: _Snapshot | None = None
        self.waited = 0.0
        self._memory: dict[str, Numpy] = {}

    # ---- saving ------------------------------------------------------------------

    def save(self, step: int, state: dict[str, Any], figure: float | None = None) -> Path:
        """Save a state, wait until it is on the disk, and return its folder.

        Args:
            step: of the run; a step may be saved again.
            state: parts by name; see ``Checkpoints``.
            figure: of the evaluation at this step, for ``keep_best``; NaN counts as none.

        Raises:
            ArgumentError: for a step, a state or a figure of the wrong type.
            DataError: for a state that cannot be saved (see ``io.tree``).
            SaveError: if it cannot be written; nothing of it is left, and older ones stay.
        """
        _check(step, state, figure)
        self.wait()
        arrays, document = nested.split(state)
        return self._write(step, {k: np.asarray(x) for k, x in arrays.items()}, document, figure)

    def save_async(self, step: int, state: dict[str, Any], figure: float | None = None) -> None:
        """Begin to save a state; a thread copies it, then writes it.

        Call ``finish`` before arrays of the state change (before the optimizer's next step, if the
        state is ``optimizer.state_dict(copy=False)``), and ``wait`` at the end. A save that is
        still under way is waited for.

        Raises:
            ArgumentError: for a step, a state or a figure of the wrong type.
            DataError: for a state that cannot be saved.
            SaveError: if the save before could not be written.
        """
        _check(step, state, figure)
        self.wait()
        arrays, document = nested.split(state)
        self._snapshot = _Snapshot(
            arrays, self._memory, lambda copies: self._write(step, copies, document, figure)
        )

    def finish(self) -> None:
        """Wait until the state of ``save_async`` is copied: from here on it may change.

        Raises:
            SaveError: if the save has failed by now.
        """
        if self._snapshot is not None:
            self._snapshot.copied.wait()
            if not self._snapshot.is_alive():
                self.wait()

    def wait(self) -> None:
        """Wait until nothing is being saved.

        Raises:
            SaveError: if the save failed.
        """
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            began = time.perf_counter()
            snapshot.join()
            self.waited += time.perf_counter() - began
            if snapshot.error is not None:
                raise snapshot.error

    def _write(
        self, step: int, arrays: dict[str, Any], document: object, figure: float | None
    ) -> Path:
        part = self.folder / f".{manifest.folder_name(step)}.part"
        try:
            self._make_folder()
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            values = self._values(step, figure)
            digest = manifest.write(part, values, _write_files(part, arrays, document))
            _flush_folder(part)
            final = self._unused(step)
            os.rename(part, final)
            _flush_folder(self.folder)
            self._name_latest(final, digest)
        except BaseException as error:
            shutil.rmtree(part, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            told = f"{self.folder}: {error.strerror or error}"
            raise SaveError(f"the checkpoint of step {step} was not saved: {told}") from error
        self._remove_old()
        return final

    def _values(self, step: int, figure: float | None) -> dict[str, Any]:
        number = 1 + max((found.number for found in self.list()), default=0)
        if figure is not None:
            figure = float(figure) if math.isfinite(figure) else None
        saved = time.strftime("%Y-%m-%d %H:%M:%S")
        return {"step": int(step), "number": number, "figure": figure, "saved": saved}

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        _flush_folder(self.folder.parent)
        for parent in self.folder.absolute().parents[1:]:  # they may be as new
            with suppress(OSError):
                writer.flush(parent)

    def _unused(self, step: int) -> Path:
        revision = 1
        while (path := self.folder / manifest.folder_name(step, revision)).exists():
            revision += 1
        return path

    def _name_latest(self, path: Path, digest: str) -> None:
        part = self.folder / f".{LATEST}.part"
        with suppress(FileNotFoundError):
            part.unlink()
        writer.write_buffers(part, [memoryview(f"{path.name} {digest}\n".encode())])
        os.rename(part, self.folder / LATEST)
        _flush_folder(self.folder)

    def _remove_old(self) -> None:
        """Remove checkpoints that nobody asked to keep, and what stopped saves left."""
        found = self.list()
        kept = {x.path.name for x in found[-self.keep_last :]}
        kept |= {x.path.name for x in self._ranked(found)[: self.keep_best]}
        for path in self._contents():
            if path.name in kept or path.name == LATEST:
                continue
            if manifest.is_folder_name(path.name):
                dead = path.with_name(f".{path.name}.dead")
                try:
                    os.rename(path, dead)
                except OSError as error:
                    self.note(f"{path} cannot be removed: {error.strerror}")
                    continue
                path = dead
            if path.name.startswith(".") and path.name.endswith((".dead", ".part")):
                self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            self.note(f"{path} cannot be removed: {error.strerror}")

    def _ranked(self, found: Sequence[Manifest]) -> Sequence[Manifest]:
        sign = 1 if self.mode == "min" else -1
        have = [x for x in found if x.figure is not None]
        return sorted(have, key=lambda x: (sign * x.figure, -x.number))  # type: ignore[operator]

    # ---- loading -----------------------------------------------------------------

    def list(self) -> Sequence[Manifest]:
        """Return the complete checkpoints, the newest last."""
        found = []
        for path in self._folders():
            with suppress(DataError):
                found.append(manifest.read(path))
        return sorted(found, key=lambda x: x.number)

    def best(self) -> Manifest | None:
        """Return the complete checkpoint with the best figure; None if none has a figure."""
        return next(iter(self._ranked(self.list())), None)

    def load(self, step: int | None = None, device: DeviceLike = None) -> Any:
        """Return the state of a checkpoint.

        Args:
            step: of the checkpoint; None for the newest. If the newest is damaged, the newest one
                that is complete is loaded, and ``note`` is told.
            device: device of the tensors; the default device for None.

        Raises:
            DataError: if there is no complete checkpoint, with what is wrong with each.
        """
        self.wait()
        return self._first(step, lambda found: restore.read(found, device))

    def load_into(self, targets: dict[str, Any], step: int | None = None) -> Any:
        """Read a checkpoint into what is there, without a copy; return all else.

        Args:
            targets: by the names of their parts: modules, optimizers, other objects with
                ``load_state_dict``, and arrays or tensors by name.
            step: as for ``load``.

        Returns:
            The state, without the parts that were read into targets.

        Raises:
            ArgumentError: for a target that nothing can be read into.
            DataError: if no checkpoint can be loaded; or if it differs from the targets in a name,
                a shape or a dtype, with all differences: then nothing has changed.
        """
        self.wait()
        return self._first(step, lambda found: restore.read(found, None, targets))

    def _first(self, step: int | None, read: Callable[[Manifest], Any]) -> Any:
        """Return what ``read`` returns for the first checkpoint that it accepts."""
        faults = []
        for path, digest in self._candidates(step):
            try:
                found = manifest.read(path)
                if digest not in ("", found.digest):
                    raise DataError(f"{path}: {manifest.NAME} is not the one that was saved")
                value = read(found)
            except Misfit as error:
                raise DataError(f"load_into: {path} does not fit: {error}") from None
            except DataError as error:
                faults.append(str(error))
                continue
            if faults:
                self.note(f"{faults[0]}; loaded {path.name} instead")
            return value
        what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise DataError("\n  ".join([f"{self.folder}: {what} can be loaded", *faults]))

    def _candidates(self, step: int | None) -> Sequence[tuple[Path, str]]:
        """Return folders, the one to try first first, with the digest that is known of each."""
        found = [(x.path, "") for x in reversed(self.list())]
        broken = [(path, "") for path in self._folders() if (path, "") not in found]
        if step is not None:
            names = manifest.folder_name(step)
            return [x for x in found + broken if f"{x[0].name}-".startswith(f"{names}-")]
        try:
            text = manifest.content(self.folder / LATEST).decode()
            name, _, digest = text.strip().partition(" ")
        except (OSError, ValueError):
            return found + broken
        if not manifest.is_folder_name(name):
            return found + broken
        latest = self.folder / name
        return [(latest, digest), *(x for x in found + broken if x[0] != latest)]

    def _folders(self) -> Sequence[Path]:
        return [x for x in self._contents() if manifest.is_folder_name(x.name)]

    def _contents(self) -> Sequence[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def _check(step: object, state: object, figure: object) -> None:
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < 2**53:
        raise ArgumentError(f"Checkpoints: expected an integer >= 0 as step, got {step!r:.60}")
    if not isinstance(state, Mapping):
        raise ArgumentError(f"Checkpoints: expected a dict as state, got {describe(state)}")
    if figure is not None and not isinstance(figure, (int, float, np.number)):
        raise ArgumentError(f"Checkpoints: expected a number as figure, got {figure!r:.60}")


class _Snapshot(threading.Thread):
    """Copies arrays into memory that is kept between saves, then writes the copies.

    What the arrays are held by cannot be overwritten meanwhile: an optimizer writes to memory that
    only its parameter holds.
    """

    def __init__(
        self,
        arrays: dict[str, Any],
        memory: dict[str, Numpy],
        write: Callable[[dict[str, Any]], Any],
    ) -> None:
        super().__init__(name="needle-checkpoint")
        self.arrays: Any = [(name, x, np.asarray(x)) for name, x in arrays.items()]
        self.memory, self.write = memory, write
        self.copied = threading.Event()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            try:
                copies = self._copy()
            finally:
                self.arrays = []
                self.copied.set()
            self.write(copies)
        except MemoryError as error:
            self.error = SaveError(f"the checkpoint was not saved: no memory for a copy ({error})")
        except Exception as error:
            self.error = error

    def _copy(self) -> dict[str, Numpy]:
        names = {name for name, _, _ in self.arrays}
        for name in self.memory.keys() - names:
            del self.memory[name]
        for name, _, x in self.arrays:
            kept = self.memory.get(name)
            if kept is None or (kept.shape, kept.dtype) != (x.shape, x.dtype):
                kept = self.memory[name] = np.empty(x.shape, x.dtype)
            np.copyto(kept, x)
        return self.memory


def _write_files(
    folder: Path, arrays: dict[str, Any], document: object
) -> dict[str, writer.Written]:
    groups: dict[str, dict[str, Any]] = {}
    for path, x in arrays.items():
        file, name = manifest.place(path)
        groups.setdefault(file, {})[name] = writer.dense(x)
    files = {}
    for file, group in groups.items():
        name = f"{file}.safetensors"
        files[name] = writer.write(folder / name, group)
    text = nested.text(document, indent=1).encode()
    files[manifest.STATE] = writer.write_buffers(folder / manifest.STATE, [memoryview(text)])
    return files


def _flush_folder(path: Path) -> None:
    try:
        writer.flush(path)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise

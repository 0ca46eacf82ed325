"""Reading one checkpoint: all headers first, then the bytes, straight to where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from needle import graph
from needle.devices import as_device
from needle.errors import DataError
from needle.io import fill, manifest, nested, reader, writer
from needle.io.fill import Stored
from needle.io.manifest import Manifest
from needle.io.reader import Header, Room

if TYPE_CHECKING:
    from needle.typing import DeviceLike

_TENSORS = ".safetensors"


def read(found: Manifest, device: DeviceLike, targets: Mapping[str, Any] | None = None) -> Any:
    """Return the state of a checkpoint, without the parts that are read into targets.

    Args:
        found: the checkpoint's manifest.
        device: of the tensors that are returned; the default device for None.
        targets: see ``Checkpoints.load_into``.

    Raises:
        Misfit: if a target differs from the checkpoint; then nothing has changed.
        DataError: if the checkpoint is damaged. If that is seen in the bytes of a tensor, targets
            may have changed already.
    """
    where = as_device(device)
    document = _document(found)
    with ExitStack() as stack:
        files = {
            name: _Opened(found, name, stack) for name in found.files if name.endswith(_TENSORS)
        }
        state = _joined(found, document, lambda path: _stored(files, path))
        parts = fill.parts(targets or {}, state)
        rooms: dict[Stored, Room] = {}
        again: list[tuple[Stored, Room]] = []
        for part in parts:
            for stored, array in part.arrays.items():
                if stored in rooms:
                    again.append((stored, Room(array)))
                else:
                    rooms[stored] = Room(array)
        for file in files.values():
            file.read(rooms, where)
    done = {stored: room.filled() for stored, room in rooms.items()}
    for stored, room in again:  # one tensor there, two here
        np.copyto(room.values, np.asarray(done[stored]))
        room.filled()
    tensors: dict[Stored, Any] = {}

    def tensor(path: str) -> Any:
        stored = _stored(files, path)
        if stored not in tensors:
            array = done[stored]
            tensors[stored] = array if isinstance(array, np.ndarray) else graph.wrap(array)
        return tensors[stored]

    whole = _joined(found, document, tensor)
    for part in parts:
        part.finish(whole.pop(part.name))
    return whole


class _Opened:
    """An open file of a checkpoint, and its header."""

    def __init__(self, found: Manifest, name: str, stack: ExitStack) -> None:
        self.path = str(found.path / name)
        self.name = name.removesuffix(_TENSORS)
        self.file: BinaryIO = stack.enter_context(reader.opened(self.path))
        self.header: Header = reader.read_header(self.path, self.file)
        self.written = found.files[name]

    def read(self, rooms: dict[Stored, Room], device: DeviceLike) -> None:
        """Read all tensors; those that have no room get one on a device."""
        buffers = [memoryview(bytearray(self.header.size))]  # for the sums of whole pieces
        for name, entry in self.header.entries.items():
            stored = Stored(self.name, name, entry)
            if stored not in rooms:
                rooms[stored] = reader.room(self.path, name, entry, device)
            buffers.append(rooms[stored].buffer)
        reader.read(self.path, self.file, 0, buffers, self.written.sums)


def _stored(files: Mapping[str, _Opened], path: str) -> Stored:
    file, name = manifest.place(path)
    return Stored(file, name, files[file + _TENSORS].header.entries[name])


def _document(found: Manifest) -> Any:
    """Return the content of the checkpoint's JSON file."""
    path = found.path / manifest.STATE
    try:
        text = manifest.content(path)
        found_sums = [writer.checksum(x) for x in writer.pieces([memoryview(text)])]
        if found_sums != found.files[manifest.STATE].sums:
            raise ValueError("it has changed since it was saved")
        return nested.parse(text)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _joined(found: Manifest, document: Any, tensor: Any) -> Any:
    try:
        state = nested.join(document, tensor)
        if not isinstance(state, dict):
            raise ValueError("it is no table")
    except ValueError as error:
        raise DataError(f"{found.path / manifest.STATE}: {error}") from None
    return state

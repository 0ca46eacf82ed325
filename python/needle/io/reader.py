"""Reading files of the safetensors format into memory that is there.

The header is checked against the file by the safetensors library, and what the library accepts
against the format's text is refused here, before any value is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from needle.backend.ndarray import NDArray, empty
from needle.dtype import DType, as_dtype
from needle.errors import DataError, NeedleError, ShapeError
from needle.io import nested, writer

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Numpy

_DTYPES = {code: as_dtype(name) for name, code in writer.CODES.items()}
_SIZE = 8  # bytes of the header's length, at the start of the file
_HOST = 1  # DLPack's number of memory that NumPy reads
THREADS = 2
"""Threads that read, and check, the pieces of a large file."""


class Entry(NamedTuple):
    """What a header says of a tensor; ``start`` counts from the beginning of the file.

    ``raw`` is the name of a dtype that Needle has not, of one byte; its elements are read as bytes.
    """

    kind: DType
    shape: tuple[int, ...]
    start: int
    raw: str = ""


class Header(NamedTuple):
    """A file's texts, its tensors by name in the order of the file, and the header's bytes."""

    texts: dict[str, str]
    entries: dict[str, Entry]
    size: int


def bad(path: str, problem: str) -> NeedleError:
    """Return the error for a file that is not as it must be."""
    return DataError(f"load: {path}: {problem}\n  rule: expected a complete safetensors file")


def _unreadable(path: str, error: OSError) -> NeedleError:
    return DataError(f"load: {path}: {error.strerror or error}")


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        DataError: if it is not a regular file; also for errors of the system within the block.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:  # a name with a zero in it
        raise bad(path, str(error)) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would block
        raise bad(path, "it is not a regular file")
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def read_header(path: str, file: BinaryIO) -> Header:
    """Return the header of an open file, checked against the file.

    Raises:
        DataError: with what is wrong with it.
    """
    from safetensors import SafetensorError, safe_open

    first = file.read(_SIZE)
    if pickled := _pickled(path, file, first):
        raise pickled
    same = f"/dev/fd/{file.fileno()}"  # the open file, even if the path leads to another one by now
    try:
        size = int.from_bytes(first, "little")
        with safe_open(same if os.path.exists(same) else path, framework="numpy"):
            pass  # opening checks: sizes, offsets, overlaps, holes
        text = file.read(size)
        if not text.startswith(b"{"):
            raise ValueError("its header does not start with '{'")
        if (count := text.count(b'"data_offsets"')) > writer.MOST_TENSORS:
            raise ValueError(f"it has {count:,} tensors, more than {writer.MOST_TENSORS:,}")
        header = nested.parse(text, writer.MOST_HEADER)
    except (SafetensorError, ValueError) as error:
        raise bad(path, str(error)) from error
    texts = header.pop(writer.TEXTS, None) or {}
    entries = {name: _entry(path, name, found, _SIZE + size) for name, found in header.items()}
    order = sorted(entries, key=lambda name: entries[name].start)
    return Header(texts, {name: entries[name] for name in order}, _SIZE + size)


def _pickled(path: str, file: BinaryIO, first: bytes) -> NeedleError | None:
    """Return the error for a file that PyTorch or Python pickled; None for another one."""
    import zipfile

    if first.startswith(b"PK"):
        try:
            names = zipfile.ZipFile(file).namelist()
        except (zipfile.BadZipFile, ValueError, OSError):
            return None
        finally:
            file.seek(len(first))
        if not any(name.endswith(".pkl") for name in names):
            return None
    elif not (first[:1] == b"\x80" and first[1:2] in b"\x02\x03\x04\x05"):
        return None
    return DataError(
        f"load: {path}: it is a pickle, as torch.save writes\n"
        "  rule: Needle reads no pickles, because they can run any code\n"
        "  try: where PyTorch is installed, safetensors.torch.save_file("
        'torch.load("x.pt", weights_only=True), "x.safetensors"), then '
        'needle.io.from_torch(model, "x.safetensors")'
    )


def _entry(path: str, name: str, found: object, start: int) -> Entry:
    """Return a header's entry; the library also accepts lists, and dtypes that we have not."""
    if not isinstance(found, dict) or not isinstance(found["dtype"], str):
        raise bad(path, f"{name!r}: expected dtype, shape and data_offsets, got {found!r:.60}")
    code, raw = found["dtype"], ""
    if code.startswith("F8_"):
        code, raw = writer.CODES["uint8"], code
    if code not in _DTYPES:
        raise bad(path, f"{name!r} is {code}, which Needle does not have")
    return Entry(_DTYPES[code], tuple(found["shape"]), start + found["data_offsets"][0], raw)


class Room:
    """Memory of the host that the values of an array are read into.

    Attributes:
        out: the array, ours or NumPy's.
        buffer: its own memory, where that is dense and on the host.
    """

    def __init__(self, out: NDArray | Numpy) -> None:
        self.out = out
        if isinstance(out, np.ndarray):
            self.own, kind = out.flags.c_contiguous, out.dtype
        else:
            self.own, kind = on_host(out) and out.is_dense(), out.dtype.numpy
        self.values = np.asarray(out) if self.own else np.empty(out.shape, kind)
        self.buffer: memoryview = self.values.reshape(-1).view(np.uint8).data

    def filled(self) -> Any:
        """Return the array, after all its bytes were read."""
        if (
            self.values.dtype == np.bool_ and self.values.size
        ):  # a byte that is not 0 counts as true
            found = np.frombuffer(self.buffer, np.uint8).reshape(self.values.shape)
            np.not_equal(found, 0, out=self.values)
        if isinstance(self.out, np.ndarray):
            if not self.own:
                np.copyto(self.out, self.values)
        elif not self.own:
            self.out.device.backend.upload(self.out, self.values)
        return self.out


def on_host(x: NDArray) -> bool:
    """Return whether NumPy can see the memory of an array."""
    return x.device.backend.dlpack_device()[0] == _HOST


def room(path: str, name: str, entry: Entry, device: DeviceLike) -> Room:
    """Return room for a tensor of a file, on a device.

    Raises:
        DataError: if no array has such a shape.
    """
    try:
        return Room(empty(entry.shape, entry.kind, device))
    except (ValueError, OverflowError, ShapeError) as error:
        raise bad(path, f"{name!r} has the shape {entry.shape!r:.60}: {error}") from error


def read(
    path: str,
    file: BinaryIO,
    start: int,
    buffers: Sequence[memoryview],
    sums: Sequence[int] | None = None,
) -> None:
    """Read a part of a file into buffers.

    Args:
        path: of the file, for messages.
        file: the open file.
        start: first byte of the part.
        buffers: all bytes of the part, in the order of the file.
        sums: of each piece of the part, where they are known.

    Raises:
        DataError: if the file ends before, or has other bytes than it had.
        OSError: if it cannot be read.
    """
    handle = file.fileno()

    def one(number: int, piece: list[memoryview]) -> None:
        _read_all(path, handle, start + number * writer.PIECE, piece)
        if sums is not None and writer.checksum(piece) != sums[number]:
            raise DataError(
                f"load: {path}: it has changed since it was saved, after byte "
                f"{start + number * writer.PIECE:,}"
            )

    jobs = list(enumerate(writer.pieces(buffers)))
    if len(jobs) < 2 * THREADS:
        for job in jobs:
            one(*job)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for result in [pool.submit(one, *job) for job in jobs]:
            result.result()


def _read_all(path: str, handle: int, offset: int, piece: list[memoryview]) -> None:
    left = list(piece)
    while left:
        done = os.preadv(handle, left[: writer.MOST_BUFFERS], offset)
        if not done:
            raise bad(path, "it ended while it was read")
        offset += done
        writer.drop(left, done)

"""One checkpoint's folder: its manifest, written last, tells which files it has, and their bytes.

    step-00001200/model.safetensors optimizer.safetensors ... state.json manifest.json

A folder without a whole manifest, or with a file that is not as the manifest says, is no
checkpoint. Names in a manifest are those of files in the folder itself, never paths.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from needle.errors import DataError
from needle.io import nested, writer

NAME, STATE = "manifest.json", "state.json"
FORMAT = 1
_OTHERS = "tensors"  # the file of tensors that are in no such part
_PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE = re.compile(r"[A-Za-z0-9_-]{1,64}\.(safetensors|json)")
_FOLDER = re.compile(r"step-(\d{8,18})(-\d{1,6})?")


class Manifest(NamedTuple):
    """What a manifest says.

    Attributes:
        path: the folder.
        step: of the run.
        number: counts the checkpoints of a run; the newest has the highest.
        figure: of the evaluation at this step, or None.
        saved: when, as a text.
        files: by name, what each contains.
        digest: SHA-256 of the manifest.
    """

    path: Path
    step: int
    number: int
    figure: float | None
    saved: str
    files: dict[str, writer.Written]
    digest: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def folder_name(step: int, revision: int = 1) -> str:
    """Return the name of the folder of a step; a step that is saved again is a new revision."""
    return f"step-{step:08d}" + (f"-{revision}" if revision > 1 else "")


def is_folder_name(name: str) -> bool:
    """Return whether this is a name that ``folder_name`` gives."""
    return _FOLDER.fullmatch(name) is not None


def write(folder: Path, values: dict[str, Any], files: dict[str, writer.Written]) -> str:
    """Write the manifest of a folder, and wait until it is on the disk; return its digest."""
    entries = {
        name: {"size": file.size, "piece": writer.PIECE, "sums": file.sums}
        for name, file in files.items()
    }
    text = json.dumps({"format": FORMAT, **values, "files": entries}, indent=1).encode() + b"\n"
    writer.write_buffers(folder / NAME, [memoryview(text)])
    return hashlib.sha256(text).hexdigest()


def read(folder: Path) -> Manifest:
    """Return the manifest of a folder, whose files are there and have the right sizes.

    Raises:
        DataError: if the folder is no complete checkpoint, with the reason.
    """
    try:
        text = content(folder / NAME)
        found = _manifest(folder, nested.parse(text), hashlib.sha256(text).hexdigest())
        for name, file in found.files.items():
            size = _regular(folder / name)
            if size != file.size:
                raise ValueError(f"{name} has {size:,} bytes, not {file.size:,}")
    except OSError as error:
        name = Path(error.filename or folder).name
        raise DataError(f"{folder}: {name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        told = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{folder}: {told}") from None
    return found


def _manifest(folder: Path, values: object, digest: str) -> Manifest:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{NAME} is not one of format {FORMAT}")
    step, number, figure = (values[key] for key in ("step", "number", "figure"))
    if not _is_count(step) or not _is_count(number):
        raise ValueError(f"{NAME} has step {step!r:.40} and number {number!r:.40}")
    if figure is not None and (isinstance(figure, bool) or not isinstance(figure, (int, float))):
        raise ValueError(f"{NAME} has the figure {figure!r:.40}")
    if not isinstance(values["files"], dict):
        raise ValueError(f"{NAME} has no table of files")
    files = {}
    for name, entry in values["files"].items():
        if not _FILE.fullmatch(name) or name == NAME:
            raise ValueError(f"{NAME} has a file {name!r:.80}, which is no name of one")
        files[name] = _written(name, entry)
    if STATE not in files:
        raise ValueError(f"{NAME} has no {STATE}")
    return Manifest(folder, step, number, figure, f"{values['saved']:.40}", files, digest)


def _written(name: str, entry: Any) -> writer.Written:
    size, piece, checks = (entry[key] for key in ("size", "piece", "sums"))
    right = (
        _is_count(size) and piece == writer.PIECE and isinstance(checks, list)
        and len(checks) == math.ceil(size / piece) and all(_is_count(x) for x in checks)
    )  # fmt: skip
    if not right:
        raise ValueError(f"{NAME} has a wrong entry for {name}: {entry!r:.80}")
    return writer.Written(size, checks)


def _is_count(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63


def _regular(path: Path) -> int:
    """Return the size of a file. Raises ValueError for a link, a pipe, a folder."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    return found.st_size


def content(path: Path) -> bytes:
    """Return the content of a JSON file.

    Raises:
        ValueError: if it is not a regular file, or is longer than a document may be.
        OSError: if it cannot be read.
    """
    size = _regular(path)
    if size > nested.MOST:
        raise ValueError(f"{path.name} has {size:,} bytes, more than {nested.MOST:,}")
    return path.read_bytes()


def place(path: str) -> tuple[str, str]:
    """Return the file of a tensor, without its ending, and its name in there.

    Each part of a state has a file, if its name can be that of a file.
    """
    part, _, name = path.partition("/")
    if name and _PART.fullmatch(part) and part not in (_OTHERS, "state", "manifest"):
        return part, name
    return _OTHERS, path

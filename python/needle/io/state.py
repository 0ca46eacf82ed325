"""State dicts as safetensors files: https://github.com/huggingface/safetensors

A file is written beside its final place, flushed to the disk, then renamed: whoever looks finds
the old file or the new one, whole. Reading checks everything before any value is used.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from needle import executor, graph
from needle.backend.ndarray import NDArray, array
from needle.dtype import DType, as_dtype
from needle.errors import (
    ArgumentError,
    DataError,
    NeedleError,
    OptionError,
    ShapeError,
    describe,
    explain,
)
from needle.nn.module import StateDict

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DTYPES = {code: as_dtype(name) for name, code in _CODES.items()}
_TEXTS = "__metadata__"  # the name of these in the header
_NUMBERS, _ALIASES = "needle.numbers", "needle.aliases"
_SIZE = 8  # bytes of the length that stands before the header


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors and numbers by name to a safetensors file, whole or not at all.

    Args:
        path: of the file; what was there is replaced only when the new file is complete.
        state: of a module, an optimizer, or any dict of tensors and Python numbers. A tensor that
            stands under several names is written once.
        metadata: texts to keep with it.

    Raises:
        ArgumentError: for a module or anything else that is no dict.
        DataError: for a value that is neither tensor nor number, a dtype or a name that could not
            be read again, or a file that cannot be written.
    """
    if not hasattr(state, "items"):
        own = hasattr(state, "state_dict")
        raise explain(
            ArgumentError, "save", f"expected tensors by name, got {type(state).__name__}",
            rule="save(path, state), where state is a dict of tensors and numbers",
            advice="save(path, x.state_dict())" if own else "",
        )  # fmt: skip
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    numbers: dict[str, bool | int | float] = {}
    aliases = dict(getattr(state, "aliases", {}))
    first: dict[int, str] = {}
    for name, value in state.items():
        _check_name(name)
        if isinstance(value, (bool, int, float)):
            numbers[name] = value
        elif id(value) in first:
            aliases[name] = first[id(value)]
        else:
            first[id(value)] = name
            arrays[name] = _values(name, value)
    texts = dict(metadata or {})
    for key, extra in ((_NUMBERS, numbers), (_ALIASES, aliases)):
        if extra:
            texts[key] = json.dumps(extra)
    with replacing(path) as file:
        _write(file, arrays, texts)


def load(path: str | os.PathLike[str], device: Any = None) -> StateDict:
    """Read a safetensors file.

    Args:
        path: of the file.
        device: where to put the tensors; the default device for None.

    Returns:
        Tensors (and what numbers were saved) by name, with the aliases of shared ones.

    Raises:
        DataError: for a file that is missing, truncated or malformed, and for duplicate names.
    """
    header, start = _read_header(path)
    texts = header.pop(_TEXTS, {})
    state = StateDict()
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise _bad(path, f"{name!r} is {entry['dtype']}, which Needle does not have")
        try:
            state[name] = _read(path, _DTYPES[entry["dtype"]], entry, start, device)
        except (ValueError, OverflowError, ShapeError) as error:  # no array has such a shape
            raise _bad(path, f"{name!r} has the shape {entry['shape']!r:.60}: {error}") from error
    numbers, state.aliases = _extra(path, texts, _NUMBERS), _extra(path, texts, _ALIASES)
    for alias, name in state.aliases.items():
        if alias in state or not isinstance(name, str) or name not in header:
            raise _bad(path, f"the alias {alias!r} of {name!r} fits no tensor")
    for name, number in numbers.items():
        if name in state or not isinstance(number, (bool, int, float)):
            raise _bad(path, f"{name!r} is no number of its own")
        state[name] = number
    return state


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the texts that were saved with a file.

    Raises:
        DataError: as ``load``.
    """
    texts = _read_header(path)[0].get(_TEXTS, {})
    return {key: text for key, text in texts.items() if key not in (_NUMBERS, _ALIASES)}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give the name of a new file, which takes the place of ``path`` if the block succeeds.

    Raises:
        DataError: if the file cannot be written, with the reason.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        part.touch(exist_ok=False)
        mode = part.stat().st_mode
        yield str(part)
        part.chmod(mode)  # writers may replace the file by a private one
        _flush(part)
        os.replace(part, target)
        _flush(target.parent)
    except OSError as error:
        raise DataError(
            f"save: cannot write {target}: {error.strerror or error}\n"
            "  rule: what stood there before is unchanged"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _values(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return what is written for a tensor: its values as a dense NumPy array."""
    if isinstance(value, graph.TensorBase):
        value = executor.value_of(value)
    if not isinstance(value, (NDArray, np.ndarray)):
        raise DataError(f"save: {name!r} is {describe(value)}, neither a tensor nor a number")
    try:
        as_dtype(value.dtype)
    except OptionError as error:
        raise DataError(f"save: {name!r} is {value.dtype}, which load does not know") from error
    return np.asarray(value, order="C")


def _check_name(name: Any) -> None:
    """Check that a name can stand in the file's header, beside that of the texts.

    Raises:
        DataError: if it cannot.
    """
    if (
        not isinstance(name, str)
        or name == _TEXTS
        or name != name.encode("utf-8", "replace").decode()
    ):
        raise DataError(
            f"save: {name!r:.60} cannot be a name\n"
            f"  rule: names are texts that UTF-8 can write, other than {_TEXTS!r}"
        )


def _write(path: str, arrays: dict[str, np.ndarray[Any, Any]], texts: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(arrays, path, texts or None)
    except SafetensorError as error:
        raise DataError(f"save: {error}") from error


def _bad(path: str | os.PathLike[str], problem: str) -> NeedleError:
    return DataError(
        f"load: {os.fspath(path)} cannot be used: {problem}\n  rule: a whole safetensors file"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; the library would let the last of two equal keys win."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the name {twice[0]!r} stands twice")
    return found


def _read_header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    """Return the header, checked against the file, and where the values start."""
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(_SIZE), "little")
            with safe_open(os.fspath(path), framework="numpy"):
                pass  # opening checks: sizes, offsets, overlaps, holes
            text = file.read(size)
        if not text.startswith(b"{"):
            raise ValueError("its header does not start with '{'")
        return json.loads(text, object_pairs_hook=_unique), _SIZE + size
    except OSError as error:
        raise DataError(f"load: {os.fspath(path)}: {error.strerror or error}") from error
    except (SafetensorError, ValueError) as error:
        raise _bad(path, str(error)) from error


def _read(
    path: str | os.PathLike[str], kind: DType, entry: dict[str, Any], start: int, device: Any
) -> Any:
    shape, offset = tuple(entry["shape"]), start + entry["data_offsets"][0]
    stored = np.dtype(np.uint8) if kind == "bool" else kind.numpy
    values = np.fromfile(path, stored, math.prod(shape), offset=offset).reshape(shape)
    return graph.wrap(array(values != 0 if kind == "bool" else values, kind, device))


def _extra(path: str | os.PathLike[str], texts: dict[str, str], key: str) -> dict[str, Any]:
    try:
        found = json.loads(texts.get(key, "{}"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its {key} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise _bad(path, f"its {key} is no table")
    return found

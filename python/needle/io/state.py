"""State dicts as safetensors files: https://github.com/huggingface/safetensors

A file is written beside its final place, flushed to the disk, then renamed, so readers always find
either the old file or the complete new one. Reading checks everything before any value is used.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor, graph
from needle.backend.ndarray import NDArray
from needle.devices import as_device
from needle.dtype import as_dtype
from needle.errors import (
    ArgumentError,
    DataError,
    NeedleError,
    OptionError,
    describe,
    explain,
)
from needle.io import nested, reader, writer
from needle.nn.module import StateDict
from needle.ops.core.attributes import either

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Numpy

_NUMBERS, _ALIASES, _NESTED = "needle.numbers", "needle.aliases", "needle.state"
_OURS = (_NUMBERS, _ALIASES, _NESTED)
AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def save(
    path: AnyPath,
    state: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors and numbers by name to a safetensors file.

    Args:
        path: path of the file; an existing file is replaced only when the new one is complete.
        state: state of a module or an optimizer, or any dict of tensors and numbers. Numbers of
            NumPy are read back as Python's. A tensor that has several names is written once.
        metadata: texts to save with it, by name.

    Raises:
        ArgumentError: for a module, or anything else that is not a dict.
        DataError: for a value that is neither a tensor nor a number, a dtype, name or text that
            load could not read, or a file that cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ndl.io.save(f"{folder}/run.safetensors", {"w": Tensor([1.0, 2.0]), "epoch": 3})
    ...     state = ndl.io.load(f"{folder}/run.safetensors")
    >>> print(state["w"], state["epoch"])
    [1. 2.] 3
    """
    if not hasattr(state, "items"):
        own = hasattr(state, "state_dict")
        raise explain(
            ArgumentError, "save", f"expected tensors by name, got {type(state).__name__}",
            rule="save(path, state), where state is a dict of tensors and numbers",
            advice="save(path, x.state_dict())" if own else "",
        )  # fmt: skip
    arrays: dict[str, Numpy] = {}
    numbers: dict[str, bool | int | float] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    values = dict(state.items())  # keeps the values alive, so that their ids stay unique
    for name, value in values.items():
        _check_name(name)
        if isinstance(value, (np.generic, bool, int, float)):
            numbers[name] = _number(name, value)
        elif id(value) in first:
            aliases[name] = first[id(value)]
        else:
            first[id(value)] = name
            arrays[name] = _values(name, value)
    for alias, name in getattr(state, "aliases", {}).items():
        if alias in values or name not in values:  # the dict has changed since
            continue
        name = aliases.get(name, name)
        if name in numbers:
            numbers[alias] = numbers[name]
        else:
            aliases[alias] = name
    texts = _texts(metadata)
    for key, extra in ((_NUMBERS, numbers), (_ALIASES, aliases)):
        if extra:
            texts[key] = json.dumps(extra)
    with replacing(path) as file:
        writer.write(file, arrays, texts or None, durable=False)


def save_nested(state: Mapping[str, Any], path: AnyPath) -> None:
    """Write a nested state to one safetensors file, which ``load`` reads: ``needle.save``.

    Other programs read the tensors, whose names are the keys joined by ``/``; all else is a JSON
    text in the file's metadata.

    Args:
        state: dicts with texts as keys, lists, tuples, tensors, numbers, texts and None, nested.
            NumPy's arrays come back as tensors. A tensor that has several places is written once.
        path: path of the file; an existing file is replaced only when the new one is complete.

    Raises:
        ArgumentError: for anything that is not a dict.
        DataError: for a value that cannot be saved, or a file that cannot be written.

    >>> import tempfile
    >>> model = nn.Linear(3, 2)
    >>> opt = optim.Adam(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/run.safetensors"
    ...     ndl.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": 3}, path)
    ...     state = ndl.load(path)
    >>> state["epoch"], list(state["model"])
    (3, ['weight', 'bias'])
    """
    if not isinstance(state, Mapping):
        own = hasattr(state, "state_dict")
        raise explain(
            ArgumentError, "save", f"expected a dict, got {type(state).__name__}",
            rule="save(state, path), where state is a dict",
            advice='save({"model": x.state_dict()}, path)' if own else "",
        )  # fmt: skip
    arrays, document = nested.split(state)
    found = {}
    for name, value in arrays.items():
        _check_name(name)
        found[name] = _values(name, value)
    with replacing(path) as file:
        text = nested.text(document)
        writer.write(file, found, {_NESTED: text}, durable=False)


def load(path: AnyPath, device: DeviceLike = None, *, map_location: Any = None) -> StateDict:
    """Read a safetensors file.

    Args:
        path: path of the file.
        device: device of the tensors; the default device for None.
        map_location: PyTorch's name for device.

    Returns:
        What ``save_nested`` wrote, as it was; else tensors and saved numbers by name, with the
        aliases of shared tensors. Float8 tensors come as bytes, uint8; ``raw`` of the result has
        the names of their dtypes.

    Raises:
        DataError: for a file that is missing, truncated or malformed, and for duplicate names; for
            a pickle, with what to do.
        OptionError: if device and map_location are both given.

    >>> import tempfile
    >>> model = nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ndl.io.save(f"{folder}/model.safetensors", model.state_dict())
    ...     model.load_state_dict(ndl.io.load(f"{folder}/model.safetensors"))
    Mismatch(missing=[], unexpected=[])
    """
    path = _text(path)
    where = as_device(either(device, map_location, ("device", "map_location")))
    with reader.opened(path) as file:  # once, because another file may take the name meanwhile
        header = reader.read_header(path, file)
        rooms = {name: reader.room(path, name, x, where) for name, x in header.entries.items()}
        reader.read(path, file, header.size, [room.buffer for room in rooms.values()])
    texts = header.texts
    state = StateDict({name: graph.wrap(room.filled()) for name, room in rooms.items()})
    state.raw = {name: x.raw for name, x in header.entries.items() if x.raw}
    if _NESTED in texts:
        return _nested(path, texts[_NESTED], state)
    numbers, state.aliases = _extra(path, texts, _NUMBERS), _extra(path, texts, _ALIASES)
    for alias, name in state.aliases.items():
        if alias in state or not isinstance(name, str) or name not in rooms:
            raise reader.bad(path, f"the alias {alias!r} of {name!r} does not match a tensor")
    for name, number in numbers.items():
        if name in state or not isinstance(number, (bool, int, float)):
            raise reader.bad(
                path, f"the number {name!r} has the name of a tensor or is not a number"
            )
        state[name] = number
    return state


def _nested(path: str, text: str, tensors: StateDict) -> StateDict:
    """Return the nested state of a file, all of whose tensors have a place."""
    used = set()

    def tensor(name: str) -> Any:
        used.add(name)
        return tensors[name]

    try:
        found = nested.join(nested.parse(text), tensor)
        if not isinstance(found, dict) or len(used) != len(tensors):
            raise ValueError("it does not fit the tensors")
    except ValueError as error:
        raise reader.bad(path, f"its {_NESTED} cannot be read ({error})") from None
    return found if isinstance(found, StateDict) else StateDict(found)


def load_metadata(path: AnyPath) -> dict[str, str]:
    """Return the metadata that was saved with a file.

    Raises:
        DataError: as ``load``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ndl.io.save(f"{folder}/x.safetensors", {"x": Tensor([1.0])}, {"license": "MIT"})
    ...     ndl.io.load_metadata(f"{folder}/x.safetensors")
    {'license': 'MIT'}
    """
    path = _text(path)
    with reader.opened(path) as file:
        texts = reader.read_header(path, file).texts
    return {key: text for key, text in texts.items() if key not in _OURS}


@contextmanager
def replacing(path: AnyPath) -> Iterator[str]:
    """Yield the name of a new file, which replaces ``path`` if the block succeeds.

    The new file has the permissions of the old one. If ``path`` is a symbolic link, the link stays
    and its target is replaced.

    Raises:
        DataError: if the file cannot be written, with the reason; also if ``path`` is not a file
            but, for example, a folder or a device.
    """
    target, mode = _target(path)
    part = target.with_name(
        f".{target.name[:40]}.{os.urandom(4).hex()}.part"
    )  # names have 255 bytes
    try:
        part.touch(0o666 if mode is None else 0o600, exist_ok=False)
        if mode is None:
            mode = part.stat().st_mode
        yield str(part)
        part.chmod(stat.S_IMODE(mode))  # the block may have replaced the file by a private one
        writer.flush(part)
        os.replace(part, target)
        with suppress(OSError):  # the file is in place; some file systems cannot flush folders
            writer.flush(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _text(path: AnyPath) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ArgumentError(f"expected a file name or a path, got {path!r:.60}") from None


def _target(path: AnyPath) -> tuple[Path, int | None]:
    """Return the file that a path leads to, and the mode of an existing file."""
    name = _text(path)
    try:
        target = Path(os.path.realpath(name))
        mode = target.stat().st_mode if target.exists() else None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise _unwritable(name, error) from error
    if not name or name.endswith(os.sep) or stat.S_ISDIR(mode or 0):
        raise _unwritable(name, "it is a directory" if name else "an empty name")
    if mode is not None and not stat.S_ISREG(mode):
        raise _unwritable(name, "it is not a regular file")
    return target, mode


def _unwritable(path: str | Path, reason: Exception | str) -> NeedleError:
    told = getattr(reason, "strerror", None) or reason
    return DataError(
        f"save: cannot write {str(path)!r:.200}: {told}\n  note: an existing file is unchanged"
    )


def _values(name: str, value: object) -> Numpy:
    """Return the values of a tensor as a dense NumPy array."""
    if isinstance(value, graph.TensorBase):
        value = executor.primal_array(value)
    if not isinstance(value, (NDArray, np.ndarray)):
        raise DataError(f"save: {name!r}: expected a tensor or a number, got {describe(value)}")
    try:
        as_dtype(value.dtype)
    except OptionError as error:
        raise DataError(f"save: {name!r} is {value.dtype}, which load cannot read") from error
    return writer.dense(value)


def _number(name: str, value: object) -> Any:
    """Return a number of Python or NumPy as a Python number that can be written."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, (bool, int, float)):
        raise DataError(
            f"save: {name!r}: expected a tensor or a real number, got {describe(value)}"
        )
    try:
        json.dumps(number)
    except ValueError:
        raise DataError(
            f"save: {name!r} is an integer of {int(number).bit_length()} bits\n"
            "  rule: Python must be able to print it (see sys.set_int_max_str_digits)"
        ) from None
    return number


def _texts(metadata: object) -> dict[str, str]:
    """Return a copy of the metadata: strings by name, without the names that Needle uses.

    Raises:
        ArgumentError: if the metadata is not a dict.
        DataError: if load could not read it.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ArgumentError(f"save: expected a dict of strings as metadata, got {metadata!r:.60}")
    for key, text in metadata.items():
        if not nested.is_text(key) or not nested.is_text(text) or key in _OURS:
            raise DataError(
                f"save: metadata {key!r:.60}: {text!r:.60} cannot be saved\n"
                f"  rule: strings that UTF-8 can encode, with names other than {', '.join(_OURS)}"
            )
    return dict(metadata)


def _check_name(name: object) -> None:
    """Check that a name can be written into the file's header.

    Raises:
        DataError: if it cannot.
    """
    if not nested.is_text(name) or name == writer.TEXTS:
        raise DataError(
            f"save: {name!r:.60} cannot be a name\n"
            f"  rule: names are strings that UTF-8 can encode, other than {writer.TEXTS!r}"
        )


def _extra(path: str, texts: dict[str, str], key: str) -> dict[str, Any]:
    try:
        found = nested.parse(texts.get(key, "{}"))
    except ValueError as error:
        raise reader.bad(path, f"its {key} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise reader.bad(path, f"its {key} is not a table")
    return found

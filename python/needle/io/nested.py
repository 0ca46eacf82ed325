"""A nested state as tensors by path and a JSON document.

A path is the keys joined by ``/``, with ``~`` and ``/`` in a key written as in a JSON pointer
(RFC 6901). What JSON has not is an object with one key that begins with ``~``:

    {"~tensor": "model/weight"}   a tensor, by its path; two names of one tensor have one path
    {"~integer": "9007199254740993"}   an integer beyond 2**53
    {"~number": "nan"}            a NaN or an infinity
    {"~tuple": [...]}             a tuple
    {"~state": {...}, "~aliases": {...}}   a StateDict with shared tensors

A key of the user's that begins with ``~`` gets another ``~``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from needle import executor, graph
from needle.backend.ndarray import NDArray
from needle.dtype import as_dtype
from needle.errors import DataError, OptionError, describe
from needle.nn.module import StateDict

DEPTH = 64
"""Most levels of a state."""
MOST = 32 * 2**20
"""Most bytes of a document; read, it takes up to twenty times as much memory."""
EXACT = 2**53
"""Beyond it, other readers of JSON round integers."""
_TENSOR, _INTEGER, _NUMBER, _TUPLE = "~tensor", "~integer", "~number", "~tuple"
_STATE, _ALIASES = "~state", "~aliases"
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_RULE = (
    "  rule: dicts with texts as keys, lists, tuples, tensors, arrays, numbers, texts, True, False "
    "and None"
)


def split(state: object) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a state by path, and the JSON document that holds the rest.

    Args:
        state: dicts with texts as keys, lists, tuples, tensors, arrays, numbers, texts and None.

    Raises:
        DataError: for a value of another type, a key that is no text, or more than 64 levels, with
            the place.

    >>> from needle.io import nested
    >>> arrays, document = nested.split({"model": {"w": Tensor([1.0])}, "epoch": 3})
    >>> list(arrays), document
    (['model/w'], {'model': {'w': {'~tensor': 'model/w'}}, 'epoch': 3})
    """
    found = _Split()
    return found.arrays, found.document(state, (), 0)


class _Split:
    """The arrays found so far, and the paths of those that were met before."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.first: dict[int, str] = {}

    def document(self, value: object, place: tuple[str, ...], depth: int) -> Any:
        if depth > DEPTH:
            raise DataError(
                f"save: the state has more than {DEPTH} levels, at {_shown(place[:6])}...\n"
                "  try: look whether it contains itself"
            )
        if isinstance(value, Mapping):
            return self._mapping(value, place, depth)
        if isinstance(value, (list, tuple)):
            parts = [self.document(x, (*place, str(i)), depth + 1) for i, x in enumerate(value)]
            return parts if isinstance(value, list) else {_TUPLE: parts}
        if isinstance(value, (graph.TensorBase, NDArray, np.ndarray)):
            return {_TENSOR: self._path(value, place)}
        return _scalar(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: tuple[str, ...], depth: int) -> Any:
        parts = {}
        for key, x in value.items():
            if not is_text(key):
                raise DataError(
                    f"save: {_shown(place)} has the key {key!r:.60}\n  rule: keys are texts that "
                    "UTF-8 can encode"
                )
            name = f"~{key}" if key.startswith("~") else key
            parts[name] = self.document(x, (*place, key), depth + 1)
        aliases = getattr(value, "aliases", None)
        if not aliases:
            return parts
        known = {str(alias): str(name) for alias, name in aliases.items()
                 if alias not in value and name in value}  # fmt: skip
        return {_STATE: parts, _ALIASES: known}

    def _path(self, value: Any, place: tuple[str, ...]) -> str:
        array = executor.primal_array(value) if isinstance(value, graph.TensorBase) else value
        try:
            as_dtype(array.dtype)
        except OptionError:
            raise DataError(
                f"save: {_shown(place)} is {array.dtype}, which load cannot read"
            ) from None
        path = "/".join(key.replace("~", "~0").replace("/", "~1") for key in place)
        path = self.first.setdefault(id(array), path)
        self.arrays[path] = array  # keeps it alive, so that its id stays unique
        return path


def _scalar(value: object, place: tuple[str, ...]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        try:
            return int(value) if abs(value) <= EXACT else {_INTEGER: str(int(value))}
        except ValueError:
            raise DataError(
                f"save: {_shown(place)} is an integer of {int(value).bit_length()} bits\n"
                "  rule: Python must be able to print it (see sys.set_int_max_str_digits)"
            ) from None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_NUMBER: repr(float(value))}
    if is_text(value):
        return str(value)
    raise DataError(f"save: {_shown(place)}: got {describe(value)}\n{_RULE}")


def is_text(text: object) -> bool:
    """Return whether this is a text that UTF-8 can encode."""
    return isinstance(text, str) and text == text.encode("utf-8", "replace").decode()


def _shown(place: tuple[str, ...]) -> str:
    return "".join(f"[{key!r:.40}]" for key in place) or "the state"


def join(document: Any, tensor: Callable[[str], Any]) -> Any:
    """Return the state of a JSON document.

    Args:
        document: what ``split`` returned, or what was read from a file.
        tensor: returns the tensor of a path; raises KeyError if there is none.

    Raises:
        ValueError: if the document is not one of ``split``, with the reason.
    """
    return _joined(document, tensor, 0)


def _joined(x: object, tensor: Callable[[str], Any], depth: int) -> Any:
    if depth > 2 * DEPTH:  # a StateDict takes two levels of the document
        raise ValueError(f"it has more than {DEPTH} levels")
    if isinstance(x, list):
        return [_joined(part, tensor, depth + 1) for part in x]
    if not isinstance(x, dict):
        return x
    marks = {key for key in x if key.startswith("~") and not key.startswith("~~")}
    if not marks:
        return {
            key[1:] if key.startswith("~") else key: _joined(part, tensor, depth + 1)
            for key, part in x.items()
        }
    if marks != set(x):
        raise ValueError(f"{sorted(marks)[0]!r} stands beside other keys")
    return _marked(x, tensor, depth)


def _marked(x: dict[str, Any], tensor: Callable[[str], Any], depth: int) -> Any:
    (mark, *more) = sorted(x)
    value = x[mark]
    if [mark, *more] == [_ALIASES, _STATE]:
        return _shared(_joined(x[_STATE], tensor, depth + 1), value)
    if more:
        raise ValueError(f"{mark!r} stands beside {more[0]!r}")
    if mark == _TUPLE and isinstance(value, list):
        return tuple(_joined(part, tensor, depth + 1) for part in value)
    if mark == _TENSOR and isinstance(value, str):
        try:
            return tensor(value)
        except KeyError:
            raise ValueError(f"there is no tensor {value!r:.60}") from None
    if mark == _NUMBER and isinstance(value, str) and value in _NUMBERS:
        return _NUMBERS[value]
    if mark == _INTEGER and isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    raise ValueError(f"{mark!r}: {value!r:.60} has no meaning")


def _shared(values: object, aliases: object) -> StateDict:
    if not isinstance(values, dict) or not isinstance(aliases, dict):
        raise ValueError(f"{_STATE!r} and {_ALIASES!r} are not tables")
    for alias, name in aliases.items():  # so an alias cannot lead to another alias, or to itself
        if alias in values or not isinstance(name, str) or name not in values:
            raise ValueError(f"the alias {alias!r:.60} of {name!r:.60} does not match a tensor")
    return StateDict(values, aliases)


def text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON.

    Raises:
        DataError: if it is longer than what ``parse`` accepts.
    """
    found = json.dumps(document, indent=indent, allow_nan=False)
    if len(found.encode()) > MOST:
        raise DataError(
            f"save: the state without its tensors takes {len(found):,} bytes\n"
            f"  rule: at most {MOST:,}; a small file must not fill the memory of who reads it\n"
            "  try: arrays in the place of lists of numbers"
        )
    return found


def parse(text: str | bytes, most: int = MOST) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: for what is longer than ``most`` bytes or not JSON, for a key that occurs twice
            in one object, and for many levels.
    """
    if len(text) > most:
        raise ValueError(f"its text has {len(text):,} bytes, more than {most:,}")
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it has too many levels") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object without duplicate keys; the library would keep the last one.

    Raises:
        ValueError: with a name that occurs twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} occurs twice")
            seen.add(name)
    return found

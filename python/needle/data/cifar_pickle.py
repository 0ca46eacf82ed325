"""A reader for the pickles of CIFAR-10's Python edition that does not execute them.

A pickle is a program for a small virtual machine, which can call any function. The machine here
knows only the instructions and the three names that those files use. It makes only numbers, bytes,
lists, tuples and one dict, and never hashes, compares or prints values from the file. So a file
cannot call anything, and the work and memory it takes are proportional to its size.
"""

from __future__ import annotations

import pickletools
from typing import Any

import numpy as np

from needle.errors import DataError

Bytes = np.ndarray[Any, Any]

MOST_INSTRUCTIONS = 1_000_000
"""Limit of instructions: a batch of 10,000 images has 30,000."""
_CONSTANTS = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True}
_NUMBERS = ("BININT", "BININT1", "BININT2")
_TEXTS = ("SHORT_BINSTRING", "BINSTRING")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ARRAY, _TYPE = "numpy ndarray", "numpy dtype"
_RECONSTRUCT = "numpy.core.multiarray _reconstruct"


class _Name:
    """Stands for one of the three names that the files use."""

    def __init__(self, text: str) -> None:
        if text not in (_ARRAY, _TYPE, _RECONSTRUCT):
            wanted = text.replace(" ", ".")[:100]
            raise DataError(f"the pickle imports {wanted}, which a CIFAR-10 batch does not need")
        self.text = text


class _Type:
    """Stands for the element type of an array: bytes."""


class Array:
    """Stands for an array of bytes.

    Attributes:
        values: the array, after its state was read.
    """

    values: Bytes | None = None

    def set_state(self, state: object) -> None:
        """Take (version, shape, type, order, bytes).

        Raises:
            DataError: for anything else.
        """
        if type(state) is not tuple or len(state) != 5 or type(state[1]) is not tuple:
            raise DataError("the array is damaged")
        _, shape, kind, fortran, content = state
        if type(kind) is not _Type or fortran is not False or type(content) is not bytes:
            raise DataError("the array does not consist of plain bytes")
        if len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
            raise DataError("the array is damaged")
        self.values = np.frombuffer(content, np.uint8).reshape(shape)


def load(content: bytes) -> Any:
    """Return the value of a pickle: bytes, integers, lists, tuples, a dict, ``Array``.

    Raises:
        DataError: for an instruction or a name that these files do not use, or a wrong order.
    """
    machine = _Machine()
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(content)):
            if code.name == "STOP":
                return machine.stack.pop()
            if count == MOST_INSTRUCTIONS:
                raise DataError(f"the pickle has over {count:,} instructions, a batch has 30,000")
            machine.do(code.name, argument)
    except (ValueError, IndexError, KeyError) as error:  # a DataError is a ValueError
        raise (
            error
            if isinstance(error, DataError)
            else DataError(f"not a CIFAR-10 batch ({str(error)[:100]})")
        ) from None
    raise DataError("not a CIFAR-10 batch")


class _Machine:
    """A stack, the positions of marks in it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Carry out an instruction."""
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _NUMBERS:
            stack.append(argument)
        elif name in _TEXTS:
            stack.append(argument.encode("latin-1"))
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif name in _TUPLES:
            stack.append(tuple(self.last(_TUPLES[name])))
        elif name != "PROTO":
            self.build(name)

    def build(self, name: str) -> None:
        """Carry out an instruction that changes or calls something."""
        if name in ("APPEND", "APPENDS"):
            items = self.last(1) if name == "APPEND" else self.since_mark()
            self.expect(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.last(2) if name == "SETITEM" else self.since_mark()
            if not all(type(key) is bytes for key in items[::2]):
                raise DataError("the dict has keys that are not strings")
            self.expect(dict).update(zip(items[::2], items[1::2], strict=True))
        elif name == "REDUCE":
            self.stack.append(_made(*self.last(2)))
        elif name == "BUILD":
            state = self.stack.pop()
            if type(self.stack[-1]) is not _Type:  # the order of bytes says nothing about bytes
                self.expect(Array).set_state(state)
        else:
            raise DataError(f"the pickle uses {name}, which a CIFAR-10 batch does not need")

    def last(self, count: int) -> list[Any]:
        """Take a number of values from the stack."""
        if count > len(self.stack):
            raise DataError("not a CIFAR-10 batch (a value is missing)")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def since_mark(self) -> list[Any]:
        """Take the values since the last mark."""
        return self.last(len(self.stack) - self.marks.pop())

    def expect(self, kind: type) -> Any:
        """Return the top of the stack, which must be of a type."""
        if type(self.stack[-1]) is not kind:
            raise DataError(f"not a CIFAR-10 batch (expected {kind.__name__.lower()})")
        return self.stack[-1]


def _made(call: Any, arguments: Any) -> _Type | Array:
    """Return the result of a call in the files: the type of bytes, or an array to fill."""
    if type(call) is not _Name or type(arguments) is not tuple or not arguments:
        raise DataError("the pickle calls something that a CIFAR-10 batch does not need")
    first = arguments[0]
    if call.text == _TYPE and type(first) is bytes:
        if first != b"u1":
            raise DataError(f"the array consists of {first[:20]!r}, not of plain bytes")
        return _Type()
    if call.text == _RECONSTRUCT and type(first) is _Name and first.text == _ARRAY:
        return Array()
    raise DataError("the pickle calls something that a CIFAR-10 batch does not need")

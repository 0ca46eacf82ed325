"""Python values that functions use besides their arguments, found from their code.

A program leaves them out: its function ran once, and neither changes them again nor sees that
others did. So a trainer compiles an update only as long as they stay as they are.
"""

from __future__ import annotations

import dis
import enum
import functools
import math
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from needle import dtype, nn, optim
from needle.devices import Device
from needle.tensors import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, frozenset, range, type(None), type(...))
_FIXED = (*_PLAIN, slice, enum.Enum, np.generic, np.dtype, dtype.DType, Device)
"""Kinds of values that never change."""
_HARMLESS = {
    "abc", "argparse", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses",
    "enum", "functools", "itertools", "math", "needle", "numbers", "numpy", "operator", "string",
    "types", "typing", "warnings",
}  # fmt: skip
"""Packages whose functions depend on nothing but their arguments."""
_ACTS = {"breakpoint", "eval", "exec", "globals", "input", "next", "open", "print"}
_BY_NAME = {"delattr", "getattr", "hasattr", "setattr", "vars", "__dict__"}
"""What reaches attributes whose names the code does not show."""
_OPERATORS = {n for n in dir(int) + dir(list) if n.startswith("__")} - set(dir(object))
_OPERATORS |= {"__call__", "__enter__", "__exit__", "__getattr__", "__matmul__"}
"""Methods that are called without being named."""
_MOST = 2000
"""Most values: to compare more would take too long."""


class Unknown(Exception):
    """The functions use something that may change without a trace."""


class Place:
    """Something that holds values.

    Args:
        name: as the user knows it.
        read: returns the values now.
        write: takes values that ``read`` returned.
    """

    def __init__(
        self, name: str, read: Callable[[], list[Any]], write: Callable[[list[Any]], Any]
    ) -> None:
        self.name, self.read, self.write = name, read, write
        self.values = read()

    def changed(self) -> bool:
        """Return whether a value is another one now."""
        now = self.read()
        return len(now) != len(self.values) or not all(map(_same, now, self.values))


class Outside:
    """What functions use besides their arguments, for as long as it stays the same.

    Args:
        roots: functions and other objects.
        tell: takes a line that says why programs are not used, at most once.
    """

    def __init__(self, *roots: Any, tell: Callable[[str], Any] = lambda line: None) -> None:
        self._roots, self._tell = roots, tell
        self._places: list[Place] | None = None
        self._over = self._told = False

    def holds(self) -> bool:
        """Return whether all is known, and as it was when this was asked first."""
        if self._over:
            return False
        if self._places is None:
            self._places = self._found()
        changed = next((place.name for place in self._places if place.changed()), "")
        if changed:
            self._over = True
            self.tell(f"{changed!r} changes from step to step")
        return not self._over

    def give_up(self, why: str) -> None:
        """Put back all that changed; from now on this does not hold."""
        for place in self._places or ():
            if place.changed():
                place.write(place.values)
        self._over = True
        self.tell(why)

    def tell(self, why: str) -> None:
        """Say, once, why a program is not used."""
        if not self._told:
            self._told = True
            why = why.splitlines()[0].removeprefix("compile: ")
            self._tell(f"the update runs without compile: {why}")

    def _found(self) -> list[Place]:
        walk, known = _Walk(), -1
        try:
            while known != len(walk.names):  # names found late may lie in objects found early
                known = len(walk.names)
                walk.begin()
                for root in self._roots:
                    walk.visit(root, getattr(root, "__name__", type(root).__name__))
        except Unknown as problem:
            self._over = True
            self.tell(str(problem))
        return walk.places


class _Walk:
    """A walk from functions to all that their code names.

    Attributes:
        places: what was found.
        names: all names of attributes in the code.
    """

    def __init__(self) -> None:
        self.names = {"forward", "reset_grad", "step", "zero_grad"}  # what a trainer calls
        self.begin()

    def begin(self) -> None:
        """Begin anew, with the names found so far."""
        self.places: list[Place] = []
        self._seen: dict[int, Any] = {}  # holds them, so that no other has the same id
        self._values = 0

    def visit(self, x: Any, name: str) -> None:
        """Look at a value, and at all that it leads to."""
        if isinstance(x, (*_FIXED, Tensor)) or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if str(getattr(x, "__module__", "")).startswith("numpy.random"):
            raise Unknown(f"{name} draws numbers with NumPy")
        if isinstance(x, types.FunctionType):
            if not _is_known(x):
                self._function(x, name)
        elif isinstance(x, (types.MethodType, types.BuiltinMethodType)):
            self._method(x, name)
        elif isinstance(x, types.ModuleType):
            self._module(x, name)
        elif isinstance(x, type):
            self._class(x, name, ("__init__", "__new__"))
        else:
            self._object(x, name)

    # ---- code --------------------------------------------------------------------

    def _function(self, x: types.FunctionType, name: str) -> None:
        for cell, own in zip(x.__closure__ or (), x.__code__.co_freevars, strict=True):
            self._add(
                own, functools.partial(_read_cell, cell), functools.partial(_write_cell, cell)
            )
        for value in (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()):
            self.visit(value, f"a default of {name}")
        names = self._code(x.__code__, name)
        self._mapping(x.__globals__, "", [n for n in names if n in x.__globals__])
        for n in names:
            if n not in x.__globals__ and n in _ACTS:
                raise Unknown(f"{name}() calls {n}()")

    def _code(self, code: types.CodeType, name: str) -> list[str]:
        """Note the attributes that code names; return its global names."""
        found = []
        for step in dis.get_instructions(code):
            text = str(step.argval)
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
                found.append(text)
                if text in _BY_NAME:
                    self.names.add("*")
            elif "ATTR" in step.opname or "METHOD" in step.opname:
                self.names.add("*" if text in _BY_NAME else text)
            elif step.opname == "IMPORT_NAME" and text.split(".")[0] not in _HARMLESS:
                raise Unknown(f"{name}() imports {text}")
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                found += self._code(inner, name)
        return list(dict.fromkeys(found))

    def _method(self, x: Any, name: str) -> None:
        if not isinstance(x.__self__, types.ModuleType):
            self.visit(getattr(x, "__func__", None), name)
            self.visit(x.__self__, f"the object of {name}")
        elif not _is_known(x):
            raise Unknown(f"{name}() may depend on more than its arguments")

    def _module(self, x: types.ModuleType, name: str) -> None:
        top = x.__name__.split(".")[0]
        if x.__name__ == "numpy" and "random" in self.names:
            raise Unknown("numpy.random draws numbers with NumPy")
        if top in _HARMLESS:
            return
        if top in sys.stdlib_module_names or not hasattr(x, "__file__"):
            raise Unknown(f"the module {x.__name__} may depend on more than arguments")
        self._mapping(vars(x), f"{name}.", [n for n in vars(x) if n in self.names])

    def _class(self, x: type, name: str, made: tuple[str, ...] = ()) -> None:
        """Look at the methods of a class that are called, and at the attributes that are read.

        Args:
            made: further methods, which are called where code makes objects of the class.
        """
        for kind in x.__mro__:
            if _is_known(kind):
                continue
            if kind.__module__.split(".")[0] in sys.stdlib_module_names - {"__main__"}:
                raise Unknown(f"{name} is of {kind.__module__}, which may depend on more")
            own = vars(kind)
            used = [n for n in own if n in self.names or n in _OPERATORS or n in made]
            for n in used:
                self._attribute(own[n], f"{name}.{n}")
            self._add(f"{name}.", *_of_names(own, used, functools.partial(setattr, kind)), False)

    def _attribute(self, x: Any, name: str) -> None:
        """Look at what the dict of a class holds."""
        if isinstance(x, property):
            parts = [x.fget, x.fset]
        elif isinstance(x, functools.cached_property):
            parts = [x.func]
        else:
            parts = [x.__func__ if isinstance(x, (staticmethod, classmethod)) else x]
        for part in parts:
            self.visit(part, name)

    # ---- objects -----------------------------------------------------------------

    def _object(self, x: Any, name: str) -> None:
        if isinstance(x, functools.partial):
            self.visit((x.func, x.args, x.keywords), name)
        elif isinstance(x, (tuple, types.MappingProxyType)):
            for value in x.values() if isinstance(x, Mapping) else x:
                self.visit(value, name)
        elif isinstance(x, (list, deque, set)):
            self._add(name, functools.partial(list, x), functools.partial(_write_items, x))
        elif isinstance(x, dict):
            self._add(name, functools.partial(_read_dict, x), functools.partial(_write_dict, x))
        elif isinstance(x, np.ndarray):
            self._array(x, name)
        elif isinstance(x, np.ufunc) or (isinstance(x, optim.Optimizer) and _is_known(type(x))):
            return  # the numbers of an optimizer are read at each call
        elif not hasattr(x, "__dict__"):
            raise Unknown(f"{name} is {type(x).__name__}, which may change")
        else:
            self._instance(x, name)

    def _instance(self, x: Any, name: str) -> None:
        """Look at the attributes of an object that the code names; of a module at all."""
        own = vars(x)
        self._class(type(x), type(x).__name__)
        if isinstance(x, nn.Module):  # programs depend on its numbers and texts
            for key, value in own.items():
                if key not in ("_buffers", "_vacant"):
                    self.visit(value, f"{name}.{key}")
            return
        every = "*" in self.names or _is_known(type(x))  # its methods were not looked at
        used = [n for n in own if every or n in self.names]
        self._mapping(own, f"{name}.", used)

    def _array(self, x: Any, name: str) -> None:
        if not x.flags.writeable:
            return
        if x.size > _MOST or x.dtype.hasobject:
            raise Unknown(f"{name} is an array, which may change; a Tensor may")
        self._add(
            name, lambda: [x.tobytes()],
            lambda old: np.copyto(x, np.frombuffer(old[0], x.dtype).reshape(x.shape)),
        )  # fmt: skip

    # ---- places ------------------------------------------------------------------

    def _mapping(self, x: MutableMapping[str, Any], prefix: str, names: list[str]) -> None:
        """Add the values of a dict of attributes that have these names."""
        for n in names:
            read, write = _of_names(x, [n], functools.partial(_set_item, x))
            self._add(prefix + n, read, write)

    def _add(
        self,
        name: str,
        read: Callable[[], list[Any]],
        write: Callable[[list[Any]], Any],
        visit: bool = True,
    ) -> None:
        place = Place(name, read, write)
        self.places.append(place)
        self._values += len(place.values)
        if self._values > _MOST:
            raise Unknown(f"{name} and others hold over {_MOST} values, which may change")
        for value in place.values if visit else ():
            self.visit(value, name)


_ABSENT = object()


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, _PLAIN):
        return False
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def _is_known(x: Any) -> bool:
    """Return whether a function or class comes from a package that needs no look."""
    return (getattr(x, "__module__", None) or "builtins").split(".")[0] in _HARMLESS


def _read_cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it has no value yet
        return []


def _write_cell(cell: types.CellType, values: list[Any]) -> None:
    if values:
        cell.cell_contents = values[0]
    else:
        del cell.cell_contents


def _read_dict(x: dict[Any, Any]) -> list[Any]:
    return [part for pair in list(x.items()) for part in pair]


def _write_dict(x: dict[Any, Any], values: list[Any]) -> None:
    x.clear()
    x.update(zip(values[::2], values[1::2], strict=True))


def _write_items(x: Any, values: list[Any]) -> None:
    x.clear()
    (x.update if isinstance(x, set) else x.extend)(values)


def _set_item(x: MutableMapping[str, Any], name: str, value: Any) -> None:
    x[name] = value


def _of_names(
    x: Mapping[str, Any], names: list[str], put: Callable[[str, Any], Any]
) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    """Return functions that read and write the values of some names."""

    def read() -> list[Any]:
        return [x.get(n, _ABSENT) for n in names]

    def write(values: list[Any]) -> None:
        for n, value in zip(names, values, strict=True):
            if value is not _ABSENT:
                put(n, value)

    return read, write

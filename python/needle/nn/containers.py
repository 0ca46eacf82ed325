"""Modules that hold other modules, or parameters."""

from __future__ import annotations

import operator
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from typing import Any, Generic, TypeVar

from needle import tracing
from needle.errors import ArgumentError, IndexRangeError, OptionError, unknown
from needle.nn.activation import ReLU
from needle.nn.image_norm import BatchNorm2d
from needle.nn.module import Module
from needle.tensors import Parameter, Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


class Held(tuple[Module, ...]):
    """The modules of a container: a tuple, as in the course, that can be called as a method."""

    owner: Module

    def __call__(self) -> Iterator[Module]:
        return Module.modules(self.owner)


_C = TypeVar("_C", bound="Container")
_V = TypeVar("_V")


def _check_module(what: str, module: object) -> None:
    """Check that something can be called like a module.

    Raises:
        ArgumentError: if it cannot, or is a class.
    """
    if isinstance(module, type):
        name = module.__name__
        raise ArgumentError(f"{what}: expected a module, got the class {name}\n  try: {name}(...)")
    if not callable(module):
        advice = ""
        if isinstance(module, (list, tuple)):
            advice = "\n  try: Sequential(*modules), ModuleList(modules)"
        elif isinstance(module, Mapping):
            advice = "\n  try: Sequential(*modules.values()), ModuleDict(modules)"
        raise ArgumentError(f"{what}: expected a module, got {type(module).__name__}{advice}")


class Container(Module):
    """Hold modules in order.

    Attributes:
        modules: the modules, as a tuple. As for any module, ``modules()`` yields the container and
            all modules below.
    """

    inline = "modules"

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.modules = modules

    @property
    def modules(self) -> Held:
        """The modules, as a tuple that can be called."""
        held = Held(self.__dict__["modules"])
        held.owner = self
        return held

    @modules.setter
    def modules(self, modules: Iterable[Module]) -> None:
        if not isinstance(modules, Iterable):
            raise ArgumentError(
                f"{type(self).__name__}: expected an iterable of modules, got {modules!r:.60}"
            )
        modules = tuple(modules)
        for i, module in enumerate(modules):
            _check_module(f"{type(self).__name__}: module {i}", module)
        self.__dict__["modules"] = modules

    def append(self: _C, module: Module) -> _C:
        """Add a module at the end; return the container."""
        return self.extend((module,))

    def extend(self: _C, modules: Iterable[Module]) -> _C:
        """Add modules at the end; return the container."""
        self.modules = (*self, *modules)
        return self

    def insert(self: _C, index: int, module: Module) -> _C:
        """Add a module before another one; return the container."""
        modules = list(self)
        modules.insert(index, module)
        self.modules = modules
        return self

    def __setitem__(self, index: int | slice, module: Any) -> None:
        """Replace a module, or all modules of a slice."""
        modules = list(self)
        if isinstance(index, slice):
            modules[index] = list(module)
        else:
            modules[self._at(index)] = module
        self.modules = modules

    def __delitem__(self, index: int | slice) -> None:
        """Remove a module, or all modules of a slice."""
        modules = list(self)
        del modules[index if isinstance(index, slice) else self._at(index)]
        self.modules = modules

    def __getitem__(self, index: int | slice) -> Any:
        """Return a module; for a slice, a container of those modules."""
        modules = self.__dict__["modules"]
        return self._of(modules[index]) if isinstance(index, slice) else modules[self._at(index)]

    def __add__(self: _C, other: Iterable[Module]) -> _C:
        """Return a container of these modules followed by others."""
        return self._of((*self, *other))

    def _of(self: _C, modules: Iterable[Module]) -> _C:
        """Return another container, of these modules."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.__dict__["modules"])

    def __iter__(self) -> Iterator[Module]:
        return iter(self.__dict__["modules"])

    def _at(self, index: int) -> int:
        return _place(self, index, "module")


def _place(held: Container | ParameterList, index: int, what: str) -> int:
    """Return a checked index.

    Raises:
        ArgumentError: if it is not an integer.
        IndexRangeError: if it is out of range.
    """
    name, size = type(held).__name__, len(held)
    try:
        index = operator.index(index)
    except TypeError:
        raise ArgumentError(f"{name}: expected an integer index, got {index!r:.60}") from None
    if not -size <= index < size:
        raise IndexRangeError(f"{name}: {what} index {index} is out of range for length {size}")
    return int(index)


class Sequential(Container):
    """Apply modules one after the other. A ``BatchNorm2d`` and the ``ReLU`` behind it are one pass.

    Attributes:
        modules: the modules, as a tuple. As for any module, ``modules()`` yields the container and
            all modules below.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model(ndl.ones(3, 4)).shape
    (3, 2)
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        modules = self.__dict__["modules"]
        rectified = False
        for module, after in zip(modules, (*modules[1:], None), strict=False):
            if rectified:  # together with the norm before it
                rectified = False
            elif type(module) is BatchNorm2d and type(after) is ReLU and after._hooks is None:
                rectified = module._hooks is None
                x = module(x, _rectified=True) if rectified else module(x)
            else:
                x = module(x)
        return x

    def _of(self, modules: Iterable[Module]) -> Any:
        return Sequential(*modules)


class ModuleList(Container):
    """Hold modules in a list. It cannot be called.

    >>> layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    >>> len(layers), len(layers.parameters())
    (3, 6)
    """

    def _of(self, modules: Iterable[Module]) -> Any:
        return ModuleList(modules)


class Table(Module, Generic[_V]):
    """Hold modules or parameters by name. It cannot be called; iterating gives the names."""

    inline = "table"

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, _V] = {}

    def update(self, values: Mapping[str, _V]) -> None:
        """Add entries; replace those with the same names."""
        if not isinstance(values, (Mapping, Table)):
            raise ArgumentError(f"{type(self).__name__}: expected a dict, got {values!r:.60}")
        for name, value in values.items():
            self[name] = value

    def _checked(self, what: str, value: object) -> _V:
        """Return a value as it is stored, or raise an exception."""
        raise NotImplementedError

    def __setitem__(self, name: str, value: _V) -> None:
        """Add an entry, or replace the one with this name."""
        owner = type(self).__name__
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"{owner}: expected a name (a string without dots), got {name!r}")
        new, old = self._checked(f"{owner}: {name!r}", value), self.table.get(name)
        self.table[name] = new
        tracing.changed(old)

    def __getitem__(self, name: str) -> _V:
        """Return the entry with a name."""
        return self.table[self._known(name)]

    def __delitem__(self, name: str) -> None:
        """Remove an entry."""
        tracing.changed(self.table.pop(self._known(name)))

    def _known(self, name: str) -> str:
        if name not in self.table:
            raise unknown(f"{type(self).__name__}: name", name, self.table)
        return name

    def __contains__(self, name: object) -> bool:
        return name in self.table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self.table.keys()

    def values(self) -> ValuesView[_V]:
        """Return the values."""
        return self.table.values()

    def items(self) -> ItemsView[str, _V]:
        """Return the names with their values."""
        return self.table.items()


class ModuleDict(Table[Module]):
    """Hold modules by name. It cannot be called; iterating gives the names.

    >>> heads = nn.ModuleDict({"class": nn.Linear(4, 10), "box": nn.Linear(4, 4)})
    >>> heads["box"](ndl.ones(1, 4)).shape
    (1, 4)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update({} if modules is None else modules)

    def _checked(self, what: str, value: Any) -> Module:
        _check_module(what, value)
        return value


class ParameterDict(Table[Tensor]):
    """Hold parameters by name; other tensors become parameters. Iterating gives the names.

    >>> table = nn.ParameterDict({"scale": ndl.ones(3)})
    >>> table["scale"].requires_grad
    True
    """

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.update({} if parameters is None else parameters)

    def _checked(self, what: str, value: object) -> Tensor:
        return _as_parameter(what, value)


class ParameterList(Module):
    """Hold parameters in a list; other tensors become parameters.

    >>> scales = nn.ParameterList([ndl.ones(3), ndl.ones(5)])
    >>> [p.shape for p in scales]
    [(3,), (5,)]
    """

    inline = "held"

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.held: list[Parameter] = []
        self.extend(values)

    def append(self, parameter: Tensor) -> ParameterList:
        """Add a parameter at the end; return the list."""
        return self.extend((parameter,))

    def extend(self, parameters: Iterable[Tensor]) -> ParameterList:
        """Add parameters at the end, all of them or none on an error; return the list."""
        what, size = f"{type(self).__name__}: parameter", len(self)
        if not isinstance(parameters, Iterable):
            raise ArgumentError(f"{what}s are {parameters!r:.60}, not several tensors")
        self.held += [_as_parameter(f"{what} {i}", p) for i, p in enumerate(parameters, size)]
        tracing.changed()
        return self

    __iadd__ = extend

    def __getitem__(self, index: int | slice) -> Any:
        """Return a parameter; for a slice, a list of those parameters."""
        if isinstance(index, slice):
            return ParameterList(self.held[index])
        return self.held[_place(self, index, "parameter")]

    def __setitem__(self, index: int, parameter: Tensor) -> None:
        """Replace a parameter."""
        place = _place(self, index, "parameter")
        old, what = self.held[place], f"{type(self).__name__}: parameter {index}"
        self.held[place] = _as_parameter(what, parameter)
        tracing.changed(old)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.held)


def _as_parameter(what: str, value: object) -> Parameter:
    """Return a tensor as a parameter.

    Raises:
        ArgumentError: if it is not a tensor.
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{what}: expected a tensor, got {type(value).__name__}\n  try: Parameter(value)"
        )
    return value if isinstance(value, Parameter) else Parameter(value)

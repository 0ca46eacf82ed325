"""Layers that are neither norm nor activation, and containers."""

from __future__ import annotations

import operator
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from needle import init, ops
from needle.backend.axes import axes_of, normalise_index, whole
from needle.errors import (
    ArgumentError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
    unknown,
)
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_sizes
from needle.tensor import Parameter, Tensor


class Identity(Module):
    """Return x as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Linear(Module):
    """Affine map: ``x @ weight + bias``.

    Shapes:   x [..., in_features] -> [..., out_features]

    The weight is drawn first, U(+-sqrt(6 / in_features)); then the bias, U(+-sqrt(6 /
    out_features)), both as in the course.

    Attributes:
        weight: [in_features, out_features].
        bias: [1, out_features], or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(
            init.kaiming_uniform(in_features, out_features, device=device, dtype=dtype)
        )
        self.bias: Tensor | None = None
        if bias:
            drawn = init.kaiming_uniform(out_features, 1, device=device, dtype=dtype)
            self.bias = Parameter(drawn.reshape((1, out_features)))

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        text = f"{self.in_features}, {self.out_features}"
        return text if self.bias is not None else text + ", bias=False"


class Embedding(Module):
    """Look up rows of a table, drawn from N(0, 1). Ids may be floats with whole values.

    They come as a tensor, an array or a list, and do not count from the end. The row
    ``padding_idx`` starts as zeros and gets no gradient here.

    Shapes:   x [...] -> [..., embedding_dim]
    Raises:   IndexRangeError naming the first id that is not in [0, num_embeddings), or for a
              padding_idx that is no row

    Args:
        num_embeddings: number of rows.
        embedding_dim: size of a row.
        device: where the table is; the default device for None.
        dtype: its element type.
        padding_idx: the id of what fills up short sequences; from the end if negative.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: Any = None,
        dtype: Any = "float32",
        *,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        drawn = init.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.padding_idx: int | None = None
        if padding_idx is not None:
            place = whole("Embedding: padding_idx", padding_idx)
            self.padding_idx = normalise_index(place, num_embeddings, 0)
            drawn[self.padding_idx] = 0.0
        self.weight = Parameter(drawn)

    def forward(self, x: Any) -> Tensor:
        out = ops.embedding(self.weight, x)
        if self.padding_idx is None:
            return out
        ids = x if isinstance(x, Tensor) else Tensor(np.asarray(x), device=out.device)
        padding = ops.unsqueeze(ops.equal(ids, self.padding_idx), -1)
        return ops.where(padding, out.detach(), out)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else text + f", padding_idx={self.padding_idx}"


class Flatten(Module):
    """Keep the first axis and join the others.

    Raises:   ShapeError if x has no axis
    """

    def forward(self, x: Tensor) -> Tensor:
        if not shape_of(x):
            raise explain(
                ShapeError, "Flatten", "x has no axis", [("x", x)], "x is [n, ...]"
            )  # fmt: skip
        size = 1
        for n in x.shape[1:]:
            size *= n
        return ops.reshape(x, (x.shape[0], size))


class Unflatten(Module):
    """Take an axis apart into several; one of the sizes may be -1. See ``ops.unflatten``."""

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        super().__init__()
        check_sizes(self, axis=axis)
        self.axis, self.sizes = axis, axes_of(sizes)

    def forward(self, x: Tensor) -> Tensor:
        return ops.unflatten(x, self.axis, self.sizes)

    def extra_repr(self) -> str:
        return f"{self.axis}, {self.sizes}"


class Dropout(Module):
    """In training, set elements to zero with probability p and scale the others by 1 / (1 - p).

    One uniform draw of x's shape per call, also for p = 0; an element stays where it is <= 1 - p.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not isinstance(p, Real) or not 0.0 <= float(p) < 1.0:
            raise OptionError(f"Dropout: p={p!r} is no probability in [0, 1)")
        self.p: float = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """In training, set whole channels to zero with probability p, and scale the others.

    Shapes:   x [n, c, *spatial] -> the same
    Raises:   ShapeError if x has fewer than 2 axes
    """

    def forward(self, x: Tensor) -> Tensor:
        if len(shape_of(x)) < 2:
            raise explain(
                ShapeError, "Dropout2d", f"x has {x.ndim} axes", [("x", x)], "x is [n, c, *spatial]"
            )
        if not self.training:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return x * ops.dropout(init.ones(*shape, device=x.device, dtype=x.dtype), self.p)


class Residual(Module):
    """Add a module's input to its output: ``fn(x) + x``."""

    def __init__(self, fn: Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class Held(tuple[Module, ...]):
    """The modules of a container. Called it is ``Module.modules``: the course has it as a tuple."""

    owner: Module

    def __call__(self) -> Iterator[Module]:
        return Module.modules(self.owner)


_C = TypeVar("_C", bound="Container")


def _check_module(what: str, module: Any) -> None:
    """Check that something can be called like a module.

    Raises:
        ArgumentError: if it cannot, or is a class.
    """
    if isinstance(module, type):
        name = module.__name__
        raise ArgumentError(f"{what} is the class {name}, not a module\n  try: {name}(...)")
    if not callable(module):
        advice = ""
        if isinstance(module, (list, tuple)):
            advice = "\n  try: Sequential(*modules), ModuleList(modules)"
        elif isinstance(module, Mapping):
            advice = "\n  try: Sequential(*modules.values()), ModuleDict(modules)"
        raise ArgumentError(f"{what} is a {type(module).__name__}, not a module{advice}")


class Container(Module):
    """Hold modules in order.

    Attributes:
        modules: the modules, a tuple; ``modules()`` yields the container and all below, as of any
            module.
    """

    inline = "modules"

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.modules = modules

    @property
    def modules(self) -> Held:
        """The modules, a tuple that can be called."""
        held = Held(self.__dict__["modules"])
        held.owner = self
        return held

    @modules.setter
    def modules(self, modules: Iterable[Module]) -> None:
        if not isinstance(modules, Iterable):
            raise ArgumentError(f"{type(self).__name__}: {modules!r:.60} are not several modules")
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
        """Put a module in the place of another one, or several in that of a slice."""
        modules = list(self)
        if isinstance(index, slice):
            modules[index] = list(module)
        else:
            modules[self._at(index)] = module
        self.modules = modules

    def __delitem__(self, index: int | slice) -> None:
        """Leave out a module, or those of a slice."""
        modules = list(self)
        del modules[index if isinstance(index, slice) else self._at(index)]
        self.modules = modules

    def __getitem__(self, index: int | slice) -> Any:
        """Return a module, or for a slice a container of the same modules."""
        modules = self.__dict__["modules"]
        return self._of(modules[index]) if isinstance(index, slice) else modules[self._at(index)]

    def __add__(self: _C, other: Iterable[Module]) -> _C:
        """Return a container of these modules, then others."""
        return self._of((*self, *other))

    def _of(self: _C, modules: Iterable[Module]) -> _C:
        """Return another container, of these modules."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.__dict__["modules"])

    def __iter__(self) -> Iterator[Module]:
        return iter(self.__dict__["modules"])

    def _at(self, index: int) -> int:
        try:
            index = operator.index(index)
        except TypeError:
            name = type(self).__name__
            raise ArgumentError(f"{name}: index {index!r:.60} is no whole number") from None
        size = len(self)
        if not -size <= index < size:
            name = type(self).__name__
            raise IndexRangeError(f"{name}: there is no module {index} of {size}")
        return index


class Sequential(Container):
    """Apply modules one after the other.

    Attributes:
        modules: the modules, a tuple; ``modules()`` yields the container and all below, as of any
            module.
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self.__dict__["modules"]:
            x = module(x)
        return x

    def _of(self, modules: Iterable[Module]) -> Any:
        return Sequential(*modules)


class ModuleList(Container):
    """Hold modules in a list; calling it is not defined."""

    def _of(self, modules: Iterable[Module]) -> Any:
        return ModuleList(modules)


class ModuleDict(Module):
    """Hold modules by name; calling it is not defined. Iterating gives the names."""

    inline = "table"

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.table: dict[str, Module] = {}
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules, or put them in the places of those of the same names."""
        if not isinstance(modules, (Mapping, ModuleDict)):
            raise ArgumentError(f"ModuleDict: {modules!r:.60} is no dict of modules")
        for name, module in modules.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        """Add a module, or put it in the place of that of its name."""
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"ModuleDict: {name!r} is no name: a text without dots")
        _check_module(f"ModuleDict: {name!r}", module)
        self.table[name] = module

    def __getitem__(self, name: str) -> Module:
        """Return a module by name."""
        return self.table[self._known(name)]

    def __delitem__(self, name: str) -> None:
        """Leave a module out."""
        del self.table[self._known(name)]

    def _known(self, name: str) -> str:
        if name not in self.table:
            raise unknown("ModuleDict", name, self.table)
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

    def values(self) -> ValuesView[Module]:
        """Return the modules."""
        return self.table.values()

    def items(self) -> ItemsView[str, Module]:
        """Return the names with their modules."""
        return self.table.items()

"""Module: a function with parameters, and operations on all of its parameters at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
)

from needle import executor, graph, tracing
from needle.checkpoint import note_buffers
from needle.devices import Device, cpu, cuda
from needle.dtype import DType
from needle.errors import ArgumentError, DataError, NeedleError, OptionError, explain
from needle.nn.loading import as_array, faults, mismatch
from needle.nn.registry import Registry, check_buffer, check_parameter
from needle.ops.core.operands import destination
from needle.ops.index.row_sparse import cleared, parts
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = ["Mismatch", "Module", "StateDict"]

_M = TypeVar("_M", bound="Module")
_P = ParamSpec("_P")
_R = TypeVar("_R", covariant=True)


class _HasForward(Protocol[_P, _R]):
    def forward(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...


class StateDict(dict[str, Any]):
    """Tensors by dotted name; a shared tensor appears once, under its first name.

    Attributes:
        aliases: maps every other name of a shared tensor to its first name.
        raw: the dtypes of tensors that a file has and Needle has not, which came as bytes.
    """

    def __init__(
        self, values: Mapping[str, Any] | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(values or {})
        self.aliases: dict[str, str] = dict(aliases or {})
        self.raw: dict[str, str] = {}


class Mismatch(NamedTuple):
    """The names that ``load_state_dict(strict=False)`` left out."""

    missing: list[str]
    unexpected: list[str]


class _Found(NamedTuple):
    name: str
    item: Tensor | Module
    saved: bool


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix and key else prefix or key


def search(value: object, name: str) -> Iterator[tuple[str, Parameter | Module]]:
    """Find parameters and modules in an attribute, through dicts, lists and tuples."""
    if isinstance(value, (Parameter, Module)):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from search(part, _join(name, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from search(part, _join(name, str(i)))


class Parameters(list[Parameter]):
    """The parameters of a module, as a list."""

    def __next__(self) -> NoReturn:
        raise ArgumentError(
            "next: parameters() is a list\n  try: next(iter(model.parameters())), or "
            "model.parameters()[0]"
        )


class Module(Registry):
    """Base of all layers and models. Subclasses define ``forward``.

    Parameters and modules are found in attributes, and in dicts, lists and tuples of them, in the
    order in which the attributes were set. A module need not call ``super().__init__()``. Only
    another parameter or None can replace a parameter, or a None that replaced one. Any other value
    raises an ArgumentError, because an optimizer would keep updating the old parameter, or never
    learn of the new one.

    Attributes:
        training: whether layers such as Dropout and BatchNorm1d behave as in training.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 2)
    ...     def forward(self, x):
    ...         return self.out(self.hidden(x).relu())
    >>> Net()(ndl.ones(3, 4)).shape
    (3, 2)
    >>> Net()
    Net()  58 parameters
      hidden: Linear(4, 8)  40 parameters
      out: Linear(8, 2)  18 parameters
    """

    training: bool = True
    inline: ClassVar[str] = ""
    """Attribute whose name is left out of dotted names (``0.weight``, not ``modules.0.weight``)."""
    _buffers: Mapping[str, bool] = MappingProxyType({})
    _vacant: tuple[str, ...] = ()
    """Attributes that held a parameter when None was assigned to them."""

    def __init__(self) -> None:
        self.training = True

    def __setattr__(self, name: str, value: object) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.assigns(self, name, value)
        old = self.__dict__.get(name)
        if old is not value and (name not in self._buffers or old is None or value is None):
            tracing.changed()
        if name in self._buffers:
            check_buffer(f"{type(self).__name__}.{name}", value)
            note_buffers(self.__dict__, (name,))
        elif isinstance(self.__dict__.get(name), Parameter):
            check_parameter(f"{type(self).__name__}.{name}", value)
            if value is None:
                object.__setattr__(self, "_vacant", (*self._vacant, name))
        elif name in self._vacant and self.__dict__[name] is None:
            check_parameter(f"{type(self).__name__}.{name}", value)
        object.__setattr__(self, name, value)
        if old is not None and old is not value and trace is None:
            tracing.replaced(old)

    def __delattr__(self, name: str) -> None:
        old = self.__dict__.get(name)
        object.__delattr__(self, name)
        tracing.changed(old)
        if name in self._vacant:
            object.__setattr__(self, "_vacant", tuple(x for x in self._vacant if x != name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's output; calling the module runs this method."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    if TYPE_CHECKING:  # a call has the types of forward

        @property
        def __call__(self: _HasForward[_P, _R]) -> Callable[_P, _R]: ...

    else:

        def __call__(self, *args, **kwargs):
            if self._buffers:
                note_buffers(self.__dict__, self._buffers)
            if tracing.active and (trace := tracing.current()) is not None:
                trace.calls(self)
            try:
                if self._hooks is not None:
                    return self._hooks.call(self, args, kwargs)
                return self.forward(*args, **kwargs)
            except NeedleError as error:
                self._name_operands(error)
                raise

    def _name_operands(self, error: NeedleError) -> None:
        """Add the names that parameters have in this module to the error's text."""
        if any(isinstance(x, Parameter) for _, x in error.operands):
            self.parameters()
            error.args = error.about([x for _, x in error.operands]).args

    # ---- parameters, buffers and modules ------------------------------------------

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Set an attribute that moves and is saved with the module, but is not learned.

        Args:
            name: name of the attribute. Assigning to it later keeps it a buffer.
            value: its tensor.
            persistent: whether ``state_dict`` contains it.

        Raises:
            OptionError: if the module has another attribute of that name, or the name has a dot.
            ArgumentError: if the value is neither a tensor nor None.

        >>> layer = nn.Identity()
        >>> layer.register_buffer("scale", Tensor([2.0], requires_grad=False))
        >>> list(layer.state_dict())
        ['scale']
        """
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(
                f"register_buffer: expected a name (a string without dots), got {name!r}"
            )
        if name not in self._buffers and getattr(self, name, None) is not None:
            raise OptionError(
                f"register_buffer: {type(self).__name__} already has an attribute {name!r}, "
                f"a {type(getattr(self, name)).__name__}"
            )
        check_buffer(f"{type(self).__name__}.{name}", value)
        self.__dict__.setdefault("_buffers", {})[name] = persistent
        setattr(self, name, value)

    def _contents(self, prefix: str = "", above: tuple[object, ...] = ()) -> Iterator[_Found]:
        """Yield all parameters, buffers and modules in order; shared ones under each name."""
        above = (*above, self)
        for key, value in self.__dict__.items():
            name = _join(prefix, "" if key == self.inline else key)
            if key in self._buffers:
                if value is not None:
                    yield _Found(name, value, self._buffers[key])
                continue
            for path, item in search(value, name):
                if not isinstance(item, Module):
                    yield _Found(path, item, True)
                elif not any(item is module for module in above):
                    yield _Found(path, item, True)
                    yield from item._contents(path, above)

    def _found(self, unique: bool = True, recurse: bool = True) -> Iterator[_Found]:
        """Yield what ``_contents`` yields: once each, and without the modules below."""
        seen: set[int] = set()
        for found in self._contents() if recurse else self._own():
            if not unique or id(found.item) not in seen:
                seen.add(id(found.item))
                yield found

    def _own(self) -> Iterator[_Found]:
        for key, value in self.__dict__.items():
            if key in self._buffers:
                if value is not None:
                    yield _Found(key, value, self._buffers[key])
                continue
            for name, item in search(value, "" if key == self.inline else key):
                yield _Found(name, item, True)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter once, with its dotted name. Errors show this name from then on.

        Args:
            prefix: what to write before each name, and a dot.
            recurse: whether to look into the modules below.
            remove_duplicate: whether to yield a shared parameter under its first name only.

        >>> [(name, p.shape) for name, p in nn.Linear(3, 2).named_parameters()]
        [('weight', (3, 2)), ('bias', (1, 2))]
        """
        for name, item, _ in self._found(remove_duplicate, recurse):
            if isinstance(item, Parameter):
                if item.name is None or name.endswith("." + item.name):
                    item.name = name
                yield _join(prefix, name), item

    def parameters(self, recurse: bool = True) -> list[Parameter]:
        """Return every parameter once, in the order in which the attributes were set.

        It is a list: ``next(iter(model.parameters()))`` is the first one.

        Args:
            recurse: whether to look into the modules below.
        """
        return Parameters(item for _, item in self.named_parameters("", recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield every buffer once, with its dotted name. See ``named_parameters``."""
        for name, item, _ in self._found(remove_duplicate, recurse):
            if not isinstance(item, (Parameter, Module)):
                yield _join(prefix, name), item

    def buffers(self, recurse: bool = True) -> list[Tensor]:
        """Return every buffer once."""
        return [item for _, item in self.named_buffers("", recurse)]

    def named_modules(
        self, *, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module (under the name "") and every module below once."""
        yield prefix, self
        for name, item, _ in self._found(remove_duplicate):
            if isinstance(item, Module):
                yield _join(prefix, name), item

    def modules(self) -> Iterator[Module]:
        """Yield this module and every module below once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules directly below, once each."""
        for name, item, _ in self._found(recurse=False):
            if isinstance(item, Module) and item is not self:
                yield name, item

    def children(self) -> list[Module]:
        """Return the modules directly below."""
        return [module for _, module in self.named_children()]

    def _children(self) -> list[Module]:
        return [module for name, module in self.named_modules() if name]

    def num_parameters(self) -> int:
        """Return the total number of elements of all parameters.

        >>> nn.Linear(3, 2).num_parameters()
        8
        """
        return sum(p.size for p in self.parameters())

    # ---- all at once -----------------------------------------------------------

    def apply(self: _M, function: Callable[[Module], object]) -> _M:
        """Call a function with this module and every module below; return this module.

        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
        >>> model.apply(lambda layer: print(type(layer).__name__)) is model
        Sequential
        Linear
        Dropout
        True
        """
        for _, module in list(self.named_modules()):
            function(module)
        return self

    def train(self: _M, mode: bool = True) -> _M:
        """Switch this module and all modules below to training mode; return this module."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self: _M) -> _M:
        """Switch this module and all modules below to evaluation mode; return this module."""
        return self.train(False)

    def requires_grad_(self: _M, requires_grad: bool = True) -> _M:
        """Set ``requires_grad`` of all parameters (False freezes them); return this module."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters; with ``set_to_none=False`` they become zeros."""
        for p in self.parameters():
            p.grad = None if set_to_none or p.grad is None else cleared(p.grad)

    def to(
        self: _M,
        target: DeviceLike | DTypeLike | Tensor = None,
        dtype: DTypeLike = None,
        *,
        device: DeviceLike = None,
        non_blocking: bool = False,
        memory_format: object = None,
    ) -> _M:
        """Move parameters and buffers to a device, or cast floating ones to a floating dtype.

        The tensors stay the same objects, so you can create the optimizer before or after.
        ``non_blocking`` and ``memory_format`` change nothing: they name no values.

        Raises:
            DataError: for a dtype that is not floating.
            OptionError: if a device or a dtype is given twice.

        >>> nn.Linear(3, 2).to("float64").weight.dtype
        needle.float64
        """
        if memory_format is not None and target is device is dtype is None:
            return self
        where, kind = destination(target, device, dtype)
        if kind is not None and not kind.is_floating:
            raise DataError(f"to: expected a floating dtype for parameters, got {kind}")
        for _, item, _ in self._found():
            if isinstance(item, Tensor):
                _convert(item, where, kind)
                for part in parts(item.grad):
                    _convert(part, where, kind)
        return self

    def float(self: _M) -> _M:
        """Cast floating parameters and buffers to float32. See ``to``."""
        return self.to("float32")

    def double(self: _M) -> _M:
        """Cast floating parameters and buffers to float64. See ``to``."""
        return self.to("float64")

    def half(self: _M) -> _M:
        """Cast floating parameters and buffers to float16. See ``to``."""
        return self.to("float16")

    def bfloat16(self: _M) -> _M:
        """Cast floating parameters and buffers to bfloat16. See ``to``."""
        return self.to("bfloat16")

    def cpu(self: _M) -> _M:
        """Move to the CPU."""
        return self.to(cpu())

    def cuda(self: _M, device: DeviceLike = None) -> _M:
        """Move to a CUDA device: its number or name; the first for None."""
        number = 0 if device is None else device
        return self.to(cuda(number) if isinstance(number, int) else number)

    def save(self, path: str | os.PathLike[str], *examples: Any) -> None:
        """Write what the module computes in evaluation mode, and its parameters, to one file.

        ``needle.load_program(path)`` runs it without the code of the module. The program is for
        inputs of the shapes and dtypes of ``examples``. See ``io.save_program``.
        """
        programs: Any = import_module("needle.io.programs")  # of a room above
        programs.save_module(self, path, examples)

    # ---- state -------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return parameters and persistent buffers by name, as they are now.

        Later optimizer steps do not change them. A shared parameter appears once, under its first
        name; ``.aliases`` has its other names.

        Raises:
            DataError: if two tensors have the same name.

        >>> state = nn.Linear(3, 2).state_dict()
        >>> {name: x.shape for name, x in state.items()}
        {'weight': (3, 2), 'bias': (1, 2)}
        """
        state = StateDict()
        first: dict[int, str] = {}
        for name, item in self._saved():
            if id(item) in first:
                if first[id(item)] != name:
                    state.aliases[name] = first[id(item)]
            else:
                first[id(item)] = name
                state[name] = item.detach()
        return state

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of a state; shared tensors under each of their names."""
        taken: dict[str, Tensor] = {}
        for name, item, saved in self._contents():
            if isinstance(item, Module) or not saved:
                continue
            other = taken.setdefault(name, item)
            if other is not item:
                raise explain(
                    DataError, "state_dict", f"two tensors have the name {name!r}",
                    [("one", other), ("other", item)], "every tensor of a model has its own name",
                    "other keys: 1 and '1' give the same name, and so do 'a.b' and b in a",
                )  # fmt: skip
            yield name, item

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> Mismatch:
        """Set all parameters and buffers, or none of them if there is an error.

        Args:
            state: arrays by name: tensors (also PyTorch's) or anything that ``Tensor`` accepts.
                They are copied, and cast to the floating dtype of the module.
            strict: whether missing and unexpected names are errors.

        Returns:
            The missing and the unexpected names.

        Raises:
            ArgumentError: if the state is not a dict.
            DataError: listing every missing and unexpected name and every wrong shape or dtype;
                or if two tensors of the module have the same name.

        >>> model, other = nn.Linear(3, 2), nn.Linear(3, 2)
        >>> model.load_state_dict(other.state_dict())
        Mismatch(missing=[], unexpected=[])
        """
        try:
            given = dict(state)
        except (TypeError, ValueError):
            problem = f"load_state_dict: expected a dict, got {state!r:.60}"
            raise ArgumentError(problem) from None
        if odd := [name for name in given if not isinstance(name, str)]:
            raise ArgumentError(f"load_state_dict: the name {odd[0]!r:.60} is not a str")
        for alias, name in getattr(state, "aliases", {}).items():
            if name in state:
                given.setdefault(alias, state[name])
        targets: dict[int, tuple[Tensor, list[str]]] = {}
        for name, item in self._saved():
            targets.setdefault(id(item), (item, []))[1].append(name)
        known = {name for _, names in targets.values() for name in names}
        unexpected = [name for name in given if name not in known]
        missing: list[str] = []
        wrong: list[str] = []
        new = []
        for item, names in targets.values():
            found = [name for name in names if name in given]
            if not found:
                missing.append(names[0])
                continue
            try:
                value = as_array(given[found[0]], item)
                wrong += faults(found, value, item, given)
            except (NeedleError, TypeError, ValueError, BufferError, RuntimeError) as error:
                wrong.append(f"{found[0]}: {str(error).partition(chr(10))[0]}")
            else:
                new.append((item, value))
        if wrong or (strict and (missing or unexpected)):
            raise mismatch(type(self).__name__, missing, unexpected, wrong, known)
        for item, value in new:
            graph.set_array(item, value.astype(item.dtype))
        return Mismatch(missing, unexpected)

    # ---- text --------------------------------------------------------------------

    def extra_repr(self) -> str:
        """Return the settings that ``repr`` shows after the class name."""
        return ""

    def __repr__(self) -> str:
        return "\n".join(self._lines("", "", ()))

    def _lines(self, name: str, indent: str, above: tuple[object, ...]) -> Iterator[str]:
        count = self.num_parameters()
        line = f"{indent}{name}{': ' if name else ''}{type(self).__name__}({self.extra_repr()})"
        yield f"{line}  {count:,} parameters" if count else line
        for child_name, child in self.named_children():
            if not any(child is module for module in above):
                yield from child._lines(child_name, indent + "  ", (*above, self))


def _convert(tensor: Tensor, where: Device | None, kind: DType | None) -> None:
    data = executor.primal_array(tensor)
    if where is not None:
        data = data.to(where)
    elif kind is None or not data.dtype.is_floating or data.dtype is kind:
        return
    cast = kind is not None and data.dtype.is_floating
    graph.set_array(tensor, data.astype(kind) if cast else data)

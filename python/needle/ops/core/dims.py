"""PyTorch's ``dim=`` and ``keepdim=`` beside ``axis=`` and ``keepdims=``: one mechanism for all.

``axis=`` speaks NumPy, ``dim=`` speaks PyTorch: a call with one of PyTorch's names means what it
means there, so ``x.max(dim=1)`` gives values and indices, and ``x.var(dim=0)`` divides by n - 1
(meanings.py).

``spoken`` returns a function with the same parameters and PyTorch's names for some of them. A call
without these names goes on to the function it was given. Absent arguments are ``...``, because
None is a value: all axes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from needle.errors import ArgumentError, OptionError

if TYPE_CHECKING:
    from needle.typing import Tensor

NAMES: dict[str, tuple[str, ...]] = {"axis": ("dim",), "axes": ("dim",), "keepdims": ("keepdim",)}
"""PyTorch's names of parameters."""

OWN_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "arange": {"stop": ("end",)},
    "chunk": {"pieces": ("chunks",)},
    "diag": {"k": ("diagonal",)},
    "diag_embed": {"k": ("offset",), "axis1": ("dim1",), "axis2": ("dim2",)},
    "diagonal": {"k": ("offset",), "axis1": ("dim1",), "axis2": ("dim2",)},
    "flip": {"axes": ("dims",)},
    "flatten": {"start": ("start_dim",), "stop": ("end_dim",)},
    "index_add": {"slices": ("source",), "": ("alpha",)},
    "index_copy": {"slices": ("source",)},
    "linspace": {"num": ("steps",), "stop": ("end",)},
    "median": {"": ("keepdim",)},
    "moveaxis": {"target": ("destination",)},
    "nanmedian": {"": ("keepdim",)},
    "norm": {"ord": ("p",)},
    "normalize": {"ord": ("p",)},
    "permute": {"": ("dims",)},
    "repeat_interleave": {"counts": ("repeats",)},
    "roll": {"axes": ("dims",)},
    "rot90": {"axes": ("dims",)},
    "scatter": {"values": ("src", "value")},
    "scatter_add": {"updates": ("src",)},
    "scatter_reduce": {"values": ("src",)},
    "split": {"axis": (), "": ("dim", "split_size", "split_size_or_sections")},
    "std": {"": ("unbiased",)},
    "swapaxes": {"axis1": ("dim0",), "axis2": ("dim1",)},
    "tensordot": {"axes": ("dims",)},
    "transpose": {"": ("dim0", "dim1")},
    "tril": {"k": ("diagonal",)},
    "triu": {"k": ("diagonal",)},
    "unfold": {"axis": ("dimension",)},
    "var": {"": ("unbiased",)},
}
"""The names that only some functions have; "" is for parameters that only PyTorch has."""


class Extremes(NamedTuple):
    """What PyTorch's functions along a dim return."""

    values: Tensor
    indices: Tensor


Meaning = Callable[[Callable[..., Any], dict[str, Any]], Any]

MEANINGS: dict[str, tuple[Meaning, str]] = {}
"""By function: what a call with PyTorch's names means, where that differs; and in words."""


def means(*names: str, words: str) -> Callable[[Meaning], Meaning]:
    """Return a decorator: the function says what PyTorch's names mean for these functions."""

    def keep(meaning: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, (meaning, words)))
        return meaning

    return keep


def names_of(name: str, parameters: Container[str]) -> dict[str, tuple[str, ...]]:
    """Return PyTorch's names by parameter, for a function of this name."""
    found = {p: names for p, names in NAMES.items() if p in parameters}
    if "axes" in found:
        found.pop("axis", None)  # two names of one argument already
    found |= {p: names for p, names in OWN_NAMES.get(name, {}).items() if not p or p in parameters}
    known = {p: tuple(n for n in names if n not in parameters) for p, names in found.items()}
    return {p: names for p, names in known.items() if names}


class At(NamedTuple):
    """The name of a function, PyTorch's names of its parameters, and the parameters."""

    name: str
    names: dict[str, tuple[str, ...]]
    parameters: Mapping[str, inspect.Parameter]


def reads(function: Any, name: str) -> At:
    """Mark a function that has PyTorch's names as parameters itself, and return the mark."""
    parameters = inspect.signature(function).parameters
    own = {n: p for n, p in parameters.items() if p.default is not ...}
    function.at = At(name, names_of(name, own), own)
    found: At = function.at
    return found


def spoken(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Return a function that understands PyTorch's names too; itself if it has none."""
    name = name or function.__name__
    code = getattr(function, "__code__", None)
    if code is None or (name not in OWN_NAMES and not NAMES.keys() & code.co_varnames):
        return function  # most have no such name: reading their signatures would take long
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = names_of(name, signature.parameters)
    if not names:
        return function
    marked = {p.name: p for p in parameters if p.name in names and _marks(p)}
    more = [n for group in names.values() for n in group]
    scope: dict[str, Any] = {f"_{n}": p.default for n, p in marked.items()}
    scope |= {"__name__": function.__module__, "_inner": function, "_speak": speak}
    scope["_at"] = At(name, names, signature.parameters)
    exec(_text(function.__name__, parameters, marked, more), scope)  # as dataclasses do
    out: Any = scope[function.__name__]
    before = [p for p in parameters if p.kind < p.VAR_POSITIONAL]
    out.__defaults__ = _defaults(before, marked)
    named = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    kept = {p.name: ... if p.name in marked else p.default for p in named}
    out.__kwdefaults__ = {**kept, **dict.fromkeys(more, ...)}
    out.__wrapped__, out.__qualname__ = function, function.__qualname__
    out.__module__, out.at = function.__module__, scope["_at"]
    out.__annotations__ = dict(function.__annotations__)
    out.__doc__ = documented(inspect.getdoc(function) or "", name, more)
    shown = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=...) for n in more]
    out.__signature__ = signature.replace(parameters=[*parameters, *shown])
    return out


def _marks(parameter: inspect.Parameter) -> bool:
    """Return whether ``...`` takes the place of the default: None and False mean absent already."""
    return parameter.default is not None and parameter.default is not False


def _defaults(
    before: list[inspect.Parameter], marked: dict[str, inspect.Parameter]
) -> tuple[object, ...] | None:
    """Return defaults for positional parameters: ``...`` for the marked ones, and after them."""
    found: list[object] = []
    for p in before:
        if p.name in marked or (found and p.default is p.empty):
            found.append(...)
        elif p.default is not p.empty:
            found.append(p.default)
    return tuple(found) or None


def _text(
    title: str,
    parameters: list[inspect.Parameter],
    marked: dict[str, inspect.Parameter],
    more: list[str],
) -> str:
    """Return the source of a function: a call of the inner one, or of ``speak``."""
    before = [p for p in parameters if p.kind < p.VAR_POSITIONAL]
    star = [f"*{p.name}" for p in parameters if p.kind == p.VAR_POSITIONAL]
    named = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    first = next((i for i, p in enumerate(before) if p.name in marked), len(before))
    needed = [p.name for p in before[first:] if p.default is p.empty]

    def value(n: str) -> str:
        return f"_{n} if {n} is ... else {n}" if n in marked and n not in needed else n

    passed = [*[value(p.name) for p in before], *star, *[f"{n}={value(n)}" for n in named]]
    heads = [p.name for p in before]
    if alone := sum(p.kind == p.POSITIONAL_ONLY for p in before):
        heads.insert(alone, "/")
    head = ", ".join([*heads, *(star or "*"), *named, *more])
    absent = " and ".join([f"{n} is ..." for n in more] + [f"{n} is not ..." for n in needed])
    own = ", ".join(
        f"{p.name!r}: {p.name}{' or ...' if p.kind == p.VAR_POSITIONAL else ''}" for p in parameters
    )
    other = ", ".join(f"{n!r}: {n}" for n in more)
    return (
        f"def {title}({head}):\n"
        f"    if {absent}:\n"
        f"        return _inner({', '.join(passed)})\n"
        f"    return _speak(_inner, _at, {{{own}}}, {{{other}}})\n"
    )


def speak(function: Callable[..., Any], at: At, own: dict[str, Any], other: dict[str, Any]) -> Any:
    """Call a function, given arguments by its own names and by PyTorch's; ``...`` are absent.

    Raises:
        OptionError: if an argument is given by two names.
        ArgumentError: if one is missing.
    """
    name, names, parameters = at
    unset = {n: ... if n in names and _marks(p) else p.default for n, p in parameters.items()}
    given = {n: v for n, v in own.items() if v is not ... and v is not unset[n]}
    other = {n: v for n, v in other.items() if v is not ...}
    speaks = bool(other)
    for parameter, group in names.items():
        twins = [parameter, "axis"] if parameter == "axes" else [parameter]
        for n in (n for n in group if n in other and parameter):
            _check_once(name, n, other[n], {t: given[t] for t in twins if t in given})
            if isinstance(other[n], bool) and parameter in ("axis", "axes"):
                raise ArgumentError(f"{name}: {n} is {other[n]}, not an integer")
            given[parameter] = other.pop(n)
    for n in (n for n, p in parameters.items() if p.kind == p.VAR_POSITIONAL):
        _check_once(name, next(iter(other), "dims"), "...", {n: given[n]} if n in given else {})
        parameters = {m: p for m, p in parameters.items() if m != n}
    lacking = [n for n, p in parameters.items() if p.default is p.empty and n not in given]
    if lacking:
        raise ArgumentError(f"{name}: missing the argument {' and '.join(map(repr, lacking))}")
    meaning = MEANINGS.get(name) if speaks else None
    if meaning is None:
        alone = [n for n, p in parameters.items() if p.kind == p.POSITIONAL_ONLY and n in given]
        return function(*[given.pop(n) for n in alone], **given, **other)
    if "axis" in given and "axes" in parameters:
        raise OptionError(
            f"{name}: axis={given['axis']!r:.60} speaks NumPy, the other arguments speak PyTorch\n"
            "  try: dim= and keepdim=, or axis= and keepdims="
        )
    return meaning[0](function, given | other)


def _check_once(
    name: str,
    other: str,
    value: object,
    given: dict[str, object],
) -> None:
    """Raise OptionError if a parameter has a value already."""
    for own, first in given.items():
        raise OptionError(
            f"{name}: {own}={first!r:.60} and {other}={value!r:.60} are two names of one argument"
        )


def documented(text: str, name: str, more: list[str]) -> str:
    """Return a docstring with one sentence about PyTorch's names."""
    known = [f"``{n}=``" for n in more]
    listed = ", ".join(known[:-1]) + (" and " if known[1:] else "") + known[-1]
    words = f": {MEANINGS[name][1]}" if name in MEANINGS else ", and mean the same"
    verb = "speak PyTorch"
    if not known[1:]:
        verb, words = "speaks PyTorch", words.replace("and mean", "and means")
    first, gap, rest = text.partition("\n\n")
    return f"{first}\n\n{listed} {verb}{words}.{gap}{rest}"


def speak_all(scope: dict[str, Any], names: set[str]) -> None:
    """Let functions of a module understand PyTorch's names."""
    for name in names:
        function = scope[name]
        if name[0] != "_" and inspect.isfunction(function) and not hasattr(function, "at"):
            scope[name] = spoken(function, name)


def speak_methods(cls: type) -> None:
    """Let the methods of a class understand PyTorch's names."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and name[0] != "_" and not hasattr(method, "at"):
            setattr(cls, name, spoken(method, name))


def speak_layers(scope: dict[str, Any]) -> None:
    """Let the classes of a module understand PyTorch's names when they are called."""
    for name, cls in list(scope.items()):
        if not inspect.isclass(cls) or name.startswith("_"):
            continue
        own: Any = cls.__init__
        function: Any = own if hasattr(own, "at") else spoken(own, name)
        if hasattr(function, "at"):
            cls.__init__ = function  # type: ignore[method-assign]
            cls.__doc__ = documented(inspect.getdoc(cls) or "", name, _torch_names(function.at))


def _torch_names(at: At) -> list[str]:
    return [n for group in at.names.values() for n in group]

"""What every public docstring says: one sentence; shapes, dtypes and errors, and that it is true.

Public is what has no underscore and is no part of the machine room (``INSIDE``). Of ops the samples
tell what happens: which errors they raise, in which shapes and dtypes results come.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from typing import Any

import pytest
from looped import looped

import needle as ndl
from needle import errors, executor, ops
from needle.testing.checks import cases

INSIDE = ("backend", "reference", "executor", "reverse", "forward", "graph", "core", "nancheck")
ABSTRACT = {"NotImplementedError", "AssertionError", "NeedleError", "None"}
"""Exceptions that tell a developer of something missing."""


def modules() -> list[Any]:
    names = [info.name for info in pkgutil.walk_packages(ndl.__path__, "needle.")]
    rooms = [name for name in names if name.split(".")[1] not in INSIDE and "._" not in name]
    return [importlib.import_module(name) for name in rooms if not name.endswith("__main__")]


def things() -> dict[str, tuple[Any, str]]:
    """Return public functions, classes and their methods, each with all that documents it."""
    found: dict[str, tuple[Any, str]] = {}
    for module in modules():
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            place = f"{module.__name__.removeprefix('needle.')}.{name}"
            if inspect.isfunction(value):
                found[place] = value, inspect.getdoc(value) or ""
            elif inspect.isclass(value):
                found[place] = value, value.__doc__ or ""
                found.update(members(value, place))
    return found


def members(cls: type, place: str) -> dict[str, tuple[Any, str]]:
    found = {}
    whole = "\n".join(inspect.getdoc(base) or "" for base in cls.__mro__[:-1])
    for name, value in vars(cls).items():
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        found[f"{place}.{name}"] = function, f"{inspect.getdoc(getattr(cls, name)) or ''}\n{whole}"
    return found


THINGS = things()


# ---- the first sentence -------------------------------------------------------------


def complaint(text: str) -> str | None:
    """Return what is wrong with a first line."""
    if not text:
        return "no docstring"
    if not text.endswith("."):
        return "the first line is not one whole sentence"
    first = text.split()[0]
    if first in ("This", "Returns", "Computes", "Applies", "Takes", "Performs", "Gets", "Makes"):
        return "say what it does, imperative"
    return None


@looped("place", THINGS)
def test_the_first_line_is_a_sentence(place):
    first = THINGS[place][1].strip().partition("\n")[0]
    assert not complaint(first), f"{complaint(first)}: {first!r}"


def test_the_complaints():
    assert complaint("") and complaint("Add two tensors") and complaint("Returns the sum.")
    assert complaint("This function adds.") and not complaint("Add two tensors.")


@looped("op", ops.all_ops(), ids=lambda op: op.__name__)
def test_every_op_has_a_docstring_of_its_own(op):
    assert op.__doc__ not in {base.__doc__ for base in op.__mro__[1:]}


# ---- examples ----------------------------------------------------------------------

WITHOUT_EXAMPLE = {
    "LoadedProgram",
    "Mismatch", "StateDict", "Parameter", "missing", "replacing", "BatchTransform", "SourceBytes",
    "Tokenizer",
    "penn_treebank",
    "CIFAR10Dataset", "MNISTDataset", "read_cifar_binary", "read_cifar_pickle", "read_idx",
}  # fmt: skip
"""Results, base classes, and readers of data files that tests do not have."""


@pytest.mark.parametrize("module", [ndl.nn, ndl.optim, ndl.init, ndl.data, ndl.io])
def test_layers_optimizers_and_data_have_an_example(module):
    public = {n: x for n, x in vars(module).items() if callable(x) and not n.startswith("_")}
    ours = {n for n, x in public.items() if getattr(x, "__module__", "").startswith("needle")}
    lacking = {n for n in ours if ">>> " not in (public[n].__doc__ or "")}
    assert ours and lacking <= WITHOUT_EXAMPLE


# ---- errors ------------------------------------------------------------------------


def raised(function: Any) -> set[str]:
    """Return the names of the exceptions that a function's own text raises."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # generated, or in the middle of a line
        return set()
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    return {name for name in (kind(call, function) for call in calls) if name} - ABSTRACT


def kind(expression: ast.expr, function: Any) -> str | None:
    """Return the class of a raised expression; None where it is one that was caught."""
    if not isinstance(expression, ast.Call):
        return None
    called = expression.func
    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
    value = function.__globals__.get(name)
    if value is errors.explain:
        return kind(expression.args[0], function)
    if inspect.isfunction(value):
        return str(value.__annotations__.get("return"))
    return name if isinstance(value, type) else None


RAISING = {
    place: names
    for place, (thing, _) in THINGS.items()
    if inspect.isfunction(thing) and (names := raised(thing))
}


@looped("place", RAISING)
def test_what_a_function_raises_is_documented(place):
    function, text = THINGS[place]
    for other in re.findall(r"See ``(\w+)``", text):
        text += inspect.getdoc(function.__globals__.get(other)) or ""
    missing = {name for name in RAISING[place] if name not in text}
    assert not missing, f"{place} raises {missing}: say when, under Raises"


def test_raises_are_found():
    assert raised(ops.cross_entropy) == {"OptionError"}
    assert len(RAISING) > 50


OPS = {op.__name__: op for op in ops.all_ops()}


def with_references(text: str) -> str:
    """Return a docstring, and those of the ops that it refers to: ``Raises: as MaxPool``."""
    others = re.findall(r"Raises: +as `*(\w+)", text)
    return "\n".join([text, *(with_references(OPS[other].__doc__) for other in others)])


@looped("name", OPS)
def test_errors_of_samples_are_documented(name):
    text = with_references(OPS[name].__doc__)
    expected = {case.sample.raises.__name__ for case in cases(OPS[name], raising=True)}
    missing = {error for error in expected if error not in text}
    assert not missing, f"{name} raises {missing}: say when, under Raises"


# ---- shapes and dtypes -------------------------------------------------------------

PART = re.compile(r"((?:\w+, )*\w+) \[([^\]]*)\]")
SIZE = re.compile(r"\*?\w+|\w*\.\.\.|\d+")


def section(text: str, name: str) -> str:
    """Return what a docstring says after ``Shapes:`` and the like."""
    found = re.search(rf"^( *){name}: +(.*(?:\n\1 +\S.*)*)", text, re.M)
    return " ".join(found[2].split()) if found else ""


def sizes(text: str) -> list[str] | None:
    """Return the sizes of ``[..., n]``; None where they are more than names."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return parts if all(SIZE.fullmatch(part) for part in parts) else None


def bind(pattern: list[str], shape: tuple[int, ...], known: dict[str, Any]) -> bool:
    """Say whether a shape is one of a pattern; note in ``known`` what names stand for.

    What leads (``...``) broadcasts, so it need not be the same everywhere.
    """
    many = [i for i, part in enumerate(pattern) if part.startswith("*") or part.endswith("...")]
    if len(many) > 1:
        return len(shape) >= len(pattern) - len(many)
    if not many and len(pattern) != len(shape):
        return False
    if many and len(shape) < len(pattern) - 1:
        return False
    at = many[0] if many else len(pattern)
    after = len(pattern) - at - 1 if many else 0
    single = [*zip(pattern[:at], shape[:at], strict=False)]
    single += [*zip(pattern[at + 1 :], shape[len(shape) - after :], strict=True)] if many else []
    named = [(part, (size,)) for part, size in single]
    if many and pattern[at] != "...":
        named.append((pattern[at], shape[at : len(shape) - after]))
    for part, value in named:
        wanted = (int(part),) if part.isdigit() else known.setdefault(part, value)
        if wanted != value:
            return False
    return True


def test_bind():
    known: dict[str, Any] = {}
    assert bind(["...", "n", "m"], (5, 2, 3), known) and known == {"n": (2,), "m": (3,)}
    assert not bind(["...", "m"], (4,), known) and bind(["n", "*out"], (2, 7, 8), known)
    assert known["*out"] == (7, 8) and not bind(["n"], (), {}) and not bind(["1"], (2,), {})
    assert bind([], (), {}) and not bind([], (1,), {})


def parts_of(result: Any) -> tuple[Any, ...]:
    value = executor.primal_array(result)
    return value if isinstance(value, tuple) else (value,)


def check_shapes(text: str, inputs: list[Any], outs: tuple[Any, ...]) -> int:
    """Compare what is said of shapes with those of a call. Return how many were compared."""
    before, _, after = text.partition("->")
    known: dict[str, Any] = {}
    patterns = [sizes(inner) for names, inner in PART.findall(before) for _ in names.split(", ")]
    compared = 0
    if len(patterns) == len(inputs):
        for pattern, x in zip(patterns, inputs, strict=True):
            assert pattern is None or bind(pattern, x.shape, known), f"{x.shape} is no {pattern}"
            compared += pattern is not None
    if after.strip().startswith("the same"):
        assert outs[0].shape == inputs[0].shape
        return compared + 1
    results = [sizes(inner) for inner in re.findall(r"\[([^\]]*)\]", after.partition(";")[0])]
    if len(results) == len(outs):
        for pattern, out in zip(results, outs, strict=True):
            assert pattern is None or bind(pattern, out.shape, known), f"{out.shape}: {pattern}"
            compared += pattern is not None
    return compared


def test_wrong_shapes_are_found():
    x, y = ndl.zeros(2, 3, device=ndl.cpu_numpy()), ndl.zeros(3, 2, device=ndl.cpu_numpy())
    assert check_shapes("x [n, m], y [m, n] -> [m, n]", [x, y], (y,)) == 3
    for said in ("[n, n] -> [m, n]", "[n, m] -> [n, m]", "[n, m] -> the same", "[n] -> [m]"):
        with pytest.raises(AssertionError):
            check_shapes(f"x {said}", [x], (y,))


@looped("name", OPS)
def test_shapes_and_dtypes_are_documented_and_true(name):
    op = OPS[name]
    text = section(op.__doc__, "Shapes")
    assert text, f"{name}: say under Shapes what comes of what"
    others = False
    for case in cases(op):
        inputs = case.inputs(case.dtypes[0], ndl.cpu_numpy())
        outs = parts_of(case.make()(*inputs))
        check_shapes(text, list(inputs), outs)
        if re.search(r"-> shape\b", text):
            assert outs[0].shape == tuple(case.make().shape)
        others |= any(out.dtype is not inputs[0].dtype for out in outs)
    refuses = any(case.sample.raises is errors.DtypeError for case in cases(op, raising=True))
    if others or refuses:
        assert section(op.__doc__, "Dtypes"), f"{name}: say under Dtypes what is taken and given"

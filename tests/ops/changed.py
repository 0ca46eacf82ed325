"""Which ops a change may have broken: from the files that differ to the ops made of them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import turns
from devices import DEVICES

import needle as ndl
from needle import backend, ops
from needle.ops.core.families import Elementwise
from needle.ops.core.op import Cast, Op
from needle.testing.checks import cases

PACKAGE = Path(ndl.__file__).resolve().parent
FIRST = DEVICES[0]
EVERY = "*"
"""Stands for every op, or every device."""

NOT_OPS = """
python/needle/nn/* python/needle/optim/* python/needle/data/* python/needle/io/*
python/needle/init/* python/needle/models/* python/needle/recipes/* python/needle/tools/*
python/needle/standard/* python/needle/cli.py python/needle/__main__.py python/needle/py.typed
python/needle/backend_* python/needle/course/arrays.py python/needle/course/autograd.py
python/needle/backend/dlpack.py
python/needle/backend/cuda/dlpack.py python/needle/ops/core/formula.py
python/needle/ops/core/update.py
src/cpu/elementwise/update.cc src/cpu/image/images.cc src/core/bind/augment.cc src/onednn/*
"""
"""Files of the package that no op is made of: their own tests always run whole."""

BASES = "python/needle/ops/core/op.py", "python/needle/ops/core/families.py"
"""Files of the base classes of all ops."""

AREAS = {
    "python/needle/backend/cuda/": "cuda-emu",
    "python/needle/backend/numpy": "cpu_numpy",
    "python/needle/": FIRST,
    "src/": FIRST,
    "tests/ops/changed.py": FIRST,
    "tests/ops/planned.py": FIRST,
}
"""On which device all ops are checked whole after a change below a path, if it is not one of the
files that single ops are made of."""


@functools.cache
def whole() -> dict[tuple[str, str], str]:
    """Return what is checked whole, and because of which file: ``{(op, device): file}``."""
    found: dict[tuple[str, str], str] = {}
    for file in sorted(turns.changed_files()):
        if not any(fnmatch(file, pattern) for pattern in NOT_OPS.split()):
            found |= {key: file for key in touched(file) if key not in found}
    return found


def is_whole(op: type[Op], device: str) -> bool:
    """Return whether an op takes all of its checks on a device."""
    return any((x, y) in whole() for x in (op.__name__, EVERY) for y in (device, EVERY))


def touched(file: str) -> Iterator[tuple[str, str]]:
    """Yield the ops, each with a device, that a change of a file may break."""
    if file in made_of():
        yield from made_of()[file]
        return
    names = None
    if file.endswith("functions.def"):
        names = of_rows()
    elif file.startswith("src/cpu/"):
        names = of_kernels(file)
    device = next((device for start, device in AREAS.items() if file.startswith(start)), None)
    if names is not None:
        yield from ((name, EVERY if file.endswith(".def") else FIRST) for name in names)
    elif device is not None:
        yield EVERY, device


# ---- the Python files of an op ---------------------------------------------------------


@functools.cache
def made_of() -> dict[str, set[tuple[str, str]]]:
    """Return per file the ops whose classes and overrides stand in it, or that take from it.

    An op is checked on all devices if its own file differs, else on the first.
    """
    own = {op: set(filter(None, map(place, [*op.__mro__, *overrides(op)])))
           for op in ops.all_ops()}  # fmt: skip
    with_ops = set().union(*own.values())
    found: dict[str, set[tuple[str, str]]] = {}
    for op, files in own.items():
        for file in files:
            found.setdefault(file, set()).add((op.__name__, EVERY))
        for file in taken(files, with_ops) - files:
            found.setdefault(file, set()).add((op.__name__, FIRST))
    return {file: made for file, made in found.items() if file not in BASES}


def taken(files: set[str], with_ops: set[str]) -> set[str]:
    """Return what files import from needle/ops, and what those of these without ops import."""
    near = {other for file in files for other in imports(file)}
    without = near - with_ops - files
    return near | taken(without, with_ops) if without else near


def overrides(op: type[Op]) -> Iterator[Any]:
    for device in ndl.all_devices():
        if override := backend.find_override(device.name, op.__name__):
            yield override


def place(thing: Any) -> str | None:
    """Return the file of a class or function of the package; None of base classes of all ops."""
    module = getattr(thing, "__module__", "")
    if not module.startswith("needle.") or module == "needle._core":
        return None
    path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").resolve()
    file = f"python/needle/{path.relative_to(PACKAGE).as_posix()}"
    return None if file in BASES and thing is not Cast else file


@functools.cache
def imports(file: str) -> frozenset[str]:
    """Return the files of needle/ops that a file takes something from."""
    text = (PACKAGE / file.removeprefix("python/needle/")).read_text()
    names = set(re.findall(r"^from needle\.ops\.(\w+\.\w+) import", text, re.MULTILINE))
    files = {f"python/needle/ops/{name.replace('.', '/')}.py" for name in names}
    return frozenset(files.difference(BASES))


# ---- rows of functions.def, and kernels ---------------------------------------------------


def of_rows() -> set[str] | None:
    """Return the elementwise ops whose row of functions.def differs; None if more than rows do."""
    lines = turns.git("diff", "-U0", turns.base(), "--", "src/common/functions.def").splitlines()
    edits = [line[1:].strip() for line in lines if re.match(r"[+-](?!\+\+|--)", line)]
    rows = [re.match(r"(?:UNARY|BINARY|TERNARY)\((\w+),", edit) for edit in edits]
    if any(edit and not row and not edit.startswith("//")
           for edit, row in zip(edits, rows, strict=True)):  # fmt: skip
        return None
    functions = {row[1] for row in rows if row}
    return {op.__name__ for op in ops.all_ops()
            if issubclass(op, Elementwise) and op.function in functions}  # fmt: skip


def of_kernels(file: str) -> set[str] | None:
    """Return the ops that call a kernel of a file of src/cpu; None if nothing is known of it."""
    plans = plans_of(file)
    return {op.__name__ for op in ops.all_ops() if plans & called(op)} or None


def plans_of(file: str) -> frozenset[str]:
    """Return the kernels that a file defines, else those of its folder."""
    if file in definitions():
        return definitions()[file]
    folder = Path(file).parent
    beside = [plans for path, plans in definitions().items() if Path(path).parent == folder]
    return frozenset().union(*beside)


@functools.cache
def definitions() -> dict[str, frozenset[str]]:
    """Return the kernels of each file: ``{"src/cpu/index/sort.cc": {"sort"}}``."""
    found = {}
    for path in (turns.ROOT / "src/cpu").glob("*/*.cc"):
        plans = re.findall(r"^const char\* plan_(\w+)\(", path.read_text(), re.MULTILINE)
        if plans and path.name != "table.cc":
            found[path.relative_to(turns.ROOT).as_posix()] = frozenset(plans)
    return found


class Recorder:
    """The native module, noting what is asked of it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.module, name)


def _note(asked: set[str], function: Any, *args: Any) -> Any:
    asked.add(function.__doc__.partition(":")[0])
    return function(*args)


@contextmanager
def overrides_noted(asked: set[str]) -> Iterator[None]:
    """Note the kernels of native overrides, which their first words say."""
    known = backend.contract._overrides
    before = dict(known)
    for key, function in before.items():
        if inspect.isbuiltin(function):
            known[key] = functools.partial(_note, asked, function)
    try:
        yield
    finally:
        known.update(before)


@functools.cache
def called(op: type[Op]) -> frozenset[str]:
    """Return the kernels that the samples of an op call, gradients included."""
    native = ndl.cpu().backend
    before = native.core
    native.core = recorder = Recorder(before)
    try:
        with ndl.config(fast="off"), overrides_noted(recorder.asked):
            for case in cases(op):
                out = case.make()(*case.inputs(case.dtypes[0], ndl.cpu()))
                parts = out.tuple() if isinstance(out.spec, tuple) else (out,)
                if case.has_gradient():
                    sum((x.sum() for x in parts if x.dtype.is_floating), 0.0).backward()
    finally:
        native.core = before
    return frozenset(recorder.asked)

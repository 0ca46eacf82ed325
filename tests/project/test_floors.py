"""The floors: imports go downwards only, and files make no circle. Also: who may read the
environment, and file sizes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from looped import looped

import needle

PACKAGE = Path(needle.__file__).parent
FLOORS = [
    {"config", "elsewhere", "errors", "dtype", "core", "scalar"},
    {"devices", "reference", "orders", "backend"},
    {"graph", "tree", "forward", "nancheck", "executor", "reverse", "tracing"},
    {"ops", "autograd", "checkpoint", "derivatives"},
    {
        "aliases",
        "compile",
        "gpus",
        "inplace",
        "inspection",
        "methods",
        "notebook",
        "pytorch",
        "standard",
        "static",
        "tensors",
        "typing",
        "value",
    },  # fmt: skip
    {"nn", "init", "optim", "data", "io"},
    {"train", "utils"},
    {
        "models",
        "recipes",
        "tools",
        "testing",
        "cli",
        "__main__",
        "backend_ndarray",
        "backend_selection",
        "course",
        "roof",
    },
]
"""Rooms (folders or modules) from the ground up. "roof" is needle/__init__.py."""

ARROWS = {
    ("config", "errors"), ("dtype", "errors"), ("core", "config"),
    ("backend", "devices"), ("backend", "reference"), ("reference", "devices"),
    ("reference", "orders"),
    ("forward", "graph"), ("forward", "tree"), ("executor", "graph"), ("executor", "forward"),
    ("executor", "nancheck"), ("executor", "tracing"), ("reverse", "nancheck"),
    ("reverse", "graph"), ("reverse", "executor"),
    ("tree", "graph"), ("autograd", "ops"), ("checkpoint", "ops"),
    ("derivatives", "autograd"), ("derivatives", "checkpoint"), ("derivatives", "ops"),
    ("pytorch", "tensors"), ("pytorch", "standard"), ("static", "compile"), ("static", "tensors"),
    ("tensors", "inplace"), ("aliases", "inspection"), ("pytorch", "inspection"),
    ("tensors", "aliases"), ("tensors", "inspection"),
    ("inspection", "notebook"),
    ("tensors", "methods"), ("tensors", "value"), ("typing", "tensors"), ("typing", "value"),
    ("methods", "aliases"), ("methods", "standard"), ("nn", "init"), ("nn", "optim"),
    ("io", "nn"), ("io", "optim"),
}  # fmt: skip
"""What a room may import on its own floor. The top floor may import anything."""

FILES = sorted(PACKAGE.rglob("*.py"))
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(dotted: str) -> str:
    """``needle.ops.core.op`` is in the room ``ops``; ``needle`` itself is the roof."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "roof"


def module_of(path: Path) -> str:
    parts = ("needle", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(dotted: str) -> bool:
    place = PACKAGE.joinpath(*dotted.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").exists() or dotted == "needle._core"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what ``ast.walk`` does, without what only type checkers read."""
    yield node
    for part in ast.iter_child_nodes(node):
        if not (_is_for_types(node) and part in node.body):
            yield from walk(part)


def _is_for_types(node: ast.AST) -> bool:
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Every import of a file that is carried out, as (line, dotted name below needle)."""
    found = []
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if is_module(name) else base) for name in names]
    return [(line, name) for line, name in found if name.split(".")[0] == "needle"]


LAZY = {
    "backend.cuda": "a GPU's files are loaded with the first GPU",
    "backend.loading": "devices are loaded when first asked for",
    "cli": "each command loads what it needs",
    "core": "the native module may be missing",
    "data.loader": "only worker processes need it",
    "data.samplers": "only a sampler with weights needs it",
    "inspection": "pictures are for notebooks only",
    "methods": "the standard's names, when a program asks for them",
    "nn.registry": "pictures are for notebooks only",
    "tools.doctor": "it reports whether the package can be imported",
    "tools.replay": "it reads the generator in the process that trains",
    "tools.run": "it times imports",
}
"""Files that import others inside functions, and why."""


@functools.cache
def late(path: Path) -> frozenset[int]:
    """Return the lines of a file's imports that are inside functions."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)]
    parts = [part for function in functions for part in ast.walk(function)]
    return frozenset(n.lineno for n in parts if isinstance(n, (ast.Import, ast.ImportFrom)))


def circle(files: list[Path], lazy: dict[str, str]) -> set[str]:
    """Return modules on circles of imports, and between them; those of lazy files count not."""
    left = {}
    for path in files:
        module = module_of(path)
        skipped = late(path) if module.removeprefix("needle.") in lazy else set()
        names = {name for line, name in imports(path) if line not in skipped}
        left[module] = names - {module, "needle"}
    while free := [name for name, below in left.items() if not below & left.keys()]:
        for name in free:
            del left[name]
    return {name for name in left if any(name in below for below in left.values())}


def test_files_make_no_circle():
    assert not circle(FILES, LAZY)


def test_a_circle_of_files_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("test_floors.PACKAGE", tmp_path)
    (tmp_path / "ops").mkdir()
    files = [tmp_path / "ops" / f"{name}.py" for name in "abc"]
    files[0].write_text("from needle.ops.b import f\n")
    files[1].write_text("def f():\n    from needle.ops import a\n")
    files[2].write_text("from needle.ops import a\n")
    assert circle(files, {}) == {"needle.ops.a", "needle.ops.b"}
    assert not circle(files, {"ops.b": "a reason"})


def test_imports_inside_functions_have_a_reason():
    found = {
        module_of(path).removeprefix("needle.")
        for path in FILES
        if any(line in late(path) for line, _ in imports(path))
    }
    assert found == LAZY.keys()


def complaint(importer: str, imported: str) -> str | None:
    if imported == "_core":
        return None if importer == "core" else "only core.py imports the native module"
    for room in (importer, imported):
        if room not in FLOOR_OF:
            return f"{room} stands on no floor; add it to FLOORS in tests/project/test_floors.py"
    top = len(FLOORS) - 1
    above, below = FLOOR_OF[importer], FLOOR_OF[imported]
    if above > below or importer == imported or above == top or (importer, imported) in ARROWS:
        return None
    return f"{importer} (floor {above}) must not import {imported} (floor {below})"


@looped("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    importer = room_of(module_of(path))
    wrong = [
        f"line {line}: {problem}"
        for line, name in imports(path)
        if (problem := complaint(importer, room_of(name)))
    ]
    assert not wrong, "\n".join(wrong)


def test_an_upward_import_is_found(tmp_path, monkeypatch):
    """The test above can fail: imports inside functions and relative ones count too."""
    assert complaint("ops", "tensors") and complaint("graph", "ops")
    assert complaint("ops", "autograd")
    assert complaint("backend", "roof") and complaint("optim", "nn")
    assert not complaint("tensors", "ops") and not complaint("autograd", "ops")
    (tmp_path / "ops").mkdir()
    (tmp_path / "tensors.py").touch()
    source = tmp_path / "ops" / "sample.py"
    source.write_text(
        "def f():\n    from needle import tensors\n    from ..tensors import Tensor\n"
    )
    monkeypatch.setattr("test_floors.PACKAGE", tmp_path)
    assert imports(source) == [(2, "needle.tensors"), (3, "needle.tensors")]


def test_floors_and_arrows_name_what_there_is():
    assert FLOOR_OF.keys() == {room_of(module_of(path)) for path in FILES}
    found = {(room_of(module_of(p)), room_of(name)) for p in FILES for _, name in imports(p)}
    assert found >= ARROWS


def test_arrows_stay_on_one_floor_and_make_no_circle():
    for importer, imported in ARROWS:
        assert FLOOR_OF[importer] == FLOOR_OF[imported]
    left = set(ARROWS)
    while left:
        free = {a for a in left if a[1] not in {importer for importer, _ in left}}
        assert free, f"a circle: {left}"
        left -= free


IN_WORKERS = ("engine", "samplers", "slots", "stream", "worker", "worker_process")
"""Modules of data/ that run in workers, on NumPy arrays."""


@looped("name", IN_WORKERS)
def test_workers_know_nothing_of_tensors(name):
    found = {room_of(imported) for _, imported in imports(PACKAGE / "data" / f"{name}.py")}
    assert not found & {"tensors", "graph", "executor", "autograd", "nn", "optim"}


def _reads_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")) or (
        isinstance(node, ast.alias) and node.name in ("environ", "getenv")
    )


@looped("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_config_reads_the_environment(path):
    if path.name == "config.py":
        return
    lines = [n.lineno for n in ast.walk(ast.parse(path.read_text())) if _reads_environment(n)]
    assert not lines, f"lines {lines}: NEEDLE_* variables are read in config.py alone"


@looped("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_readable(path):
    """Files stay near 500 lines; names in imports and ``__all__`` do not count."""
    names = r"^    (\w+|\"\w+\"(, \"\w+\")*),\n"
    lines = len(re.sub(names, "", path.read_text(), flags=re.M).splitlines())
    assert lines <= 560, f"{lines} lines: split it"

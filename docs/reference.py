"""The pages of the reference, made from docstrings: one per op, one per module with public names.

``pages`` is all that the site needs; docs/hooks.py hands what it returns to MkDocs.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

import needle as ndl
from needle import backend, errors, ops
from needle.backend import numpy as numpy_backend
from needle.ops.core.families import Composite, Elementwise, Multilinear
from needle.ops.core.op import Linear

SECTIONS = ("Shapes", "Dtypes", "Gradient", "Raises", "Source", "Modes")
"""What a docstring may say in a line of its own, ``Shapes:   x [...] -> the same``."""

PACKAGES = {
    "tensors": "Tensor",
    "pytorch": "PyTorch's names",
    "autograd": "Gradients",
    "derivatives": "Derivatives of any order",
    "checkpoint": "Regions with rules of their own",
    "ops": "Functions",
    "nn": "Layers and losses",
    "nn.functional": "Functions with PyTorch's arguments",
    "nn.init": "Filling tensors",
    "nn.utils": "Clipping, and parameters as one vector",
    "optim": "Optimizers",
    "optim.lr_scheduler": "PyTorch's schedulers",
    "init": "Initial values",
    "data": "Data",
    "utils": "Checkpoints and data under PyTorch's names",
    "io": "Files",
    "models": "Models",
    "recipes": "Recipes",
    "testing": "Tests for your own ops",
    "standard": "The array API standard's names",
    "standard.linalg": "Linear algebra",
    "config": "Settings",
    "devices": "Devices",
    "dtype": "Dtypes",
    "errors": "Exceptions",
    "backend": "The contract of a backend",
}
"""The modules with public names, in the order of the navigation."""

OPTIONS = {"Tensor": ["    options:", "      inherited_members: true"]}
"""Of mkdocstrings: most methods of a tensor are inherited."""

_LABEL = re.compile(rf"^({'|'.join(SECTIONS)}): +(\S.*)$")


# ---- docstrings ----------------------------------------------------------------------


def with_lists(text: str) -> str:
    """Return a docstring whose one-line sections (``Shapes: ...``) are a definition list.

    Examples (``>>> ...``) become blocks of code, and names of ops become links.
    """
    out: list[str] = []
    text = re.sub(r"^(>>> .*(?:\n.*\S.*)*)", r"```pycon\n\1\n```", text, flags=re.M)
    lines = re.sub(r"``(\w+)``", _link_to_op, text).splitlines()
    while lines:
        line = lines.pop(0)
        found = _LABEL.match(line)
        if found is None:
            out.append(line)
            continue
        said = [found[2]]
        while lines and lines[0].startswith("  ") and lines[0].strip():
            said.append(lines.pop(0).strip())
        out += ["", found[1], f":   {_said(found[1], ' '.join(said))}", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out))


def with_items(text: str) -> str:
    """Return a docstring whose indented sections (``Args:``) are definition lists too.

    mkdocstrings does this for what it finds in a file; ops, and functions that other functions
    made, need it here.
    """

    def listed(found: re.Match[str]) -> str:
        block = textwrap.dedent(found[2]).replace("``", "`")
        items = re.sub(r"^(\*{0,2}\w[\w, ]*): ", r"- `\1`: ", block, flags=re.M)
        return f"{found[1]}\n:   " + textwrap.indent(items, "    ").strip() + "\n"

    pattern = r"^(Args|Attributes|Returns|Raises|Yields):\n((?: {4}.*\n?|\n(?= {4}))+)"
    return re.sub(pattern, listed, with_lists(text), flags=re.M)


def _said(label: str, text: str) -> str:
    """Return what a section says as Markdown: shapes as code, names of exceptions as links."""
    text = text.replace("``", "`")
    if label == "Shapes":
        shape, mark, rest = text.partition(";")
        return (shape if "`" in shape else f"`{shape}`") + mark + _escaped(rest)
    return re.sub(r"\b[A-Z]\w+Error\b", _link_to_error, _escaped(text))


def _escaped(text: str) -> str:
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _link_to_op(found: re.Match[str]) -> str:
    name = found[1]
    return f"[`{name}`][needle.ops.{name}]" if name in _op_names() else found[0]


@functools.cache
def _op_names() -> set[str]:
    return {op.__name__ for op in ops.all_ops()}


def _link_to_error(found: re.Match[str]) -> str:
    name = found[0]
    return f"[{name}][needle.errors.{name}]" if hasattr(errors, name) else name


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return _escaped((inspect.getdoc(thing) or "").partition("\n")[0].replace("``", "`"))


# ---- a page per op -------------------------------------------------------------------


def op_page(op: type[ops.Op]) -> str:
    """Return the page of an op: its docstring, gradient, kernels, an example, and its text."""
    text = inspect.cleandoc(op.__doc__ or "")
    family = next(c for c in (Elementwise, Linear, Multilinear, Composite, ops.Op) if c in op.mro())
    missing = "" if "Gradient:" in text else f"\nGradient: {_gradient(op)}"
    text = f"{text.rstrip()}\n{missing}\n"
    return "\n".join([
        f"# {op.__name__} {{ #needle.ops.{op.__name__} }}", "",
        f"`needle.ops.{op.__name__}{_attributes(op)}`: an op of the family `{family.__name__}`"
        f"{_callers(op)}.", "",
        with_items(text), "",
        "## Kernels", "", _kernels(op), "",
        *_example(op),
        "## Source", "", f"In `python/{op.__module__.replace('.', '/')}.py`:", "",
        "```python", _source(op), "```", "",
    ])  # fmt: skip


def _attributes(op: type[ops.Op]) -> str:
    return f".of({', '.join(op.static)})" if op.static else ".of()"


def _gradient(op: type[ops.Op]) -> str:
    if not op.is_differentiable:
        return "none"
    if issubclass(op, Elementwise) and op.derivative is Elementwise.derivative:
        return "none"
    return "every floating input; any order"


def _callers(op: type[ops.Op]) -> str:
    names = [n for n, f in vars(ops).items() if getattr(f, "__name__", "") == n and _uses(f, op)]
    links = [f"[`{n}`](../functions/{_room(getattr(ops, n))}.md)" for n in sorted(names)]
    return ", called by " + ", ".join(links) if links else ""


def _room(function: Any) -> str:
    """Return the last name of the module that defines a function of ``needle.ops``."""
    module = _exported(function).__module__ if _exported(function) else function.__module__
    return module.rpartition(".")[2]


def _exported(function: Any) -> type[ops.Op] | None:
    """Return the op that ``export`` made a function of."""
    if isinstance(function, functools.partial) and isinstance(function.args[0], ops.Op):
        return type(function.args[0])
    return None


def _uses(function: Any, op: type[ops.Op]) -> bool:
    if not inspect.isfunction(function):
        return _exported(function) is op
    return function.__module__.startswith("needle.ops") and op.__name__ in _called(function)


@functools.cache
def _called(function: Any) -> set[str]:
    return set(re.findall(r"\b([A-Z]\w+)(?:\.of)?\(", inspect.getsource(function)))


def _kernels(op: type[ops.Op]) -> str:
    if issubclass(op, Elementwise) and op.function in _rows():
        numpy_name = (
            "an entry of `FUNCTIONS`" if op.function in numpy_backend.FUNCTIONS else "NumPy"
        )
        return (
            f"`cpu`, `cuda`: the row `{op.function}` of `src/common/functions.def`. "
            f"`cpu_numpy`: {numpy_name}."
        )
    own = sorted(device for device, name in backend.contract._overrides if name == op.__name__)
    if issubclass(op, Composite):
        devices = ", ".join(f"`{device}`" for device in own if device != "cuda-emu")
        rest = "all other devices compute its expansion" if own else "its expansion, on all devices"
        return f"{devices}: a kernel of its own; {rest}." if own else f"None: {rest}."
    used = sorted(set(re.findall(r"\bkernels\.(\w+)\(", inspect.getsource(op.compute))))
    calls = ", ".join(f"`{name}`" for name in used)
    if calls:
        return f"Every device, by what all backends have: {calls} of `needle.backend.kernels`."
    return "None of its own: its `compute` says how it is computed, on all devices."


@functools.cache
def _rows() -> set[str]:
    """Return the names of the elementwise functions, of functions.def."""
    from needle.backend.functions import functions

    return set(functions())


def _source(op: type[ops.Op]) -> str:
    """Return the text of a class without its docstring."""
    text = textwrap.dedent(inspect.getsource(op))
    body = ast.parse(text).body[0].body  # type: ignore[attr-defined]
    lines = text.splitlines()
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del lines[body[0].lineno - 1 : body[0].end_lineno]
    return re.sub(r":\n\n+", ":\n", "\n".join(lines).strip(), count=1)


# ---- an example, from the samples ------------------------------------------------------

MOST = 48
"""Elements that an example shows; of more it gives the shapes alone."""


def _example(op: type[ops.Op]) -> list[str]:
    """Return a call of the op and its result; nothing where the docstring has an example."""
    good = [s for s in op.samples() if s.raises is None and 0 < len(s.inputs) <= 8]
    good = [s for s in good if all(isinstance(x, np.ndarray) and x.size for x in s.inputs)]
    if ">>>" in (op.__doc__ or "") or not good:
        return []
    sample = min(good, key=_plainness)
    inputs = [np.round(x, 2) if x.dtype.kind == "f" else x for x in sample.inputs]
    small = sum(x.size for x in inputs) <= MOST
    names = "xyzabcde"[: len(inputs)]
    call = (
        f"ndl.ops.{op.__name__}.of({', '.join(map(_literal, sample.static))})({', '.join(names)})"
    )
    tensors = [ndl.Tensor(x, dtype=_kind(x)) for x in inputs]
    try:
        with ndl.no_grad():
            result = op.of(*sample.static)(*tensors)
    except errors.NeedleError:  # rounding has made the input a wrong one
        return []
    lines = [f">>> {n} = {_making(x, small)}" for n, x in zip(names, inputs, strict=True)]
    return ["## Example", "", "```pycon", *lines, *_shown(call, result, small), "```", ""]


def _plainness(sample: Any) -> tuple[bool, int]:
    """Order samples: first those without axes of length 1, then the small ones."""
    shapes = [x.shape for x in sample.inputs]
    return any(1 in shape or shape == () for shape in shapes), sum(map(np.prod, shapes))


def _kind(values: Any) -> str:
    return "float32" if values.dtype.kind == "f" else str(values.dtype)


def _making(values: Any, small: bool) -> str:
    """Return the text of a call that makes a tensor of values, or one of their shape."""
    if not small and values.dtype.kind == "f":
        return f"ndl.randn{values.shape}".replace(",)", ")")
    text = np.array2string(values, separator=", ", threshold=MOST, max_line_width=10_000)
    text = re.sub(r"\s*\n\s*", " ", text)
    return (
        f"ndl.Tensor({text})"
        if _kind(values) == "float32"
        else (f'ndl.Tensor({text}, dtype="{_kind(values)}")')
    )


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, ndl.DType) else repr(value)


def _shown(call: str, result: Any, small: bool) -> Iterator[str]:
    """Yield the lines of a call and of what it prints."""
    parts = list(result) if isinstance(result, ndl.TensorTuple) else [result]
    if small and sum(part.size for part in parts) <= 2 * MOST:
        yield f">>> {call}" if len(parts) == 1 else f">>> for part in {call}: print(part)"
        for part in parts:
            yield from (repr(part) if len(parts) == 1 else str(part)).splitlines()
    elif len(parts) == 1:
        yield from (f">>> {call}.shape", str(parts[0].shape))
    else:
        yield from (f">>> [part.shape for part in {call}]", str([part.shape for part in parts]))


# ---- a page per module ------------------------------------------------------------------


def public(name: str) -> dict[str, dict[str, Any]]:
    """Return the public functions and classes of ``needle.<name>``, by the module they are in.

    Names that stand for another public name of the same thing are left out.
    """
    room = importlib.import_module(f"needle.{name}")
    found: dict[str, dict[str, Any]] = {}
    for key, value in vars(room).items():
        op = _exported(value)
        place = op.__module__ if op else getattr(value, "__module__", None)
        if key.startswith("_") or not isinstance(place, str) or not _documented(value):
            continue
        if (place + ".").startswith(f"{room.__name__}.") and value.__name__ == key:
            found.setdefault(place, {})[key] = value
    return dict(sorted(found.items()))


def _documented(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value) or _exported(value) is not None


def module_page(room: str, place: str, names: dict[str, Any]) -> str:
    """Return the page of a module: its functions and classes, and links to its ops."""
    module = importlib.import_module(place)
    title = place.removeprefix("needle.") if room != "ops" else place.rpartition(".")[2]
    page = [f"# {title}", "", first_line(module), ""]
    ops_here = [op for op in ops.all_ops() if op.__module__ == place]
    for name in sorted(names, key=str.lower):
        op = _exported(names[name])
        if op is not None:
            link = f"[{op.__name__}](../ops/{op.__name__}.md)"
            page += [f"## {name} {{ #needle.ops.{name} }}", "", f"{first_line(op)} See {link}.", ""]
        elif name not in _written(place):
            page += made(f"needle.{room}.{name}", names[name])
        elif names[name] not in ops_here:
            page += [f"::: {_path(room, place, name)}", *OPTIONS.get(name, []), ""]
    if ops_here:
        page += ["## Ops", "", "| op | |", "|---|---|"]
        page += [
            f"| [{op.__name__}](../ops/{op.__name__}.md) | {first_line(op)} |" for op in ops_here
        ]
    return "\n".join(page) + "\n"


def _path(room: str, place: str, name: str) -> str:
    """Return the public path of a name, or that in its file where a module has the same path."""
    path = f"needle.{room}.{name}"
    return f"{place}.{name}" if path in sys.modules else path


@functools.cache
def _written(place: str) -> set[str]:
    """Return the names that a module defines by ``def`` and ``class``, as mkdocstrings sees it."""
    tree = ast.parse(inspect.getsource(importlib.import_module(place)))
    return {getattr(node, "name", "") for node in tree.body}


def made(path: str, function: Any) -> list[str]:
    """Return the entry of a function that another function made."""
    name = path.rpartition(".")[2]
    text = inspect.cleandoc(function.__doc__ or "")
    head = [f"## {name} {{ #{path} }}", "", "```python", f"{name}{inspect.signature(function)}"]
    return [*head, "```", "", with_items(text), ""]


def pages() -> dict[str, str]:
    """Return the reference: for each path below ``reference/`` the text of the page."""
    for info in pkgutil.walk_packages(backend.__path__, "needle.backend."):
        with contextlib.suppress(ImportError):  # registers what the devices compute as a whole
            importlib.import_module(info.name)
    found = {f"ops/{op.__name__}.md": op_page(op) for op in ops.all_ops()}
    for room in PACKAGES:
        folder = "functions" if room == "ops" else room.replace(".", "_")
        for place, names in public(room).items():
            found[f"{folder}/{place.rpartition('.')[2]}.md"] = module_page(room, place, names)
    found["ops.md"] = ops_index()
    found["index.md"] = index(found)
    return found


def index(found: dict[str, str]) -> str:
    """Return the first page of the reference: all packages with their modules."""
    page = [
        "# Reference",
        "",
        "Made from the docstrings. Every op has [a page of its own](ops.md).",
        "",
    ]
    for room, title in PACKAGES.items():
        folder = "functions" if room == "ops" else room.replace(".", "_")
        page += [f"## {title}", ""]
        for path in found:
            if path.startswith(f"{folder}/"):
                name = found[path].partition("\n")[0].removeprefix("# ")
                page.append(f"- [{name}]({path}): {found[path].splitlines()[2]}")
        page.append("")
    return "\n".join(page)


def ops_index() -> str:
    """Return the list of all ops, by the file that they are in."""
    page = ["# Ops", "", "Every op class, by its file in `python/needle/ops/`.", ""]
    for place in sorted({op.__module__ for op in ops.all_ops()}):
        page += [f"## {place.rpartition('.')[2]}", "", "| op | |", "|---|---|"]
        here = [op for op in ops.all_ops() if op.__module__ == place]
        page += [f"| [{op.__name__}](ops/{op.__name__}.md) | {first_line(op)} |" for op in here]
        page.append("")
    return "\n".join(page)

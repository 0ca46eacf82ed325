"""Every elementwise function: three sizes, three layouts.

    contiguous   [n, n] (op [n, n])
    broadcast    [n, n] op [n]; for one operand a row repeated, [n] -> [n, n]
    strided      x.T (op y): the first operand is transposed

What must be moved is counted once: each operand's own bytes and those of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Goal, Options, both, compiled, main

import needle as ndl

SIZES = {"64 Ki": 256, "1 Mi": 1024, "16 Mi": 4096}
LAYOUTS = ("contiguous", "broadcast", "strided")
F = torch.nn.functional
# name in needle.ops: (PyTorch's, what operands are drawn from)
UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    **{
        name: (getattr(torch, name), "any")
        for name in (
            "negative", "absolute", "sign", "square", "exp", "exp2", "expm1", "sin", "cos", "tan",
            "sinh", "cosh", "tanh", "asinh", "atan", "sigmoid", "erf", "relu", "floor", "ceil",
            "round", "trunc", "isnan", "isinf", "isfinite",
        )
    },
    **{
        name: (getattr(torch, name), "positive")
        for name in ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal")
    },
    **{name: (getattr(torch, name), "unit") for name in ("asin", "acos", "atanh")},
    "acosh": (torch.acosh, "above 1"),
    "softplus": (F.softplus, "any"),
    "silu": (F.silu, "any"),
    "gelu": (F.gelu, "any"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "any"),
    "leaky_relu": (F.leaky_relu, "any"),
    "elu": (F.elu, "any"),
    "logical_not": (torch.logical_not, "bool"),
    "bitwise_invert": (torch.bitwise_not, "integer"),
}  # fmt: skip
BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    **{
        name: (getattr(torch, name), "any")
        for name in (
            "add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2", "hypot",
            "copysign", "nextafter", "logaddexp", "not_equal", "less", "less_equal",
            "greater", "greater_equal",
        )
    },
    "equal": (torch.eq, "any"),
    "power": (torch.pow, "positive"),
    "floor_divide": (torch.floor_divide, "positive"),
    "remainder": (torch.remainder, "positive"),
    "logical_and": (torch.logical_and, "bool"),
    "logical_or": (torch.logical_or, "bool"),
    "logical_xor": (torch.logical_xor, "bool"),
    "bitwise_and": (torch.bitwise_and, "integer"),
    "bitwise_or": (torch.bitwise_or, "integer"),
    "bitwise_xor": (torch.bitwise_xor, "integer"),
    "bitwise_left_shift": (torch.bitwise_left_shift, "shift"),
    "bitwise_right_shift": (torch.bitwise_right_shift, "shift"),
}  # fmt: skip


def draw(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Return operands from the domain of a function."""
    random = np.random.default_rng(seed)
    if kind == "any":
        return random.standard_normal(shape, np.float32)
    if kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if kind in ("integer", "shift"):
        return random.integers(0, 8 if kind == "shift" else 1 << 20, shape, np.int32)
    low, high = {"positive": (0.1, 3.0), "unit": (-0.99, 0.99), "above 1": (1.01, 9.0)}[kind]
    return (random.random(shape, np.float32) * (high - low) + low).astype(np.float32)


class Operands:
    """Operands of one size, drawn once and shared by all functions."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.known: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def get(self, kind: str, layout: str, position: int) -> tuple[Any, Any]:
        """Return operand ``position`` for Needle and for PyTorch."""
        key = (kind, layout, position)
        if key not in self.known:
            row = layout == "row"
            self.known[key] = both(draw(kind, (self.n,) if row else (self.n, self.n), position))
        return self.known[key]

    def unary(self, kind: str, layout: str) -> tuple[Any, Any]:
        """Return the only operand."""
        if layout == "broadcast":
            x, t = self.get(kind, "row", 0)
            return ndl.ops.broadcast_to(x, (self.n, self.n)), t.expand(self.n, self.n)
        return self.first(kind, layout)

    def first(self, kind: str, layout: str) -> tuple[Any, Any]:
        """Return the first operand, transposed if the layout is strided."""
        x, t = self.get(kind, "full", 0)
        return (ndl.ops.transpose(x), t.T) if layout == "strided" else (x, t)

    def second(self, kind: str, layout: str) -> tuple[Any, Any]:
        """Return the second operand, a row if the layout is broadcast."""
        return self.get(kind, "row" if layout == "broadcast" else "full", 1)


COMPILED = ("contiguous", "1 Mi")
"""With --compile, torch.compile runs this layout and size: each takes four seconds to compile."""


def compiled_alone(function: Any, operands: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return a ``Case.compiled`` before which the functions compiled so far are forgotten: they
    share the code around them, and PyTorch gives up compiling the same code again and again."""

    def make(compiler: Any) -> Any:
        torch.compiler.reset()
        return compiled(function, *operands)(compiler)

    return make


def row(name: str, ours: Any, theirs: Any, operands: list[tuple[Any, Any]]) -> Case:
    """Return the row of a function on operands."""
    _, *layout_and_size = name.rsplit(", ", 2)
    worth = tuple(layout_and_size) == COMPILED
    a, b = zip(*operands, strict=True)
    sizes = [t.untyped_storage().nbytes() for t in b]
    item = theirs(*(t[..., :1] for t in b)).element_size()
    moved = float(sum(sizes) + max(t.numel() for t in b) * item)
    return Case(
        name, lambda: ours(*a), lambda: theirs(*b), target=1.0, goals="ops", group="elementwise",
        bytes=moved, compiled=compiled_alone(theirs, b) if worth else None,
    )  # fmt: skip


def of_layout(operands: Operands, layout: str, label: str) -> Iterator[Case]:
    """Yield the rows of one size and layout."""
    for name, (theirs, kind) in UNARY.items():
        ours = getattr(ndl.ops, name)
        yield row(f"{name}, {layout}, {label}", ours, theirs, [operands.unary(kind, layout)])
    for name, (theirs, kind) in BINARY.items():
        pair = [operands.first(kind, layout), operands.second(kind, layout)]
        yield row(f"{name}, {layout}, {label}", getattr(ndl.ops, name), theirs, pair)
    x, y = operands.first("any", layout), operands.second("any", layout)
    chosen = [operands.first("bool", layout), x, y]
    yield row(f"where, {layout}, {label}", ndl.ops.where, torch.where, chosen)
    clip = [operands.unary("any", layout)]
    yield row(
        f"clip, {layout}, {label}", lambda x: ndl.ops.clip(x, -0.5, 0.5),
        lambda x: torch.clip(x, -0.5, 0.5), clip,
    )  # fmt: skip
    for kind in ("float64", "bfloat16", "int32"):
        yield row(
            f"cast to {kind}, {layout}, {label}", partial(ndl.ops.astype, dtype=kind),
            partial(torch.Tensor.to, dtype=getattr(torch, kind)), clip,
        )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for label, n in {"64 Ki": 8}.items() if options.quick else SIZES.items():
        operands = Operands(n)
        for layout in LAYOUTS:
            yield from of_layout(operands, layout, label)


if __name__ == "__main__":
    goal = Goal("elementwise", 0.7, groups=("elementwise",))
    main("elementwise", cases, seconds=0.1, goals=[goal])

"""Formulas of graphs for ``needle.show``. They are simplified for reading, never computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from needle import graph

SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "matmul": "@",
    "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<=", "equal": "==",
    "not_equal": "!=",
}  # fmt: skip
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "negative": 3, "**": 4}
"""Precedence of signs, as in Python; comparisons have 0, names and calls 5."""


@dataclass(frozen=True, eq=False)
class Term:
    """A name, a number, a sign or a call, with its operands.

    Equal terms are the same object. Comparing terms part by part would take twice as long for each
    value that is used twice.

    Attributes:
        head: the sign or the function; empty for a name or a number.
        parts: the operands.
        text: the name; for a call, the text after the operands.
        value: the value of a number.
    """

    head: str
    parts: tuple[Term, ...] = ()
    text: str = ""
    value: float | None = None

    def __new__(
        cls, head: str, parts: tuple[Term, ...] = (), text: str = "", value: float | None = None
    ) -> Term:
        key = head, parts, text, value
        return _terms.get(key) or _terms.setdefault(key, super().__new__(cls))


_terms: WeakValueDictionary[Any, Term] = WeakValueDictionary()


def number(value: float) -> Term:
    """Return a number."""
    return Term("", (), f"{value:.6g}", float(value))


# ---- from graph to terms -------------------------------------------------------------


class Reader:
    """Turn nodes into terms, each node once.

    Attributes:
        constants: name -> spec of the constant arrays found so far.
    """

    def __init__(self, names: Mapping[Any, str]) -> None:
        self._known = {node: Term("", (), name) for node, name in names.items()}
        self._taken = set(names.values())
        self.constants: dict[str, Any] = {}

    def read(self, root: Any) -> Term:
        """Return the term of a node; nodes below it are read first, without recursion."""
        for node in graph.topo([root], False, frozenset(self._known)):
            if node not in self._known:
                parts = [self._known[below] for below in node.inputs]
                self._known[node] = self._leaf(node) if not parts else _term(node, parts)
        return self._known[root]

    def _leaf(self, node: Any) -> Term:
        tensor = graph.tensor_of(node)
        values = None if tensor.array is None else tensor.detach().numpy()
        if values is not None and values.size and (values == values.flat[0]).all():
            return number(values.flat[0])
        free = (f"c{i}" for i in count(1))
        name = next(n for n in free if n not in self.constants and n not in self._taken)
        self.constants[name] = node.spec
        return Term("", (), name)


def _term(node: Any, parts: list[Term]) -> Term:
    op = node.op
    if op.name in SIGNS and len(parts) == 2:
        return signed(SIGNS[op.name], *parts)
    if op.name == "negative":
        return negated(parts[0])
    if op.name == "square":
        return signed("**", parts[0], number(2))
    if op.name == "reciprocal":
        return signed("/", number(1), parts[0])
    if op.name == "squared_difference":
        return signed("**", signed("-", parts[0], parts[1]), number(2))
    if op.name == "squared_difference_grad":
        twice = signed("*", number(2), signed("-", parts[0], parts[1]))
        return signed("*", twice, parts[2])
    if op.name in _SLOPES:
        return signed("*", parts[1], _SLOPES[op.name](parts[0]))
    if op.name in ("identity", "copy"):
        return parts[0]
    if op.name in ("broadcast_to", "reshape", "cast") and parts[0].value is not None:
        return parts[0]
    if op.name == "permute" and op.axes == (1, 0):
        return Term(".T", (parts[0],))
    if op.name == "where" and parts[0].value is not None:
        return parts[1 if parts[0].value else 2]
    if op.name == "tuple_get_item":
        return Term("[]", (parts[0],), str(op.index))
    return Term(_CALLED.get(op.name, op.name), tuple(parts), _statics(node))


def _less(x: Term) -> Term:
    return signed("-", number(1), x)


def _silu_slope(x: Term) -> Term:
    gate = Term("sigmoid", (x,))
    return signed("*", gate, signed("+", number(1), signed("*", x, _less(gate))))


def _gelu_slope(x: Term) -> Term:
    root = signed("/", x, Term("sqrt", (number(2),)))
    below = signed("/", signed("+", number(1), Term("erf", (root,))), number(2))
    power = signed("/", signed("**", x, number(2)), number(2))
    turn = signed("*", number(2), Term("", (), "pi"))
    bell = signed("/", Term("exp", (negated(power),)), Term("sqrt", (turn,)))
    return signed("+", below, signed("*", x, bell))


_SLOPES: dict[str, Callable[[Term], Term]] = {
    "sigmoid_grad": lambda out: signed("*", out, _less(out)),
    "tanh_grad": lambda out: _less(signed("**", out, number(2))),
    "silu_grad": _silu_slope,
    "gelu_grad": _gelu_slope,
}
"""The factors of gradients that are ops of their own."""

_CALLED = {"summation": "sum", "absolute": "abs"}


def _statics(node: Any) -> str:
    op, shown = node.op, []
    for name in op.static if not op.opaque else ():  # an opaque op holds a function of the user
        value = getattr(op, name)
        everything = node.inputs and name == "axes" and value == tuple(range(_ndim(node)))
        if value is None or value is False or everything:
            continue
        shown.append(f"{name}={value}" if name not in ("shape", "dtype", "axis") else str(value))
    return "".join(f", {text}" for text in shown)


def _ndim(node: Any) -> int:
    spec = node.inputs[0].spec
    return -1 if type(spec) is tuple or node.op.name == "permute" else spec.ndim


def negated(x: Term) -> Term:
    """Return -x."""
    if x.value is not None:
        return number(-x.value)
    if x.head == "negative":
        return x.parts[0]
    if x.head == "-":
        return Term("-", x.parts[::-1])
    if x.head in ("*", "/") and x.parts[0].value is not None:
        return signed(x.head, number(-x.parts[0].value), x.parts[1])
    return Term("negative", (x,))


def signed(sign: str, x: Term, y: Term) -> Term:
    """Return ``x sign y``, without + 0, * 1 and double minus signs."""
    if x.value is not None and y.value is not None and sign in _FOLD:
        with np.errstate(all="ignore"):
            return number(_FOLD[sign](np.float64(x.value), y.value))
    if sign in ("+", "-"):
        return _sum(sign, x, y)
    if sign in ("*", "/"):
        return _product(sign, x, y)
    if sign == "**" and y.value == 1:
        return x
    return Term(sign, (x, y))


_FOLD = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "/": lambda x, y: x / y, "**": lambda x, y: x**y, "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip


def _sum(sign: str, x: Term, y: Term) -> Term:
    if y.value == 0:
        return x
    if x.value == 0:
        return y if sign == "+" else negated(y)
    if y.head == "negative":
        return Term("-" if sign == "+" else "+", (x, y.parts[0]))
    if x.head == "negative" and sign == "+":
        return Term("-", (y, x.parts[0]))
    if y.value is not None and y.value < 0:
        return Term("-" if sign == "+" else "+", (x, number(-y.value)))
    if x == y:
        return signed("*", number(2), x) if sign == "+" else number(0)
    if sign == "+" and x.head == "+" and x.parts[1] == y:
        return Term("+", (x.parts[0], signed("*", number(2), y)))
    return Term(sign, (x, y))


def _product(sign: str, x: Term, y: Term) -> Term:
    if x.value == 0 or y.value == 1:
        return x
    if x.head == "negative":
        return negated(signed(sign, x.parts[0], y))
    if y.head == "negative":
        return negated(signed(sign, x, y.parts[0]))
    return _quotient(x, y) if sign == "/" else _times(x, y)


def _quotient(x: Term, y: Term) -> Term:
    if x == y:
        return number(1)
    if x.head == "/" and x.parts[1] == y:
        return Term("/", (x.parts[0], Term("**", (y, number(2)))))
    return Term("/", (x, y))


def _times(x: Term, y: Term) -> Term:
    """Return x * y, with one number first and the divisors last."""
    (a, p, above), (b, q, also) = _split(x), _split(y)
    if p is None or q is None:
        return _scaled(a * b, q if p is None else p, also if p is None else above)
    if above and also:
        return _scaled(a * b, Term("**", (p, number(2))) if p == q else Term("*", (p, q)), True)
    if above or also:
        return Term("/", (_scaled(a * b, p if above else q, True), q if above else p))
    return _scaled(a * b, _times(p, q), False)


def _split(x: Term) -> tuple[float, Term | None, bool]:
    """Return a term as a number and another term, and whether they are multiplied or divided."""
    if x.value is not None:
        return x.value, None, True
    if x.head in ("*", "/") and x.parts[0].value is not None:
        return x.parts[0].value, x.parts[1], x.head == "*"
    return 1.0, x, True


def _scaled(value: float, x: Term | None, above: bool) -> Term:
    if x is None or value == 0:
        return number(value)
    if not above:
        return Term("/", (number(value), x))
    return x if value == 1 else negated(x) if value == -1 else Term("*", (number(value), x))


# ---- from terms to text ----------------------------------------------------------------


def text_of(x: Term, named: Mapping[Term, str]) -> str:
    """Return the formula of a term; named terms appear as their names."""

    def bound(part: Term, least: int) -> str:
        text = named.get(part) or text_of(part, named)
        tight = 5 if part in named else _binds(part)
        return text if tight >= least else f"({text})"

    if not x.head:
        return x.text
    if x.head == "[]":
        return f"{bound(x.parts[0], 5)}[{x.text}]"
    if x.head == ".T":
        return bound(x.parts[0], 5) + ".T"
    if x.head == "negative":
        return "-" + bound(x.parts[0], 2)
    if x.head in SIGNS.values():
        tight = _binds(x)
        grouped = x.head in ("-", "/", "@", "**") or tight == 0
        left = bound(x.parts[0], tight + (x.head in ("**", "@") and x.parts[0].head != "@"))
        right = bound(x.parts[1], tight + grouped)
        space = "" if x.head == "**" else " "
        return f"{left}{space}{x.head}{space}{right}"
    return f"{x.head}({', '.join(bound(part, 0) for part in x.parts)}{x.text})"


def _binds(x: Term) -> int:
    if x.value is not None and x.value < 0:
        return BINDS["negative"]
    return BINDS.get(x.head, 0 if x.head in SIGNS.values() else 5)


def shared(roots: Sequence[Term], name: str, taken: Iterable[str]) -> dict[Term, str]:
    """Name long terms that occur several times, inner ones first.

    Args:
        roots: the terms to print.
        name: name of the first root.
        taken: names that are already used.
    """
    used = set(taken)
    uses: dict[Term, int] = {}
    order: list[Term] = []

    def visit(x: Term) -> None:
        uses[x] = uses.get(x, 0) + 1
        if uses[x] == 1:
            for part in x.parts:
                visit(part)
            order.append(x)

    for root in roots:
        visit(root)
    letters = "abcdefghijklmnopqrstuvwxyz"
    more = (f"{letter}{i}" for i in count(1) for letter in letters)
    free = (n for n in chain(letters, more) if n not in used)
    named: dict[Term, str] = {roots[0]: name} if roots[0].head else {}
    for x in order:
        if x.head and (uses[x] - 1) * (len(text_of(x, named)) - 1) >= 12 and x not in named:
            named[x] = next(free)
    return named

"""Formulas of optimizers: Python functions of one element, traced to fused programs.

A formula is ``formula(p, g, state, numbers) -> (p, state)``: the new parameter and the new states
from the old ones and the gradient. It is written with operators and methods of tensors, so it also
runs on tensors as they are. For a device it runs once on ``Value`` objects, which note what is done
with them; numbers are known by then, and those that meet a value become operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from needle.errors import ArgumentError
from needle.ops.core.families import Elementwise

States = tuple[Any, ...]
"""A formula's states: values; None for one that the optimizer does without."""


class Program(NamedTuple):
    """An elementwise program: ``steps`` and ``results`` of ``Backend.run_each``."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]
    results: tuple[int, ...]


@cache
def _functions() -> frozenset[str]:
    """Return the names of all rows of functions.def that are ops."""

    def below(cls: type[Elementwise]) -> Iterator[type[Elementwise]]:
        for x in cls.__subclasses__():
            yield x
            yield from below(x)

    return frozenset(x.function for x in below(Elementwise) if hasattr(x, "function"))


def _binary(function: str, swaps: bool = False) -> Any:
    def apply(self: Value, other: Value | float) -> Value:
        return self.do(function, other, self) if swaps else self.do(function, self, other)

    return apply


class Value:
    """A number of a formula that differs from element to element: it notes what is done with it.

    Operators and the methods of tensors that are elementwise work: ``x.sqrt()``, ``x.maximum(y)``.
    """

    __slots__ = ("at", "trace")
    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: _Trace, at: tuple[int, int]) -> None:
        self.trace, self.at = trace, at

    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", True)
    __truediv__, __rtruediv__ = _binary("divide"), _binary("divide", True)
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")

    def __pow__(self, other: Value | float) -> Value:
        return self.do("square", self) if other == 2 else self.do("power", self, other)

    def __neg__(self) -> Value:
        return self.do("negative", self)

    def __abs__(self) -> Value:
        return self.do("abs", self)

    def __bool__(self) -> bool:
        raise ArgumentError(
            "an optimizer's formula asks whether a value is true, which differs by element\n"
            "  try: value.where(condition, other)"
        )

    def where(self, condition: Value, other: Value | float) -> Value:
        """Return this value where the condition holds, and elsewhere the other."""
        return self.do("where", condition, self, other)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in _functions():
            raise AttributeError(f"a formula's value has no elementwise method {name!r}")
        return partial(self.do, name, self)

    def do(self, function: str, *operands: Value | float) -> Value:
        """Return the function of values and numbers."""
        return self.trace.step(function, *map(self.trace.operand, operands))


_INPUT, _NUMBER, _STEP = range(3)


class _Trace:
    """What a formula does: its numbers and its steps, with operands as (kind, position)."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.steps: list[tuple[str, tuple[tuple[int, int], ...]]] = []

    def operand(self, x: Value | float) -> tuple[int, int]:
        if isinstance(x, Value):
            return x.at
        try:
            self.numbers.append(float(x))
        except (TypeError, ValueError):
            raise ArgumentError(
                f"an optimizer's formula has the operand {x!r:.60}\n"
                "  rule: operands are values of the formula, and numbers"
            ) from None
        return _NUMBER, len(self.numbers) - 1

    def step(self, function: str, *operands: tuple[int, int]) -> Value:
        self.steps.append((function, operands))
        return Value(self, (_STEP, len(self.steps) - 1))


class Numbers:
    """What a formula knows as ``numbers``; it notes which of them are read."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values
        self._read: dict[str, float | None] = {}

    def __getattr__(self, name: str) -> Any:
        value = self._read[name] = self._values.get(name)
        if name not in self._values:
            raise AttributeError(f"an optimizer's formula reads numbers.{name}, which it has not")
        return value


Formula = Callable[[Value, Value, States, Numbers], tuple[Value, States]]
Traced = tuple[Program, tuple[float, ...]]

_known: dict[
    tuple[Formula, tuple[bool, ...], str], list[tuple[dict[str, float | None], Traced]]
] = {}
"""What formulas did, and the numbers that they had read: with equal ones they do it again."""

_MOST_FORMULAS, _MOST_NUMBERS = 64, 8


def trace(
    formula: Formula, kept: tuple[bool, ...], numbers: Mapping[str, float], half: str = ""
) -> Traced:
    """Return a formula's program, and the numbers that are its operands behind the tensors.

    Args:
        formula: the formula.
        kept: for each state whether it is there; the formula gets None for one that is not.
        numbers: what the formula knows as ``numbers``.
        half: the dtype of parameters of half precision, which are computed in float32.

    Raises:
        ArgumentError: if it returns anything but a parameter and states, or uses what is neither
            a value nor a number.
    """
    known = _known.get((formula, kept, half), [])
    for read, found in known:
        if all(numbers.get(name) == x for name, x in read.items()):
            return found
    noted = Numbers(numbers)
    made = _traced(formula, kept, noted, half)
    if len(_known) >= _MOST_FORMULAS:
        _known.clear()
    _known[formula, kept, half] = [(noted._read, made), *known[: _MOST_NUMBERS - 1]]
    return made


def _traced(formula: Formula, kept: tuple[bool, ...], numbers: Numbers, half: str) -> Traced:
    made, inputs = _Trace(), 2 + sum(kept)
    p, g, *rest = (Value(made, (_INPUT, i)) for i in range(inputs))
    if half:
        p, g = p.do("float32", p), g.do("float32", g)
    there = iter(rest)
    state = tuple(next(there) if x else None for x in kept)
    results = _results(formula(p, g, state, numbers), kept)
    if half:
        results[0] = p.do(half, results[0])
    ends: list[tuple[int, int]] = []
    for x in results:
        while x.at[0] != _STEP or x.at in ends:  # each is a step of its own
            x = x.maximum(x)
        ends.append(x.at)
    first = (0, inputs, inputs + len(made.numbers))
    steps = tuple((s, tuple(first[kind] + i for kind, i in at)) for s, at in made.steps)
    return Program(steps, tuple(first[kind] + i for kind, i in ends)), tuple(made.numbers)


def _results(found: object, kept: tuple[bool, ...]) -> list[Value]:
    """Return the new parameter and those states that are there."""
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], tuple):
        p, state = found
        if len(state) == len(kept):
            wanted = [p, *(x for x, there in zip(state, kept, strict=True) if there)]
            if all(isinstance(x, Value) for x in wanted):
                return wanted
    raise ArgumentError(
        f"an optimizer's formula returned {found!r:.80}\n"
        f"  rule: (p, state), with a tuple of {len(kept)} new states"
    )

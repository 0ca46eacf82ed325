"""Answers to the exercises of the page "Read the source". Run it: python docs/exercises.py"""

from __future__ import annotations

import sys
from typing import Any

import needle as ndl
from needle import devices, executor, forward, graph, ops
from needle.backend.numpy import NumpyBackend
from needle.ops.core.families import Composite
from needle.ops.core.op import export
from needle.ops.core.samples import Sample, uniform

# ---- 1. Which nodes keep a value? --------------------------------------------------


def kept_values() -> tuple[list[str], list[str]]:
    """Return whose values the graph keeps, before ``backward`` and after it."""
    x = ndl.Tensor([1.0, 2.0], requires_grad=False)
    w = ndl.Tensor([3.0, 4.0])
    y = ops.exp(x * w).sum()
    names = {graph.leaf(x): "x", graph.leaf(w): "w"}
    nodes = graph.topo([y.node])

    def kept() -> list[str]:
        with_value = [node for node in nodes if node.value is not None]
        return [names.get(node) or node.op.name for node in with_value]

    before = kept()
    y.backward()
    return before, kept()


# ---- 2. An op in one class ---------------------------------------------------------


class Softsign2(Composite):
    """Divide x by 1 + x ** 2.

    Shapes:   x [...] -> the same
    Dtypes:   floating; integers become floating
    """

    promotes = "floating"
    saves = ((0,),)  # the gradient with respect to input 0 reads input 0

    def expand(self, x: Any) -> Any:
        return x / (1.0 + x * x)

    @staticmethod
    def samples() -> list[Sample]:
        """Return what the generated checks run."""
        shapes = ((), (3, 4), (2, 0))
        return [Sample((uniform(shape),), (), lambda x: x / (1 + x * x)) for shape in shapes]


softsign2 = export(Softsign2)


# ---- 3. Who computes x + y? --------------------------------------------------------


def calls_of_the_definition(**settings: Any) -> int:
    """Return how often ``x + y`` on 16 elements calls ``executor._apply``, with these settings."""
    x, y = ndl.ones(16), ndl.ones(16)
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is executor._apply.__code__

    with ndl.config(**settings):
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            x + y
        finally:
            sys.setprofile(before)
    return calls


# ---- 4. A device of your own -------------------------------------------------------


class Counting(NumpyBackend):
    """The NumPy device, which counts the elementwise functions that it is asked for."""

    name = "counting"

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def elementwise(self, function: str, out: Any, *inputs: Any) -> None:
        self.calls[function] = self.calls.get(function, 0) + 1
        super().elementwise(function, out, *inputs)


def counted() -> dict[str, int]:
    """Return what a small function and its gradient ask of the device."""
    where = devices.register("counting", Counting)
    t = ndl.Tensor([1.0, 2.0], device=where)
    ops.exp(t * t).sum().backward()
    return dict(where.backend.calls)


# ---- 5. A derivative by hand -------------------------------------------------------


def slope_by_hand(x: float) -> float:
    """Return the derivative of ``sin(x) * x``, from one run on a dual number."""
    level = 1  # no other derivative is under way
    moving = graph.wrap(forward.dual(level, ndl.Tensor(x), ndl.Tensor(1.0)))
    out = ops.sin(moving) * moving
    assert type(out.array) is forward.Dual
    return out.array.tangent.item()


if __name__ == "__main__":
    print("1.", *kept_values())
    print("2.", softsign2(ndl.Tensor([0.0, 1.0, 2.0])).tolist())
    print("3.", calls_of_the_definition(), calls_of_the_definition(fast="off"))
    print("4.", counted())
    print("5.", slope_by_hand(2.0))

"""Random graphs of all ops: eager, with the gate closed, lazy and on the numpy device, they agree.

`FUZZ_EXAMPLES=2000 python -m pytest tests/graph/test_fuzz.py` looks further,
at other graphs each time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needle as ndl
from needle import executor, graph, ops
from needle.backend.ndarray import array
from needle.backend.numpy import FUNCTIONS
from needle.testing import assert_close
from needle.testing.checks import Case, cases
from needle.testing.layouts import LAYOUTS

LONG = os.environ.get("FUZZ_EXAMPLES")
EXAMPLES = int(LONG or 60)
NODES = 20
LEAVES = ((3, 3), (4,), (2, 3, 2))

APART = {
    "RowNumbers": "refuses what is no whole number in range, so it cannot follow other nodes",
    "Labels": "the same",
    "NextAfter": "its result differs from its input by less than a rounding",
    "Eigh": "the signs of vectors are LAPACK's choice",
    "QR": "no gradient; the signs of vectors are LAPACK's choice",
    "SVD": "no gradient; the signs of vectors are LAPACK's choice",
}
"""Ops that are no part of these graphs."""


def tame(case: Case) -> bool:
    """Return whether a sample has elements, and results that poison no graph."""
    if not all(x.size for x in case.arrays()):
        return False
    if case.has_gradient() and not all(np.isfinite(x).all() for x in case.arrays()):
        return False
    with np.errstate(all="ignore"):
        exact = case.sample.reference(*case.arrays())
    parts = exact if isinstance(exact, (tuple, list)) else [exact]
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in parts)


CASES = [
    case
    for op in ops.all_ops()
    if op.__name__ not in APART
    for case in cases(op)
    if max(x.size for x in case.arrays()) <= 400 and tame(case)
]
BY_OP = {op: [case for case in CASES if case.op is op] for op in {case.op for case in CASES}}


@dataclass(frozen=True)
class Step:
    """One node: an op, and what chooses its sample and where its inputs come from."""

    op: type[ops.Op]
    seed: int

    def __repr__(self) -> str:
        return f"Step(ops.{self.op.__name__}, {self.seed})"


def plans(known: dict[type[ops.Op], list[Case]] = BY_OP) -> st.SearchStrategy[list[Step]]:
    step = st.builds(
        Step,
        st.sampled_from(sorted(known, key=lambda op: op.__name__)),
        st.integers(0, 2**20),
    )
    return st.lists(step, min_size=NODES, max_size=NODES)


# ---- one node ----------------------------------------------------------------------


def turned(x: Any) -> Any:
    """Return x with its axes in reverse order in memory."""
    axes = tuple(reversed(range(x.ndim)))
    return (x.permute(axes) * 1.0).permute(axes)


def reversed_(x: Any) -> Any:
    """Return x with negative strides."""
    axes = tuple(range(x.ndim))
    return ops.flip(ops.flip(x, axes) * 1.0, axes)


def cut(x: Any) -> Any:
    """Return x as a part of something larger."""
    return ops.pad(x, [(1, 2)] * x.ndim)[tuple(slice(1, 1 + n) for n in x.shape)]


VIEWS: tuple[Callable[[Any], Any], ...] = (lambda x: x, lambda x: x, turned, reversed_, cut)


def fitted(x: Any, shape: tuple[int, ...]) -> Any:
    """Return values of x, as often as they are needed, in another shape."""
    size = int(np.prod(shape))
    flat = x.reshape(x.size)
    while flat.size < size:
        flat = ops.concat([flat, flat * 0.5])
    return flat[:size].reshape(shape)


def input_of(values: Any, kind: str, where: Any, source: Any, dice: random.Random) -> Any:
    """Return a sample's input, moved a little by an earlier value, in some layout.

    A hundredth of each element at most: it stays in the function's domain.
    """
    if values.dtype.kind != "f":
        layout = dice.choice((None, "transposed", "sliced", "flipped"))
        stored = array(values, None, where)
        return graph.wrap(LAYOUTS[layout](stored) if layout else stored)
    base = ndl.Tensor(values, dtype=kind, device=where, requires_grad=False)
    moved = base * (1.0 + 0.01 * ops.tanh(fitted(source, values.shape).astype(kind)))
    return dice.choice(VIEWS)(moved) if moved.ndim else moved


def bounded(x: Any, kind: str) -> Any:
    """Return a result as what later nodes read: floating, not large."""
    x = x.astype(kind)
    return ops.tanh(x * 0.25) if x.requires_grad else ops.tanh(x.detach() * 0.25)


def chosen(step: Step) -> tuple[Case, random.Random]:
    """Return a node's sample, and the dice for the rest."""
    dice = random.Random(step.seed)
    return dice.choice(BY_OP[step.op]), dice


def rounds(step: Step) -> bool:
    """Return whether a node rounds to less than float64: one rounding may grow in 20 nodes."""
    return step.op is ops.Cast or "float64" not in chosen(step)[0].dtypes


def node(step: Step, values: list[Any], kind: str, where: Any) -> list[Any]:
    """Return the results of one op on earlier values."""
    case, dice = chosen(step)
    own = kind if kind in case.dtypes else case.dtypes[0]
    inputs = [
        input_of(x, own, where, values[-1 - min(dice.randrange(6), len(values) - 1)], dice)
        for x in case.arrays()
    ]
    if not case.has_gradient():
        inputs = [x.detach() for x in inputs]
    out = case.make()(*inputs)
    parts = out.tuple() if isinstance(out.spec, tuple) else (out,)
    return [bounded(x, kind) for x in parts if x.size]


# ---- the graph ---------------------------------------------------------------------


def build(plan: list[Step], leaves: list[Any], kind: str, where: Any) -> Any:
    """Return a scalar to which every value of the graph contributes."""
    values = list(leaves)
    for step in plan:
        values += node(step, values, kind, where)
    total = 0.0
    for i, value in enumerate(values):
        weight = np.cos(np.arange(i, i + value.size)).reshape(value.shape)
        total = total + (value * ndl.Tensor(weight, dtype=kind, device=where)).sum()
    return total


def run(plan: list[Step], seed: int, kind: str, where: Any, lazy: bool = False) -> list[Any]:
    """Return the scalar and the gradients of the leaves."""
    rng = np.random.default_rng(seed)
    leaves = [ndl.Tensor(rng.uniform(-1, 1, s), dtype=kind, device=where) for s in LEAVES]
    with executor.modes(lazy=lazy):
        total = build(plan, leaves, kind, where)
        total.backward()
        return [x.numpy() for x in (total, *(leaf.grad for leaf in leaves))]


def check(plan: list[Step], seed: int, kind: str) -> None:
    where = ndl.default_device()
    eager = run(plan, seed, kind, where)
    with ndl.config(fast="off"):
        closed = run(plan, seed, kind, where)
    lazy = run(plan, seed, kind, where, lazy=True)
    for a, b, c in zip(eager, closed, lazy, strict=True):
        assert np.isfinite(a).all()
        assert a.tobytes() == b.tobytes(), f"gate open {a}, closed {b}"
        assert a.tobytes() == c.tobytes(), f"eager {a}, lazy {c}"
    if kind == "float64" and not any(map(rounds, plan)):
        reference = run(plan, seed, kind, ndl.cpu_numpy())
        for a, b in zip(eager, reference, strict=True):
            assert_close(a, b, kind, 10_000, "against the numpy device")


@settings(max_examples=EXAMPLES, deadline=None, derandomize=not LONG, database=None)
@given(plans(), st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float64"]))
def test_all_ways_to_run_a_graph_agree(plan, seed, kind):
    check(plan, seed, kind)


@pytest.mark.parametrize(
    "op", sorted(BY_OP, key=lambda op: op.__name__), ids=lambda op: op.__name__
)
def test_every_op_among_others(op):
    """What chance may leave out: each op after a few others, and before one."""
    plan = [Step(ops.Tanh, 3), Step(ops.MatMul, 5), Step(op, 1), Step(op, 2), Step(ops.Sum, 7)]
    for kind in ("float32", "float64"):
        check(plan, 0, kind)


def test_no_op_is_forgotten():
    missing = {op.__name__ for op in ops.all_ops()} - {op.__name__ for op in BY_OP}
    assert missing == set(APART)


@pytest.mark.skipif(ndl.default_device() == ndl.cpu_numpy(), reason="nothing to compare with")
def test_a_wrong_result_is_found(monkeypatch):
    monkeypatch.setitem(FUNCTIONS, "tan", lambda x: np.tan(x) * (1 + 1e-8))
    plan = [Step(ops.Tanh, 3), Step(ops.Tan, 1), Step(ops.Sum, 7)]
    with pytest.raises(AssertionError, match="against the numpy device"):
        check(plan, 0, "float64")


def test_a_wrong_gradient_is_found(monkeypatch):
    derivative = ops.Tan.derivative

    def skewed(self, out, i):
        return derivative(self, out, i) * (1.0 + 1e-6 * graph.lazy())

    monkeypatch.setattr(ops.Tan, "derivative", skewed)
    plan = [Step(ops.Tanh, 3), Step(ops.Tan, 1), Step(ops.Sum, 7)]
    with pytest.raises(AssertionError, match="(?s)eager .* lazy"):
        check(plan, 0, "float64")

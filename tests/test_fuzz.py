"""Random graphs: eager, with the gate closed, lazy, and on the numpy device, they agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import needle as ndl
from needle import ops
from needle.testing import assert_close

UNARY = (ops.tanh, ops.relu, ops.sigmoid, ops.negative, ops.square, ops.absolute)
BINARY = (ops.add, ops.subtract, ops.multiply, ops.maximum, ops.minimum)
SIZE = 3


@dataclass(frozen=True)
class Step:
    """One node: an op, and which earlier values it reads (counted from the end)."""

    kind: str
    which: int
    first: int
    second: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["unary", "binary", "number", "matmul", "turn", "slice", "row", "cast"]),
        st.integers(0, 100),
        st.integers(1, 8),
        st.integers(1, 8),
    ),
    min_size=20,
    max_size=20,
)


def build(plan, leaves):
    """Return a scalar made of 20 nodes; all values are [3, 3] and stay small."""
    values = list(leaves)
    for step in plan:
        x = values[-min(step.first, len(values))]
        y = values[-min(step.second, len(values))]
        if step.kind == "unary":
            out = UNARY[step.which % len(UNARY)](x)
        elif step.kind == "binary":
            out = BINARY[step.which % len(BINARY)](x, y)
        elif step.kind == "number":
            out = (x * 0.5, 1.5 - x, x / 2, x + 1)[step.which % 4]
        elif step.kind == "matmul":
            out = (x @ y) * 0.25
        elif step.kind == "turn":
            out = (x.T, x.flip(0), x.reshape(SIZE * SIZE).reshape(SIZE, SIZE))[step.which % 3]
        elif step.kind == "slice":
            i = step.which % SIZE
            out = x[i : i + 1] + y
        elif step.kind == "row":
            out = y - x.mean(step.which % 2, keepdims=True)
        else:
            out = x.astype("float64").astype("float32")
        values.append(ops.tanh(out))
    total = values[-1].sum()
    for value in values[-4:-1]:
        total = total + value.mean()
    return total


def run(plan, data, where, backward=True):
    leaves = [ndl.Tensor(x, device=where) for x in data]
    total = build(plan, leaves)
    total.backward()
    grads = [leaf.grad for leaf in leaves]
    return [x.numpy() for x in (total, *grads) if x is not None]


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 2**32 - 1))
def test_all_ways_to_run_a_graph_agree(plan, seed):
    data = list(np.random.default_rng(seed).uniform(-1, 1, (3, SIZE, SIZE)))
    where = ndl.default_device()
    eager = run(plan, data, where)
    with ndl.config(fast="off"):
        closed = run(plan, data, where)
    with ndl.lazy_mode():
        lazy = run(plan, data, where)
    for a, b, c in zip(eager, closed, lazy, strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()
    reference = run(plan, data, ndl.cpu_numpy())
    for a, b in zip(eager, reference, strict=True):
        assert_close(a, b.astype("float64"), "float32", 20_000, "against the numpy device")

"""Epilogues: elementwise ops join the product before them, and change no bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_lower import listing, same

import needle as ndl
from needle import core, nn, ops, optim
from needle.compile import compile
from needle.compile.epilogue import MatMulEpilogue, alone, join
from needle.compile.lower import lower
from needle.compile.passes import check_specs
from needle.compile.program import PythonProgram

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")


def values(*shape, seed=0, kind="float32"):
    return ndl.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(kind)).array


def names(made):
    return [node.op.name for node in made.order]


def checked(function, *arrays, stores=()):
    """The joined listing, whose programs have the bits of the listing's definition."""
    made = listing(function, *arrays, stores=stores)
    joined = join(made)
    check_specs(joined, join)
    free = [False] * len(arrays)
    expected = PythonProgram(made).run(arrays, free)
    for program in (PythonProgram(joined), lower(joined)):
        for x, y in zip(program.run(arrays, free), expected, strict=True):
            same(x, y)
            assert [a.strides for a in x] == [a.strides for a in y]
    return joined


A, B, ROW = values(40, 30), values(30, 50, seed=1), values(50, seed=2)
WHOLE = values(40, 50, seed=3)


def test_bias_function_and_shortcut_join():
    made = checked(lambda a, b, r, w: [w + ops.relu(a @ b + r)], A, B, ROW, WHOLE)
    assert names(made) == ["matmul + add + relu + add"]
    made = checked(lambda a, b, r: [-(a @ b.T - r.reshape((1, 50)))], A, values(50, 30), ROW)
    assert names(made)[-1] == "matmul + subtract + negative"


def test_an_operand_may_be_computed_after_the_product():
    made = checked(lambda a, b, w: [a @ b * ops.exp(w) + ops.tanh(w)], A, B, WHOLE)
    assert names(made) == ["exp", "tanh", "matmul + multiply + add"]


def test_a_chain_has_a_most_length():
    def function(a, b, w):
        return [ops.relu(-ops.absolute((a @ b - w) * w))]

    assert names(checked(function, A, B, WHOLE)) == [
        "matmul + subtract + multiply + abs + negative", "relu",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["float64", "float16"])
def test_other_dtypes(kind):
    a, b, row = (x.astype(kind) for x in (A, B, ROW))
    assert names(checked(lambda a, b, r: [ops.relu(a @ b + r)], a, b, row)) == [
        "matmul + add + relu"
    ]


def test_batches():
    a = values(2, 5, 40, 30)
    assert names(checked(lambda a, b, r: [ops.relu(a @ b + r)], a, B, ROW)) == [
        "matmul + add + relu"
    ]


def test_a_value_between_that_others_read_is_a_second_result():
    def function(a, b, r):
        before = a @ b + r
        return [ops.relu(before), before * 2.0]

    made = checked(function, A, B, ROW)
    assert names(made)[0] == "matmul + add + relu" and made.order[0].op.kept == 1
    square, row = values(50, 50), values(50)
    made = checked(lambda a, r: [ops.relu(a @ a + r), a @ a], square, row, stores=[(0, 0)])
    assert names(made) == ["matmul + add + relu", "matmul"]


def test_only_one_value_between_is_kept():
    def function(a, b, r):
        first = a @ b
        second = first + r
        return [first, second, ops.exp(second)]

    made = checked(function, A, B, ROW)
    assert names(made)[0] == "matmul + add" and names(made)[-1] == "exp"


def test_of_two_products_the_later_one_takes_the_sum():
    made = checked(lambda a, b, w: [a @ b + w @ (w.T @ a @ b)], A, B, WHOLE)
    assert names(made)[-1] == "matmul + add"
    assert sum("+" in name for name in names(made)) == 1


def why(function, *arrays):
    return [found for _, _, found in alone(listing(function, *arrays))]


def test_what_stays_alone_and_why():
    later = why(lambda a, b: [(lambda y: y * ops.flip(y, 0))(a @ b)], A, B)
    assert later == ["others read it before the other operand of multiply is known"]
    column = values(40, 1)
    assert why(lambda a, b, c: [a @ b * c], A, B, column) == [
        "the other operand of multiply is neither a row nor of this shape"
    ]
    assert why(lambda a, b: [a @ b * 0.5], A, B) == [
        "the other operand of multiply is neither a row nor of this shape"
    ]
    assert why(lambda a, b: [ops.greater(a @ b, 0.0)], A, B) == [
        "greater gives another shape or dtype"
    ]
    assert why(lambda a, b: [ops.gelu(a @ b)], A, B) == ["gelu takes longer than its memory"]
    assert why(lambda a, b, r: [a @ b + r], values(40, 1), values(1, 50), ROW) == [
        "it is a multiplication"
    ]
    whole = [x.astype("int32") for x in (A, B, ROW)]
    assert why(lambda a, b, r: [a @ b + r], *whole) == ["no kernel on cpu() for int32"]
    assert why(lambda a, b: [(lambda y: y + y)(a @ b)], A, B) == ["add takes other operands, too"]


def test_a_row_that_is_not_dense_is_added_by_itself():
    row = values(50, 2).permute((1, 0))[0]
    made = checked(lambda a, b, r: [ops.relu(a @ b + r)], A, B, row)
    assert isinstance(made.order[0].op, MatMulEpilogue)


def test_training_steps_keep_their_bits():
    rng = np.random.default_rng(0)
    x, y = ndl.Tensor(rng.standard_normal((20, 8)).astype("float32")), ndl.Tensor(np.arange(20) % 4)
    results = []
    for mode in ("on", "nofuse", "off"):
        ndl.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
        )
        optimizer = optim.Adam(net.parameters())

        def step(x, y, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = ops.cross_entropy(net(x), y).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = compile(step, mode=mode)
        results.append([run(x, y).item() for _ in range(4)])
        if mode == "on":
            text = ndl.explain(run)
            assert "matmul + add + relu" in text and "matmul + relu_grad" in text
    assert results[0] == results[1] == results[2]


def test_explain_says_what_stays_alone():
    run = compile(lambda a, b: ops.gelu(a @ b))
    run(ndl.Tensor(A), ndl.Tensor(B))
    assert "not fused: matmul into gelu: gelu takes longer than its memory" in ndl.explain(run)

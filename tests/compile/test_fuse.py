"""Fusion: chains of elementwise ops become one kernel with the bits of the single ones."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped
from test_lower import listing, same

import needle as ndl
from needle import config, core, ops
from needle.compile import compile
from needle.compile.fuse import Fused, Groups, fuse
from needle.compile.lower import lower
from needle.compile.program import PythonProgram

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")

SHAPE = (2, 130, 257)
COMBINED = (
    lambda x, y: x * y,
    lambda x, y: ops.tanh(x),
    lambda x, y: ops.where(x > y, x, 0.5),
    lambda x, y: x - 2.0,
)


def values(*shape, seed=0, kind="float32"):
    return ndl.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(kind)).array


def kinds(made):
    return [type(node.op).__name__ for node in made.order]


def checked(function, *arrays, stores=()):
    """The fused listing, whose programs have the bits of the listing's definition."""
    made = listing(function, *arrays, stores=stores)
    fused = fuse(made)
    free = [False] * len(arrays)
    expected = PythonProgram(made).run(arrays, free)
    again, native = (made.run(arrays, free) for made in (PythonProgram(fused), lower(fused)))
    for a, b, c in zip(expected, again, native, strict=True):
        same(b, a)
        same(c, a)
        assert [x.strides for x in a] == [x.strides for x in b]
    return fused


def test_a_chain_is_one_kernel():
    x, y, z = (values(*SHAPE, seed=i) for i in range(3))
    fused = checked(lambda x, y, z: [ops.tanh(x * 0.5 + y) * z], x, y, z)
    assert kinds(fused) == ["Fused"]
    assert [function for function, _ in fused.order[0].op.steps] == [
        "multiply", "add", "tanh", "multiply",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_rows_columns_and_choices(kind):
    x, row = values(*SHAPE, kind=kind), values(257, kind=kind)
    column = values(130, 1, kind=kind)

    def function(x, row, column):
        y = ops.exp((x - row) * column)
        return [ops.where(y > 1.0, y + x, ops.sqrt(ops.absolute(x)) / column)]

    assert "Fused" in kinds(checked(function, x, row, column))


def test_the_memory_order_is_kept():
    image = values(4, 24, 24, 32).permute((0, 3, 1, 2))
    other = values(4, 32, 24, 24)
    for pair in ((image, other), (other, image), (image, image)):
        checked(lambda x, y: [ops.tanh(x * 2.0) + y * x], *pair)
    wide = values(4, 32, 1, 1).broadcast_to((4, 32, 24, 24))
    checked(lambda x, y: [ops.tanh(x * 2.0) + y * x], wide, image)


def test_values_that_others_read_are_results_too():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)

    def function(x, y):
        product = x * y
        grown = ops.exp(product)
        return [product, grown + product, product.sum(), ops.tanh(grown) - 1.0]

    fused = checked(function, x, y)
    assert kinds(fused) == ["Fused", *["TupleGetItem"] * 3, "Sum", "Fused"]
    (first, second) = (node.op for node in fused.order if isinstance(node.op, Fused))
    assert [name for name, _ in first.steps] == ["multiply", "exp", "add"]
    assert first.results == (2, 3, 4) and len(second.steps) == 2


def test_stores_are_results():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)

    def function(x, y):
        moved = x - y * 0.5
        return [moved, moved * 2.0]

    fused = checked(function, x, y, stores=[(0, 0)])
    assert kinds(fused) == ["Fused", "TupleGetItem", "TupleGetItem"]


def test_a_value_that_another_op_needs_in_between_is_not_crossed():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)

    def function(x, y):
        shifted = x - y
        return [shifted * (ops.exp(shifted).sum() + 1.0)]

    fused = checked(function, x, y)
    assert kinds(fused) == ["Fused", "TupleGetItem", "TupleGetItem", "Sum", "Add", "Multiply"]
    groups = Groups(listing(function, x, y))
    assert groups.refused[-1][2] == "another op needs a value in between"
    twice = checked(lambda x, y: [ops.exp(x * 2.0).sum() * ops.exp(y * 2.0)], x, y)
    assert kinds(twice).count("Fused") == 2


def test_numbers_are_part_of_the_program():
    x = values(*SHAPE)
    numbers = (0.5, -0.0, float("inf"), 1e-42, 3.0)

    def function(x):
        y = x
        for number in numbers:
            y = ops.maximum(y * number, x)
        return [y]

    fused = checked(function, x)
    assert len(fused.order[0].inputs) == 1 and kinds(fused) == ["Fused"]
    texts = [args[1] for name, args in fused.order[0].op.steps if name == "multiply"]
    assert texts[:3] == ["0.5", "-0.0", "inf"] and texts[4] == "3.0"
    nan = checked(lambda x: [ops.maximum(x * 2.0, ops.exp(x)) + float("nan")], x)
    assert len(nan.order[0].inputs) == 2, "the bits of a NaN are not part of its text"


def test_programs_that_are_too_long_are_cut():
    x = values(*SHAPE)
    many = [values(*SHAPE, seed=i) for i in range(20)]
    sums = checked(lambda *many: [sum(many[1:], many[0]) * 2.0], *many)
    assert len(kinds(sums)) == 2
    deep = values(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 64).permute((*range(13, -1, -1), 14))
    rows = [values(*(2 if i == k else 1 for i in range(14)), 64, seed=k) for k in range(14)]

    def function(x, *rows):
        for row in rows:
            x = x * row
        return [x]

    assert len(kinds(checked(function, deep, *rows))) > 1
    constants = checked(lambda x: [sum((x * (1 / (i + 3)) for i in range(16)), x)], x)
    assert len(kinds(constants)) > 1


@looped("seed", range(20))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)
    wide = values(*SHAPE, seed=seed)
    given = [wide, values(257, seed=1), values(130, 1, seed=2), wide.permute((0, 1, 2))]

    def function(*given):
        draw = np.random.default_rng(seed)
        made = [x + y for x, y in zip(given, given[::-1], strict=True)]
        for _ in range(14):
            x, y = (made[i] for i in draw.integers(len(made), size=2))
            made.append(COMBINED[draw.integers(len(COMBINED))](x, y))
        kept = draw.choice(len(made), 3, replace=False)
        return [*(made[i] for i in kept), made[-1]]

    checked(function, *given, stores=[(0, 0)] if rng.random() < 0.5 else [])


def test_short_arrays_are_left_alone():
    x = values(10, 10)
    made = listing(lambda x: [ops.tanh(x * 0.5) * x], x)
    assert fuse(made) is made


@looped("kind", ["float16", "bfloat16", "float64", "int32", "bool"])
def test_casts_and_other_dtypes(kind):
    x = values(8, 130, 257).astype(kind)
    row = values(257)

    def function(x, row):
        wide = x.astype("float32")
        y = ops.where(wide > 0.25, wide * 0.1, 1.5) - wide
        return [y.astype(kind), ops.astype(y.astype("float64").astype("float32") * row, "bfloat16")]

    fused = checked(function, x, row)
    assert kinds(fused) == ["Fused", "TupleGetItem", "TupleGetItem"]
    if kind not in ("bool", "bfloat16"):
        assert kinds(checked(lambda x: [ops.maximum(x * x, -x) + 1], x)) == ["Fused"]
    checked(function, x.permute((2, 0, 1)), values(130))


def test_long_chains_are_cut():
    x = values(*SHAPE)

    def function(x):
        y = x
        for i in range(40):
            y = ops.sin(y + 0.01 * i)
        return [y]

    fused = checked(function, x)
    steps = [len(node.op.steps) for node in fused.order if isinstance(node.op, Fused)]
    assert sum(steps) == 80 and max(steps) <= 24


def test_modes_choose():
    def function(x):
        return ops.tanh(x * 0.5) * x + 1.0

    x = ndl.Tensor(np.ones((300, 300), np.float32))
    counts = {}
    for mode in ("on", "nofuse", "python"):
        run = compile(function, mode=mode)
        np.testing.assert_array_equal(run(x).numpy(), function(x).numpy())
        (call,) = next(iter(run._calls.values()))
        counts[mode] = len(call.program.listing.order)
    assert counts["on"] == 1 and counts["nofuse"] == counts["python"] == 4
    with config.override(check="poison"):
        np.testing.assert_array_equal(compile(function)(x).numpy(), function(x).numpy())


def test_explain_names_what_was_fused():
    run = compile(lambda x: (ops.tanh(x * 0.5) * x).sum())
    run(ndl.Tensor(np.ones((300, 300), np.float32)))
    text = ndl.explain(run)
    assert "fused(multiply, tanh, multiply) float32" in text and "2 kernels" in text
    run = compile(lambda x: ops.exp(x + 1.0).sum() * (x + 1.0))
    run(ndl.Tensor(np.ones((300, 300), np.float32)))
    assert "not fused: add into multiply: another op needs a value in between" in ndl.explain(run)

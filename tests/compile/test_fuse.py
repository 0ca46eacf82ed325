"""Fusion: chains of elementwise ops become one kernel with the bits of the single ones."""

from __future__ import annotations

import numpy as np
import pytest
from test_lower import listing, same

import needle as ndl
from needle import config, core, ops
from needle.compile import compile
from needle.compile.fuse import Fused, fuse
from needle.compile.lower import lower
from needle.compile.program import PythonProgram

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")

SHAPE = (2, 130, 257)


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


def test_what_others_read_stays():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)
    both = checked(lambda x, y: [x * y, ops.exp(x * y) + 1.0], x, y)
    assert len(both.order) > 1
    stored = checked(lambda x, y: [x - y * 0.5, (x - y * 0.5) * 2.0], x, y, stores=[(0, 0)])
    assert len(stored.order) > 1
    product = checked(lambda x, y: [ops.exp(x * 2.0).sum() * ops.exp(y * 2.0)], x, y)
    assert kinds(product).count("Fused") == 2


def test_short_arrays_and_half_precision_are_left_alone():
    x = values(10, 10)
    made = listing(lambda x: [ops.tanh(x * 0.5) * x], x)
    assert fuse(made) is made
    half = listing(lambda x: [ops.tanh(x * 0.5) * x], values(*SHAPE).astype("float16"))
    assert fuse(half) is half


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
    assert "fused" in text and "sum" in text and "2 kernels" in text

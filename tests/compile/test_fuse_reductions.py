"""Fusion: a reduction that alone reads what a group computes is the end of its kernel."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped
from test_fuse import checked, kinds, values
from test_lower import listing

import needle as ndl
from needle import config, core, executor, ops
from needle.compile import compile, memory
from needle.compile.fuse import Groups
from needle.ops.core.primitives import SumTo

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")

SHAPE = (8, 130, 257)
ENDS = {
    "all": lambda x: x.sum(),
    "mean": lambda x: ops.mean(x),
    "rows": lambda x: ops.amax(x, axis=2),
    "kept": lambda x: ops.mean(x, axis=(1, 2), keepdims=True),
    "columns": lambda x: ops.summation(x, axis=(0, 1)),
    "middle": lambda x: ops.amin(x, axis=1),
    "sum to": lambda x: executor.apply(SumTo.of((130, 257)), x),
}


@looped("end", ENDS)
@looped("kind", ["float32", "float64", "float16", "int32"])
def test_a_group_ends_in_a_reduction(end, kind):
    x, y = (values(*SHAPE, seed=i, kind="float32").astype(kind) for i in range(2))
    if kind == "int32" and end in ("mean", "kept"):
        return
    fused = checked(lambda x, y: [ENDS[end](x * y + x)], x, y)
    (node,) = [node for node in fused.order if node.op.name.startswith("fused")]
    assert len(fused.order) == 1 and node.op.reduction


def test_a_single_function_and_a_cast_are_groups_then():
    x = values(*SHAPE)
    assert kinds(checked(lambda x: [ops.mean(x * x)], x)) == ["Fused"]
    assert kinds(checked(lambda x: [(x > 0.5).sum()], x)) == ["Fused"]
    half = values(8, 130, 257).astype("bfloat16")
    assert kinds(checked(lambda x: [x.astype("float32").sum(axis=0)], half)) == ["Fused"]


def test_other_results_and_rows_and_stores():
    x, row = values(*SHAPE), values(257)

    def function(x, row):
        moved = x - row
        return [moved, ops.square(moved).sum(axis=(0, 1)), moved * 2.0]

    assert kinds(checked(function, x, row)) == ["Fused", *["TupleGetItem"] * 3]
    checked(function, x, row, stores=[(0, 0)])
    checked(function, x, row, stores=[(1, 1)])


def test_memory_in_another_order_is_summed_in_that_order():
    image = ndl.Tensor(values(16, 24, 24, 32).permute((0, 3, 1, 2)))
    runs = [compile(lambda x: (ops.tanh(x) * 2.0).sum(axis=(1, 2)), mode=m) for m in ("on", "off")]
    found, expected = (run(image).numpy() for run in runs)
    np.testing.assert_array_equal(found, expected)
    assert "fused(tanh, multiply, sum)" in ndl.explain(runs[0])


def refusals(function, *arrays):
    return [(node.op.name, why) for node, _, why in Groups(listing(function, *arrays)).refused]


def test_what_is_no_end_says_why():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)
    short = (lambda x, y: [(x * y).sum()], values(100, 200), values(100, 200))
    assert refusals(*short) == [("sum", "fewer than 262,144 elements are reduced")]
    short = (lambda x, y: [(x * y).sum(axis=1)], values(40_000, 10), values(40_000, 10))
    assert refusals(*short) == [("sum", "rows have fewer than 16 elements")]
    apart = (lambda x, y: [ops.summation(x * y, axis=(0, 2))], x, y)
    assert refusals(*apart) == [("sum", "the reduced axes do not lie side by side")]
    assert kinds(checked(*apart)) == ["Multiply", "Sum"]

    def read_twice(x, y):
        product = x * y
        return [product.sum(), product]

    assert refusals(read_twice, x, y) == [("sum", "others read it, too")]

    def normalised(x, y):
        shifted = x - y
        return [shifted / (ops.mean(ops.square(shifted)) + 1.0)]

    assert ("divide", "another op needs a value in between") in refusals(normalised, x, y)
    checked(normalised, x, y)
    spread = (lambda x, y: [x * ops.amax(x + y, axis=2, keepdims=True)], x, y)
    assert kinds(checked(*spread)) == ["Fused", "Multiply"]


def test_two_reductions_are_two_kernels():
    x, y = values(*SHAPE), values(*SHAPE, seed=1)

    def function(x, y):
        moved = x - y
        return [ops.square(moved).sum(), ops.amax(ops.absolute(moved))]

    fused = checked(function, x, y)
    assert kinds(fused).count("Fused") == kinds(fused).count("Max") == 1
    assert ("max", "there is another reduction") in refusals(function, x, y)


def loss(x, y):
    return ops.mean((x - y) ** 2)


def test_a_training_step_has_the_bits_of_eager_mode():
    def step(x, y, w):
        value = loss(x * w, y)
        value.backward()
        return value, w.grad

    given = [ndl.Tensor(values(4_000, 70, seed=i)) for i in range(2)]
    results = {}
    for mode in ("off", "nofuse", "on"):
        w = ndl.Tensor(values(70, seed=3), requires_grad=True)
        run = compile(step, mode=mode)
        for check in ("", "spec", "poison"):
            with config.override(check=check):
                w.grad = None
                results[mode, check] = [x.numpy() for x in run(*given, w)]
        if mode == "on":
            assert "mean) float32[4000, 70] x 4" in ndl.explain(run)
    for found in results.values():
        for a, b in zip(found, results["off", ""], strict=True):
            np.testing.assert_array_equal(a, b)


def test_explain_names_the_reduction_and_its_memory():
    given = ndl.Tensor(np.ones((600, 600), np.float32))
    text, most = {}, {}
    for mode in ("on", "nofuse"):
        run = compile(lambda x: (ops.tanh(x * 0.5) * x).sum(), mode=mode)
        run(given)
        text[mode] = ndl.explain(run)
        (call,) = run.calls()
        most[mode] = memory.forecast(call.program)
    assert "fused(multiply, tanh, multiply, sum) float32[]" in text["on"]
    assert "1 kernels" in text["on"] and "4 kernels" in text["nofuse"]
    assert most["on"] < 600 * 600 * 4 < most["nofuse"]


def test_a_saved_program_is_fused_when_it_is_loaded(tmp_path):
    x, y = (ndl.Tensor(values(*SHAPE, seed=i)) for i in range(2))
    run = compile(loss)
    expected = run(x, y).numpy()
    ndl.io.save_program(run, tmp_path / "loss.needle")
    again = ndl.load_program(tmp_path / "loss.needle")
    np.testing.assert_array_equal(again(x, y).numpy(), expected)

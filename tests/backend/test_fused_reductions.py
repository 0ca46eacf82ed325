"""Reductions at the end of fused programs: they have the bits of the program and the reduction."""

from __future__ import annotations

import numpy as np
import pytest
from devices import DEVICES
from looped import looped

from needle import config, core
from needle.backend import Backend, fused
from needle.backend.kernels import reduced_dtype
from needle.backend.ndarray import array, empty
from needle.devices import as_device
from needle.errors import ArgumentError

FLOATS = ("float32", "float64", "float16", "bfloat16")
FUNCTIONS = ("sum", "mean", "max", "min")
PROGRAM = (("multiply", (0, 1)), ("add", (2, 0)))
CASES = {
    "short": ((5, 7), (0, 1)),
    "whole": ((3, 46_001), (0, 1)),
    "chunks": ((2, 300_001), (1,)),
    "long rows": ((9, 150_001), (1,)),
    "rows": ((41, 4_097), (1,)),
    "short rows": ((301, 65), (1,)),
    "two axes": ((5, 16, 300), (1, 2)),
    "columns": ((2_003, 10), (0,)),
    "wide": ((301, 2_500), (0,)),
    "chunks of columns": ((70_001, 3), (0,)),
    "middle": ((6, 500, 33), (1,)),
    "of size 1": ((3, 1, 70_000, 1), (2,)),
}


def filled(rng, kind, shape, device="cpu"):
    values = rng.standard_normal(shape) * 3
    values = values > 0 if kind == "bool" else np.clip(values, 0, 9) if kind == "uint8" else values
    return array(np.asarray(values), kind, as_device(device))


def run(which, program, inputs, results, function, axes):
    """The outputs of a program whose last result is reduced."""
    device, shape = inputs[0].device, inputs[0].shape
    kinds = fused.register_dtypes(program, tuple(x.dtype for x in inputs))
    outs = [empty(shape, kinds[r], device) for r in results[:-1]]
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    outs.append(empty(kept, reduced_dtype(function, kinds[results[-1]]), device))
    which(device.backend, program, outs, inputs, results, function, axes)
    return outs


def checked(program, inputs, results, function, axes):
    """With any number of threads, the bits are those of the program and then the reduction."""
    backend = type(inputs[0].device.backend)
    for threads in (1, 2):
        with config.override(threads=threads):
            found = run(backend.reduce_fused, program, inputs, results, function, axes)
            expected = run(Backend.reduce_fused, program, inputs, results, function, axes)
        for a, b in zip(found, expected, strict=True):
            a, b = (x.astype("float64").numpy() for x in (a, b))
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


@pytest.fixture
def no_other(monkeypatch):
    """Make the native device fail where it has no kernel."""
    if core.native is None:
        pytest.skip("needs the native module")

    def refused(*_):
        raise AssertionError("there is no kernel")

    expected = Backend.reduce_fused
    monkeypatch.setattr(Backend, "reduce_fused", refused)
    monkeypatch.setitem(globals(), "Backend", type("Default", (), {"reduce_fused": expected}))


@looped("case", CASES)
@looped("function", FUNCTIONS)
def test_a_reduction_has_the_bits_of_its_kernel(case, function, no_other):
    shape, axes = CASES[case]
    rng = np.random.default_rng(0)
    for kind in ("float32", "float64", "bfloat16"):
        inputs = [filled(rng, kind, shape) for _ in range(2)]
        checked(PROGRAM, inputs, (3,), function, axes)
        checked(PROGRAM, inputs, (2, 3), function, axes)


@looped("kind", ["int32", "int8", "uint8", "bool", "float16"])
def test_other_dtypes(kind, no_other):
    rng = np.random.default_rng(0)
    for shape, axes in CASES.values():
        x = filled(rng, "float32", shape)
        program = (("multiply", (0, "3.0")), (kind, (1,)))
        for function in FUNCTIONS[:: 2 if kind != "float16" else 1]:
            if function != "mean" or kind == "float16":
                checked(program, [x], (2,), function, axes)


def broadcast(x, axis, shape):
    ranges = [(0, 1 if i == axis else n, 1) for i, n in enumerate(x.shape)]
    return x.slice(ranges).broadcast_to(shape)


@looped("case", CASES)
def test_operands_that_are_repeated_or_strided(case, no_other):
    shape, axes = CASES[case]
    rng = np.random.default_rng(0)
    for kind in ("float32", "float16"):
        x, y = (filled(rng, kind, shape) for _ in range(2))
        wide = filled(rng, kind, (*shape[:-1], 2 * shape[-1]))
        ends = [(0, n, 1) for n in shape[:-1]]
        strided = wide.slice([*ends, (0, shape[-1], 2)])
        number = filled(rng, kind, ()).broadcast_to(shape)
        given = [broadcast(y, axis, shape) for axis in range(len(shape))]
        for other in (*given, number, strided):
            checked(PROGRAM, [x, other], (2, 3), "sum", axes)
            checked(PROGRAM, [other, x], (3,), "max", axes)


@looped("function", FUNCTIONS)
def test_values_that_are_not_finite(function, no_other):
    values = np.random.default_rng(0).standard_normal((12, 20_001)).astype(np.float32)
    values[2, 5_000], values[3, 20_000], values[4, 0] = np.nan, np.inf, -np.inf
    values[5, ::2], values[5, 1::2] = 0.0, -0.0
    x = array(values, "float32", as_device("cpu"))
    for axes in ((0,), (1,), (0, 1)):
        checked((("negative", (0,)),), [x], (1,), function, axes)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_follows_the_definition(device):
    rng = np.random.default_rng(0)
    x, y = (filled(rng, "float32", (6, 40), device) for _ in range(2))
    expected = x.numpy() * y.numpy() + x.numpy()
    for function, axes in (("sum", (0,)), ("mean", (1,)), ("max", (0, 1)), ("min", ())):
        _, found = run(type(x.device.backend).reduce_fused, PROGRAM, [x, y], (2, 3), function, axes)
        right = getattr(np, function)(expected, axis=axes, keepdims=True)
        np.testing.assert_allclose(found.numpy(), right, rtol=2e-6, atol=1e-5)


@pytest.mark.skipif(core.native is None, reason="needs the native module")
@looped("layout", ["transposed", "apart", "empty", "0-d", "short rows", "prod"])
def test_what_has_no_kernel_is_computed_as_defined(layout):
    rng = np.random.default_rng(0)
    shape = {"empty": (3, 0), "0-d": (), "short rows": (400, 3)}.get(layout, (40, 30, 20))
    x, y = (filled(rng, "float32", shape) for _ in range(2))
    axes = {"0-d": (), "apart": (0, 2), "prod": (0, 1, 2)}.get(layout, (1,))
    if layout == "transposed":
        y = filled(rng, "float32", shape[::-1]).permute((2, 1, 0))
    checked(PROGRAM, [x, y], (3,), "prod" if layout == "prod" else "sum", axes)


@looped("case", [*CASES, "rows of some blocks"])
@looped("kind", ["float32", "bfloat16"])
def test_a_result_may_lie_where_an_input_does(case, kind, no_other):
    shape, axes = CASES.get(case, ((31, 2_500), (1,)))
    rng = np.random.default_rng(0)
    x, y = (filled(rng, kind, shape) for _ in range(2))
    expected = run(Backend.reduce_fused, PROGRAM, [x, y], (2, 3), "sum", axes)
    out = empty(expected[1].shape, kind, x.device)
    x.device.backend.reduce_fused(PROGRAM, [x, out], [x, y], (2, 3), "sum", axes)
    for found, right in zip((x, out), expected, strict=True):
        np.testing.assert_array_equal(*(a.astype("float32").numpy() for a in (found, right)))


@pytest.mark.parametrize("device", DEVICES)
def test_wrong_programs_are_refused(device):
    x = filled(np.random.default_rng(0), "float32", (4, 4), device)
    out = empty((4, 1), "float32", x.device)
    for program, results in [((("add", (0, 2)),), (1,)), ((("tanh", (0,)),), (0,))]:
        with pytest.raises(ArgumentError, match="run_fused"):
            x.device.backend.reduce_fused(program, [out], [x], results, "sum", (1,))

"""Fused programs: every form has the bits of its steps as single kernels."""

from __future__ import annotations

import numpy as np
import pytest
from devices import DEVICES
from looped import looped

import needle as ndl
from needle import config, core
from needle.backend import fused
from needle.backend.functions import functions
from needle.backend.ndarray import array, empty
from needle.devices import as_device
from needle.errors import ArgumentError, DtypeError

ON_HOST = [name for name in DEVICES if name in ("cpu", "cpu_numpy")]
FLOATS = ("float32", "float64", "float16", "bfloat16")
UNARY = ("negative", "abs", "square", "relu", "tanh", "exp", "sigmoid", "floor", "isfinite")
BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "less", "relu_grad", "tanh_grad", "equal",
)  # fmt: skip
WHOLE = ("add", "subtract", "multiply", "minimum", "greater_equal", "bitwise_and")
LOGIC = ("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_xor", "equal")

LAYOUTS = {
    "dense": ((37, 65), lambda x: x),
    "long": ((3, 40_001), lambda x: x),
    "strided": ((37, 65), lambda x: x[::2, ::3]),
    "reversed": ((37, 65), lambda x: x[::-1, ::-1]),
    "transposed": ((37, 65), lambda x: x.T),
    "three": ((5, 6, 70), lambda x: x.transpose(1, 0, 2)),
    "empty": ((3, 0), lambda x: x),
    "0-d": ((), lambda x: x),
}


def known(device, kind):
    return kind != "bfloat16" or device != "cpu_numpy"


def filled(rng, kind, shape, device):
    values = rng.standard_normal(shape) * 3
    values = values > 0 if kind == "bool" else np.clip(values, 0, 9) if kind == "uint8" else values
    return array(np.asarray(values), kind, as_device(device))


def viewed(x, view, rng):
    """The array as a view; now and then a row, a column or a number of it, broadcast."""
    shape = np.empty(x.shape, "V1")
    found = view(shape)
    steps = {LAYOUTS["strided"][1]: (2, 3), LAYOUTS["reversed"][1]: (-1, -1)}.get(view)
    if steps:
        bounds = zip(x.shape, steps, strict=True)
        ranges = [(0 if s > 0 else n - 1, -(-n // abs(s)), s) for n, s in bounds]
        x = x.slice(ranges)
    elif view is LAYOUTS["transposed"][1]:
        x = x.permute((1, 0))
    elif view is LAYOUTS["three"][1]:
        x = x.permute((1, 0, 2))
    assert x.shape == found.shape
    if x.ndim and x.size and rng.random() < 0.4:
        kept = [(0, 1 if rng.random() < 0.6 else n, 1) for n in x.shape]
        x = x.slice(kept).broadcast_to(x.shape)
    return x


def drawn(rng, inputs, length, kinds):
    """A random program on inputs of these dtypes, and the registers of its outputs."""
    steps, registers = [], list(inputs)
    while len(steps) < length:
        kind = registers[rng.integers(len(registers))]
        flags = [i for i, k in enumerate(registers) if k == "bool"]
        group = UNARY + BINARY if kind in FLOATS else LOGIC if kind == "bool" else WHOLE
        name = str(rng.choice([*group, *(["where"] if flags else []), str(rng.choice(kinds))]))
        count = 1 if name in fused.CASTS else functions()[name].arity
        places = [i for i, k in enumerate(registers) if k == kind]
        arguments = [int(i) for i in rng.choice(places, count)]
        if count > 1 and rng.random() < 0.4:
            text = str(rng.integers(0, 2 if kind == "bool" else 4))
            halves = kind in FLOATS and rng.random() < 0.5
            arguments[rng.integers(count - 1)] = f"-0.{text}" if halves else text
        if name == "where":
            arguments = [int(rng.choice(flags)), *arguments[1:]]
        steps.append((name, tuple(arguments)))
        found = fused.register_dtypes(tuple(steps), tuple(map(ndl.dtype.as_dtype, inputs)))
        registers = [x.name for x in found]
    made = range(len(inputs), len(registers))
    results = rng.choice(made, min(len(made), int(rng.integers(1, 4))), replace=False)
    return tuple(steps), tuple(map(int, results))


def checked(device, program, results, inputs):
    """Run a program as a whole and step by step; both give the same bits."""
    where = as_device(device)
    kinds = fused.register_dtypes(program, tuple(x.dtype for x in inputs))
    whole, single = ([empty(inputs[0].shape, kinds[r], where) for r in results] for _ in range(2))
    where.backend.run_fused(program, whole, inputs, results)
    fused.run(where.backend, program, single, inputs, results)
    for a, b in zip(whole, single, strict=True):
        a, b = (x.astype("float64").numpy() for x in (a, b))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


@pytest.mark.parametrize("device", ON_HOST)
@looped("layout", LAYOUTS)
@looped("seed", range(12))
def test_random_programs_are_their_steps(device, layout, seed):
    random_program(device, layout, seed)


@pytest.mark.skipif(core.native is None, reason="needs the native module")
@looped("seed", range(12))
def test_random_programs_on_arrays_larger_than_the_second_caches(seed):
    """Their operands are fetched ahead; results of 8 bytes go past the caches, too."""
    assert core.native is not None
    core.native.set_streaming_bytes(1 << 19)  # the second caches count as half of it
    try:
        random_program("cpu", "long", seed)
    finally:
        core.native.set_streaming_bytes(0)


def random_program(device, layout, seed):
    rng = np.random.default_rng(seed)
    shape, view = LAYOUTS[layout]
    kinds = [k for k in (*FLOATS, "int32", "uint8", "bool", "int64") if known(device, k)]
    given = [str(k) for k in rng.choice(kinds, rng.integers(1, 5))]
    inputs = [viewed(filled(rng, k, shape, device), view, rng) for k in given]
    with np.errstate(all="ignore"):
        program, results = drawn(rng, given, int(rng.integers(1, 12)), kinds)
        for threads in (1, 2):
            with config.override(threads=threads):
                checked(device, program, results, inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_values_that_are_results_and_read_again(device):
    rng = np.random.default_rng(0)
    x, y = (filled(rng, "float32", (4, 6), device) for _ in range(2))
    program = (("multiply", (0, 1)), ("tanh", (2,)), ("add", (2, 3)), ("greater", (3, "-0.25")))
    checked(device, program, (2, 4, 5), [x, y])
    checked(device, program, (5, 2), [x, y])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["float32", "float16", "int32", "bool"])
def test_numbers_and_casts(device, kind):
    x = filled(np.random.default_rng(0), kind, (5, 7), device)
    casts = tuple((to, (0,)) for to in ("float32", "float64", "float16", "int32", "uint8", "bool"))
    checked(device, casts, tuple(range(1, 7)), [x])
    if kind == "float32":
        text = ("inf", "-inf", "1e-42", "-0.0", "3.4028234663852886e+38", "0.1")
        program = tuple(("maximum", (0, x)) for x in text)
        checked(device, program, tuple(range(1, 7)), [x])


@pytest.mark.parametrize("device", ON_HOST)
def test_a_result_may_lie_where_an_input_does(device):
    rng = np.random.default_rng(0)
    x, y = (filled(rng, "float32", (3, 20_000), device) for _ in range(2))
    program = (("multiply", (0, 1)), ("subtract", (0, 2)), ("add", (3, 0)))
    where = as_device(device)
    expected = [empty(x.shape, "float32", where) for _ in range(2)]
    fused.run(where.backend, program, expected, [x, y], (2, 4))
    where.backend.run_fused(program, [x, y], [x, y], (2, 4))
    np.testing.assert_array_equal(x.numpy(), expected[0].numpy())
    np.testing.assert_array_equal(y.numpy(), expected[1].numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_wrong_programs_are_refused(device):
    rng = np.random.default_rng(0)
    x, flags = filled(rng, "float32", (4,), device), filled(rng, "bool", (4,), device)

    def run(program, results=None):
        out = empty((4,), "float32", as_device(device))
        as_device(device).backend.run_fused(program, [out], [x, flags], results)

    run((("add", (0, "1")),))
    for program, results in [
        ((("add", (0, 2)),), None),
        ((("add", (0, -1)),), None),
        ((("nothing", (0,)),), None),
        ((("tanh", (0, 0)),), None),
        ((("add", ("1", "2")),), None),
        ((("tanh", (0,)),), (0,)),
        ((("tanh", (0,)),), (3,)),
        ((), None),
    ]:
        with pytest.raises(ArgumentError):
            run(program, results)
    for step in [("add", (0, 1)), ("where", (0, 0, 0)), ("bitwise_and", (0, 0))]:
        with pytest.raises(DtypeError):
            run((step,))


def test_the_table_names_every_function_once():
    assert not {*functions()} & {*fused.CASTS}

"""Calls that nobody wrote down: every op with mutated samples (see needle.testing.mutation).

`FUZZ_EXAMPLES=2000 python -m pytest tests/ops/test_mutants.py` looks further,
at other calls each time.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needle as ndl
from needle import ops
from needle.backend.numpy import FUNCTIONS
from needle.errors import IndexRangeError, NeedleError, OptionError, ShapeError
from needle.testing.checks import cases
from needle.testing.mutation import Mutant, check_mutant, mutate

LONG = os.environ.get("FUZZ_EXAMPLES")
EXAMPLES = int(LONG or 8)
INSIDE = {  # made by gradients alone, from values that belong together
    op.__name__ for op in ops.all_ops() if op.__name__.endswith(("Grad", "Take"))
} | {"LinearIndex"}
OPS = [op for op in ops.all_ops() if op.__name__ not in INSIDE or op.__name__ == "Take"]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_a_call_gives_the_same_everywhere_or_a_clear_error(op):
    chosen = cases(op) + cases(op, raising=True)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=not LONG, database=None)
    @given(st.integers(0, 2**63))
    def run(seed):
        dice = random.Random(seed)
        mutant = mutate(dice.choice(chosen), dice.randrange)
        if op is not ops.SearchSorted or are_sorted(mutant.values):
            check_mutant(mutant, ndl.default_device())

    run()


def are_sorted(values):
    """Whether they are, NaN last: among others a search finds any place, on each device its own."""
    edges = np.ravel(values[0]) if values else np.empty(0)
    return np.array_equal(np.sort(edges), edges, equal_nan=edges.dtype.kind == "f")


def test_a_bare_exception_is_found(monkeypatch):
    """The check above can fail."""
    mutant = Mutant(ops.Tanh, (), (np.ones(3),), ("float32",), ("plain",))
    check_mutant(mutant, ndl.default_device())
    monkeypatch.setattr(ops.Tanh, "prepare", lambda self, inputs: inputs[5])
    with pytest.raises(IndexError):
        check_mutant(mutant, ndl.default_device())


@pytest.mark.skipif(ndl.default_device() == ndl.cpu_numpy(), reason="nothing to compare with")
def test_a_wrong_result_is_found(monkeypatch):
    mutant = Mutant(ops.Tanh, (), (np.ones(3),), ("float32",), ("plain",))
    monkeypatch.setitem(FUNCTIONS, "tanh", lambda x: np.tanh(x) + 1)
    with pytest.raises(AssertionError, match="against the numpy device"):
        check_mutant(mutant, ndl.default_device())


# ---- what it has found ---------------------------------------------------------------


def x(*shape):
    return ndl.Tensor(np.arange(float(np.prod(shape))).reshape(shape))


def whole(number):
    return ndl.Tensor(number, dtype="int64")


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: ops.Exp.of()(x(3), x(3)), TypeError),  # read behind the operands
        (lambda: ops.Add.of()(x(3)), TypeError),
        (lambda: ops.Add.of()(), TypeError),
        (lambda: ops.Stack.of(0)(), TypeError),
        (lambda: ops.Sum.of((0, 0, 1), False)(x(2, 3)), IndexRangeError),  # wrote behind the result
        (lambda: ops.Sum.of((1, 0), False)(x(2, 3)), IndexRangeError),
        (lambda: ops.Sum.of((2**40,), False)(x(2, 3)), IndexRangeError),
        (lambda: ops.Sum.of((-1,), False)(x(2, 3)), IndexRangeError),
        (lambda: ops.Sum.of((2**70,), False)(x(2, 3)), OptionError),
        (lambda: ops.Sum.of(None, False)(x(2, 3)), TypeError),
        (lambda: ops.Slice.of(((1, 9, 1),), ())(x(4)), IndexRangeError),  # read behind the array
        (lambda: ops.Slice.of(((3, 2, -9),), ())(x(4)), IndexRangeError),
        (lambda: ops.Slice.of(((0, 2, 2**61),), ())(x(4)), IndexRangeError),
        (lambda: ops.SliceGrad.of(((3, 2, 1),), (), (4,))(x(2)), IndexRangeError),
        (lambda: ops.SliceGrad.of(((0, 2, 1),), (), (4,))(x(3)), ShapeError),
        (lambda: ops.DiagonalGrad.of(1, (2, 3))(x(7)), ShapeError),
        (lambda: ops.UnDilate.of((0,), -1)(x(3)), ShapeError),
        (lambda: ops.Pad.of(((0, 2**63 - 1),))(x(3)), ShapeError),
        (lambda: ops.GroupNorm.of(0, 0.1)(x(3, 4), x(4), x(4)), ShapeError),
        (lambda: ops.GroupNorm.of(2, -1.0)(x(3, 4), x(4), x(4)), OptionError),
        (lambda: ops.Sort.of(True)(x(3, 4)), TypeError),
        (lambda: ops.MakeTensorTuple.of()(), TypeError),
        (lambda: ops.ScatterAdd.of(0, (4,))(whole(9), x(4)), IndexRangeError),
    ],
)
@pytest.mark.parametrize("gate", ["on", "off"])
def test_found(call, error, gate):
    with ndl.config(fast=gate), pytest.raises(error):
        call()


def test_norm_gradients_of_other_shapes_read_no_foreign_memory(device):
    """The kernels take the shapes that the forward op gives; all others go by the expansion."""
    rng = np.random.default_rng(0)

    def t(*shape):
        return ndl.Tensor(rng.normal(size=shape), device=device, requires_grad=False)

    for call in (
        lambda: ops.LayerNormGrad.of()(t(1, 3), t(64, 3), t(3), t(64), t(64)),
        lambda: ops.RMSNormGrad.of()(t(64, 3), t(64, 3), t(3), t(1)),
        lambda: ops.BatchNormGrad.of(0.1)(t(1, 3), t(64, 3), t(3), t(3), t(3)),
    ):
        try:
            values = ops.tuple_get_item(call(), 0).numpy()
        except NeedleError:
            continue
        assert values.shape == (64, 3)


def test_bools_can_be_scattered(device):
    mask = ndl.Tensor([True, False, True, False], device=device)
    mask[ndl.Tensor([0, 3], dtype="int64", device=device)] = ndl.Tensor(
        [False, True], device=device
    )
    assert mask.tolist() == [False, False, True, True]
    many = ops.scatter_add(
        ndl.zeros(256, dtype="int64", device=device),
        ndl.ones(256, dtype="bool", device=device),
        0,
        (2,),
    )
    assert many.tolist() == [True, False]


def test_gelu_of_minus_infinity(device):
    found = ops.gelu(ndl.Tensor([-np.inf] * 20, device=device)).numpy()
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_decompositions_of_what_is_not_finite_end(device, wrong):
    """LAPACK went on forever."""
    values = np.random.default_rng(0).normal(size=(2, 4, 4))
    values[1, 0, 0] = wrong
    x = ndl.Tensor(values, dtype="float64", device=device, requires_grad=False)
    for found in (ops.svd(x), ops.svd(x, full=False), ops.eigh(x)):
        for part in found:
            assert np.isfinite(part.numpy()[0]).all() and np.isnan(part.numpy()[1]).all()
    assert np.isnan(ops.svd(x[1])[1].numpy()).all()

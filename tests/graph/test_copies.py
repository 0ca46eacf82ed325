"""Copies and pickles of tensors, ops, functions and specs."""

from __future__ import annotations

import copy
import functools
import operator
import pickle

import numpy as np
import pytest
from small_graphs import constant, tensor

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    GradientError,
)


def test_deepcopy_copies_leaves():
    x = tensor(3)
    x.name = "x"
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    np.testing.assert_array_equal(y.grad.numpy(), x.grad.numpy())
    assert y.name == "x" and y.requires_grad and type(y) is ndl.Tensor
    y.realize_cached_data().fill(0)
    y.grad.realize_cached_data().fill(0)
    assert x.numpy().all() and x.grad.numpy().all()


def test_deepcopy_keeps_ties():
    shared = ndl.Parameter(np.ones(3))
    first, second = copy.deepcopy([shared, shared])
    assert first is second and first is not shared and isinstance(first, ndl.Parameter)


class Tagged(ndl.Tensor):
    """Has attributes, as classes of users' own do."""


@pytest.mark.parametrize("kind", [Tagged, ndl.nn.Parameter])
def test_copies_have_the_attributes_that_users_set(kind):
    x = kind([1.0, 2.0])
    x.tags, x.me = ["no decay"], x
    for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is kind and y.tags == x.tags and y.tags is not x.tags and y.me is y


def test_deepcopy_and_pickle_of_results_raise():
    y = tensor(3) * 2.0
    for action in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(GradientError, match=r"the result of multiply.*detach\(\)"):
            action(y)
    np.testing.assert_array_equal(copy.deepcopy(y.detach()).numpy(), y.numpy())


def test_lazy_results_without_gradient_are_as_eager_ones():
    norm = ndl.nn.BatchNorm1d(2)
    with ndl.lazy_mode():
        y = constant(3) * 2.0
        norm(tensor(4, 2))
        for result in (y, y * 3.0):  # waiting, and computed by the first one
            for found in (copy.deepcopy(y), copy.copy(y), pickle.loads(pickle.dumps(y))):
                assert found.numpy().tolist() == [2.0, 2.0, 2.0] and not found.requires_grad
            assert result.is_leaf() and "op=" not in repr(result)
        z = tensor(3) * 2.0
        assert not z.is_leaf() and "op=multiply" in repr(z)
        with pytest.raises(GradientError, match="the result of multiply"):
            copy.deepcopy(z)
    other = copy.deepcopy(norm)
    np.testing.assert_array_equal(other.running_mean.numpy(), norm.running_mean.numpy())


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("fast", ["on", "off"])
def test_results_that_change_under_no_grad_are_no_longer_part_of_the_graph(lazy, fast):
    def assign(y):
        y[...] = y[::-1]
        return y

    def assign_part(y):
        y[0] = 5.0
        return y

    for change in (assign, assign_part, lambda y: operator.imul(y, 2.0)):
        with ndl.config(fast=fast), ndl.lazy_mode(lazy):
            x = tensor(3)
            y = x * 2.0
            z = (y * y).sum()
            with ndl.no_grad():
                changed = change(y)
            assert not changed.requires_grad and changed.is_leaf()
            z.backward()
            np.testing.assert_allclose(x.grad.numpy(), 8 * x.numpy(), rtol=1e-6)


def test_pickle_keeps_values_and_settings():
    for kind in ("float32", "bfloat16", "int64", "bool"):
        x = ndl.Parameter(np.array([0, 1, 2]), dtype=kind, requires_grad=kind == "float32")
        x.name = "x"
        y = pickle.loads(pickle.dumps(x))
        assert type(y) is ndl.Parameter and y.dtype == kind and y.name == "x"
        assert y.requires_grad == x.requires_grad and y.device == x.device
        np.testing.assert_array_equal(y.numpy(), x.numpy())


EVERY_COPY = [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


class Activated(ndl.nn.Module):
    """Holds a function of Needle's."""

    def __init__(self, function):
        super().__init__()
        self.function = function


def test_functions_of_ops_are_copied_as_functions_of_python_are():
    functions = {f for f in vars(ops).values() if isinstance(f, functools.partial)}
    assert {ops.exp, ops.relu, ops.abs} <= functions
    for made in EVERY_COPY[1:]:
        for function in functions:
            assert made(function) is function
            assert made(Activated(function)).function is function


@pytest.mark.parametrize("op", [ops.Exp.of(), ops.LogSumExp.of((1,), True)])
def test_ops_and_specs_are_copied(op):
    for made in EVERY_COPY:
        assert made(op) is op
        assert made(constant(2).array.spec) == constant(2).array.spec


@pytest.mark.parametrize(
    "a, b", [(1, 1.0), (1, True), (0.0, -0.0), (np.float32(1), 1), ((1,), (1.0,)), (0, False)]
)
def test_attributes_that_are_equal_but_not_the_same(a, b):
    class Named(ops.Op):
        value: object

    assert Named.of(a) is Named.of(a) is not Named.of(b) and repr(Named.of(b).value) == repr(b)
    assert Named.of((0, (a,))) is Named.of((0, (a,))) is not Named.of((0, (b,)))


def test_a_number_is_added_as_it_is_whichever_was_added_before():
    zero, whole = tensor(1) * -0.0, ndl.Tensor([1], dtype="int32")
    for number in (0.0, -0.0, 0.0):
        assert np.signbit(ops.add_scalar(zero, number).numpy()) == np.signbit(number)
    for number, kind in ((1, "int32"), (1.0, "float32"), (1, "int32")):
        assert ops.add_scalar(whole, number).dtype == kind


@pytest.mark.parametrize("axes", [1.0, (1.0,), (0, 1.0)])
def test_a_float_is_no_axis_whichever_was_one_before(axes):
    x = ndl.Tensor(np.ones((2, 3)))
    for given in (1, (1,), (0, 1), axes):
        if given is axes:
            with pytest.raises(ArgumentError):
                x.sum(axes)
        else:
            x.sum(given)


def test_a_node_says_why_it_is_not_copied():
    for made in EVERY_COPY:
        with pytest.raises(GradientError, match="nodes are part of one graph"):
            made((tensor(2) * 2.0).node)
        with pytest.raises(GradientError, match="one by one"):
            made(ops.make_tuple(tensor(2)))

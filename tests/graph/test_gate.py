"""What the native gate does around an op: errors, collections, checks of ops."""

from __future__ import annotations

import gc
from typing import ClassVar

import numpy as np
import pytest
from small_graphs import constant, tensor

import needle as ndl
from needle.errors import (
    ShapeError,
)
from needle.ops.core.op import Op


def test_a_collection_in_the_midst_of_an_operation_that_computes():
    """What the collector calls may compute too, and change what the gate keeps of earlier calls."""
    rows, row = constant(3, 4), constant(4)
    expected = rows.numpy() + row.numpy()
    others = [(constant(n, m), constant(m)) for n in range(2, 16) for m in range(2, 16)]
    results = []

    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            kept.append([x * y for x, y in others])

    kept = []  # so that there are no objects to use again: new ones let the collector run
    before = gc.get_threshold()
    try:
        for _ in range(100):
            gc.set_threshold(0)
            results.append(rows + row)
            Garbage()
            gc.set_threshold(1)
            results.append(rows + row)
    finally:
        gc.set_threshold(*before)
    assert len(kept) > 10
    for found in results:
        np.testing.assert_array_equal(found.numpy(), expected)


class Raising(Op):
    """Raises what it is told to, and counts how often it was asked."""

    error: object
    asked: ClassVar[int] = 0

    def compute(self, x):
        Raising.asked += 1
        raise self.error


@pytest.mark.parametrize("fast", ["on", "off"])
@pytest.mark.parametrize(
    "error, kind, said",
    [
        (ValueError("no"), ValueError, "^no$"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (OverflowError("too big"), ShapeError, "raising: a size or a step"),
        (MemoryError(), ndl.errors.OutOfMemoryError, "raising: the system has no memory"),
        (ShapeError("as it is"), ShapeError, "^as it is$"),
    ],
)
def test_what_compute_raises_is_raised_and_compute_runs_once(fast, error, kind, said):
    Raising.asked = 0
    with ndl.config(fast=fast), pytest.raises(kind, match=said):
        Raising(error)(tensor(2))
    assert Raising.asked == 1


def test_errors_that_name_arrays_name_the_tensors_instead():
    weight = ndl.nn.Parameter(np.ones((2, 3), np.float32))
    weight.name = "weight"
    with pytest.raises(ShapeError, match='parameter "weight"'):
        weight @ weight


@pytest.mark.parametrize("fast", ["on", "off"])
def test_an_op_must_give_arrays_and_take_as_many_as_it_says(fast):
    class Wrong(Op):
        def compute(self, x):
            return x.numpy().tolist()

    class Second(Op):
        def compute(self, x, y):
            return y

    with ndl.config(fast=fast):
        with pytest.raises(TypeError, match=r"an op returned (builtins\.)?list, not an array"):
            Wrong()(tensor(2))
        for operands in ([tensor(2)], [tensor(2)] * 3):
            with pytest.raises(ndl.errors.ArgumentError, match="second: expected 2 operands"):
                Second()(*operands)
        assert Second()(tensor(2), 3.0).item() == 3.0
        many = [tensor(2)] * 20
        assert ndl.concat(many).shape == (40,)


@pytest.mark.parametrize(
    "rule", [lambda g: g.sum(), lambda g: np.ones(2), lambda g: 2.0, lambda g: g.astype("float64")]
)
def test_the_gradient_of_an_op_must_fit_its_input(rule):
    class Copy(Op):
        def compute(self, x):
            return x

        def gradient(self, out_grad, out):
            return rule(out_grad)

    x = tensor(2)
    for below in (x, x * 2.0):
        with pytest.raises(ndl.errors.GradientError, match=r"copy: gradient\(\) gave a gradient"):
            Copy()(below).sum().backward()
    given = rule(tensor(2))
    if getattr(given, "shape", None) == (2,) and not isinstance(given, np.ndarray):
        with ndl.config(backend="np"):  # as NumPy infers them
            Copy()(x).sum().backward()


class CourseCube(ndl.TensorOp):
    """An op as the course has them: it says nothing about what its gradient reads."""

    def compute(self, a):
        return a**3

    def gradient(self, out_grad, node):
        (x,) = node.inputs
        return out_grad * 3 * x * x


@pytest.mark.parametrize("lazy", [False, True])
def test_an_op_in_the_course_s_form_keeps_what_its_gradient_reads(lazy):
    with ndl.lazy_mode(lazy):
        x = tensor(3)
        CourseCube()(x * 2.0).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 24 * x.numpy() ** 2)
        np.testing.assert_allclose(
            ndl.jacobian(CourseCube())(x).numpy(), np.diag(3 * x.numpy() ** 2)
        )

"""Calls that the native module takes over: the same results, and the definition for all else."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import needle as ndl
from needle import core, nn, ops
from needle.compile import compile
from needle.errors import IndexRangeError, TraceError

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")


class Counted:
    """A compiled function that counts the calls that took the way of the definition."""

    def __init__(self, function):
        self.function, self.slow = compile(function), 0
        inner = self.function._called

        def called(*args, **named):
            self.slow += 1
            return inner(*args, **named)

        self.function.__dict__["_called"] = called

    def __call__(self, *args, **named):
        return self.function(*args, **named)


def ones(*shape):
    return ndl.Tensor(np.ones(shape, np.float32))


def test_plain_calls_run_without_the_definition():
    loss = Counted(ndl.value_and_grad(lambda x, y: (x * y + x).sum(), (0, 1)))
    x, y = ones(16), ndl.Tensor(np.arange(16, dtype=np.float32))
    found = [loss(x, y) for _ in range(5)]
    assert loss.slow == 2
    for value, (dx, dy) in found:
        assert value.item() == 136.0
        np.testing.assert_array_equal(dx.numpy(), y.numpy() + 1)
        np.testing.assert_array_equal(dy.numpy(), x.numpy())
    assert len({a.array.handle.ptr() for value, grads in found for a in (value, *grads)}) == 15


def test_other_arguments_take_the_definition():
    f = Counted(lambda x, y: x * y)
    x, y = ones(3, 4), ones(3, 4)
    for _ in range(3):
        f(x, y)
    assert f.slow == 2
    for args in ((x, x), (x, ones(4)), (x, ones(4, 3).T.detach()), (x.detach(), y)):
        before = f.slow
        np.testing.assert_array_equal(f(*args).numpy(), (args[0] * args[1]).numpy())
        assert f.slow == before + 1
    with pytest.raises(TraceError):
        f(x, 2.0)
    np.testing.assert_array_equal(f(x, y=y).numpy(), 1)


def test_modes_and_settings_are_seen():
    model = nn.Linear(4, 3)
    f, x = Counted(lambda x: model(x).sum()), ones(2, 4)
    for _ in range(3):
        assert f(x).requires_grad
    before = f.slow
    with ndl.no_grad():
        assert not f(x).requires_grad
    with ndl.config(mode="lazy"):
        f(x)
    with ndl.config(threads=1):
        f(x)
    assert f.slow == before + 3


def test_a_module_that_changes_is_seen():
    model = nn.Linear(4, 3)
    f, x = Counted(lambda x: model(x)), ones(2, 4)
    for change in (
        lambda: None,
        lambda: setattr(model.weight, "data", model.weight.data * 2.0),
        lambda: model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()}),
        lambda: setattr(model, "weight", nn.Parameter(model.weight.data * 3.0)),
    ):
        change()
        for _ in range(3):
            np.testing.assert_array_equal(f(x).numpy(), model(x).numpy())
    assert f.slow < 12


def test_tensors_outside_are_written():
    total = ones(3)

    def add(x):
        total.data = (total + x).detach()
        return total.sum()

    with ndl.no_grad():
        f = Counted(add)
        found = [f(ones(3)).item() for _ in range(4)]
        kept = total.detach()
        assert found == [6.0, 9.0, 12.0, 15.0] and f.slow == 2
        assert f(ones(3)).item() == 18.0
        np.testing.assert_array_equal(kept.numpy(), 5)
        assert f(total).item() == 36.0  # what is stored there is an argument, too


def test_errors_are_those_of_the_definition():
    f = Counted(lambda x, i: ops.take(x, i, 0))
    x, index = ones(5, 2), ndl.Tensor(np.array([0, 4]))
    for _ in range(3):
        f(x, index)
    with pytest.raises(IndexRangeError, match="7"):
        f(x, ndl.Tensor(np.array([0, 7])))
    assert f(x, index).shape == (2, 2)


def test_a_compiled_function_in_a_cycle_is_freed():
    def made():
        model = nn.Linear(4, 3)
        object.__setattr__(model, "fast", compile(lambda x: model(x)))
        for _ in range(3):
            model.fast(ones(2, 4))
        return weakref.ref(model)

    gone = made()
    gc.collect()
    assert gone() is None

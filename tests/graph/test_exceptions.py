"""What is raised in the midst of a graph leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys

import numpy as np
import pytest
from small_graphs import live_values, tensor

import needle as ndl
from needle import core, graph, ops
from needle.checkpoint import _watch
from needle.errors import (
    NeedleError,
    ShapeError,
)
from needle.ops.core.op import Op


def _add_shapes(x):
    ((x * 2.0).tanh() + tensor(5)).sum()


def _add_words(x):
    (x * 2.0).tanh() + "words"


def _take_beyond(x):
    """Fails where it is run, in lazy mode too."""
    ndl.take((x * 2.0).tanh(), ndl.Tensor(np.array([9])), axis=0).numpy()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("wrong", [_add_shapes, _add_words, _take_beyond])
def test_errors_in_expressions_leave_nothing_behind(no_collector, wrong, lazy):
    x = tensor(3, 4)

    def fail():
        with ndl.lazy_mode(lazy), pytest.raises(ndl.errors.NeedleError):
            wrong(x)

    fail()  # what only the first error needs is there from now on
    gc.collect()
    before = live_values(), graph.live_tensors()
    for _ in range(50):
        fail()
    assert (live_values(), graph.live_tensors()) == before


class Failing(Op):
    """x, unless told to fail."""

    switch: dict

    def compute(self, x):
        if self.switch.get("compute") and x.device != ndl.meta():
            raise ZeroDivisionError("compute")
        return x.copy()

    def gradient(self, out_grad, out):
        if self.switch.get("gradient"):
            raise ZeroDivisionError("gradient")
        return (out_grad,)


def test_an_error_in_a_gradient_restores_the_modes():
    x = tensor(3)
    y = Failing({"gradient": True})(x * 2.0).sum()
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert graph.recording() and not graph.lazy()
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))


def interrupt(function, place: int) -> bool:
    """Call a function with a signal at its n-th call. Return whether there are that many.

    Python handles signals where a function of its own begins, and where a native one has ended.
    Unlike a signal, what is raised here where a generator goes on skips its ``finally`` in 3.10.
    """
    left = place

    def watch(frame, event, arg):
        nonlocal left
        goes_on = frame.f_lasti >= 0 and sys.version_info < (3, 11)
        left -= event == "c_return" or (event == "call" and not goes_on)
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        sys.setprofile(watch)
        try:
            function()
        finally:
            sys.setprofile(None)
    return left <= 0


@pytest.mark.heavy("src/core/*", "python/needle/config.py", "python/needle/checkpoint.py")
@pytest.mark.skipif(core.native is None, reason="Python's definition of modes can be interrupted")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_program_goes_on_in_the_modes_it_was_in():
    norm = ndl.nn.BatchNorm1d(2)
    optimizer = ndl.optim.SGD(norm.parameters(), lr=0.0)
    x = tensor(2, 2)

    def step():
        optimizer.minimize(ndl.checkpoint(norm)(x).sum())

    step()
    places = itertools.takewhile(lambda n: interrupt(step, n), itertools.count(1))
    for n in places:
        modes = graph.recording(), graph.lazy(), _watch.notes
        assert modes == (True, False, ()), f"after an interrupt at call {n}"
    assert n > 200


@pytest.mark.heavy("src/core/*", "python/needle/config.py", "python/needle/checkpoint.py")
@pytest.mark.skipif(core.native is None, reason="Python's definition of modes can be interrupted")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_program_goes_on_with_the_settings_it_had():
    before = ndl.config.current()

    def change():
        with ndl.config(mode="lazy", memory_limit="1GiB", debug=1, threads=1):
            tensor(2)

    change()
    places = itertools.takewhile(lambda n: interrupt(change, n), itertools.count(1))
    for n in places:
        gc.collect()  # the block is left where the error goes, which holds it
        found = ndl.config.current(), graph.lazy(), ndl.cpu().memory_info()["limit"]
        assert found == (before, False, 0), f"after an interrupt at call {n}"
    assert n > 20


def test_a_failing_lazy_node_can_be_realised_again():
    x, switch = tensor(3), {"compute": True}
    with ndl.lazy_mode():
        before = x * 2.0
        y = (Failing(switch)(before) + before).sum()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                y.numpy()
        switch.clear()
        assert y.item() == pytest.approx(4 * x.numpy().sum(), rel=1e-5)
    assert graph.recording() and not graph.lazy()


def test_errors_name_the_tensors():
    w = ndl.Parameter(np.ones((10, 128)))
    w.name = "head.weight"
    with ndl.config(debug=1):
        h = ops.relu(tensor(32, 128))
        with pytest.raises(ShapeError) as caught:
            h @ w
    text = str(caught.value)
    assert text.splitlines()[0] == "matmul: inner sizes differ, 128 and 10"
    assert 'parameter "head.weight"' in text and "made by relu at" in text
    assert "test_exceptions.py:" in text and "rule: a[..., m, k] @ b[..., k, n]" in text
    assert "try: a @ b.transpose()" in text


def test_lazy_errors_come_on_the_line_of_the_call():
    with ndl.lazy_mode(), pytest.raises(ShapeError, match="inner sizes differ"):
        tensor(3, 4) @ tensor(3, 4)


def test_two_numbers_in_one_call():
    """The gate keeps numbers as tensors, in a small table where one takes another's place."""
    values = np.linspace(-60, 60, 50, dtype=np.float32)
    x = ndl.Tensor(values, requires_grad=False)
    for step in range(300):
        low, high = -0.25 * step, 0.125 * step + 1
        for limits in ((low, high), (low - 1, 1 - low)):
            np.testing.assert_array_equal(ops.clip(x, *limits).numpy(), np.clip(values, *limits))


@pytest.mark.parametrize(
    "change",
    [
        lambda number: setattr(number, "data", ndl.Tensor(7.0, dtype=number.dtype)),
        lambda number: number.__setitem__((), 7.0),
        lambda number: setattr(number, "requires_grad", True),
    ],
    ids=["data", "setitem", "requires_grad"],
)
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_number_that_was_given_other_data_is_no_later_number(change, kind):
    """The operands of a result are tensors, numbers too: who has one may write to it."""
    x = tensor(3).astype(kind)
    _, number = (x * 2.625).inputs
    change(number)
    y = x * 2.625
    np.testing.assert_array_equal(y.numpy(), x.numpy() * x.dtype.numpy.type(2.625))
    assert not y.inputs[1].requires_grad


def test_foreign_operands_are_type_errors():
    x = tensor(3)
    for bad in ("a", None, object(), {}):
        with pytest.raises(TypeError):
            x + bad
        with pytest.raises(TypeError):
            bad + x
    assert (1 - x).shape == (2.0 / x).shape == (np.ones(3, "float32") + x).shape == (3,)
    assert isinstance(np.ones(3, "float32") * x, ndl.Tensor)


def test_errors_are_of_one_family():
    for name in ("ShapeError", "DtypeError", "GradientError", "ReleasedError", "OptionError"):
        assert issubclass(getattr(ndl.errors, name), NeedleError)

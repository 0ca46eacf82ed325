"""Lazy mode: values are computed when they are read, once."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import constant, tensor

import needle as ndl
from needle import executor, graph
from needle.errors import ReleasedError
from needle.ops.core.op import Op


def test_lazy_mode_computes_when_a_value_is_read():
    x, y = tensor(3, 4), tensor(4, seed=1)
    with ndl.lazy_mode():
        z = ((x + y) * 2.0)[1:, ::2].mean(0)
        assert z.array is None
        assert z.shape == (2,) and z.dtype == "float32" and z.device == x.device and z.ndim == 1
        assert z.size == 2 and len(z) == 2 and z.array is None
        expected = ((x.numpy() + y.numpy()) * 2)[1:, ::2].mean(0)
        np.testing.assert_allclose(z.numpy(), expected, rtol=1e-5)
        assert z.array is not None


def test_lazy_gradients_wait_too():
    x = tensor(3)
    with ndl.lazy_mode():
        (x.tanh() * x).sum().backward()
        assert x.grad.array is None and x.grad.shape == (3,)
        lazy = x.grad.numpy()
    (x.tanh() * x).sum().backward()
    np.testing.assert_array_equal(lazy, x.grad.numpy())


def test_lazy_values_can_be_read_after_backward_in_any_order():
    x, w = tensor(4, 3), tensor(3, 3, seed=1)
    loss = ((x @ w).tanh() * x).sum()
    loss.backward()
    expected = loss.item(), x.grad.numpy(), w.grad.numpy()
    for order in ("lxw", "xlw", "wxl"):
        with ndl.lazy_mode():
            loss = ((x @ w).tanh() * x).sum()
            loss.backward()
            found = {"l": loss, "x": x.grad, "w": w.grad}
            values = {name: found[name].numpy() for name in order}
        for name, value in zip("lxw", expected, strict=True):
            np.testing.assert_array_equal(values[name], value)


def test_lazy_results_survive_the_end_of_the_mode():
    x = tensor(3)
    with ndl.lazy_mode():
        y = x * 2.0
    z = y + 1.0
    np.testing.assert_allclose(z.numpy(), 2 * x.numpy() + 1, rtol=1e-6)


def test_lazy_values_are_computed_once():
    calls = []

    class Counting(Op):
        """x, counting."""

        def compute(self, x):
            if x.device != ndl.meta():
                calls.append(1)
            return x.copy()

        def gradient(self, out_grad, out):
            return (out_grad,)

    x = tensor(3)
    with ndl.lazy_mode():
        y = Counting()(x)
        z = y + y
        z.numpy(), y.numpy(), (z * y).numpy()
    assert calls == [1]


def test_the_courses_switch():
    x = tensor(3)
    ndl.autograd.LAZY_MODE = True
    try:
        assert ndl.autograd.LAZY_MODE
        y = x + 1.0
        assert y.array is None
    finally:
        ndl.autograd.LAZY_MODE = False
    assert (x + 1.0).array is not None
    assert ndl.autograd.TENSOR_COUNTER >= 2
    np.testing.assert_allclose(y.numpy(), x.numpy() + 1)


def test_a_growing_lazy_graph_warns_with_the_line():
    x = constant(2)
    with ndl.lazy_mode(), pytest.warns(RuntimeWarning, match="wait to be computed") as caught:
        h = x
        for _ in range(executor.PENDING_LIMIT + 1):
            h = h + 1.0
    assert "test_lazy_mode.py:" in str(caught[0].message)
    h.numpy()
    assert graph.pending() < executor.PENDING_LIMIT / 2


def test_lazy_results_that_are_dropped_do_not_count_as_waiting():
    x = constant(2)
    before = graph.pending()
    with ndl.lazy_mode():
        for _ in range(1000):
            x + 1.0
        assert graph.pending() == before


@pytest.mark.parametrize("lazy", [False, True])
def test_a_second_backward_needs_a_kept_graph_in_both_modes(lazy):
    with ndl.lazy_mode(lazy):
        x = tensor(3)
        out = x.exp().tanh().sum()
        out.backward()
        with pytest.raises(ReleasedError, match="retain_graph"):
            out.backward()
        middle = x.exp()  # whose value a tensor holds
        out = (middle * 2.0).sum() + x.sum()
        for _ in range(2):
            out.backward(retain_graph=True)
        for _ in range(2):
            out.backward()

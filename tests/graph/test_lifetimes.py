"""Who keeps values alive, and what a freed graph may still be asked."""

from __future__ import annotations

import gc
import operator
import weakref

import numpy as np
import pytest
from small_graphs import constant, live_values, tensor, train

import needle as ndl
from needle import graph, ops
from needle.errors import (
    ReleasedError,
)
from needle.ops.core.op import Op


def test_values_that_no_gradient_reads_are_freed():
    """10 x (matmul, add, relu): matmul saves its inputs, add nothing, relu its output."""
    x, ws = constant(8, 8), [tensor(8, 8, seed=i) for i in range(10)]
    b = tensor(8)
    before = live_values()
    h = x
    for w in ws:
        h = ops.relu(h @ w + b)
    assert live_values() - before == 10  # the relus; not the products, not the sums
    del h
    assert live_values() == before


def test_backward_frees_what_it_has_read():
    tensor().backward()  # makes the one that those of scalars are copied from
    x = tensor(8, 8)
    before = live_values()
    y = (x.tanh() * x.exp()).sum()
    assert live_values() - before == 3
    y.backward()
    assert live_values() - before == 3  # y, its gradient and x.grad
    with pytest.raises(ReleasedError, match=r"backward\(retain_graph=True\)"):
        y.backward()


def test_retained_graphs_run_again():
    x = tensor(3)
    y = (x.tanh() * x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)
    with pytest.raises(ReleasedError):
        y.backward()


def _step(x):
    x.grad = x.detach()
    ndl.optim.SGD([x], lr=0.1).step()


NEW_DATA = {
    "data": lambda x: setattr(x, "data", x * 0.5),
    "minus": lambda x: operator.isub(x, 1.0),
    "number": lambda x: operator.setitem(x, 0, 5.0),
    "all": lambda x: operator.setitem(x, ..., x * 0.5),
    "mask": lambda x: operator.setitem(x, x > 0, 2.0),
    "step": _step,
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", NEW_DATA)
def test_a_freed_graph_does_not_read_new_data(host_device, name, lazy):
    """As where the state of a recurrent net is kept beyond a step: its gradient is no longer."""
    x = ndl.Tensor([1.0, 2.0, 3.0], device=host_device)
    state = x * x
    state.sum().backward()
    with ndl.no_grad(), ndl.lazy_mode(lazy):
        NEW_DATA[name](x)
    with ndl.lazy_mode(lazy), pytest.raises(ReleasedError, match="retain_graph=True"):
        (state * 2.0).sum().backward()
        x.grad.numpy()
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * x.numpy())


def test_a_released_value_says_so():
    x = tensor(3)
    total = (x + 1.0).tanh().sum()
    dropped = total.inputs[0].inputs[0]  # x + 1.0, which tanh does not need
    assert dropped.shape == (3,)
    with pytest.raises(ReleasedError, match=r"the result of add, float32\[3\].*was released"):
        dropped.numpy()
    with pytest.raises(ReleasedError):
        dropped * 2.0
    with ndl.lazy_mode(), pytest.raises(ReleasedError):
        dropped * 2.0


def test_new_data_between_forward_and_backward():
    x = tensor(3)
    old = x.numpy()
    y = (x * x).sum()
    x.data = ndl.Tensor(np.zeros(3))
    x.data = ndl.Tensor(np.ones(3))
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * old, rtol=1e-6)
    np.testing.assert_array_equal(x.numpy(), np.ones(3))
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_of_old_and_new_data_of_one_tensor_add_up(turned, accumulate):
    x = tensor(3)
    old, new = x.numpy(), np.array([1.0, 2.0, 3.0], np.float32)
    x.grad = ndl.Tensor(np.full(3, 10.0))
    y = (x * x).sum()
    x.data = ndl.Tensor(new)
    z = (x * x * x).sum()
    (z + y if turned else y + z).backward(accumulate=accumulate)
    exact = 2 * old + 3 * new**2 + 10.0 * accumulate
    np.testing.assert_allclose(x.grad.numpy(), exact, rtol=1e-6)


def test_data_shares_and_keeps_the_dtype():
    x, y = tensor(3), tensor(3, seed=1)
    x.data = y
    x.realize_cached_data().fill(7)
    np.testing.assert_array_equal(y.numpy(), np.full(3, 7.0))
    with pytest.raises(ndl.errors.DtypeError, match="assigned"):
        x.data = ndl.Tensor(np.zeros(3), dtype="float64")


def test_augmented_assignment_rebinds():
    x = tensor(3)
    y = x
    old = x.numpy()
    x += 1.0
    np.testing.assert_array_equal(y.numpy(), old)
    assert x is not y


def test_training_leaves_nothing_for_the_collector(no_collector):
    train(1000, 0)


def test_second_order_leaves_nothing_for_the_collector(no_collector):
    x = tensor(4)
    for _ in range(300):
        (x.tanh() * x).sum().backward(create_graph=True)
        (x.grad * x.grad).sum().backward()
        x.grad = None


def test_lazy_steps_leave_nothing_for_the_collector(no_collector):
    with ndl.lazy_mode():
        x = tensor(4)
        for _ in range(100):
            (x.tanh() * x).sum().backward()
            x.grad.numpy()


def test_memory_stays_constant_over_steps():
    train(5, 0)
    before = live_values(), graph.live_tensors()
    train(50, 0)
    assert (live_values(), graph.live_tensors()) == before


class Holder(Op):
    """A user's op that holds a Python object, and through it its own result: a cycle."""

    box: list

    def setup(self):
        self.opaque = True

    def compute(self, x):
        return x.copy()

    def gradient(self, out_grad, out):
        return (out_grad,)


def test_an_op_that_holds_its_own_result_is_collected():
    class Mark:
        pass

    mark = Mark()
    box = [mark]
    x = tensor(3)
    y = Holder(box)(x)
    box.append(y)
    box.append(y * 2.0)
    gone = weakref.ref(mark)
    del mark, box, y
    gc.collect()
    assert gone() is None


def test_a_gradient_that_is_its_own_gradient_is_collected():
    class Named(ndl.Tensor):
        pass

    x = Named(np.ones(3))
    x.grad = x
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None

"""What an update may and may not touch."""

import numpy as np
import pytest
from small_updates import DEVICES, parameter

import needle as ndl
from needle import nn, optim


def test_old_graphs_and_copies_keep_the_old_value():
    p = parameter([2.0, 3.0])
    kept, shared = p.detach(), p.numpy()
    out = (p * p * p).sum()
    opt = optim.SGD([p], 1.0)
    p.grad = ndl.Tensor([1.0, 1.0])
    opt.step()
    np.testing.assert_array_equal(p.numpy(), [1.0, 2.0])
    np.testing.assert_array_equal(kept.numpy(), [2.0, 3.0])
    np.testing.assert_array_equal(shared, [2.0, 3.0])
    out.backward()
    np.testing.assert_array_equal(p.grad.numpy(), [12.0, 27.0])


def test_a_step_does_not_change_gradients():
    p = parameter([2.0, 3.0])
    opt = optim.Adam([p], weight_decay=0.1)
    (p * p).sum().backward()
    before = p.grad.numpy()
    opt.step()
    np.testing.assert_array_equal(p.grad.numpy(), before)


@pytest.mark.skipif("cpu" not in DEVICES, reason="the native module is missing")
def test_memory_that_nobody_else_holds_is_updated_in_place():
    p = parameter(np.zeros(1000))
    p.grad = ndl.Tensor(np.ones(1000, np.float32))
    opt = optim.SGD([p], 1.0)
    opt.step()
    place = p.numpy().ctypes.data, p.array.__array__(copy=False).ctypes.data
    opt.step()
    assert p.array.__array__(copy=False).ctypes.data == place[1] != place[0]
    view = p.detach()[:10]
    opt.step()
    assert p.array.__array__(copy=False).ctypes.data != place[1]
    np.testing.assert_array_equal(view.numpy(), np.full(10, -2.0))
    np.testing.assert_array_equal(p.numpy(), np.full(1000, -3.0))


ALL_RULES = ("Momentum", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "SGD")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALL_RULES)
def test_an_infinite_parameter_without_decay_stays(name, device):
    p = ndl.Parameter([-np.inf, np.inf, 1.0], device=device)
    optimizer = getattr(optim, name)([p], lr=0.1, weight_decay=0.0)
    for _ in range(2):
        p.grad = ndl.zeros_like(p)
        optimizer.step()
    assert p.tolist() == [-np.inf, np.inf, 1.0]


def test_parameters_without_gradient_stay():
    a, b = parameter([1.0]), parameter([1.0])
    opt = optim.Adam([a, b])
    a.grad = ndl.Tensor([1.0])
    opt.step()
    assert a.item() < 1.0 and b.item() == 1.0
    assert a in opt.m and b not in opt.m


def test_parameters_learn_from_minimize_eager_and_lazy():
    def train():
        w = parameter(np.ones((2, 1)))
        opt = optim.SGD([w], 0.1, momentum=0.5)
        x = ndl.Tensor([[1.0, 2.0], [3.0, 1.0]])
        for _ in range(5):
            loss = opt.minimize(((x @ w - 1.0) ** 2).sum())
        assert loss.requires_grad
        return w

    eager = train().numpy()
    with ndl.lazy_mode():
        w = train()
        assert w.array is not None
    np.testing.assert_array_equal(w.numpy(), eager)


def test_in_the_numpy_dialect_updates_stay_out_of_the_graph():
    with ndl.config(backend="np"):
        w = nn.Parameter(ndl.Tensor([[1.0], [2.0]], dtype="float32"))
        opt = optim.Adam([w], lr=0.1)
        x = ndl.Tensor(np.ones((3, 2)))
        loss = (x @ w).sum()
        loss.backward()
        grad = w.grad.numpy()
        opt.step()
        assert w.is_leaf() and w.dtype == "float32"
        np.testing.assert_array_equal(w.grad.detach().cached_data, grad)
        np.testing.assert_allclose(w.numpy(), [[0.9], [1.9]], rtol=1e-6)


def test_course_names():
    p = parameter([1.0])
    opt = optim.SGD([p], momentum=0.9)
    p.grad = ndl.Tensor([3.0])
    opt.clip_grad_norm(max_norm=1.5)
    np.testing.assert_allclose(p.grad.numpy(), [1.5], rtol=1e-5)
    opt.step()
    np.testing.assert_allclose(opt.u[p].numpy(), [0.15], rtol=1e-5)
    opt.reset_grad()
    assert p.grad is None and opt.params == [p]
    assert optim.Adam([p]).t == 0 and optim.Adam([p]).lr == 0.01

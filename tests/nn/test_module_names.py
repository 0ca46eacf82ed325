"""Modules under PyTorch's names: registering, finding, hooks; and calls with other parameters."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, OptionError, ShapeError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(ndl.ones(1))

    def forward(self, x, factor=1.0):
        return self.head(self.body(x)) * self.scale * factor


def named_net():
    """Return the same network, made by registering."""
    net = nn.Identity()
    net.add_module("body", nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()))
    net.register_module("head", nn.Linear(4, 2))
    net.register_parameter("scale", nn.Parameter(ndl.ones(1)))
    return net


def test_registering_is_assigning():
    net = named_net()
    assert list(net.state_dict()) == list(Net().state_dict())
    net.register_parameter("bias", None)
    assert net.bias is None and [n for n, _ in net.named_parameters()][-1] == "scale"
    net.bias = nn.Parameter(ndl.zeros(2))
    assert [n for n, _ in net.named_parameters()][-1] == "bias"
    net.add_module("head", nn.Linear(4, 5))
    assert net.get_parameter("head.weight").shape == (4, 5)
    for wrong, error, message in (
        (lambda: net.register_parameter("body", nn.Parameter(ndl.ones(1))), OptionError, "already"),
        (lambda: net.register_parameter("a.b", nn.Parameter(ndl.ones(1))), OptionError, "dots"),
        (lambda: net.register_parameter("w", ndl.ones(1)), ArgumentError, "register_buffer"),
        (lambda: net.add_module("forward", nn.ReLU()), OptionError, "already has"),
        (lambda: net.add_module("relu", ndl.relu), ArgumentError, "expected a module"),
        (lambda: net.get_parameter("head.wieght"), OptionError, "did you mean 'head.weight'"),
        (lambda: net.get_submodule("hed"), OptionError, "did you mean 'head'"),
        (lambda: next(net.parameters()), TypeError, r"try: next\(iter\(model.parameters\(\)\)\)"),
    ):
        with pytest.raises(error, match=message):
            wrong()


def test_parts_are_found_by_name():
    net = Net()
    assert net.get_submodule("") is net and net.get_submodule("body.0") is net.body[0]
    assert net.get_buffer("body.1.running_mean") is net.body[1].running_mean
    assert next(iter(net.parameters())) is net.body[0].weight
    assert [n for n, _ in net.named_parameters(recurse=False)] == ["scale"]
    assert net.parameters(recurse=False) == [net.scale] == list(net.parameters())[-1:]
    assert next(net.named_parameters(prefix="net"))[0] == "net.body.0.weight"
    assert [n for n, _ in net.body.named_buffers(prefix="b")] == [
        "b.1.running_mean", "b.1.running_var",
    ]  # fmt: skip
    assert [n for n, _ in net.named_children()] == ["body", "head"]
    net.tied = net.head
    names = [n for n, _ in net.named_parameters(remove_duplicate=False)]
    assert len(names) == len(net.parameters()) + 2 and "tied.weight" in names
    assert [n for n, _ in net.named_modules(remove_duplicate=False)][-1] == "tied"


def test_hooks_see_and_change_a_call():
    net, seen = Net(), []
    x = ndl.randn(5, 3)
    plain = net(x).numpy()
    pre = net.register_forward_pre_hook(lambda m, args: seen.append(("pre", m, len(args))))
    post = net.register_forward_hook(lambda m, args, out: seen.append(("post", m, out.shape)))
    assert np.array_equal(net(x).numpy(), plain)
    assert seen == [("pre", net, 1), ("post", net, (5, 2))]
    pre.remove()
    pre.remove()
    post.remove()
    with net.register_forward_hook(lambda m, args, out: out * 2.0):
        with net.register_forward_hook(lambda m, args, out: out + 1.0, prepend=True):
            assert np.allclose(net(x).numpy(), 2 * (plain + 1))
        assert np.allclose(net(x).numpy(), 2 * plain)
    assert np.array_equal(net(x).numpy(), plain) and len(seen) == 2
    with net.register_forward_pre_hook(lambda m, args: args[0] * 0.0):
        assert not np.allclose(net.eval()(x).numpy(), plain)
    net.train()
    change = lambda m, args, kwargs: (args, {"factor": 3.0})  # noqa: E731
    with net.register_forward_pre_hook(change, with_kwargs=True):
        found = []
        keep = lambda m, args, kwargs, out: found.append(kwargs)  # noqa: E731
        with net.register_forward_hook(keep, with_kwargs=True):
            assert np.allclose(net(x, factor=5.0).numpy(), 3 * plain)
        assert found == [{"factor": 3.0}]


def test_hooks_of_parts_copies_and_errors():
    net = Net()
    net.body[0].register_forward_hook(_doubled)
    other, read = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    x = ndl.randn(5, 3)
    assert np.array_equal(other(x).numpy(), net(x).numpy())
    assert np.array_equal(read(x).numpy(), net(x).numpy())
    assert len(net.parameters()) == len(other.parameters()) == 7
    with pytest.raises(ArgumentError, match="expected a function as a hook"):
        net.register_forward_hook(3)
    with pytest.raises(OptionError, match="always_call"):
        net.register_forward_hook(_doubled, always_call=True)
    net.register_forward_pre_hook(lambda m, args, kwargs: args, with_kwargs=True)
    with pytest.raises(ArgumentError, match=r"expected \(args, kwargs\)"):
        net(x)


def _doubled(module, args, out):
    return out * 2.0


def test_what_changes_nothing_is_accepted():
    for layer in (nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
                  nn.ELU, nn.CELU, nn.LeakyReLU, nn.Hardtanh):  # fmt: skip
        x = ndl.Tensor([-2.0, 3.0])
        out = layer(inplace=True)(x)
        assert np.array_equal(out.numpy(), layer()(x).numpy()) and x.tolist() == [-2.0, 3.0]
    assert nn.Dropout(0.5, inplace=True).eval()(x) is x and nn.ReLU(True)(x).tolist() == [0.0, 3.0]
    model = nn.Linear(3, 2)
    assert model.to(ndl.default_device(), non_blocking=True) is model
    assert model.to(memory_format="channels_last") is model
    y = ndl.ones(2)
    assert y.to(ndl.default_device(), non_blocking=True) is y
    assert y.to(memory_format="channels_last") is y.contiguous(memory_format=None) is y
    assert y.to("float64", copy=True).dtype == "float64"
    for make in (nn.Linear, nn.Embedding, nn.BatchNorm2d, nn.LayerNorm, nn.LSTM, nn.Conv2d):
        sizes = {nn.Conv2d: (3, 2, 3), nn.BatchNorm2d: (3,), nn.LayerNorm: (3,)}.get(make, (3, 2))
        layer = make(*sizes, device=None, dtype=None)
        assert {str(p.dtype) for p in layer.parameters()} == {"float32"}
    for rule in (optim.SGD, optim.Momentum, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam,
                 optim.RMSprop, optim.Adagrad, optim.Adadelta):  # fmt: skip
        rule(model.parameters(), fused=True, foreach=False)


# ---- other parameters --------------------------------------------------------------


@looped("lazy", [False, True])
def test_a_module_is_a_function_of_its_parameters(lazy):
    net, x = Net(), ndl.randn(5, 3)
    params = dict(net.named_parameters())

    def loss(*values):
        return (nn.functional_call(net, dict(zip(params, values, strict=True)), x) ** 2).sum()

    with ndl.lazy_mode(lazy):
        grads = ndl.grad(loss, argnums=range(len(params)))(*params.values())
    assert all(p.grad is None and p.is_leaf() and p.requires_grad for p in net.parameters())
    (net(x) ** 2).sum().backward()
    for grad, p in zip(grads, net.parameters(), strict=True):
        np.testing.assert_allclose(grad.numpy(), p.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_hessians_tangents_and_gradients_of_samples():
    layer, x = nn.Linear(3, 1).to("float64"), ndl.randn(5, 3, dtype="float64")

    def losses(w):
        return nn.functional_call(layer, {"weight": w}, x).ravel() ** 2

    hessian = ndl.hessian(lambda w: losses(w).sum())(layer.weight)
    np.testing.assert_allclose(hessian.numpy().reshape(3, 3), 2 * x.numpy().T @ x.numpy())
    each = ndl.jacobian(losses)(layer.weight).numpy()
    expected = 2 * layer(x).numpy()[:, :, None] * x.numpy()[:, :, None]
    np.testing.assert_allclose(each, expected)
    _, slope = ndl.jvp(losses, layer.weight, ndl.ones(3, 1, dtype="float64"))
    np.testing.assert_allclose(slope.numpy(), each.sum((1, 2)))


def test_what_is_not_named_stays():
    net, x = Net().eval(), ndl.randn(5, 3)
    before = {name: value.numpy() for name, value in net.state_dict().items()}
    out = nn.functional_call(net, {"head.weight": np.zeros((4, 2))}, (x,), {"factor": 2.0})
    assert np.allclose(out.numpy(), 2 * net.head.bias.numpy()) and out.requires_grad
    constant = {name: ndl.Tensor(value, requires_grad=False) for name, value in before.items()}
    assert not nn.functional_call(net, constant, x).requires_grad
    net.train()
    mean = net.body[1].running_mean
    nn.functional_call(net, {"body.1.running_mean": ndl.ones(4)}, x)
    assert net.body[1].running_mean is mean
    del before["body.1.running_var"]
    for name, value in before.items():
        assert np.array_equal(net.state_dict()[name].numpy(), value), name
    assert all(p.requires_grad and p.is_leaf() for p in net.parameters())


def test_shared_parameters_and_errors():
    net = Net()
    net.tied = net.scale
    out = nn.functional_call(net, {"tied": ndl.zeros(1)}, ndl.randn(5, 3))
    assert (out.numpy() == 0).all()
    with pytest.raises(OptionError, match="did you mean 'scale'"):
        nn.functional_call(net, {"scal": ndl.zeros(1)}, ndl.randn(5, 3))
    with pytest.raises(ShapeError, match="scale has another shape"):
        nn.functional_call(net, {"scale": ndl.zeros(2)}, ndl.randn(5, 3))
    with pytest.raises(ArgumentError, match="expected tensors by name"):
        nn.functional_call(net, [ndl.zeros(1)], ndl.randn(5, 3))
    with pytest.raises(ShapeError):
        nn.functional_call(net, {"scale": ndl.zeros(1)}, ndl.randn(5, 7))
    assert net.scale.tolist() == [1.0]

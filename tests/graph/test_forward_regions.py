"""Forward mode through checkpoints, the users' own rules, and modules."""

from __future__ import annotations

import numpy as np
import pytest
from forward_mode import close, slope, tensor

import needle as ndl
from needle import nn, ops
from needle.errors import (
    GradientError,
)


def test_through_checkpoint(mode):
    x = tensor([0.5, 1.0])
    w = tensor([2.0, 3.0], requires_grad=True)

    def plain(x):
        return (ops.exp(x) * w * x).sum()

    region = ndl.checkpoint(plain)
    close(ndl.jvp(region, (x,), (x,))[1].detach(), ndl.jvp(plain, (x,), (x,))[1].item())
    close(ndl.hvp(region, x, x).detach(), ndl.hvp(plain, x, x).detach().numpy())
    close(ndl.grad(slope(lambda t: region(x * t)))(tensor(1.0)).detach(),
          ndl.grad(slope(lambda t: plain(x * t)))(tensor(1.0)).item())  # fmt: skip
    close(ndl.jacobian(region, mode="forward")(x).detach(), ndl.grad(plain)(x).detach().numpy())


def test_custom_gradient_is_transposed(mode):
    @ndl.custom_gradient
    def doubled_slope(x, y):
        e = ops.exp(x)
        return e * y, lambda g: (2.0 * g * e * y, g * e)

    x, y = tensor([0.5, 1.0]), tensor([2.0, 3.0])
    e = np.exp(x.numpy())
    close(ndl.jvp(doubled_slope, (x, y), (1.0, None))[1], 2 * e * y.numpy())
    close(ndl.jvp(doubled_slope, (x, y), (None, 1.0))[1], e)

    def total(x):
        return doubled_slope(x, y).sum()

    for second in (ndl.hvp(total, x, 1.0), ndl.grad(lambda x: ndl.grad(total)(x).sum())(x),
                   ndl.jvp(lambda x: ndl.jvp(doubled_slope, (x, y), (1.0, None))[1], x, 1.0)[1],
                   ndl.grad(lambda x: ndl.jvp(total, x, 1.0)[1])(x)):  # fmt: skip
        # the slope of the rule, 2 e y, by the rule's own ops
        close(second, 2 * e * y.numpy())
    close(ndl.linearize(lambda x: doubled_slope(x, y), x)[1](1.0), 2 * e * y.numpy())


RULES = [
    lambda g: ops.clip(g, -1.0, 1.0),
    ops.relu,
    lambda g: g + 1e-3,
    lambda g: g / ops.absolute(g).sum(),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_custom_gradient_that_is_not_linear_is_refused(rule):
    clipped = ndl.custom_gradient(lambda x: (x, rule))
    x = tensor([0.5])
    ndl.grad(lambda x: clipped(x).sum())(x)
    for call in (lambda: ndl.jvp(clipped, x, 1.0), lambda: ndl.linearize(clipped, x)):
        with pytest.raises(GradientError, match="not linear in out_grad"):
            call()


def test_dropout_draws_once():
    ndl.manual_seed(3)
    x = tensor(np.arange(1.0, 101.0))
    out, tangent = ndl.jvp(lambda x: ops.dropout(x, 0.5), (x,), (x,))
    assert 20 < np.count_nonzero(out.numpy()) < 80
    close(tangent, out.numpy())


def test_batch_norm_module_keeps_plain_statistics(mode):
    layer, plain = nn.BatchNorm1d(3, dtype="float64"), nn.BatchNorm1d(3, dtype="float64")
    x = tensor(np.random.default_rng(0).standard_normal((5, 3)))

    def f(x):
        return (layer(x) ** 2).sum(axis=0)

    out, tangent = ndl.jvp(f, (x,), (tensor(np.eye(5, 3)),))
    plain(x)
    close(layer.running_mean, plain.running_mean.numpy())
    close(layer.running_var, plain.running_var.numpy())
    step = 1e-6
    moved = [f(tensor(x.numpy() + s * np.eye(5, 3))).detach().numpy() for s in (step, -step)]
    np.testing.assert_allclose(tangent.detach().numpy(), (moved[0] - moved[1]) / 2e-6, atol=1e-8)
    layer.eval()
    close(ndl.jvp(layer, (x,), (x,))[0].detach(), layer(x).detach().numpy())


def test_a_model_of_layers():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2))
    x = ndl.Tensor(np.random.default_rng(0).standard_normal((4, 3)), requires_grad=False)

    def loss(x):
        return nn.SoftmaxLoss()(model(x), ndl.Tensor([0, 1, 1, 0], requires_grad=False))

    v = ops.ones_like(x)
    expected = (ndl.grad(loss)(x) * v).sum()
    np.testing.assert_allclose(ndl.jvp(loss, x, v)[1].item(), expected.item(), rtol=1e-4)


def test_custom_gradient_of_several_results(mode):
    @ndl.custom_gradient
    def both(x, y):
        return (x * y, x.sum(), ops.argmax(x)), lambda g: (
            3.0 * g[0] * y + g[1],
            g[0] * x,
        )

    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    out = both(x, y)
    assert isinstance(out, tuple) and len(out) == 3 and out[2].item() == 1
    close(ndl.grad(lambda x: both(x, y)[0].sum())(x), 3 * y.numpy())
    close(ndl.grad(lambda x: both(x, y)[1])(x), [1.0, 1.0])
    gx, gy = ndl.grad(lambda x, y: both(x, y)[0].sum() + 2.0 * both(x, y)[1], (0, 1))(x, y)
    close(gx, 3 * y.numpy() + 2.0)
    close(gy, x.numpy())
    _, tangent = ndl.jvp(both, (x, y), (1.0, None))
    close(tangent[0], 3 * y.numpy())
    close(tangent[1], 2.0)
    assert tangent[2] is None
    push = ndl.linearize(lambda x: both(x, y)[0], x)[1]
    close(push(1.0), 3 * y.numpy())
    close(ndl.hvp(lambda x: (both(x, x)[0]).sum(), x, 1.0), [4.0, 4.0])


def test_what_a_custom_gradient_closes_over_does_not_move():
    """Its inputs are the tensors among its arguments, in both modes."""
    x, w = (ndl.Tensor(values, dtype="float64") for values in ([1.0, 2.0], [0.5, -1.0]))

    def scaled(w):
        return ndl.custom_gradient(lambda a: (a * w, lambda g: g * w))(x)

    assert not ndl.jvp(scaled, w, 1.0)[1].numpy().any()
    assert not ndl.jvp(lambda v: ndl.jvp(scaled, v, 1.0)[1], w, 1.0)[1].numpy().any()
    assert not ndl.grad(lambda w: scaled(w).sum())(w).numpy().any()
    np.testing.assert_array_equal(scaled(w).numpy(), x.numpy() * w.numpy())

"""Losses by their numbers."""

from functools import partial

import numpy as np
import pytest
from small_modules import ours, torchs

import needle as ndl
from needle import nn, ops
from needle.errors import (
    IndexRangeError,
    OptionError,
    ShapeError,
)


def log_softmax(x, axis=-1):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


@pytest.mark.parametrize("labels", [np.array([2, 0, 1]), [2.0, 0.0, 1.0]])
def test_softmax_loss(labels):
    x = np.random.randn(3, 4).astype(np.float32)
    logits = ndl.Tensor(x)
    loss = nn.SoftmaxLoss()(logits, ndl.Tensor(labels))
    np.testing.assert_allclose(loss.item(), -log_softmax(x)[range(3), [2, 0, 1]].mean(), rtol=1e-5)
    loss.backward()
    expected = (np.exp(log_softmax(x)) - np.eye(4)[[2, 0, 1]]) / 3
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [4, -1])
def test_softmax_loss_refuses_labels_that_are_no_class(bad):
    with pytest.raises(IndexRangeError, match=str(bad)):
        nn.SoftmaxLoss()(ndl.ones(2, 4), ndl.Tensor(np.array([0, bad])))


def test_cross_entropy_loss_ignores_and_smooths():
    x = np.random.randn(4, 3).astype(np.float32)
    y = np.array([2, -100, 0, 1])
    log_p = log_softmax(x)
    each = np.where(y == -100, 0.0, -0.8 * log_p[range(4), np.maximum(y, 0)] - 0.2 * log_p.mean(1))
    args = ndl.Tensor(x), ndl.Tensor(y)
    for reduction, expected in (("mean", each.sum() / 3), ("sum", each.sum()), ("none", each)):
        loss = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=0.2)(*args)
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, err_msg=reduction)
    other = nn.CrossEntropyLoss(ignore_index=0)(ndl.Tensor(x[[0, 2]]), ndl.Tensor(y[[0, 2]]))
    np.testing.assert_allclose(other.item(), -log_p[0, 2], rtol=1e-5)


def test_cross_entropy_loss_has_classes_on_axis_1():
    x = np.random.randn(2, 3, 5).astype(np.float32)
    y = np.random.randint(0, 3, (2, 5))
    each = -np.take_along_axis(log_softmax(x, 1), y[:, None], 1)[:, 0]
    loss = nn.CrossEntropyLoss(reduction="none")(ndl.Tensor(x), ndl.Tensor(y))
    np.testing.assert_allclose(loss.numpy(), each, rtol=1e-5)
    p = np.moveaxis(np.eye(3, dtype=np.float32)[y], -1, 1)
    loss = nn.CrossEntropyLoss(reduction="none")(ndl.Tensor(x), ndl.Tensor(p))
    np.testing.assert_allclose(loss.numpy(), each, rtol=1e-5)


def test_mse_loss():
    x, y = np.random.randn(2, 3).astype(np.float32), np.random.randn(2, 3).astype(np.float32)
    for reduction, expected in (("mean", ((x - y) ** 2).mean()), ("sum", ((x - y) ** 2).sum())):
        loss = nn.MSELoss(reduction)(ndl.Tensor(x), ndl.Tensor(y))
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)
    with pytest.raises(ShapeError, match="differ"):
        nn.MSELoss()(ndl.ones(3, 1), ndl.ones(3))


LOSSES = {
    nn.L1Loss: lambda d, x, y: np.abs(d),
    nn.HuberLoss: lambda d, x, y: np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5),
    nn.BCEWithLogitsLoss: lambda d, x, y: np.logaddexp(0, x) - x * y,
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_of_pairs(kind):
    random = np.random.default_rng(0)
    x, y = 2 * random.standard_normal((4, 3)), random.uniform(0, 1, (4, 3))
    each = LOSSES[kind](x - y, x, y)
    for reduction, expected in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
        loss = kind(reduction=reduction)(ndl.Tensor(x), ndl.Tensor(y))
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="differ"):
        kind()(ndl.ones(3, 1), ndl.ones(3))


def test_huber_loss_has_a_delta():
    x, zero = ndl.Tensor([0.5, 4.0]), ndl.zeros(2)
    assert nn.HuberLoss("none", delta=2.0)(x, zero).tolist() == [0.125, 6.0]
    with pytest.raises(OptionError, match="expected a positive delta, got 0.0"):
        nn.HuberLoss(delta=0.0)(x, zero)


@pytest.mark.parametrize("kind", [nn.MSELoss, *LOSSES])
def test_losses_refuse_unknown_reductions(kind):
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        kind("meann")


@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"beta": 0.0},
                                 {"beta": 2.5}])  # fmt: skip
def test_smooth_l1_loss_is_pytorchs(how):
    x, y = 2 * np.random.default_rng(0).standard_normal((2, 5, 4))
    expected = torchs(lambda torch: torch.nn.SmoothL1Loss(**how), x, y)
    for found, exact in zip(ours(nn.SmoothL1Loss(**how), x, y), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    with pytest.raises(OptionError, match="beta=-1"):
        nn.SmoothL1Loss(beta=-1)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5)])
@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"},
                                 {"ignore_index": 1}])  # fmt: skip
def test_nll_loss_is_pytorchs(how, shape):
    random = np.random.default_rng(0)
    x, labels = random.standard_normal(shape), random.integers(0, 3, (shape[0], *shape[2:]))
    expected = torchs(lambda torch: torch.nn.NLLLoss(**how), x, labels)
    for found, exact in zip(ours(nn.NLLLoss(**how), x, labels), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    loss = nn.NLLLoss(**how)(ndl.Tensor(x, dtype="float64"), labels.tolist())
    np.testing.assert_allclose(loss.numpy(), expected[0], rtol=1e-12)
    counts = [0.5, 1.0, 4.0]

    def weighted(torch):
        return torch.nn.NLLLoss(torch.tensor(counts, dtype=torch.float64), **how)

    mine = ours(nn.NLLLoss(counts, **how), x, labels)
    for found, exact in zip(mine, torchs(weighted, x, labels), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)


@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"}])
@pytest.mark.parametrize(
    "weights", [("pos_weight",), ("weight",), ("weight", "pos_weight")], ids=" and ".join
)
def test_weights_of_elements_and_of_positive_targets_are_pytorchs(weights, how):
    random = np.random.default_rng(0)
    x, y = 3 * random.standard_normal((4, 3)), random.uniform(0, 1, (4, 3))
    given = {name: random.integers(4, 32, 3) / 8 for name in weights}  # which float32 holds

    def make(torch, name="BCEWithLogitsLoss", **given):
        made = {key: torch.tensor(value, dtype=torch.float64) for key, value in given.items()}
        return getattr(torch.nn, name)(**made, **how)

    loss = nn.BCEWithLogitsLoss(**given, **how)
    exact = torchs(partial(make, **given), x, y)
    for found, value in zip(ours(loss, x, y), exact, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12)
    assert list(loss.state_dict()) == list(weights) and not loss.parameters()
    if "weight" in given:
        weight = given["weight"]
        p, loss = 1 / (1 + np.exp(-x)), nn.BCELoss(weight=weight, **how)
        exact = torchs(partial(make, name="BCELoss", weight=weight), p, y)
        for found, value in zip(ours(loss, p, y), exact, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-12)


@pytest.mark.parametrize("loss", [ops.bce, ops.bce_with_logits])
def test_weights_of_elements_have_the_shape_of_the_losses(loss):
    x = ndl.full((3, 4), 0.5)
    assert loss(x, x, weight=2.0).item() == 2 * loss(x, x).item()
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 4\) does not broadcast to \(3, 4\)"):
        loss(x, x, weight=np.ones((2, 3, 4)))

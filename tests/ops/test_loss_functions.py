"""Losses: reductions, weights of classes, labels."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
)
from needle.testing import check_gradients

X = np.random.default_rng(0).normal(size=(4, 5, 6))


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


@looped("dtype", ["float32", "float64", "bfloat16"])
def test_huber_loss_at_special_values(dtype):
    x = ndl.Tensor(np.array([0.0, 0.5, 1.0, 3.0, -3.0, np.inf, -np.inf, np.nan])).astype(dtype)
    zero = ndl.zeros_like(x)
    expected = [0.0, 0.125, 0.5, 2.5, 2.5, np.inf, np.inf, np.nan]
    found = ops.huber_loss(x, zero, reduction="none")
    np.testing.assert_array_equal(found.numpy().astype(np.float64), expected)
    with ndl.config(device="cpu_numpy"):
        there = ops.huber_loss(x.to("cpu_numpy"), zero.to("cpu_numpy"), reduction="none")
    np.testing.assert_array_equal(there.numpy().astype(np.float64), expected)


LOGITS, LABELS = X[0], np.array([0, 5, 2, 2, 1])


def test_cross_entropy_reductions():
    rows = -np.log(np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True))[range(5), LABELS]
    x, y = tensor(LOGITS), ndl.Tensor(LABELS)
    np.testing.assert_allclose(ops.cross_entropy(x, y, reduction="none").numpy(), rows)
    assert np.isclose(ops.cross_entropy(x, y).item(), rows.mean())
    kept = rows[LABELS != 2].mean()
    assert np.isclose(ops.cross_entropy(x, y, ignore_index=2).item(), kept)
    floating = ndl.Tensor(LABELS.astype("float32"))
    assert np.isclose(ops.cross_entropy(x, floating).item(), rows.mean())
    probabilities = ops.one_hot(y, 6, "float64")
    assert np.isclose(ops.cross_entropy(x, probabilities).item(), rows.mean())
    log = ops.log_softmax(x)
    assert np.isclose(ops.nll_loss(log, y, ignore_index=2).item(), kept)


def test_floating_labels_alone_have_no_gradient():
    x, labels = ndl.Tensor(LOGITS, requires_grad=False), ndl.Tensor(LABELS.astype("float32"))
    ops.cross_entropy(x * 1.0, labels * 1.0).backward()  # what the logits' would read is gone
    assert labels.grad is None


def test_labels_outside_the_classes(device):
    x = ndl.Tensor(LOGITS, device=device)
    y = ndl.Tensor(np.array([0, 1, 6, 2, 2]), device=device)
    for loss in (ops.cross_entropy, ops.nll_loss):
        with pytest.raises(IndexRangeError, match=r"\blabel .*position 2 .* 6 (classes|entries)"):
            loss(x, y)
            device.synchronize()  # what does not wait for its kernels tells it here


def test_losses_want_equal_shapes_and_known_reductions():
    x = tensor(LOGITS)
    for loss in (ops.mse_loss, ops.l1_loss, ops.huber_loss, ops.bce_with_logits):
        with pytest.raises(ShapeError):
            loss(x, x[:, :1])
        with pytest.raises(OptionError, match="did you mean 'mean'"):
            loss(x, x, reduction="men")


@looped("reduction", ["mean", "sum", "none"])
@looped("ignored", [None, 2])
def test_nll_loss_with_weights_of_classes(ignored, reduction):
    weight = np.array([1.0, 0.5, 2.0, 0.0, 3.0, 0.25])
    log = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    counts = np.where(ignored == LABELS, 0.0, weight[LABELS])
    rows = -log[range(5), LABELS] * counts
    expected = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / counts.sum()}[reduction]
    options = {"weight": weight, "ignore_index": ignored, "reduction": reduction}
    found = ops.nll_loss(tensor(log), ndl.Tensor(LABELS), **options)
    np.testing.assert_allclose(found.numpy(), expected)
    with pytest.raises(ShapeError, match="nll_loss: expected one weight for each of 6 classes"):
        ops.nll_loss(tensor(log), ndl.Tensor(LABELS), weight=weight[:5])


@looped("beta", [0.0, 0.3, 1.0, 2.5])
def test_smooth_l1_loss(beta):
    apart = np.abs(X[0] - X[1])
    near = apart**2 / (2 * beta) if beta else apart
    expected = np.where(apart < beta, near, apart - beta / 2)
    found = ops.smooth_l1_loss(tensor(X[0]), tensor(X[1]), beta=beta, reduction="none")
    np.testing.assert_allclose(found.numpy(), expected)
    assert np.isclose(
        ops.smooth_l1_loss(tensor(X[0]), tensor(X[1]), beta=beta).item(), expected.mean()
    )
    check_gradients(lambda x, y: ops.smooth_l1_loss(x, y, beta=beta), X[0], X[1])
    with pytest.raises(OptionError, match="smooth_l1_loss: beta is -1"):
        ops.smooth_l1_loss(tensor(X), tensor(X), beta=-1)


def weighted_entropy(x, y, weight, ignore=None, smoothing=0.0):
    """Losses and weights of rows: what PyTorch's ``weight`` means."""
    logp = x - np.log(np.exp(x).sum(-1, keepdims=True))
    classes = x.shape[-1]
    if y.shape == x.shape:
        y = (1 - smoothing) * y + smoothing / classes
        return -(y * weight * logp).sum(-1), np.ones(x.shape[:-1])
    kept = np.ones(y.shape, bool) if ignore is None else y != ignore
    own = weight[np.where(kept, y, 0)] * kept
    picked = np.take_along_axis(logp, np.where(kept, y, 0)[..., None], -1)[..., 0]
    spread = (weight * logp).sum(-1) * kept
    return -(1 - smoothing) * own * picked - smoothing / classes * spread, own


@looped("ignore", [None, 2])
@looped("smoothing", [0.0, 0.2])
@looped("target", ["labels", "probabilities"])
def test_cross_entropy_with_class_weights(target, smoothing, ignore, device):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 5, 3)), np.array([0.5, 2.0, 3.0])
    y = rng.integers(0, 3, (2, 5)) if target == "labels" else rng.dirichlet(np.ones(3), (2, 5))
    rows, own = weighted_entropy(x, y, weight, ignore, smoothing)
    tensors = [ndl.Tensor(v, dtype=str(v.dtype), device=device) for v in (x, y, weight)]
    more = {"ignore_index": ignore, "label_smoothing": smoothing, "weight": tensors[2]}
    for reduction, expected in (
        ("none", rows), ("sum", rows.sum()), ("mean", rows.sum() / own.sum())
    ):  # fmt: skip
        found = ops.cross_entropy(*tensors[:2], reduction=reduction, **more)
        np.testing.assert_allclose(found.numpy(), expected)
    with ndl.config(device=device.name):
        check_gradients(lambda x: ops.cross_entropy(x, tensors[1], **more), x)


def test_class_weights_are_one_for_each_class():
    x, y = tensor(X[0]), ndl.Tensor([0, 1, 2, 3, 4], dtype="int64")
    for wrong in (ndl.ones(5), ndl.ones(1, 6), ndl.Tensor(1.0)):
        with pytest.raises(ShapeError, match=r"cross_entropy.*6 classes"):
            ops.cross_entropy(x, y, weight=wrong)
    with pytest.raises(IndexRangeError, match="label"):
        ops.cross_entropy(x, y + 3, weight=ndl.ones(6))
    loss = nn.CrossEntropyLoss(np.arange(1.0, 7.0), ignore_index=0)
    assert set(loss.state_dict()) == {"weight"} and not list(loss.parameters())
    expected = ops.cross_entropy(x, y, weight=ndl.Tensor(np.arange(1.0, 7.0)), ignore_index=0)
    assert loss(x, y).item() == pytest.approx(expected.item())
    assert not nn.CrossEntropyLoss(ndl.ones(6)).weight.requires_grad


def test_the_weights_of_many_labels_are_added_in_float32():
    x, y = ndl.zeros(5000, 2, dtype="float16"), ndl.zeros(5000, dtype="int64")
    for weight in (ndl.ones(2), np.ones(2)):
        loss = ops.cross_entropy(x, y, weight=weight).item()
        assert loss == pytest.approx(np.log(2), rel=1e-3)


def test_labels_of_negative_log_likelihoods_are_no_bools():
    with pytest.raises(DtypeError, match="bools"):
        nn.NLLLoss()(ndl.zeros((2, 2)), ndl.Tensor([True, False]))


def test_what_cannot_be_ignored():
    with pytest.raises(ArgumentError, match="ignore_index"):
        ops.nll_loss(ndl.zeros((2, 3)), ndl.Tensor([0, 1], dtype="int64"), ignore_index="a")

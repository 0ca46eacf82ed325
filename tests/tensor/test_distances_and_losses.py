"""Distances, statistics and losses at the edges of their domains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from beside_pytorch import ODD, needs_torch, tensor
from looped import looped

import needle as ndl
from needle import ops

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


@looped("shift", [0.0, 1e3, 1e6])
def test_distances_of_float32_are_exact_where_differences_are(shift):
    x = (np.random.default_rng(0).normal(size=(40, 64)) + shift).astype("float32")
    y = x[::-1].copy()
    y[::2] += np.float32(1e-2)
    exact = np.linalg.norm(x[:, None].astype(float) - y[None].astype(float), axis=-1)
    a, b = ndl.Tensor(x), ndl.Tensor(y)
    found = ops.cdist(a, b)
    assert found.dtype == "float32" and (exact == 0).any()
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-6)
    found.sum().backward()
    apart = x[:, None].astype(float) - y[None].astype(float)
    slope = (apart / np.where(exact == 0, 1.0, exact)[..., None]).sum(1)
    np.testing.assert_allclose(a.grad.numpy(), slope, rtol=1e-4, atol=1e-5)
    second = ndl.hessian(lambda x: ops.cdist(x, b[:2]).sum())(ndl.Tensor(y[:1])).numpy()
    assert np.isfinite(second).all()


def test_a_point_at_infinity_is_no_matter_of_the_others():
    x = ndl.Tensor([[0.0, 1.0], [np.inf, 0.0], [3.0, 5.0]])
    found = ops.cdist(x, x).numpy()
    assert found[0, 2] == found[2, 0] == 5.0 and found[0, 0] == found[2, 2] == 0.0
    assert not np.isfinite(found[1]).any() and not np.isfinite(found[:, 1]).any()


@looped("far", [np.inf, -np.inf])
def test_a_point_at_infinity_is_infinitely_far_away(far):
    x, y = ndl.Tensor([[far, 1.0], [2.0, far]]), ndl.Tensor([[1.0, 2.0], [-3.0, 0.0]])
    assert (ops.cdist(x, y).numpy() == np.inf).all() and (ops.cdist(y, x).numpy() == np.inf).all()


def test_distances_of_halves_of_integers_and_of_no_points():
    half = ndl.Tensor(np.full((2, 300), 300.0), dtype="float16")
    assert ops.cdist(half, half * 0.0).numpy()[0, 0] == np.float16(300.0 * 300**0.5)
    whole = ndl.Tensor([[3, 4], [0, 0]], dtype="int64")
    assert ops.cdist(whole, whole).tolist() == [[0.0, 5.0], [5.0, 0.0]]
    for p in (1.0, 2.0):
        x, y = ndl.zeros(0, 3, requires_grad=True), ndl.zeros(4, 3, requires_grad=True)
        for pair in ((x, y), (y, x)):
            out = ops.cdist(*pair, p)
            assert out.shape == (len(pair[0]), len(pair[1]))
            out.sum().backward()
            assert not y.grad.numpy().any()


def test_what_is_constant_correlates_with_nothing():
    x = tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    np.testing.assert_allclose(ops.corrcoef(x).numpy(), [[1, np.nan], [np.nan, np.nan]])
    assert ops.corrcoef(x[0]).item() == 1.0 and ops.cov(x[:, :1], correction=0).tolist()[0][0] == 0
    assert np.isnan(ops.cov(x[:, :1]).numpy()).all()
    half = ndl.Tensor([[300.0, -300.0], [300.0, -300.0]], dtype="float16")
    assert ops.corrcoef(half).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@needs_torch
def test_ties_of_adaptive_pooling_go_to_the_first_and_nan_wins():
    values = np.maximum(ODD, 0.0)
    x, other = tensor(values), torch.tensor(values, requires_grad=True)
    ops.adaptive_max_pool2d(x, 4).sum().backward()
    F.adaptive_max_pool2d(other, 4).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), other.grad.numpy())
    values[0, 0, 2, 3] = np.nan
    for size in (4, (7, 2)):
        found = ops.adaptive_max_pool2d(tensor(values), size).numpy()
        assert np.isnan(found).any()
        expected = F.adaptive_max_pool2d(torch.tensor(values), size).numpy()
        np.testing.assert_array_equal(found, expected)


def test_what_is_impossible_adds_nothing_to_a_divergence():
    x, target = tensor([0.5, -1.0]), tensor([-np.inf, 0.0])
    out = ops.kl_divergence(x, target, reduction="sum", log_target=True)
    out.backward()
    assert out.item() == 1.0 and x.grad.tolist() == [0.0, -1.0] and target.grad[0].item() == 0.0


@needs_torch
def test_small_variances_count_as_eps_and_let_gradients_pass():
    var = np.array([1e-9, 1e-3, 2.0])
    x, other = tensor(var), torch.tensor(var, requires_grad=True)
    out = ops.gaussian_nll_loss(tensor([0.1, 0.2, 0.3]), tensor([0.2, 0.4, 0.6]), x)
    expected = F.gaussian_nll_loss(
        torch.tensor([0.1, 0.2, 0.3]).double(), torch.tensor([0.2, 0.4, 0.6]).double(), other
    )
    out.backward()
    expected.backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-6)
    fixed = ops.gaussian_nll_loss(tensor([1.0]), tensor([3.0]), 4.0)
    assert fixed.item() == pytest.approx(0.5 * (math.log(4.0) + 1.0))


def test_cross_entropy_of_certain_probabilities():
    x, y = tensor([0.0, 1.0, 0.0, 1.0]), tensor([0.0, 1.0, 1.0, 0.0])
    out = ops.bce(x, y, reduction="none")
    out.sum().backward()
    assert out.tolist() == [0.0, 0.0, 100.0, 100.0]
    assert x.grad.tolist() == [1.0, -1.0, 0.0, 0.0]  # none where a logarithm is limited
    half = ndl.Tensor([0.0, 1.0, 0.5], dtype="bfloat16")
    assert np.isfinite(ndl.grad(lambda x: ops.bce(x, half))(half).numpy().astype(float)).all()
    assert np.isnan(ops.bce(tensor([1.5]), tensor([1.0])).item())


def test_equal_ranks_are_told_apart_from_the_first_step_on():
    x = ndl.zeros(3, requires_grad=True)
    ops.margin_ranking_loss(x, ndl.zeros(3), ndl.Tensor([1, -1, 1], dtype="int32")).backward()
    np.testing.assert_allclose(x.grad.numpy(), [-1 / 3, 1 / 3, -1 / 3], rtol=1e-6)

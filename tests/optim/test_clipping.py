"""Clipping of gradients, by norm and by value."""

import math

import numpy as np
import pytest
from small_updates import parameter

import needle as ndl
from needle import nn, optim
from needle.errors import GradientError, OptionError


def test_clip_grad_norm():
    ps = [parameter([0.0]), parameter([0.0, 0.0]), parameter([0.0])]
    ps[0].grad, ps[1].grad = ndl.Tensor([3.0]), ndl.Tensor([0.0, 4.0])
    assert float(optim.clip_grad_norm(ps, 10.0)) == 5.0
    np.testing.assert_array_equal(ps[1].grad.numpy(), [0.0, 4.0])
    optim.clip_grad_norm(ps, 1.0)
    np.testing.assert_allclose(ps[0].grad.numpy(), [0.6], rtol=1e-5)
    np.testing.assert_allclose(ps[1].grad.numpy(), [0.0, 0.8], rtol=1e-5)
    assert ps[2].grad is None


def test_clip_grad_norm_of_half_precision_does_not_overflow():
    p = parameter(np.zeros(4), "float16")
    p.grad = ndl.Tensor(np.full(4, 300.0), dtype="float16")
    assert float(optim.clip_grad_norm([p], 1.0)) == 600.0
    assert p.grad.dtype == "float16"
    np.testing.assert_allclose(p.grad.numpy(), 0.5, rtol=1e-3)


def test_clip_grad_norm_names_what_is_not_finite():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for p in model.parameters():
        p.grad = ndl.ones_like(p)
    model[1].weight.grad = ndl.Tensor([[1.0], [np.nan]])
    with pytest.raises(GradientError, match=r"1\.weight") as error:
        optim.clip_grad_norm(model.parameters(), 1.0, error_if_nonfinite=True)
    assert "0.weight" not in str(error.value)


def test_clip_grad_value():
    p = parameter([0.0, 0.0, 0.0])
    p.grad = ndl.Tensor([-3.0, 0.5, 2.0])
    optim.clip_grad_value([p], 1.0)
    np.testing.assert_array_equal(p.grad.numpy(), [-1.0, 0.5, 1.0])


def test_a_tensor_alone_is_clipped():
    p = parameter([[0.0, 0.0]])
    p.grad = ndl.Tensor([[3.0, 4.0]])
    assert float(optim.clip_grad_norm(p, 2.5)) == 5.0
    np.testing.assert_allclose(p.grad.numpy(), [[1.5, 2.0]], rtol=1e-5)
    optim.clip_grad_value(p, 1.0)
    assert p.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
@pytest.mark.parametrize("given", [nn.Linear(1, 1), None, 3, [1.0]])
def test_what_has_no_gradient_is_not_clipped(clip, given):
    with pytest.raises(OptionError, match=f"{clip.__name__}: .* tensor"):
        clip(given, 1.0)


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
@pytest.mark.parametrize("limit", [-1.0, math.nan, "1", None])
def test_limits_are_numbers(clip, limit):
    p = parameter([1.0])
    p.grad = ndl.Tensor([3.0])
    with pytest.raises(OptionError, match=f"{clip.__name__}: max_"):
        clip([p], limit)
    assert p.grad.item() == 3.0
    clip([p], math.inf)
    assert p.grad.item() == 3.0


def test_clipping_without_gradients_or_with_negative_limits():
    p = parameter([1.0])
    with pytest.raises(GradientError, match="backward"):
        optim.clip_grad_norm([p], 1.0)
    with pytest.raises(OptionError):
        optim.clip_grad_norm([p], -1.0)
    with pytest.raises(OptionError):
        optim.clip_grad_value([p], -1.0)

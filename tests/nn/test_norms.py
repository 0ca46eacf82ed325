"""Norms by their numbers."""

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import (
    ShapeError,
)


def test_batch_norm_in_training_and_evaluation():
    rng = np.random.default_rng(0)
    batches = rng.normal(2.0, 3.0, size=(3, 8, 4)).astype(np.float32)
    layer = nn.BatchNorm1d(4, eps=1e-3, momentum=0.2)
    layer.weight.data = ndl.Tensor([1.0, 2.0, 3.0, 4.0])
    layer.bias.data = ndl.Tensor([0.0, 1.0, 0.0, 1.0])
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    running_mean, running_var = np.zeros(4), np.ones(4)
    for x in batches:
        mean, var = x.mean(0), x.var(0)
        out = layer(ndl.Tensor(x))
        expected = (x - mean) / np.sqrt(var + 1e-3) * weight + bias
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
        running_mean = 0.8 * running_mean + 0.2 * mean
        running_var = 0.8 * running_var + 0.2 * var
    np.testing.assert_allclose(layer.running_mean.numpy(), running_mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), running_var, rtol=1e-5)
    assert not layer.running_mean.requires_grad and layer.running_mean.is_leaf()
    out = layer.eval()(ndl.Tensor(batches[0]))
    expected = (batches[0] - running_mean) / np.sqrt(running_var + 1e-3) * weight + bias
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.running_mean.numpy(), running_mean, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradients_are_those_of_finite_differences(training):
    layer = nn.BatchNorm1d(3, dtype="float64").train(training)
    layer.running_var = ndl.Tensor([0.5, 1.0, 2.0], dtype="float64")
    x = np.random.default_rng(0).normal(size=(5, 3))
    g = np.random.default_rng(1).normal(size=(5, 3))

    def value(v):
        return float((layer(ndl.Tensor(v, dtype="float64")) * ndl.Tensor(g, dtype="float64")).sum())

    tensor = ndl.Tensor(x, dtype="float64")
    layer(tensor).backward(ndl.Tensor(g, dtype="float64"))
    direction = np.random.default_rng(2).normal(size=(5, 3))
    layer.momentum = 0.0
    slope = (value(x + 1e-5 * direction) - value(x - 1e-5 * direction)) / 2e-5
    np.testing.assert_allclose((tensor.grad.numpy() * direction).sum(), slope, rtol=1e-6)


@pytest.mark.parametrize(
    "shape", [(4,), (2, 3, 4), (2, 5), (0, 4), (0, 4, 2), (2, 4, 0), (2, 4, 1, 1)]
)
def test_batch_norm_refuses_other_shapes(shape):
    with pytest.raises(ShapeError, match=r"x is \[n, 4\] or \[n, 4, l\]"):
        nn.BatchNorm1d(4)(ndl.ones(*shape))
    with pytest.raises(ShapeError, match=r"x is \[n, 4\] or \[n, 4, l\]"):
        nn.BatchNorm1d(4, track_running_stats=False).eval()(ndl.ones(*shape))


def test_cumulative_statistics_in_lazy_mode_and_half_precision():
    layer = nn.BatchNorm1d(2, momentum=None)
    with ndl.lazy_mode():
        before = ndl.graph.pending()
        for i in range(30):
            layer(ndl.Tensor([[float(i), 0.0], [float(i), 2.0]]))
        assert ndl.graph.pending() - before < 20
    np.testing.assert_allclose(layer.running_mean.numpy(), [14.5, 1.0], rtol=1e-5)
    half = nn.BatchNorm1d(2, momentum=None, dtype="float16")
    half(ndl.ones(3, 2, dtype="float16"))
    assert half.running_mean.dtype == "float16" and half.num_batches_tracked.dtype == "int64"
    np.testing.assert_array_equal(half.running_mean.numpy(), [1.0, 1.0])


def test_batch_norm_does_not_pile_up_work_in_lazy_mode():
    layer = nn.BatchNorm1d(4)
    with ndl.lazy_mode():
        before = ndl.graph.pending()
        for _ in range(50):
            layer(ndl.ones(3, 4))
        assert ndl.graph.pending() - before < 20
    np.testing.assert_allclose(layer.running_mean.numpy(), 1 - 0.9**50, rtol=1e-5)


@pytest.mark.parametrize("shape, sizes", [((6, 4), 4), ((2, 3, 4), 4), ((2, 3, 4), (3, 4))])
def test_layer_norm(shape, sizes):
    x = np.random.randn(*shape).astype(np.float32) * 3 + 1
    layer = nn.LayerNorm(sizes, eps=1e-3)
    axes = (-1,) if isinstance(sizes, int) else tuple(range(-len(sizes), 0))
    layer.weight.data = ndl.Tensor(np.random.randn(*layer.shape))
    layer.bias.data = ndl.Tensor(np.random.randn(*layer.shape))
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    expected = normal * layer.weight.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(layer(ndl.Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_without_bias_and_in_one_dimension():
    x = ndl.Tensor(np.random.randn(3, 4))
    layer = nn.LayerNorm(4, bias=False)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert [name for name, _ in nn.LayerNorm1d(4).named_parameters()] == ["weight", "bias"]
    np.testing.assert_array_equal(layer(x).numpy(), nn.LayerNorm1d(4)(x).numpy())


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("shape, sizes", [((6, 4), 4), ((2, 3, 4), (3, 4)), ((2, 3), (2, 3))])
@pytest.mark.parametrize("affine", [True, False])
def test_norms_of_the_last_axes_are_pytorchs(name, shape, sizes, affine):
    torch = pytest.importorskip("torch")
    x, g = (np.random.default_rng(i).normal(size=shape) for i in (0, 1))
    ours = getattr(nn, name)(sizes, 1e-3, dtype="float64", elementwise_affine=affine)
    theirs = getattr(torch.nn, name)(sizes, 1e-3, elementwise_affine=affine, dtype=torch.float64)
    assert len(ours.parameters()) == len(list(theirs.parameters()))
    tensor, other = ndl.Tensor(x, dtype="float64"), torch.tensor(x, requires_grad=True)
    out, exact = ours(tensor), theirs(other)
    out.backward(ndl.Tensor(g, dtype="float64"))
    exact.backward(torch.tensor(g))
    np.testing.assert_allclose(out.numpy(), exact.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(tensor.grad.numpy(), other.grad.numpy(), rtol=1e-8, atol=1e-10)
    if not affine:
        assert not ours.state_dict()
        with pytest.raises(ShapeError, match=rf"{name}: x has shape"):
            ours(ndl.ones(*shape[:-1], shape[-1] + 1, dtype="float64"))


def test_rms_norm():
    x = np.random.randn(2, 3, 4).astype(np.float32)
    layer = nn.RMSNorm(4)
    layer.weight.data = ndl.Tensor([1.0, 2.0, 3.0, 4.0])
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * [1, 2, 3, 4]
    np.testing.assert_allclose(layer(ndl.Tensor(x)).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1)])
def test_one_value_per_column_has_no_statistics(shape):
    layer = nn.BatchNorm1d(3)
    with pytest.raises(ShapeError, match=r"1 value per column[^$]*eval"):
        layer(ndl.ones(shape))
    assert layer.eval()(ndl.ones(shape)).shape == shape
    with pytest.raises(ShapeError, match="1 value per column"):
        nn.BatchNorm1d(3, track_running_stats=False).eval()(ndl.ones(shape))

"""Norms of images by their numbers."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import graph, nn
from needle.errors import ArgumentError, OptionError, ShapeError
from needle.testing import check_gradients

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape)


def tensor(x, dtype="float64"):
    return ndl.Tensor(x, dtype=dtype, requires_grad=False)


def per_channel(x, *others):
    return [v.reshape(1, -1, *(1 for _ in x.shape[2:])) for v in others]


def normalised(x, axes, weight, bias, eps=1e-5):
    weight, bias = per_channel(x, weight, bias)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def with_parameters(layer):
    layer.weight, layer.bias = (nn.Parameter(tensor(draw(layer.weight.size))) for _ in range(2))
    return layer


def test_batch_norm_2d():
    layer = with_parameters(nn.BatchNorm2d(3, momentum=0.2, dtype="float64"))
    x, w, b = draw(4, 3, 2, 5), layer.weight.numpy(), layer.bias.numpy()
    np.testing.assert_allclose(layer(tensor(x)).numpy(), normalised(x, (0, 2, 3), w, b), atol=1e-12)
    mean, var = 0.2 * x.mean((0, 2, 3)), 0.8 + 0.2 * x.var((0, 2, 3))
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), var, atol=1e-12)
    weight, bias, mean, var = per_channel(x, w, b, mean, var)
    exact = (x - mean) / np.sqrt(var + 1e-5) * weight + bias
    np.testing.assert_allclose(layer.eval()(tensor(x)).numpy(), exact, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_the_rectifier_behind_it_are_one_pass(training):
    model = nn.Sequential(with_parameters(nn.BatchNorm2d(3, dtype="float64")), nn.ReLU())
    plain = nn.BatchNorm2d(3, dtype="float64").train(training)
    plain.load_state_dict(model[0].state_dict())
    x = draw(2, 3, 4, 3)
    out = model.train(training)(tensor(x))
    names = {node.op.name for node in graph.topo([out.node]) if node.op is not None}
    assert ("batch_norm_relu" in names) == training
    np.testing.assert_allclose(out.numpy(), np.maximum(plain(tensor(x)).numpy(), 0), atol=1e-12)
    np.testing.assert_allclose(model[0].running_var.numpy(), plain.running_var.numpy(), 1e-12)
    check_gradients(model, x)
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.numpy().min()))
    model(tensor(x))
    assert seen[0] < 0  # a hook sees the norm's own result


def test_group_norm():
    layer = with_parameters(nn.GroupNorm(2, 4, dtype="float64"))
    x, w, b = draw(3, 4, 2, 5), layer.weight.numpy(), layer.bias.numpy()
    parts = x.reshape(3, 2, 2, 2, 5)
    mean, var = parts.mean((2, 3, 4), keepdims=True), parts.var((2, 3, 4), keepdims=True)
    weight, bias = per_channel(x, w, b)
    exact = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * weight + bias
    np.testing.assert_allclose(layer(tensor(x)).numpy(), exact, atol=1e-12)
    plain = nn.GroupNorm(4, 4, affine=False, dtype="float64")(tensor(x[:, :, 0]))
    ones = np.ones(4)
    np.testing.assert_allclose(plain.numpy(), normalised(x[:, :, 0], 2, ones, 0 * ones), atol=1e-12)
    check_gradients(layer, x)


def test_instance_norm():
    layer = with_parameters(
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True, dtype="float64")
    )
    x, w, b = draw(4, 3, 2, 5), layer.weight.numpy(), layer.bias.numpy()
    np.testing.assert_allclose(layer(tensor(x)).numpy(), normalised(x, (2, 3), w, b), atol=1e-12)
    mean = 0.1 * x.mean((0, 2, 3))
    var = 0.9 + 0.1 * x.var((2, 3), ddof=1).mean(0)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), var, atol=1e-12)
    weight, bias, mean, var = per_channel(x, w, b, mean, var)
    exact = (x - mean) / np.sqrt(var + 1e-5) * weight + bias
    np.testing.assert_allclose(layer.eval()(tensor(x)).numpy(), exact, atol=1e-12)
    plain = nn.InstanceNorm2d(3, dtype="float64")
    ones = np.ones(3)
    for mode in (True, False):  # without running statistics evaluation is the same
        found = plain.train(mode)(tensor(x)).numpy()
        np.testing.assert_allclose(found, normalised(x, (2, 3), ones, 0 * ones), atol=1e-12)
    check_gradients(plain, x)
    assert not plain.parameters() and not plain.buffers()


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.BatchNorm2d(3), (1, 3, 1, 1)),
        (nn.BatchNorm2d(3), (0, 3, 2, 2)),
        (nn.BatchNorm3d(3), (1, 3, 1, 1, 1)),
        (nn.InstanceNorm1d(3), (2, 3, 1)),
        (nn.InstanceNorm2d(3), (2, 3, 1, 1)),
        (nn.InstanceNorm3d(3), (2, 3, 1, 1, 1)),
        (nn.GroupNorm(3, 3), (1, 3)),
    ],
)
def test_statistics_of_one_value_are_an_error(layer, shape):
    with pytest.raises(ShapeError, match="more than one value per (channel|group)") as error:
        layer(tensor(np.ones(shape), "float32"))
    batched = isinstance(layer, nn.BatchNorm2d)  # others take no statistics over the batch
    assert ("a larger batch, or .eval()" in str(error.value)) == batched


KINDS = {
    "BatchNorm1d": (6, 3), "BatchNorm1d of sequences": (4, 3, 5), "BatchNorm2d": (4, 3, 2, 3),
    "BatchNorm3d": (2, 3, 2, 1, 3), "InstanceNorm1d": (4, 3, 5), "InstanceNorm2d": (4, 3, 2, 3),
    "InstanceNorm3d": (2, 3, 2, 1, 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_norms_by_statistics_are_pytorchs(kind, affine, track, momentum):
    torch = pytest.importorskip("torch")
    name, shape = kind.split()[0], KINDS[kind]
    settings = {"momentum": momentum, "affine": affine, "track_running_stats": track}
    ours = getattr(nn, name)(3, 1e-3, dtype="float64", **settings)
    theirs = getattr(torch.nn, name)(3, 1e-3, dtype=torch.float64, **settings)
    if affine:
        with_parameters(ours)
        theirs.load_state_dict(
            {k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items() if "num" not in k},
            strict=False,
        )
    else:
        assert not ours.parameters()
    # of batch norm the course keeps the biased variance, PyTorch the unbiased one
    count = np.prod(shape) // 3
    bias = (count - 1) / count if name[0] == "B" else 1.0
    kept, batches = 1.0, []
    for step in range(1, 4):
        x, g = draw(*shape), draw(*shape)
        batches.append(x)
        tensors = ndl.Tensor(x, dtype="float64"), torch.tensor(x, requires_grad=True)
        out, exact = ours(tensors[0]), theirs(tensors[1])
        np.testing.assert_allclose(out.numpy(), exact.detach().numpy(), atol=1e-10)
        out.backward(tensor(g))
        exact.backward(torch.tensor(g))
        np.testing.assert_allclose(tensors[0].grad.numpy(), tensors[1].grad.numpy(), atol=1e-9)
        kept *= 1.0 - (momentum if momentum is not None else 1 / step)
    assert set(ours.state_dict()) == {
        key for key in theirs.state_dict() if momentum is None or "num_batches" not in key
    }
    if track:
        if momentum is None and name[0] == "I":  # theirs did not move
            whole, axes = np.stack(batches), tuple(range(3, 1 + len(shape)))
            theirs.running_mean.copy_(torch.tensor(whole.mean((0, 1, *axes))))
            theirs.running_var.copy_(torch.tensor(whole.var(axes, ddof=1).mean((0, 1))))
        var = (theirs.running_var.numpy() - kept) * bias + kept
        np.testing.assert_allclose(ours.running_var.numpy(), var, atol=1e-12)
        np.testing.assert_allclose(ours.running_mean.numpy(), theirs.running_mean, atol=1e-12)
        theirs.running_var.copy_(torch.tensor(ours.running_var.numpy()))
    again = getattr(nn, name)(3, 1e-3, dtype="float64", **settings)
    again.load_state_dict(ours.state_dict())
    x = draw(*shape)
    exact = theirs.eval()(torch.tensor(x)).detach().numpy()
    for layer in (ours, again):
        np.testing.assert_allclose(layer.eval()(tensor(x)).numpy(), exact, atol=1e-10)
    check_gradients(ours, x)
    for layer in (ours, again):  # and go on from the state
        layer.train()(tensor(x))
    if track:
        np.testing.assert_array_equal(again.running_var.numpy(), ours.running_var.numpy())


def test_instance_norm_of_one_position_evaluates_by_running_statistics_alone():
    x = tensor(np.ones((2, 3, 1, 1)), "float32")
    tracking = nn.InstanceNorm2d(3, track_running_stats=True)
    with pytest.raises(ShapeError, match=r"try: larger images, or \.eval\(\)"):
        tracking(x)
    assert tracking.eval()(x).shape == x.shape
    with pytest.raises(ShapeError, match=r"try: larger images$"):
        nn.InstanceNorm2d(3).eval()(x)


def test_group_norm_of_one_value_per_group_is_the_bias_as_in_pytorch():
    torch = pytest.importorskip("torch")
    x = draw(2, 3).astype(np.float32)
    theirs = torch.nn.GroupNorm(3, 3)(torch.tensor(x)).detach().numpy()
    ours = nn.GroupNorm(3, 3)(tensor(x, "float32")).numpy()
    assert not ours.any()
    np.testing.assert_allclose(theirs, ours, atol=1e-4)  # theirs are rounded


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: nn.Conv2d(4, 4, 3, padding="zz"), OptionError, "unknown padding 'zz'"),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2), OptionError, "needs stride 1"),
        (lambda: nn.Conv2d(4, 4, 3, padding=(1, 1, 1)), ShapeError, "padding: 3 numbers for 2"),
        (lambda: nn.Conv2d(4, 4, 3, stride=0), ShapeError, "stride=0"),
        (lambda: nn.Conv2d(4, 4, 3, dilation=(1, 0)), ShapeError, r"dilation=\(1, 0\)"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, padding=-1), ShapeError, "padding=-1"),
        (lambda: nn.Conv2d("a", 4, 3), ArgumentError, "Conv2d: in_channels is 'a'"),
        (lambda: nn.Conv(3, 4.5, 3), ArgumentError, "Conv: out_channels is 4.5"),
        (lambda: nn.Upsample(2, mode="foo"), OptionError, "unknown mode 'foo'"),
        (lambda: nn.Upsample(), OptionError, "give either size or scale_factor"),
        (lambda: nn.BatchNorm2d(3, eps=-1), OptionError, "BatchNorm2d: eps=-1"),
        (lambda: nn.BatchNorm2d(3, momentum=2), OptionError, "momentum=2"),
        (lambda: nn.InstanceNorm2d(3, momentum="a"), OptionError, "momentum='a'"),
        (lambda: nn.GroupNorm(1, 3, eps="a"), OptionError, "GroupNorm: eps='a'"),
        (lambda: ndl.fold_batch_norm(ndl.ones(3)), ArgumentError, "expected a module, got Tensor"),
    ],
)
def test_wrong_settings_are_found_where_a_layer_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.Conv2d(1, 1, 3, padding="same"), "1, 1, kernel_size=(3, 3), padding='same'"),
        (nn.BatchNorm2d(3, eps=0.1, momentum=0.5), "3, eps=0.1, momentum=0.5"),
        (nn.BatchNorm1d(3), "3"),
        (nn.GroupNorm(1, 3, eps=0.1), "1, 3, eps=0.1"),
        (nn.InstanceNorm2d(3, affine=True, momentum=0.2), "3, momentum=0.2, affine=True"),
        (nn.MaxPool2d(2), "kernel_size=2, stride=2, padding=0"),
        (
            nn.MaxPool2d(2, dilation=2, ceil_mode=True),
            "kernel_size=2, stride=2, padding=0, dilation=2, ceil_mode=True",
        ),
        (
            nn.AvgPool2d(2, 1, count_include_pad=False),
            "kernel_size=2, stride=1, padding=0, count_include_pad=False",
        ),
        (
            nn.Upsample(4, mode="bilinear", align_corners=True),
            "size=4, mode='bilinear', align_corners=True",
        ),
    ],
)
def test_settings_are_shown(layer, text):
    assert layer.extra_repr() == text


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3),
        nn.BatchNorm3d(3), nn.InstanceNorm1d(3), nn.InstanceNorm3d(3),
    ],
)  # fmt: skip
def test_norms_of_wrong_shapes_are_an_error(layer):
    for shape in ((2, 4, 5, 5), (3,), (3, 4)):
        with pytest.raises(ShapeError, match="x is "):
            layer(tensor(np.ones(shape), "float32"))
    with pytest.raises(ShapeError, match="does not divide"):
        nn.GroupNorm(2, 3)


def test_without_running_statistics_evaluation_wants_more_than_one_value_too():
    layer = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with pytest.raises(ShapeError, match=r"try: a larger batch$"):
        layer(tensor(np.ones((1, 3, 1, 1)), "float32"))

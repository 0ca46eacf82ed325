"""Layers for images: their numbers, their initial weights, and batch norm folded away."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import ArgumentError, DtypeError, OptionError, ShapeError
from needle.testing import check_gradients

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape)


def tensor(x, dtype="float64"):
    return ndl.Tensor(x, dtype=dtype, requires_grad=False)


def per_channel(x, *others):
    return [v.reshape(1, -1, *(1 for _ in x.shape[2:])) for v in others]


def convolved(x, w, b, stride, padding):
    """x [n, c, h, w], w [k, k, c, o]: one position after the other."""
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    k = w.shape[0]
    size = [(n - k) // stride + 1 for n in x.shape[2:]]
    y = np.zeros((x.shape[0], w.shape[-1], *size))
    for i, j in np.ndindex(*size):
        part = x[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
        y[:, :, i, j] = np.einsum("ncij,ijco->no", part, w) + b
    return y


# ---- convolutions ------------------------------------------------------------------


@pytest.mark.parametrize("kernel, stride", [(3, 1), (5, 2), (2, 1), (1, 2)])
def test_the_courses_convolution(kernel, stride, device):
    layer = nn.Conv(3, 4, kernel, stride, device=device, dtype="float64")
    x, w, b = draw(2, 3, 5, 6), layer.weight.numpy(), layer.bias.numpy()
    found = layer(ndl.Tensor(x, dtype="float64", device=device))
    exact = convolved(x, w, b, stride, (kernel - 1) // 2)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-12)


def test_convolutions_draw_the_weight_then_the_bias():
    np.random.seed(3)
    first = nn.Conv(4, 6, 3)
    np.random.seed(3)
    second = nn.Conv2d(4, 6, 3, padding=1)
    np.random.seed(3)
    weight = ((np.random.rand(3, 3, 4, 6).astype("float32") * 2 - 1) * np.sqrt(6 / 36)).astype(
        "float32"
    )
    bias = (np.random.rand(6).astype("float32") * 2 - 1) / 6
    np.testing.assert_allclose(first.weight.numpy(), weight, atol=1e-6)
    np.testing.assert_allclose(first.bias.numpy(), bias, atol=1e-6)
    np.testing.assert_array_equal(second.weight.numpy(), first.weight.numpy().transpose(3, 2, 0, 1))
    x = tensor(draw(2, 4, 5, 5), "float32")
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())


@pytest.mark.parametrize(
    "layer, x, shape",
    [
        (lambda: nn.Conv1d(4, 6, 3, groups=2), (2, 4, 7), (2, 6, 5)),
        (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 6), (2, 6, 4, 3)),
        (lambda: nn.Conv2d(2, 2, 3, padding=2, padding_mode="reflect"), (1, 2, 4, 4), (1, 2, 6, 6)),
        (lambda: nn.Conv2d(2, 4, (2, 3), padding="same"), (1, 2, 4, 4), (1, 4, 4, 4)),
        (lambda: nn.Conv3d(2, 3, 2, bias=False), (1, 2, 3, 3, 3), (1, 3, 2, 2, 2)),
        (lambda: nn.ConvTranspose1d(2, 4, 3, stride=2), (1, 2, 4), (1, 4, 9)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (1, 4, 3, 4), (1, 6, 6, 8)),
        (lambda: nn.ConvTranspose3d(2, 2, 2), (1, 2, 2, 2, 2), (1, 2, 3, 3, 3)),
        (lambda: nn.MaxPool2d(2), (1, 2, 4, 5), (1, 2, 2, 2)),
        (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 2, 4, 4), (1, 2, 3, 3)),
        (lambda: nn.AdaptiveAvgPool2d((1, None)), (1, 2, 4, 5), (1, 2, 1, 5)),
        (lambda: nn.MaxPool1d(3, 2, 1), (2, 3, 8), (2, 3, 4)),
        (lambda: nn.MaxPool3d(2), (1, 2, 3, 4, 2), (1, 2, 1, 2, 1)),
        (lambda: nn.AvgPool1d(2), (2, 3, 7), (2, 3, 3)),
        (lambda: nn.AvgPool3d((1, 2, 2), ceil_mode=True), (1, 2, 2, 3, 2), (1, 2, 2, 2, 1)),
        (lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 7), (2, 3, 3)),
        (lambda: nn.Unflatten(1, (2, -1)), (2, 6, 3), (2, 2, 3, 3)),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 4), (1, 2, 6, 8)),
        (lambda: nn.Upsample(5), (1, 2, 3, 4), (1, 2, 5, 5)),
        (lambda: nn.LeakyReLU(negative_slope=0.2), (2, 3), (2, 3)),
    ],
)  # fmt: skip
def test_layers_and_their_gradients(layer, x, shape):
    made = layer().to("float64")
    assert made(tensor(draw(*x))).shape == shape
    values = [p.numpy() for p in made.parameters()]

    names = [name for name, _ in made.named_parameters()]
    old = {name: getattr(made, name) for name in names}

    def function(x, *given):
        vars(made).update(zip(names, given, strict=True))
        try:
            return made(x)
        finally:
            vars(made).update(old)

    check_gradients(function, draw(*x), *values)
    assert type(made).__name__ in repr(made)


def test_the_weights_of_convolutions_are_saved_copied_and_cast_by_their_names():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3))
    x = tensor(draw(1, 2, 5, 5), "float32")
    other = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3))
    assert other[0].weight.shape == (3, 2, 3, 3) and other[1].weight.shape == (3, 2, 3, 3)
    other.load_state_dict({name: p.numpy() for name, p in model.named_parameters()})
    for same in (other, copy.deepcopy(model)):
        np.testing.assert_allclose(same(x).numpy(), model(x).numpy(), atol=1e-5)
    assert copy.deepcopy(model).to("bfloat16")(x.astype("bfloat16")).dtype == "bfloat16"


@pytest.mark.parametrize("rule", [ndl.optim.Momentum, ndl.optim.Adam])
def test_training_moves_convolutions_however_their_weights_lie_in_memory(rule):
    x, y = tensor(draw(4, 2, 5, 5), "float32"), tensor(draw(4, 3, 3, 3), "float32")
    np.random.seed(0)
    models = [nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3)]
    models[1].load_state_dict({k: v.numpy() for k, v in models[0].state_dict().items()})
    dense = [nn.Parameter(ndl.Tensor(p.numpy())) for p in models[0].parameters()]
    models[1].weight, models[1].bias = dense
    for model in models:
        optimizer = rule(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.minimize(((model(x) - y) ** 2).mean())
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["int64", "bool"])
@pytest.mark.parametrize("convolve", [ops.conv2d, ops.conv_transpose2d])
def test_convolutions_of_integers_are_floating_with_a_bias_too(convolve, kind):
    whole = [
        np.arange(n).reshape(shape) % 5
        for n, shape in ((18, (1, 2, 3, 3)), (16, (2, 2, 2, 2)), (2, (2,)))
    ]
    given = [ndl.Tensor(a, dtype=kind) for a in whole]
    floats = [x.astype("float32") for x in given]
    found, expected = convolve(*given), convolve(*floats)
    assert found.dtype == "float32" and found.tolist() == expected.tolist()
    with pytest.raises(DtypeError, match=f"dtypes float32 and {kind} do not mix"):
        convolve(*floats[:2], given[2])


def test_wrong_settings_of_convolutions():
    with pytest.raises(ShapeError, match="3 and 4 channels do not divide into 2 groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(OptionError, match="reflect"):
        nn.Conv2d(3, 4, 3, padding_mode="mirror")
    with pytest.raises(ShapeError, match="x has 2 channels"):
        nn.Conv(3, 4, 3)(tensor(draw(1, 2, 4, 4), "float32"))
    with pytest.raises(ShapeError, match=r"\[n, 3, h, w\]"):
        nn.Conv(3, 4, 3)(tensor(draw(3, 4, 4), "float32"))


# ---- norms -------------------------------------------------------------------------


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
def test_batch_norm_with_shortcut_and_rectifier(training):
    fused = with_parameters(nn.BatchNormReLU2d(3, dtype="float64")).train(training)
    plain = nn.BatchNorm2d(3, dtype="float64").train(training)
    plain.load_state_dict(fused.state_dict())
    x, r = draw(2, 3, 4, 3), draw(2, 3, 4, 3)
    for extra in ((), (r,)):
        exact = np.maximum(plain(tensor(x)).numpy() + sum(extra), 0)
        found = fused(tensor(x), *map(tensor, extra)).numpy()
        np.testing.assert_allclose(found, exact, atol=1e-12)
        check_gradients(fused, x, *extra)
    np.testing.assert_allclose(fused.running_var.numpy() > 0, True)


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
        (nn.BatchNormReLU2d(3), (1, 3, 1, 1)),
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
        (lambda: nn.Conv2d(4, 4, 3, padding="zz"), OptionError, "there is no 'zz'"),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2), OptionError, "needs stride 1"),
        (lambda: nn.Conv2d(4, 4, 3, padding=(1, 1, 1)), ShapeError, "padding: 3 numbers for 2"),
        (lambda: nn.Conv2d(4, 4, 3, stride=0), ShapeError, "stride 0"),
        (lambda: nn.Conv2d(4, 4, 3, dilation=(1, 0)), ShapeError, r"dilation \(1, 0\)"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, padding=-1), ShapeError, "padding -1"),
        (lambda: nn.Conv2d("a", 4, 3), ArgumentError, "Conv2d: in_channels is 'a'"),
        (lambda: nn.Conv(3, 4.5, 3), ArgumentError, "Conv: out_channels is 4.5"),
        (lambda: nn.Upsample(2, mode="foo"), OptionError, "there is no 'foo'"),
        (lambda: nn.Upsample(), OptionError, "one of size and scale_factor"),
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
        nn.BatchNorm2d(3), nn.BatchNormReLU2d(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3),
        nn.BatchNorm3d(3), nn.InstanceNorm1d(3), nn.InstanceNorm3d(3),
    ],
)  # fmt: skip
def test_norms_of_wrong_shapes_are_an_error(layer):
    for shape in ((2, 4, 5, 5), (3,), (3, 4)):
        with pytest.raises(ShapeError, match="x is "):
            layer(tensor(np.ones(shape), "float32"))
    with pytest.raises(ShapeError, match="do not divide"):
        nn.GroupNorm(2, 3)


def test_without_running_statistics_evaluation_wants_more_than_one_value_too():
    layer = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with pytest.raises(ShapeError, match=r"try: a larger batch$"):
        layer(tensor(np.ones((1, 3, 1, 1)), "float32"))


# ---- folding -----------------------------------------------------------------------


def shaken(model):
    """Give every batch norm running statistics and parameters that change something."""
    for module in model.children():
        shaken(module)
        if isinstance(module, nn.BatchNorm1d):
            for name in ("weight", "bias", "running_mean"):
                setattr(module, name, type(getattr(module, name))(tensor(draw(module.dim))))
            module.running_var = tensor(RNG.uniform(0.5, 2.0, module.dim))
    return model


def test_batch_norm_folds_into_the_layer_before_it():
    depthwise = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
    model = nn.Sequential(
        nn.Conv(2, 3, 3), nn.BatchNormReLU2d(3),
        nn.Residual(nn.Sequential(depthwise, nn.BatchNorm2d(3))),
        nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4),
        nn.ConvTranspose2d(4, 2, 2, groups=2), nn.BatchNorm2d(2),
        nn.Flatten(), nn.Linear(2 * 7 * 7, 3), nn.BatchNorm1d(3),
    ).to("float64")  # fmt: skip
    shaken(model)
    x = tensor(draw(2, 2, 5, 5))
    exact = model.eval()(x).numpy()
    folded = ndl.fold_batch_norm(model.train())
    np.testing.assert_allclose(folded(x).numpy(), exact, atol=1e-10)
    kinds = [type(module).__name__ for _, module in folded.named_modules()]
    assert kinds.count("BatchNorm2d") == 1  # that of the transposed convolution in groups
    assert not {"BatchNorm1d", "BatchNormReLU2d"} & set(kinds)
    assert folded[0].slope == 0 and model[0].slope == 1 and "slope=0.0" in repr(folded)
    assert model.training and not folded.training and len(model.buffers()) == 10


@pytest.mark.parametrize("sizes", [(0, 3, 3), (3, -1, 3), (3, 3, 0), (3, 3, (2, 0))])
@pytest.mark.parametrize("layer", [nn.Conv, nn.Conv2d, nn.ConvTranspose2d])
def test_layers_without_elements_are_refused(layer, sizes):
    if layer is nn.Conv and not isinstance(sizes[2], int):
        sizes = (*sizes[:2], (0, 2))  # of a pair it takes the first
    with pytest.raises(ShapeError, match="sizes are at least 1"):
        layer(*sizes)


def test_rectifiers_become_a_part_of_their_convolution():
    make = lambda **how: nn.Conv2d(3, 3, 3, padding=1, **how)  # noqa: E731
    model = nn.Sequential(
        make(), nn.BatchNorm2d(3), nn.ReLU(), make(), nn.LeakyReLU(0.2), nn.ReLU(),
        make(bias=False), nn.ReLU(), nn.LeakyReLU(-0.5), make(), nn.LeakyReLU(-0.5),
    ).to("float64")  # fmt: skip
    x = tensor(draw(2, 3, 5, 5))
    exact = shaken(model).eval()(x).numpy()
    folded = ndl.fold_batch_norm(model)
    np.testing.assert_allclose(folded(x).numpy(), exact, atol=1e-10)
    assert [folded[i].slope for i in (0, 3, 6, 9)] == [0, 0.2, 1, 1]
    kinds = [type(module).__name__ for module in folded.modules]
    assert kinds.count("ReLU") == 2 and kinds.count("LeakyReLU") == 2
    exact = [p.shape for p in model.parameters() if p.ndim == 4]
    (folded(x) ** 2).sum().backward()
    assert [p.grad.shape for p in folded.parameters() if p.ndim == 4] == exact


def test_layers_in_several_places_are_not_folded():
    conv, norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
    model = nn.Sequential(conv, norm, nn.ReLU(), conv, nn.Sequential(conv, nn.ReLU())).to("float64")
    x = tensor(draw(2, 3, 5, 5))
    exact = shaken(model).eval()(x).numpy()
    folded = ndl.fold_batch_norm(model)
    np.testing.assert_allclose(folded(x).numpy(), exact, atol=1e-10)
    assert folded[0] is folded[3] and folded[0].slope == 1


def test_folding_again_changes_nothing():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.LeakyReLU(0.5)).to("float64").eval()
    x = tensor(draw(1, 2, 5, 5))
    once = ndl.fold_batch_norm(model)
    twice = ndl.fold_batch_norm(once)
    assert once[0].slope == twice[0].slope == 0.0  # not that of the second rectifier
    np.testing.assert_array_equal(twice(x).numpy(), once(x).numpy())


def test_norms_behind_a_rectifying_convolution_are_not_folded():
    conv, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    conv.slope = 0.0
    model, x = shaken(nn.Sequential(conv, norm).to("float64")).eval(), tensor(draw(2, 2, 5, 5))
    folded = ndl.fold_batch_norm(model)
    np.testing.assert_allclose(folded(x).numpy(), model(x).numpy(), atol=1e-12)


def test_norms_of_sequences_behind_linear_layers_are_not_folded():
    model = shaken(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(3)).to("float64")).eval()
    x = tensor(draw(2, 3, 5))  # the norm's channels are its second axis
    folded = ndl.fold_batch_norm(model)
    np.testing.assert_array_equal(folded(x).numpy(), model(x).numpy())


@pytest.mark.parametrize(
    "settings, kept", [({"affine": False}, 0), ({"track_running_stats": False}, 1)]
)
def test_folding_norms_without_parameters_or_statistics(settings, kept):
    conv, norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, **settings)
    if not kept:
        norm.running_mean, norm.running_var = tensor(draw(3)), tensor(RNG.uniform(0.5, 2.0, 3))
    model, x = nn.Sequential(conv, norm).to("float64").eval(), tensor(draw(2, 2, 4, 4))
    folded = nn.fold_batch_norm(model)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.children()) == kept
    np.testing.assert_allclose(folded(x).numpy(), model(x).numpy(), atol=1e-12)


POOLS = [(name, axes) for name in ("MaxPool", "AvgPool", "AdaptiveAvgPool") for axes in (1, 2, 3)]


@pytest.mark.parametrize("name, axes", POOLS[:-1])  # AdaptiveAvgPool3d is not there
def test_pooling_layers_are_pytorchs(name, axes):
    torch = pytest.importorskip("torch")
    settings = {"MaxPool": (3, 2, 1), "AvgPool": (2, 1), "AdaptiveAvgPool": (3,)}[name]
    x = draw(2, 3, *(7, 5, 6)[:axes])
    exact = getattr(torch.nn, f"{name}{axes}d")(*settings)(torch.tensor(x)).numpy()
    found = getattr(nn, f"{name}{axes}d")(*settings)(tensor(x)).numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_the_course_s_convolution_is_square():
    for wrong in ({"kernel_size": (3, 5)}, {"kernel_size": 3, "stride": (1, 2)}):
        with pytest.raises(OptionError, match="Conv2d"):
            nn.Conv(1, 1, **wrong)
    with pytest.raises(ShapeError):
        nn.Conv(1, 1, 3, stride=0)
    assert nn.Conv(1, 1, (3, 3), (2, 2)).weight.shape == (3, 3, 1, 1)

"""Convolutions and pools by their numbers, and their initial weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import DtypeError, OptionError, ShapeError
from needle.testing import check_gradients

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape)


def tensor(x, dtype="float64"):
    return ndl.Tensor(x, dtype=dtype, requires_grad=False)


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
    with pytest.raises(ShapeError, match="groups=2 does not divide 3 and 4 channels"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(OptionError, match="reflect"):
        nn.Conv2d(3, 4, 3, padding_mode="mirror")
    with pytest.raises(ShapeError, match="x has 2 channels"):
        nn.Conv(3, 4, 3)(tensor(draw(1, 2, 4, 4), "float32"))
    with pytest.raises(ShapeError, match=r"\[n, 3, h, w\]"):
        nn.Conv(3, 4, 3)(tensor(draw(3, 4, 4), "float32"))


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

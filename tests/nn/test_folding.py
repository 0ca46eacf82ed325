"""Batch norm is folded into the layer before it."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape)


def tensor(x, dtype="float64"):
    return ndl.Tensor(x, dtype=dtype, requires_grad=False)


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
        nn.Conv(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(),
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
    assert "BatchNorm1d" not in kinds
    assert folded[0].slope == 0 and model[0].slope == 1 and "slope=0.0" in repr(folded)
    assert model.training and not folded.training and len(model.buffers()) == 10


@pytest.mark.parametrize("sizes", [(0, 3, 3), (3, -1, 3), (3, 3, 0), (3, 3, (2, 0))])
@pytest.mark.parametrize("layer", [nn.Conv, nn.Conv2d, nn.ConvTranspose2d])
def test_layers_without_elements_are_refused(layer, sizes):
    if layer is nn.Conv and not isinstance(sizes[2], int):
        sizes = (*sizes[:2], (0, 2))  # of a pair it takes the first
    with pytest.raises(ShapeError, match="rule: sizes >= 1"):
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

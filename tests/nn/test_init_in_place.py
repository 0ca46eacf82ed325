"""``nn.init.*_`` and ``nn.utils``: filling tensors, clipping, parameters as one vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
from beside_pytorch import needs_torch
from looped import looped

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, OptionError, ShapeError

try:
    import torch
except ImportError:
    torch = None

SPREAD = {  # name: (arguments, expected standard deviation for a Linear(300, 200), uniform)
    "uniform_": ((-0.5, 0.5), 1 / math.sqrt(12), True),
    "normal_": ((0.0, 0.3), 0.3, False),
    "trunc_normal_": ((0.0, 0.2, -9.0, 9.0), 0.2, False),
    "orthogonal_": ((2.0,), 2 / math.sqrt(300), False),
    "xavier_uniform_": ((3.0,), 3 * math.sqrt(2 / 500), True),
    "xavier_normal_": ((3.0,), 3 * math.sqrt(2 / 500), False),
    "kaiming_uniform_": ((), math.sqrt(2 / 300), True),
    "kaiming_normal_": ((0.0, "fan_out", "relu"), math.sqrt(2 / 200), False),
}


@looped("name", SPREAD)
def test_tensors_are_filled_in_place(name):
    ndl.manual_seed(1)
    args, std, uniform = SPREAD[name]
    w = nn.Linear(300, 200).weight
    out = getattr(nn.init, name)(w, *args)
    assert out is w and w.requires_grad and w.is_leaf()
    values = w.numpy()
    assert math.isclose(values.std(), std, rel_tol=0.03) and abs(values.mean()) < 0.1 * std
    if uniform:
        assert abs(values).max() <= std * math.sqrt(3) * 1.0001


@looped("name", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"])
@looped("mode, gain", [("fan_in", "relu"), ("fan_out", "leaky_relu"), ("fan_in", "selu")])
def test_both_kinds_of_functions_draw_the_same(name, mode, gain):
    """Which fan counts in PyTorch's way, ``init`` says by their order."""
    kaiming, fans = name.startswith("kaiming"), (3 * 4, 5 * 4)
    ndl.manual_seed(2)
    w = getattr(nn.init, f"{name}_")(
        ndl.zeros(5, 3, 2, 2), *((0.01, mode, gain) if kaiming else ())
    )
    ndl.manual_seed(2)
    own = fans[::-1] if mode == "fan_out" else fans
    settings = {"nonlinearity": gain} if kaiming else {}
    expected = getattr(ndl.init, name)(*own, shape=w.shape, **settings)
    np.testing.assert_array_equal(w.numpy(), expected.numpy())


def test_constants_and_patterns():
    w = ndl.Tensor(np.ones((3, 4)), dtype="float64")
    assert (nn.init.zeros_(w).numpy() == 0).all() and (nn.init.ones_(w).numpy() == 1).all()
    assert (nn.init.constant_(w, 2.5).numpy() == 2.5).all() and w.dtype == "float64"
    assert (nn.init.eye_(w).numpy() == np.eye(3, 4)).all()
    thin = nn.init.sparse_(ndl.ones(40, 20), sparsity=0.1).numpy()
    assert ((thin == 0).sum(0) == 4).all() and abs(thin).max() < 0.1
    for function in (nn.init.eye_, nn.init.dirac_, lambda x: nn.init.sparse_(x, 0.5),
                     nn.init.kaiming_normal_):  # fmt: skip
        with pytest.raises(ShapeError):
            function(ndl.ones(3))
    with pytest.raises(OptionError, match="fan_in"):
        nn.init.kaiming_normal_(w, mode="fan")
    with pytest.raises(ArgumentError, match="xavier_uniform: gain is 'a'"):
        nn.init.xavier_uniform_(w, "a")


@needs_torch
def test_gains_fans_and_dirac_are_pytorchs():
    for name in ["linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]:
        assert nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    gain = torch.nn.init.calculate_gain("leaky_relu", 0.3)
    assert nn.init.calculate_gain("leaky_relu", 0.3) == pytest.approx(gain)
    with pytest.raises(OptionError, match="did you mean 'relu'"):
        nn.init.calculate_gain("relux")
    for shape, groups in (((6, 2, 3, 3), 1), ((6, 3, 3), 2), ((4, 4, 2, 3, 4), 1)):
        ours = nn.init.dirac_(ndl.ones(*shape), groups).numpy()
        assert (ours == torch.nn.init.dirac_(torch.ones(shape), groups).numpy()).all()
        fans = torch.nn.init._calculate_fan_in_and_fan_out(torch.ones(shape))
        assert nn.init._fans(ndl.ones(*shape)) == fans


def test_clipping_with_pytorchs_arguments():
    p, q = nn.Parameter(ndl.Tensor([3.0, 4.0])), nn.Parameter(ndl.ones(2))
    assert nn.utils.clip_grad_norm_([p, q], 1.0).item() == 0.0
    (p * p).sum().backward()
    assert nn.utils.clip_grad_norm_([p, q], max_norm=1.0, norm_type=2, foreach=True).item() == 10.0
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0.8], rtol=1e-5)
    nn.utils.clip_grad_value_(p, clip_value=0.7)
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0.7], rtol=1e-5)
    with pytest.raises(OptionError, match="norm_type=1"):
        nn.utils.clip_grad_norm_([p], 1.0, norm_type=1)


def test_parameters_as_one_vector():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    before = [p.numpy() for p in model.parameters()]
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (11,)
    (vector * vector).sum().backward()
    for p, value in zip(model.parameters(), before, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), 2 * value)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    nn.utils.vector_to_parameters(vector * 2.0, model.parameters())
    for p, value in zip(model.parameters(), before, strict=True):
        np.testing.assert_allclose(p.numpy(), 2 * value)
        assert p.is_leaf() and p.requires_grad
    optimizer.step()
    with pytest.raises(ShapeError, match="11 elements"):
        nn.utils.vector_to_parameters(vector[:10], model.parameters())
    with pytest.raises(OptionError, match="no parameters"):
        nn.utils.parameters_to_vector([])

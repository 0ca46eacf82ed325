"""``Linear(act=...)`` and activations that are registered by name."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ArgumentError, OptionError
from needle.nn.activation import ACTIVATIONS


def test_linear_applies_its_activation():
    x = ndl.randn(4, 3)
    for act in ("relu", "tanh", "gelu", nn.LeakyReLU(0.3)):
        ndl.manual_seed(1)
        layer = nn.Linear(3, 2, act=act)
        ndl.manual_seed(1)
        plain = nn.Linear(3, 2)
        made = nn.activation(act) if isinstance(act, str) else act
        assert np.array_equal(layer(x).numpy(), made(plain(x)).numpy())
        assert list(layer.state_dict()) == list(plain.state_dict()) == ["weight", "bias"]
    learned = nn.Linear(3, 2, bias=False, act="prelu")
    assert list(learned.state_dict()) == ["weight", "act.weight"]
    assert nn.Linear(3, 2).act is None and [*nn.Linear(3, 2).modules()][1:] == []
    with pytest.raises(OptionError, match="did you mean 'relu'"):
        nn.Linear(3, 2, act="relo")
    with pytest.raises(ArgumentError, match="name of an activation"):
        nn.Linear(3, 2, act=3)


def test_a_norm_behind_an_activation_or_a_hook_is_not_folded():
    x = ndl.randn(8, 3)
    hooked = nn.Linear(3, 4)
    hooked.register_forward_hook(lambda layer, args, out: out * 2.0)
    for first in (nn.Linear(3, 4, act="relu"), hooked):
        model = nn.Sequential(first, nn.BatchNorm1d(4))
        model(x)
        model.eval()
        folded = ndl.fold_batch_norm(model)
        np.testing.assert_allclose(folded(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_functions_and_classes_are_registered():
    try:

        @nn.register_activation("halved")
        def halved(x):
            return x * 0.5

        @nn.register_activation("negated")
        class Negated(nn.Module):
            def forward(self, x):
                return -x

        layer = nn.Linear(3, 3, act="halved")
        assert "halved" in repr(layer) and halved(2.0) == 1.0
        assert isinstance(nn.activation("negated"), Negated)
        x = ndl.ones(1, 3)
        expected = 0.5 * (x @ layer.weight + layer.bias)
        np.testing.assert_allclose(layer(x).numpy(), expected.numpy(), rtol=1e-6)
        for name in ("halved", "relu", "Upper", ""):
            with pytest.raises(OptionError, match="not taken"):
                nn.register_activation(name)
        with pytest.raises(ArgumentError, match="expected a function"):
            nn.register_activation("number")(3)
        with pytest.raises(ArgumentError, match="expected a function"):
            nn.Applied(3)
    finally:
        ACTIVATIONS.pop("halved", None)
        ACTIVATIONS.pop("negated", None)

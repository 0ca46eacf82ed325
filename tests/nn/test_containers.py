"""Containers of modules grow, change and are edited as lists."""

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import (
    ArgumentError,
    IndexRangeError,
)


def test_sequential_applies_in_order_and_can_be_indexed():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = ndl.Tensor(np.random.randn(4, 2))
    expected = model.modules[2](model.modules[1](model.modules[0](x)))
    np.testing.assert_array_equal(model(x).numpy(), expected.numpy())
    assert len(model) == 3 and model[-1] is model.modules[2]
    assert list(model[:2]) == list(model)[:2] and isinstance(model[:2], nn.Sequential)
    with pytest.raises(IndexRangeError, match="3"):
        model[3]
    assert nn.Sequential()(x) is x


def test_module_list_holds_modules():
    layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(2))
    layers.append(nn.ReLU())
    layers[0] = nn.Linear(1, 1, bias=False)
    assert [name for name, _ in layers.named_parameters()] == ["0.weight", "1.weight", "1.bias"]
    assert len(layers) == 3 and len(layers[1:]) == 2 and type(layers[1:]) is nn.ModuleList


def test_containers_grow_and_change():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert model.append(nn.Linear(3, 1)) is model
    model.extend([nn.Tanh(), nn.Tanh()])[2] = nn.Linear(3, 4)
    model[-1] = nn.ReLU()
    assert [type(m).__name__ for m in model] == ["Linear", "ReLU", "Linear", "Tanh", "ReLU"]
    assert model(ndl.ones((1, 2))).shape == (1, 4)
    assert [name for name, _ in model.named_parameters()] == [
        "0.weight", "0.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    with pytest.raises(IndexRangeError, match="module index 5 is out of range for length 5"):
        model[5] = nn.ReLU()


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda modules: nn.Sequential(*modules)])
def test_containers_are_edited_as_lists(kind):
    a, b, c, d = nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.ELU()
    held = kind([a, b])
    assert held.insert(1, c) is held and list(held) == [a, c, b]
    held.insert(-1, d)
    assert list(held) == [a, c, d, b]
    held[1:3] = [b, a, c]
    assert list(held) == [a, b, a, c, b]
    del held[0], held[1:3]
    assert list(held) == [b, b]
    both = held + kind([c])
    assert type(both) is type(held) and list(both) == [b, b, c] and len(held) == 2
    assert held[np.int64(1)] is b
    for index in ("0", 0.0, None):
        with pytest.raises(ArgumentError, match=f"expected an integer index, got {index!r}"):
            held[index]
        with pytest.raises(ArgumentError, match="expected an integer"):
            held[index] = a
    with pytest.raises(ArgumentError, match="expected a module"):
        held.insert(0, 3)
    with pytest.raises(IndexRangeError):
        del held[2]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Sequential([nn.ReLU()]), r"module 0: .* got list.*\n.*Sequential\(\*modules\)"),
        (lambda: nn.Sequential({"a": nn.ReLU()}), r"got dict.*\n.*modules.values.*ModuleDict"),
        (lambda: nn.Sequential(nn.Tanh(), nn.ReLU), r"module 1: .* got the class ReLU.*\n.*ReLU\("),
        (lambda: nn.ModuleList([nn.Tanh(), "relu"]), "module 1: expected a module, got str"),
        (lambda: nn.ModuleList().append(None), "module 0: expected a module, got NoneType"),
    ],
)
def test_containers_hold_what_can_be_called(make, said):
    with pytest.raises(ArgumentError, match=said):
        make()

"""Modules: how parameters are found, named and shown."""

import copy
import pickle

import numpy as np
import pytest
from small_modules import Bare, Tied

import needle as ndl
from needle import nn
from needle.errors import (
    ArgumentError,
    OptionError,
    ShapeError,
)

BARE = ["last.weight", "last.bias", "scale", "table.a.weight", "table.b.0", "pair.1.weight"]


def test_parameters_are_found_in_the_order_of_attributes():
    model = Bare()
    assert [name for name, _ in model.named_parameters()] == BARE
    assert [p.name for p in model.parameters()] == BARE
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
    assert model.num_parameters() == 2 + 1 + 2 + 4 + 1 + 1


def test_a_module_without_super_init_works():
    model = Bare()
    assert model.training
    model.eval()
    assert not model.training and not model.last.training
    assert model(ndl.ones(4, 2)).shape == (4, 1)


def test_shared_parameters_and_modules_are_listed_once():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["table.weight"]
    twice = nn.Sequential(model.table, model.table)
    assert len(twice.parameters()) == 1
    assert [name for name, _ in twice.named_modules()] == ["", "0"]
    assert len(twice.children()) == 1


def test_modules_that_know_their_parent_do_not_hang():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].parent = model
    assert len(model.parameters()) == 2
    assert [name for name, _ in model.named_modules()] == ["", "0"]
    assert "Linear" in repr(model)


def test_names_grow_but_do_not_shrink():
    inner = nn.Linear(1, 1)
    inner.parameters()
    assert inner.weight.name == "weight"
    model = nn.Sequential(nn.ReLU(), nn.Residual(inner))
    model.parameters()
    assert inner.weight.name == "1.fn.weight"
    inner.parameters()
    assert inner.weight.name == "1.fn.weight"


def test_modules_and_children():
    model = nn.Sequential(nn.Linear(1, 1), nn.Residual(nn.Tanh()))
    assert [name for name, _ in model.named_modules()] == ["", "0", "1", "1.fn"]
    assert model.children() == list(model.modules) == list(model)
    assert list(model.modules()) == [m for _, m in model.named_modules()]
    assert [type(m).__name__ for m in model[1].modules()] == ["Residual", "Tanh"]
    assert [type(m).__name__ for m in model._children()] == ["Linear", "Residual", "Tanh"]
    seen = []
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen == ["Sequential", "Linear", "Residual", "Tanh"]


def halve(model):
    model.weight *= 0.5


@pytest.mark.parametrize(
    "assign",
    [
        lambda model: setattr(model, "weight", model.weight * 0.5),
        lambda model: setattr(model, "weight", ndl.zeros(3, 1)),
        lambda model: setattr(model, "weight", np.ones((3, 1), np.float32)),
        lambda model: setattr(model, "weight", nn.Identity()),
        halve,
    ],
)
def test_only_a_parameter_or_none_takes_the_place_of_a_parameter(assign):
    model = nn.Linear(3, 1)
    weight = model.weight
    with pytest.raises(ArgumentError, match=r"Linear\.weight is a parameter(.*\n)+.*data = y"):
        assign(model)
    assert model.weight is weight and len(model.parameters()) == 2
    model.weight = nn.Parameter(weight * 0.5)
    model.bias = None
    assert [name for name, _ in model.named_parameters()] == ["weight"]
    model.bias = None
    for wrong in (weight[:1] * 0.5, np.ones((1, 1)), nn.Identity()):
        with pytest.raises(ArgumentError, match=r"Linear\.bias is a parameter"):
            model.bias = wrong
    model.bias = nn.Parameter(weight[:1] * 0.5)
    model.bias = None
    assert [name for name, _ in model.named_parameters()] == ["weight"]
    del model.weight, model.bias
    model.weight, model.bias = weight * 0.5, weight[:1] * 0.5
    assert model.parameters() == []


@pytest.mark.parametrize("kind", [nn.Sequential, lambda *modules: nn.ModuleList(modules)])
def test_modules_of_a_container_are_a_tuple_and_a_method(kind):
    inner = nn.Linear(2, 2)
    model = kind(inner, nn.ReLU())
    assert isinstance(model.modules, tuple) and model.modules[0] is inner
    assert list(model.modules()) == [model, *model.modules]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert next(other.modules()) is other and len(other.modules) == 2
        assert list(other.state_dict()) == ["0.weight", "0.bias"]
    model.modules = [nn.Tanh()]
    assert len(model) == 1 and next(model.modules()) is model
    assert kind(*model.modules).modules == model.modules


def test_in_place_arithmetic_without_gradients_keeps_a_parameter():
    model = nn.Linear(3, 1)
    weight, before = model.weight, model.weight.numpy()
    with ndl.no_grad():
        halve(model)
    assert model.weight is weight
    np.testing.assert_array_equal(weight.numpy(), before * 0.5)


def test_train_and_eval_reach_every_module_and_return_the_model():
    model = nn.Sequential(nn.Dropout(), nn.Residual(nn.Dropout()))
    assert model.eval() is model
    assert not any(m.training for _, m in model.named_modules())
    model.train()
    assert all(m.training for _, m in model.named_modules())


def test_zero_grad_and_freezing():
    model = nn.Linear(2, 1)
    model(ndl.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    model.zero_grad()
    assert model.weight.grad is None
    model.requires_grad_(False)
    assert not model(ndl.Tensor(np.ones((1, 2)), requires_grad=False)).requires_grad


def test_repr_is_an_outline_with_counts():
    model = nn.Sequential(nn.Linear(784, 100), nn.Residual(nn.Linear(100, 100, bias=False)))
    assert repr(model) == (
        "Sequential()  88,500 parameters\n"
        "  0: Linear(784, 100)  78,500 parameters\n"
        "  1: Residual()  10,000 parameters\n"
        "    fn: Linear(100, 100, bias=False)  10,000 parameters"
    )


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.CrossEntropyLoss(), ""),
        (
            nn.CrossEntropyLoss(ignore_index=0, reduction="sum", label_smoothing=0.1),
            "ignore_index=0, reduction='sum', label_smoothing=0.1",
        ),
        (nn.HuberLoss(delta=2.0), "delta=2.0"),
        (nn.HuberLoss("none"), "reduction='none'"),
        (nn.LayerNorm((2, 3), eps=0.1, bias=False), "2, 3, eps=0.1, bias=False"),
        (nn.RMSNorm(4, eps=0.1), "4, eps=0.1"),
        (nn.RMSNorm((2, 3), elementwise_affine=False), "2, 3, elementwise_affine=False"),
        (nn.LayerNorm(4, elementwise_affine=False), "4, elementwise_affine=False"),
        (nn.BatchNorm1d(4, momentum=None, affine=False), "4, momentum=None, affine=False"),
        (nn.BatchNorm1d(4, track_running_stats=False), "4, track_running_stats=False"),
    ],
)
def test_settings_are_shown(layer, text):
    assert layer.extra_repr() == text


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: nn.Linear("a", 3), ArgumentError, "Linear: in_features is 'a'"),
        (lambda: nn.Linear(3, 2.5), ArgumentError, "Linear: out_features is 2.5"),
        (lambda: nn.Embedding(None, 3), ArgumentError, "Embedding: num_embeddings is None"),
        (lambda: nn.GELU("foo"), OptionError, "unknown approximate 'foo'"),
        (lambda: nn.Hardtanh(2.0, 1.0), OptionError, "min_val=2.0, max_val=1.0"),
        (lambda: nn.PReLU(1, "a"), OptionError, "PReLU: init='a'"),
        (lambda: nn.PReLU("a"), ArgumentError, "PReLU: num_parameters is 'a'"),
        (lambda: nn.HuberLoss(delta=-1), OptionError, "expected a positive delta, got -1"),
        (lambda: nn.BatchNorm1d(3, eps="a"), OptionError, "BatchNorm1d: eps='a'"),
        (lambda: nn.BatchNorm1d(3, momentum="a"), OptionError, "momentum='a'"),
        (lambda: nn.LayerNorm("a", elementwise_affine=False), ArgumentError, "axis 0 is 'a'"),
        (lambda: nn.RMSNorm((2, 2.5), elementwise_affine=False), ArgumentError, "axis 1 is 2.5"),
        (lambda: nn.LayerNorm(3, eps=np.nan), OptionError, "LayerNorm: eps=nan"),
        (lambda: nn.RMSNorm(3, eps=-1), OptionError, "RMSNorm: eps=-1"),
        (lambda: nn.Dropout("a"), OptionError, "expected p in .*got 'a'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), OptionError, "label_smoothing=2"),
    ],
)
def test_wrong_settings_are_found_where_a_layer_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_number_has_no_axis_to_keep():
    with pytest.raises(ShapeError, match="Flatten: x has 0 axes"):
        nn.Flatten()(ndl.Tensor(1.0))


def test_errors_name_the_parameter_by_its_whole_path():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ShapeError, match=r'inner sizes differ, 5 and 3(.|\n)*"1\.0\.weight"'):
        model(ndl.ones(2, 5))


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty"):
        Empty()(1)


def test_casts_as_pytorch_calls_them():
    model = nn.BatchNorm1d(2)
    for name in ("double", "half", "bfloat16", "float"):
        kind = {"double": "float64", "half": "float16", "float": "float32"}.get(name, name)
        assert getattr(model, name)() is model
        assert {x.dtype.name for x in (*model.parameters(), *model.buffers())} == {kind}
    assert model.cpu().weight.device == ndl.cpu()


def test_gradients_may_become_zeros():
    layer = nn.Linear(2, 1, bias=False)
    layer(ndl.ones((1, 2))).backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0.0], [0.0]]
    layer.zero_grad()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad is None


def test_modules_by_name():
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.ReLU()})
    model["c"] = nn.Linear(1, 1, bias=False)
    assert list(model) == list(model.keys()) == ["a", "b", "c"] and len(model) == 3
    assert list(model.state_dict()) == ["a.weight", "a.bias", "c.weight"]
    assert dict(model.items())["b"] is model["b"] is list(model.values())[1]
    assert repr(model).splitlines()[1] == "  a: Linear(2, 1)  3 parameters"
    model.eval()
    assert not model["a"].training
    del model["b"]
    assert "b" not in model and [name for name, _ in model.named_modules()] == ["", "a", "c"]
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    with pytest.raises(OptionError, match="unknown name 'aa'; did you mean 'a'"):
        model["aa"]
    for name in ("a.b", "", 3):
        with pytest.raises(OptionError, match="expected a name"):
            model[name] = nn.ReLU()
    with pytest.raises(ArgumentError, match="'d': expected a module, got the class ReLU"):
        model["d"] = nn.ReLU

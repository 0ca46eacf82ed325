"""Modules: how parameters are found, named, saved and moved; layers and losses by their numbers."""

import copy
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import DataError, IndexRangeError, OptionError, ShapeError


class Bare(nn.Module):
    """Skips super().__init__(), and keeps modules and parameters in every kind of attribute."""

    def __init__(self):
        self.last = nn.Linear(2, 1)
        self.scale = nn.Parameter(ndl.ones(2))
        self.table = {"a": nn.Linear(2, 2, bias=False), "b": [nn.Parameter(ndl.zeros(1))]}
        self.pair = (nn.Identity(), nn.Linear(1, 1, bias=False))
        self.plain = ndl.ones(3)
        self.number = 3

    def forward(self, x):
        return self.last(x * self.scale)


BARE = ["last.weight", "last.bias", "scale", "table.a.weight", "table.b.0", "pair.1.weight"]


class Counter(nn.Module):
    """Has a buffer that every call in training changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", ndl.zeros(1))
        self.register_buffer("mask", ndl.ones(2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x):
        if self.training:
            self.count = self.count + 1.0
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(3, 3, bias=False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(3, 3, bias=False))
        self.head[1].weight = self.table.weight


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
    assert [type(m).__name__ for m in model._children()] == ["Linear", "Residual", "Tanh"]
    seen = []
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen == ["Sequential", "Linear", "Residual", "Tanh"]


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


def test_errors_name_the_parameter_by_its_whole_path():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ShapeError, match=r'inner sizes differ, 5 and 3(.|\n)*"1\.0\.weight"'):
        model(ndl.ones(2, 5))


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty"):
        Empty()(1)


# ---- state ---------------------------------------------------------------------------


def test_state_has_parameters_and_persistent_buffers():
    model = nn.Sequential(nn.Linear(1, 2), Counter())
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.count"]
    assert [name for name, _ in model.named_buffers()] == ["1.count", "1.mask"]
    model(ndl.ones(1, 1))
    other = nn.Sequential(nn.Linear(1, 2), Counter())
    assert other.load_state_dict(model.state_dict()) == ([], [])
    assert other[1].count.item() == 1.0
    np.testing.assert_array_equal(other[0].weight.numpy(), model[0].weight.numpy())


def test_a_buffer_stays_one_when_assigned():
    model = Counter()
    model(ndl.ones(1))
    model(ndl.ones(1))
    assert [b.item() for b in model.buffers()[:1]] == [2.0]
    assert not model.parameters()


def test_state_is_a_snapshot_and_loading_copies():
    model = nn.Linear(2, 2)
    state = model.state_dict()
    before = state["weight"].numpy()
    opt = ndl.optim.SGD(model.parameters(), 1.0)
    for _ in range(2):
        opt.minimize(model(ndl.ones(1, 2)).sum())
    np.testing.assert_array_equal(state["weight"].numpy(), before)
    assert (model.weight.numpy() != before).all()
    model.load_state_dict(state)
    model.weight.realize_cached_data().fill(7.0)
    np.testing.assert_array_equal(state["weight"].numpy(), before)


def test_loading_keeps_the_parameter_objects_and_their_dtype():
    model = nn.Linear(2, 1, dtype="float64")
    weight = model.weight
    model.load_state_dict({"weight": np.ones((2, 1), np.float32), "bias": [[0.1]]})
    assert model.weight is weight and weight.dtype == "float64"
    assert weight.tolist() == [[1.0], [1.0]] and weight.requires_grad


def test_loading_lists_everything_that_is_wrong_and_changes_nothing():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = [p.numpy() for p in model.parameters()]
    state = model.state_dict()
    state["0.wieght"] = state.pop("0.weight")
    state["1.weight"] = ndl.zeros(1, 3)
    state["1.bias"] = ndl.Tensor(np.zeros((1, 1), np.int64))
    state["0.bias"] = ndl.zeros(1, 3)
    with pytest.raises(DataError) as caught:
        model.load_state_dict(state)
    text = str(caught.value)
    assert "1 missing, 1 unexpected, 2 wrong" in text
    assert "missing: 0.weight; did you mean '0.wieght'?" in text
    assert "unexpected: 0.wieght; did you mean '0.weight'?" in text
    assert "1.weight is float32[1, 3]" in text and "the model has float32[3, 1]" in text
    assert "1.bias is int64[1, 1]" in text
    for p, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), old)


def test_strict_false_loads_what_agrees_but_never_wrong_shapes():
    model = nn.Linear(2, 1)
    result = model.load_state_dict({"weight": np.ones((2, 1)), "extra": 1.0}, strict=False)
    assert result.missing == ["bias"] and result.unexpected == ["extra"]
    assert model.weight.tolist() == [[1.0], [1.0]]
    with pytest.raises(DataError, match="1 wrong"):
        model.load_state_dict({"weight": np.ones((1, 2))}, strict=False)


def test_tied_parameters_are_saved_once_and_load_under_any_of_their_names():
    model = Tied()
    state = model.state_dict()
    assert list(state) == ["table.weight"]
    assert state.aliases == {"head.1.weight": "table.weight"}
    values = np.arange(9.0).reshape(3, 3)
    for names in (["table.weight"], ["head.1.weight"], ["table.weight", "head.1.weight"]):
        other = Tied()
        other.load_state_dict({name: values for name in names})
        np.testing.assert_array_equal(other.head[1].weight.numpy(), values)
        assert other.head[1].weight is other.table.weight
    with pytest.raises(DataError, match="one tensor in the model"):
        Tied().load_state_dict({"table.weight": values, "head.1.weight": values + 1})


def test_aliases_fill_the_names_of_a_model_that_is_not_tied():
    state = Tied().state_dict()
    model = Tied()
    model.head[1].weight = nn.Parameter(ndl.zeros(3, 3))
    model.load_state_dict(state)
    np.testing.assert_array_equal(model.head[1].weight.numpy(), state["table.weight"].numpy())


def test_to_dtype_and_device_moves_buffers_and_gradients_in_place():
    model = nn.Sequential(nn.Linear(2, 2), Counter())
    ids = ndl.Tensor(np.arange(3))
    model[1].register_buffer("ids", ids)
    weight = model[0].weight
    model(ndl.ones(1, 2)).sum().backward()
    assert model.to("float64") is model
    assert model[0].weight is weight and weight.dtype == weight.grad.dtype == "float64"
    assert model[1].count.dtype == "float64" and ids.dtype == "int64"
    model.to("cpu_numpy")
    assert {x.device for x in (weight, weight.grad, ids)} == {ndl.cpu_numpy()}
    with pytest.raises(DataError, match="int32"):
        model.to("int32")


def test_deepcopy_and_pickle_copy_a_model():
    model = nn.Sequential(nn.Linear(2, 2), Counter(), nn.Dropout(0.3))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other[0].weight is not model[0].weight
        np.testing.assert_array_equal(other[0].weight.numpy(), model[0].weight.numpy())
        assert isinstance(other[0].weight, nn.Parameter) and other[2].p == 0.3
        assert [name for name, _ in other.named_buffers()] == ["1.count", "1.mask"]


# ---- layers --------------------------------------------------------------------------


def test_linear_draws_the_weight_then_the_bias():
    np.random.seed(1337)
    weight, bias = np.random.rand(7, 4), np.random.rand(4)
    np.random.seed(1337)
    layer = nn.Linear(7, 4)
    np.testing.assert_allclose(
        layer.weight.numpy(), (2 * weight - 1) * np.sqrt(6 / 7), rtol=1e-4, atol=1e-6
    )
    assert layer.bias.shape == (1, 4)
    np.testing.assert_allclose(
        layer.bias.numpy(), (2 * bias - 1)[None] * np.sqrt(6 / 4), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (0, 3)])
def test_linear(shape):
    layer = nn.Linear(3, 2)
    x = np.random.randn(*shape).astype(np.float32)
    expected = x @ layer.weight.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(layer(ndl.Tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    layer.bias.data = ndl.Tensor([1.0, 2.0])
    assert layer(ndl.Tensor(x)).shape == (*shape[:-1], 2)


def test_linear_without_bias_has_none():
    layer = nn.Linear(3, 2, bias=False)
    assert layer.bias is None and len(layer.parameters()) == 1


def test_flatten_keeps_the_first_axis():
    assert nn.Flatten()(ndl.ones(2, 3, 4)).shape == (2, 12)
    assert nn.Flatten()(ndl.ones(0, 3, 4)).shape == (0, 12)
    assert nn.Flatten()(ndl.ones(5)).shape == (5, 1)


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


def test_residual_adds_its_input():
    x = ndl.Tensor([[1.0, -2.0]])
    np.testing.assert_array_equal(nn.Residual(nn.ReLU())(x).numpy(), [[2.0, -2.0]])


def test_activations_by_name():
    assert type(nn.activation("ReLU")) is nn.ReLU
    assert type(nn.activation("tanh")) is nn.Tanh
    with pytest.raises(OptionError, match="did you mean 'sigmoid'"):
        nn.activation("sigmoidd")


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_dropout_refuses_what_is_no_probability(p):
    with pytest.raises(OptionError, match=str(p)):
        nn.Dropout(p)

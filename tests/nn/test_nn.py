"""Modules: how parameters are found, named, saved and moved; layers and losses by their numbers."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
)


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
        (lambda: nn.GELU("foo"), OptionError, "there is no 'foo'"),
        (lambda: nn.Hardtanh(2.0, 1.0), OptionError, r"Hardtanh: \[2.0, 1.0\]"),
        (lambda: nn.PReLU(1, "a"), OptionError, "PReLU: init='a'"),
        (lambda: nn.PReLU("a"), ArgumentError, "PReLU: num_parameters is 'a'"),
        (lambda: nn.HuberLoss(delta=-1), OptionError, "delta -1 must be positive"),
        (lambda: nn.BatchNorm1d(3, eps="a"), OptionError, "BatchNorm1d: eps='a'"),
        (lambda: nn.BatchNorm1d(3, momentum="a"), OptionError, "momentum='a'"),
        (lambda: nn.LayerNorm("a", elementwise_affine=False), ArgumentError, "axis 0 is 'a'"),
        (lambda: nn.RMSNorm((2, 2.5), elementwise_affine=False), ArgumentError, "axis 1 is 2.5"),
        (lambda: nn.LayerNorm(3, eps=np.nan), OptionError, "LayerNorm: eps=nan"),
        (lambda: nn.RMSNorm(3, eps=-1), OptionError, "RMSNorm: eps=-1"),
        (lambda: nn.Dropout("a"), OptionError, "Dropout: p='a'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), OptionError, "label_smoothing=2"),
    ],
)
def test_wrong_settings_are_found_where_a_layer_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_number_has_no_axis_to_keep():
    with pytest.raises(ShapeError, match="Flatten: x has no axis"):
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


@pytest.mark.parametrize("value", [np.ones(1, np.float32), "foo", 3.0, nn.Parameter(ndl.ones(1))])
def test_only_a_tensor_or_none_takes_the_place_of_a_buffer(value):
    model = Counter()
    with pytest.raises(ArgumentError, match=r"Counter\.count is a buffer, what it is given is not"):
        model.count = value
    with pytest.raises(ArgumentError, match=r"Counter\.new is a buffer, what it is given is not"):
        model.register_buffer("new", value)
    assert model.count.item() == 0.0 and not hasattr(model, "new")
    model.count = None
    model.count = ndl.ones(1)
    assert dict(model.named_buffers())["count"] is model.count


@pytest.mark.parametrize("name", ["weight", "forward", "training", "a.b", "", 3])
def test_a_buffer_has_a_name_of_its_own(name):
    model = nn.Linear(1, 1)
    before = list(model.state_dict())
    with pytest.raises(OptionError, match="register_buffer: "):
        model.register_buffer(name, ndl.ones(1))
    assert list(model.state_dict()) == before and model(ndl.ones(1, 1)).shape == (1, 1)


def test_a_buffer_may_be_registered_again_or_where_none_was():
    model = Counter()
    model.register_buffer("count", ndl.ones(3))
    model.later = None
    model.register_buffer("later", ndl.ones(2))
    assert {n: x.shape for n, x in model.state_dict().items()} == {"count": (3,), "later": (2,)}


@pytest.mark.parametrize(
    "table, name",
    [
        ({1: nn.Parameter(ndl.ones(1)), "1": nn.Parameter(ndl.zeros(1))}, "table.1"),
        ({"a.weight": nn.Parameter(ndl.ones(1)), "a": nn.Linear(1, 1)}, "table.a.weight"),
    ],
)
def test_two_tensors_of_one_name_have_no_state(table, name):
    model = Bare()
    state = model.state_dict()
    model.table = table
    for use in (model.state_dict, lambda: model.load_state_dict(state, strict=False)):
        with pytest.raises(DataError, match=f"two tensors are called '{name}'"):
            use()


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(3, 2, dtype="int32"),
        lambda: nn.Embedding(2, 2, dtype="bool"),
        lambda: nn.BatchNorm1d(3, dtype="int64"),
        lambda: nn.LayerNorm(3, dtype="uint8"),
        lambda: nn.Parameter(ndl.Tensor([1, 2], dtype="int64")),
    ],
)
def test_parameters_are_floating(make):
    with pytest.raises(DtypeError, match="float"):
        make()


def test_a_parameter_that_is_not_learned_may_be_whole():
    assert not nn.Parameter(ndl.Tensor([1, 2], dtype="int64"), requires_grad=False).requires_grad
    with ndl.config(backend="np"):  # there whole numbers have gradients, as in the course
        assert nn.Parameter(ndl.Tensor([1, 2])).requires_grad


def test_to_dtype_and_device_moves_buffers_and_gradients_in_place():
    model = nn.Sequential(nn.Linear(2, 2), Counter())
    ids = ndl.Tensor(np.arange(3))
    model[1].register_buffer("ids", ids)
    weight = model[0].weight
    model(ndl.ones(1, 2)).sum().backward()
    assert model.to(dtype="float64") is model
    assert model[0].weight is weight and weight.dtype == weight.grad.dtype == "float64"
    assert model[1].count.dtype == "float64" and ids.dtype == "int64"
    model.to("cpu_numpy")
    assert {x.device for x in (weight, weight.grad, ids)} == {ndl.cpu_numpy()}
    model.to(ndl.default_device(), ndl.float32)
    for x in (weight, weight.grad, ids, model[1].count):
        assert x.device == ndl.default_device() and x.dtype == ("int64" if x is ids else "float32")
    with pytest.raises(OptionError, match="target='meta' and device='meta' are two"):
        model.to("meta", device="meta")
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


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (0, 3), (3,)])
def test_linear(shape):
    layer = nn.Linear(3, 2)
    x = np.random.randn(*shape).astype(np.float32)
    expected = x @ layer.weight.numpy() + layer.bias.numpy()[0]
    out = layer(ndl.Tensor(x))
    assert out.shape == expected.shape
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)
    out.sum().backward()
    assert layer.bias.grad.tolist() == [[out.size / 2] * 2]
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


@pytest.mark.parametrize("name", sorted(nn.ACTIVATIONS))
def test_every_named_activation_maps_a_tensor_to_its_shape(name):
    x = ndl.Tensor(np.linspace(-2.0, 2.0, 12).reshape(3, 4))
    out = nn.activation(name)(x)
    assert out.shape == x.shape and np.isfinite(out.numpy()).all()


MADE = {
    "Mish": (), "SELU": (), "Hardsigmoid": (), "Hardswish": (), "Hardtanh": (-0.5, 1.5),
    "Softsign": (), "LogSigmoid": (), "LogSoftmax": (1,), "GLU": (1,), "PReLU": (4,), "ReLU6": (),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind, tolerance", [("float64", 1e-7), ("bfloat16", 0.02)])
def test_activations_are_pytorchs(name, kind, tolerance):
    torch = pytest.importorskip("torch")
    x, g = (np.random.default_rng(i).normal(scale=4, size=(3, 4, 5)) for i in (0, 1))
    ours, theirs = getattr(nn, name)(*MADE[name]), getattr(torch.nn, name)(*MADE[name])
    if name == "PReLU":
        ours.to(kind)
        theirs.to(getattr(torch, kind))
    tensor = ndl.Tensor(x, dtype=kind)
    other = torch.tensor(x, dtype=getattr(torch, kind), requires_grad=True)
    out, exact = ours(tensor), theirs(other)
    assert out.dtype == kind
    out.backward(ndl.Tensor(g[:, : out.shape[1]], dtype=kind))
    exact.backward(torch.tensor(g[:, : out.shape[1]], dtype=exact.dtype))
    found = [(out, exact), (tensor.grad, other.grad)]
    found += [(ours.weight.grad, theirs.weight.grad)] if name == "PReLU" else []
    for mine, your in found:
        mine, your = mine.numpy().astype(np.float64), your.detach().double().numpy()
        np.testing.assert_allclose(mine, your, rtol=tolerance, atol=tolerance)


def test_learned_slopes_are_one_or_of_each_channel():
    x = ndl.Tensor([[-1.0, -1.0], [2.0, -4.0]])
    np.testing.assert_array_equal(nn.PReLU(2, 0.5)(x).numpy(), [[-0.5, -0.5], [2.0, -2.0]])
    assert ndl.prelu(ndl.Tensor([-1.0, 2.0]), ndl.Tensor([0.5])).tolist() == [-0.5, 2.0]
    assert nn.PReLU()(ndl.Tensor(-4.0)).item() == -1.0
    with pytest.raises(ShapeError, match=r"prelu: weight has shape \(3,\)"):
        nn.PReLU(3)(x)
    model = nn.PReLU(2)
    model.load_state_dict(nn.PReLU(2, 0.5).state_dict())
    assert model.weight.tolist() == [0.5, 0.5] and model.extra_repr() == "2"


def test_activations_by_their_numbers():
    x = ndl.Tensor([-1.0, 0.0, 2.0])
    expected = {
        nn.LeakyReLU(0.1): [-0.1, 0.0, 2.0],
        nn.ELU(2.0): [2 * np.expm1(-1.0), 0.0, 2.0],
        nn.SiLU(): [-1 / (1 + np.e), 0.0, 2 / (1 + np.exp(-2.0))],
        nn.GELU(): [-0.15865525, 0.0, 1.9544997],
        nn.GELU(approximate=True): [-0.158808, 0.0, 1.954598],
        nn.Softplus(): [np.log1p(np.exp(-1.0)), np.log(2.0), np.log1p(np.exp(2.0))],
        nn.Softplus(2.0): [np.log1p(np.exp(-2.0)) / 2, np.log(2.0) / 2, np.log1p(np.exp(4)) / 2],
        nn.Softmax(): np.exp([-1.0, 0.0, 2.0]) / np.exp([-1.0, 0.0, 2.0]).sum(),
    }
    for module, values in expected.items():
        np.testing.assert_allclose(module(x).numpy(), values, rtol=1e-5, err_msg=str(module))


def test_embedding_looks_rows_up_by_whole_or_float_ids():
    np.random.seed(3)
    table = np.random.randn(5, 2).astype(np.float32)
    np.random.seed(3)
    layer = nn.Embedding(5, 2)
    np.testing.assert_array_equal(layer.weight.numpy(), table)
    for ids in (np.array([[1, 4], [1, 0]]), [[1.0, 4.0], [1.0, 0.0]]):
        out = layer(ndl.Tensor(ids))
        np.testing.assert_array_equal(out.numpy(), table[[[1, 4], [1, 0]]])
    (out * ndl.Tensor([1.0, 2.0])).sum().backward()
    counts = np.array([1, 2, 0, 0, 1])[:, None]
    np.testing.assert_array_equal(layer.weight.grad.numpy(), counts * [[1.0, 2.0]])
    with pytest.raises(IndexRangeError, match="5"):
        layer(ndl.Tensor(np.array([0, 5])))


@pytest.mark.parametrize("device", [ndl.cpu(), ndl.cpu_numpy()])
@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "float32"])
@pytest.mark.parametrize("bad", [-1, 5])
def test_embedding_refuses_ids_that_are_no_row(bad, kind, device):
    layer = nn.Embedding(5, 2, device=device)
    ids = ndl.Tensor(np.array([[0, 4], [bad, 1]]), device=device, dtype=kind)
    for call in (layer, lambda ids: ndl.embedding(layer.weight, ids)):
        with pytest.raises(IndexRangeError, match=f"embedding: {bad} at position 2 .* 5 entries"):
            call(ids)


@pytest.mark.parametrize("given", [np.array, list, lambda ids: ids, ndl.Tensor])
def test_ids_and_labels_come_as_arrays_and_lists(given):
    ids, table = [2, 0, 1], nn.Embedding(3, 3)
    logits = table(given(ids))
    np.testing.assert_array_equal(logits.numpy(), table.weight.numpy()[ids])
    expected = nn.SoftmaxLoss()(logits, ndl.Tensor(ids)).item()
    for loss in (nn.SoftmaxLoss(), nn.CrossEntropyLoss()):
        assert loss(logits, given(ids)).item() == expected
    deep = logits.reshape((3, 3, 1))
    assert nn.CrossEntropyLoss()(deep, given([[i] for i in ids])).item() == pytest.approx(expected)


def test_dropout_keeps_where_a_draw_is_at_most_1_minus_p():
    x = np.random.randn(50, 20).astype(np.float32)
    np.random.seed(12)
    kept = np.random.rand(50, 20) <= 0.7
    np.random.seed(12)
    tensor = ndl.Tensor(x)
    out = nn.Dropout(0.3)(tensor)
    np.testing.assert_allclose(out.numpy(), x * kept / 0.7, rtol=1e-5)
    out.sum().backward()
    np.testing.assert_allclose(tensor.grad.numpy(), kept / 0.7, rtol=1e-5)


def test_dropout_draws_once_per_call_in_training_alone():
    layer, x = nn.Dropout(0.0), ndl.ones(2, 3)
    np.random.seed(1)
    expected = [np.random.rand() for _ in range(7)]
    np.random.seed(1)
    np.testing.assert_array_equal(layer(x).numpy(), x.numpy())
    assert layer.eval()(x) is x
    assert np.random.rand() == expected[6]


# ---- norms ---------------------------------------------------------------------------


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


# ---- losses --------------------------------------------------------------------------


def log_softmax(x, axis=-1):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


@pytest.mark.parametrize("labels", [np.array([2, 0, 1]), [2.0, 0.0, 1.0]])
def test_softmax_loss(labels):
    x = np.random.randn(3, 4).astype(np.float32)
    logits = ndl.Tensor(x)
    loss = nn.SoftmaxLoss()(logits, ndl.Tensor(labels))
    np.testing.assert_allclose(loss.item(), -log_softmax(x)[range(3), [2, 0, 1]].mean(), rtol=1e-5)
    loss.backward()
    expected = (np.exp(log_softmax(x)) - np.eye(4)[[2, 0, 1]]) / 3
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [4, -1])
def test_softmax_loss_refuses_labels_that_are_no_class(bad):
    with pytest.raises(IndexRangeError, match=str(bad)):
        nn.SoftmaxLoss()(ndl.ones(2, 4), ndl.Tensor(np.array([0, bad])))


def test_cross_entropy_loss_ignores_and_smooths():
    x = np.random.randn(4, 3).astype(np.float32)
    y = np.array([2, -100, 0, 1])
    log_p = log_softmax(x)
    each = np.where(y == -100, 0.0, -0.8 * log_p[range(4), np.maximum(y, 0)] - 0.2 * log_p.mean(1))
    args = ndl.Tensor(x), ndl.Tensor(y)
    for reduction, expected in (("mean", each.sum() / 3), ("sum", each.sum()), ("none", each)):
        loss = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=0.2)(*args)
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, err_msg=reduction)
    other = nn.CrossEntropyLoss(ignore_index=0)(ndl.Tensor(x[[0, 2]]), ndl.Tensor(y[[0, 2]]))
    np.testing.assert_allclose(other.item(), -log_p[0, 2], rtol=1e-5)


def test_cross_entropy_loss_has_classes_on_axis_1():
    x = np.random.randn(2, 3, 5).astype(np.float32)
    y = np.random.randint(0, 3, (2, 5))
    each = -np.take_along_axis(log_softmax(x, 1), y[:, None], 1)[:, 0]
    loss = nn.CrossEntropyLoss(reduction="none")(ndl.Tensor(x), ndl.Tensor(y))
    np.testing.assert_allclose(loss.numpy(), each, rtol=1e-5)
    p = np.moveaxis(np.eye(3, dtype=np.float32)[y], -1, 1)
    loss = nn.CrossEntropyLoss(reduction="none")(ndl.Tensor(x), ndl.Tensor(p))
    np.testing.assert_allclose(loss.numpy(), each, rtol=1e-5)


def test_mse_loss():
    x, y = np.random.randn(2, 3).astype(np.float32), np.random.randn(2, 3).astype(np.float32)
    for reduction, expected in (("mean", ((x - y) ** 2).mean()), ("sum", ((x - y) ** 2).sum())):
        loss = nn.MSELoss(reduction)(ndl.Tensor(x), ndl.Tensor(y))
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)
    with pytest.raises(ShapeError, match="differ"):
        nn.MSELoss()(ndl.ones(3, 1), ndl.ones(3))


LOSSES = {
    nn.L1Loss: lambda d, x, y: np.abs(d),
    nn.HuberLoss: lambda d, x, y: np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5),
    nn.BCEWithLogitsLoss: lambda d, x, y: np.logaddexp(0, x) - x * y,
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_of_pairs(kind):
    random = np.random.default_rng(0)
    x, y = 2 * random.standard_normal((4, 3)), random.uniform(0, 1, (4, 3))
    each = LOSSES[kind](x - y, x, y)
    for reduction, expected in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
        loss = kind(reduction=reduction)(ndl.Tensor(x), ndl.Tensor(y))
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="differ"):
        kind()(ndl.ones(3, 1), ndl.ones(3))


def test_huber_loss_has_a_delta():
    x, zero = ndl.Tensor([0.5, 4.0]), ndl.zeros(2)
    assert nn.HuberLoss("none", delta=2.0)(x, zero).tolist() == [0.125, 6.0]
    with pytest.raises(OptionError, match="delta 0.0 must be positive"):
        nn.HuberLoss(delta=0.0)(x, zero)


@pytest.mark.parametrize("kind", [nn.MSELoss, *LOSSES])
def test_losses_refuse_unknown_reductions(kind):
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        kind("meann")


# ---- the model ---------------------------------------------------------------------


def test_mlp_resnet_has_the_documented_layers_and_draws_in_the_order_it_runs():
    from needle.models import MLPResNet, ResidualBlock

    np.random.seed(1)
    model = MLPResNet(6, hidden_dim=8, num_blocks=2, num_classes=3)
    np.random.seed(1)
    draws = [nn.Linear(*sizes) for sizes in ((6, 8), (8, 4), (4, 8), (8, 4), (4, 8), (8, 3))]
    linear = [m for _, m in model.named_modules() if isinstance(m, nn.Linear)]
    for a, b in zip(linear, draws, strict=True):
        np.testing.assert_array_equal(a.weight.numpy(), b.weight.numpy())
        np.testing.assert_array_equal(a.bias.numpy(), b.bias.numpy())
    block = ResidualBlock(4, 2, norm=nn.LayerNorm1d, drop_prob=0.5)
    kinds = [type(m).__name__ for _, m in block.named_modules()][1:]
    assert kinds == ["Residual", "Sequential", "Linear", "LayerNorm1d", "ReLU", "Dropout",
                     "Linear", "LayerNorm1d", "ReLU"]  # fmt: skip
    assert model(ndl.ones(5, 6)).shape == (5, 3)


@pytest.mark.parametrize("backend", ["nd", "np"])
def test_a_model_learns(backend):
    from needle.models import MLPResNet

    with ndl.config(backend=backend):
        np.random.seed(0)
        x = np.random.randn(64, 5).astype(np.float32)
        y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
        model = MLPResNet(5, 16, num_blocks=1, num_classes=2)
        opt = ndl.optim.Adam(model.parameters(), lr=0.02)
        loss_function = nn.SoftmaxLoss()
        losses = [
            opt.minimize(loss_function(model(ndl.Tensor(x)), ndl.Tensor(y))).item()
            for _ in range(60)
        ]
        accuracy = (model.eval()(ndl.Tensor(x)).numpy().argmax(1) == y).mean()
        assert losses[-1] < 0.5 * losses[0] and accuracy > 0.9


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
    with pytest.raises(IndexRangeError, match="there is no module 5 of 5"):
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
        with pytest.raises(ArgumentError, match=f"index {index!r} is no whole number"):
            held[index]
        with pytest.raises(ArgumentError, match="is no whole number"):
            held[index] = a
    with pytest.raises(ArgumentError, match="not a module"):
        held.insert(0, 3)
    with pytest.raises(IndexRangeError):
        del held[2]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Sequential([nn.ReLU()]), r"module 0 is a list.*\n.*Sequential\(\*modules\)"),
        (lambda: nn.Sequential({"a": nn.ReLU()}), r"is a dict.*\n.*modules.values.*ModuleDict"),
        (lambda: nn.Sequential(nn.Tanh(), nn.ReLU), r"module 1 is the class ReLU.*\n.*ReLU\("),
        (lambda: nn.ModuleList([nn.Tanh(), "relu"]), "ModuleList: module 1 is a str"),
        (lambda: nn.ModuleList().append(None), "ModuleList: module 0 is a NoneType"),
    ],
)
def test_containers_hold_what_can_be_called(make, said):
    with pytest.raises(ArgumentError, match=said):
        make()


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


@pytest.mark.parametrize("given", [np.array, list, lambda ids: ndl.Tensor(ids, dtype="int64")])
def test_the_row_of_padding_starts_at_zero_and_learns_nothing(given):
    layer = nn.Embedding(4, 2, padding_idx=-1)
    assert layer.padding_idx == 3 and layer.weight[3].tolist() == [0.0, 0.0]
    assert repr(layer).startswith("Embedding(4, 2, padding_idx=3)")
    layer.weight.data = ndl.Tensor(np.arange(8.0).reshape(4, 2))
    out = layer(given([[1, 3], [1, 3]]))
    assert out.tolist() == [[[2.0, 3.0], [6.0, 7.0]]] * 2
    out.sum().backward()
    assert layer.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]
    with pytest.raises(IndexRangeError, match="index 4"):
        nn.Embedding(4, 2, padding_idx=4)


class Foreign:
    """Another library's array, with dtypes of its own."""

    def __init__(self, values):
        self.values, self.dtype = values, "foreign.float32"

    def __dlpack__(self, **wanted):
        return self.values.__dlpack__(**wanted)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_a_state_of_another_library_is_loaded():
    layer = nn.Linear(2, 1)
    weight = np.array([[1.0], [2.0]], np.float32)
    layer.load_state_dict({"weight": Foreign(weight), "bias": Foreign(np.zeros((1, 1)))})
    weight[:] = 0  # it was copied
    assert layer.weight.tolist() == [[1.0], [2.0]] and layer.bias.tolist() == [[0.0]]
    with pytest.raises(DataError, match=r"weight is int64\[2, 1\]"):
        layer.load_state_dict({"weight": Foreign(np.ones((2, 1), int)), "bias": layer.bias})


def test_a_state_of_pytorch_is_loaded_parameters_and_all():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LayerNorm(3)
    torch.nn.init.normal_(theirs.weight)
    layer = nn.LayerNorm(3)
    layer.load_state_dict(dict(theirs.named_parameters()))
    np.testing.assert_array_equal(layer.weight.numpy(), theirs.weight.detach().numpy())
    with pytest.raises(DataError, match="wrong: weight: .*no conversion"):
        layer.load_state_dict({"weight": Broken(), "bias": theirs.bias})


class Broken:
    """An array that gives nothing."""

    def __dlpack__(self, **wanted):
        raise BufferError("no conversion")

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("value", ["abc", None, [[1.0], [2.0, 3.0]], object()])
def test_what_is_no_array_is_named(value):
    layer = nn.LayerNorm(3)
    with pytest.raises(DataError, match="wrong: weight"):
        layer.load_state_dict({**layer.state_dict(), "weight": value})


# ---- what PyTorch's users look for --------------------------------------------------


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
    with pytest.raises(OptionError, match="there is no 'aa'; did you mean 'a'"):
        model["aa"]
    for name in ("a.b", "", 3):
        with pytest.raises(OptionError, match="no name"):
            model[name] = nn.ReLU()
    with pytest.raises(ArgumentError, match="'d' is the class ReLU"):
        model["d"] = nn.ReLU


def torchs(layer, *inputs):
    """Return the value of a layer of PyTorch, and the gradient with respect to the first input."""
    torch = pytest.importorskip("torch")
    x, *rest = [torch.tensor(a) for a in inputs]
    x.requires_grad_()
    out = layer(torch)(x, *rest)
    out.sum().backward()
    return out.detach().numpy(), x.grad.numpy()


def ours(layer, *inputs):
    x, *rest = [ndl.Tensor(a, dtype=str(a.dtype)) for a in inputs]
    out = layer(x, *rest)
    out.sum().backward()
    return out.numpy(), x.grad.numpy()


@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"beta": 0.0},
                                 {"beta": 2.5}])  # fmt: skip
def test_smooth_l1_loss_is_pytorchs(how):
    x, y = 2 * np.random.default_rng(0).standard_normal((2, 5, 4))
    expected = torchs(lambda torch: torch.nn.SmoothL1Loss(**how), x, y)
    for found, exact in zip(ours(nn.SmoothL1Loss(**how), x, y), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    with pytest.raises(OptionError, match="beta=-1"):
        nn.SmoothL1Loss(beta=-1)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5)])
@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"},
                                 {"ignore_index": 1}])  # fmt: skip
def test_nll_loss_is_pytorchs(how, shape):
    random = np.random.default_rng(0)
    x, labels = random.standard_normal(shape), random.integers(0, 3, (shape[0], *shape[2:]))
    expected = torchs(lambda torch: torch.nn.NLLLoss(**how), x, labels)
    for found, exact in zip(ours(nn.NLLLoss(**how), x, labels), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    loss = nn.NLLLoss(**how)(ndl.Tensor(x, dtype="float64"), labels.tolist())
    np.testing.assert_allclose(loss.numpy(), expected[0], rtol=1e-12)
    counts = [0.5, 1.0, 4.0]

    def weighted(torch):
        return torch.nn.NLLLoss(torch.tensor(counts, dtype=torch.float64), **how)

    mine = ours(nn.NLLLoss(counts, **how), x, labels)
    for found, exact in zip(mine, torchs(weighted, x, labels), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_relu6_is_pytorchs():
    x = np.array([-1.0, 0.5, 5.9, 7.0])
    for found, exact in zip(
        ours(nn.ReLU6(), x), torchs(lambda torch: torch.nn.ReLU6(), x), strict=True
    ):
        np.testing.assert_array_equal(found, exact)


def test_dropout_of_whole_channels():
    layer, x = nn.Dropout2d(0.25), ndl.ones(50, 20, 2, 3, dtype="float64")
    found = layer(x).numpy()
    assert (found == found[:, :, :1, :1]).all()
    assert set(np.unique(found)) == {0.0, 1 / 0.75} and 0.2 < (found == 0).mean() < 0.3
    assert layer.eval()(x) is x
    with pytest.raises(ShapeError, match=r"x is \[n, c"):
        layer(ndl.ones(3))


@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"reduction": "none"}])
@pytest.mark.parametrize(
    "weights", [("pos_weight",), ("weight",), ("weight", "pos_weight")], ids=" and ".join
)
def test_weights_of_elements_and_of_positive_targets_are_pytorchs(weights, how):
    random = np.random.default_rng(0)
    x, y = 3 * random.standard_normal((4, 3)), random.uniform(0, 1, (4, 3))
    given = {name: random.integers(4, 32, 3) / 8 for name in weights}  # which float32 holds

    def make(torch, name="BCEWithLogitsLoss", **given):
        made = {key: torch.tensor(value, dtype=torch.float64) for key, value in given.items()}
        return getattr(torch.nn, name)(**made, **how)

    loss = nn.BCEWithLogitsLoss(**given, **how)
    exact = torchs(partial(make, **given), x, y)
    for found, value in zip(ours(loss, x, y), exact, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12)
    assert list(loss.state_dict()) == list(weights) and not loss.parameters()
    if "weight" in given:
        weight = given["weight"]
        p, loss = 1 / (1 + np.exp(-x)), nn.BCELoss(weight=weight, **how)
        exact = torchs(partial(make, name="BCELoss", weight=weight), p, y)
        for found, value in zip(ours(loss, p, y), exact, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-12)


@pytest.mark.parametrize("loss", [ops.bce, ops.bce_with_logits])
def test_weights_of_elements_have_the_shape_of_the_losses(loss):
    x = ndl.full((3, 4), 0.5)
    assert loss(x, x, weight=2.0).item() == 2 * loss(x, x).item()
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 4\) does not broadcast to \(3, 4\)"):
        loss(x, x, weight=np.ones((2, 3, 4)))

"""The state of a module: saved, loaded, moved and copied; states of other libraries."""

import copy
import pickle

import numpy as np
import pytest
from small_modules import Bare, Tied

import needle as ndl
from needle import nn
from needle.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    OptionError,
)


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
    with pytest.raises(ArgumentError, match=r"Counter\.count is a buffer, the new value cannot"):
        model.count = value
    with pytest.raises(ArgumentError, match=r"Counter\.new is a buffer, the new value cannot"):
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
        with pytest.raises(DataError, match=f"two tensors have the name '{name}'"):
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

"""Layers by their numbers: linear ones, activations, embeddings, dropout; small models."""

import numpy as np
import pytest
from small_modules import ours, torchs

import needle as ndl
from needle import nn
from needle.errors import (
    IndexRangeError,
    OptionError,
    ShapeError,
)

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

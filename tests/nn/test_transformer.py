"""Transformers: PyTorch's layers by its names, the course's, and learned positions."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import IndexRangeError, OptionError, ShapeError
from needle.models.language_model import LanguageModel


def values(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor(*shape, seed=0, dtype="float32"):
    return ndl.Tensor(values(*shape, seed=seed), dtype=dtype)


def load(ours, theirs):
    for name, p in ours.named_parameters():
        given = theirs.get_parameter(name).detach().numpy()
        p.data = ndl.Tensor(given.T.reshape(p.shape).copy(), dtype="float64")


SETTINGS = [{}, {"norm_first": True, "batch_first": True}, {"activation": "gelu", "bias": False}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_layers_are_pytorchs(kind, settings):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    name = f"Transformer{kind}Layer"
    theirs = getattr(torch.nn, name)(8, 2, 12, 0.0, **settings).double()
    ours = getattr(nn, name)(8, 2, 12, 0.0, dtype="float64", **settings)
    load(ours, theirs)
    assert {n for n, _ in ours.named_parameters()} == {n for n, _ in theirs.named_parameters()}
    first = settings.get("batch_first", False)
    steps = (4, 3) if kind == "Decoder" else (4,)
    given = [values(2, n, 8) if first else values(n, 2, 8) for n in steps]
    mask, padding = np.triu(np.ones((4, 4)), 1) > 0, np.array([[False] * 4, [False] * 3 + [True]])
    words = ("tgt_mask", "tgt_key_padding_mask") if kind == "Decoder" else (
        "src_mask", "src_key_padding_mask")  # fmt: skip
    mine = [ndl.Tensor(x, dtype="float64") for x in given]
    your = [torch.tensor(x, requires_grad=True) for x in given]
    found = ours(*mine, **dict(zip(words, map(ndl.Tensor, (mask, padding)), strict=True)))
    exact = theirs(*your, **dict(zip(words, map(torch.tensor, (mask, padding)), strict=True)))
    np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-9, atol=1e-10)
    g = values(*found.shape, seed=5)
    found.backward(ndl.Tensor(g, dtype="float64"))
    exact.backward(torch.tensor(g))
    for a, b in zip(mine, your, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_causal_layers_do_not_look_ahead():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
    x = values(1, 5, 8).astype("float32")
    other = x.copy()
    other[:, 3:] += 1
    a, b = (layer(ndl.Tensor(y), is_causal=True).numpy() for y in (x, other))
    np.testing.assert_array_equal(a[:, :3], b[:, :3])
    assert (a[:, 3:] != b[:, 3:]).any()
    with pytest.raises(OptionError, match="relu"):
        nn.TransformerEncoderLayer(8, 2, activation="relv")


# ---- the course's ------------------------------------------------------------------


def test_positions_are_drawn_first_and_the_layout_is_time_first():
    np.random.seed(5)
    model = nn.Transformer(6, 10, 2, num_head=2, dim_head=4, sequence_len=7)
    np.random.seed(5)
    np.testing.assert_allclose(model.positions.weight.numpy(), np.random.randn(7, 6), rtol=1e-6)
    x = tensor(5, 2, 6)
    out, state = model(x)
    model.batch_first = True
    turned, _ = model(x.transpose((0, 1)))
    np.testing.assert_array_equal(out.numpy(), turned.numpy().swapaxes(0, 1))
    assert state.shape == x.shape and not state.numpy().any()


def test_a_sequence_longer_than_the_positions_is_refused():
    model = nn.Transformer(6, 10, 1, sequence_len=4)
    with pytest.raises(IndexRangeError, match="steps 0 to 4, there are 4 positions"):
        model(tensor(5, 2, 6))
    positions = nn.LearnedPositions(4, 6)
    with pytest.raises(IndexRangeError, match="steps 3 to 4"):
        positions(tensor(2, 6), 3)
    with pytest.raises(ShapeError, match="LearnedPositions: x has shape"):
        positions(tensor(2, 5))
    with pytest.raises(ShapeError, match="x has 2 axes"):
        model(tensor(5, 6))


def test_the_formula_of_a_layer():
    layer, x = nn.TransformerLayer(6, 2, 4, 10), tensor(2, 3, 6)
    y = x + layer.attention(x)
    y = y + layer.linear2(ndl.relu(layer.linear1(layer.norm(y))))
    np.testing.assert_array_equal(layer(x).numpy(), y.numpy())


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "transformer"])
def test_language_models_learn_a_cycle(kind):
    ndl.manual_seed(0)
    model = LanguageModel(8, 5, 12, 1, kind, seq_len=10)
    optimizer = ndl.optim.Adam(model.parameters(), lr=0.02)
    words = np.arange(11)[:, None] + np.arange(4)
    x, y = words[:-1] % 5, (words[1:] % 5).reshape(-1)
    losses = []
    for _ in range(40):
        logits, _ = model(ndl.Tensor(x))
        loss = ndl.cross_entropy(logits, y)
        optimizer.reset_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < losses[0]


def test_language_models_refuse_what_is_no_word():
    model = LanguageModel(4, 5, 6)
    with pytest.raises(IndexRangeError, match="5"):
        model(ndl.Tensor([[0], [5]]))
    with pytest.raises(OptionError, match="lstm"):
        LanguageModel(4, 5, 6, seq_model="lstn")

"""Attention layers: PyTorch's by its names, and the course's."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import DtypeError, OptionError, ShapeError


def values(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor(*shape, seed=0, dtype="float64"):
    return ndl.Tensor(values(*shape, seed=seed), dtype=dtype)


def load(ours, theirs):
    """Copy weights of PyTorch's layers by a table of names; matrices are transposed here."""
    for name, p in ours.named_parameters():
        given = theirs.get_parameter(name).detach().numpy()
        p.data = ndl.Tensor(given.T.reshape(p.shape).copy(), dtype="float64")


def close(mine, your):
    np.testing.assert_allclose(mine.numpy(), your.detach().numpy(), rtol=1e-9, atol=1e-11)


def pair(**settings):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, **settings).double()
    for name, p in theirs.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(p)
    ours = nn.MultiheadAttention(8, 2, dtype="float64", **settings)
    load(ours, theirs)
    return torch, ours, theirs


@pytest.mark.parametrize("settings", [
    {}, {"batch_first": True}, {"bias": False}, {"kdim": 6, "vdim": 5},
])  # fmt: skip
def test_multihead_attention_is_pytorchs(settings):
    torch, ours, theirs = pair(**settings)
    first = settings.get("batch_first", False)
    widths = (8, settings.get("kdim", 8), settings.get("vdim", 8))
    shapes = [(2, n, m) if first else (n, 2, m) for n, m in zip((3, 4, 4), widths, strict=True)]
    given = [values(*shape, seed=i) for i, shape in enumerate(shapes)]
    mine = [ndl.Tensor(x, dtype="float64") for x in given]
    your = [torch.tensor(x, requires_grad=True) for x in given]
    (a, p), (b, q) = ours(*mine), theirs(*your)
    close(a, b)
    close(p, q)
    a.sum().backward()
    b.sum().backward()
    for x, y in zip(mine, your, strict=True):
        close(x.grad, y.grad)
    for name, x in ours.named_parameters():
        expected = theirs.get_parameter(name).grad.numpy().T.reshape(x.shape)
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.parametrize("mask", [None, "bool", "heads", "float"])
def test_masks_are_pytorchs(padding, mask):
    torch, ours, theirs = pair()
    x = values(4, 2, 8)
    pads = {"bool": np.array([[False] * 4, [False, False, True, True]]),
            "float": values(2, 4, seed=3)}.get(padding)  # fmt: skip
    masks = {"bool": np.triu(np.ones((4, 4)), 1) > 0, "float": values(4, 4, seed=4),
             "heads": np.triu(np.ones((4, 4, 4)), 2) > 0}.get(mask)  # fmt: skip
    mine = [None if y is None else ndl.Tensor(y, dtype=str(y.dtype)) for y in (pads, masks)]
    your = [None if y is None else torch.tensor(y) for y in (pads, masks)]
    a, b = ndl.Tensor(x, dtype="float64"), torch.tensor(x)
    found = ours(a, a, a, mine[0], attn_mask=mine[1], average_attn_weights=False)
    exact = theirs(b, b, b, your[0], attn_mask=your[1], average_attn_weights=False)
    for p, q in zip(found, exact, strict=True):
        close(p, q)
    alone, none = ours(a, a, a, mine[0], False, mine[1])
    assert none is None
    np.testing.assert_array_equal(alone.numpy(), found[0].numpy())


def test_a_row_of_padding_alone_is_what_zeros_give():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), tensor(2, 3, 8, dtype="float32")
    padding = ndl.Tensor([[True] * 3, [False] * 3])
    out, weights = layer(x, x, x, padding)
    assert not out.numpy()[0].any() and not weights.numpy()[0].any()
    out.sum().backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_dropout_is_for_training_only():
    ndl.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5), tensor(3, 2, 8, dtype="float32")
    assert (layer(x, x, x)[0].numpy() != layer(x, x, x)[0].numpy()).any()
    layer.eval()
    np.testing.assert_array_equal(layer(x, x, x)[0].numpy(), layer(x, x, x)[0].numpy())


def test_wrong_masks_and_sizes_are_refused():
    layer, x = nn.MultiheadAttention(8, 2), tensor(4, 2, 8, dtype="float32")
    with pytest.raises(ShapeError, match=r"key_padding_mask has shape \(4, 2\)"):
        layer(x, x, x, ndl.Tensor(np.zeros((4, 2), bool)))
    with pytest.raises(ShapeError, match="attn_mask has shape"):
        layer(x, x, x, attn_mask=ndl.Tensor(np.zeros((3, 4), bool)))
    with pytest.raises(DtypeError, match="mask is int64"):
        layer(x, x, x, attn_mask=ndl.Tensor(np.zeros((4, 4), int)))
    with pytest.raises(ShapeError, match="query has 2 axes"):
        layer(x[0], x, x)
    with pytest.raises(OptionError, match="num_heads divides embed_dim"):
        nn.MultiheadAttention(8, 3)


# ---- the course's ------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_layer_is_its_visible_graph(causal, dropout):
    """AttentionLayer takes the op, unless a subclass of MultiHeadAttention stands there."""

    class Visible(nn.MultiHeadAttention):
        pass

    layer = nn.AttentionLayer(6, 2, 4, dropout=dropout, causal=causal)
    q, k = tensor(2, 3, 6, dtype="float32"), tensor(2, 5, 6, seed=1, dtype="float32")
    found = []
    for attention in (layer.attn, Visible(dropout=dropout, causal=causal)):
        layer.attn = attention
        np.random.seed(1)
        out = layer(q, k, k)
        found.append((out.numpy(), np.random.rand()))
        attention.eval()
        found[-1] += (layer(q).numpy(),)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_visible_attention_returns_its_weights_and_may_be_overridden():
    class Squared(nn.MultiHeadAttention):
        def softmax(self, logit):
            return logit**2

    q = tensor(1, 2, 3, 4, dtype="float32")
    result, probs = nn.MultiHeadAttention(causal=True)(q, q, q)
    assert result.shape == (1, 2, 3, 4) and probs.shape == (1, 2, 3, 3)
    np.testing.assert_allclose(probs.numpy().sum(-1), 1, rtol=1e-6)
    assert not np.triu(probs.numpy(), 1).any()
    scores = q.numpy() @ q.numpy().swapaxes(2, 3) / 2
    np.testing.assert_allclose(Squared()(q, q, q)[1].numpy(), scores**2, rtol=1e-5)
    mask = nn.MultiHeadAttention().create_causal_mask(2, 3, ndl.cpu())
    assert (mask.numpy()[0, 0] < 0).tolist() == [[False, False, True], [False] * 3]


def test_attention_layer_draws_its_weights_in_order():
    np.random.seed(2)
    layer = nn.AttentionLayer(6, 2, 4, k_features=5, v_features=3, out_features=7)
    np.random.seed(2)
    for name, shape in (("q", (6, 8)), ("k", (5, 8)), ("v", (3, 8)), ("out", (8, 7))):
        bound = (6 / shape[0]) ** 0.5
        drawn = (np.random.rand(*shape) * 2 - 1) * bound
        weight = getattr(layer, f"{name}_projection").weight
        np.testing.assert_allclose(weight.numpy(), drawn, atol=1e-6)
    out = layer(*[tensor(2, 3, n, dtype="float32") for n in (6, 5, 3)])
    assert out.shape == (2, 3, 7)
    with pytest.raises(ShapeError, match="q has 2 axes"):
        layer(ops.zeros((3, 6)))

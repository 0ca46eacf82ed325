"""Recurrent cells and layers: against PyTorch, lengths, directions, and wrong input."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import ArgumentError, IndexRangeError, OptionError, ShapeError

KINDS = ("RNN", "GRU", "LSTM")
CELLS = {"RNN": "rnn_cells", "GRU": "gru_cells", "LSTM": "lstm_cells"}
NAMES = {"W_ih": "weight_ih", "W_hh": "weight_hh", "bias_ih": "bias_ih", "bias_hh": "bias_hh"}


def values(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor(*shape, seed=0):
    return ndl.Tensor(values(*shape, seed=seed), dtype="float64")


def load(ours, theirs, suffix=""):
    """Copy the weights of a PyTorch cell, or of a layer of a stack, into one of ours."""
    for name, other in NAMES.items():
        given = getattr(theirs, other + suffix).detach().numpy()
        getattr(ours, name).data = ndl.Tensor(given.T.copy(), dtype="float64")


def pair(kind, bidirectional=False, **settings):
    """Return a stack of ours and one of PyTorch's with the same weights."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    both = {"num_layers": 2, "bidirectional": bidirectional, **settings}
    theirs = getattr(torch.nn, kind)(3, 4, **both).double()
    ours = getattr(nn, kind)(3, 4, dtype="float64", **both)
    suffixes = [
        f"_l{layer}{way}" for layer in range(2) for way in ("", "_reverse")[: 1 + bidirectional]
    ]
    for cell, suffix in zip(getattr(ours, CELLS[kind]), suffixes, strict=True):
        load(cell, theirs, suffix)
    return torch, ours, theirs, suffixes


def flat(result):
    out, states = result
    return [out, *(states if isinstance(states, tuple) else (states,))]


def close(mine, your):
    np.testing.assert_allclose(mine.numpy(), your.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_stacks_are_pytorchs_with_all_gradients(kind, bidirectional):
    torch, ours, theirs, suffixes = pair(kind, bidirectional)
    x, h = values(5, 2, 3), [values(2 + 2 * bidirectional, 2, 4, seed=i) for i in (1, 2)]
    h = h if kind == "LSTM" else h[:1]
    mine = [ndl.Tensor(y, dtype="float64") for y in (x, *h)]
    your = [torch.tensor(y, requires_grad=True) for y in (x, *h)]
    states = [tuple(y[1:]) if kind == "LSTM" else y[1] for y in (mine, your)]
    found, exact = flat(ours(mine[0], states[0])), flat(theirs(your[0], states[1]))
    for a, b in zip(found, exact, strict=True):
        close(a, b)
    weights = [values(*a.shape, seed=7) for a in found]
    sum((a * ndl.Tensor(w, dtype="float64")).sum() for a, w in zip(found, weights, strict=True)
        ).backward()  # fmt: skip
    sum((b * torch.tensor(w)).sum() for b, w in zip(exact, weights, strict=True)).backward()
    for a, b in zip(mine, your, strict=True):
        close(a.grad, b.grad)
    for cell, suffix in zip(getattr(ours, CELLS[kind]), suffixes, strict=True):
        for name, other in NAMES.items():
            grad = getattr(cell, name).grad.numpy().T
            close(ndl.Tensor(grad, dtype="float64"), getattr(theirs, other + suffix).grad)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_pytorchs(kind):
    torch, ours, theirs, _ = pair(kind, True, batch_first=True)
    x, lengths = values(3, 5, 3), [2, 5, 3]
    pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    packed = pack(torch.tensor(x), torch.tensor(lengths), True, enforce_sorted=False)
    exact = flat(theirs(packed))
    exact[0] = pad(exact[0], True)[0]
    given = ndl.Tensor(x, dtype="float64")
    found = flat(ours(nn.pack_padded_sequence(given, lengths, True)))
    found[0], kept = nn.pad_packed_sequence(found[0], True)
    assert kept.tolist() == lengths
    for mine, padded, your in zip(found, flat(ours(given, lengths=lengths)), exact, strict=True):
        close(mine, your)
        close(padded, your)


def test_packing_crops_and_padding_fills():
    x = tensor(6, 2, 3)
    packed = nn.pack_padded_sequence(x, np.array([1, 4]))
    assert packed.data.shape == (4, 2, 3)
    back, lengths = nn.pad_packed_sequence(packed, padding_value=-1.0, total_length=5)
    expected = np.full((5, 2, 3), -1.0)
    expected[:1, 0], expected[:4, 1] = x.numpy()[:1, 0], x.numpy()[:4, 1]
    np.testing.assert_array_equal(back.numpy(), expected)
    assert lengths.dtype == "int64"
    with pytest.raises(IndexRangeError, match="row 1 has length 7, but x has 6 steps"):
        nn.pack_padded_sequence(x, [1, 7])
    with pytest.raises(ShapeError, match="lengths"):
        nn.pack_padded_sequence(x, [1, 2, 3])
    with pytest.raises(OptionError, match="total_length=3"):
        nn.pad_packed_sequence(packed, total_length=3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_the_end_of_a_row_changes_nothing(kind):
    model, x = getattr(nn, kind)(3, 4, bidirectional=True), values(5, 2, 3).astype("float32")
    other = x.copy()
    other[2:, 0] = np.nan
    for a, b in zip(*(flat(model(ndl.Tensor(y), lengths=[2, 5])) for y in (x, other)), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_step_by_step_is_the_layer_to_the_bit(kind, bias, device):
    layer = getattr(nn, kind)(3, 4, bias=bias, device=device)
    (cell,) = getattr(layer, CELLS[kind])
    assert bias or (cell.bias_ih is None and cell.bias_hh is None)
    x, state, outs = ndl.Tensor(values(4, 2, 3), dtype="float32", device=device), None, []
    for i in range(4):
        state = cell(x[i], state)
        outs.append(state[0] if kind == "LSTM" else state)
    out, last = layer(x)
    assert out.numpy().tobytes() == ops.stack(outs).numpy().tobytes()
    ends = zip(last, state, strict=True) if kind == "LSTM" else [(last, state)]
    for a, b in ends:
        assert a[0].numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse, lengths", [(False, None), (True, [3, 1])])
def test_the_gradients_op_is_the_gradient_of_the_expansion(kind, reverse, lengths):
    """Samples weigh gates and cells too, so they always differentiate the expansion."""
    op = getattr(ops, kind).of(reverse, lengths is not None)
    n = {"RNN": 4, "GRU": 12, "LSTM": 16}[kind]
    shapes = [(3, 2, 5), (2, 4), *[(2, 4)] * (kind == "LSTM"), (5, n), (4, n), (n,)]
    shapes += [(n,)] * (kind == "GRU")
    rest = () if lengths is None else (ndl.Tensor(lengths),)
    grads = []
    for run in (op, op.expand):
        given = [tensor(*shape, seed=i) for i, shape in enumerate(shapes)]
        out = run(*given, *rest)
        loss = sum((out[i] * (i + 1.5)).sum() for i in range(2 + (kind == "LSTM")))
        loss.backward()
        grads.append([y.grad.numpy() for y in given])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient_also_where_it_is_zero(kind):
    model = getattr(nn, kind)(3, 4, num_layers=2)
    model(tensor(1, 2, 3).astype("float32"))[0].backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert name.endswith("W_hh") == (not p.grad.numpy().any()), name


def test_draw_order_and_bounds():
    np.random.seed(3)
    model = nn.LSTM(3, 4, 2)
    np.random.seed(3)
    for cell, width in zip(model.lstm_cells, (3, 4), strict=True):
        for name, shape in (("W_ih", (width, 16)), ("W_hh", (4, 16)), ("bias_ih", (16,)),
                            ("bias_hh", (16,))):  # fmt: skip
            drawn = np.random.rand(*shape) - 0.5
            np.testing.assert_allclose(getattr(cell, name).numpy(), drawn, atol=1e-7)
    assert [name for name, _ in model.named_parameters()][:2] == [
        "lstm_cells.0.W_ih", "lstm_cells.0.W_hh"
    ]  # fmt: skip


def test_weights_are_read_when_the_layer_is_called():
    model, x = nn.GRU(2, 3), ndl.Tensor(values(2, 1, 2), dtype="float32")
    plain = ndl.Tensor(np.zeros((2, 9), "float32"))
    model.gru_cells[0].W_ih = plain
    out, _ = model(x)
    out.sum().backward()
    assert plain.grad is not None and model.gru_cells[0].W_ih is plain
    assert len(model.parameters()) == 3
    with pytest.raises(ArgumentError, match="W_ih: expected a tensor"):
        model.gru_cells[0].W_ih = np.zeros((2, 9))


def test_dropout_between_layers_only_and_in_training():
    ndl.manual_seed(0)
    model, x = nn.RNN(3, 4, 2, dropout=0.9), ndl.Tensor(values(3, 2, 3), dtype="float32")
    first, second = (model(x)[0].numpy() for _ in range(2))
    assert (first != second).any() and (model(x)[1][0].numpy() == model(x)[1][0].numpy()).all()
    model.eval()
    np.testing.assert_array_equal(model(x)[0].numpy(), model(x)[0].numpy())


def test_truncated_backpropagation_detaches_the_state():
    model, x = nn.LSTM(3, 4), ndl.Tensor(values(6, 2, 3), dtype="float32")
    whole, _ = model(x)
    state, parts = None, []
    for i in (0, 3):
        out, state = model(x[i : i + 3], state)
        state = tuple(s.detach() for s in state)
        parts.append(out)
    np.testing.assert_array_equal(ops.concat(parts).numpy(), whole.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_input_is_refused_by_name(kind):
    model, x = getattr(nn, kind)(3, 4), ndl.Tensor(values(5, 2, 3), dtype="float32")
    state = ndl.zeros(1, 3, 4)
    state = (state, state) if kind == "LSTM" else state
    with pytest.raises(ShapeError, match=r"h0 has shape \(1, 3, 4\), expected \(1, 2, 4\)"):
        model(x, state)
    with pytest.raises(ShapeError, match="input_size is 3"):
        model(x[..., :2])
    with pytest.raises(ShapeError, match="has shape"):
        model(x[0])
    with pytest.raises(IndexRangeError, match="row 1 has length 6, the sequence has 5 steps"):
        model(x, lengths=[5, 6])
    with pytest.raises(OptionError, match="the state is"):
        model(x, ndl.zeros(1, 2, 4) if kind == "LSTM" else (x, x))
    cell = getattr(nn, kind + "Cell")(3, 4)
    with pytest.raises(ShapeError, match="x has 3 axes"):
        cell(x)
    for wrong in ({"num_layers": 0}, {"dropout": 1.5}, {"hidden_size": 0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            getattr(nn, kind)(**{"input_size": 3, "hidden_size": 4, **wrong})


def test_another_nonlinearity_is_refused():
    with pytest.raises(OptionError, match="relu"):
        nn.RNN(3, 4, nonlinearity="relv")
    assert nn.RNNCell(3, 4, nonlinearity="relu")(-ndl.ones(1, 3)).numpy().min() >= 0


def test_state_dicts_and_text():
    model, other = nn.LSTM(3, 4, 2, bidirectional=True), nn.LSTM(3, 4, 2, bidirectional=True)
    other.load_state_dict(model.state_dict())
    x = ndl.Tensor(values(2, 1, 3), dtype="float32")
    np.testing.assert_array_equal(model(x)[0].numpy(), other(x)[0].numpy())
    assert "num_layers=2, bidirectional=True" in repr(model)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_through_the_gradients_op(kind):
    layer = getattr(nn, kind)(2, 3, dtype="float64")

    def loss(x):
        return (layer(x)[0] ** 2).sum()

    def norm(x):
        return (ndl.grad(loss)(x) ** 2).sum()

    x, v = tensor(3, 2, 2), values(3, 2, 2, seed=1)
    step = 1e-5
    ends = [norm(ndl.Tensor(x.numpy() + s * step * v, dtype="float64")).item() for s in (1, -1)]
    slope = (ndl.grad(norm)(x).numpy() * v).sum()
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)

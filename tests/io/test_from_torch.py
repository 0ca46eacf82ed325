"""States of PyTorch: the same architecture gives the same results; foreign files say what to do."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile

import numpy as np
import pytest
from beside_pytorch import needs_torch
from looped import looped

import needle as ndl
from needle import io, nn
from needle.errors import ArgumentError, DataError, OptionError

try:
    import torch
    from safetensors.torch import save_file
except ImportError:
    torch = save_file = None

X, IMAGE, ROW = (np.random.default_rng(i).normal(size=s).astype(np.float32)
                 for i, s in enumerate([(5, 6), (2, 4, 8, 8), (7, 2, 6)]))  # fmt: skip
IDS = np.array([[0, 3], [2, 2]])

LAYERS = {  # name: (what makes it here and there, given the library's nn; its input)
    "Linear": (lambda n: n.Linear(6, 3), X),
    "no bias": (lambda n: n.Linear(6, 3, bias=False), X),
    "square": (lambda n: n.Linear(6, 6), X),
    "Bilinear": (lambda n: n.Bilinear(6, 6, 2), (X, X[::-1].copy())),
    "Conv1d": (lambda n: n.Conv1d(2, 4, 3, groups=2), ROW),
    "Conv2d": (lambda n: n.Conv2d(4, 6, 3, padding=1), IMAGE),
    "ConvTranspose2d": (lambda n: n.ConvTranspose2d(4, 3, 2, stride=2), IMAGE),
    "BatchNorm2d": (lambda n: n.BatchNorm2d(4), IMAGE),
    "BatchNorm1d": (lambda n: n.BatchNorm1d(6), X),
    "GroupNorm": (lambda n: n.GroupNorm(2, 4), IMAGE),
    "LayerNorm": (lambda n: n.LayerNorm((6,)), X),
    "RMSNorm": (lambda n: n.RMSNorm(6, eps=1e-6), X),
    "Embedding": (lambda n: n.Embedding(5, 3), IDS),
    "PReLU": (lambda n: n.PReLU(), X),
    "RNN": (lambda n: n.RNN(6, 5, 2, nonlinearity="relu"), ROW),
    "GRU": (lambda n: n.GRU(6, 5, bidirectional=True), ROW),
    "LSTM": (lambda n: n.LSTM(6, 5, 2, bidirectional=True), ROW),
    "LSTM without biases": (lambda n: n.LSTM(6, 5, bias=False), ROW),
    "GRUCell": (lambda n: n.GRUCell(6, 4), X),
    "LSTMCell": (lambda n: n.LSTMCell(6, 4), X),
    "MultiheadAttention": (lambda n: n.MultiheadAttention(6, 2), (ROW, ROW, ROW)),
    "attention of keys": (lambda n: n.MultiheadAttention(6, 2, kdim=6, vdim=2),
                          (ROW, ROW, ROW[..., :2].copy())),
    "TransformerEncoderLayer": (lambda n: n.TransformerEncoderLayer(6, 2, 8), ROW),
    "deep": (lambda n: n.Sequential(
        n.Conv2d(4, 8, 3), n.BatchNorm2d(8), n.ReLU(inplace=True), n.Sequential(
            n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(8, 3))), IMAGE),
}  # fmt: skip


def changed(model):
    """Give a PyTorch model values that differ from those of any other, and that are saved."""
    generator = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)
    return model.eval()


def flat(out):
    return [x for part in out for x in flat(part)] if isinstance(out, (tuple, list)) else [out]


@needs_torch
@looped("name", LAYERS)
def test_the_same_architecture_gives_the_same_results(name, tmp_path_factory):
    make, given = LAYERS[name]
    theirs, ours = changed(make(torch.nn)), make(nn).eval()
    path = tmp_path_factory.mktemp("torch") / "model.safetensors"
    save_file(theirs.state_dict(), path)
    for source in (path, theirs.state_dict()):
        for p in ours.parameters():
            p.data = ndl.zeros_like(p)
        assert io.from_torch(ours, source) == ([], [])
        given = given if isinstance(given, tuple) else (given,)
        found = flat(ours(*(ndl.Tensor(x, dtype=x.dtype.name) for x in given)))
        expected = flat(theirs(*(torch.tensor(x) for x in given)))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x.numpy(), y.detach().numpy(), rtol=2e-4, atol=2e-5)


def test_what_did_not_fit_is_listed():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
    before = model[0].weight.numpy()
    state = {
        "module.0.weight": np.ones((2, 3), np.float32), "module.0.bais": np.ones(2, np.float32),
        "module.2.weight": np.ones((4, 2), np.float32),
        "module.1.num_batches_tracked": np.array(3),
    }  # fmt: skip
    with pytest.raises(DataError) as caught:
        io.from_torch(model, state)
    text = str(caught.value)
    assert "1 missing, 1 unexpected, 1 wrong" in text
    assert "missing: 0.bias; did you mean '0.bais'?" in text and "unexpected: 0.bais" in text
    assert "wrong: 2.weight is float32[2, 4]" in text
    assert np.array_equal(model[0].weight.numpy(), before)
    del state["module.2.weight"]
    left = io.from_torch(model, state, strict=False)
    assert left == (["0.bias", "2.weight"], ["0.bais"]) and (model[0].weight.numpy() == 1).all()
    named = {"fc1.weight": np.full((2, 3), 5.0, np.float32)}
    rename = lambda name: name.replace("fc1", "0")  # noqa: E731
    io.from_torch(model, named, strict=False, rename=rename)
    assert (model[0].weight.numpy() == 5).all()
    with pytest.raises(ArgumentError, match="expected a module"):
        io.from_torch(state, model)
    with pytest.raises(DataError, match="No such file"):
        io.from_torch(model, "nowhere.safetensors")


def test_course_convolutions_change_their_layout():
    layer = nn.Conv(3, 4, 3)
    weight = np.arange(4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3)
    io.from_torch(layer, {"weight": weight, "bias": np.zeros(4, np.float32)})
    assert np.array_equal(layer.weight.numpy(), weight.transpose(2, 3, 1, 0))


def test_pickles_say_how_to_convert_them(tmp_path):
    old, new, other = tmp_path / "old.pt", tmp_path / "new.pt", tmp_path / "numpy.npz"
    old.write_bytes(pickle.dumps({"w": 1.0}, protocol=2))
    with zipfile.ZipFile(new, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    np.savez(other, w=np.ones(2))
    for path in (old, new):
        with pytest.raises(DataError, match="it is a pickle") as caught:
            io.load(path)
        assert "safetensors.torch.save_file(" in str(caught.value)
        assert "needle.io.from_torch(model" in str(caught.value)
    with pytest.raises(DataError, match="expected a complete safetensors file"):
        io.load(other)


def test_float8_comes_as_bytes_with_its_name(tmp_path):
    values = bytes(range(6))
    header = {
        "a": {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [6, 10]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "f8.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + values + struct.pack("<f", 2.5))
    state = io.load(path, map_location=ndl.default_device())
    assert state.raw == {"a": "F8_E4M3"} and state["a"].dtype == "uint8"
    assert state["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and state["b"].tolist() == [2.5]
    with pytest.raises(OptionError, match="two names of one argument"):
        io.load(path, "cpu", map_location="cpu")

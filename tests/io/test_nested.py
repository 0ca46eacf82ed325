"""Nested states in one file: every value comes back as it was, or is refused."""

import json
import math

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, DataError
from needle.io import nested, reader, writer


def same(a, b):
    """Whether two states are equal: in types, in order, and in bits."""
    if isinstance(a, (ndl.Tensor, np.ndarray)):
        a, b = np.asarray(a), np.asarray(b)
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


STATES = {
    "empty": {},
    "numbers": {"a": 1, "b": -0.5, "c": True, "d": None, "e": "text", "": "no name"},
    "far integers": {"a": 2**53, "b": 2**53 + 1, "c": -(2**64), "d": 10**100},
    "not finite": {"a": math.nan, "b": [math.inf, -math.inf]},
    "containers": {"a": [1, [2, (3, [4])], {}], "b": {"c": {"d": ()}}, "e": []},
    "odd keys": {"a/b": {"~": 1, "~~c": 2, "~tensor": "x", "ü\n": 3}, "~state": {"~aliases": 4}},
    "tensors": {"a": ndl.ones(2, 3), "b": [ndl.zeros(0, 4), {"c": ndl.Tensor(2.5)}]},
    "dtypes": {k: ndl.ones(3).astype(k) for k in ("float16", "bfloat16", "int64", "bool", "uint8")},
    "views": {"a": ndl.Tensor(np.arange(6.0).reshape(2, 3)).transpose(), "b": np.arange(4)[::-2]},
}  # fmt: skip


@looped("name", STATES)
def test_a_state_comes_back_as_it_was(name, tmp_path):
    path = tmp_path / f"{name}.safetensors"
    ndl.save(STATES[name], path)
    assert same(STATES[name], ndl.load(path))


def test_numbers_of_another_byte_order(tmp_path):
    x = np.arange(3, dtype=">f4")
    ndl.save({"x": x}, tmp_path / "x")
    ndl.io.save(tmp_path / "y", {"x": x})
    assert ndl.load(tmp_path / "x")["x"].tolist() == ndl.load(tmp_path / "y")["x"].tolist()
    assert ndl.load(tmp_path / "x")["x"].tolist() == [0, 1, 2]


def test_a_run_goes_on_from_a_file(tmp_path):
    def made():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        return model, optim.Adam(model.parameters(), lr=0.1)

    def trained(model, opt):
        x = ndl.Tensor(np.arange(6.0).reshape(2, 3))
        return [opt.minimize((model(x) ** 2).mean()).item() for _ in range(3)]

    model, opt = made()
    trained(model, opt)
    state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}
    ndl.save(state, tmp_path / "x")
    expected = trained(model, opt)
    found = ndl.load(tmp_path / "x")
    again, opt = made()
    again.load_state_dict(found["model"])
    opt.load_state_dict(found["optimizer"])
    assert found["epoch"] == 3 and trained(again, opt) == expected


def test_other_programs_read_the_tensors(tmp_path):
    from safetensors.numpy import load_file

    ndl.save({"model": {"a.b": ndl.ones(2), "c/d": ndl.zeros(3)}, "n": 1}, tmp_path / "x")
    found = load_file(tmp_path / "x")
    assert {name: x.tolist() for name, x in found.items()} == {
        "model/a.b": [1, 1], "model/c~1d": [0, 0, 0],
    }  # fmt: skip
    ndl.save(nn.Linear(2, 2).state_dict(), tmp_path / "y")
    assert set(load_file(tmp_path / "y")) == {"weight", "bias"}


def test_tied_weights_are_written_once_and_tied_again(tmp_path):
    head, table = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, head)
    ndl.save({"model": model.state_dict(), "again": model.state_dict()}, tmp_path / "x")
    assert (tmp_path / "x").stat().st_size < 9 * 4 + 600
    found = ndl.load(tmp_path / "x")
    assert found["model"].aliases == {"1.weight": "0.weight"}
    assert found["again"]["0.weight"] is found["model"]["0.weight"]
    assert nn.Sequential(table, head).load_state_dict(found["model"]) == ([], [])


WRONG = {
    "a set": ({"a": {1}}, r"\['a'\]: got set"),
    "bytes": ({"a": [b"x"]}, r"\['a'\]\['0'\]: got bytes"),
    "a number as key": ({"a": {1: 2}}, r"\['a'\] has the key 1"),
    "a key that is not UTF-8": ({"\ud800": 2}, "the state has the key"),
    "a complex number": ({"a": 1j}, "got complex"),
    "a dtype of NumPy alone": ({"a": np.zeros(2, "uint16")}, r"\['a'\] is uint16, which load"),
    "the name of the texts": ({"__metadata__": ndl.ones(1)}, "cannot be a name"),
    "a long integer": ({"a": 10**5000}, "integer of 16610 bits"),
}


@looped("name", WRONG)
def test_what_could_not_come_back_is_refused(name, tmp_path):
    state, said = WRONG[name]
    with pytest.raises(DataError, match=said):
        ndl.save(state, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_state_that_contains_itself_is_refused(tmp_path):
    state = {}
    state["a"] = [state]
    with pytest.raises(DataError, match="more than 64 levels, at \\['a'\\]\\['0'\\]"):
        ndl.save(state, tmp_path / "x")


def test_what_is_no_dict_is_told_what_would_be(tmp_path):
    with pytest.raises(ArgumentError, match=r"expected a dict, got Linear\n(.*\n)+.*state_dict"):
        ndl.save(nn.Linear(1, 1), tmp_path / "x")
    with pytest.raises(ArgumentError, match="got str"):
        ndl.save("x", {})


HOSTILE = {
    "not JSON": "{",
    "no object": "[1]",
    "deep": "[" * 200 + "]" * 200,
    "very deep": "[" * 100_000,
    "twice": '{"a": 1, "a": 2}',
    "a tensor that is not there": '{"a": {"~tensor": "w"}, "b": {"~tensor": "v"}}',
    "a tensor left out": '{"a": 1}',
    "an unknown mark": '{"a": {"~tensor": "w"}, "b": {"~x": 1}}',
    "a mark beside a key": '{"a": {"~tensor": "w", "b": 1}}',
    "a list as a path": '{"a": {"~tensor": ["w"]}}',
    "no integer": '{"a": {"~tensor": "w"}, "b": {"~integer": "1e9"}}',
    "a list as a number": '{"a": {"~tensor": "w"}, "b": {"~number": ["nan"]}}',
    "a ring of aliases": '{"~state": {"w": {"~tensor": "w"}}, "~aliases": {"a": "b", "b": "a"}}',
    "an alias of itself": '{"~state": {"w": {"~tensor": "w"}}, "~aliases": {"a": "a"}}',
    "aliases of no state": '{"~state": [{"~tensor": "w"}], "~aliases": {}}',
}


@looped("name", HOSTILE)
def test_a_document_that_we_did_not_write_is_refused(name, tmp_path):
    path = tmp_path / "x.safetensors"
    writer.write(path, {"w": np.ones(1, np.float32)}, {"needle.state": HOSTILE[name]})
    with pytest.raises(DataError, match=r"x.safetensors: its needle.state cannot be read"):
        ndl.load(path)
    path.unlink()


def test_the_document_beside_them_loads(tmp_path):
    text = json.dumps({"a": {"~tensor": "w"}})
    writer.write(tmp_path / "x", {"w": np.ones(1, np.float32)}, {"needle.state": text})
    assert ndl.load(tmp_path / "x")["a"].tolist() == [1.0]


def test_buffers_are_cut_into_pieces_of_one_size():
    buffers = [memoryview(bytes(range(n))) for n in (3, 0, 10, 1, 8)]
    cut = [[bytes(part) for part in piece] for piece in writer.pieces(buffers, 4)]
    whole = [b"".join(piece) for piece in cut]
    assert b"".join(whole) == b"".join(buffers)
    assert [len(piece) for piece in whole] == [4, 4, 4, 4, 4, 2]


def test_a_sum_is_that_of_the_bytes_however_they_lie():
    content = np.random.default_rng(0).integers(0, 256, 3 * writer.PAGE + 100, "uint8").tobytes()

    def of(*cuts):
        places = [0, *cuts, len(content)]
        return writer.checksum(
            [memoryview(content)[a:b] for a, b in zip(places, places[1:], strict=False)]
        )

    assert len({of(), of(1), of(4095, 4097), of(3, 3, 8192), of(*range(0, 12000, 7))}) == 1
    for place in (0, 5000, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 4
        assert writer.checksum([memoryview(changed)]) != of()
    moved = content[4096:8192] + content[:4096] + content[8192:]
    lost = content[:4096] + bytes(4096) + content[8192:]
    for other in (moved, lost, content[:-1]):
        assert writer.checksum([memoryview(other)]) != of()


def test_values_are_aligned(tmp_path):
    state = {str(i): np.ones(n, kind) for i, (n, kind) in enumerate(
        [(3, "uint8"), (5, "float64"), (7, "float16"), (16, "int8"), (0, "int64"), (1, "float32")]
    )}  # fmt: skip
    ndl.save(state, tmp_path / "x")
    with reader.opened(str(tmp_path / "x")) as file:
        entries = reader.read_header(str(tmp_path / "x"), file).entries
    assert all(x.start % x.kind.itemsize == 0 for x in entries.values())
    assert min(x.start for x in entries.values()) % writer.ALIGNED == 0
    assert same(state, ndl.load(tmp_path / "x"))


def test_a_depth_that_is_saved_is_loaded():
    state = 1
    for _ in range(nested.DEPTH // 2):
        state = {"a": (state,)}
    arrays, document = nested.split(state)
    assert not arrays and nested.join(nested.parse(json.dumps(document)), {}.__getitem__) == state

"""State dicts on disk: every dtype, shared tensors, damage of every kind, interrupted writes."""

import errno
import json
import os
import stat
import struct
from collections.abc import Mapping

import numpy as np
import pytest

import needle as ndl
from needle import dtype, io, nn, optim
from needle.errors import ArgumentError, DataError, DeviceError
from needle.io import reader


def write(path, header, data=b"", length=None):
    """Write a safetensors file by hand, possibly a wrong one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + text + data)


def entry(start, stop, shape, kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize("kind", dtype.ALL)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(kind, shape, tmp_path):
    values = np.random.default_rng(0).integers(0, 2, shape)
    x = ndl.Tensor(values if kind.kind in "iub" else values / 3 - 1, dtype=kind)
    io.save(tmp_path / "x.safetensors", {"x": x})
    out = io.load(tmp_path / "x.safetensors")["x"]
    assert (out.dtype, out.shape) == (kind, shape)
    assert out.numpy().tobytes() == x.numpy().tobytes()


def test_other_readers_understand_the_file(tmp_path):
    from safetensors.numpy import load_file

    x = ndl.Tensor(np.arange(6.0).reshape(2, 3)).transpose()
    io.save(tmp_path / "x.safetensors", {"x": x})
    np.testing.assert_array_equal(load_file(tmp_path / "x.safetensors")["x"], x.numpy())


def test_files_of_other_writers_are_read(tmp_path):
    from safetensors.numpy import save_file

    save_file({"b": np.arange(3), "a": np.ones((2, 2), np.float16)}, tmp_path / "x.safetensors")
    state = io.load(tmp_path / "x.safetensors", device="cpu_numpy")
    np.testing.assert_array_equal(state["b"].numpy(), [0, 1, 2])
    assert state["a"].dtype == "float16" and state["a"].device == ndl.cpu_numpy()


def test_a_model_and_its_optimizer_come_back(tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        return model, optim.Adam(model.parameters(), lr=0.1)

    def train(model, opt):
        x = ndl.Tensor(np.arange(6.0).reshape(2, 3))
        return [opt.minimize((model(x) ** 2).mean()).item() for _ in range(3)]

    model, opt = make()
    train(model, opt)
    io.save(tmp_path / "model.safetensors", model.state_dict())
    io.save(tmp_path / "opt.safetensors", opt.state_dict(), {"note": "after 3"})
    expected = train(model, opt)
    again, opt = make()
    again.load_state_dict(io.load(tmp_path / "model.safetensors"))
    opt.load_state_dict(io.load(tmp_path / "opt.safetensors"))
    assert io.load_metadata(tmp_path / "opt.safetensors") == {"note": "after 3"}
    assert opt.t == 3 and train(again, opt) == expected


def test_numbers_come_back_exactly(tmp_path):
    numbers = {"a": 1, "b": 0.1, "c": True, "d": float("inf"), "e": -(2**62)}
    io.save(tmp_path / "x", numbers)
    out = io.load(tmp_path / "x")
    assert dict(out) == numbers and [type(v) for v in out.values()] == [
        int,
        float,
        bool,
        float,
        int,
    ]


def test_what_is_no_dict_is_told_what_would_be(tmp_path):
    model = nn.Linear(2, 2)
    for wrong in (model, ndl.optim.Adam(model.parameters())):
        with pytest.raises(ArgumentError, match=r"got \w+\n(.*\n)+.*try: save\(path, x.state_dict"):
            io.save(tmp_path / "x", wrong)
    with pytest.raises(ArgumentError, match="by name, got PosixPath"):
        io.save(model.state_dict(), tmp_path / "x")
    assert not list(tmp_path.iterdir())


class Tied(nn.Module):
    def __init__(self):
        self.table = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.table.weight


def test_shared_tensors_are_written_once_and_tied_again(tmp_path):
    model = Tied()
    io.save(tmp_path / "x", model.state_dict())
    state = io.load(tmp_path / "x")
    assert list(state) == ["table.weight"]
    assert state.aliases == {"head.weight": "table.weight"}
    assert os.path.getsize(tmp_path / "x") < 9 * 4 + 300
    other = Tied()
    other.load_state_dict(state)
    assert other.head.weight is other.table.weight
    np.testing.assert_array_equal(other.head.weight.numpy(), model.table.weight.numpy())
    free = Tied()
    free.head.weight = nn.Parameter(ndl.zeros(3, 3))
    free.load_state_dict(state)
    np.testing.assert_array_equal(free.head.weight.numpy(), model.table.weight.numpy())


def test_one_tensor_under_two_names_is_written_once(tmp_path):
    x = ndl.ones(4)
    io.save(tmp_path / "x", {"a": x, "b": x})
    assert list(io.load(tmp_path / "x")) == ["a"]


class Made(Mapping):
    """Tensors that are made when they are asked for, and belong to nobody."""

    def __getitem__(self, name):
        return ndl.Tensor(np.full((2, 2), int(name))).transpose()

    def __iter__(self):
        return map(str, range(20))

    def __len__(self):
        return 20


def test_tensors_that_live_for_a_moment_are_not_taken_for_one(tmp_path):
    io.save(tmp_path / "x", Made())
    state = io.load(tmp_path / "x")
    assert not state.aliases and len(state) == 20
    assert all((x.numpy() == int(name)).all() for name, x in state.items())


def test_a_state_that_was_changed_can_be_read_again(tmp_path):
    def saved(change):
        state = Tied().state_dict()
        change(state)
        io.save(tmp_path / "x", state)
        return io.load(tmp_path / "x")

    name, alias = "table.weight", "head.weight"
    assert saved(lambda state: state.pop(name)).aliases == {}
    out = saved(lambda state: state.update({alias: ndl.ones(3, 3)}))
    assert out.aliases == {} and out[alias].numpy().sum() == 9 != out[name].numpy().sum()
    assert saved(lambda state: state.update({name: 2.0})) == {name: 2.0, alias: 2.0}

    def first(state):
        x = state.pop(name)
        state.update({"a": x, name: x})

    assert saved(first).aliases == {name: "a", alias: "a"}


# ---- writing ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["text", None, [1.0]])
def test_only_tensors_and_numbers_are_written(value, tmp_path):
    with pytest.raises(DataError, match="'x'"):
        io.save(tmp_path / "file", {"x": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["__metadata__", 1, None, "\ud800"])
def test_names_that_could_not_be_read_again_are_refused(name, tmp_path):
    path = tmp_path / "x"
    io.save(path, {"x": 1})
    for value in (ndl.ones(1), 2):
        with pytest.raises(DataError, match="cannot be a name"):
            io.save(path, {name: value})
    assert dict(io.load(path)) == {"x": 1}


@pytest.mark.parametrize("kind", ["uint16", "complex64", "U1"])
def test_dtypes_that_could_not_be_read_again_are_refused(kind, tmp_path):
    with pytest.raises(DataError, match="'a' is .*, which load cannot read"):
        io.save(tmp_path / "x", {"a": np.zeros(2, kind)})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    io.save(path, {"x": ndl.ones(3)})
    before = path.read_bytes()

    def full(name, *args):
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(DataError, match="No space left"):
                io.save(path, {"x": ndl.zeros(3)})
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    path, calls = tmp_path / "x", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    io.save(path, {"x": ndl.ones(3)})
    assert calls == ["fsync", "replace", "fsync"]


def test_a_folder_that_is_missing_or_in_the_way(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        io.save(tmp_path / "no" / "x", {"x": ndl.ones(3)})
    with pytest.raises(DataError, match="directory"):
        io.save(tmp_path, {"x": ndl.ones(3)})


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    io.save(tmp_path / "x", {"x": ndl.ones(3)})
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_private_file_stays_private(tmp_path):
    path = tmp_path / "x"
    for mode in (0o600, 0o640, 0o444):
        path.touch()
        path.chmod(mode)
        io.save(path, {"x": ndl.ones(3)})
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    target, link = tmp_path / "folder" / "x", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)  # to nothing yet
    for number in (1.0, 2.0):
        io.save(link, {"x": number})
        assert link.is_symlink() and io.load(target) == {"x": number}
    assert [path.name for path in target.parent.iterdir()] == ["x"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        io.save(tmp_path / "pipe", {"x": ndl.ones(3)})
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    for name, said in (("", "an empty name"), ("\0", "null")):
        with pytest.raises(DataError, match=f"cannot write .*{said}"):
            io.save(name, {"x": ndl.ones(3)})
        with pytest.raises(DataError, match="load: "):
            io.load(name)
    with pytest.raises(DataError, match="it is a directory"):
        io.save(f"{tmp_path}/new/", {"x": ndl.ones(3)})  # which made a file called new
    assert not (tmp_path / "new").exists()


def test_names_of_files_may_be_bytes(tmp_path):
    path = os.fsencode(tmp_path / "x")
    io.save(path, {"x": ndl.ones(3)}, {"key": "text"})
    assert io.load(path)["x"].tolist() == [1, 1, 1] and io.load_metadata(path) == {"key": "text"}


@pytest.mark.parametrize(
    "wrong",
    [{"a": 1}, {1: "a"}, {"a": "\ud800"}, {"\ud800": "a"}, {"needle.numbers": "1"},
     {"needle.aliases": "{}"}],
)  # fmt: skip
def test_metadata_that_could_not_be_read_again_is_refused(wrong, tmp_path):
    with pytest.raises(DataError, match="cannot be saved"):
        io.save(tmp_path / "x", {"x": 1}, wrong)
    with pytest.raises(ArgumentError, match="expected a dict of strings"):
        io.save(tmp_path / "x", {"x": 1}, ["a"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint64", "bool"])
def test_numbers_of_numpy_are_numbers(kind, tmp_path):
    number = np.dtype(kind).type(1)
    io.save(tmp_path / "x", {"x": number})
    found = io.load(tmp_path / "x")["x"]
    assert found == 1 and type(found) is type(number.item())
    for wrong in (np.complex64(1), np.datetime64("2020-01-01"), np.str_("a")):
        with pytest.raises(DataError, match="expected a tensor or a"):
            io.save(tmp_path / "x", {"x": wrong})


def test_numbers_that_have_no_text_are_refused(tmp_path):
    with pytest.raises(DataError, match="'x' is an integer of 16610 bits"):
        io.save(tmp_path / "file", {"x": 10**5000})
    assert not list(tmp_path.iterdir())


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    path = tmp_path / ("ö" * 127)
    io.save(path, {"x": 1})
    assert io.load(path) == {"x": 1}


# ---- damaged files -----------------------------------------------------------------------

GOOD = {"a": entry(0, 8, [2]), "b": entry(8, 16, [2])}

BAD = {
    "empty": lambda path: path.write_bytes(b""),
    "short length": lambda path: path.write_bytes(b"\x01\x00"),
    "no header": lambda path: write(path, b"", length=100),
    "huge header": lambda path: write(path, b"{}", length=2**62),
    "not JSON": lambda path: write(path, b"{'a': 1}"),
    "not UTF-8": lambda path: write(path, b'{"\xff": 1}'),
    "a list": lambda path: write(path, b"[]"),
    "leading space": lambda path: write(path, b" " + json.dumps(GOOD).encode(), bytes(16)),
    "truncated": lambda path: write(path, GOOD, bytes(15)),
    "trailing bytes": lambda path: write(path, GOOD, bytes(17)),
    "hole": lambda path: write(path, {"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, bytes(20)),
    "overlap": lambda path: write(path, {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
    "shape and size differ": lambda path: write(path, {"a": entry(0, 8, [3])}, bytes(8)),
    "sizes overflow": lambda path: write(path, {"a": entry(0, 8, [2**40, 2**40])}, bytes(8)),
    "negative size": lambda path: write(path, {"a": entry(0, 8, [-2])}, bytes(8)),
    "unknown dtype": lambda path: write(path, {"a": entry(0, 8, [2], "X9")}, bytes(8)),
    "foreign dtype": lambda path: write(path, {"a": entry(0, 8, [1], "U64")}, bytes(8)),
    "nested metadata": lambda path: write(path, {"__metadata__": {"a": {}}}),
    "duplicate name": lambda path: write(
        path,
        b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 8, [2])).encode(),) * 2),
        bytes(8),
    ),
    "alias of nothing": lambda path: write(
        path, {"__metadata__": {"needle.aliases": '{"x": "y"}'}}
    ),
    "aliases not JSON": lambda path: write(path, {"__metadata__": {"needle.aliases": "{"}}),
    "aliases no table": lambda path: write(path, {"__metadata__": {"needle.aliases": "[1]"}}),
    "number hides tensor": lambda path: write(
        path, {"__metadata__": {"needle.numbers": '{"a": 1}'}, **GOOD}, bytes(16)
    ),
    "alias of a list": lambda path: write(
        path, {"__metadata__": {"needle.aliases": '{"x": ["a"]}'}, **GOOD}, bytes(16)
    ),
    "deep numbers": lambda path: write(path, {"__metadata__": {"needle.numbers": "[" * 100_000}}),
    "too many dimensions": lambda path: write(path, {"a": entry(0, 4, [1] * 17)}, bytes(4)),
    "sizes overflow beside 0": lambda path: write(path, {"a": entry(0, 0, [0, 2**62, 2**62])}),
    "size of 64 bits": lambda path: write(path, {"a": entry(0, 0, [0, 2**63])}),
    "a list for a tensor": lambda path: write(path, {"a": ["F32", [2], [0, 8]]}, bytes(8)),
    "a table for a dtype": lambda path: write(
        path, {"a": entry(0, 8, [2], {"F32": None})}, bytes(8)
    ),
    "a pipe": os.mkfifo,
    "number is text": lambda path: write(path, {"__metadata__": {"needle.numbers": '{"n": "1"}'}}),
}


@pytest.mark.parametrize("damage", BAD)
def test_damaged_files_are_refused(damage, tmp_path):
    path = tmp_path / "x.safetensors"
    BAD[damage](path)
    with pytest.raises(DataError, match="x.safetensors"):
        io.load(path)


def test_the_good_file_next_to_them_loads(tmp_path):
    write(tmp_path / "x", GOOD, struct.pack("<4f", 1, 2, 3, 4))
    state = io.load(tmp_path / "x")
    assert state["a"].tolist() == [1.0, 2.0] and state["b"].tolist() == [3.0, 4.0]


def test_the_error_names_a_duplicate(tmp_path):
    BAD["duplicate name"](tmp_path / "x")
    with pytest.raises(DataError, match="'a' occurs twice"):
        io.load(tmp_path / "x")


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        io.load(tmp_path / "nothing")
    with pytest.raises(DataError, match="directory"):
        io.load(tmp_path)


def test_bools_that_are_neither_0_nor_1_count_as_true(tmp_path):
    write(tmp_path / "x", {"a": entry(0, 3, [3], "BOOL")}, b"\x00\x01\x05")
    assert io.load(tmp_path / "x")["a"].numpy().view(np.uint8).tolist() == [0, 1, 1]


def test_texts_may_be_null(tmp_path):
    write(tmp_path / "x", {"__metadata__": None, **GOOD}, bytes(16))
    assert list(io.load(tmp_path / "x")) == ["a", "b"] and io.load_metadata(tmp_path / "x") == {}


def test_a_device_that_is_not_there_is_not_the_files_fault(tmp_path):
    write(tmp_path / "x", GOOD, bytes(16))
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        io.load(tmp_path / "x", "tpu")


@pytest.mark.parametrize("before", ["read_header", "read"])
def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(before, tmp_path, monkeypatch):
    path, inner = tmp_path / "x", getattr(reader, before)
    io.save(path, {"a": ndl.ones(2), "b": ndl.ones(2)})

    def meanwhile(*args):
        io.save(path, {"a": ndl.zeros(2), "b": ndl.zeros(2)})
        return inner(*args)

    monkeypatch.setattr(reader, before, meanwhile)
    assert [x.tolist() for x in io.load(path).values()] == [[1, 1], [1, 1]]


def test_a_folder_that_cannot_be_flushed(tmp_path, monkeypatch):
    """The file stands there: some file systems do not flush folders."""
    flush = os.fsync

    def refuse(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    io.save(tmp_path / "x.safetensors", {"x": ndl.ones(2)})
    assert io.load(tmp_path / "x.safetensors")["x"].numpy().tolist() == [1.0, 1.0]


def test_what_names_no_file():
    for call in (lambda: io.save(None, {}), lambda: io.load(3), lambda: io.load_metadata(None)):
        with pytest.raises(ArgumentError, match="name"):
            call()

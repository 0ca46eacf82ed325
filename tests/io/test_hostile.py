"""Checkpoints that somebody else made, or that were damaged: clear errors, quickly."""

import json
import os
import struct

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle.errors import DataError
from needle.io import Checkpoints, manifest, nested, writer


def changed(folder, **values):
    """Change entries of a manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def listing(folder, name="model.safetensors", **values):
    """Change what a manifest says of a file."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    changed(folder, files={**files, name: {**files.get(name, files["state.json"]), **values}})


def state(folder, text):
    """Replace the JSON file, and what the manifest says of it."""
    path = folder / "state.json"
    path.unlink()
    written = writer.write_buffers(path, [memoryview(text.encode())])
    listing(folder, "state.json", size=written.size, sums=written.sums)


def tensors(folder, header, data=b"", length=None):
    """Replace the tensors' file, and what the manifest says of it."""
    path = folder / "model.safetensors"
    path.unlink()
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack("<Q", len(text) if length is None else length)
    written = writer.write_buffers(path, [memoryview(size + text + data)])
    listing(folder, size=written.size, sums=written.sums)


def entry(start, stop, shape, kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


def replaced(folder, name, make):
    (folder / name).unlink()
    make(folder / name)


def out(folder):
    """Let the manifest name a file outside of the folder, that exists and has the right sum."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    os.rename(folder / "model.safetensors", folder.parent / "outside.safetensors")
    files["../outside.safetensors"] = files.pop("model.safetensors")
    changed(folder, files=files)


A, B = entry(0, 8, [2]), entry(8, 16, [2])
HOSTILE = {
    # the manifest
    "a path in the manifest": (out, "'../outside.safetensors', which is no name"),
    "an absolute path": (lambda f: listing(f, "/etc/passwd"), "'/etc/passwd', which is no name"),
    "a size of 64 bits": (lambda f: listing(f, size=2**63), "wrong entry for model"),
    "a large size": (lambda f: listing(f, size=2**62, sums=[]), "wrong entry for model"),
    "a negative size": (lambda f: listing(f, size=-1), "wrong entry for model"),
    "another size": (lambda f: listing(f, size=9), "has 72 bytes, not 9"),
    "another sum": (lambda f: listing(f, sums=[1]), "has changed since it was saved"),
    "sums that are no list": (lambda f: listing(f, sums="1"), "wrong entry for model"),
    "a file that is not there": (lambda f: listing(f, "x.json"), "x.json: No such file"),
    "files that are a list": (lambda f: changed(f, files=[]), "no table of files"),
    "no JSON file": (lambda f: changed(f, files={}), "no state.json"),
    "a step that is a text": (lambda f: changed(f, step="1"), "step '1'"),
    "a figure that is a list": (lambda f: changed(f, figure=[1]), r"figure \[1\]"),
    "a format of the future": (lambda f: changed(f, format=2), "not one of format 1"),
    "a manifest that is no table": (lambda f: (f / "manifest.json").write_text("[]"), "format 1"),
    "a manifest without keys": (lambda f: (f / "manifest.json").write_text('{"format": 1}'), "no"),
    "a deep manifest": (lambda f: (f / "manifest.json").write_text("[" * 10**5), "many levels"),
    "a manifest that is empty": (lambda f: (f / "manifest.json").write_text(""), "Expecting"),
    "a manifest with a name twice": (
        lambda f: (f / "manifest.json").write_text('{"format": 1, "format": 1}'), "occurs twice"),
    "a manifest of a gigabyte": (lambda f: os.truncate(f / "manifest.json", 2**30), "more than"),
    # what is no file
    "a pipe as tensors": (lambda f: replaced(f, "model.safetensors", os.mkfifo), "not a regular"),
    "a pipe as manifest": (lambda f: replaced(f, "manifest.json", os.mkfifo), "not a regular"),
    "a link": (lambda f: replaced(f, "state.json", lambda x: x.symlink_to("/etc/hostname")),
               "not a regular"),
    "a link to itself": (lambda f: replaced(f, "state.json", lambda x: x.symlink_to(x)),
                         "not a regular"),
    "a folder": (lambda f: replaced(f, "state.json", os.mkdir), "not a regular"),
    # the JSON file
    "state: no JSON": (lambda f: state(f, "{"), "state.json: Expecting"),
    "state: a list": (lambda f: state(f, "[]"), "it is no table"),
    "state: deep": (lambda f: state(f, '{"a":' * 200 + "1" + "}" * 200), "more than 64 levels"),
    "state: very deep": (lambda f: state(f, "[" * 10**6), "many levels"),
    "state: a name twice": (lambda f: state(f, '{"a": 1, "a": 2}'), "occurs twice"),
    "state: no such tensor": (lambda f: state(f, '{"a": {"~tensor": "model/x"}}'), "no tensor"),
    "state: no such file": (lambda f: state(f, '{"a": {"~tensor": "x/../y"}}'), "no tensor"),
    "state: a ring of aliases": (
        lambda f: state(f, '{"a": {"~state": {}, "~aliases": {"a": "b", "b": "a"}}}'),
        "does not match a tensor"),
    # the tensors: as of the safetensors format
    "overlap": (lambda f: tensors(f, {"a": A, "b": entry(4, 12, [2])}, bytes(12)), "nvalid"),
    "hole": (lambda f: tensors(f, {"a": A, "b": entry(12, 20, [2])}, bytes(20)), "nvalid"),
    "trailing bytes": (lambda f: tensors(f, {"w": A}, bytes(9)), "ncomplete|nvalid"),
    "truncated": (lambda f: tensors(f, {"w": A}, bytes(7)), "ncomplete|nvalid"),
    "another shape": (lambda f: tensors(f, {"w": entry(0, 8, [3])}, bytes(8)), "nvalid"),
    "overflow": (lambda f: tensors(f, {"w": entry(0, 8, [2**40, 2**40])}, bytes(8)), "verflow"),
    "huge header": (lambda f: tensors(f, b"{}", length=2**62), "arge"),
    "bad UTF-8": (lambda f: tensors(f, b'{"\xff": 1}'), "utf|UTF"),
    "nested metadata": (lambda f: tensors(f, {"__metadata__": {"a": {}}}), "nvalid"),
    "unknown dtype": (lambda f: tensors(f, {"w": entry(0, 8, [2], "X9")}, bytes(8)), "X9"),
    "foreign dtype": (lambda f: tensors(f, {"w": entry(0, 8, [1], "U64")}, bytes(8)), "U64"),
    "duplicate keys": (
        lambda f: tensors(f, b'{"w":%s,"w":%s}' % ((json.dumps(A).encode(),) * 2), bytes(8)),
        "occurs twice"),
    "leading space": (
        lambda f: tensors(f, b" " + json.dumps({"w": A}).encode(), bytes(8)), "does not start"),
    "many names": (
        lambda f: tensors(f, b'{%s"w":%s}' % (b'"x":{},' * 10**5, json.dumps(A).encode()),
                          bytes(8)), "nvalid|missing"),
}  # fmt: skip


@looped("name", HOSTILE)
def test_what_somebody_else_made_is_refused(name, tmp_path):
    folder = tmp_path / name
    damage, said = HOSTILE[name]
    told = []
    saved = Checkpoints(folder, note=told.append)
    path = saved.save(1, {"model": {"w": np.zeros(2, np.float32)}})
    damage(path)
    (folder / "latest").unlink()  # which knows the manifest's digest
    w = ndl.ones(2)
    for load in (saved.load, lambda: saved.load_into({"model": {"w": w}})):
        with pytest.raises(DataError, match=f"no checkpoint can be loaded\n.*{path}.*({said})"):
            load()
    assert told == []
    saved.save(2, {"step": 2})  # goes on beside it
    assert saved.load() == {"step": 2}


def test_a_zero_length_tensor_may_claim_much(tmp_path):
    """It is legal, and takes no memory."""
    path = Checkpoints(tmp_path).save(1, {"model": {"w": np.zeros(0, np.float32)}})
    tensors(path, {"w": entry(0, 0, [2**20, 0, 2**20])})
    with pytest.raises(DataError):
        Checkpoints(tmp_path).load()  # its digest is another one
    assert Checkpoints(tmp_path).list()[0].step == 1


@looped("text", ["", "step-00000001", "../x 1", "\0", "step-00000001 " + "0" * 64])
def test_latest_says_something_else(text, tmp_path):
    told = []
    folder = tmp_path / str(len(text))
    saved = Checkpoints(folder, note=told.append)
    saved.save(1, {"step": 1})
    (folder / "latest").write_text(text)
    if text.endswith("00"):
        with pytest.raises(DataError, match="manifest.json is not the one that was saved"):
            saved.load()
    else:
        assert saved.load() == {"step": 1} and told == []


def test_latest_is_a_pipe(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(1, {"step": 1})
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    assert saved.load() == {"step": 1}


def test_names_that_would_fill_the_memory(tmp_path, monkeypatch):
    saved = Checkpoints(tmp_path)
    state = {"model": {str(i): np.ones(1, np.float32) for i in range(20)}}
    saved.save(1, state)
    monkeypatch.setattr(writer, "MOST_TENSORS", 19)
    with pytest.raises(DataError, match="it has 20 tensors, more than 19"):
        saved.load()
    with pytest.raises(DataError, match="save: 20 tensors, .*\n  rule: at most 19 tensors"):
        saved.save(2, state)


def test_texts_that_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(nested, "MOST", 1000)
    saved = Checkpoints(tmp_path)
    with pytest.raises(DataError, match="takes 10,01. bytes\n  rule: at most 1,000"):
        saved.save(1, {"a": [0] * 2000})
    assert list(tmp_path.iterdir()) == [] and manifest.STATE == "state.json"

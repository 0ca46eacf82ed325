"""Recording a run's fingerprints, and finding where two runs part."""

import json

import numpy as np
import pytest
from dataset_files import write_mnist

import needle as ndl
from needle import cli, nn, optim
from needle.errors import DataError, OptionError
from needle.tools import diff, replay
from needle.train import Progress, Trainer, recorder
from needle.train.recorder import RECORD, Recorder, fingerprint, read


def run(folder, steps=8, lr=0.1, resume=False, until=None):
    """Train a line with a recorder."""
    ndl.manual_seed(0)
    model = nn.Linear(2, 1)
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
    loader = [(ndl.Tensor(x), ndl.Tensor(x.sum(1, keepdims=True)))] * 4
    trainer = Trainer(
        model, optim.SGD(model.parameters(), lr=lr),
        lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(), loader,
        folder=folder, progress=Progress(quiet=True), callbacks=[Recorder(folder)], save_every=3,
    )  # fmt: skip
    trainer.fit(steps=until or steps, resume=resume)
    return folder


def test_a_record_has_every_loss_and_fingerprints(tmp_path):
    lines = read(run(tmp_path / "run") / RECORD)
    assert [line["step"] for line in lines][0] == 0 and lines[-1]["step"] == 8
    assert sum(len(line["losses"]) for line in lines) == 8
    assert lines[0]["parameters"].keys() == {"weight", "bias"} == lines[-1]["gradients"].keys()
    assert float.fromhex(lines[-1]["losses"][-1]) < float.fromhex(lines[1]["losses"][0])


def test_equal_runs_are_equal_and_others_part_where_they_do(tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    run(first), run(second)
    run(other, lr=0.05)
    for folder in (first, second, other):
        (folder / "config.json").write_text(json.dumps({"settings": {"lr": folder.name}}))
    found = diff.diff(str(first), str(second))
    assert found["step"] is None and "equal in all 8 steps" in diff.as_text(found)
    found = diff.diff(str(first), str(other))
    assert found["step"] == 1 and found["equal"] == 0
    assert set(found["what"]) == {"parameter 'weight'", "parameter 'bias'"}
    assert found["op"] is None and "could not be replayed" in found["note"]  # no recipe made them


def test_a_resumed_run_has_the_record_of_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "SHARE", 1e9)  # every step, however slow the disk is
    whole = read(run(tmp_path / "whole") / RECORD)
    run(tmp_path / "parts", until=5)
    parts = read(run(tmp_path / "parts", resume=True) / RECORD)
    assert parts == whole


def test_losses_that_a_killed_run_took_with_it_are_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "SHARE", 0.0)  # lines at steps 1, 2, 4, 8
    run(tmp_path / "whole")
    run(tmp_path / "parts", until=7)
    path = tmp_path / "parts" / RECORD
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))  # killed at step 7: those of 5 to 7 were in memory
    run(tmp_path / "parts", resume=True)
    for name in ("whole", "parts"):
        (tmp_path / name / "config.json").write_text("{}")
    assert diff.diff(str(tmp_path / "whole"), str(tmp_path / "parts"))["step"] is None


def test_recording_takes_a_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "SHARE", 0.0)
    lines = read(run(tmp_path / "run", steps=12) / RECORD)
    assert [line["step"] for line in lines] == [0, 1, 2, 4, 8, 12]
    assert [len(line["losses"]) for line in lines] == [0, 1, 1, 2, 4, 4]


def test_fingerprints():
    x = np.arange(100_000, dtype=np.float32)
    known = fingerprint(ndl.Tensor(x))
    assert known == fingerprint(ndl.Tensor(x)) == fingerprint(ndl.Tensor(x[::-1].copy())[::-1])
    for place in (0, -1):
        y = x.copy()
        y[place] += 1
        assert fingerprint(ndl.Tensor(y)) != known
    y = x.copy()
    y[5000] += 1  # between the pieces
    assert fingerprint(ndl.Tensor(y)) == known
    assert fingerprint(ndl.Tensor(y), whole=True) != fingerprint(ndl.Tensor(x), whole=True)


def test_damaged_records(tmp_path):
    with pytest.raises(OptionError, match="--record"):
        diff.diff(str(tmp_path), str(tmp_path))
    path = tmp_path / RECORD
    path.write_text('{"step": 0, "losses": []}\n{"step":')
    assert len(read(path)) == 1
    path.write_text('{"step": "x"}\n{"step": 1, "losses": []}\n')
    with pytest.raises(DataError, match="line 1"):
        read(path)


def test_distances():
    one = np.float32([1.0, -0.0, np.nan, 5.0])
    two = np.float32([np.nextafter(np.float32(1), 2), 0.0, np.nan, 5.0])
    assert diff.distance(one, two) == {
        "count": 1, "ulp": 1, "index": [0], "values": [1.0, float(two[0])]
    }  # fmt: skip
    ends = np.float16([1e-7]), np.float16([-1e-7])  # the second subnormal from zero, both ways
    assert diff.distance(*ends)["ulp"] == 4
    assert diff.distance(np.int64([1, 2]), np.int64([1, 3]))["ulp"] is None
    assert diff.distance(one, one)["count"] == 0


def test_the_replay_finds_the_op(tmp_path, capsys):
    data = tmp_path / "data"
    write_mnist(data, 200)
    write_mnist(data, 5, train=False)
    for name, seed in (("a", "0"), ("b", "1")):
        words = ["train", "mlp-mnist", "--steps", "3", "--record", "--quiet", "--seed", seed]
        assert cli.main([*words, "--data", str(data), "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] is None
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    said = capsys.readouterr().out
    assert "part at step 0" in said and "settings.seed: 0 and 1" in said
    assert "first: reshape" in said and "in step 1: float32[100, 784]" in said
    assert "units in the last place" in said and "recipes" in said


def test_a_replay_begins_at_the_last_checkpoint_that_both_runs_have(tmp_path):
    data = tmp_path / "data"
    write_mnist(data, 300)
    write_mnist(data, 5, train=False)
    words = ["train", "mlp-mnist", "--steps", "5", "--save-every", "2", "--quiet"]
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        out = ["--data", str(data), "--out", str(tmp_path / name), "--seed", seed]
        assert cli.main([*words, *out]) == 0
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert [diff.shared_checkpoint([a, b], n) for n in (1, 2, 3, 4)] == [0, 0, 3, 4]
    assert diff.shared_checkpoint([a, c], 4) == 0
    before, found = ndl.ops.random.get_state(), []
    for start in ("0", "3"):
        out = tmp_path / f"{start}.json"
        replay.main([a, start, "4", "5", str(out)])
        found.append(json.loads(out.read_text()))
    ndl.ops.random.set_state(before)
    assert found[0] == found[1] and {entry["step"] for entry in found[0]} == {5}
    for path in (tmp_path / "a" / "checkpoints").rglob("manifest.json"):
        path.write_text("{")
    assert diff.shared_checkpoint([a, b], 4) == 0

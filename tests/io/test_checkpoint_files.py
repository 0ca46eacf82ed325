"""Checkpoints: what is saved is loaded, which ones stay, and what is loaded if one is damaged."""

import threading

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, DataError, OptionError, SaveError
from needle.io import Checkpoints


def made(seed=0):
    ndl.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, optim.Adam(model.parameters(), lr=0.1)


def trained(model, opt, steps=3):
    x = ndl.Tensor(np.arange(6.0).reshape(2, 3))
    return [opt.minimize((model(x) ** 2).mean()).item() for _ in range(steps)]


def state(model, opt, **more):
    return {"model": model.state_dict(), "optimizer": opt.state_dict(), **more}


def shown(checkpoints):
    return [(saved.step, saved.figure) for saved in checkpoints.list()]


def small(step):
    return {"model": {"w": ndl.ones(2) * step}, "step": step}


def test_a_run_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    model, opt = made()
    trained(model, opt)
    saved = Checkpoints(tmp_path / "checkpoints")
    saved.save(3, state(model, opt, epoch=1, random=(7, 2**63)))
    expected = trained(model, opt)
    other, rest = made(1), {"epoch": 1, "random": (7, 2**63)}
    found = Checkpoints(tmp_path / "checkpoints").load()
    other[0].load_state_dict(found.pop("model"))
    other[1].load_state_dict(found.pop("optimizer"))
    assert found == rest and trained(*other) == expected
    again = made(2)
    targets = dict(zip(("model", "optimizer"), again, strict=True))
    assert saved.load_into(targets) == rest and trained(*again) == expected


def test_the_parts_are_files_that_load_alone(tmp_path):
    model, opt = made()
    trained(model, opt)
    path = Checkpoints(tmp_path).save(0, state(model, opt, loose=ndl.ones(2)))
    names = {"model.safetensors", "optimizer.safetensors", "tensors.safetensors"}
    assert {x.name for x in path.iterdir()} == {*names, "state.json", "manifest.json"}
    assert model.load_state_dict(ndl.load(path / "model.safetensors")) == ([], [])


def test_the_last_and_the_best_stay(tmp_path):
    saved = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    for step, figure in enumerate([3.0, 1.0, 2.0, None, float("nan"), 5.0]):
        saved.save(step, small(step), figure)
    assert shown(saved) == [(1, 1.0), (4, None), (5, 5.0)] and saved.best().step == 1
    assert Checkpoints(tmp_path, mode="max").best().step == 5
    assert saved.load(step=1)["step"] == 1 and saved.load()["step"] == 5
    names = {"latest", "step-00000001", "step-00000004", "step-00000005"}
    assert {x.name for x in tmp_path.iterdir()} == names


def test_a_step_that_is_saved_again_is_the_newer_one(tmp_path):
    saved = Checkpoints(tmp_path)
    for value in (1, 2):
        saved.save(7, {"value": value})
    assert saved.load()["value"] == saved.load(step=7)["value"] == 2
    saved.save(5, {"value": 3})  # a run that went back to an earlier step
    assert saved.load()["value"] == 3 and [x.step for x in saved.list()] == [7, 7, 5]


def test_asynchronous_saves(tmp_path):
    model, opt = made()
    trained(model, opt)
    saved = Checkpoints(tmp_path)
    for step in range(3):
        moments = opt.state_dict(copy=False)  # which the next step changes
        saved.save_async(step, {"model": model.state_dict(), "optimizer": moments})
        saved.finish()
        expected = trained(model, opt)
    saved.wait()
    assert len(saved.list()) == 3
    other = made(1)
    saved.load_into(dict(zip(("model", "optimizer"), other, strict=True)))
    assert trained(*other) == expected


def test_a_snapshot_is_of_one_instant(tmp_path, monkeypatch):
    """Values that change while the thread copies are not the saved ones."""
    model, opt = made()
    trained(model, opt)
    saved, let = Checkpoints(tmp_path), threading.Event()
    copyto = np.copyto
    before = {name: x.numpy().copy() for name, x in model.state_dict().items()}
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", lambda a, b: (let.wait(60), copyto(a, b)))
        saved.save_async(1, {"model": model.state_dict(), "optimizer": opt.state_dict()})
        trained(model, opt)  # without finish: no memory of the state is written to
        with ndl.no_grad():
            model[0].bias.add_(1.0)
        let.set()
        saved.wait()
    found = saved.load()
    assert found["optimizer"]["step"] == 3
    for name, x in found["model"].items():
        np.testing.assert_array_equal(x.numpy(), before[name])


def test_the_copy_is_waited_for_and_errors_come_up(tmp_path, monkeypatch):
    saved, let = Checkpoints(tmp_path / "x"), threading.Event()
    copyto = np.copyto
    monkeypatch.setattr(np, "copyto", lambda a, b: (let.wait(60), copyto(a, b)))
    x = np.ones(4)
    saved.save_async(1, {"x": x})
    threading.Timer(0.01, let.set).start()
    saved.finish()
    x[:] = 2
    saved.wait()
    assert saved.load()["x"].tolist() == [1, 1, 1, 1] and saved.waited > 0
    (tmp_path / "file").touch()
    broken = Checkpoints(tmp_path / "file")
    for ask in (broken.wait, lambda: broken.save_async(2, {"x": x}), lambda: broken.save(2, {})):
        broken.save_async(1, {"x": x})
        broken._snapshot.join(60)
        with pytest.raises(SaveError, match="step 1 was not saved"):
            ask()
    broken.save_async(1, {"x": x})
    broken._snapshot.join(60)
    with pytest.raises(SaveError):
        broken.finish()
    broken.finish()


def damage(path):
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


def test_what_is_damaged_is_passed_over_and_told(tmp_path):
    told = []
    saved = Checkpoints(tmp_path, note=told.append)
    with pytest.raises(DataError, match="no checkpoint can be loaded"):
        saved.load()
    for step in range(4):
        saved.save(step, small(step))
    (tmp_path / "step-00000003" / "model.safetensors").unlink()
    assert saved.load()["step"] == 2
    assert "step-00000003: model.safetensors: No such file" in told[0]
    assert told[0].endswith("; loaded step-00000002 instead")
    damage(tmp_path / "step-00000002" / "model.safetensors")
    (tmp_path / "latest").write_text("../elsewhere 0")
    assert saved.load()["step"] == 1 and "model.safetensors" in told[-1]
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="no checkpoint can be loaded\n(.*\n)*.*step-00000001"):
        saved.load()
    with pytest.raises(DataError, match="no checkpoint of step 9"):
        saved.load(step=9)


def test_arguments():
    for wrong in ({"keep_last": 0}, {"keep_best": -1}, {"mode": "best"}):
        with pytest.raises(OptionError, match="Checkpoints: "):
            Checkpoints("x", **wrong)
    saved = Checkpoints("x")
    wrong = [(-1, {}, None), ("1", {}, None), (True, {}, None), (1, [], None), (1, {}, "low")]
    for save in (saved.save, saved.save_async):
        for step, state, figure in wrong:
            with pytest.raises(ArgumentError, match="Checkpoints: expected a"):
                save(step, state, figure)

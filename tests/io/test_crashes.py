"""A save that is stopped at any call, that fails at any call, or whose machine loses its pages."""

import shutil

import faults
import numpy as np
import pytest

from needle.errors import DataError, SaveError
from needle.io import Checkpoints, checkpoint, writer


def state(step):
    return {
        "model": {"w": np.full(300, step, np.float32), "b": np.full(3, step, np.float32)},
        "optimizer": {"m": np.full(300, -step, np.float32), "step": step},
        "step": step,
    }


def save(folder, steps, plant=None):
    """What a child does: save some steps, with a fault that somebody might have left."""
    if plant == "no fsync":
        writer.os = _Without(writer.os)
    if plant == "no fsync of folders":
        checkpoint._flush_folder = lambda path: None
    saved = Checkpoints(folder, keep_last=1, keep_best=0)
    for step in steps:
        saved.save(step, state(step))
    return "saved"


class _Without:
    """The module os, where a flush does nothing."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return (lambda handle: None) if name == "fsync" else getattr(self.inner, name)


def job(folder, steps, plant=None):
    return ["test_crashes", "save", [str(folder), steps, plant]]


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    found = faults.Trials(tmp_path_factory.mktemp("trials"), "test_crashes")
    yield found
    found.close()


@pytest.fixture
def before(tmp_path):
    """A run's folder with one checkpoint."""
    folder = tmp_path / "run"
    save(folder, [1])
    return folder


def loaded(folder):
    """Return the step that is loaded from a folder, None if there is none; check its values."""
    try:
        found = Checkpoints(folder, note=lambda text: None).load()
    except DataError:
        return None
    step = found["step"]
    assert found["optimizer"]["step"] == step and set(found["model"]["w"].tolist()) == {step}
    assert set(found["optimizer"]["m"].tolist()) == {-step}
    return step


def traced(trials, folder, steps, plant=None, root=None):
    """Save undisturbed; return a copy of the folder before, and the calls."""
    root = root or folder.parent
    copy = root.parent / f"{root.name}-before"
    shutil.copytree(root, copy)
    assert trials.run(job(folder, steps, plant)) == (0, "saved")
    return copy, faults.trace(trials.log, root)


def crashes(trials, folder, plant=None, root=None):
    """Return what is loaded after each crash of a save of step 2: (is the save done, step)."""
    root = root or folder.parent
    copy, calls = traced(trials, folder, [2], plant, root)
    place = copy.parent / "disk"
    done = len(calls)
    disks = faults.disks(copy, root, calls, place)
    found = [(made == done, loaded(place / folder.relative_to(root))) for made in disks]
    assert len(found) > 30
    return found


def test_any_crash_leaves_the_old_or_the_new_checkpoint(trials, before):
    found = crashes(trials, before)
    assert set(found) == {(False, 1), (False, 2), (True, 2)}


def test_a_crash_of_the_first_save_leaves_nothing_or_all_of_it(trials, tmp_path):
    root = tmp_path / "x"
    root.mkdir()
    found = crashes(trials, root / "runs" / "run" / "checkpoints", root=root)
    assert set(found) == {(False, None), (False, 2), (True, 2)}


@pytest.mark.parametrize("plant", ["no fsync", "no fsync of folders"])
def test_a_fault_that_was_planted_is_found(trials, before, plant):
    found = crashes(trials, before, plant)
    assert set(found) - {(False, 1), (False, 2), (True, 2)}


def test_a_kill_at_any_call(trials, before):
    copy, calls = traced(trials, before, [2])
    kills = [(call, n + 1) for call in faults.CALLS for n in range(_count(trials.log, call))]
    assert len(kills) > 20
    steps = set()
    for kill in kills:
        shutil.rmtree(before.parent)
        shutil.copytree(copy, before.parent)
        code, _ = trials.run(job(before, [2]), kill=kill)
        assert code == -9, f"{kill} did not kill"
        steps.add(loaded(before))
        save(before, [3])  # which clears what the killed one left
        assert loaded(before) == 3
        assert {x.name for x in before.iterdir()} == {"latest", "step-00000003"}
    assert steps == {1, 2}


def _count(log, call):
    return sum(f" {call}(" in line for line in log.read_text().splitlines())


def test_an_error_at_any_call(trials, before):
    copy, _ = traced(trials, before, [2])
    errors = {"mkdir": "EROFS", "writev": "ENOSPC", "fsync": "EIO", "rename": "ENOSPC"}
    for call, error in errors.items():
        for n in range(1, _count(trials.log, call) + 1):
            shutil.rmtree(before.parent)
            shutil.copytree(copy, before.parent)
            told = trials.run(job(before, [2]), error=(call, n, error))
            if call == "rename" and n == 3:  # of an old one, which can wait
                assert told[0] == 0
                continue
            assert told[0] == 1 and "\n" not in told[1], (call, n, told)
            assert told[1].startswith("SaveError: the checkpoint of step 2 was not saved: ")
            assert loaded(before) in (1, 2) and not [*before.glob(".step*")]
            save(before, [3])
            assert loaded(before) == 3


def test_a_folder_that_was_removed_or_cannot_be_written(tmp_path):
    folder = tmp_path / "run"
    saved = Checkpoints(folder)
    saved.save(1, state(1))
    shutil.rmtree(folder)
    saved.save(2, state(2))
    assert loaded(folder) == 2
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(SaveError, match="step 3 was not saved: .*run: (Not a dir|File exists)"):
        saved.save(3, state(3))
    folder.unlink()
    saved.save_async(4, state(4))
    saved.wait()
    assert loaded(folder) == 4

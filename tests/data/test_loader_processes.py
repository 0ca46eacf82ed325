"""Worker processes: the same bits, and every fault ends in an error that says what happened."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from loader_sets import AUGMENT, Faulty, Items, Stream, arrays, assert_same
from looped import looped

from needle import data
from needle.data import pickling, processes, slots
from needle.errors import DataError, WorkerError

LIMIT = 60  # seconds for what takes a fraction of one, on a machine that is busy

processes.PRELOAD.append("pytest")  # the main module, which each worker would import


def loader_of(dataset, batch_size=8, **more):
    more = {"num_workers": 2, "workers": "process", "timeout": LIMIT, **more}
    return data.DataLoader(dataset, batch_size, **more)


def state_of(pid):
    """Return the letter of the state of a process; "-" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"


def faulty(fault, **more):
    return loader_of(Faulty(fault), **more)


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    gc.collect()
    deadline = time.monotonic() + LIMIT
    while left := [p for p in processes.multiprocessing.active_children() if "loader" in p.name]:
        for process in left:
            process.kill()
        assert time.monotonic() < deadline, left


# ---- the same bits -----------------------------------------------------------------


def test_processes_give_the_bits_of_the_caller_and_go_on_anywhere():
    for make in (
        lambda **more: data.DataLoader(arrays(), 16, True, transform=AUGMENT, seed=5, **more),
        lambda **more: data.DataLoader(Items(60), 16, True, seed=5, **more),
        lambda **more: data.DataLoader(data.ShuffleBuffer(Stream(), 9), 7, seed=5, **more),
    ):
        expected = list(make())
        loader = make(num_workers=2, workers="process", timeout=LIMIT)
        found, states = [], []
        for batch in loader:
            found.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert_same(found, expected)
        loader.load_state_dict(states[2])  # the same workers go on
        assert_same(list(loader), expected[3:])
        again = make()
        again.load_state_dict(states[2])
        assert_same(list(again), expected[3:])
        loader.close()


def test_workers_stay_for_the_next_pass_and_a_pass_may_be_left():
    loader = loader_of(arrays(), transform=AUGMENT)
    for _ in loader:
        break
    pids = [worker.process.pid for worker in loader._team.engines[0].team]
    old = iter(loader)
    next(old)
    found = list(loader)
    assert len(found) == 38
    with pytest.raises(DataError, match="another one"):
        next(old)
    assert [worker.process.pid for worker in loader._team.engines[0].team] == pids
    assert loader._team.engines[0].ring.size > 8 * 90 * 4  # batches came in slots
    twin = pickle.loads(pickle.dumps(copy.copy(loader)))
    assert twin._team.engines == []
    loader.close()


# ---- workers that fail ---------------------------------------------------------------


@looped(
    "fault, message",
    [
        ("fail", r"worker 0 raised ValueError: this item is bad\n  while it made the items \[16, "),
        ("leave", r"worker 0 ended with exit code 7\n  while it made the items \[16, 17"),
        ("kill", r"worker 0 was killed by SIGKILL: was the system short of memory"),
    ],
)
def test_a_worker_that_fails(fault, message):
    found = iter(faulty(fault))
    assert [next(found).numpy()[0, 0] for _ in range(2)] == [0, 8]
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=message) as info:
        list(found)
    assert time.monotonic() - begin < LIMIT / 2  # not by the timeout
    assert info.value.worker == 0 and "[16, 17" in info.value.items
    if fault == "fail":
        assert "loader_sets.py" in str(info.value) and "in fail" in info.value.trace
        assert isinstance(info.value.__cause__, ValueError)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@looped("fault, message", [("stop", r"is stopped \(SIGSTOP\)"), ("sleep", "a longer timeout")])
def test_a_worker_that_gives_nothing(fault, message):
    loader = loader_of(Faulty(fault, at=8), num_workers=1)
    found = iter(loader)
    next(found)
    pid = loader._team.engines[0].team[0].process.pid
    while fault == "stop" and state_of(pid) != "T":
        time.sleep(0.01)
    found.timeout = 0.2
    with pytest.raises(WorkerError, match=rf"no batch within 0.2 s(.*\n)+.*{message}"):
        next(found)
    assert state_of(pid) in "Z-"


def test_a_worker_that_dies_between_batches():
    loader = faulty(None)
    found = iter(loader)
    next(found)
    worker = loader._team.engines[0].team[1].process
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(LIMIT)
    with pytest.raises(WorkerError, match="worker 1 was killed by SIGKILL"):
        list(found)
    assert len(list(loader)) == 8  # by new workers
    loader.close()


class Unreadable:
    """Raises when it is unpickled."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index

    def __reduce__(self):
        return int, ("no number",)


def test_a_data_set_that_cannot_be_read_in_the_worker():
    with pytest.raises(WorkerError, match="raised ValueError: invalid literal"):
        list(loader_of(Unreadable(), num_workers=1))


# ---- what cannot be sent -------------------------------------------------------------


class Holder:
    def __init__(self, value):
        self.transforms = [len, value]

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


@looped(
    "dataset, message",
    [
        (Holder(lambda x: x), r"dataset.transforms\[1\] cannot be pickled: .*<lambda>"),
        (Holder({"a": threading.Lock()}), r"dataset.transforms\[1\]\['a'\] .*_thread.lock"),
        (Holder(Holder(sys.__stderr__.buffer)), r"dataset.transforms\[1\].transforms\[1\] .*'_io"),
        (Holder(x for x in ()), r"transforms\[1\] cannot be pickled: .*generator"),
        (Holder(queue.SimpleQueue()), r"transforms\[1\] .*SimpleQueue"),
    ],
)
def test_what_cannot_be_pickled_is_named_at_once(dataset, message):
    with pytest.raises(DataError, match=message):
        loader_of(dataset)
    with pytest.raises(DataError, match="collate_fn cannot be pickled"):
        loader_of(arrays(), collate_fn=lambda items: items)
    ring = []
    ring.append(ring)
    assert pickling.culprit("x", [ring, print, lambda: 0])[0] == "x[2]"


# ---- slots ---------------------------------------------------------------------------


def test_a_batch_that_is_larger_than_a_slot():
    with pytest.warns(UserWarning, match=r"of 6,400 bytes is larger than a slot of 4,096 bytes"):
        found = list(loader_of(Faulty("grow", at=16)))
    assert [len(batch) for batch in found] == [8] * 8 and found[-1].shape == (8, 200)


def test_slots_grow_with_the_next_pass():
    loader = loader_of(Faulty("grow", at=16), num_workers=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        passes = [list(loader) for _ in range(3)]
    assert len(seen) == 1 and loader._team.engines[0].ring.size >= 6400
    assert_same(passes[1], passes[0])
    assert_same(passes[2], passes[0])
    loader.close()


def test_too_little_shared_memory(monkeypatch):
    free = iter([10**9])  # for the copy of the data set
    monkeypatch.setattr(slots, "free_memory", lambda: next(free, 10_000))
    loader = loader_of(arrays(), 64)
    with pytest.warns(UserWarning, match=r"need [\d,]+ bytes of shared memory.*10,000 bytes"):
        found = list(loader)
    assert loader._team.engines[0].ring.size == 0
    assert_same(found, list(data.DataLoader(arrays(), 64)))
    loader.close()


def test_arrays_of_a_batch_in_memory():
    values = (
        {"x": np.arange(6.0).reshape(2, 3)[:, ::2], "name": ("a", "b")}, [np.zeros((0, 3), "u1")],
        np.array(7, ">i2"), np.array([None, "x"]), 5,
    )  # fmt: skip
    flat, fields, size = slots.flatten(values)
    assert len(fields) == 3 and size == 128
    ring = slots.Ring(2)
    ring.grow(size)
    for field, array in fields:
        ring.array(field, 1, ring.size)[...] = array
    found = slots.unflatten(flat, lambda field: ring.array(field, 1, ring.size))
    np.testing.assert_array_equal(found[0]["x"], [[0, 2], [3, 5]])
    assert found[0]["name"] == ("a", "b") and found[1][0].shape == (0, 3) and found[2] == 7
    assert found[3][1] == "x" and found[4] == 5
    del found
    ring.close()


def test_a_batch_goes_when_it_was_written():
    """Not at the next collection of garbage: workers would hold dozens of them."""
    array = np.zeros(10)
    seen = weakref.ref(array)
    gc.disable()
    try:
        flat = slots.flatten({"x": (array, "text")})
        del array, flat
        assert seen() is None
    finally:
        gc.enable()


def test_worker_processes_map_the_files_that_the_program_maps(tmp_path, monkeypatch):
    values = np.arange(60_000, dtype=np.float32).reshape(600, 100)
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for array, shared in (
        (mapped, 0), (mapped[7:], 0), (np.asarray(mapped)[5:][3:9], 0), (values, 1),
        (mapped[:, 3:], 1), (mapped[:0], 0),
    ):  # fmt: skip
        fd, parts = slots.share(data.NDArrayDataset(array))
        assert (parts[-1][0] + parts[-1][1] > 100_000) == bool(shared)
        dataset = slots.receive(fd, parts)
        np.testing.assert_array_equal(dataset.arrays[0], array)
        if dataset.arrays[0].flags.writeable:
            dataset.arrays[0][:] = 0  # its own copy of what it changes
        else:
            assert not array.flags.writeable
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), values)
    monkeypatch.setattr(slots, "free_memory", lambda: 300_000)
    with pytest.raises(DataError, match=r"needs 240,\d+ bytes; 300,000 are free(.*\n)+.*mmap_mode"):
        slots.share(values)


def test_messages_come_in_any_pieces():
    read, write = os.pipe()
    inbox, outbox = slots.Inbox(read), slots.Outbox(write)
    messages = [b"", b"x" * 300_000, b"y"]  # more than a pipe holds: the rest waits
    for message in messages:
        outbox.send(message)
    assert outbox.bytes
    found = []
    while len(found) < 3:
        found += inbox.read()
        outbox.flush()
    assert found == messages and not outbox.bytes and inbox.read() == []
    os.close(write)
    assert inbox.read() == [] and inbox.ended
    os.close(read)
    outbox.fd = os.open(os.devnull, os.O_RDONLY)  # nobody reads: it is dropped, not kept
    outbox.send(b"z")
    assert not outbox.bytes
    os.close(outbox.fd)


# ---- signals, and growth ---------------------------------------------------------------


def gone(pids):
    """Wait until processes have ended."""
    deadline = time.monotonic() + LIMIT
    while any(state_of(pid) not in "Z-" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@looped("how", ["interrupted", "killed"])
def test_no_worker_outlives_the_program(how):
    folder = Path(__file__).parent
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()
    program = subprocess.Popen(
        [sys.executable, str(folder / "interrupted_loader.py"), how],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may ignore it
        env={**os.environ, "PYTHONWARNINGS": "ignore"},  # of the native module that is not there
    )  # fmt: skip
    timer = threading.Timer(LIMIT, os.killpg, (program.pid, signal.SIGKILL))
    timer.start()
    try:
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        if how == "interrupted":
            os.killpg(program.pid, signal.SIGINT)  # as Ctrl-C on a terminal
            assert program.stdout.readline() == "interrupted\n"
            assert gone(pids)
            pids = [int(pid) for pid in program.stdout.readline().split()]
            assert len(pids) == 2
            program.terminate()
        else:
            program.kill()
        _, errors = program.communicate(timeout=LIMIT)
        assert gone(pids) and errors == ""
        if before:
            assert not {x for x in set(os.listdir("/dev/shm")) - before if "needle" in x}
    finally:
        timer.cancel()
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def growth():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096, len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@looped("kind", ["process", "thread"])
def test_many_passes_keep_no_memory(kind):
    loader = loader_of(arrays(40), transform=AUGMENT, workers=kind)
    for epoch in range(100):
        for _ in loader:
            if epoch % 7 == 3:
                break
        if epoch == 10:
            first = growth()
    last = growth()
    assert last[1:] == first[1:] and last[0] - first[0] < 8 << 20
    loader.close()
    for _ in range(2):
        fresh = loader_of(arrays(40), workers=kind, num_workers=1, persistent_workers=False)
        list(fresh)
    assert growth()[1] <= last[1] and not fresh._team.engines

"""The lock of a run's folder: one holder, told who it is, gone with the process."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from needle.errors import LockedError
from needle.io import FolderLock, lock

HOLDS = """
import sys, time
from needle.io import FolderLock
held = FolderLock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def by_file(monkeypatch):
    """A file system without locks."""

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture(params=["by the system", "by file"])
def kind(request):
    if request.param == "by file":
        request.getfixturevalue("by_file")
    return request.param


def test_one_at_a_time(kind, tmp_path):
    with FolderLock(tmp_path) as held:
        assert held.by_file == (kind == "by file")
        with pytest.raises(LockedError) as raised:
            FolderLock(tmp_path)
        told = str(raised.value)
        assert f"process {os.getpid()} on {socket.gethostname()} since 20" in told
        assert told.startswith(f"{tmp_path} is in use by") and "try: another folder" in told
    assert list(tmp_path.iterdir()) == []
    FolderLock(tmp_path).release()


def test_a_killed_holder_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout.readline() == "held\n"
            with pytest.raises(LockedError, match=f"process {child.pid} "):
                FolderLock(tmp_path)
            assert lock.user(tmp_path)["pid"] == child.pid
        finally:
            child.kill()
            child.wait(60)
    assert (tmp_path / "lock").exists() and lock.user(tmp_path) == {}
    FolderLock(tmp_path).release()


def test_a_lock_that_is_released_twice_or_whose_folder_is_gone(kind, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    held = FolderLock(folder)
    (folder / (lock.BY_FILE if held.by_file else lock.NAME)).unlink()
    folder.rmdir()
    held.release()
    folder.mkdir()
    other = FolderLock(folder)
    held.release()
    with pytest.raises(LockedError):
        FolderLock(folder)
    other.release()


def test_a_lock_file_that_says_nothing(tmp_path):
    with FolderLock(tmp_path):
        for text in (b"", b"[]", b'{"pid": "x"}', bytes(2000)):
            (tmp_path / "lock").write_bytes(text)
            with pytest.raises(LockedError, match="is in use\n"):
                FolderLock(tmp_path)


def left(folder, host, pid, age):
    path = folder / lock.BY_FILE
    path.write_text(json.dumps({"pid": pid, "host": host, "since": "then"}))
    os.utime(path, (time.time() - age,) * 2)


def test_locks_by_file_that_were_left_behind(by_file, tmp_path):
    here, ended = socket.gethostname(), subprocess.Popen(["true"])
    ended.wait(60)
    left(tmp_path, here, os.getpid(), 1000)  # alive, though it was stopped for long
    with pytest.raises(LockedError):
        FolderLock(tmp_path)
    left(tmp_path, "elsewhere", 1, 10)
    with pytest.raises(LockedError, match="on elsewhere"):
        FolderLock(tmp_path)
    left(tmp_path, "elsewhere", 1, 1000)
    FolderLock(tmp_path).release()
    left(tmp_path, here, ended.pid, 0)
    with FolderLock(tmp_path) as held:
        assert held.by_file and lock.holder(tmp_path / lock.BY_FILE)["pid"] == os.getpid()


def test_a_lock_by_file_is_renewed(by_file, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED", 0.001)
    with FolderLock(tmp_path):
        path = tmp_path / lock.BY_FILE
        os.utime(path, (1, 1))
        limit = time.monotonic() + 60
        while path.stat().st_mtime == 1 and time.monotonic() < limit:
            os.sched_yield()
        assert path.stat().st_mtime > 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        FolderLock(tmp_path / "no")

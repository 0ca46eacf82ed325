"""Faults of a machine while files are written: calls that kill or fail, and disks that lose pages.

A process that has imported everything forks a child for each trial; ``strace`` takes hold of the
child, which then does its work.

1. ``Trials.run(job, kill=("fsync", 3))`` ends the child before its third fsync;
   ``error=("writev", 2, "ENOSPC")`` makes the second writev fail.
2. ``trace`` gives the calls of one undisturbed run, ``disks`` what a disk may hold after each of
   them if the machine stops there: names and data that were not flushed may be kept or lost.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CALLS = ("mkdir", "writev", "fsync", "rename", "unlinkat", "rmdir")
"""The calls that change a disk; ``openat`` only where it creates a file."""
LIMIT = 60.0
"""Seconds until a trial that hangs is killed."""


class Trials:
    """Runs jobs, each in a child of its own under strace; see the module.

    A job is (module, function, arguments): ``function`` is called in the child.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self.log = folder / "strace.txt"
        self.server = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self.server.kill()
        self.server.wait(LIMIT)
        for stream in (self.server.stdin, self.server.stdout):
            stream.close()

    def _told(self) -> Any:
        line = self.server.stdout.readline()
        assert line, "the process that forks the trials has ended"
        return json.loads(line)

    def _tell(self, value: Any) -> None:
        self.server.stdin.write(json.dumps(value) + "\n")
        self.server.stdin.flush()

    def run(self, job: Any, kill: Any = None, error: Any = None) -> tuple[int, str]:
        """Return the exit code of a job (-9: it was killed), and what its function returned."""
        self._tell(job)
        child = self._told()
        calls = ",".join((*CALLS, "openat"))
        command = ["strace", "-f", "-y", "-s", "0", "-o", str(self.log), "-e", f"trace={calls}"]
        if kill is not None:
            command += ["-e", f"inject={kill[0]}:signal=KILL:when={kill[1]}"]
        if error is not None:
            command += ["-e", f"inject={error[0]}:error={error[2]}:when={error[1]}"]
        with subprocess.Popen(
            [*command, "-p", str(child)], stderr=subprocess.PIPE, text=True
        ) as strace:
            timer = threading.Timer(LIMIT, os.kill, (child, signal.SIGKILL))
            timer.start()
            try:
                said = strace.stderr.readline()  # "Process 123 attached", or why not
                attached = "attached" in said
                self._tell("go" if attached else "end")
                code, text = self._told()
                strace.wait(LIMIT)
            finally:
                timer.cancel()
                strace.kill()
        if not attached:
            pytest.skip(f"no process can be traced here: {said.strip()}")
        return code, text


def serve(modules: list[str]) -> None:
    """Fork a child for each job on standard input."""
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        begin, tell_begin = os.pipe()
        result, tell_result = os.pipe()
        child = os.fork()
        if child == 0:
            _child(job, begin, tell_result)
        os.close(tell_result)
        os.close(begin)
        _say(child)
        os.write(tell_begin, b"y" if json.loads(sys.stdin.readline()) == "go" else b"n")
        with os.fdopen(result, "rb") as told:
            text = told.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(tell_begin)
        _say([code, text])


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _child(job: Any, begin: int, result: int) -> None:
    module, function, arguments = job
    anyone = ctypes.c_ulong(-1)
    ctypes.CDLL(None).prctl(0x59616D61, anyone, 0, 0, 0)  # PR_SET_PTRACER: strace is a stranger
    code = 1
    try:
        if os.read(begin, 1) == b"y":
            text = getattr(importlib.import_module(module), function)(*arguments)
            os.write(result, str(text).encode())
            code = 0
    except BaseException as error:
        os.write(result, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(code)


# ---- crash states ------------------------------------------------------------------

_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (\d+)")


def trace(log: Path, root: Path) -> list[tuple[Any, ...]]:
    """Return the calls of a run that changed what is below a folder: (name, path, ...)."""

    def below(path: str) -> str | None:
        inside = os.path.relpath(os.path.abspath(path), root)
        return None if inside.startswith("..") else inside

    found: list[tuple[Any, ...]] = []
    for line in log.read_text().splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        call, text, value = match.groups()
        folders, names = re.findall(r"\d*<([^>]*)>", text), re.findall(r'"([^"]*)"', text)
        if call in ("openat", "unlinkat"):
            names = [os.path.join(folders[0], names[0])]
        paths = [below(path) for path in (names or folders[:1])]
        if None in paths or (call == "openat" and "O_CREAT" not in text):
            continue
        if call == "unlinkat" and "AT_REMOVEDIR" in text:
            call = "rmdir"
        found.append((call, *paths, *([int(value)] if call == "writev" else [])))
    return found


class Inode:
    """A file or folder: what it holds, and what of it is on the disk for certain."""

    def __init__(self, folder: bool, content: bytes = b"") -> None:
        self.folder, self.content = folder, content
        self.names: dict[str, Inode] = {}
        self.size = self.durable = len(content)


class Disk:
    """What a process sees, what is certain, and the changes of names between the two."""

    def __init__(self, root: Path) -> None:
        self.root = Inode(True)
        self.certain: dict[int, dict[str, Inode]] = {}
        self.pending: list[list[tuple[Inode, str, Inode | None]]] = []
        self._found(self.root, root)

    def _found(self, inode: Inode, path: Path) -> None:
        for entry in path.iterdir():
            content = b"" if entry.is_dir() else entry.read_bytes()
            child = inode.names[entry.name] = Inode(entry.is_dir(), content)
            if entry.is_dir():
                self._found(child, entry)
        self.certain[id(inode)] = dict(inode.names)

    def find(self, path: str) -> Inode:
        """Return what a path leads to."""
        inode = self.root
        for name in Path(path).parts:
            inode = inode.names[name]
        return inode

    def apply(self, call: tuple[Any, ...]) -> None:
        """Do what a call did."""
        name, path, *more = call
        parent, base = self.find(os.path.dirname(path)), os.path.basename(path)
        if name in ("openat", "mkdir"):
            self._change([(parent, base, Inode(name == "mkdir"))])
        elif name == "writev":
            self.find(path).size += more[0]
        elif name == "fsync":
            self._flush(self.find(path))
        elif name == "rename":
            other = self.find(os.path.dirname(more[0]))
            moved = parent.names[base]
            self._change([(other, os.path.basename(more[0]), moved), (parent, base, None)])
        else:
            self._change([(parent, base, None)])

    def _change(self, changes: list[tuple[Inode, str, Inode | None]]) -> None:
        for folder, name, inode in changes:
            _set(folder.names, name, inode)
        self.pending.append(changes)

    def _flush(self, inode: Inode) -> None:
        inode.durable = inode.size
        if inode.folder:
            touched = [each for each in self.pending if any(x[0] is inode for x in each)]
            self.pending = [each for each in self.pending if each not in touched]
            for each in touched:
                _do(each, self.certain)

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield what may be there after a crash, by path: None is a folder; a file is its inode,
        its size, and how many of its bytes are not lost."""
        n = len(self.pending)
        subsets = {tuple(range(n)), (), *((i,) for i in range(n))}
        subsets |= {tuple(j for j in range(n) if j != i) for i in range(n)}
        for subset in subsets:
            names = {key: dict(found) for key, found in self.certain.items()}
            for i in sorted(subset):
                _do(self.pending[i], names)
            for data in ("kept", "lost", "zeros"):
                yield dict(_tree(self.root, names, data, ""))


def _do(changes: Any, certain: dict[int, dict[str, Inode]]) -> None:
    for folder, name, inode in changes:
        _set(certain.setdefault(id(folder), {}), name, inode)


def _set(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _tree(inode: Inode, names: Any, data: str, place: str) -> Iterator[tuple[str, Any]]:
    for name, child in names.get(id(inode), {}).items():
        path = f"{place}{name}"
        if child.folder:
            yield path, None
            yield from _tree(child, names, data, f"{path}/")
        else:
            size = child.durable if data == "lost" else child.size
            yield path, (child, size, child.durable if data == "zeros" else size)


def disks(before: Path, after: Path, calls: list[Any], place: Path) -> Iterator[int]:
    """Lay out, one after the other, each disk that calls may leave; yield how many were made.

    Args:
        before: a copy of the folder before the calls.
        after: the folder after them, whose files have the bytes.
        calls: what ``trace`` returned.
        place: where each disk is laid out.
    """
    disk = Disk(before)
    found = [(0, state) for state in disk.states()]
    for made, call in enumerate(calls, 1):
        disk.apply(call)
        found += [(made, state) for state in disk.states()]
    _fill(disk.root, after)
    seen = set()
    for made, state in found:
        key = (made == len(calls), str(sorted(state.items())))
        if key not in seen:
            seen.add(key)
            _lay_out(state, place)
            yield made


def _fill(inode: Inode, path: Path) -> None:
    """Give the files that were written the bytes that they have in the end."""
    for name, child in inode.names.items():
        if child.folder:
            _fill(child, path / name)
        else:
            child.content = (path / name).read_bytes()
            assert child.size == len(child.content), f"{path / name}: a call was not seen"


def _lay_out(state: dict[str, Any], place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path, file in state.items():
        if file is None:
            (place / path).mkdir(parents=True, exist_ok=True)
        else:
            inode, size, certain = file
            content = inode.content[:certain] + bytes(size - certain)
            (place / path).write_bytes(content)


if __name__ == "__main__":
    serve(sys.argv[1:])

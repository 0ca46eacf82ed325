"""A folder that one process at a time may write to.

The lock is the system's (``flock``) on a file in the folder: it ends with the process, however that
ends. Where the file system has no such locks, the lock is a file whose time the holder renews.
Readers take no lock.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from needle.errors import LockedError

NAME, BY_FILE = "lock", "lock.json"
RENEWED, STALE = 10.0, 60.0
"""Seconds after which a lock by file is renewed, and after which it counts as left behind."""
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


class FolderLock:
    """The right to write to a folder, until ``release`` or the end of the process.

    Args:
        folder: an existing folder.

    Attributes:
        by_file: whether the file system has no locks, so that a file stands for one.

    Raises:
        LockedError: if another process, or another object of this one, has the lock: with its
            process number, its host, and since when.
        OSError: if the folder cannot be written.

    >>> import tempfile
    >>> from needle.io.lock import FolderLock
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with FolderLock(folder):
    ...         try:
    ...             FolderLock(folder)
    ...         except ndl.errors.LockedError:
    ...             print("in use")
    in use
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.by_file = False
        self._ended = threading.Event()
        self._handle: int | None = None
        try:
            self._handle = self._flocked(self.folder / NAME)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.by_file = True
            self._created(self.folder / BY_FILE)
            threading.Thread(target=self._renew, daemon=True).start()

    def _flocked(self, path: Path) -> int:
        import fcntl

        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(handle, path):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, _me(), 0)
                    return handle
            except BlockingIOError:
                os.close(handle)
                raise self._locked(path) from None
            except OSError:
                os.close(handle)
                with suppress(OSError):
                    path.unlink()
                raise
            os.close(handle)  # its last holder removed it meanwhile

    def _created(self, path: Path) -> None:
        while True:
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                if not _left_behind(path):
                    raise self._locked(path) from None
                _bury(path)
                continue
            try:
                os.write(handle, _me())
            finally:
                os.close(handle)
            return

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED):
            with suppress(OSError):
                os.utime(self.folder / BY_FILE)

    def _locked(self, path: Path) -> LockedError:
        who = holder(path)
        told = ""
        if who:
            told = f" by process {who['pid']} on {who['host']} since {who['since']}"
        return LockedError(
            f"{self.folder} is in use{told}\n"
            "  rule: one run at a time writes to a folder\n"
            "  try: another folder, or wait until that run has ended"
        )

    def release(self) -> None:
        """Give the folder free. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        with suppress(OSError):  # the folder may be gone
            (self.folder / (BY_FILE if self.by_file else NAME)).unlink()
        if self._handle is not None:
            os.close(self._handle)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> dict[str, Any]:
    """Return pid, host and since of a lock file; empty if it does not say."""
    try:
        found = json.loads(path.read_bytes()[:1000])
        return {"pid": int(found["pid"]), "host": f"{found['host']:.80}",
                "since": f"{found['since']:.40}"}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def user(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return pid, host and since of the process that has a folder's lock; empty if none has.

    It asks the lock's file, and takes no lock: that would be in the way of a run that begins.
    """
    for name in (NAME, BY_FILE):
        path = Path(folder) / name
        who = holder(path)
        if who and not _left_behind(path):
            return who
    return {}


def _me() -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode()


def _same(handle: int, path: Path) -> bool:
    """Return whether a path leads to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _bury(path: Path) -> None:
    """Remove a lock that was left behind, and not one that was made since it was looked at."""
    grave = path.with_name(f".{path.name}.{os.getpid()}.dead")
    with suppress(FileNotFoundError):
        os.rename(path, grave)
        if not _left_behind(grave):
            with suppress(OSError):
                os.link(grave, path)
        grave.unlink()


def _left_behind(path: Path) -> bool:
    """Return whether the holder of a lock by file is gone."""
    who = holder(path)
    try:
        old = time.time() - path.stat().st_mtime > STALE
    except FileNotFoundError:
        return True
    if who.get("host") != socket.gethostname():
        return old
    try:
        os.kill(who["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False

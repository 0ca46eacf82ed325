"""What changed, and whose turn it is: checks that cost much run by turns where nothing changed.

Of four commits in a row each takes another turn, and together they run everything. What differs
from the base runs whole at once; so does everything with ``ALL_CHECKS=1``. ``CHECKS_SLICE`` and
``CHECKS_SINCE`` set turn and base by hand.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import subprocess
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TURNS = 4


def git(*args: str) -> str:
    """Return what git prints; nothing where there is no git, no repository or no such commit."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def everything() -> bool:
    return bool(os.environ.get("ALL_CHECKS"))


@functools.cache
def turn() -> int:
    """Return the turn of this commit; 0 where there is no history."""
    return int(os.environ.get("CHECKS_SLICE") or git("rev-list", "--count", "HEAD") or 0) % TURNS


def is_due(name: str, place: int = 0) -> bool:
    """Return whether it is the turn of a name; of several places each has another turn.

    The place is added to the hash, not hashed: names that differ in one digit may all have hashes
    that are equal modulo 4.
    """
    return (zlib.crc32(name.encode()) + place) % TURNS == turn()


@functools.cache
def base() -> str:
    """Return the commit that this work began at; of a landed commit the one before it."""
    if given := os.environ.get("CHECKS_SINCE"):
        return given
    head = git("rev-parse", "HEAD")
    for main in ("origin/HEAD", "origin/main", "main"):
        fork = git("merge-base", main, "HEAD")
        if fork:
            return fork if fork != head else git("rev-parse", "HEAD~1")
    return git("rev-parse", "HEAD~1")


@functools.cache
def changed_files() -> frozenset[str]:
    """Return what differs from the base: in commits, edited, or new."""
    if not base():
        return frozenset()
    edited = git("diff", "--name-only", base()).splitlines()
    return frozenset([*edited, *git("ls-files", "-o", "--exclude-standard").splitlines()])


def has_changed(*patterns: str) -> bool:
    """Return whether a file differs whose path is one of these, or matches."""
    return any(fnmatch.fnmatch(file, x) for file in changed_files() for x in patterns)


def header() -> str:
    """Return the line of pytest's header that says what runs."""
    if everything():
        return "checks: all of them (ALL_CHECKS)"
    since = f"{len(changed_files())} files differ from {base()[:9]}" if base() else "no history"
    return f"checks: turn {turn()} of 0 to {TURNS - 1} (CHECKS_SLICE), {since} (CHECKS_SINCE)"

"""Downloads from several mirrors, checked by size and SHA-256, into a file renamed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from needle import config
from needle.errors import DataError

__all__ = ["Source", "cache_folder", "fetch"]

TIMEOUT = 30.0
"""Seconds to wait for a mirror."""


@dataclass(frozen=True)
class Source:
    """A file on the mirrors, with its expected size and hash."""

    name: str
    size: int
    sha256: str


def cache_folder(name: str) -> Path:
    """Return the folder for a data set below ``NEEDLE_CACHE`` (``~/.cache/needle``)."""
    return Path(config.current().cache or Path.home() / ".cache" / "needle") / name


def given_folder(folder: str | Path | None) -> Path | None:
    """Return the folder to search first: ``folder``, else ``NEEDLE_DATA``, else None.

    Raises:
        DataError: if ``NEEDLE_DATA`` is not a folder.
    """
    if folder is not None:
        return Path(folder)
    named = config.current().data
    if named and not Path(named).is_dir():
        raise DataError(
            f"NEEDLE_DATA={named}: no such folder\n"
            "  try: a folder with the data sets, or unset NEEDLE_DATA to download them"
        )
    return Path(named) if named else None


def part_of(path: Path) -> Path:
    """Return the path of a temporary file next to a file, unique to this process and thread."""
    return path.with_name(f"{path.name}.part-{os.urandom(4).hex()}")


def open_url(url: str) -> Any:
    """Return the response of a URL. Only this function uses the network."""
    from urllib.request import urlopen

    return urlopen(url, timeout=TIMEOUT)


def fetch(
    dataset: str,
    source: Source,
    mirrors: Sequence[str],
    folder: Path,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Return the path of a file in a folder; download it if it is missing.

    Raises:
        DataError: if no mirror has the right file (with the problem of each one), the folder cannot
            be written, or an existing file is not the right one.
    """
    path = folder / source.name
    if path.exists():
        wrong = _difference(path, source)
        if wrong:
            raise DataError(f"{path}: {wrong}\n  try: delete the file to download it again")
        return path
    part = part_of(path)
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for mirror in mirrors:
            if report:
                report(f"downloading {mirror}{source.name} ({source.size / 1e6:.1f} MB)")
            failure = _download(mirror + source.name, part, source)
            if failure is None:
                os.replace(part, path)
                return path
            failures.append(f"  {mirror}{source.name}: {failure}")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error})") from None
    finally:
        if part.exists():
            part.unlink()
    raise DataError(
        f"{dataset}: {source.name} could not be downloaded\n" + "\n".join(failures) + "\n"
        "  try: copy the files from one of these mirrors into a folder, and pass it with "
        "--data FOLDER or NEEDLE_DATA"
    )


def _download(url: str, part: Path, source: Source) -> str | None:
    """Download a URL to a temporary file; return why it is not the right file, or None."""
    from http.client import HTTPException

    try:
        with open_url(url) as response:
            content = response.read(source.size + 1)  # no need to read a wrong file to its end
    except (
        OSError,
        HTTPException,
        ValueError,
    ) as error:  # ValueError: an invalid URL
        return str(getattr(error, "reason", None) or error or type(error).__name__).strip()
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return _difference(part, source)


def _difference(path: Path, source: Source) -> str | None:
    """Return how a file differs from its expected size and hash, or None."""
    import hashlib

    size = path.stat().st_size
    if size > source.size:
        return f"expected {source.size} bytes, got more"
    if size < source.size:
        return f"expected {source.size} bytes, got {size}"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != source.sha256:
        return f"expected SHA-256 {source.sha256}, got {found}"
    return None

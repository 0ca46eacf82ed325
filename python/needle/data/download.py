"""Downloads: several mirrors, size and SHA-256 checked, a part file that is renamed at the end."""

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
"""Seconds that a mirror may be silent."""


@dataclass(frozen=True)
class Source:
    """A file that mirrors offer, and what it must be."""

    name: str
    size: int
    sha256: str


def cache_folder(name: str) -> Path:
    """Return the folder for a data set below ``NEEDLE_CACHE`` (``~/.cache/needle``)."""
    return Path(config.current().cache or Path.home() / ".cache" / "needle") / name


def given_folder(folder: str | Path | None) -> Path | None:
    """Return where to look for data first: ``folder``, else what ``NEEDLE_DATA`` names, else None.

    Raises:
        DataError: if ``NEEDLE_DATA`` names what is no folder.
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
    """Return where to write what shall become a file; threads and processes have their own."""
    return path.with_name(f"{path.name}.part-{os.urandom(4).hex()}")


def open_url(url: str) -> Any:
    """Return the response of a web address; the one place that touches the network."""
    from urllib.request import urlopen

    return urlopen(url, timeout=TIMEOUT)


def fetch(
    dataset: str,
    source: Source,
    mirrors: Sequence[str],
    folder: Path,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Return the path of a file in a folder, after downloading it if it is not there.

    Raises:
        DataError: if no mirror has the right file (with what each one answered), the folder
            cannot be written, or a file that is there is not the right one.
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
    """Write an address to a part file; return why it is not the right file, or None."""
    from http.client import HTTPException

    try:
        with open_url(url) as response:
            content = response.read(source.size + 1)  # a wrong file need not be read to its end
    except (OSError, HTTPException, ValueError) as error:  # ValueError: it leads to no address
        return str(getattr(error, "reason", None) or error or type(error).__name__).strip()
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return _difference(part, source)


def _difference(path: Path, source: Source) -> str | None:
    """Return how a file differs from what it must be, in numbers, or None."""
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

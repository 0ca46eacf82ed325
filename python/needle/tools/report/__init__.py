"""Reports of runs: one HTML page that opens anywhere, and the same facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from needle import io
from needle.tools.report import compare as comparing
from needle.tools.report import facts
from needle.tools.report.compare import text as as_text
from needle.tools.report.page import page

__all__ = ["as_json", "as_text", "compare", "write"]


def write(run: str | Path, out: str | Path | None = None) -> Path:
    """Write ``report.html`` and ``report.json`` into the folder of a run.

    The page needs no network and no script, has light and dark colours, and is smaller than 1 MB.

    Args:
        run: folder of the run.
        out: path of the page instead; the JSON file is written beside it.

    Returns:
        The path of the page.

    Raises:
        OptionError: if the folder holds no run.
        DataError: if a file of it is damaged.
    """
    found = facts.read(run)
    path = Path(run) / "report.html" if out is None else Path(out)
    _replace(path.with_suffix(".json"), _plain(found) + "\n")
    _replace(path, page(found))
    return path


def as_json(run: str | Path) -> str:
    """Return the facts of a run as JSON.

    Raises:
        OptionError: if the folder holds no run.
        DataError: if a file of it is damaged.
    """
    return _plain(facts.read(run))


def _plain(found: dict[str, Any]) -> str:
    """Return facts as JSON, with the pictures' names alone; NaN and infinities become texts."""
    names = [p["name"] for p in found["pictures"]]
    return json.dumps(facts.finite({**found, "pictures": names}), indent=1, allow_nan=False)


def compare(runs: Sequence[str | Path], out: str | Path | None = None) -> dict[str, Any]:
    """Return what several runs differ in, and write a page with their curves to ``out``.

    Raises:
        OptionError: if there are fewer than two runs, or a folder holds none.
        DataError: if a file of a run is damaged.
    """
    found = facts.finite(comparing.compare(runs))
    if out is not None:
        _replace(Path(out), comparing.page(found))
    return found


def _replace(path: Path, text: str) -> None:
    with io.replacing(path) as part:
        Path(part).write_text(text, encoding="utf-8")

"""What a report says, as plain values: read from the files of a run's folder."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from needle.errors import DataError, OptionError
from needle.tools.report.svg import Line
from needle.train.folder import DAMAGE, Folder, content

PICTURES = 600_000
"""Bytes of the pictures in a report; later ones are left out."""
TEXTS = 20_000
"""Characters of a sample of text."""
OTHER = ("split", "step", "epoch", "seconds", "final")
"""Names in a line of metrics that are no figures."""

SECTIONS: dict[str, Callable[[str], bool]] = {
    "Learning rate": lambda name: name == "lr",
    "Norms and update ratios": lambda name: "norm" in name or "ratio" in name,
    "Throughput": lambda name: name.endswith("_per_second"),
    "Memory": lambda name: name.startswith("memory"),
    "Loader": lambda name: name.startswith(("loader", "wait")),
}
"""The charts of a report after its curves, and which figures each takes, by their name."""


def read(path: str | Path) -> dict[str, Any]:
    """Return the facts of a run: its configuration, its figures and its pictures.

    Raises:
        OptionError: if the folder holds no run.
        DataError: if a file of it is damaged.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise OptionError(f"report: {folder} does not contain a run: no config.json")
    config, lines = _json(folder / "config.json"), Folder(folder).metrics()
    if not isinstance(config, dict):
        raise DataError(f"{folder / 'config.json'}: expected an object, got {config!r:.60}")
    figures = series(lines)
    return {
        "name": folder.resolve().name,
        "recipe": str(config.get("recipe", "")),
        "verdict": verdict(config, lines),
        "summary": summary(config, lines),
        "command": command(config),
        "settings": _object(config, "settings"),
        "environment": _object(config, "environment"),
        "data": _object(config, "data"),
        "model": [str(line) for line in config.get("model", [])],
        "parameters": config.get("parameters"),
        "optimizer": str(config.get("optimizer", "")),
        "series": figures,
        "confusion": _confusion(folder),
        "texts": _texts(folder),
        "pictures": pictures(folder),
    }


def _json(path: Path) -> Any:
    try:
        return json.loads(content(path))
    except DAMAGE as error:
        raise DataError(f"{path}: is not valid ({error!r:.80})") from None


def _object(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def series(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the figures of a run: by name, by split, the points [step, value] in order."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for line in lines:
        for name, value in line.items():
            if name in OTHER or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            points = found.setdefault(name, {}).setdefault(line["split"], [])
            points.append([line["step"], float(value)])
    return found


def sections(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the figures that belong to each section; curves come first."""
    found: dict[str, list[str]] = {"Curves": []}
    found |= {title: [] for title in SECTIONS}
    for name in figures:
        title = next((t for t, takes in SECTIONS.items() if takes(name)), "Curves")
        found[title].append(name)
    return {title: names for title, names in found.items() if names}


def lines_of(figures: dict[str, Any], name: str, prefix: str = "") -> list[Line]:
    """Return the curves of a figure, one for each split."""
    return [
        Line(f"{prefix}{split}", [p[0] for p in points], [p[1] for p in points])
        for split, points in figures[name].items()
    ]


def verdict(config: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """Return one sentence about how the run ended."""
    total = _object(config, "settings").get("steps")
    done = max((line["step"] for line in lines), default=0)
    losses = [line["loss"] for line in lines if isinstance(line.get("loss"), (int, float))]
    if losses and not math.isfinite(losses[-1]):
        return f"The loss is {losses[-1]} at step {done}: the run diverged."
    if any(line.get("final") for line in lines):
        return f"The run is complete: {done:,} steps."
    if not lines:
        return "The run has no figures yet."
    return f"The run is not complete: {done:,} of {total:,} steps." if total else f"{done:,} steps."


def summary(config: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the last evaluation, and what the run took."""
    held_out = [line for line in lines if line["split"] != "train"]
    found = {k: v for k, v in (held_out[-1] if held_out else {}).items() if k not in OTHER}
    if lines:
        found["steps"] = max(line["step"] for line in lines)
        found["seconds"] = max((line.get("seconds") or 0 for line in lines), default=0)
    if config.get("parameters") is not None:
        found["parameters"] = config["parameters"]
    return found


def command(config: dict[str, Any]) -> str:
    """Return the command that makes the run again."""
    chosen = _object(config, "chosen")
    words = ["needle", "train", str(config.get("recipe", ""))]
    for name, value in chosen.items():
        if value in (None, "", {}, [], ()) or (name == "seed" and value == 0):
            continue
        option = "--set" if name == "own" else "--" + name.replace("_", "-")
        if isinstance(value, dict):
            words += [w for k, v in value.items() for w in (option, f"{k}={v}")]
        elif value is not False:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def _confusion(folder: Path) -> dict[str, Any] | None:
    path = folder / "confusion.json"
    return _json(path) if path.is_file() else None


def _texts(folder: Path) -> dict[str, str]:
    """Return the text files of samples that the run left."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        if path.name != "log.txt":
            found[path.name] = path.read_text(encoding="utf-8", errors="replace")[:TEXTS]
    return found


def pictures(folder: Path) -> list[dict[str, str]]:
    """Return the pictures of the folder as data URLs: of several epochs the last one."""
    left, found = PICTURES, []
    paths = [*sorted(folder.glob("*.png"))]
    if (folder / "confusion.json").is_file():  # it is drawn as a table
        paths = [p for p in paths if p.name != "confusion.png"]
    epochs = [p for p in paths if p.name.startswith("epoch-")]
    for path in [p for p in paths if p not in epochs[:-1]]:
        content = path.read_bytes()
        if len(content) <= left:
            left -= len(content)
            data = base64.b64encode(content).decode()
            found.append({"name": path.name, "data": f"data:image/png;base64,{data}"})
    return found


def finite(values: Any) -> Any:
    """Return nested values with the texts "nan", "inf" and "-inf" for what JSON does not have."""
    if isinstance(values, dict):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite(value) for value in values]
    return str(values) if isinstance(values, float) and not math.isfinite(values) else values

"""``needle list FOLDER``: the runs in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from needle.errors import DataError, OptionError
from needle.io import lock
from needle.tools.run import RunFolder
from needle.train.folder import DAMAGE, WEIGHTS, content


def runs(folder: str) -> list[dict[str, Any]]:
    """Return what is known of each run in a folder: recipe, steps, the last figures, its state.

    Raises:
        OptionError: if there is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise OptionError(f"list: {folder!r} is not a folder")
    return [_described(config.parent) for config in sorted(path.glob("*/config.json"))]


def _described(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"run": str(path)}
    try:
        config = json.loads(content(path / "config.json"))
        found |= {"recipe": str(config["recipe"]), "steps": int(config["settings"]["steps"])}
        lines = RunFolder(path).metrics()
    except (DataError, *DAMAGE) as error:
        return {**found, "state": f"damaged: {error!s:.80}"}
    known = ("split", "step", "epoch", "seconds", "final")
    judged = [line for line in lines if line["split"] == "held-out"]
    figures = {k: v for k, v in judged[-1].items() if k not in known} if judged else {}
    done = lines[-1]["step"] if lines else 0
    complete = bool(judged and judged[-1].get("final") and (path / WEIGHTS).exists())
    state = "complete" if complete else "not complete"
    if user := lock.user(path):
        state = f"in use by process {user['pid']} on {user['host']}"
    return {**found, "done": done, "figures": figures, "state": state}


def as_text(found: list[dict[str, Any]]) -> str:
    """Return the runs as a table."""
    if not found:
        return "no runs"
    lines = []
    for run in found:
        steps = f"{run['done']}/{run['steps']}" if "done" in run else "?"
        figure = "".join(f"  {k} {v:.4g}" for k, v in list(run.get("figures", {}).items())[:1])
        recipe = run.get("recipe", "?")
        lines.append(f"{run['run']:40} {recipe:16} {steps:>12}  {run['state']}{figure}")
    return "\n".join(lines)

"""The folder of a recipe's run: settings, metrics, weights and pictures."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from needle import config, core, io
from needle.devices import default_device
from needle.errors import DataError, OptionError
from needle.recipes.settings import Settings
from needle.train.folder import DAMAGE, WEIGHTS, Folder, content


class RunFolder(Folder):
    """The folder of one run of a recipe."""

    @staticmethod
    def create(recipe: str, out: str | None = None) -> RunFolder:
        """Make the folder, by default ``runs/<recipe>-<time>``, and check that it is writable.

        Raises:
            OptionError: if it cannot be written, or already contains a run.
        """
        if out == "":
            raise OptionError("--out: the folder name is empty")
        path = Path(out) if out else _unused(Path("runs") / f"{recipe}-{_now()}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OptionError(f"--out: {path} cannot be written ({error.strerror})") from None
        folder = RunFolder(path)
        folder.check_unused()
        return folder

    @staticmethod
    def open(path: str) -> RunFolder:
        """Return the folder of an earlier run.

        Raises:
            OptionError: if it does not contain a run.
        """
        folder = RunFolder(Path(path))
        if not (folder.path / "config.json").is_file():
            raise OptionError(f"{path!r} does not contain a run: no config.json")
        return folder

    def check_unused(self) -> None:
        """Raise OptionError if the folder already contains a run."""
        if (self.path / "config.json").exists():
            raise OptionError(f"--out: {self.path} already contains a run; choose another folder")

    def language_model(self) -> tuple[Any, Any]:
        """Return the run's language model, with its weights, and its tokenizer.

        Raises:
            OptionError: if the run has none.
            DataError: if a file is damaged.
        """
        from needle.data import load_tokenizer
        from needle.recipes.language import TOKENIZER, build

        for name in ("config.json", WEIGHTS, TOKENIZER):
            if not (self.path / name).is_file():
                raise OptionError(f"{self.path} holds no language model: no {name}")
        path = self.path / "config.json"
        try:
            model = build(json.loads(content(path))["architecture"])
        except DAMAGE as error:
            raise DataError(f"{path}: is not that of a language model ({error!r:.80})") from None
        model.load_state_dict(io.load(self.path / WEIGHTS))
        return model, load_tokenizer(self.path / TOKENIZER)

    def config(self) -> dict[str, Any]:
        """Return the content of config.json: the recipe, the user's settings, backend and device.

        Raises:
            DataError: if it is damaged.
        """
        path = self.path / "config.json"
        try:
            values = json.loads(content(path))
            return {
                "recipe": str(values["recipe"]),
                "chosen": asdict(Settings(**values["chosen"])),
                "where": {k: str(values["environment"][k]) for k in ("backend", "device")},
            }
        except OptionError as error:
            raise DataError(f"{path}: not a valid run file\n  {error}") from None
        except DAMAGE as error:
            raise DataError(f"{path}: not a valid run file ({error!r})") from None

    def _repr_html_(self) -> str | None:
        from needle.tools.report import card, facts

        if not (self.path / "config.json").is_file():
            return None  # notebooks show the plain text
        return card.card(facts.read(self.path))

    def discard_if_empty(self) -> None:
        """Remove the folder if nothing was saved in it."""
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def save_config(self, values: dict[str, Any]) -> None:
        """Write config.json."""
        text = json.dumps(values, indent=2) + "\n"
        with io.replacing(self.path / "config.json") as part:
            Path(part).write_text(text, encoding="utf-8")


def _now() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _unused(path: Path) -> Path:
    found, n = path, 1
    while found.exists():
        n += 1
        found = path.with_name(f"{path.name}-{n}")
    return found


def environment() -> dict[str, Any]:
    """Return the versions and other facts that a run depends on, besides its settings."""
    import needle

    settings = config.current()
    native = core.native
    return {
        "needle": needle.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "command": sys.argv,
        "device": default_device().name,
        "backend": settings.backend,
        "mode": settings.mode,
        "threads": config.thread_count(),
        "isa": native.isa() if native is not None else None,
        "native": core.native_error or "in use",
    }

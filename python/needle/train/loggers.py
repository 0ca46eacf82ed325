"""Where metrics go besides ``metrics.jsonl``: TensorBoard, Weights & Biases, Trackio, or your own.

A logger has two methods. Each adapter imports its package when it is made, so none is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from needle.errors import OptionError


@dataclass(frozen=True)
class Picture:
    """A picture to log.

    Attributes:
        image: bytes [h, w, 3] or [h, w].
        caption: a line below it.
    """

    image: np.ndarray[Any, Any]
    caption: str = ""


@dataclass(frozen=True)
class Text:
    """A text to log."""

    text: str


Values = Mapping[str, float | Picture | Text]


class Logger(Protocol):
    """Something that takes the values that a trainer records."""

    def log(self, step: int, values: Values) -> None:
        """Take values by name, such as ``train/loss``, of a step."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Write event files for TensorBoard, by the package tensorboardX or PyTorch's writer.

    Args:
        folder: folder of the event files.
    """

    def __init__(self, folder: str) -> None:
        module = _first("TensorBoard", "tensorboardX", "torch.utils.tensorboard")
        self.writer = module.SummaryWriter(str(folder))

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if isinstance(value, Picture):
                order = "HWC" if value.image.ndim == 3 else "HW"
                self.writer.add_image(name, value.image, step, dataformats=order)
            elif isinstance(value, Text):
                self.writer.add_text(name, value.text, step)
            else:
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Run:
    """Base of the loggers that have ``init``, ``log`` and ``finish``, as wandb has them."""

    package = ""

    def __init__(self, project: str, **settings: Any) -> None:
        self.module = _first(type(self).__name__, self.package)
        self.module.init(project=project, **settings)

    def log(self, step: int, values: Values) -> None:
        self.module.log({name: self._value(x) for name, x in values.items()}, step=step)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Picture):
            return self.module.Image(value.image, caption=value.caption or None)
        return value.text if isinstance(value, Text) else value

    def close(self) -> None:
        self.module.finish()


class WeightsAndBiases(_Run):
    """Log to Weights & Biases, by the package wandb.

    Args:
        project: name of the project.
        settings: of ``wandb.init``.
    """

    package = "wandb"


class Trackio(_Run):
    """Log to Trackio, by the package trackio.

    Args:
        project: name of the project.
        settings: of ``trackio.init``.
    """

    package = "trackio"


class Loggers:
    """Several loggers; one that fails is switched off, with a line that says so.

    Args:
        loggers: the loggers.
        note: prints a line.
    """

    def __init__(self, loggers: Iterable[Logger], note: Callable[[str], None]) -> None:
        self.loggers, self.note = list(loggers), note

    def log(self, step: int, values: Values) -> None:
        """Give values to all loggers."""
        for logger in list(self.loggers):
            self._try(logger, lambda x: x.log(step, values))

    def close(self) -> None:
        """Close all loggers."""
        for logger in list(self.loggers):
            self._try(logger, lambda x: x.close())

    def _try(self, logger: Logger, call: Callable[[Logger], None]) -> None:
        try:
            call(logger)
        except Exception as error:  # whatever it is, the training is worth more
            self.loggers.remove(logger)
            name, problem = type(logger).__name__, type(error).__name__
            self.note(f"the logger {name} is switched off: {problem}: {error!s:.200}")


def _first(owner: str, *names: str) -> Any:
    """Return the first module that is installed."""
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    package = names[0].partition(".")[0]
    raise OptionError(f"{owner}: needs the package {package}\n  try: pip install {package}")

"""What a user may choose of a recipe: ``Settings``, which all have, and each recipe's own.

A recipe's own settings are the numbers and names of its class; ``--set NAME=VALUE`` changes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from needle.errors import OptionError, unknown

MOST = 2**31 - 1
"""Limit of the batch size, and of the steps or epochs of a run."""


@dataclass(frozen=True)
class Settings:
    """Settings that the user may choose; None means the recipe's own value.

    Attributes:
        data: folder of the data; for recipes that learn one text, its file.
        epochs: number of passes over the training data.
        steps: number of updates, instead of ``epochs``.
        batch_size: number of items per update.
        lr: highest learning rate.
        seed: seed of the initial weights, the order of the data and dropout.
        preset: name of one of the recipe's sets of values.
        own: values of the recipe's own settings, by name (see ``recipes.choices``).

    Raises:
        OptionError: for a value of the wrong type, or out of range.
    """

    data: str | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    seed: int = 0
    preset: str | None = None
    own: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rule in (("data", "a path"), ("preset", "a name")):
            text = getattr(self, name)
            _check(name, text, text is None or isinstance(text, str), rule)
        for name in ("epochs", "steps", "batch_size", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            most = math.inf if name == "seed" else MOST
            right = type(value) is int and least <= value <= most
            limit = f" and at most {most}" if most < math.inf else ""
            _check(
                name, value, right or (value is None and least == 1),
                f"an integer, at least {least}{limit}",
            )  # fmt: skip
        rate = self.lr if isinstance(self.lr, (int, float)) else math.nan
        _check("lr", self.lr, self.lr is None or 0 < rate < math.inf, "a positive number")


def _check(name: str, value: object, right: bool, rule: str) -> None:
    if not right:
        option = "--" + name.replace("_", "-")
        raise OptionError(f"{option}: got {value!r:.60}\n  rule: {rule}")


_FIXED = {
    "batch_size", "compiled", "curve", "curve_unit", "epochs", "item", "lr", "mode", "name",
    "num_workers", "passes", "presets", "seconds", "settings", "steps", "summary", "workers",
}  # fmt: skip
"""Attributes of a recipe that say what it is, or that have options of their own."""


def choices(recipe: type) -> dict[str, Any]:
    """Return the settings that a recipe has, with their values.

    >>> from needle import recipes
    >>> recipes.choices(recipes.get("mlp-mnist"))
    {'clip': None, 'hidden': 256}
    """
    found: dict[str, Any] = {}
    for cls in reversed(recipe.__mro__):
        for name, value in vars(cls).items():
            plain = value is None or isinstance(value, (bool, int, float, str))
            if plain and name not in _FIXED and not name.startswith("_"):
                found[name] = value
    return dict(sorted(found.items()))


def read(recipe: type, texts: Iterable[str]) -> dict[str, Any]:
    """Return the values in texts ``NAME=VALUE``, each of the type that the setting has.

    Raises:
        OptionError: for another text, an unknown name, or a value of another type.

    >>> from needle import recipes
    >>> recipes.read_choices(recipes.get("mlp-mnist"), ["hidden=512"])
    {'hidden': 512}
    """
    known, found = choices(recipe), {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--set: expected NAME=VALUE, got {text!r}")
        if name not in known:
            raise unknown(f"{recipe.name}: setting", name, known)  # type: ignore[attr-defined]
        found[name] = _value(name, value, known[name])
    return found


def _value(name: str, text: str, usual: object) -> Any:
    """Return a text as a value of the type of another one; of None: a number."""
    if isinstance(usual, str):
        return text
    if isinstance(usual, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise OptionError(f"--set: {name}={text}\n  rule: true or false, as {name}={usual}")
    kind = int if isinstance(usual, int) else float
    try:
        return kind(text)
    except ValueError:
        rule = "an integer" if kind is int else "a number"
        raise OptionError(f"--set: {name}={text}\n  rule: {rule}, as {name}={usual}") from None


def apply(recipe: Any, values: Mapping[str, Any]) -> None:
    """Give a recipe its settings.

    Raises:
        OptionError: for an unknown name, or a value of another type, as in an old run's folder.
    """
    known = choices(type(recipe))
    for name, value in values.items():
        if name not in known:
            raise unknown(f"{recipe.name}: setting", name, known)
        usual = known[name]
        if usual is not None and not isinstance(value, type(usual)):
            raise OptionError(f"{name}: got {value!r:.60}\n  rule: {type(usual).__name__}")
        setattr(recipe, name, value)

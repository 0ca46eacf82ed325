"""Recipes for ``needle train NAME``: model, data, optimizer, schedule and target, by name."""

from __future__ import annotations

from importlib import import_module

from needle.errors import unknown
from needle.recipes.recipe import Recipe
from needle.recipes.settings import Settings, choices
from needle.recipes.settings import read as read_choices

__all__ = [
    "DEFAULT", "Recipe", "Settings", "choices", "get", "names", "read_choices",
]  # fmt: skip

DEFAULT = "byte-lstm"
_MODULES = {
    "byte-lstm": "byte_lstm",
    "byte-mlp": "byte_mlp",
    "cyclegan": "cyclegan",
    "gpt": "gpt",
    "mlp-mnist": "mlp_mnist",
    "ptb-lstm": "ptb",
    "ptb-rnn": "ptb",
    "ptb-transformer": "ptb",
    "resnet9-cifar10": "resnet9_cifar10",
}


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(_MODULES)


def get(name: str) -> type[Recipe]:
    """Return a recipe by name.

    Raises:
        OptionError: for an unknown name, with the nearest known one.
    """
    if name not in _MODULES:
        raise unknown("recipe", name, _MODULES)
    module = import_module(f"needle.recipes.{_MODULES[name]}")
    found: type[Recipe] = getattr(module, "RECIPES", {}).get(name) or module.RECIPE
    return found

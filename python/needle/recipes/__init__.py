"""Recipes for ``needle train NAME``: model, data, optimizer, schedule and target, by name."""

from __future__ import annotations

from importlib import import_module

from needle.errors import unknown
from needle.recipes.recipe import Recipe, Settings

__all__ = ["DEFAULT", "Recipe", "Settings", "get", "names"]

DEFAULT = "byte-mlp"
_MODULES = {
    "byte-mlp": "byte_mlp",
    "cyclegan": "cyclegan",
    "mlp-mnist": "mlp_mnist",
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
    found: type[Recipe] = import_module(f"needle.recipes.{_MODULES[name]}").RECIPE
    return found

"""Settings of layers: checks when a layer is made, and their text in ``repr``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from needle.backend.axes import integer
from needle.errors import OptionError
from needle.nn.module import Module


def check_sizes(layer: Module, **sizes: object) -> None:
    """Check that sizes are integers. The functions that make parameters check their range.

    Raises:
        ArgumentError: if one is not.
    """
    for name, size in sizes.items():
        integer(f"{type(layer).__name__}: {name}", size)


def check_number(
    layer: Module, name: str, value: object, low: float = 0.0, high: float = math.inf
) -> None:
    """Check that a setting is a number in [low, high].

    Raises:
        OptionError: if it is not.
    """
    if not isinstance(value, Real) or not low <= float(value) <= high:
        rule = f"a number >= {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
        rule = "a number" if low == -math.inf else rule
        raise OptionError(f"{type(layer).__name__}: {name}={value!r:.60}\n  rule: {rule}")


def shown(first: str, settings: Mapping[str, tuple[object, object]]) -> str:
    """Return the text of a layer's ``repr``: the sizes, then the settings that are not defaults.

    Args:
        first: the sizes.
        settings: (value, default) by name.
    """
    rest = [f"{name}={value!r}" for name, (value, usual) in settings.items() if value != usual]
    return ", ".join([first, *rest] if first else rest)

"""What a checkpoint holds besides tensors: numbers of the run, and of the random generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from needle.errors import DataError
from needle.tensors import Tensor

WHOLE = ("items", "recent_steps", "evaluated", "ending")
NUMBERS = (*WHOLE, "recent_loss", "busy", "waited")
"""Attributes of a trainer that its state has under the same names."""


def check_numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that describe the run itself.

    Raises:
        DataError: if a part or a number is missing, or is none that a run can have.
    """
    for part in ("run", "random", "feed", "model", "optimizer"):
        if not isinstance(state.get(part), Mapping):
            raise DataError(f"the checkpoint has no part {part!r}")
    for part, names in (
        ("run", (*WHOLE, "step", "metrics")), ("feed", ("epoch", "place", "over")),
        ("random", ("seed", "counter") if "keys" not in state["random"] else ()),
    ):  # fmt: skip
        for name in names:
            value = _number(state, part, name, (int,))
            if not 0 <= value < 2**64:
                raise DataError(f"the checkpoint has {part}/{name} = {value}")
    for name in ("recent_loss", "busy", "waited", "seconds"):
        _number(state, "run", name, (int, float))
    return dict(state["run"])


def _number(state: Mapping[str, Any], part: str, name: str, kinds: tuple[type, ...]) -> Any:
    value = state[part].get(name)
    if not isinstance(value, kinds):
        raise DataError(f"the checkpoint has no number {part}/{name}, but {value!r:.60}")
    return value


def dump_random(state: Any) -> dict[str, Any]:
    """Return a state of ``needle.ops.random`` as numbers and a tensor."""
    if len(state) == 2:
        return {"seed": state[0], "counter": state[1]}
    _, keys, *rest = state  # NumPy's, until the user seeds Needle's own
    kept = dict(zip(("place", "has_gauss", "gauss"), rest, strict=True))
    return {"keys": Tensor(keys.astype(np.int64), requires_grad=False), **kept}


def load_random(state: Mapping[str, Any]) -> Any:
    """Return what ``dump_random`` was given."""
    if "seed" in state:
        return state["seed"], state["counter"]
    keys = state["keys"].numpy().astype(np.uint32)
    return "MT19937", keys, state["place"], state["has_gauss"], state["gauss"]

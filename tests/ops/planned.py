"""What of an op is checked where and when.

| check | where | when |
|---|---|---|
| value, integers, override, raises | every device, the gate open and closed | always |
| forward, layouts, saves | the first device, the gate open | always |
| forward | other devices | first sample always, others by turns |
| second_order | the first device | by turns; it holds forward |
| compiled | the first device, the gate open | by turns |
| all others | everywhere | by turns |

By turns means: whole where the op may have changed (changed.py), else one quarter after each
commit. Turns go over the samples, and in checks of single dtypes over these too, like a Latin
square: each sample and dtype has its turn once in four, and each turn holds a quarter of the
samples and every dtype of each op.

``CHECKS=value,layouts`` runs these checks alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

import changed
import turns
from devices import DEVICES
from looped import Gathered

import needle as ndl
from needle import core
from needle.ops.core.op import Op
from needle.testing.checks import CHECKS, Case, cases, check_raises, without_held

FIRST = DEVICES[0]
GATES = ("on", "off") if core.native is not None else ("off",)
"""The native gate, open and closed; without the native module there is only the definition."""

WHERE = [(name, gate) for name in DEVICES for gate in (GATES if name == "cpu" else GATES[:1])]
NARROW = {"value", "integers", "override"}
NARROW_ON_FIRST = {"forward", "layouts", "saves"}


def check(op: type[Op], device: str, gate: str) -> None:
    """Run all checks of an op that are due on a device; fail once, with all that failed."""
    gathered = Gathered("ONLY_CHECK")
    everything = turns.everything() or gathered.only is not None
    whole = everything or changed.is_whole(op, device)
    names = os.environ.get("CHECKS", "")
    chosen = names.split(",") if names else [*CHECKS, "raises"]
    with ndl.config(fast=gate):
        run(gathered, op, device, gate, whole, everything, chosen)
    gathered.finish()


def run(
    gathered: Gathered,
    op: type[Op],
    device: str,
    gate: str,
    whole: bool,
    everything: bool = False,
    chosen: Collection[str] = (*CHECKS, "raises"),
) -> None:
    where = ndl.devices.as_device(device)
    for case in cases(op):
        for name, part in planned(case, where, gate, whole, everything, chosen):
            gathered.run(f"{case}/{name}", CHECKS[name].run, part, where)
    for case in cases(op, raising=True) if "raises" in chosen else ():
        gathered.run(f"{case}/raises", check_raises, case, where)


def planned(
    case: Case,
    where: Any,
    gate: str,
    whole: bool,
    everything: bool = False,
    chosen: Collection[str] = tuple(CHECKS),
) -> Iterator[tuple[str, Case]]:
    """Yield the checks that are due of a sample, each with the sample in the dtypes that are."""
    names = [name for name in CHECKS if name in chosen and CHECKS[name].applies(case, where)]
    if where.name == "cpu" and gate != GATES[0]:
        names = [name for name in names if CHECKS[name].gated]
    second = "second_order" in names and (everything or where.name == FIRST)
    names = without_held(name for name in names if name != "second_order")
    due = {name: case if whole else due_part(case, name, where, gate)
           for name in [*names, *["second_order"] * second]}  # fmt: skip
    for name in without_held(name for name, part in due.items() if part is not None):
        yield name, due[name]  # type: ignore[misc]


def due_part(case: Case, name: str, where: Any, gate: str) -> Case | None:
    """Return a sample in the dtypes whose turn it is, of an op that did not change."""
    first = where.name == FIRST and gate == GATES[0]
    if name in NARROW or (name in NARROW_ON_FIRST and first):
        return case
    if name == "forward" and case.index == 0:
        return case
    if name == "compiled" and not first:
        return None
    job = f"{case.op.__name__} {where.name} {gate} {name}"
    if not CHECKS[name].by_dtype:
        return case if turns.is_due(job, case.index) else None
    kinds = [k for i, k in enumerate(case.dtypes) if turns.is_due(job, case.index + i)]
    return case.of_dtypes(*kinds) if kinds else None

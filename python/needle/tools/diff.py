"""``needle diff``: where the numbers of two runs part."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from needle.errors import DataError, NeedleError, OptionError
from needle.io import Checkpoints
from needle.tensors import Tensor
from needle.tools.report import facts
from needle.tools.report.compare import differences
from needle.tools.run import RunFolder
from needle.train.recorder import RECORD, read


def diff(first: str, second: str, quick: bool = False) -> dict[str, Any]:
    """Return where two recorded runs part.

    The records give the last step that is known to be equal and the first that differs. Both runs
    are then replayed, from the last checkpoint before it that is the same in both or from the
    beginning, and the results of all ops between are compared.

    Args:
        first, second: folders of the runs.
        quick: whether to compare the records only.

    Returns:
        ``step``: the first step that differs, None if none does; ``equal``: the last step in both
        records that does not; ``steps``: how many steps both have; ``what``: the loss, or the
        tensors that differ there; ``settings``: differences of the configurations; ``op``: what
        the replay found, or None, and ``note`` says why.

    Raises:
        OptionError: if a run has no record.
        DataError: if a record is damaged.
    """
    records = [_record(run) for run in (first, second)]
    found = _first_difference(*records)
    runs = [facts.read(run) for run in (first, second)]
    names = ["first", "second"]
    found["settings"] = differences(names, runs)
    found["op"], found["note"] = None, ""
    if found["step"] is not None and not quick:
        try:
            found["op"] = _replayed([first, second], found["equal"], found["step"])
            if found["op"] is None:
                found["note"] = "the difference did not appear again when the runs were replayed"
        except NeedleError as error:
            found["note"] = f"the runs could not be replayed: {error}"
    return found


def _record(run: str) -> dict[int, dict[str, Any]]:
    """Return the lines of a record by their step."""
    path = Path(run) / RECORD
    if not path.is_file():
        raise OptionError(f"diff: {run} has no {RECORD}\n  try: needle train --record")
    return {line["step"]: line for line in read(path)}


def _first_difference(
    first: dict[int, dict[str, Any]], second: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return the first step in both records at which they differ, and what differs."""
    shared = sorted(first.keys() & second.keys())
    losses = [_losses(record) for record in (first, second)]
    equal = -1
    for step in shared:
        a, b = first[step], second[step]
        known = (s for s in range(equal + 1, step + 1) if s in losses[0] and s in losses[1])
        parted = next((s for s in known if losses[0][s] != losses[1][s]), None)
        what = _different(a, b)
        if parted is not None or what:
            part = min(step, parted or step)
            what = [f"the loss of step {part}"] if parted is not None else what
            return {"step": part, "equal": max(equal, 0), "steps": shared[-1], "what": what}
        equal = step
    return {"step": None, "equal": equal, "steps": shared[-1] if shared else 0, "what": []}


def _losses(record: dict[int, dict[str, Any]]) -> dict[int, str]:
    """Return the bits of the losses by step."""
    found: dict[int, str] = {}
    for step, line in record.items():
        count = len(line["losses"])
        found |= {step - count + 1 + i: loss for i, loss in enumerate(line["losses"])}
    return found


def _different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the names of the tensors whose fingerprints differ: gradients before parameters."""
    found = []
    for kind in ("gradients", "parameters"):
        x, y = a.get(kind, {}), b.get(kind, {})
        names = [name for name in {**x, **y} if x.get(name) != y.get(name)]
        found += [f"{kind[:-1]} {name!r}" for name in names]
    return found


# ---- the replay --------------------------------------------------------------------------


def _replayed(runs: list[str], equal: int, last: int) -> dict[str, Any] | None:
    """Return the first result that differs when both runs are made again, or None."""
    first = max(0, equal)
    start = shared_checkpoint(runs, first)
    with tempfile.TemporaryDirectory() as folder:
        logs = []
        for i, run in enumerate(runs):
            out = Path(folder) / f"{i}.json"
            _run(run, start, first, max(last, first + 1), out)
            logs.append(json.loads(out.read_text()))
        place = next(
            (i for i, (a, b) in enumerate(zip(*logs, strict=False)) if _key(a) != _key(b)), None
        )
        if place is None:
            return None
        a, b = logs[0][place], logs[1][place]
        entry = {k: a[k] for k in ("step", "what", "place", "value")}
        if (a["what"], a["value"]) != (b["what"], b["value"]):
            return {**entry, "other": {k: b[k] for k in ("what", "place", "value")}}
        values = []
        for i, run in enumerate(runs):
            out = Path(folder) / f"{i}.npy"
            _run(run, start, first, max(last, first + 1), out, place)
            values.append(np.load(out))
    return {**entry, **distance(*values)}


def shared_checkpoint(runs: list[str], most: int) -> int:
    """Return the step of the last checkpoint that is the same in two runs, at most a step.

    Returns:
        0 if there is none, or if one cannot be read.
    """
    first, second = (RunFolder(Path(run)).checkpoints for run in runs)
    try:
        steps = {x.step for x in first.list()} & {x.step for x in second.list()}
        for step in sorted(steps, reverse=True):
            if 0 < step <= most and _same(_lasting(first, step), _lasting(second, step)):
                return step
    except DataError:
        pass
    return 0


def _lasting(checkpoints: Checkpoints, step: int) -> dict[str, Any]:
    """Return what the rest of a run depends on; times and counts differ between equal runs."""
    state = checkpoints.load(step)
    return {name: state.get(name) for name in ("model", "optimizer", "random", "feed")}


def _same(a: Any, b: Any) -> bool:
    """Return whether two states have the same bits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.spec == b.spec and a.numpy().tobytes() == b.numpy().tobytes()
    return repr(a) == repr(b)


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["what"], entry["value"], entry["crc"]


def _run(run: str, start: int, first: int, last: int, out: Path, keep: int | None = None) -> None:
    """Replay a part of a run in a process of its own."""
    numbers = [str(n) for n in (start, first, last)]
    command = [sys.executable, "-m", "needle.tools.replay", run, *numbers, str(out)]
    done = subprocess.run(
        [*command, *([] if keep is None else [str(keep)])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise DataError(f"{run}: {lines[-1]:.200}")


def distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return how far two arrays of one shape and dtype are apart.

    Returns:
        ``count``: elements that differ; ``ulp``: largest distance in units in the last place, None
        for integers; ``index``: the first that differs; ``values``: both there.

    >>> from needle.tools.diff import distance
    >>> distance(np.float32([1, 2]), np.float32([1, np.nextafter(np.float32(2), 3)]))["ulp"]
    1
    """
    differ = (a != b) & ~((a != a) & (b != b))
    places = np.argwhere(differ)
    if not len(places):
        return {"count": 0, "ulp": None, "index": None, "values": None}
    ulp = None
    if a.dtype.kind == "f":
        x, y = (_ordered(v[differ]) for v in (a, b))
        ulp = max(abs(int(p) - int(q)) for p, q in zip(x, y, strict=True))
    index = tuple(int(i) for i in places[0])
    values = [float(a[index]), float(b[index])]
    return {"count": len(places), "ulp": ulp, "index": list(index), "values": values}


def _ordered(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return floats as integers in the same order, one apart for neighbours."""
    kind = np.dtype(f"i{values.dtype.itemsize}")
    bits = np.ascontiguousarray(values).view(kind).astype(np.int64)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def as_text(found: dict[str, Any]) -> str:
    """Return findings as lines for a terminal."""
    if found["step"] is None:
        return f"the runs are equal in all {found['steps']:,} steps of both records"
    lines = [
        f"the runs part at step {found['step']:,}; the last step that is equal in both records is "
        f"{found['equal']:,}",
        f"  different there: {', '.join(found['what'][:5])}"
        + (f" and {len(found['what']) - 5} more" if len(found["what"]) > 5 else ""),
    ]
    op = found["op"]
    if op is not None:
        lines.append(f"  first: {op['what']} {op['place']} in step {op['step']}: {op['value']}")
        if "other" in op:
            other = op["other"]
            there = f"{other['what']} {other['place']}: {other['value']}"
            lines.append(f"  there the second run has {there}")
        elif op["count"]:
            ulp = "" if op["ulp"] is None else f", by up to {op['ulp']:,} units in the last place"
            first, second = op["values"]
            lines.append(f"  {op['count']:,} elements differ{ulp}")
            lines.append(f"  at {op['index']}: {first!r} and {second!r}")
    if found["note"]:
        lines.append(f"  {found['note']}")
    for name, row in found["settings"].items():
        values = [str(v).replace("\n", " ") for v in row.values()]
        lines.append(f"  {name}: {values[0]:.60} and {values[1]:.60}")
    return "\n".join(lines)

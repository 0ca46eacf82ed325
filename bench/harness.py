"""What all benchmarks share: rows, child processes, results as JSON.

A subject (``eager.py``, ``gemm.py``, ...) is a generator of ``Case``s, each a computation written
twice, for Needle and for PyTorch. ``main`` runs the subject in child processes, one per setting
of the C allocator, because PyTorch takes its memory from it: as it is, and told to keep memory.
Within a process the two frameworks alternate, so that a disturbance meets both.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import record
from timing import figures, interleave

ROOT = Path(__file__).resolve().parent.parent
THREADS = 2
KEEP = (
    "glibc.malloc.mmap_threshold=4294967295:glibc.malloc.trim_threshold=4294967295"
    ":glibc.malloc.hugetlb=1"
)
"""GLIBC_TUNABLES with which the C library keeps freed memory, in huge pages."""
MALLOCS = {"stock": "eager", "tuned": "eager, tuned malloc"}
"""Settings of the allocator and the name of the peer that each makes."""
TOLERANCE = 2e-3
NEAR = 0.9
"""Part of a target from which on a ratio is measured in further processes."""
PROCESSES = 3
"""In how many processes such rows are measured with each setting of the allocator."""


@dataclass
class Case:
    """One row: the same computation by Needle and by PyTorch.

    Attributes:
        name: of the row; unique in its subject.
        needle: does it once; what it returns is compared with what ``torch`` returns.
        torch: the same by PyTorch.
        compiled: makes the same of ``torch.compile``; None: it is not measured.
        target: largest allowed ratio of the times, Needle / PyTorch; None: no target.
        group: the part of the subject that the row belongs to.
        goals: which set of targets it belongs to: "foundation", "ops", "images",
            "sequence" or "pipeline".
        flops: floating point operations of one run, where arithmetic is its limit.
        bytes: bytes that one run must at least move, where memory is its limit.
        torch_threads: threads of PyTorch; 1 where that is faster for it.
        tolerance: largest allowed difference of the results, relative to the largest value.
        others: further ways to compute the same by PyTorch, by name.
    """

    name: str
    needle: Callable[[], Any]
    torch: Callable[[], Any]
    compiled: Callable[[Any], Callable[[], Any]] | None = None
    target: float | None = None
    group: str = ""
    goals: str = "foundation"
    flops: float = 0.0
    bytes: float = 0.0
    torch_threads: int = THREADS
    tolerance: float = TOLERANCE
    others: dict[str, Callable[[], Any]] = field(default_factory=dict)


@dataclass
class Options:
    """What the command line of a subject says.

    Attributes:
        quick: tiny sizes, two rounds, one thread and process: does it run at all?
        compile: also measure torch.compile.
        seconds: time for each row, in each process; 0: the subject's own.
        only: part of the names of the rows to run.
    """

    quick: bool = False
    compile: bool = False
    seconds: float = 0.0
    only: str = ""


@dataclass
class Goal:
    """A target for the geometric mean of the ratios of a group of rows."""

    name: str
    target: float
    goals: str = "ops"
    groups: tuple[str, ...] = field(default_factory=tuple)


Cases = Callable[[Options], Iterator[Case]]


def both(values: Any, grad: bool = False, apart: bool = False) -> tuple[Any, Any]:
    """Return the same values as a tensor of Needle and of PyTorch.

    They lie in the same memory, so that its place (in pages, caches, a processor's nearer or
    farther part) meets both; ``apart`` in memory of their own, for what is written in place.
    """
    import torch

    import needle

    ours = needle.Tensor(values, requires_grad=grad)
    theirs = torch.from_numpy(np.array(values)) if apart else torch.from_dlpack(ours.detach())
    return ours, theirs.requires_grad_(grad)


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[Any], Any]:
    """Return a ``Case.compiled`` that calls the compiled function with these arguments."""
    return lambda compiler: partial(compiler(function), *arguments)


def op(name: str) -> Any:
    """Return an op's function; None, and a line on the screen, if there is none yet."""
    import needle

    function = getattr(needle.ops, name, None)
    if function is None:
        print(f"  needle has no {name}: its rows are left out", file=sys.stderr)
    return function


# ---- one row -------------------------------------------------------------------------


def measure(case: Case, options: Options, seconds: float, peer: str) -> dict[str, Any]:
    """Check that both give the same result, time Needle beside each peer, and return the row."""
    import torch

    torch.set_num_threads(1 if options.quick else case.torch_threads)
    check_same(case)
    runs = {peer: case.torch}
    runs |= {f"{peer}, {name}": other for name, other in case.others.items()}
    if options.compile and case.compiled is not None:
        torch._dynamo.reset()  # or it gives up after some shapes of a function
        runs["torch.compile"] = case.compiled(partial(torch.compile, dynamic=False))
    return {
        "name": case.name, "group": case.group, "goals": case.goals, "target": case.target,
        "flops": case.flops, "bytes": case.bytes, "torch_threads": case.torch_threads,
        "peers": {name: beside(case, run, options, seconds) for name, run in runs.items()},
    }  # fmt: skip


def beside(case: Case, run: Callable[[], Any], options: Options, seconds: float) -> dict[str, Any]:
    """Time Needle and one peer, and return its figures.

    One peer at a time: they read the same arrays, so a peer whose turn came after another's would
    find them in the caches, and Needle never would.
    """
    import limits

    runs = {"needle": case.needle, "peer": run}
    if options.quick:
        times, apart = interleave(runs, 0.0, 0.0, (2, 2)), []
    else:
        before = limits.apart()
        times = interleave(runs, options.seconds or seconds, 2e-3, (5, 301), case.target)
        apart = [] if before is None else [before, limits.apart()]
    own, theirs = (figures(times.by_name[name]) for name in ("needle", "peer"))
    return {
        **theirs,
        "needle": own,
        "ratio": own["median"] / theirs["median"],
        "ratio_min": own["min"] / theirs["min"],
        "rounds": times.rounds,
        "disturbed": times.disturbed,
        "quiet": times.rounds - times.disturbed >= len(times.by_name["peer"]),
        "known": times.known,
        "apart": apart,  # how far processors are, before and after
    }


def check_same(case: Case) -> None:
    """Raise AssertionError if the two frameworks do not compute the same."""
    ours, theirs = case.needle(), case.torch()
    if ours is None or theirs is None:
        return
    a, b = _array(ours), _array(theirs)
    assert a.shape == b.shape, f"{case.name}: shapes {a.shape} and {b.shape}"
    step = max(1, a.shape[0] // 64) if a.ndim else 1
    x, y = (v[::step].astype(np.float64) if v.ndim else v.astype(np.float64) for v in (a, b))
    assert np.array_equal(np.isnan(x), np.isnan(y)), f"{case.name}: NaN in different places"
    with np.errstate(invalid="ignore"):
        scale = np.nanmax(np.abs(y), where=np.isfinite(y), initial=1e-30)
        off = np.nanmax(np.abs(x - y), where=np.isfinite(x - y), initial=0.0)
    assert off <= case.tolerance * scale, f"{case.name}: results differ by {off:.3g} of {scale:.3g}"


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach()
    if str(value.dtype) == "torch.bfloat16":  # which NumPy does not know
        value = value.float()
    return np.asarray(value)


# ---- processes -----------------------------------------------------------------------


def main(
    subject: str,
    cases: Cases,
    seconds: float = 1.0,
    mallocs: Sequence[str] = ("stock", "tuned"),
    goals: Iterable[Goal] = (),
    more: Callable[[Options], Iterable[dict[str, Any]]] | None = None,
) -> None:
    """Run a subject as its command line says, print its rows, and save its results.

    Args:
        subject: its name, that of its file.
        cases: makes its rows, one after the other.
        seconds: time for each row in each process.
        mallocs: settings of the allocator that matter for it.
        goals: targets over groups of rows.
        more: makes rows that are no times, in processes of their own.
    """
    args = parser(subject).parse_args()
    options = Options(args.quick, args.compile, args.seconds, args.only)
    if args.child:
        names = json.loads(Path(args.rows).read_text()) if args.rows else None
        found = measured(cases, options, seconds, args.child, names)
        Path(args.out).write_text(json.dumps(found))
        return
    if options.quick:
        runs = [measured(cases, options, seconds, "stock")]
    else:
        runs = [in_child(args, malloc) for malloc in mallocs]
    rows = merged([run["rows"] for run in runs])
    near = [row["name"] for row in rows if row["target"] and row["ratio"] > NEAR * row["target"]]
    if near and not options.quick:
        pairs = zip(mallocs, runs, strict=True)
        rows = merged([measured_again(args, malloc, run["rows"], near) for malloc, run in pairs])
    rows += [summary(goal, rows) for goal in goals if any(r["group"] in goal.groups for r in rows)]
    rows += [] if more is None else more(options)
    save(subject, rows, args, limits=runs[0]["limits"], versions=runs[0]["versions"])


def parser(subject: str) -> argparse.ArgumentParser:
    """Return the command line that every subject has."""
    make = argparse.ArgumentParser(description=f"Benchmark: {subject}. See bench/README.md.")
    make.add_argument("--quick", action="store_true", help="does it run? tiny sizes, not saved")
    make.add_argument("--compile", action="store_true", help="also measure torch.compile")
    make.add_argument("--seconds", type=float, default=0.0, help="time for each row")
    make.add_argument("--only", default="", metavar="TEXT", help="rows whose names contain TEXT")
    make.add_argument("--out", default="", metavar="FILE", help="where to write the raw results")
    make.add_argument("--save", action="store_true", help="update bench/summary.json, too")
    make.add_argument("--child", default="", help=argparse.SUPPRESS)
    make.add_argument("--rows", default="", help=argparse.SUPPRESS)
    return make


def in_child(
    args: argparse.Namespace, malloc: str, names: list[str] | None = None
) -> dict[str, Any]:
    """Run the subject's file in a process with a setting of the allocator; all rows or these."""
    with tempfile.TemporaryDirectory() as folder:
        out, rows = Path(folder) / "rows.json", Path(folder) / "names.json"
        command = [sys.executable, sys.argv[0], "--child", malloc, "--out", str(out)]
        command += ["--compile"] if args.compile else []
        command += ["--seconds", str(args.seconds), "--only", args.only]
        if names is not None:
            rows.write_text(json.dumps(names))
            command += ["--rows", str(rows)]
        subprocess.run(command, env=environment(malloc), check=True)
        return json.loads(out.read_text())


def measured_again(
    args: argparse.Namespace, malloc: str, rows: list[dict[str, Any]], near: list[str]
) -> list[dict[str, Any]]:
    """Return the rows, those named as the median of ``PROCESSES`` processes has them.

    A process places its arrays by chance, and keeps them there: that alone moves some ratios by a
    tenth, of which the rounds within the process know nothing.
    """
    runs = [rows] + [in_child(args, malloc, near)["rows"] for _ in range(1, PROCESSES)]
    found = [{row["name"]: row for row in run} for run in runs]
    return [
        {**row, "peers": median_peers([run[row["name"]]["peers"] for run in found])}
        if row["name"] in near else row
        for row in rows
    ]  # fmt: skip


def median_peers(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each peer as the process measured it whose ratio is the median."""
    middle = len(processes) // 2
    return {
        name: sorted((peers[name] for peers in processes), key=lambda peer: peer["ratio"])[middle]
        | {"processes": len(processes)}
        for name in processes[0]
    }


def environment(malloc: str) -> dict[str, str]:
    """Return the environment of a measured process."""
    path = [str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")]
    changes = {"NEEDLE_THREADS": str(THREADS), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "GLIBC_TUNABLES")}
    return env | changes | ({"GLIBC_TUNABLES": KEEP} if malloc == "tuned" else {})


def measured(
    cases: Cases, options: Options, seconds: float, malloc: str, names: list[str] | None = None
) -> dict[str, Any]:
    """Measure all rows, or those named, in this process, whose allocator is set as ``malloc`` says.

    Those that a disturbance kept from being known are measured once more; then the second counts.
    """
    import limits

    found = limits.measure(options.quick)
    rows = {row["name"]: row for row in measured_rows(cases, options, seconds, malloc, names)}
    again = {n for n, row in rows.items() if not all(p["known"] for p in row["peers"].values())}
    if again and not options.quick:
        rows |= {r["name"]: r for r in measured_rows(cases, options, seconds, malloc, again)}
    return {"rows": list(rows.values()), "limits": found, "versions": versions()}


def measured_rows(
    cases: Cases, options: Options, seconds: float, malloc: str, names: Container[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows that the command line asks for, or those of them that have these names."""
    for case in cases(options):
        if options.only in case.name and (names is None or case.name in names):
            row = measure(case, options, seconds, MALLOCS[malloc])
            print(f"  [{malloc}] {line(judged(row))}", file=sys.stderr, flush=True)
            yield row
        del case  # and its tensors, before the next ones are made


# ---- results -------------------------------------------------------------------------


def merged(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return rows with the peers of all processes, judged against the best peer."""
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for run in runs for row in run):
        peers = rows.setdefault(row["name"], {**row, "peers": {}})["peers"]
        for name, peer in row["peers"].items():
            if name not in peers or peer["ratio"] > peers[name]["ratio"]:
                peers[name] = peer
    return [judged(row) for row in rows.values()]


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its ratio, that to the best peer, and whether the target is met."""
    best = max(row["peers"], key=lambda name: row["peers"][name]["ratio"])
    peer = row["peers"][best]
    met = None if row["target"] is None else peer["ratio"] <= row["target"]
    return {
        "unit": "s", **row, "best_peer": best, "needle": peer["needle"],
        "ratio": peer["ratio"], "ratio_min": peer["ratio_min"], "met": met,
    }  # fmt: skip


def summary(goal: Goal, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a geometric mean."""
    chosen = [row for row in rows if row["group"] in goal.groups]

    def mean(key: str) -> float:
        return math.exp(statistics.fmean(math.log(row[key]) for row in chosen))

    return {
        "name": f"{goal.name}: geometric mean of {len(chosen)} rows", "group": "",
        "goals": goal.goals, "target": goal.target, "ratio": mean("ratio"),
        "ratio_min": mean("ratio_min"), "met": mean("ratio") <= goal.target,
    }  # fmt: skip


def save(subject: str, rows: list[dict[str, Any]], args: argparse.Namespace, **more: Any) -> None:
    """Print the rows, write the raw results of a whole run, and record them with ``--save``.

    Quick and partial runs are written with ``--out`` alone, and never recorded.
    """
    for row in rows:
        print(line(row))
    found = record.machine()
    results = {
        "subject": subject, "command": " ".join(["python", f"bench/{subject}.py", *flags(args)]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": record.commit(), "machine": found, "threads": THREADS, **more, "rows": rows,
    }  # fmt: skip
    whole = not (args.quick or args.only)
    if args.out or whole:
        default = record.RESULTS / record.key(found) / f"{subject}.json"
        path = Path(args.out) if args.out else default
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    if args.save and whole:
        record.record(results)


def flags(args: argparse.Namespace) -> list[str]:
    """Return the arguments that change what is measured, as they are typed."""
    found = [f"--{name}" for name in ("quick", "compile") if getattr(args, name)]
    found += [f"--seconds {args.seconds:g}"] if args.seconds else []
    return found + ([f"--only {args.only!r}"] if args.only else [])


def line(row: dict[str, Any]) -> str:
    """Return a row as one line of text."""
    verdict = {None: "", True: "met", False: "NOT MET"}[row.get("met")]
    target = f"(target {row['target']:g}) {verdict}" if row.get("target") is not None else ""
    text = f"{row['name']:58}"
    if "needle" in row:
        text += f" {shown(row['needle']['median'], row['unit']):>10}"
        theirs = row["peers"].get(row.get("best_peer")) if row["peers"] else None
        if theirs:
            text += f" {shown(theirs['median'], row['unit']):>10} {row['best_peer']}"
    ratio = f"  ratio {row['ratio']:.3f} [{row['ratio_min']:.3f}]" if row.get("ratio") else ""
    return f"{text}{ratio} {target}"


def shown(value: float, unit: str) -> str:
    """Return a quantity in a readable unit."""
    if unit != "s":
        return f"{value:,.4g} {unit}"
    for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {name}"
    return f"{value * 1e9:.3g} ns"


def versions() -> dict[str, str]:
    """Return the versions of what is measured."""
    import torch

    import needle

    return {
        "needle": needle.__version__, "torch": torch.__version__, "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip

"""What a loader does: images per second, the first batch, memory of a worker, going on.

CIFAR-10's form: images of bytes, crop with padding 4, flip, normalise to float32, batches of 128.
Needle and PyTorch take turns; PyTorch's transforms are NumPy, as its users write them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import loader_twin as twin

import needle as ndl
from needle import data

BATCH = 128
TARGETS = {
    "1 thread": 200_000, "2 threads": 300_000, "2 processes": 100_000,
}  # fmt: skip


def needle_loader(n: int, **more: Any) -> Any:
    """Return Needle's loader of the set."""
    augment = data.Augment(
        data.RandomCrops(4), data.RandomFlips(), data.Normalise(twin.MEAN, twin.STD), seed=1
    )
    dataset = data.NDArrayDataset(*twin.pictures(n))
    return data.DataLoader(dataset, BATCH, True, seed=1, transform=augment, **more)


def loaders(n: int, quick: bool) -> dict[str, Callable[[], Any]]:
    """Return what makes each loader."""

    def torch(by_batch: bool, workers: int, method: str | None = None) -> Callable[[], Any]:
        return lambda: twin.torch_loader(n, BATCH, by_batch, workers, method)

    def needle(kind: str | None, workers: int) -> Callable[[], Any]:
        return lambda: needle_loader(n, num_workers=workers, workers=kind)

    found = {
        "no worker": needle(None, 0), "1 thread": needle("thread", 1),
        "2 threads": needle("thread", 2), "2 processes": needle("process", 2),
        "torch by item": torch(False, 0), "torch by batch": torch(True, 0),
        "torch by batch, 2 processes": torch(True, 2, "forkserver"),
    }  # fmt: skip
    return {k: v for k, v in found.items() if not (quick and k.startswith("torch by batch, 2"))}


def rates(n: int, quick: bool, passes: int) -> Iterator[dict[str, Any]]:
    """Yield images per second: all loaders take turns, pass after pass."""
    made = {name: make() for name, make in loaders(n, quick).items()}
    found: dict[str, list[float]] = {name: [] for name in made}
    first: dict[str, float] = {}
    for turn in range(passes + 1):
        for name, loader in made.items():
            begin, count = time.perf_counter(), 0
            for x, _ in loader:
                if count == 0:
                    first.setdefault(name, time.perf_counter() - begin)
                count += len(x)
            if turn:  # the first pass starts workers
                found[name].append(count / (time.perf_counter() - begin))
    for name, values in found.items():
        yield {
            "name": f"images per second, {name}", "median": statistics.median(values),
            "best": max(values), "target": TARGETS.get(name), "more_is_better": True,
        }  # fmt: skip
    for name in ("2 threads", "2 processes", "torch by batch, 2 processes"):
        if name in first:
            yield {
                "name": f"seconds to the program's first batch, {name}", "median": first[name],
                "best": first[name], "target": None, "more_is_better": False,
            }  # fmt: skip
    yield from memory(made)
    for name in ("2 processes", "2 threads"):
        made[name].close()
    yield from starts(n, quick)


def memory(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the proportional memory of a worker process of each framework."""
    found: dict[str, list[int]] = {"needle": [], "torch": []}
    for process in multiprocessing.active_children():
        text = Path(f"/proc/{process.pid}/smaps_rollup")
        kilobytes = re.search(r"Pss:\s+(\d+)", text.read_text() if text.exists() else "")
        who = "needle" if process.name.startswith("needle") else "torch"
        found[who].append(int(kilobytes[1]) if kilobytes else 0)
    torch = statistics.mean(found["torch"]) if found["torch"] else 0
    for who, values in found.items():
        if values:
            own = statistics.mean(values)
            target = 0.45 * torch / 1024 if who == "needle" and torch else None
            yield {
                "name": f"memory of a worker process, {who}, MB", "median": own / 1024,
                "best": min(values) / 1024, "target": target, "more_is_better": False,
            }  # fmt: skip


def starts(n: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield seconds to the first batch of a new loader with two workers."""
    makers = loaders(n, quick)
    names = [k for k in ("2 threads", "2 processes", "torch by batch, 2 processes") if k in makers]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 if quick else 3):
        for name in names:
            loader = makers[name]()
            begin = time.perf_counter()
            batches = iter(loader)
            next(batches)
            found[name].append(time.perf_counter() - begin)
            del batches
            if hasattr(loader, "close"):
                loader.close()
            del loader
    torch = min(found.get("torch by batch, 2 processes", [0]))
    targets = {"2 threads": 0.03, "2 processes": 0.2 * torch or None}
    for name, values in found.items():
        yield {
            "name": f"seconds to the first batch, {name}", "median": statistics.median(values),
            "best": min(values), "target": targets.get(name), "more_is_better": False,
        }  # fmt: skip


class Large(data.Dataset):
    """Ten million items that cost nothing."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: Any) -> Any:
        return index


def going_on(quick: bool) -> dict[str, Any]:
    """Return seconds to load a state and get the next batch, at several positions."""
    found = []
    for position in (1, 5_000_000, 9_999_000):
        for _ in range(1 if quick else 5):
            loader = data.DataLoader(Large(), BATCH, True, seed=1)
            state = {**loader.state_dict(), "position": position}
            begin = time.perf_counter()
            loader.load_state_dict(state)
            next(loader)
            found.append(time.perf_counter() - begin)
    return {
        "name": "seconds to go on at a sample of 10 million", "median": statistics.median(found),
        "best": min(found), "target": 0.05, "more_is_better": False,
    }  # fmt: skip


def verdict(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    target, better = row["target"], row["more_is_better"]
    figures = f"{row['median']:>12,.4g} {row['best']:>12,.4g}"
    if not target:
        return f"{row['name']:60} {figures}"
    met = row["median"] >= target if better else row["median"] <= target
    return f"{row['name']:60} {figures}  target {target:,.4g} {'met' if met else 'NOT MET'}"


def main() -> None:
    """Do as the command line says."""
    make: argparse.ArgumentParser = harness.parser("loader")
    args = make.parse_args()
    n, passes = (300, 1) if args.quick else (10_000, 5)
    rows = [*rates(n, args.quick, passes), going_on(args.quick)]
    print(f"{'':60} {'median':>12} {'best':>12}")
    for row in rows:
        print(verdict(row))
    if args.out:
        results = {"subject": "loader", "versions": harness.versions(), "rows": rows}
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    ndl.manual_seed(0)
    main()

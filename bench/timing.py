"""Interleaved timing: computations take turns, so that a disturbance meets all of them."""

from __future__ import annotations

import glob
import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

DISTURBED = 0.02
"""Part of a chunk's time from which on waiting for a processor spoils it."""
TRIES = 3
"""How often to time what says the number of runs in a chunk."""
LONG = 0.02
"""Seconds of a run from which on a turn begins without runs that are not counted."""
FIRST = 3
"""Least number of runs at the beginning of a turn that are not counted. The results of the other's
turn may still be in the last cache, and writing them back to memory takes time."""
REST = 0.002 if Path("/proc/self/task").exists() else 0.02
"""Seconds before a turn, from when on no other thread of the process runs, if that can be seen."""
LONGEST_REST = 0.2
"""Seconds that a rest may take until no other thread of the process runs."""
PRECISION = 0.04
"""Standard error of a median, relative to it, with which a row has been measured well enough."""
PATIENCE = 4
"""How many times as long as meant a row may take until undisturbed rounds say it precisely, and on
which side of the target it is."""


def chunk_seconds(run: Callable[[], Any], count: int) -> float:
    """Return the seconds of one run, averaged over ``count`` runs in a row."""
    start = time.perf_counter()
    for _ in repeat(None, count):
        run()
    return (time.perf_counter() - start) / count


def run_seconds(run: Callable[[], Any], chunk: float) -> float:
    """Return how long a run takes, averaged over a part of a chunk; warms up on the way.

    Of several tries the fastest counts. If a disturbed one did, all chunks of a row would be too
    short and tell how fast it begins, while those of the other do not.
    """
    run()
    count = 1
    while True:
        seconds = min(chunk_seconds(run, count) for _ in range(TRIES))
        if seconds * count >= chunk / 4:
            return seconds
        count *= 4


def waited() -> float:
    """Return the seconds that this process's threads, ready to run, waited for a processor.

    0.0 where the system does not tell. Not counted: waiting of the threads for one another.
    """
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            total += int(Path(path).read_text().split()[1])
        except (OSError, IndexError):  # the thread has ended
            continue
    return total * 1e-9


@dataclass
class Times:
    """Seconds of one run, per round, of each of several computations.

    Attributes:
        by_name: a list as long as there were rounds, or as there were undisturbed ones.
        rounds: number of rounds.
        disturbed: rounds in which other programs took the processors away.
        known: whether enough undisturbed rounds say all medians to ``PRECISION``, and on which side
            of the target each ratio is.
    """

    by_name: dict[str, list[float]]
    rounds: int
    disturbed: int
    known: bool


def interleave(
    runs: dict[str, Callable[[], Any]],
    seconds: float,
    chunk: float,
    rounds: tuple[int, int],
    target: float | None = None,
) -> Times:
    """Return the times of each run, from alternating short chunks.

    If there are enough rounds in which nothing else needed the processors, only those count. It
    goes on up to ``PATIENCE`` times as long until these say the medians to ``PRECISION``, and more
    than two standard errors lie between ratios and the target, below or above: what the host of a
    virtual machine does to single rounds is often seen by no counter in it.

    Args:
        runs: what to time, by name; the others are compared with the first.
        seconds: when to stop.
        chunk: seconds of one name's turn; runs that take longer have turns of one run.
        rounds: least and largest number of rounds.
        target: largest ratio of the first one's time to another's that is allowed, if any is.
    """
    takes = {}
    for name, run in runs.items():
        rest()
        takes[name] = run_seconds(run, chunk)
    counts = {name: max(1, round(chunk / max(s, 1e-9))) for name, s in takes.items()}
    found: list[dict[str, float]] = []
    clean: list[dict[str, float]] = []
    began, meant, known = time.perf_counter(), seconds, False
    for i in range(rounds[1]):
        spent = time.perf_counter() - began
        if i == rounds[0]:
            meant = max(seconds, spent)
        known = len(clean) >= rounds[0] and are_precise(clean) and are_clear(clean, target)
        if i >= rounds[0] and spent >= meant * (1 if known else PATIENCE):
            break
        one, alone = {}, True
        for name in list(runs) if i % 2 == 0 else reversed(runs):
            rest()
            before = waited()  # takes so long that threads fall asleep, so not after the run
            if takes[name] < LONG:  # the other's turn left caches cold or full, and threads asleep
                chunk_seconds(runs[name], max(FIRST, (counts[name] + 1) // 2))
            one[name] = chunk_seconds(runs[name], counts[name])
            alone &= waited() - before < DISTURBED * one[name] * counts[name]
        found.append(one)
        clean += [one] if alone else []
    used = clean if len(clean) >= rounds[0] else found
    by_name = {name: [one[name] for one in used] for name in runs}
    return Times(by_name, len(found), len(found) - len(clean), known)


def are_precise(rounds: list[dict[str, float]]) -> bool:
    """Return whether the times of all names say their medians to ``PRECISION``."""
    medians = (median_and_error([times[name] for times in rounds]) for name in rounds[0])
    return all(error <= PRECISION * median for median, error in medians)


def are_clear(rounds: list[dict[str, float]], target: float | None) -> bool:
    """Return whether the rounds tell on which side of the target each ratio is, if there is one."""
    first, *others = rounds[0]
    ratios = (median_and_error([times[first] / times[name] for times in rounds]) for name in others)
    return target is None or all(abs(ratio - target) > 2 * error for ratio, error in ratios)


def median_and_error(values: list[float]) -> tuple[float, float]:
    """Return the median and its standard error, judged by the quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, 0.93 * (high - low) / math.sqrt(len(values))


def rest() -> None:
    """Let time pass until no other thread of the process runs, and a little more.

    But not sleep: a processor that did is slower. PyTorch's threads go on for 10 to 15 ms after an
    operation, and longer in a virtual machine whose host is busy; a turn that begins before they
    have come to rest shares a processor with them.
    """
    began = quiet_since = time.perf_counter()
    while (now := time.perf_counter()) < min(quiet_since + REST, began + LONGEST_REST):
        if others_run():
            quiet_since = now


def others_run() -> bool:
    """Return whether another thread of this process runs; without /proc: not known, so False."""
    own = str(threading.get_native_id())
    for path in glob.glob("/proc/self/task/*/stat"):
        try:
            state = Path(path).read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # the thread has ended
            continue
        if state == "R" and path.split("/")[4] != own:
            return True
    return False


def figures(times: list[float]) -> dict[str, float]:
    """Return median and minimum of times, in seconds."""
    return {"median": statistics.median(times), "min": min(times)}

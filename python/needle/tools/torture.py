"""``needle torture``: kill a run again and again, and compare its end with that of an unharmed one.

Every attack hits a process of its own: SIGKILL at a random time or just after a save has begun,
SIGKILL of a worker, SIGSTOP and SIGCONT, SIGTERM, SIGINT, or two signals. Then the run is resumed.
When it is complete, its weights and metrics must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from needle.errors import NeedleError

STEPS, SAVE_EVERY = 200, 10
"""Defaults: updates of a run, and those between two of its checkpoints."""
PATIENCE = 120.0
"""Seconds that a process may take longer than the unharmed one; then it counts as hanging."""
IN_SAVE = 0.05
"""Most seconds between the beginning of a save and the attack."""
RUNNING = ("--save-every", "--workers", "--worker-kind", "--device", "--backend", "--threads")
"""Options of ``needle train`` that a resumed run is given again."""
KINDS = ("kill", "save", "save", "save", "kill", "worker", "pause", "term", "int", "twice")
"""Attacks, as often as they are drawn."""
SIGNALS = {"kill": 9, "save": 9, "worker": 9, "term": 15, "twice": 15, "int": 2}


class TortureError(NeedleError, AssertionError):
    """A run did not survive."""


@dataclass
class Report:
    """What happened.

    Attributes:
        attacks: number of attacks by kind.
        runs: number of runs that were completed and compared.
        steps: number of updates of each.
    """

    attacks: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    steps: int = 0

    def kills(self) -> int:
        """Return the number of kills, of runs and of their workers."""
        return sum(self.attacks[kind] for kind in ("kill", "save", "worker"))

    def as_json(self) -> dict[str, Any]:
        """Return the report as what JSON can hold."""
        return {"kills": self.kills(), **vars(self), "attacks": dict(self.attacks)}

    def text(self) -> str:
        """Return the report as a line."""
        kills = self.kills()
        others = self.attacks.total() - kills
        return (
            f"{kills} kills ({self.attacks['save']} in saves, {self.attacks['worker']} of workers) "
            f"and {others} other signals survived; {self.runs} runs of {self.steps} steps ended "
            "with the bits of the unharmed one"
        )


def torture(
    train: Sequence[str],
    minutes: float,
    seed: int = 0,
    steps: int = STEPS,
    note: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = (sys.executable, "-m", "needle"),
) -> Report:
    """Attack runs for some minutes, at least once; finish and compare the last one.

    Args:
        train: arguments of ``needle train``, without the folder and the number of steps.
        minutes: how long.
        seed: of the times and kinds of attacks.
        steps: number of updates of a run.
        note: is told what happens.
        command: starts ``needle``.

    Raises:
        TortureError: if a run hangs, cannot be resumed, leaves processes behind, or ends with other
            bits; the folders of both runs stay then, and the message names them.
    """
    folder = Path(tempfile.mkdtemp(prefix="needle-torture-"))
    options = ["--steps", str(steps), "--save-every", str(SAVE_EVERY), "--quiet"]
    victim = _Victim(command, [*train, *options], folder, random.Random(seed), note)
    end = time.monotonic() + 60 * minutes
    took = victim.unharmed()
    note(f"the unharmed run took {took:.1f} s")
    while not (victim.report.runs and victim.report.attacks) or time.monotonic() < end:
        victim.one_run(end)
    victim.report.steps = steps
    shutil.rmtree(folder, ignore_errors=True)
    return victim.report


class _Victim:
    """A run that is attacked, beside an unharmed one."""

    def __init__(
        self,
        command: Sequence[str],
        train: list[str],
        folder: Path,
        chance: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self.command = command
        self.train, self.folder, self.chance, self.note = train, folder, chance, note
        self.report = Report()
        self.took = 0.0
        self.running = [
            text for i, text in enumerate(train) if text in RUNNING or train[i - 1] in RUNNING
        ]
        self.kinds = [kind for kind in KINDS if kind != "worker" or "--workers" in train]

    def unharmed(self) -> float:
        """Make the run to compare with; return its duration."""
        start = time.monotonic()
        process = self._start(self.folder / "unharmed", "unharmed")
        if process.wait() != 0:
            raise TortureError(f"the unharmed run failed: {self._said('unharmed')}")
        self.took = time.monotonic() - start
        return self.took

    def one_run(self, end: float) -> None:
        """Attack one run until it is complete, or until the time is over; then compare it."""
        name = f"run-{self.report.runs + 1}"
        run = self.folder / name
        while True:
            process = self._start(run, name)
            early = time.monotonic() < end or not self.report.attacks
            kind = self.chance.choice(self.kinds) if early else ""
            try:
                done = self._attack(process, run, kind) if kind else False
                code = self._wait(process, name)
            finally:
                _end_group(process.pid)
            if done:
                self.report.attacks[kind] += 1
                self.note(f"{name}: {kind}: exit code {code}")
            if code == 0:
                break
            allowed = {-SIGNALS[kind], 128 + SIGNALS[kind]} if done and kind in SIGNALS else set()
            if code not in allowed and not (done and kind == "worker" and code == 1):
                raise TortureError(f"{run}: {kind or 'no attack'}: code {code}: {self._said(name)}")
        self._compare(run)
        self.report.runs += 1
        shutil.rmtree(run, ignore_errors=True)

    def _start(self, run: Path, name: str) -> subprocess.Popen[bytes]:
        """Begin the run, or resume it once it is known that it can be."""
        begun = (run / "config.json").exists()
        new = [*self.train, "--out", str(run)]
        arguments = ["resume", str(run), "--quiet", *self.running] if begun else new
        with open(self.folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [*self.command, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _attack(self, process: subprocess.Popen[bytes], run: Path, kind: str) -> bool:
        """Attack a process at a random time; return whether it still ran then."""
        moment = time.monotonic() + self.chance.uniform(0, self.took)
        delay, before = self.chance.uniform(0, IN_SAVE), _saves(run)
        while process.poll() is None and time.monotonic() < moment + PATIENCE:
            if kind == "save" and time.monotonic() > moment - self.took / 2:
                if _saves(run) - before:
                    time.sleep(delay)
                    break
            elif time.monotonic() > moment:
                break
            time.sleep(0.001)
        if process.poll() is not None:
            return False
        return self._hit(process.pid, kind)

    def _hit(self, pid: int, kind: str) -> bool:
        workers = [x for x in _group(pid) if x != pid]
        if kind == "worker":
            return bool(workers) and _send(self.chance.choice(workers), signal.SIGKILL)
        if kind == "pause":
            _send(pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(0, 0.3))
            return _send(pid, signal.SIGCONT)
        number = SIGNALS[kind]
        sent = _send(pid, number)
        if kind == "twice":
            time.sleep(self.chance.uniform(0, 0.05))
            _send(pid, number)
        return sent

    def _wait(self, process: subprocess.Popen[bytes], name: str) -> int:
        """Return the exit code of a process, whose workers must end too."""
        try:
            code = process.wait(10 * self.took + PATIENCE)
        except subprocess.TimeoutExpired:
            raise TortureError(f"{self.folder / name}: hangs: {self._said(name)}") from None
        end = time.monotonic() + PATIENCE / 4
        while left := _group(process.pid):
            if time.monotonic() > end:
                raise TortureError(f"{self.folder / name}: processes {left} stay behind")
            time.sleep(0.01)
        return code

    def _compare(self, run: Path) -> None:
        twin = self.folder / "unharmed"
        name = "weights.safetensors"
        if (run / name).read_bytes() != (twin / name).read_bytes():
            raise TortureError(f"{run}: {name} is not that of {twin}")
        for number, (a, b) in enumerate(zip(_metrics(run), _metrics(twin), strict=False), 1):
            if a != b:
                raise TortureError(f"{run}: line {number} of metrics.jsonl is {a}\n  not {b}")
        if len(_metrics(run)) != len(_metrics(twin)):
            raise TortureError(f"{run}: metrics.jsonl has not as many lines as that of {twin}")

    def _said(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(errors="replace").strip()
        return text[-2000:] or "it said nothing"


def _saves(run: Path) -> set[str]:
    """Return the names of the checkpoints that are being written."""
    with suppress(OSError):
        return {name for name in os.listdir(run / "checkpoints") if name.endswith(".part")}
    return set()


def _metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics, without times and memory."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = ("second", "memory")
    return [{k: v for k, v in x.items() if not any(m in k for m in measured)} for x in lines]


def _group(pid: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = entry.read_text().rpartition(")")[2].split()[:3]
            if int(group) == pid and state not in "ZX":
                found.append(int(entry.parent.name))
    return found


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

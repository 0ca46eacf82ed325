"""Runs of recipes in a folder, whole or stopped and resumed, and what they leave there."""

from __future__ import annotations

import signal

import needle as ndl
from needle.recipes.loop import train
from needle.recipes.settings import Settings
from needle.tools.run import RunFolder
from needle.train import progress
from needle.train.stop import Stop, Stopped


def whole(kind, folder, **settings):
    run = RunFolder.create(kind.name, str(folder))
    return train(kind, Settings(**settings), run, progress.Progress(True), Stop()), run


def interrupted(kind, folder, after, **settings):
    """Stop after some steps, then go on in a new process' manner."""
    stop = Stop()

    class Stopping(kind):
        compiled = False  # it counts its calls

        def loss(self, model, batch):
            self.made = getattr(self, "made", 0) + 1
            if self.made == after:
                stop.signal = signal.SIGTERM
            return super().loss(model, batch)

    run = RunFolder.create(kind.name, str(folder))
    result = train(Stopping, Settings(**settings), run, progress.Progress(True), stop)
    assert result.stopped == signal.SIGTERM and result.steps == after
    again = RunFolder.open(str(folder))
    chosen = Settings(**again.config()["chosen"])
    return train(kind, chosen, again, progress.Progress(True), Stop(), resume=True), again


def same_without_programs(kind, folder, run, **settings):
    """Check that a compiled run has the bits of one that is not, and calls its loss rarely."""
    calls = []

    class Counted(kind):
        def loss(self, model, batch):
            calls.append(model.training)
            return super().loss(model, batch)

    with ndl.config(compile="off"):
        result, off = whole(Counted, folder / "off", **settings)
    assert len(calls) == result.steps
    assert weights(off) == weights(run) and metrics(off) == metrics(run)
    calls.clear()
    _, on = whole(Counted, folder / "on", **settings)
    assert len(calls) <= 4 < result.steps and weights(on) == weights(run)


def metrics(run):
    """Return the lines of metrics, without times, memory and what compiled steps do not have."""
    left_out = ("memory_megabytes", "gradient_norm")
    return [
        {k: v for k, v in line.items() if "second" not in k and k not in left_out}
        for line in run.metrics()
    ]


def weights(run):
    return (run.path / "weights.safetensors").read_bytes()


class StopsAt(Stop):
    """Stops the run when it is asked for the n-th time."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise Stopped(signal.SIGINT)

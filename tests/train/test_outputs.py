"""Where a training tells what happens: loggers, bars, lines, and a disk that may be full."""

from __future__ import annotations

import os
import sys
import types

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim, train
from needle.errors import DataError, LockedError, OptionError
from needle.train import progress


def small(**settings):
    """Return a trainer of four steps in a pass."""
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    loader = ndl.data.DataLoader(ndl.data.NDArrayDataset(x, 3 * x), 2)
    model = nn.Linear(1, 1)
    return train.Trainer(
        model, optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(), loader,
        **{"progress": train.Progress(quiet=True), **settings},
    )  # fmt: skip


class Kept:
    """A logger that keeps what it is given."""

    def __init__(self, fails_at=None):
        self.lines, self.fails_at, self.closed = [], fails_at, False

    def log(self, step, values):
        if step == self.fails_at:
            raise ConnectionError("no network")
        self.lines.append((step, dict(values)))

    def close(self):
        self.closed = True


def test_loggers_are_given_each_line_and_a_failing_one_is_switched_off(capsys):
    good, bad = Kept(), Kept(fails_at=2)
    small(
        loggers=[bad, good], evaluate=lambda model: {"error": 0.5}, progress=train.Progress()
    ).fit(epochs=1)
    assert [step for step, _ in good.lines] == [1, 2, 3, 4, 4] and good.closed
    assert good.lines[-1][1]["held-out/error"] == 0.5 and "train/loss" in good.lines[0][1]
    assert len(bad.lines) == 1 and not bad.closed
    said = [line for line in capsys.readouterr().out.splitlines() if "logger" in line]
    assert said == ["the logger Kept is switched off: ConnectionError: no network"]


def test_adapters_translate_numbers_pictures_and_texts(monkeypatch):
    calls = []

    def recorder(name):
        return lambda *args, **named: calls.append((name, args, named)) or name

    module = types.ModuleType("wandb")
    for name in ("init", "log", "finish", "Image"):
        setattr(module, name, recorder(name))
    board = types.ModuleType("tensorboardX")
    writer = {name: recorder(name) for name in ("add_scalar", "add_image", "add_text", "close")}
    board.SummaryWriter = lambda folder: types.SimpleNamespace(**writer)
    for name, found in (("wandb", module), ("trackio", module), ("tensorboardX", board)):
        monkeypatch.setitem(sys.modules, name, found)
    image = np.zeros((2, 3, 3), np.uint8)
    values = {"x": 1.5, "p": train.Picture(image, "c"), "t": train.Text("words")}
    for logger in (
        train.WeightsAndBiases("mine", mode="offline"), train.Trackio("mine"),
        train.TensorBoard("folder"),
    ):  # fmt: skip
        logger.log(7, values)
        logger.close()
    assert calls[0] == ("init", (), {"project": "mine", "mode": "offline"})
    assert ("log", ({"x": 1.5, "p": "Image", "t": "words"},), {"step": 7}) in calls
    assert [name for name, *_ in calls[-4:]] == ["add_scalar", "add_image", "add_text", "close"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(OptionError, match="needs the package wandb\n  try: pip install wandb"):
        train.WeightsAndBiases("mine")


def test_a_notebook_has_one_bar(monkeypatch):
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(picture)

    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel=1)
    parts = types.ModuleType("IPython.display")
    parts.HTML, parts.display = str, lambda picture, display_id: Handle()
    shell.display = parts
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    bar = progress.choose()
    assert type(bar) is progress.Notebook
    small(progress=bar, item="<points>").fit(epochs=1)
    assert len(shown) == 3 and shown[-1].startswith('<progress max="4" value="4"></progress> 4/4')
    assert "&lt;points&gt;/s" in shown[-1]
    shell.get_ipython = lambda: None
    assert not progress.in_notebook()


class Closed:
    """A stream whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        raise BrokenPipeError(32, "Broken pipe")

    def isatty(self):
        return False


def test_a_reader_that_goes_away_does_not_end_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(progress.os, "dup2", lambda *_: None)  # the test's own output stays
    monkeypatch.setattr(sys, "stdout", Closed())
    result = small(folder=tmp_path, progress=progress.Progress()).fit(epochs=1)
    sys.stdout.close()
    text = (tmp_path / "log.txt").read_text()
    assert result.steps == 4 and text.startswith("standard output is gone (Broken pipe)")
    assert "step 4/4" in text


def test_a_folder_that_goes_away_is_told_once_and_the_training_goes_on(tmp_path, capsys):
    folder = tmp_path / "run"

    class Removes(train.Callback):
        def step(self, t, out):
            if t.done == 1:
                os.rename(folder, tmp_path / "away")
            if t.done == 3:
                os.rename(tmp_path / "away", folder)

    t = small(folder=folder, save_every=1, callbacks=[Removes()])
    assert t.fit(epochs=1).steps == 4
    said = [line for line in capsys.readouterr().out.splitlines() if "goes on" in line]
    assert 1 <= len(said) <= 2 and all(line.startswith("step ") for line in said)
    assert [line["step"] for line in t.folder.metrics()] == [1, 2, 3, 4]  # none is lost
    assert train.Folder(folder).load_checkpoint()["run"]["step"] == 4


def test_metrics_that_cannot_be_written_are_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(DataError, match="metrics.jsonl: cannot be written"):
        small(folder=tmp_path).fit(epochs=1)


def test_two_runs_do_not_share_a_folder(tmp_path):
    with train.Folder(tmp_path).locked(), pytest.raises(LockedError, match="is in use"):
        small(folder=tmp_path).fit(epochs=1)
    small(folder=tmp_path).fit(epochs=1)

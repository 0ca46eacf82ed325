"""A run that is stopped in the middle of a pass and resumed ends with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from loader_sets import Items, Stream

import needle as ndl
from needle import data, nn, ops, optim, train
from needle.errors import OptionError

QUIET = train.Progress(quiet=True)
KINDS = {"caller": {}, "thread": {"num_workers": 2}, "process": {"num_workers": 2}}


def items(**more):
    return data.DataLoader(Items(64), 8, True, seed=1, **more)


def stream(**more):
    return data.DataLoader(data.ShuffleBuffer(Stream(), 9), 7, seed=1, **more)


def squares(model, batch):
    values = batch["x"] if isinstance(batch, dict) else batch[1]
    rows = ops.reshape(values, (values.shape[0], -1))[:, :1].astype("float32")
    return ((model(rows) - 1) ** 2).mean()


def trained(make, kind, folder, *steps):
    """Return the weights after training to each of ``steps``, as a program of its own each."""
    for number, step in enumerate(steps):
        ndl.manual_seed(3)
        model = nn.Linear(1, 1)
        loader = make(**KINDS[kind], workers=None if kind == "caller" else kind)
        trainer = train.Trainer(
            model, optim.Adam(model.parameters(), lr=0.1), squares, loader,
            folder=folder, save_every=3, progress=QUIET,
        )  # fmt: skip
        trainer.fit(steps=step, resume=number > 0)
        loader.close()
    return model.weight.numpy()


def test_a_stopped_run_goes_on_with_any_workers(tmp_path):
    before = ops.random.get_state()
    for make in (items, stream):
        whole = trained(make, "caller", tmp_path / f"{make.__name__}", 13)
        for kind in KINDS:
            if (make, kind) != (items, "process"):  # one kind of set is enough for processes
                found = trained(make, kind, tmp_path / f"{make.__name__}-{kind}", 5, 13)
                np.testing.assert_array_equal(found, whole)
    ops.random.set_state(before)


def test_a_run_on_a_stream_has_so_many_steps():
    model = nn.Linear(1, 1)
    trainer = train.Trainer(
        model, optim.SGD(model.parameters(), lr=1e-9), squares, stream(), progress=QUIET
    )
    with pytest.raises(OptionError, match="expected steps=N"):
        trainer.fit(epochs=1)
    passed = len(list(stream()))
    assert trainer.fit(steps=passed + 3).steps == passed + 3 and trainer.feed.epoch == 1

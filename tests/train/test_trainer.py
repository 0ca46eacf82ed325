"""The trainer alone, without recipes: what a step is, what happens between steps, and resuming."""

from __future__ import annotations

import itertools
import math
import signal
import threading

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, ops, optim, train
from needle.errors import ArgumentError, DataError, NonFiniteError, OptionError
from needle.io import Checkpoints, writer

QUIET = train.Progress(quiet=True)


def data(rows=24, batch=4, shuffle=True):
    x = np.random.default_rng(0).standard_normal((rows, 3), np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    return ndl.data.DataLoader(ndl.data.NDArrayDataset(x, y), batch, shuffle=shuffle)


def squares(model, batch):
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def trainer(loader=None, rule=optim.SGD, loss=squares, model=None, optimizer=None, **settings):
    ndl.manual_seed(1)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 1)) if model is None else model
    optimizer = optimizer or rule(model.parameters(), lr=optim.Linear(0.05, 0.01, 12))
    given = {"progress": QUIET, **settings}
    return train.Trainer(model, optimizer, loss, data() if loader is None else loader, **given)


def bits(t):
    return [p.numpy().tobytes() for p in t.model.parameters()]


@pytest.fixture(autouse=True)
def numbers_of_the_user():
    before = ops.random.get_state()
    yield
    ops.random.set_state(before)


# ---- a step ------------------------------------------------------------------------


def test_a_loop_by_hand_gives_the_same_bits():
    t = trainer(clip=0.5)
    assert t.fit(epochs=2).steps == 12
    by_hand = trainer()
    for _ in range(2):
        for batch in by_hand.loader:
            loss = squares(by_hand.model, batch)
            by_hand.optimizer.reset_grad()
            loss.backward()
            optim.clip_grad_norm(by_hand.optimizer.params, 0.5)
            by_hand.optimizer.step()
    assert bits(t) == bits(by_hand)


def ragged(lengths):
    """Return batches of as many tokens as the lengths say."""
    random = np.random.default_rng(1)
    return [(ndl.Tensor(random.standard_normal((n, 3)), dtype="float64"),) for n in lengths]


def token_loss(model, batch):
    return (model(batch[0]) ** 2).sum(), batch[0].shape[0]


@looped("lengths", [(1, 7, 2), (5,), (3, 3, 3, 3), (2, 9)])
def test_accumulated_means_of_tokens_are_those_of_one_batch(lengths):
    batches = ragged(lengths)
    whole = [(ops.concat([b[0] for b in batches], 0),)]
    found = []
    for loader, accumulate in ((batches, len(lengths)), (whole, 1)):
        ndl.manual_seed(0)
        model = nn.Linear(3, 2, dtype="float64")
        t = trainer(loader, loss=token_loss, model=model, accumulate=accumulate)
        losses = []
        t.shown = lambda loss, losses=losses: losses.append(loss) or {}
        assert t.fit(epochs=1).steps == 1
        found.append((losses[0], *(p.numpy() for p in model.parameters())))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_groups_do_not_reach_over_the_end_of_a_pass():
    seen = []

    def loss(model, batch):
        seen.append(batch[0].shape[0])
        return squares(model, batch)

    t = trainer(data(rows=18), loss=loss, accumulate=2)  # batches of 4, 4, 4, 4, 2
    assert t.fit(epochs=2).steps == 6 and t.per_epoch == 3
    assert seen == [4, 4, 4, 4, 2] * 2


def test_means_count_equally_for_each_batch():
    batches = list(data(rows=8, shuffle=False))
    t = trainer(batches, model=nn.Linear(3, 1), accumulate=2)
    weights = [ndl.Tensor(p.numpy()) for p in t.model.parameters()]
    grads = ndl.grad(
        lambda *w: sum(((b[0] @ w[0] + w[1] - b[1]) ** 2).mean() for b in batches) / 2,
        argnums=(0, 1),
    )(*weights)
    t.fit(epochs=1)
    for p, g in zip(t.model.parameters(), grads, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), g.numpy(), rtol=1e-5)


def counted_loss(model, batch):
    return token_loss(model, batch)[0], (batch[0][:, 0] > 0).sum() + 1


@looped("loss", [squares, token_loss, counted_loss])
@looped("clip", [None, 0.1])
def test_compiled_groups_have_the_bits_of_eager_ones(loss, clip):
    found = []
    for compiled in (False, True):
        ndl.manual_seed(0)
        norms = []
        t = trainer(
            data(rows=18), loss=loss, accumulate=2, clip=clip, compile=compiled,
            callbacks=[Each(lambda t, out, norms=norms: norms.append((out.loss, out.norm)))],
        )  # fmt: skip
        assert t.fit(epochs=2).steps == 6
        seen = [(a, None if b is None else b.item()) for a, b in norms]
        found.append((bits(t), seen))
    assert found[0] == found[1]


class Each(train.Callback):
    """Calls a function after each step."""

    def __init__(self, function):
        self.step = function


def test_a_loss_that_is_not_finite_ends_compiled_groups_before_the_update():
    def loss(model, batch):
        return squares(model, batch) / (batch[0].sum() - total)

    batches = list(data(rows=16, shuffle=False))
    total = batches[3][0].sum().item()
    t = trainer(batches, loss=loss, accumulate=2, compile=True)
    before = []
    t.callbacks.append(Each(lambda t, out: before.append(bits(t))))
    with pytest.raises(NonFiniteError, match="the loss is"):
        t.fit(epochs=1)
    assert t.done == 1 and bits(t) == before[0]


def test_a_step_of_ones_own_in_place_of_a_loss():
    t = trainer()

    def step(batch):
        return t.optimizer.minimize(squares(t.model, batch))

    own = trainer(loss=None, step=step)
    own.model, own.optimizer = t.model, t.optimizer
    own.fit(epochs=1)
    expected = trainer()
    expected.fit(epochs=1)
    assert bits(t) == bits(expected)


def test_two_optimizers_go_on_exactly(tmp_path):
    def make(folder, stop=None):
        ndl.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        first, second = (optim.Adam(part.parameters(), lr=0.1) for part in model)
        both = train.Optimizers(first=first, second=second)

        def step(batch):
            second.minimize(squares(model, batch))
            return first.minimize(squares(model, batch))

        return trainer(loss=None, model=model, step=step, folder=folder, stop=stop, optimizer=both)

    whole = make(tmp_path / "whole")
    whole.fit(epochs=2)
    make(tmp_path / "run", StopsAt(5)).fit(epochs=2)
    found = make(tmp_path / "run")
    found.fit(epochs=2, resume=True)
    assert bits(found) == bits(whole)
    with pytest.raises(DataError, match=r"expected \['first', 'second'\], got \['first'\]"):
        found.optimizer.load_state_dict({"first": {}})
    with pytest.raises(OptionError, match="at least one"):
        train.Optimizers()


def test_compile_and_precision_take_part_in_each_step():
    calls = []

    def faster(step):
        return lambda batch: calls.append("step") or step(batch)

    class Lower:
        def __enter__(self):
            calls.append("loss")

        def __exit__(self, *_):
            pass

    trainer(compile=faster, precision=Lower).fit(steps=2)
    assert calls == ["step", "loss"] * 2


# ---- between steps -------------------------------------------------------------------


class Seen(train.Callback):
    """Write down what is called."""

    def __init__(self):
        self.calls = []

    def begin(self, t):
        self.calls.append("begin")

    def step(self, t, out):
        self.calls.append(t.done)

    def evaluated(self, t, figures):
        assert not t.model.training
        self.calls.append(figures)

    def saved(self, t):
        self.calls.append(f"saved {t.done}")

    def end(self, t, result):
        self.calls.append(result.steps)


def test_callbacks_are_called_in_order(tmp_path):
    seen = Seen()
    trainer(
        data(rows=8), callbacks=[seen], evaluate=lambda model: {"error": 1.0}, save_every=1,
        folder=tmp_path / "run",
    ).fit(steps=3)  # fmt: skip
    error = {"error": 1.0}
    assert seen.calls == [
        "begin", "saved 0", 1, "saved 1", 2, error, "saved 2", 3, "saved 3", error, 3,
    ]  # fmt: skip


def test_early_stopping_and_the_best_weights():
    errors = iter([3.0, 1.0, 2.0, 2.0, 5.0])
    kept = []

    def evaluate(model):
        kept.append([p.numpy().copy() for p in model.parameters()])
        return {"other": 0.0, "error": next(errors)}

    t = trainer(
        evaluate=train.Evaluate(evaluate, every=1),
        callbacks=[train.EarlyStopping(2, "error"), train.Best("error")],
    )
    result = t.fit(epochs=9)
    assert result.steps == 4 and result.figures["error"] == 5.0  # the final evaluation
    for p, best in zip(t.model.parameters(), kept[1], strict=True):
        np.testing.assert_array_equal(p.numpy(), best)
    with pytest.raises(OptionError, match="no figure 'errro'"):
        trainer(evaluate=lambda m: {"error": 1.0}, callbacks=[train.Best("errro")]).fit()


def test_larger_can_be_better():
    values = iter([1.0, 2.0, 1.5, 1.8, 0.0])
    t = trainer(
        evaluate=train.Evaluate(lambda model: {"accuracy": next(values)}, 1),
        callbacks=[train.EarlyStopping(2, mode="max")],
    )
    assert t.fit(steps=9).steps == 4
    with pytest.raises(OptionError, match="'min' or 'max'"):
        train.EarlyStopping(mode="most")


def test_the_average_of_the_weights_is_what_is_judged():
    judged, weights = [], []

    class Weights(train.Callback):
        def step(self, t, out):
            weights.append(t.model.weight.numpy().copy())

    t = trainer(
        model=nn.Linear(3, 1), ema=0.5, callbacks=[Weights()],
        evaluate=lambda model: judged.append(model.weight.numpy().copy()) or {"x": 0.0},
    )  # fmt: skip
    average = t.model.weight.numpy().copy()
    t.fit(steps=5)
    for step, w in enumerate(weights, 1):
        d = min(0.5, (1 + step) / (10 + step))
        average = average * d + w * (1 - d)
    np.testing.assert_allclose(judged[0], average, rtol=1e-5)
    np.testing.assert_array_equal(t.model.weight.numpy(), weights[-1])


def test_norms_are_recorded(tmp_path):
    t = trainer(model=nn.Linear(3, 1), callbacks=[train.Norms(every=3)], folder=tmp_path, clip=1e-3)
    before = []
    own = t.optimizer.step

    def step():
        before.append([p.numpy().copy() for p in t.model.parameters()])
        own()

    t.optimizer.step = step
    t.fit(steps=3)
    lines = t.folder.metrics()
    assert "weight_norm" not in lines[1]
    norm = math.sqrt(sum((p.numpy() ** 2).sum() for p in t.model.parameters()))
    change = [p.numpy() - q for p, q in zip(t.model.parameters(), before[2], strict=True)]
    moved = math.sqrt(sum((x**2).sum() for x in change))
    assert lines[2]["weight_norm"] == pytest.approx(norm, rel=1e-5)
    assert lines[2]["update_ratio"] == pytest.approx(moved / norm, rel=1e-3)
    assert lines[2]["gradient_norm"] > 0.1  # before it was clipped


# ---- saving while the training goes on -------------------------------------------------


@pytest.mark.parametrize("how", ["steps", "groups", "compiled", "own"])
def test_nothing_changes_before_the_state_is_copied(tmp_path, monkeypatch, how):
    """The copy is held up until it is asked for; the optimizer's own memory is what is saved."""
    asked, copyto = threading.Event(), np.copyto
    finish = Checkpoints.finish
    monkeypatch.setattr(np, "copyto", lambda a, b: (asked.wait(60), copyto(a, b)))
    monkeypatch.setattr(Checkpoints, "finish", lambda self: (asked.set(), finish(self)))
    save = Checkpoints.save_async
    monkeypatch.setattr(Checkpoints, "save_async", lambda *x: (asked.clear(), save(*x)))
    settings = {"groups": {"accumulate": 2}, "compiled": {"compile": lambda update: update}}
    if how == "own":
        settings[how] = {"step": lambda batch: t.optimizer.minimize(squares(t.model, batch)).item()}
        settings[how]["loss"] = None
    t = trainer(
        rule=optim.Adam, folder=tmp_path, save_every=1, keep=(9, 0), **settings.get(how, {})
    )
    moments = []

    class Notes(train.Callback):
        def step(self, t, out):
            moments.append(np.array(t.optimizer.state_dict()["m.0"]))

    t.callbacks.append(Notes())
    t.fit(steps=4)
    for step in (1, 2, 3, 4):
        found = t.folder.checkpoints.load(step=step)
        np.testing.assert_array_equal(found["optimizer"]["m.0"].numpy(), moments[step - 1])


def test_a_save_that_fails_later_is_told(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    class Fills(train.Callback):
        def step(self, t, out):
            if t.done == 2:
                t.folder.checkpoints.wait()
                monkeypatch.setattr(writer, "write_all", full)

        def evaluated(self, t, figures):
            if t.final:
                monkeypatch.undo()

    told = train.Progress()
    t = trainer(
        folder=tmp_path, save_every=1, callbacks=[Fills()], progress=told,
        evaluate=train.Evaluate(lambda model: {"error": 1.0}, every=100),
    )  # fmt: skip
    assert t.fit(steps=4).steps == 4
    said = [line for line in capsys.readouterr().out.splitlines() if "No space left" in line]
    assert said and "step 3: the checkpoint of step 2 was not saved" in said[0]
    assert t.folder.checkpoints.list()[-1].step == 1


# ---- what diverges -------------------------------------------------------------------


def test_a_loss_that_is_not_finite_changes_nothing():
    t = trainer(loss=lambda model, batch: squares(model, batch) / 0.0)
    before = bits(t)
    with pytest.raises(NonFiniteError, match=r"the loss is inf at step 1\n  try: a smaller"):
        t.fit(epochs=1)
    assert bits(t) == before


def test_an_update_that_diverges_in_the_last_step_is_a_failure(tmp_path):
    def rate(step):
        return 3e38 if step == 2 else 0.01

    t = trainer(folder=tmp_path)
    t.optimizer.lr = rate
    with pytest.raises(NonFiniteError, match="parameter '1.(weight|bias)' is not finite after"):
        t.fit(steps=3) if math.isfinite(t.optimizer.lr(0)) else None
    state = train.Folder(tmp_path).load_checkpoint()
    assert all(np.isfinite(x.numpy()).all() for x in state["model"].values())


def test_a_figure_that_is_not_finite_is_a_failure(tmp_path):
    t = trainer(evaluate=lambda model: {"error": math.nan}, folder=tmp_path)
    with pytest.raises(NonFiniteError, match="the figure 'error' is nan after step 2"):
        t.fit(steps=2)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert '"error": "nan"' in text and "NaN" not in text
    assert math.isnan(t.folder.metrics()[-1]["error"])
    trainer(evaluate=lambda model: {"error": math.inf}, check_finite=False).fit(steps=2)


# ---- going on ------------------------------------------------------------------------


class StopsAt(train.Stop):
    """Stops when it is asked for the n-th time."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise train.Stopped(signal.SIGTERM)


def everything(folder, stop=None, seed=True):
    if not seed:
        ops.random.manual_seed(None)
        np.random.seed(3)
    return train.Trainer(
        model := nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 1)),
        optim.Adam(model.parameters(), lr=optim.Cosine(0.1, 9)), squares, data(rows=22),
        evaluate=train.Evaluate(
            lambda model: {"error": float((model[1].weight**2).sum().item())}, 2
        ),
        accumulate=2, ema=0.9, callbacks=[train.EarlyStopping(9), train.Best()], folder=folder,
        progress=QUIET, stop=stop,
    )  # fmt: skip


@looped("seed", [True, False])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path, seed):
    ndl.manual_seed(2)
    whole = everything(tmp_path / f"whole{seed}", seed=seed)
    expected = whole.fit(epochs=3)
    for after in (1, 3, 4, 6, 9) if seed else (5,):
        ndl.manual_seed(2)
        folder = tmp_path / f"{after}{seed}"
        assert everything(folder, StopsAt(after), seed).fit(epochs=3).stopped == signal.SIGTERM
        np.random.seed(after)  # another process begins with other numbers
        found = everything(folder, seed=seed)
        assert found.fit(epochs=3, resume=True).figures == expected.figures
        assert bits(found) == bits(whole)
        for a, b in itertools.zip_longest(found.folder.metrics(), whole.folder.metrics()):
            assert {k: v for k, v in a.items() if "second" not in k} == {
                k: v for k, v in b.items() if "second" not in k
            }


def test_a_folder_without_a_checkpoint_begins_anew(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"split": "train", "step": 1}\n')
    (tmp_path / ".weights.safetensors.0011.part").touch()
    t = trainer(folder=tmp_path)
    t.fit(steps=1, resume=True)
    assert len(t.folder.metrics()) == 1 and "loss" in t.folder.metrics()[0]
    assert not list(tmp_path.glob(".*.part"))
    assert train.Folder(tmp_path).load_checkpoint()["run"]["step"] == 1


def test_the_first_checkpoint_comes_before_the_first_batch(tmp_path):
    def loss(model, batch):
        assert train.Folder(tmp_path).load_checkpoint()["run"]["step"] == 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(loss=loss, folder=tmp_path).fit(epochs=1)


def test_what_a_trainer_refuses():
    with pytest.raises(OptionError, match="either a loss or a step"):
        trainer(loss=None)
    with pytest.raises(OptionError, match="accumulate >= 1, got 0"):
        trainer(accumulate=0)
    with pytest.raises(DataError, match="no batches"):
        trainer([]).fit(steps=1)
    with pytest.raises(OptionError, match="expected steps=N"):
        trainer(iter([])).fit(epochs=1)
    with pytest.raises(DataError, match="no batches"):
        trainer(iter([])).fit(steps=1)
    with pytest.raises(ArgumentError, match="expected a scalar tensor, got"):
        trainer(loss=lambda model, batch: model(batch[0])).fit(steps=1)

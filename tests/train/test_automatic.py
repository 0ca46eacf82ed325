"""Whether a trainer compiles by itself: only where nobody can tell, except by the time."""

from __future__ import annotations

import functools
import math
import random

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, optim, train
from needle.errors import NonFiniteError


class Settings:
    scale, calls = 1.0, 0


settings = Settings()
scale, calls, seen = 1.0, 0, []
table = np.ones(1, np.float32)


class Notes(train.Progress):
    """Remembers notes."""

    def __init__(self):
        super().__init__(quiet=True)
        self.notes = []

    def note(self, line):
        self.notes.append(line)


def plain(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def fit(loss=plain, model=None, compile=None, **more):
    """Return the bits of the weights after two passes, the notes, and the trainer."""
    global scale, calls
    scale, calls, settings.scale, settings.calls, table[0] = 1.0, 0, 1.0, 0, 1.0
    seen.clear()
    ndl.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((22, 3), np.float32)
    data = ndl.data.NDArrayDataset(x, x.sum(1, keepdims=True))
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 1)) if model is None else model()
    notes = Notes()
    t = train.Trainer(
        model, optim.Adam(model.parameters(), lr=0.05), loss,
        ndl.data.DataLoader(data, 8, shuffle=True, seed=0), progress=notes, compile=compile, **more,
    )  # fmt: skip
    t.fit(epochs=2)
    return [p.numpy().tobytes() for p in model.parameters()], notes.notes, t


# ---- what is compiled ------------------------------------------------------------------


class Runs(nn.Module):
    """Says how often it ran as Python; programs refuse to say."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        object.__setattr__(self, "ran", getattr(self, "ran", 0) + 1)  # hidden from compile
        return self.layer(x)


@looped("accumulate, programs", [(1, 2), (2, 3)])
def test_a_loss_of_tensors_is_compiled(accumulate, programs):
    """Programs are for batches of 8 and of 6; with two for an update, also for the second one."""
    bits, notes, t = fit(model=Runs, accumulate=accumulate)
    assert not notes
    assert t.model.ran == programs
    eager, _, t = fit(model=Runs, accumulate=accumulate, compile=False)
    assert t.model.ran == 6
    assert bits == eager


def test_an_own_step_is_compiled_too():
    found = []
    for compile in (None, False):
        ndl.manual_seed(1)
        model = Runs()
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(batch, model=model, optimizer=optimizer):
            loss = plain(model, batch)
            optimizer.minimize(loss)
            return loss

        bits, notes, _ = fit(None, lambda model=model: model, compile, step=step)
        assert not notes
        found.append((bits, model.ran))
    assert found[0] == (found[1][0], 2) and found[1][1] == 6


def test_gradients_are_there_after_a_step():
    found = []
    for compile in (None, False):
        kept = []
        each = Each(lambda t, kept=kept: kept.append(t.model.layer.weight.grad.numpy()))
        _, _, t = fit(model=Runs, compile=compile, callbacks=[each])
        found.append(kept)
        assert len(kept) == 6
    np.testing.assert_array_equal(*found)


# ---- what is not -------------------------------------------------------------------------


class Each(train.Callback):
    """Calls a function after each step."""

    def __init__(self, function):
        self.function = function

    def step(self, t, out):
        self.function(t)


def counts_a_global(model, batch):
    global calls
    calls += 1
    return plain(model, batch) / calls


def counts_in_an_object(model, batch):
    settings.calls += 1
    return plain(model, batch) / settings.calls


def appends(model, batch):
    seen.append(len(batch))
    return plain(model, batch)


def reads_then_counts(model, batch):
    settings.calls += 1
    loss = plain(model, batch)
    seen.append(loss.item())
    return loss


def of_a_global(model, batch):
    return plain(model, batch) * scale


def of_an_object(model, batch):
    return plain(model, batch) * settings.scale


def of_an_array(model, batch):
    return plain(model, batch) * ndl.Tensor(table)


def other(x):
    return x * scale


def of_another_function(model, batch):
    return other(plain(model, batch))


def of_an_argument(factor, model, batch):
    return plain(model, batch) * factor * scale


class Weighted:
    """A loss with a state of its own."""

    def __init__(self):
        self.number = 0

    def __call__(self, model, batch):
        self.number = self.number + 1
        return self.scaled(plain(model, batch))

    def scaled(self, loss):
        return loss / self.number


def closure():
    number = 0

    def loss(model, batch):
        nonlocal number
        number += 1
        return plain(model, batch) / number

    return loss


def with_a_default(model, batch, counted=[0]):  # noqa: B006
    counted[0] += 1
    return plain(model, batch) / counted[0]


def draws(model, batch):
    return plain(model, batch) * random.random()


def draws_by_numpy(model, batch):
    return plain(model, batch) * float(np.random.rand())


def prints(model, batch):
    print("loss")  # noqa: T201
    return plain(model, batch)


class Listed(nn.Module):
    """Counts in a list, which programs do not see."""

    def __init__(self):
        super().__init__()
        self.layer, self.number = nn.Linear(3, 1), [0]

    def forward(self, x):
        self.number[0] += 1
        return self.layer(x) / self.number[0]


class Hooked(nn.Module):
    """Has a hook that counts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.layer.register_forward_hook(lambda module, args, out: seen.append(1))

    def forward(self, x):
        return self.layer(x)


def smaller(t):
    global scale
    scale *= 0.9
    settings.scale *= 0.9
    table[0] *= 0.9


LOSSES = {
    "'calls' changes": counts_a_global,
    "'settings.calls' changes": counts_in_an_object,
    "'seen' changes": appends,
    "is read while the function is traced": reads_then_counts,
    "'scale' changes": of_a_global,
    "'settings.scale' changes": of_an_object,
    "'table' changes": of_an_array,
    "'number' changes": closure(),
    "'a default of with_a_default' changes": with_a_default,
    "the module random may": draws,
    "numpy.random draws": draws_by_numpy,
    "prints() calls print()": prints,
}


def made_new(loss):
    """Return a loss as if it had not been called."""
    with_a_default.__defaults__[0][0] = 0
    random.seed(0)
    np.random.seed(0)
    return closure() if loss.__name__ == "loss" else loss


@looped("why", LOSSES)
@looped("accumulate", [1, 2])
def test_what_changes_python_runs_as_python(why, accumulate, capsys):
    """The same weights, the same effects, and a line that says why."""
    found = []
    for compile in (None, False):
        loss = made_new(LOSSES[why])
        bits, notes, _ = fit(
            loss, compile=compile, accumulate=accumulate, callbacks=[Each(smaller)]
        )
        found.append((bits, calls, settings.calls, list(seen), capsys.readouterr().out))
        assert len(notes) == (compile is None) and all(why in line for line in notes)
    assert found[0] == found[1]


@looped("loss", [counts_a_global, of_a_global, of_an_array, with_a_default])
def test_these_losses_need_it(loss):
    """With ``compile=True`` they are trained otherwise."""
    made_new(loss)
    eager = fit(loss, compile=False, callbacks=[Each(smaller)])[0]
    made_new(loss)
    assert fit(loss, compile=True, callbacks=[Each(smaller)])[0] != eager


OTHERS = [
    (Weighted, None), (lambda: of_another_function, None), (lambda: plain, Listed),
    (lambda: plain, Hooked), (lambda: functools.partial(of_an_argument, 2.0), None),
]  # fmt: skip


@looped("make, model", OTHERS)
def test_objects_modules_hooks_and_partials_are_looked_at(make, model):
    found = []
    for compile in (None, False):
        bits, notes, _ = fit(make(), model, compile, callbacks=[Each(smaller)])
        found.append((bits, list(seen)))
        assert len(notes) == (compile is None)
    assert found[0] == found[1]


def test_an_optimizer_of_the_user_may_count():
    class Halving(optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, lr=0.1)
            self.rate = 0.1

        def step(self):
            self.rate /= 2
            for p in self.params:
                p.data = p.data - self.rate * p.grad

    found = []
    for compile in (None, False):
        ndl.manual_seed(0)
        model = nn.Linear(3, 1)
        x = ndl.ones(4, 3)
        t = train.Trainer(
            model, Halving(model.parameters()), plain, [(x, x.sum(1, keepdims=True))] * 4,
            compile=compile, progress=Notes(),
        )  # fmt: skip
        t.fit(epochs=1)
        found.append([p.numpy().tobytes() for p in model.parameters()])
    assert found[0] == found[1]


def test_an_error_of_the_loss_is_that_of_the_loss():
    def wrong(model, batch):
        return plain(model, batch) + missing  # noqa: F821

    with pytest.raises(NameError, match="missing"):
        fit(wrong)


@looped("accumulate", [1, 2])
def test_a_loss_that_is_not_finite_is_no_reason(accumulate):
    model, notes = nn.Linear(3, 1), Notes()
    bad = (ndl.full((4, 3), math.nan), ndl.ones(4, 1))
    t = train.Trainer(
        model, optim.SGD(model.parameters(), lr=0.01), plain, [bad], progress=notes,
        accumulate=accumulate,
    )  # fmt: skip
    with pytest.raises(NonFiniteError):
        t.fit(epochs=1)
    assert not notes.notes


def test_many_sizes_of_batches_are_all_trained():
    """Those without a program run as they are."""
    sizes = [(ndl.ones(n, 3), ndl.ones(n, 1)) for n in range(1, 80)]
    found = []
    for compile in (None, False):
        ndl.manual_seed(0)
        model, notes = nn.Linear(3, 1), Notes()
        t = train.Trainer(
            model, optim.SGD(model.parameters(), lr=0.01), plain, sizes,
            compile=compile, progress=notes,
        )  # fmt: skip
        t.fit(epochs=2)
        found.append([p.numpy().tobytes() for p in model.parameters()])
        assert len(notes.notes) == (compile is None)
    assert found[0] == found[1]


def test_values_that_are_no_numbers_compare():
    """NaN is the same number as before."""
    global scale
    nan = math.nan

    def loss(model, batch):
        return plain(model, batch) if math.isnan(nan) else None

    assert not fit(loss)[1]

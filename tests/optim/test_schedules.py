"""Rates that change: schedules, and plateaus of a loss."""

import math
import pickle

import numpy as np
import pytest
from small_updates import parameter

import needle as ndl
from needle import optim
from needle.errors import ArgumentError, DataError, OptionError


def test_the_optimizer_owns_its_schedule():
    p = parameter([0.0])
    opt = optim.SGD([p], lr=optim.Chain((1.0, 2), 10.0))
    seen = []
    for _ in range(4):
        p.grad = ndl.Tensor([-1.0])
        seen.append(opt.current_lr)
        opt.step()
    assert seen == [1.0, 1.0, 10.0, 10.0] and p.item() == 22.0


def test_schedules():
    assert [optim.Constant(0.3)(t) for t in (0, 9)] == [0.3, 0.3]
    assert [optim.Step(1.0, 2, 0.5)(t) for t in range(5)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert [optim.Linear(1.0, 0.0, 4)(t) for t in (0, 1, 4, 9)] == [1.0, 0.75, 0.0, 0.0]
    cosine = optim.Cosine(1.0, 10, end=0.2)
    np.testing.assert_allclose([cosine(t) for t in (0, 5, 10, 99)], [1.0, 0.6, 0.2, 0.2])
    assert cosine(3) == 0.2 + 0.8 * 0.5 * (1 + math.cos(0.3 * math.pi))
    warm = optim.Warmup(4, optim.Linear(2.0, 0.0, 2))
    assert [warm(t) for t in range(7)] == [0.5, 1.0, 1.5, 2.0, 2.0, 1.0, 0.0]
    assert [optim.Warmup(2, 1.0)(t) for t in range(3)] == [0.5, 1.0, 1.0]
    cycle = optim.OneCycle(1.0, 20, end=100.0)
    np.testing.assert_allclose([cycle(t) for t in (0, 5, 19, 99)], [0.04, 1.0, 4e-4, 4e-4])
    assert optim.Polynomial(1.0, 4)(9) == 0.0 and optim.Restarts(1.0, 3)(3 * 10**9) == 1.0
    chain = optim.Chain((optim.Linear(1.0, 0.0, 2), 2), (0.5, 1), (optim.Constant(7.0), 1))
    assert [chain(t) for t in range(6)] == [1.0, 0.5, 0.5, 7.0, 7.0, 7.0]


SCHEDULES = {
    "StepLR": (optim.Step(0.3, 4, 0.5), {"step_size": 4, "gamma": 0.5}),
    "MultiStepLR": (optim.Milestones(0.3, [9, 5, 5], 0.5), {"milestones": [9, 5, 5], "gamma": 0.5}),
    "ExponentialLR": (optim.Exponential(0.3, 0.9), {"gamma": 0.9}),
    "PolynomialLR": (optim.Polynomial(0.3, 12, 2.0), {"total_iters": 12, "power": 2.0}),
    "CosineAnnealingWarmRestarts": (optim.Restarts(0.3, 4, 2, 0.1),
                                    {"T_0": 4, "T_mult": 2, "eta_min": 0.1}),
    "CosineAnnealingWarmRestarts of one length": (optim.Restarts(0.3, 4), {"T_0": 4}),
    "OneCycleLR": (optim.OneCycle(0.3, 31), {"max_lr": 0.3, "total_steps": 31}),
    "OneCycleLR with another peak": (
        optim.OneCycle(0.3, 32, 0.55, 4.0, 10.0),
        {"max_lr": 0.3, "total_steps": 32, "pct_start": 0.55, "div_factor": 4.0,
         "final_div_factor": 10.0},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:To get the last learning rate")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    ours, settings = SCHEDULES[name]
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = getattr(torch.optim.lr_scheduler, name.split()[0])(other, **settings)
    for step in range(31):
        exact = other.param_groups[0]["lr"]
        np.testing.assert_allclose(ours(step), exact, rtol=1e-9, atol=1e-15)
        other.step()
        if step < 30:
            theirs.step()
    assert ours == pickle.loads(pickle.dumps(ours))


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.Restarts(1.0, 0),
        lambda: optim.Restarts(1.0, 3, 0.5),
        lambda: optim.Polynomial(1.0, 0),
        lambda: optim.OneCycle(1.0, 3),
        lambda: optim.OneCycle(1.0, 10, peak=1.0),
        lambda: optim.OneCycle(1.0, 10, start=0.0),
        lambda: optim.Cosine(1.0, 0),
        lambda: optim.Warmup(0, 1.0),
        lambda: optim.Step(1.0, -1),
        lambda: optim.Chain(0.1, 0.2),
        lambda: optim.Chain(),
        lambda: optim.Chain((0.1, 0), 0.2),
    ],
)
def test_schedules_refuse_what_has_no_length(make):
    with pytest.raises(OptionError):
        make()


PLATEAUS = [
    {}, {"mode": "max"}, {"patience": 0, "factor": 0.5}, {"cooldown": 3, "patience": 1},
    {"threshold": 0.1, "threshold_mode": "abs"}, {"threshold": 0.5, "patience": 2},
    {"patience": 0, "factor": 0.1, "min_lr": 1e-3}, {"patience": 0, "factor": 0.0},
    {"mode": "max", "threshold": 0.2, "threshold_mode": "abs", "patience": 1},
]  # fmt: skip


@pytest.mark.parametrize("settings", PLATEAUS)
@pytest.mark.parametrize("own", [False, True])
def test_rates_fall_on_a_plateau_as_pytorchs_and_from_a_state(settings, own):
    torch = pytest.importorskip("torch")
    ours = [parameter([1.0]), parameter([2.0])]
    theirs = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]

    def groups(params):
        return [{"params": [params[0]]}, {"params": [params[1]], **({"lr": 0.3} if own else {})}]

    opt, other = optim.SGD(groups(ours), lr=0.1), torch.optim.SGD(groups(theirs), lr=0.1)
    plateau = optim.ReduceLROnPlateau(opt, **{"patience": 3, **settings})
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **{"patience": 3, **settings})
    metrics = np.random.default_rng(2).normal(size=60) + 1 / np.arange(1, 61)
    metrics[[0, 20]] = np.nan
    for i, metric in enumerate(metrics):
        plateau.step(ndl.Tensor(metric) if i % 2 else metric)
        scheduler.step(float(np.float32(metric)) if i % 2 else metric)
        assert [group["lr"] for group in opt.param_groups] == [
            group["lr"] for group in other.param_groups
        ]
        assert ("lr" in opt.groups[0]) is False  # the optimizer's own rate
        if i == 30:
            state, rates = plateau.state_dict(), opt.state_dict()
            opt = optim.SGD(groups(ours), lr=0.1)
            opt.load_state_dict(rates)
            plateau = optim.ReduceLROnPlateau(opt, **{"patience": 3, **settings})
            plateau.load_state_dict(state)
    assert opt.current_lr < 0.1


def test_a_plateau_is_saved_before_its_first_step_too(tmp_path):
    opt = optim.SGD([parameter([1.0])], lr=0.1)
    for mode in ("min", "max"):
        plateau = optim.ReduceLROnPlateau(opt, mode, patience=0)
        for metric in (0.5, 0.5, 0.75):
            ndl.io.save(tmp_path / "plateau", plateau.state_dict())
            plateau = optim.ReduceLROnPlateau(opt, mode, patience=0)
            plateau.load_state_dict(ndl.io.load(tmp_path / "plateau"))
            plateau.step(metric)
    assert opt.lr == pytest.approx(0.1 * 0.1**3)


def test_a_plateau_says_what_does_not_fit():
    opt = optim.SGD([parameter([1.0])], lr=0.1)
    plateau = optim.ReduceLROnPlateau(opt)
    for settings, message in (
        ({"mode": "mean"}, "unknown mode 'mean'"), ({"factor": 1.0}, "factor=1.0"),
        ({"factor": math.nan}, "factor=nan"), ({"patience": -1}, "patience=-1"),
        ({"threshold_mode": "rell"}, "did you mean 'rel'"), ({"min_lr": -1.0}, "min_lr=-1.0"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            optim.ReduceLROnPlateau(opt, **settings)
    with pytest.raises(ArgumentError, match="patience is 1.5"):
        optim.ReduceLROnPlateau(opt, patience=1.5)
    with pytest.raises(ArgumentError, match="metric is 'low'"):
        plateau.step("low")
    with pytest.raises(OptionError, match="expected an optimizer, got list"):
        optim.ReduceLROnPlateau([])
    for state in ({}, {**plateau.state_dict(), "best": "a"}, {**plateau.state_dict(), "x": 1},
                  {**plateau.state_dict(), "num_bad_epochs": -1}):  # fmt: skip
        with pytest.raises(DataError, match="load_state_dict"):
            plateau.load_state_dict(state)
    opt.groups[0]["lr"], opt.lr = 0.2, optim.Cosine(0.1, 10)
    for _ in range(12):
        plateau.step(1.0)  # the schedule is nobody's
    assert opt.current_lr == pytest.approx(0.02)
    del opt.groups[0]["lr"]
    for call in (lambda: plateau.step(1.0), lambda: optim.ReduceLROnPlateau(opt)):
        with pytest.raises(OptionError, match="is a schedule"):
            call()


def test_a_step_in_the_courses_style_advances_its_schedule():
    class Descent(optim.Optimizer):
        numbers = ("lr",)

        def step(self):
            for p in self.params:
                p.data = p.data - self.current_lr * p.grad.data

    class Noted(Descent):
        def step(self):
            super().step()
            seen.append(self.t)

    seen = []
    p = parameter([0.0])
    p.grad = ndl.Tensor([-1.0])
    for kind in (Descent, Noted):
        opt = kind([p], lr=optim.Chain((1.0, 2), 10.0))
        for _ in range(3):
            opt.step()
        assert opt.t == 3
    assert p.item() == 24.0 and seen == [1, 2, 3]

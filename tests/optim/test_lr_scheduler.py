"""PyTorch's schedulers: the same rates in each step, alone, together and after changes by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from beside_pytorch import needs_torch
from looped import looped

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, DataError, OptionError
from needle.optim import lr_scheduler as ours

try:
    import torch
    from torch.optim import lr_scheduler as theirs
except ImportError:
    torch = theirs = None

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda lib, o: lib.StepLR(o, 4, 0.5),
    "milestones": lambda lib, o: lib.MultiStepLR(o, [3, 7, 7, 12], 0.5),
    "exponential": lambda lib, o: lib.ExponentialLR(o, 0.9),
    "constant": lambda lib, o: lib.ConstantLR(o, 0.4, 6),
    "linear": lambda lib, o: lib.LinearLR(o, 0.2, 0.8, 7),
    "polynomial": lambda lib, o: lib.PolynomialLR(o, 9, 2.0),
    "cosine": lambda lib, o: lib.CosineAnnealingLR(o, 6, 0.01),
    "restarts": lambda lib, o: lib.CosineAnnealingWarmRestarts(o, 4, 2, 0.01),
    "lambda": lambda lib, o: lib.LambdaLR(o, lambda step: 0.9**step),
    "lambdas": lambda lib, o: lib.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1.0]),
    "multiplicative": lambda lib, o: lib.MultiplicativeLR(o, lambda step: 0.9),
    "one cycle": lambda lib, o: lib.OneCycleLR(o, 0.5, total_steps=20),
    "three phases": lambda lib, o: lib.OneCycleLR(
        o, [0.5, 0.2], epochs=4, steps_per_epoch=5, three_phase=True, anneal_strategy="linear"
    ),
    "no rise": lambda lib, o: lib.OneCycleLR(o, 0.5, 20, pct_start=0.0, cycle_momentum=False),
    "sequence": lambda lib, o: lib.SequentialLR(
        o, [lib.LinearLR(o, 0.1, total_iters=5), lib.CosineAnnealingLR(o, 9)], [5]
    ),
    "sequence of three": lambda lib, o: lib.SequentialLR(
        o, [lib.ConstantLR(o, 0.1, 5), lib.ExponentialLR(o, 0.9), lib.StepLR(o, 3)], [4, 11]
    ),
    "chained": lambda lib, o: lib.ChainedScheduler(
        [lib.ConstantLR(o, 0.3, 6), lib.ExponentialLR(o, 0.9)]
    ),
    "two": lambda lib, o: [lib.LinearLR(o, 0.3, total_iters=6), lib.CosineAnnealingLR(o, 8, 1e-3)],
    "two more": lambda lib, o: [lib.ExponentialLR(o, 0.9), lib.StepLR(o, 5, 0.5)],
}


def mine(groups: int = 1) -> Any:
    params = [nn.Parameter(ndl.ones(2)) for _ in range(groups)]
    if groups == 1:
        return optim.Momentum(params, lr=0.1, momentum=0.9)
    return optim.Momentum([{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(params)])


def other(groups: int) -> Any:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(groups)]
    each = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(params)]
    return torch.optim.SGD(each, lr=0.1, momentum=0.9)


def followed(lib: Any, optimizer: Any, make: Any, change: int | None) -> list[list[float]]:
    """Return rates and momentum in 20 steps; at step ``change`` rates are changed by hand."""
    made = make(lib, optimizer)
    rates = []
    for i in range(20):
        groups = optimizer.param_groups
        rates.append([x for group in groups for x in (group["lr"], group["momentum"])])
        if i == change:
            for group in groups:
                group["lr"] = group["lr"] * 0.3
        optimizer.step()
        for scheduler in made if isinstance(made, list) else [made]:
            scheduler.step()
    return rates


@needs_torch
@pytest.mark.filterwarnings("ignore::UserWarning")
@looped("name", CASES)
@looped("groups, change", [(2, None), (2, 3), (1, None), (1, 9)])
def test_rates_are_pytorchs(name, groups, change):
    if groups == 1 and name in ("lambdas", "three phases"):
        return
    found = followed(ours, mine(groups), CASES[name], change)
    expected = followed(theirs, other(groups), CASES[name], change)
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        for x, y in zip(one, two, strict=True):
            assert math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-15), (step, one, two)


def test_the_optimizers_own_rate_moves_where_groups_have_none():
    optimizer = mine()
    scheduler = ours.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.lr == optimizer.current_lr == 0.05 and "lr" not in optimizer.groups[0]
    optimizer.lr = 0.2
    scheduler.step()
    assert [optimizer.current_lr] == scheduler.get_last_lr() == [pytest.approx(0.1)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@looped("name", CASES)
def test_a_state_continues_the_rates(name):
    def run(steps, states=None):
        optimizer = mine(2)
        made = CASES[name](ours, optimizer)
        made = made if isinstance(made, list) else [made]
        if states is not None:
            optimizer.load_state_dict(states[0])
            for scheduler, state in zip(made, states[1], strict=True):
                scheduler.load_state_dict(state)
        rates = []
        for _ in range(steps):
            for scheduler in made:
                scheduler.step()
            rates.append([group["lr"] for group in optimizer.groups])
        return rates, (optimizer.state_dict(), [scheduler.state_dict() for scheduler in made])

    whole, _ = run(14)
    first, states = run(6)
    assert first + run(8, states)[0] == whole


def test_warm_restarts_take_parts_of_epochs_and_own_schedulers_work():
    optimizer = mine()
    scheduler = ours.CosineAnnealingWarmRestarts(optimizer, 4)
    scheduler.step(2.5)
    expected = 0.05 * (1 + math.cos(math.pi * 2.5 / 4))
    assert math.isclose(optimizer.lr, expected) and scheduler.last_epoch == 2

    class Halved(ours.LRScheduler):
        def get_lr(self):
            return [base * 0.5**self.last_epoch for base in self.base_lrs]

    optimizer = mine()
    scheduler = Halved(optimizer)
    optimizer.step()
    scheduler.step()
    assert optimizer.lr == 0.05
    assert ours.ReduceLROnPlateau(optimizer).get_last_lr() == [0.05]


def test_the_wrong_order_warns():
    optimizer = mine()
    scheduler = ours.ExponentialLR(optimizer, 0.5)
    with pytest.warns(UserWarning, match=r"call optimizer.step\(\) first"):
        scheduler.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrong_arguments():
    optimizer = mine(2)
    step = ours.StepLR(optimizer, 2)
    for wrong, error, message in (
        (lambda: ours.StepLR([1], 2), ArgumentError, "expected an optimizer"),
        (lambda: ours.StepLR(mine(), 0), OptionError, "every=0 must be positive"),
        (lambda: ours.StepLR(mine(), 2, last_epoch=3), OptionError, "load_state_dict"),
        (lambda: ours.LinearLR(mine(), 0.0), OptionError, "start_factor=0"),
        (lambda: ours.ConstantLR(mine(), 2.0), OptionError, "factor=2.0"),
        (lambda: ours.LambdaLR(optimizer, [abs]), OptionError, "1 values for 2 groups"),
        (lambda: ours.OneCycleLR(mine(), 0.1), OptionError, "total_steps=0"),
        (lambda: ours.OneCycleLR(mine(), 0.1, 9, anneal_strategy="cosine"), OptionError, "cos"),
        (lambda: ours.SequentialLR(optimizer, [step], [3]), OptionError, "1 milestones for 1"),
        (lambda: ours.SequentialLR(mine(), [step], []), OptionError, "of the same optimizer"),
        (lambda: ours.ChainedScheduler([]), OptionError, "at least one scheduler"),
        (lambda: step.load_state_dict({"last_epoch": 1}), DataError, "rule: last_epoch, base_lrs"),
        (lambda: step.load_state_dict(ours.StepLR(mine(), 2).state_dict()), DataError, "2 values"),
    ):
        with pytest.raises(error, match=message):
            wrong()
    scheduled = optim.SGD([nn.Parameter(ndl.ones(1))], lr=optim.Cosine(0.1, 9))
    with pytest.raises(OptionError, match="lr is a schedule"):
        ours.StepLR(scheduled, 2)
    adagrad = optim.Adagrad([nn.Parameter(ndl.ones(1))])
    with pytest.raises(OptionError, match="Adagrad has no momentum"):
        ours.OneCycleLR(adagrad, 0.1, 9)
    optimizer.add_param_group({"params": [nn.Parameter(ndl.ones(1))]})
    with pytest.raises(OptionError, match="after the last group"):
        step.step()
    done = ours.OneCycleLR(mine(), 0.1, 3)
    with pytest.raises(OptionError, match="step 4 of 3"):
        for _ in range(4):
            done.step()

"""Optimizers refuse what does not fit before anything changes."""

import math

import numpy as np
import pytest
from small_updates import parameter

import needle as ndl
from needle import nn, optim
from needle.errors import OptionError, ShapeError


def test_a_parameter_listed_twice_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    ps = model.parameters()
    with pytest.raises(OptionError, match=r'parameters 0 and 4 .*\n.*"0.weight"'):
        optim.SGD([*ps, ps[0]])
    with pytest.raises(OptionError, match="0.weight"):
        optim.SGD([{"params": ps}, {"params": ps[0]}])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: optim.SGD([]), "no parameters"),
        (lambda: optim.SGD(nn.Linear(2, 1)), r"model\.parameters\(\)"),
        (lambda: optim.SGD(parameter([1.0])), "list of tensors"),
        (lambda: optim.SGD([1.0]), "float"),
        (lambda: optim.SGD([{"lr": 1.0}]), '"params"'),
        (lambda: optim.SGD([{"params": [], "momentun": 1.0}]), "did you mean 'momentum'"),
        (lambda: optim.SGD([parameter([1.0]) * 2.0]), "not a leaf"),
        (lambda: optim.SGD([parameter([1.0])], nesterov=True), "nesterov"),
        (
            lambda: optim.SGD([parameter([1.0])], momentum=0.9, nesterov=True, dampening=0.5),
            "nesterov",
        ),
        (lambda: optim.Adam([parameter([1.0])], beta1=1.0), "beta1"),
        (lambda: optim.AdamW([parameter([1.0])], betas=(0.9, 1.0)), "AdamW: beta2=1.0"),
        (
            lambda: optim.Adam([parameter([1.0])], betas=(0.9,)),
            r"Adam: expected two betas, got \(0.9,\)",
        ),
        (lambda: optim.RMSprop([parameter([1.0])], alpha=-0.1), "alpha"),
        (lambda: optim.Adagrad([parameter([1.0])], lr_decay=-1), "Adagrad: lr_decay=-1"),
        (
            lambda: optim.Adagrad([parameter([1.0])], initial_accumulator_value=-0.1),
            "initial_accumulator_value=-0.1",
        ),
        (lambda: optim.SGD(None), "expected a list of tensors, got None"),
        (lambda: optim.SGD([ndl.zeros(3)]), "parameter 0 has requires_grad=False"),
        (lambda: optim.SGD([parameter([1.0])], lr=-1), r"SGD: lr=-1 is outside \[0, inf\)"),
        (lambda: optim.SGD([parameter([1.0])], lr=math.nan), "lr=nan"),
        (lambda: optim.SGD([parameter([1.0])], lr="0.1"), "expected a number for lr, got '0.1'"),
        (lambda: optim.SGD([parameter([1.0])], lr=None), "expected a number for lr, got None"),
        (lambda: optim.SGD([parameter([1.0])], momentum=2.0), r"momentum=2.0 is outside \[0, 1\)"),
        (lambda: optim.SGD([parameter([1.0])], momentum=-1), "momentum=-1"),
        (lambda: optim.SGD([parameter([1.0])], weight_decay=-1), "weight_decay=-1"),
        (lambda: optim.Adam([parameter([1.0])], eps=-1), "eps=-1"),
        (lambda: optim.Adam([{"params": [parameter([1.0])], "beta1": 2.0}]), "beta1=2.0"),
        (lambda: optim.SGD([{"params": [parameter([1.0])], "nesterov": True}]), "nesterov"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda opt: setattr(opt, "nesterov", True), "nesterov with momentum=0.0, dampening=None"),
        (lambda opt: setattr(opt, "lr", -0.5), "lr=-0.5"),
        (lambda opt: setattr(opt, "lr", lambda step: math.nan), "lr=nan"),
        (lambda opt: opt.param_groups[1].update(lr=-0.5), "lr=-0.5"),
    ],
)
def test_wrong_numbers_that_come_later_are_refused_before_anything_changes(change, message):
    p, q = parameter([1.0]), parameter([1.0])
    opt = optim.SGD([{"params": [p]}, {"params": [q]}])
    p.grad = q.grad = ndl.Tensor([1.0])
    change(opt)
    with pytest.raises(OptionError, match=message):
        opt.step()
    assert (p.item(), q.item(), opt.t) == (1.0, 1.0, 0)


def test_frozen_parameters_may_learn_later():
    model = nn.Linear(1, 1).requires_grad_(False)
    opt = optim.SGD(model.parameters(), lr=1.0)
    model.requires_grad_()
    before = model.bias.item()
    opt.minimize(model(ndl.ones(1, 1)).sum())
    assert model.bias.item() == pytest.approx(before - 1.0)


def test_betas_are_two_in_one():
    for rule in (optim.Adam, optim.AdamW):
        opt = rule([parameter([1.0])], betas=(0.5, 0.75))
        assert (opt.beta1, opt.beta2) == (0.5, 0.75)
        group = {"params": [parameter([1.0])], "betas": (0.25, 0.5)}
        opt = rule([group, {"params": [parameter([1.0])]}], beta1=0.75)
        assert [g["beta1"] for g in opt.param_groups] == [0.25, 0.75] and "betas" in group
        with pytest.raises(OptionError, match="expected two betas, got 0.5"):
            rule([{**group, "betas": 0.5}])


def test_a_gradient_of_another_shape_is_refused_before_anything_changes():
    model = nn.Linear(2, 3)
    opt = optim.Adam(model.parameters())
    before = model.weight.numpy()
    model.weight.grad = ndl.zeros(2, 3)
    model.bias.grad = ndl.zeros(3)
    with pytest.raises(ShapeError, match='parameter "bias"'):
        opt.step()
    assert opt.t == 0
    np.testing.assert_array_equal(model.weight.numpy(), before)


def test_gradients_may_become_zeros():
    p, q = parameter([1.0, 2.0]), parameter([1.0])
    opt = optim.SGD([p, q])
    p.grad = ndl.Tensor([1.0, 1.0])
    opt.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0, 0.0] and q.grad is None
    opt.zero_grad(set_to_none=True)
    assert p.grad is None


@pytest.mark.parametrize("value", ["no", 0, None, []])
@pytest.mark.parametrize(
    "kind, name",
    [(optim.SGD, "maximize"), (optim.SGD, "nesterov"), (optim.Adam, "amsgrad"),
     (optim.RMSprop, "centered")],
)  # fmt: skip
def test_flags_are_true_or_false(kind, name, value):
    with pytest.raises(OptionError, match=f"expected True or False for {name}"):
        kind([nn.Parameter(ndl.ones(2))], **{name: value})

"""Groups of parameters have numbers of their own."""

import pickle

import numpy as np
import pytest
from small_updates import gradients, parameter

import needle as ndl
from needle import nn, optim
from needle.errors import OptionError


def test_groups_have_numbers_of_their_own():
    a, b, c = parameter([1.0]), parameter([1.0]), parameter([1.0])
    opt = optim.SGD([{"params": [a], "lr": 0.5}, {"params": [b, c], "weight_decay": 1.0}], lr=0.1)
    for p in (a, b, c):
        p.grad = ndl.Tensor([1.0])
    opt.step()
    np.testing.assert_allclose([p.item() for p in (a, b, c)], [0.5, 0.8, 0.8], rtol=1e-6)
    opt.lr = 0.0
    opt.step()
    np.testing.assert_allclose([p.item() for p in (a, b, c)], [0.0, 0.8, 0.8], atol=1e-6)


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam, optim.RMSprop, optim.Adagrad])
def test_a_group_that_is_added_starts_then_and_the_others_go_on(rule):
    grads = gradients((2,))
    steps = [ndl.Tensor(g, requires_grad=False) for g in grads]
    p, q = parameter([1.0, 2.0]), parameter([3.0, 4.0])
    opt = rule([p], lr=0.1)
    for step, g in enumerate(steps):
        if step == 2:
            opt.add_param_group({"params": (x for x in [q]), "lr": 0.2})
        p.grad, q.grad = g, g
        opt.step()
    alone = [parameter([1.0, 2.0]), parameter([3.0, 4.0])]
    for x, lr, since in zip(alone, (0.1, 0.2), (steps, steps[2:]), strict=True):
        single = rule([x], lr=lr)
        for g in since:
            x.grad = g
            single.step()
    np.testing.assert_array_equal((p.numpy(), q.numpy()), [x.numpy() for x in alone])
    again = rule([{"params": [p]}, {"params": [q], "lr": 0.5}], lr=0.1)
    again.load_state_dict(opt.state_dict())
    for other in (opt, again):
        p.data, q.data = alone[0], alone[1]
        other.step()
        alone.append((p.numpy(), q.numpy()))
    np.testing.assert_array_equal(alone[2], alone[3])


def test_groups_that_cannot_be_added():
    p, q = parameter([1.0]), parameter([2.0])
    opt = optim.Adam([p])
    for group, message in (
        ({"params": [q, p]}, "parameters 0 and 2 are the same tensor"),
        ({"params": [q], "rate": 0.1}, "unknown setting of a group 'rate'"),
        ({"params": [q], "lr": -1.0}, "lr=-1.0 is outside"),
        ({"params": [q], "betas": (0.9, 2.0)}, "beta2=2.0 is outside"),
        ({"params": [q * 2.0]}, "parameter 1 is the result of multiply"),
        ([q], "parameter 1: expected a tensor, got list"),
    ):
        with pytest.raises(OptionError, match=message):
            opt.add_param_group(group)
    assert len(opt.groups) == 1 and opt.params == [p]
    opt.add_param_group({"params": q, "betas": (0.25, 0.5)})
    assert (opt.groups[1]["beta1"], opt.groups[1]["lr"]) == (0.25, 0.01)


def test_groups_give_and_take_numbers_as_pytorchs():
    p, q = parameter([1.0]), parameter([1.0])
    opt = optim.SGD([{"params": [p], "lr": 0.5}, {"params": [q]}], lr=0.1)
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.1]
    assert [group["momentum"] for group in opt.param_groups] == [0.0, 0.0]
    with pytest.raises(KeyError):
        opt.param_groups[0]["beta1"]
    opt.lr = 0.2
    assert opt.param_groups[1]["lr"] == 0.2  # it has none of its own yet
    for group in opt.param_groups:
        group["lr"] *= 0.5
    p.grad = q.grad = ndl.Tensor([1.0])
    opt.step()
    assert (p.item(), q.item()) == pytest.approx((0.75, 0.9))
    copied = pickle.loads(pickle.dumps(opt))
    assert [group["lr"] for group in copied.param_groups] == [0.25, 0.1]


def test_groups_may_come_from_a_generator():
    p = nn.Parameter(ndl.ones(2))
    made = optim.Adam(group for group in [{"params": [p], "betas": np.array([0.5, 0.75])}])
    assert made.groups[0]["beta2"] == 0.75
    for wrong in (3, None, nn.Linear(2, 2)):
        with pytest.raises(OptionError, match="expected a list of tensors"):
            optim.Adam([{"params": wrong}])

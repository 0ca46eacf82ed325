"""The state of an optimizer: a resumed run is the same run."""

import numpy as np
import pytest
from small_updates import RULES, gradients, parameter

import needle as ndl
from needle import nn, optim
from needle.errors import DataError


@pytest.mark.parametrize("name", RULES)
def test_a_run_resumed_from_its_state_is_the_same_to_the_last_bit(name):
    make, _ = RULES[name]
    grads = gradients((4, 3), 6)

    def go(p, opt, grads):
        for g in grads:
            p.grad = ndl.Tensor(g)
            opt.step()

    p = parameter(np.ones((4, 3)))
    opt = make([p])
    go(p, opt, grads[:3])
    weights, state = p.numpy(), opt.state_dict()
    go(p, opt, grads[3:])
    q = parameter(weights)
    again = make([q])
    again.load_state_dict(state)
    assert again.t == 3
    go(q, again, grads[3:])
    np.testing.assert_array_equal(q.numpy(), p.numpy())


def test_state_is_numbers_and_tensors_and_a_snapshot():
    p = parameter([1.0, 2.0])
    opt = optim.Adam([{"params": [p], "lr": 0.5}], weight_decay=0.1)
    p.grad = ndl.Tensor([1.0, 1.0])
    opt.step()
    state = opt.state_dict()
    assert all(isinstance(v, (int, float, ndl.Tensor)) for v in state.values())
    assert state["step"] == 1 and state["group.0.lr"] == 0.5 and state["weight_decay"] == 0.1
    before = state["m.0"].numpy()
    opt.step()
    np.testing.assert_array_equal(state["m.0"].numpy(), before)


def test_loading_state_takes_its_numbers_but_keeps_schedules():
    p = parameter([1.0])
    old = optim.SGD([p], lr=0.5, momentum=0.8)
    new = optim.SGD([p], lr=optim.Constant(0.1), momentum=0.1)
    new.load_state_dict(old.state_dict())
    assert new.momentum == 0.8 and new.current_lr == 0.1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"m.7": np.zeros(2)}, "'m.7'"),
        ({"m.0": np.zeros(5)}, r"m\.0 is float64\[5\]"),
        ({"group.3.lr": 1.0}, "1 groups"),
        ({"nonsense": 1.0}, "'nonsense'"),
        ({"step": -1}, "step is -1"),
        ({"step": 1.5}, "step is 1.5"),
        ({"step": "x"}, "step is 'x'"),
        ({"lr": "abc"}, "expected a number for lr, got 'abc'"),
        ({"beta2": 1.0}, "beta2=1.0"),
        ({"group.0.eps": -1.0}, "eps=-1.0"),
        ({"t.7": 3}, "'t.7'"),
        ({"t.0": -3}, "t.0 is -3"),
    ],
)
def test_state_that_does_not_fit_is_refused_whole(change, message):
    p = parameter([1.0, 2.0])
    opt = optim.Adam([p])
    state = {**opt.state_dict(), "step": 9, "lr": 7.0, **change}
    with pytest.raises(DataError, match=message):
        opt.load_state_dict(state)
    assert opt.t == 0 and opt.lr == 0.01 and not opt.m and "eps" not in opt.groups[0]


@pytest.mark.parametrize("name", RULES)
def test_state_follows_the_dtype_of_its_parameter(name):
    make, _ = RULES[name]
    model = nn.Linear(2, 2)
    opt = make(model.parameters())
    for dtype in ("float32", "float64", "float16", "float32"):
        model.to(dtype)
        opt.minimize(model(ndl.ones(1, 2, dtype=dtype)).sum())
        kind = "float32" if dtype == "float16" else dtype
        assert {x.dtype for slot in opt.state.values() for x in slot.values()} <= {kind}
        assert model.weight.dtype == dtype and np.isfinite(model.weight.numpy()).all()


@pytest.mark.parametrize("value", ["abc", None, np.ones(2, bool)])
def test_a_state_that_holds_no_numbers_is_named(value):
    opt = optim.Adam([nn.Parameter(ndl.ones(2))])
    with pytest.raises(DataError, match=r"m\.0"):
        opt.load_state_dict({"step": 1, "m.0": value})

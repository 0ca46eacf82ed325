"""Optimizers against PyTorch's, with its defaults."""

import numpy as np
import pytest
from small_updates import gradients, parameter, run

import needle as ndl
from needle import optim


@pytest.fixture
def exact_torch():
    """PyTorch that keeps numbers of its rules in float64, as NAdam's products."""
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(torch.float32)


COUNTING = {
    "Adam": {},
    "AdamW": {},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
    "NAdam": {"momentum_decay": 0.1},
    "RAdam": {},
}


@pytest.mark.parametrize("rule", COUNTING)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_of_each_parameter_are_counted_as_pytorch_does(rule, decay, exact_torch):
    """Gradients that begin late, or are now and then missing, make no step of the count."""
    torch = exact_torch
    start = np.random.default_rng(1).normal(size=(3, 5))
    ours = [parameter(start, "float64") for _ in range(3)]
    theirs = [torch.nn.Parameter(torch.tensor(start)) for _ in range(3)]
    numbers = {"lr": 0.01, "weight_decay": decay, **COUNTING[rule]}
    opt = getattr(optim, rule)(ours, **numbers)
    other = getattr(torch.optim, rule)(theirs, **numbers)
    for step, g in enumerate(gradients(start.shape, 20)):
        for p, q, there in zip(ours, theirs, (True, step % 3 != 1, step > 9), strict=True):
            p.grad = ndl.Tensor(g, dtype="float64") if there else None
            q.grad = torch.tensor(g) if there else None
        if step == 12:  # and go on from a state
            state = opt.state_dict()
            assert {k: v for k, v in state.items() if k[:2] == "t."} == {"t.1": 8, "t.2": 2}
            opt = getattr(optim, rule)(ours)
            opt.load_state_dict(state)
        opt.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "momentum, centered", [(0.0, False), (0.9, False), (0.0, True), (0.9, True)]
)
def test_rmsprop_is_pytorchs(momentum, centered):
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(1).normal(size=(3, 5))
    theirs = torch.nn.Parameter(torch.tensor(start))
    rule = {"alpha": 0.9, "weight_decay": 0.1, "momentum": momentum, "centered": centered}
    other = torch.optim.RMSprop([theirs], lr=0.01, **rule)
    for g in gradients(start.shape):
        theirs.grad = torch.tensor(g)
        other.step()
    ours = run(lambda p: optim.RMSprop(p, 0.01, **rule), start, gradients(start.shape), "float64")
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12)


LIKE_PYTORCH = [
    ("Adagrad", {}), ("NAdam", {}), ("RAdam", {}), ("Adadelta", {}),
    ("NAdam", {"betas": (0.7, 0.8), "weight_decay": 0.1, "momentum_decay": 0.3}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("NAdam", {"betas": (0.0, 0.9)}),
    ("RAdam", {"lr": 0.1, "betas": (0.7, 0.8), "weight_decay": 0.1, "eps": 1e-3}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"betas": (0.9, 0.0)}),
    ("Adadelta", {"lr": 0.3, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "betas": (0.5, 0.6), "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "amsgrad": True, "betas": (0.5, 0.6), "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "maximize": True}),
    *((rule, {"lr": 0.1, "maximize": True}) for rule in ("Adam", "NAdam", "RAdam", "Adagrad")),
    ("Adadelta", {"maximize": True}),
    ("RMSprop", {"weight_decay": 0.1, "maximize": True}),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_amsgrad_goes_on_from_a_state_and_of_some_groups_only(kind):
    """On every device: the largest average of squares stays, and so do gradients."""
    grads = gradients((3,), 12)
    tail = [None, None]
    for saved in (False, True):
        ps = [ndl.Parameter(ndl.Tensor([1.0, -2.0, 3.0], dtype=kind)) for _ in range(2)]
        groups = [{"params": [ps[0]], "amsgrad": True}, {"params": [ps[1]], "maximize": True}]
        opt = optim.Adam(groups, 0.1, betas=(0.5, 0.6))
        for i, g in enumerate(grads):
            if saved and i == 6:
                state = opt.state_dict()
                assert "top.0" in state and "top.1" not in state
                opt = optim.Adam(groups, 0.1, betas=(0.5, 0.6))
                opt.load_state_dict(state)
            ps[0].grad, ps[1].grad = (ndl.Tensor(s * g, dtype=kind) for s in (1, -1))
            held = ps[1].grad
            opt.step()
            assert ps[1].grad is held
        tail[saved] = [p.numpy() for p in ps]
        plain = run(lambda p: optim.Adam(p, 0.1, betas=(0.5, 0.6)), ps[0].numpy() * 0, grads, kind)
        assert not np.allclose(plain, tail[saved][0])
    np.testing.assert_array_equal(*tail)
    expected = run(lambda p: optim.Adam(p, 0.1, betas=(0.5, 0.6)), [1.0, -2.0, 3.0], grads, kind)
    np.testing.assert_array_equal(tail[0][1], expected)


@pytest.mark.parametrize("rule, numbers", LIKE_PYTORCH)
def test_rules_are_pytorchs_with_its_defaults(rule, numbers, exact_torch):
    start = np.random.default_rng(1).normal(size=(3, 5))
    theirs = exact_torch.nn.Parameter(exact_torch.tensor(start))
    other = getattr(exact_torch.optim, rule)([theirs], **numbers)
    grads = gradients(start.shape, 25)
    for g in grads:
        theirs.grad = exact_torch.tensor(g)
        other.step()
    ours = run(lambda p: getattr(optim, rule)(p, **numbers), start, grads, "float64")
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-11)


def test_nadam_after_many_steps_does_not_count_them_all():
    p = parameter([1.0])
    opt = optim.NAdam([p])
    p.grad = ndl.Tensor([1.0])
    opt.step()
    opt.load_state_dict({**opt.state_dict(), "step": 10**12})
    p.grad = ndl.Tensor([1.0])
    opt.step()
    assert np.isfinite(p.item()) and opt.t == 10**12 + 1


def test_centered_rmsprop_where_the_gradient_is_constant():
    """The deviation is rounding noise, which may be negative; no NaN may come of it."""
    grads = np.full((300, 4), 0.3)
    assert np.isfinite(
        run(lambda p: optim.RMSprop(p, 1e-9, 0.5, centered=True), np.ones(4), grads)
    ).all()

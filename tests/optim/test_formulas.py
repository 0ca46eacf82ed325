"""A rule of a user is a formula: a few lines that run everywhere as Needle's own do."""

import numpy as np
import pytest
from looped import looped
from small_updates import DEVICES, gradients, parameter

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError
from needle.ops.core.formula import Value


class Lion(optim.Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2."""

    numbers = ("lr", "beta1", "beta2", "weight_decay")
    slots = ("m",)

    def __init__(self, params, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.0):
        super().__init__(params, lr, weight_decay, beta1=beta1, beta2=beta2)

    @staticmethod
    def formula(p, g, state, numbers):
        (m,) = state
        way = (m * numbers.beta1 + g * (1 - numbers.beta1)).sign()
        p = p - numbers.lr * (way + numbers.weight_decay * p)
        return p, (m * numbers.beta2 + g * (1 - numbers.beta2),)


def lion(p, grads, lr=0.01, decay=0.0):
    m = 0.0
    for g in grads:
        p = p - lr * (np.sign(0.9 * m + 0.1 * g) + decay * p)
        m = 0.99 * m + 0.01 * g
    return p


@looped("device", DEVICES)
@looped("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-6), ("bfloat16", 0.02)])
def test_a_new_rule_updates_parameters(dtype, tolerance, device):
    start = [np.arange(6.0).reshape(2, 3) - 2.25, np.zeros(0), np.array(0.5)]
    params = [parameter(x, dtype, device) for x in start]
    optimizer = Lion(params, 0.25, weight_decay=0.5)
    grads = [gradients(x.shape, 4) for x in start]
    for step in range(4):
        for p, g in zip(params, grads, strict=True):
            p.grad = ndl.Tensor(g[step], dtype=dtype, device=device)
        optimizer.step()
    for p, x, g in zip(params, start, grads, strict=True):
        found = p.numpy().astype(np.float64)
        np.testing.assert_allclose(found, lion(x, g, 0.25, 0.5), rtol=tolerance, atol=tolerance)
    assert all(m.dtype == ("float64" if dtype == "float64" else "float32")
               for m in optimizer.state["m"].values())  # fmt: skip


def trained(device, steps, resume=None, mode=None):
    """Return the parameters and the optimizer after a few steps of a small model."""
    ndl.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    optimizer = Lion(model.parameters(), lr=optim.Cosine(0.1, 20), weight_decay=0.1)
    if resume is not None:
        model.load_state_dict(resume[0])
        optimizer.load_state_dict(resume[1])
    x = ndl.Tensor(np.random.default_rng(0).normal(size=(5, 3)), dtype="float32", device=device)

    def step(x):
        return optimizer.minimize((model(x) ** 2).mean())

    run = step if mode is None else ndl.compile(step, mode=mode)
    for _ in range(steps):
        run(x)
    if mode is not None and device == "cpu":
        assert [call.why for call in run.calls()] == [""]  # a native program
    return model, optimizer


def same(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


@looped("device", DEVICES)
def test_a_new_rule_compiles_and_resumes_to_the_bit(device):
    eager, _ = trained(device, 10)
    compiled, optimizer = trained(device, 10, mode="on")
    same(eager, compiled)
    half = trained(device, 5)
    rest, other = trained(device, 5, resume=[x.state_dict() for x in half])
    same(eager, rest)
    assert other.t == optimizer.t == 10
    assert sorted(optimizer.state_dict()) == [
        "beta1", "beta2", "m.0", "m.1", "m.2", "m.3", "step", "weight_decay",
    ]  # fmt: skip


def test_a_formula_is_what_it_computes_on_tensors():
    p, g, m, v = (ndl.Tensor(x, dtype="float32") for x in gradients((7,), 4))
    v = v * v
    optimizer = optim.Adadelta([weight := nn.Parameter(p.detach())])
    for name, x in (("v", v), ("d", m * m)):
        optimizer.state[name][weight] = x.array.copy()
    weight.grad = g
    optimizer.step()
    numbers = type("Numbers", (), {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0})
    new, _ = optim.Adadelta.formula(p, g, (v, m * m), numbers)
    np.testing.assert_array_equal(weight.numpy(), new.numpy())


class Odd(optim.Optimizer):
    """Exchanges its states, keeps the parameter, and uses all that values have."""

    slots = ("a", "b")

    @staticmethod
    def formula(p, g, state, numbers):
        a, b = state
        high = g.where(g > 0.5, 2 - a)
        same = (abs(-high) ** 2 / 1.0).maximum(np.float64(0.0)) ** 0.5
        return p, (b, same + 0 * numbers.t)


@looped("device", DEVICES)
def test_results_may_be_inputs(device):
    p = parameter([1.0, -2.0], device=device)
    optimizer = Odd([p], 0.1)
    for _ in range(2):
        p.grad = ndl.Tensor([3.0, 0.25], device=device)
        optimizer.step()
    assert p.tolist() == [1.0, -2.0]
    assert [optimizer.state[x][p].numpy().tolist() for x in "ab"] == [[3.0, 2.0], [3.0, 2.0]]


@pytest.mark.parametrize(
    "formula, message",
    [
        (lambda p, g, state, numbers: p - g, r"returned .*Value.*\n.*tuple of 0 new states"),
        (lambda p, g, state, numbers: (p - np.ones(2), ()), r"the operand array\(\[1., 1.\]\)"),
        (lambda p, g, state, numbers: (p if g > 0 else -p, ()), "where"),
        (lambda p, g, state, numbers: (0.0, ()), r"returned \(0.0, \(\)\)"),
    ],
)
def test_wrong_formulas_are_refused_before_anything_changes(formula, message):
    p = parameter([1.0])
    optimizer = type("Mine", (optim.Optimizer,), {"formula": staticmethod(formula)})([p], 0.1)
    p.grad = ndl.Tensor([1.0])
    with pytest.raises(ArgumentError, match=message):
        optimizer.step()
    assert p.item() == 1.0 and optimizer.t == 0


def test_values_have_the_elementwise_methods_of_tensors():
    with pytest.raises(AttributeError, match="no elementwise method 'cumsum'"):
        _ = Value(None, (0, 0)).cumsum
    optimizer = type("Mine", (optim.Optimizer,), {"formula": lambda p, g, s, n: (p * n.rate, ())})
    p = parameter([1.0])
    p.grad = ndl.Tensor([1.0])
    with pytest.raises(AttributeError, match="numbers.rate"):
        optimizer([p], 0.1).step()
    with pytest.raises(NotImplementedError, match="Optimizer defines no formula"):
        plain = optim.Optimizer([p], 0.1)
        plain.step()

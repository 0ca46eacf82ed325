"""Optimizers against a NumPy re-implementation of their formulas, on every device; state, groups,
clipping, schedules and errors."""

import math
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.backend import Backend, update
from needle.errors import ArgumentError, DataError, GradientError, OptionError, ShapeError

DEVICES = [device.name for device in ndl.all_devices() if device.enabled()]
STEPS = 6


def parameter(values, dtype="float32", device=None):
    return nn.Parameter(ndl.Tensor(np.asarray(values, np.float64), dtype=dtype, device=device))


def gradients(shape, count=STEPS):
    return np.random.default_rng(3).normal(size=(count, *shape))


def run(make, start, grads, dtype="float32", device=None):
    """Apply given gradients; return the parameter's values."""
    p = parameter(start, dtype, device)
    opt = make([p])
    for g in grads:
        p.grad = ndl.Tensor(g, dtype=dtype, device=device)
        opt.step()
    return p.numpy().astype(np.float64)


def numpy_sgd(p, grads, lr, momentum=0.0, decay=0.0, dampening=None, nesterov=False):
    u = None
    for g in grads:
        g = g + decay * p
        if momentum:
            if dampening is None:
                u = momentum * (0 if u is None else u) + (1 - momentum) * g
            else:
                u = g if u is None else momentum * u + (1 - dampening) * g
            g = g + momentum * u if nesterov else u
        p = p - lr * g
    return p


def numpy_adam(p, grads, lr, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, decoupled=False):
    m, v = 0.0, 0.0
    for t, g in enumerate(grads, 1):
        if decoupled:
            p = p - lr * decay * p
        else:
            g = g + decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p


def numpy_nadam(p, grads, lr, beta1, beta2, eps, decay, momentum_decay, decoupled=False):
    m, v, past = 0.0, 0.0, 1.0
    for t, g in enumerate(grads, 1):
        p, g = (p - lr * decay * p, g) if decoupled else (p, g + decay * p)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        now, then = (beta1 * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
        past *= now
        step = (1 - now) / (1 - past) * g + then / (1 - past * then) * m
        p = p - lr * step / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p


def numpy_radam(p, grads, lr, beta1, beta2, eps, decay=0.0):
    m, v, n = 0.0, 0.0, 2 / (1 - beta2) - 1
    for t, g in enumerate(grads, 1):
        g = g + decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        k, step = n - 2 * t * beta2**t / (1 - beta2**t), m / (1 - beta1**t)
        if k > 5:
            r = np.sqrt((k - 4) * (k - 2) * n / ((n - 4) * (n - 2) * k))
            step = step * r * np.sqrt(1 - beta2**t) / (np.sqrt(v) + eps)
        p = p - lr * step
    return p


def numpy_adadelta(p, grads, lr, rho, eps, decay=0.0):
    v, d = 0.0, 0.0
    for g in grads:
        g = g + decay * p
        v = rho * v + (1 - rho) * g * g
        step = np.sqrt(d + eps) / np.sqrt(v + eps) * g
        d, p = rho * d + (1 - rho) * step * step, p - lr * step
    return p


def numpy_rmsprop(p, grads, lr, alpha=0.99, eps=1e-8, decay=0.0, momentum=0.0, centered=False):
    v, mean, u = 0.0, 0.0, 0.0
    for g in grads:
        g = g + decay * p
        v, mean = alpha * v + (1 - alpha) * g * g, alpha * mean + (1 - alpha) * g
        u = momentum * u + g / (np.sqrt(v - mean * mean if centered else v) + eps)
        p = p - lr * u
    return p


def numpy_adagrad(p, grads, lr, lr_decay=0.0, decay=0.0, start=0.0, eps=1e-10):
    total = start
    for t, g in enumerate(grads):
        g = g + decay * p
        total = total + g * g
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
    return p


RULES = {
    "sgd": (lambda p: optim.SGD(p, 0.1), lambda p, g: numpy_sgd(p, g, 0.1)),
    "sgd-decay": (
        lambda p: optim.SGD(p, 0.1, weight_decay=0.2),
        lambda p, g: numpy_sgd(p, g, 0.1, decay=0.2),
    ),
    "sgd-course-momentum": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.2),
        lambda p, g: numpy_sgd(p, g, 0.1, 0.9, 0.2),
    ),
    "sgd-dampening": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.3),
        lambda p, g: numpy_sgd(p, g, 0.1, 0.9, dampening=0.3),
    ),
    "momentum": (
        lambda p: optim.Momentum(p, 0.1, weight_decay=0.2),
        lambda p, g: numpy_sgd(p, g, 0.1, 0.9, 0.2, dampening=0.0),
    ),
    "nesterov": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p, g: numpy_sgd(p, g, 0.1, 0.9, dampening=0.0, nesterov=True),
    ),
    "adam": (lambda p: optim.Adam(p), lambda p, g: numpy_adam(p, g, 0.01)),
    "adam-decay": (
        lambda p: optim.Adam(p, 0.1, 0.8, 0.9, 1e-3, weight_decay=0.2),
        lambda p, g: numpy_adam(p, g, 0.1, 0.8, 0.9, 1e-3, 0.2),
    ),
    "adamw": (
        lambda p: optim.AdamW(p, 0.1, weight_decay=0.2),
        lambda p, g: numpy_adam(p, g, 0.1, decay=0.2, decoupled=True),
    ),
    "nadam": (
        lambda p: optim.NAdam(p, weight_decay=0.2),
        lambda p, g: numpy_nadam(p, g, 0.002, 0.9, 0.999, 1e-8, 0.2, 0.004),
    ),
    "nadam-decoupled": (
        lambda p: optim.NAdam(p, 0.1, 0.8, 0.9, 1e-3, 0.2, 0.1, decoupled_weight_decay=True),
        lambda p, g: numpy_nadam(p, g, 0.1, 0.8, 0.9, 1e-3, 0.2, 0.1, True),
    ),
    "radam": (
        lambda p: optim.RAdam(p, weight_decay=0.2),
        lambda p, g: numpy_radam(p, g, 0.001, 0.9, 0.999, 1e-8, 0.2),
    ),
    "radam-short": (
        lambda p: optim.RAdam(p, 0.1, 0.8, 0.7, 1e-3),
        lambda p, g: numpy_radam(p, g, 0.1, 0.8, 0.7, 1e-3),
    ),
    "adadelta": (
        lambda p: optim.Adadelta(p, 0.5, 0.8, 1e-3, 0.2),
        lambda p, g: numpy_adadelta(p, g, 0.5, 0.8, 1e-3, 0.2),
    ),
    "rmsprop": (
        lambda p: optim.RMSprop(p, 0.05, weight_decay=0.2),
        lambda p, g: numpy_rmsprop(p, g, 0.05, decay=0.2),
    ),
    "rmsprop-momentum": (
        lambda p: optim.RMSprop(p, 0.01, weight_decay=0.2, momentum=0.9),
        lambda p, g: numpy_rmsprop(p, g, 0.01, decay=0.2, momentum=0.9),
    ),
    "rmsprop-centered": (
        lambda p: optim.RMSprop(p, 0.01, 0.9, momentum=0.5, centered=True),
        lambda p, g: numpy_rmsprop(p, g, 0.01, 0.9, momentum=0.5, centered=True),
    ),
    "adagrad": (lambda p: optim.Adagrad(p), lambda p, g: numpy_adagrad(p, g, 0.01)),
    "adagrad-decay": (
        lambda p: optim.Adagrad(p, 0.1, 0.2, 0.3, 0.4, 0.01),
        lambda p, g: numpy_adagrad(p, g, 0.1, 0.2, 0.3, 0.4, 0.01),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-6)])
def test_rule(name, dtype, tolerance, device):
    make, reference = RULES[name]
    start = np.random.default_rng(1).normal(size=(3, 37))
    grads = gradients(start.shape)
    out = run(make, start, grads, dtype, device)
    np.testing.assert_allclose(out, reference(start, grads), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RULES)
def test_half_precision_keeps_its_state_in_float32(name, device):
    make, reference = RULES[name]
    start = np.arange(-4.0, 4.0) + 0.5
    grads = np.round(8 * gradients(start.shape, 3)) / 8
    p = parameter(start, "bfloat16", device)
    opt = make([p])
    exact = start
    for step, g in enumerate(grads):
        p.grad = ndl.Tensor(g, dtype="bfloat16", device=device)
        opt.step()
        exact = reference(start, grads[: step + 1])
    assert p.dtype == "bfloat16"
    assert all(a.dtype == "float32" for slot in opt.state.values() for a in slot.values())
    np.testing.assert_allclose(p.numpy().astype(np.float64), exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RULES)
def test_the_devices_own_update_equals_the_one_of_elementwise_functions(name, device, monkeypatch):
    make, _ = RULES[name]
    start = np.random.default_rng(1).normal(size=(5, 7))
    grads = gradients(start.shape)
    own = run(make, start, grads, "float64", device)
    backend = type(ndl.device.as_device(device).backend)
    monkeypatch.setattr(backend, "adam", Backend.adam)
    monkeypatch.setattr(backend, "sgd", Backend.sgd)
    np.testing.assert_allclose(run(make, start, grads, "float64", device), own, rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_any_strides(device):
    values, grads = np.arange(6.0).reshape(2, 3), gradients((3, 2))
    p = nn.Parameter(ndl.Tensor(values, device=device).detach().transpose())
    b = parameter([1.0, 2.0], device=device)
    opt = optim.Adam([p, b], 0.1)
    for g in grads:
        p.grad = ndl.Tensor(g.T.copy(), device=device).transpose()
        b.grad = ndl.ones(1, device=device).broadcast_to((2,))
        opt.step()
    np.testing.assert_allclose(p.numpy(), numpy_adam(values.T, grads, 0.1), rtol=1e-5)
    np.testing.assert_allclose(
        b.numpy(), numpy_adam(np.array([1.0, 2.0]), np.ones((STEPS, 2)), 0.1), rtol=1e-5
    )


def test_dtypes_and_empty_tensors_mix_in_one_optimizer():
    ps = [parameter([1.0], d) for d in ("float32", "float64", "float16")] + [parameter([])]
    opt = optim.SGD(ps, 0.5)
    for p in ps:
        p.grad = ndl.ones_like(p)
    opt.step()
    assert [p.numpy().tolist() for p in ps] == [[0.5], [0.5], [0.5], []]


# ---- what an update may and may not touch ------------------------------------------


def test_old_graphs_and_copies_keep_the_old_value():
    p = parameter([2.0, 3.0])
    kept, shared = p.detach(), p.numpy()
    out = (p * p * p).sum()
    opt = optim.SGD([p], 1.0)
    p.grad = ndl.Tensor([1.0, 1.0])
    opt.step()
    np.testing.assert_array_equal(p.numpy(), [1.0, 2.0])
    np.testing.assert_array_equal(kept.numpy(), [2.0, 3.0])
    np.testing.assert_array_equal(shared, [2.0, 3.0])
    out.backward()
    np.testing.assert_array_equal(p.grad.numpy(), [12.0, 27.0])


def test_a_step_does_not_change_gradients():
    p = parameter([2.0, 3.0])
    opt = optim.Adam([p], weight_decay=0.1)
    (p * p).sum().backward()
    before = p.grad.numpy()
    opt.step()
    np.testing.assert_array_equal(p.grad.numpy(), before)


@pytest.mark.skipif("cpu" not in DEVICES, reason="the native module is missing")
def test_memory_that_nobody_else_holds_is_updated_in_place():
    p = parameter(np.zeros(1000))
    p.grad = ndl.Tensor(np.ones(1000, np.float32))
    opt = optim.SGD([p], 1.0)
    opt.step()
    place = p.numpy().ctypes.data, p.array.__array__(copy=False).ctypes.data
    opt.step()
    assert p.array.__array__(copy=False).ctypes.data == place[1] != place[0]
    view = p.detach()[:10]
    opt.step()
    assert p.array.__array__(copy=False).ctypes.data != place[1]
    np.testing.assert_array_equal(view.numpy(), np.full(10, -2.0))
    np.testing.assert_array_equal(p.numpy(), np.full(1000, -3.0))


ALL_RULES = ("Momentum", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "SGD")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALL_RULES)
def test_an_infinite_parameter_without_decay_stays(name, device):
    p = ndl.Parameter([-np.inf, np.inf, 1.0], device=device)
    optimizer = getattr(optim, name)([p], lr=0.1, weight_decay=0.0)
    for _ in range(2):
        p.grad = ndl.zeros_like(p)
        optimizer.step()
    assert p.tolist() == [-np.inf, np.inf, 1.0]


def test_parameters_without_gradient_stay():
    a, b = parameter([1.0]), parameter([1.0])
    opt = optim.Adam([a, b])
    a.grad = ndl.Tensor([1.0])
    opt.step()
    assert a.item() < 1.0 and b.item() == 1.0
    assert a in opt.m and b not in opt.m


def test_parameters_learn_from_minimize_eager_and_lazy():
    def train():
        w = parameter(np.ones((2, 1)))
        opt = optim.SGD([w], 0.1, momentum=0.5)
        x = ndl.Tensor([[1.0, 2.0], [3.0, 1.0]])
        for _ in range(5):
            loss = opt.minimize(((x @ w - 1.0) ** 2).sum())
        assert loss.requires_grad
        return w

    eager = train().numpy()
    with ndl.lazy_mode():
        w = train()
        assert w.array is not None
    np.testing.assert_array_equal(w.numpy(), eager)


def test_in_the_numpy_dialect_updates_stay_out_of_the_graph():
    with ndl.config(backend="np"):
        w = nn.Parameter(ndl.Tensor([[1.0], [2.0]], dtype="float32"))
        opt = optim.Adam([w], lr=0.1)
        x = ndl.Tensor(np.ones((3, 2)))
        loss = (x @ w).sum()
        loss.backward()
        grad = w.grad.numpy()
        opt.step()
        assert w.is_leaf() and w.dtype == "float32"
        np.testing.assert_array_equal(w.grad.detach().cached_data, grad)
        np.testing.assert_allclose(w.numpy(), [[0.9], [1.9]], rtol=1e-6)


def test_course_names():
    p = parameter([1.0])
    opt = optim.SGD([p], momentum=0.9)
    p.grad = ndl.Tensor([3.0])
    opt.clip_grad_norm(max_norm=1.5)
    np.testing.assert_allclose(p.grad.numpy(), [1.5], rtol=1e-5)
    opt.step()
    np.testing.assert_allclose(opt.u[p].numpy(), [0.15], rtol=1e-5)
    opt.reset_grad()
    assert p.grad is None and opt.params == [p]
    assert optim.Adam([p]).t == 0 and optim.Adam([p]).lr == 0.01


# ---- groups and schedules -----------------------------------------------------------


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


# ---- clipping ------------------------------------------------------------------------


def test_clip_grad_norm():
    ps = [parameter([0.0]), parameter([0.0, 0.0]), parameter([0.0])]
    ps[0].grad, ps[1].grad = ndl.Tensor([3.0]), ndl.Tensor([0.0, 4.0])
    assert float(optim.clip_grad_norm(ps, 10.0)) == 5.0
    np.testing.assert_array_equal(ps[1].grad.numpy(), [0.0, 4.0])
    optim.clip_grad_norm(ps, 1.0)
    np.testing.assert_allclose(ps[0].grad.numpy(), [0.6], rtol=1e-5)
    np.testing.assert_allclose(ps[1].grad.numpy(), [0.0, 0.8], rtol=1e-5)
    assert ps[2].grad is None


def test_clip_grad_norm_of_half_precision_does_not_overflow():
    p = parameter(np.zeros(4), "float16")
    p.grad = ndl.Tensor(np.full(4, 300.0), dtype="float16")
    assert float(optim.clip_grad_norm([p], 1.0)) == 600.0
    assert p.grad.dtype == "float16"
    np.testing.assert_allclose(p.grad.numpy(), 0.5, rtol=1e-3)


def test_clip_grad_norm_names_what_is_not_finite():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for p in model.parameters():
        p.grad = ndl.ones_like(p)
    model[1].weight.grad = ndl.Tensor([[1.0], [np.nan]])
    with pytest.raises(GradientError, match=r"1\.weight") as error:
        optim.clip_grad_norm(model.parameters(), 1.0, error_if_nonfinite=True)
    assert "0.weight" not in str(error.value)


def test_clip_grad_value():
    p = parameter([0.0, 0.0, 0.0])
    p.grad = ndl.Tensor([-3.0, 0.5, 2.0])
    optim.clip_grad_value([p], 1.0)
    np.testing.assert_array_equal(p.grad.numpy(), [-1.0, 0.5, 1.0])


def test_a_tensor_alone_is_clipped():
    p = parameter([[0.0, 0.0]])
    p.grad = ndl.Tensor([[3.0, 4.0]])
    assert float(optim.clip_grad_norm(p, 2.5)) == 5.0
    np.testing.assert_allclose(p.grad.numpy(), [[1.5, 2.0]], rtol=1e-5)
    optim.clip_grad_value(p, 1.0)
    assert p.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
@pytest.mark.parametrize("given", [nn.Linear(1, 1), None, 3, [1.0]])
def test_what_has_no_gradient_is_not_clipped(clip, given):
    with pytest.raises(OptionError, match=f"{clip.__name__}: .* tensor"):
        clip(given, 1.0)


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
@pytest.mark.parametrize("limit", [-1.0, math.nan, "1", None])
def test_limits_are_numbers(clip, limit):
    p = parameter([1.0])
    p.grad = ndl.Tensor([3.0])
    with pytest.raises(OptionError, match=f"{clip.__name__}: max_"):
        clip([p], limit)
    assert p.grad.item() == 3.0
    clip([p], math.inf)
    assert p.grad.item() == 3.0


def test_clipping_without_gradients_or_with_negative_limits():
    p = parameter([1.0])
    with pytest.raises(GradientError, match="backward"):
        optim.clip_grad_norm([p], 1.0)
    with pytest.raises(OptionError):
        optim.clip_grad_norm([p], -1.0)
    with pytest.raises(OptionError):
        optim.clip_grad_value([p], -1.0)


# ---- state ---------------------------------------------------------------------------


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
        ({"lr": "abc"}, "lr='abc' is no number"),
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


# ---- wrong input ---------------------------------------------------------------------


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
        (lambda: optim.Adam([parameter([1.0])], betas=(0.9,)), r"Adam: betas=\(0.9,\) are not two"),
        (lambda: optim.RMSprop([parameter([1.0])], alpha=-0.1), "alpha"),
        (lambda: optim.Adagrad([parameter([1.0])], lr_decay=-1), "Adagrad: lr_decay=-1"),
        (
            lambda: optim.Adagrad([parameter([1.0])], initial_accumulator_value=-0.1),
            "initial_accumulator_value=-0.1",
        ),
        (lambda: optim.SGD(None), "params is None"),
        (lambda: optim.SGD([ndl.zeros(3)]), "parameter 0 needs no gradient"),
        (lambda: optim.SGD([parameter([1.0])], lr=-1), r"SGD: lr=-1 is not in \[0, inf\)"),
        (lambda: optim.SGD([parameter([1.0])], lr=math.nan), "lr=nan"),
        (lambda: optim.SGD([parameter([1.0])], lr="0.1"), "lr='0.1' is no number"),
        (lambda: optim.SGD([parameter([1.0])], lr=None), "lr=None is no number"),
        (lambda: optim.SGD([parameter([1.0])], momentum=2.0), r"momentum=2.0 is not in \[0, 1\)"),
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
        with pytest.raises(OptionError, match="betas=0.5 are not two"):
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


def test_update_rules_are_values():
    assert update.Sgd(0.1, 0, 0, 0, False, False) == update.Sgd(0.1, 0, 0, 0, False, False)


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
        ({"mode": "mean"}, "mode: there is no 'mean'"), ({"factor": 1.0}, "factor=1.0"),
        ({"factor": math.nan}, "factor=nan"), ({"patience": -1}, "patience=-1"),
        ({"threshold_mode": "rell"}, "did you mean 'rel'"), ({"min_lr": -1.0}, "min_lr=-1.0"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            optim.ReduceLROnPlateau(opt, **settings)
    with pytest.raises(ArgumentError, match="patience is 1.5"):
        optim.ReduceLROnPlateau(opt, patience=1.5)
    with pytest.raises(ArgumentError, match="metric is 'low'"):
        plateau.step("low")
    with pytest.raises(OptionError, match="optimizer is a list"):
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


def test_centered_rmsprop_where_the_gradient_is_constant():
    """The deviation is rounding noise, which may be negative; no NaN may come of it."""
    grads = np.full((300, 4), 0.3)
    assert np.isfinite(
        run(lambda p: optim.RMSprop(p, 1e-9, 0.5, centered=True), np.ones(4), grads)
    ).all()


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
        ({"params": [q, p]}, "parameters 0 and 2 are one tensor"),
        ({"params": [q], "rate": 0.1}, "there is no 'rate'"),
        ({"params": [q], "lr": -1.0}, "lr=-1.0 is not in"),
        ({"params": [q], "betas": (0.9, 2.0)}, "beta2=2.0 is not in"),
        ({"params": [q * 2.0]}, "parameter 1 is the result of multiply"),
        ([q], "parameter 1 is a list"),
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
    with pytest.raises(OptionError, match=f"{name}=.* neither True nor False"):
        kind([nn.Parameter(ndl.ones(2))], **{name: value})


def test_groups_may_come_from_a_generator():
    p = nn.Parameter(ndl.ones(2))
    made = optim.Adam(group for group in [{"params": [p], "betas": np.array([0.5, 0.75])}])
    assert made.groups[0]["beta2"] == 0.75
    for wrong in (3, None, nn.Linear(2, 2)):
        with pytest.raises(OptionError, match="not a list of tensors"):
            optim.Adam([{"params": wrong}])


@pytest.mark.parametrize("value", ["abc", None, np.ones(2, bool)])
def test_a_state_that_holds_no_numbers_is_named(value):
    opt = optim.Adam([nn.Parameter(ndl.ones(2))])
    with pytest.raises(DataError, match=r"m\.0"):
        opt.load_state_dict({"step": 1, "m.0": value})

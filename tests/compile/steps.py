"""Training steps of many kinds: each makes a function, what has state, and arguments."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn, optim

STEPS = {}
"""By name: a function that returns (step, objects with state, arguments of call i)."""


def step(make):
    STEPS[make.__name__] = make
    return make


def floats(rng, *shape):
    return ndl.Tensor(rng.standard_normal(shape).astype(np.float32), requires_grad=False)


def labels(rng, n, k=4):
    return ndl.Tensor(rng.integers(0, k, n), requires_grad=False)


def batches(rng, n=6, d=8):
    made = [(floats(rng, n, d), labels(rng, n)) for _ in range(2)]
    return lambda i: made[i % 2]


def net(d=8):
    return nn.Sequential(
        nn.Linear(d, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 4)
    )  # fmt: skip


loss_of = nn.SoftmaxLoss()

OPTIMIZERS = {
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "adamw by groups": lambda p: optim.AdamW(
        [{"params": p[:2], "weight_decay": 0.0}, {"params": p[2:], "lr": 0.1}]
    ),
    "maximize": lambda p: optim.Adam(p, maximize=True),
    "schedule": lambda p: optim.Adam(p, lr=lambda t: 0.1 / (t + 1)),
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "course momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "momentum": lambda p: optim.Momentum(p, lr=0.1, dampening=0.2),
    "rmsprop": optim.RMSprop,
    "centered": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": lambda p: optim.Adagrad(p, initial_accumulator_value=0.1),
    "adadelta": optim.Adadelta,
}


def _with_optimizer(make):
    def made(rng):
        model = net()
        opt = make(model.parameters())
        return lambda x, y: opt.minimize(loss_of(model(x), y)), (model, opt), batches(rng)

    return made


STEPS.update({name: _with_optimizer(make) for name, make in OPTIMIZERS.items()})


@step
def clipped(rng):
    model = net()
    opt = optim.Adam(model.parameters())

    def run(x, y):
        opt.reset_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        norm = optim.clip_grad_norm(model.parameters(), 0.5)
        opt.step()
        return {"loss": loss, "norm": norm}

    return run, (model, opt), batches(rng)


@step
def accumulated(rng):
    model = net()
    opt = optim.Adam(model.parameters())

    def run(x, y):
        opt.reset_grad()
        losses = []
        for part in (slice(0, 3), slice(3, 6)):
            loss = loss_of(model(x[part]), y[part]) / 2
            loss.backward(accumulate=True)
            losses.append(loss)
        opt.step()
        return losses

    return run, (model, opt), batches(rng)


@step
def twice(rng):
    model = net()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return (
        lambda x, y: tuple(opt.minimize(loss_of(model(x), y)) for _ in range(2)),
        (model, opt),
        batches(rng),
    )


@step
def tied(rng):
    table = nn.Embedding(10, 8)
    opt = optim.Adam(table.parameters())
    made = [(labels(rng, 5, 10), labels(rng, 5, 10)) for _ in range(2)]
    return (
        lambda i, j: opt.minimize(loss_of(table(i).tanh() @ table.weight.T, j)),
        (table, opt),
        lambda i: made[i % 2],
    )


@step
def frozen(rng):
    model = net()
    next(iter(model.children())).requires_grad_(False)
    opt = optim.Adam(model.parameters())
    return lambda x, y: opt.minimize(loss_of(model(x), y)), (model, opt), batches(rng)


@step
def adversarial(rng):
    made = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    judge = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    first, second = optim.Adam(made.parameters()), optim.Adam(judge.parameters())

    def run(x, y):
        fake = made(ndl.randn(6, 4))
        judge.requires_grad_(False)
        good = first.minimize(((judge(fake) - 1) ** 2).mean())
        judge.requires_grad_(True)
        bad = second.minimize((judge(fake.detach()) ** 2).mean() + ((judge(x) - 1) ** 2).mean())
        return good, bad

    return run, (made, judge, first, second), batches(rng)


@step
def checkpointed(rng):
    inner = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.ReLU())
    last = nn.Linear(12, 4)
    opt = optim.Adam(inner.parameters() + last.parameters())
    again = ndl.checkpoint(lambda x: inner(x))
    return lambda x, y: opt.minimize(loss_of(last(again(x)), y)), (inner, last, opt), batches(rng)


@step
def own_gradient(rng):
    model = net()
    opt = optim.Adam(model.parameters())

    @ndl.custom_gradient
    def half(x):
        return x * 1.0, lambda g: g * (x > 0).astype("float32")

    return lambda x, y: opt.minimize(loss_of(half(model(x)), y)), (model, opt), batches(rng)


@step
def without_optimizer(rng):
    model = nn.Linear(8, 4)
    model.register_buffer("count", ndl.Tensor(np.zeros(3), requires_grad=False))

    def run(x, y):
        loss = loss_of(model(x), y)
        loss.backward()
        with ndl.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
            model.weight[0] = model.weight[1]
        model.count += 1
        model.count[1] = 5.0
        return loss

    return run, (model,), batches(rng)


@step
def recurrent(rng):
    cells, last = nn.LSTM(4, 6, 2), nn.Linear(6, 4)
    opt = optim.Adam(cells.parameters() + last.parameters())
    made = [(floats(rng, 5, 2, 4), labels(rng, 10)) for _ in range(2)]

    def run(x, y):
        hidden, _ = cells(x)
        return opt.minimize(loss_of(last(hidden.reshape((10, 6))), y))

    return run, (cells, last, opt), lambda i: made[i % 2]


@step
def attention(rng):
    model = nn.Transformer(8, 12, 1, num_head=2, dim_head=4, dropout=0.1, causal=True)
    opt = optim.AdamW(model.parameters())
    made = [floats(rng, 5, 2, 8) for _ in range(2)]
    return lambda x: opt.minimize((model(x)[0] ** 2).mean()), (model, opt), lambda i: (made[i % 2],)


@step
def images(rng):
    model = nn.Sequential(
        nn.Conv(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv(4, 4, 3, stride=2), nn.Flatten()
    )
    opt = optim.SGD(model.parameters(), lr=0.1)
    made = [floats(rng, 2, 3, 8, 8) for _ in range(2)]
    return lambda x: opt.minimize((model(x) ** 2).mean()), (model, opt), lambda i: (made[i % 2],)


@step
def linear_algebra(rng):
    model = nn.Linear(8, 5)
    opt = optim.Adam(model.parameters(), lr=0.01)
    made = [floats(rng, 12, 8) for _ in range(2)]

    def run(x):
        y = model(x)
        spread = y.T @ y + ndl.eye(5)
        whole = ndl.linalg.cholesky(spread) @ ndl.linalg.inv(spread)
        return opt.minimize((whole**2).sum() + ndl.linalg.slogdet(spread)[1])

    return run, (model, opt), lambda i: (made[i % 2],)


@step
def integer_draws(rng):
    model = net()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run(x, y):
        rows = ndl.permutation(6)
        noise = ndl.randint((6, 8), -2, 3).astype("float32")
        return opt.minimize(loss_of(model(x[rows] + 0.1 * noise), y[rows])), rows

    return run, (model, opt), batches(rng)

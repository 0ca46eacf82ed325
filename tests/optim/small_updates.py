"""What the tests of optimizers share: parameters, gradients, rules and their formulas in NumPy."""

import numpy as np

import needle as ndl
from needle import nn, optim

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

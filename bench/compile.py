"""Compiled functions: training steps and small computations, beside PyTorch and JAX.

The training steps are those of ``training.py``, ``resnet.py`` and ``sequence.py``, which compare
the losses of both frameworks first. JAX, where it is installed, runs what takes few lines there:
``jax.jit`` of the same computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import memory
import numpy as np
import resnet
import sequence
import torch
import training
from harness import Case, Options, main
from twin import LR

import needle as ndl
from needle import ops

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None

SIZES = {"64 Ki": (2**16, 0.7), "1 Mi": (2**20, 1.0), "16 Mi": (2**24, 0.5)}
"""Elements of the chain of functions, and the target."""


def compiled(case: Case, target: float, group: str = "steps") -> Case:
    """Return the row whose computation of Needle is compiled."""
    return replace(
        case, needle=ndl.compile(case.needle), target=target, group=group, goals="compile"
    )


# ---- training steps --------------------------------------------------------------------


def mlp(options: Options) -> Case:
    """Return the row of the MLP-ResNet."""
    ndl.manual_seed(0)
    both = training.Step(drop=0.1)
    step, peer = ndl.compile(both.needle), {} if jax is None else {"JAX jit": jax_mlp(both)}
    return Case(
        "MLP-ResNet step, batch 100, Adam", lambda: training.nothing(step()),
        lambda: training.nothing(both.torch()), target=0.35, group="steps", goals="compile",
        others=peer,
    )  # fmt: skip


def jax_mlp(both: Any) -> Callable[[], Any]:
    """Return JAX's step of the same net, from the same weights."""
    x, y = jnp.asarray(both.x.numpy()), jnp.asarray(both.y.numpy())
    weights = [jnp.asarray(p.numpy()) for p in both.model.parameters()]
    keep = 0.9

    def norm(h: Any, scale: Any, shift: Any) -> Any:
        mean, var = h.mean(0), h.var(0)
        return (h - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift, mean, var

    def loss(weights: Any, statistics: Any, key: Any) -> Any:
        rest, moved, known = iter(weights), [], iter(statistics)
        h = jax.nn.relu(x @ next(rest) + next(rest))
        while len(moved) < len(statistics):
            path = h @ next(rest) + next(rest)
            for last in (False, True):
                path, mean, var = norm(path, next(rest), next(rest))
                moved += [next(known) * 0.9 + mean * 0.1, next(known) * 0.9 + var * 0.1]
                if not last:
                    key, own = jax.random.split(key)
                    mask = jax.random.bernoulli(own, keep, path.shape)
                    path = jnp.where(mask, jax.nn.relu(path) / keep, 0.0)
                    path = path @ next(rest) + next(rest)
            h = jax.nn.relu(h + path)
        logits = h @ next(rest) + next(rest)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -picked.mean(), moved

    def step(state: Any) -> Any:
        weights, ms, vs, statistics, key, t = state
        key, own = jax.random.split(key)
        (value, moved), grads = jax.value_and_grad(loss, has_aux=True)(weights, statistics, own)
        t = t + 1
        ms = [0.9 * m + 0.1 * g for m, g in zip(ms, grads, strict=True)]
        vs = [0.999 * v + 0.001 * g * g for v, g in zip(vs, grads, strict=True)]
        rate = LR / (1 - 0.9**t)
        root = jax.lax.rsqrt(1 - 0.999**t)
        weights = [
            w - rate * m / (jnp.sqrt(v) * root + 1e-8)
            for w, m, v in zip(weights, ms, vs, strict=True)
        ]
        return value, (weights, ms, vs, moved, key, t)

    zeros = [jnp.zeros_like(w) for w in weights]
    sizes = [p.size for p in both.model.buffers()]
    statistics = [jnp.zeros(n) if i % 2 == 0 else jnp.ones(n) for i, n in enumerate(sizes)]
    run = jax.jit(step, donate_argnums=0)
    state = [(weights, zeros, [z + 0 for z in zeros], statistics, jax.random.key(0), 0.0)]

    def one() -> Any:
        value, state[0] = run(state[0])
        return value.block_until_ready()

    return one


def steps(options: Options) -> Iterator[Case]:
    """Yield the rows of the other training steps."""
    for net, target in zip(resnet.nets(options.quick), (0.45, 0.35), strict=True):
        yield compiled(resnet.training(net, options), target)
    yield compiled(sequence.lstm_step(options.quick), 0.5)
    yield compiled(sequence.transformer_step(options.quick), 0.7)
    yield compiled(sequence.tiny_gpt_step(), 0.08)


# ---- small computations ----------------------------------------------------------------


def small() -> Case:
    """Return the row of 16 elements, forward and backward: the cost of a call."""
    values = np.arange(16, dtype=np.float32)
    x, y = ndl.Tensor(values), ndl.Tensor(values + 1)
    tx, ty = (torch.tensor(v.numpy(), requires_grad=True) for v in (x, y))

    def function(x: Any, y: Any) -> Any:
        return (x * y + x).sum()

    run = ndl.compile(ndl.value_and_grad(function, (0, 1)))

    def peer() -> Any:
        return torch.autograd.grad(function(tx, ty), (tx, ty))[0]

    others: dict[str, Any] = {}
    if jax is not None:
        jitted = jax.jit(jax.value_and_grad(function, (0, 1)))
        jx, jy = jnp.asarray(values), jnp.asarray(values + 1)
        others["JAX jit"] = lambda: jitted(jx, jy)[1][0].block_until_ready()
    return Case(
        "(x*y+x).sum(), forward and backward, 16 elements", lambda: run(x, y)[1][0], peer,
        target=0.5, group="calls", goals="compile", torch_threads=1, others=others,
    )  # fmt: skip


def chain(name: str, size: int, target: float) -> Case:
    """Return the row of a chain of elementwise functions."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(size, np.float32) for _ in range(3)]
    x, y, z = (ndl.Tensor(v, requires_grad=False) for v in arrays)
    tx, ty, tz = map(torch.from_numpy, arrays)
    run = ndl.compile(lambda x, y, z: ops.tanh(x * 0.5 + y) * z)

    def peer(x: Any, y: Any, z: Any) -> Any:
        return torch.tanh(x * 0.5 + y) * z

    others: dict[str, Any] = {}
    if jax is not None:
        jitted = jax.jit(lambda x, y, z: jnp.tanh(x * 0.5 + y) * z)
        given = [jnp.asarray(v) for v in arrays]
        others["JAX jit"] = lambda: jitted(*given).block_until_ready()
    return Case(
        f"tanh(x*0.5+y)*z, {name}", lambda: run(x, y, z), lambda: peer(tx, ty, tz),
        lambda compiler: partial(compiler(peer), tx, ty, tz),
        target=target, group="chains", goals="compile", others=others,
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield the rows."""
    yield mlp(options)
    yield from steps(options)
    yield small()
    for name, (size, target) in SIZES.items():
        yield chain(name, 2**10 if options.quick else size, target)
    if not options.quick:
        yield compiled(resnet.inference(1), 0.5, "inference")
        yield compiled(resnet.inference(128), 0.7, "inference")
    yield compiled(sequence.transformer_inference(options.quick), 0.7, "inference")


def held(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the rows of memory: of a step above parameters and state, beside an eager one."""
    for name in ("mlp",) if options.quick else memory.STEPS:
        row = memory.above(name, options.quick)
        if options.only in row["name"]:
            yield row


if __name__ == "__main__":
    main("compile", cases, seconds=3.0, more=held)

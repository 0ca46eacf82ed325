"""What the tests of the graph share: tensors, values in memory, threads."""

from __future__ import annotations

import gc

import numpy as np

import needle as ndl
from needle import core, graph, ops
from needle.backend.array import Array


def tensor(*shape: int, seed: int = 0) -> ndl.Tensor:
    return ndl.Tensor(np.random.default_rng(seed).normal(size=shape))


def constant(*shape: int) -> ndl.Tensor:
    return ndl.Tensor(np.ones(shape), requires_grad=False)


def live_values() -> int:
    """How many values are in memory."""
    if core.native is not None:
        return ndl.cpu().memory_info()["blocks"]
    return sum(issubclass(type(x), Array) for x in gc.get_objects())


def train(steps: int, seed: int) -> np.ndarray:
    w, b = tensor(4, 4, seed=seed), tensor(4, seed=seed + 1)
    x = tensor(8, 4, seed=seed + 2)
    x.requires_grad = False
    for _ in range(steps):
        loss = ((ops.relu(x @ w + b) - 1.0) * (x @ w)).sum()
        loss.backward()
        for p in (w, b):
            p.data = p.detach() - 0.001 * p.grad.detach()
    return w.numpy()


def modes() -> tuple:
    """What blocks switch here, and whether checks are on."""
    limit = ndl.cpu().memory_info()["limit"]
    return graph.recording(), graph.lazy(), ndl.config.current(), limit

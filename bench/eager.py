"""Small operations, where calling them is what costs: 16 elements, and nets of 60 such ops.

PyTorch has one thread here, with which it is faster at this size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, main

import needle as ndl

row = partial(Case, torch_threads=1, group="eager")
LIVE = 200_000
WIDTH, BATCH, BLOCKS = 16, 8, 8


def pair(values: Any, grad: bool = False) -> tuple[Any, Any]:
    """Return the same values as a tensor of Needle and of PyTorch."""
    values = np.asarray(values, np.float32)
    return ndl.Tensor(values, requires_grad=grad), torch.tensor(values, requires_grad=grad)


def single_ops() -> Iterator[Case]:
    """One op on 16 elements, without and with recording for the gradient."""
    draw = np.random.default_rng(0).standard_normal(16)
    for grad, suffix in ((False, ""), (True, ", recorded")):
        (x, tx), (y, ty) = pair(draw, grad), pair(draw + 1, grad)
        column, t_column = pair(draw.reshape(16, 1), grad)
        line, t_line = pair(draw.reshape(1, 16), grad)
        cases: list[tuple[str, Callable[[], Any], Callable[[], Any], float | None]] = [
            ("x + y", lambda x=x, y=y: x + y, lambda x=tx, y=ty: x + y, 0.2),
            ("broadcast add, [16, 1] + [1, 16]", lambda x=column, y=line: x + y,
             lambda x=t_column, y=t_line: x + y, 0.33),
            ("x + 2.0", lambda x=x: x + 2.0, lambda x=tx: x + 2.0, 0.33),
            ("x.reshape(4, 4)", lambda x=x: x.reshape(4, 4), lambda x=tx: x.reshape(4, 4), 0.33),
            ("x[2:5]", lambda x=x: x[2:5], lambda x=tx: x[2:5], 0.33),
            ("x.sum()", lambda x=x: x.sum(), lambda x=tx: x.sum(), None),
        ]  # fmt: skip
        for name, ours, theirs, target in cases:
            yield row(name + suffix, ours, theirs, target=target)


def small_backward() -> Case:
    """Three ops forward and backward."""
    draw = np.random.default_rng(1).standard_normal(16)
    (x, tx), (y, ty) = pair(draw, True), pair(draw + 1, True)

    def ours() -> Any:
        (x * y + x).sum().backward()
        return x.grad

    def theirs() -> Any:
        tx.grad = ty.grad = None
        (tx * ty + tx).sum().backward()
        return tx.grad

    return row("(x * y + x).sum(), forward and backward", ours, theirs, target=0.33)


def net(x: Any, parameters: list[Any], relu: Callable[[Any], Any]) -> Any:
    """Return the loss of a residual MLP: 60 small operations."""
    for i in range(BLOCKS):
        w1, b1, w2, b2 = parameters[4 * i : 4 * i + 4]
        x = relu(x + relu(x @ w1 + b1) @ w2 + b2)
    return ((x @ parameters[-2] + parameters[-1]) * 0.5).sum()


def residual_mlp(name: str, target: float) -> tuple[Case, Case]:
    """Return the net's rows: forward alone, and forward and backward."""
    random = np.random.default_rng(2)
    shapes = [(WIDTH, WIDTH), (WIDTH,)] * (2 * BLOCKS + 1)
    both = [pair(random.standard_normal(shape) * 0.2, True) for shape in shapes]
    parameters, theirs = [list(part) for part in zip(*both, strict=True)]
    x, tx = pair(random.standard_normal((BATCH, WIDTH)))

    def run() -> Any:
        net(x, parameters, ndl.ops.relu).backward()
        return parameters[0].grad

    def run_torch() -> Any:
        for p in theirs:
            p.grad = None
        net(tx, theirs, torch.relu).backward()
        return theirs[0].grad

    forward = row(
        f"{name}, forward",
        lambda: net(x, parameters, ndl.ops.relu),
        lambda: net(tx, theirs, torch.relu),
    )
    return forward, row(f"{name}, forward and backward", run, run_torch, target=target)


def live_chain(x: Any, count: int) -> list[Any]:
    """Return all tensors of a chain of recorded ops."""
    chain = [x]
    for _ in range(count):
        chain.append(chain[-1] + 1.0)
    return chain


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    yield from single_ops()
    yield small_backward()
    yield from residual_mlp("60-op residual MLP", 0.5)
    count = 2_000 if options.quick else LIVE
    # Both frameworks keep a graph of their own alive, and every tensor of it: the collector, which
    # both trigger, has to look at whatever it tracks.
    alive = [live_chain(x, count) for x in pair(np.zeros(16), True)]
    yield residual_mlp("60-op residual MLP, 200,000 live nodes", 0.5)[1]
    del alive


if __name__ == "__main__":
    main("eager", cases, mallocs=("stock",))

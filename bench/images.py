"""What stands between convolutions: batch norm with a rectifier, max pooling, upsampling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, main

import needle as ndl
from needle import executor
from needle.ops.image.pooling import MaxPool
from needle.ops.norm.batch_norm_relu import BatchNormReLU

F = torch.nn.functional
NORMS = ((64, 32), (128, 16), (256, 16), (512, 8))
POOLS = ((128, 32), (256, 16), (512, 8))


def rectified(x: Any, weight: Any, bias: Any) -> Any:
    """Return batch norm in training mode, rectified, by PyTorch."""
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


def backward(function: Any, inputs: list[Any], g: Any) -> Any:
    """Run a function of PyTorch in both directions; return the gradient of its first input."""
    for t in inputs:
        t.grad = None
    function(*inputs).backward(g)
    return inputs[0].grad


def case(name: str, op: Any, function: Any, arrays: list[Any], g: Any, target: float) -> Case:
    """Return the row of an op of images, and perhaps parameters, with all its gradients."""
    tensors = [ndl.Tensor(v) for v in arrays]
    grad = ndl.Tensor(g, requires_grad=False)

    def ours() -> Any:
        for t in tensors:
            t.grad = None
        executor.apply(op, *tensors)[0].backward(grad)
        return tensors[0].grad

    def peer(memory: Any) -> tuple[list[Any], Any]:
        found = [torch.from_numpy(v) for v in (*arrays, g)]
        found = [
            t.permute(0, 3, 1, 2).contiguous(memory_format=memory) if t.ndim == 4 else t
            for t in found
        ]
        return [t.requires_grad_() for t in found[:-1]], found[-1]

    planes, last = peer(torch.contiguous_format), peer(torch.channels_last)
    return Case(
        f"{name}, forward and backward", ours,
        lambda: backward(function, *planes).permute(0, 2, 3, 1),
        lambda compiler: partial(backward, compiler(function), *last), target=target,
        goals="images", group=name.split(",")[0], bytes=4.0 * (4 * arrays[0].size + 2 * g.size),
        others={"channels last": partial(backward, function, *last)},
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    random = np.random.default_rng(0)
    n = 2 if options.quick else 64
    for c, size in ((5, 4),) if options.quick else NORMS:
        x, g = (random.standard_normal((n, size, size, c), np.float32) for _ in range(2))
        own = [random.standard_normal(c, np.float32) for _ in range(2)]
        op = BatchNormReLU.of(1e-5)
        yield case(f"batch norm and ReLU, {c}@{size} n{n}", op, rectified, [x, *own], g, 0.5)
    for c, size in ((5, 4),) if options.quick else POOLS:
        x = random.standard_normal((n, size, size, c), np.float32)
        g = random.standard_normal((n, size // 2, size // 2, c), np.float32)
        op = MaxPool.of((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
        pool = partial(F.max_pool2d, kernel_size=2)
        yield case(f"max pooling, {c}@{size} n{n}", op, pool, [x], g, 0.4)
    for mode in ("nearest", "bilinear"):
        yield upsampling(mode, options)


def upsampling(mode: str, options: Options) -> Case:
    """Return the row of enlarging images twice."""
    random = np.random.default_rng(0)
    n, c, size = (1, 5, 3) if options.quick else (16, 64, 64)
    x = random.standard_normal((n, size, size, c), np.float32)
    g = random.standard_normal((n, 2 * size, 2 * size, c), np.float32)
    tensor = ndl.Tensor(ndl.ops.permute(ndl.Tensor(x, requires_grad=False), (0, 3, 1, 2)))
    grad = ndl.ops.permute(ndl.Tensor(g, requires_grad=False), (0, 3, 1, 2))

    def ours() -> Any:
        tensor.grad = None
        ndl.ops.upsample(tensor, scale_factor=2, mode=mode).backward(grad)
        return tensor.grad

    def peer(memory: Any, compiler: Any = lambda function: function) -> Any:
        image, slope = (
            torch.from_numpy(v).permute(0, 3, 1, 2).contiguous(memory_format=memory) for v in (x, g)
        )
        function = compiler(partial(F.interpolate, scale_factor=2, mode=mode))
        return partial(backward, function, [image.requires_grad_()], slope)

    return Case(
        f"upsampling, {mode}, {c}@{size} n{n}, forward and backward", ours,
        peer(torch.contiguous_format), partial(peer, torch.channels_last), goals="images",
        group="upsampling",
        bytes=4.0 * (2 * x.size + 2 * g.size), others={"channels last": peer(torch.channels_last)},
    )  # fmt: skip


if __name__ == "__main__":
    main("images", cases, seconds=0.8)

"""Convolution of images, in its three directions: forward, to the input, to the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Case, Options, compiled, main

import needle as ndl
from needle import executor
from needle.ops.image.convolution import Convolution, ConvolutionInput, ConvolutionWeight

DIRECTIONS = ("forward", "to the input", "to the weights")
ON_3X3 = (0.45, 0.45, 0.6)
LIKE_PYTORCH = (1.0, 1.0, 1.0)


@dataclass
class Layer:
    """A convolution of n images [size, size, c] to k channels."""

    n: int
    c: int
    k: int
    size: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    targets: tuple[float, ...] = LIKE_PYTORCH

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        """As rows call it."""
        text = f"{self.kernel}x{self.kernel} {self.c}-{self.k}@{self.size} n{self.n}"
        text += f" stride {self.stride}" if self.stride > 1 else ""
        return text + (" depthwise" if self.groups > 1 else "")


LAYERS = (
    Layer(32, 128, 128, 28, targets=ON_3X3),
    Layer(64, 64, 128, 32, targets=ON_3X3),
    Layer(64, 128, 128, 16, targets=ON_3X3),
    Layer(64, 128, 256, 16, targets=ON_3X3),
    Layer(64, 256, 512, 8, targets=ON_3X3),
    Layer(64, 512, 512, 4),
    Layer(64, 64, 128, 32, kernel=1),
    Layer(64, 512, 512, 4, kernel=1),
    Layer(64, 64, 64, 16, kernel=5),
    Layer(128, 3, 16, 32, kernel=7, stride=4),
    Layer(64, 128, 128, 16, groups=128),
    Layer(64, 64, 128, 32, stride=2),
    Layer(128, 16, 32, 8, stride=2),
)
QUICK = (Layer(2, 16, 16, 6), Layer(2, 4, 4, 6, groups=4), Layer(1, 3, 5, 9, 5, 2))


def theirs(layer: Layer, direction: int, tensors: list[Any], memory: Any) -> Any:
    """Return PyTorch's computation, of operands in a memory format."""
    x, w, g = (t.contiguous(memory_format=memory) for t in tensors)
    if direction == 0:
        convolve = torch.nn.functional.conv2d
        return partial(convolve, x, w, None, layer.stride, layer.pad, 1, layer.groups)
    pairs = [layer.stride] * 2, [layer.pad] * 2, [1, 1], False, [0, 0], layer.groups
    wanted = [direction == 1, direction == 2, False]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(g, x, w, None, *pairs, wanted)[direction - 1]


def ours(layer: Layer, direction: int, arrays: list[Any]) -> Any:
    """Return Needle's computation."""
    two = (layer.stride,) * 2, ((layer.pad,) * 2,) * 2, (1, 1), layer.groups
    ops = (
        Convolution.of(*two),
        ConvolutionInput.of(*two, (layer.size,) * 2),
        ConvolutionWeight.of(*two, (layer.kernel,) * 2),
    )
    x, w, g = (ndl.Tensor(v, requires_grad=False) for v in arrays)
    return partial(executor.apply, ops[direction], *((x, w), (g, w), (x, g))[direction])


def case(layer: Layer, direction: int) -> Case:
    """Return the row of a direction."""
    random = np.random.default_rng(0)
    inside = layer.c // layer.groups
    shapes = (
        (layer.n, layer.size, layer.size, layer.c),
        (layer.kernel, layer.kernel, inside, layer.k),
        (layer.n, layer.out, layer.out, layer.k),
    )
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
    order = (2, 3, 1, 0) if direction == 2 else (0, 2, 3, 1)
    axes = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    tensors = [torch.from_numpy(v).permute(a) for v, a in zip(arrays, axes, strict=True)]
    planes, last = (
        theirs(layer, direction, tensors, memory)
        for memory in (torch.contiguous_format, torch.channels_last)
    )
    flops = 2.0 * layer.n * layer.out**2 * layer.kernel**2 * inside * layer.k
    return Case(
        f"{layer.name}, {DIRECTIONS[direction]}", ours(layer, direction, arrays),
        lambda: planes().permute(order), compiled(planes),
        target=layer.targets[direction], goals="images", group=DIRECTIONS[direction],
        flops=flops, others={"channels last": last},
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for layer in QUICK if options.quick else LAYERS:
        for direction in range(3):
            yield case(layer, direction)


if __name__ == "__main__":
    main("convolution", cases, seconds=0.5)

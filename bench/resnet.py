"""Convolution nets as a whole: training steps of the two ResNet-9, inference of the smaller one.

Images of 32 x 32, eager. Each row's nets start from equal weights; before timing, the losses of
some steps, or the logits, must agree. PyTorch with its fused optimizers and in inference mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import resnet_shapes as shapes
import resnet_twin as twin
import torch
from harness import Case, Options, main

import needle as ndl
from needle import nn, ops, optim
from needle.models.resnet9 import DawnResNet9, ResNet9

STEPS = 3
"""Compared before timing; rounding errors grow from step to step."""


@dataclass
class Net:
    """A net in both frameworks, and how it is trained."""

    name: str
    ours: Callable[[], nn.Module]
    theirs: Callable[[], torch.nn.Module]
    rule: Callable[[Any], optim.Optimizer]
    their_rule: Callable[[Any], Any]
    batch: int
    target: float


def needle_images(x: np.ndarray[Any, Any]) -> ndl.Tensor:
    """Return images [n, h, w, c] as a tensor [n, c, h, w]; the memory stays as it is."""
    return ops.permute(ndl.Tensor(x, requires_grad=False), (0, 3, 1, 2))


def start(model: nn.Module, net: Net, memory: str, compiler: Any = None) -> Callable[[], Any]:
    """Return PyTorch's step from the present weights of Needle's model."""
    x, labels = shapes.images(net.batch)
    other = net.theirs()
    twin.copy_values(other, model.parameters())
    other, x = twin.laid_out(other, x, memory)
    run = other if compiler is None else compiler(other)
    return twin.trainer(run, net.their_rule(other), x, torch.from_numpy(labels))


def needle_step(model: nn.Module, net: Net) -> Callable[[], ndl.Tensor]:
    """Return Needle's step."""
    x, labels = shapes.images(net.batch)
    image, y = needle_images(x), ndl.Tensor(labels, requires_grad=False)
    loss, optimizer = nn.SoftmaxLoss(), net.rule(model.parameters())
    return lambda: optimizer.minimize(loss(model(image), y))


def training(net: Net, options: Options) -> Case:
    """Return the row of a training step."""
    ndl.manual_seed(0)
    model = net.ours()
    theirs = {memory: start(model, net, memory) for memory in twin.FORMATS}
    start_compiled = partial(start, copy.deepcopy(model), net, "channels last")
    ours = needle_step(model, net)
    for i in range(2 if options.quick else STEPS):
        mine = ours().item()
        for memory, step in theirs.items():
            other = step().item()
            assert abs(mine - other) < 5e-3 * max(1.0, other), f"{memory} {i}: {mine}, {other}"
    name = f"training step, {net.name}, batch {net.batch}"
    return Case(
        name, lambda: forget(ours()), lambda: forget(theirs["planes"]()), start_compiled,
        target=net.target, goals="images", group="training",
        others={"channels last": theirs["channels last"]},
    )  # fmt: skip


def inference(batch: int) -> Case:
    """Return the row of the course's net in evaluation, its statistics those of some steps."""
    ndl.manual_seed(0)
    x, _ = shapes.images(batch)
    model = ResNet9()
    for _ in range(STEPS):
        model(needle_images(np.random.default_rng(1).standard_normal((64, 32, 32, 3), np.float32)))
    model.eval()
    image = needle_images(x)

    def ours() -> ndl.Tensor:
        with ndl.no_grad():
            return model(image)

    def theirs(memory: str, compiler: Any = None) -> Callable[[], Any]:
        other = twin.course_resnet9().eval()
        twin.copy_values(other, model.parameters(), [*model.buffers()])
        other, mine = twin.laid_out(other, x, memory)
        run = other if compiler is None else compiler(other)

        def infer() -> Any:
            with torch.inference_mode():
                return run(mine)

        return infer

    return Case(
        f"inference, the course's ResNet-9, batch {batch}", ours, theirs("planes"),
        partial(theirs, "channels last"), target=1.0, goals="images", group="inference",
        others={"channels last": theirs("channels last")},
    )  # fmt: skip


def forget(result: Any) -> None:
    """Return nothing: the losses were compared step by step."""


def nets(quick: bool) -> list[Net]:
    """Return what is trained."""
    narrow = {"width": 4} if quick else {}
    return [
        Net(
            "DAWNBench ResNet-9, SGD Nesterov", partial(DawnResNet9, **narrow),
            partial(twin.dawn_resnet9, **narrow), partial(optim.SGD, **shapes.DAWN_RULE),
            twin.dawn_optimizer, 8 if quick else shapes.DAWN_BATCH, 0.6,
        ),
        Net(
            "the course's ResNet-9, Adam", ResNet9, twin.course_resnet9,
            partial(optim.Adam, **shapes.COURSE_RULE), twin.course_optimizer,
            8 if quick else shapes.COURSE_BATCH, 0.8,
        ),
    ]  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield the rows."""
    for net in nets(options.quick):
        if options.only in f"training step, {net.name}, batch {net.batch}":
            yield training(net, options)
    for batch in (1, 2 if options.quick else shapes.COURSE_BATCH):
        yield inference(batch)


if __name__ == "__main__":
    main("resnet", cases, seconds=6.0)

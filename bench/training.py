"""A training step of the MLP-ResNet on the shapes of MNIST, eager.

Linear, batch norm, ReLU, dropout 0.1, residual blocks, softmax loss, Adam; PyTorch with its
fused Adam. Before timing, both start from equal weights, dropout off, and must agree on the
losses of some steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import Case, Options, main
from twin import BATCH, BLOCKS, CLASSES, HIDDEN, INPUT, LR, torch_model

import needle as ndl
from needle.models.mlp_resnet import MLPResNet


def copy_weights(model: Any, twin: torch.nn.Module) -> None:
    """Give the twin the weights of Needle's model, whose Linear stores them transposed."""
    with torch.no_grad():
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            values = torch.from_numpy(p.numpy())
            q.copy_(values.T if q.ndim == 2 else values.reshape(q.shape))


class Step:
    """A step of both frameworks on the same batch, from equal weights."""

    def __init__(self, drop: float) -> None:
        # Of some weights gradients are so near zero that Adam makes steps of rounding errors.
        np.random.seed(0)  # of the course's stream, from which the weights come
        random = np.random.default_rng(0)
        x = random.standard_normal((BATCH, INPUT), np.float32)
        y = random.integers(0, CLASSES, BATCH)
        self.x, self.y = (ndl.Tensor(v, requires_grad=False) for v in (x, y))
        self.tx, self.ty = torch.from_numpy(x), torch.from_numpy(y)
        self.model, self.twin = MLPResNet(INPUT, HIDDEN, BLOCKS, drop_prob=drop), torch_model(drop)
        copy_weights(self.model, self.twin)
        self.loss, self.twin_loss = ndl.nn.SoftmaxLoss(), torch.nn.CrossEntropyLoss()
        self.adam = ndl.optim.Adam(self.model.parameters(), lr=LR)
        self.twin_adam = torch.optim.Adam(self.twin.parameters(), lr=LR, fused=True)

    def needle(self) -> Any:
        """One step of Needle."""
        loss = self.loss(self.model(self.x), self.y)
        self.adam.reset_grad()
        loss.backward()
        self.adam.step()
        return loss

    def torch(self) -> Any:
        """One step of PyTorch."""
        loss = self.twin_loss(self.twin(self.tx), self.ty)
        self.twin_adam.zero_grad()
        loss.backward()
        self.twin_adam.step()
        return loss


def check_losses(steps: int = 10) -> None:
    """Raise AssertionError unless both train alike."""
    both = Step(drop=0.0)
    for i in range(steps):
        ours, theirs = both.needle().item(), both.torch().item()
        assert abs(ours - theirs) < 2e-3 * max(1.0, theirs), f"step {i}: {ours} and {theirs}"


def cases(options: Options) -> Iterator[Case]:
    """Yield the rows."""
    check_losses(2 if options.quick else 10)
    both = Step(drop=0.1)

    parameters = sum(p.size for p in both.model.parameters())
    yield Case(
        "MLP-ResNet step, MNIST shapes, batch 100, Adam",
        lambda: nothing(both.needle()), lambda: nothing(both.torch()),
        target=1.0, group="training", flops=6.0 * BATCH * parameters,
    )  # fmt: skip
    yield Case(
        "MLP-ResNet forward, training mode",
        lambda: nothing(both.model(both.x)), lambda: nothing(both.twin(both.tx)),
        group="training", flops=2.0 * BATCH * parameters,
    )  # fmt: skip


def nothing(result: Any) -> None:
    """Forget a result: with dropout the frameworks draw different numbers."""


if __name__ == "__main__":
    main("training", cases, seconds=8.0)

"""The two ResNet-9 of ``needle.models`` in PyTorch, and their training steps.

No Needle in here: ``memory.py`` measures processes that have PyTorch alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from resnet_shapes import CLASSES, COURSE_RULE, DAWN_RULE

nn = torch.nn
FORMATS = {"planes": torch.contiguous_format, "channels last": torch.channels_last}


def conv_bn(ins: int, outs: int, kernel: int, stride: int = 1, bias: bool = True) -> nn.Module:
    """Convolution, batch norm, rectifier."""
    conv = nn.Conv2d(ins, outs, kernel, stride, (kernel - 1) // 2, bias=bias)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """fn(x) + x, fn two convolutions that keep the width."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.fn = nn.Sequential(*(conv_bn(width, width, 3, bias=bias) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x) + x


class Scale(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def course_resnet9() -> nn.Module:
    """Return the course's ResNet-9."""
    return nn.Sequential(
        conv_bn(3, 16, 7, 4), conv_bn(16, 32, 3, 2), Residual(32), conv_bn(32, 64, 3, 2),
        conv_bn(64, 128, 3, 2), Residual(128), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


def dawn_resnet9(width: int = 64) -> nn.Module:
    """Return DAWNBench's."""
    w = width
    return nn.Sequential(
        conv_bn(3, w, 3, bias=False),
        conv_bn(w, 2 * w, 3, bias=False), nn.MaxPool2d(2), Residual(2 * w, bias=False),
        conv_bn(2 * w, 4 * w, 3, bias=False), nn.MaxPool2d(2),
        conv_bn(4 * w, 8 * w, 3, bias=False), nn.MaxPool2d(2), Residual(8 * w, bias=False),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * w, CLASSES, bias=False), Scale(0.125),
    )  # fmt: skip


def copy_values(twin: nn.Module, parameters: Any, buffers: Any = ()) -> None:
    """Give a twin the parameters of Needle's model, and perhaps its running statistics.

    Needle's convolutions have weights [k, k, in, out], its linear layers [in, out].
    """
    running = [b for b in twin.buffers() if b.ndim == 1]  # not the counts of batches
    pairs = [*zip(twin.parameters(), parameters, strict=True)]
    pairs += zip(running, buffers, strict=True) if buffers else []
    with torch.no_grad():
        for theirs, ours in pairs:
            values = ours.numpy()
            values = values.transpose(3, 2, 0, 1) if values.ndim == 4 else values
            values = values.T if values.ndim == theirs.ndim == 2 else values
            theirs.copy_(torch.tensor(np.ascontiguousarray(values)).reshape(theirs.shape))


def laid_out(model: nn.Module, x: Any, memory: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model and its images [n, 3, h, w] in one of the ``FORMATS``."""
    chosen = FORMATS[memory]
    image = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(memory_format=chosen)
    return model.to(memory_format=chosen), image


def trainer(model: nn.Module, optimizer: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    """Return what makes one step and returns the loss before it."""
    loss_function = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_function(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def dawn_optimizer(model: nn.Module) -> Any:
    """Return Nesterov's gradient descent, all parameters in one call."""
    return torch.optim.SGD(model.parameters(), **DAWN_RULE, fused=True)


def course_optimizer(model: nn.Module) -> Any:
    """Return Adam, all parameters in one call."""
    return torch.optim.Adam(model.parameters(), **COURSE_RULE, fused=True)

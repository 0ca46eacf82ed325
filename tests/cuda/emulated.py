"""The device in the emulator, for tests of what is asynchronous."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import devices, nn, optim

if not any(d.name == "cuda-emu" and d.enabled() for d in ndl.all_devices()):
    pytest.skip("no compiler for the emulator", allow_module_level=True)


EMU = devices.as_device("cuda-emu")
DRIVER = EMU.backend.driver
rng = np.random.default_rng(0)


def draw(*shape):
    return rng.standard_normal(shape).astype("float32")


def waits(call):
    """Return how many times the host waits in a call."""
    before = DRIVER.waits
    call()
    return DRIVER.waits - before


def train(where, steps=3, labels="int64"):
    """Return a function that trains a small model and one that reads the losses."""
    ndl.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.LayerNorm1d(8), nn.Linear(8, 4),
    ).to(where)  # fmt: skip
    optimizers = [
        optim.Adam(model.parameters(), lr=0.01),
        optim.RMSprop(model.parameters(), lr=0.001, momentum=0.9, centered=True),
        optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    ]
    random = np.random.default_rng(1)
    x, y = random.standard_normal((steps, 16, 6)), random.integers(0, 4, (steps, 16))
    losses = []

    def run():
        for inputs, wanted in zip(x, y, strict=True):
            rows = ndl.Tensor(inputs, device=where, requires_grad=False)[np.arange(16)[::-1]]
            wanted = ndl.Tensor(wanted[::-1].copy(), device=where, dtype=labels)
            loss = nn.SoftmaxLoss()(model(rows), wanted)
            model_loss = loss + (ndl.one_hot(wanted, 4) * model(rows)).mean()
            model_loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(model_loss.detach())

    return (
        run,
        lambda: (
            [loss.item() for loss in losses] + [float(p.numpy().sum()) for p in model.parameters()]
        ),
    )

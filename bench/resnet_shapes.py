"""The images, labels and rules of the two ResNet-9 that are measured; without any framework."""

from __future__ import annotations

from typing import Any

import numpy as np

DAWN_BATCH, COURSE_BATCH, SIZE, CLASSES = 64, 128, 32, 10
DAWN_RULE: dict[str, Any] = {
    "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True,
}  # fmt: skip
COURSE_RULE: dict[str, Any] = {"lr": 1e-4}


def images(batch: int) -> tuple[Any, Any]:
    """Return random images [batch, SIZE, SIZE, 3] and labels."""
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, SIZE, SIZE, 3), np.float32)
    return x, random.integers(0, CLASSES, batch)

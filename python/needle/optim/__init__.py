"""Optimizers, clipping of gradients, and schedules of the learning rate."""

from importlib import import_module
from typing import Any

from needle.optim import schedules
from needle.optim.clip import clip_grad_norm, clip_grad_value
from needle.optim.optimizer import Optimizer
from needle.optim.rules import SGD, Adam, AdamW, Momentum, RMSprop
from needle.optim.schedules import Chain, Constant, Cosine, Linear, Schedule, Step, Warmup

_ELSEWHERE = {
    "lr_scheduler": "lr=optim.Cosine(...), optim.Step(...): a schedule is the lr of an optimizer",
}
"""Names that PyTorch has here: what to try."""


def __getattr__(name: str) -> Any:
    text = f"module 'needle.optim' has no attribute {name!r}"
    if name in _ELSEWHERE:
        text += f"\n  try: {_ELSEWHERE[name]}"
    raise AttributeError(text, name=name, obj=import_module("needle.optim"))

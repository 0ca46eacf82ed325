"""Optimizers, clipping of gradients, and schedules of the learning rate."""

from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.errors import missing
from needle.optim import lr_scheduler, schedules
from needle.optim.adam import Adam, AdamW, NAdam, RAdam
from needle.optim.clip import clip_grad_norm, clip_grad_value
from needle.optim.optimizer import Optimizer
from needle.optim.plateau import ReduceLROnPlateau
from needle.optim.rules import SGD, Adadelta, Adagrad, Momentum, RMSprop
from needle.optim.schedules import (
    Chain,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Milestones,
    OneCycle,
    Polynomial,
    Restarts,
    Schedule,
    Step,
    Warmup,
)

__all__ = [
    "Adadelta", "Adagrad", "Adam", "AdamW", "Chain", "Constant", "Cosine", "Exponential",
    "Linear", "Milestones", "Momentum", "NAdam", "OneCycle", "Optimizer", "Polynomial", "RAdam",
    "RMSprop", "ReduceLROnPlateau", "Restarts", "SGD", "Schedule", "Step", "Warmup",
    "clip_grad_norm", "clip_grad_value", "lr_scheduler", "schedules",
]  # fmt: skip

_ELSEWHERE = {
    "clip_grad_norm_": "clip_grad_norm, or nn.utils.clip_grad_norm_",
    "clip_grad_value_": "clip_grad_value, or nn.utils.clip_grad_value_",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.optim", name, _ELSEWHERE.get(name) or _advice("optim", name))

"""Optimizers, clipping of gradients, and schedules of the learning rate."""

from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.elsewhere import publish as _publish
from needle.errors import missing as _missing
from needle.optim import lr_scheduler as lr_scheduler
from needle.optim import schedules as schedules
from needle.optim.adam import *
from needle.optim.clip import *
from needle.optim.optimizer import Optimizer as Optimizer
from needle.optim.plateau import *
from needle.optim.rules import *
from needle.optim.schedules import *

_publish(globals(), "lr_scheduler", "schedules")

_ELSEWHERE = {
    "clip_grad_norm_": "clip_grad_norm, or nn.utils.clip_grad_norm_",
    "clip_grad_value_": "clip_grad_value, or nn.utils.clip_grad_value_",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise _missing("needle.optim", name, _ELSEWHERE.get(name) or _advice("optim", name))

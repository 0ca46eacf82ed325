"""PyTorch's schedulers: objects that set an optimizer's learning rate when ``step()`` is called.

They are faces of the schedules in ``optim.schedules``, which are functions of the step and can be
passed to an optimizer as its ``lr``: ``optim.Adam(params, lr=optim.Cosine(0.1, 90))``.

>>> optimizer = optim.SGD([nn.Parameter(Tensor([1.0]))], lr=0.1)
>>> scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
>>> rates = []
>>> for epoch in range(4):
...     optimizer.step()
...     rates += scheduler.get_last_lr()
...     scheduler.step()
>>> rates
[0.1, 0.1, 0.05, 0.05]
"""

from typing import TYPE_CHECKING

from needle.elsewhere import publish as _publish
from needle.errors import missing as _missing
from needle.optim.lr_scheduler.base import *
from needle.optim.lr_scheduler.several import *
from needle.optim.lr_scheduler.single import *
from needle.optim.plateau import ReduceLROnPlateau as ReduceLROnPlateau

_publish(globals())

_ELSEWHERE = {"CyclicLR": "LambdaLR with a function of the step", "_LRScheduler": "LRScheduler"}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise _missing("needle.optim.lr_scheduler", name, _ELSEWHERE.get(name, ""))

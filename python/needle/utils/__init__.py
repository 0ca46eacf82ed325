"""PyTorch's names for what is in ``needle.data`` and ``needle.checkpoint``."""

from typing import TYPE_CHECKING

from needle.errors import missing
from needle.utils import checkpoint, data

__all__ = ["checkpoint", "data"]

_ELSEWHERE = {
    "benchmark": "time.perf_counter()",
    "tensorboard": "needle train, which keeps a run's measurements in its folder",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.utils", name, _ELSEWHERE.get(name, ""))

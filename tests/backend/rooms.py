"""Rooms: how much memory a device has left in a test."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import needle as ndl
from needle import core

KIB = 1 << 10
native = pytest.mark.skipif(core.native is None, reason="needs the native module")


def live(device) -> int:
    gc.collect()
    return device.memory_info()["live"]


def in_use(info) -> int:
    return info["live"] + info.get("workspaces", 0)


def room(device, nbytes: int, **changes):
    """Return a context in which a device gives that many bytes more than are in use."""
    used = in_use(device.memory_info())
    return ndl.config(memory_limit=max(1, used + nbytes), **changes)


def leaf(device, *shape: int, seed: int = 0) -> ndl.Tensor:
    return ndl.Tensor(np.random.default_rng(seed).normal(size=shape), device=device)

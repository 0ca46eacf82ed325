"""Loading a state into tensors: conversion of what is given, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from needle import executor
from needle.backend.ndarray import NDArray, array
from needle.errors import DataError, describe, nearest
from needle.tensors import Tensor, from_dlpack


def as_array(value: Any, like: Tensor) -> NDArray:
    """Return a value, also a tensor of another library, as an array on a tensor's device."""
    if not isinstance(value, (Tensor, NDArray, np.ndarray)) and hasattr(value, "__dlpack__"):
        # a tensor of another library, which has its own dtypes
        value = from_dlpack(value.detach() if getattr(value, "requires_grad", False) else value)
    data = executor.primal_array(value) if isinstance(value, Tensor) else value
    if not isinstance(data, NDArray):
        data = array(data, getattr(data, "dtype", None), like.device)
    return data.to(like.device)


def faults(
    names: list[str], value: NDArray, target: Tensor, given: Mapping[str, object]
) -> Iterator[str]:
    """Say why a value cannot be loaded into a tensor, which may have several names."""
    if value.shape != target.shape or value.dtype.is_floating != target.dtype.is_floating:
        yield f"{names[0]} is {describe(value)}, but the model has {describe(target)}"
    for other in names[1:]:
        if as_array(given[other], target).numpy().tobytes() != value.numpy().tobytes():
            yield f"{names[0]} and {other} are one tensor in the model but differ in the state"


def mismatch(
    model: str,
    missing: list[str],
    unexpected: list[str],
    wrong: list[str],
    known: set[str],
) -> DataError:
    """Return the error that lists what does not fit a model."""
    counts = f"{len(missing)} missing, {len(unexpected)} unexpected, {len(wrong)} wrong"
    lines = [f"load_state_dict: the state does not fit {model}: {counts}"]
    lines += [f"  missing: {name}{nearest(name, unexpected)}" for name in missing]
    lines += [f"  unexpected: {name}{nearest(name, known)}" for name in unexpected]
    lines += [f"  wrong: {text}" for text in wrong]
    if not wrong:
        lines.append("  try: strict=False to load only the matching names")
    return DataError("\n".join(lines))

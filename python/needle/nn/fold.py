"""Batch norm folded into the layer before it, for inference."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

from needle import executor, ops
from needle.errors import ArgumentError
from needle.nn.activation import Identity, LeakyReLU, ReLU
from needle.nn.containers import Sequential
from needle.nn.conv import Conv, _ConvNd, _Straight
from needle.nn.image_norm import BatchNorm2d
from needle.nn.layers import Linear
from needle.nn.module import Module, search
from needle.nn.norm import BatchNorm1d
from needle.tensors import Parameter

__all__ = ["fold_batch_norm"]

_M = TypeVar("_M", bound=Module)


def fold_batch_norm(model: _M) -> _M:
    """Return a copy of a model for inference, in which no batch norm follows a convolution.

    In evaluation, batch norm multiplies each channel by a factor and adds a term, so the layer
    before it can include both in its weight and bias. This happens for neighbours in a
    ``Sequential``: batch norm after a convolution (``Conv``, ``Conv2d``, ``ConvTranspose2d`` and so
    on, except transposed convolutions with groups and convolutions with a ``slope``), or after
    ``Linear`` of rows [n, features]. A ``ReLU`` or ``LeakyReLU`` after a convolution with a bias
    becomes its ``slope``, so that one pass computes both. The copy is in evaluation mode and gives
    the results of ``model.eval()`` up to rounding; it has no batch norm left to train. Layers that
    the model uses in several places stay as they are.

    Raises:
        ArgumentError: if the model is not a module.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    >>> fast, x = nn.fold_batch_norm(model), ndl.rand(2, 3, 6, 6)
    >>> ndl.allclose(fast(x), model.eval()(x), atol=1e-5)
    True
    """
    if not isinstance(model, Module):
        kind = type(model).__name__
        raise ArgumentError(f"fold_batch_norm: expected a module, got {kind}")
    folded = copy.deepcopy(model).eval()
    with executor.modes(recording=False, lazy=False):
        places = Counter(
            id(child) for _, module in folded.named_modules() for child in _held(module)
        )
        for _, module in list(folded.named_modules()):
            if isinstance(module, Sequential):
                module.modules = _folded(list(module), places)
    return folded


def _held(module: Module) -> Iterator[Module]:
    """Yield the modules in a module's attributes, repeated ones as often as they occur."""
    for value in vars(module).values():
        for _, item in search(value, ""):
            if isinstance(item, Module):
                yield item


def _folded(modules: list[Module], places: Counter[int]) -> list[Module]:
    once = [places[id(module)] == 1 for module in modules]
    for i in range(len(modules) - 1):
        layer, norm = modules[i], modules[i + 1]
        axis = _out_axis(layer, norm)
        if axis is not None and once[i]:
            _fold(layer, norm, axis)
            modules[i + 1] = Identity()
    _rectify(modules, once)
    return modules


def _rectify(modules: list[Module], once: list[bool]) -> None:
    """Move ReLU and LeakyReLU into the convolutions before them."""
    last: Any = None
    for i, module in enumerate(modules):
        if isinstance(module, Identity):
            continue
        slope = _slope(module)
        plain = isinstance(last, (Conv, _Straight)) and last.slope == 1
        if slope is not None and plain and last.bias is not None:
            last.slope, modules[i], last = slope, Identity(), None
        else:
            last = module if once[i] else None


def _slope(module: Module) -> float | None:
    """Return the slope of ReLU or LeakyReLU below zero; None for other layers."""
    if isinstance(module, ReLU):
        return 0.0
    found = module.negative_slope if isinstance(module, LeakyReLU) else None
    return found if isinstance(found, float) and found >= 0 else None


def _out_axis(layer: Module, norm: Module) -> int | None:
    """Return the axis of the layer's weight that counts output channels; None: cannot fold."""
    if not isinstance(norm, BatchNorm1d) or not norm.track_running_stats:
        return None
    if isinstance(norm, BatchNorm2d) == isinstance(layer, Linear):
        return None
    if getattr(layer, "slope", 1.0) != 1 or getattr(layer, "act", None) is not None:
        return None  # the norm comes after the activation
    if layer._hooks is not None or norm._hooks is not None:  # which would see other values
        return None
    if isinstance(layer, Linear) and layer.out_features != norm.dim:  # of [n, dim, l]
        return None
    if isinstance(layer, (Conv, Linear)):
        return -1
    if isinstance(layer, _ConvNd) and not (layer.transposed and layer.groups > 1):
        return 1 if layer.transposed else 0
    return None


def _fold(layer: Any, norm: Any, axis: int) -> None:
    scale = ops.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    shape = [1] * layer.weight.ndim
    shape[axis] = scale.size
    bias = -norm.running_mean * scale
    bias = bias if norm.bias is None else bias + norm.bias
    if layer.bias is not None:
        bias = bias + ops.reshape(layer.bias, (scale.size,)) * scale
    layer.weight = Parameter((layer.weight * ops.reshape(scale, tuple(shape))).detach())
    if isinstance(layer, Linear):
        bias = ops.reshape(bias, (1, scale.size))
    layer.bias = Parameter(bias.detach())

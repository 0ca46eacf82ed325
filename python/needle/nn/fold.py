"""Batch norm folded into the layer before it, for inference."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from needle import executor, ops
from needle.nn.activation import ReLU
from needle.nn.conv import Conv, _ConvNd
from needle.nn.image_norm import BatchNorm2d, BatchNormReLU2d
from needle.nn.layers import Identity, Linear, Sequential
from needle.nn.module import Module
from needle.nn.norm import BatchNorm1d
from needle.tensor import Parameter

_M = TypeVar("_M", bound=Module)


def fold_batch_norm(model: _M) -> _M:
    """Return a copy of a model for inference, in which no batch norm follows a convolution.

    In evaluation batch norm is a factor and a term per channel, so the layer before it can have
    both in its weight and bias. It is done where they are neighbours in a ``Sequential``: batch
    norm behind a convolution (``Conv``, ``Conv2d``, ``ConvTranspose2d`` and so on; not behind a
    transposed one in groups), or behind ``Linear``. The copy is in evaluation mode and its results
    are those of ``model.eval()`` up to rounding; training it has no batch norm any more.
    """
    folded = copy.deepcopy(model).eval()
    with executor.modes(recording=False, lazy=False):
        for _, module in list(folded.named_modules()):
            if isinstance(module, Sequential):
                module.modules = tuple(_folded(list(module.modules)))
    return folded


def _folded(modules: list[Module]) -> list[Module]:
    for i in range(len(modules) - 1):
        layer, norm = modules[i], modules[i + 1]
        axis = _out_axis(layer, norm)
        if axis is not None:
            _fold(layer, norm, axis)
            modules[i + 1] = ReLU() if isinstance(norm, BatchNormReLU2d) else Identity()
    return modules


def _out_axis(layer: Module, norm: Module) -> int | None:
    """Return the axis of the layer's weight that counts output channels; None: cannot fold."""
    if not isinstance(norm, BatchNorm1d):
        return None
    if isinstance(norm, BatchNorm2d) == isinstance(layer, Linear):
        return None
    if isinstance(layer, (Conv, Linear)):
        return -1
    if isinstance(layer, _ConvNd) and not (layer.transposed and layer.groups > 1):
        return 1 if layer.transposed else 0
    return None


def _fold(layer: Any, norm: Any, axis: int) -> None:
    scale = ops.rsqrt(norm.running_var + norm.eps) * norm.weight
    shape = [1] * layer.weight.ndim
    shape[axis] = scale.size
    bias = norm.bias - norm.running_mean * scale
    if layer.bias is not None:
        bias = bias + ops.reshape(layer.bias, (scale.size,)) * scale
    layer.weight = Parameter((layer.weight * ops.reshape(scale, tuple(shape))).detach())
    if isinstance(layer, Linear):
        bias = ops.reshape(bias, (1, scale.size))
    layer.bias = Parameter(bias.detach())

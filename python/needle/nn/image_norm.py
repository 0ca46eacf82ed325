"""Normalisation of images [n, c, *spatial], channel by channel."""

from __future__ import annotations

import math
from typing import Any

from needle import executor, init, ops
from needle.errors import ShapeError, explain
from needle.nn.module import Module
from needle.nn.norm import BatchNorm1d
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensor import Parameter, Tensor


def _check(
    layer: Module,
    x: Tensor,
    channels: int,
    values: int,
    axes: int | None = 2,
    advice: str = "a larger batch, or .eval()",
) -> None:
    """Check images, and that there is more than one value to take statistics of."""
    name, shape = type(layer).__name__, x.shape
    right = len(shape) >= 2 if axes is None else len(shape) == axes + 2
    if not right or shape[1] != channels:
        spatial = "*spatial" if axes is None else "h, w"
        raise explain(
            ShapeError, name, f"x has shape {shape}", [("x", x)], f"x is [n, {channels}, {spatial}]"
        )
    if values <= 1:
        part = "channel" if axes is not None else "group"
        raise explain(
            ShapeError, name, f"statistics of {values} value per {part} say nothing", [("x", x)],
            f"more than one value per {part}", advice,
        )  # fmt: skip


class BatchNorm2d(BatchNorm1d):
    """Normalise each channel over the batch and all positions, then scale and shift.

    As ``BatchNorm1d``: the running variance is the biased one, as in the course.

    Shapes:   x [n, dim, h, w] -> [n, dim, h, w]
    Raises:   ShapeError in training with one value per channel
    """

    def forward(self, x: Tensor) -> Tensor:
        _check(self, x, self.dim, x.size // max(self.dim, 1) if self.training else 2)
        if not self.training:
            return self._evaluated(x)
        out, mean, var = ops.batch_norm(x, self.weight, self.bias, self.eps, axis=1)
        self._track(mean.detach(), var.detach())
        return out

    def _evaluated(self, x: Tensor) -> Tensor:
        """Return x normalised by the running statistics: one factor and one term per channel."""
        scale = ops.rsqrt(self.running_var + self.eps) * self.weight
        shift = self.bias - self.running_mean * scale
        return ops.channels_first(ops.channels_last(x) * scale + shift)


class BatchNormReLU2d(BatchNorm2d):
    """Batch norm with the rectifier behind it, and perhaps a shortcut between: one op in training.

    Shapes:   x [n, dim, h, w], residual of the same shape or None -> the same
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        _check(self, x, self.dim, x.size // max(self.dim, 1) if self.training else 2)
        if not self.training:
            out = self._evaluated(x)
            return ops.relu(out if residual is None else out + residual)
        out, mean, var = ops.batch_norm_relu(
            x, self.weight, self.bias, residual, self.eps, axis=1
        )  # fmt: skip
        self._track(mean.detach(), var.detach())
        return out


class GroupNorm(Module):
    """Normalise groups of channels of each image, then scale and shift each channel.

    A group of a single value is 0 before that; as in PyTorch, it is an error if n is 1.

    Shapes:   x [n, num_channels, *spatial] -> the same

    Args:
        num_groups: into how many groups the channels are cut.
        num_channels: how many channels x has.
        eps: added to the variance.
        affine: whether to scale and shift.
        device: where the parameters are; the default device for None.
        dtype: their element type.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, num_groups=num_groups, num_channels=num_channels)
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups"
            )
        check_number(self, "eps", eps)
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = Parameter(init.ones(num_channels, device=device, dtype=dtype))
            self.bias = Parameter(init.zeros(num_channels, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        values = math.prod(x.shape[1:]) // self.num_groups * max((1, *x.shape[:1]))
        _check(self, x, self.num_channels, values, None, "fewer groups, or larger images")
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)[0]

    def extra_repr(self) -> str:
        settings = {"eps": (self.eps, 1e-5), "affine": (self.weight is not None, True)}
        return shown(f"{self.num_groups}, {self.num_channels}", settings)


class InstanceNorm2d(Module):
    """Normalise each channel of each image over its positions.

    With running statistics, evaluation uses those. In training they move towards the batch's
    average of the means and of the unbiased variances, as in PyTorch.

    Shapes:   x [n, num_features, h, w] -> the same
    Raises:   ShapeError for images of one position
    Source:   Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022

    Args:
        num_features: how many channels x has.
        eps: added to the variance.
        momentum: how far running statistics move.
        affine: whether to scale and shift each channel.
        track_running_stats: whether there are running statistics.
        device: where the parameters are; the default device for None.
        dtype: their element type.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, num_features=num_features)
        check_number(self, "eps", eps)
        check_number(self, "momentum", momentum, high=1.0)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.track_running_stats = track_running_stats
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = Parameter(init.ones(num_features, device=device, dtype=dtype))
            self.bias = Parameter(init.zeros(num_features, device=device, dtype=dtype))
        if track_running_stats:
            kwargs = {"device": device, "dtype": dtype}
            self.register_buffer("running_mean", init.zeros(num_features, **kwargs))
            self.register_buffer("running_var", init.ones(num_features, **kwargs))

    def forward(self, x: Tensor) -> Tensor:
        own = self.training or not self.track_running_stats
        advice = "larger images, or .eval()" if self.track_running_stats else "larger images"
        _check(self, x, self.num_features, math.prod(x.shape[2:]) if own else 2, advice=advice)
        if not own:
            scale = ops.rsqrt(self.running_var + self.eps)
            scale = scale if self.weight is None else scale * self.weight
            shift = -self.running_mean * scale
            shift = shift if self.bias is None else shift + self.bias
            return ops.channels_first(ops.channels_last(x) * scale + shift)
        out, mean, var = ops.group_norm(x, self.num_features, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            count = math.prod(x.shape[2:])
            self._track(mean.detach(), var.detach() * (count / (count - 1)))
        return out

    def _track(self, mean: Tensor, var: Tensor) -> None:
        executor.value_of(self.running_mean)  # so that lazy mode does not pile up steps
        executor.value_of(self.running_var)
        keep, kind = 1.0 - self.momentum, self.running_mean.dtype
        for name, batch in (("running_mean", mean), ("running_var", var)):
            moved = ops.astype(ops.mean(batch, 0) * self.momentum, kind)
            setattr(self, name, getattr(self, name) * keep + moved)

    def extra_repr(self) -> str:
        settings = {
            "eps": (self.eps, 1e-5), "momentum": (self.momentum, 0.1),
            "affine": (self.weight is not None, False),
            "track_running_stats": (self.track_running_stats, False),
        }  # fmt: skip
        return shown(f"{self.num_features}", settings)

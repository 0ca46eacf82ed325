"""Normalisation of images [n, c, *spatial], channel by channel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from needle import init, ops
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.norm import BatchNorm1d, _Statistics
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = [
    "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
]  # fmt: skip


def _check(
    layer: Module,
    x: Tensor,
    channels: int,
    values: int,
    axes: int | None = 2,
    advice: str = "a larger batch, or .eval()",
) -> None:
    """Check the shape of images, and that statistics have more than one value."""
    name, shape = type(layer).__name__, shape_of(x)
    right = len(shape) >= 2 if axes is None else len(shape) == axes + 2
    if not right or shape[1] != channels:
        spatial = "*spatial" if axes is None else ("l", "h, w", "d, h, w")[axes - 1]
        raise explain(
            ShapeError, name, f"x has shape {shape}", [("x", x)], f"x is [n, {channels}, {spatial}]"
        )
    if values <= 1:
        part = "channel" if axes is not None else "group"
        raise explain(
            ShapeError, name, f"{values} value per {part} gives no statistics", [("x", x)],
            f"more than one value per {part}", advice,
        )  # fmt: skip


class BatchNorm2d(BatchNorm1d):
    """Normalise each channel over the batch and all positions, then scale and shift.

    Works as ``BatchNorm1d``; the running variance is the biased one, as in the course.

    Shapes:   x [n, dim, h, w] -> [n, dim, h, w]
    Raises:   ShapeError if a channel has a single value in training

    >>> norm = nn.BatchNorm2d(3)
    >>> out = norm(ndl.rand(8, 3, 4, 4))
    >>> print(ndl.abs(out.mean((0, 2, 3))) < 1e-5)
    [ True  True  True]
    """

    spatial: ClassVar[int] = 2
    """Number of spatial axes."""

    def forward(self, x: Tensor, *, _rectified: bool = False) -> Tensor:
        """Normalise; ``_rectified``: and apply the ReLU that follows, in the same pass."""
        self._check(x)
        if not self._by_batch:
            return ops.relu(self._evaluated(x)) if _rectified else self._evaluated(x)
        norm = ops.batch_norm_relu if _rectified else ops.batch_norm
        out, mean, var = norm(x, self.weight, self.bias, eps=self.eps, axis=1)
        self._track(mean, var)
        return out

    def _check(self, x: Tensor) -> None:
        advice = "a larger batch, or .eval()" if self.track_running_stats else "a larger batch"
        values = math.prod(shape_of(x)) // max(self.dim, 1) if self._by_batch else 2
        _check(self, x, self.dim, values, self.spatial, advice)


class BatchNorm3d(BatchNorm2d):
    """Normalise each channel over the batch and all positions, then scale and shift.

    Works as ``BatchNorm2d``.

    Shapes:   x [n, dim, d, h, w] -> the same
    Raises:   ShapeError if a channel has a single value in training

    >>> nn.BatchNorm3d(3)(ndl.rand(2, 3, 4, 4, 4)).shape
    (2, 3, 4, 4, 4)
    """

    spatial = 3


class GroupNorm(Module):
    """Normalise groups of channels of each image, then scale and shift each channel.

    A group of a single value is normalised to 0; as in PyTorch, this is an error if n is 1.

    Shapes:   x [n, num_channels, *spatial] -> the same

    Args:
        num_groups: number of groups of channels.
        num_channels: number of channels of x.
        eps: added to the variance.
        affine: whether to scale and shift.
        device: device of the parameters; the default device for None.
        dtype: their element type.

    >>> norm = nn.GroupNorm(2, 4)
    >>> print(norm(Tensor([[[1.0], [3.0], [10.0], [30.0]]])).flatten())
    [-1.  1. -1.  1.]
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, num_groups=num_groups, num_channels=num_channels)
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: num_groups={num_groups} does not divide num_channels={num_channels}"
            )
        check_number(self, "eps", eps)
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = Parameter(init.ones(num_channels, device=device, dtype=dtype))
            self.bias = Parameter(init.zeros(num_channels, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        values = math.prod(shape_of(x)[1:]) // self.num_groups * max((1, *x.shape[:1]))
        _check(self, x, self.num_channels, values, None, "fewer groups, or larger images")
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)[0]

    def extra_repr(self) -> str:
        settings = {"eps": (self.eps, 1e-5), "affine": (self.weight is not None, True)}
        return shown(f"{self.num_groups}, {self.num_channels}", settings)


class InstanceNorm2d(_Statistics):
    """Normalise each channel of each image over its positions.

    With running statistics, evaluation uses them. Training moves them towards the batch's average
    of the means and of the unbiased variances, as in PyTorch. With ``momentum=None`` they become
    averages of all batches; PyTorch leaves them unchanged.

    Shapes:   x [n, num_features, h, w] -> the same
    Raises:   ShapeError for images of one position
    Source:   Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022

    Args:
        num_features: number of channels of x.
        eps: added to the variance.
        momentum: weight of the batch in the running statistics; None averages all batches.
        affine: whether to scale and shift each channel.
        track_running_stats: whether to keep running statistics.
        device: device of the parameters; the default device for None.
        dtype: their element type.

    >>> norm = nn.InstanceNorm2d(1)
    >>> print(norm(Tensor([[[[1.0, 3.0]]]])).flatten())
    [-1.  1.]
    """

    usually = False
    spatial: ClassVar[int] = 2
    """Number of spatial axes."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes(self, num_features=num_features)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        advice = "larger images, or .eval()" if self.track_running_stats else "larger images"
        count = math.prod(shape_of(x)[2:])
        _check(self, x, self.num_features, count if self._by_batch else 2, self.spatial, advice)
        if not self._by_batch:
            return self._evaluated(x)
        out, mean, var = ops.group_norm(x, self.num_features, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            mean, var = ops.mean(mean.detach(), 0), ops.mean(var.detach(), 0)
            self._track(mean, var * (count / (count - 1)))
        return out


class InstanceNorm1d(InstanceNorm2d):
    """Normalise each channel of each sequence over its positions. See ``InstanceNorm2d``.

    Shapes:   x [n, num_features, l] -> the same
    Raises:   ShapeError for sequences of one position

    >>> nn.InstanceNorm1d(3)(ndl.rand(2, 3, 8)).shape
    (2, 3, 8)
    """

    spatial = 1


class InstanceNorm3d(InstanceNorm2d):
    """Normalise each channel of each volume over its positions. See ``InstanceNorm2d``.

    Shapes:   x [n, num_features, d, h, w] -> the same
    Raises:   ShapeError for volumes of one position

    >>> nn.InstanceNorm3d(3)(ndl.rand(2, 3, 4, 4, 4)).shape
    (2, 3, 4, 4, 4)
    """

    spatial = 3

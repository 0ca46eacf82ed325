"""Normalisation layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from needle import executor, init, ops, tracing
from needle.backend.axes import axes_of
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = ["BatchNorm1d", "LayerNorm", "LayerNorm1d", "RMSNorm"]


class _Statistics(Module):
    """Base of layers that normalise by the statistics of the batch, or by running statistics.

    Running statistics move towards those of each batch in training:
    ``running = (1 - momentum) * running + momentum * batch``; with ``momentum=None`` they are the
    average of all batches so far, which ``num_batches_tracked`` counts.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    usually: ClassVar[bool] = True
    """Default of ``affine`` and ``track_running_stats``."""

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: DeviceLike,
        dtype: DTypeLike,
    ) -> None:
        super().__init__()
        check_number(self, "eps", eps)
        if momentum is not None:
            check_number(self, "momentum", momentum, high=1.0)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.track_running_stats = track_running_stats
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = Parameter(init.ones(num_features, device=device, dtype=dtype))
            self.bias = Parameter(init.zeros(num_features, device=device, dtype=dtype))
        if track_running_stats:
            self.register_buffer(
                "running_mean", init.zeros(num_features, device=device, dtype=dtype)
            )
            self.register_buffer("running_var", init.ones(num_features, device=device, dtype=dtype))
            if momentum is None:
                count = init.zeros(device=device, dtype="int64")
                self.register_buffer("num_batches_tracked", count)

    @property
    def _by_batch(self) -> bool:
        """Whether the statistics of the batch are used."""
        return self.training or not self.track_running_stats

    def _evaluated(self, x: Tensor) -> Tensor:
        """Return x normalised by the running statistics: one factor and one term per channel."""
        scale = ops.rsqrt(self.running_var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        shift = shift if self.bias is None else shift + self.bias
        return ops.channels_first(ops.channels_last(x) * scale + shift)

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics, if tracked, towards those of a batch."""
        if not self.track_running_stats:
            return
        new: float | Tensor | None = self.momentum
        if new is None:
            _settle(self.num_batches_tracked)
            self.num_batches_tracked = self.num_batches_tracked + 1
            new = 1.0 / ops.astype(self.num_batches_tracked, mean.dtype)
        for name, batch in (("running_mean", mean.detach()), ("running_var", var.detach())):
            running = getattr(self, name)
            _settle(running)
            moved = ops.astype(running, batch.dtype) * (1.0 - new) + batch * new
            setattr(self, name, ops.astype(moved, running.dtype))

    def extra_repr(self) -> str:
        settings = {
            "eps": (self.eps, 1e-5), "momentum": (self.momentum, 0.1),
            "affine": (self.weight is not None, self.usually),
            "track_running_stats": (self.track_running_stats, self.usually),
        }  # fmt: skip
        return shown(f"{self.num_features}", settings)


def _settle(running: Tensor) -> None:
    """Compute a statistic, so that lazy mode does not collect steps."""
    if tracing.current() is None:
        executor.primal_array(running)


class BatchNorm1d(_Statistics):
    """Normalise each column over the batch, then scale and shift.

    Training uses the mean and the (biased) variance of the batch, and updates the running
    statistics: ``running = (1 - momentum) * running + momentum * batch``. Evaluation uses the
    running statistics.

    Shapes:   x [n, dim] or [n, dim, l] -> the same
    Raises:   ShapeError if a column has a single value in training

    Args:
        dim: number of columns, or channels, of x.
        eps: added to the variance.
        momentum: weight of the batch in the running statistics; None averages all batches.
        device: device of the parameters; the default device for None.
        dtype: their element type.
        affine: whether to scale and shift.
        track_running_stats: whether to keep running statistics; without them evaluation also uses
            the statistics of the batch.

    >>> norm = nn.BatchNorm1d(2)
    >>> print(norm(Tensor([[1.0, 10.0], [3.0, 30.0]])))
    [[-1. -1.]
     [ 1.  1.]]
    >>> print(norm.running_mean)
    [0.2 2. ]
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        check_sizes(self, dim=dim)
        super().__init__(dim, eps, momentum, affine, track_running_stats, device, dtype)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        right = len(shape_of(x)) in (2, 3) and x.shape[1] == self.dim
        if not right or (self._by_batch and x.size == 0 < self.dim):
            raise explain(
                ShapeError, "BatchNorm1d", f"x has shape {x.shape}", [("x", x)],
                f"x is [n, {self.dim}] or [n, {self.dim}, l], in training with n > 0 and l > 0",
            )  # fmt: skip
        if self._by_batch and x.size == self.dim > 0:
            raise explain(
                ShapeError, "BatchNorm1d", "1 value per column gives no statistics", [("x", x)],
                "more than one value per column in training",
                "model.eval() for single samples; DataLoader(..., drop_last=True) for a last batch",
            )  # fmt: skip
        if self._by_batch:
            out, mean, var = ops.batch_norm(x, self.weight, self.bias, self.eps, axis=1)
            self._track(mean, var)
            return out
        if x.ndim == 3:
            return self._evaluated(x)
        scale = ops.rsqrt(self.running_var + self.eps)
        out = (x - self.running_mean) * (scale if self.weight is None else scale * self.weight)
        return out if self.bias is None else out + self.bias


class _LastAxes(Module):
    """Base of layers that normalise the last axes of x together."""

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float,
        affine: bool,
        device: DeviceLike,
        dtype: DTypeLike,
    ) -> None:
        super().__init__()
        check_number(self, "eps", eps)
        self.shape = axes_of(shape)
        self.eps = eps
        self.weight: Tensor | None = None
        if affine:
            self.weight = Parameter(init.ones(*self.shape, device=device, dtype=dtype))
        else:
            check_sizes(self, **{f"size of axis {i}": n for i, n in enumerate(self.shape)})

    def _rows(self, x: Tensor) -> Tensor:
        """Return x with the normalised axes joined into one."""
        lead = x.ndim - len(self.shape)
        if lead < 0 or x.shape[lead:] != self.shape:
            sizes = ", ".join(map(str, self.shape))
            raise explain(
                ShapeError, type(self).__name__, f"x has shape {x.shape}", [("x", x)],
                f"x is [..., {sizes}]",
            )  # fmt: skip
        return ops.reshape(x, (*x.shape[:lead], math.prod(self.shape)))

    def extra_repr(self) -> str:
        settings = {"eps": (self.eps, 1e-5), "elementwise_affine": (self.weight is not None, True)}
        return shown(", ".join(map(str, self.shape)), settings)


class LayerNorm(_LastAxes):
    """Normalise the last axes of x, then scale and shift.

    Shapes:   x [..., *shape] -> the same

    Args:
        shape: sizes of the axes to normalise over; an integer for the last axis alone.
        eps: added to the variance.
        bias: whether to shift.
        device: device of the parameters; the default device for None.
        dtype: their element type.
        elementwise_affine: whether to scale, and to shift if ``bias`` is True.

    >>> print(nn.LayerNorm(4)(Tensor([1.0, 2.0, 3.0, 4.0])))
    [-1.3416 -0.4472  0.4472  1.3416]
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        self.bias: Tensor | None = None
        if bias and elementwise_affine:
            self.bias = Parameter(init.zeros(*self.shape, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return ops.reshape(ops.layer_norm(self._rows(x), eps=self.eps), x.shape)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        shifts = self.bias is not None or self.weight is None
        return shown(super().extra_repr(), {"bias": (shifts, True)})


class LayerNorm1d(LayerNorm):
    """Normalise each row, then scale and shift: the course's layer norm.

    Shapes:   x [..., dim] -> [..., dim]

    >>> print(nn.LayerNorm1d(2)(Tensor([[1.0, 3.0], [10.0, 30.0]])))
    [[-1.  1.]
     [-1.  1.]]
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: DeviceLike = None, dtype: DTypeLike = "float32"
    ) -> None:
        super().__init__(dim, eps, True, device, dtype)


class RMSNorm(_LastAxes):
    """Scale the last axes of x to a root mean square of 1, then by a weight.

    Shapes:   x [..., *shape] -> the same

    Args:
        dim: size of the last axis, or sizes of the last axes.
        eps: added to the mean square.
        device: device of the weight; the default device for None.
        dtype: its element type.
        elementwise_affine: whether to scale by a weight.

    >>> print(nn.RMSNorm(2)(Tensor([[3.0, 4.0]])))
    [[0.8485 1.1314]]
    """

    def __init__(
        self,
        dim: int | Sequence[int],
        eps: float = 1e-5,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, device, dtype)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return ops.reshape(ops.rms_norm(self._rows(x), eps=self.eps), x.shape)
        return ops.rms_norm(x, self.weight, self.eps)

"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle import executor, init, ops
from needle.backend.axes import axes_of
from needle.errors import ShapeError, explain
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensor import Parameter, Tensor


class BatchNorm1d(Module):
    """Normalise each column over the batch, then scale and shift.

    In training with the mean and (biased) variance of the batch, which also move the running
    ones: ``running = (1 - momentum) * running + momentum * batch``. In evaluation with those.

    Shapes:   x [n, dim] -> [n, dim]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, dim=dim)
        check_number(self, "eps", eps)
        check_number(self, "momentum", momentum, high=1.0)
        self.dim, self.eps, self.momentum = dim, eps, momentum
        self.weight = Parameter(init.ones(dim, device=device, dtype=dtype))
        self.bias = Parameter(init.zeros(dim, device=device, dtype=dtype))
        self.register_buffer("running_mean", init.zeros(dim, device=device, dtype=dtype))
        self.register_buffer("running_var", init.ones(dim, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.dim or (self.training and x.shape[0] == 0):
            raise explain(
                ShapeError, "BatchNorm1d", f"x has shape {x.shape}", [("x", x)],
                f"x is [n, {self.dim}], in training with n > 0",
            )  # fmt: skip
        if not self.training:
            scale = ops.rsqrt(self.running_var + self.eps) * self.weight
            return (x - self.running_mean) * scale + self.bias
        out, mean, var = ops.batch_norm(x, self.weight, self.bias, self.eps)
        self._track(mean.detach(), var.detach())
        return out

    def _track(self, mean: Tensor, var: Tensor) -> None:
        executor.value_of(self.running_mean)  # so that lazy mode does not pile up steps
        executor.value_of(self.running_var)
        keep, new = 1.0 - self.momentum, self.momentum
        kind = self.running_mean.dtype
        self.running_mean = self.running_mean * keep + ops.astype(mean * new, kind)
        self.running_var = self.running_var * keep + ops.astype(var * new, kind)

    def extra_repr(self) -> str:
        return shown(f"{self.dim}", {"eps": (self.eps, 1e-5), "momentum": (self.momentum, 0.1)})


class LayerNorm(Module):
    """Normalise the last axes of x, then scale and shift.

    Shapes:   x [..., *shape] -> the same

    Args:
        shape: sizes of the axes to normalise over; a number for the last axis alone.
        eps: added to the variance.
        bias: whether to shift.
        device: where the parameters are; the default device for None.
        dtype: their element type.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        bias: bool = True,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_number(self, "eps", eps)
        self.shape = axes_of(shape)
        self.eps = eps
        self.weight = Parameter(init.ones(*self.shape, device=device, dtype=dtype))
        self.bias: Tensor | None = None
        if bias:
            self.bias = Parameter(init.zeros(*self.shape, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        settings = {"eps": (self.eps, 1e-5), "bias": (self.bias is not None, True)}
        return shown(", ".join(map(str, self.shape)), settings)


class LayerNorm1d(LayerNorm):
    """Normalise each row, then scale and shift: the course's layer norm.

    Shapes:   x [..., dim] -> [..., dim]
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: Any = None, dtype: Any = "float32"
    ) -> None:
        super().__init__(dim, eps, True, device, dtype)


class RMSNorm(Module):
    """Scale each row to unit root mean square, then by a weight.

    Shapes:   x [..., dim] -> [..., dim]
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: Any = None, dtype: Any = "float32"
    ) -> None:
        super().__init__()
        check_sizes(self, dim=dim)
        check_number(self, "eps", eps)
        self.dim, self.eps = dim, eps
        self.weight = Parameter(init.ones(dim, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return shown(f"{self.dim}", {"eps": (self.eps, 1e-5)})

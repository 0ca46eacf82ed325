"""Normalisation layers."""

from __future__ import annotations

from typing import Any

from needle import init, ops
from needle.nn.module import Module
from needle.tensor import Parameter, Tensor


class BatchNorm1d(Module):
    """Normalise each column over the batch, then scale and shift.

    In training with the mean and (biased) variance of the batch, which also move the running
    ones: ``running = (1 - momentum) * running + momentum * batch``. In evaluation with those.

    Shapes:   x [n, dim] -> [n, dim]
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        self.dim, self.eps, self.momentum = dim, eps, momentum
        self.weight = Parameter(init.ones(dim, device=device, dtype=dtype))
        self.bias = Parameter(init.zeros(dim, device=device, dtype=dtype))
        self.register_buffer("running_mean", init.zeros(dim, device=device, dtype=dtype))
        self.register_buffer("running_var", init.ones(dim, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            mean, var = self.running_mean, self.running_var
            return (x - mean) * ops.rsqrt(var + self.eps) * self.weight + self.bias
        mean = x.mean((0,))
        centred = x - mean
        var = ops.square(centred).mean((0,))
        m = self.momentum
        self.running_mean = (1 - m) * self.running_mean + m * mean.detach()
        self.running_var = (1 - m) * self.running_var + m * var.detach()
        return centred * ops.rsqrt(var + self.eps) * self.weight + self.bias

"""Activations, as modules and by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from needle import ops
from needle.errors import OptionError, unknown
from needle.init import constant
from needle.nn.layers import Identity
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensor import Parameter, Tensor


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.clip(x, 0.0, 6.0)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x where beta * x is above a threshold. See ``ops.softplus``.

    Raises:
        OptionError: if beta is not positive, or threshold no number.
    """

    def __init__(self, beta: float = 1.0, threshold: float = math.inf) -> None:
        super().__init__()
        check_number(self, "beta", beta)
        if not 0 < beta < math.inf:
            raise OptionError(f"Softplus: expected a positive finite beta, got {beta}")
        check_number(self, "threshold", threshold, low=-math.inf)
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        return ops.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return shown("", {"beta": (self.beta, 1.0), "threshold": (self.threshold, math.inf)})


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class GELU(Module):
    """x times the normal distribution function of x; with "tanh" (or True) an approximation.

    Raises:
        OptionError: for another approximation.
    """

    def __init__(self, approximate: str | bool = False) -> None:
        super().__init__()
        if approximate not in ("none", "tanh", False, True):
            raise unknown("GELU: approximate", str(approximate), ("none", "tanh"))
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}" if self.approximate else ""


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"{self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class CELU(Module):
    """x where x > 0, else alpha * (exp(x / alpha) - 1).

    Raises:
        OptionError: if alpha is not positive.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        check_number(self, "alpha", alpha)
        if alpha == 0:
            raise OptionError(f"CELU: expected a positive alpha, got {alpha}")
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.celu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class Hardshrink(Module):
    """x where |x| > lambd, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        check_number(self, "lambd", lambd)
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softshrink(Hardshrink):
    """x, nearer to 0 by lambd, or 0 where it is no further away."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softshrink(x, self.lambd)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanhshrink(x)


class Threshold(Module):
    """x where it is above a threshold, else a value."""

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        check_number(self, "threshold", threshold, low=-math.inf)
        check_number(self, "value", value, low=-math.inf)
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        return ops.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"{self.threshold}, {self.value}"


class Mish(Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.mish(x)


class SELU(Module):
    """Scaled ELU, under which signals keep mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.selu(x)


class Hardsigmoid(Module):
    """(x + 3) / 6, limited to [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardsigmoid(x)


class Hardswish(Module):
    """x * hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardswish(x)


class Hardtanh(Module):
    """x limited to [min_val, max_val].

    Raises:
        OptionError: if these are no limits.
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        for name, value in (("min_val", min_val), ("max_val", max_val)):
            check_number(self, name, value, low=-math.inf)
        if not min_val < max_val:
            raise OptionError(
                f"Hardtanh: min_val={min_val}, max_val={max_val}\n  rule: min_val < max_val"
            )
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"{self.min_val}, {self.max_val}"


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softsign(x)


class LogSigmoid(Module):
    """Logarithm of the sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.log_sigmoid(x)


class _AlongAxis(Module):
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class GLU(_AlongAxis):
    """The first half along an axis, times the sigmoid of the second."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.glu(x, self.axis)


class PReLU(Module):
    """x where x > 0, else weight * x; the weight is learned.

    Shapes:   x [n, c, ...], weight [1] or [c] -> the same

    Args:
        num_parameters: 1, or how many channels x has.
        init: what the weight starts as.
        device: where it is; the default device for None.
        dtype: its element type.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, num_parameters=num_parameters)
        check_number(self, "init", init, low=-math.inf)
        start = constant(num_parameters, c=init, device=device, dtype=dtype)
        self.weight = Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.size}"


class LogSoftmax(_AlongAxis):
    """Logarithm of softmax along an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.log_softmax(x, self.axis)


class Softmax(_AlongAxis):
    """Positive numbers that add up to 1 along an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)


class Softmin(Softmax):
    """Positive numbers that add up to 1 along an axis, the larger the smaller x is."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmin(x, self.axis)


ACTIVATIONS: dict[str, Callable[[], Module]] = {
    "celu": CELU,
    "elu": ELU,
    "gelu": GELU,
    "gelu_tanh": lambda: GELU(approximate=True),
    "hardshrink": Hardshrink,
    "hardsigmoid": Hardsigmoid,
    "hardswish": Hardswish,
    "hardtanh": Hardtanh,
    "identity": Identity,
    "leaky_relu": LeakyReLU,
    "log_sigmoid": LogSigmoid,
    "mish": Mish,
    "prelu": PReLU,
    "relu": ReLU,
    "relu6": ReLU6,
    "selu": SELU,
    "sigmoid": Sigmoid,
    "silu": SiLU,
    "softplus": Softplus,
    "softshrink": Softshrink,
    "softsign": Softsign,
    "tanh": Tanh,
    "tanhshrink": Tanhshrink,
}
"""What ``activation`` knows."""


def activation(name: str) -> Module:
    """Return a new activation module by its name, for example ``"relu"``.

    Raises:
        OptionError: for an unknown name, with the nearest known one.
    """
    found = ACTIVATIONS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown("activation", name, ACTIVATIONS)
    return found()

"""Activations, as modules and by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from needle import ops
from needle.errors import ArgumentError, OptionError, unknown
from needle.init import constant
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes, shown
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = [
    "ACTIVATIONS", "Applied", "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid",
    "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU",
    "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink",
    "Softsign", "Tanh", "Tanhshrink", "Threshold", "activation", "register_activation",
]  # fmt: skip

_A = TypeVar("_A", bound=Callable[..., Any])


class Identity(Module):
    """Return x as it is.

    >>> print(nn.Identity()(Tensor([1.0, 2.0])))
    [1. 2.]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x


class _Activation(Module):
    """A function of x alone."""

    function: ClassVar[Callable[..., Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _Plain(_Activation):
    """One whose ``inplace`` is accepted as in PyTorch and changes nothing."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()


class _Set(_Activation):
    """A function of x and of a setting, an attribute."""

    setting: ClassVar[str]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, getattr(self, self.setting))

    def extra_repr(self) -> str:
        return f"{getattr(self, self.setting)}"


class ReLU(_Plain):
    """max(x, 0).

    >>> print(nn.ReLU()(Tensor([-2.0, 0.0, 3.0])))
    [0. 0. 3.]
    """

    function = staticmethod(ops.relu)


class ReLU6(_Plain):
    """min(max(x, 0), 6).

    >>> print(nn.ReLU6()(Tensor([-2.0, 3.0, 8.0])))
    [0. 3. 6.]
    """

    function = staticmethod(ops.relu6)


class Tanh(_Activation):
    """Hyperbolic tangent.

    >>> print(nn.Tanh()(Tensor([-1.0, 0.0, 1.0])))
    [-0.7616  0.      0.7616]
    """

    function = staticmethod(ops.tanh)


class Sigmoid(_Activation):
    """1 / (1 + exp(-x)).

    >>> print(nn.Sigmoid()(Tensor([-1.0, 0.0, 1.0])))
    [0.2689 0.5    0.7311]
    """

    function = staticmethod(ops.sigmoid)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x where beta * x is above a threshold. See ``ops.softplus``.

    Raises:
        OptionError: if beta is not positive, or threshold is not a number.

    >>> print(nn.Softplus()(Tensor([-1.0, 0.0, 1.0])))
    [0.3133 0.6931 1.3133]
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


class SiLU(_Plain):
    """x * sigmoid(x).

    >>> print(nn.SiLU()(Tensor([-1.0, 0.0, 1.0])))
    [-0.2689  0.      0.7311]
    """

    function = staticmethod(ops.silu)


class GELU(_Set):
    """x times the normal distribution function of x; "tanh" (or True) gives an approximation.

    Raises:
        OptionError: for another approximation.

    >>> print(nn.GELU()(Tensor([-1.0, 0.0, 1.0])))
    [-0.1587  0.      0.8413]
    """

    function, setting = staticmethod(ops.gelu), "approximate"

    def __init__(self, approximate: str | bool = False) -> None:
        super().__init__()
        if approximate not in ("none", "tanh", False, True):
            raise unknown("GELU: approximate", str(approximate), ("none", "tanh"))
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}" if self.approximate else ""


class LeakyReLU(_Set):
    """x where x > 0, else negative_slope * x.

    >>> print(nn.LeakyReLU(0.1)(Tensor([-2.0, 0.0, 3.0])))
    [-0.2  0.   3. ]
    """

    function, setting = staticmethod(ops.leaky_relu), "negative_slope"

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope


class ELU(_Set):
    """x where x > 0, else alpha * (exp(x) - 1).

    >>> print(nn.ELU()(Tensor([-2.0, 0.0, 3.0])))
    [-0.8647  0.      3.    ]
    """

    function, setting = staticmethod(ops.elu), "alpha"

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha


class CELU(_Set):
    """x where x > 0, else alpha * (exp(x / alpha) - 1).

    Raises:
        OptionError: if alpha is not positive.

    >>> print(nn.CELU(alpha=2.0)(Tensor([-2.0, 0.0, 3.0])))
    [-1.2642  0.      3.    ]
    """

    function, setting = staticmethod(ops.celu), "alpha"

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        check_number(self, "alpha", alpha)
        if alpha == 0:
            raise OptionError(f"CELU: expected a positive alpha, got {alpha}")
        self.alpha = alpha


class Hardshrink(_Set):
    """x where |x| > lambd, else 0.

    >>> print(nn.Hardshrink()(Tensor([-1.0, 0.25, 1.0])))
    [-1.  0.  1.]
    """

    function, setting = staticmethod(ops.hardshrink), "lambd"

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        check_number(self, "lambd", lambd)
        self.lambd = lambd


class Softshrink(Hardshrink):
    """x moved towards 0 by lambd; 0 where |x| <= lambd.

    >>> print(nn.Softshrink()(Tensor([-1.0, 0.25, 1.0])))
    [-0.5  0.   0.5]
    """

    function = staticmethod(ops.softshrink)


class Tanhshrink(_Activation):
    """x - tanh(x).

    >>> print(nn.Tanhshrink()(Tensor([-1.0, 0.0, 1.0])))
    [-0.2384  0.      0.2384]
    """

    function = staticmethod(ops.tanhshrink)


class Threshold(Module):
    """x where x > threshold, else a value.

    >>> print(nn.Threshold(1.0, -5.0)(Tensor([0.0, 1.0, 2.0])))
    [-5. -5.  2.]
    """

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        check_number(self, "threshold", threshold, low=-math.inf)
        check_number(self, "value", value, low=-math.inf)
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        return ops.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"{self.threshold}, {self.value}"


class Mish(_Plain):
    """x * tanh(softplus(x)).

    >>> print(nn.Mish()(Tensor([-1.0, 0.0, 1.0])))
    [-0.3034  0.      0.8651]
    """

    function = staticmethod(ops.mish)


class SELU(_Plain):
    """Scaled ELU, under which signals keep mean 0 and variance 1.

    >>> print(nn.SELU()(Tensor([-1.0, 0.0, 1.0])))
    [-1.1113  0.      1.0507]
    """

    function = staticmethod(ops.selu)


class Hardsigmoid(_Plain):
    """(x + 3) / 6, limited to [0, 1].

    >>> print(nn.Hardsigmoid()(Tensor([-4.0, 0.0, 1.5])))
    [0.   0.5  0.75]
    """

    function = staticmethod(ops.hardsigmoid)


class Hardswish(_Plain):
    """x * hardsigmoid(x).

    >>> print(nn.Hardswish()(Tensor([-1.5, 0.0, 1.5])))
    [-0.375  0.     1.125]
    """

    function = staticmethod(ops.hardswish)


class Hardtanh(Module):
    """x limited to [min_val, max_val].

    Raises:
        OptionError: if min_val is not below max_val.

    >>> print(nn.Hardtanh(-1.0, 2.0)(Tensor([-4.0, 0.5, 4.0])))
    [-1.   0.5  2. ]
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
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


class Softsign(_Activation):
    """x / (1 + |x|).

    >>> print(nn.Softsign()(Tensor([-1.0, 0.0, 3.0])))
    [-0.5   0.    0.75]
    """

    function = staticmethod(ops.softsign)


class LogSigmoid(_Activation):
    """Logarithm of the sigmoid.

    >>> print(nn.LogSigmoid()(Tensor([-1.0, 0.0, 1.0])))
    [-1.3133 -0.6931 -0.3133]
    """

    function = staticmethod(ops.log_sigmoid)


class _AlongAxis(_Set):
    setting = "axis"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class GLU(_AlongAxis):
    """The first half along an axis, times the sigmoid of the second half.

    >>> print(nn.GLU()(Tensor([3.0, 4.0, 0.0, 0.0])))
    [1.5 2. ]
    """

    function = staticmethod(ops.glu)


class PReLU(Module):
    """x where x > 0, else weight * x; the weight is learned.

    Shapes:   x [n, c, ...], weight [1] or [c] -> the same

    Args:
        num_parameters: 1, or the number of channels of x.
        init: initial value of the weight.
        device: device of the weight; the default device for None.
        dtype: its element type.

    >>> layer = nn.PReLU()
    >>> print(layer(Tensor([[-2.0], [2.0]])))
    [[-0.5]
     [ 2. ]]
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
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
    """Logarithm of softmax along an axis.

    >>> print(nn.LogSoftmax()(Tensor([[0.0, 0.0]])))
    [[-0.6931 -0.6931]]
    """

    function = staticmethod(ops.log_softmax)


class Softmax(_AlongAxis):
    """exp(x), scaled to add up to 1 along an axis.

    >>> print(nn.Softmax()(Tensor([[0.0, 1.0, 2.0]])))
    [[0.09   0.2447 0.6652]]
    """

    function = staticmethod(ops.softmax)


class Softmin(_AlongAxis):
    """Softmax of -x: positive numbers that add up to 1 along an axis.

    >>> print(nn.Softmin()(Tensor([[0.0, 1.0, 2.0]])))
    [[0.6652 0.2447 0.09  ]]
    """

    function = staticmethod(ops.softmin)


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
"""The names that ``activation`` accepts."""


def activation(name: str) -> Module:
    """Return a new activation module by its name, for example ``"relu"``.

    Raises:
        OptionError: for an unknown name, with the nearest known one.

    >>> nn.activation("leaky_relu")
    LeakyReLU(0.01)
    """
    found = ACTIVATIONS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown("activation", name, ACTIVATIONS)
    return found()


class Applied(Module):
    """A function as a module.

    >>> print(nn.Applied(ndl.tanh)(Tensor([0.0])))
    [0.]
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(function):
            raise ArgumentError(f"Applied: expected a function, got {function!r:.60}")
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


def register_activation(name: str) -> Callable[[_A], _A]:
    """Let ``activation`` and ``Linear(act=...)`` find a function, or a class of modules, by name.

    Raises:
        OptionError: for a name that is taken, or no name.
        ArgumentError: if it is neither a function nor a class.

    >>> @nn.register_activation("cubed")
    ... def cubed(x):
    ...     return x * x * x
    >>> print(nn.activation("cubed")(Tensor([2.0])))
    [8.]
    """
    if not isinstance(name, str) or not name or name != name.lower() or name in ACTIVATIONS:
        raise OptionError(
            f"register_activation: {name!r:.60}\n  rule: a name in small letters that is not taken"
        )

    def register(made: _A) -> _A:
        if not callable(made):
            raise ArgumentError(f"register_activation: expected a function, got {made!r:.60}")
        is_class = isinstance(made, type) and issubclass(made, Module)
        function: Any = made
        ACTIVATIONS[name] = function if is_class else lambda: Applied(function)
        return made

    return register

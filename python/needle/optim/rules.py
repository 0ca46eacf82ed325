"""Update rules except Adam's. Each step is one call of the device for all parameters of a dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from needle.errors import OptionError
from needle.ops.core import update
from needle.ops.core.formula import Numbers as Known
from needle.ops.core.formula import States, Value
from needle.optim.adam import Adam, _Counting, decayed
from needle.optim.clip import clip_grad_norm
from needle.optim.optimizer import Number, Numbers, Optimizer, Params
from needle.optim.schedules import Rate
from needle.tensors import Tensor

__all__ = ["Adadelta", "Adagrad", "Momentum", "RMSprop", "SGD"]


class SGD(Optimizer):
    """Stochastic gradient descent, by default with the course's momentum.

        g = grad + weight_decay * p
        u = momentum * u + (1 - dampening) * g
        p = p - lr * u

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        momentum: share of the velocity u that each step keeps.
        weight_decay: factor of the parameter that is added to the gradient.
        dampening: None selects the course's rule: dampening equals momentum, so u is an average of
            gradients and starts from 0. A number selects PyTorch's rule: u starts as the first
            gradient; with 0.0 steps are 1 / (1 - momentum) times longer than the course's.
        nesterov: step along ``g + momentum * u``; needs PyTorch's rule with dampening 0.
        maximize: maximize instead of minimize: the gradient is negated first.

    A gradient by rows (``nn.Embedding(..., sparse=True)``) changes p and u in these rows only. With
    momentum this is another algorithm: in the other rows u does not decay and p does not move.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.SGD([p], lr=0.1)
    >>> opt.minimize((p * p).sum()).item()
    5.0
    >>> print(p)
    [ 0.8 -1.6]
    """

    numbers = ("lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize")
    optional = ("dampening",)
    slots = ("u",)
    by_rows = True

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        dampening: float | None = None,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        looks_ahead = str(nesterov) == "True"  # an array has no truth
        dampening = 0.0 if looks_ahead and dampening is None else dampening
        super().__init__(
            params, lr, weight_decay, momentum=momentum, dampening=dampening, nesterov=nesterov,
            maximize=maximize,
        )  # fmt: skip

    def check(self, numbers: Mapping[str, Number]) -> None:
        """Check the numbers, and that they suit Nesterov's step.

        Raises:
            OptionError: if a number is out of range, or numbers do not fit together.
        """
        super().check(numbers)
        momentum, dampening = numbers["momentum"], numbers["dampening"]
        still = not callable(momentum) and (momentum or 0) <= 0
        if numbers["nesterov"] and (still or dampening is None or dampening != 0):
            raise OptionError(
                f"{type(self).__name__}: nesterov with momentum={momentum}, dampening={dampening}\n"
                "  rule: nesterov needs momentum > 0 and dampening 0"
            )

    @property
    def u(self) -> update.State:
        """Velocity by parameter."""
        return self.state["u"]

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Gradient descent with momentum.

        Nesterov's step: Sutskever et al., "On the importance of initialization and momentum in deep
        learning", 2013, equations 3 and 4.
        """
        p, g = decayed(p, g, numbers)
        (u,) = state
        if u is None:
            return p - g * numbers.lr, (None,)
        u = u * numbers.momentum + g * (1 - numbers.dampening)
        step = g + u * numbers.momentum if numbers.nesterov else u
        return p - step * numbers.lr, (u,)

    def batches(self, params: list[Tensor], numbers: Numbers) -> Iterator[update.Batch]:
        momentum, dampening = numbers["momentum"], numbers["dampening"]
        starts = momentum and dampening is not None  # u starts as the first gradient: from zeros
        new = [p for p in params if starts and p not in self.u]
        old = [p for p in params if not starts or p in self.u]
        share = momentum if dampening is None else dampening
        for batch, lost in ((new, 0.0), (old, share)):
            if batch:
                known = {
                    "lr": numbers["lr"], "momentum": momentum, "dampening": lost,
                    "weight_decay": numbers["weight_decay"], "nesterov": bool(numbers["nesterov"]),
                }  # fmt: skip
                yield self.batch(batch, known, (self.u if momentum else None,), kernel="sgd")

    def clip_grad_norm(self, max_norm: float = 0.25) -> Tensor:
        """Scale all gradients so that their norm is at most ``max_norm``; return the norm."""
        return clip_grad_norm(self.params, max_norm)


class Momentum(SGD):
    """``SGD`` with PyTorch's momentum: ``u = momentum * u + g``.

    >>> p = nn.Parameter(Tensor([1.0]))
    >>> opt = optim.Momentum([p], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     loss = opt.minimize((p * p).sum())
    >>> print(p)
    [0.46]
    """

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        dampening: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, momentum, weight_decay, dampening=dampening, nesterov=nesterov,
            maximize=maximize,
        )  # fmt: skip


class RMSprop(Optimizer):
    """Divide the gradient by a moving average of its size.

        g = grad + weight_decay * p
        v = alpha * v + (1 - alpha) * g ** 2
        p = p - lr * g / (sqrt(v) + eps)

    With momentum, u = momentum * u + g / (sqrt(v) + eps) replaces the quotient in the last line.
    If centered, v - a ** 2 replaces v under the root, with a = alpha * a + (1 - alpha) * g.

    Tieleman and Hinton, "Neural networks for machine learning", 2012, lecture 6.5; centered:
    Graves, "Generating sequences with recurrent neural networks", 2013, arXiv:1308.0850.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        alpha: decay of the averages.
        eps: added to the denominator.
        weight_decay: factor of the parameter that is added to the gradient.
        momentum: share of u that each step keeps.
        centered: divide by the standard deviation of the gradient instead of its size.
        maximize: maximize instead of minimize: the gradient is negated first.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.RMSprop([p], lr=0.01)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.9 -1.9]
    """

    numbers = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize")
    slots = ("g", "v", "a", "u")

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, weight_decay, alpha=alpha, eps=eps, momentum=momentum, centered=centered,
            maximize=maximize,
        )  # fmt: skip

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Tieleman and Hinton, slide 29; with ``a`` Graves, equations 38 to 45."""
        v, a, u = state
        p, g = decayed(p, g, numbers)
        size = v = v * numbers.alpha + g * g * (1 - numbers.alpha)
        if a is not None:
            a = a * numbers.alpha + g * (1 - numbers.alpha)
            size = v - a * a
        step = g / (size.maximum(0.0).sqrt() + numbers.eps)  # rounding may make it negative
        if u is not None:
            u = step = u * numbers.momentum + step
        return p - step * numbers.lr, (v, a, u)

    def batches(self, params: list[Tensor], numbers: Numbers) -> list[update.Batch]:
        v, a, u = (self.state[slot] for slot in "vau")
        if numbers["momentum"] or numbers["centered"]:
            there = v, a if numbers["centered"] else None, u if numbers["momentum"] else None
            return [self.batch(params, numbers, there)]
        # The rule is Adam with beta1 = 0 and without bias corrections, which has a kernel.
        known = {
            "lr": numbers["lr"], "beta1": 0.0, "beta2": numbers["alpha"], "eps": numbers["eps"],
            "weight_decay": numbers["weight_decay"], "decoupled": False,
            "correction1": 1.0, "correction2": 1.0,
        }  # fmt: skip
        plain = self.batch(params, known, (self.state["g"], v), kernel="adam")
        return [plain._replace(formula=Adam.formula)]


class Adagrad(_Counting):
    """Divide the gradient by the root of the sum of all squared gradients so far.

        g = grad + weight_decay * p
        s = s + g ** 2
        p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)

    where t counts the updates of p; steps in which p has no gradient do not count.

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011, Journal of Machine Learning Research 12.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        lr_decay: speed at which the learning rate falls.
        weight_decay: factor of the parameter that is added to the gradient.
        initial_accumulator_value: initial value of s.
        eps: added to the denominator.
        maximize: maximize instead of minimize: the gradient is negated first.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.Adagrad([p], lr=0.1)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.9 -1.9]
    """

    numbers = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize")
    slots = ("s",)
    by_rows = True

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        start = initial_accumulator_value
        super().__init__(
            params, lr, weight_decay, lr_decay=lr_decay, initial_accumulator_value=start, eps=eps,
            maximize=maximize,
        )  # fmt: skip

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Duchi, Hazan and Singer, figure 1, with a diagonal matrix."""
        (s,) = state
        p, g = decayed(p, g, numbers)
        s = s + g * g
        lr = numbers.lr / (1.0 + (numbers.t - 1) * numbers.lr_decay)
        return p - g * lr / (s.sqrt() + numbers.eps), (s,)

    def batches(self, params: list[Tensor], numbers: Numbers) -> list[update.Batch]:
        start = float(numbers["initial_accumulator_value"])
        return [batch._replace(start=start) for batch in super().batches(params, numbers)]


class Adadelta(Optimizer):
    """Scale the gradient by the size of recent steps over the size of recent gradients.

        g = grad + weight_decay * p
        v = rho * v + (1 - rho) * g ** 2
        s = sqrt(d + eps) / sqrt(v + eps) * g
        d = rho * d + (1 - rho) * s ** 2
        p = p - lr * s

    Zeiler, "ADADELTA: an adaptive learning rate method", 2012, arXiv:1212.5701.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        rho: decay of the averages of squares.
        eps: added to both averages.
        weight_decay: factor of the parameter that is added to the gradient.
        maximize: maximize instead of minimize: the gradient is negated first.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.Adadelta([p], lr=10.0)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.9684 -1.9684]
    """

    numbers = ("lr", "rho", "eps", "weight_decay", "maximize")
    slots = ("v", "d")

    def __init__(
        self,
        params: Params,
        lr: Rate = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, lr, weight_decay, rho=rho, eps=eps, maximize=maximize)

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Zeiler, algorithm 1."""
        v, d = state
        p, g = decayed(p, g, numbers)
        v = v * numbers.rho + g * g * (1 - numbers.rho)
        step = (d + numbers.eps).sqrt() / (v + numbers.eps).sqrt() * g
        d = d * numbers.rho + step * step * (1 - numbers.rho)
        return p - step * numbers.lr, (v, d)

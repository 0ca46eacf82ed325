"""Update rules. Each step is one call of the device for all parameters of a dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from needle.errors import OptionError
from needle.ops import update
from needle.ops.attributes import flag
from needle.optim.clip import clip_grad_norm
from needle.optim.optimizer import (
    Optimizer,
    check_state,
    count,
    groups_with_betas,
    two_betas,
    with_betas,
)
from needle.tensor import Tensor


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

    def __init__(
        self,
        params: Any,
        lr: Any = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        dampening: float | None = None,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        dampening = 0.0 if nesterov and dampening is None else dampening
        super().__init__(
            params, lr, weight_decay, momentum=momentum, dampening=dampening, nesterov=nesterov,
            maximize=maximize,
        )  # fmt: skip

    def check(self, numbers: Mapping[str, Any]) -> None:
        """Check the numbers, and that they suit Nesterov's step.

        Raises:
            OptionError: if a number is out of range, or numbers do not fit together.
        """
        super().check(numbers)
        momentum, dampening = numbers["momentum"], numbers["dampening"]
        still = not callable(momentum) and momentum <= 0
        if numbers["nesterov"] and (still or dampening is None or dampening != 0):
            raise OptionError(
                f"{type(self).__name__}: nesterov with momentum={momentum}, dampening={dampening}\n"
                "  rule: nesterov needs momentum > 0 and dampening 0"
            )

    @property
    def u(self) -> update.State:
        """Velocity by parameter."""
        return self.state["u"]

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        momentum, dampening = numbers["momentum"], numbers["dampening"]
        starts = momentum and dampening is not None  # u starts as the first gradient
        new = [p for p in params if starts and p not in self.u]
        old = [p for p in params if not starts or p in self.u]
        for batch, first in ((new, True), (old, False)):
            if batch:
                rule = update.Sgd(
                    float(numbers["lr"]),
                    float(momentum),
                    float(momentum if dampening is None else dampening),
                    float(numbers["weight_decay"]),
                    bool(numbers["nesterov"]),
                    first,
                )
                update.sgd(batch, self.u if momentum else None, rule)

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
        params: Any,
        lr: Any = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        dampening: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, momentum, weight_decay, dampening=dampening, nesterov=nesterov,
            maximize=maximize,
        )  # fmt: skip


class _Counting(Optimizer):
    """A rule that depends on how often each parameter was updated.

    Steps in which a parameter has no gradient do not count.

    Attributes:
        counts: number of updates, by parameter.
    """

    def __init__(self, params: Any, lr: Any, weight_decay: Any = 0.0, **numbers: Any) -> None:
        super().__init__(params, lr, weight_decay, **numbers)
        self.counts: dict[Tensor, int] = {}

    def counted(self, params: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield parameters with equal counts, and the count of this update; then record it."""
        counts = [self.counts.get(p, 0) for p in params]
        for before in sorted(set(counts)):
            batch = [p for p, n in zip(params, counts, strict=True) if n == before]
            yield before + 1, batch
            self.counts.update(dict.fromkeys(batch, before + 1))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``Optimizer.state_dict`` and the counts that differ from ``step``.

        ``t.3`` is the number of updates of the parameter at position 3.
        """
        counts = {f"t.{i}": self.counts.get(p, self.t) for i, p in enumerate(self.params)}
        return super().state_dict() | {k: t for k, t in counts.items() if t != self.t}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. See ``Optimizer.load_state_dict``."""
        check_state(state)
        places = self._places()
        counts = {
            places[key][1]: count(key, t)
            for key, t in state.items()
            if places.get(key, ("", None))[0] == "t"
        }
        super().load_state_dict(state)
        self.counts = {p: counts.get(p, self.t) for p in self.state[self.slots[0]]}

    def _places(self) -> dict[str, tuple[str, Any]]:
        return super()._places() | {f"t.{i}": ("t", p) for i, p in enumerate(self.params)}


_NUMBERS = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize")


class Adam(_Counting):
    """Adam: the average gradient, divided by the root of the average squared gradient.

        g = grad + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g ** 2
        p = p - lr * (m / (1 - beta1 ** t)) / (sqrt(v / (1 - beta2 ** t)) + eps)

    where t counts the updates of p; steps in which p has no gradient do not count.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015, arXiv:1412.6980.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        beta1: decay of the average of gradients.
        beta2: decay of the average of their squares.
        eps: added to the denominator.
        weight_decay: factor of the parameter that is added to the gradient (see also ``AdamW``).
        betas: (beta1, beta2), as in PyTorch; also allowed in a group.
        amsgrad: divide by the largest v so far, not the last (Reddi, Kale and Kumar, "On the
            convergence of Adam and beyond", 2018, ICLR).
        maximize: maximize instead of minimize: the gradient is negated first.

    Raises:
        OptionError: if a number is out of range, or betas are not a pair.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.Adam([p], lr=0.1)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.9 -1.9]
    """

    numbers: ClassVar[tuple[str, ...]] = (*_NUMBERS, "amsgrad")
    slots: ClassVar[tuple[str, ...]] = ("m", "v", "top")
    decoupled: bool = False

    def __init__(
        self,
        params: Any,
        lr: Any = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        betas: Sequence[float] | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        owner = type(self).__name__
        if betas is not None:
            beta1, beta2 = two_betas(owner, betas)
        params = groups_with_betas(owner, params)
        super().__init__(
            params, lr, weight_decay, beta1=beta1, beta2=beta2, eps=eps, amsgrad=amsgrad,
            maximize=maximize,
        )  # fmt: skip

    def add_param_group(self, group: Any) -> None:
        """Add a group, which may have betas. See ``Optimizer.add_param_group``."""
        super().add_param_group(with_betas(type(self).__name__, group))

    @property
    def m(self) -> update.State:
        """Average of the gradient, by parameter."""
        return self.state["m"]

    @property
    def v(self) -> update.State:
        """Average of its square, by parameter."""
        return self.state["v"]

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        for t, batch in self.counted(params):
            rule = self._rule(t, numbers)
            if numbers.get("amsgrad"):
                update.amsgrad(batch, self.m, self.v, self.state["top"], rule)
            else:
                update.adam(batch, self.m, self.v, rule)

    def _rule(self, t: int, numbers: dict[str, Any]) -> Any:
        """Return the numbers for update t of a parameter."""
        beta1, beta2 = float(numbers["beta1"]), float(numbers["beta2"])
        return update.Adam(
            float(numbers["lr"]), beta1, beta2, float(numbers["eps"]),
            float(numbers["weight_decay"]), self.decoupled, 1.0 - beta1**t, 1.0 - beta2**t,
        )  # fmt: skip


class AdamW(Adam):
    """Adam with decoupled weight decay: ``p = p - lr * weight_decay * p`` in each step.

    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, arXiv:1711.05101.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.AdamW([p], lr=0.1, weight_decay=0.5)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.85 -1.8 ]
    """

    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        betas: Sequence[float] | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, beta1, beta2, eps, weight_decay, betas=betas, amsgrad=amsgrad,
            maximize=maximize,
        )  # fmt: skip


class NAdam(Adam):
    """Adam that looks a step ahead along its momentum.

        mu(t) = beta1 * (1 - 0.96 ** (t * momentum_decay) / 2)
        a, b = (1 - mu(t)) / (1 - mu(1) ... mu(t)), mu(t + 1) / (1 - mu(1) ... mu(t + 1))
        p = p - lr * (a * g + b * m) / (sqrt(v / (1 - beta2 ** t)) + eps)

    with g, m, v and t as for ``Adam``.

    Dozat, "Incorporating Nesterov momentum into Adam", 2016, ICLR workshop.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        beta1: decay of the average of gradients.
        beta2: decay of the average of their squares.
        eps: added to the denominator.
        weight_decay: factor of the parameter that is added to the gradient.
        momentum_decay: how fast momentum grows from beta1 / 2 to beta1.
        betas: (beta1, beta2), as in PyTorch; also allowed in a group.
        decoupled_weight_decay: decay the parameter directly, as ``AdamW``.
        maximize: maximize instead of minimize: the gradient is negated first.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.NAdam([p], lr=0.1)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.8944 -1.8944]
    """

    numbers = (*_NUMBERS, "momentum_decay")
    slots = ("m", "v")

    def __init__(
        self,
        params: Any,
        lr: Any = 0.002,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 0.004,
        *,
        betas: Sequence[float] | None = None,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ) -> None:
        self.momentum_decay = momentum_decay
        self.decoupled = flag("NAdam: decoupled_weight_decay", decoupled_weight_decay)
        super().__init__(
            params, lr, beta1, beta2, eps, weight_decay, betas=betas, maximize=maximize
        )

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        for t, batch in self.counted(params):
            rule = self._rule(t, numbers)
            now, next_, past = _growing(rule.beta1, float(numbers["momentum_decay"]), t)
            gradient, momentum = (1 - now) / (1 - past), next_ / (1 - past * next_)
            step = update.NAdam(rule, rule.lr * gradient, rule.lr * momentum)
            update.nadam(batch, self.m, self.v, step)


def _growing(beta: float, decay: float, t: int) -> tuple[float, float, float]:
    """Return mu(t), mu(t + 1) and the product of mu(1) to mu(t). See ``NAdam``.

    The product stops early, once it is so small that 1 minus it rounds to 1.
    """
    some = min(t, math.ceil(-64 / math.log2(beta))) if beta > 0 else 1
    mu = beta * (1 - 0.5 * 0.96 ** (decay * np.append(np.arange(1, some + 1), (t, t + 1))))
    return float(mu[-2]), float(mu[-1]), float(mu[:-2].prod())


class RAdam(Adam):
    """Adam with rectified variance: the first steps use momentum only.

        n = 2 / (1 - beta2) - 1
        k = n - 2 * t * beta2 ** t / (1 - beta2 ** t)
        r = sqrt((k - 4) * (k - 2) * n / ((n - 4) * (n - 2) * k))
        p = p - lr * m / (1 - beta1 ** t) * (r * sqrt(1 - beta2 ** t) / (sqrt(v) + eps))

    without the last factor where k is at most 5; with m, v and t as for ``Adam``.

    Liu et al., "On the variance of the adaptive learning rate and beyond", 2020, arXiv:1908.03265.

    Args:
        params: parameters, or groups of them (see ``Optimizer``).
        lr: learning rate, or a schedule.
        beta1: decay of the average of gradients.
        beta2: decay of the average of their squares.
        eps: added to the denominator.
        weight_decay: factor of the parameter that is added to the gradient.
        betas: (beta1, beta2), as in PyTorch; also allowed in a group.
        decoupled_weight_decay: decay the parameter directly, as ``AdamW``.
        maximize: maximize instead of minimize: the gradient is negated first.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.RAdam([p], lr=0.1)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.8 -1.6]
    """

    numbers = _NUMBERS
    slots = ("m", "v")

    def __init__(
        self,
        params: Any,
        lr: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        betas: Sequence[float] | None = None,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ) -> None:
        self.decoupled = flag("RAdam: decoupled_weight_decay", decoupled_weight_decay)
        super().__init__(
            params, lr, beta1, beta2, eps, weight_decay, betas=betas, maximize=maximize
        )

    def _rule(self, t: int, numbers: dict[str, Any]) -> Any:
        rule = super()._rule(t, numbers)
        most, seen = 2 / (1 - rule.beta2) - 1, rule.correction2
        length = most - 2 * t * (1 - seen) / seen
        if length <= 5:  # a denominator of 1
            return rule._replace(eps=1.0, correction2=math.inf)
        wide = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        return rule._replace(correction1=rule.correction1 * (wide * seen) ** -0.5, correction2=1.0)


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
        params: Any,
        lr: Any = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, weight_decay, alpha=alpha, eps=eps, momentum=momentum, centered=centered,
            maximize=maximize,
        )  # fmt: skip

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        momentum, centered = float(numbers["momentum"]), bool(numbers["centered"])
        if momentum or centered:
            own = update.RMSprop(
                float(numbers["lr"]), float(numbers["alpha"]), float(numbers["eps"]),
                float(numbers["weight_decay"]), momentum,
            )  # fmt: skip
            a, u = self.state["a"] if centered else None, self.state["u"] if momentum else None
            update.rmsprop(params, self.state["v"], a, u, own)
            return
        # The rule is Adam with beta1 = 0 and without bias corrections.
        rule = update.Adam(
            float(numbers["lr"]), 0.0, float(numbers["alpha"]), float(numbers["eps"]),
            float(numbers["weight_decay"]), False, 1.0, 1.0,
        )  # fmt: skip
        update.adam(params, self.state["g"], self.state["v"], rule)


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

    def __init__(
        self,
        params: Any,
        lr: Any = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        start = initial_accumulator_value
        super().__init__(
            params, lr, weight_decay, lr_decay=lr_decay, initial_accumulator_value=start, eps=eps,
            maximize=maximize,
        )  # fmt: skip

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        start = float(numbers["initial_accumulator_value"])
        for t, batch in self.counted(params):
            slower = 1.0 + (t - 1) * float(numbers["lr_decay"])
            rule = update.Adagrad(
                float(numbers["lr"]) / slower, float(numbers["eps"]), float(numbers["weight_decay"])
            )
            update.adagrad(batch, self.state["s"], start, rule)


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
        params: Any,
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay, rho=rho, eps=eps, maximize=maximize)

    def update(self, params: list[Tensor], numbers: dict[str, Any]) -> None:
        rule = update.Adadelta(*(float(numbers[name]) for name in self.numbers[:-1]))
        update.adadelta(params, self.state["v"], self.state["d"], rule)

"""Adam and its variants. Each step is one call of the device for all parameters of a dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from needle.ops.core import update
from needle.ops.core.attributes import flag
from needle.ops.core.formula import Numbers as Known
from needle.ops.core.formula import States, Value
from needle.optim.optimizer import (
    Number,
    Numbers,
    Optimizer,
    Params,
    check_state,
    count,
    groups_with_betas,
    two_betas,
    with_betas,
)
from needle.optim.schedules import Rate
from needle.tensors import Tensor

__all__ = ["Adam", "AdamW", "NAdam", "RAdam"]


class _Counting(Optimizer):
    """A rule that depends on how often each parameter was updated.

    Steps in which a parameter has no gradient do not count.

    Attributes:
        counts: number of updates, by parameter.
    """

    def __init__(
        self, params: Params, lr: Rate, weight_decay: Rate = 0.0, **numbers: Number
    ) -> None:
        super().__init__(params, lr, weight_decay, **numbers)
        self.counts: dict[Tensor, int] = {}

    def batches(self, params: list[Tensor], numbers: Numbers) -> Iterable[update.Batch]:
        """Return an update for each number of earlier updates: ``numbers.t`` counts them."""
        return [self.batch(batch, {"t": t, **numbers}) for t, batch in self.by_count(params)]

    def by_count(self, params: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield parameters with equal counts, and the count of this update."""
        counts = list(map(self.counts.get, params, repeat(0)))
        if counts.count(counts[0]) == len(counts):
            yield counts[0] + 1, params
            return
        for before in sorted(set(counts)):
            yield before + 1, [p for p, n in zip(params, counts, strict=True) if n == before]

    def counted(self, batch: update.Batch, by: int = 1) -> None:
        count = self.counts.get(batch.params[0], 0) + by
        self.counts.update(dict.fromkeys(batch.params, count))

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the state of ``Optimizer.state_dict`` and the counts that differ from ``step``.

        ``t.3`` is the number of updates of the parameter at position 3.
        """
        counts = {f"t.{i}": self.counts.get(p, self.t) for i, p in enumerate(self.params)}
        return super().state_dict(copy) | {k: t for k, t in counts.items() if t != self.t}

    def load_state_dict(self, state: Mapping[str, Any], copy: bool = True) -> None:
        """Restore a state. See ``Optimizer.load_state_dict``."""
        check_state(state)
        places = self._places()
        counts = {
            places[key][1]: count(key, t)
            for key, t in state.items()
            if places.get(key, ("", None))[0] == "t"
        }
        super().load_state_dict(state, copy)
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

    With a gradient by rows (``nn.Embedding(..., sparse=True)``) this is another algorithm, the lazy
    one of PyTorch's ``SparseAdam``: a step changes p, m and v in these rows only. In the other rows
    m and v do not decay and p does not move. t counts the updates of the whole table.

    Raises:
        OptionError: if a number is out of range, or betas are not a pair; in a step, if a gradient
            is by rows and weight_decay is not 0.

    >>> p = nn.Parameter(Tensor([1.0, -2.0]))
    >>> opt = optim.Adam([p], lr=0.1)
    >>> loss = opt.minimize((p * p).sum())
    >>> print(p)
    [ 0.9 -1.9]
    """

    numbers: ClassVar[tuple[str, ...]] = (*_NUMBERS, "amsgrad")
    slots: ClassVar[tuple[str, ...]] = ("m", "v", "top")
    by_rows: ClassVar[bool] = True
    decoupled: bool = False

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        betas: Sequence[float] | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
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

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Kingma and Ba, algorithm 1; with ``top`` Reddi, Kale and Kumar, algorithm 2.

        ``correction1`` and ``correction2`` are 1 - beta1 ** t and 1 - beta2 ** t.
        """
        m, v, *top = state
        p, g = decayed(p, g, numbers)
        m, v = averages(m, v, g, numbers)
        top = [v.maximum(x) for x in top]
        root = (top or [v])[0].sqrt() * numbers.correction2**-0.5 + numbers.eps
        return p - m * (numbers.lr / numbers.correction1) / root, (m, v, *top)

    def batches(self, params: list[Tensor], numbers: Numbers) -> Iterator[update.Batch]:
        for t, batch in self.by_count(params):
            known = self._known(t, numbers)
            if numbers.get("amsgrad"):
                yield self.batch(batch, known, (self.m, self.v, self.state["top"]))
            else:
                yield self.batch(batch, known, (self.m, self.v), kernel="adam")

    def _known(self, t: int, numbers: Numbers) -> Numbers:
        """Return what the formula knows, for update t of a parameter, in the kernel's order."""
        known = {name: float(numbers[name]) for name in ("lr", "beta1", "beta2", "eps")}
        return known | {
            "weight_decay": float(numbers["weight_decay"]),
            "decoupled": self.decoupled,
            "correction1": 1.0 - known["beta1"] ** t,
            "correction2": 1.0 - known["beta2"] ** t,
        }


def decayed(p: Value, g: Value, numbers: Known) -> tuple[Value, Value]:
    """Return a parameter and its gradient with weight decay, of a formula.

    Without decay nothing is added: 0 times an infinite parameter would be NaN.
    """
    if not numbers.weight_decay:
        return p, g
    if getattr(numbers, "decoupled", False):
        return p * (1 - numbers.lr * numbers.weight_decay), g
    return p, g + p * numbers.weight_decay


def averages(m: Value, v: Value, g: Value, numbers: Known) -> tuple[Value, Value]:
    """Return the moving averages of a gradient and of its square, of a formula."""
    beta1, beta2 = numbers.beta1, numbers.beta2
    return m * beta1 + g * (1 - beta1), v * beta2 + g * g * (1 - beta2)


class AdamW(Adam):
    """Adam with decoupled weight decay: ``p = p - lr * weight_decay * p`` in each step.

    Gradients by rows need ``weight_decay=0.0``; see ``Adam``.

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
        params: Params,
        lr: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        betas: Sequence[float] | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
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
    by_rows = False

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.002,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 0.004,
        *,
        betas: Sequence[float] | None = None,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.momentum_decay = momentum_decay
        self.decoupled = flag("NAdam: decoupled_weight_decay", decoupled_weight_decay)
        super().__init__(
            params, lr, beta1, beta2, eps, weight_decay, betas=betas, maximize=maximize
        )

    @staticmethod
    def formula(p: Value, g: Value, state: States, numbers: Known) -> tuple[Value, States]:
        """Dozat, algorithm 2, with the growing momentum of its section 3."""
        m, v = state
        p, g = decayed(p, g, numbers)
        m, v = averages(m, v, g, numbers)
        now, then, past = _growing(numbers.beta1, numbers.momentum_decay, numbers.t)
        gradient, momentum = (1 - now) / (1 - past), then / (1 - past * then)
        root = v.sqrt() * (1 - numbers.beta2**numbers.t) ** -0.5 + numbers.eps
        return p - (m * (numbers.lr * momentum) + g * (numbers.lr * gradient)) / root, (m, v)

    def batches(self, params: list[Tensor], numbers: Numbers) -> Iterator[update.Batch]:
        known = {**numbers, "decoupled": self.decoupled}
        yield from (self.batch(batch, {"t": t, **known}) for t, batch in self.by_count(params))


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
    by_rows = False

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        betas: Sequence[float] | None = None,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.decoupled = flag("RAdam: decoupled_weight_decay", decoupled_weight_decay)
        super().__init__(
            params, lr, beta1, beta2, eps, weight_decay, betas=betas, maximize=maximize
        )

    def _known(self, t: int, numbers: Numbers) -> Numbers:
        known = super()._known(t, numbers)
        most, seen = 2 / (1 - known["beta2"]) - 1, known["correction2"]
        length = most - 2 * t * (1 - seen) / seen
        if length <= 5:  # a denominator of 1
            return known | {"eps": 1.0, "correction2": math.inf}
        wide = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        first = known["correction1"] * (wide * seen) ** -0.5
        return known | {"correction1": first, "correction2": 1.0}

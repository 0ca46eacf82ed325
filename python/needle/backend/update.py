"""Optimizer updates made of elementwise functions, for every device.

Half-precision parameters are updated in float32, the dtype of their state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from needle.backend.ndarray import NDArray


class Adam(NamedTuple):
    """Numbers of one Adam step.

    Attributes:
        weight_decay: added to the gradient; or, if decoupled, subtracted from the parameter.
        correction1: 1 - beta1 ** t.
        correction2: 1 - beta2 ** t.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    correction1: float
    correction2: float


class NAdam(NamedTuple):
    """Numbers of one NAdam step.

    Attributes:
        adam: numbers of an Adam step; its learning rate is only used for decoupled decay.
        gradient: factor of the gradient in the step.
        momentum: factor of its average.
    """

    adam: Adam
    gradient: float
    momentum: float


class Adadelta(NamedTuple):
    """Numbers of one Adadelta step."""

    lr: float
    rho: float
    eps: float
    weight_decay: float


class Adagrad(NamedTuple):
    """Numbers of one Adagrad step."""

    lr: float
    eps: float
    weight_decay: float


class RMSprop(NamedTuple):
    """Numbers of one RMSprop step."""

    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float


class Sgd(NamedTuple):
    """Numbers of one SGD step.

    Attributes:
        dampening: the gradient enters the velocity with factor ``1 - dampening``.
        first: whether the velocity has no value yet and becomes the gradient.
    """

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    first: bool


def numbers_of(rule: Any) -> list[float]:
    """Return the numbers of a rule in order, those of a rule inside it too."""
    found: list[float] = []
    for value in rule:
        if isinstance(value, tuple):
            found += numbers_of(value)
        elif type(value) is not bool:
            found.append(float(value))
    return found


def with_numbers(rule: Any, numbers: Sequence[float]) -> Any:
    """Return a rule with other numbers, in the order of ``numbers_of``, and the same flags."""
    return _filled(rule, iter(numbers))


def _filled(rule: Any, numbers: Iterator[float]) -> Any:
    return type(rule)._make(
        _filled(x, numbers) if isinstance(x, tuple) else x if type(x) is bool else next(numbers)
        for x in rule
    )


def steady(rule: Any) -> Any:
    """Return the rule that does the same to states of zeros, without a flag for the first step."""
    if isinstance(rule, Sgd) and rule.first:
        return rule._replace(first=False, dampening=0.0)
    return rule


class _Number:
    """Arithmetic on arrays for the rules below."""

    def __init__(self, array: NDArray) -> None:
        self.array = array

    def _apply(self, function: str, other: _Number | float | None = None) -> _Number:
        from needle.backend import kernels
        from needle.backend.ndarray import full

        x = self.array
        if other is None:
            return _Number(kernels.elementwise(function, x))
        y = other.array if isinstance(other, _Number) else full((), other, x.dtype, x.device)
        return _Number(kernels.elementwise(function, x, y))

    def __add__(self, other: _Number | float) -> _Number:
        return self._apply("add", other)

    def __sub__(self, other: _Number) -> _Number:
        return self._apply("subtract", other)

    def __mul__(self, other: _Number | float) -> _Number:
        return self._apply("multiply", other)

    def __truediv__(self, other: _Number) -> _Number:
        return self._apply("divide", other)

    def larger(self, other: _Number | float) -> _Number:
        return self._apply("maximum", other)

    def root(self) -> _Number:
        """Square root, with 0 for numbers that rounding made negative."""
        return self.larger(0.0).sqrt()

    def sqrt(self) -> _Number:
        return self._apply("sqrt")


def _wide(x: NDArray) -> _Number:
    return _Number(x.astype("float32", copy=False) if x.dtype.itemsize == 2 else x)


def _store(out: NDArray, value: _Number) -> None:
    out.device.backend.copy(out, value.array)


def adam(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    ms: Sequence[NDArray],
    vs: Sequence[NDArray],
    rule: Adam,
) -> None:
    """Kingma and Ba, "Adam: a method for stochastic optimization", 2015, arXiv:1412.6980."""
    _adam(outs, params, grads, ms, vs, NAdam(rule, 0.0, rule.lr / rule.correction1))


def amsgrad(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    ms: Sequence[NDArray],
    vs: Sequence[NDArray],
    tops: Sequence[NDArray],
    rule: Adam,
) -> None:
    """Reddi, Kale and Kumar, "On the convergence of Adam and beyond", 2018, ICLR."""
    _adam(outs, params, grads, ms, vs, NAdam(rule, 0.0, rule.lr / rule.correction1), tops)


def nadam(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    ms: Sequence[NDArray],
    vs: Sequence[NDArray],
    rule: NAdam,
) -> None:
    """Dozat, "Incorporating Nesterov momentum into Adam", 2016, ICLR workshop."""
    _adam(outs, params, grads, ms, vs, rule)


def _adam(
    outs: Any, params: Any, grads: Any, ms: Any, vs: Any, numbers: NAdam, tops: Any = None
) -> None:
    rule = numbers.adam
    for i, (out, param, grad, old_m, old_v) in enumerate(
        zip(outs, params, grads, ms, vs, strict=True)
    ):
        p, g, m, v = _wide(param), _wide(grad), _Number(old_m), _Number(old_v)
        if rule.weight_decay and not rule.decoupled:
            g = g + p * rule.weight_decay
        m = m * rule.beta1 + g * (1 - rule.beta1)
        v = v * rule.beta2 + g * g * (1 - rule.beta2)
        if rule.decoupled:
            p = p * (1 - rule.lr * rule.weight_decay)
        top = v if tops is None else v.larger(_Number(tops[i]))
        root = top.sqrt() * rule.correction2**-0.5 + rule.eps
        step = m * numbers.momentum
        p = p - (step + g * numbers.gradient if numbers.gradient else step) / root
        more = () if tops is None else ((tops[i], top),)
        for kept, value in ((old_m, m), (old_v, v), *more, (out, p)):  # from here on nothing fails
            _store(kept, value)


def sgd(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    velocities: Sequence[NDArray] | None,
    rule: Sgd,
) -> None:
    """Gradient descent with momentum; Nesterov's: Sutskever et al., 2013, "On the importance of
    initialization and momentum in deep learning"."""
    kept: Sequence[Any] = [None] * len(outs) if velocities is None else velocities
    for out, param, grad, velocity in zip(outs, params, grads, kept, strict=True):
        p, g = _wide(param), _wide(grad)
        if rule.weight_decay:
            g = g + p * rule.weight_decay
        u = g
        if velocity is not None:
            if not rule.first:
                u = _Number(velocity) * rule.momentum + g * (1 - rule.dampening)
            g = g + u * rule.momentum if rule.nesterov else u
        p = p - g * rule.lr
        if velocity is not None:
            _store(velocity, u)
        _store(out, p)


def rmsprop(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    vs: Sequence[NDArray],
    means: Sequence[NDArray] | None,
    us: Sequence[NDArray] | None,
    rule: RMSprop,
) -> None:
    """Tieleman and Hinton's rule; centered (Graves, 2013, arXiv:1308.0850, equations 38 to 45)
    where there are ``means``, with momentum where there are ``us``."""
    for i, (out, param, grad) in enumerate(zip(outs, params, grads, strict=True)):
        p, g = _wide(param), _wide(grad)
        if rule.weight_decay:
            g = g + p * rule.weight_decay
        size = v = _Number(vs[i]) * rule.alpha + g * g * (1 - rule.alpha)
        new = [(vs[i], v)]
        if means is not None:
            mean = _Number(means[i]) * rule.alpha + g * (1 - rule.alpha)
            size = v - mean * mean
            new.append((means[i], mean))
        step = g / (size.root() + rule.eps)
        if us is not None:
            step = _Number(us[i]) * rule.momentum + step
            new.append((us[i], step))
        for kept, value in (*new, (out, p - step * rule.lr)):
            _store(kept, value)


def adagrad(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    sums: Sequence[NDArray],
    rule: Adagrad,
) -> None:
    """Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011, with a diagonal matrix."""
    for out, param, grad, old in zip(outs, params, grads, sums, strict=True):
        p, g = _wide(param), _wide(grad)
        if rule.weight_decay:
            g = g + p * rule.weight_decay
        total = _Number(old) + g * g
        p = p - g * rule.lr / (total.sqrt() + rule.eps)
        for kept, value in ((old, total), (out, p)):
            _store(kept, value)


def adadelta(
    outs: Sequence[NDArray],
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    vs: Sequence[NDArray],
    ds: Sequence[NDArray],
    rule: Adadelta,
) -> None:
    """Zeiler, "ADADELTA: an adaptive learning rate method", 2012, arXiv:1212.5701."""
    for out, param, grad, old_v, old_d in zip(outs, params, grads, vs, ds, strict=True):
        p, g, d = _wide(param), _wide(grad), _Number(old_d)
        if rule.weight_decay:
            g = g + p * rule.weight_decay
        v = _Number(old_v) * rule.rho + g * g * (1 - rule.rho)
        step = (d + rule.eps).sqrt() / (v + rule.eps).sqrt() * g
        d = d * rule.rho + step * step * (1 - rule.rho)
        for kept, value in ((old_v, v), (old_d, d), (out, p - step * rule.lr)):
            _store(kept, value)

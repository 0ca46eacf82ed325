"""One update: losses, gradients, and what happens between them and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from needle import nn, optim
from needle.compile import compile
from needle.errors import ArgumentError, DataError, NonFiniteError, OptionError, describe
from needle.ops.checked import Finite
from needle.ops.row_sparse import each
from needle.tensors import Tensor

_TRACES = 64
"""Most programs of a training: for batches of different sizes."""

Loss = Callable[[Any, Any], Any]


class Update:
    """Compute the gradient of the mean loss of a group of batches, and update the parameters.

    A loss that is a mean counts equally for each batch of the group. One that is ``(sum, count)``
    counts by its count: gradients of the sums are added, then divided once by the whole count.
    That is exact for batches that differ in what counts, such as tokens without padding.

    Args:
        model: the model.
        optimizer: the optimizer.
        loss: ``loss(model, batch)`` returns a scalar tensor, or ``(sum, count)``.
        clip: largest norm of the gradient, or None.
        precision: returns a context in which losses are computed, for example one that lowers the
            precision; None for none.
        check: takes the value of the loss before the parameters change; may raise.
        ready: is called before the optimizer changes anything; waits while that is being copied.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Loss,
        clip: float | None = None,
        precision: Callable[[], AbstractContextManager[Any]] | None = None,
        check: Callable[[float], Any] = float,
        ready: Callable[[], Any] = lambda: None,
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.clip, self.precision, self.check = clip, precision or nullcontext, check
        self.ready = ready
        self.norm: Any = None

    def one(self, batch: Any) -> float:
        """Make an update by one batch; return its mean loss."""
        with self.precision():
            total, count = _parts(self.loss(self.model, batch))
            mean = total if count is None else total / count
        value = float(mean.item())
        self.check(value)
        self.optimizer.reset_grad()
        mean.backward()
        self._apply()
        return value

    def compiled(self) -> Callable[[Any], float]:
        """Return ``one`` as a program, which does the same; see ``needle.compile``.

        A loss that is not finite stops the program before the parameters change; then ``one`` runs
        itself, so that ``check`` sees the value.
        """
        program = compile(self._whole, max_traces=_TRACES)

        def one(batch: Any) -> float:
            try:
                loss, self.norm = program(batch)
            except NonFiniteError:
                return self.one(batch)
            return float(loss.item())

        return one

    def _whole(self, batch: Any) -> tuple[Any, Any]:
        with self.precision():
            total, count = _parts(self.loss(self.model, batch))
            mean = total if count is None else total / count
        mean = Finite.of()(mean)
        self.optimizer.reset_grad()
        mean.backward()
        self.norm = None
        self._apply()
        norm, self.norm = self.norm, None  # a tensor of the trace stays nowhere
        return mean, norm

    def several(self, batches: Iterable[Any]) -> float:
        """Make an update by all batches together; return their mean loss."""
        self.optimizer.reset_grad()
        value, number = 0.0, 0.0
        for batch in batches:
            with self.precision():
                total, count = _parts(self.loss(self.model, batch))
            part = float(total.item())
            self.check(part)
            total.backward(accumulate=True)
            value, number = value + part, number + (1 if count is None else count)
        for p in self.optimizer.params:
            if p.grad is not None:
                p.grad = each(lambda g: g / number, p.grad)
        self._apply()
        return value / number

    def _apply(self) -> None:
        if self.clip is not None:
            self.norm = optim.clip_grad_norm(self.optimizer.params, self.clip)
        self.ready()
        self.optimizer.step()


class Optimizers:
    """Several optimizers as one, for a trainer with a ``step`` of your own.

    Args:
        optimizers: by name; the rate of the first one is shown.

    >>> p, q = nn.Parameter(Tensor([1.0])), nn.Parameter(Tensor([2.0]))
    >>> both = ndl.train.Optimizers(maker=optim.SGD([p], lr=0.1), judge=optim.SGD([q], lr=0.2))
    >>> both.judge.lr, list(both.state_dict())
    (0.2, ['maker', 'judge'])
    """

    def __init__(self, **optimizers: optim.Optimizer) -> None:
        if not optimizers:
            raise OptionError("Optimizers: expected at least one optimizer, got none")
        self.by_name = optimizers
        vars(self).update(optimizers)

    @property
    def current_lr(self) -> float:
        """The learning rate of the next step, of the first optimizer."""
        return next(iter(self.by_name.values())).current_lr

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the states by name; ``copy`` as for ``Optimizer.state_dict``."""
        return {name: x.state_dict(copy=copy) for name, x in self.by_name.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states. Raises DataError if the names differ."""
        if state.keys() != self.by_name.keys():
            raise DataError(f"Optimizers: expected {list(self.by_name)}, got {list(state)}")
        for name, optimizer in self.by_name.items():
            optimizer.load_state_dict(state[name])


def _parts(loss: Any) -> tuple[Any, float | None]:
    """Return a loss as (mean, None) or (sum, count)."""
    total, count = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)
    if not isinstance(total, Tensor) or total.size != 1:
        shown = describe(total) if isinstance(total, Tensor) else repr(total)
        raise ArgumentError(
            f"loss: expected a scalar tensor, got {shown:.80}\n"
            "  rule: loss(model, batch) returns the mean loss, or (sum, count)"
        )
    return total, None if count is None else float(count)

"""One update: losses, gradients, and what happens between them and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from needle import nn, optim
from needle.compile import compile
from needle.errors import (
    ArgumentError,
    DataError,
    NonFiniteError,
    OptionError,
    RetraceError,
    describe,
)
from needle.ops.core.checked import Finite
from needle.ops.index.row_sparse import each
from needle.tensors import Tensor
from needle.train.outside import Outside

TRACES = 64
"""Most programs of a training: for batches of different sizes."""

Loss = Callable[[Any, Any], Any]
How = bool | Callable[[Any], Any] | None


class Update:
    """Compute the gradient of the mean loss of a group of batches, and update the parameters.

    A loss that is a mean counts equally for each batch of the group. One that is ``(sum, count)``
    counts by its count: gradients of the sums are added, then divided once by the whole count.
    That is exact for batches that differ in what counts, such as tokens without padding.

    Args:
        model: the model.
        optimizer: the optimizer.
        loss: ``loss(model, batch)`` returns a scalar tensor, or ``(sum, count)``; the count is a
            number or a tensor.
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
        mean, self.norm = self._whole(batch, self._seen)
        return float(mean.item())

    def runner(
        self, how: How, several: bool, outside: Outside | None
    ) -> Callable[[Iterable[Any]], float]:
        """Return what makes an update by a batch, or by several, and returns their mean loss.

        Args:
            how: as ``Trainer`` takes ``compile``.
            several: whether it is given several batches, or one.
            outside: as for ``compiled``.
        """
        plain = how is False or callable(how)
        if several:
            return self.several if plain else self.compiled_several(outside)
        one = compiled(self.one, how, None) if plain else self.compiled(outside)
        return lambda batches: one(next(iter(batches)))

    def compiled(self, outside: Outside | None = None) -> Callable[[Any], float]:
        """Return ``one`` as a program, which does the same; see ``needle.compile``.

        A loss that is not finite stops the program before the parameters change; then ``one`` runs
        itself, so that ``check`` sees the value.

        Args:
            outside: what ``loss`` and all else use besides batches: where that changes, or
                cannot be known, ``one`` runs itself.
        """
        program = self._program(self._whole, outside)

        def one(batch: Any) -> float:
            loss, self.norm = program(batch)
            return float(loss.item())

        return one

    def _program(
        self, function: Callable[[Any, Any], Any], outside: Outside | None
    ) -> Callable[[Any], Any]:
        """Return a function of a batch and a check as a program of a batch."""
        program = compile(
            lambda batch: function(batch, Finite.of()),
            max_traces=TRACES,
            keep_grads=outside is not None,
        )

        def plain(batch: Any) -> Any:
            return function(batch, self._seen)

        def run(batch: Any) -> Any:
            try:
                return program(batch)
            except NonFiniteError:
                return plain(batch)

        return run if outside is None else automatic(run, plain, outside)

    def several(self, batches: Iterable[Any]) -> float:
        """Make an update by all batches together; return their mean loss."""
        return self._together(batches, lambda batch: self._part(batch, self._seen), self._average)

    def compiled_several(self, outside: Outside | None = None) -> Callable[[Iterable[Any]], float]:
        """Return ``several`` as two programs: one for each batch, and one for the update."""
        part = self._program(self._part, outside)
        average = compile(self._average, keep_grads=outside is not None)
        if outside is not None:
            average = automatic(average, self._average, outside)
        return lambda batches: self._together(batches, part, average)

    def _together(
        self, batches: Iterable[Any], part: Callable[[Any], Any], average: Callable[[Any], Any]
    ) -> float:
        self.optimizer.reset_grad()
        value, number = 0.0, 0.0
        for batch in batches:
            total, count = part(batch)
            value += float(total.item())
            number += 1 if count is None else float(count)
        self.norm = average(Tensor(number, dtype="float64", requires_grad=False))
        return value / number

    def _whole(self, batch: Any, check: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Make an update by one batch; return its mean loss, and the norm of the gradient."""
        with self.precision():
            mean, count = _parts(self.loss(self.model, batch))
            if count is not None:
                mean = mean / (count.astype(mean.dtype) if isinstance(count, Tensor) else count)
        mean = check(mean)
        self.optimizer.reset_grad()
        mean.backward()
        return mean, self._apply()

    def _part(self, batch: Any, check: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Add the gradient of a batch's loss; return the loss, and what it counts."""
        with self.precision():
            total, count = _parts(self.loss(self.model, batch))
        total = check(total)
        total.backward(accumulate=True)
        return total, count

    def _average(self, number: Any) -> Any:
        """Divide the gradients by a number, and update; return the norm of the gradient."""
        for p in self.optimizer.params:
            if p.grad is not None:
                p.grad = each(lambda g: g / number.astype(g.dtype), p.grad)
        return self._apply()

    def _seen(self, loss: Any) -> Any:
        self.check(float(loss.item()))
        return loss

    def _apply(self) -> Any:
        norm = None
        if self.clip is not None:
            norm = optim.clip_grad_norm(self.optimizer.params, self.clip)
        self.ready()
        self.optimizer.step()
        return norm


def compiled(step: Callable[[Any], Any], how: How, outside: Outside | None) -> Callable[[Any], Any]:
    """Return a step compiled as ``how`` says, which is as ``Trainer`` takes ``compile``."""
    if how is False:
        return step
    if callable(how):
        return how(step)
    program = compile(step, max_traces=TRACES, keep_grads=outside is not None)
    return program if outside is None else automatic(program, step, outside)


def automatic(
    program: Callable[[Any], Any], plain: Callable[[Any], Any], outside: Outside
) -> Callable[[Any], Any]:
    """Return a function that runs as a program as long as that makes no difference.

    Args:
        program: the compiled function.
        plain: the function as it is.
        outside: what it uses besides its argument.
    """

    def run(x: Any) -> Any:
        if outside.holds():
            try:
                return program(x)
            except NonFiniteError:
                raise
            except RetraceError as error:  # other arguments have programs
                outside.tell(str(error))
            except Exception as error:  # nothing is changed; if it is the user's, it comes again
                outside.give_up(str(error))
        return plain(x)

    return run


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


def _parts(loss: Any) -> tuple[Any, Any]:
    """Return a loss as (mean, None) or (sum, count), a number or a tensor."""
    total, count = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)
    if not isinstance(total, Tensor) or total.size != 1:
        shown = describe(total) if isinstance(total, Tensor) else repr(total)
        raise ArgumentError(
            f"loss: expected a scalar tensor, got {shown:.80}\n"
            "  rule: loss(model, batch) returns the mean loss, or (sum, count)"
        )
    if isinstance(count, Tensor):
        return total, count.detach()
    return total, None if count is None else float(count)

"""Gradients of the recurrent ops, from the values that these keep for every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from needle import dtype, executor
from needle.backend import kernels
from needle.executor import shape_of
from needle.ops.core.families import Composite
from needle.ops.core.op import cast, widened
from needle.ops.core.operands import constant
from needle.ops.core.primitives import total
from needle.ops.elementwise.arithmetic import cast_like, greater, square, where
from needle.ops.elementwise.trigonometry import tanh
from needle.ops.linalg.matmul import matmul
from needle.ops.reduction.reduce import summation
from needle.ops.sequence.recurrent_samples import gradient_samples
from needle.ops.shape.creation import arange
from needle.ops.shape.movement import broadcast_to, concat, reshape, unsqueeze
from needle.ops.shape.tuples import stack

if TYPE_CHECKING:
    from needle.typing import NDArray, Operand, Tensor

__all__ = ["GRUGrad", "LSTMGrad", "RNNGrad", "RecurrentGrad"]


def order(steps: int, reverse: bool) -> Iterable[int]:
    """Return the steps in the order in which the states pass through them."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def parts(x: Tensor, count: int) -> list[Tensor]:
    """Return the last axis of x cut into equal parts."""
    size = shape_of(x)[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def running(lengths: Sequence[Tensor], steps: int) -> Tensor | None:
    """Return which rows still run at each step, bool [t, b, 1]; None where all always do."""
    if not lengths:
        return None
    (length,) = lengths
    number = arange(steps, dtype=dtype.int64, device=executor.spec_of(length).device)
    return greater(reshape(cast(length, dtype.int64), (1, -1, 1)), reshape(number, (steps, 1, 1)))


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros of a shape, in the dtype and on the device of a tensor; they take no memory."""
    spec = executor.spec_of(like)
    return broadcast_to(constant(0.0, spec.dtype, spec.device), shape)


def stacked(steps: list[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return tensors of all steps as one; of no steps, an empty one."""
    return stack(steps) if steps else zeros(shape, like)


def chosen(now: Tensor | None, x: Tensor, other: Operand) -> Any:
    """Return x in the rows that run, else the other; x where all do."""
    return x if now is None else where(now, x, other)


class RecurrentGrad(Composite):
    """The base of the gradients of the recurrent ops.

    Attributes:
        reverse: whether time ran backwards.
        masked: whether lengths are the last operand.
        wanted: bit i says whether result i is needed; the others are zeros.
    """

    reverse: bool = False
    masked: bool = False
    wanted: int = -1
    states: ClassVar[int] = 1
    columns: ClassVar[int] = 1
    """Gates in the weights, in units of the hidden size."""
    biases: ClassVar[int] = 1

    def step(self, kept: Any, cell: Any, before: list[Any], grads: list[Any]) -> Any:
        """Return the gradients of a step's sums of products and those of the states before it.

        Args:
            kept: the gates that the op kept, [b, n].
            cell: the state c after the step, where there is one.
            before: the states before the step.
            grads: the gradients of the states after it.

        Returns:
            Those of ``x w_ih + bias``, those of ``h w_hh`` (for None the same), and a list of
            what reaches the states before the step directly, not through w_hh.
        """
        raise NotImplementedError

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        lengths = [kernels.integers(self.name, arrays[-1])] if self.masked else []
        return super().compute(*arrays[: len(arrays) - self.masked], *lengths)

    def expand(self, g_out: Any, *rest: Any) -> Any:
        s = self.states
        seeds, x, start = rest[:s], rest[s], rest[s + 1 : 2 * s + 1]
        w_ih, w_hh, out, gates = rest[2 * s + 1 : 2 * s + 5]
        cells = rest[2 * s + 5] if s == 2 else None
        lengths = rest[-1:] if self.masked else ()
        t = shape_of(x)[0]
        active = running(lengths, t)
        start_wide = [widened(y) for y in start]
        histories = [
            self._before(y, z, active) for y, z in zip((out, cells), start_wide, strict=False)
        ]
        grads, into_x, into_h = [widened(y) for y in seeds], [None] * t, [None] * t
        for i in order(t, not self.reverse):
            now = None if active is None else active[i]
            after = [chosen(now, grads[0] + widened(g_out[i]), grads[0]), *grads[1:]]
            before = [y[i] for y in histories]
            cell = None if cells is None else cells[i]
            dx, dh, direct = self.step(gates[i], cell, before, after)
            into_x[i] = chosen(now, dx, 0.0)
            into_h[i] = into_x[i] if dh is None else chosen(now, dh, 0.0)
            back = matmul(into_h[i], widened(w_hh).T)
            direct[0] = back if direct[0] is None else direct[0] + back
            grads = [chosen(now, y, z) for y, z in zip(direct, after, strict=True)]
        return self._results(x, start, (w_ih, w_hh), histories[0], grads, (into_x, into_h))

    def _before(self, steps: Any, start: Tensor, active: Tensor | None) -> Tensor:
        """Return the state before each step: the first one, then what the steps left."""
        first = unsqueeze(start, 0)
        t = shape_of(steps)[0]
        if t == 0:
            return steps
        if not self.reverse:
            return concat([first, widened(steps[:-1])], 0)
        later = widened(steps[1:])
        return concat([later if active is None else where(active[1:], later, first), first], 0)

    def _results(
        self,
        x: Tensor,
        start: tuple[Tensor, ...],
        weights: tuple[Tensor, ...],
        before: Tensor,
        grads: list[Tensor],
        sums: Any,
    ) -> tuple[Tensor, ...]:
        w_ih, w_hh = weights
        shape = (*shape_of(x)[:2], shape_of(w_hh)[1])
        into_x, into_h = (stacked(y, shape, grads[0]) for y in sums)
        made: list[Callable[[], Any]] = [
            lambda: matmul(into_x, widened(w_ih).T),
            *map(_giving, grads),
            lambda: matmul(_rows(x).T, _rows(into_x)),
            lambda: matmul(_rows(before).T, _rows(into_h)),
            lambda: summation(into_x, (0, 1)),
            lambda: summation(into_h, (0, 1)),
        ]
        like = [x, *start, w_ih, w_hh, w_hh, w_hh]
        shapes = [*map(shape_of, like[:-2]), shape[-1:], shape[-1:]]
        return tuple(
            cast_like(make(), y) if self.wanted >> i & 1 else zeros(size, y)
            for i, (make, y, size) in enumerate(zip(made, like, shapes, strict=True))
            if i < 3 + self.states + self.biases
        )


def _giving(x: Tensor) -> Callable[[], Tensor]:
    return lambda: x


def _rows(x: Tensor) -> Tensor:
    """Return [t, b, n] as [t b, n], in float32 at least."""
    t, b, n = shape_of(x)
    return reshape(widened(x), (t * b, n))


class RNNGrad(RecurrentGrad):
    """Gradient of ``RNN`` from its results.

    Attributes:
        nonlinearity: "tanh" or "relu".

    Shapes:   g_out [t, b, h], g_h [b, h], x [t, b, i], h0 [b, h], w_ih [i, h], w_hh [h, h],
              out [t, b, h], gates [t, b, h], lengths [b] if masked
              -> dx [t, b, i], dh0 [b, h], dw_ih [i, h], dw_hh [h, h], dbias [h]
    Dtypes:   floating, gates in float32 at least; lengths int64
    Gradient: all that is floating; any order
    """

    nonlinearity: str = "tanh"
    saves = (tuple(range(9)),)
    samples = staticmethod(lambda: gradient_samples("RNN"))

    def step(self, kept: Tensor, cell: Any, before: list[Tensor], grads: list[Tensor]) -> Any:
        if self.nonlinearity == "relu":
            return where(greater(kept, 0.0), grads[0], 0.0), None, [None]
        return grads[0] * (1.0 - square(kept)), None, [None]


class GRUGrad(RecurrentGrad):
    """Gradient of ``GRU`` from its results.

    Shapes:   g_out [t, b, h], g_h [b, h], x [t, b, i], h0 [b, h], w_ih [i, 3 h], w_hh [h, 3 h],
              out [t, b, h], gates [t, b, 4 h], lengths [b] if masked
              -> dx [t, b, i], dh0 [b, h], dw_ih [i, 3 h], dw_hh [h, 3 h], dbias_ih [3 h],
              dbias_hh [3 h]
    Dtypes:   floating, gates in float32 at least; lengths int64
    Gradient: all that is floating; any order
    """

    columns = 3
    biases = 2
    saves = (tuple(range(9)),)
    samples = staticmethod(lambda: gradient_samples("GRU"))

    def step(
        self, kept: Tensor, cell: Any, before: list[Tensor], grads: list[Tensor]
    ) -> tuple[Tensor | list[Tensor], ...]:
        (dh,), (h,) = grads, before
        r, z, n, hidden = parts(widened(kept), 4)
        dn = dh * (1.0 - z) * (1.0 - square(n))
        dr = dn * hidden * r * (1.0 - r)
        dz = dh * (h - n) * z * (1.0 - z)
        return concat([dr, dz, dn], -1), concat([dr, dz, dn * r], -1), [dh * z]


class LSTMGrad(RecurrentGrad):
    """Gradient of ``LSTM`` from its results.

    Shapes:   g_out [t, b, h], g_h [b, h], g_c [b, h], x [t, b, i], h0 [b, h], c0 [b, h],
              w_ih [i, 4 h], w_hh [h, 4 h], out [t, b, h], gates [t, b, 4 h], cells [t, b, h],
              lengths [b] if masked
              -> dx [t, b, i], dh0 [b, h], dc0 [b, h], dw_ih [i, 4 h], dw_hh [h, 4 h], dbias [4 h]
    Dtypes:   floating, gates and cells in float32 at least; lengths int64
    Gradient: all that is floating; any order
    """

    states = 2
    columns = 4
    saves = (tuple(range(12)),)
    samples = staticmethod(lambda: gradient_samples("LSTM"))

    def step(
        self, kept: Tensor, cell: Tensor, before: list[Tensor], grads: list[Tensor]
    ) -> tuple[Tensor | list[Tensor | None] | None, ...]:
        dh, dc = grads
        i, f, g, o = parts(widened(kept), 4)
        high = tanh(widened(cell))
        dc = total([dc, dh * o * (1.0 - square(high))])
        di = dc * g * i * (1.0 - i)
        df = dc * before[1] * f * (1.0 - f)
        dg = dc * i * (1.0 - square(g))
        do = dh * high * o * (1.0 - o)
        return concat([di, df, dg, do], -1), None, [None, dc * f]

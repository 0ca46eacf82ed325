"""Recurrent layers: a whole sequence through one layer in one direction, as one op.

Layers, directions and dropout between layers are put together in ``nn.recurrent``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from needle import executor
from needle.backend import kernels
from needle.errors import ArgumentError, IndexRangeError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, needed, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.elementwise.activation import relu
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.elementwise.functions import sigmoid
from needle.ops.elementwise.trigonometry import tanh
from needle.ops.linalg.matmul import matmul
from needle.ops.sequence.recurrent_grad import (
    GRUGrad,
    LSTMGrad,
    RecurrentGrad,
    RNNGrad,
    chosen,
    order,
    parts,
    running,
    stacked,
    zeros,
)
from needle.ops.sequence.recurrent_samples import forward_samples
from needle.ops.shape.movement import concat

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Tensor, TensorTuple

__all__ = ["GRU", "LSTM", "RNN", "Recurrent"]


class Recurrent(Composite):
    """The base of the recurrent ops.

    Every step computes the states from those of the step before it. Rows beyond their length keep
    their states, and there out, gates and cells are 0.

    Attributes:
        reverse: whether time runs backwards: the last step first.
        masked: whether lengths are the last operand.
    """

    reverse: bool = False
    masked: bool = False
    gradient_op: ClassVar[type[RecurrentGrad]]
    kept: ClassVar[int] = 1
    """Gates kept of each unit."""
    saves = ((*range(9), OUTPUT),)

    def step(self, given: Any, hidden: Any, states: list[Any]) -> tuple[list[Any], Any]:
        """Return the states after a step, and the gates to keep.

        Args:
            given: ``x w_ih + bias`` of the step, [b, n].
            hidden: ``h w_hh``, with the second bias where there is one.
            states: those before the step.
        """
        raise NotImplementedError

    def names(self) -> list[str]:
        """Return the names of the operands."""
        op = self.gradient_op
        biases = ["bias"] if op.biases == 1 else ["bias_ih", "bias_hh"]
        lengths = ["lengths"] if self.masked else []
        return ["x", *["h0", "c0"][: op.states], "w_ih", "w_hh", *biases, *lengths]

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if len(inputs) != len(self.names()):
            raise ArgumentError(
                f"{self.name}: takes {len(self.names())} operands ({', '.join(self.names())}), "
                f"{len(inputs)} were given"
            )
        tensors = as_tensors(inputs, self.name)
        count = len(tensors) - self.masked
        return (*promoted(tensors[:count], self.name, floating=True), *tensors[count:])

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        self._check(*arrays)
        if self.masked:
            lengths = kernels.integers(self.name, arrays[-1])
            self._check_lengths(lengths, arrays[0].shape[0])
            arrays = (*arrays[:-1], lengths)
        return super().compute(*arrays)

    def _check(self, *arrays: NDArray) -> None:
        """Check the shapes of the operands.

        Raises:
            ShapeError: naming the first that does not fit.
        """
        names, op = self.names(), self.gradient_op
        by_name = dict(zip(names, arrays, strict=True))
        x, w_hh = arrays[0], by_name["w_hh"]
        sizes = [*x.shape, w_hh.shape[0]] if x.ndim == 3 and w_hh.ndim == 2 else None
        if sizes is None:
            problem = f"x has {x.ndim} axes and w_hh {w_hh.ndim}"
            rule = f"x [t, b, i], w_hh [h, {op.columns} h]"
            raise explain(ShapeError, self.name, problem, list(by_name.items()), rule)
        _, b, i, h = sizes
        n = op.columns * h
        wanted = {"h0": (b, h), "c0": (b, h), "w_ih": (i, n), "w_hh": (h, n), "lengths": (b,)}
        for name, y in list(by_name.items())[1:]:
            if y.shape != wanted.get(name, (n,)):
                raise explain(
                    ShapeError, self.name,
                    f"{name} has shape {y.shape}, expected {wanted.get(name, (n,))}",
                    list(by_name.items()),
                    f"x [t, b, i], h0 [b, h], w_ih [i, {op.columns} h], w_hh [h, {op.columns} h]",
                )  # fmt: skip

    def _check_lengths(self, lengths: NDArray, steps: int) -> None:
        """Check that lengths are from 0 to the number of steps.

        Raises:
            IndexRangeError: naming the first row that is not.
        """

        def wrong(position: int, value: Numpy | None = None) -> Exception:
            what = "its length" if value is None else f"length {value}"
            return IndexRangeError(
                f"{self.name}: row {position} has {what}, the sequence has {steps} steps\n"
                f"  rule: lengths from 0 to {steps}"
            )

        lengths.device.backend.check_range(lengths, 0, steps + 1, None, wrong)

    def expand(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        s = self.gradient_op.states
        lengths = rest[-1:] if self.masked else ()
        first, wide = widened(x), [widened(y) for y in rest[: len(rest) - self.masked]]
        states, (w_ih, w_hh, bias), others = wide[:s], wide[s : s + 3], wide[s + 3 :]
        t, b, _ = shape_of(x)
        active = running(lengths, t)
        given = matmul(first, w_ih) + bias
        kept: list[list[Any]] = [[None] * t for _ in range(s + 1)]  # out, (cells,) gates
        for i in order(t, self.reverse):
            hidden = matmul(states[0], w_hh)
            new, gates = self.step(given[i], hidden + others[0] if others else hidden, states)
            now = None if active is None else active[i]
            for steps, value in zip(kept, (*new, gates), strict=True):
                steps[i] = chosen(now, value, 0.0)
            states = [chosen(now, y, z) for y, z in zip(new, states, strict=True)]
        h = shape_of(w_hh)[0]
        sizes = [*[h] * s, self.kept * h]
        outs = [stacked(y, (t, b, n), first) for y, n in zip(kept, sizes, strict=True)]
        last = [cast_like(y, x) for y in states]
        return (cast_like(outs[0], x), *last, outs[-1], *outs[1:-1])

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        op, inputs = self.gradient_op, out.inputs
        s = op.states
        if any(g is not None for g in out_grad[s + 1 :]):
            return super().gradient(out_grad, out)  # of what is kept for the gradient
        wanted = needed(out)[: len(inputs) - self.masked]
        seeds = [
            zeros(out[i].shape, inputs[0]) if g is None else g
            for i, g in enumerate(out_grad[: s + 1])
        ]
        bits = sum(1 << i for i, want in enumerate(wanted) if want)
        made = op.of(self.reverse, self.masked, bits, *self._extras())
        lengths = inputs[-1:] if self.masked else ()
        given = (*seeds, *inputs[: s + 3], out[0], *[out[i] for i in range(s + 1, 2 * s + 1)])
        found = executor.several(made, *given, *lengths)
        grads = [g if want else None for g, want in zip(found, wanted, strict=True)]
        return (*grads, *[None] * self.masked)

    def _extras(self) -> tuple[str, ...]:
        """Return further attributes of the gradient's op."""
        return ()


class RNN(Recurrent):
    """Pass a sequence through a layer of simple recurrent units.

        out[t] = f(x[t] w_ih + out[t - 1] w_hh + bias),  out[-1] = h0

    The gates kept for the gradient are f's results, out before it is rounded to x's dtype.

    Attributes:
        nonlinearity: f, "tanh" or "relu".

    Shapes:   x [t, b, i], h0 [b, h], w_ih [i, h], w_hh [h, h], bias [h], lengths [b] if masked
              -> out [t, b, h], h_n [b, h], gates [t, b, h]
    Dtypes:   floating, promoted together; gates in float32 when x is float16 or bfloat16;
              lengths integer (or floating with whole values)
    Gradient: all but lengths; any order
    Raises:   ShapeError if shapes do not fit; IndexRangeError naming a row whose length is not
              from 0 to t; DtypeError for dtypes that do not mix; OptionError for another f
    Source:   Elman, "Finding structure in time", 1990
    """

    nonlinearity: str = "tanh"
    gradient_op = RNNGrad
    samples = staticmethod(lambda: forward_samples("RNN"))

    def setup(self) -> None:
        if self.nonlinearity not in ("tanh", "relu"):
            raise unknown("rnn: nonlinearity", self.nonlinearity, ("tanh", "relu"))

    def step(self, given: Tensor, hidden: Tensor, states: list[Tensor]) -> tuple[list[Any], Any]:
        new = (relu if self.nonlinearity == "relu" else tanh)(given + hidden)
        return [new], new

    def _extras(self) -> tuple[str, ...]:
        return (self.nonlinearity,)


class GRU(Recurrent):
    """Pass a sequence through a layer of gated recurrent units.

        r, z = sigmoid(x[t] w_ih + bias_ih + h w_hh + bias_hh), the first two thirds
        n = tanh(a + r u), where a = x[t] w_ih + bias_ih and u = h w_hh + bias_hh, the last third
        out[t] = (1 - z) n + z h,  h = out[t - 1],  out[-1] = h0

    The gates kept for the gradient are r, z, n and u.

    Shapes:   x [t, b, i], h0 [b, h], w_ih [i, 3 h], w_hh [h, 3 h], bias_ih [3 h], bias_hh [3 h],
              lengths [b] if masked -> out [t, b, h], h_n [b, h], gates [t, b, 4 h]
    Dtypes:   as RNN: floating, promoted together; gates in float32 at least; lengths integer
    Gradient: all but lengths; any order
    Raises:   as RNN: ShapeError, IndexRangeError, DtypeError
    Source:   Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014,
              arXiv:1406.1078, with r applied behind the product, as cuDNN and PyTorch have it
    """

    gradient_op = GRUGrad
    kept = 4
    samples = staticmethod(lambda: forward_samples("GRU"))

    def step(self, given: Tensor, hidden: Tensor, states: list[Tensor]) -> tuple[list[Any], Any]:
        (given_r, given_z, given_n), (r, z, u) = parts(given, 3), parts(hidden, 3)
        r, z = sigmoid(given_r + r), sigmoid(given_z + z)
        n = tanh(given_n + r * u)
        return [n + z * (states[0] - n)], concat([r, z, n, u], -1)


class LSTM(Recurrent):
    """Pass a sequence through a layer of long short-term memory units.

        i, f, o = sigmoid(s),  g = tanh(s),  s = x[t] w_ih + h w_hh + bias in quarters i, f, g, o
        cells[t] = f cells[t - 1] + i g,  cells[-1] = c0
        out[t] = o tanh(cells[t]),  h = out[t - 1],  out[-1] = h0

    The gates kept for the gradient are i, f, g and o, after sigmoid and tanh.

    Shapes:   x [t, b, i], h0 [b, h], c0 [b, h], w_ih [i, 4 h], w_hh [h, 4 h], bias [4 h],
              lengths [b] if masked
              -> out [t, b, h], h_n [b, h], c_n [b, h], gates [t, b, 4 h], cells [t, b, h]
    Dtypes:   as RNN: floating, promoted together; gates and cells in float32 at least;
              lengths integer
    Gradient: all but lengths; any order
    Raises:   as RNN: ShapeError, IndexRangeError, DtypeError
    Source:   Hochreiter, Schmidhuber, "Long short-term memory", 1997; the forget gate: Gers,
              Schmidhuber, Cummins, "Learning to forget", 2000
    """

    gradient_op = LSTMGrad
    kept = 4
    samples = staticmethod(lambda: forward_samples("LSTM"))

    def step(self, given: Tensor, hidden: Tensor, states: list[Tensor]) -> tuple[list[Any], Any]:
        i, f, g, o = parts(given + hidden, 4)
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        c = f * states[1] + i * g
        return [o * tanh(c), c], concat([i, f, g, o], -1)

"""Recurrent layers: cells of one step, and stacks of them over whole sequences.

A cell is its layer's op on a sequence of one step, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from needle import executor, init, ops
from needle.errors import ArgumentError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.packed import PackedSequence
from needle.nn.settings import check_number, check_sizes, shown
from needle.ops.core.operands import as_tensors
from needle.ops.index.indexing import beside
from needle.ops.sequence.recurrent_grad import zeros
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Values

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]

State = Tensor | tuple[Tensor, ...] | None
_Sequence = Tensor | PackedSequence

# ---- cells -------------------------------------------------------------------------


class _Cell(Module):
    """One step of a recurrent layer.

    The weights are drawn from U(+-1 / sqrt(hidden_size)), in the order of the attributes. They are
    read when the cell is called, so other tensors may take their places; a plain tensor there is
    not a parameter of the module.
    """

    columns: ClassVar[int]
    states: ClassVar[int] = 1
    weights: ClassVar[tuple[str, ...]] = ("W_ih", "W_hh", "bias_ih", "bias_hh")

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, device: DeviceLike, dtype: DTypeLike
    ) -> None:
        super().__init__()
        check_sizes(self, input_size=input_size, hidden_size=hidden_size)
        if hidden_size < 1:
            raise OptionError(
                f"{type(self).__name__}: hidden_size={hidden_size}\n  rule: 1 or more"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        bound, width = hidden_size**-0.5, self.columns * hidden_size
        how: dict[str, Any] = {"low": -bound, "high": bound, "device": device, "dtype": dtype}
        self.W_ih: Tensor = Parameter(init.rand(input_size, width, **how))
        self.W_hh: Tensor = Parameter(init.rand(hidden_size, width, **how))
        self.bias_ih: Tensor | None = Parameter(init.rand(width, **how)) if bias else None
        self.bias_hh: Tensor | None = Parameter(init.rand(width, **how)) if bias else None

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.weights:
            super().__setattr__(name, value)
        elif value is None or isinstance(value, Tensor):
            object.__setattr__(self, name, value)
        else:
            given = type(value).__name__
            raise ArgumentError(f"{type(self).__name__}.{name}: expected a tensor, got {given}")

    def _op(self, reverse: bool, masked: bool) -> ops.Op:
        """Return the op of the layer."""
        raise NotImplementedError

    def _biases(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what the op takes as biases."""
        if self.bias_ih is None or self.bias_hh is None:
            return (zeros((self.columns * self.hidden_size,), x),)
        return (self.bias_ih + self.bias_hh,)

    def sequence(
        self,
        x: Tensor,
        start: tuple[Tensor, ...],
        reverse: bool = False,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the result of every step [t, b, hidden_size], and the last states.

        Args:
            x: [t, b, input_size].
            start: the states before the first step, each [b, hidden_size].
            reverse: whether time runs backwards.
            lengths: [b], how many steps each row has; all for None.
        """
        rest = () if lengths is None else (lengths,)
        op = self._op(reverse, lengths is not None)
        given = (x, *start, self.W_ih, self.W_hh, *self._biases(x), *rest)
        found = executor.apply(op, *given)
        return tuple(found[i] for i in range(1 + self.states))

    def _started(self, x: Tensor, h: State) -> tuple[Tensor, ...]:
        """Return given states as a tuple, zeros for None."""
        if h is None:
            return (zeros((shape_of(x)[-2], self.hidden_size), x),) * self.states
        return states_of(type(self).__name__, h, self.states)

    def forward(self, x: Tensor, h: State = None) -> Any:
        if len(shape_of(x)) != 2:
            raise explain(
                ShapeError, type(self).__name__, f"x has {len(shape_of(x))} axes", [("x", x)],
                "x [b, input_size]",
            )  # fmt: skip
        _, *states = self.sequence(ops.unsqueeze(x, 0), self._started(x, h))
        return states[0] if self.states == 1 else tuple(states)

    def extra_repr(self) -> str:
        bias = {"bias": (self.bias_ih is not None, True)}
        return shown(f"{self.input_size}, {self.hidden_size}", bias)


def states_of(name: str, h: Tensor | Sequence[Tensor], count: int) -> tuple[Tensor, ...]:
    """Return states as a tuple.

    Raises:
        OptionError: if there is another number of them.
    """
    found = (h,) if isinstance(h, Tensor) else tuple(h)
    if len(found) != count:
        wanted = "a tensor h0" if count == 1 else "a tuple (h0, c0)"
        given = "a tensor" if isinstance(h, Tensor) else f"a tuple of {len(found)}"
        raise OptionError(f"{name}: the state is {given}\n  rule: {wanted}, or None for zeros")
    return found


class RNNCell(_Cell):
    """One step of a simple recurrent layer: f(x W_ih + bias_ih + h W_hh + bias_hh).

    Shapes:   x [b, input_size], h [b, hidden_size] or None for zeros -> [b, hidden_size]

    All are drawn from U(+-1 / sqrt(hidden_size)), in the order of the attributes. They are read
    when the cell is called, so other tensors may take their places.

    Attributes:
        W_ih: [input_size, hidden_size].
        W_hh: [hidden_size, hidden_size].
        bias_ih: [hidden_size], or None.
        bias_hh: [hidden_size], or None.

    Args:
        input_size: size of x.
        hidden_size: size of the state.
        bias: whether there are biases.
        nonlinearity: f, "tanh" or "relu".
        device: where the weights are; the default device for None.
        dtype: their element type.

    >>> nn.RNNCell(3, 4)(ndl.rand(2, 3)).shape
    (2, 4)
    """

    columns = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        self.nonlinearity = nonlinearity
        self._op(False, False)  # which knows the names
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def _op(self, reverse: bool, masked: bool) -> ops.Op:
        return ops.RNN.of(reverse, masked, self.nonlinearity)


class GRUCell(_Cell):
    """One step of a layer of gated recurrent units; see ``ops.GRU``.

    Shapes:   x [b, input_size], h [b, hidden_size] or None for zeros -> [b, hidden_size]

    Gates, in thirds of the columns: reset, update, new. Drawn and read as in ``RNNCell``.

    Attributes:
        W_ih: [input_size, 3 * hidden_size].
        W_hh: [hidden_size, 3 * hidden_size].
        bias_ih: [3 * hidden_size], or None.
        bias_hh: [3 * hidden_size], or None.

    >>> nn.GRUCell(3, 4)(ndl.rand(2, 3)).shape
    (2, 4)
    """

    columns = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def _op(self, reverse: bool, masked: bool) -> ops.Op:
        return ops.GRU.of(reverse, masked)

    def _biases(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.bias_ih is None or self.bias_hh is None:
            return super()._biases(x) * 2
        return self.bias_ih, self.bias_hh


class LSTMCell(_Cell):
    """One step of a layer of long short-term memory units; see ``ops.LSTM``.

    Shapes:   x [b, input_size], (h, c) each [b, hidden_size] or None for zeros
              -> (h, c) each [b, hidden_size]

    Gates, in quarters of the columns: input, forget, cell, output. Drawn and read as in
    ``RNNCell``.

    Attributes:
        W_ih: [input_size, 4 * hidden_size].
        W_hh: [hidden_size, 4 * hidden_size].
        bias_ih: [4 * hidden_size], or None.
        bias_hh: [4 * hidden_size], or None.

    >>> h, c = nn.LSTMCell(3, 4)(ndl.rand(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    columns = 4
    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def _op(self, reverse: bool, masked: bool) -> ops.Op:
        return ops.LSTM.of(reverse, masked)


# ---- layers ------------------------------------------------------------------------


class _Layers(Module):
    """Stacked recurrent layers over a sequence."""

    def __init__(
        self, sizes: tuple[int, int, int], batch_first: bool, dropout: float, bidirectional: bool
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = sizes
        name = type(self).__name__
        check_sizes(self, hidden_size=sizes[1], num_layers=self.num_layers)
        if self.num_layers < 1:
            raise OptionError(f"{name}: num_layers={self.num_layers}\n  rule: 1 or more")
        check_number(self, "dropout", dropout, 0.0, 1.0)
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _inputs(self) -> list[int]:
        """Return the input size of every cell: layer by layer, both directions of a layer."""
        width = self._directions * self.hidden_size
        return [
            width if layer else self.input_size
            for layer in range(self.num_layers)
            for _ in range(self._directions)
        ]

    def _run(
        self, cells: Sequence[_Cell], x: _Sequence, h: State, lengths: Values | None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the result of the last layer, and the last states, each [cells, b, h]."""
        packed = isinstance(x, PackedSequence)
        y, counts = x if isinstance(x, PackedSequence) else (x, None)
        if not packed and lengths is not None:
            counts = as_tensors((y, beside(y, lengths)), type(self).__name__)[1]
        start = self._start(cells, y, h, packed)
        turn = self.batch_first and not packed
        y = ops.swapaxes(y, 0, 1) if turn else y
        count, last = self._directions, []
        for layer in range(self.num_layers):
            outs = []
            for i in range(layer * count, (layer + 1) * count):
                given = tuple(state[i] for state in start)
                out, *states = cells[i].sequence(y, given, i % count == 1, counts)
                outs.append(out)
                last.append(states)
            y = outs[0] if count == 1 else ops.concat(outs, -1)
            if self.dropout and self.training and layer + 1 < self.num_layers:
                y = ops.dropout(y, self.dropout)
        y = ops.swapaxes(y, 0, 1) if turn else y
        ends = tuple(ops.stack(states) for states in zip(*last, strict=True))
        return PackedSequence(y, x.lengths) if isinstance(x, PackedSequence) else y, ends

    def _start(
        self, cells: Sequence[_Cell], x: Tensor, h: State, packed: bool
    ) -> tuple[Tensor, ...]:
        """Return the states before the first step, each [cells, b, h].

        Raises:
            ShapeError: if x or a state has another shape.
        """
        name, shape = type(self).__name__, shape_of(x)
        rule = "x [b, t, input_size]" if self.batch_first and not packed else "x [t, b, input_size]"
        if len(shape) != 3 or shape[2] != self.input_size:
            problem = f"x has shape {shape}, input_size is {self.input_size}"
            raise explain(ShapeError, name, problem, [("x", x)], rule)
        size = (len(cells), shape[0 if self.batch_first and not packed else 1], self.hidden_size)
        if h is None:
            return (zeros(size, x),) * cells[0].states
        states = states_of(name, h, cells[0].states)
        for what, state in zip(("h0", "c0"), states, strict=False):
            if shape_of(state) != size:
                raise explain(
                    ShapeError, name, f"{what} has shape {shape_of(state)}, expected {size}",
                    [("x", x), (what, state)], f"{rule}, {what} [layers, b, hidden_size]; layers "
                    "counts both directions",
                )  # fmt: skip
        return states

    def extra_repr(self) -> str:
        settings = {
            "num_layers": (self.num_layers, 1), "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0), "bidirectional": (self.bidirectional, False),
        }  # fmt: skip
        return shown(f"{self.input_size}, {self.hidden_size}", settings)


class RNN(_Layers):
    """Stack simple recurrent layers; see ``ops.RNN``.

    Shapes:   x [t, b, input_size], h0 [layers, b, hidden_size] or None for zeros
              -> out [t, b, hidden_size], h_n [layers, b, hidden_size]

    With ``bidirectional`` each layer also runs backwards: out has twice the columns, those of the
    forward direction first, and the states count both directions of a layer, then the next.
    x may be a ``PackedSequence``; then out is one.

    Attributes:
        rnn_cells: the cells, layer by layer; their weights are read when the layer is called.

    Args:
        input_size: size of x.
        hidden_size: size of the state.
        num_layers: number of layers.
        bias: whether there are biases.
        nonlinearity: "tanh" or "relu".
        device: where the weights are; the default device for None.
        dtype: their element type.
        batch_first: whether x and out are [b, t, ...].
        dropout: probability of dropout between layers, in training.
        bidirectional: whether the layers run in both directions.

    >>> out, h = nn.RNN(3, 4, num_layers=2)(ndl.rand(5, 2, 3))
    >>> out.shape, h.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        sizes = input_size, hidden_size, num_layers
        super().__init__(sizes, batch_first, dropout, bidirectional)
        self.rnn_cells = [
            RNNCell(size, hidden_size, bias, nonlinearity, device, dtype) for size in self._inputs()
        ]

    def forward(
        self, x: _Sequence, h0: Tensor | None = None, *, lengths: Values | None = None
    ) -> tuple[Any, Tensor]:
        out, (h,) = self._run(self.rnn_cells, x, h0, lengths)
        return out, h


class GRU(_Layers):
    """Stack layers of gated recurrent units; see ``ops.GRU``.

    Shapes:   x [t, b, input_size], h0 [layers, b, hidden_size] or None for zeros
              -> out [t, b, hidden_size], h_n [layers, b, hidden_size]

    Arguments as of ``RNN``, without nonlinearity.

    Attributes:
        gru_cells: the cells, layer by layer; their weights are read when the layer is called.

    >>> out, h = nn.GRU(3, 4, bidirectional=True)(ndl.rand(5, 2, 3))
    >>> out.shape, h.shape
    ((5, 2, 8), (2, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        sizes = input_size, hidden_size, num_layers
        super().__init__(sizes, batch_first, dropout, bidirectional)
        self.gru_cells = [
            GRUCell(size, hidden_size, bias, device, dtype) for size in self._inputs()
        ]

    def forward(
        self, x: _Sequence, h0: Tensor | None = None, *, lengths: Values | None = None
    ) -> tuple[Any, Tensor]:
        out, (h,) = self._run(self.gru_cells, x, h0, lengths)
        return out, h


class LSTM(_Layers):
    """Stack layers of long short-term memory units; see ``ops.LSTM``.

    Shapes:   x [t, b, input_size], (h0, c0) each [layers, b, hidden_size] or None for zeros
              -> out [t, b, hidden_size], (h_n, c_n) each [layers, b, hidden_size]

    Arguments as of ``RNN``, without nonlinearity.

    Attributes:
        lstm_cells: the cells, layer by layer; their weights are read when the layer is called.

    >>> out, (h, c) = nn.LSTM(3, 4, batch_first=True)(ndl.rand(2, 5, 3))
    >>> out.shape, h.shape, c.shape
    ((2, 5, 4), (1, 2, 4), (1, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        sizes = input_size, hidden_size, num_layers
        super().__init__(sizes, batch_first, dropout, bidirectional)
        self.lstm_cells = [
            LSTMCell(size, hidden_size, bias, device, dtype) for size in self._inputs()
        ]

    def forward(
        self,
        x: _Sequence,
        h0: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Values | None = None,
    ) -> tuple[Any, tuple[Tensor, ...]]:
        return self._run(self.lstm_cells, x, h0, lengths)

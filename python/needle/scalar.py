"""Reverse-mode differentiation of single numbers: the idea of Needle in a hundred lines.

A ``Value`` is a number that remembers how it was computed. ``backward`` walks from a result to its
inputs and multiplies derivatives on the way: the chain rule. The rest of Needle does the same with
arrays. ``Neuron``, ``Layer`` and ``MLP`` are networks of such numbers, and ``draw`` shows the graph
of a result as an SVG picture. The module needs nothing but Python.

>>> from needle.scalar import MLP, Value
>>> x = Value(2.0, "x")
>>> y = x * x + 3 * x
>>> y.backward()
>>> y.data, x.grad
(10.0, 7.0)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from html import escape

__all__ = ["MLP", "Layer", "Neuron", "Value", "draw"]

Number = float | int


class Value:
    """A number, the op and the inputs that made it, and the derivative of a result by it.

    Args:
        data: the number.
        name: what ``draw`` writes beside it.

    Attributes:
        grad: the derivative of the result on which ``backward`` was called; calls add up.
    """

    def __init__(self, data: Number, name: str = "") -> None:
        self.data, self.name, self.grad = float(data), name, 0.0
        self.op = ""
        self.inputs: tuple[Value, ...] = ()
        self.partials: tuple[float, ...] = ()

    @classmethod
    def _made(cls, op: str, data: float, inputs: Sequence[Value], *partials: float) -> Value:
        """Return the result of an op, with its partial derivative by each input."""
        out = cls(data)
        out.op, out.inputs, out.partials = op, tuple(inputs), partials
        return out

    def __add__(self, other: Value | Number) -> Value:
        other = _value(other)
        return Value._made("+", self.data + other.data, (self, other), 1.0, 1.0)

    def __mul__(self, other: Value | Number) -> Value:
        other = _value(other)
        return Value._made("*", self.data * other.data, (self, other), other.data, self.data)

    def __pow__(self, power: Number) -> Value:
        slope = power * self.data ** (power - 1) if power else 0.0
        return Value._made(f"** {power}", self.data**power, (self,), slope)

    def exp(self) -> Value:
        """Return e to the power of the value."""
        out = math.exp(self.data)
        return Value._made("exp", out, (self,), out)

    def log(self) -> Value:
        """Return the natural logarithm."""
        return Value._made("log", math.log(self.data), (self,), 1.0 / self.data)

    def tanh(self) -> Value:
        """Return the hyperbolic tangent."""
        out = math.tanh(self.data)
        return Value._made("tanh", out, (self,), 1.0 - out * out)

    def relu(self) -> Value:
        """Return the value, or 0 where it is negative."""
        return Value._made("relu", max(self.data, 0.0), (self,), float(self.data > 0))

    def __neg__(self) -> Value:
        return self * -1.0

    def __sub__(self, other: Value | Number) -> Value:
        return self + -_value(other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self * _value(other) ** -1

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Value:
        return _value(other) - self

    def __rtruediv__(self, other: Number) -> Value:
        return _value(other) / self

    def backward(self) -> None:
        """Add the derivative of this value by each value below it to that one's ``grad``."""
        arrived = {self: 1.0}
        for value in reversed(self.below()):  # each after all that it went into
            grad = arrived[value]
            value.grad += grad
            for x, partial in zip(value.inputs, value.partials):  # noqa: B905  (a leaf has none)
                arrived[x] = arrived.get(x, 0.0) + grad * partial

    def below(self) -> list[Value]:
        """Return all values that this one was computed from, and itself; inputs come first."""
        order: list[Value] = []
        seen, stack = {self}, [(self, iter(self.inputs))]
        while stack:
            value, inputs = stack[-1]
            new = next((x for x in inputs if x not in seen), None)
            if new is None:
                order.append(value)
                stack.pop()
            else:
                seen.add(new)
                stack.append((new, iter(new.inputs)))
        return order

    def __repr__(self) -> str:
        return f"Value({self.data:.4g}, grad={self.grad:.4g})"

    def _repr_svg_(self) -> str:
        return draw(self)


def _value(x: Value | Number) -> Value:
    return x if isinstance(x, Value) else Value(x)


class Neuron:
    """A weighted sum of ``n`` inputs and a bias, through tanh unless ``linear``."""

    def __init__(self, n: int, linear: bool = False, rng: random.Random | None = None) -> None:
        draws = rng or random
        self.weights = [Value(draws.uniform(-1, 1), f"w{i}") for i in range(n)]
        self.bias, self.linear = Value(0.0, "b"), linear

    def __call__(self, x: Sequence[Value | Number]) -> Value:
        if len(x) != len(self.weights):
            raise ValueError(f"a neuron of {len(self.weights)} inputs was given {len(x)}")
        out = sum((w * v for w, v in zip(self.weights, x, strict=True)), self.bias)
        return out if self.linear else out.tanh()

    def parameters(self) -> list[Value]:
        """Return the weights and the bias."""
        return [*self.weights, self.bias]


class Layer:
    """Several neurons with the same inputs."""

    def __init__(
        self, n: int, out: int, linear: bool = False, rng: random.Random | None = None
    ) -> None:
        self.neurons = [Neuron(n, linear, rng) for _ in range(out)]

    def __call__(self, x: Sequence[Value | Number]) -> list[Value]:
        return [neuron(x) for neuron in self.neurons]

    def parameters(self) -> list[Value]:
        """Return the parameters of all neurons."""
        return [p for neuron in self.neurons for p in neuron.parameters()]


class MLP:
    """Layers one after the other; the last one is linear.

    >>> from needle.scalar import MLP
    >>> model = MLP(2, [4, 1], seed=0)
    >>> len(model.parameters())
    17
    """

    def __init__(self, n: int, sizes: Sequence[int], seed: int | None = None) -> None:
        rng, widths = random.Random(seed), [n, *sizes]
        last = len(sizes) - 1
        self.layers = [Layer(widths[i], widths[i + 1], i == last, rng) for i in range(len(sizes))]

    def __call__(self, x: Sequence[Value | Number]) -> list[Value]:
        out: list[Value] = list(map(_value, x))
        for layer in self.layers:
            out = layer(out)
        return out

    def parameters(self) -> list[Value]:
        """Return the parameters of all layers."""
        return [p for layer in self.layers for p in layer.parameters()]

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to 0."""
        for p in self.parameters():
            p.grad = 0.0


def draw(result: Value) -> str:
    """Return an SVG picture of the graph of a result: each value, its op and its gradient.

    >>> from needle.scalar import Value, draw
    >>> draw(Value(2.0, "x") * 3.0).startswith("<svg")
    True
    """
    place: dict[Value, tuple[int, int]] = {}
    heights: dict[int, int] = {}  # of each column
    shapes: list[str] = []
    for value in result.below():
        x = 20 + max((place[below][0] + 130 for below in value.inputs), default=0)
        y = heights[x] = heights.get(x, -44) + 64
        place[value] = x, y
        for a, b in (place[below] for below in value.inputs):
            shapes.insert(0, f'<path d="M{a + 110} {b + 22} L{x} {y + 22}" stroke="#888"/>')
        title = escape(" ".join(filter(None, [value.name, value.op and f"= {value.op}"])))
        shapes.append(f'<rect x="{x}" y="{y}" width="110" height="44" fill="#fff" stroke="#444"/>')
        for i, text in enumerate((title, f"data {value.data:.4g}", f"grad {value.grad:.4g}")):
            shapes.append(f'<text x="{x + 8}" y="{y + 13 + 13 * i}">{text}</text>')
    size = f'width="{max(heights) + 130}" height="{max(heights.values()) + 64}"'
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(shapes)}</svg>'

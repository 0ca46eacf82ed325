"""A network as a list of layers, each with a forward and a backward pass of its own.

This is how the first frameworks were made, and how backpropagation is taught: the forward pass
goes through the layers and keeps their inputs, the backward pass goes back through them, and the
optimizer takes the gradients. Here the layers are Needle's modules, and each layer's backward pass
is the graph of that layer alone.

>>> from needle.static.pipeline import Model, Net
>>> net = Net([nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)])
>>> model = Model(net, nn.MSELoss(), optim.SGD(net.parameters(), lr=0.1))
>>> x = Tensor([[0.0, 1.0], [1.0, 0.0]], requires_grad=False)
>>> y = Tensor([[1.0], [-1.0]], requires_grad=False)
>>> first = model.train_step(x, y)
>>> for _ in range(50):
...     last = model.train_step(x, y)
>>> last < first
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle import executor, graph
from needle.errors import GradientError, ShapeError
from needle.tensors import Tensor

Gradients = list[dict[str, Tensor]]
"""For each layer, the gradients of its parameters by name."""


class Net:
    """Layers one after the other.

    Args:
        layers: modules, or functions of a tensor.
    """

    def __init__(self, layers: Sequence[Callable[[Any], Any]]) -> None:
        self.layers = list(layers)
        self._passed: list[tuple[Tensor, Tensor]] = []  # input and output of each layer

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch; keep what the backward pass needs."""
        self._passed = []
        for layer in self.layers:
            given = x.detach()
            given.requires_grad = True
            with executor.modes(recording=True):
                made = layer(given)
            self._passed.append((given, made))
            x = made.detach()
        return x

    def backward(self, grad: Tensor) -> Gradients:
        """Return the gradients of all parameters, from the gradient by the last output.

        Raises:
            GradientError: without a forward pass before it; each serves once.
            ShapeError: if ``grad`` has not the shape of the last output.
        """
        if not self._passed:
            raise GradientError("backward: expected a forward pass before it")
        if grad.shape != self._passed[-1][1].shape:
            raise ShapeError(
                f"backward: expected a gradient of shape {self._passed[-1][1].shape}, "
                f"got {grad.shape}"
            )
        found: Gradients = []
        for layer, (given, made) in zip(reversed(self.layers), reversed(self._passed), strict=True):
            named = self._named(layer)
            for p in named.values():
                p.grad = None
            if made.requires_grad:
                made.backward(grad)
            found.append({name: p.grad for name, p in named.items() if p.grad is not None})
            if given.grad is not None:
                grad = given.grad
        self._passed = []
        return found[::-1]

    def parameters(self) -> list[Any]:
        """Return the parameters of all layers."""
        return [p for layer in self.layers for p in self._named(layer).values()]

    def train(self, mode: bool = True) -> Net:
        """Set the layers' training mode; return the net."""
        for layer in self.layers:
            if hasattr(layer, "train"):
                layer.train(mode)
        return self

    def eval(self) -> Net:
        """Set the layers' evaluation mode; return the net."""
        return self.train(False)

    @staticmethod
    def _named(layer: Any) -> dict[str, Any]:
        return dict(layer.named_parameters()) if hasattr(layer, "named_parameters") else {}


class Model:
    """A net with a loss and an optimizer: the three steps of training, one by one.

    Args:
        net: the layers.
        loss: takes the output and the target; returns a scalar.
        optimizer: of the net's parameters.
    """

    def __init__(self, net: Net, loss: Callable[[Any, Any], Any], optimizer: Any) -> None:
        self.net, self.loss, self.optimizer = net, loss, optimizer

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch."""
        return self.net.forward(x)

    def backward(self, out: Tensor, target: Any) -> tuple[float, Gradients]:
        """Return the loss of an output, and the gradients of all parameters."""
        given = graph.wrap(executor.primal_array(out))
        given.requires_grad = True
        with executor.modes(recording=True):
            loss = self.loss(given, target)
        loss.backward()
        assert given.grad is not None
        return float(loss.item()), self.net.backward(given.grad)

    def apply_grad(self, gradients: Gradients) -> None:
        """Make a step of the optimizer with these gradients."""
        self.optimizer.reset_grad()
        for layer, named in zip(self.net.layers, gradients, strict=True):
            parameters = self.net._named(layer)
            for name, grad in named.items():
                parameters[name].grad = grad
        self.optimizer.step()

    def train_step(self, x: Tensor, target: Any) -> float:
        """Make a step: forward, backward, apply_grad; return the loss before it."""
        loss, gradients = self.backward(self.forward(x), target)
        self.apply_grad(gradients)
        return loss

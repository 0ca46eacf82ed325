"""What the tests of modules share."""

import pytest

import needle as ndl
from needle import nn


class Bare(nn.Module):
    """Skips super().__init__(), and keeps modules and parameters in every kind of attribute."""

    def __init__(self):
        self.last = nn.Linear(2, 1)
        self.scale = nn.Parameter(ndl.ones(2))
        self.table = {"a": nn.Linear(2, 2, bias=False), "b": [nn.Parameter(ndl.zeros(1))]}
        self.pair = (nn.Identity(), nn.Linear(1, 1, bias=False))
        self.plain = ndl.ones(3)
        self.number = 3

    def forward(self, x):
        return self.last(x * self.scale)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(3, 3, bias=False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(3, 3, bias=False))
        self.head[1].weight = self.table.weight


def torchs(layer, *inputs):
    """Return the value of a layer of PyTorch, and the gradient with respect to the first input."""
    torch = pytest.importorskip("torch")
    x, *rest = [torch.tensor(a) for a in inputs]
    x.requires_grad_()
    out = layer(torch)(x, *rest)
    out.sum().backward()
    return out.detach().numpy(), x.grad.numpy()


def ours(layer, *inputs):
    x, *rest = [ndl.Tensor(a, dtype=str(a.dtype)) for a in inputs]
    out = layer(x, *rest)
    out.sum().backward()
    return out.numpy(), x.grad.numpy()

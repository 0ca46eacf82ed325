"""Functions here and in PyTorch side by side, and the arrays that tests give them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import needle as ndl
from needle import ops

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
RNG = np.random.default_rng(5)

A, B, C = (RNG.normal(size=(6, 5)) for _ in range(3))
ROWS = RNG.normal(size=(2, 4, 5))

ODD = RNG.normal(size=(2, 2, 7, 6))

SHARES, VARIANCES = RNG.uniform(0.05, 0.95, (3, 4)), RNG.uniform(0.3, 2.0, (6, 1))
SIGNS, ROW_SIGNS = np.sign(B), np.sign(B[:, 0])
COUNTS = RNG.poisson(2.0, (6, 5)).astype(float)
LOGS = np.log(RNG.dirichlet(np.ones(5), 6))
PLACES = np.array([[0, 3, 1], [4, 2, 0]])


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


def both(name, *args, of=(torch, ops), **renamed):
    """Return calls of the functions of a name here and there, and what they are given.

    ``renamed`` are arguments by name: a value for both, or (PyTorch's name, value).
    """
    here = {k: v[1] if isinstance(v, tuple) else v for k, v in renamed.items()}
    there = {v[0] if isinstance(v, tuple) else k: here[k] for k, v in renamed.items()}

    def numbers(x, make):
        return make(x) if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else x

    def ours(*xs):
        given = [numbers(x, partial(ndl.Tensor, device=xs[0].device)) for x in args]
        return getattr(of[1], name)(*xs, *given, **here)

    def theirs(*xs):
        given = [numbers(x, torch.tensor) for x in args]
        return getattr(of[0], name)(*xs, *given, **there)

    return ours, theirs


def assert_like(found, expected, **tolerances):
    """Compare values, shapes and dtypes. (NumPy's ``strict`` came with NumPy 2.)"""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, **tolerances)


def compare(out, mine, theirs, arrays):
    """Compare a result, and its gradients, with PyTorch's."""
    other = [torch.tensor(x).requires_grad_() for x in arrays]
    expected = theirs(*other)
    assert_like(out.numpy(), expected.detach().numpy(), rtol=1e-7, atol=1e-12)
    weight = np.random.default_rng(1).normal(size=out.shape)
    (out * tensor(weight)).sum().backward()
    (expected * torch.tensor(weight)).sum().backward()
    for x, y in zip(mine, other, strict=False):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-7, atol=1e-10)

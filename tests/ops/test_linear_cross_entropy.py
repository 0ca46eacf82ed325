"""Cross entropy of a linear layer: chunks, derivatives, memory, and wrong operands."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
from needle import core, ops
from needle.errors import IndexRangeError, OptionError, ShapeError


def tensor(*shape, seed=0, dtype="float64"):
    return ndl.Tensor(np.random.default_rng([seed, *shape]).normal(size=shape), dtype=dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("transposed", [False, True])
def test_chunks_are_the_whole(reduction, transposed, monkeypatch):
    monkeypatch.setattr(sys.modules[ops.LinearCrossEntropy.__module__], "CHUNK", 64)
    labels = np.random.default_rng(0).integers(0, 7, (2, 75))
    labels[0, :9] = -1
    settings = {"ignore_index": -1, "label_smoothing": 0.1, "reduction": reduction}
    found = []
    for chunked in (True, False):
        x, w, b = tensor(2, 75, 3), tensor(3, 7, seed=1), tensor(7, seed=2)
        if chunked:
            given = w.T if transposed else w
            loss = ops.linear_cross_entropy(
                x, given, labels, b, transposed=transposed, **settings
            )  # fmt: skip
        else:
            loss = ops.cross_entropy(x @ w + b, labels, **settings)
        (loss * tensor(*loss.shape, seed=3)).sum().backward()
        found.append([y.numpy() for y in (loss, x.grad, w.grad, b.grad)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_second_derivatives_and_forward_mode_of_the_mean():
    x, w, labels = tensor(4, 3), tensor(3, 5, seed=1), [0, 4, 2, 2]

    def ours(x):
        return ops.linear_cross_entropy(x, w, labels)

    def other(x):
        return ops.cross_entropy(x @ w, labels)

    v = tensor(4, 3, seed=2)
    for function in (lambda f: ndl.hvp(f, x, v), lambda f: ndl.jvp(f, (x,), (v,))[1],
                     lambda f: ndl.grad(lambda y: (ndl.grad(f)(y) ** 2).sum())(x)):  # fmt: skip
        np.testing.assert_allclose(function(ours).numpy(), function(other).numpy(), rtol=1e-10)


@pytest.mark.skipif(core.native is None, reason="measures the native device")
def test_logits_of_a_batch_are_never_in_memory():
    n, v = 2048, 8192
    code = f"""
import numpy as np, needle as ndl
x, w = ndl.Tensor(np.zeros(({n}, 4), "float32")), ndl.Tensor(np.zeros((4, {v}), "float32"))
ndl.linear_cross_entropy(x, w, np.zeros({n}, int)).backward()
print(ndl.cpu().memory_info()["peak"])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NEEDLE_DEVICE": "cpu"}
    found = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    assert int(found.stdout) < n * v * 4 / 4


def test_without_recording_no_gradient_is_made():
    x, w = tensor(4, 3), tensor(3, 5, seed=1)
    with ndl.no_grad():
        loss = ops.linear_cross_entropy(x, w, [0, 1, 2, 3])
    assert loss.shape == ()
    np.testing.assert_allclose(loss.item(), ops.cross_entropy(x @ w, [0, 1, 2, 3]).item())


def test_wrong_operands_of_the_linear_loss():
    x, w = tensor(4, 3), tensor(3, 5)
    loss = ops.linear_cross_entropy
    with pytest.raises(IndexRangeError, match="label 5 at position 1"):
        loss(x, w, [0, 5, 1, 2])
    with pytest.raises(ShapeError, match="labels have shape"):
        loss(x, w, [0, 1])
    with pytest.raises(ShapeError, match="shapes do not fit"):
        loss(x, w, [0, 1, 2, 3], transposed=True)
    with pytest.raises(OptionError, match="mean"):
        loss(x, w, [0, 1, 2, 3], reduction="avg")

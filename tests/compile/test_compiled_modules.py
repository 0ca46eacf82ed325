"""Every module of nn, compiled in training with an optimizer, gives the bits of eager steps."""

from __future__ import annotations

import inspect

import numpy as np
from looped import looped

import needle as ndl
from needle import nn, optim

LINE, PLANE, SPACE = (2, 4, 8), (2, 4, 6, 6), (2, 4, 4, 4, 4)
BY_AXES = {"1d": LINE, "2d": PLANE, "3d": SPACE}

SPECIAL = {
    "AdaptiveAvgPool": (2,), "AdaptiveMaxPool": (2,), "AvgPool": (2,), "MaxPool": (2,),
    "BatchNorm": (4,), "BatchNormReLU": (4,), "InstanceNorm": (4,), "CircularPad": (1,),
    "ConstantPad": (1,), "ReflectionPad": (1,), "ReplicationPad": (1,), "ZeroPad": (1,),
    "Conv": (4, 3, 3), "ConvTranspose": (4, 3, 3),
}  # fmt: skip
"""Arguments of the modules that exist for several numbers of axes, by the name without it."""

ARGUMENTS = {
    "Applied": ((ndl.ops.tanh,), [(5, 4)]),
    "Bilinear": ((3, 4, 2), [(5, 3), (5, 4)]),
    "Conv": ((4, 3, 3), [PLANE]),
    "Embedding": ((9, 3), ["labels"]),
    "Fold": (((4, 4), 2), [(2, 8, 9)]),
    "GRU": ((4, 3, 2), [(5, 2, 4)]),
    "GRUCell": ((4, 3), [(5, 4)]),
    "GroupNorm": ((2, 4), [PLANE]),
    "LSTM": ((4, 3, 2), [(5, 2, 4)]),
    "LSTMCell": ((4, 3), [(5, 4)]),
    "LayerNorm": ((4,), [(5, 4)]),
    "LayerNorm1d": ((4,), [(5, 4)]),
    "Linear": ((4, 3), [(5, 4)]),
    "MultiHeadAttention": ((), [(2, 2, 5, 4)] * 3),
    "MultiheadAttention": ((4, 2, 0.1), [(5, 2, 4)] * 3),
    "AttentionLayer": ((4, 2, 3), [(2, 5, 4)]),
    "TransformerLayer": ((4, 2, 3, 6), [(2, 5, 4)]),
    "TransformerEncoderLayer": ((4, 2, 6), [(5, 2, 4)]),
    "TransformerDecoderLayer": ((4, 2, 6), [(5, 2, 4)] * 2),
    "PixelShuffle": ((2,), [PLANE]),
    "PixelUnshuffle": ((2,), [PLANE]),
    "RMSNorm": ((4,), [(5, 4)]),
    "RNN": ((4, 3, 2), [(5, 2, 4)]),
    "RNNCell": ((4, 3), [(5, 4)]),
    "Threshold": ((0.1, 0.2), [(5, 4)]),
    "Transformer": ((4, 6, 2), [(5, 2, 4)]),
    "Unflatten": ((1, (2, 2)), [(5, 4)]),
    "Unfold": ((2,), [PLANE]),
    "Upsample": ((None, 2), [PLANE]),
    "CosineSimilarity": ((), [(5, 4)] * 2),
    "PairwiseDistance": ((), [(5, 4)] * 2),
    "CosineEmbeddingLoss": ((0.1,), [(5, 4), (5, 4), "signs"]),
    "MarginRankingLoss": ((0.1,), [(5,), (5,), "signs"]),
    "HingeEmbeddingLoss": ((1.0,), [(5,), "signs"]),
    "GaussianNLLLoss": ((), [(5, 4), (5, 4), "positive"]),
    "TripletMarginLoss": ((), [(5, 4)] * 3),
    "CrossEntropyLoss": ((), [(5, 4), "labels"]),
    "NLLLoss": ((), [(5, 4), "labels"]),
    "SoftmaxLoss": ((), [(5, 4), "labels"]),
    "BCELoss": ((), ["shares", "shares"]),
    "KLDivLoss": ((), [(5, 4), "shares"]),
    "PoissonNLLLoss": ((), [(5, 4), "positive"]),
    "Dropout1d": ((), [LINE]),
    "Dropout2d": ((), [PLANE]),
    "Dropout3d": ((), [SPACE]),
}
APART = {
    "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Residual",
    "Sequential", "LearnedPositions",
}  # fmt: skip
"""Containers, and what cannot be called with floats alone."""


def modules():
    found = {}
    for name in dir(nn):
        cls = getattr(nn, name)
        if not (inspect.isclass(cls) and issubclass(cls, nn.Module)) or name in APART:
            continue
        base, axes = name[:-2], name[-2:]
        if name in ARGUMENTS:
            found[name] = ARGUMENTS[name]
        elif base in SPECIAL and axes in BY_AXES:
            found[name] = SPECIAL[base], [BY_AXES[axes]]
        elif name.endswith("Loss"):
            found[name] = (), [(5, 4)] * 2
        else:
            found[name] = (), [(5, 4)]
    return found


def given(rng, kind):
    if kind == "labels":
        return ndl.Tensor(rng.integers(0, 4, 5), requires_grad=False)
    values = rng.standard_normal(kind if isinstance(kind, tuple) else (5, 4))
    if kind == "signs":
        values = np.sign(values[:, 0])
    elif kind in ("positive", "shares"):
        values = np.abs(np.tanh(values)) + 1e-3
    return ndl.Tensor(values.astype(np.float32), requires_grad=False)


def total(out):
    """The sum of squares of all floating results."""
    parts = out if isinstance(out, (tuple, list)) else [out]
    return sum(total(x) if isinstance(x, (tuple, list)) else (x * x).sum() for x in parts
               if x is not None)  # fmt: skip


def trained(name, wrap):
    np.random.seed(0)
    ndl.manual_seed(1)
    rng = np.random.default_rng(2)
    arguments, inputs = modules()[name]
    module, scale = getattr(nn, name)(*arguments), nn.Parameter(ndl.ones(1))
    opt = optim.SGD([*module.parameters(), scale], lr=0.01, momentum=0.9)

    def step(*xs):
        floating = xs[0].dtype.is_floating
        out = module(xs[0] * scale if floating else xs[0], *xs[1:])
        return opt.minimize(total(out) if floating else total(out) * scale)

    run = wrap(step)
    losses = [run(*[given(rng, kind) for kind in inputs]).item() for _ in range(3)]
    ndl.manual_seed(None)
    return losses, [x.numpy() for x in (*module.parameters(), *module.buffers(), scale)], run


@looped("name", list(modules()))
def test_compiled_modules_have_the_bits_of_eager_ones(name):
    losses, state, _ = trained(name, lambda f: f)
    again, same, run = trained(name, ndl.compile)
    np.testing.assert_array_equal(losses, again)
    for x, y in zip(state, same, strict=True):
        np.testing.assert_array_equal(x, y)
    first = 2 if name.startswith("Conv") and name != "Conv" else 1  # weights start as views
    assert f"{first} programs" in repr(run)

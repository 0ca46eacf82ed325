"""Functions that PyTorch has too say what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from beside_pytorch import ODD, PLACES, ROWS, A, needs_torch, tensor
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    IndexRangeError,
    OptionError,
    ShapeError,
)

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


@needs_torch
@looped("lazy", [False, True])
@looped("accumulate", [False, True])
def test_results_retain_their_gradients(lazy, accumulate):
    with ndl.lazy_mode(lazy):
        x, other = tensor(A), torch.tensor(A, requires_grad=True)
        y, theirs = x * 2.0, other * 2.0
        y.retain_grad()
        theirs.retain_grad()
        (y**3).sum().backward(accumulate=accumulate)
        (theirs**3).sum().backward()
        np.testing.assert_allclose(y.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)
    with pytest.raises(GradientError, match="retain_grad: the tensor needs no gradient"):
        y.detach().retain_grad()


X, INDEX, STACK = ndl.Tensor(A), ndl.Tensor(PLACES), ndl.Tensor(ROWS)


@looped(
    "call, error, message",
    [
        (lambda: ops.scatter(X, 1, INDEX, X[:, :2]), ShapeError, "scatter: an index of int64"),
        (lambda: ops.scatter(X, 0, ndl.Tensor(np.zeros((1, 6), int)), 0.0), ShapeError, "scatter"),
        (lambda: ops.scatter(X, 1, INDEX[0], 0.0), ShapeError, "as many axes"),
        (lambda: ops.scatter(X, 1, X, 0.0), DtypeError, "an index of float"),
        (lambda: ops.scatter(X, 1, INDEX > 0, 0.0), DtypeError, "an index of bool"),
        (lambda: ops.scatter(X, 1, INDEX + 2, 0.0), IndexRangeError, "5"),
        (lambda: ops.scatter(X, 2, INDEX, 0.0), IndexRangeError, "axis 2"),
        (lambda: ops.scatter(INDEX, 1, INDEX, 0.5), DtypeError, "does not fit"),
        (lambda: ops.kthvalue(X, 0), IndexRangeError, "kthvalue: k is 0 of 5 along axis 1"),
        (lambda: ops.kthvalue(X, 6), IndexRangeError, "kthvalue: k is 6 of 5"),
        (lambda: ops.kthvalue(X, 1.5), ArgumentError, "kthvalue: k"),
        (lambda: ops.cdist(X, X[:, :2]), ShapeError, "cdist: x has shape"),
        (lambda: ops.cdist(X[0], X), ShapeError, "cdist: x has shape"),
        (lambda: ops.cdist(X, X, -1.0), OptionError, "cdist: p is -1.0"),
        (lambda: ops.cov(STACK), ShapeError, "cov: x has shape"),
        (lambda: ops.corrcoef(X[:, :0]), ShapeError, "corrcoef: x has shape"),
        (lambda: ops.rot90(X, 1, (0, 0)), ShapeError, "rot90: axes"),
        (lambda: ops.rot90(X, 1, (0,)), ShapeError, "rot90: axes"),
        (lambda: ops.rot90(X, 0.5), ArgumentError, "rot90: k"),
        (lambda: ops.diag_embed(ndl.Tensor(1.0)), ShapeError, "diag_embed: expected at"),
        (lambda: ops.diag_embed(X, 0, 1, 1), ShapeError, "axes"),
        (lambda: ops.pixel_shuffle(X, 2), ShapeError, "pixel_shuffle: factor 2"),
        (lambda: ops.pixel_shuffle(STACK, 0), ShapeError, "pixel_shuffle: factor 0"),
        (lambda: ops.pixel_unshuffle(STACK, 2), ShapeError, "pixel_unshuffle: factor 2"),
        (lambda: ops.unfold(X, 2), ShapeError, "unfold"),
        (lambda: ops.unfold(ndl.Tensor(ODD), 8), ShapeError, "windows"),
        (lambda: ops.unfold(ndl.Tensor(ODD), 0), ShapeError, "unfold: kernel"),
        (lambda: ops.fold(STACK, (7, 6), 2), ShapeError, "fold: no 6 x 5 windows"),
        (lambda: ops.adaptive_max_pool2d(ndl.Tensor(ODD), 0), ShapeError, "sizes are at least 1"),
        (lambda: ops.adaptive_max_pool1d(ndl.Tensor(ODD), 2), ShapeError, "3 axes, got 4"),
        (lambda: ops.celu(X, 0.0), OptionError, "celu: alpha is 0.0"),
        (lambda: ops.softshrink(X, -1.0), OptionError, "softshrink: lambd is -1.0"),
        (lambda: ops.softplus(X, 0.0), OptionError, "softplus: beta is 0.0"),
        (lambda: ops.softplus(X, "a"), ArgumentError, "softplus: beta"),
        (lambda: ops.cosine_embedding_loss(X, X, X), ShapeError, "cosine_embedding_loss"),
        (lambda: ops.hinge_embedding_loss(X, X[0]), ShapeError, "hinge_embedding_loss"),
        (lambda: ops.margin_ranking_loss(X, X[0], X), ShapeError, "margin_ranking_loss"),
        (lambda: ops.triplet_margin_loss(X, X, X[0]), ShapeError, "triplet_margin_loss"),
        (lambda: ops.gaussian_nll_loss(X, X, X[0]), ShapeError, "gaussian_nll_loss: var has shape"),
        (lambda: ops.gaussian_nll_loss(X, X, X[:2]), ShapeError, "gaussian_nll_loss: var has"),
        (lambda: ops.poisson_nll_loss(X, X[0]), ShapeError, "poisson_nll_loss"),
        (lambda: ops.poisson_nll_loss(X, X, reduction="men"), OptionError, "mean"),
        (lambda: X.new_zeros(-1), ShapeError, "negative size"),
        (lambda: X.unfold(0, 7, 1), ShapeError, "windows"),
        (lambda: X.unfold(0, 2, 0), ShapeError, "step 0"),
        (lambda: ops.take_along_dim(X, INDEX + 40), IndexRangeError, "40"),
        (lambda: ops.fmod(X, INDEX[:, :1]), DtypeError, "fmod: dtypes float32 and int64"),
        (lambda: ops.fmod(X > 0, X > 0), DtypeError, "remainder: not defined for bool"),
        (lambda: X.div(X, rounding_mode="up"), OptionError, "div: unknown rounding_mode 'up'"),
        (lambda: ops.block_diag(), ArgumentError, "block_diag: expected a tensor"),
        (lambda: ops.block_diag(STACK), ShapeError, "block_diag: a block has shape"),
        (lambda: ops.column_stack(X.sum()), ArgumentError, "column_stack: expected a seq"),
        (lambda: ops.dstack([]), ShapeError, "at least one tensor"),
        (lambda: ops.tensor_split(X, 0), OptionError, "tensor_split: 0 pieces"),
        (lambda: ops.tensor_split(X, 1.5), ArgumentError, "tensor_split: pieces is 1.5"),
        (lambda: ops.tensor_split(X, [1, "a"]), ArgumentError, "tensor_split: a place is 'a'"),
        (lambda: ops.tensor_split(X, 2, 2), IndexRangeError, "axis 2"),
        (lambda: X.hsplit(2), ShapeError, "hsplit: 5 elements along axis 1 into 2 pieces"),
        (lambda: X[0].vsplit(1), ShapeError, "vsplit: x has 1 axes"),
        (lambda: X[0, 0].hsplit(1), ShapeError, "hsplit: x has no axes"),
        (lambda: X.index_fill(0, [6], 1.0), IndexRangeError, "6"),
        (lambda: X.index_fill(0, INDEX, 1.0), ShapeError, "index_fill: the index has shape"),
        (lambda: X.index_fill(0, [0.5], 1.0), DtypeError, "index_fill: an index of float"),
        (lambda: X.index_fill(0, [0], X[0]), ShapeError, "index_fill: expected one number, got 5"),
        (lambda: INDEX.index_fill(0, [0], 0.5), DtypeError, "does not fit"),
        (lambda: X.index_copy(0, [0, 1], X[:3]), ShapeError, r"shape \(3, 5\), not \(2, 5\)"),
        (lambda: X.index_copy(0, [0, 1], "a"), ArgumentError, "index_copy: expected a tensor"),
        (lambda: X.index_add(2, [0], X), IndexRangeError, "axis 2"),
        (lambda: ops.nanmedian(X[:, :0]), ShapeError, "median: no elements along axis 1"),
        (lambda: ops.logcumsumexp(X, 2), IndexRangeError, "axis 2"),
        (lambda: ops.quantile(X, 0.5, interpolation="up"), OptionError, "interpolation"),
        (lambda: ops.searchsorted(X[0], X, right=1), ArgumentError, "searchsorted: right is 1"),
        (lambda: ops.diff(X, prepend=X[:, :, None]), ShapeError, "concat"),
        (lambda: X.amax(0, dtype="int32"), TypeError, "dtype"),
        (lambda: ops.amax(X, 0, dtype="int32"), ArgumentError, "amax: unexpected argument 'dtype'"),
        (lambda: X.sum(dtype="real"), OptionError, "real"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call, error, message):
    with pytest.raises(error, match=message):
        call()

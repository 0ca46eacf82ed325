"""Basic layers: linear, embedding, dropout, reshaping and similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from needle import executor, init, ops
from needle.backend.axes import axes_of, integer, normalise_index
from needle.errors import ArgumentError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.nn.activation import activation
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes
from needle.ops.core.attributes import flag
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Values

__all__ = [
    "Bilinear", "CosineSimilarity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Embedding",
    "Flatten", "Linear", "PairwiseDistance", "Residual", "Unflatten",
]  # fmt: skip

_MATMUL_BIAS = ops.MatMulBias.of()


def _activation(owner: str, act: object) -> Module | None:
    """Return an activation that was given by name, or as a module.

    Raises:
        ArgumentError: if it is neither.
    """
    if act is None or isinstance(act, Module):
        return act
    if not isinstance(act, str):
        raise ArgumentError(f"{owner}: expected the name of an activation as act, got {act!r:.60}")
    return activation(act)


class Linear(Module):
    """Affine map: ``x @ weight + bias``.

    Shapes:   x [..., in_features] -> [..., out_features]

    The weight is drawn first, U(+-sqrt(6 / in_features)); then the bias, U(+-sqrt(6 /
    out_features)), both as in the course.

    Attributes:
        weight: [in_features, out_features].
        bias: [1, out_features], or None.
        act: what is applied to the result, a module, or None.

    Args:
        in_features: size of x.
        out_features: size of the result.
        bias: whether to add a bias.
        device: where the parameters are; the default device for None.
        dtype: their element type.
        act: an activation, by its name (see ``activation``) or as a module.

    >>> layer = nn.Linear(3, 2, act="relu")
    >>> layer(ndl.ones(4, 3)).shape
    (4, 2)
    >>> layer
    Linear(3, 2)  8 parameters
      act: ReLU()
    """

    act: Module | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        act: str | Module | None = None,
    ) -> None:
        super().__init__()
        check_sizes(self, in_features=in_features, out_features=out_features)
        made = _activation("Linear", act)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(
            init.kaiming_uniform(in_features, out_features, device=device, dtype=dtype)
        )
        self.bias: Tensor | None = None
        if bias:
            drawn = init.kaiming_uniform(out_features, 1, device=device, dtype=dtype)
            self.bias = Parameter(drawn.reshape((1, out_features)))
        if made is not None:
            self.act = made

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            out = x @ self.weight
        elif getattr(x, "ndim", 0) > 1:
            out = executor.apply(_MATMUL_BIAS, x, self.weight, self.bias)
        else:  # the bias is a row [1, n]; adding it to a vector would give a matrix
            out = x @ self.weight + ops.reshape(self.bias, -1)
        return out if self.act is None else self.act(out)

    def extra_repr(self) -> str:
        text = f"{self.in_features}, {self.out_features}"
        return text if self.bias is not None else text + ", bias=False"


def looked_up(weight: Tensor, ids: Values, padding_idx: int | None, sparse: bool) -> Tensor:
    """Return rows of a table; the row ``padding_idx`` gets no gradient from them."""
    out: Tensor = ops.embedding(weight, ids, sparse=sparse)
    if padding_idx is None:
        return out
    place = normalise_index(integer("embedding: padding_idx", padding_idx), shape_of(weight)[0], 0)
    ids = ids if isinstance(ids, Tensor) else Tensor(np.asarray(ids), device=out.device)
    padding = ops.unsqueeze(ops.equal(ids, place), -1)
    return ops.where(padding, out.detach(), out)


class Embedding(Module):
    """Look up rows of a table, which starts as N(0, 1).

    Ids are a tensor, an array or a list of integers (or of floats with integer values); negative
    ids are errors. The row ``padding_idx`` starts as zeros and gets no gradient from this layer.

    Shapes:   x [...] -> [..., embedding_dim]
    Raises:   IndexRangeError naming the first id outside [0, num_embeddings), or if padding_idx
              is out of range

    Args:
        num_embeddings: number of rows.
        embedding_dim: size of a row.
        device: device of the table; the default device for None.
        dtype: its element type.
        padding_idx: the id that pads short sequences; counts from the end if negative.
        sparse: store the gradient of the table by rows, as an ``ops.RowSparse``. It pays for large
            tables; see ``optim.Adam`` for what it changes.

    >>> table = nn.Embedding(10, 4)
    >>> table([[1, 2, 3], [4, 5, 6]]).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
        *,
        padding_idx: int | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sparse = flag("Embedding: sparse", sparse)
        drawn = init.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.padding_idx: int | None = None
        if padding_idx is not None:
            place = integer("Embedding: padding_idx", padding_idx)
            self.padding_idx = normalise_index(place, num_embeddings, 0)
            drawn[self.padding_idx] = 0.0
        self.weight = Parameter(drawn)

    def forward(self, x: Values) -> Tensor:
        return looked_up(self.weight, x, self.padding_idx, self.sparse)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return text + ", sparse=True" if self.sparse else text


class Flatten(Module):
    """Keep the first axis and join the others.

    Raises:   ShapeError if x has 0 axes

    >>> nn.Flatten()(ndl.zeros(2, 3, 4)).shape
    (2, 12)
    """

    def forward(self, x: Tensor) -> Tensor:
        if not shape_of(x):
            raise explain(
                ShapeError, "Flatten", "x has 0 axes", [("x", x)], "x is [n, ...]"
            )  # fmt: skip
        return ops.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


class Unflatten(Module):
    """Split an axis into several; one of the sizes may be -1. See ``ops.unflatten``.

    >>> nn.Unflatten(1, (3, -1))(ndl.zeros(2, 12)).shape
    (2, 3, 4)
    """

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        super().__init__()
        check_sizes(self, axis=axis)
        self.axis, self.sizes = axis, axes_of(sizes)

    def forward(self, x: Tensor) -> Tensor:
        return ops.unflatten(x, self.axis, self.sizes)

    def extra_repr(self) -> str:
        return f"{self.axis}, {self.sizes}"


class Dropout(Module):
    """In training, set elements to zero with probability p and scale the others by 1 / (1 - p).

    Every call in training draws one uniform number per element, even for p = 0. Elements whose
    number is at most 1 - p stay. ``inplace`` is accepted as in PyTorch and changes nothing.

    >>> layer = nn.Dropout(0.5)
    >>> print(layer(ndl.ones(8)))
    [2. 2. 2. 2. 0. 0. 0. 2.]
    >>> print(layer.eval()(ndl.ones(8)))
    [1. 1. 1. 1. 1. 1. 1. 1.]
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not isinstance(p, Real) or not 0.0 <= float(p) < 1.0:
            raise OptionError(f"Dropout: expected p in [0, 1), got {p!r}")
        self.p: float = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """In training, set whole channels to zero with probability p, and scale the others.

    Shapes:   x [n, c, *spatial] -> the same
    Raises:   ShapeError if x has fewer than 2 axes

    >>> print(nn.Dropout2d(0.5)(ndl.ones(1, 6, 1, 2))[0, :, 0])
    [[2. 2.]
     [2. 2.]
     [2. 2.]
     [2. 2.]
     [0. 0.]
     [0. 0.]]
    """

    def forward(self, x: Tensor) -> Tensor:
        if len(shape_of(x)) < 2:
            raise explain(
                ShapeError, type(self).__name__, f"x has {x.ndim} axes", [("x", x)],
                "x is [n, c, *spatial]",
            )  # fmt: skip
        if not self.training:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return x * ops.dropout(init.ones(*shape, device=x.device, dtype=x.dtype), self.p)


class Dropout1d(Dropout2d):
    """In training, set whole channels of sequences [n, c, t] to zero; see ``Dropout2d``.

    >>> nn.Dropout1d(0.5)(ndl.ones(2, 4, 8)).shape
    (2, 4, 8)
    """


class Dropout3d(Dropout2d):
    """In training, set whole channels of volumes [n, c, d, h, w] to zero; see ``Dropout2d``.

    >>> nn.Dropout3d(0.5)(ndl.ones(2, 4, 2, 8, 8)).shape
    (2, 4, 2, 8, 8)
    """


class Bilinear(Module):
    """Weighted products of the elements of two vectors.

        out[o] = x1 @ weight[o] @ x2 + bias[o]

    Shapes:   x1 [..., in1_features], x2 [..., in2_features] -> [..., out_features]

    Weight and bias are drawn from U(+-1 / sqrt(in1_features)), as in PyTorch.

    Attributes:
        weight: [out_features, in1_features, in2_features].
        bias: [out_features], or None.

    >>> nn.Bilinear(3, 4, 5)(ndl.ones(2, 3), ndl.ones(2, 4)).shape
    (2, 5)
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        sizes = {"in1_features": in1_features, "in2_features": in2_features}
        check_sizes(self, **sizes, out_features=out_features)
        if in1_features < 1:
            raise OptionError(f"Bilinear: in1_features={in1_features}\n  rule: in1_features >= 1")
        bound = in1_features**-0.5
        how = {"low": -bound, "high": bound, "device": device, "dtype": dtype}
        self.weight = Parameter(init.rand(out_features, in1_features, in2_features, **how))
        self.bias: Tensor | None = Parameter(init.rand(out_features, **how)) if bias else None

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        out: Tensor = ops.einsum("...i,oij,...j->...o", x1, self.weight, x2)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        out, in1, in2 = self.weight.shape
        return f"{in1}, {in2}, {out}" + ("" if self.bias is not None else ", bias=False")


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along an axis; see ``ops.cosine_similarity``.

    >>> x, y = Tensor([[1.0, 0.0], [1.0, 1.0]]), Tensor([[0.0, 1.0], [2.0, 2.0]])
    >>> print(nn.CosineSimilarity()(x, y))
    [0. 1.]
    """

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        check_number(self, "eps", eps)
        self.axis, self.eps = axis, eps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.cosine_similarity(x, y, self.axis, self.eps)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class PairwiseDistance(Module):
    """Distance of each vector from another, along the last axis; see ``ops.pairwise_distance``.

    >>> x, y = Tensor([[0.0, 0.0]]), Tensor([[3.0, 4.0]])
    >>> print(nn.PairwiseDistance()(x, y))
    [5.]
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> None:
        super().__init__()
        check_number(self, "p", p)
        self.p, self.eps, self.keepdims = p, eps, keepdims

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.pairwise_distance(x, y, self.p, self.eps, self.keepdims)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Residual(Module):
    """Add a module's input to its output: ``fn(x) + x``.

    >>> block = nn.Residual(nn.ReLU())
    >>> print(block(Tensor([-1.0, 2.0])))
    [-1.  4.]
    """

    def __init__(self, fn: Module) -> None:
        super().__init__()
        if not callable(fn):
            raise ArgumentError(f"Residual: expected a module, got {type(fn).__name__}")
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x

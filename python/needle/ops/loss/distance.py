"""Distances between points, and losses that bring some of them together and others apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle import dtype
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.op import cast, promoted
from needle.ops.elementwise.arithmetic import (
    cast_like,
    equal,
    less,
    minimum,
    square,
    subtract,
    where,
)
from needle.ops.elementwise.logic import clip, isfinite
from needle.ops.index.indexing import beside
from needle.ops.linalg.contraction import cosine_similarity
from needle.ops.linalg.matmul import matmul
from needle.ops.linalg.solve import norm
from needle.ops.loss.losses import reduced, same_shape
from needle.ops.reduction.euclidean import root
from needle.ops.reduction.reduce import mean, summation
from needle.ops.shape.movement import stop_gradient, turned, unsqueeze

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import Operand

__all__ = [
    "cdist", "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "pairwise_distance", "triplet_margin_loss",
]  # fmt: skip


def cdist(x: Tensor, y: Tensor, p: float = 2.0) -> Tensor:
    """Distances of all points of x from all of y: (sum |x - y| ** p) ** (1 / p); see ``norm``.

    For p = 2 and dtypes below float64 it is computed from a matrix product in float64, where the
    squares are exact. Points that are nearer than about 1e-7 of the distance from the middle of y
    get distance 0, and a point with an infinite coordinate is infinitely far from all points, also
    from other such points. Otherwise all n * m * d differences are computed. The derivative at
    distance 0 is 0.

    Shapes:   x [..., n, d], y [..., m, d] -> [..., n, m]
    Gradient: x, y; any order
    Raises:   ShapeError if x and y differ in the last axis; OptionError if p is negative

    >>> print(ndl.cdist(Tensor([[0.0, 0.0]]), Tensor([[3.0, 4.0], [6.0, 8.0]])))
    [[ 5. 10.]]
    """
    x, y = promoted((x, y), "cdist", floating=True)
    shapes = shape_of(x), shape_of(y)
    if min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-1]:
        raise explain(
            ShapeError, "cdist", f"x has shape {shapes[0]}, y {shapes[1]}", [("x", x), ("y", y)],
            "x [..., n, d], y [..., m, d]",
        )  # fmt: skip
    if not real("cdist: p", p) >= 0:
        raise OptionError(f"cdist: p is {p}\n  rule: 0 or more")
    exact = x.spec.dtype is not dtype.float64 and x.spec.size * y.spec.size > 0
    if p == 2 and exact:
        return cast_like(_euclidean(cast(x, dtype.float64), cast(y, dtype.float64)), x)
    return norm(unsqueeze(x, -2) - unsqueeze(y, -3), p, -1)


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    middle = stop_gradient(mean(y, -2, keepdims=True))  # distances do not depend on it
    x, y = x - _finite(middle), y - _finite(middle)
    lengths = unsqueeze(summation(square(x), -1), -1) + unsqueeze(summation(square(y), -1), -2)
    squares = lengths - 2.0 * matmul(_finite(x), turned(_finite(y)))
    rounding = (shape_of(x)[-1] + 4) * 2.0**-52
    return root(where(less(squares, rounding * lengths), 0.0, squares))


def _finite(x: Tensor) -> Tensor:
    return where(isfinite(x), x, 0.0)


def pairwise_distance(
    x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """Distance between the vectors of x and y, along the last axis: ``norm`` of x - y + eps.

    Shapes:   x, y [..., d], which broadcast -> [...]

    >>> print(ndl.pairwise_distance(Tensor([[3.0, 4.0]]), Tensor([[0.0, 0.0]])))
    [5.]
    """
    return norm(subtract(x, y) + real("pairwise_distance: eps", eps), p, -1, keepdims)


# ---- losses ------------------------------------------------------------------------


def _signs(name: str, like: Tensor, target: Operand) -> Tensor:
    """Return targets of 1 and -1, one for each element of a tensor, in its dtype."""
    return cast_like(same_shape(name, like, beside(like, target))[1], like)


def cosine_embedding_loss(
    x: Tensor, y: Tensor, target: Tensor, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos(x, y) where the target is 1; max(0, cos(x, y) - margin) where it is -1.

    Shapes:   x, y [..., d], target [...]
    Raises:   ShapeError if there is not one target for each pair

    >>> x, y = Tensor([[1.0, 0.0]]), Tensor([[0.0, 1.0]])
    >>> print(ndl.cosine_embedding_loss(x, y, Tensor([1.0])))
    1.0
    """
    cosine = cosine_similarity(x, y)
    together = equal(_signs("cosine_embedding_loss", cosine, target), 1.0)
    return reduced(where(together, 1.0 - cosine, clip(cosine - margin, 0.0)), reduction)


def hinge_embedding_loss(
    x: Tensor, target: Tensor, *, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """The distance x where the target is 1; max(0, margin - x) where it is -1.

    Shapes:   x, target [...]
    Raises:   ShapeError if the shapes differ

    >>> print(ndl.hinge_embedding_loss(Tensor([0.5, 0.25]), Tensor([1.0, -1.0])))
    0.625
    """
    (x,) = promoted((x,), "hinge_embedding_loss", floating=True)
    together = equal(_signs("hinge_embedding_loss", x, target), 1.0)
    return reduced(where(together, x, clip(margin - x, 0.0)), reduction)


def margin_ranking_loss(
    x: Tensor, y: Tensor, target: Tensor, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, margin - target * (x - y)): the target is 1 where x should be larger, else -1.

    Shapes:   x, y, target [...]
    Raises:   ShapeError if the shapes differ

    >>> print(ndl.margin_ranking_loss(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])))
    2.0
    """
    x, y = promoted(same_shape("margin_ranking_loss", x, y), "margin_ranking_loss", floating=True)
    signs = _signs("margin_ranking_loss", x, target)
    return reduced(clip(margin - signs * (x - y), 0.0), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, distance(anchor, positive) - distance(anchor, negative) + margin).

    Args:
        anchor: [..., d].
        positive: [..., d], a point that should be near the anchor.
        negative: [..., d], a point that should be further away.
        margin: by how much further.
        p: order of the distance; see ``pairwise_distance``.
        eps: as for ``pairwise_distance``.
        swap: whether to use the distance of positive and negative where that is smaller than the
            distance of anchor and negative.
        reduction: "mean", "sum", or "none": one loss per anchor.

    Source:   Balntas et al., "Learning local feature descriptors with triplets and shallow
              convolutional neural networks", 2016

    Raises:
        ShapeError: if the shapes differ.

    >>> anchor, near, far = Tensor([[0.0]]), Tensor([[1.0]]), Tensor([[1.5]])
    >>> round(ndl.triplet_margin_loss(anchor, near, far).item(), 4)
    0.5
    """
    anchor, positive = same_shape("triplet_margin_loss", anchor, positive)
    anchor, negative = same_shape("triplet_margin_loss", anchor, negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(clip(near - far + margin, 0.0), reduction)

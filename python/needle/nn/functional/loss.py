"""Losses and distances, with PyTorch's names and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle import ops
from needle.nn.loss import classes_last
from needle.ops.index.indexing import beside
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import Values

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "nll_loss", "normalize",
    "pairwise_distance", "poisson_nll_loss", "smooth_l1_loss", "triplet_margin_loss",
]  # fmt: skip


def cross_entropy(
    input: Tensor,
    target: Values,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of softmax(input) and a target; classes on axis 1. See ``CrossEntropyLoss``."""
    logits, target = classes_last(input, target, "cross_entropy")
    return ops.cross_entropy(
        logits, target, weight=weight, ignore_index=ignore_index,
        label_smoothing=label_smoothing, reduction=reduction,
    )  # fmt: skip


def nll_loss(
    input: Tensor,
    target: Values,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of labels; classes on axis 1. See ``nn.NLLLoss``."""
    x, labels = classes_last(input, target, "nll_loss")
    return ops.nll_loss(
        x, beside(x, labels), weight=weight, ignore_index=ignore_index, reduction=reduction
    )


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of probabilities and a target in [0, 1]. See ``ops.bce``."""
    return ops.bce(input, target, weight=weight, reduction=reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross entropy of sigmoid(input) and a target. See ``ops.bce_with_logits``."""
    return ops.bce_with_logits(
        input, target, weight=weight, pos_weight=pos_weight, reduction=reduction
    )


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared distance to the target. See ``ops.mse_loss``."""
    return ops.mse_loss(input, target, reduction=reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Distance to the target. See ``ops.l1_loss``."""
    return ops.l1_loss(input, target, reduction=reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Distance to the target; its square below beta. See ``ops.smooth_l1_loss``."""
    return ops.smooth_l1_loss(input, target, beta=beta, reduction=reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Half the squared distance to the target; linear above delta. See ``ops.huber_loss``."""
    return ops.huber_loss(input, target, delta=delta, reduction=reduction)


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Kullback-Leibler divergence of target from exp(input). See ``ops.kl_divergence``."""
    return ops.kl_divergence(input, target, reduction=reduction, log_target=log_target)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood under normal distributions. See ``ops.gaussian_nll_loss``."""
    return ops.gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood under Poisson distributions. See ``ops.poisson_nll_loss``."""
    return ops.poisson_nll_loss(
        input, target, log_input=log_input, full=full, eps=eps, reduction=reduction
    )


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Draw vectors together, or apart where the target is -1. See ``ops.cosine_embedding_loss``."""
    return ops.cosine_embedding_loss(input1, input2, target, margin=margin, reduction=reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Make distances small, or large where the target is -1. See ``ops.hinge_embedding_loss``."""
    return ops.hinge_embedding_loss(input, target, margin=margin, reduction=reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Make input1 larger than input2, or smaller for target -1. See ``ops.margin_ranking_loss``."""
    return ops.margin_ranking_loss(input1, input2, target, margin=margin, reduction=reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Draw the anchor to one vector and away from another. See ``ops.triplet_margin_loss``."""
    return ops.triplet_margin_loss(
        anchor, positive, negative, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction
    )


# ---- distances -----------------------------------------------------------------------


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along an axis. See ``ops.cosine_similarity``."""
    return ops.cosine_similarity(x1, x2, dim, eps)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Distance of each vector from another. See ``ops.pairwise_distance``."""
    return ops.pairwise_distance(x1, x2, p, eps, keepdim)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along an axis by their norm. See ``ops.normalize``."""
    return ops.normalize(input, p, dim, eps)

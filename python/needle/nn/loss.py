"""Losses."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, ClassVar

from needle import ops
from needle.errors import OptionError, unknown
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_number, shown
from needle.ops.indexing import beside
from needle.ops.operands import as_tensors
from needle.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


class SoftmaxLoss(Module):
    """Mean over the batch of ``logsumexp(logits) - logits[label]``.

    The labels come as a tensor, an array or a list.

    Shapes:   logits [..., classes], y [...] -> []
    Raises:   IndexRangeError naming the first label that is not a class

    >>> logits = Tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(nn.SoftmaxLoss()(logits, [0, 1]).item(), 4)
    0.1269
    """

    def forward(self, logits: Tensor, y: Any) -> Tensor:
        return ops.cross_entropy(logits, y.detach() if isinstance(y, Tensor) else y)


class _Loss(Module):
    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            raise unknown(f"{type(self).__name__}: reduction", reduction, self.reductions)
        self.reduction = reduction

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        """Return, by name, settings and what they are unless given."""
        return {"reduction": (self.reduction, "mean")}

    def _given(self) -> dict[str, Any]:
        """Return the settings by name, as the function of the loss takes them."""
        return {name: value for name, (value, _) in self._settings().items()}

    def _weight_by(self, name: str, weight: Any) -> None:
        """Keep a weight, or None, as a buffer."""
        given = None if weight is None else Tensor(weight, requires_grad=False)
        self.register_buffer(name, given)

    def extra_repr(self) -> str:
        return shown("", self._settings())


class CrossEntropyLoss(_Loss):
    """Cross entropy of softmax(logits) and a target, as in PyTorch: classes are on axis 1.

    The target comes as a tensor, an array or a list.

    Shapes:   logits [n, classes, ...], target [n, ...] or, probabilities, [n, classes, ...]

    Args:
        weight: [classes], what each class counts (a buffer); None: all alike.
        ignore_index: label of elements that do not count.
        reduction: "mean" over the elements that count, "sum", or "none": one loss each.
        label_smoothing: share of the target that is spread over all classes, in [0, 1].

    >>> logits = Tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(nn.CrossEntropyLoss()(logits, [0, 0]).item(), 4)
    1.1269
    >>> print(nn.CrossEntropyLoss(reduction="none")(logits, [0, 0]))
    [0.1269 2.1269]
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        check_number(self, "label_smoothing", label_smoothing, high=1.0)
        self._weight_by("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Tensor, target: Any) -> Tensor:
        logits, target = _classes_last(logits, target, "cross_entropy")
        return ops.cross_entropy(
            logits,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        smoothing = {"label_smoothing": (self.label_smoothing, 0.0)}
        return {"ignore_index": (self.ignore_index, -100), **super()._settings(), **smoothing}


def _classes_last(x: Tensor, target: Any, name: str) -> tuple[Tensor, Any]:
    """Return x with its axis 1, of classes, as the last; and so a target of as many axes."""
    if len(shape_of(x)) <= 2:
        return x, target
    x, target = as_tensors((x, beside(x, target)), name)
    order = (0, *range(2, x.ndim), 1)
    return ops.permute(x, order), ops.permute(target, order) if target.ndim == x.ndim else target


class NLLLoss(_Loss):
    """Negative log-likelihood: -x at the label, where x are logarithms of probabilities.

    Classes are on axis 1, as in PyTorch. The labels come as a tensor, an array or a list.

    Shapes:   x [n, classes, ...], labels [n, ...]

    Args:
        weight: [classes], what each class counts (a buffer); None: all alike.
        ignore_index: label of elements that do not count.
        reduction: "mean" over the elements that count, by their weights, "sum", or "none": one loss
            each.

    >>> x = ops.log_softmax(Tensor([[2.0, 0.0], [0.0, 2.0]]), 1)
    >>> round(nn.NLLLoss()(x, [0, 0]).item(), 4)
    1.1269
    """

    weight: Tensor | None

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, x: Tensor, labels: Any) -> Tensor:
        x, labels = _classes_last(x, labels, "nll_loss")
        return ops.nll_loss(
            x,
            beside(x, labels),
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {"ignore_index": (self.ignore_index, -100), **super()._settings()}


class MSELoss(_Loss):
    """Squared distance to the target: averaged ("mean"), added ("sum") or per element ("none").

    Raises:   ShapeError if the shapes differ

    >>> print(nn.MSELoss()(Tensor([1.0, 2.0]), Tensor([0.0, 4.0])))
    2.5
    """

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """Distance to the target: averaged ("mean"), added ("sum") or per element ("none").

    Raises:   ShapeError if the shapes differ

    >>> print(nn.L1Loss()(Tensor([1.0, 2.0]), Tensor([0.0, 4.0])))
    1.5
    """

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.l1_loss(x, target, reduction=self.reduction)


class HuberLoss(_Loss):
    """Half the squared distance to the target up to delta, beyond it a multiple of the distance.

    Raises:   ShapeError if the shapes differ; OptionError if delta is not positive

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        delta: the distance from which on the loss grows linearly.

    >>> print(nn.HuberLoss(reduction="none")(Tensor([0.5, 3.0]), Tensor([0.0, 0.0])))
    [0.125 2.5  ]
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not isinstance(delta, Real) or not float(delta) > 0:
            raise OptionError(f"HuberLoss: expected a positive delta, got {delta!r}")
        self.delta: float = delta

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {**super()._settings(), "delta": (self.delta, 1.0)}

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.huber_loss(x, target, delta=self.delta, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Distance to the target, less beta / 2; nearer than beta its square over 2 beta.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        beta: the distance from which on the loss grows linearly; 0 for ``L1Loss``.

    >>> print(nn.SmoothL1Loss(reduction="none", beta=2.0)(Tensor([1.0, 4.0]), Tensor([0.0, 0.0])))
    [0.25 3.  ]
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        check_number(self, "beta", beta)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.smooth_l1_loss(x, target, beta=self.beta, reduction=self.reduction)

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {**super()._settings(), "beta": (self.beta, 1.0)}


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(x) and a target in [0, 1].

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        pos_weight: what targets of 1 count beside those of 0 (a buffer), of a shape that
            broadcasts to that of x; None: alike.
        weight: what each element counts (a buffer), of such a shape; None: all alike.

    >>> round(nn.BCEWithLogitsLoss()(Tensor([0.0, 2.0]), Tensor([0.0, 1.0])).item(), 4)
    0.41
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self, reduction: str = "mean", pos_weight: Any = None, *, weight: Any = None
    ) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)
        self._weight_by("pos_weight", pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.bce_with_logits(
            x, target, weight=self.weight, pos_weight=self.pos_weight, reduction=self.reduction
        )


class BCELoss(_Loss):
    """Binary cross entropy of probabilities x and a target in [0, 1].

    ``BCEWithLogitsLoss`` is more exact, and has a gradient everywhere; see ``ops.bce``.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        weight: what each element counts (a buffer), of a shape that broadcasts to that of x; None:
            all alike.

    >>> round(nn.BCELoss()(Tensor([0.5, 0.9]), Tensor([0.0, 1.0])).item(), 4)
    0.3993
    """

    weight: Tensor | None

    def __init__(self, reduction: str = "mean", *, weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.bce(x, target, weight=self.weight, reduction=self.reduction)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of the target from exp(x); see ``ops.kl_divergence``.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean" (over all elements, as in PyTorch), "batchmean" (the sum over the size of
            the first axis, which is the divergence), "sum", or "none".
        log_target: whether the target comes as logarithms too.

    >>> x, target = ops.log(Tensor([[0.5, 0.5]])), Tensor([[0.25, 0.75]])
    >>> round(nn.KLDivLoss("batchmean")(x, target).item(), 4)
    0.1308
    """

    reductions = ("mean", "batchmean", "sum", "none")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.kl_divergence(x, target, **self._given())

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {**super()._settings(), "log_target": (self.log_target, False)}


class _Margin(_Loss):
    usual: ClassVar[float] = 0.0

    def __init__(self, margin: float | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = self.usual if margin is None else margin
        check_number(self, "margin", self.margin, low=-math.inf)

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {"margin": (self.margin, self.usual), **super()._settings()}


class CosineEmbeddingLoss(_Margin):
    """1 - cos(x, y) where the target is 1, cos(x, y) - margin, at least 0, where it is -1.

    Shapes:   x, y [..., d], target [...]
    Raises:   ShapeError if there is not one target for each pair

    >>> x, y = Tensor([[1.0, 0.0], [1.0, 0.0]]), Tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> print(nn.CosineEmbeddingLoss(reduction="none")(x, y, Tensor([1.0, -1.0])))
    [1. 1.]
    """

    def forward(self, x: Tensor, y: Tensor, target: Any) -> Tensor:
        return ops.cosine_embedding_loss(x, y, target, **self._given())


class HingeEmbeddingLoss(_Margin):
    """The distance x where the target is 1, margin (1 unless given) - x, at least 0, at -1.

    Raises:   ShapeError if the shapes differ

    >>> print(nn.HingeEmbeddingLoss(reduction="none")(Tensor([0.25, 0.25]), Tensor([1.0, -1.0])))
    [0.25 0.75]
    """

    usual = 1.0

    def forward(self, x: Tensor, target: Any) -> Tensor:
        return ops.hinge_embedding_loss(x, target, **self._given())


class MarginRankingLoss(_Margin):
    """margin - (x - y), at least 0, where the target is 1; margin - (y - x) where it is -1.

    Raises:   ShapeError if the shapes differ

    >>> x, y = Tensor([3.0, 1.0]), Tensor([1.0, 3.0])
    >>> print(nn.MarginRankingLoss(reduction="none")(x, y, Tensor([1.0, 1.0])))
    [0. 2.]
    """

    def forward(self, x: Tensor, y: Tensor, target: Any) -> Tensor:
        return ops.margin_ranking_loss(x, y, target, **self._given())


class TripletMarginLoss(_Margin):
    """How much nearer an anchor's positive should be than its negative.

    See ``ops.triplet_margin_loss``, whose arguments p, eps and swap it has.

    Raises:   ShapeError if the shapes differ

    >>> anchor, near, far = Tensor([[0.0, 0.0]]), Tensor([[0.0, 1.0]]), Tensor([[0.0, 1.5]])
    >>> round(nn.TripletMarginLoss()(anchor, near, far).item(), 4)
    0.5
    """

    usual = 1.0

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(margin, reduction)
        check_number(self, "p", p)
        self.p, self.eps, self.swap = p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return ops.triplet_margin_loss(anchor, positive, negative, **self._given())

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        own = {"p": (self.p, 2.0), "eps": (self.eps, 1e-6), "swap": (self.swap, False)}
        return {**super()._settings(), **own}


class GaussianNLLLoss(_Loss):
    """Negative log-likelihood under normal distributions; see ``ops.gaussian_nll_loss``.

    Raises:   ShapeError if the shapes do not fit

    >>> round(nn.GaussianNLLLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([4.0])).item(), 4)
    1.1931
    """

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_number(self, "eps", eps)
        self.full, self.eps = full, eps

    def forward(self, x: Tensor, target: Tensor, var: Any) -> Tensor:
        return ops.gaussian_nll_loss(x, target, var, **self._given())

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        return {"full": (self.full, False), "eps": (self.eps, 1e-6), **super()._settings()}


class PoissonNLLLoss(_Loss):
    """Negative log-likelihood of counts under Poisson distributions; see ``ops.poisson_nll_loss``.

    Raises:   ShapeError if the shapes differ

    >>> print(nn.PoissonNLLLoss()(Tensor([0.0]), Tensor([2.0])))
    1.0
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        check_number(self, "eps", eps)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.poisson_nll_loss(x, target, **self._given())

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        own = {"log_input": (self.log_input, True), "full": (self.full, False)}
        return {**own, "eps": (self.eps, 1e-8), **super()._settings()}

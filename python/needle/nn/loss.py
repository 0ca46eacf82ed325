"""Losses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from needle import ops
from needle.errors import OptionError, unknown
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_number, shown
from needle.ops.core.operands import as_tensors
from needle.ops.index.indexing import beside
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import Operand, Values

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss",
    "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftmaxLoss", "TripletMarginLoss",
]  # fmt: skip

REDUCTIONS = ("mean", "sum", "none")


class SoftmaxLoss(Module):
    """Mean over the batch of ``logsumexp(logits) - logits[label]``.

    Labels are a tensor, an array or a list.

    Shapes:   logits [..., classes], y [...] -> []
    Raises:   IndexRangeError naming the first label that is not a class

    >>> logits = Tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(nn.SoftmaxLoss()(logits, [0, 1]).item(), 4)
    0.1269
    """

    def forward(self, logits: Tensor, y: Values) -> Tensor:
        return ops.cross_entropy(logits, y.detach() if isinstance(y, Tensor) else y)


class _Loss(Module):
    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS
    function: ClassVar[Callable[..., Tensor]]
    usual: ClassVar[dict[str, Any]]
    """The arguments of the constructor, which ``function`` takes too, with their defaults."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            raise unknown(f"{type(self).__name__}: reduction", reduction, self.reductions)
        self.reduction = reduction

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "function" in vars(cls):
            parameters = inspect.signature(cls.__init__).parameters
            cls.usual = {name: p.default for name, p in parameters.items() if name != "self"}

    def _given(self) -> dict[str, Any]:
        """Return the settings as keyword arguments of ``function``."""
        return {name: getattr(self, name) for name in self.usual}

    def _weight_by(self, name: str, weight: Values | None) -> None:
        """Keep a weight, or None, as a buffer."""
        given = None if weight is None else Tensor(weight, requires_grad=False)
        self.register_buffer(name, given)

    def extra_repr(self) -> str:
        given = self._given().items()
        return shown("", {n: (x, self.usual[n]) for n, x in given if not isinstance(x, Tensor)})


class _Pair(_Loss):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.function(x, target, **self._given())


class CrossEntropyLoss(_Loss):
    """Cross entropy of softmax(logits) and a target, as in PyTorch: classes are on axis 1.

    The target is a tensor, an array or a list.

    Shapes:   logits [n, classes, ...], target [n, ...] of labels or [n, classes, ...] of
              probabilities

    Args:
        weight: [classes], weight of each class (a buffer); None: all equal.
        ignore_index: label of elements to ignore.
        reduction: "mean" over the elements that are not ignored, "sum", or "none".
        label_smoothing: share of the target to spread over all classes, in [0, 1].

    >>> logits = Tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(nn.CrossEntropyLoss()(logits, [0, 0]).item(), 4)
    1.1269
    >>> print(nn.CrossEntropyLoss(reduction="none")(logits, [0, 0]))
    [0.1269 2.1269]
    """

    function = staticmethod(ops.cross_entropy)
    weight: Tensor | None

    def __init__(
        self,
        weight: Values | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        check_number(self, "label_smoothing", label_smoothing, high=1.0)
        self._weight_by("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Tensor, target: Values) -> Tensor:
        logits, target = classes_last(logits, target, "cross_entropy")
        return self.function(logits, target, **self._given())


def classes_last(x: Tensor, target: Values, name: str) -> tuple[Tensor, Values]:
    """Return x, and a target with as many axes, with axis 1 (the classes) moved to the end."""
    if len(shape_of(x)) <= 2:
        return x, target
    x, found = as_tensors((x, beside(x, target)), name)
    order = (0, *range(2, x.ndim), 1)
    return ops.permute(x, order), ops.permute(found, order) if found.ndim == x.ndim else found


class NLLLoss(_Loss):
    """Negative log-likelihood: -x at the label, where x are logarithms of probabilities.

    Classes are on axis 1, as in PyTorch. Labels are a tensor, an array or a list.

    Shapes:   x [n, classes, ...], labels [n, ...]

    Args:
        weight: [classes], weight of each class (a buffer); None: all equal.
        ignore_index: label of elements to ignore.
        reduction: "mean", weighted, over the elements that are not ignored, "sum", or "none".

    >>> x = ops.log_softmax(Tensor([[2.0, 0.0], [0.0, 2.0]]), 1)
    >>> round(nn.NLLLoss()(x, [0, 0]).item(), 4)
    1.1269
    """

    function = staticmethod(ops.nll_loss)
    weight: Tensor | None

    def __init__(
        self, weight: Values | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, x: Tensor, labels: Values) -> Tensor:
        x, labels = classes_last(x, labels, "nll_loss")
        return self.function(x, beside(x, labels), **self._given())


class MSELoss(_Pair):
    """Squared distance to the target: its mean ("mean"), sum ("sum") or each element ("none").

    Raises:   ShapeError if the shapes differ

    >>> print(nn.MSELoss()(Tensor([1.0, 2.0]), Tensor([0.0, 4.0])))
    2.5
    """

    function = staticmethod(ops.mse_loss)


class L1Loss(_Pair):
    """Distance to the target: its mean ("mean"), sum ("sum") or each element ("none").

    Raises:   ShapeError if the shapes differ

    >>> print(nn.L1Loss()(Tensor([1.0, 2.0]), Tensor([0.0, 4.0])))
    1.5
    """

    function = staticmethod(ops.l1_loss)


class HuberLoss(_Pair):
    """Half the squared distance to the target; linear for distances above delta.

    Raises:   ShapeError if the shapes differ; OptionError if delta is not positive

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        delta: distance at which the loss becomes linear.

    >>> print(nn.HuberLoss(reduction="none")(Tensor([0.5, 3.0]), Tensor([0.0, 0.0])))
    [0.125 2.5  ]
    """

    function = staticmethod(ops.huber_loss)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not isinstance(delta, Real) or not float(delta) > 0:
            raise OptionError(f"HuberLoss: expected a positive delta, got {delta!r}")
        self.delta: float = delta


class SmoothL1Loss(_Pair):
    """Distance to the target minus beta / 2; below beta its square divided by 2 beta.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        beta: distance at which the loss becomes linear; 0 gives ``L1Loss``.

    >>> print(nn.SmoothL1Loss(reduction="none", beta=2.0)(Tensor([1.0, 4.0]), Tensor([0.0, 0.0])))
    [0.25 3.  ]
    """

    function = staticmethod(ops.smooth_l1_loss)

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        check_number(self, "beta", beta)
        self.beta = beta


class BCEWithLogitsLoss(_Pair):
    """Binary cross entropy of sigmoid(x) and a target in [0, 1].

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        pos_weight: weight of targets of 1 relative to targets of 0 (a buffer), broadcast to the
            shape of x; None: equal.
        weight: weight of each element (a buffer), broadcast to the shape of x; None: all equal.

    >>> round(nn.BCEWithLogitsLoss()(Tensor([0.0, 2.0]), Tensor([0.0, 1.0])).item(), 4)
    0.41
    """

    function = staticmethod(ops.bce_with_logits)
    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        reduction: str = "mean",
        pos_weight: Values | None = None,
        *,
        weight: Values | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)
        self._weight_by("pos_weight", pos_weight)


class BCELoss(_Pair):
    """Binary cross entropy of probabilities x and a target in [0, 1].

    ``BCEWithLogitsLoss`` is more accurate, and has a gradient everywhere; see ``ops.bce``.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean", "sum", or "none": one loss per element.
        weight: weight of each element (a buffer), broadcast to the shape of x; None: all equal.

    >>> round(nn.BCELoss()(Tensor([0.5, 0.9]), Tensor([0.0, 1.0])).item(), 4)
    0.3993
    """

    function = staticmethod(ops.bce)
    weight: Tensor | None

    def __init__(self, reduction: str = "mean", *, weight: Values | None = None) -> None:
        super().__init__(reduction)
        self._weight_by("weight", weight)


class KLDivLoss(_Pair):
    """Kullback-Leibler divergence of the target from exp(x); see ``ops.kl_divergence``.

    Raises:   ShapeError if the shapes differ

    Args:
        reduction: "mean" (over all elements, as in PyTorch), "batchmean" (the sum over the size of
            the first axis, which is the divergence), "sum", or "none".
        log_target: whether the target is given as logarithms too.

    >>> x, target = ops.log(Tensor([[0.5, 0.5]])), Tensor([[0.25, 0.75]])
    >>> round(nn.KLDivLoss("batchmean")(x, target).item(), 4)
    0.1308
    """

    function = staticmethod(ops.kl_divergence)
    reductions = ("mean", "batchmean", "sum", "none")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target


class _Margin(_Loss):
    apart: ClassVar[float] = 0.0
    """The margin for None."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.usual = {**cls.usual, "margin": cls.apart}

    def __init__(self, margin: float | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = self.apart if margin is None else margin
        check_number(self, "margin", self.margin, low=-math.inf)


class CosineEmbeddingLoss(_Margin):
    """1 - cos(x, y) where the target is 1; max(cos(x, y) - margin, 0) where it is -1.

    Shapes:   x, y [..., d], target [...]
    Raises:   ShapeError if the target does not have one number for each pair

    >>> x, y = Tensor([[1.0, 0.0], [1.0, 0.0]]), Tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> print(nn.CosineEmbeddingLoss(reduction="none")(x, y, Tensor([1.0, -1.0])))
    [1. 1.]
    """

    function = staticmethod(ops.cosine_embedding_loss)

    def forward(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return self.function(x, y, target, **self._given())


class HingeEmbeddingLoss(_Margin, _Pair):
    """The distance x where the target is 1; max(margin - x, 0) where it is -1.

    Raises:   ShapeError if the shapes differ

    >>> print(nn.HingeEmbeddingLoss(reduction="none")(Tensor([0.25, 0.25]), Tensor([1.0, -1.0])))
    [0.25 0.75]
    """

    function = staticmethod(ops.hinge_embedding_loss)
    apart = 1.0


class MarginRankingLoss(_Margin):
    """max(margin - target * (x - y), 0), where the target is 1 or -1.

    Raises:   ShapeError if the shapes differ

    >>> x, y = Tensor([3.0, 1.0]), Tensor([1.0, 3.0])
    >>> print(nn.MarginRankingLoss(reduction="none")(x, y, Tensor([1.0, 1.0])))
    [0. 2.]
    """

    function = staticmethod(ops.margin_ranking_loss)

    def forward(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return self.function(x, y, target, **self._given())


class TripletMarginLoss(_Margin):
    """Ask that an anchor is nearer to its positive than to its negative, by a margin.

    See ``ops.triplet_margin_loss`` for p, eps and swap.

    Raises:   ShapeError if the shapes differ

    >>> anchor, near, far = Tensor([[0.0, 0.0]]), Tensor([[0.0, 1.0]]), Tensor([[0.0, 1.5]])
    >>> round(nn.TripletMarginLoss()(anchor, near, far).item(), 4)
    0.5
    """

    function = staticmethod(ops.triplet_margin_loss)
    apart = 1.0

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
        return self.function(anchor, positive, negative, **self._given())


class GaussianNLLLoss(_Loss):
    """Negative log-likelihood under normal distributions; see ``ops.gaussian_nll_loss``.

    Raises:   ShapeError if the shapes do not fit

    >>> round(nn.GaussianNLLLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([4.0])).item(), 4)
    1.1931
    """

    function = staticmethod(ops.gaussian_nll_loss)

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_number(self, "eps", eps)
        self.full, self.eps = full, eps

    def forward(self, x: Tensor, target: Tensor, var: Operand) -> Tensor:
        return self.function(x, target, var, **self._given())


class PoissonNLLLoss(_Pair):
    """Negative log-likelihood of counts under Poisson distributions; see ``ops.poisson_nll_loss``.

    Raises:   ShapeError if the shapes differ

    >>> print(nn.PoissonNLLLoss()(Tensor([0.0]), Tensor([2.0])))
    1.0
    """

    function = staticmethod(ops.poisson_nll_loss)

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        check_number(self, "eps", eps)
        self.log_input, self.full, self.eps = log_input, full, eps

"""Losses: each op gives one loss per row or element, and its function reduces them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype, executor
from needle.backend import kernels
from needle.backend.axes import integer
from needle.errors import DtypeError, IndexRangeError, OptionError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import OUTPUT, cast, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.primitives import sum_to
from needle.ops.core.samples import Sample, Samples, integers, uniform
from needle.ops.elementwise.activation import relu
from needle.ops.elementwise.arithmetic import (
    absolute,
    cast_like,
    equal,
    not_equal,
    squared_difference,
    where,
)
from needle.ops.elementwise.functions import exp, log
from needle.ops.elementwise.logic import clip
from needle.ops.index.indexing import Labels, beside, gather, gathering, one_hot, take
from needle.ops.reduction.reduce import mean, summation
from needle.ops.reduction.softmax import finite_max, log_softmax, logsumexp, softmax
from needle.ops.shape.movement import Reshape, reshape, unsqueeze

if TYPE_CHECKING:
    from needle import typing
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor, TensorTuple

__all__ = [
    "CrossEntropy", "CrossEntropyGrad", "Huber", "KLDivergence", "cross_entropy", "huber_loss",
    "kl_divergence", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss",
]  # fmt: skip

NOTHING = -(2**63)
"""The ``ignore_index`` for not ignoring any row."""


# ---- cross entropy -----------------------------------------------------------------


def _cross_entropy(x: Numpy, labels: Numpy, ignore: int, smoothing: float) -> tuple[Numpy, ...]:
    labels = labels.astype(int)
    shift = x.max(-1)
    rest = np.log(np.exp(x - shift[..., None]).sum(-1))
    lse = shift + rest
    picked = np.take_along_axis(x, np.where(labels == ignore, 0, labels)[..., None], -1)[..., 0]
    loss = (1 - smoothing) * (lse - picked) + smoothing * (lse - x.mean(-1))
    return np.where(labels == ignore, 0.0, loss), shift, rest


def _cross_entropy_samples() -> list[Sample]:
    x, labels = uniform((4, 3)), np.array([0, 2, 1, 2])
    cases: list[tuple[Numpy, Numpy, int, float]] = [
        (x, labels, NOTHING, 0.0),
        (x, labels, 2, 0.0),
        (x, labels, NOTHING, 0.1),
        (x, np.array([0, -100, 1, -100]), -100, 0.2),
        (uniform((2, 3, 5)), integers((2, 3), 0, 5), NOTHING, 0.0),
        (uniform((0, 3)), np.zeros(0, int), NOTHING, 0.0),
        (uniform((3,)), np.array(1), NOTHING, 0.0),
    ]
    return [
        Sample((x, labels), (i, s), lambda x, y, i=i, s=s: _cross_entropy(x, y, i, s))
        for x, labels, i, s in cases
    ] + [
        Sample((x, np.array([0, 3, 1, 2])), (NOTHING, 0.0), raises=IndexRangeError, by_value=True),
        Sample((x, np.array([0, 1, -1, 2])), (NOTHING, 0.0), raises=IndexRangeError, by_value=True),
        Sample((x, np.array([0, 1, 2])), (NOTHING, 0.0), raises=ShapeError),
        Sample((x, np.array([True, False, True, True])), (NOTHING, 0.0), raises=DtypeError),
        Sample((x, labels), (NOTHING, -1.0), raises=OptionError),
        Sample((x, labels), (NOTHING, float("nan")), raises=OptionError),
    ]


class _CrossEntropy(Composite):
    ignore_index: int = NOTHING
    label_smoothing: float = 0.0

    def setup(self) -> None:
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise OptionError(
                f"{self.name}: label_smoothing is {self.label_smoothing}\n  rule: from 0 to 1"
            )

    def class_labels(self, labels: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return which rows count (None: all), and labels that are classes everywhere."""
        labels = cast(labels, dtype.int64)
        if self.ignore_index == NOTHING:
            return None, labels
        kept = not_equal(labels, self.ignore_index)
        return kept, where(kept, labels, 0)

    def expanded(self, *arrays: Any) -> Any:
        logits, labels = arrays[:2] if len(arrays) == 2 else arrays[1:3]
        kernels.check_labels(self.name, labels, logits.shape[-1], self.ignore_index)
        return super().expanded(*arrays)


class CrossEntropy(_CrossEntropy):
    """Negative logarithm of the probability that softmax gives the label, per row.

        loss = rest + shift - logits[label],
        shift = max(logits),  rest = log(sum(exp(logits - shift)))

    With smoothing s the target is (1 - s) at the label plus s / classes everywhere. Rows whose
    label is ``ignore_index`` have loss 0. The gradient reads shift and rest separately, because
    their sum is less precise far from 0. Where the largest logit is infinite or NaN, shift is 0.

    Shapes:   logits [..., classes], labels [...] -> loss [...], shift [...], rest [...]
    Dtypes:   logits floating, labels integer (or floating with whole values); results in float32
              when logits are float16 or bfloat16
    Gradient: logits; any order
    Raises:   IndexRangeError if a label is not a class; ShapeError if labels are not [...];
              OptionError if s is not from 0 to 1; DtypeError for labels of another kind
    """

    saves = ((0, 1, OUTPUT), ())
    samples = staticmethod(_cross_entropy_samples)

    promotes = "first"

    def compute(self, logits: NDArray, labels: NDArray) -> tuple[NDArray, ...]:
        return super().compute(logits, kernels.as_labels(self.name, logits, labels))

    def expand(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        wide = widened(logits)
        kept, labels = self.class_labels(labels)
        shift = finite_max(wide, (-1,))
        near = wide - shift
        rest = logsumexp(near, -1)
        loss = rest - reshape(gather(near, unsqueeze(labels, -1), -1), shape_of(labels))
        if self.label_smoothing:
            spread = rest - mean(near, -1)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * spread
        shift = reshape(shift, shape_of(labels))
        return loss if kept is None else where(kept, loss, 0.0), shift, rest

    def gradient(self, out_grad: typing.OutGrads, out: TensorTuple) -> Gradients:
        if not out.node.inputs[0].needs:  # only floating labels need one
            return None, None
        logits, labels = out.inputs
        grad = None
        if out_grad[0] is not None:
            op = CrossEntropyGrad.of(self.ignore_index, self.label_smoothing)
            grad = executor.apply(op, out_grad[0], logits, labels, out[1], out[2])
        if out_grad[1] is not None or out_grad[2] is not None:
            part = _grad_of_parts(widened(logits), out[1], out_grad[1], out_grad[2])
            grad = cast_like(part, logits) if grad is None else grad + cast_like(part, logits)
        return grad, None


def _grad_of_parts(wide: Tensor, shift: Tensor, shift_grad: Any, rest_grad: Any) -> Tensor:
    """Return the part of the logits' gradient that comes through shift and rest."""
    part: Tensor | float = 0.0
    if rest_grad is not None:
        part = unsqueeze(rest_grad, -1) * softmax(wide)
        shift_grad = -rest_grad if shift_grad is None else shift_grad - rest_grad
    ties = cast_like(equal(wide, unsqueeze(shift, -1)), wide)
    share = unsqueeze(shift_grad / summation(ties, -1), -1)
    return part + share * ties


def _cross_entropy_grad(
    g: Numpy, x: Numpy, labels: Numpy, shift: Numpy, rest: Numpy, *, ignore: int, s: float
) -> Numpy:
    labels = labels.astype(int)
    classes = x.shape[-1]
    target = (1 - s) * (labels[..., None] == np.arange(classes)) + s / classes
    grad = g[..., None] * (np.exp(x - (shift + rest)[..., None]) - target)
    return np.where((labels == ignore)[..., None], 0.0, grad)


def _cross_entropy_grad_samples() -> list[Sample]:
    cases: list[Sample] = []
    for sample in _cross_entropy_samples():
        if sample.raises is None:
            x, labels = sample.inputs
            ignore, s = sample.static
            parts = _cross_entropy(x, labels, ignore, s)[1:]
            cases.append(
                Sample(
                    (uniform(labels.shape, seed=3), x, labels, *parts), sample.static,
                    lambda *inputs, i=ignore, s=s: _cross_entropy_grad(*inputs, ignore=i, s=s),
                )
            )  # fmt: skip
    return cases


class CrossEntropyGrad(_CrossEntropy):
    """Gradient of cross entropy with respect to the logits.

        out = g * (exp(logits - shift - rest) - target)

    Shapes:   g [...], logits [..., classes], labels [...], shift [...], rest [...]
              -> [..., classes]
    Gradient: g, logits, shift, rest; any order
    """

    samples = staticmethod(_cross_entropy_grad_samples)

    def compute(self, g: NDArray, logits: NDArray, labels: NDArray, *parts: NDArray) -> NDArray:
        return super().compute(g, logits, kernels.as_labels(self.name, logits, labels), *parts)

    def expand(
        self, g: Tensor, logits: Tensor, labels: Tensor, shift: Tensor, rest: Tensor
    ) -> Tensor:
        wide = widened(logits)
        classes = shape_of(logits)[-1]
        kept, labels = self.class_labels(labels)
        target = one_hot(labels, classes, executor.spec_of(wide).dtype)
        if self.label_smoothing:
            target = (1 - self.label_smoothing) * target + self.label_smoothing / classes
        grad = unsqueeze(g, -1) * (exp(wide - unsqueeze(shift, -1) - unsqueeze(rest, -1)) - target)
        return cast_like(grad if kept is None else where(unsqueeze(kept, -1), grad, 0.0), logits)


# ---- losses ------------------------------------------------------------------------


def _counted(loss: Tensor, counts: Tensor, reduction: str) -> Tensor:
    """Return the loss reduced; the mean divides by the counts, and sums in float32 at least."""
    if reduction != "mean":
        return reduced(loss, reduction)
    return cast_like(summation(widened(loss)) / summation(widened(counts)), loss)


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of losses, or the losses ("none").

    Raises:
        OptionError: for another name.
    """
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise unknown("reduction", reduction, ("mean", "sum", "none"))
    return mean(loss) if reduction == "mean" else summation(loss)


def cross_entropy(
    logits: Any,
    target: Any,
    *,
    weight: Any = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of softmax(logits) and the target. See ``CrossEntropy``.

    Args:
        logits: [..., classes].
        target: labels [...], or probabilities [..., classes]; a tensor, an array or a list.
        weight: [classes], a weight for each class, a tensor or an array; None: all equal. With
            labels the mean divides by the sum of their weights, as in PyTorch.
        ignore_index: label of rows to leave out; only for labels.
        label_smoothing: share of the target that is spread over all classes, in [0, 1].
        reduction: "mean" over the rows that count, "sum", or "none": one loss per row.

    Raises:
        IndexRangeError: naming the first label that is not a class.
        OptionError: if label_smoothing is not in [0, 1].
        ShapeError: if there is not one weight for each class.

    >>> logits = Tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 5.0]])
    >>> round(ndl.cross_entropy(logits, [0, 2]).item(), 4)
    0.2105
    """
    logits, target = as_tensors((logits, beside(logits, target)), "cross_entropy")
    label_smoothing = real("cross_entropy: label_smoothing", label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise OptionError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
    if shape_of(target) == shape_of(logits) and executor.spec_of(target).dtype.kind == "f":
        return reduced(_soft_loss(logits, target, label_smoothing, weight), reduction)
    ignored = NOTHING if ignore_index is None else ignore_index
    if weight is None:
        loss = executor.apply(CrossEntropy.of(ignored, label_smoothing), logits, target)[0]
        if reduction != "mean" or ignore_index is None:
            return reduced(loss, reduction)
        counts = cast_like(not_equal(cast(target, dtype.int64), ignore_index), loss)
    else:
        loss, counts = _weighted(logits, target, weight, ignored, label_smoothing)
    return _counted(loss, counts, reduction)


def _soft_loss(logits: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> Tensor:
    if smoothing:
        target = (1 - smoothing) * target + smoothing / max(shape_of(logits)[-1], 1)
    if weight is not None:
        target = target * _class_weight("cross_entropy", logits, weight)
    return -summation(target * log_softmax(logits), -1)


def _class_weight(name: str, logits: Tensor, given: Operand) -> Tensor:
    _, weight = as_tensors((logits, given), name)
    classes = shape_of(logits)[-1:]
    if not classes or shape_of(weight) != classes:
        count = classes[0] if classes else "no"
        raise explain(
            ShapeError, name, f"expected one weight for each of {count} classes",
            [("logits", logits), ("weight", weight)], "logits [..., classes], weight [classes]",
        )  # fmt: skip
    return cast_like(weight, logits)


def _weighted(
    logits: Tensor, labels: Tensor, weight: Tensor, ignored: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return losses of rows times the weights of their labels, and these weights."""
    weight = widened(_class_weight("cross_entropy", logits, weight))
    op = CrossEntropy.of(ignored, 0.0)
    loss = executor.apply(op, logits, labels)[0]
    kept, labels = op.class_labels(labels)
    counts = take(weight, labels)
    counts = counts if kept is None else where(kept, counts, 0.0)
    loss = loss * counts
    if not smoothing:
        return loss, counts
    spread = -summation(weight * log_softmax(widened(logits)), -1) / shape_of(logits)[-1]
    spread = spread if kept is None else where(kept, spread, 0.0)
    return (1 - smoothing) * loss + smoothing * spread, counts


# ---- losses of each element --------------------------------------------------------


class Pairwise(Composite):
    """A loss of each element and its target."""

    promotes = "floating"


def pair_samples(reference: typing.Reference, low: float = -2.0, high: float = 2.0) -> Samples:
    """Return samples of a loss of pairs, whose targets are in [low, high]."""

    def samples() -> list[Sample]:
        return [
            Sample(
                (uniform(shape, seed=1), uniform(shape, low, high, seed=2)), (), reference
            )
            for shape in ((3, 4), (5,), (), (0, 2))
        ]  # fmt: skip

    return samples


def _huber_samples() -> list[Sample]:
    def reference(x: Numpy, y: Numpy, delta: Numpy) -> Numpy:
        apart = np.abs(x - y)
        return np.where(apart <= delta, 0.5 * apart**2, delta * (apart - 0.5 * delta))

    return [
        Sample((uniform(shape, seed=1), uniform(shape, seed=2), np.array(0.7)), (), reference)
        for shape in ((3, 4), (5,), (), (0, 2))
    ]


class Huber(Elementwise):
    """Half the squared distance up to delta, beyond it delta * (distance - delta / 2).

    Source:   Huber, "Robust estimation of a location parameter", 1964
    """

    function = "huber"
    floating = True
    saves = ((0, 1, 2),)
    samples = staticmethod(_huber_samples)

    def derivative(self, out: Tensor, i: int) -> Tensor:
        x, y, delta = out.inputs
        if i == 2:
            return relu(absolute(x - y) - delta)
        return clip(x - y, -delta, delta) if i == 0 else clip(y - x, -delta, delta)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        left, right, bound = out.node.inputs
        slope = out_grad * self.derivative(out, 0)  # once for both
        return (
            sum_to(slope, left.spec.shape) if left.needs else None,
            sum_to(-slope, right.spec.shape) if right.needs else None,
            sum_to(out_grad * self.derivative(out, 2), bound.spec.shape) if bound.needs else None,
        )


class KLDivergence(Pairwise):
    """Part of the Kullback-Leibler divergence: target * (log(target) - x), x a log-probability.

    Shapes:   x, target [...] -> [...]; 0 where the target is 0
    Gradient: x, target; any order
    """

    called = "kl_divergence"
    samples = pair_samples(lambda x, y: y * (np.log(y) - x), 0.1, 1.0)

    def expand(self, x: Tensor, target: Tensor) -> Tensor:
        absent = equal(target, 0.0)
        return where(absent, 0.0, target * (log(where(absent, 1.0, target)) - x))


def same_shape(name: str, x: Tensor, target: Operand) -> tuple[Tensor, Tensor]:
    """Return predictions and targets as tensors.

    Raises:
        ShapeError: if their shapes differ.
    """
    x, target = as_tensors((x, target), name)
    if shape_of(x) != shape_of(target):
        raise explain(
            ShapeError, name, f"shapes {shape_of(x)} and {shape_of(target)} differ",
            [("x", x), ("target", target)], "one target for each element",
        )  # fmt: skip
    return x, target


def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Squared distance to the target: its "mean", its "sum", or one loss per element ("none").

    Raises:
        ShapeError: if the shapes differ.

    >>> print(ndl.mse_loss(Tensor([1.0, 2.0]), Tensor([3.0, 2.0])))
    2.0
    """
    x, target = same_shape("mse_loss", x, target)
    return reduced(squared_difference(x, target), reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Distance to the target. Arguments as for ``mse_loss``.

    >>> print(ndl.l1_loss(Tensor([1.0, 2.0]), Tensor([3.0, 2.0])))
    1.0
    """
    x, target = same_shape("l1_loss", x, target)
    return reduced(absolute(x - target), reduction)


def huber_loss(x: Tensor, target: Tensor, *, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Squared distance near the target, distance further away. See ``Huber``.

    Raises: OptionError if delta is not positive

    >>> print(ndl.huber_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none"))
    [0.125 2.5  ]
    """
    delta = real("huber_loss: delta", delta)
    if not delta > 0:
        raise OptionError(f"huber_loss: delta {delta} must be positive")
    x, target = same_shape("huber_loss", x, target)
    return reduced(executor.apply(Huber.of(), x, target, delta), reduction)


def smooth_l1_loss(
    x: Tensor, target: Tensor, *, beta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Distance to the target minus beta / 2; up to beta, distance ** 2 / (2 * beta).

    It is ``huber_loss`` divided by beta, and ``l1_loss`` for beta 0.

    Raises: OptionError if beta is negative or NaN

    >>> print(ndl.smooth_l1_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none"))
    [0.125 2.5  ]
    """
    beta = real("smooth_l1_loss: beta", beta)
    if not beta >= 0:
        raise OptionError(f"smooth_l1_loss: beta is {beta}\n  rule: not negative")
    if beta == 0:
        return l1_loss(x, target, reduction=reduction)
    return huber_loss(x, target, delta=beta, reduction=reduction) * (1.0 / beta)


def kl_divergence(
    x: Tensor, target: Tensor, *, reduction: str = "batchmean", log_target: bool = False
) -> Tensor:
    """Kullback-Leibler divergence of target from exp(x), where x is a log-probability.

    With ``log_target`` the target is a log-probability too. Reduction "batchmean" is the sum
    divided by the size of the first axis. See ``KLDivergence``.

    >>> x, target = ndl.log(Tensor([[0.5, 0.5]])), Tensor([[0.25, 0.75]])
    >>> round(ndl.kl_divergence(x, target).item(), 4)
    0.1308
    """
    x, target = same_shape("kl_divergence", x, target)
    if log_target:
        absent = equal(exp(target), 0.0)
        known = where(absent, 0.0, target)
        parts = where(absent, 0.0, exp(known) * (known - x))
    else:
        parts = executor.apply(KLDivergence.of(), x, target)
    if reduction == "batchmean":
        count = shape_of(x)[0] if shape_of(x) else 1
        return cast_like(summation(widened(parts)) / float(count), parts)
    return reduced(parts, reduction)


def nll_loss(
    x: Any, labels: Any, *, weight: Operand | None = None, ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Negative log-likelihood: -x at the label, where x holds log-probabilities.

    Args:
        x: [..., classes].
        labels: [...], integer.
        weight: [classes], a weight for each class; None: all equal. The mean divides by the sum of
            the labels' weights, as in PyTorch.
        ignore_index: label of rows to leave out.
        reduction: "mean" over the rows that count, "sum", or "none".

    Raises:
        IndexRangeError: naming the first label that is not a class.
        ShapeError: if there is not one label for each row, or one weight for each class.

    >>> x, labels = ndl.log_softmax(Tensor([[2.0, 1.0, 0.0]])), Tensor([0], dtype="int64")
    >>> round(ndl.nll_loss(x, labels).item(), 4)
    0.4076
    """
    x, labels = as_tensors((x, labels), "nll_loss")
    shape = x.spec.shape
    if not shape or labels.spec.shape != shape[:-1]:
        raise explain(
            ShapeError, "nll_loss", f"labels have shape {labels.spec.shape}, x {shape}",
            [("x", x), ("labels", labels)], "x [..., classes], labels [...]",
        )  # fmt: skip
    if labels.spec.dtype.kind == "b":
        raise explain(DtypeError, "nll_loss", "expected integers, got bools", [("labels", labels)])
    if x.spec.dtype.kind != "f":
        (x,) = promoted((x,), "nll_loss", floating=True)
    classes, column, pick, rows = _picking(shape)
    if ignore_index is not None:
        ignore_index = integer("nll_loss: ignore_index", ignore_index)
    kept = None if ignore_index is None else not_equal(labels, ignore_index)
    safe = labels if kept is None else where(kept, labels, 0)
    target = executor.apply(classes, safe)  # gather would wrap them
    loss = -executor.apply(rows, pick(x, executor.apply(column, target)))
    if kept is None and weight is None:
        return reduced(loss, reduction)
    if weight is None:
        counts = cast_like(kept, loss)
    else:
        counts = take(_class_weight("nll_loss", x, weight), target)
        loss = loss * counts
    if kept is not None:
        loss, counts = where(kept, loss, 0.0), where(kept, counts, 0.0)
    return _counted(loss, counts, reduction)


@functools.lru_cache(maxsize=1000)
def _picking(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return ops that check labels, make them a column, pick by it, and make rows of the result."""
    *rows, classes = shape
    return (
        Labels.of(classes), Reshape.of((*rows, 1)), gathering(len(rows)), Reshape.of(tuple(rows)),
    )  # fmt: skip

"""Softmax, its logarithm, and what training minimises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import dtype, executor
from needle.backend import kernels
from needle.errors import DtypeError, IndexRangeError, ShapeError, explain, unknown
from needle.ops.base import OUTPUT, Composite, as_tensors, cast, promoted
from needle.ops.elementwise import cast_like, not_equal, square, where
from needle.ops.functions import exp, log
from needle.ops.indexing import gather, one_hot
from needle.ops.logic import isfinite
from needle.ops.movement import reshape, stop_gradient, unsqueeze
from needle.ops.reduce import Axes, amax, mean, normalised, summation
from needle.ops.samples import Sample, integers, uniform

NOTHING = -(2**63)
"""The ``ignore_index`` that ignores no row."""


def widened(x: Any) -> Any:
    """Return x, in float32 where it is float16 or bfloat16: sums and exponentials need it."""
    return cast(x, dtype.float32) if executor.spec_of(x).dtype.itemsize == 2 else x


def _shape(x: Any) -> tuple[int, ...]:
    return executor.spec_of(x).shape


# ---- softmax -----------------------------------------------------------------------


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def _softmax_samples(reference: Any) -> Any:
    def samples() -> list[Sample]:
        cases: list[tuple[Any, int]] = [
            (uniform((3, 4)), 1), (uniform((3, 4)), 0), (uniform((2, 3, 4)), 1),
            (uniform((5,)), -1), (uniform((3, 1)), 1), (uniform((0, 3)), 1),
        ]  # fmt: skip
        large = Sample(
            (uniform((2, 3)) + 1e5,), (1,), lambda x: reference(x, 1), dtypes=("float64",)
        )
        good = [Sample((x,), (axis,), lambda x, axis=axis: reference(x, axis)) for x, axis in cases]
        return [*good, large, Sample((uniform((2, 3)),), (2,), raises=IndexRangeError)]

    return samples


def _softmax_grad_samples(forward: Any, reference: Any) -> Any:
    def samples() -> list[Sample]:
        cases = (((3, 4), 1), ((2, 3, 4), 1), ((5,), -1), ((0, 3), 1))
        return [
            Sample(
                (forward(uniform(shape), axis), uniform(shape, seed=1)), (axis,),
                lambda out, g, axis=axis: reference(out, g, axis),
            )
            for shape, axis in cases
        ]  # fmt: skip

    return samples


class _Softmax(Composite):
    axis: int = -1
    saves = ((OUTPUT,),)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return promoted(inputs, self.name, floating=True)

    def shifted(self, x: Any) -> Any:
        """Return x less its maximum along the axis, so that no exponential overflows."""
        normalised(x, self.axis)
        wide = widened(x)
        if 0 in _shape(x):
            return wide
        return wide - stop_gradient(amax(wide, self.axis, keepdims=True))


class Softmax(_Softmax):
    """Turn x into positive numbers that add up to 1 along an axis.

        out = exp(x) / sum(exp(x))

    Shapes:   x [..., n, ...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if there is no such axis
    """

    samples = _softmax_samples(_softmax)

    def expand(self, x: Any) -> Any:
        e = exp(self.shifted(x))
        return cast_like(e / summation(e, self.axis, keepdims=True), x)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (executor.apply(SoftmaxGrad.of(self.axis), out, out_grad),)


class LogSoftmax(_Softmax):
    """Logarithm of softmax, without overflow or loss of small probabilities.

        out = x - log(sum(exp(x)))

    Shapes:   x [..., n, ...] -> the same
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if there is no such axis
    """

    samples = _softmax_samples(_log_softmax)

    def expand(self, x: Any) -> Any:
        x0 = self.shifted(x)
        return cast_like(x0 - log(summation(exp(x0), self.axis, keepdims=True)), x)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (executor.apply(LogSoftmaxGrad.of(self.axis), out, out_grad),)


class SoftmaxGrad(Composite):
    """Gradient of softmax from its result: out * (g - sum(out * g))."""

    axis: int = -1
    samples = _softmax_grad_samples(
        _softmax, lambda out, g, axis: out * (g - (out * g).sum(axis, keepdims=True))
    )

    def expand(self, out: Any, g: Any) -> Any:
        out0, g0 = widened(out), widened(g)
        return cast_like(out0 * (g0 - summation(out0 * g0, self.axis, keepdims=True)), out)


class LogSoftmaxGrad(Composite):
    """Gradient of log-softmax from its result: g - exp(out) * sum(g)."""

    axis: int = -1
    samples = _softmax_grad_samples(
        _log_softmax, lambda out, g, axis: g - np.exp(out) * g.sum(axis, keepdims=True)
    )

    def expand(self, out: Any, g: Any) -> Any:
        g0 = widened(g)
        total = summation(g0, self.axis, keepdims=True)
        return cast_like(g0 - exp(widened(out)) * total, out)


def _log_sum_exp(x: Any, axes: Any, keepdims: bool) -> Any:
    return np.log(np.exp(x).sum(axes, keepdims=keepdims))


def _log_sum_exp_samples() -> list[Sample]:
    cases: list[tuple[tuple[int, ...], Axes, bool]] = [
        ((3, 4), 1, False), ((3, 4), (0, 1), True), ((2, 3, 4), (0, 2), False), ((5,), None, False),
        ((), None, False), ((0, 3), 1, False), ((3, 1), 1, True),
    ]  # fmt: skip
    large = np.array([[1e10, 1e10], [-1e10, 0.0]])
    infinite = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 1.0]])
    return [
        Sample((uniform(shape),), (axes, keep), lambda x, a=axes, k=keep: _log_sum_exp(x, a, k))
        for shape, axes, keep in cases
    ] + [
        Sample((large,), (1, False), _stable, gradient=False, dtypes=("float64",)),
        Sample((infinite,), (1, False), _stable, gradient=False),
        Sample((np.zeros((3, 0)),), (1, False), _stable, gradient=False),
        Sample((uniform((2, 3)),), (2, False), raises=IndexRangeError),
    ]


def _stable(x: Any) -> Any:
    return np.logaddexp.reduce(x, axis=1, initial=-np.inf)


class LogSumExp(Composite):
    """Logarithm of the sum of exponentials over axes (all for None), without overflow.

        out = log(sum(exp(x)))

    Shapes:   x -> x without the axes (of size 1 with keepdims)
    Dtypes:   floating; in float32 when x is float16 or bfloat16
    Gradient: x; any order
    Raises:   IndexRangeError if there is no such axis
    """

    called = "logsumexp"
    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False
    saves = ((0, OUTPUT),)
    samples = staticmethod(_log_sum_exp_samples)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return promoted(inputs, self.name, floating=True)

    def expand(self, x: Any) -> Any:
        axes = normalised(x, self.axes)
        wide = widened(x)
        if any(_shape(x)[axis] == 0 for axis in axes):
            return cast_like(log(summation(exp(wide), axes, self.keepdims)), x)
        top = stop_gradient(amax(wide, axes, keepdims=True))
        shift = where(isfinite(top), top, 0.0)
        out = log(summation(exp(wide - shift), axes, keepdims=True)) + shift
        return cast_like(reshape(out, self._reduced(_shape(x), axes)), x)

    def _reduced(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
        if self.keepdims:
            return tuple(1 if i in axes else n for i, n in enumerate(shape))
        return tuple(n for i, n in enumerate(shape) if i not in axes)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        x = out.inputs[0]
        axes = normalised(x, self.axes)
        kept = tuple(1 if i in axes else n for i, n in enumerate(_shape(x)))
        top = reshape(where(isfinite(out), out, 0.0), kept)
        return (reshape(out_grad, kept) * exp(x - top),)


def softmax(x: Any, axis: int = -1) -> Any:
    """Positive numbers that add up to 1 along an axis. See ``Softmax``."""
    return executor.apply(Softmax.of(axis), x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Logarithm of softmax. See ``LogSoftmax``."""
    return executor.apply(LogSoftmax.of(axis), x)


def logsumexp(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """Logarithm of the sum of exponentials over axes (all for None). See ``LogSumExp``."""
    chosen = tuple(axes) if isinstance(axes, Sequence) else axes
    return executor.apply(LogSumExp.of(chosen, keepdims), x)


# ---- cross entropy -----------------------------------------------------------------


def _cross_entropy(x: Any, labels: Any, ignore: int, smoothing: float) -> Any:
    labels = labels.astype(int)
    lse = np.log(np.exp(x).sum(-1))
    picked = np.take_along_axis(x, np.where(labels == ignore, 0, labels)[..., None], -1)[..., 0]
    loss = (1 - smoothing) * (lse - picked) + smoothing * (lse - x.mean(-1))
    return np.where(labels == ignore, 0.0, loss), lse


def _cross_entropy_samples() -> list[Sample]:
    x, labels = uniform((4, 3)), np.array([0, 2, 1, 2])
    cases: list[tuple[Any, Any, int, float]] = [
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
    ]


class _CrossEntropy(Composite):
    ignore_index: int = NOTHING
    label_smoothing: float = 0.0

    def class_labels(self, labels: Any) -> tuple[Any, Any]:
        """Return which rows count (None: all), and labels that are classes everywhere."""
        labels = cast(labels, dtype.int64)
        if self.ignore_index == NOTHING:
            return None, labels
        kept = not_equal(labels, self.ignore_index)
        return kept, where(kept, labels, 0)


class CrossEntropy(_CrossEntropy):
    """Negative logarithm of the probability that softmax gives the label, per row.

        loss = lse - logits[label],  lse = log(sum(exp(logits)))

    With smoothing s the target is (1 - s) at the label plus s / classes everywhere. Rows whose
    label is ``ignore_index`` have loss 0. The second result, lse, is what the gradient reads.

    Shapes:   logits [..., classes], labels [...] -> loss [...], lse [...]
    Dtypes:   logits floating, labels integer (or floating with whole values); results in float32
              when logits are float16 or bfloat16
    Gradient: logits; any order
    Raises:   IndexRangeError if a label is not a class; ShapeError if labels are not [...]
    """

    saves = ((0, 1, OUTPUT), ())
    samples = staticmethod(_cross_entropy_samples)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        logits, labels = as_tensors(inputs)
        return (*promoted((logits,), self.name, floating=True), labels)

    def compute(self, logits: Any, labels: Any) -> Any:
        return super().compute(logits, kernels.as_labels(self.name, logits, labels))

    def expanded(self, logits: Any, labels: Any) -> Any:
        kernels.check_labels(self.name, labels, logits.shape[-1], self.ignore_index)
        return super().expanded(logits, labels)

    def expand(self, logits: Any, labels: Any) -> Any:
        wide = widened(logits)
        kept, labels = self.class_labels(labels)
        lse = logsumexp(wide, -1)
        loss = lse - reshape(gather(wide, unsqueeze(labels, -1), -1), _shape(labels))
        if self.label_smoothing:
            spread = lse - mean(wide, -1)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * spread
        return loss if kept is None else where(kept, loss, 0.0), lse

    def gradient(self, out_grad: Any, out: Any) -> Any:
        (logits, labels), (g, lse_grad) = out.inputs, (out_grad[0], out_grad[1])
        grad = None
        if g is not None:
            op = CrossEntropyGrad.of(self.ignore_index, self.label_smoothing)
            grad = executor.apply(op, g, logits, labels, out[1])
        if lse_grad is not None:
            part = cast_like(unsqueeze(lse_grad, -1) * softmax(widened(logits)), logits)
            grad = part if grad is None else grad + part
        return grad, None


def _cross_entropy_grad(g: Any, x: Any, labels: Any, lse: Any, ignore: int, s: float) -> Any:
    labels = labels.astype(int)
    classes = x.shape[-1]
    target = (1 - s) * (labels[..., None] == np.arange(classes)) + s / classes
    grad = g[..., None] * (np.exp(x - lse[..., None]) - target)
    return np.where((labels == ignore)[..., None], 0.0, grad)


def _cross_entropy_grad_samples() -> list[Sample]:
    cases: list[Sample] = []
    for sample in _cross_entropy_samples():
        if sample.raises is None:
            x, labels = sample.inputs
            ignore, s = sample.static
            lse = _cross_entropy(x, labels, ignore, s)[1]
            cases.append(
                Sample(
                    (uniform(labels.shape, seed=3), x, labels, lse), sample.static,
                    lambda g, x, y, lse, i=ignore, s=s: _cross_entropy_grad(g, x, y, lse, i, s),
                )
            )  # fmt: skip
    return cases


class CrossEntropyGrad(_CrossEntropy):
    """Gradient of cross entropy with respect to the logits.

        out = g * (exp(logits - lse) - target)

    Shapes:   g [...], logits [..., classes], labels [...], lse [...] -> [..., classes]
    Gradient: g, logits, lse; any order
    """

    samples = staticmethod(_cross_entropy_grad_samples)

    def compute(self, g: Any, logits: Any, labels: Any, lse: Any) -> Any:
        return super().compute(g, logits, kernels.as_labels(self.name, logits, labels), lse)

    def expand(self, g: Any, logits: Any, labels: Any, lse: Any) -> Any:
        wide = widened(logits)
        classes = _shape(logits)[-1]
        kept, labels = self.class_labels(labels)
        target = one_hot(labels, classes, executor.spec_of(wide).dtype)
        if self.label_smoothing:
            target = (1 - self.label_smoothing) * target + self.label_smoothing / classes
        grad = unsqueeze(g, -1) * (exp(wide - unsqueeze(lse, -1)) - target)
        if kept is not None:
            grad = where(unsqueeze(kept, -1), grad, 0.0)
        return cast_like(grad, logits)


# ---- losses ------------------------------------------------------------------------


def reduced(loss: Any, reduction: str) -> Any:
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
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """Cross entropy of softmax(logits) and the target. See ``CrossEntropy``.

    Args:
        logits: [..., classes].
        target: labels [...], or probabilities [..., classes].
        ignore_index: label of rows that do not count.
        label_smoothing: share of the target that is spread over all classes, in [0, 1].
        reduction: "mean" over the rows that count, "sum", or "none": one loss per row.

    Raises:
        IndexRangeError: naming the first label that is not a class.
    """
    logits, target = as_tensors((logits, target))
    if not 0.0 <= label_smoothing <= 1.0:
        raise ShapeError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
    if _shape(target) == _shape(logits) and executor.spec_of(target).dtype.kind == "f":
        return reduced(_soft_cross_entropy(logits, target, label_smoothing), reduction)
    op = CrossEntropy.of(NOTHING if ignore_index is None else ignore_index, float(label_smoothing))
    loss = executor.apply(op, logits, target)[0]
    if reduction != "mean" or ignore_index is None:
        return reduced(loss, reduction)
    kept = cast_like(not_equal(cast(target, dtype.int64), ignore_index), loss)
    return summation(loss) / summation(kept)


def _soft_cross_entropy(logits: Any, target: Any, smoothing: float) -> Any:
    if smoothing:
        target = (1 - smoothing) * target + smoothing / max(_shape(logits)[-1], 1)
    return -summation(target * log_softmax(logits), -1)


def _same_shape(name: str, x: Any, target: Any) -> tuple[Any, Any]:
    x, target = as_tensors((x, target))
    if _shape(x) != _shape(target):
        raise explain(
            ShapeError, name, f"shapes {_shape(x)} and {_shape(target)} differ",
            [("x", x), ("target", target)], "one target for each element",
        )  # fmt: skip
    return x, target


def mse_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squared distance to the target, averaged ("mean"), added ("sum") or per element ("none").

    Raises:
        ShapeError: if the shapes differ.
    """
    x, target = _same_shape("mse_loss", x, target)
    return reduced(square(x - target), reduction)

"""Cross entropy of a linear layer over many classes, without all logits in memory.

Rows are taken in chunks, whose logits are made, used and forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import kernels
from needle.backend.axes import integer
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
    unknown,
)
from needle.executor import shape_of
from needle.ops.core.attributes import flag, real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, cast, promoted, widened
from needle.ops.core.operands import as_tensors, constant
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like, not_equal
from needle.ops.index.indexing import beside
from needle.ops.linalg.matmul import matmul
from needle.ops.loss.losses import NOTHING, CrossEntropy, CrossEntropyGrad
from needle.ops.reduction.reduce import summation
from needle.ops.shape.movement import broadcast_to, concat, reshape

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor, TensorTuple

__all__ = [
    "LinearCrossEntropy", "LinearCrossEntropyGrad", "MeanCrossEntropy", "linear_cross_entropy",
]  # fmt: skip

CHUNK = 1 << 20
"""Logits of a chunk: 4 MB in float32."""

# ---- samples -----------------------------------------------------------------------

_LABELS = np.array([0, 2, -7, 4])
_SIZES = ((4, 3, 5), (0, 2, 3))


def _row_losses(
    ignore: int, s: float, turned: bool, x: Numpy, w: Numpy, labels: Numpy, *bias: Numpy
) -> tuple[Numpy, ...]:
    """Return losses, shift, rest, and the gradient of the logits for rows that weigh 1."""
    logits = x @ (w.T if turned else w) + (bias[0] if bias else 0.0)
    shift = logits.max(-1)
    rest = np.log(np.exp(logits - shift[:, None]).sum(-1))
    classes = logits.shape[1]
    kept = labels != ignore
    hot = np.where(kept, labels, 0)[:, None] == np.arange(classes)
    target = (1 - s) * hot + s / classes
    loss = np.where(kept, shift + rest - (target * logits).sum(-1), 0.0)
    grad = np.where(kept[:, None], np.exp(logits - (shift + rest)[:, None]) - target, 0.0)
    return loss, shift, rest, grad


def _backward(turned: bool, grad: Numpy, x: Numpy, w: Numpy, bias: bool) -> tuple[Numpy, ...]:
    dw = x.T @ grad
    first = grad @ (w if turned else w.T), dw.T if turned else dw
    return (*first, grad.sum(0)) if bias else first


def _rows(ignore: int, s: float, turned: bool, *given: Numpy) -> tuple[Numpy, ...]:
    return _row_losses(ignore, s, turned, *given)[:3]


def _rows_grad(
    ignore: int, s: float, turned: bool, g: Numpy, x: Numpy, w: Numpy, labels: Numpy, shift: Numpy,
    rest: Numpy, *bias: Numpy,
) -> tuple[Numpy, ...]:  # fmt: skip
    logits = x @ (w.T if turned else w) + (bias[0] if bias else 0.0)
    grad = _row_losses(ignore, s, turned, x, w, labels, *bias)[3]
    share = np.exp(logits - (shift + rest)[:, None])
    exact = np.exp(logits - logits.max(-1, keepdims=True))
    exact = exact / exact.sum(-1, keepdims=True)
    grad = grad + np.where((labels != ignore)[:, None], share - exact, 0.0)
    return _backward(turned, g[:, None] * grad, x, w, bool(bias))


def _mean(
    ignore: int, s: float, turned: bool, mean: bool, x: Any, w: Any, labels: Any, *bias: Any
) -> Any:
    loss, *_, grad = _row_losses(ignore, s, turned, x, w, labels, *bias)
    count = (labels != ignore).sum() if mean else 1
    return (loss.sum() / count, *_backward(turned, grad / count, x, w, bool(bias)))


def _cases() -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return the operands, and ignore_index, label_smoothing and transposed, of every case."""
    found = []
    for (n, d, v), bias, turned, ignore, s in (
        (_SIZES[0], False, False, -7, 0.0), (_SIZES[0], True, True, -7, 0.1),
        (_SIZES[0], True, False, NOTHING, 0.0), (_SIZES[1], True, False, NOTHING, 0.2),
    ):  # fmt: skip
        labels = _LABELS[:n] if ignore != NOTHING else np.abs(_LABELS[:n]) % v
        w = uniform((v, d) if turned else (d, v), seed=1)
        given = (uniform((n, d)), w, labels, *((uniform((v,), seed=2),) if bias else ()))
        found.append((given, (ignore, s, turned)))
    return found


def _wrong() -> list[Sample]:
    (x, w, labels), static = _cases()[0]
    return [
        Sample((x[0], w, labels), static, raises=ShapeError),
        Sample((x[:, :2], w, labels), static, raises=ShapeError),
        Sample((x, w, labels[:2]), static, raises=ShapeError),
        Sample((x, w, labels, uniform((2,))), static, raises=ShapeError),
        Sample((x, w, labels + 1), static, raises=IndexRangeError, by_value=True),
        Sample((x, w, labels > 0), static, raises=DtypeError),
        Sample((x, w, labels), (-7, 1.5), raises=OptionError),
    ]


def _row_samples() -> list[Sample]:
    return [
        Sample(given, static, functools.partial(_rows, *static)) for given, static in _cases()
    ] + _wrong()


def _grad_samples() -> list[Sample]:
    samples = []
    for (x, w, labels, *bias), static in _cases():
        parts = _row_losses(*static, x, w, labels, *bias)[1:3]
        given = (uniform(labels.shape, seed=3), x, w, labels, *parts, *bias)
        samples.append(Sample(given, static, functools.partial(_rows_grad, *static)))
    return samples


def _mean_samples() -> list[Sample]:
    made = []
    for (given, static), mean in zip(_cases(), (True, True, False, False), strict=True):
        reference = functools.partial(_mean, *static, mean)
        made.append(Sample(given, (*static, mean, True), reference))
    given, static = _cases()[0]
    alone = Sample(given, (*static, True, False), lambda *x: _mean(*static, True, *x)[0])
    return [*made, alone, *_wrong()]


# ---- the ops -----------------------------------------------------------------------


class LinearLoss(Composite):
    """What cross entropy of a linear layer and its gradient share.

    Attributes:
        ignore_index: label of rows that do not count.
        label_smoothing: share of the target that is spread over all classes.
        transposed: whether the weight is [v, d], as the table of an embedding is.
    """

    ignore_index: int = NOTHING
    label_smoothing: float = 0.0
    transposed: bool = False

    def setup(self) -> None:
        """Check the attributes.

        Raises:
            OptionError: if label_smoothing is not from 0 to 1.
        """
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise OptionError(
                f"{self.name}: label_smoothing is {self.label_smoothing}\n  rule: from 0 to 1"
            )

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not 3 <= len(inputs) <= 4:
            raise ArgumentError(
                f"{self.name}: takes x, weight, labels and a bias, {len(inputs)} were given"
            )
        x, w, labels, *bias = as_tensors(inputs, self.name)
        x, w, *bias = promoted((x, w, *bias), self.name, floating=True)
        return (x, w, labels, *bias)

    def compute(
        self, x: NDArray, w: NDArray, labels: NDArray, *bias: NDArray
    ) -> NDArray | tuple[NDArray, ...]:
        named = [("x", x), ("weight", w), ("labels", labels), *(("bias", y) for y in bias)]
        width, classes = (1, 0) if self.transposed else (0, 1)
        fits = x.ndim == 2 and w.ndim == 2 and x.shape[1] == w.shape[width]
        fits = fits and labels.shape == x.shape[:1]
        if not fits or any(y.shape != (w.shape[classes],) for y in bias):
            shapes = ", ".join(f"{name} {y.shape}" for name, y in named)
            weight = "weight [v, d]" if self.transposed else "weight [d, v]"
            raise explain(
                ShapeError, self.name, f"shapes do not fit: {shapes}", named,
                f"x [n, d], {weight}, labels [n], bias [v]",
            )  # fmt: skip
        labels = kernels.integers(self.name, labels)
        kernels.check_labels(self.name, labels, w.shape[classes], self.ignore_index)
        return super().compute(x, w, labels, *bias)

    def chunks(self, rows: int, classes: int) -> Iterator[slice]:
        """Return which rows are taken together: as many as sizes say, so that bits do too."""
        size = max(64, CHUNK // max(classes, 1))
        return (slice(i, min(i + size, rows)) for i in range(0, max(rows, 1), size))

    def weight(self, w: Tensor) -> Tensor:
        """Return the weight [d, v], in float32 at least."""
        return widened(w).T if self.transposed else widened(w)

    def logits(self, x: Tensor, w: Tensor, bias: Sequence[Tensor]) -> Tensor:
        """Return the logits of some rows, w as ``weight`` gives it."""
        logits = matmul(widened(x), w)
        return logits + widened(bias[0]) if bias else logits

    def losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return losses, shift and rest of some rows."""
        op = CrossEntropy.of(self.ignore_index, self.label_smoothing)
        return executor.several(op, logits, labels)

    def slopes(
        self, g: Tensor, logits: Tensor, labels: Tensor, shift: Tensor, rest: Tensor
    ) -> Tensor:
        """Return the gradient of the logits of some rows."""
        op = CrossEntropyGrad.of(self.ignore_index, self.label_smoothing)
        return executor.apply(op, g, logits, labels, shift, rest)

    def joined(
        self, sums: Any, slopes: Tensor, x: Tensor, w: Tensor
    ) -> tuple[Tensor | tuple[Tensor, ...], ...]:
        """Return dx of some rows, and dw and db with what these add to them."""
        dw, db = matmul(widened(x).T, slopes), summation(slopes, 0)
        if sums is not None:
            dw, db = sums[0] + dw, sums[1] + db
        return matmul(slopes, w.T), (dw, db)

    def grads(
        self, x: Tensor, w: Tensor, bias: Sequence[Tensor], parts: list[Any], sums: Any
    ) -> tuple[Tensor, ...]:
        """Return dx, dw and, where there is a bias, db in the dtypes of what they belong to."""
        dw, db = sums
        dw = cast_like(dw.T if self.transposed else dw, w)
        dx = cast_like(concat(parts), x)
        return (dx, dw, cast_like(db, bias[0])) if bias else (dx, dw)


class LinearCrossEntropy(LinearLoss):
    """Cross entropy of ``x weight + bias`` and labels, per row. See ``CrossEntropy``.

    Shapes:   x [n, d], weight [...]: [d, v], transposed: [v, d]; labels [n], bias [v] if given
              -> loss [n], shift [n], rest [n]
    Dtypes:   x, weight and bias floating, promoted together; labels integer (or floating with whole
              values); results in float32 at least
    Gradient: x, weight, bias; any order
    Raises:   ShapeError if shapes do not fit; IndexRangeError naming the first label that is not a
              class; DtypeError for labels of another kind; OptionError if label_smoothing is not
              from 0 to 1
    """

    saves = ((*range(4), OUTPUT),)
    samples = staticmethod(_row_samples)

    def expand(self, x: Tensor, w: Tensor, labels: Tensor, *bias: Tensor) -> tuple[Tensor, ...]:
        wide = self.weight(w)
        found = [
            self.losses(self.logits(x[rows], wide, bias), labels[rows])
            for rows in self.chunks(shape_of(x)[0], shape_of(wide)[1])
        ]
        return tuple(map(concat, zip(*found, strict=True)))

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        if out_grad[1] is not None or out_grad[2] is not None:
            return super().gradient(out_grad, out)
        x, w, labels, *bias = out.inputs
        op = LinearCrossEntropyGrad.of(self.ignore_index, self.label_smoothing, self.transposed)
        found = executor.several(op, out_grad[0], x, w, labels, out[1], out[2], *bias)
        return (*found[:2], None, *found[2:])


class LinearCrossEntropyGrad(LinearLoss):
    """Gradient of ``LinearCrossEntropy``, for which logits are made again.

    Shapes:   g [n], x [n, d], weight [...]: [d, v], transposed: [v, d]; labels [n], shift [n],
              rest [n], bias [v] if given -> dx [n, d], dweight [...] and for a bias dbias [v]
    Dtypes:   floating; g, shift and rest in float32 at least; labels integer
    Gradient: g, x, weight, shift, rest, bias; any order
    """

    saves = (tuple(range(8)),)
    samples = staticmethod(_grad_samples)

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return as_tensors(inputs, self.name)

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        labels = kernels.integers(self.name, arrays[3])
        return Composite.compute(self, *arrays[:3], labels, *arrays[4:])

    def expand(
        self, g: Tensor, x: Tensor, w: Tensor, labels: Tensor, *more: Tensor
    ) -> tuple[Tensor, ...]:
        shift, rest, *bias = more
        wide, parts, sums = self.weight(w), [], None
        for rows in self.chunks(shape_of(x)[0], shape_of(wide)[1]):
            logits = self.logits(x[rows], wide, bias)
            slopes = self.slopes(g[rows], logits, labels[rows], shift[rows], rest[rows])
            dx, sums = self.joined(sums, slopes, x[rows], wide)
            parts.append(dx)
        return self.grads(x, w, bias, parts, sums)


class MeanCrossEntropy(LinearLoss):
    """Mean or sum over rows of ``LinearCrossEntropy``, with its gradient made on the way.

    The mean is over the rows that count. What the gradient reads is ready when the loss is: each
    chunk's logits are made once.

    Attributes:
        mean: whether to divide by the number of rows that count.
        with_gradient: whether to make the gradients of the loss, too.

    Shapes:   x [n, d], weight [...]: [d, v], transposed: [v, d]; labels [n], bias [v] if given
              -> loss [], and with_gradient dx [n, d], dweight [...] and for a bias dbias [v]
    Dtypes:   as LinearCrossEntropy: x, weight and bias floating; the loss in float32 at least
    Gradient: x, weight, bias; any order
    Raises:   as LinearCrossEntropy: ShapeError, IndexRangeError, DtypeError, OptionError
    """

    mean: bool = True
    with_gradient: bool = True
    saves = ((*range(4), OUTPUT),)
    samples = staticmethod(_mean_samples)

    def expand(
        self, x: Tensor, w: Tensor, labels: Tensor, *bias: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        wide, parts, sums = self.weight(w), [], None
        total: Any = None
        share = self._share(labels, wide)
        for rows in self.chunks(shape_of(x)[0], shape_of(wide)[1]):
            logits = self.logits(x[rows], wide, bias)
            loss, shift, rest = self.losses(logits, labels[rows])
            loss = summation(loss)
            total = loss if total is None else total + loss
            if self.with_gradient:
                g = broadcast_to(share, shape_of(shift))
                slopes = self.slopes(g, logits, labels[rows], shift, rest)
                dx, sums = self.joined(sums, slopes, x[rows], wide)
                parts.append(dx)
        if not self.with_gradient:
            return total * share
        return (total * share, *self.grads(x, w, bias, parts, sums))

    def _share(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the weight of a row: 1, or 1 / the number of rows."""
        if not self.mean:
            spec = executor.spec_of(like)
            return constant(1.0, spec.dtype, spec.device)
        counts = not_equal(cast(labels, dtypes.int64), self.ignore_index)
        return 1.0 / summation(cast_like(counts, like))

    def gradient(self, out_grad: Any, out: TensorTuple) -> Gradients:
        if not self.with_gradient or any(g is not None for g in out_grad[1:]):
            return super().gradient(out_grad, out)
        grads = [out[i] * cast_like(out_grad[0], out[i]) for i in range(1, len(out.spec))]
        return (*grads[:2], None, *grads[2:])


# ---- the function ------------------------------------------------------------------


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Operand,
    bias: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    transposed: bool = False,
) -> Tensor:
    """Return ``cross_entropy(x @ weight + bias, labels)`` without all logits in memory.

    Args:
        x: [..., d].
        weight: [d, v], or [v, d] if ``transposed``: the table of an embedding.
        labels: [...], a tensor, an array or a list.
        bias: [v], or None.
        ignore_index: label of rows that do not count.
        label_smoothing: share of the target that is spread over all classes, in [0, 1].
        reduction: "mean" over the rows that count, "sum", or "none": one loss per row.
        transposed: whether the weight is [v, d].

    Raises:
        ShapeError: if shapes do not fit.
        IndexRangeError: naming the first label that is not a class.
        OptionError: if label_smoothing is not in [0, 1], or for another reduction.

    >>> x, weight = Tensor([[1.0, 0.0]]), Tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> labels = Tensor([0], dtype="int64")
    >>> round(ndl.linear_cross_entropy(x, weight, labels).item(), 4)
    0.1269
    """
    name = "linear_cross_entropy"
    if reduction not in ("mean", "sum", "none"):
        raise unknown(f"{name}: reduction", reduction, ("mean", "sum", "none"))
    x, labels = as_tensors((x, beside(x, labels)), name)
    shape, rest = shape_of(x), () if bias is None else (bias,)
    if not shape or shape_of(labels) != shape[:-1]:
        problem = f"labels have shape {shape_of(labels)}, x {shape}"
        raise explain(
            ShapeError, name, problem, [("x", x), ("labels", labels)], "x [..., d], labels [...]"
        )
    given = (reshape(x, (-1, shape[-1])), weight, reshape(labels, (-1,)), *rest)
    ignored = NOTHING if ignore_index is None else integer(f"{name}: ignore_index", ignore_index)
    smoothing = real(f"{name}: label_smoothing", label_smoothing)
    static = (ignored, smoothing, flag(f"{name}: transposed", transposed))
    if reduction == "none":
        loss = executor.apply(LinearCrossEntropy.of(*static), *given)[0]
        return reshape(loss, shape[:-1])
    needs = graph.recording() and any(getattr(y, "requires_grad", False) for y in given)
    found = executor.apply(MeanCrossEntropy.of(*static, reduction == "mean", needs), *given)
    return found[0] if needs else found

"""Recurrent layers and attention on the native CPU: a whole sequence in a few calls.

Each override takes the op and the arrays, as the op's ``expand`` does. float16 and bfloat16 are
computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.contract import override
from needle.backend.ndarray import NDArray, empty, full
from needle.dtype import DType

# ---- recurrent layers --------------------------------------------------------------

_CELLS = {"LSTM": "lstm", "LSTMGrad": "lstm", "GRU": "gru", "GRUGrad": "gru"}


def _wide(x: NDArray) -> DType:
    """Return the dtype of the computation."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _dense(x: NDArray, dtype: DType) -> NDArray:
    """Return x in a dtype and in C order; x itself where it is so already."""
    x = x.astype(dtype, copy=False)
    if x.strides == x.spec.strides:
        return x
    return x.reshape(x.shape) if x.is_dense() else x.compact()


def _cell(op: Any) -> str:
    """Return the kernel's name of the cell."""
    return _CELLS.get(type(op).__name__) or op.nonlinearity


def _rows(x: NDArray) -> NDArray:
    """Return [t, b, n] as [t b, n]."""
    return x.reshape((x.shape[0] * x.shape[1], x.shape[2]))


def _lengths(op: Any, arrays: tuple[NDArray, ...]) -> NDArray | None:
    return _dense(arrays[-1], dtypes.int64) if op.masked else None


def _narrowed(x: NDArray, dtype: DType) -> NDArray:
    return x.astype(dtype, copy=False)


def _forward(op: Any, x: NDArray, *rest: NDArray) -> Any:
    """Compute the sums of the inputs of all steps as one product, then the steps."""
    states = op.gradient_op.states
    arrays = (x, *rest[: len(rest) - op.masked])
    if any(y.dtype is not x.dtype for y in arrays) or x.dtype.kind != "f" or x.size == 0:
        return NotImplemented
    wide = _wide(x)
    xs, *more = [_dense(y, wide) for y in arrays]
    start, (w_ih, w_hh, *biases) = more[:states], more[states:]
    t, b, _ = x.shape
    h = w_hh.shape[0]
    if h == 0:
        return NotImplemented
    inputs = kernels.matmul(_rows(xs), w_ih).reshape((t, b, w_ih.shape[1]))

    def made(*shape: int) -> NDArray:
        return empty(shape, wide, x.device)

    cell = _cell(op)
    gates = made(t, b, 4 * h) if cell == "gru" else inputs
    cells = made(t, b, h) if states == 2 else None
    out, last = made(t, b, h), [made(b, h) for _ in range(states)]
    x.device.backend.core.recurrent(
        cell, op.reverse,
        [out, last[0], last[1] if states == 2 else None, gates, cells],
        [inputs, start[0], start[1] if states == 2 else None, w_hh, _bias(biases, h),
         _lengths(op, rest)],
    )  # fmt: skip
    results = [_narrowed(y, x.dtype) for y in (out, *last)]
    return (*results, gates) if cells is None else (*results, gates, cells)


def _bias(biases: list[NDArray], h: int) -> NDArray:
    """Return what is added to the gates. GRU's third part keeps its two biases apart."""
    if len(biases) == 1:
        return biases[0]
    given, recurrent = biases
    both = kernels.elementwise(
        "add", given.slice([(0, 2 * h, 1)]), recurrent.slice([(0, 2 * h, 1)])
    )
    rest = [y.slice([(2 * h, h, 1)]) for y in biases]
    return kernels.concatenate((both, *rest), 0)


def _backward(op: Any, g_out: NDArray, *rest: NDArray) -> Any:
    """Compute the gradients of all gates step by step, then each result as one product."""
    states = op.states
    arrays = [g_out, *rest[: len(rest) - op.masked]]
    if any(y.dtype.kind != "f" for y in arrays) or g_out.size == 0:
        return NotImplemented
    x = arrays[states + 1]
    if x.size == 0:
        return NotImplemented
    wide = _wide(x)
    if any(y.dtype is dtypes.float64 for y in arrays) != (wide is dtypes.float64):
        return NotImplemented
    given = [_dense(y, wide) for y in arrays]
    g, seeds, (xs, *start) = given[0], given[1 : states + 1], given[states + 1 : 2 * states + 2]
    w_ih, w_hh, out, gates = given[2 * states + 2 : 2 * states + 6]
    cells = given[2 * states + 6] if states == 2 else None
    t, b, h = out.shape
    lengths = _lengths(op, rest)
    dgates = empty(gates.shape, wide, x.device)
    dstates = [empty((b, h), wide, x.device) for _ in range(states)]
    two = states == 2
    x.device.backend.core.recurrent_grad(
        _cell(op), op.reverse,
        [dgates, dstates[0], dstates[1] if two else None],
        [g, seeds[0], seeds[1] if two else None, out, gates, cells, start[0],
         start[1] if two else None, w_hh, lengths],
    )  # fmt: skip
    into_x, into_h = _sums_of_gates(_rows(dgates), w_hh.shape[1])
    made: list[Callable[[], NDArray]] = [
        lambda: kernels.matmul(into_x, w_ih.permute((1, 0))).reshape(x.shape),
        *[partial(_narrowed, y, wide) for y in dstates],
        lambda: kernels.matmul(_rows(xs).permute((1, 0)), into_x),
        lambda: _recurrent_weights(op, out, start[0], into_h, lengths),
        *[partial(kernels.reduce, "sum", y, (0,)) for y in (into_x, into_h)[: op.biases]],
    ]
    weights = arrays[2 * states + 2 : 2 * states + 4]
    like = [x, *arrays[states + 2 : 2 * states + 2], *weights, *weights[-1:] * op.biases]
    shapes = [y.shape for y in like[: 3 + states]] + [w_hh.shape[1:]] * op.biases
    return tuple(
        _narrowed(make(), y.dtype) if op.wanted >> i & 1 else _zeros(shape, y)
        for i, (make, y, shape) in enumerate(zip(made, like, shapes, strict=True))
    )


def _zeros(shape: tuple[int, ...], like: NDArray) -> NDArray:
    """Return zeros that take the memory of one."""
    return full((), 0.0, like.dtype, like.device).broadcast_to(shape)


def _sums_of_gates(dgates: NDArray, n: int) -> tuple[NDArray, NDArray]:
    """Return the gradients of ``x w_ih`` and of ``h w_hh``; only GRU's last thirds differ."""
    if dgates.shape[1] == n:
        return dgates, dgates
    rows, h = dgates.shape[0], n // 3
    everything = (0, rows, 1)
    first = dgates.slice([everything, (0, 2 * h, 1)])
    last = dgates.slice([everything, (3 * h, h, 1)])
    return dgates.slice([everything, (0, n, 1)]), kernels.concatenate((first, last), 1)


def _recurrent_weights(
    op: Any, out: NDArray, start: NDArray, into_h: NDArray, lengths: NDArray | None
) -> NDArray:
    """Return the gradient of w_hh: the states before each step, times those of the gates."""
    t, b, h = out.shape
    everything = [(0, b, 1), (0, h, 1)]
    first = start.unsqueeze(0)
    if op.reverse:
        later = out.slice([(1, t - 1, 1), *everything])
        if lengths is not None:  # a row begins with its last step
            number = kernels.arange(t - 1, dtypes.int64, out.device, 1).reshape((t - 1, 1, 1))
            grid = (t - 1, b, h)
            runs = kernels.elementwise(
                "greater", lengths.reshape((1, b, 1)).broadcast_to(grid), number.broadcast_to(grid),
                dtype=dtypes.bool_,
            )  # fmt: skip
            later = kernels.elementwise("where", runs, later, first.broadcast_to(grid))
        before = kernels.concatenate((later, first), 0)
    else:
        before = kernels.concatenate((first, out.slice([(0, t - 1, 1), *everything])), 0)
    return kernels.matmul(_rows(before).permute((1, 0)), into_h)


for _name in ("RNN", "GRU", "LSTM"):
    override("cpu", _name)(_forward)
    override("cpu", f"{_name}Grad")(_backward)


# ---- the loss of a linear layer ----------------------------------------------------


@override("cpu", "MeanCrossEntropy")
def mean_cross_entropy(op: Any, x: NDArray, w: NDArray, labels: NDArray, *bias: NDArray) -> Any:
    """The loss and its gradients, chunk by chunk of rows, in the memory of one chunk."""
    arrays = (x, w, *bias)
    if any(y.dtype is not x.dtype for y in arrays) or x.dtype.kind != "f" or w.size == 0:
        return NotImplemented
    if x.size == 0 or labels.dtype.kind not in "iu":
        return NotImplemented
    wide, device = _wide(x), x.device
    xs, ws, *added = [_dense(y, wide) for y in arrays]
    labels = _dense(labels, labels.dtype)
    by_class = ws.permute((1, 0)) if op.transposed else ws  # [d, v]
    (n, _), v = x.shape, by_class.shape[1]
    share = _share(op, labels, wide)
    losses, gradients = empty((n,), wide, device), _Gradients(op, xs, ws, by_class, share)
    for rows in op.chunks(n, v):
        first, count = rows.start, rows.stop - rows.start
        some_x, some_labels = _from(xs, first, count), _from(labels, first, count)
        logits = kernels.matmul(some_x, by_class)
        if added:
            wide_bias = added[0].broadcast_to((count, v))
            device.backend.elementwise("add", logits, logits, wide_bias)
        found = device.backend.core.overrides["CrossEntropy"](op, logits, some_labels)
        if found is NotImplemented:
            return NotImplemented
        device.backend.copy(_from(losses, first, count), found[0])
        if op.with_gradient:
            gradients.add(some_x, logits, some_labels, found[1:], first)
    total = kernels.reduce("sum", losses, (0,))
    total = kernels.elementwise("multiply", total, share)
    if not op.with_gradient:
        return total
    return (total, *gradients.results(arrays))


def _share(op: Any, labels: NDArray, wide: DType) -> NDArray:
    """Return what a row counts."""
    one = full((), 1.0, dtypes.float64, labels.device)
    if op.mean:
        ignored = full((), op.ignore_index, dtypes.int64, labels.device)
        counts = kernels.elementwise(
            "not_equal", labels.astype(dtypes.int64, copy=False), ignored, dtype=dtypes.bool_
        )
        count = kernels.reduce("sum", counts.astype(dtypes.int64), (0,))
        one = kernels.elementwise("divide", one, count.astype(dtypes.float64))
    return one.astype(wide, copy=False)


def _from(x: NDArray, first: int, count: int) -> NDArray:
    """Return some rows of x, as a view."""
    return x.slice([(first, count, 1), *[(0, size, 1) for size in x.shape[1:]]])


class _Gradients:
    """What the chunks add up to: gradients of x, of the weight and of the bias."""

    def __init__(self, op: Any, x: NDArray, w: NDArray, by_class: NDArray, share: NDArray) -> None:
        self.op, self.by_class, self.share, self.core = op, by_class, share, x.device.backend.core
        if op.with_gradient:
            self.dx = empty(x.shape, x.dtype, x.device)
            self.dw = full(w.shape, 0.0, w.dtype, w.device)
            self.db = full((by_class.shape[1],), 0.0, w.dtype, w.device)

    def add(
        self,
        x: NDArray,
        logits: NDArray,
        labels: NDArray,
        statistics: Sequence[NDArray],
        first: int,
    ) -> None:
        """Add a chunk. Its logits become their gradients."""
        count = x.shape[0]
        g = self.share.broadcast_to((count,))
        self.core.overrides["CrossEntropyGrad"](self.op, g, logits, labels, *statistics, logits)
        self.core.matmul(_from(self.dx, first, count), logits, self.by_class.permute((1, 0)))
        left, right = (logits, x) if self.op.transposed else (x, logits)
        self.core.matmul_add(self.dw, left.permute((1, 0)), right)
        x.device.backend.elementwise("add", self.db, self.db, kernels.reduce("sum", logits, (0,)))

    def results(self, like: tuple[NDArray, ...]) -> list[NDArray]:
        """Return the gradients in the dtypes of what they belong to."""
        made = (self.dx, self.dw, self.db)
        return [_narrowed(x, y.dtype) for x, y in zip(made, like, strict=False)]


# ---- attention ---------------------------------------------------------------------


def _rows_dense(x: NDArray, dtype: DType) -> NDArray:
    """Return x in a dtype, with neighbours along the last axis side by side."""
    x = x.astype(dtype, copy=False)
    return x if x.strides[-1] == 1 or x.shape[-1] == 1 else x.compact()


def _laid_out_as(x: NDArray, shape: tuple[int, ...], dtype: DType) -> NDArray:
    """Return an empty array whose heads lie in memory as x's: before the rows, or within them."""
    b, h, t, d = shape
    if x.strides[1] >= x.strides[2] or x.shape[1] == 1:
        return empty(shape, dtype, x.device)
    return empty((b, t, h, d), dtype, x.device).permute((0, 2, 1, 3))


def _others(op: Any, q: NDArray, k: NDArray, rest: tuple[NDArray, ...]) -> list[NDArray | None]:
    """Return the mask, repeated as often as there are scores, and the lengths of the keys."""
    mask, lengths, _ = op.apart(rest)
    if mask is not None:
        mask = mask if mask.dtype is dtypes.bool_ else mask.astype(_wide(q), copy=False)
        mask = mask.broadcast_to((*q.shape[:3], k.shape[2]))
    return [mask, None if lengths is None else _dense(lengths, dtypes.int64)]


def _is_native(op: Any, *arrays: NDArray) -> bool:
    wide = {y.dtype is dtypes.float64 for y in arrays}
    return not op.dropout and len(wide) == 1 and all(y.size and y.dtype.kind == "f" for y in arrays)


@override("cpu", "Attention")
def attention(op: Any, q: NDArray, k: NDArray, v: NDArray, *rest: NDArray) -> Any:
    """Attention block by block: the scores are never in memory as a whole."""
    if not _is_native(op, q, k, v):
        return NotImplemented
    wide = _wide(q)
    given = [_rows_dense(x, wide) for x in (q, k, v)]
    out = _laid_out_as(q, (*q.shape[:3], v.shape[3]), wide)
    shift, rows = (empty(q.shape[:3], wide, q.device) for _ in range(2))
    core = q.device.backend.core
    inputs = [*given, *_others(op, q, k, rest)]
    if not core.attention([out, shift, rows], inputs, op.scale, op.causal):
        return NotImplemented
    return _narrowed(out, q.dtype), shift, rows


@override("cpu", "AttentionGrad")
def attention_grad(
    op: Any, g: NDArray, q: NDArray, k: NDArray, v: NDArray, out: NDArray, *more: NDArray
) -> Any:
    """Gradients of attention: the probabilities of each block are computed again."""
    shift, rows, *rest = more
    if not _is_native(op, g, q, k, v, out, shift, rows):
        return NotImplemented
    wide = _wide(q)
    given = [_rows_dense(x, wide) for x in (g, q, k, v, out)]
    results = [_laid_out_as(x, x.shape, wide) for x in (q, k, v)]
    statistics = [_dense(x, wide) for x in (shift, rows)]
    core = q.device.backend.core
    inputs = [*given, *statistics, *_others(op, q, k, tuple(rest))]
    if not core.attention_grad(results, inputs, op.scale, op.causal):
        return NotImplemented
    return tuple(_narrowed(x, y.dtype) for x, y in zip(results, (q, k, v), strict=True))

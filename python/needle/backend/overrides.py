"""Composites that the native CPU computes as a whole, in one pass over the memory if possible.

Each takes the op and the arrays, like the op's ``expand``, and returns NotImplemented for arrays
that the kernels (src/common/kernels.h) do not support. This only depends on the specs.
"""

from __future__ import annotations

import functools
from typing import Any

from needle import dtype as dtypes
from needle.backend import kernels, override
from needle.backend.array import shortcut
from needle.backend.axes import normalise_axes
from needle.backend.index_errors import bad_label
from needle.backend.ndarray import NDArray, empty, empty_of, full
from needle.dtype import DType

_layer_norm_of, _layer_norm_grad_of = shortcut("layer_norm_of"), shortcut("layer_norm_grad_of")
_rms_norm_of, _rms_norm_grad_of = shortcut("rms_norm_of"), shortcut("rms_norm_grad_of")
_cross_entropy_of = shortcut("cross_entropy_of")
_cross_entropy_grad_of = shortcut("cross_entropy_grad_of")

SOFTMAX, LOG_SOFTMAX, LOG_SUM_EXP = 0, 1, 2
LAYER, RMS = 0, 1


def _core(x: NDArray) -> Any:
    return x.device.backend.core


def _wide(x: NDArray) -> DType:
    """Return the dtype of statistics."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _dense(*arrays: NDArray) -> list[NDArray]:
    # The kernels ask for the very strides of a dense array, also on axes of size 1: reshape.
    return [
        x if x.strides == x.spec.strides else x.reshape(x.shape) if x.is_dense() else x.copy()
        for x in arrays
    ]


def _like(x: NDArray) -> NDArray:
    return empty_of(x.spec)


def _floating(first: NDArray, *others: NDArray) -> bool:
    dtype = first.dtype
    for x in others:
        if x.dtype is not dtype:
            return False
    return dtype.kind == "f"


# ---- variance ----------------------------------------------------------------------


@override("cpu", "Var")
def var(op: Any, x: NDArray) -> Any:
    """Variance in one pass over the memory."""
    axes = normalise_axes(op.axes, x.ndim)
    if not _floating(x) or x.size == 0:
        return NotImplemented
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    out = empty(kept, x.dtype, x.device)
    mask = sum(1 << axis for axis in axes)
    _core(x).reduce(kernels.reduction_code("variance"), out, x, mask, op.factor(x))
    return out if op.keepdims else out.squeeze(axes)


# ---- products ----------------------------------------------------------------------


def _product_grad(kind: int, op: Any, x: NDArray, g: NDArray) -> Any:
    if not _floating(x, g) or x.shape != g.shape or not -x.ndim <= op.axis < x.ndim:
        return NotImplemented
    dense, dx = x if x.is_dense() else x.copy(), _like(x)
    _core(x).product_grad(kind, dx, dense, g, op.axis % x.ndim)
    return dx


@override("cpu", "ProdGrad")
def prod_grad(op: Any, x: NDArray, g: NDArray) -> Any:
    """Gradient of products: one pass over the memory."""
    return _product_grad(0, op, x, g)


@override("cpu", "CumProdGrad")
def cumprod_grad(op: Any, x: NDArray, g: NDArray) -> Any:
    """Gradient of running products: one pass over the memory."""
    return _product_grad(1, op, x, g)


# ---- softmax -----------------------------------------------------------------------


@functools.cache
def _last(axis: int, ndim: int) -> tuple[int, ...]:
    """Return the order of axes that puts one last."""
    return (*range(axis), *range(axis + 1, ndim), axis)


def _along(kernel: Any, kind: int, axis: int, *inputs: NDArray) -> NDArray:
    """Run a kernel for the last axis along another axis, with results laid out as by NumPy.

    If only that axis is contiguous, the results have the layout of the first input.
    """
    x = inputs[0]
    axis %= x.ndim
    if axis == x.ndim - 1:
        out = empty_of(x.spec)
        kernel(kind, out, *inputs)
        return out
    order = _last(axis, x.ndim)
    rows = [y.permute(order) for y in inputs]
    if x.strides[axis] == 1:
        out = empty_of(rows[0].spec)
        kernel(kind, out, *rows)
        return out.permute([*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)])
    out = empty_of(x.spec)
    kernel(kind, out.permute(order), *rows)
    return out


def _softmax(kind: int, op: Any, x: NDArray) -> Any:
    if not _floating(x) or not -x.ndim <= op.axis < x.ndim:
        return NotImplemented
    return _along(_core(x).softmax, kind, op.axis, x)


def _softmax_grad(kind: int, op: Any, out: NDArray, g: NDArray) -> Any:
    if not _floating(out, g) or not -g.ndim <= op.axis < g.ndim or out.shape != g.shape:
        return NotImplemented
    return _along(_core(g).softmax_grad, kind, op.axis, out, g)


@override("cpu", "Softmax")
def softmax(op: Any, x: NDArray) -> Any:
    """Softmax of rows."""
    return _softmax(SOFTMAX, op, x)


@override("cpu", "LogSoftmax")
def log_softmax(op: Any, x: NDArray) -> Any:
    """Log-softmax of rows."""
    return _softmax(LOG_SOFTMAX, op, x)


@override("cpu", "SoftmaxGrad")
def softmax_grad(op: Any, out: NDArray, g: NDArray) -> Any:
    """Gradient of softmax."""
    return _softmax_grad(SOFTMAX, op, out, g)


@override("cpu", "LogSoftmaxGrad")
def log_softmax_grad(op: Any, out: NDArray, g: NDArray) -> Any:
    """Gradient of log-softmax."""
    return _softmax_grad(LOG_SOFTMAX, op, out, g)


@override("cpu", "LogSumExp")
def log_sum_exp(op: Any, x: NDArray) -> Any:
    """Logarithm of the sum of exponentials, over one axis or axes that can be viewed as one."""
    axes = normalise_axes(op.axes, x.ndim)
    if not _floating(x) or x.size == 0 or not axes:
        return NotImplemented
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    axis, end = axes[0], axes[-1] + 1
    if len(axes) > 1:
        if end - axis > len(axes) or not x.is_dense():
            return NotImplemented
        x = x.reshape((*x.shape[:axis], -1, *x.shape[end:]))
    out = empty((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype, x.device)
    order = _last(axis, x.ndim)
    _core(x).softmax(LOG_SUM_EXP, out.permute(order), x.permute(order))
    return out.reshape(kept) if op.keepdims else out.squeeze((axis,))


# ---- cross entropy -----------------------------------------------------------------


def _rows(x: NDArray) -> NDArray:
    classes = x.shape[-1]
    return x if x.ndim == 2 else x.reshape((x.size // classes, classes))


def _bad_label(operation: str, labels: NDArray, position: int, classes: int) -> Exception:
    value, text = labels.numpy().reshape(-1)[position], f"{labels.dtype}{list(labels.shape)}"
    return bad_label(operation, text, position, classes, value)


@override("cpu", "CrossEntropy")
def cross_entropy(op: Any, logits: NDArray, labels: NDArray) -> Any:
    """Losses, and the logarithms of the sums of exponentials in two parts."""
    made = _cross_entropy_of(logits, labels, op.ignore_index, op.label_smoothing)
    if made is not None:
        return made
    if not _floating(logits) or logits.shape[-1] == 0:
        return NotImplemented
    outs = tuple(empty(labels.shape, _wide(logits), logits.device) for _ in range(3))
    rows, flat = _rows(logits), labels.reshape((labels.size,))
    bad = _core(logits).cross_entropy(*outs, rows, flat, op.ignore_index, op.label_smoothing)
    if bad >= 0:
        raise _bad_label(op.name, labels, bad, logits.shape[-1])
    return outs


@override("cpu", "CrossEntropyGrad")
def cross_entropy_grad(
    op: Any, g: NDArray, logits: NDArray, labels: NDArray, shift: NDArray, rest: NDArray
) -> Any:
    """Gradient with respect to the logits."""
    made = _cross_entropy_grad_of(
        g, logits, labels, shift, rest, op.ignore_index, op.label_smoothing
    )
    if made is not None:
        return made
    if not _floating(logits) or logits.shape[-1] == 0:
        return NotImplemented
    if any(x.dtype != _wide(logits) for x in (g, shift, rest)):
        return NotImplemented
    if any(x.shape != logits.shape[:-1] for x in (g, labels, shift, rest)):
        return NotImplemented
    dlogits = _like(logits)
    g, *parts = _dense(g, shift, rest)
    bad = _core(logits).cross_entropy_grad(
        _rows(dlogits), g, _rows(logits), labels.reshape((labels.size,)), *parts,
        op.ignore_index, op.label_smoothing,
    )  # fmt: skip
    if bad >= 0:
        raise _bad_label(op.name, labels, bad, logits.shape[-1])
    return dlogits


# ---- norms -------------------------------------------------------------------------


def _statistics(x: NDArray, shape: tuple[int, ...], count: int = 2) -> list[NDArray]:
    return [empty(shape, _wide(x), x.device) for _ in range(count)]


@override("cpu", "LayerNorm")
def layer_norm(op: Any, x: NDArray, weight: NDArray, bias: NDArray) -> Any:
    """Layer norm, its means and reciprocal deviations."""
    made = _layer_norm_of(x, weight, bias, op.eps)
    if made is not None:
        return made
    if not _floating(x, weight, bias) or x.size == 0:
        return NotImplemented
    x, weight, bias = _dense(x, weight, bias)
    out = _like(x)
    mean, rstd = _statistics(x, x.shape[:-1])
    _core(x).layer_norm(LAYER, out, mean, rstd, x, weight, bias, op.eps)
    return out, mean, rstd


@override("cpu", "LayerNormGrad")
def layer_norm_grad(
    op: Any, g: NDArray, x: NDArray, weight: NDArray, mean: NDArray, rstd: NDArray
) -> Any:
    """Gradients of layer norm."""
    made = _layer_norm_grad_of(g, x, weight, mean, rstd)
    if made is not None:
        return made
    if not _floating(x, g, weight) or x.size == 0 or mean.dtype is not _wide(x):
        return NotImplemented
    if not _rows_fit(g, x, weight, mean, rstd):
        return NotImplemented
    g, x, weight, mean, rstd = _dense(g, x, weight, mean, rstd)
    dx, dweight, dbias = _like(x), _like(weight), _like(weight)
    _core(x).layer_norm_grad(LAYER, dx, dweight, dbias, g, x, weight, mean, rstd)
    return dx, dweight, dbias


def _rows_fit(g: NDArray, x: NDArray, weight: NDArray, *statistics: NDArray) -> bool:
    """Return whether the shapes are those of the forward op."""
    rows = all(a.shape == x.shape[:-1] and a.dtype is _wide(x) for a in statistics)
    return rows and x.ndim > 0 and g.shape == x.shape and weight.shape == x.shape[-1:]


@override("cpu", "RMSNorm")
def rms_norm(op: Any, x: NDArray, weight: NDArray) -> Any:
    """RMS norm and its reciprocal root mean squares."""
    made = _rms_norm_of(x, weight, op.eps)
    if made is not None:
        return made
    if not _floating(x, weight) or x.size == 0:
        return NotImplemented
    x, weight = _dense(x, weight)
    out, bias = _like(x), full(weight.shape, 0.0, weight.dtype, weight.device)
    mean, rstd = _statistics(x, x.shape[:-1])
    _core(x).layer_norm(RMS, out, mean, rstd, x, weight, bias, op.eps)
    return out, rstd


@override("cpu", "RMSNormGrad")
def rms_norm_grad(op: Any, g: NDArray, x: NDArray, weight: NDArray, rstd: NDArray) -> Any:
    """Gradients of RMS norm."""
    made = _rms_norm_grad_of(g, x, weight, rstd)
    if made is not None:
        return made
    if not _floating(x, g, weight) or x.size == 0 or rstd.dtype is not _wide(x):
        return NotImplemented
    if not _rows_fit(g, x, weight, rstd):
        return NotImplemented
    g, x, weight, rstd = _dense(g, x, weight, rstd)
    dx, dweight, dbias = _like(x), _like(weight), _like(weight)
    _core(x).layer_norm_grad(RMS, dx, dweight, dbias, g, x, weight, rstd, rstd)
    return dx, dweight


@override("cpu", "BatchNorm")
def batch_norm(op: Any, x: NDArray, weight: NDArray, bias: NDArray) -> Any:
    """Batch norm in training mode, means and variances of the columns."""
    if not _floating(x, weight, bias) or x.size == 0:
        return NotImplemented
    x, weight, bias = _dense(x, weight, bias)
    out = _like(x)
    mean, var = _statistics(x, weight.shape)
    _core(x).batch_norm(_rows(out), mean, var, _rows(x), weight, bias, op.eps)
    return out, mean, var


@override("cpu", "BatchNormGrad")
def batch_norm_grad(
    op: Any, g: NDArray, x: NDArray, weight: NDArray, mean: NDArray, var: NDArray
) -> Any:
    """Gradients of batch norm."""
    if not _floating(x, g, weight) or x.size == 0 or mean.dtype is not _wide(x):
        return NotImplemented
    if (
        g.shape != x.shape
        or x.ndim != 2
        or any(a.shape != x.shape[1:] for a in (weight, mean, var))
    ):
        return NotImplemented
    g, x, weight, mean, var = _dense(g, x, weight, mean, var)
    dx, dweight, dbias = _like(x), _like(weight), _like(weight)
    _core(x).batch_norm_grad(
        _rows(dx), dweight, dbias, _rows(g), _rows(x), weight, mean, var, op.eps
    )
    return dx, dweight, dbias


# ---- indices -----------------------------------------------------------------------


@override("cpu", "Put")
def put(op: Any, x: NDArray, values: NDArray, places: NDArray) -> Any:
    """A copy, written to."""
    if values.dtype is not x.dtype:
        return NotImplemented
    out = x.copy()
    kernels.put(out, places, values, 0)
    return out

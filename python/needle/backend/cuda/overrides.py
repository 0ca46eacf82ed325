"""Composites that the CUDA device computes as a whole, for a GPU and for the emulator.

Each takes the op and the arrays, like the op's ``expand``, and returns NotImplemented for dtypes
without a kernel, and for empty arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.axes import normalise_axes
from needle.backend.contract import override
from needle.backend.cuda import reductions
from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import geometry, power_of_two
from needle.backend.cuda.launch import aligned, blocks_for, dense
from needle.backend.cuda.table import CPP
from needle.backend.index_errors import bad_label
from needle.backend.ndarray import NDArray, empty, empty_of
from needle.dtype import DType


def both(op_name: str) -> Callable[[Any], Any]:
    """Register an override for the GPU and the emulator."""

    def register(function: Any) -> Any:
        for device_name in ("cuda", "cuda-emu"):
            override(device_name, op_name)(function)
        return function

    return register


def _wide(x: NDArray) -> DType:
    """Return the dtype of statistics."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _floating(*arrays: NDArray) -> bool:
    first = arrays[0].dtype
    return first.kind == "f" and all(x.dtype is first and x.size for x in arrays)


MOST, WARPS = 256, 4
"""Limits of the threads for a row, and of the short rows in a block."""


def _packs(kind: DType) -> int:
    """Return the number of 16-byte pieces of a row for a thread: 16 elements, or 8 wide ones."""
    return min(4, kind.itemsize)


class _Teams(NamedTuple):
    """The assignment of rows to threads (see rows.cuh): a team for each, in blocks."""

    packs: int
    threads: int
    blocks: int
    block: int


def _teams(rows: int, count: int, dense: bool, between: Iterable[int], *arrays: NDArray) -> _Teams:
    """Return the teams for rows.

    Args:
        rows: number of rows.
        count: number of elements of each.
        dense: whether the elements are contiguous.
        between: steps from row to row.
        arrays: the arrays of the rows, of one dtype.
    """
    kind = arrays[0].dtype
    width, packs = 16 // kind.itemsize, _packs(kind)
    whole = count % width == 0 and all(step % width == 0 for step in between)
    held = dense and whole and count <= MOST * packs * width and aligned(*map(address, arrays))
    each = packs * width if held else 4
    threads = min(MOST, max(32, power_of_two(-(-count // each))))
    block = threads if threads > 32 else 32 * min(WARPS, rows)
    return _Teams(packs if held else 0, threads, -(-rows * threads // block), block)


# ---- softmax -----------------------------------------------------------------------


def _length(x: NDArray, axes: tuple[int, ...]) -> NDArray:
    """Return the roots of sums of squares over axes, which stay with size 1, in float64."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    out = empty(kept, dtypes.float64, x.device)
    reductions.reduce(x.device.backend, ("norm", axes), out, x)
    return out


@both("EuclideanNorm")
def euclidean_norm(op: Any, x: NDArray) -> Any:
    """Root of the sum of squares, in one pass over the memory."""
    axes = normalise_axes(op.axes, x.ndim)
    if not _floating(x):
        return NotImplemented
    out = _length(x, axes).astype(x.dtype, copy=False)
    return out if op.keepdims else out.squeeze(axes)


@both("GlobalNorm")
def global_norm(op: Any, *parts: NDArray) -> Any:
    """Root of the sum of all squares."""
    if not all(map(_floating, parts)):
        return NotImplemented
    each = [_length(x, tuple(range(x.ndim))).reshape((1,)) for x in parts]
    return _length(kernels.concatenate(tuple(each), 0), (0,)).reshape(())


def _softmax_family() -> Iterable[str]:
    for dtype in dtypes.FLOATS:
        for row in (f"{CPP[dtype]}, 0", f"{CPP[dtype]}, {_packs(dtype)}"):
            for logarithm in ("false", "true"):
                yield f"softmax<{logarithm}, {row}>"
                yield f"softmax_grad<{logarithm}, {row}>"
            yield f"cross_entropy<{row}>"
            yield f"cross_entropy_grad<{row}>"


def _rows(axis: int, *arrays: NDArray) -> Any:
    """Return the geometry of all axes but one, each array's step along that one, and the teams."""
    shape = arrays[0].shape
    others = [i for i in range(len(shape)) if i != axis]
    strides = [tuple(x.strides[i] for i in others) for x in arrays]
    rows = geometry(tuple(shape[i] for i in others), *strides, keep_order=True)
    steps = [x.strides[axis] for x in arrays]
    between = (step for row in rows.strides for step in row)
    dense = all(step == 1 for step in steps)
    return rows, steps, _teams(rows.count, shape[axis], dense, between, *arrays)


def _softmax(logarithm: str, op: Any, x: NDArray) -> Any:
    if not _floating(x) or not -x.ndim <= op.axis < x.ndim:
        return NotImplemented
    axis, out, backend = op.axis % x.ndim, empty_of(x.spec), x.device.backend
    rows, steps, teams = _rows(axis, out, x)
    name = f"softmax<{logarithm}, {CPP[x.dtype]}, {teams.packs}>"
    found = backend.function("softmax.cu", name, _softmax_family)
    backend.launch(
        found, teams.blocks, address(out), address(x), rows.words, teams.threads, x.shape[axis],
        *steps, block=teams.block,
    )  # fmt: skip
    return out


def _softmax_grad(logarithm: str, op: Any, out: NDArray, g: NDArray) -> Any:
    if not _floating(out, g) or not -g.ndim <= op.axis < g.ndim or out.shape != g.shape:
        return NotImplemented
    axis, dx, backend = op.axis % g.ndim, empty_of(g.spec), g.device.backend
    rows, steps, teams = _rows(axis, dx, out, g)
    name = f"softmax_grad<{logarithm}, {CPP[g.dtype]}, {teams.packs}>"
    found = backend.function("softmax.cu", name, _softmax_family)
    backend.launch(
        found, teams.blocks, address(dx), address(out), address(g), rows.words, teams.threads,
        g.shape[axis], *steps, block=teams.block,
    )  # fmt: skip
    return dx


for _name, _logarithm in (("Softmax", "false"), ("LogSoftmax", "true")):
    both(_name)(partial(_softmax, _logarithm))
    both(f"{_name}Grad")(partial(_softmax_grad, _logarithm))


# ---- cross entropy -----------------------------------------------------------------


def _labels(labels: NDArray) -> NDArray:
    return dense(labels.astype(dtypes.int64, copy=False))[0]


@both("CrossEntropy")
def cross_entropy(op: Any, logits: NDArray, labels: NDArray) -> Any:
    """Losses and the logarithms of the sums of exponentials; a bad label is raised later."""
    if not _floating(logits):
        return NotImplemented
    backend, classes = logits.device.backend, logits.shape[-1]
    outs = tuple(empty(labels.shape, _wide(logits), logits.device) for _ in range(3))
    rows, steps, teams = _rows(logits.ndim - 1, logits)
    flat = _labels(labels)
    text = f"{labels.dtype}{list(labels.shape)}"
    word, ticket = backend.pending.ticket(
        lambda position: bad_label(op.name, text, position, classes)
    )
    name = f"cross_entropy<{CPP[logits.dtype]}, {teams.packs}>"
    found = backend.function("softmax.cu", name, _softmax_family)
    backend.launch(
        found, teams.blocks, *map(address, outs), address(logits), address(flat),
        rows.words, teams.threads, classes, *steps, op.ignore_index, float(op.label_smoothing),
        word, ticket, block=teams.block,
    )  # fmt: skip
    return outs


@both("CrossEntropyGrad")
def cross_entropy_grad(
    op: Any, g: NDArray, logits: NDArray, labels: NDArray, shift: NDArray, rest: NDArray
) -> Any:
    """Gradient with respect to the logits; the labels were checked with the loss."""
    wide = _wide(logits)
    if not _floating(logits) or any(x.dtype is not wide for x in (g, shift, rest)):
        return NotImplemented
    backend, classes, out = logits.device.backend, logits.shape[-1], empty_of(logits.spec)
    rows, steps, teams = _rows(logits.ndim - 1, out, logits)
    (g, shift, rest), flat = dense(g, shift, rest), _labels(labels)
    name = f"cross_entropy_grad<{CPP[logits.dtype]}, {teams.packs}>"
    found = backend.function("softmax.cu", name, _softmax_family)
    backend.launch(
        found, teams.blocks, address(out), address(g), address(logits), address(flat),
        address(shift), address(rest), rows.words, teams.threads, classes, *steps,
        op.ignore_index, float(op.label_smoothing), block=teams.block,
    )  # fmt: skip
    return out


# ---- norms -------------------------------------------------------------------------

SUMS = (("Values", "false"), ("Squares", "false"), ("Slopes", "true"), ("Slopes", "false"))


def _norm_family() -> Iterable[str]:
    for dtype in dtypes.FLOATS:
        kind = CPP[dtype]
        for centred in ("false", "true"):
            for packs in (0, _packs(dtype)):
                yield f"layer_norm<{centred}, {kind}, {packs}>"
                yield f"layer_norm_grad<{centred}, {kind}, {packs}>"
        yield from (f"column_sums<{what}, {by_row}, {kind}>" for what, by_row in SUMS)
        for name in ("column_finish", "reciprocal_deviation", "batch_norm_grad"):
            yield f"{name}<{kind}>"
        yield from (f"batch_norm<{rectified}, {kind}>" for rectified in ("false", "true"))


def _norm(x: NDArray, name: str, grid: Any, *parts: Any, block: int = 256) -> None:
    backend = x.device.backend
    found = backend.function("norm.cu", name.replace("T", CPP[x.dtype]), _norm_family)
    backend.launch(found, grid, *parts, block=block)


def _column_sums(
    x: NDArray, what: str, by_row: str, g: NDArray | None, means: NDArray | None,
    rstds: NDArray | None, outs: tuple[NDArray | None, NDArray | None], scale: float,
) -> NDArray:  # fmt: skip
    """Return two sums over the rows of x [..., d] for each column, times scale: [2, d].

    Args:
        x: a dense array.
        what: the summed function; see norm.cu.
        by_row: "true" if means and rstds belong to rows, "false" if to columns.
        g: a dense array of x's shape.
        means, rstds: further operands of the sums.
        outs: arrays for the sums themselves, in x's dtype.
        scale: factor of the result.
    """
    d = x.shape[-1]
    rows = x.size // d
    across = -(-d // 32)
    wanted = -(-4 * x.device.backend.driver.properties.multiprocessors // across)
    part = -(-rows // max(1, min(wanted, rows // 64, 1024)))
    parts = -(-rows // part)
    pieces, sums = (empty((n, 2, d), _wide(x), x.device) for n in (parts, 1))
    places = [0 if y is None else address(y) for y in (g, means, rstds)]
    _norm(x, f"column_sums<{what}, {by_row}, T>", (across, parts, 1), address(pieces), address(x),
          *places, rows, d, part)  # fmt: skip
    ends = [0 if y is None else address(y) for y in outs]
    _norm(x, "column_finish<T>", across, address(sums), *ends, address(pieces), parts, d,
          float(scale))  # fmt: skip
    return sums.reshape((2, d))


def _layer_norm(centred: str, x: NDArray, weight: NDArray, bias: NDArray, eps: float) -> Any:
    x, weight, bias = dense(x, weight, bias)
    out, d = empty_of(x.spec), x.shape[-1]
    mean, rstd = (empty(x.shape[:-1], _wide(x), x.device) for _ in range(2))
    teams = _teams(x.size // d, d, True, (d,), x, out, weight, bias)
    _norm(x, f"layer_norm<{centred}, T, {teams.packs}>", teams.blocks, address(out), address(mean),
          address(rstd), address(x), address(weight), address(bias), x.size // d, teams.threads, d,
          float(eps), block=teams.block)  # fmt: skip
    return out, mean, rstd


def _layer_norm_grad(
    centred: str, g: NDArray, x: NDArray, weight: NDArray, mean: NDArray | None, rstd: NDArray
) -> Any:
    g, x, weight, rstd = dense(g, x, weight, rstd)
    mean = None if mean is None else dense(mean)[0]
    dx, d = empty_of(x.spec), x.shape[-1]
    teams = _teams(x.size // d, d, True, (d,), x, g, dx, weight)
    _norm(x, f"layer_norm_grad<{centred}, T, {teams.packs}>", teams.blocks, address(dx),
          address(g), address(x), address(weight), 0 if mean is None else address(mean),
          address(rstd), x.size // d, teams.threads, d, block=teams.block)  # fmt: skip
    dweight, dbias = empty_of(weight.spec), empty_of(weight.spec)
    _column_sums(x, "Slopes", "true", g, mean, rstd, (dweight, dbias), 1.0)
    return dx, dweight, dbias


@both("LayerNorm")
def layer_norm(op: Any, x: NDArray, weight: NDArray, bias: NDArray) -> Any:
    """Layer norm, its means and reciprocal deviations."""
    if not _floating(x, weight, bias):
        return NotImplemented
    return _layer_norm("true", x, weight, bias, op.eps)


@both("LayerNormGrad")
def layer_norm_grad(
    op: Any, g: NDArray, x: NDArray, weight: NDArray, mean: NDArray, rstd: NDArray
) -> Any:
    """Gradients of layer norm."""
    if not _floating(x, g, weight) or mean.dtype is not _wide(x) or rstd.dtype is not _wide(x):
        return NotImplemented
    return _layer_norm_grad("true", g, x, weight, mean, rstd)


@both("RMSNorm")
def rms_norm(op: Any, x: NDArray, weight: NDArray) -> Any:
    """RMS norm and its reciprocal root mean squares."""
    if not _floating(x, weight):
        return NotImplemented
    out, _, rstd = _layer_norm("false", x, weight, weight, op.eps)
    return out, rstd


@both("RMSNormGrad")
def rms_norm_grad(op: Any, g: NDArray, x: NDArray, weight: NDArray, rstd: NDArray) -> Any:
    """Gradients of RMS norm."""
    if not _floating(x, g, weight) or rstd.dtype is not _wide(x):
        return NotImplemented
    return _layer_norm_grad("false", g, x, weight, None, rstd)[:2]


def _rstd(x: NDArray, var: NDArray, eps: float) -> NDArray:
    rstd, d = empty_of(var.spec), x.shape[-1]
    _norm(x, "reciprocal_deviation<T>", blocks_for(d), address(rstd), address(var), d, float(eps))
    return rstd


def _normalised(
    rectified: str, x: NDArray, weight: NDArray, bias: NDArray, mean: NDArray, rstd: NDArray,
    *residual: NDArray,
) -> NDArray:  # fmt: skip
    """Return x normalised, scaled and shifted, optionally with a residual and ReLU."""
    out = empty_of(x.spec)
    more = address(residual[0]) if residual else 0
    _norm(x, f"batch_norm<{rectified}, T>", blocks_for(x.size), address(out), address(x),
          address(weight), address(bias), address(mean), address(rstd), more, x.size,
          x.shape[-1])  # fmt: skip
    return out


def _batch_norm(rectified: str, x: NDArray, *others: NDArray, eps: float) -> Any:
    x, weight, bias, *residual = dense(x, *others)
    d, nowhere = x.shape[-1], (None, None)
    mean = _column_sums(x, "Values", "false", None, None, None, nowhere, d / x.size)
    mean = mean.slice([(0, 1, 1), (0, d, 1)]).reshape((d,))
    var = _column_sums(x, "Squares", "false", None, mean, None, nowhere, d / x.size)
    var = var.slice([(0, 1, 1), (0, d, 1)]).reshape((d,))
    rstd = _rstd(x, var, eps)
    return _normalised(rectified, x, weight, bias, mean, rstd, *residual), mean, var


@both("BatchNorm")
def batch_norm(op: Any, x: NDArray, weight: NDArray, bias: NDArray) -> Any:
    """Batch norm in training mode, means and variances of the columns."""
    if not _floating(x, weight, bias):
        return NotImplemented
    return _batch_norm("false", x, weight, bias, eps=op.eps)


@both("BatchNormReLU")
def batch_norm_relu(op: Any, x: NDArray, weight: NDArray, bias: NDArray, *residual: NDArray) -> Any:
    """Batch norm, a residual and ReLU."""
    if not _floating(x, weight, bias, *residual):
        return NotImplemented
    return _batch_norm("true", x, weight, bias, *residual, eps=op.eps)


@both("BatchNormGrad")
def batch_norm_grad(
    op: Any, g: NDArray, x: NDArray, weight: NDArray, mean: NDArray, var: NDArray
) -> Any:
    """Gradients of batch norm."""
    if not _floating(x, g, weight) or mean.dtype is not _wide(x) or var.dtype is not _wide(x):
        return NotImplemented
    g, x, weight, mean, var = dense(g, x, weight, mean, var)
    dx, d = empty_of(x.spec), x.shape[-1]
    dweight, dbias = empty_of(weight.spec), empty_of(weight.spec)
    rstd = _rstd(x, var, op.eps)
    means = _column_sums(x, "Slopes", "false", g, mean, rstd, (dweight, dbias), d / x.size)
    _norm(x, "batch_norm_grad<T>", blocks_for(x.size), address(dx), address(g), address(x),
          address(weight), address(mean), address(rstd), address(means), x.size, d)  # fmt: skip
    return dx, dweight, dbias


@both("BatchNormReLUGrad")
def batch_norm_relu_grad(
    op: Any, g: NDArray, x: NDArray, weight: NDArray, bias: NDArray, mean: NDArray, var: NDArray,
    *result: NDArray,
) -> Any:  # fmt: skip
    """Gradients of batch norm with ReLU: those of batch norm, where ReLU was positive."""
    if not _floating(x, g, weight, bias, *result) or {mean.dtype, var.dtype} != {_wide(x)}:
        return NotImplemented
    if result:
        (out,) = result
    else:
        own = dense(x, weight, bias, mean, var)
        out = _normalised("true", *own[:4], _rstd(x, own[4], op.eps))
    masked = kernels.elementwise("relu_grad", out, g)
    grads = batch_norm_grad(op, masked, x, weight, mean, var)
    return (*grads, masked) if result else grads

"""Samples of the recurrent ops, and their references: loops over steps in NumPy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.errors import DtypeError, IndexRangeError, ShapeError
from needle.ops.core.samples import Sample, uniform

if TYPE_CHECKING:
    from needle.typing import Numpy

COLUMNS = {"RNN": 1, "GRU": 3, "LSTM": 4}
KEPT = {"RNN": 1, "GRU": 4, "LSTM": 4}

CASES: tuple[tuple[tuple[int, int, int, int], bool, tuple[int, ...] | None], ...] = (
    ((3, 2, 3, 2), False, None),
    ((2, 2, 1, 3), True, None),
    ((1, 1, 1, 1), False, None),
    ((3, 4, 2, 2), False, (3, 0, 1, 2)),
    ((3, 4, 2, 2), True, (1, 3, 0, 2)),
    ((0, 2, 3, 2), False, None),
    ((2, 0, 3, 2), False, None),
)
"""Sizes t, b, i, h; reverse; lengths."""


def _sigmoid(x: Numpy) -> Numpy:
    return 1 / (1 + np.exp(-x))


def _step(
    cell: str, relu: bool, given: Numpy, hidden: Numpy, states: list[Numpy]
) -> tuple[Numpy | list[Numpy], ...]:
    """Return the states after a step and the gates kept."""
    if cell == "RNN":
        new = np.maximum(given + hidden, 0) if relu else np.tanh(given + hidden)
        return [new], new
    if cell == "GRU":
        (a, b, c), (r, z, u) = np.split(given, 3, -1), np.split(hidden, 3, -1)
        r, z = _sigmoid(a + r), _sigmoid(b + z)
        n = np.tanh(c + r * u)
        return [(1 - z) * n + z * states[0]], np.concatenate([r, z, n, u], -1)
    i, f, g, o = np.split(given + hidden, 4, -1)
    i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
    c = f * states[1] + i * g
    return [o * np.tanh(c), c], np.concatenate([i, f, g, o], -1)


def forward(
    cell: str, reverse: bool, masked: bool, relu: bool, x: Any, *rest: Numpy
) -> tuple[Numpy, ...]:
    """Return the results of a recurrent op."""
    s = 2 if cell == "LSTM" else 1
    lengths = rest[-1] if masked else np.full(x.shape[1], len(x))
    states, (w_ih, w_hh, bias) = list(rest[:s]), rest[s : s + 3]
    second = rest[s + 3] if cell == "GRU" else 0.0
    (t, b), h = x.shape[:2], len(w_hh)
    out, cells, gates = (np.zeros((t, b, n)) for n in (h, h, KEPT[cell] * h))
    for i in reversed(range(t)) if reverse else range(t):
        new, kept = _step(cell, relu, x[i] @ w_ih + bias, states[0] @ w_hh + second, states)
        now = (i < lengths)[:, None]
        out[i], gates[i] = np.where(now, new[0], 0), np.where(now, kept, 0)
        cells[i] = np.where(now, new[-1], 0)
        states = [np.where(now, y, z) for y, z in zip(new, states, strict=True)]
    return (out, *states, gates, cells) if s == 2 else (out, *states, gates)


def _step_back(cell: str, relu: bool, kept: Any, c: Any, before: Any, grads: Any) -> Any:
    """Return the gradients of both sums of products, and what goes to the states directly."""
    dh = grads[0]
    if cell == "RNN":
        d = dh * (kept > 0) if relu else dh * (1 - kept**2)
        return d, d, [0.0]
    if cell == "GRU":
        r, z, n, u = np.split(kept, 4, -1)
        dn, dz = dh * (1 - z) * (1 - n**2), dh * (before[0] - n) * z * (1 - z)
        dr = dn * u * r * (1 - r)
        return np.concatenate([dr, dz, dn], -1), np.concatenate([dr, dz, dn * r], -1), [dh * z]
    i, f, g, o = np.split(kept, 4, -1)
    dc = grads[1] + dh * o * (1 - np.tanh(c) ** 2)
    d = np.concatenate(
        [
            dc * g * i * (1 - i), dc * before[1] * f * (1 - f), dc * i * (1 - g**2),
            dh * np.tanh(c) * o * (1 - o),
        ],
        -1,
    )  # fmt: skip
    return d, d, [0.0, dc * f]


def backward(cell: str, reverse: bool, masked: bool, relu: bool, g_out: Any, *rest: Any) -> Any:
    """Return the results of a gradient's op."""
    s = 2 if cell == "LSTM" else 1
    lengths = rest[-1] if masked else np.full(g_out.shape[1], len(g_out))
    grads, x, start = list(rest[:s]), rest[s], rest[s + 1 : 2 * s + 1]
    w_ih, w_hh, out, gates = rest[2 * s + 1 : 2 * s + 5]
    cells = rest[2 * s + 5] if s == 2 else out
    t = len(x)
    dx, *dstates, dw_ih, dw_hh, db, db2 = (
        np.zeros(y) for y in (x.shape, *[z.shape for z in start], w_ih.shape, w_hh.shape,
                              w_hh.shape[1], w_hh.shape[1])
    )  # fmt: skip
    for i in range(t) if reverse else reversed(range(t)):
        now, last = (i < lengths)[:, None], i + 1 if reverse else i - 1
        inside = (last >= 0) & (last < np.minimum(lengths, t))[:, None]
        before = [
            np.where(inside, y[min(max(last, 0), t - 1)], z)
            for y, z in zip((out, cells), start, strict=False)
        ]
        after = [grads[0] + now * g_out[i], *grads[1:]]
        into_x, into_h, direct = _step_back(cell, relu, gates[i], cells[i], before, after)
        into_x, into_h = into_x * now, into_h * now
        direct[0] = direct[0] + into_h @ w_hh.T
        grads = [np.where(now, y, z) for y, z in zip(direct, after, strict=True)]
        dx[i] = into_x @ w_ih.T
        dw_ih, dw_hh = dw_ih + x[i].T @ into_x, dw_hh + before[0].T @ into_h
        db, db2 = db + into_x.sum(0), db2 + into_h.sum(0)
    biases = (db, db2) if cell == "GRU" else (db,)
    return (dx, *grads, dw_ih, dw_hh, *biases)


def _inputs(
    cell: str, sizes: tuple[int, int, int, int], lengths: tuple[int, ...] | None
) -> tuple[Numpy, ...]:
    t, b, i, h = sizes
    n = COLUMNS[cell] * h
    shapes = [(t, b, i), *[(b, h)] * (2 if cell == "LSTM" else 1), (i, n), (h, n)]
    shapes += [(n,)] * (2 if cell == "GRU" else 1)
    made = [uniform(shape, -1.0, 1.0, k) for k, shape in enumerate(shapes)]
    return (*made, *([] if lengths is None else [np.array(lengths)]))


def _settings(cell: str) -> list[Any]:
    """Return sizes, reverse, lengths, and whether f is relu, of every case of a cell."""
    found = [(*case, False) for case in CASES]
    return found + [(*CASES[0], True), (*CASES[4], True)] if cell == "RNN" else found


def _static(
    cell: str, reverse: bool, masked: bool, relu: bool, *more: int
) -> tuple[str | int, ...]:
    return (reverse, masked, *more, *(("relu" if relu else "tanh",) if cell == "RNN" else ()))


def forward_samples(cell: str) -> list[Sample]:
    """Return samples of a recurrent op by its name."""
    good = []
    for sizes, reverse, lengths, relu in _settings(cell):
        masked = lengths is not None
        reference = functools.partial(forward, cell, reverse, masked, relu)
        static = _static(cell, reverse, masked, relu)
        good.append(Sample(_inputs(cell, sizes, lengths), static, reference))
    return good + _wrong(cell)


def _wrong(cell: str) -> list[Sample]:
    x, h0, *rest = _inputs(cell, (3, 2, 3, 2), None)
    static = _static(cell, False, True, False)
    return [
        Sample((x[0], h0, *rest), raises=ShapeError),
        Sample((x, uniform((3, 2)), *rest), raises=ShapeError),
        Sample((x, h0, *rest[:-1], uniform((9,))), raises=ShapeError),
        Sample((x, h0, *rest, np.array([1, 2, 3])), static, raises=ShapeError),
        Sample((x, h0, *rest, np.array([1, 4])), static, raises=IndexRangeError, by_value=True),
        Sample((x, h0, *rest, np.array([-1, 2])), static, raises=IndexRangeError, by_value=True),
        Sample((x, h0, *rest, np.array([True, True])), static, raises=DtypeError),
    ]


def gradient_samples(cell: str) -> list[Sample]:
    """Return samples of the gradient of a recurrent op by its name."""
    samples = []
    s = 2 if cell == "LSTM" else 1
    for (t, b, i, h), reverse, lengths, relu in _settings(cell):
        masked = lengths is not None
        shapes = [(t, b, h), *[(b, h)] * s]
        seeds = [uniform(shape, -1.0, 1.0, 20 + k) for k, shape in enumerate(shapes)]
        given = _inputs(cell, (t, b, i, h), lengths)
        out, *kept = forward(cell, reverse, masked, relu, *given)
        if relu:  # away from the kink
            kept[s] = np.where(kept[s] == 0, -0.5, kept[s])
        inputs = (*seeds, *given[: s + 3], out, *kept[s:], *given[len(given) - masked :])
        reference = functools.partial(backward, cell, reverse, masked, relu)
        samples.append(Sample(inputs, _static(cell, reverse, masked, relu, -1), reference))
    return samples

"""Samples of attention and its gradient, and their references in NumPy."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend.numpy import philox
from needle.errors import DtypeError, IndexRangeError, OptionError, ShapeError
from needle.ops.core.samples import Sample, uniform

if TYPE_CHECKING:
    from needle.typing import Numpy

SCALE = 0.5


def kept_by(shape: tuple[int, ...], p: float, key: int, counter: int) -> Numpy:
    """Return what dropout keeps of scores [b, h, t, s], bool."""
    b, h, t, s = shape
    blocks = np.arange(b * h * t * -(-s // 4), dtype=np.uint64) + np.uint64(counter)
    words = philox(key, blocks).reshape(b, h, t, -1)[..., :s]
    return ((words & 0xFFFFFF) / 2.0**24).astype(np.float32) <= np.float32(1 - p)


def _apart(static: dict[str, Any], shape: tuple[int, ...], rest: Any) -> Any:
    """Return the terms added to scores, and the factors of dropout."""
    (b, _, t, s), rest = shape, list(rest)
    drop = np.ones(shape)
    p = static.get("dropout", 0.0)
    if p:
        kept = rest.pop() if static.get("drawn") else kept_by(shape, p, *static["place"])
        drop = kept / (1 - p) if p < 1 else np.zeros(shape)
    lengths = rest.pop() if static.get("masked") else np.full(b, s)
    j = np.arange(s)
    allowed = np.broadcast_to(j < lengths[:, None, None, None], shape)
    if static.get("causal"):
        last = np.arange(t)[:, None] + lengths[:, None, None, None] - t
        allowed = allowed & (j <= last)
    added = np.zeros(shape)
    if rest and rest[0].dtype == bool:
        allowed = allowed & rest[0]
    elif rest:
        added = added + rest[0]
    return np.where(allowed, added, -np.inf), drop


def _repeated(x: Numpy, heads: int) -> Numpy:
    return np.repeat(x, heads // max(x.shape[1], 1), 1)


def forward(static: dict[str, Any], q: Any, k: Any, v: Any, *rest: Numpy) -> tuple[Numpy, ...]:
    """Return out, shift and rest."""
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    scores = q @ k.swapaxes(-1, -2) * SCALE
    added, drop = _apart(static, scores.shape, rest)
    scores = scores + added
    shift = scores.max(-1, initial=-np.inf)
    shift = np.where(np.isfinite(shift), shift, 0.0)
    weights = np.exp(scores - shift[..., None])
    sums = weights.sum(-1)
    sums = np.where(sums == 0, 1, sums)
    return weights / sums[..., None] * drop @ v, shift, np.log(sums)


def backward(
    static: dict[str, Any], g: Any, q: Any, k: Any, v: Any, out: Any, shift: Any, log: Any,
    *rest: Any,
) -> Any:  # fmt: skip
    """Return the gradients of q, k and v."""
    kv = k.shape
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    added, drop = _apart(static, (*q.shape[:3], kv[2]), rest)
    share = np.exp(q @ k.swapaxes(-1, -2) * SCALE + added - (shift + log)[..., None])
    into = (g @ v.swapaxes(-1, -2)) * drop
    slope = share * (into - (out * g).sum(-1)[..., None]) * SCALE
    dk, dv = slope.swapaxes(-1, -2) @ q, (share * drop).swapaxes(-1, -2) @ g
    groups = (kv[0], kv[1], q.shape[1] // max(kv[1], 1), kv[2], -1)
    sizes = kv[:3]
    return (
        slope @ k,
        dk.reshape(*groups[:4], q.shape[3]).sum(2).reshape(*sizes, q.shape[3]),
        dv.reshape(*groups[:4], v.shape[3]).sum(2).reshape(*sizes, v.shape[3]),
    )


def _sizes(b: int, h: int, g: int, t: int, s: int, d: int, e: int) -> tuple[Numpy, ...]:
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, e))
    return tuple(uniform(shape, -1.0, 1.0, i) for i, shape in enumerate(shapes))


def _bools(*shape: int) -> Numpy:
    """Return a mask in which one row sees nothing."""
    mask = uniform(shape, seed=5) > -0.5
    mask[..., :1, :] = False
    return mask


def _cases() -> list[tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]]:
    """Return q, k and v, the other operands, and the attributes of every case."""
    floats = uniform((2, 1, 3, 4), seed=6)
    floats[0, 0, 1] = -np.inf
    half = {"dropout": 0.5, "place": (11, 3)}
    return [
        (_sizes(2, 2, 2, 3, 3, 2, 2), (), {}),
        (_sizes(1, 4, 2, 2, 3, 3, 1), (), {"causal": True}),
        (_sizes(1, 2, 1, 3, 2, 1, 2), (), {"causal": True}),
        (_sizes(2, 2, 2, 3, 4, 2, 2), (_bools(2, 1, 3, 4),), {}),
        (_sizes(2, 2, 1, 3, 4, 2, 2), (_bools(1, 2, 3, 4),), {"causal": True}),
        (_sizes(2, 2, 2, 3, 4, 2, 2), (uniform((2, 1, 1, 4), seed=5) > 0,), {}),
        (_sizes(2, 2, 2, 3, 4, 2, 2), (floats,), {}),
        (_sizes(3, 2, 1, 2, 3, 2, 2), (np.array([1, 0, 3]),), {"causal": True, "masked": True}),
        (_sizes(1, 2, 1, 2, 5, 2, 2), (), half),
        (
            _sizes(2, 1, 1, 2, 3, 2, 2), (_bools(2, 3), np.array([2, 3]), _bools(2, 1, 2, 3)),
            {"masked": True, "drawn": True, "dropout": 0.25},
        ),
        (_sizes(1, 1, 1, 1, 1, 1, 1), (), {}),
        (_sizes(1, 2, 1, 2, 0, 2, 2), (), {}),
        (_sizes(2, 2, 2, 0, 2, 2, 2), (), {"causal": True}),
        (_sizes(0, 2, 1, 2, 2, 2, 2), (), {}),
    ]  # fmt: skip


def _with_axes(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return operands with a mask of two axes as one of four."""
    return tuple(x[None, None] if x.dtype == bool and x.ndim == 2 else x for x in operands)


def _static(given: dict[str, Any]) -> tuple[float, ...]:
    key, counter = given.get("place", (0, 0))
    flags = (given.get("masked", False), given.get("drawn", False))
    return (
        SCALE, given.get("causal", False), given.get("dropout", 0.0), key, counter, *flags
    )  # fmt: skip


def forward_samples() -> list[Sample]:
    """Return samples of attention."""
    good = [
        Sample((*qkv, *_with_axes(rest)), _static(static), functools.partial(forward, static))
        for qkv, rest, static in _cases()
    ]
    return good + _wrong()


def _wrong() -> list[Sample]:
    q, k, v = _sizes(2, 4, 2, 3, 3, 2, 2)
    masked = _static({"masked": True})
    return [
        Sample((q[0], k, v), (SCALE,), raises=ShapeError),
        Sample((q, k[:1], v), (SCALE,), raises=ShapeError),
        Sample((q[:, :3], k, v), (SCALE,), raises=ShapeError),
        Sample((q, k[..., :1], v), (SCALE,), raises=ShapeError),
        Sample((q, k, v[:, :, :2]), (SCALE,), raises=ShapeError),
        Sample((q, k, v, _bools(2, 3, 3, 3)), (SCALE,), raises=ShapeError),
        Sample((q, k, v, _bools(3, 3)), (SCALE,), raises=ShapeError),
        Sample((q, k, v, np.ones((1, 1, 3, 3), int)), (SCALE,), raises=DtypeError),
        Sample((q, k, v, np.array([3])), masked, raises=ShapeError),
        Sample((q, k, v, np.array([3, 4])), masked, raises=IndexRangeError, by_value=True),
        Sample((q, k, v), (math.nan,), raises=OptionError),
        Sample((q, k, v), (SCALE, False, 1.5), raises=OptionError),
    ]


def gradient_samples() -> list[Sample]:
    """Return samples of the gradient of attention."""
    samples = []
    for qkv, operands, static in _cases():
        rest = _with_axes(operands)
        out, *parts = forward(static, *qkv, *rest)
        inputs = (uniform(out.shape, seed=9), *qkv, out, *parts, *rest)
        samples.append(Sample(inputs, _static(static), functools.partial(backward, static)))
    return samples

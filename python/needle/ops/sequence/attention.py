"""Attention: softmax of products of queries and keys, times values; the op and its function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from needle import dtype as dtypes
from needle import executor, tracing
from needle.backend import kernels
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
)
from needle.executor import shape_of
from needle.ops import random
from needle.ops.core.attributes import flag, real
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, cast, needed, promoted, widened
from needle.ops.core.operands import as_tensors
from needle.ops.elementwise.arithmetic import cast_like, greater, less, less_equal, where
from needle.ops.elementwise.functions import exp, log
from needle.ops.index.indexing import beside
from needle.ops.linalg.matmul import matmul
from needle.ops.random.draws import RandomUniform
from needle.ops.random.sampling import bernoulli, uniform
from needle.ops.reduction.reduce import summation
from needle.ops.reduction.softmax import finite_max
from needle.ops.sequence.attention_samples import forward_samples, gradient_samples
from needle.ops.shape.creation import arange
from needle.ops.shape.movement import reshape, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor, TensorTuple

__all__ = ["Attention", "AttentionGrad", "scaled_dot_product_attention"]

_RULE = "q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], where g divides h"


class Attention(Composite):
    """Mix values by softmax of the products of queries and keys.

        p = softmax(scale * q k' + mask),  out = dropout(p) v
        shift = max(scale * q k' + mask),  rest = log(sum(exp(scale * q k' + mask - shift)))

    Each of the g heads of keys and values serves h / g heads of queries that follow one another.
    A row that sees no key has out 0, shift 0, rest 0, and no derivatives.

    Behind q, k and v come, each if it is there: a mask; the lengths of the keys (``masked``); what
    dropout keeps (``drawn``). The mask is bool (true: the query sees the key) or floating (added
    to the scores); an axis of size 1 repeats. Keys from their length on are not seen.

    With ``causal`` row i sees key j if j <= i + length - t, where length is that of the keys: the
    last query sees all of them. PyTorch's ``is_causal`` compares j <= i where t and s differ.

    With ``dropout`` and not ``drawn``, the weight of score (b, h, i, j) is kept if a uniform number
    in [0, 1) of 24 bits is at most 1 - dropout (in float32), as ``RandomUniform`` makes it of word
    j % 4 of Philox block ``counter + ((b H + h) T + i) ceil(S / 4) + j // 4``. What is kept is
    divided by 1 - dropout.

    Attributes:
        scale: factor of the products.
        causal: whether a query sees only the keys up to its own place.
        dropout: probability with which a weight is set to 0.
        key: of the draw, from 0 to 2**64 - 1.
        counter: of the draw.
        masked: whether lengths of the keys are an operand.
        drawn: whether what dropout keeps is an operand, the last.

    Shapes:   q [b, h, t, d], k [b, g, s, d], v [b, g, s, e]; mask [b or 1, h or 1, t or 1, s or 1],
              lengths [b], kept [b, h, t, s] -> out [b, h, t, e], shift [b, h, t], rest [b, h, t]
    Dtypes:   floating, promoted together with a floating mask; shift and rest in float32 when q is
              float16 or bfloat16; lengths integer (or floating with whole values), kept bool
    Gradient: q, k, v, a floating mask; any order
    Raises:   ShapeError if shapes do not fit; DtypeError for a mask that is neither bool nor
              floating; IndexRangeError naming a row whose length is not from 0 to s; OptionError
              if scale is not finite or dropout not in [0, 1]
    Source:   Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.2.1;
              shared keys: Ainslie et al., "GQA", 2023, arXiv:2305.13245
    """

    scale: float
    causal: bool = False
    dropout: float = 0.0
    key: Any = 0
    counter: int = 0
    masked: bool = False
    drawn: bool = False
    saves = ((*range(6), OUTPUT),)
    samples = staticmethod(forward_samples)

    def setup(self) -> None:
        if not math.isfinite(self.scale):
            raise OptionError(f"{self.name}: scale is {self.scale}\n  rule: a finite number")
        if not 0.0 <= self.dropout <= 1.0:
            raise OptionError(f"{self.name}: dropout is {self.dropout}\n  rule: from 0 to 1")

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        least = 3 + self.masked + self.drawn
        if not least <= len(inputs) <= least + 1:
            raise ArgumentError(
                f"{self.name}: takes {least} operands and a mask, {len(inputs)} were given"
            )
        tensors = as_tensors(inputs, self.name)
        masks = tensors[3 : len(tensors) - self.masked - self.drawn]
        floating = [x for x in masks if executor.spec_of(x).dtype.kind == "f"]
        first = promoted((*tensors[:3], *floating), self.name, floating=True)
        rest = tensors[3 + len(masks) :]
        return (*first[:3], *(first[3:] or masks), *rest)

    def compute(self, q: NDArray, k: NDArray, v: NDArray, *rest: NDArray) -> tuple[NDArray, ...]:
        self.check(q, k, v, *rest)
        return super().compute(q, k, v, *self._with_integers(k, rest))

    def _with_integers(self, k: NDArray, rest: tuple[NDArray, ...]) -> tuple[NDArray, ...]:
        """Return the operands behind v with lengths as integers, which it checks.

        Raises:
            IndexRangeError: naming the first row whose length is not from 0 to that of k.
        """
        if not self.masked:
            return rest
        at, most = len(rest) - 1 - self.drawn, k.shape[2]
        lengths = kernels.integers(self.name, rest[at])

        def wrong(position: int, value: Numpy | None = None) -> Exception:
            what = "its length" if value is None else f"length {value}"
            return IndexRangeError(
                f"{self.name}: row {position} has {what}, there are {most} keys\n"
                f"  rule: lengths from 0 to {most}"
            )

        lengths.device.backend.check_range(lengths, 0, most + 1, None, wrong)
        return (*rest[:at], lengths, *rest[at + 1 :])

    def check(self, q: Any, k: Any, v: Any, *rest: Any) -> None:
        """Check shapes and dtypes.

        Raises:
            ShapeError: if shapes do not fit.
            DtypeError: if a mask is neither bool nor floating.
        """
        named = [("q", q), ("k", k), ("v", v)]
        if any(x.ndim != 4 for _, x in named):
            axes = ", ".join(f"{name} has {x.ndim}" for name, x in named)
            raise explain(ShapeError, self.name, f"{axes} axes, expected 4", named, _RULE)
        (b, h, t, d), (_, g, s, _) = q.shape, k.shape
        fits = k.shape[::3] == (b, d) and v.shape[:3] == k.shape[:3]
        if not fits or (h % g if g else h):
            problem = f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together"
            raise explain(ShapeError, self.name, problem, named, _RULE)
        mask, lengths, kept = self.apart(rest)
        for what, x, wanted in (
            ("mask", mask, (b, h, t, s)), ("lengths", lengths, (b,)), ("kept", kept, (b, h, t, s)),
        ):  # fmt: skip
            if x is None:
                continue
            repeats = (1,) if what == "mask" else ()
            if len(x.shape) != len(wanted) or any(
                n not in (size, *repeats) for n, size in zip(x.shape, wanted, strict=True)
            ):
                problem = f"{what} has shape {x.shape}, expected {wanted}"
                rule = "each axis of a mask has the size of the scores, or 1" if repeats else ""
                raise explain(ShapeError, self.name, problem, [*named, (what, x)], rule)
        if mask is not None and mask.dtype.kind not in "bf":
            raise explain(
                DtypeError, self.name, f"mask is {mask.dtype}", [*named, ("mask", mask)],
                "bool (true: the query sees the key), or floating (added to the scores)",
                "mask.astype(bool)",
            )  # fmt: skip

    def apart(self, rest: Sequence[Operand]) -> tuple[Any, Any, Any]:
        """Return the mask, the lengths and what dropout keeps: None for what is not there."""
        given = list(rest)
        kept = given.pop() if self.drawn else None
        lengths = given.pop() if self.masked else None
        return given[0] if given else None, lengths, kept

    # ---- the expansion -------------------------------------------------------------

    def grouped(self, x: Tensor, g: int) -> Tensor:
        """Return [b, h, ...] as [b, g, h / g, ...]."""
        b, h, *more = shape_of(x)
        return reshape(x, (b, g, h // g if g else 0, *more)) if h != 1 else unsqueeze(x, 1)

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Return the scores [b, g, h / g, t, s], -inf where a query does not see a key."""
        g, s = shape_of(k)[1:3]
        t = shape_of(q)[2]
        scores = matmul(self.grouped(q, g), unsqueeze(k.swapaxes(-1, -2), 2)) * self.scale
        seen = [] if mask is None else [self.grouped(mask, g)]
        if seen and executor.spec_of(mask).dtype is not dtypes.bool_:
            scores = scores + widened(seen.pop())
        key = arange(s, dtype=dtypes.int64, device=executor.spec_of(k).device)
        length = s if lengths is None else reshape(cast(lengths, dtypes.int64), (-1, 1, 1, 1, 1))
        if lengths is not None:
            seen.append(less(key, length))
        if self.causal:
            row = unsqueeze(arange(t, dtype=dtypes.int64, device=executor.spec_of(k).device), -1)
            seen.append(less_equal(key, row + (length - t)))
        for visible in seen:
            scores = where(visible, scores, -math.inf)
        return scores

    def dropped(self, x: Tensor, q: Tensor, k: Tensor, kept: Any) -> Tensor:
        """Return weights [b, g, h / g, t, s] with what dropout leaves of them."""
        if not self.dropout:
            return x
        (b, h, t, _), s = shape_of(q), shape_of(k)[2]
        if kept is None:
            drawn = RandomUniform((b, h, t, -(-s // 4) * 4), self.key, self.counter)
            kept = less_equal(executor.apply(drawn, q), 1.0 - self.dropout)[..., :s]
        factor = 1.0 / (1.0 - self.dropout) if self.dropout < 1 else 0.0
        return where(reshape(kept, shape_of(x)), x * factor, 0.0)

    def expand(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        mask, lengths, kept = self.apart(rest)
        wide_v = unsqueeze(widened(v), 2)
        scores = self.scores(widened(q), widened(k), mask, lengths)
        shift = finite_max(scores, (4,))
        weights = exp(scores - shift)
        sums = summation(weights, 4, keepdims=True)
        positive = where(greater(sums, 0.0), sums, 1.0)
        out = matmul(self.dropped(weights / positive, q, k, kept), wide_v)
        rows = shape_of(q)[:3]
        parts = reshape(shift, rows), reshape(log(positive), rows)
        return cast_like(reshape(out, (*rows, shape_of(v)[3])), q), *parts

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        wanted, inputs = needed(out), out.inputs
        if out_grad[1] is not None or out_grad[2] is not None or any(wanted[3:]):
            return super().gradient(out_grad, out)
        static = [getattr(self, name) for name in self.static]
        op = (AttentionGrad if self.dropout else AttentionGrad.of)(*static)
        rest = inputs[3:]
        found = executor.apply(op, out_grad[0], *inputs[:3], out[0], out[1], out[2], *rest)
        grads = [found[i] if want else None for i, want in enumerate(wanted[:3])]
        return (*grads, *[None] * len(rest))


class AttentionGrad(Attention):
    """Gradient of ``Attention`` with respect to q, k and v.

        p = exp(scale * q k' + mask - shift - rest),  dp = dropout(g v'),
        ds = p (dp - sum(out * g)),  dq = scale * ds k,  dk = scale * ds' q,  dv = dropout(p)' g

    Shapes:   g [b, h, t, e], q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], out [b, h, t, e],
              shift [b, h, t], rest [b, h, t], and what else attention was given
              -> dq [b, h, t, d], dk [b, g, s, d], dv [b, g, s, e]
    Dtypes:   floating; shift and rest in float32 at least
    Gradient: all that is floating; any order
    """

    saves = (tuple(range(10)),)
    samples = staticmethod(gradient_samples)

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return as_tensors(inputs, self.name)

    def compute(self, *arrays: NDArray) -> tuple[NDArray, ...]:
        return Composite.compute(self, *arrays[:7], *self._with_integers(arrays[2], arrays[7:]))

    def expand(self, *operands: Any) -> Any:
        g, q, k, v, out, shift, rest = operands[:7]
        mask, lengths, kept = self.apart(operands[7:])
        groups = shape_of(k)[1]
        wide_q, wide_k, wide_v = widened(q), unsqueeze(widened(k), 2), unsqueeze(widened(v), 2)
        wide_g, own = (self.grouped(widened(x), groups) for x in (g, out))
        shift, rest = (unsqueeze(self.grouped(widened(x), groups), -1) for x in (shift, rest))
        p = exp(self.scores(wide_q, widened(k), mask, lengths) - shift - rest)
        dp = self.dropped(matmul(wide_g, wide_v.swapaxes(-1, -2)), q, k, kept)
        ds = p * (dp - summation(own * wide_g, -1, keepdims=True)) * self.scale
        dq = reshape(matmul(ds, wide_k), shape_of(q))
        dk = summation(matmul(ds.swapaxes(-1, -2), self.grouped(wide_q, groups)), 2)
        dv = summation(matmul(self.dropped(p, q, k, kept).swapaxes(-1, -2), wide_g), 2)
        return cast_like(dq, q), cast_like(dk, k), cast_like(dv, v)

    gradient = Composite.gradient


# ---- the function ------------------------------------------------------------------


def _with_heads(x: Tensor, count: int) -> Tensor:
    """Return x with axes of size 1 for the batch and the heads where it has none."""
    for _ in range(count):
        x = unsqueeze(x, 0) if len(shape_of(x)) == 2 else unsqueeze(x, 1)
    return x


def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    training: bool = True,
    key_lengths: Any = None,
) -> Tensor:
    """Return softmax(scale * q k' + mask) v. See ``Attention``.

    A row that sees no key gives zeros. In training with dropout each weight is drawn from the
    generator that governs, at once if that is NumPy's stream.

    Args:
        q: queries [b, h, t, d]; without heads [b, t, d], without batch [t, d].
        k: keys [b, g, s, d], where g divides h: h / g heads of queries share one of keys.
        v: values [b, g, s, e].
        mask: broadcasts to [b, h, t, s] ([b, t, s] without heads, [t, s]): bool, true where a
            query sees a key, or floating, added to the scores.
        is_causal: whether row i sees the keys up to i + s - t only: the last query sees all.
        dropout: probability with which a weight is set to 0 in training.
        scale: factor of the products; 1 / sqrt(d) for None.
        training: whether dropout is applied.
        key_lengths: [b], a tensor, an array or a list, how many keys of each row of the batch
            there are; all for None.

    Returns:
        [b, h, t, e], without the axes that q does not have.

    Raises:
        ShapeError: if shapes do not fit.
        DtypeError: for a mask that is neither bool nor floating.
        OptionError: if dropout is not in [0, 1], or scale is not finite.
        IndexRangeError: for lengths that are not from 0 to s.

    Example: ``scaled_dot_product_attention(q, k, v, is_causal=True)``

    >>> q, k = ndl.zeros((1, 1, 2)), ndl.zeros((1, 2, 2))
    >>> v = Tensor([[[1.0, 2.0], [3.0, 6.0]]])
    >>> print(ndl.scaled_dot_product_attention(q, k, v))  # equal scores: the mean of v
    [[[2. 4.]]]
    """
    name = "scaled_dot_product_attention"
    q, k, v = promoted((q, k, v), name, floating=True)
    ndim = len(shape_of(q))
    if not 2 <= ndim <= 4 or any(len(shape_of(x)) != ndim for x in (k, v)):
        raise explain(
            ShapeError, name, f"q has {ndim} axes, expected 2 to 4, and k and v as many",
            [("q", q), ("k", k), ("v", v)], _RULE,
        )  # fmt: skip
    n = 4 - ndim
    q, k, v = (_with_heads(x, n) for x in (q, k, v))
    rest = [] if mask is None else [_mask(name, q, k, mask, ndim)]
    if key_lengths is not None:
        rest.append(as_tensors((q, beside(q, key_lengths)), name)[1])
    d = shape_of(q)[3]
    factor = max(d, 1) ** -0.5 if scale is None else real(f"{name}: scale", scale)
    p = real(f"{name}: dropout", dropout) if training else 0.0
    static = factor, flag(f"{name}: is_causal", is_causal), p
    op, kept = _drawing(static, key_lengths is not None, q, shape_of(k)[2])
    out = executor.apply(op, q, k, v, *rest, *kept)[0]
    return reshape(out, (*shape_of(out)[: ndim - 2], *shape_of(out)[2:])) if n else out


def _drawing(
    static: tuple[float, bool, float], masked: bool, q: Tensor, s: int
) -> tuple[Attention, tuple[Any, ...]]:
    """Return the op, which draws what dropout keeps, or what was drawn as its last operand."""
    p, (b, h, t) = static[2], shape_of(q)[:3]
    source = random.generator() if p else None
    if source is not None and tracing.current() is not None:
        return _drawn_before(static, masked, q, s)
    if source is None:
        op = Attention.of(*static, 0, 0, masked, p != 0.0)
        device = executor.spec_of(q).device
        return op, (bernoulli((b, h, t, s), 1.0 - p, device=device),) if p else ()
    return Attention(*static, *source.take(b * h * t * -(-s // 4) * 4), masked, False), ()


def _drawn_before(
    static: tuple[float, bool, float], masked: bool, q: Tensor, s: int
) -> tuple[Attention, tuple[Any, ...]]:
    """Return what ``_drawing`` does, with the same draws as operand, from the program's stream."""
    b, h, t = shape_of(q)[:3]
    drawn = uniform((b, h, t, -(-s // 4) * 4), device=executor.spec_of(q).device)
    kept = less_equal(drawn, 1.0 - static[2])[..., :s]
    return Attention.of(*static, 0, 0, masked, True), (kept,)


def _mask(name: str, q: Tensor, k: Tensor, mask: Tensor, ndim: int) -> Tensor:
    """Return a mask with four axes.

    Raises:
        ShapeError: if it has more axes than the scores.
    """
    mask = as_tensors((q, mask), name)[1]
    shape = shape_of(mask)
    if len(shape) > ndim:
        raise explain(
            ShapeError, name, f"mask has {len(shape)} axes, the scores {ndim}",
            [("q", q), ("k", k), ("mask", mask)], "a mask broadcasts to the scores",
        )  # fmt: skip
    while len(shape_of(mask)) < ndim:
        mask = unsqueeze(mask, 0)
    return _with_heads(mask, 4 - ndim)

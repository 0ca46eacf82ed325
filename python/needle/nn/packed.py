"""Sequences of several lengths, as recurrent layers take and return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from needle import executor, ops
from needle.backend.axes import integer
from needle.errors import ArgumentError, IndexRangeError, OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.sequence.recurrent_grad import running
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import Values

__all__ = ["PackedSequence", "pack_padded_sequence", "pad_packed_sequence"]


class PackedSequence(NamedTuple):
    """Hold sequences of several lengths: padded to one length, and their own lengths.

    Attributes:
        data: [t, b, ...], where t is the largest length.
        lengths: int64 [b].

    >>> packed = nn.pack_padded_sequence(ndl.zeros(5, 2, 3), [5, 2])
    >>> packed.data.shape, packed.lengths.tolist()
    ((5, 2, 3), [5, 2])
    """

    data: Tensor
    lengths: Tensor


def pack_padded_sequence(
    x: Tensor, lengths: Values, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Return padded sequences with their lengths, as recurrent layers take them.

    The padding is neither read by these layers nor removed. Rows may have any order.

    Args:
        x: [t, b, ...], or [b, t, ...] with ``batch_first``.
        lengths: [b], a tensor, an array or a list, from 0 to t.
        batch_first: whether the batch is the first axis of x.
        enforce_sorted: not used; programs written for PyTorch pass it.

    Raises:
        ShapeError: if x has fewer than two axes, or the number of lengths is not that of rows.
        IndexRangeError: naming the first row whose length is not from 0 to t.

    >>> out, h = nn.GRU(3, 4)(nn.pack_padded_sequence(ndl.rand(5, 2, 3), [5, 2]))
    >>> h.shape
    (1, 2, 4)
    """
    if len(shape_of(x)) < 2:
        raise explain(ShapeError, "pack_padded_sequence", "x has no time and batch", [("x", x)])
    data = ops.swapaxes(x, 0, 1) if batch_first else x
    t, b = shape_of(data)[:2]
    values = lengths.numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
    if values.shape != (b,):
        problem = f"{values.shape} lengths for {b} rows"
        raise explain(ShapeError, "pack_padded_sequence", problem, [("x", x)], "lengths [b]")
    wrong = np.flatnonzero((values < 0) | (values > t))
    if wrong.size:
        raise IndexRangeError(
            f"pack_padded_sequence: row {wrong[0]} has length {values[wrong[0]]}, but x has "
            f"{t} steps\n  rule: lengths from 0 to {t}"
        )
    most = int(values.max(initial=0))
    device = executor.spec_of(x).device
    whole = Tensor(values.astype(np.int64), device=device, requires_grad=False)
    return PackedSequence(data[:most], whole)


def pad_packed_sequence(
    packed: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the padded sequences and the lengths of a recurrent layer's result.

    Args:
        packed: sequences with their lengths.
        batch_first: whether the batch becomes the first axis.
        padding_value: value after the end of each sequence.
        total_length: number of steps of the result; the largest length for None.

    Raises:
        ArgumentError: if packed is something else, or ``total_length`` is not an integer.
        OptionError: if ``total_length`` is smaller than the largest length.

    >>> packed = nn.pack_padded_sequence(ndl.ones(3, 2, 1), [3, 1])
    >>> x, lengths = nn.pad_packed_sequence(packed, padding_value=-1.0)
    >>> print(x[:, :, 0])
    [[ 1.  1.]
     [ 1. -1.]
     [ 1. -1.]]
    """
    if not isinstance(packed, tuple) or len(packed) != 2:
        raise ArgumentError(f"pad_packed_sequence: expected a PackedSequence, got {packed!r:.60}")
    x, lengths = packed
    t = shape_of(x)[0]
    total = (
        t if total_length is None else integer("pad_packed_sequence: total_length", total_length)
    )
    if total < t:
        raise OptionError(f"pad_packed_sequence: total_length={total}\n  rule: {t} or more")
    inside = running((lengths,), t)
    inside = ops.reshape(inside, (*shape_of(inside)[:2], *(1 for _ in shape_of(x)[2:])))
    x = ops.where(inside, x, padding_value)
    if total > t:
        filled = ops.full(
            (total - t, *shape_of(x)[1:]), padding_value, dtype=x.dtype, device=x.device
        )
        x = ops.concat([x, filled])
    return ops.swapaxes(x, 0, 1) if batch_first else x, lengths

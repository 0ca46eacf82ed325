"""Shapes and the order of elements; picking by integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from needle import executor, graph, ops
from needle.errors import DtypeError, OptionError, ShapeError
from needle.standard import operands

if TYPE_CHECKING:
    from needle.typing import Axes, Tensor

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims",
    "repeat", "reshape", "roll", "squeeze", "stack", "take", "take_along_axis", "tile", "unstack",
]  # fmt: skip


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return the tensors as views of their common shape."""
    return ops.broadcast_arrays(*arrays)


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """Return x repeated to a larger shape, a view."""
    return ops.broadcast_to(x, shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Join tensors along an axis; flattened for None."""
    if axis is None:
        return ops.concat([ops.reshape(x, (-1,)) for x in arrays])
    return ops.concat(arrays, axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """Insert an axis of size 1 at this place of the result."""
    return ops.expand_dims(x, axis)


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """Reverse the order along axes, all for None."""
    x = operands.tensor(x)
    return ops.flip(x, tuple(range(x.ndim)) if axis is None else axis)


def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """Move axes to other places; the others keep their order."""
    return ops.moveaxis(x, source, destination)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Reorder the axes."""
    return ops.permute(x, axes)


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Repeat each element along an axis (of the flattened x for None).

    Args:
        x: a tensor.
        repeats: a number, or an integer tensor with one count for each element or for all.
        axis: the axis.

    Raises:
        ShapeError: if there is neither one count nor one per element; if a count is negative.
        DtypeError: if counts are not integers.
    """
    x = operands.tensor(x)
    if isinstance(repeats, graph.TensorBase):
        repeats = executor.primal_array(repeats).numpy()
    counts = np.asarray(repeats)
    if counts.size and counts.dtype.kind not in "iu":
        raise DtypeError(f"repeat: repeats are {counts.dtype}, not integers: {repeats!r:.60}")
    if counts.ndim > 1 or (counts < 0).any():
        raise ShapeError(
            f"repeat: repeats are {repeats!r:.60}\n  rule: one count, or one per element, 0 or more"
        )
    repeats = int(counts.reshape(-1)[0]) if counts.size == 1 else counts.tolist()
    return ops.repeat(x, repeats, axis)


def reshape(x: Tensor, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Tensor:
    """Return the elements in a new shape; one size may be -1.

    Args:
        x: a tensor.
        shape: the new shape.
        copy: True: always; False: never, raise OptionError; None: if the strides require it.
    """
    out = ops.reshape(operands.tensor(x), shape)
    if copy is False and _memory(out) != _memory(x):
        raise OptionError(f"reshape: {x.shape} cannot become {out.shape} without a copy")
    return ops.copy(out) if copy else out


def _memory(x: Tensor) -> int:
    return int(executor.primal_array(x).handle.ptr())


def roll(x: Tensor, /, shift: int | Sequence[int], *, axis: Axes = None) -> Tensor:
    """Move elements along axes; they wrap around at the ends."""
    return ops.roll(x, shift, axis)


def squeeze(x: Tensor, /, axis: int | Sequence[int]) -> Tensor:
    """Remove axes of size 1."""
    return ops.squeeze(x, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis."""
    return ops.stack(arrays, axis)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Pick slices along an axis."""
    return ops.take(x, indices, axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Pick along an axis, an index for each element."""
    return ops.gather(x, indices, axis)


def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """Repeat the whole of x along each axis."""
    return ops.tile(x, repetitions)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis."""
    return tuple(ops.unbind(x, axis))

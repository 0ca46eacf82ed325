"""Pooling, with PyTorch's names and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from needle import ops
from needle.errors import OptionError
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import PerAxis

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip


def _max(pool: Callable[..., Tensor], return_indices: bool, *settings: object) -> Tensor:
    if return_indices:
        raise OptionError("max_pool: return_indices=True is not available; it must be False")
    return pool(*settings)


def max_pool1d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Take the largest element of each window of [n, c, t]. See ``ops.max_pool1d``."""
    how = (input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max(ops.max_pool1d, return_indices, *how)


def max_pool2d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Take the largest element of each window of [n, c, h, w]. See ``ops.max_pool2d``."""
    how = (input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max(ops.max_pool2d, return_indices, *how)


def max_pool3d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Take the largest element of each window of [n, c, d, h, w]. See ``ops.max_pool3d``."""
    how = (input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max(ops.max_pool3d, return_indices, *how)


def _average(pool: Callable[..., Tensor], divisor: int | None, *settings: object) -> Tensor:
    if divisor is not None:
        raise OptionError("avg_pool: divisor_override is not available; it must be None")
    return pool(*settings)


def avg_pool1d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Average the windows of [n, c, t]. See ``ops.avg_pool1d``."""
    return ops.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Average the windows of [n, c, h, w]. See ``ops.avg_pool2d``."""
    how = (input, kernel_size, stride, padding, ceil_mode, count_include_pad)
    return _average(ops.avg_pool2d, divisor_override, *how)


def avg_pool3d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Average the windows of [n, c, d, h, w]. See ``ops.avg_pool3d``."""
    how = (input, kernel_size, stride, padding, ceil_mode, count_include_pad)
    return _average(ops.avg_pool3d, divisor_override, *how)


def adaptive_avg_pool1d(input: Tensor, output_size: PerAxis) -> Tensor:
    """Average [n, c, t] down to a size. See ``ops.adaptive_avg_pool1d``."""
    return ops.adaptive_avg_pool1d(input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: PerAxis | Sequence[int | None]) -> Tensor:
    """Average [n, c, h, w] down to a size. See ``ops.adaptive_avg_pool2d``."""
    return ops.adaptive_avg_pool2d(input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: PerAxis | Sequence[int | None]) -> Tensor:
    """Average [n, c, d, h, w] down to a size. See ``ops.adaptive_avg_pool3d``."""
    return ops.adaptive_avg_pool3d(input, output_size)


def adaptive_max_pool1d(
    input: Tensor, output_size: PerAxis, return_indices: bool = False
) -> Tensor:
    """Take the largest elements of [n, c, t] down to a size. See ``ops.adaptive_max_pool1d``."""
    return _max(ops.adaptive_max_pool1d, return_indices, input, output_size)


def adaptive_max_pool2d(
    input: Tensor, output_size: PerAxis | Sequence[int | None], return_indices: bool = False
) -> Tensor:
    """Take the largest elements of [n, c, h, w] down to a size. See ``ops.adaptive_max_pool2d``."""
    return _max(ops.adaptive_max_pool2d, return_indices, input, output_size)


def adaptive_max_pool3d(
    input: Tensor, output_size: PerAxis | Sequence[int | None], return_indices: bool = False
) -> Tensor:
    """Take the largest elements of [n, c, d, h, w] down to a size.

    See ``ops.adaptive_max_pool3d``.
    """
    return _max(ops.adaptive_max_pool3d, return_indices, input, output_size)

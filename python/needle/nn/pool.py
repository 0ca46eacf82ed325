"""Pooling and upsampling layers, on images [n, c, *spatial]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from needle import ops
from needle.errors import OptionError, unknown
from needle.nn.module import Module
from needle.nn.settings import shown
from needle.ops.resample import MODES
from needle.tensor import Tensor


class MaxPool2d(Module):
    """Take the largest element of each window; see ``ops.max_pool2d``."""

    pool: ClassVar[Callable[..., Any]] = staticmethod(ops.max_pool2d)

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )  # fmt: skip

    def extra_repr(self) -> str:
        usual = {"dilation": (self.dilation, 1), "ceil_mode": (self.ceil_mode, False)}
        return shown(_windows(self), usual)


class MaxPool1d(MaxPool2d):
    """Take the largest element of each window of sequences; see ``ops.max_pool1d``."""

    pool = staticmethod(ops.max_pool1d)


class MaxPool3d(MaxPool2d):
    """Take the largest element of each window of volumes; see ``ops.max_pool3d``."""

    pool = staticmethod(ops.max_pool3d)


class AvgPool2d(Module):
    """Average each window; see ``ops.avg_pool2d``."""

    pool: ClassVar[Callable[..., Any]] = staticmethod(ops.avg_pool2d)

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )  # fmt: skip

    def extra_repr(self) -> str:
        settings = {
            "ceil_mode": (self.ceil_mode, False),
            "count_include_pad": (self.count_include_pad, True),
        }
        return shown(_windows(self), settings)


class AvgPool1d(AvgPool2d):
    """Average each window of sequences; see ``ops.avg_pool1d``."""

    pool = staticmethod(ops.avg_pool1d)


class AvgPool3d(AvgPool2d):
    """Average each window of volumes; see ``ops.avg_pool3d``."""

    pool = staticmethod(ops.avg_pool3d)


def _windows(layer: MaxPool2d | AvgPool2d) -> str:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return f"kernel_size={layer.kernel_size}, stride={stride}, padding={layer.padding}"


class AdaptiveAvgPool2d(Module):
    """Average images to a size; see ``ops.adaptive_avg_pool2d``."""

    pool: ClassVar[Callable[..., Any]] = staticmethod(ops.adaptive_avg_pool2d)

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x, self.output_size)

    def extra_repr(self) -> str:
        return f"{self.output_size}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """Average sequences to a size; see ``ops.adaptive_avg_pool1d``."""

    pool = staticmethod(ops.adaptive_avg_pool1d)


class Upsample(Module):
    """Enlarge images by their neighbouring pixels; see ``ops.upsample``.

    Raises:
        OptionError: for an unknown mode, or unless one of size and scale_factor is given.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown("Upsample: mode", mode, MODES)
        if (size is None) == (scale_factor is None):
            raise OptionError(
                f"Upsample: size={size}, scale_factor={scale_factor}\n"
                "  rule: one of size and scale_factor is given"
            )
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return ops.upsample(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        how = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        corners = {"align_corners": (self.align_corners, False)}
        return shown(f"{how}, mode={self.mode!r}", corners)

"""Pooling and upsampling layers, on images [n, c, *spatial]."""

from __future__ import annotations

from collections.abc import Sequence

from needle import ops
from needle.errors import OptionError, unknown
from needle.nn.module import Module
from needle.nn.settings import shown
from needle.ops.resample import MODES
from needle.tensor import Tensor


class MaxPool2d(Module):
    """Take the largest element of each window; see ``ops.max_pool2d``."""

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
        return ops.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )  # fmt: skip

    def extra_repr(self) -> str:
        usual = {"dilation": (self.dilation, 1), "ceil_mode": (self.ceil_mode, False)}
        return shown(_windows(self), usual)


class AvgPool2d(Module):
    """Average each window; see ``ops.avg_pool2d``."""

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
        return ops.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )  # fmt: skip

    def extra_repr(self) -> str:
        settings = {
            "ceil_mode": (self.ceil_mode, False),
            "count_include_pad": (self.count_include_pad, True),
        }
        return shown(_windows(self), settings)


def _windows(layer: MaxPool2d | AvgPool2d) -> str:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return f"kernel_size={layer.kernel_size}, stride={stride}, padding={layer.padding}"


class AdaptiveAvgPool2d(Module):
    """Average images to a size; see ``ops.adaptive_avg_pool2d``."""

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"{self.output_size}"


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

"""Layers that pool, pad, resize or unfold images [n, c, *spatial]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from needle import ops
from needle.backend.axes import integer
from needle.errors import OptionError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_number, check_sizes, shown
from needle.ops.image.resample import MODES
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import PerAxis

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "CircularPad1d", "CircularPad2d", "ConstantPad1d", "ConstantPad2d", "Fold", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d",
    "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "Unfold", "Upsample", "ZeroPad1d",
    "ZeroPad2d",
]  # fmt: skip


class MaxPool2d(Module):
    """Take the largest element of each window; see ``ops.max_pool2d``.

    >>> x = ops.reshape(ndl.arange(16.0), (1, 1, 4, 4))
    >>> print(nn.MaxPool2d(2)(x)[0, 0])
    [[ 5.  7.]
     [13. 15.]]
    """

    pool: ClassVar[Callable[..., Tensor]] = staticmethod(ops.max_pool2d)

    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
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
    """Take the largest element of each window of sequences; see ``ops.max_pool1d``.

    >>> print(nn.MaxPool1d(2)(Tensor([[[1.0, 4.0, 2.0, 3.0]]])))
    [[[4. 3.]]]
    """

    pool = staticmethod(ops.max_pool1d)


class MaxPool3d(MaxPool2d):
    """Take the largest element of each window of volumes; see ``ops.max_pool3d``.

    >>> nn.MaxPool3d(2)(ndl.zeros(1, 3, 4, 8, 8)).shape
    (1, 3, 2, 4, 4)
    """

    pool = staticmethod(ops.max_pool3d)


class AvgPool2d(Module):
    """Average each window; see ``ops.avg_pool2d``.

    >>> x = ops.reshape(ndl.arange(16.0), (1, 1, 4, 4))
    >>> print(nn.AvgPool2d(2)(x)[0, 0])
    [[ 2.5  4.5]
     [10.5 12.5]]
    """

    pool: ClassVar[Callable[..., Tensor]] = staticmethod(ops.avg_pool2d)

    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
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
    """Average each window of sequences; see ``ops.avg_pool1d``.

    >>> print(nn.AvgPool1d(2)(Tensor([[[1.0, 4.0, 2.0, 3.0]]])))
    [[[2.5 2.5]]]
    """

    pool = staticmethod(ops.avg_pool1d)


class AvgPool3d(AvgPool2d):
    """Average each window of volumes; see ``ops.avg_pool3d``.

    >>> nn.AvgPool3d(2)(ndl.zeros(1, 3, 4, 8, 8)).shape
    (1, 3, 2, 4, 4)
    """

    pool = staticmethod(ops.avg_pool3d)


def _windows(layer: MaxPool2d | AvgPool2d) -> str:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return f"kernel_size={layer.kernel_size}, stride={stride}, padding={layer.padding}"


class _AdaptivePool(Module):
    pool: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x, self.output_size)

    def extra_repr(self) -> str:
        return f"{self.output_size}"


class AdaptiveAvgPool2d(_AdaptivePool):
    """Average images down to a size; see ``ops.adaptive_avg_pool2d``.

    >>> nn.AdaptiveAvgPool2d(1)(ndl.zeros(2, 8, 5, 7)).shape
    (2, 8, 1, 1)
    """

    pool = staticmethod(ops.adaptive_avg_pool2d)


class AdaptiveAvgPool1d(_AdaptivePool):
    """Average sequences down to a size; see ``ops.adaptive_avg_pool1d``.

    >>> print(nn.AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])))
    [[[2. 6.]]]
    """

    pool = staticmethod(ops.adaptive_avg_pool1d)


class AdaptiveAvgPool3d(_AdaptivePool):
    """Average volumes down to a size; see ``ops.adaptive_avg_pool3d``.

    >>> nn.AdaptiveAvgPool3d(1)(ndl.zeros(2, 8, 3, 4, 5)).shape
    (2, 8, 1, 1, 1)
    """

    pool = staticmethod(ops.adaptive_avg_pool3d)


class AdaptiveMaxPool2d(_AdaptivePool):
    """Reduce images to a size by maxima; see ``ops.adaptive_max_pool2d``.

    >>> nn.AdaptiveMaxPool2d((2, 3))(ndl.zeros(2, 8, 5, 7)).shape
    (2, 8, 2, 3)
    """

    pool = staticmethod(ops.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptivePool):
    """Reduce volumes to a size by maxima; see ``ops.adaptive_max_pool3d``.

    >>> nn.AdaptiveMaxPool3d(1)(ndl.zeros(2, 8, 3, 4, 5)).shape
    (2, 8, 1, 1, 1)
    """

    pool = staticmethod(ops.adaptive_max_pool3d)


class AdaptiveMaxPool1d(_AdaptivePool):
    """Reduce sequences to a size by maxima; see ``ops.adaptive_max_pool1d``.

    >>> print(nn.AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])))
    [[[3. 7.]]]
    """

    pool = staticmethod(ops.adaptive_max_pool1d)


class _Pad(Module):
    """Pad the last axes; see ``ops.pad``."""

    axes: ClassVar[int] = 1
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: PerAxis) -> None:
        super().__init__()
        name = type(self).__name__
        given = padding if isinstance(padding, Sequence) else (padding,)
        widths = tuple(integer(f"{name}: padding", n) for n in given)
        widths = widths * 2 * self.axes if len(widths) == 1 else widths
        if len(widths) != 2 * self.axes or min(widths) < 0:
            raise OptionError(
                f"{name}: padding={padding!r:.60}\n  rule: one integer >= 0, or "
                f"{2 * self.axes} of them: before and after, for the last axis first"
            )
        self.padding, self.value = widths, 0.0

    def forward(self, x: Tensor) -> Tensor:
        ndim = len(shape_of(x))
        if ndim < self.axes:
            raise explain(
                ShapeError, type(self).__name__, f"x has {ndim} axes", [("x", x)],
                f"at least {self.axes}",
            )  # fmt: skip
        pairs = list(zip(self.padding[::2], self.padding[1::2], strict=True))[::-1]
        around = ((0, 0),) * (ndim - self.axes)
        return ops.pad(x, (*around, *pairs), self.mode, self.value)

    def extra_repr(self) -> str:
        return shown(f"{self.padding}", {"value": (self.value, 0.0)})


class ZeroPad1d(_Pad):
    """Pad sequences with zeros: one number for both sides, or (left, right).

    >>> print(nn.ZeroPad1d((1, 2))(Tensor([[[5.0, 6.0]]])))
    [[[0. 5. 6. 0. 0.]]]
    """


class ZeroPad2d(_Pad):
    """Pad images with zeros: one number for all sides, or (left, right, top, bottom).

    >>> nn.ZeroPad2d((1, 1, 2, 2))(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 12, 10)
    """

    axes = 2


class ConstantPad1d(_Pad):
    """Pad sequences with a value: one number for both sides, or (left, right).

    >>> print(nn.ConstantPad1d(1, 9.0)(Tensor([[[5.0, 6.0]]])))
    [[[9. 5. 6. 9.]]]
    """

    def __init__(self, padding: PerAxis, value: float = 0.0) -> None:
        super().__init__(padding)
        check_number(self, "value", value, low=-math.inf)
        self.value = value


class ConstantPad2d(ConstantPad1d):
    """Pad images with a value: one number for all sides, or (left, right, top, bottom).

    >>> nn.ConstantPad2d(1, 9.0)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 10, 10)
    """

    axes = 2


class ReflectionPad1d(_Pad):
    """Pad sequences with their mirror image, without the edge: (left, right), or one number.

    >>> print(nn.ReflectionPad1d(2)(Tensor([[[1.0, 2.0, 3.0]]])))
    [[[3. 2. 1. 2. 3. 2. 1.]]]
    """

    mode = "reflect"


class ReflectionPad2d(ReflectionPad1d):
    """Pad images with their mirror image: (left, right, top, bottom), or one number.

    >>> nn.ReflectionPad2d(2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 12, 12)
    """

    axes = 2


class ReplicationPad1d(_Pad):
    """Pad sequences with their first and last elements: (left, right), or one number.

    >>> print(nn.ReplicationPad1d(2)(Tensor([[[1.0, 2.0, 3.0]]])))
    [[[1. 1. 1. 2. 3. 3. 3.]]]
    """

    mode = "replicate"


class ReplicationPad2d(ReplicationPad1d):
    """Pad images with the pixels at their edges: (left, right, top, bottom), or one number.

    >>> nn.ReplicationPad2d(2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 12, 12)
    """

    axes = 2


class CircularPad1d(_Pad):
    """Pad sequences with elements from their other end: (left, right), or one number.

    >>> print(nn.CircularPad1d(2)(Tensor([[[1.0, 2.0, 3.0]]])))
    [[[2. 3. 1. 2. 3. 1. 2.]]]
    """

    mode = "circular"


class CircularPad2d(CircularPad1d):
    """Pad images with pixels from their other side: (left, right, top, bottom), or one number.

    >>> nn.CircularPad2d(2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 12, 12)
    """

    axes = 2


class PixelShuffle(Module):
    """Rearrange channels into larger images; see ``ops.pixel_shuffle``.

    >>> nn.PixelShuffle(2)(ndl.zeros(1, 12, 4, 4)).shape
    (1, 3, 8, 8)
    """

    shuffle: ClassVar[Callable[..., Tensor]] = staticmethod(ops.pixel_shuffle)

    def __init__(self, factor: int) -> None:
        super().__init__()
        check_sizes(self, factor=factor)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(x, self.factor)

    def extra_repr(self) -> str:
        return f"{self.factor}"


class PixelUnshuffle(PixelShuffle):
    """Rearrange pixels into more channels; see ``ops.pixel_unshuffle``.

    >>> nn.PixelUnshuffle(2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 12, 4, 4)
    """

    shuffle = staticmethod(ops.pixel_unshuffle)


class Unfold(Module):
    """Return the windows of images as columns; see ``ops.unfold``.

    >>> nn.Unfold(2)(ndl.zeros(1, 3, 4, 4)).shape
    (1, 12, 9)
    """

    def __init__(
        self,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return ops.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        usual = {"dilation": (self.dilation, 1), "padding": (self.padding, 0)}
        return shown(f"kernel_size={self.kernel_size}", {**usual, "stride": (self.stride, 1)})


class Fold(Unfold):
    """Sum windows, given as columns, into images of a size; see ``ops.fold``.

    >>> nn.Fold((4, 4), 2)(ndl.ones(1, 12, 9)).shape
    (1, 3, 4, 4)
    """

    def __init__(
        self,
        output_size: PerAxis,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        how = (self.kernel_size, self.dilation, self.padding, self.stride)
        return ops.fold(x, self.output_size, *how)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class Upsample(Module):
    """Resize images by interpolation; see ``ops.upsample``.

    Raises:
        OptionError: for an unknown mode, or if not exactly one of size and scale_factor is given.

    >>> print(nn.Upsample(scale_factor=2)(Tensor([[[1.0, 2.0]]])))
    [[[1. 1. 2. 2.]]]
    """

    def __init__(
        self,
        size: PerAxis | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(mode, str) or mode not in MODES:
            raise unknown("Upsample: mode", str(mode), MODES)
        if (size is None) == (scale_factor is None):
            raise OptionError(
                f"Upsample: size={size}, scale_factor={scale_factor}\n"
                "  rule: give either size or scale_factor"
            )
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return ops.upsample(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        how = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        corners = {"align_corners": (self.align_corners, False)}
        return shown(f"{how}, mode={self.mode!r}", corners)

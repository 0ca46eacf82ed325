"""Convolution layers: the course's, and PyTorch's.

All take and return images as [n, c, *spatial]. In memory images are [n, *spatial, c] and weights
[*kernel, in, out], so that no data moves between the layers of a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from needle import init, ops
from needle.backend.axes import axes_of, integer
from needle.errors import OptionError, ShapeError, unknown
from needle.executor import shape_of
from needle.nn.module import Module
from needle.nn.settings import check_sizes, shown
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, PerAxis

__all__ = [
    "Conv", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
]  # fmt: skip

PADDINGS = ("same", "valid")
"""Paddings by name."""


def _bias(size: int, fan_in: int, device: DeviceLike, dtype: DTypeLike) -> Parameter:
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return Parameter(init.rand(size, low=-bound, high=bound, device=device, dtype=dtype))


def _check_sizes(name: str, ins: int, outs: int, kernel: Sequence[int]) -> None:
    ins, outs, *kernel = (integer(f"{name}: size", n) for n in (ins, outs, *kernel))
    if min(ins, outs, *kernel) < 1:
        raise ShapeError(
            f"{name}: {ins} channels to {outs}, kernel {tuple(kernel)}\n  rule: sizes >= 1"
        )


def _square(name: str, given: PerAxis) -> int:
    sizes = {*axes_of(given)}
    if len(sizes) != 1:
        raise OptionError(f"Conv: {name}={given!r:.60}\n  rule: equal in all axes\n  try: Conv2d")
    return sizes.pop()


class Conv(Module):
    """Convolve zero-padded images with a square kernel: the course's layer.

    Padding is (kernel_size - 1) // 2, so with stride 1 and an odd kernel the result has the size
    of x. The weight is drawn first, U(+-sqrt(6 / fan_in)) with fan_in =
    in_channels * kernel_size ** 2; then the bias, U(+-1 / sqrt(fan_in)).

    Shapes:   x [n, in_channels, h, w] -> [n, out_channels, h', w']

    Attributes:
        weight: [kernel_size, kernel_size, in_channels, out_channels].
        bias: [out_channels], or None.
        slope: factor of negative results: 1, unless ``fold_batch_norm`` has included a following
            ReLU or LeakyReLU in the layer.

    Raises:
        OptionError: if the kernel or the stride differs between the axes.
        ShapeError: if a size is below 1; in a call, if x is not [n, c, h, w].

    >>> nn.Conv(3, 16, 3, stride=2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 16, 4, 4)
    """

    slope = 1.0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        _check_sizes("Conv", in_channels, out_channels, (*axes_of(kernel_size), *axes_of(stride)))
        k, self.stride = _square("kernel_size", kernel_size), _square("stride", stride)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, k
        fan_in = in_channels * k * k
        self.weight = Parameter(
            init.kaiming_uniform(
                fan_in, out_channels * k * k, shape=(k, k, in_channels, out_channels),
                device=device, dtype=dtype,
            )
        )  # fmt: skip
        self.bias: Tensor | None = _bias(out_channels, fan_in, device, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if len(shape_of(x)) != 4:
            raise ShapeError(
                f"Conv: expected x of shape [n, {self.in_channels}, h, w], got {x.shape}"
            )
        image, low = ops.permute(x, (0, 2, 3, 1)), (self.kernel_size - 1) // 2
        geometry = ((self.stride,) * 2, ((low, low),) * 2, (1, 1), 1)
        out = ops.convolve(image, self.weight, self.bias, geometry, self.slope)
        return ops.permute(out, (0, 3, 1, 2))

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, {self.kernel_size}"
        text += f", stride={self.stride}" if self.stride != 1 else ""
        text += f", slope={self.slope}" if self.slope != 1 else ""
        return text if self.bias is not None else text + ", bias=False"


class _ConvNd(Module):
    """Base of PyTorch's convolution layers.

    Drawn as ``Conv``: the weight first, with fan_in = size of one entry of its first axis.

    Attributes:
        weight: [out_channels, in_channels / groups, *kernel]; transposed convolutions:
            [in_channels, out_channels / groups, *kernel].
        bias: [out_channels], or None.
    """

    axes: ClassVar[int]
    transposed: ClassVar[bool] = False

    def _check_steps(self, least: int, **settings: PerAxis) -> None:
        """Check settings that have a number per spatial axis, such as strides."""
        for name, value in settings.items():
            if min(ops.per_axis(name, value, self.axes)) < least:
                kind = type(self).__name__
                raise ShapeError(f"{kind}: {name}={value}\n  rule: {name} >= {least}")

    def _draw(self, kernel_size: PerAxis, bias: bool, device: DeviceLike, dtype: DTypeLike) -> None:
        name = type(self).__name__
        check_sizes(
            self, in_channels=self.in_channels, out_channels=self.out_channels, groups=self.groups
        )
        self.kernel_size = ops.per_axis("kernel_size", kernel_size, self.axes)
        ins, outs, groups = self.in_channels, self.out_channels, self.groups
        _check_sizes(name, ins, outs, self.kernel_size)
        if groups < 1 or ins % groups or outs % groups:
            raise ShapeError(f"{name}: groups={groups} does not divide {ins} and {outs} channels")
        first, second = (ins, outs // groups) if self.transposed else (outs, ins // groups)
        taps = math.prod(self.kernel_size)
        drawn = init.kaiming_uniform(
            second * taps, first * taps, shape=(*self.kernel_size, second, first),
            device=device, dtype=dtype,
        )  # fmt: skip
        order = (self.axes + 1, self.axes, *range(self.axes))
        self.weight = Parameter(ops.permute(drawn, order))
        self.bias: Tensor | None = _bias(outs, second * taps, device, dtype) if bias else None

    in_channels: int
    out_channels: int
    groups: int

    def _settings(self) -> dict[str, tuple[object, object]]:
        """Return (value, default) of the settings by name."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        settings = {**self._settings(), "groups": (self.groups, 1)}
        settings["bias"] = (self.bias is not None, True)
        first = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return shown(first, settings)


class _Straight(_ConvNd):
    slope = 1.0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis | str = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self._check_steps(1, stride=stride, dilation=dilation)
        if not isinstance(padding, str):
            self._check_steps(0, padding=padding)
        elif padding not in PADDINGS:
            raise unknown(f"{type(self).__name__}: padding", padding, PADDINGS)
        elif padding == "same" and max(ops.per_axis("stride", stride, self.axes)) != 1:
            raise OptionError(f'{type(self).__name__}: padding="same" needs stride 1, got {stride}')
        if padding_mode not in ops.PADDING_MODES:
            raise unknown(f"{type(self).__name__}: padding_mode", padding_mode, ops.PADDING_MODES)
        self.padding_mode = padding_mode
        self._draw(kernel_size, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        function = (ops.conv1d, ops.conv2d, ops.conv3d)[self.axes - 1]
        return function(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            self.padding_mode, self.slope,
        )  # fmt: skip

    def _settings(self) -> dict[str, tuple[object, object]]:
        return {
            "stride": (self.stride, 1), "padding": (self.padding, 0),
            "dilation": (self.dilation, 1), "padding_mode": (self.padding_mode, "zeros"),
            "slope": (self.slope, 1.0),
        }  # fmt: skip


class Conv1d(_Straight):
    """Convolve sequences [n, c, t]; see ``Conv2d``.

    >>> nn.Conv1d(4, 8, 3)(ndl.zeros(2, 4, 10)).shape
    (2, 8, 8)
    """

    axes = 1


class Conv2d(_Straight):
    """Convolve images [n, c, h, w]; see ``ops.conv2d`` for the settings.

    The weight is drawn first, U(+-sqrt(6 / fan_in)) with fan_in = in_channels / groups * size of
    the kernel; then the bias, U(+-1 / sqrt(fan_in)): the course's rule, not PyTorch's.

    Attributes:
        weight: [out_channels, in_channels / groups, *kernel].
        bias: [out_channels], or None.
        slope: as for ``Conv``.

    >>> nn.Conv2d(3, 16, 3, padding="same")(ndl.zeros(1, 3, 8, 8)).shape
    (1, 16, 8, 8)
    """

    axes = 2


class Conv3d(_Straight):
    """Convolve volumes [n, c, d, h, w]; see ``Conv2d``.

    >>> nn.Conv3d(1, 4, 3, stride=2)(ndl.zeros(1, 1, 7, 7, 7)).shape
    (1, 4, 3, 3, 3)
    """

    axes = 3


class _Transposed(_ConvNd):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerAxis = 1,
        device: DeviceLike = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.output_padding = output_padding
        self._check_steps(1, stride=stride, dilation=dilation)
        self._check_steps(0, padding=padding, output_padding=output_padding)
        self._draw(kernel_size, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        functions = (ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d)
        return functions[self.axes - 1](
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip

    def _settings(self) -> dict[str, tuple[object, object]]:
        return {
            "stride": (self.stride, 1), "padding": (self.padding, 0),
            "output_padding": (self.output_padding, 0), "dilation": (self.dilation, 1),
        }  # fmt: skip


class ConvTranspose1d(_Transposed):
    """Transposed convolution of sequences [n, c, t]; see ``ConvTranspose2d``.

    >>> nn.ConvTranspose1d(4, 8, 2, stride=2)(ndl.zeros(1, 4, 5)).shape
    (1, 8, 10)
    """

    axes = 1


class ConvTranspose2d(_Transposed):
    """Transposed convolution of images [n, c, h, w]; see ``ops.conv_transpose2d``.

    Drawn as ``Conv2d``, with fan_in = out_channels / groups * size of the kernel.

    Attributes:
        weight: [in_channels, out_channels / groups, *kernel].
        bias: [out_channels], or None.

    >>> nn.ConvTranspose2d(16, 3, 2, stride=2)(ndl.zeros(1, 16, 4, 4)).shape
    (1, 3, 8, 8)
    """

    axes = 2


class ConvTranspose3d(_Transposed):
    """Transposed convolution of volumes [n, c, d, h, w]; see ``ConvTranspose2d``.

    >>> nn.ConvTranspose3d(2, 1, 2, stride=2)(ndl.zeros(1, 2, 3, 3, 3)).shape
    (1, 1, 6, 6, 6)
    """

    axes = 3

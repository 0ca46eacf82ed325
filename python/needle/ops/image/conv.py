"""The convolution functions: the course's ``conv``, and PyTorch's names and layouts.

PyTorch's functions take images as [n, c, *spatial] and weights as [o, c / groups, *kernel]. They
only permute axes: in memory images stay [n, *spatial, c], as the results are, so a network moves no
data between its layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend.axes import axes_of, integer
from needle.errors import OptionError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Multilinear
from needle.ops.core.op import promoted
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.activation import leaky_relu, relu
from needle.ops.image.convolution import Convolution, ConvolutionInput, Pairs, Sizes
from needle.ops.image.convolution_bias import ConvolutionActivation, ConvolutionBias
from needle.ops.shape.movement import Pad, permute
from needle.ops.shape.padding import pad

if TYPE_CHECKING:
    from needle.ops.core.op import Op
    from needle.typing import Gradients, NDArray, Numpy, PerAxis, Tensor

__all__ = [
    "Conv", "PADDING_MODES", "channels_first", "channels_last", "conv", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolve",
    "per_axis",
]  # fmt: skip

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


# ---- the course --------------------------------------------------------------------


def _conv(x: Numpy, w: Numpy, stride: int, padding: int) -> Numpy:
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], (1, 2))
    return np.einsum("nhwcij,ijco->nhwo", view[:, ::stride, ::stride], w)


class Conv(Multilinear):
    """Convolve images with a square kernel, zeros around them: the course's convolution.

    Shapes:   a [n, h, w, c], b [k, k, c, o] -> [n, (h + 2 * padding - k) // stride + 1, ..., o]
    Gradient: a, b; any order
    Raises:   as ``Convolution``
    """

    stride: int = 1
    padding: int = 0
    saves = Convolution.saves
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(a), uniform(b, seed=1)), static, lambda a, b, s=static: _conv(a, b, *s)
            )
            for a, b, static in (
                ((2, 4, 5, 3), (3, 3, 3, 2), (1, 1)),
                ((1, 5, 6, 2), (2, 2, 2, 3), (2, 0)),
            )
        ]
        + [Sample((uniform((2, 4, 5, 3)), uniform((3, 3, 2, 2))), (1, 1), raises=ShapeError)]
    )  # fmt: skip

    @property
    def general(self) -> Op:
        """The equivalent general convolution."""
        stride, padding = (self.stride,) * 2, ((self.padding,) * 2,) * 2
        return Convolution.of(stride, padding, (1, 1), 1)

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.general.prepare(inputs)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return self.general.compute(a, b)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return self.general.gradient(out_grad, out)


def conv(a: Tensor, b: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
    """Convolve images [n, h, w, c] with a kernel [k, k, c, o]. See ``Conv``.

    >>> images, weight = ndl.ones((1, 5, 5, 3)), ndl.ones((3, 3, 3, 8))
    >>> ops.conv(images, weight, stride=1, padding=1).shape
    (1, 5, 5, 8)
    """
    op = Conv.of(integer("conv: stride", stride), integer("conv: padding", padding))
    return executor.apply(op, a, b)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Any, slope: float = 1.0
) -> Tensor:
    """Convolve images [n, *spatial, c] with [*kernel, c / groups, o]; add a bias, rectify.

    Args:
        x: images.
        weight: the kernel.
        bias: [o], or None.
        geometry: stride, padding, dilation and groups, as ``Convolution`` has them.
        slope: the factor for results below zero, after the bias is added.
    """
    slope = real("convolve: slope", slope)
    if bias is None:
        out = executor.apply(Convolution.of(*geometry), x, weight)
        return out if slope == 1 else relu(out) if slope == 0 else leaky_relu(out, slope)
    if slope == 1:
        return executor.apply(ConvolutionBias.of(*geometry), x, weight, bias)
    return executor.apply(ConvolutionActivation.of(*geometry, slope), x, weight, bias)


# ---- PyTorch's faces ---------------------------------------------------------------


def per_axis(name: str, value: PerAxis, axes: int) -> Sizes:
    """Return one number per spatial axis.

    Raises:
        ArgumentError: if they are not integers.
        ShapeError: if there are not as many numbers as axes.

    >>> ops.per_axis("stride", 2, 3)
    (2, 2, 2)
    """
    sizes, axes = tuple(integer(name, n) for n in axes_of(value)), integer("per_axis: axes", axes)
    if len(sizes) == 1:
        sizes *= axes
    if len(sizes) != axes:
        raise ShapeError(f"{name}: {len(sizes)} numbers for {axes} spatial axes")
    return sizes


def _pairs(padding: PerAxis | str, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Pairs:
    """Return (before, after) per axis."""
    axes = len(kernel)
    if not isinstance(padding, str):
        return tuple((n, n) for n in per_axis("padding", padding, axes))
    if padding == "valid":
        return ((0, 0),) * axes
    if padding != "same":
        raise unknown("padding", padding, ("same", "valid"))
    if any(s != 1 for s in stride):
        raise OptionError(f'padding="same" needs stride 1, not {stride}')
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple((n // 2, n - n // 2) for n in total)


def _check(name: str, axes: int, x: Tensor, weight: Tensor, bias: Tensor | None, outs: int) -> None:
    if len(shape_of(x)) != axes + 2 or len(shape_of(weight)) != axes + 2:
        raise explain(
            ShapeError, name, f"expected {axes + 2} axes, got {len(shape_of(x))} and "
            f"{len(shape_of(weight))}", [("x", x), ("weight", weight)],
            "x [n, c, *spatial], weight [o, c / groups, *kernel]; transposed: "
            "[c, o / groups, *kernel]",
        )  # fmt: skip
    if bias is not None and shape_of(bias) != (outs,):
        raise explain(
            ShapeError, name, f"bias has shape {shape_of(bias)}, but there are {outs} output "
            "channels", [("weight", weight), ("bias", bias)], "bias [o]",
        )  # fmt: skip


def channels_last(x: Tensor) -> Tensor:
    """Return [n, c, *spatial] as [n, *spatial, c]; a view.

    >>> ops.channels_last(ndl.ones((1, 3, 5, 6))).shape
    (1, 5, 6, 3)
    """
    ndim = len(shape_of(x))
    return permute(x, (0, *range(2, ndim), 1))


def channels_first(x: Tensor) -> Tensor:
    """Return [n, *spatial, c] as [n, c, *spatial]; a view.

    >>> ops.channels_first(ndl.ones((1, 5, 6, 3))).shape
    (1, 3, 5, 6)
    """
    ndim = len(shape_of(x))
    return permute(x, (0, ndim - 1, *range(1, ndim - 1)))


def _kernel_first(weight: Tensor) -> Tensor:
    """Return [o, c, *kernel] as [*kernel, c, o]; a view."""
    return permute(weight, (*range(2, len(shape_of(weight))), 1, 0))


def _straight(axes: int, doc: str | None = None) -> Callable[..., Any]:
    """Return the convolution for a number of spatial axes; ``doc`` replaces the 2-d docstring."""
    name = f"conv{axes}d"

    def function(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: PerAxis = 1,
        padding: PerAxis | str = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        slope: float = 1.0,
    ) -> Tensor:
        """Convolve images [n, c, h, w] with a kernel [o, c / groups, kh, kw].

        Args:
            x: images. Views of [n, h, w, c] memory, as results are, need no copy.
            weight: the kernel.
            bias: [o], added to every position.
            stride: step of the windows, one number or one per axis.
            padding: number of pixels added on both sides; "valid" for 0; "same" for a result of the
                size of x (an odd number puts the larger half after the image).
            dilation: distance between the elements of the kernel.
            groups: number of groups of channels, each with its own kernel; c for a depthwise
                convolution.
            padding_mode: values outside the image: "zeros", "reflect", "replicate", "circular".
            slope: factor for results below zero: 0 gives a ReLU, in the same pass.

        Raises:
            ShapeError: see ``Convolution``.
            OptionError: for an unknown padding, or "same" with a stride, or a negative slope.

        >>> images, weight = ndl.ones((1, 3, 8, 8)), ndl.ones((16, 3, 3, 3))
        >>> ops.conv2d(images, weight, stride=2, padding=1).shape
        (1, 16, 4, 4)
        """
        _check(name, axes, x, weight, bias, sum(shape_of(weight)[:1]))
        if padding_mode not in PADDING_MODES:
            raise unknown("padding_mode", padding_mode, PADDING_MODES)
        steps, taps = per_axis("stride", stride, axes), per_axis("dilation", dilation, axes)
        pairs = _pairs(padding, shape_of(weight)[2:], steps, taps)
        image = channels_last(x)
        if padding_mode != "zeros":
            image = pad(image, ((0, 0), *pairs, (0, 0)), padding_mode)
            pairs = ((0, 0),) * axes
        geometry = (steps, pairs, taps, integer(f"{name}: groups", groups))
        return channels_first(convolve(image, _kernel_first(weight), bias, geometry, slope))

    return named(function, name, doc)


def _transposed(axes: int, doc: str | None = None) -> Callable[..., Tensor]:
    """Return the transposed convolution for a number of spatial axes; ``doc`` as above."""
    name = f"conv_transpose{axes}d"

    def function(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        dilation: PerAxis = 1,
    ) -> Tensor:
        """Transposed convolution of images [n, c, h, w] by a kernel [c, o / groups, kh, kw].

        It computes the gradient of ``conv2d`` with respect to its image, and adds a bias.

        Shapes: [n, c, h, w] -> [n, o, (h - 1) * stride - 2 * padding + dilation * (kh - 1)
                + output_padding + 1, ...]

        Args:
            x: images.
            weight: the kernel; its first axis has the channels of x.
            bias: [o].
            stride: distance between the copies of the kernel.
            padding: number of pixels removed from the result on both sides.
            output_padding: number of pixels added to the end of each axis: a strided convolution
                gives the same size for several input sizes, and this chooses one.
            groups: as for ``conv2d``.
            dilation: distance between the elements of the kernel.

        Raises:
            ShapeError: as ``ConvolutionInput``.
            OptionError: if output_padding is not below stride or dilation.

        >>> images, weight = ndl.ones((1, 16, 4, 4)), ndl.ones((16, 3, 2, 2))
        >>> ops.conv_transpose2d(images, weight, stride=2).shape
        (1, 3, 8, 8)
        """
        groups = integer(f"{name}: groups", groups)
        _check(name, axes, x, weight, bias, sum(shape_of(weight)[1:2]) * groups)
        if bias is not None:
            x, weight, bias = promoted((x, weight, bias), name, floating=True)
        steps, taps = per_axis("stride", stride, axes), per_axis("dilation", dilation, axes)
        lows, extra = (
            per_axis("padding", padding, axes),
            per_axis("output_padding", output_padding, axes),
        )
        if any(not 0 <= e < max(s, d, 1) for e, s, d in zip(extra, steps, taps, strict=True)):
            raise OptionError(
                f"{name}: output_padding {extra} with stride {steps}, dilation {taps}\n"
                "  rule: 0 <= output_padding < max(stride, dilation)"
            )
        # output_padding undoes padding at the end of an axis; the rest are zeros.
        pairs = tuple((p, max(p - e, 0)) for p, e in zip(lows, extra, strict=True))
        rest = tuple((0, max(e - p, 0)) for p, e in zip(lows, extra, strict=True))
        image, kernel = channels_last(x), shape_of(weight)[2:]
        spatial = tuple(
            s * (n - 1) + d * (k - 1) + 1 - low - high
            for n, k, s, d, (low, high) in zip(
                shape_of(image)[1:-1], kernel, steps, taps, pairs, strict=True
            )
        )
        op = ConvolutionInput.of(steps, pairs, taps, groups, spatial)
        out = executor.apply(op, image, _kernel_first(weight))
        if any(map(any, rest)):
            out = executor.apply(Pad.of(((0, 0), *rest, (0, 0))), out)
        return channels_first(out if bias is None else out + bias)

    return named(function, name, doc)


def named(function: Callable[..., Tensor], name: str, doc: str | None) -> Callable[..., Tensor]:
    """Return a function under a name, with a docstring in place of its own."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or inspect.getdoc(function)
    return function


conv1d = _straight(
    1,
    """Convolve sequences [n, c, t] with a kernel [o, c / groups, k]. See ``conv2d``.

    >>> print(ops.conv1d(Tensor([[[1.0, 2.0, 4.0, 8.0]]]), Tensor([[[-1.0, 1.0]]])))
    [[[1. 2. 4.]]]
    """,
)
conv2d = _straight(2)
conv3d = _straight(
    3,
    """Convolve [n, c, d, h, w] with a kernel [o, c / groups, kd, kh, kw]. See ``conv2d``.

    >>> ops.conv3d(ndl.ones((1, 2, 4, 4, 4)), ndl.ones((8, 2, 3, 3, 3))).shape
    (1, 8, 2, 2, 2)
    """,
)
conv_transpose1d = _transposed(
    1,
    """Transposed convolution of [n, c, t] by [c, o / groups, k]. See ``conv_transpose2d``.

    >>> print(ops.conv_transpose1d(Tensor([[[1.0, 2.0]]]), Tensor([[[1.0, 0.5]]]), stride=2))
    [[[1.  0.5 2.  1. ]]]
    """,
)
conv_transpose2d = _transposed(2)
conv_transpose3d = _transposed(
    3,
    """Transposed convolution of [n, c, d, h, w]. See ``conv_transpose2d``.

    >>> ops.conv_transpose3d(ndl.ones((1, 8, 2, 2, 2)), ndl.ones((8, 2, 3, 3, 3))).shape
    (1, 2, 4, 4, 4)
    """,
)

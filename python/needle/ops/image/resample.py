"""Pooling, upsampling and related functions with PyTorch's names, on [n, c, *spatial].

As in conv.py, they only permute axes: images stay [n, *spatial, c] in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.backend import ndarray
from needle.backend.axes import axes_of, integer, sizes_of
from needle.errors import OptionError, ShapeError, explain, unknown
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.op import promoted, widened
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.image.conv import channels_first, channels_last, named, per_axis
from needle.ops.image.convolution import Pairs, Sizes
from needle.ops.image.interpolation import (
    CENTRES,
    CORNERS,
    CUBIC_CENTRES,
    CUBIC_CORNERS,
    NEAREST,
    Interpolate,
)
from needle.ops.image.pooling import AvgPool, MaxPool
from needle.ops.image.windows import WindowsGrad, windows
from needle.ops.index.indexing import gather, take
from needle.ops.linalg.matmul import matmul
from needle.ops.reduction.reduce import argmax, mean
from needle.ops.shape.creation import made
from needle.ops.shape.movement import permute, reshape, stop_gradient
from needle.ops.shape.padding import pad
from needle.ops.shape.rearrange import flatten

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import DeviceLike, NDArray, PerAxis, Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "fold", "global_avg_pool", "max_pool1d", "max_pool2d", "max_pool3d", "pixel_shuffle",
    "pixel_unshuffle", "unfold", "upsample",
]  # fmt: skip

MODES = {
    "nearest": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,),
}  # fmt: skip
"""The number of spatial axes of each mode of ``upsample``."""


def _spatial(name: str, x: Tensor, axes: int | None = None) -> Sizes:
    """Return the spatial sizes of x.

    Raises:
        ShapeError: if it has a different number of them.
    """
    shape = shape_of(x)
    if len(shape) not in ((3, 4, 5) if axes is None else (axes + 2,)):
        wanted = "3 to 5" if axes is None else axes + 2
        raise explain(
            ShapeError, name, f"expected {wanted} axes, got {len(shape)}", [("x", x)],
            "x [n, c, *spatial]",
        )  # fmt: skip
    return shape[2:]


# ---- pooling -----------------------------------------------------------------------


def _pairs(
    spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil: bool
) -> Pairs:
    """Return the padding of each axis; with ``ceil`` enough for a last window that sticks out."""
    pairs = []
    for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True):
        span, high = d * (k - 1) + 1, p
        if ceil and s > 0:
            out = -(-(n + 2 * p - span) // s) + 1
            out -= (out - 1) * s >= n + p  # a window that begins behind the image sees none of it
            high = max(p, (out - 1) * s + span - n - p)
        pairs.append((p, high))
    return tuple(pairs)


def _windows(
    name: str,
    axes: int,
    x: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
) -> tuple[Sizes, Sizes, Pairs, Sizes]:
    """Return sizes of the windows, their steps, the padding and the dilation, per axis."""
    spatial = _spatial(name, x, axes)
    sizes = per_axis("kernel_size", kernel, axes)
    steps = sizes if stride is None else per_axis("stride", stride, axes)
    lows, taps = per_axis("padding", padding, axes), per_axis("dilation", dilation, axes)
    return sizes, steps, _pairs(spatial, sizes, steps, lows, taps, ceil), taps


def _max_pool(axes: int, doc: str | None = None) -> Callable[..., Tensor]:
    """Return the largest elements' function for a number of axes; ``doc`` but for two."""
    name = f"max_pool{axes}d"

    def function(
        x: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None,
        padding: PerAxis = 0, dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> Tensor:  # fmt: skip
        """Take the largest element of each window of images [n, c, h, w]; ties go to the first.

        Args:
            x: images.
            kernel_size: size of the windows, one number or one per axis.
            stride: their step; their size for None.
            padding: how far the image is continued on both sides, with -inf.
            dilation: distance of the elements of a window.
            ceil_mode: whether a last window may stick out, so that no element is left over.

        Raises:
            ShapeError: if a window does not fit, or padding is over half a window.

        >>> print(ops.max_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2))
        [[[[4.]]]]
        """
        how = _windows(name, axes, x, kernel_size, stride, padding, dilation, ceil_mode)
        return channels_first(executor.apply(MaxPool.of(*how), channels_last(x))[0])

    return named(function, name, doc)


def _avg_pool(axes: int, doc: str | None = None) -> Callable[..., Tensor]:
    """Return the averages' function for a number of axes; ``doc`` but for two."""
    name = f"avg_pool{axes}d"

    def function(
        x: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None,
        padding: PerAxis = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Tensor:  # fmt: skip
        """Average the windows of images [n, c, h, w].

        Args:
            x: images.
            kernel_size: size of the windows, one number or one per axis.
            stride: their step; their size for None.
            padding: how far the image is continued on both sides, with zeros.
            ceil_mode: whether a last window may stick out, so that no element is left over.
            count_include_pad: whether the zeros count as elements of the average.

        Raises:
            ShapeError: if a window does not fit, or padding is over half a window.

        >>> print(ops.avg_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2))
        [[[[2.5]]]]
        """
        how = _windows(name, axes, x, kernel_size, stride, padding, 1, ceil_mode)[:3]
        counted = tuple((low, low) if count_include_pad else (0, 0) for low, _ in how[2])
        return channels_first(executor.apply(AvgPool.of(*how, counted), channels_last(x)))

    return named(function, name, doc)


max_pool1d = _max_pool(
    1,
    """Take the largest element of each window of [n, c, t]. See ``max_pool2d``.

    >>> print(ops.max_pool1d(Tensor([[[1.0, 2.0, 5.0, 3.0]]]), 2))
    [[[2. 5.]]]
    """,
)
max_pool2d = _max_pool(2)
max_pool3d = _max_pool(
    3,
    """Take the largest element of each window of [n, c, d, h, w]. See ``max_pool2d``.

    >>> ops.max_pool3d(ndl.ones((1, 2, 4, 4, 4)), 2).shape
    (1, 2, 2, 2, 2)
    """,
)
avg_pool1d = _avg_pool(
    1,
    """Average the windows of [n, c, t]. See ``avg_pool2d``.

    >>> print(ops.avg_pool1d(Tensor([[[1.0, 2.0, 5.0, 3.0]]]), 2))
    [[[1.5 4. ]]]
    """,
)
avg_pool2d = _avg_pool(2)
avg_pool3d = _avg_pool(
    3,
    """Average the windows of [n, c, d, h, w]. See ``avg_pool2d``.

    >>> ops.avg_pool3d(ndl.ones((1, 2, 4, 4, 4)), 2).shape
    (1, 2, 2, 2, 2)
    """,
)


def _adapted(name: str, axes: int, x: Any, output_size: Any) -> tuple[Sizes, Sizes]:
    """Return the spatial sizes of the result, and those of x."""
    spatial = _spatial(name, x, axes)
    given = axes_of(output_size) * (axes if np.ndim(output_size) == 0 else 1)
    if len(given) != axes:
        raise ShapeError(f"{name}: {len(given)} sizes for {axes} spatial axes")
    out = tuple(
        n if m is None else integer(f"{name}: size", m) for n, m in zip(spatial, given, strict=True)
    )
    if min(*out, *spatial) < 1:
        raise ShapeError(f"{name}: from {spatial} to {out}; sizes are at least 1")
    return out, spatial


def _adaptive(name: str, axes: int, x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    out, spatial = _adapted(name, axes, x, output_size)
    (x,) = promoted((x,), name, floating=True)
    image, none = channels_last(x), ((0, 0),) * axes
    if all(n % m == 0 for n, m in zip(spatial, out, strict=True)):
        kernel = tuple(n // m for n, m in zip(spatial, out, strict=True))
        return channels_first(executor.apply(AvgPool.of(kernel, kernel, none, none), image))
    wide = widened(image)
    for axis, (n, m) in enumerate(zip(spatial, out, strict=True), 1):
        if n != m:
            sizes_of(name, (n, m), 8)
            wide = _mixed(wide, axis, made(name, _bins, n, m, wide.spec))
    return channels_first(cast_like(wide, x))


def _bins(n: int, m: int, like: Spec) -> NDArray:
    """Return the array of the m x n matrix that averages floor(i n / m) to ceil((i + 1) n / m)."""
    matrix = np.zeros((m, n))
    for i in range(m):
        start, stop = i * n // m, -(-(i + 1) * n // m)
        matrix[i, start:stop] = 1.0 / (stop - start)
    return ndarray.array(matrix, like.dtype, like.device)


def _mixed(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Return x multiplied by a matrix along an axis."""
    shape = shape_of(x)
    flat = reshape(x, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    out = matmul(matrix, flat)
    return reshape(out, (*shape[:axis], shape_of(matrix)[0], *shape[axis + 1 :]))


def adaptive_avg_pool1d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Average [n, c, t] down to a size. See ``adaptive_avg_pool2d``.

    >>> print(ops.adaptive_avg_pool1d(Tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2))
    [[[2. 6.]]]
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, output_size)


def adaptive_avg_pool2d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Average images [n, c, h, w] down (or up) to a size, with windows as even as can be.

    Window i of m over n elements goes from floor(i n / m) to ceil((i + 1) n / m).

    Args:
        x: images.
        output_size: one number, or one per axis; None keeps the size of an axis.

    Raises:
        ShapeError: if a size is below 1.

    >>> ops.adaptive_avg_pool2d(ndl.ones((1, 3, 9, 7)), (3, 2)).shape
    (1, 3, 3, 2)
    """
    return _adaptive("adaptive_avg_pool2d", 2, x, output_size)


def adaptive_avg_pool3d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Average volumes [n, c, d, h, w] down to a size. See ``adaptive_avg_pool2d``.

    >>> ops.adaptive_avg_pool3d(ndl.ones((1, 3, 8, 8, 8)), 2).shape
    (1, 3, 2, 2, 2)
    """
    return _adaptive("adaptive_avg_pool3d", 3, x, output_size)


def _adaptive_max(
    name: str, axes: int, x: Tensor, output_size: int | Sequence[int | None]
) -> Tensor:
    out, spatial = _adapted(name, axes, x, output_size)
    if all(n % m == 0 for n, m in zip(spatial, out, strict=True)):
        kernel = tuple(n // m for n, m in zip(spatial, out, strict=True))
        return (max_pool1d, max_pool2d, max_pool3d)[axes - 1](x, kernel)
    sizes_of(name, out, 8)
    places = made(name, _bin_places, spatial, out, executor.spec_of(x).device)
    seen = take(flatten(x, 2), places, 2)  # [n, c, windows, elements of one]
    largest = gather(seen, argmax(stop_gradient(seen), -1, True), -1)
    return reshape(largest, (*shape_of(x)[:2], *out))


def _bin_places(spatial: Sizes, out: Sizes, device: DeviceLike) -> NDArray:
    """Return where the elements of each window are in the flattened image: a row per window.

    Windows have the size of the largest; smaller ones have their last row or column again.
    """
    place = np.zeros((1, 1), np.int64)
    for n, m in zip(spatial, out, strict=True):
        start, stop = np.arange(m) * n // m, -(-np.arange(1, m + 1) * n // m)
        width = int((stop - start).max())
        own = np.minimum(start[:, None] + np.arange(width), stop[:, None] - 1)
        place = place[:, None, :, None] * n + own[None, :, None, :]
        place = place.reshape(place.shape[0] * m, -1)
    return ndarray.array(place, "int64", device)


def adaptive_max_pool1d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Take the largest elements of [n, c, t] down to a size. See ``adaptive_max_pool2d``.

    >>> print(ops.adaptive_max_pool1d(Tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2))
    [[[3. 7.]]]
    """
    return _adaptive_max("adaptive_max_pool1d", 1, x, output_size)


def adaptive_max_pool2d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Take the largest element of each of so many windows of images [n, c, h, w].

    The windows, the arguments and the errors are those of ``adaptive_avg_pool2d``; ties go to the
    first.

    >>> ops.adaptive_max_pool2d(ndl.ones((1, 3, 9, 7)), (3, 2)).shape
    (1, 3, 3, 2)
    """
    return _adaptive_max("adaptive_max_pool2d", 2, x, output_size)


def adaptive_max_pool3d(x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Take the largest elements of [n, c, d, h, w] down to a size. See ``adaptive_max_pool2d``.

    >>> ops.adaptive_max_pool3d(ndl.ones((1, 3, 8, 8, 8)), 2).shape
    (1, 3, 2, 2, 2)
    """
    return _adaptive_max("adaptive_max_pool3d", 3, x, output_size)


def global_avg_pool(x: Tensor) -> Tensor:
    """Average each channel of [n, c, *spatial] over its whole image, which becomes 1 x 1.

    >>> print(ops.global_avg_pool(Tensor([[[[1.0, 3.0], [5.0, 7.0]]]])))
    [[[[4.]]]]
    """
    axes = len(_spatial("global_avg_pool", x))
    image = channels_last(x)
    return channels_first(mean(image, tuple(range(1, axes + 1)), keepdims=True))


# ---- windows as columns, channels as pixels ------------------------------------------


def unfold(
    x: Tensor,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Return the windows of images as columns (im2col).

    Shapes:   x [n, c, h, w] -> [n, c * elements of a window, windows]

    Args:
        x: images.
        kernel_size: size of the windows, one number or one per axis.
        dilation: distance of the elements of a window.
        padding: how far the image is continued on both sides, with zeros.
        stride: step of the windows.

    Raises:
        ShapeError: if x does not have four axes, or no window fits.

    >>> ops.unfold(ndl.ones((1, 3, 5, 5)), 3).shape
    (1, 27, 9)
    """
    kernel, taps, around, steps = _columns("unfold", kernel_size, dilation, padding, stride)
    _spatial("unfold", x, 2)
    image = windows(pad(x, ((0, 0), (0, 0), *around)), (2, 3), kernel, steps, taps)
    n, c, *places = shape_of(image)[:4]
    columns = permute(image, (0, 1, 4, 5, 2, 3))
    return reshape(columns, (n, c * math.prod(kernel), math.prod(places)))


def fold(
    x: Tensor,
    output_size: Any,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Add windows, given as columns, up to images: the transpose of ``unfold``.

    Shapes:   x [n, c * elements of a window, windows] -> [n, c, *output_size]
    Raises:   ShapeError if x does not have the shape of the windows of such images

    >>> columns = ops.unfold(ndl.ones((1, 1, 3, 3)), 2)
    >>> print(ops.fold(columns, (3, 3), 2))  # how often each pixel was in a window
    [[[[1. 2. 1.]
       [2. 4. 2.]
       [1. 2. 1.]]]]
    """
    kernel, taps, around, steps = _columns("fold", kernel_size, dilation, padding, stride)
    size, shape = per_axis("output_size", output_size, 2), shape_of(x)
    wide = tuple(n + 2 * low for n, (low, _) in zip(size, around, strict=True))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, taps, strict=True)]
    places = [(n - span) // s + 1 for n, span, s in zip(wide, spans, steps, strict=True)]
    inside = math.prod(kernel)
    if len(shape) != 3 or shape[1] % inside or shape[2] != math.prod(places) or min(places) < 1:
        raise explain(
            ShapeError, "fold", f"no {places[0]} x {places[1]} windows of {kernel}", [("x", x)],
            "x [n, c * elements of a window, windows]",
        )  # fmt: skip
    channels = shape[1] // inside
    image = permute(reshape(x, (shape[0], channels, *kernel, *places)), (0, 1, 4, 5, 2, 3))
    op = WindowsGrad.of((2, 3), kernel, steps, taps, (shape[0], channels, *wide))
    inner = (slice(low, low + n) for n, (low, _) in zip(size, around, strict=True))
    return executor.apply(op, image)[(slice(None), slice(None), *inner)]


def _columns(
    name: str, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> tuple[Sizes, Sizes, Pairs, Sizes]:
    """Return sizes of windows, the distances in them, the padding and their steps, per axis."""
    kernel, taps = per_axis("kernel_size", kernel_size, 2), per_axis("dilation", dilation, 2)
    lows, steps = per_axis("padding", padding, 2), per_axis("stride", stride, 2)
    if min(*kernel, *taps, *steps) < 1 or min(lows) < 0:
        raise ShapeError(
            f"{name}: kernel {kernel}, dilation {taps}, padding {lows}, stride {steps}\n"
            "  rule: at least 1, the padding at least 0"
        )
    return kernel, taps, tuple((low, low) for low in lows), steps


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """Enlarge images by a factor: channels become pixels.

    Shapes:   x [..., c * factor ** 2, h, w] -> [..., c, h * factor, w * factor]
    Gradient: x; any order
    Raises:   ShapeError if factor ** 2 does not divide the channels, or the factor is below 1
    Source:   Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient
              Sub-Pixel Convolutional Neural Network", 2016, arXiv:1609.05158

    >>> ops.pixel_shuffle(ndl.ones((1, 8, 2, 3)), 2).shape
    (1, 2, 4, 6)
    """
    factor, shape = integer("pixel_shuffle: factor", factor), shape_of(x)
    if factor < 1 or len(shape) < 3 or shape[-3] % factor**2:
        raise explain(
            ShapeError,
            "pixel_shuffle",
            f"factor {factor}",
            [("x", x)],
            "x [..., c * factor ** 2, h, w]",
        )
    *lead, c, h, w = shape
    parts = reshape(x, (*lead, c // factor**2, factor, factor, h, w))
    order = (*range(len(lead) + 1), *(len(lead) + i for i in (3, 1, 4, 2)))
    return reshape(permute(parts, order), (*lead, c // factor**2, h * factor, w * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """Shrink images by a factor: pixels become channels. The inverse of ``pixel_shuffle``.

    Shapes:   x [..., c, h * factor, w * factor] -> [..., c * factor ** 2, h, w]
    Gradient: x; any order
    Raises:   ShapeError if the factor does not divide the height and width, or is below 1

    >>> ops.pixel_unshuffle(ndl.ones((1, 2, 4, 6)), 2).shape
    (1, 8, 2, 3)
    """
    factor, shape = integer("pixel_unshuffle: factor", factor), shape_of(x)
    if factor < 1 or len(shape) < 3 or shape[-2] % factor or shape[-1] % factor:
        raise explain(
            ShapeError,
            "pixel_unshuffle",
            f"factor {factor}",
            [("x", x)],
            "x [..., c, h * factor, w * factor]",
        )
    *lead, c, h, w = shape
    parts = reshape(x, (*lead, c, h // factor, factor, w // factor, factor))
    order = (*range(len(lead) + 1), *(len(lead) + i for i in (2, 4, 1, 3)))
    return reshape(permute(parts, order), (*lead, c * factor**2, h // factor, w // factor))


# ---- upsampling --------------------------------------------------------------------


def upsample(
    x: Any,
    size: PerAxis | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Enlarge (or shrink) images [n, c, *spatial] by their neighbouring pixels.

    Position p of the result is (p + 0.5) / scale - 0.5 in x; with ``align_corners`` it is
    p * (n - 1) / (m - 1), so that first and last pixels fall together. "nearest" takes pixel
    floor(p / scale). "bicubic" weighs four pixels along each axis by Keys' kernel of slope -3/4, as
    PyTorch does; results may lie beyond those of x. An image goes on with the pixels at its ends.

    Args:
        x: images.
        size: of the result, one number or one per axis.
        scale_factor: or how many times larger; the result has floor(n * scale) pixels.
        mode: "nearest"; "linear", "bilinear" or "trilinear" for 1, 2 or 3 spatial axes, "bicubic"
            for 2.
        align_corners: see above; not for "nearest".

    Raises:
        OptionError: for an unknown mode, or unless one of size and scale_factor is given.
        ShapeError: if the mode is for other ranks, or the result would be empty.

    >>> print(ops.upsample(Tensor([[[1.0, 3.0]]]), scale_factor=2))
    [[[1. 1. 3. 3.]]]
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise unknown("mode", str(mode), MODES)
    if (size is None) == (scale_factor is None) or (align_corners and mode == "nearest"):
        raise OptionError(
            f"upsample: size={size}, scale_factor={scale_factor}, align_corners={align_corners}, "
            f"mode={mode!r}\n  rule: one of size and scale_factor; not align_corners for nearest"
        )
    spatial = _spatial("upsample", x)
    axes = len(spatial)
    if axes not in MODES[mode]:
        raise ShapeError(f"upsample: mode {mode!r} is not for {axes} spatial axes")
    out, scales = _scaled(spatial, size, scale_factor)
    (x,) = promoted((x,), "upsample", floating=True)
    sizes_of("upsample", (*shape_of(x)[:2], *out), 8)
    between = (CUBIC_CENTRES, CUBIC_CORNERS) if mode == "bicubic" else (CENTRES, CORNERS)
    how = NEAREST if mode == NEAREST else between[bool(align_corners)]
    if out == spatial and (align_corners or set(scales) == {1.0}):
        return x
    image = channels_last(x if mode == NEAREST else widened(x))
    image = executor.apply(Interpolate.of(1, out, tuple(scales), how), image)
    return channels_first(cast_like(image, x))


def _scaled(spatial: Sizes, size: Any, scale_factor: Any) -> tuple[Sizes, list[float]]:
    """Return the sizes of the result and how much larger each axis is."""
    axes = len(spatial)
    if size is not None:
        out = per_axis("size", size, axes)
        scales = [m / max(n, 1) for n, m in zip(spatial, out, strict=True)]
    else:
        several = isinstance(scale_factor, Iterable) and getattr(scale_factor, "ndim", None) != 0
        given = scale_factor if several else [scale_factor] * axes
        scales = [real("upsample: scale_factor", s) for s in given]
        if len(scales) != axes:
            raise ShapeError(f"upsample: {len(scales)} scale factors for {axes} spatial axes")
        if not all(map(math.isfinite, scales)):
            raise OptionError(f"upsample: scale_factor is {scale_factor}\n  rule: finite")
        out = tuple(math.floor(n * s) for n, s in zip(spatial, scales, strict=True))
    if min(*out, *spatial) < 1:
        raise ShapeError(f"upsample: from {spatial} to {out}; sizes are at least 1")
    return out, scales

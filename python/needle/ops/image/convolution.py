"""Convolution and its two transposes: three bilinear ops, closed under differentiation.

Images lie in memory as [n, *spatial, channels], weights as [*kernel, in, out]. Each op is defined
by its expansion: pad, the view of all windows, one matrix product per group (im2col). A device may
compute it otherwise; on the native CPU the algorithm follows from the specs alone, or from
``NEEDLE_CONV`` and ``needle.config(conv=...)``:

    im2col     the matrix product of all windows, as the expansion
    direct     the same sum without making the windows, for every shape
    winograd   F(4x4, 3x3) and F(2x2, 5x5): kernels of 3x3 and 5x5, stride and dilation 1, one
               group; 3x3 at stride 2 too (to the input: with a padding of 1), where the even
               pixels are such a convolution; float32, and half precision in float32; never float64
    onednn     by the library oneDNN, in float32: a plug-in that is built with ``USE_DNNL=1``, and
               opened if the package onednn-cpu-gomp is there (``needle doctor`` says whether);
               DeviceError if it is not. Never chosen unless it is named

A forced algorithm that cannot take a convolution leaves it to the expansion.

Relative root mean square errors in float32 against float64, of 16 standard normal images
(``python bench/convolution_error.py``): forward and to the input, to the weights

    channels@size     im2col           direct           winograd         onednn 3.2
    3x3 32-32@32      3.0e-7, 3.6e-7   3.0e-7, 3.2e-7   6.0e-7, 7.7e-7   3.0e-7, 4.1e-7
    3x3 128-128@16    3.5e-7, 3.4e-7   5.9e-7, 2.9e-7   1.1e-6, 6.7e-7   5.9e-7, 2.9e-7
    3x3 512-512@4     3.5e-7, 2.4e-7   1.1e-6, 2.4e-7   2.3e-6, 5.5e-7   1.1e-6, 1.4e-7
    5x5 64-64@16      3.2e-7, 3.3e-7   6.8e-7, 2.8e-7   8.9e-7, 9.0e-7   6.8e-7, 2.9e-7
    3x3 64-128@32,    2.5e-7, 2.9e-7   4.2e-7, 2.1e-7   4.8e-7, 3.4e-7
      stride 2
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import executor
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.families import Composite, Multilinear
from needle.ops.core.op import widened
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.image.windows import WindowsGrad, windows
from needle.ops.linalg.matmul import matmul
from needle.ops.shape.movement import Pad, Slice, permute, reshape, turned

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import Gradients, NDArray, Numpy, Tensor

__all__ = ["Convolution", "ConvolutionInput", "ConvolutionWeight"]

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


# ---- samples -----------------------------------------------------------------------

# n, spatial, channels in and out, kernel; stride, padding, dilation, groups
_CASES: tuple[tuple[int, Sizes, int, int, Sizes, tuple[Sizes, Pairs, Sizes, int]], ...] = (
    (2, (4, 5), 3, 2, (3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)),
    (1, (6, 5), 2, 3, (2, 3), ((2, 1), ((0, 1), (2, 0)), (1, 2), 1)),
    (2, (5, 4), 4, 2, (3, 2), ((3, 2), ((1, 1), (0, 0)), (1, 1), 2)),
    (1, (4, 4), 3, 6, (3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 3)),
    (2, (3, 3), 3, 2, (1, 1), ((2, 2), ((0, 0), (0, 0)), (1, 1), 1)),
    (2, (7,), 2, 3, (3,), ((2,), ((2, 1),), (2,), 1)),
    (1, (3, 2, 4), 2, 2, (2, 1, 3), ((1, 1, 2), ((0, 1), (0, 0), (1, 1)), (1, 1, 1), 1)),
    (0, (3, 3), 2, 3, (2, 2), ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
)


def _taps(x: Any, kernel: Sizes, out: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Yield, per place in the kernel, that place and the view of padded x that it meets."""
    for place in product(*map(range, kernel)):
        yield place, x[(
            slice(None),
            *(
                slice(d * k, d * k + s * (n - 1) + 1, s)
                for k, n, s, d in zip(place, out, stride, dilation, strict=True)
            ),
        )]  # fmt: skip


def _padded(x: Numpy, padding: Pairs) -> Numpy:
    return np.pad(x, ((0, 0), *padding, (0, 0)))


def _parts(groups: int, width: int) -> list[slice]:
    return [slice(i * (width // groups), (i + 1) * (width // groups)) for i in range(groups)]


def _out_spatial(
    spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes
) -> Sizes:
    return tuple(
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, (low, high), d in zip(spatial, kernel, stride, padding, dilation, strict=True)
    )


def convolved(x: Any, w: Any, stride: Sizes, padding: Pairs, dilation: Sizes, groups: int) -> Numpy:
    """Return the convolution of NumPy arrays, one tap of the kernel after the other."""
    kernel = w.shape[:-2]
    out = _out_spatial(x.shape[1:-1], kernel, stride, padding, dilation)
    y = np.zeros((x.shape[0], *out, w.shape[-1]))
    for place, part in _taps(_padded(x, padding), kernel, out, stride, dilation):
        for i, o in zip(_parts(groups, x.shape[-1]), _parts(groups, w.shape[-1]), strict=True):
            y[..., o] += part[..., i] @ w[place][:, o]
    return y


def _to_input(
    g: Numpy, w: Numpy, stride: Sizes, padding: Pairs, dilation: Sizes, groups: int, spatial: Sizes
) -> Numpy:
    channels = w.shape[-2] * groups
    wide = [n + low + high for n, (low, high) in zip(spatial, padding, strict=True)]
    x = np.zeros((g.shape[0], *wide, channels))
    for place, part in _taps(x, w.shape[:-2], g.shape[1:-1], stride, dilation):
        for i, o in zip(_parts(groups, channels), _parts(groups, w.shape[-1]), strict=True):
            part[..., i] += g[..., o] @ w[place][:, o].T
    inner = [slice(low, low + n) for n, (low, _) in zip(spatial, padding, strict=True)]
    return x[(slice(None), *inner)]


def _to_weight(
    x: Numpy, g: Numpy, stride: Sizes, padding: Pairs, dilation: Sizes, groups: int, kernel: Sizes
) -> Numpy:
    w = np.zeros((*kernel, x.shape[-1] // groups, g.shape[-1]))
    for place, part in _taps(_padded(x, padding), kernel, g.shape[1:-1], stride, dilation):
        for i, o in zip(_parts(groups, x.shape[-1]), _parts(groups, g.shape[-1]), strict=True):
            w[place][:, o] = np.tensordot(part[..., i], g[..., o], (range(g.ndim - 1),) * 2)
    return w


def convolution_cases() -> list[tuple[Any, Any, Any]]:
    """Return images, weights and the attributes of convolutions of them, for samples."""
    return [
        (uniform((n, *spatial, c)), uniform((*kernel, c // rest[-1], o), seed=1), rest)
        for n, spatial, c, o, kernel, rest in _CASES
    ]


def _samples() -> list[Sample]:
    good = [
        Sample((x, w), rest, lambda x, w, a=rest: convolved(x, w, *a))
        for x, w, rest in convolution_cases()
    ]
    two, none = (1, 1), ((0, 0), (0, 0))
    wrong: list[tuple[Sizes, Sizes, Any]] = [
        ((1, 3, 3, 3), (2, 2, 2, 4), (two, none, two, 1)),  # channels
        ((1, 3, 3, 3), (2, 2, 1, 4), (two, none, two, 2)),  # 3 channels in 2 groups
        ((1, 3, 3, 4), (2, 2, 2, 3), (two, none, two, 2)),  # 3 results of 2 groups
        ((1, 3, 3, 2), (4, 3, 2, 2), (two, none, two, 1)),  # kernel larger than the image
        ((1, 3, 2), (3, 2, 2), (two, none, two, 1)),  # one spatial axis, attributes for two
        ((1, 3, 3, 2), (2, 2, 2, 2), (two, ((-1, 0), (0, 0)), two, 1)),
        ((1, 3, 3, 2), (2, 2, 2, 2), ((0, 1), none, two, 1)),
    ]
    return [*good, *(Sample((uniform(x), uniform(w)), a, raises=ShapeError) for x, w, a in wrong)]


def _input_samples() -> list[Sample]:
    good = []
    for n, spatial, c, o, kernel, rest in _CASES:
        out = _out_spatial(spatial, kernel, *rest[:3])
        g, w = uniform((n, *out, o)), uniform((*kernel, c // rest[-1], o), seed=1)
        static = (*rest, spatial)
        good.append(Sample((g, w), static, lambda g, w, a=static: _to_input(g, w, *a)))
    wrong = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (4, 3))
    g, w = uniform((1, 2, 2, 3)), uniform((2, 2, 2, 3))
    return [*good, Sample((g, w), wrong, raises=ShapeError)]  # (4, 3) would give (3, 2)


def _weight_samples() -> list[Sample]:
    good = []
    for n, spatial, c, o, kernel, rest in _CASES:
        out = _out_spatial(spatial, kernel, *rest[:3])
        x, g = uniform((n, *spatial, c)), uniform((n, *out, o), seed=1)
        static = (*rest, kernel)
        good.append(Sample((x, g), static, lambda x, g, a=static: _to_weight(x, g, *a)))
    wrong = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (3, 2))
    x, g = uniform((1, 3, 3, 2)), uniform((1, 2, 2, 3))
    return [*good, Sample((x, g), wrong, raises=ShapeError)]  # (3, 2) would give (1, 2)


# ---- the ops -----------------------------------------------------------------------


class _Bilinear(Multilinear, Composite):
    """The base of the three ops: attributes, checks, and the matrices of the expansion.

    Attributes:
        stride: step of the windows, per spatial axis.
        padding: zeros (before, after), per spatial axis.
        dilation: distance between the elements of the kernel, per spatial axis.
        groups: number of groups of channels, each with its own kernel.
    """

    stride: Sizes
    padding: Pairs
    dilation: Sizes
    groups: int
    saves = ((1,), (0,))

    @property
    def geometry(self) -> tuple[Sizes, Pairs, Sizes, int]:
        """The attributes that the three ops share."""
        return self.stride, self.padding, self.dilation, self.groups

    promotes = "floating"

    def out_spatial(self, spatial: Sizes, kernel: Sizes) -> Sizes:
        """Return the spatial sizes of the result of a convolution (below 1: it does not fit)."""
        return _out_spatial(spatial, kernel, self.stride, self.padding, self.dilation)

    def check(self, x: Sizes, w: Sizes, g: Sizes | None, named: list[tuple[str, object]]) -> None:
        """Check the shapes of image, weight and result against each other and the attributes.

        Raises:
            ShapeError: saying which sizes do not fit.
        """
        problem = self._problem(x, w, g)
        if problem:
            raise explain(
                ShapeError, self.name, problem, named,
                "x [n, *spatial, c] * w [*kernel, c / groups, o] -> [n, *out, o], out = "
                "(spatial + padding - dilation * (kernel - 1) - 1) // stride + 1",
            )  # fmt: skip

    def _problem(self, x: Sizes, w: Sizes, g: Sizes | None) -> str:
        axes = len(self.stride)
        if len(x) != axes + 2 or len(w) != axes + 2 or not 1 <= axes <= 3:
            return f"{axes} spatial axes, but operands of {len(x)} and {len(w)} axes"
        if len(self.padding) != axes or len(self.dilation) != axes:
            return f"stride {self.stride}, padding {self.padding}, dilation {self.dilation}"
        if min(*self.stride, *self.dilation, self.groups) < 1:
            return f"stride {self.stride}, dilation {self.dilation}, groups {self.groups}: below 1"
        if min(size for pair in self.padding for size in pair) < 0:
            return f"padding {self.padding} is negative"
        if min(x[1:-1]) < 1:
            return f"an image of {x[1:-1]} has no elements"
        if x[-1] % self.groups or w[-1] % self.groups:
            return f"{x[-1]} and {w[-1]} channels do not divide into {self.groups} groups"
        if x[-1] != w[-2] * self.groups:
            return f"x has {x[-1]} channels, the weight is for {w[-2]} in {self.groups} groups"
        out = self.out_spatial(x[1:-1], w[:-2])
        if min(out) < 1 or min(w[:-2]) < 1:
            wide = tuple(n + sum(p) for n, p in zip(x[1:-1], self.padding, strict=True))
            return f"kernel {w[:-2]}, dilation {self.dilation}: does not fit an image of {wide}"
        if g is not None and g != (x[0], *out, w[-1]):
            return f"the result has shape {(x[0], *out, w[-1])}, not {g}"
        return ""

    def columns(self, x: Tensor, kernel: Sizes) -> Tensor:
        """Return all windows of x as rows, per group: [groups, n * out, kernel * c]."""
        axes, channels = len(kernel), shape_of(x)[-1]
        if any(map(any, self.padding)):
            x = executor.apply(Pad.of(((0, 0), *self.padding, (0, 0))), x)
        view = windows(x, range(1, axes + 1), kernel, self.stride, self.dilation)
        view = permute(view, (*range(axes + 1), *range(axes + 2, 2 * axes + 2), axes + 1))
        rows, width = prod(shape_of(view)[: axes + 1]), channels // self.groups
        apart = permute(reshape(view, (rows, prod(kernel), self.groups, width)), (2, 0, 1, 3))
        return reshape(apart, (self.groups, rows, prod(kernel) * width))

    def grouped(self, x: Tensor) -> Tensor:
        """Return the last axis in groups, the others as rows: [groups, rows, c]."""
        shape = shape_of(x)
        width = shape[-1] // self.groups
        return permute(reshape(x, (prod(shape[:-1]), self.groups, width)), (1, 0, 2))

    def ungrouped(self, x: Tensor, shape: Sizes) -> Tensor:
        """Undo ``grouped``, to a shape."""
        return reshape(permute(x, (1, 0, 2)), shape)


def _products(g: Any, w: Any) -> int:
    """Return the operations of a convolution, from the specs of its result and its weight."""
    return int(2 * g.size * prod(w.shape[:-1]))


class Convolution(_Bilinear):
    """Convolve images with a kernel (cross-correlation: the kernel is not flipped).

        out[n, p, o] = sum over k, c of x[n, stride * p + dilation * k - low, c] * w[k, c, o]

    with zeros outside the image; p, k and low stand for one number per spatial axis. With groups,
    group i of the outputs depends on group i of the channels only.

    Shapes:   x [n, *spatial, c], w [*kernel, c / groups, o] -> [n, *out, o]; 1 to 3 spatial axes
    Dtypes:   floating; sums in float32 when x is float16 or bfloat16
    Gradient: x by ConvolutionInput, w by ConvolutionWeight; any order
    Raises:   ShapeError if channels do not match or divide into the groups, the kernel does not
              fit into the padded image, or the ranks differ; DtypeError if dtypes do not mix
    """

    samples = staticmethod(_samples)

    def compute(self, x: NDArray, w: NDArray) -> NDArray:
        self.check(x.shape, w.shape, None, [("x", x), ("w", w)])
        return super().compute(x, w)

    def flops(self, *specs: Spec) -> int:
        return _products(self.infer(*specs), specs[1])

    def expand(self, x: Tensor, w: Tensor) -> Tensor:
        kernel, o = shape_of(w)[:-2], shape_of(w)[-1]
        out = matmul(self.columns(widened(x), kernel), self.grouped(widened(w)))
        spatial = self.out_spatial(shape_of(x)[1:-1], kernel)
        return cast_like(self.ungrouped(out, (shape_of(x)[0], *spatial, o)), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, w = out.inputs[:2]
        left, right = out.node.inputs[:2]
        dx = dw = None
        if left.needs:
            op = ConvolutionInput.of(*self.geometry, left.spec.shape[1:-1])
            dx = executor.apply(op, out_grad, w)
        if right.needs:
            weights = ConvolutionWeight.of(*self.geometry, right.spec.shape[:-2])
            dw = executor.apply(weights, x, out_grad)
        return dx, dw


class ConvolutionInput(_Bilinear):
    """The transpose of a convolution with respect to its image; also: transposed convolution.

    Every element of g, times the kernel, is added to the window that it comes from.

    Shapes:   g [n, *out, o], w [*kernel, c / groups, o] -> [n, *spatial, c]
    Dtypes:   floating; sums in float32 when g is float16 or bfloat16
    Gradient: g by Convolution, w by ConvolutionWeight; any order
    Raises:   ShapeError if a convolution of ``spatial`` does not give the shape of g; DtypeError
              if dtypes do not mix

    Attributes:
        spatial: spatial sizes of the result; they do not follow from those of g.
    """

    spatial: Sizes
    samples = staticmethod(_input_samples)

    def compute(self, g: NDArray, w: NDArray) -> NDArray:
        channels = w.shape[-2] * self.groups if w.ndim > 1 else 0
        image = (g.shape[0] if g.ndim else 0, *self.spatial, channels)
        self.check(image, w.shape, g.shape, [("g", g), ("w", w)])
        return super().compute(g, w)

    def flops(self, *specs: Spec) -> int:
        return _products(*specs)

    def expand(self, g: Tensor, w: Tensor) -> Tensor:
        *kernel, width, o = shape_of(w)
        out, axes = shape_of(g)[:-1], len(kernel)
        columns = matmul(self.grouped(widened(g)), turned(self.grouped(widened(w))))
        columns = reshape(columns, (self.groups, prod(out), prod(kernel), width))
        columns = permute(columns, (1, 0, 3, 2))
        view = reshape(columns, (*out, self.groups * width, *kernel))
        wide = [n + low + high for n, (low, high) in zip(self.spatial, self.padding, strict=True)]
        attributes = tuple(range(1, axes + 1)), tuple(kernel), self.stride, self.dilation
        shape = (out[0], *wide, self.groups * width)
        padded = executor.apply(WindowsGrad.of(*attributes, shape), view)
        inner = [(low, n, 1) for n, (low, _) in zip(self.spatial, self.padding, strict=True)]
        ranges = ((0, out[0], 1), *inner, (0, shape[-1], 1))
        return cast_like(executor.apply(Slice.of(ranges, ()), padded), g)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        g, w = out.inputs
        left, right = out.node.inputs
        dg = dw = None
        if left.needs:
            dg = executor.apply(Convolution.of(*self.geometry), out_grad, w)
        if right.needs:
            op = ConvolutionWeight.of(*self.geometry, right.spec.shape[:-2])
            dw = executor.apply(op, out_grad, g)
        return dg, dw


class ConvolutionWeight(_Bilinear):
    """The transpose of a convolution with respect to its weight.

    Shapes:   x [n, *spatial, c], g [n, *out, o] -> [*kernel, c / groups, o]
    Dtypes:   floating; sums in float32 when x is float16 or bfloat16
    Gradient: x by ConvolutionInput, g by Convolution; any order
    Raises:   ShapeError if a convolution with ``kernel`` does not give the shape of g; DtypeError
              if dtypes do not mix

    Attributes:
        kernel: spatial sizes of the weight.
    """

    kernel: Sizes
    samples = staticmethod(_weight_samples)

    def compute(self, x: NDArray, g: NDArray) -> NDArray:
        c, o = (y.shape[-1] if y.ndim else 0 for y in (x, g))
        weight = (*self.kernel, c // max(self.groups, 1), o)
        self.check(x.shape, weight, g.shape, [("x", x), ("g", g)])
        return super().compute(x, g)

    def flops(self, *specs: Spec) -> int:
        return _products(specs[1], self.infer(*specs))

    def expand(self, x: Tensor, g: Tensor) -> Tensor:
        columns = self.columns(widened(x), self.kernel)
        w = matmul(turned(columns), self.grouped(widened(g)))
        shape = (*self.kernel, shape_of(x)[-1] // self.groups, shape_of(g)[-1])
        return cast_like(self.ungrouped(w, shape), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        x, g = out.inputs
        left, right = out.node.inputs
        dx = dg = None
        if left.needs:
            op = ConvolutionInput.of(*self.geometry, left.spec.shape[1:-1])
            dx = executor.apply(op, g, out_grad)
        if right.needs:
            dg = executor.apply(Convolution.of(*self.geometry), x, out_grad)
        return dx, dg

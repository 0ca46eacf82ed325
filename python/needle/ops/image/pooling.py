"""Pooling: the largest value, or the average, of windows.

Images lie in memory as [n, *spatial, channels]. As a convolution, each op is defined by its
expansion over the view of all windows, and a device may compute it otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from math import gcd, inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import ndarray
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.families import Composite
from needle.ops.core.op import OUTPUT, Linear, cast, widened
from needle.ops.core.samples import Sample, integers, uniform
from needle.ops.elementwise.arithmetic import cast_like, equal, where
from needle.ops.image.convolution import Pairs, Sizes
from needle.ops.image.windows import WindowsGrad, windows
from needle.ops.index.indexing import gather
from needle.ops.reduction.reduce import amax, argmax, summation
from needle.ops.shape.movement import Slice, broadcast_to, reshape, squeeze, unsqueeze
from needle.ops.shape.padding import pad

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor, TensorTuple

__all__ = ["AvgPool", "AvgPoolGrad", "MaxPool", "MaxPoolGrad", "MaxPoolTake"]


@functools.lru_cache(1000)
def _sees(out: int, n: int, low: int, s: int, d: int) -> bool:
    """Return whether every window of an axis has an element that is not padding.

    Padding before the axis is at most half a window, so a window that starts there reaches the
    axis, and skips it only where n < d: then its first element past the padding says. Those
    repeat after ``d // gcd(s, d)`` windows, so that huge sizes take no time.
    """
    if s * (out - 1) >= low + n:
        return False
    before = min(out, -(-low // s), d // gcd(s, d))
    return n >= d or all((s * i - low) % d < n for i in range(before))


@functools.lru_cache(1000)
def _fitted(op: _Pool, x: Sizes) -> Sizes | str:
    """Return the shape of the result for images of a shape, or why there is none.

    It is cached, because an op asks for it three times in both directions.
    """
    op.check_lengths()
    spans = [d * (k - 1) + 1 for k, d in zip(op.kernel, op.steps, strict=True)]
    if len(x) != len(op.kernel) + 2:
        return f"{len(op.kernel)} spatial axes, but x has {len(x)} axes"
    if min(*op.kernel, *op.stride, *op.steps) < 1:
        return f"kernel {op.kernel}, stride {op.stride}, dilation {op.steps}: below 1"
    if any(
        not 0 <= 2 * low <= s or high < 0 for (low, high), s in zip(op.padding, spans, strict=True)
    ):
        return f"padding {op.padding} of windows of {op.kernel}"
    sizes = zip(x[1:-1], op.padding, spans, op.stride, strict=True)
    out = tuple((n + low + high - span) // s + 1 for n, (low, high), span, s in sizes)
    lows = [low for low, _ in op.padding]
    axes = zip(out, x[1:-1], lows, op.stride, op.steps, strict=True)
    if min(out) > 0 and all(_sees(*axis) for axis in axes):
        return (x[0], *out, x[-1])
    return f"windows of {op.kernel} do not fit an image of {x[1:-1]}"


class _Pool(Composite):
    """The base of the pooling ops: windows, their checks, and both directions of the expansions.

    Attributes:
        kernel: sizes of the window, per spatial axis.
        stride: step of the windows.
        padding: elements added (before, after) each axis.
    """

    kernel: Sizes
    stride: Sizes
    padding: Pairs

    @property
    def steps(self) -> Sizes:
        """The distance between the elements of a window, per spatial axis."""
        return (1,) * len(self.kernel)

    promotes = "first"

    def pooled(self, x: Sizes, named: list[tuple[str, Any]]) -> Sizes:
        """Return the shape of the result for images of a shape.

        Raises:
            ShapeError: if a window does not fit, or would contain only padding.
        """
        found = _fitted(self, x)
        if not isinstance(found, str):
            return found
        raise explain(
            ShapeError, self.name, found, named,
            "x [n, *spatial, c]; sizes and steps are at least 1, padding is at most half a window",
        )  # fmt: skip

    def check_lengths(self) -> None:
        """Check that all attributes have the same number of spatial axes.

        Raises:
            OptionError: if they do not.
        """
        given = {name: getattr(self, name) for name in self.static}
        if not self.kernel or len({len(value) for value in given.values()}) > 1:
            listed = ", ".join(f"{name} {value}" for name, value in given.items())
            raise OptionError(
                f"{self.name}: {listed}\n  rule: each has an entry for each spatial axis"
            )

    def expect(self, shape: Sizes, x: NDArray, name: str) -> None:
        """Check the shape of an operand.

        Raises:
            ShapeError: if it is different.
        """
        if x.shape != shape:
            raise explain(
                ShapeError, self.name, f"{name} has shape {x.shape}, the result of the pooling "
                f"{shape}", [(name, x)],
            )  # fmt: skip

    def view(self, x: Tensor, value: float) -> Tensor:
        """Return all windows of x, padded with a value: [n, *out, c, *kernel]."""
        if any(map(any, self.padding)):
            x = pad(x, ((0, 0), *self.padding, (0, 0)), value=value)
        return windows(x, range(1, len(self.kernel) + 1), self.kernel, self.stride, self.steps)

    def rows(self, x: Tensor, value: float) -> Tensor:
        """Return all windows of x, each in a row: [n, *out, c, size of the window]."""
        view = self.view(x, value)
        return reshape(view, (*shape_of(view)[: len(self.kernel) + 2], prod(self.kernel)))

    def overlapped(self, view: Tensor, spatial: Sizes) -> Tensor:
        """Undo ``view``: add all windows to their places in images, and cut the padding off."""
        shape = shape_of(view)
        n, c, axes = shape[0], shape[len(self.kernel) + 1], len(self.kernel)
        wide = [m + low + high for m, (low, high) in zip(spatial, self.padding, strict=True)]
        attributes = tuple(range(1, axes + 1)), self.kernel, self.stride, self.steps
        padded = executor.apply(WindowsGrad.of(*attributes, (n, *wide, c)), view)
        inner = [(low, m, 1) for m, (low, _) in zip(spatial, self.padding, strict=True)]
        return executor.apply(Slice.of(((0, n, 1), *inner, (0, c, 1)), ()), padded)


# ---- the largest value -------------------------------------------------------------

_CASES: tuple[tuple[Sizes, tuple[Sizes, Sizes, Pairs, Sizes]], ...] = (
    ((2, 4, 5, 3), ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))),
    ((1, 5, 4, 2), ((3, 2), (2, 1), ((1, 1), (0, 1)), (1, 1))),
    ((2, 6, 2), ((2,), (1,), ((1, 1),), (2,))),
    ((1, 2, 3, 2, 2), ((2, 1, 2), (1, 2, 1), ((0, 0), (0, 0), (1, 1)), (1, 1, 1))),
    ((0, 3, 3, 2), ((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))),
)
_WRONG: tuple[tuple[Sizes, Any], ...] = (
    ((2, 3, 3), ((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((1, 3, 3, 2), ((4, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((1, 3, 3, 2), ((2, 2), (1, 1), ((2, 0), (0, 0)), (1, 1))),
    ((1, 3, 3, 2), ((2, 2), (1, 1), ((0, 2), (0, 0)), (1, 1))),
    ((1, 3, 3, 2), ((0, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((1, 3, 3, 2), ((2**40, 2), (1, 1), ((2**39, 2**41), (0, 0)), (1, 1))),
)


def _index_of(kernel: Sizes) -> Any:
    return np.uint8 if prod(kernel) <= 256 else np.int32


def _places(attributes: Any, spatial: Sizes) -> Any:
    """Yield every position of the result, and where its window is in the padded image."""
    kernel, stride, padding, dilation = attributes
    out = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, (low, high), d in zip(spatial, *attributes, strict=True)
    ]
    for place in product(*map(range, out)):
        yield (
            place,
            tuple(
                slice(s * p, s * p + d * (k - 1) + 1, d)
                for p, k, s, d in zip(place, kernel, stride, dilation, strict=True)
            ),
        )


def _wide(x: Numpy, attributes: Any, value: float) -> Numpy:
    return np.pad(x, ((0, 0), *attributes[2], (0, 0)), constant_values=value)


def _max_pool(x: Numpy, *attributes: Any) -> tuple[Numpy, ...]:
    wide, out, index = _wide(x, attributes, -inf), {}, {}
    for place, part in _places(attributes, x.shape[1:-1]):
        rows = wide[(slice(None), *part)].reshape(x.shape[0], prod(attributes[0]), x.shape[-1])
        out[place], index[place] = rows.max(1), rows.argmax(1)
    shape = tuple(n + 1 for n in max(out))
    whole = [np.stack([z[p] for p in sorted(z)], 1) for z in (out, index)]
    values, places = (z.reshape(x.shape[0], *shape, x.shape[-1]) for z in whole)
    return values, places.astype(_index_of(attributes[0]))


def _max_pool_grad(g: Numpy, index: Numpy, *static: Any) -> Numpy:
    *attributes, spatial = static
    wide = _wide(np.zeros((g.shape[0], *spatial, g.shape[-1])), attributes, 0.0)
    for place, part in _places(attributes, spatial):
        window, at = wide[(slice(None), *part)], index[(slice(None), *place)]
        for n, c in np.ndindex(*at.shape):
            spot = np.unravel_index(int(at[n, c]), attributes[0])
            window[(n, *spot, c)] += g[(n, *place, c)]
    inner = [slice(low, low + m) for m, (low, _) in zip(spatial, attributes[2], strict=True)]
    return wide[(slice(None), *inner)]


def _max_pool_take(x: Numpy, index: Numpy, *attributes: Any) -> Numpy:
    wide, out = _wide(x, attributes, 0.0), np.zeros(index.shape)
    for place, part in _places(attributes, x.shape[1:-1]):
        window = wide[(slice(None), *part)]
        for n, c in np.ndindex(x.shape[0], x.shape[-1]):
            spot = np.unravel_index(int(index[(n, *place, c)]), attributes[0])
            out[(n, *place, c)] = window[(n, *spot, c)]
    return out


def _max_samples() -> list[Sample]:
    good = [Sample((uniform(x),), a, lambda x, a=a: _max_pool(x, *a)) for x, a in _CASES]
    a = _CASES[1][1]
    ties = Sample(
        (np.round(uniform((1, 5, 4, 2))),), a, lambda x: _max_pool(x, *a), gradient=False
    )  # fmt: skip
    wrong = [Sample((uniform(x),), a, raises=ShapeError) for x, a in _WRONG]
    uneven = Sample((uniform((1, 5, 4, 2)),), (a[0][:1], *a[1:]), raises=OptionError)
    return [*good, ties, *wrong, uneven]


def _pooled_shape(x: Sizes, attributes: Any) -> Sizes:
    last = max(place for place, _ in _places(attributes, x[1:-1]))
    return (x[0], *(n + 1 for n in last), x[-1])


def _index(x: Sizes, attributes: Any) -> Numpy:
    """Return positions in the windows, of real elements where there is padding."""
    high = prod(attributes[0])
    drawn = integers(_pooled_shape(x, attributes), 0, high)
    if any(map(any, attributes[2])):
        drawn = _max_pool(uniform(x), *attributes)[1]
    return drawn.astype(_index_of(attributes[0]))


def _grad_samples() -> list[Sample]:
    made = []
    for x, a in _CASES:
        g, static = uniform(_pooled_shape(x, a)), (*a, x[1:-1])
        made.append(
            Sample((g, _index(x, a)), static, lambda g, i, s=static: _max_pool_grad(g, i, *s))
        )
    g, index = uniform((1, 1, 1, 2)), np.zeros((1, 2, 1, 2), np.uint8)
    static = ((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (2, 2))
    return [*made, Sample((g, index), static, raises=ShapeError)]


def _take_samples() -> list[Sample]:
    return [
        Sample((uniform(x), _index(x, a)), a, lambda x, i, a=a: _max_pool_take(x, i, *a))
        for x, a in _CASES
    ]


class _Largest(_Pool):
    """The base of the maximum and its transposes.

    Attributes:
        dilation: distance between the elements of a window.
    """

    dilation: Sizes

    @property
    def steps(self) -> Sizes:
        return self.dilation

    @property
    def geometry(self) -> tuple[Sizes, Sizes, Pairs, Sizes]:
        """The attributes of all the ops."""
        return self.kernel, self.stride, self.padding, self.dilation


class MaxPool(_Largest):
    """Take the largest element of each window, and its place in the window.

    Of equal elements the first counts; NaN counts as the largest. Padding counts as -inf.

    Shapes:   x [n, *spatial, c] -> out, index [n, *out, c],
              out = (spatial + padding - dilation * (kernel - 1) - 1) // stride + 1
    Dtypes:   floating; the index is uint8, or int32 for windows of more than 256 elements
    Gradient: x, by MaxPoolGrad; any order
    Raises:   ShapeError if a window does not fit into the padded image, padding is over half a
              window, or the ranks differ; OptionError if the attributes differ in length
    """

    saves = ((OUTPUT,),)
    samples = staticmethod(_max_samples)

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        self.pooled(x.shape, [("x", x)])
        return super().compute(x)

    def expand(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = self.rows(x, -inf)
        place = cast(argmax(rows, -1), dtypes.as_dtype(_index_of(self.kernel)))
        return amax(rows, -1), place

    def gradient(self, out_grad: list[Tensor | None], out: TensorTuple) -> Gradients:
        if out_grad[0] is None:
            return (None,)
        op = MaxPoolGrad.of(*self.geometry, out.node.inputs[0].spec.shape[1:-1])
        return (executor.apply(op, out_grad[0], out[1]),)

    def push(
        self, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[TensorTuple, list[Tensor | None]]:
        out: Any = executor.apply(self, *primals)
        return out, [executor.apply(MaxPoolTake.of(*self.geometry), tangents[0], out[1]), None]


class MaxPoolGrad(_Largest):
    """The transpose of MaxPoolTake: add each element of g to its place in zeros of ``spatial``.

    Shapes:   g, index [n, *out, c] -> [n, *spatial, c]
    Gradient: g, by MaxPoolTake; any order
    Raises:   ShapeError if a pooling of ``spatial`` does not give the shapes of g and index
    """

    spatial: Sizes
    saves = ((1,), ())
    samples = staticmethod(_grad_samples)

    def compute(self, g: NDArray, index: NDArray) -> NDArray:
        named = [("g", g), ("index", index)]
        shape = self.pooled((*g.shape[:1], *self.spatial, *g.shape[-1:]), named)
        self.expect(shape, g, "g")
        self.expect(shape, index, "index")
        return super().compute(g, index)

    def expand(self, g: Tensor, index: Tensor) -> Tensor:
        places = np.arange(prod(self.kernel))
        spec = executor.spec_of(index)
        one = graph.wrap(ndarray.array(places, spec.dtype, spec.device))
        rows = where(equal(unsqueeze(index, -1), one), unsqueeze(g, -1), 0.0)
        return self.overlapped(reshape(rows, (*shape_of(g), *self.kernel)), self.spatial)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        if not out.node.inputs[0].needs:
            return None, None
        return executor.apply(MaxPoolTake.of(*self.geometry), out_grad, out.inputs[1]), None


class MaxPoolTake(_Largest):
    """Take from each window the element at a given place: MaxPool with known places.

    Shapes:   x [n, *spatial, c], index [n, *out, c] -> [n, *out, c]
    Gradient: x, by MaxPoolGrad; any order
    Raises:   ShapeError if the pooling does not give the shape of index
    """

    saves = ((1,), ())
    samples = staticmethod(_take_samples)

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        self.expect(self.pooled(x.shape, [("x", x), ("index", index)]), index, "index")
        return super().compute(x, index)

    def expand(self, x: Tensor, index: Tensor) -> Tensor:
        places = unsqueeze(cast(index, dtypes.int64), -1)
        return squeeze(gather(self.rows(x, 0.0), places, -1), -1)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        if not out.node.inputs[0].needs:
            return None, None
        op = MaxPoolGrad.of(*self.geometry, out.node.inputs[0].spec.shape[1:-1])
        return executor.apply(op, out_grad, out.inputs[1]), None


# ---- the average -------------------------------------------------------------------

_COUNTED = (((0, 0),) * 2, ((1, 1), (0, 0)), ((1, 0),), ((0, 0), (0, 0), (1, 1)), ((0, 0),) * 2)


def _average_places(spatial: Sizes, attributes: Any) -> Any:
    """Yield every position of the result, its window in the image, and how many it divides by."""
    kernel, stride, padding, counted = attributes
    for place, _ in _places((kernel, stride, padding, (1,) * len(kernel)), spatial):
        part, count = [], 1
        for p, n, k, s, (low, _), (before, after) in zip(
            place, spatial, kernel, stride, padding, counted, strict=True
        ):
            start = p * s - low
            part.append(slice(max(start, 0), min(start + k, n)))
            count *= min(start + k, n + after) - max(start, -before)
        yield place, tuple(part), count


def _average(x: Numpy, *attributes: Any) -> Numpy:
    out = np.zeros(_averaged_shape(x.shape, attributes))
    for place, part, count in _average_places(x.shape[1:-1], attributes):
        total = x[(slice(None), *part)].sum(tuple(range(1, x.ndim - 1)))
        out[(slice(None), *place)] = total / count
    return out


def _average_grad(g: Numpy, *static: Any) -> Numpy:
    *attributes, spatial = static
    x = np.zeros((g.shape[0], *spatial, g.shape[-1]))
    for place, part, count in _average_places(spatial, attributes):
        own = g[(slice(None), *place)] / count
        x[(slice(None), *part)] += own.reshape(g.shape[0], *(1 for _ in spatial), g.shape[-1])
    return x


def _average_cases() -> list[tuple[Sizes, Any]]:
    return [(x, (*a[:3], counted)) for (x, a), counted in zip(_CASES, _COUNTED, strict=True)]


def _averaged_shape(x: Sizes, attributes: Any) -> Sizes:
    return _pooled_shape(x, (*attributes[:3], (1,) * len(attributes[0])))


class _Average(Linear, _Pool):
    """The base of the average and its transpose.

    Attributes:
        counted: how much of the padding (before, after) counts as elements, which are zeros.
    """

    counted: Pairs
    saves = ((),)

    def factors(self, spatial: Sizes, like: Tensor) -> Operand:
        """Return 1 / number of elements, per position: a number if it is the same for all."""
        counts: Any = np.ones(())
        sizes = zip(
            spatial, self.kernel, self.stride, self.padding, self.counted, strict=True
        )  # fmt: skip
        for n, k, s, (low, high), (before, after) in sizes:
            start = np.arange((n + low + high - k) // s + 1) * s - low
            own = np.minimum(start + k, n + after) - np.maximum(start, -before)
            counts = np.multiply.outer(counts, own)
        if counts.min() == counts.max():
            return 1.0 / float(counts.flat[0])
        spec = executor.spec_of(like)
        return graph.wrap(ndarray.array(1.0 / counts[..., None], spec.dtype, spec.device))


class AvgPool(_Average):
    """Average each window.

    Shapes:   x [n, *spatial, c] -> [n, *out, c], out = (spatial + padding - kernel) // stride + 1
    Dtypes:   floating; sums in float32 when x is float16 or bfloat16
    Gradient: x, by AvgPoolGrad; any order
    Raises:   as MaxPool
    """

    samples = staticmethod(
        lambda: (
            [Sample((uniform(x),), a, lambda x, a=a: _average(x, *a)) for x, a in _average_cases()]
            + [Sample((uniform(x),), (*a[:3], a[2]), raises=ShapeError) for x, a in _WRONG]
        )
    )

    def compute(self, x: NDArray) -> NDArray:
        self.pooled(x.shape, [("x", x)])
        return super().compute(x)

    def expand(self, x: Tensor) -> Tensor:
        view = self.view(widened(x), 0.0)
        axes = len(self.kernel)
        total = summation(view, tuple(range(axes + 2, 2 * axes + 2)))
        return cast_like(total * self.factors(shape_of(x)[1:-1], total), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        spatial = out.node.inputs[0].spec.shape[1:-1]
        op = AvgPoolGrad.of(self.kernel, self.stride, self.padding, self.counted, spatial)
        return (executor.apply(op, out_grad),)


class AvgPoolGrad(_Average):
    """The transpose of AvgPool: spread each element evenly over its window.

    Shapes:   g [n, *out, c] -> [n, *spatial, c]
    Gradient: g, by AvgPool; any order
    Raises:   ShapeError if a pooling of ``spatial`` does not give the shape of g
    """

    spatial: Sizes
    samples = staticmethod(
        lambda: [
            Sample(
                (uniform(_averaged_shape(x, a)),), (*a, x[1:-1]),
                lambda g, s=(*a, x[1:-1]): _average_grad(g, *s),
            )
            for x, a in _average_cases()
        ]
    )  # fmt: skip

    def compute(self, g: NDArray) -> NDArray:
        shape = (*g.shape[:1], *self.spatial, *g.shape[-1:])
        self.expect(self.pooled(shape, [("g", g)]), g, "g")
        return super().compute(g)

    def expand(self, g: Tensor) -> Tensor:
        wide = widened(g)
        scaled = wide * self.factors(self.spatial, wide)
        column = reshape(scaled, (*shape_of(g), *(1 for _ in self.kernel)))
        view = broadcast_to(column, (*shape_of(g), *self.kernel))
        return cast_like(self.overlapped(view, self.spatial), g)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        op = AvgPool.of(self.kernel, self.stride, self.padding, self.counted)
        return (executor.apply(op, out_grad),)

"""Pooling and upsampling under their users' names: against loops over positions in NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from needle import Tensor, config, jvp, lazy_mode, ops
from needle.errors import OptionError, OutOfMemoryError, ShapeError
from needle.testing import check_gradients

RNG = np.random.default_rng(0)


def tensor(x, dtype="float64", **kwargs):
    return Tensor(x, dtype=dtype, **kwargs)


def draw(*shape):
    return RNG.standard_normal(shape)


def counts(spatial, kernel, stride, padding, ceil):
    """How many windows each axis has: they begin inside the image or before it."""
    found = []
    for n, k, s, p in zip(spatial, kernel, stride, padding, strict=True):
        starts = range(-p, n, s)
        found.append(sum(ceil and start + k < n + p + s or start + k <= n + p for start in starts))
    return found


def pooled(x, kernel, stride, padding, ceil, reduce):
    """``reduce(elements [n, c, m], number of elements with padding)`` of each window."""
    spatial = x.shape[2:]
    out = counts(spatial, kernel, stride, padding, ceil)
    y = np.zeros((*x.shape[:2], *out))
    for place in itertools.product(*map(range, out)):
        part, padded = [], 1
        for p, n, k, s, low in zip(place, spatial, kernel, stride, padding, strict=True):
            start = p * s - low
            part.append(slice(max(start, 0), min(start + k, n)))
            padded *= min(start + k, n + low) - start
        window = x[(slice(None), slice(None), *part)].reshape(*x.shape[:2], -1)
        y[(slice(None), slice(None), *place)] = reduce(window, padded)
    return y


CASES = [
    # spatial, kernel, stride, padding, ceil_mode
    ((7,), (3,), (2,), (1,), False),
    ((6,), (3,), (2,), (0,), True),
    ((5, 7), (2, 3), (2, 2), (0, 1), True),
    ((4, 5), (2, 2), (3, 1), (1, 1), True),  # a window behind the image is left out
    ((3, 4, 5), (2, 2, 3), (1, 2, 2), (1, 0, 1), False),
]


@pytest.mark.parametrize("spatial, kernel, stride, padding, ceil", CASES)
def test_pooling(spatial, kernel, stride, padding, ceil, device):
    x = draw(2, 3, *spatial)
    args = (kernel, stride, padding)
    largest = getattr(ops, f"max_pool{len(spatial)}d")
    average = getattr(ops, f"avg_pool{len(spatial)}d")
    found = largest(tensor(x, device=device), *args, ceil_mode=ceil)
    np.testing.assert_array_equal(found.numpy(), pooled(x, *args, ceil, lambda w, _: w.max(-1)))
    check_gradients(lambda x: largest(x, *args, ceil_mode=ceil), x)
    for include in (True, False):
        exact = pooled(
            x, *args, ceil, lambda w, n, all=include: w.sum(-1) / (n if all else w.shape[-1])
        )
        found = average(tensor(x, device=device), *args, ceil, include)
        np.testing.assert_allclose(found.numpy(), exact, atol=1e-13)
        check_gradients(lambda x, all=include: average(x, *args, ceil, all), x)


def test_dilated_windows():
    x = draw(1, 2, 7)
    found = ops.max_pool1d(tensor(x), 3, 1, dilation=2).numpy()
    np.testing.assert_array_equal(
        found, np.maximum(np.maximum(x[..., :3], x[..., 2:5]), x[..., 4:])
    )


def test_ties_go_to_the_first_element():
    x = tensor(np.ones((1, 1, 2, 4)))
    ops.max_pool2d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[[[1, 0, 1, 0], [0, 0, 0, 0]]]])
    moved = tensor(np.arange(8.0).reshape(1, 1, 2, 4))
    _, tangent = jvp(lambda x: ops.max_pool2d(x, 2), (x,), (moved,))  # both modes agree there
    np.testing.assert_array_equal(tangent.numpy(), [[[[0, 2]]]])


def test_windows_of_more_elements_than_a_byte_can_number():
    x = draw(1, 1, 300)
    check_gradients(lambda x: ops.max_pool1d(x, 290, 5), x)
    assert ops.max_pool1d(tensor(x), 290).item() == x[..., :290].max()


@pytest.mark.parametrize("spatial, size", [((7, 5), (3, 2)), ((6, 4), (3, None)), ((3, 2), 5)])
def test_adaptive_average(spatial, size):
    x = draw(2, 3, *spatial)
    given = (size,) * 2 if isinstance(size, int) else size
    out = [m or n for n, m in zip(spatial, given, strict=True)]
    exact = np.zeros((2, 3, *out))
    for i, j in np.ndindex(*out):
        (h, w), (m, n) = spatial, out
        rows = slice(math.floor(i * h / m), math.ceil((i + 1) * h / m))
        columns = slice(math.floor(j * w / n), math.ceil((j + 1) * w / n))
        exact[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    found = ops.adaptive_avg_pool2d(tensor(x), size)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-13)
    check_gradients(lambda x: ops.adaptive_avg_pool2d(x, size), x)


def test_global_average():
    x = draw(2, 3, 4, 5)
    found = ops.global_avg_pool(tensor(x)).numpy()
    np.testing.assert_allclose(found, x.mean((2, 3), keepdims=True), atol=1e-14)
    np.testing.assert_allclose(found, ops.adaptive_avg_pool2d(tensor(x), 1).numpy(), atol=1e-14)
    sequence = draw(2, 3, 6)
    halves = sequence.reshape(2, 3, 2, 3).mean(-1)
    found = ops.adaptive_avg_pool1d(tensor(sequence), 2).numpy()
    np.testing.assert_allclose(found, halves, atol=1e-14)


def interpolated(x, position):
    """The values between the elements of the last axis, which is continued at both ends."""
    low = np.clip(np.floor(position).astype(int), 0, x.shape[-1] - 1)
    high = np.minimum(low + 1, x.shape[-1] - 1)
    share = np.clip(position - low, 0, 1)
    return x[..., low] * (1 - share) + x[..., high] * share


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(
    "n, m, scale", [(4, 8, None), (5, 7, None), (4, 9, 2.3), (5, 2, 0.5), (3, 1, None)]
)
def test_linear_upsampling(n, m, scale, align):
    x, p = draw(2, 3, n), np.arange(m)
    if align:
        position = p * ((n - 1) / max(m - 1, 1))
    else:
        position = (p + 0.5) / (scale or m / n) - 0.5
    size = {"scale_factor": scale} if scale else {"size": m}

    def up(x):
        return ops.upsample(x, **size, mode="linear", align_corners=align)

    np.testing.assert_allclose(up(tensor(x)).numpy(), interpolated(x, position), atol=1e-13)
    check_gradients(up, x)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(9, 4), (1, 1), (5, 20), 2.3, (0.6, 2.0)])
def test_bicubic_upsampling_is_pytorchs(size, align):
    torch = pytest.importorskip("torch")
    x = draw(2, 3, 5, 7)
    scaled = isinstance(size, float) or isinstance(size[0], float)
    kwargs = {"scale_factor" if scaled else "size": size, "mode": "bicubic", "align_corners": align}
    expected = torch.nn.functional.interpolate(torch.tensor(x), **kwargs).numpy()
    np.testing.assert_allclose(ops.upsample(tensor(x), **kwargs).numpy(), expected, atol=1e-12)
    check_gradients(lambda x: ops.upsample(x, **kwargs), x)


def test_bilinear_upsampling_is_linear_along_both_axes():
    x, twice = draw(2, 1, 3, 4), lambda n: (np.arange(2 * n) + 0.5) / 2 - 0.5
    exact = interpolated(x, twice(4)).swapaxes(2, 3)
    exact = interpolated(exact, twice(3)).swapaxes(2, 3)

    def up(x):
        return ops.upsample(x, scale_factor=2, mode="bilinear")

    np.testing.assert_allclose(up(tensor(x)).numpy(), exact, atol=1e-13)
    check_gradients(up, x, order=2)


@pytest.mark.parametrize(
    "kwargs, rows, columns",
    [
        ({"scale_factor": 2}, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ({"scale_factor": np.float32(2)}, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ({"scale_factor": np.array(2)}, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ({"scale_factor": (1.0, 2.5)}, [0, 1, 2], [0, 0, 0, 1, 1]),
        ({"scale_factor": np.array([1.0, 2.5])}, [0, 1, 2], [0, 0, 0, 1, 1]),
        ({"size": (2, 3)}, [0, 1], [0, 0, 1]),
    ],
)
def test_nearest_upsampling(kwargs, rows, columns):
    x = draw(2, 3, 3, 2)

    def up(x):
        return ops.upsample(x, **kwargs)

    np.testing.assert_array_equal(up(tensor(x)).numpy(), x[:, :, rows][..., columns])
    check_gradients(up, x)


def test_images_stay_in_nhwc_memory():
    x = ops.permute(tensor(draw(2, 4, 6, 3), "float32"), (0, 3, 1, 2))
    for function in (
        lambda x: ops.max_pool2d(x, 2), lambda x: ops.avg_pool2d(x, 2), ops.global_avg_pool,
        lambda x: ops.adaptive_avg_pool2d(x, 3), lambda x: ops.upsample(x, 5),
        lambda x: ops.upsample(x, scale_factor=2), lambda x: ops.upsample(x, 9, mode="bilinear"),
    ):  # fmt: skip
        _, c, height, width = function(x).shape
        assert function(x).array.strides == (height * width * c, 1, width * c, c)


def test_wrong_arguments_are_explained():
    x = tensor(draw(1, 2, 4, 4))
    for function, text in (
        (lambda: ops.max_pool2d(x, 5), "do not fit an image"),
        (lambda: ops.max_pool2d(x, 2, padding=2), "padding is at most half"),
        (lambda: ops.max_pool2d(x, 2, 3, 1, 5), "do not fit an image"),  # nothing but padding
        (lambda: ops.max_pool1d(x, 2), "expected 3 axes, got 4"),
        (lambda: ops.avg_pool2d(x, (2, 2, 2)), "3 numbers for 2 spatial axes"),
        (lambda: ops.avg_pool2d(x, 2, 0), "below 1"),
        (lambda: ops.adaptive_avg_pool2d(x, 0), "at least 1"),
        (lambda: ops.upsample(x, scale_factor=0.1), "at least 1"),
        (lambda: ops.upsample(x, 8, mode="linear"), "not for 2 spatial axes"),
        (lambda: ops.upsample(tensor(1.0), 8), "axes, got 0"),
    ):
        with pytest.raises(ShapeError, match=text):
            function()
    for kwargs in ({}, {"size": 2, "scale_factor": 2}, {"size": 2, "align_corners": True}):
        with pytest.raises(OptionError, match="one of size and scale_factor"):
            ops.upsample(x, **kwargs)
    with pytest.raises(OptionError, match="did you mean 'bilinear'"):
        ops.upsample(x, 8, mode="bilinea")


@pytest.mark.parametrize("how", ["nearest", "linear"])
def test_points_that_are_not_computed_take_no_memory(how):
    """In lazy mode a result is a shape; 2**31 places and shares were worked out for it."""
    x = tensor(draw(1, 1, 3))
    with lazy_mode(), config(memory_limit=2**20):
        y = ops.upsample(x, 2**31, mode=how)
        assert y.shape == (1, 1, 2**31)
        with pytest.raises(OutOfMemoryError):
            y.numpy()

"""Convolutions under the names that users call: against loops over positions in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import OptionError, ShapeError
from needle.testing import check_gradients

RNG = np.random.default_rng(0)
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def tensor(x, dtype="float64", **kwargs):
    return ndl.Tensor(x, dtype=dtype, **kwargs)


def draw(*shape):
    return RNG.standard_normal(shape)


def window(place, kernel, stride, dilation):
    return tuple(
        slice(s * p, s * p + d * (k - 1) + 1, d)
        for p, k, s, d in zip(place, kernel, stride, dilation, strict=True)
    )


def convolved(x, w, stride, pairs, dilation, groups, mode="constant"):
    """One output position after the other, one group after the other; [n, c, *spatial]."""
    kernel = w.shape[2:]
    x = np.pad(x, ((0, 0), (0, 0), *pairs), mode)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(n - m) // s + 1 for n, m, s in zip(x.shape[2:], spans, stride, strict=True)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for place in itertools.product(*map(range, out)):
        part = x[(slice(None), slice(None), *window(place, kernel, stride, dilation))]
        for group in range(groups):
            o = slice(group * w.shape[0] // groups, (group + 1) * w.shape[0] // groups)
            i = slice(group * w.shape[1], (group + 1) * w.shape[1])
            y[(slice(None), o, *place)] = np.tensordot(
                part[:, i], w[o], (range(1, x.ndim), range(1, x.ndim))
            )
    return y


def spread(x, w, stride, padding, extra, groups, dilation):
    """Transposed convolution: each element adds its kernel to its window."""
    kernel = w.shape[2:]
    wide = [
        s * (n - 1) + d * (k - 1) + 1 + e
        for n, k, s, d, e in zip(x.shape[2:], kernel, stride, dilation, extra, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *wide))
    for place in itertools.product(*map(range, x.shape[2:])):
        for c in range(x.shape[1]):
            group = c * groups // x.shape[1]
            o = slice(group * w.shape[1], (group + 1) * w.shape[1])
            y[(slice(None), o, *window(place, kernel, stride, dilation))] += np.multiply.outer(
                x[(slice(None), c, *place)], w[c]
            )
    inner = [slice(p, n - p) for p, n in zip(padding, wide, strict=True)]
    return y[(slice(None), slice(None), *inner)]


CASES = [
    # spatial, c, o, kernel, stride, padding, dilation, groups, mode
    ((7,), 2, 4, (3,), (2,), (1,), (1,), 2, "zeros"),
    ((5, 6), 3, 2, (3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros"),
    ((5, 6), 3, 2, (3, 2), (2, 1), (0, 1), (1, 2), 1, "replicate"),
    ((5, 6), 4, 4, (3, 3), (1, 2), (2, 1), (1, 1), 4, "reflect"),
    ((4, 4), 2, 2, (2, 2), (1, 1), (1, 2), (1, 1), 1, "circular"),
    ((3, 4, 3), 2, 2, (2, 2, 2), (1, 2, 1), (1, 0, 1), (1, 1, 1), 1, "zeros"),
]


@pytest.mark.parametrize("spatial, c, o, kernel, stride, padding, dilation, groups, mode", CASES)
def test_convolutions(
    spatial, c, o, kernel, stride, padding, dilation, groups, mode, device
):  # fmt: skip
    function = getattr(ops, f"conv{len(spatial)}d")
    x, w, b = draw(2, c, *spatial), draw(o, c // groups, *kernel), draw(o)
    exact = convolved(x, w, stride, [(p, p) for p in padding], dilation, groups, MODES[mode])
    exact += b.reshape(-1, *(1 for _ in spatial))
    rest = (stride, padding, dilation, groups, mode)
    found = function(*(tensor(z, device=device) for z in (x, w, b)), *rest)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-12)
    check_gradients(lambda *args: function(*args, *rest), x, w, b)


@pytest.mark.parametrize("kernel, dilation", [(3, 1), (2, 1), (4, 3)])
def test_same_padding_keeps_the_size(kernel, dilation):
    x, w = draw(2, 3, 11), draw(2, 3, kernel)
    total = dilation * (kernel - 1)
    exact = convolved(x, w, (1,), [(total // 2, total - total // 2)], (dilation,), 1)
    found = ops.conv1d(tensor(x), tensor(w), padding="same", dilation=dilation)
    assert found.shape == (2, 2, 11)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-12)
    with pytest.raises(OptionError, match="needs stride 1"):
        ops.conv1d(tensor(x), tensor(w), padding="same", stride=2)
    with pytest.raises(OptionError, match="did you mean 'same'"):
        ops.conv1d(tensor(x), tensor(w), padding="sama")


TRANSPOSED = [
    # spatial, c, o, kernel, stride, padding, output_padding, groups, dilation
    ((4,), 2, 3, (3,), (2,), (1,), (1,), 1, (1,)),
    ((3, 4), 4, 2, (3, 3), (2, 1), (1, 1), (1, 0), 2, (1, 1)),
    ((3, 2), 2, 2, (2, 2), (3, 2), (0, 0), (2, 1), 1, (1, 1)),  # reaches beyond every kernel
    ((2, 3), 2, 2, (2, 3), (1, 1), (0, 2), (2, 0), 1, (3, 2)),  # output_padding over stride
    ((2, 2, 2), 2, 2, (2, 1, 3), (2, 1, 2), (0, 0, 1), (1, 0, 0), 1, (1, 1, 1)),
]


@pytest.mark.parametrize(
    "spatial, c, o, kernel, stride, padding, extra, groups, dilation", TRANSPOSED
)
def test_transposed_convolutions(
    spatial, c, o, kernel, stride, padding, extra, groups, dilation
):  # fmt: skip
    function = getattr(ops, f"conv_transpose{len(spatial)}d")
    x, w, b = draw(2, c, *spatial), draw(c, o // groups, *kernel), draw(o)
    exact = spread(x, w, stride, padding, extra, groups, dilation)
    exact += b.reshape(-1, *(1 for _ in spatial))
    rest = (stride, padding, extra, groups, dilation)
    found = function(tensor(x), tensor(w), tensor(b), *rest)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-12)
    check_gradients(lambda *args: function(*args, *rest), x, w, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_strides_far_beyond_the_image(dtype, device):
    x, w = (draw(1, 2, *size) for size in ((5, 4), (3, 3)))
    found = []
    for stride in (5, 2**40):
        inputs = [tensor(z, dtype, device=device) for z in (x, w)]
        out = ops.conv2d(*inputs, stride=stride)
        out.sum().backward()
        found.append([out.numpy(), *(z.grad.numpy() for z in inputs)])
    for near, far in zip(*found, strict=True):
        np.testing.assert_array_equal(near, far)


def test_images_stay_in_nhwc_memory():
    x = ops.permute(tensor(draw(2, 4, 5, 3), "float32"), (0, 3, 1, 2))
    w = tensor(draw(3, 3, 3, 3), "float32")
    y = ops.relu(ops.conv2d(x, w, padding=1)) + x
    for z in (y, ops.conv_transpose2d(y, w)):
        n, c, height, width = z.shape
        assert z.array.strides == (height * width * c, 1, width * c, c)


def test_gradients_of_higher_order_and_dtypes():
    x, w = draw(1, 2, 4, 4), draw(2, 2, 3, 3)
    check_gradients(lambda x, w: ops.conv2d(x, w, padding=1, padding_mode="reflect"), x, w, order=2)
    check_gradients(lambda x, w: ops.conv_transpose2d(x, w, stride=2), x, w, order=2)
    for dtype in ("float16", "bfloat16", "float32"):
        assert ops.conv2d(tensor(x, dtype), tensor(w, dtype)).dtype == dtype


@pytest.mark.parametrize(
    "x, w, kwargs, text",
    [
        ((1, 3, 4, 4), (4, 3, 5, 5), {}, "does not fit an image of (4, 4)"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"dilation": 2}, "does not fit"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"groups": 3}, "do not divide into 3 groups"),
        ((1, 4, 4, 4), (4, 3, 3, 3), {}, "x has 4 channels"),
        ((3, 4, 4), (4, 3, 3, 3), {}, "expected 4 axes, got 3 and 4"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"stride": 0}, "below 1"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"stride": (1, 1, 1)}, "3 numbers for 2 spatial axes"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"padding": -1}, "is negative"),
        ((1, 3, 4, 4), (4, 3, 3, 3), {"padding": 4, "padding_mode": "reflect"}, "reflect by"),
    ],
)
def test_wrong_sizes_are_explained(x, w, kwargs, text):
    with pytest.raises(ShapeError) as caught:
        ops.conv2d(tensor(draw(*x)), tensor(draw(*w)), **kwargs)
    assert text in str(caught.value)


def test_wrong_transposed_convolutions_are_explained():
    x, w = tensor(draw(1, 2, 2, 2)), tensor(draw(2, 3, 1, 1))
    with pytest.raises(ShapeError, match="has no elements"):
        ops.conv_transpose2d(x, w, padding=1)
    with pytest.raises(OptionError, match="0 <= output_padding < max"):
        ops.conv_transpose2d(x, w, output_padding=1)
    with pytest.raises(ShapeError, match="3 output channels"):
        ops.conv_transpose2d(x, w, tensor(draw(2)))
    with pytest.raises(OptionError, match="did you mean 'reflect'"):
        ops.conv2d(x, x, padding_mode="reflekt")


def test_a_convolution_setting_must_be_known():
    with (
        pytest.raises(OptionError, match="im2col, direct, winograd"),
        ndl.config(conv="fft"),
    ):
        pass
    with ndl.config(conv="im2col"):
        x, w = draw(1, 4, 4, 2), draw(3, 3, 2, 2)
        found = ops.conv(tensor(x), tensor(w))
    exact = convolved(
        x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), [(1, 1)] * 2, (1, 1), 1
    )
    np.testing.assert_allclose(found.numpy(), exact.transpose(0, 2, 3, 1), atol=1e-12)

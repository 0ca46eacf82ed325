"""The native convolutions and poolings: each algorithm, on every instruction set, against the
expansion in float64; errors stay below the documented bounds; results do not depend on threads.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import needle as ndl
from needle import core, executor
from needle.backend import find_override, onednn
from needle.errors import DeviceError
from needle.ops.image.convolution import Convolution, ConvolutionInput, ConvolutionWeight
from needle.ops.image.convolution_bias import ConvolutionActivation
from needle.ops.image.pooling import MaxPool, MaxPoolGrad
from needle.ops.norm.batch_norm_relu import BatchNormReLU

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")

ERROR = {"direct": 1e-6, "winograd": 4e-6, "onednn": 1e-6}
"""Largest relative root mean square error against float64; ``needle.ops.image.convolution``."""

# n, spatial, c, o, kernel; stride, padding, dilation, groups
SHAPES = [
    (1, (9, 8), 5, 7, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (3, (4, 4), 16, 33, (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (2, (13, 11), 48, 40, (3, 3), (1, 1), ((2, 2), (2, 2)), (1, 1), 1),
    (1, (7, 7), 130, 70, (3, 3), (1, 1), ((1, 0), (0, 2)), (1, 1), 1),
    (33, (5, 6), 32, 64, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, (2, 1), 20, 20, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, (9, 10), 17, 19, (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1), 1),
    (9, (5, 5), 40, 24, (5, 5), (1, 1), ((4, 4), (0, 1)), (1, 1), 1),
    (2, (12, 9), 3, 16, (7, 7), (4, 4), ((3, 3), (3, 3)), (1, 1), 1),
    (2, (11, 10), 20, 33, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1),
    (2, (10, 12), 18, 12, (3, 2), (1, 3), ((2, 1), (0, 1)), (2, 1), 1),
    (2, (6, 7), 12, 20, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 4),
    (2, (9, 7), 19, 19, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 19),
    (2, (9, 7), 37, 37, (3, 5), (2, 1), ((1, 1), (2, 3)), (1, 2), 37),
    (3, (6, 6), 24, 40, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (3, (6, 6), 24, 40, (1, 1), (2, 3), ((0, 0), (0, 0)), (1, 1), 1),
    (2, (300,), 2, 17, (5,), (1,), ((2, 2),), (1,), 1),
    (2, (40,), 18, 9, (3,), (2,), ((0, 3),), (3,), 3),
    (2, (5, 4, 6), 5, 9, (3, 2, 3), (2, 1, 1), ((1, 1), (0, 0), (1, 2)), (1, 1, 1), 1),
    (1, (4, 4), 3, 4, (3, 3), (1, 1), ((5, 5), (5, 5)), (1, 1), 1),  # windows on padding alone
    (20, (16, 17), 32, 50, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1),
    (2, (7, 9), 17, 20, (3, 3), (2, 2), ((0, 2), (0, 1)), (1, 1), 1),
    (1, (5, 1), 64, 16, (3, 3), (2, 2), ((1, 0), (1, 4)), (1, 1), 1),
    (65, (5, 5), 260, 300, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),  # winograd: in parts
    # at most one vector of columns: neighbours along a line, a column, the depth, of images
    (2, (700,), 2, 4, (5,), (1,), ((2, 2),), (1,), 1),
    (19, (31, 2), 6, 3, (5, 3), (1, 1), ((2, 2), (1, 1)), (1, 1), 1),
    (2, (19, 2, 3), 3, 2, (3, 3, 2), (2, 1, 1), ((1, 1), (1, 1), (0, 0)), (1, 1, 1), 1),
    (40, (2, 2), 3, 4, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (60, (9, 7), 130, 150, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (70, (9, 7), 128, 120, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),  # tall: no product
    (3, (10, 23), 6, 8, (5, 5), (2, 3), ((4, 1), (2, 3)), (1, 2), 2),
]


def operations(shape):
    """The three ops of a geometry, each with its operands in float32."""
    n, spatial, c, o, kernel, stride, padding, dilation, groups = shape
    geometry = (stride, padding, dilation, groups)
    random = np.random.default_rng(0)
    x = random.standard_normal((n, *spatial, c), np.float32)
    w = random.standard_normal((*kernel, c // groups, o), np.float32)
    out = Convolution.of(*geometry).out_spatial(spatial, kernel)
    g = random.standard_normal((n, *out, o), np.float32)
    return {
        "forward": (Convolution.of(*geometry), (x, w)),
        "input": (ConvolutionInput.of(*geometry, spatial), (g, w)),
        "weight": (ConvolutionWeight.of(*geometry, kernel), (x, g)),
    }


def result(op, arrays, dtype="float32", algorithm="im2col"):
    with ndl.config(conv=algorithm, device="cpu"):
        tensors = [ndl.Tensor(x, dtype=dtype, requires_grad=False) for x in arrays]
        return executor.apply(op, *tensors).numpy()


def taken(op, arrays, algorithm):
    """Whether the algorithm itself computes the op, not the expansion in its place."""
    with ndl.config(conv=algorithm, device="cpu"):
        override = find_override("cpu", type(op).__name__)
        found = override(op, *(ndl.Tensor(x, requires_grad=False).array for x in arrays))
    return found is not NotImplemented


def tensor(x):
    """A native array."""
    return ndl.Tensor(x, dtype="float32", requires_grad=False, device="cpu").array


def relative_error(found, exact):
    assert found.shape == exact.shape
    return np.sqrt(np.mean((found - exact) ** 2) / max(np.mean(exact**2), 1e-30))


def fits_winograd(shape, name):
    *_, kernel, stride, padding, dilation, groups = shape
    if dilation != (1, 1) or groups != 1:
        return False
    if stride == (2, 2):
        return kernel == (3, 3) and (name != "input" or padding[0][0] == padding[1][0] == 1)
    return kernel in ((3, 3), (5, 5)) and stride == (1, 1)


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_algorithms_agree_with_the_expansion(isa, shape, algorithm):
    for name, (op, arrays) in operations(shape).items():
        fits = algorithm == "direct" or fits_winograd(shape, name)
        assert taken(op, arrays, algorithm) == fits, name
        exact = result(op, arrays, "float64")
        found = result(op, arrays, algorithm=algorithm)
        assert relative_error(found, exact) < ERROR[algorithm], name


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 3])
def test_large_results_of_one_tap(isa, streamed, stride, groups):
    none = ((0, 0), (0, 0))
    shape = (3, (12, 11), 96, 64, (1, 1), (stride, stride), none, (1, 1), groups)
    for name, (op, arrays) in operations(shape).items():
        found = result(op, arrays, algorithm="direct")
        assert relative_error(found, result(op, arrays, "float64")) < ERROR["direct"], name


def test_float64_never_uses_winograd():
    """Nor any other kernel of float32, whether it is named or not."""
    for op, arrays in operations(SHAPES[2]).values():
        exact = result(op, arrays, "float64", "im2col")
        for algorithm in ("winograd", "direct", ""):
            np.testing.assert_array_equal(result(op, arrays, "float64", algorithm), exact)


# ---- oneDNN ------------------------------------------------------------------------

with_onednn = pytest.mark.skipif(onednn.find()[0] is None, reason=f"oneDNN: {onednn.find()[1]}")


@with_onednn
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_onednn_agrees_with_the_expansion(shape):
    for name, (op, arrays) in operations(shape).items():
        assert taken(op, arrays, "onednn"), name
        exact = result(op, arrays, "float64")
        found = result(op, arrays, algorithm="onednn")
        assert relative_error(found, exact) < ERROR["onednn"], name
        half = result(op, arrays, "float16", algorithm="onednn")
        assert half.dtype == np.float16 and relative_error(half, exact) < 2e-3, name


@with_onednn
@pytest.mark.parametrize("slope", [1.0, 0.0, 0.2])
def test_bias_and_activation_by_onednn(slope):
    op, arrays = operations(SHAPES[2])["forward"]
    x, w, bias = (tensor(v) for v in (*arrays, np.linspace(-3, 3, 40)))
    out = tensor(np.zeros((2, 15, 13, 40)))
    low = [before for before, _ in op.padding]
    assert onednn.convolve(
        0, out, x, w, bias, slope, (3, 3), op.stride, op.dilation, low, op.groups
    )
    exact = result(op, arrays, "float64") + np.linspace(-3, 3, 40)
    exact = np.where(exact < 0, exact * slope, exact)
    assert relative_error(out.numpy(), exact) < ERROR["onednn"]


@with_onednn
def test_what_onednn_refuses_is_left_to_the_expansion():
    (x, w), out = operations(SHAPES[0])["forward"][1], tensor(np.zeros((1, 9, 8, 7)))
    window = (3, 3), (1, 1), (1, 1), (1, 1)
    assert onednn.convolve(0, out, tensor(x), tensor(w), None, 1.0, *window, 1)
    assert not onednn.convolve(0, out, tensor(x), tensor(w), None, 1.0, *window, 2)  # 5 channels


def test_without_onednn_only_those_who_ask_for_it_are_told(monkeypatch):
    monkeypatch.setattr(onednn, "find", lambda: (None, "it is not installed"))
    op, arrays = operations(SHAPES[0])["forward"]
    assert result(op, arrays, algorithm="").shape == (1, 9, 8, 7)
    for dtype in ("float32", "float64"):
        with pytest.raises(DeviceError, match="NEEDLE_CONV=onednn.*it is not installed"):
            result(op, arrays, dtype, "onednn")


def test_the_library_is_looked_for_where_packages_are(monkeypatch, tmp_path):
    monkeypatch.setattr(onednn.sys, "prefix", str(tmp_path))
    alone = onednn._candidates()
    assert alone[-1] == onednn.LIBRARY
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / onednn.LIBRARY).write_bytes(b"no library")
    assert str(tmp_path / "lib" / onednn.LIBRARY) in onednn._candidates()


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (2, 4, 7, 8, 9, 11, 13, 18, 20)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape, algorithm):
    large = (40, *shape[1:])  # enough work for several threads
    for name, (op, arrays) in operations(large).items():
        found = []
        for threads in (1, 2, 5, 16):
            core.native.set_threads(threads)
            try:
                found.append(result(op, arrays, algorithm=algorithm))
            finally:
                core.native.set_threads(0)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other, err_msg=name)


@pytest.mark.parametrize("slope", [1.0, 0.0, 0.2])
@pytest.mark.parametrize(
    "index, algorithm", [(2, 2), (6, 2), (9, 2), (2, 1), (9, 1), (12, 1), (0, 1)]
)
def test_bias_and_activation(isa, index, algorithm, slope):
    op, (x, w) = operations(SHAPES[index])["forward"]
    bias = np.linspace(-3, 3, w.shape[-1], dtype=np.float32)
    plain = result(op, (x, w), "float64") + bias
    rectified = ConvolutionActivation.of(*op.geometry, slope)
    out = core.native.convolution(0, algorithm, rectified, *map(tensor, (x, w, bias)))
    exact = np.where(plain < 0, plain * slope, plain)
    assert relative_error(out.numpy(), exact) < 4e-6


def test_activation_keeps_nan_and_infinity():
    x = np.array([[[np.nan], [-np.inf], [np.inf], [-1.0]]], np.float32)  # [1, 4, 1]: one axis
    arrays = map(tensor, (x, np.ones((1, 1, 1)), np.zeros(1)))
    op = ConvolutionActivation.of((1,), ((0, 0),), (1,), 1, 0.0)
    out = core.native.convolution(0, 1, op, *arrays)
    np.testing.assert_array_equal(out.numpy().ravel(), [np.nan, 0.0, np.inf, 0.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype):
    op, arrays = operations(SHAPES[2])["forward"]
    rounded = [ndl.Tensor(x, dtype=dtype).astype("float64").numpy() for x in arrays]
    exact = ndl.Tensor(result(op, rounded, "float64"), dtype=dtype).astype("float64").numpy()
    with ndl.config(conv="direct", device="cpu"):
        tensors = [ndl.Tensor(x, dtype=dtype, requires_grad=False) for x in arrays]
        found = executor.apply(op, *tensors).astype("float64").numpy()
    assert np.mean(found != exact) < 0.01  # rounded once: only ties may differ


@pytest.mark.parametrize(
    "direction, algorithm, geometry, operands",
    [
        (3, 0, {}, "xw"),
        (0, 3, {}, "xw"),
        (0, 0, {"groups": 2}, "xw"),
        (0, 0, {"groups": 0}, "xw"),
        (0, 0, {"stride": (0, 1)}, "xw"),
        (0, 0, {"stride": (1,)}, "xw"),
        (0, 0, {"dilation": (2**40, 1)}, "xw"),
        (0, 0, {"padding": ((2**62, 2**62), (0, 0))}, "xw"),
        (0, 0, {"padding": ((0, 0),)}, "xw"),
        (0, 0, {}, "xww"),
        (0, 0, {}, "x"),
        (0, 0, {}, "xx"),
        (1, 0, {}, "yw"),
        (1, 0, {"spatial": (2**30, 2**30)}, "yw"),
        (1, 0, {"spatial": (4, 4), "groups": 3}, "yw"),
        (2, 0, {"kernel": (2**61, 3)}, "xy"),
    ],
)
def test_what_the_kernel_does_not_take_is_left_to_the_expansion(
    direction, algorithm, geometry, operands
):
    one = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    arrays = {
        "x": tensor(np.zeros((1, 4, 4, 2))),
        "w": tensor(np.zeros((3, 3, 2, 5))),
        "y": tensor(np.zeros((1, 4, 4, 5))),
    }
    op = SimpleNamespace(**{**one, **geometry})
    found = core.native.convolution(direction, algorithm, op, *(arrays[i] for i in operands))
    assert found is NotImplemented


# ---- pooling -------------------------------------------------------------------------

# n, spatial, c; kernel, stride, padding, dilation
POOLS = [
    (2, (8, 6), 19, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    (2, (7, 5), 32, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),  # the last line is in no window
    (2, (7, 5), 5, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    (3, (9, 8), 16, (3, 2), (1, 3), ((1, 0), (0, 1)), (2, 1)),
    (2, (20,), 7, (4,), (4,), ((0, 0),), (1,)),
    (1, (4, 5, 6), 3, (2, 2, 2), (2, 1, 2), ((0, 0), (1, 0), (0, 0)), (1, 1, 1)),
    (1, (16, 16), 4, (16, 16), (16, 16), ((0, 0), (0, 0)), (1, 1)),
]


@pytest.fixture(params=[0, 4096], ids=["", "streamed"])
def streamed(request):
    """Run the test as it is, and with all but small results stored past the caches."""
    core.native.set_streaming_bytes(request.param)
    yield
    core.native.set_streaming_bytes(0)


@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_pooling_agrees_with_the_expansion(isa, shape, streamed):
    n, spatial, c, kernel, stride, padding, dilation = shape
    random = np.random.default_rng(0)
    x = np.round(random.standard_normal((n, *spatial, c)) * 2).astype(np.float32)  # many ties
    x[random.random(x.shape) < 0.05] = np.nan
    x[random.random(x.shape) < 0.3] = -np.inf
    op = MaxPool.of(kernel, stride, padding, dilation)
    grad = MaxPoolGrad.of(*op.geometry, spatial)
    with ndl.config(device="cpu"):
        tensor = ndl.Tensor(x, requires_grad=False)
        found = core.native.overrides["MaxPool"](op, tensor.array)
        assert found is not NotImplemented
        with ndl.config(overrides="off"):
            values, index = (t.numpy() for t in executor.apply(op, tensor).tuple())
        np.testing.assert_array_equal(found[0].numpy(), values)
        np.testing.assert_array_equal(found[1].numpy(), index)
        g = ndl.Tensor(random.integers(-9, 9, values.shape), dtype="float32", requires_grad=False)
        place = ndl.Tensor(index, dtype="uint8", requires_grad=False)
        dx = core.native.overrides["MaxPoolGrad"](grad, g.array, place.array)
        assert dx is not NotImplemented
        with ndl.config(overrides="off"):
            np.testing.assert_array_equal(dx.numpy(), executor.apply(grad, g, place).numpy())


# ---- batch norm with a rectifier -----------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (2, 7, 9, 16), (300, 100), (9, 8, 8, 64), (1, 5)])
@pytest.mark.parametrize("shortcut", [False, True])
def test_batch_norm_relu_agrees_with_the_expansion(isa, shape, shortcut, streamed):
    random = np.random.default_rng(0)
    x, residual, g = (random.standard_normal(shape, np.float32) for _ in range(3))
    x += 100  # a variance from the sum of squares would be wrong
    weight, bias = (random.standard_normal(shape[-1], np.float32) for _ in range(2))
    inputs = (x, weight, bias, *([residual] if shortcut else []))

    def run(dtype):
        tensors = [ndl.Tensor(v, dtype=dtype, device="cpu") for v in inputs]
        out = executor.apply(BatchNormReLU.of(1e-5), *tensors)
        (out[0] * ndl.Tensor(g, dtype=dtype, device="cpu")).sum().backward()
        return [*(t.numpy() for t in out.tuple()), *(t.grad.numpy() for t in tensors)]

    found, exact = run("float32"), run("float64")
    assert len(found) == len(exact) == (7 if shortcut else 6)
    for ours, theirs in zip(found, exact, strict=True):
        scale = np.abs(theirs).max() + 1e-3
        if shape[0] > 1:
            np.testing.assert_allclose(ours / scale, theirs / scale, atol=1e-4)


def test_batch_norm_relu_keeps_nan():
    x = np.array([[np.nan, 1.0], [2.0, -1.0]], np.float32)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    tensors = [ndl.Tensor(v, device="cpu") for v in (x, one, zero)]
    out = executor.apply(BatchNormReLU.of(1e-5), *tensors)[0].numpy()
    assert np.isnan(out[:, 0]).all()
    np.testing.assert_allclose(out[:, 1], [1.0, 0.0], atol=1e-4)

"""Initialisers: values against NumPy's stream in the documented order, bounds, and errors."""

import math

import numpy as np
import pytest

import needle as ndl
from needle import init
from needle.errors import DtypeError, IndexRangeError, OptionError


def float32(values):
    return np.asarray(values).astype(np.float32)


def test_rand_draws_numpys_stream_in_c_order_then_scales_in_float32():
    np.random.seed(7)
    expected = float32(np.random.rand(3, 4)) * np.float32(5.0) + np.float32(-2.0)
    np.random.seed(7)
    out = init.rand(3, 4, low=-2.0, high=3.0)
    np.testing.assert_array_equal(out.numpy(), expected)
    assert out.dtype == "float32" and not out.requires_grad


def test_randn_draws_numpys_stream():
    np.random.seed(7)
    expected = float32(np.random.randn(2, 5)) * np.float32(0.5) + np.float32(1.0)
    np.random.seed(7)
    np.testing.assert_array_equal(init.randn(2, 5, mean=1.0, std=0.5).numpy(), expected)


def test_numpy_dialect_scales_in_float64_before_the_cast():
    np.random.seed(7)
    expected = float32(np.random.rand(50) * 0.3 - 0.1)
    with ndl.config(backend="np"):
        np.random.seed(7)
        out = init.rand(50, low=-0.1, high=0.2)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
        assert out.dtype == "float32"
        assert init.rand(2, dtype="float64").dtype == "float64"


def test_calls_consume_the_stream_one_after_the_other():
    np.random.seed(3)
    expected = np.random.rand(5), np.random.randn(4)
    np.random.seed(3)
    np.testing.assert_allclose(init.rand(5).numpy(), expected[0], rtol=1e-6)
    np.testing.assert_allclose(init.randn(4).numpy(), expected[1], rtol=1e-6)


def test_randb_is_true_where_a_draw_is_at_most_p():
    np.random.seed(1)
    expected = np.random.rand(100) <= 0.3
    np.random.seed(1)
    out = init.randb(100, p=0.3)
    assert out.dtype == "bool"
    np.testing.assert_array_equal(out.numpy(), expected)
    assert init.randb(3, dtype="float32").dtype == "float32"
    assert init.randb(20, p=1.0).numpy().all()


def test_key_and_manual_seed_leave_numpys_stream_alone():
    np.random.seed(5)
    before = np.random.get_state()[2]
    first, again, other = (init.randn(9, key=key).numpy() for key in (11, 11, 12))
    ndl.manual_seed(11)
    seeded = init.randn(9).numpy()
    assert np.random.get_state()[2] == before
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, seeded)
    assert (first != other).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: init.rand(3, low=math.nan),
        lambda: init.rand(3, high=1e39),
        lambda: init.rand(3, high=7e4, dtype="float16"),
        lambda: init.randn(3, std=-1.0),
        lambda: init.randn(3, std=math.nan),
        lambda: init.randb(3, p=2.0),
        lambda: init.randb(3, p=math.nan),
        lambda: init.xavier_uniform(3, 3, gain=math.nan),
    ],
)
def test_ranges_that_are_none_are_refused_before_anything_is_drawn(make):
    before = np.random.get_state()[2]
    with pytest.raises(OptionError, match=r"rand\w?: "):
        make()
    assert np.random.get_state()[2] == before


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize(
    "make", [init.rand, init.randn, lambda n, dtype: init.kaiming_uniform(n, n, dtype=dtype)]
)
def test_random_values_are_floating(make, dtype):
    with pytest.raises(DtypeError, match=rf"randn?: dtype is {dtype}"):
        make(3, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("low, high", [(0.0, 1.0), (1.0, 2.0), (-3.0, -1.1), (0.5, 0.5)])
def test_rand_stays_below_high(monkeypatch, dtype, low, high):
    """Also the largest draw, which rounds up to it."""
    draws = ndl.NDArray(np.array([0.0, 0.5, 1 - 2.0**-24], np.float32))
    monkeypatch.setattr(init.basic.random, "rand", lambda *_: draws)
    first, middle, last = init.rand(3, low=low, high=high, dtype=dtype).astype("float64").tolist()
    assert first <= middle <= last and (last < high or low == high)
    assert middle == pytest.approx((low + high) / 2, rel=1e-2)
    assert last == pytest.approx(high, rel=1e-2)


def test_constants():
    np.testing.assert_array_equal(init.constant(2, 3, c=2.5).numpy(), np.full((2, 3), 2.5))
    np.testing.assert_array_equal(init.ones(2, dtype="int32").numpy(), np.ones(2, np.int32))
    assert init.zeros((2, 3)).shape == (2, 3)
    assert init.zeros().shape == ()
    assert init.ones(2, requires_grad=True).requires_grad
    assert ndl.zeros is init.zeros and ndl.ones_like is init.ones_like


def test_like_takes_shape_dtype_and_device():
    x = ndl.Tensor(np.zeros((2, 3)), dtype="float64", device="cpu_numpy")
    out = init.ones_like(x)
    assert (out.shape, out.dtype, out.device) == ((2, 3), "float64", ndl.cpu_numpy())
    assert init.zeros_like(x, device=ndl.default_device()).device == ndl.default_device()


def test_initialisers_compute_at_once_and_outside_any_graph():
    with ndl.lazy_mode():
        out = init.rand(3, requires_grad=True)
        assert out.array is not None and out.is_leaf()


@pytest.mark.parametrize(
    "make, draw, scale",
    [
        (init.xavier_uniform, "rand", 1.5 * math.sqrt(6 / 7)),
        (init.xavier_normal, "randn", 1.5 * math.sqrt(2 / 7)),
    ],
)
def test_xavier(make, draw, scale):
    np.random.seed(42)
    values = getattr(np.random, draw)(3, 4)
    expected = (2 * values - 1) * scale if draw == "rand" else values * scale
    np.random.seed(42)
    np.testing.assert_allclose(make(3, 4, gain=1.5).numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make, draw, scale",
    [
        (init.kaiming_uniform, "rand", math.sqrt(6 / 3)),
        (init.kaiming_normal, "randn", math.sqrt(2 / 3)),
    ],
)
def test_kaiming(make, draw, scale):
    np.random.seed(42)
    values = getattr(np.random, draw)(3, 4)
    expected = (2 * values - 1) * scale if draw == "rand" else values * scale
    np.random.seed(42)
    np.testing.assert_allclose(make(3, 4).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_shape_replaces_the_fans_but_not_the_scale():
    out = init.kaiming_uniform(8, 2, shape=(500, 3)).numpy()
    assert out.shape == (500, 3)
    assert 0.8 * math.sqrt(6 / 8) < np.abs(out).max() <= math.sqrt(6 / 8)


def test_kaiming_unknown_nonlinearity_names_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'relu'"):
        init.kaiming_uniform(3, 4, nonlinearity="rellu")


def test_one_hot():
    i = ndl.Tensor([[0.0, 2.0], [1.0, 1.0]])
    out = init.one_hot(3, i)
    np.testing.assert_array_equal(out.numpy(), np.eye(3)[[[0, 2], [1, 1]]])
    assert out.dtype == "float32"
    assert init.one_hot(3, ndl.Tensor(np.zeros((0,), np.int64))).shape == (0, 3)


@pytest.mark.parametrize("bad", [3, -1])
def test_one_hot_refuses_what_is_no_class(bad):
    with pytest.raises(IndexRangeError, match=str(bad)):
        init.one_hot(3, ndl.Tensor(np.array([0, bad])))


@pytest.mark.parametrize("shape", [(0, 2**70), (2**63, 0), (2**40, 2**40)])
@pytest.mark.parametrize(
    "make", [ndl.zeros, ndl.empty, ndl.uniform, ndl.normal, lambda s: ndl.randint(s, 0, 2)]
)
def test_sizes_have_63_bits_even_beside_none(make, shape):
    with pytest.raises(ndl.errors.ShapeError, match="63 bits"):
        make(shape)

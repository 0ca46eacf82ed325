"""Initialisers: values against NumPy's stream in the documented order, bounds, and errors."""

import math
import statistics

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import init
from needle.errors import DtypeError, IndexRangeError, OptionError, ShapeError


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


@looped(
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


@looped("dtype", ["int8", "uint8", "int64", "bool"])
@looped(
    "make",
    [
        init.rand, init.randn, lambda n, dtype: init.kaiming_uniform(n, n, dtype=dtype),
        lambda n, dtype: init.trunc_normal(n, dtype=dtype),
    ],
)  # fmt: skip
def test_random_values_are_floating(make, dtype):
    with pytest.raises(DtypeError, match=rf"(randn?|trunc_normal): .* got {dtype}"):
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


def test_random_ones_like():
    x = ndl.Tensor(np.zeros((2, 3)), dtype="float64", device="cpu_numpy")
    for like, make in ((init.rand_like, init.rand), (init.randn_like, init.randn)):
        out = like(x, key=3)
        assert (out.shape, out.dtype, out.device) == ((2, 3), "float64", ndl.cpu_numpy())
        np.testing.assert_array_equal(
            out.numpy(), make(2, 3, key=3, dtype="float64", device="cpu_numpy").numpy()
        )
        assert like(x, dtype="float16", requires_grad=True).requires_grad
    assert ndl.randn_like is init.randn_like and ndl.rand_like(ndl.Tensor(1.0)).shape == ()
    with pytest.raises(DtypeError, match="rand: .* got int32"):
        init.rand_like(ndl.zeros(2, dtype="int32"))


def test_initialisers_compute_at_once_and_outside_any_graph():
    with ndl.lazy_mode():
        out = init.rand(3, requires_grad=True)
        assert out.array is not None and out.is_leaf()


@looped(
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


@looped(
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


LIMITS = [
    (0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -2.0, 2.0), (3.0, 1.0, -1.0, 1.0), (-9.0, 1.0, -1.0, 1.0),
    (0.0, 1.0, 6.0, 7.0), (1.0, 2.0, -math.inf, 0.5),
]  # fmt: skip


@pytest.mark.parametrize("mean, std, low, high", LIMITS)
def test_trunc_normal_takes_the_quantile_of_each_draw(monkeypatch, mean, std, low, high):
    draws = np.linspace(0, 1 - 2.0**-24, 999, dtype=np.float32)
    monkeypatch.setattr(init.truncated.random, "rand", lambda *_: ndl.NDArray(draws))
    found = init.trunc_normal(999, mean=mean, std=std, low=low, high=high, dtype="float64").numpy()
    mirrored = low > mean  # so that what is subtracted from what is not 1
    unit = statistics.NormalDist()
    left, right = (-high, -low) if mirrored else (low, high)
    middle = -mean if mirrored else mean
    ends = [0.5 * math.erfc((middle - end) / std / math.sqrt(2)) for end in (left, right)]
    shares = ends[0] + (ends[1] - ends[0]) * (draws.astype(np.float64) + 2.0**-25)
    exact = [middle + std * unit.inv_cdf(p) for p in shares.tolist()]
    exact = np.clip(np.negative(exact) if mirrored else exact, low, high)
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:mean is more than 2 std")
@looped("mean, std, low, high", LIMITS[:4])
def test_trunc_normal_is_distributed_as_pytorchs(mean, std, low, high):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.empty(40_000).double()
    torch.nn.init.trunc_normal_(theirs, mean, std, low, high)
    ours = init.trunc_normal(200, 200, mean=mean, std=std, low=low, high=high, key=1).numpy()
    both = np.sort([ours.ravel(), theirs.numpy()], axis=1)
    joint = np.sort(both.ravel())  # the largest distance of the two distribution functions
    ranks = [np.searchsorted(row, joint, "right") / row.size for row in both]
    assert np.abs(ranks[0] - ranks[1]).max() < 1.95 * math.sqrt(2 / 40_000)  # at 0.1 %


@looped("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_trunc_normal_stays_within_its_limits(dtype):
    out = init.trunc_normal(20_000, std=3.0, low=-0.5, high=0.25, dtype=dtype, key=3)
    x = out.numpy().astype(np.float64)
    assert out.dtype == dtype and x.min() >= -0.5 and x.max() <= 0.25
    assert init.trunc_normal(2, 0, dtype=dtype).shape == (2, 0)
    assert init.trunc_normal(dtype=dtype, requires_grad=True).requires_grad


def test_trunc_normal_takes_one_uniform_draw_each():
    np.random.seed(5)
    init.trunc_normal(3, 4)
    after = np.random.rand()
    np.random.seed(5)
    np.random.rand(3, 4)
    assert after == np.random.rand()


@looped(
    "limits, message",
    [
        ({"std": 0.0}, "std=0.0"), ({"std": -1.0}, "std=-1.0"), ({"std": math.nan}, "std=nan"),
        ({"low": 1.0, "high": 1.0}, "low < high"), ({"low": math.nan}, "low=nan"),
        ({"low": 50.0, "high": 60.0}, "between 50 and 60 standard deviations"),
        ({"mean": math.nan}, "standard deviations"),
    ],
)  # fmt: skip
def test_trunc_normal_refuses_what_leaves_nothing_to_draw(limits, message):
    before = np.random.get_state()[2]
    with pytest.raises(OptionError, match=f"trunc_normal: .*{message}|{message}"):
        init.trunc_normal(3, **limits)
    assert np.random.get_state()[2] == before


@looped("shape", [(3, 5), (5, 3), (4, 4), (4, 2, 3), (2, 3, 2, 2), (0, 3), (1, 1)])
def test_orthogonal_is_the_q_of_a_normal_matrix_with_a_positive_diagonal_of_r(shape):
    rows, columns = shape[0], int(np.prod(shape[1:]))
    np.random.seed(2)
    normal = np.random.randn(max(rows, columns), min(rows, columns))
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diagonal(r)) * 1.5
    np.random.seed(2)
    out = init.orthogonal(*shape, gain=1.5)
    expected = (q if rows >= columns else q.T).reshape(shape)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert out.is_leaf() and init.orthogonal(shape, dtype="bfloat16").dtype == "bfloat16"


def test_orthogonal_wants_a_matrix():
    with pytest.raises(ShapeError, match=r"orthogonal: .* got shape \(3,\)"):
        init.orthogonal(3)
    with pytest.raises(DtypeError, match="orthogonal: .* got int32"):
        init.orthogonal(3, 3, dtype="int32")


def test_one_hot():
    i = ndl.Tensor([[0.0, 2.0], [1.0, 1.0]])
    out = init.one_hot(3, i)
    np.testing.assert_array_equal(out.numpy(), np.eye(3)[[[0, 2], [1, 1]]])
    assert out.dtype == "float32"
    assert init.one_hot(3, ndl.Tensor(np.zeros((0,), np.int64))).shape == (0, 3)


@looped("bad", [3, -1])
def test_one_hot_refuses_what_is_no_class(bad):
    with pytest.raises(IndexRangeError, match=str(bad)):
        init.one_hot(3, ndl.Tensor(np.array([0, bad])))


@looped("shape", [(0, 2**70), (2**63, 0), (2**40, 2**40)])
@looped("make", [ndl.zeros, ndl.empty, ndl.uniform, ndl.normal, lambda s: ndl.randint(s, 0, 2)])
def test_sizes_have_63_bits_even_beside_none(make, shape):
    with pytest.raises(ndl.errors.ShapeError, match="2..63"):
        make(shape)

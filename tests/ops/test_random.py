"""Random numbers: which stream governs, and that every device draws the same."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from devices import DEVICES
from looped import looped

import needle as ndl
from needle import ops
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.errors import ArgumentError, DtypeError, OptionError, ShapeError
from needle.ops import random
from needle.ops.core import op as op_module
from needle.ops.random import sampling
from needle.testing import assert_close

DRAWS = {
    "uniform": lambda **kw: sampling.uniform((50, 2), -1.0, 3.0, **kw),
    "normal": lambda **kw: sampling.normal((50, 2), 5.0, 2.0, **kw),
    "bernoulli": lambda **kw: sampling.bernoulli((50, 2), 0.25, **kw),
    "randint": lambda **kw: sampling.randint((50, 2), -3, 9, **kw),
    "permutation": lambda **kw: sampling.permutation(100, **kw),
    "dropout": lambda **kw: sampling.dropout(ndl.Tensor(np.ones((50, 2))), 0.25, **kw),
}


def test_philox_known_answer(device):
    """Counter 0, key 0, of the paper's reference implementation."""
    bits = kernels.random_bits((4,), 0, 0, ndl.int32, device).numpy().view(np.uint32)
    assert [f"{word:08x}" for word in bits] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@looped("key", [0, 1, 2**63 + 5])
def test_bits_are_the_same_on_every_device(key):
    for shape, counter in (((7,), 0), ((3, 5), 2**40), ((0,), 3)):
        drawn = [kernels.random_bits(shape, key, counter, ndl.int64, d).numpy() for d in DEVICES]
        for other in drawn[1:]:
            np.testing.assert_array_equal(other, drawn[0])


def test_counters_continue():
    whole = kernels.random_bits((16,), 9, 0, ndl.int32, "cpu_numpy").numpy()
    rest = kernels.random_bits((8,), 9, 2, ndl.int32, "cpu_numpy").numpy()
    np.testing.assert_array_equal(whole[8:], rest)


@looped("name", DRAWS)
def test_numpys_stream_governs_until_needles_is_seeded(name):
    draw = DRAWS[name]
    np.random.seed(4)
    first = draw().numpy()
    np.random.seed(4)
    np.testing.assert_array_equal(draw().numpy(), first)
    ndl.manual_seed(4)
    own = draw().numpy()
    state = np.random.get_state()[1]
    again = draw().numpy()
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert not np.array_equal(own, first) and not np.array_equal(own, again)
    ndl.manual_seed(4)
    np.testing.assert_array_equal(draw().numpy(), own)


@looped("name", DRAWS)
def test_a_key_governs_one_draw(name):
    draw = DRAWS[name]
    np.random.seed(4)
    expected = np.random.rand()
    np.random.seed(4)
    first = draw(key=11).numpy()
    assert np.random.rand() == expected
    np.testing.assert_array_equal(draw(key=11).numpy(), first)
    assert not np.array_equal(draw(key=12).numpy(), first)


@looped("name", sorted(set(DRAWS) - {"dropout"}))
def test_devices_draw_the_same(name):
    drawn = [DRAWS[name](key=3, device=d) for d in DEVICES]
    for x, device in zip(drawn, DEVICES, strict=True):
        assert x.device == device and not x.requires_grad
        assert_close(x.numpy(), drawn[0].numpy().astype("float64"), "float32")


@looped("first", DRAWS)
def test_lazy_draws_wait_and_keep_the_order_of_the_calls(first):
    ndl.manual_seed(4)
    expected = [DRAWS[name]().numpy() for name in (first, "normal")]
    ndl.manual_seed(4)
    with ndl.lazy_mode():
        drawn = [DRAWS[name]() for name in (first, "normal")]
        assert all(x.array is None for x in drawn)
        found = [x.numpy() for x in reversed(drawn)]
    np.testing.assert_array_equal(found[1], expected[0])
    np.testing.assert_array_equal(found[0], expected[1])


def test_a_gradient_sees_the_mask_that_waits():
    ndl.manual_seed(4)
    x = ndl.Tensor(np.ones(100), requires_grad=True)
    with ndl.lazy_mode():
        out = sampling.dropout(x, 0.5)
        sampling.uniform((3,))
        out.sum().backward()
        assert set(x.grad.tolist()) == {0.0, 2.0}
        np.testing.assert_array_equal(x.grad.numpy(), out.numpy())


def test_draws_are_not_interned():
    before = len(op_module._interned)
    ndl.manual_seed(4)
    for _ in range(50):
        sampling.uniform((3,))
    assert len(op_module._interned) - before < 10


def test_a_refused_draw_leaves_the_generator_alone():
    ndl.manual_seed(4)
    state = random.get_state()
    with pytest.raises(ShapeError):
        sampling.permutation(-1)
    with pytest.raises(OptionError):
        sampling.randint((3,), 0, 2**31 + 1)
    assert random.get_state() == state


def test_ranges_and_moments():
    u = sampling.uniform((20_000,), -1.0, 3.0, key=1).numpy()
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.05
    n = sampling.normal((20_001,), 5.0, 2.0, key=1).numpy()
    assert abs(n.mean() - 5) < 0.06 and abs(n.std() - 2) < 0.05
    i = sampling.randint((20_000,), -3, 9, key=1)
    assert i.dtype == "int64" and set(i.numpy().tolist()) == set(range(-3, 9))
    p = sampling.permutation(1000, key=1).numpy()
    assert sorted(p.tolist()) == list(range(1000))
    b = sampling.bernoulli((20_000,), 0.25, key=1)
    assert b.dtype == "bool" and abs(b.numpy().mean() - 0.25) < 0.02


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (100.0, 101.0), (3.0, 3.001), (-1.0, 0.0)])
def test_no_uniform_number_is_the_bound_above(bounds, dtype, device, monkeypatch):
    """The largest number that is drawn, scaled and rounded, stays below."""
    low, high = bounds

    def draw(*_):
        return array([0.0, 1.0 - 2.0**-24], "float32", device)

    for stream in (None, 1):
        ndl.manual_seed(stream)
        if stream is None:
            monkeypatch.setattr(sampling.numpy_stream, "floats", draw)
        else:
            monkeypatch.setattr(random, "uniform", draw)
        drawn = sampling.uniform((2,), low, high, dtype=dtype, device=device).numpy()
        first, last = drawn.astype("float64")
        assert first == np.array(low).astype(drawn.dtype) and first <= last < high
    ndl.manual_seed(None)


def test_numpys_stream_stays_below_1_in_float32():
    """Words of ones: the largest float64 below 1, which float32 rounds to 1."""
    state = np.random.get_state()
    ones = 0xFFFFFFFF
    word = ones ^ (ones >> 18)  # what tempering turns into ones, undone step by step
    word ^= (word << 15) & 0xEFC60000
    y = word
    for _ in range(5):
        y = word ^ ((y << 7) & 0x9D2C5680)
    word = y & ones
    word ^= (word >> 11) ^ (word >> 22)
    np.random.set_state((state[0], np.full(624, word, np.uint32), 0))
    assert np.float32(np.random.rand()) == 1.0
    for count in (2, 60):
        assert sampling.uniform((count,)).numpy().max() == 1.0 - 2.0**-24
    assert random.rand((2,)).numpy().max() < 1.0


def test_dtypes_and_devices(device):
    x = sampling.uniform((3,), dtype="float64", device=device, key=1)
    assert x.dtype == "float64" and x.device == device
    assert sampling.bernoulli((3,), dtype="float32", device=device).dtype == "float32"
    assert sampling.normal(5, device=device).shape == (5,)


def test_dropout():
    x = ndl.Tensor(np.ones((100, 100)))
    out = sampling.dropout(x, 0.25, key=1)
    kept = out.numpy() != 0
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(out.numpy()[kept], 1 / 0.75, rtol=1e-6)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.numpy())
    assert sampling.dropout(x, 0.5, training=False) is x
    assert not sampling.dropout(x, 1.0).numpy().any() and sampling.dropout(x, 0.0).numpy().all()


WRONG = {
    "dropout": (lambda: sampling.dropout(ndl.Tensor([1.0]), 1.5), OptionError, "p=1.5"),
    "bernoulli": (lambda: sampling.bernoulli((2,), 1.5), OptionError, "bernoulli: p=1.5"),
    "bernoulli of NaN": (lambda: sampling.bernoulli((2,), np.nan), OptionError, "p=nan"),
    "normal": (lambda: sampling.normal((2,), 0, -1), OptionError, "normal: std=-1"),
    "normal, whole": (lambda: sampling.normal(2, dtype="int32"), DtypeError, "dtype is int32"),
    "uniform": (lambda: sampling.uniform((2,), 2, 1), OptionError, r"the range \[2, 1\)"),
    "uniform, too wide": (
        lambda: sampling.uniform((2,), -3e38, 3e38), OptionError, r"\[-3e\+38, 3e\+38\) in float32",
    ),
    "uniform in float16": (
        lambda: sampling.uniform((2,), 0, 1e6, dtype="float16"), OptionError, "in float16",
    ),
    "uniform, endless": (lambda: sampling.uniform((2,), 0, np.inf), OptionError, "are finite"),
    "uniform, whole": (lambda: sampling.uniform(2, dtype="int8"), DtypeError, "dtype is int8"),
    "uniform, size": (lambda: sampling.uniform((3, -1)), ShapeError, r"uniform: shape \(3, -1\)"),
    "permutation": (lambda: sampling.permutation(-1), ShapeError, r"permutation: shape \(-1,\)"),
    "permutation of half": (lambda: sampling.permutation(2.5), ArgumentError, "size is 2.5"),
    "randint of none": (lambda: sampling.randint((2,), 3, 3), OptionError, "no integer in .3, 3"),
    "randint from half": (lambda: sampling.randint((2,), 0.5, 3), ArgumentError, "low is 0.5"),
    "normal, order": (lambda: sampling.normal(0, 1), ArgumentError, "the shape comes first"),
    "normal, NumPy's": (lambda: sampling.normal(0, 1, 5), ArgumentError, "first; got 0"),
    "normal of 10": (lambda: sampling.normal(10, 2.0), ArgumentError, "first; got 10"),
    "normal of 0.0": (lambda: sampling.normal(0.0, 1.0), ArgumentError, "first; got 0.0"),
    "uniform, order": (lambda: sampling.uniform(0, 1), ArgumentError, "the shape comes first"),
    "randint, NumPy's": (lambda: sampling.randint(0, 5, 9), ArgumentError, "shape comes first"),
    "randint, high": (lambda: sampling.randint((2,), 5, (2,)), ArgumentError, r"high is \(2,\)"),
    "randint, small": (
        lambda: sampling.randint((2,), 0, 300, dtype="uint8"), DtypeError, "do not fit into uint8",
    ),
    "randint, below": (lambda: sampling.randint([2], -1, 2, dtype="bool"), DtypeError, "into bool"),
}  # fmt: skip


@looped("seed", [None, 3])
@looped("name", WRONG)
def test_wrong_arguments(name, seed):
    ndl.manual_seed(seed)
    call, kind, text = WRONG[name]
    state = str(random.get_state())
    with pytest.raises(kind, match=text):
        call()
    assert str(random.get_state()) == state


def test_arguments_at_their_ends():
    assert set(sampling.randint((99,), 0, 256, dtype="uint8").numpy()) <= set(range(256))
    assert sampling.randint((9,), 0, 2, dtype="bool").dtype == "bool"
    assert sampling.randint((2, 3), 0, 3.0).shape == (2, 3)
    assert (
        sampling.randint(3, low=0, high=2).shape == sampling.normal(3, mean=1, std=2).shape == (3,)
    )
    assert not sampling.normal((3,), std=0).numpy().any()
    assert sampling.uniform((2,), 1, 1).tolist() == [1.0, 1.0]
    assert sampling.bernoulli((3,), 1).numpy().all() and sampling.permutation(0).shape == (0,)
    assert (ndl.init.rand(5, low=2.0, high=1.0).numpy() > 1).all()  # the course's affine map


def test_states_can_be_kept():
    for seed in (None, 7):
        ndl.manual_seed(seed)
        state = random.get_state()
        first = sampling.uniform((5,)).numpy()
        random.set_state(state)
        np.testing.assert_array_equal(sampling.uniform((5,)).numpy(), first)


def test_draws_on_the_host():
    ndl.manual_seed(3)
    values = [random.host_uniform() for _ in range(200)]
    assert min(values) >= 0 and max(values) < 1 and 0.4 < np.mean(values) < 0.6
    assert sorted(random.host_permutation(10).tolist()) == list(range(10))
    drawn = random.host_integers(-2, 3, 200)
    assert set(drawn.tolist()) == {-2, -1, 0, 1, 2}


def test_ops_has_them():
    assert inspect.unwrap(ops.dropout) is sampling.dropout


NUMPYS = {
    "uniform": (lambda n: np.random.rand(n).astype("f"), lambda n: ops.uniform((n,))),
    "normal": (lambda n: np.random.randn(n).astype("f"), lambda n: ops.normal((n,))),
    "randint": (lambda n: np.random.randint(-3, 97, n), lambda n: ops.randint((n,), -3, 97)),
    "one number": (lambda n: np.random.randint(5, 6, n), lambda n: ops.randint((n,), 5, 6)),
    "wide": (lambda n: np.random.randint(0, 2**31, n), lambda n: ops.randint((n,), 0, 2**31)),
    "permutation": (np.random.permutation, ops.permutation),
}


@looped("name", NUMPYS)
@looped("n", [0, 1, 2, 7, 16, 17, 18, 624, 5001, 70_003])
def test_kernels_draw_what_numpy_draws_and_its_stream_goes_on(name, n):
    theirs, ours = NUMPYS[name]
    for before in range(3):  # an odd number of normal ones leaves one for later
        found = []
        for draw in (theirs, lambda n: ours(n).numpy()):
            np.random.seed(n + before)
            np.random.randn(before)
            found.append((draw(n), *np.random.get_state()[1:]))
        for x, y in zip(*found, strict=True):
            np.testing.assert_array_equal(x, y)
        assert found[0][0].dtype == found[1][0].dtype


@looped("kind", [np.random.PCG64, np.random.MT19937])
@looped("name", NUMPYS)
def test_another_generator_of_numpys_stream_draws_itself(kind, name):
    theirs, ours = NUMPYS[name]
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(kind(3))
        found = ours(99).numpy()
        np.random.set_bit_generator(kind(3))
        np.testing.assert_array_equal(found, theirs(99))
    finally:
        np.random.set_bit_generator(before)


@looped("replacement", [False, True])
def test_multinomial_draws_in_proportion(replacement):
    ndl.manual_seed(0)
    weights = ndl.broadcast_to(ndl.Tensor([1.0, 0.0, 2.0, 7.0]), (5000, 4))
    drawn = ndl.multinomial(weights, 2, replacement)
    assert drawn.shape == (5000, 2) and drawn.dtype == "int64" and not drawn.requires_grad
    first, second = drawn.numpy().T
    shares = np.bincount(first, minlength=4) / 5000
    np.testing.assert_allclose(shares, [0.1, 0.0, 0.2, 0.7], atol=0.02)
    assert 1 not in second and (first == second).any() == replacement
    assert ndl.multinomial(ndl.Tensor([0, 3, 0])).tolist() == [1]


def test_multinomial_follows_its_key_and_says_what_is_wrong():
    weights = ndl.Tensor([1.0, 2.0])
    assert ndl.multinomial(weights, 9, True, key=3).tolist() == (
        ndl.multinomial(weights, 9, True, key=3).tolist()
    )
    huge = ndl.multinomial(ndl.Tensor([3e38, 3e38]), 2000, True, key=3)
    assert abs(huge.numpy().mean() - 0.5) < 0.05
    with pytest.raises(OptionError, match="multinomial: weights from -1.0 to 2.0"):
        ndl.multinomial(ndl.Tensor([-1.0, 2.0]))
    with pytest.raises(OptionError, match="multinomial: 3 of 2 positions"):
        ndl.multinomial(weights, 3)
    with pytest.raises(ShapeError, match="nothing to draw from"):
        ndl.multinomial(ndl.zeros(0))
    with pytest.raises(ShapeError, match="nothing to draw from"):
        ndl.multinomial(ndl.Tensor(1.0))


def test_integers_up_to_the_last_of_64_bits():
    top = 2**63
    for seed in (None, 0):
        if seed is not None:
            ndl.manual_seed(seed)
        found = ndl.randint((20,), top - 2, top).numpy()
        assert {*found.tolist()} <= {top - 2, top - 1}

"""Functions of numbers that PyTorch has too: special values, remainders, derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from beside_pytorch import A, B, assert_like, needs_torch, tensor
from looped import looped

import needle as ndl
from needle import ops

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


@looped("shrink", [ops.hardshrink, ops.softshrink, ops.tanhshrink])
def test_integers_shrink_to_floats(shrink):
    found = shrink(ndl.Tensor([-2, 0, 3], dtype="int64"))
    assert found.dtype == "float32"
    assert found.tolist() == shrink(ndl.Tensor([-2.0, 0.0, 3.0])).tolist()


def test_the_logit_where_there_is_none():
    x = tensor([0.0, 1.0, 2.0, -1.0])
    np.testing.assert_array_equal(ops.logit(x).numpy(), [-np.inf, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(ops.logit(x, 0.5).numpy(), [0.0] * 4)
    half = ndl.Tensor([0.999], dtype="bfloat16")
    assert ops.logit(half).dtype == "bfloat16" and x.logit().shape == (4,)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 5.0, -5.0, 1e-300, -1e-20, np.inf, -np.inf, np.nan]


@needs_torch
@looped(
    "name",
    [
        "fmod",
        "xlogy",
        "frac",
        "erfc",
        "erfinv",
        "heaviside",
        "lgamma",
        "digamma",
        "logaddexp2",
    ],
)
def test_functions_of_special_values_are_pytorchs(name, device):
    x, y = np.array(SPECIAL)[:, None], np.array([*SPECIAL, 2.5, -2.5])
    x = x[~np.isnan(x)][:, None] if name == "heaviside" else x  # NaN is NaN, as NumPy has it
    given = (x, y) if name in ("fmod", "xlogy", "heaviside", "logaddexp2") else (y,)
    found = getattr(ops, name)(*(tensor(v, device=device) for v in given)).numpy()
    expected = getattr(torch, name)(*map(torch.tensor, given)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-16 * (name == "logaddexp2"))
    if name in ("fmod", "erfinv"):
        numbers = ~np.isnan(found)
        np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@needs_torch
@looped("kind", ["int8", "uint8", "int32", "int64"])
def test_remainders_and_quotients_of_integers(kind):
    limits = np.iinfo(kind)
    x = np.array([limits.min, limits.min + 1, 0, 1, 7, limits.max], kind)[:, None]
    y = np.array([1, 2, 3, 5, limits.max, limits.min or 4], kind)
    y = np.concatenate([y, [-1, -2, -3, -limits.max]] if limits.min else [y]).astype(kind)
    a, b = ndl.Tensor(x, dtype=kind), ndl.Tensor(y, dtype=kind)
    found = ops.fmod(a, b)
    np.testing.assert_array_equal(found.numpy(), np.fmod(x, y), strict=True)
    keeps = ~((x == limits.min) & (y == -1)) | (limits.min == 0)  # else the quotient is none
    for mode in ("floor", "trunc"):
        expected = torch.div(*map(torch.tensor, (np.where(keeps, x, 0), y)), rounding_mode=mode)
        quotient = a.div(b, rounding_mode=mode)
        assert quotient.dtype == kind
        np.testing.assert_array_equal(quotient.numpy()[keeps], expected.numpy()[keeps])
    assert (a.fmod(0).numpy() == 0).all() and ops.fmod(5, b).dtype == kind
    assert ops.frac(a).tolist() == (0 * x).tolist()
    assert ops.heaviside(a, b).tolist() == np.where(x == 0, y, x > 0).tolist()
    for name in ("xlogy", "sinc", "erfc", "logcumsumexp"):
        more = {"xlogy": (b,), "logcumsumexp": (0,)}.get(name, ())
        assert getattr(ops, name)(a, *more).dtype == "float32"


@needs_torch
def test_quotients_are_rounded_as_asked_for():
    x, y = 3.0 * A, np.sign(B) * (abs(B) + 0.1)
    for mode in ("floor", "trunc", None):
        expected = torch.div(torch.tensor(x), torch.tensor(y), rounding_mode=mode).numpy()
        found = tensor(x).div(tensor(y), rounding_mode=mode)
        assert_like(found.numpy(), expected, rtol=1e-12)


def test_a_remainder_towards_zero_is_exact():
    assert ops.fmod(tensor([-1e-20]), 1.0).item() == -1e-20  # 1 - 1e-20 is 1
    assert math.copysign(1.0, ops.fmod(tensor([-4.0]), 2.0).item()) == -1.0


def test_a_remainder_that_is_none_leaves_its_gradient_alone():
    x, y = tensor([5.0, 5.0]), tensor([0.0, 3.0], requires_grad=False)
    ops.where(ops.equal(y, 0.0), 0.0, ops.fmod(x, y)).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_zero_times_a_logarithm_has_gradients():
    x, y = tensor([0.0, 0.0, 0.0, 0.0, 2.0]), tensor([0.0, 3.0, math.inf, -1.0, 0.5])
    out = ops.xlogy(x, y)
    out.sum().backward()
    np.testing.assert_allclose(out.numpy(), [0.0, 0.0, 0.0, 0.0, 2 * math.log(0.5)])
    np.testing.assert_allclose(x.grad.numpy(), [0.0, math.log(3.0), 0.0, 0.0, math.log(0.5)])
    np.testing.assert_allclose(y.grad.numpy(), [0.0, 0.0, 0.0, 0.0, 4.0])


def test_derivatives_of_sinc_at_and_near_0():
    x = tensor([0.0, 1e-9, 1e-5, 0.1, 0.159])
    slope = ndl.grad(lambda x: ops.sinc(x).sum())
    z = math.pi * x.numpy()
    series = -z / 3 + z**3 / 30 - z**5 / 840 + z**7 / 45360
    np.testing.assert_allclose(slope(x).numpy(), math.pi * series, rtol=1e-7)
    second = ndl.grad(lambda x: slope(x).sum())(x).numpy()
    assert second[0] == pytest.approx(-(math.pi**2) / 3, rel=1e-15)


def test_the_step_takes_its_middle_from_elsewhere():
    x, values = tensor([-2.0, 0.0, 3.0, math.nan]), tensor([5.0, 6.0, 7.0, 8.0])
    out = ops.heaviside(x, values)
    np.testing.assert_array_equal(out.numpy(), [0.0, 6.0, 1.0, math.nan])
    out.sum().backward()
    assert values.grad.tolist() == [0.0, 1.0, 0.0, 0.0] and not x.grad.numpy()[:3].any()
    assert ops.heaviside(x, 0.5).tolist()[:3] == [0.0, 0.5, 1.0]


@looped("kind", ["float16", "bfloat16", "float32"])
def test_running_logarithms_of_sums_neither_overflow_nor_vanish(kind):
    x = np.array([[-60.0, 1000.0, 1000.0, -60.0], [-math.inf, -math.inf, 4.0, math.inf]])
    found = ops.logcumsumexp(ndl.Tensor(x, dtype=kind), 1)
    exact = np.logaddexp.accumulate(x, 1)
    assert found.dtype == kind
    np.testing.assert_allclose(found.numpy().astype(float), exact, rtol=4e-3)
    ones = ops.logcumsumexp(ndl.zeros(3000, dtype=kind), 0)[-1].item()
    assert ones == pytest.approx(math.log(3000.0), rel=4e-3)
    assert ops.logcumsumexp(ndl.zeros(2, 0), 1).shape == (2, 0)

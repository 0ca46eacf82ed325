"""Functions made of others that PyTorch has too: values, gradients of both orders, errors."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    IndexRangeError,
    OptionError,
    ShapeError,
)
from needle.testing import check_gradients

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None
SPECIAL = getattr(torch, "special", None)

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
RNG = np.random.default_rng(5)

A, B, C = (RNG.normal(size=(6, 5)) for _ in range(3))
ROWS = RNG.normal(size=(2, 4, 5))
IMAGES = RNG.normal(size=(2, 8, 6, 4))
ODD = RNG.normal(size=(2, 2, 7, 6))
VOLUMES = RNG.normal(size=(2, 2, 4, 3, 5))
SHARES, VARIANCES = RNG.uniform(0.05, 0.95, (3, 4)), RNG.uniform(0.3, 2.0, (6, 1))
SIGNS, ROW_SIGNS = np.sign(B), np.sign(B[:, 0])
COUNTS = RNG.poisson(2.0, (6, 5)).astype(float)
LOGS = np.log(RNG.dirichlet(np.ones(5), 6))
PLACES = np.array([[0, 3, 1], [4, 2, 0]])


OTHERS = [d for d in ndl.all_devices() if d.enabled() and d != ndl.default_device()]


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


def both(name, *args, of=(torch, ops), **renamed):
    """Return calls of the functions of a name here and there, and what they are given.

    ``renamed`` are arguments by name: a value for both, or (PyTorch's name, value).
    """
    here = {k: v[1] if isinstance(v, tuple) else v for k, v in renamed.items()}
    there = {v[0] if isinstance(v, tuple) else k: here[k] for k, v in renamed.items()}

    def numbers(x, make):
        return make(x) if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else x

    def ours(*xs):
        given = [numbers(x, partial(ndl.Tensor, device=xs[0].device)) for x in args]
        return getattr(of[1], name)(*xs, *given, **here)

    def theirs(*xs):
        given = [numbers(x, torch.tensor) for x in args]
        return getattr(of[0], name)(*xs, *given, **there)

    return ours, theirs


def losses(name, **more):
    return [both(name, of=(F, ops), reduction=how, **more) for how in ("mean", "sum", "none")]


def targets(target, calls):
    """Return calls of losses that are given a target behind the first inputs."""
    return [
        (
            lambda *xs, f=ours: f(*xs, tensor(target, requires_grad=False, device=xs[0].device)),
            lambda *xs, f=theirs: f(*xs, torch.tensor(target)),
        )
        for ours, theirs in calls
    ]


class Typed:
    """PyTorch's functions of a dtype: its name is none there."""

    def __getattr__(self, name):
        return lambda *args, dtype: getattr(torch, name)(*args, dtype=getattr(torch, dtype))


CASES = {
    "cdist": [([both("cdist", p) for p in (0.5, 1, 1.5, 2, 3, math.inf)], (A, B[:3]))],
    "cdist of batches": [([both("cdist")], (ROWS, A))],
    "pairwise_distance": [
        ([both("pairwise_distance", of=(F, ops))], (A, B)),
        ([both("pairwise_distance", p=3.0, keepdims=("keepdim", True), of=(F, ops))], (A, B[:1])),
    ],
    "logit": [([both("logit"), both("logit", 0.2)], (SHARES,))],
    "cov": [
        ([both("cov"), both("cov", correction=0)], (A,)), ([both("cov")], (A[0],)),
    ],
    "corrcoef": [([both("corrcoef")], (A,))],
    "rot90": [
        ([both("rot90", k) for k in range(-3, 6)] + [both("rot90", 1, (-1, 0))], (ROWS,)),
    ],
    "diag_embed": [
        ([both("diag_embed", k, *axes) for k in (-2, 0, 1) for axes in ((), (0, 2), (-1, 1))],
         (ROWS,)),
    ],
    "kthvalue": [
        ([(lambda x, f=f: f(x)[0], lambda x, g=g: g(x)[0]) for f, g in
          (both("kthvalue", k, *rest) for k, *rest in ((1,), (5, 1), (6, 0), (3, -1, True)))],
         (A,)),
    ],
    "addcmul": [([both("addcmul"), both("addcmul", value=0.3)], (A, B, C[:1]))],
    "addcdiv": [([both("addcdiv"), both("addcdiv", value=0.3)], (A, B, 3.0 + SIGNS))],
    "take_along_dim": [
        ([both("take_along_dim", PLACES, 0), both("take_along_dim", PLACES % 4)], (A[:, :3],)),
    ],
    "scatter": [
        ([(lambda x, v, a=a, i=i: ops.scatter(x, a, ndl.Tensor(i, device=x.device), v),
           lambda x, v, a=a, i=i: torch.scatter(x, a, torch.tensor(i), v[: len(i), : len(i[0])]))
          for a, i in ((1, PLACES), (0, PLACES.T), (-1, np.array([[2, 0, 4]])))], (A, B)),
    ],
    "scatter_reduce": [
        ([(lambda x, v, a=a, i=i, n=n, own=own: x.scatter_reduce(
              a, ndl.Tensor(i, device=x.device), v, n, include_self=own),
           lambda x, v, a=a, i=i, n=n, own=own: x.scatter_reduce(
              a, torch.tensor(i), v[: len(i), : len(i[0])], n, include_self=own))
          for a, i in ((1, PLACES % 3), (0, np.array([[2, 0, 2], [2, 0, 2]])))
          for n in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)], (A, B)),
    ],
    "remainders": [
        ([both("fmod")], (A, SIGNS + B / 9)), ([both("frac"), both("fmod", 0.7)], (3.0 * A,)),
    ],
    "xlogy": [([both("xlogy")], (A, SHARES[0, :1])), ([both("xlogy")], (A[:2], abs(B[:2]) + 0.3))],
    "sinc": [([both("sinc")], (np.concatenate([A, A / 20.0]),))],
    "error functions": [([both("erfc")], (2.0 * A,)), ([both("erfinv")], (np.tanh(A),))],
    "gamma": [
        ([both("lgamma"), both("digamma")], (x,)) for x in (abs(A) + 0.3, 0.4 * SHARES - 2.7)
    ] + [
        ([both("multigammaln", 3, of=(SPECIAL, ops))], (abs(A) + 1.1,)),
        ([(lambda x, n=n: ops.polygamma(n, x), lambda x, n=n: torch.polygamma(n, x))
          for n in (0, 1, 2, 4)], (abs(A) + 0.4,)),
    ],
    "Bessel": [([both(name, of=(SPECIAL, ops)) for name in ("i0", "i0e", "i1", "i1e")],
                (9.0 * A,))],
    "normal distribution": [([both(name, of=(SPECIAL, ops)) for name in
                              ("ndtr", "log_ndtr")], (3.0 * A,))],
    "logaddexp2": [([both("logaddexp2")], (A, B[:1]))],
    "logcumsumexp": [([both("logcumsumexp", axis) for axis in (0, -1)], (30.0 * A,))],
    "block_diag": [([both("block_diag")], (A[:2], A[3], B[0, 0], C))],
    "sums of a dtype": [
        ([both(name, *axis, dtype=("dtype", "float64"), of=(Typed(), ops))
          for name in ("sum", "mean", "prod", "cumsum", "cumprod", "softmax", "log_softmax")
          for axis in ((0,), (-1,))], (A,)),
    ],
    "quantile": [
        ([both("quantile", q, axis, interpolation=how) for q in (0.0, 0.3, 0.5, 1.0)
          for axis in (0, -1, None)
          for how in ("linear", "lower", "higher", "nearest", "midpoint")], (A,)),
    ],
    "diff": [
        ([(lambda x, y, z, n=n, a=a: ops.diff(x, n, a, y, z),
           lambda x, y, z, n=n, a=a: torch.diff(x, n, a, y, z)) for n in (1, 2)
          for a in (0, -2)], (A, B[:2], C[:1])),
    ],
    "nanmedian": [
        ([(lambda x, a=a: ops.nanmedian(x, a), lambda x, a=a: torch.nanmedian(x, a)[0])
          for a in (0, -1)], (A,)),
    ],
    "slices": [
        ([(lambda x, y, n=n: getattr(ops, n)(x, 1, ops.arange(3, -1, -3, device=x.device), y),
           lambda x, y, n=n: getattr(torch, n)(x, 1, torch.tensor([3, 0]), y))
          for n in ("index_add", "index_copy")], (A, B[:, :2])),
        ([(lambda x: ops.index_fill(x, 0, np.array([2, 0, 2]), 1.5),
           lambda x: torch.index_fill(x, 0, torch.tensor([2, 0, 2]), 1.5))], (A,)),
    ],
    "joining": [
        ([(lambda *xs, n=n: getattr(ops, n)(xs), lambda *xs, n=n: getattr(torch, n)(xs))
          for n in ("column_stack", "dstack")], arrays)
        for arrays in ((A, B), (A[0], B[0], C[0]), (np.array(2.0), np.array(3.0)))
    ],
    "axes": [
        ([both(f"atleast_{n}d") for n in (1, 2, 3)], (x,)) for x in (A[0, 0], A[0], A, ROWS)
    ],
    "activations": [
        ([both("celu", of=(F, ops)), both("celu", alpha=2.0, of=(F, ops)),
          both("hardshrink", of=(F, ops)), both("hardshrink", lambd=0.1, of=(F, ops)),
          both("softshrink", of=(F, ops)), both("softshrink", lambd=0.1, of=(F, ops)),
          both("tanhshrink", of=(F, ops)), both("threshold", 0.2, 3.0, of=(F, ops)),
          both("softmin", axis=("dim", 0), of=(F, ops)),
          both("softplus", 3.0, 0.2, of=(F, ops)), both("softplus", beta=0.5, of=(F, ops)),
          both("softplus", 100.0, of=(F, ops))], (A,)),
    ],
    "pixel_shuffle": [([both("pixel_shuffle", 2, of=(F, ops))], (x,)) for x in (IMAGES, IMAGES[0])],
    "pixel_unshuffle": [([both("pixel_unshuffle", 2, of=(F, ops))], (IMAGES,))],
    "unfold": [
        ([both("unfold", *how, of=(F, ops)) for how in
          (((2, 3),), (3, 2, (1, 2), 2), (2, 1, 1, (2, 3)), (1,))], (ODD,)),
    ],
    "fold": [
        ([both("fold", (7, 6), *how, of=(F, ops))], (RNG.normal(size=shape),))
        for shape, *how in (((2, 12, 24), (2, 3)), ((2, 18, 9), 3, 2, (1, 2), 2),
                            ((2, 8, 12), 2, 1, 1, (2, 3)))
    ],
    "adaptive_max_pool": [
        ([both("adaptive_max_pool2d", size, of=(F, ops))
          for size in (1, 3, (3, 4), (None, 5), (9, 4), (7, 1))], (ODD,)),
        ([both("adaptive_max_pool1d", size, of=(F, ops)) for size in (1, 3, 4, 8)], (ODD[0],)),
        ([both("adaptive_max_pool3d", size, of=(F, ops)) for size in (2, (3, None, 4))],
         (VOLUMES,)),
    ],
    "adaptive_avg_pool3d": [
        ([both("adaptive_avg_pool3d", size, of=(F, ops))
          for size in (1, 2, (2, 3, None), (3, 5, 4))], (VOLUMES,)),
    ],
    "cosine_embedding_loss": [
        (targets(ROW_SIGNS, losses("cosine_embedding_loss", margin=m)), (A, B)) for m in (0.0, 0.3)
    ],
    "hinge_embedding_loss": [(targets(SIGNS, losses("hinge_embedding_loss", margin=0.4)), (A,))],
    "margin_ranking_loss": [(targets(SIGNS, losses("margin_ranking_loss", margin=0.4)), (A, C))],
    "triplet_margin_loss": [
        (losses("triplet_margin_loss", margin=m, p=p, swap=swap), (A, B, C))
        for m, p, swap in ((1.0, 2.0, False), (0.5, 2.0, True), (1.0, 3.0, True))
    ],
    "bce": [
        ([(lambda x, y, how=how: ops.bce(x, y, reduction=how),
           lambda x, y, how=how: F.binary_cross_entropy(x, y, reduction=how))
          for how in ("mean", "sum", "none")], (SHARES, SHARES[::-1].copy())),
    ],
    "gaussian_nll_loss": [
        (losses("gaussian_nll_loss", full=full), (A, B, var))
        for full in (False, True)
        for var in (VARIANCES, VARIANCES[:, 0], VARIANCES + 0.0 * A, VARIANCES[:5].T)
    ],
    "poisson_nll_loss": [
        (targets(COUNTS, losses("poisson_nll_loss", full=full, log_input=log)), (abs(A) + 0.1,))
        for full in (False, True) for log in (False, True)
    ],
    "kl_div": [
        ([(lambda x, y: ops.kl_divergence(x, y, log_target=True),
           lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True))], (A, LOGS)),
    ],
}  # fmt: skip


def assert_like(found, expected, **tolerances):
    """Compare values, shapes and dtypes. (NumPy's ``strict`` came with NumPy 2.)"""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, **tolerances)


def compare(out, mine, theirs, arrays):
    """Compare a result, and its gradients, with PyTorch's."""
    other = [torch.tensor(x).requires_grad_() for x in arrays]
    expected = theirs(*other)
    assert_like(out.numpy(), expected.detach().numpy(), rtol=1e-7, atol=1e-12)
    weight = np.random.default_rng(1).normal(size=out.shape)
    (out * tensor(weight)).sum().backward()
    (expected * torch.tensor(weight)).sum().backward()
    for x, y in zip(mine, other, strict=False):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name):
    for calls, arrays in CASES[name]:
        for ours, theirs in calls:
            mine = [*map(tensor, arrays)]
            out = ours(*mine)
            if torch is not None:
                compare(out, mine, theirs, arrays)
            with ndl.lazy_mode():
                np.testing.assert_array_equal(ours(*mine).numpy(), out.numpy())
            for device in OTHERS:
                there = ours(*(tensor(x, device=device) for x in arrays))
                assert there.device == device
                np.testing.assert_allclose(there.numpy(), out.numpy(), rtol=1e-9, atol=1e-12)
        check_gradients(ours, *arrays, order=2)


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
def test_distances_of_float32_are_exact_where_differences_are(shift):
    x = (np.random.default_rng(0).normal(size=(40, 64)) + shift).astype("float32")
    y = x[::-1].copy()
    y[::2] += np.float32(1e-2)
    exact = np.linalg.norm(x[:, None].astype(float) - y[None].astype(float), axis=-1)
    a, b = ndl.Tensor(x), ndl.Tensor(y)
    found = ops.cdist(a, b)
    assert found.dtype == "float32" and (exact == 0).any()
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-6)
    found.sum().backward()
    apart = x[:, None].astype(float) - y[None].astype(float)
    slope = (apart / np.where(exact == 0, 1.0, exact)[..., None]).sum(1)
    np.testing.assert_allclose(a.grad.numpy(), slope, rtol=1e-4, atol=1e-5)
    second = ndl.hessian(lambda x: ops.cdist(x, b[:2]).sum())(ndl.Tensor(y[:1])).numpy()
    assert np.isfinite(second).all()


def test_a_point_at_infinity_is_no_matter_of_the_others():
    x = ndl.Tensor([[0.0, 1.0], [np.inf, 0.0], [3.0, 5.0]])
    found = ops.cdist(x, x).numpy()
    assert found[0, 2] == found[2, 0] == 5.0 and found[0, 0] == found[2, 2] == 0.0
    assert not np.isfinite(found[1]).any() and not np.isfinite(found[:, 1]).any()


@pytest.mark.parametrize("far", [np.inf, -np.inf])
def test_a_point_at_infinity_is_infinitely_far_away(far):
    x, y = ndl.Tensor([[far, 1.0], [2.0, far]]), ndl.Tensor([[1.0, 2.0], [-3.0, 0.0]])
    assert (ops.cdist(x, y).numpy() == np.inf).all() and (ops.cdist(y, x).numpy() == np.inf).all()


def test_distances_of_halves_of_integers_and_of_no_points():
    half = ndl.Tensor(np.full((2, 300), 300.0), dtype="float16")
    assert ops.cdist(half, half * 0.0).numpy()[0, 0] == np.float16(300.0 * 300**0.5)
    whole = ndl.Tensor([[3, 4], [0, 0]], dtype="int64")
    assert ops.cdist(whole, whole).tolist() == [[0.0, 5.0], [5.0, 0.0]]
    for p in (1.0, 2.0):
        x, y = ndl.zeros(0, 3, requires_grad=True), ndl.zeros(4, 3, requires_grad=True)
        for pair in ((x, y), (y, x)):
            out = ops.cdist(*pair, p)
            assert out.shape == (len(pair[0]), len(pair[1]))
            out.sum().backward()
            assert not y.grad.numpy().any()


@pytest.mark.parametrize("shrink", [ops.hardshrink, ops.softshrink, ops.tanhshrink])
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


def test_what_is_constant_correlates_with_nothing():
    x = tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    np.testing.assert_allclose(ops.corrcoef(x).numpy(), [[1, np.nan], [np.nan, np.nan]])
    assert ops.corrcoef(x[0]).item() == 1.0 and ops.cov(x[:, :1], correction=0).tolist()[0][0] == 0
    assert np.isnan(ops.cov(x[:, :1]).numpy()).all()
    half = ndl.Tensor([[300.0, -300.0], [300.0, -300.0]], dtype="float16")
    assert ops.corrcoef(half).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@needs_torch
def test_ties_of_adaptive_pooling_go_to_the_first_and_nan_wins():
    values = np.maximum(ODD, 0.0)
    x, other = tensor(values), torch.tensor(values, requires_grad=True)
    ops.adaptive_max_pool2d(x, 4).sum().backward()
    F.adaptive_max_pool2d(other, 4).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), other.grad.numpy())
    values[0, 0, 2, 3] = np.nan
    for size in (4, (7, 2)):
        found = ops.adaptive_max_pool2d(tensor(values), size).numpy()
        assert np.isnan(found).any()
        expected = F.adaptive_max_pool2d(torch.tensor(values), size).numpy()
        np.testing.assert_array_equal(found, expected)


def test_what_is_impossible_adds_nothing_to_a_divergence():
    x, target = tensor([0.5, -1.0]), tensor([-np.inf, 0.0])
    out = ops.kl_divergence(x, target, reduction="sum", log_target=True)
    out.backward()
    assert out.item() == 1.0 and x.grad.tolist() == [0.0, -1.0] and target.grad[0].item() == 0.0


@needs_torch
def test_small_variances_count_as_eps_and_let_gradients_pass():
    var = np.array([1e-9, 1e-3, 2.0])
    x, other = tensor(var), torch.tensor(var, requires_grad=True)
    out = ops.gaussian_nll_loss(tensor([0.1, 0.2, 0.3]), tensor([0.2, 0.4, 0.6]), x)
    expected = F.gaussian_nll_loss(
        torch.tensor([0.1, 0.2, 0.3]).double(), torch.tensor([0.2, 0.4, 0.6]).double(), other
    )
    out.backward()
    expected.backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-6)
    fixed = ops.gaussian_nll_loss(tensor([1.0]), tensor([3.0]), 4.0)
    assert fixed.item() == pytest.approx(0.5 * (math.log(4.0) + 1.0))


def test_cross_entropy_of_certain_probabilities():
    x, y = tensor([0.0, 1.0, 0.0, 1.0]), tensor([0.0, 1.0, 1.0, 0.0])
    out = ops.bce(x, y, reduction="none")
    out.sum().backward()
    assert out.tolist() == [0.0, 0.0, 100.0, 100.0]
    assert x.grad.tolist() == [1.0, -1.0, 0.0, 0.0]  # none where a logarithm is limited
    half = ndl.Tensor([0.0, 1.0, 0.5], dtype="bfloat16")
    assert np.isfinite(ndl.grad(lambda x: ops.bce(x, half))(half).numpy().astype(float)).all()
    assert np.isnan(ops.bce(tensor([1.5]), tensor([1.0])).item())


def test_equal_ranks_are_told_apart_from_the_first_step_on():
    x = ndl.zeros(3, requires_grad=True)
    ops.margin_ranking_loss(x, ndl.zeros(3), ndl.Tensor([1, -1, 1], dtype="int32")).backward()
    np.testing.assert_allclose(x.grad.numpy(), [-1 / 3, 1 / 3, -1 / 3], rtol=1e-6)


def test_signs_may_be_integers_and_lists():
    x, y = ndl.Tensor(A), ndl.Tensor(B)
    signs = ROW_SIGNS.astype(int)
    expected = ops.cosine_embedding_loss(x, y, ndl.Tensor(ROW_SIGNS)).item()
    for given in (signs.tolist(), signs, ndl.Tensor(signs, dtype="int64")):
        assert ops.cosine_embedding_loss(x, y, given).item() == expected


@needs_torch
@pytest.mark.parametrize("values", [[[1, 1, 2], [2, 3, 1]], [1.0, np.nan, np.nan, 2.0, 2.0], [], 3])
@pytest.mark.parametrize("asked", ["", "return_inverse", "return_counts", "both"])
def test_runs_of_equal_elements(values, asked):
    names = ("return_inverse", "return_counts") if asked == "both" else asked.split()
    settings = dict.fromkeys(names, True)
    x = np.array(values)
    expected = torch.unique_consecutive(torch.tensor(x), **settings)
    found = ops.unique_consecutive(ndl.Tensor(x, dtype=str(x.dtype)), **settings)
    if not settings:
        expected, found = (expected,), (found,)
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy(), strict=True)
    method = ndl.Tensor(x).unique_consecutive(*(name in names for name in (
        "return_inverse", "return_counts")))  # fmt: skip
    first = method[0] if settings else method
    np.testing.assert_array_equal(first.numpy(), found[0].numpy())


@pytest.mark.parametrize("right", [False, True])
def test_buckets(right):
    edges, x = np.array([0.0, 1.0, 1.0, 2.0]), np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, 3.0]])
    expected = np.searchsorted(edges, x, "right" if right else "left")
    for found in (ops.bucketize(tensor(x), tensor(edges), right), tensor(x).bucketize(edges, right),
                  tensor(x).bucketize(edges.tolist(), right)):  # fmt: skip
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)
    whole = ndl.Tensor([1, 5], dtype="int64").bucketize(range(1, 4), right)
    assert whole.tolist() == [1 if right else 0, 3]
    assert tensor(x).bucketize([0, 1, 1, 2], right).tolist() == expected.tolist()


def test_scatter_writes_numbers_lists_and_the_last_of_equals():
    x = ndl.zeros(2, 3, dtype="int32")
    assert x.scatter(1, [[0], [2]], 7).tolist() == [[7, 0, 0], [0, 0, 7]]
    assert x.scatter(0, [[1, 1, -1], [1, 0, 0]], np.arange(6).reshape(2, 3)).tolist() == [
        [0, 4, 5], [3, 1, 2],
    ]  # fmt: skip
    assert x.tolist() == [[0] * 3] * 2 and x.dtype == "int32"


SPECIAL = [0.0, -0.0, 1.0, -1.0, 5.0, -5.0, 1e-300, -1e-20, np.inf, -np.inf, np.nan]


@needs_torch
@pytest.mark.parametrize(
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
@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
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


@needs_torch
@pytest.mark.parametrize("kind", ["float64", "float16", "int64", "uint8"])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("own", [True, False])
def test_elements_reduced_at_indices(kind, reduce, own, device):
    """Ties, zeros, numbers that are none, and of integers the least."""
    x = np.array([[2, 0, 2, 3, 1], [0, 5, 1, 1, 2]])
    x = x if own else x + 90  # PyTorch counts it as a tie where it is left out
    v = np.array([[2, 2, 2, 0, 3, 0, 1], [0, 0, 7, 1, 2, 1, 1]])
    index = np.array([[0, 0, 1, 1, 2, 2, 3], [0, 2, 1, 1, 2, 2, 2]])
    if kind == "float64":
        v = np.where(v == 7, np.nan, v)
    if kind == "int64":
        v[1, 2] = np.iinfo(kind).min
    a, b = (ndl.Tensor(z, dtype=kind, device=device) for z in (x, v))
    given = [torch.tensor(z.astype(kind), requires_grad=kind == "float64") for z in (x, v)]
    found = a.scatter_reduce(1, ndl.Tensor(index, device=device), b, reduce, include_self=own)
    expected = given[0].scatter_reduce(1, torch.tensor(index), given[1], reduce, include_self=own)
    assert found.dtype == kind
    np.testing.assert_array_equal(found.numpy(), expected.detach().numpy())
    if kind == "float64":
        ops.where(ops.isnan(found), 0.0, found).sum().backward()
        torch.where(expected.isnan(), 0.0, expected).sum().backward()
        for ours, theirs in zip((a, b), given, strict=True):
            numbers = ~np.isnan(theirs.grad.numpy())
            np.testing.assert_allclose(ours.grad.numpy()[numbers], theirs.grad.numpy()[numbers])


def test_a_reduction_that_is_none():
    with pytest.raises(OptionError, match="did you mean 'amax'"):
        ops.scatter_reduce(tensor(A), 1, PLACES % 3, tensor(A), "max")


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


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_running_logarithms_of_sums_neither_overflow_nor_vanish(kind):
    x = np.array([[-60.0, 1000.0, 1000.0, -60.0], [-math.inf, -math.inf, 4.0, math.inf]])
    found = ops.logcumsumexp(ndl.Tensor(x, dtype=kind), 1)
    exact = np.logaddexp.accumulate(x, 1)
    assert found.dtype == kind
    np.testing.assert_allclose(found.numpy().astype(float), exact, rtol=4e-3)
    ones = ops.logcumsumexp(ndl.zeros(3000, dtype=kind), 0)[-1].item()
    assert ones == pytest.approx(math.log(3000.0), rel=4e-3)
    assert ops.logcumsumexp(ndl.zeros(2, 0), 1).shape == (2, 0)


@needs_torch
def test_pieces_are_cut_as_pytorch_cuts_them():
    for shape in ((5,), (4, 6), (2, 3, 4), (0, 3)):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        a, b = tensor(x), torch.tensor(x)
        for pieces in (1, 2, 3, 7, [], [1], [1, 3], [2, 1], [-1], [0, 9], (1, -1)):
            for axis in range(-1, len(shape) - 1):
                parts = ops.tensor_split(a, pieces, axis), torch.tensor_split(b, pieces, axis)
                for found, expected in zip(*parts, strict=True):
                    np.testing.assert_array_equal(found.numpy(), expected.numpy(), strict=True)
            for name in ("hsplit", "vsplit"):
                try:
                    expected = getattr(b, name)(pieces)
                except RuntimeError:
                    with pytest.raises(ShapeError, match=name):
                        getattr(a, name)(pieces)
                    continue
                for part, other in zip(getattr(a, name)(pieces), expected, strict=True):
                    np.testing.assert_array_equal(part.numpy(), other.numpy(), strict=True)
    check_gradients(lambda x: ops.tensor_split(x, 4, 1)[0], A, order=2)


def test_axes_are_added_to_several_tensors():
    x, y = tensor(1.0), tensor([1.0, 2.0])
    for found in (ops.atleast_2d(x, y), ops.atleast_2d([x, y])):
        assert [part.shape for part in found] == [(1, 1), (1, 2)]
    assert ops.atleast_3d(x).shape == (1, 1, 1) and ops.atleast_1d(y) is y
    assert ops.atleast_3d(ndl.zeros(0)).shape == (1, 0, 1)


def test_blocks_of_several_kinds():
    found = ops.block_diag(ndl.Tensor([[1, 2]], dtype="int32"), 3, ndl.Tensor([4], dtype="int64"))
    assert found.dtype == "int64" and found.tolist() == [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 4]]
    x = tensor([2.0])
    out = ops.block_diag(ndl.zeros(0, dtype="float64"), x)  # PyTorch's gradient is that of row 0
    (out * tensor([[10.0], [20.0]])).sum().backward()
    assert out.shape == (2, 1) and x.grad.tolist() == [20.0]


def test_slices_at_indices_of_any_kind():
    x = ndl.Tensor(np.arange(6).reshape(2, 3), dtype="int32")
    for index in ([2, 0], np.array([2, 0]), range(2, -1, -2), ndl.arange(-1, 1)):
        assert x.index_fill(1, index, 9).tolist() == [[9, 1, 9], [9, 4, 9]]
    assert x.index_fill(0, 1, ndl.Tensor([7], dtype="int32")).tolist() == [[0, 1, 2], [7, 7, 7]]
    assert x.index_copy(0, [1, 1], np.array([[1, 1, 1], [2, 2, 2]])).tolist()[1] == [2, 2, 2]
    assert x.index_fill(0, [], 9).tolist() == x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.index_add(0, [], ndl.zeros(0, 3, dtype="int32")).tolist() == x.tolist()


def test_the_middle_of_what_is_a_number():
    x = np.array([[1.0, np.nan, 2.0, 5.0], [np.nan] * 4, [np.inf, -np.inf, np.nan, 0.0]])
    np.testing.assert_array_equal(ops.nanmedian(tensor(x)).numpy(), [2.0, np.nan, 0.0])
    given = tensor(x[:1])
    ops.nanmedian(given).sum().backward()
    assert given.grad.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert ops.nanmedian(ndl.Tensor([3, 1, 2], dtype="int64")).item() == 2


@needs_torch
@pytest.mark.parametrize("to", ["float64", "float16", "int32", "uint8"])
@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "bool"])
def test_what_is_added_up_is_cast_first(kind, to):
    x = np.array([[1, 0, 3], [200, 100, 7]], kind)
    mine, other = ndl.Tensor(x, dtype=kind), torch.tensor(x)
    for name in ("sum", "prod", "cumsum", "cumprod", "mean", "softmax", "log_softmax"):
        if to[0] != "f" and name in ("mean", "softmax", "log_softmax"):
            with pytest.raises(DtypeError, match=f"{name}: dtype is {to}\n(.*\n)+  rule: the re"):
                getattr(mine, name)(1, dtype=to)
            continue
        found = getattr(mine, name)(1, dtype=to)
        expected = getattr(other, name)(1, dtype=getattr(torch, to))
        assert found.dtype == to and str(expected.dtype) == f"torch.{to}"
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2)
        np.testing.assert_array_equal(getattr(ops, name)(mine, 1, dtype=to).numpy(), found.numpy())


def test_a_quantile_beside_infinity_is_what_it_is():
    x = tensor([1.0, 2.0, np.inf])
    for q in (0.5, tensor(0.5), [0.0, 0.5]):
        assert np.isfinite(ops.quantile(x, q).numpy()).all()
    for how in ("linear", "lower", "higher", "nearest", "midpoint"):
        for value in (np.inf, -np.inf):
            assert ops.quantile(tensor([value] * 3), 0.3, interpolation=how).item() == value
    assert ops.quantile(x, 0.3, interpolation="higher").item() == 2.0


@needs_torch
@pytest.mark.parametrize("right", [False, True, None])
@pytest.mark.parametrize("side", ["left", "right", None])
def test_sides_of_equal_edges(side, right):
    edges, x = np.array([0.0, 1.0, 1.0, 2.0]), np.array([[0.0, 1.0], [2.0, 3.0]])
    if None not in (side, right) and (side == "right") is not right:
        with pytest.raises(OptionError, match=f"side='{side}' contradicts right={right}"):
            ops.searchsorted(tensor(edges), tensor(x), side, right=right)
        return
    side = side or ("right" if right else "left")
    for found in (ops.searchsorted(tensor(edges), tensor(x), side, right=right),
                  tensor(edges).searchsorted(tensor(x), side=side, right=right)):  # fmt: skip
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(edges, x, side))


def test_differences_beside_numbers():
    whole = ndl.Tensor([[1, 4], [9, 16]], dtype="int32")
    found = whole.diff(prepend=0, append=whole[:, :1])
    assert found.dtype == "int32" and found.tolist() == [[1, 3, -3], [9, 7, -7]]
    assert tensor(A).diff(2, 0, prepend=0.5).shape == (5, 5)
    assert ops.diff(tensor(A), 0, prepend=1.0).shape == A.shape


@needs_torch
def test_positions_of_the_kth_value():
    values, places = tensor(A).kthvalue(2, 0)
    expected = torch.kthvalue(torch.tensor(A), 2, 0)
    np.testing.assert_array_equal(values.numpy(), expected[0].numpy())
    np.testing.assert_array_equal(places.numpy(), expected[1].numpy())
    assert np.isnan(ops.kthvalue(tensor([np.nan, 1.0]), 2)[0].item()) and not places.requires_grad


def test_new_tensors_of_a_tensor():
    x = ndl.ones(2, dtype="float64")
    for found in (x.new_zeros(2, 3), x.new_zeros((2, 3)), x.new_ones(2, 3) - 1.0,
                  x.new_full((2, 3), 0.0), x.new_tensor(np.zeros((2, 3), "float32"))):  # fmt: skip
        assert found.dtype == "float64" and found.tolist() == [[0.0] * 3] * 2
        assert not found.requires_grad
    assert x.new_empty(3, 0, dtype="int8").shape == (3, 0)
    assert x.new_ones(2, dtype="int8").dtype == "int8" and x.new_zeros(3).shape == (3,)
    copy = x.new_tensor(x)
    copy[0] = 5.0
    assert x.tolist() == [1.0, 1.0] and copy.tolist() == [5.0, 1.0]


@needs_torch
def test_methods_of_the_same_names():
    x, y = tensor(A), tensor(B)
    np.testing.assert_array_equal(
        tensor(ODD).unfold(2, 3, 2).numpy(), torch.tensor(ODD).unfold(2, 3, 2).numpy()
    )
    narrow = x[:, :3]
    for found, expected in (
        (x.addcmul(x, y, value=2.0), A + 2 * A * B),
        (x.addcdiv(x, y), A + A / B),
        (x.rot90(), np.rot90(A)),
        (x[0].diag_embed(1), np.diag(A[0], 1)),
        (narrow.take_along_dim(ndl.Tensor(PLACES), 0), np.take_along_axis(A[:, :3], PLACES, 0)),
    ):
        assert_like(found.numpy(), expected, rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_results_retain_their_gradients(lazy, accumulate):
    with ndl.lazy_mode(lazy):
        x, other = tensor(A), torch.tensor(A, requires_grad=True)
        y, theirs = x * 2.0, other * 2.0
        y.retain_grad()
        theirs.retain_grad()
        (y**3).sum().backward(accumulate=accumulate)
        (theirs**3).sum().backward()
        np.testing.assert_allclose(y.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)
    with pytest.raises(GradientError, match="retain_grad: the tensor needs no gradient"):
        y.detach().retain_grad()


X, INDEX, STACK = ndl.Tensor(A), ndl.Tensor(PLACES), ndl.Tensor(ROWS)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ops.scatter(X, 1, INDEX, X[:, :2]), ShapeError, "scatter: an index of int64"),
        (lambda: ops.scatter(X, 0, ndl.Tensor(np.zeros((1, 6), int)), 0.0), ShapeError, "scatter"),
        (lambda: ops.scatter(X, 1, INDEX[0], 0.0), ShapeError, "as many axes"),
        (lambda: ops.scatter(X, 1, X, 0.0), DtypeError, "an index of float"),
        (lambda: ops.scatter(X, 1, INDEX > 0, 0.0), DtypeError, "an index of bool"),
        (lambda: ops.scatter(X, 1, INDEX + 2, 0.0), IndexRangeError, "5"),
        (lambda: ops.scatter(X, 2, INDEX, 0.0), IndexRangeError, "axis 2"),
        (lambda: ops.scatter(INDEX, 1, INDEX, 0.5), DtypeError, "does not fit"),
        (lambda: ops.kthvalue(X, 0), IndexRangeError, "kthvalue: k is 0 of 5 along axis 1"),
        (lambda: ops.kthvalue(X, 6), IndexRangeError, "kthvalue: k is 6 of 5"),
        (lambda: ops.kthvalue(X, 1.5), ArgumentError, "kthvalue: k"),
        (lambda: ops.cdist(X, X[:, :2]), ShapeError, "cdist: x has shape"),
        (lambda: ops.cdist(X[0], X), ShapeError, "cdist: x has shape"),
        (lambda: ops.cdist(X, X, -1.0), OptionError, "cdist: p is -1.0"),
        (lambda: ops.cov(STACK), ShapeError, "cov: x has shape"),
        (lambda: ops.corrcoef(X[:, :0]), ShapeError, "corrcoef: x has shape"),
        (lambda: ops.rot90(X, 1, (0, 0)), ShapeError, "rot90: axes"),
        (lambda: ops.rot90(X, 1, (0,)), ShapeError, "rot90: axes"),
        (lambda: ops.rot90(X, 0.5), ArgumentError, "rot90: k"),
        (lambda: ops.diag_embed(ndl.Tensor(1.0)), ShapeError, "diag_embed: x has no axis"),
        (lambda: ops.diag_embed(X, 0, 1, 1), ShapeError, "axes"),
        (lambda: ops.pixel_shuffle(X, 2), ShapeError, "pixel_shuffle: factor 2"),
        (lambda: ops.pixel_shuffle(STACK, 0), ShapeError, "pixel_shuffle: factor 0"),
        (lambda: ops.pixel_unshuffle(STACK, 2), ShapeError, "pixel_unshuffle: factor 2"),
        (lambda: ops.unfold(X, 2), ShapeError, "unfold"),
        (lambda: ops.unfold(ndl.Tensor(ODD), 8), ShapeError, "windows"),
        (lambda: ops.unfold(ndl.Tensor(ODD), 0), ShapeError, "unfold: kernel"),
        (lambda: ops.fold(STACK, (7, 6), 2), ShapeError, "fold: no 6 x 5 windows"),
        (lambda: ops.adaptive_max_pool2d(ndl.Tensor(ODD), 0), ShapeError, "sizes are at least 1"),
        (lambda: ops.adaptive_max_pool1d(ndl.Tensor(ODD), 2), ShapeError, "4 axes, 3"),
        (lambda: ops.celu(X, 0.0), OptionError, "celu: alpha is 0.0"),
        (lambda: ops.softshrink(X, -1.0), OptionError, "softshrink: lambd is -1.0"),
        (lambda: ops.softplus(X, 0.0), OptionError, "softplus: beta is 0.0"),
        (lambda: ops.softplus(X, "a"), ArgumentError, "softplus: beta"),
        (lambda: ops.cosine_embedding_loss(X, X, X), ShapeError, "cosine_embedding_loss"),
        (lambda: ops.hinge_embedding_loss(X, X[0]), ShapeError, "hinge_embedding_loss"),
        (lambda: ops.margin_ranking_loss(X, X[0], X), ShapeError, "margin_ranking_loss"),
        (lambda: ops.triplet_margin_loss(X, X, X[0]), ShapeError, "triplet_margin_loss"),
        (lambda: ops.gaussian_nll_loss(X, X, X[0]), ShapeError, "gaussian_nll_loss: var has shape"),
        (lambda: ops.gaussian_nll_loss(X, X, X[:2]), ShapeError, "gaussian_nll_loss: var has"),
        (lambda: ops.poisson_nll_loss(X, X[0]), ShapeError, "poisson_nll_loss"),
        (lambda: ops.poisson_nll_loss(X, X, reduction="men"), OptionError, "mean"),
        (lambda: X.new_zeros(-1), ShapeError, "below 0"),
        (lambda: X.unfold(0, 7, 1), ShapeError, "windows"),
        (lambda: X.unfold(0, 2, 0), ShapeError, "step 0"),
        (lambda: ops.take_along_dim(X, INDEX + 40), IndexRangeError, "40"),
        (lambda: ops.fmod(X, INDEX[:, :1]), DtypeError, "fmod: dtypes float32 and int64"),
        (lambda: ops.fmod(X > 0, X > 0), DtypeError, "remainder: not defined for bool"),
        (lambda: X.div(X, rounding_mode="up"), OptionError, "div: rounding_mode: there is no 'up'"),
        (lambda: ops.block_diag(), ArgumentError, "block_diag: expected a tensor"),
        (lambda: ops.block_diag(STACK), ShapeError, "block_diag: a block has shape"),
        (lambda: ops.column_stack(X.sum()), ArgumentError, "column_stack: .* are not several"),
        (lambda: ops.dstack([]), ShapeError, "no tensors"),
        (lambda: ops.tensor_split(X, 0), OptionError, "tensor_split: 0 pieces"),
        (lambda: ops.tensor_split(X, 1.5), ArgumentError, "tensor_split: pieces is 1.5"),
        (lambda: ops.tensor_split(X, [1, "a"]), ArgumentError, "tensor_split: a place is 'a'"),
        (lambda: ops.tensor_split(X, 2, 2), IndexRangeError, "axis 2"),
        (lambda: X.hsplit(2), ShapeError, "hsplit: 5 elements along axis 1 into 2 pieces"),
        (lambda: X[0].vsplit(1), ShapeError, "vsplit: there are 1 axes"),
        (lambda: X[0, 0].hsplit(1), ShapeError, "hsplit: there is no axis"),
        (lambda: X.index_fill(0, [6], 1.0), IndexRangeError, "6"),
        (lambda: X.index_fill(0, INDEX, 1.0), ShapeError, "index_fill: the index has shape"),
        (lambda: X.index_fill(0, [0.5], 1.0), DtypeError, "index_fill: an index of float"),
        (lambda: X.index_fill(0, [0], X[0]), ShapeError, "index_fill: 5 elements were given"),
        (lambda: INDEX.index_fill(0, [0], 0.5), DtypeError, "does not fit"),
        (lambda: X.index_copy(0, [0, 1], X[:3]), ShapeError, r"shape \(3, 5\), not \(2, 5\)"),
        (lambda: X.index_copy(0, [0, 1], "a"), ArgumentError, "index_copy: expected a tensor"),
        (lambda: X.index_add(2, [0], X), IndexRangeError, "axis 2"),
        (lambda: ops.nanmedian(X[:, :0]), ShapeError, "median: no elements along axis 1"),
        (lambda: ops.logcumsumexp(X, 2), IndexRangeError, "axis 2"),
        (lambda: ops.quantile(X, 0.5, interpolation="up"), OptionError, "interpolation"),
        (lambda: ops.searchsorted(X[0], X, right=1), ArgumentError, "searchsorted: right is 1"),
        (lambda: ops.diff(X, prepend=X[:, :, None]), ShapeError, "concat"),
        (lambda: X.amax(0, dtype="int32"), TypeError, "dtype"),
        (lambda: ops.amax(X, 0, dtype="int32"), ArgumentError, "amax: 'dtype' is no argument"),
        (lambda: X.sum(dtype="real"), OptionError, "real"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_values_are_numpys():
    x, y = tensor(A), tensor(B)
    apart = np.linalg.norm(A - B + 1e-6, axis=1)
    shuffled = ops.pixel_unshuffle(ops.pixel_shuffle(tensor(IMAGES), 2), 2)
    for found, expected in (
        (ops.cdist(x, y, 1.0), np.abs(A[:, None] - B).sum(-1)), (ops.cov(x), np.cov(A)),
        (ops.corrcoef(x), np.corrcoef(A)), (ops.rot90(x, 3), np.rot90(A, 3)),
        (ops.diag_embed(x)[1], np.diag(A[1])), (ops.kthvalue(x, 2, 0)[0], np.sort(A, 0)[1]),
        (ops.kthvalue(x, 2, 0)[1], np.argsort(A, 0)[1]), (shuffled, IMAGES),
        (ops.pixel_shuffle(tensor(IMAGES), 2)[:, 0, ::2, 1::2], IMAGES[:, 1]),
        (ops.fold(ops.unfold(tensor(ODD), 1), (7, 6), 1), ODD),
        (ops.unfold(tensor(ODD), (7, 6))[:, :, 0], ODD.reshape(2, -1)),
        (ops.adaptive_max_pool1d(tensor(ODD[0]), 4), np.stack(
            [ODD[0][..., i:j].max(-1) for i, j in ((0, 2), (1, 3), (3, 5), (4, 6))], -1)),
        (ops.unique_consecutive(tensor([1, 1, 2, 1]), return_counts=True)[1], np.array([2, 1, 1])),
        (ops.celu(x, 2.0), np.where(A > 0, A, 2 * np.expm1(A / 2))),
        (ops.softshrink(x), np.sign(A) * np.maximum(abs(A) - 0.5, 0)),
        (ops.hinge_embedding_loss(x, SIGNS, reduction="none"),
         np.where(SIGNS > 0, A, np.maximum(1 - A, 0))),
        (ops.triplet_margin_loss(x, y, x, reduction="none"),
         np.maximum(apart - 5**0.5 * 1e-6 + 1, 0)),
        (ops.poisson_nll_loss(x, COUNTS, reduction="sum"), np.sum(np.exp(A) - COUNTS * A)),
        (ops.bce(tensor([0.25]), tensor([1.0])), np.array(-np.log(0.25))),
    ):  # fmt: skip
        assert_like(found.numpy(), expected, rtol=1e-9, atol=1e-12)


# ---- modules ---------------------------------------------------------------------------


def module(name, *args, shapes=((6, 5),), target=None, **settings):
    """Return what makes two modules, the shapes of what they take, and a target behind it."""
    ours = {k: v[1] if isinstance(v, tuple) else v for k, v in settings.items()}
    theirs = {v[0] if isinstance(v, tuple) else k: ours[k] for k, v in settings.items()}

    def make():
        return getattr(nn, name)(*args, **ours), getattr(torch.nn, name)(*args, **theirs)

    return pytest.param(make, shapes, target, id=f"{name}{args or ''}")


PICTURE, SEQUENCE = ((2, 3, 5, 6),), ((2, 3, 7),)
TWO, THREE = ((6, 5),) * 2, ((6, 5),) * 3
MODULES = [
    module("CELU", 2.0), module("Hardshrink", 0.3), module("Softshrink", 0.3), module("Tanhshrink"),
    module("Softplus", 2.0, 0.5), module("Threshold", 0.1, 20.0),
    module("Softmin", axis=("dim", -1)),
    *(module(f"{kind}Pad1d", size, shapes=SEQUENCE)
      for kind in ("Zero", "Reflection", "Replication", "Circular") for size in (2, (3, 1))),
    *(module(f"{kind}Pad2d", size, shapes=PICTURE)
      for kind in ("Zero", "Reflection", "Replication", "Circular") for size in (2, (1, 4, 2, 0))),
    module("ConstantPad1d", (1, 2), 3.5, shapes=SEQUENCE),
    module("ConstantPad2d", 1, -1.0, shapes=PICTURE),
    module("AdaptiveMaxPool1d", 3, shapes=SEQUENCE),
    module("AdaptiveMaxPool2d", (3, None), shapes=PICTURE),
    module("AdaptiveMaxPool3d", 2, shapes=((2, 3, 4, 5, 3),)),
    module("AdaptiveAvgPool3d", (1, None, 2), shapes=((2, 3, 4, 5, 3),)),
    module("PixelShuffle", 3, shapes=((2, 9, 2, 3),)),
    module("PixelUnshuffle", 2, shapes=((1, 2, 4, 6),)),
    module("Unfold", 3, padding=1, stride=2, shapes=PICTURE),
    module("Fold", (5, 6), (2, 3), shapes=((2, 12, 16),)),
    module("CosineSimilarity", axis=("dim", 1), shapes=TWO),
    module("CosineSimilarity", shapes=((2, 4, 3),) * 2),
    module("PairwiseDistance", 3.0, keepdims=("keepdim", True), shapes=TWO),
    module("KLDivLoss", log_target=True, shapes=TWO),
    module("KLDivLoss", reduction="batchmean", shapes=((6, 5),), target=np.exp(LOGS)),
    module("CosineEmbeddingLoss", 0.2, shapes=TWO, target=ROW_SIGNS),
    module("HingeEmbeddingLoss", target=SIGNS), module("HingeEmbeddingLoss", 0.3, target=SIGNS),
    module("MarginRankingLoss", 0.3, reduction="sum", shapes=TWO, target=SIGNS),
    module("TripletMarginLoss", shapes=THREE),
    module("TripletMarginLoss", 0.4, p=3.0, eps=1e-3, swap=True, reduction="none", shapes=THREE),
    module("GaussianNLLLoss", full=True, shapes=TWO, target=VARIANCES),
    module("PoissonNLLLoss", full=True, target=COUNTS),
    module("PoissonNLLLoss", log_input=False, eps=5.0, reduction="none", target=COUNTS),
]  # fmt: skip


@needs_torch
@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("make, shapes, target", MODULES)
def test_modules_are_pytorchs(make, shapes, target):
    ours, theirs = make()
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    mine, rest = [tensor(x) for x in arrays], []
    if target is not None:
        mine.append(tensor(target, requires_grad=False))
        rest.append(torch.tensor(target))
    compare(ours(*mine), mine[: len(arrays)], lambda *xs: theirs(*xs, *rest), arrays)


@needs_torch
def test_bce_loss_is_pytorchs():
    for how in ("mean", "sum", "none"):
        found = nn.BCELoss(how)(tensor(SHARES), tensor(SHARES[::-1].copy()))
        expected = torch.nn.BCELoss(reduction=how)(
            *map(torch.tensor, (SHARES, SHARES[::-1].copy()))
        )
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_is_pytorchs_with_its_state(bias):
    ours, theirs = nn.Bilinear(5, 4, 3, bias=bias), torch.nn.Bilinear(5, 4, 3, bias=bias)
    assert np.abs(ours.weight.numpy()).max() <= 5**-0.5
    ours.load_state_dict(theirs.state_dict())
    ours.double()
    theirs.double()
    x, y = RNG.normal(size=(2, 6, 5)), RNG.normal(size=(2, 6, 4))
    mine, other = (tensor(x), tensor(y)), [torch.tensor(z, requires_grad=True) for z in (x, y)]
    out, expected = ours(*mine), theirs(*other)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-7, atol=1e-9)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    pairs = [*zip(mine, other, strict=True), (ours.weight, theirs.weight)]
    for a, b in pairs + [(ours.bias, theirs.bias)] * bias:
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-8)
    assert repr(ours).startswith("Bilinear(5, 4, 3" + (")" if bias else ", bias=False)"))
    assert nn.Bilinear(5, 4, 3)(ndl.ones(5), ndl.ones(4)).shape == (3,)


def test_lists_and_tables_of_parameters_are_found_saved_and_learned():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(ndl.ones(2)), ndl.zeros(3)])
            self.table = nn.ParameterDict({"a": ndl.ones(4)})

        def forward(self, x):
            return sum(p.sum() for p in self.rows) * x + self.table["a"].sum()

    model = Model()
    assert [name for name, _ in model.named_parameters()] == ["rows.0", "rows.1", "table.a"]
    model.rows.append(ndl.ones(1)).extend([ndl.ones(2)])
    model.rows += [ndl.ones(1)]
    model.table.update({"b": ndl.ones(1)})
    model.table["c"] = ndl.ones(1)
    del model.table["b"]
    assert len(model.rows) == 5 and len(model.rows[1:3]) == 2 and "b" not in model.table
    assert all(type(p) is nn.Parameter and p.requires_grad for p in model.parameters())
    first = model.rows[-1]
    model.rows[-1] = nn.Parameter(ndl.zeros(7))
    assert model.rows[4].shape == (7,) and first is not model.rows[4]
    state = model.state_dict()
    assert [*state] == [*(f"rows.{i}" for i in range(5)), "table.a", "table.c"]
    other = Model()
    other.rows.extend(ndl.zeros(n) for n in (1, 2, 7))
    other.table["c"] = ndl.zeros(1)
    other.load_state_dict(state)
    assert other.rows[2].tolist() == [1.0]
    optimizer = ndl.optim.SGD(other.parameters(), lr=0.5)
    optimizer.minimize(other(ndl.Tensor(1.0)))
    assert other.rows[2].tolist() == [0.5] and other.table["a"].tolist() == [0.5] * 4


def test_dropout_of_whole_channels_of_sequences_and_volumes():
    for layer, shape in ((nn.Dropout1d(0.5), (8, 9, 4)), (nn.Dropout3d(0.5), (4, 5, 2, 3, 2))):
        found = layer(ndl.ones(*shape)).numpy().reshape(*shape[:2], -1)
        assert set(found.ravel().tolist()) == {0.0, 2.0} and (found == found[..., :1]).all()
        with pytest.raises(ShapeError, match=f"{type(layer).__name__}: x has 1 axes"):
            layer(ndl.ones(3))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: nn.ZeroPad2d((1, 2)),
            OptionError,
            r"ZeroPad2d: padding=\(1, 2\)\n  rule: one number from 0 on, or 4",
        ),
        (lambda: nn.ReflectionPad1d(-1), OptionError, "ReflectionPad1d: padding=-1"),
        (lambda: nn.ZeroPad1d(0.5), ArgumentError, "ZeroPad1d: padding is 0.5"),
        (lambda: nn.ZeroPad2d(1)(ndl.ones(3)), ShapeError, "ZeroPad2d: x has 1 axes"),
        (lambda: nn.ConstantPad1d(1, "a"), OptionError, "ConstantPad1d: value='a'"),
        (lambda: nn.PixelShuffle(1.5), ArgumentError, "PixelShuffle: factor is 1.5"),
        (lambda: nn.Bilinear(2.5, 1, 1), ArgumentError, "Bilinear: in1_features is 2.5"),
        (lambda: nn.Bilinear(0, 1, 1), OptionError, "Bilinear: in1_features=0"),
        (lambda: nn.CosineSimilarity(eps="a"), OptionError, "CosineSimilarity: eps='a'"),
        (lambda: nn.PairwiseDistance(-1), OptionError, "PairwiseDistance: p=-1"),
        (lambda: nn.CELU("a"), OptionError, "CELU: alpha='a'"),
        (lambda: nn.CELU(0.0), OptionError, "CELU: alpha=0.0"),
        (lambda: nn.Softplus(0.0), OptionError, "Softplus: beta=0.0"),
        (lambda: nn.Softplus(1.0, "a"), OptionError, "Softplus: threshold='a'"),
        (lambda: nn.Softshrink(-1), OptionError, "Softshrink: lambd=-1"),
        (lambda: nn.Threshold(0, "a"), OptionError, "Threshold: value='a'"),
        (lambda: nn.KLDivLoss("men"), OptionError, "KLDivLoss: reduction"),
        (lambda: nn.MSELoss("batchmean"), OptionError, "MSELoss: reduction"),
        (lambda: nn.TripletMarginLoss("a"), OptionError, "TripletMarginLoss: margin='a'"),
        (lambda: nn.GaussianNLLLoss(eps=-1), OptionError, "GaussianNLLLoss: eps=-1"),
        (lambda: nn.ParameterList([3.0]), ArgumentError, "parameter 0 is a float"),
        (lambda: nn.ParameterList([ndl.ones(1)])[1], IndexRangeError, "no parameter 1 of 1"),
        (lambda: nn.ParameterList()["a"], ArgumentError, "index 'a'"),
        (lambda: nn.ParameterDict({"a": nn.ReLU()}), ArgumentError, "'a' is a ReLU"),
        (lambda: nn.ParameterDict({"a.b": ndl.ones(1)}), OptionError, "ParameterDict: 'a.b'"),
        (lambda: nn.ParameterDict({"aa": ndl.ones(1)})["ab"], OptionError, "did you mean 'aa'"),
    ],
)
def test_modules_say_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.ZeroPad2d(1), "(1, 1, 1, 1)"), (nn.ConstantPad1d((1, 0), 2.0), "(1, 0), value=2.0"),
        (nn.Fold(4, 2, stride=2), "output_size=4, kernel_size=2, stride=2"),
        (nn.PixelShuffle(2), "2"), (nn.Softplus(), ""), (nn.Softplus(2.0), "beta=2.0"),
        (nn.Threshold(0.1, 2.0), "0.1, 2.0"), (nn.AdaptiveMaxPool2d(3), "3"),
        (nn.TripletMarginLoss(2.0, swap=True), "margin=2.0, swap=True"),
        (nn.KLDivLoss("sum", log_target=True), "reduction='sum', log_target=True"),
        (nn.HingeEmbeddingLoss(), ""), (nn.PoissonNLLLoss(full=True), "full=True"),
        (nn.PairwiseDistance(), "p=2.0"), (nn.CosineSimilarity(-1), "axis=-1"),
    ],
)  # fmt: skip
def test_settings_are_shown(layer, text):
    assert layer.extra_repr() == text

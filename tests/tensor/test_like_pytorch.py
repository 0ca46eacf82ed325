"""Functions made of others that PyTorch has too: values and gradients of both orders."""

from __future__ import annotations

import math

import numpy as np
from beside_pytorch import (
    COUNTS,
    LOGS,
    ODD,
    PLACES,
    RNG,
    ROW_SIGNS,
    ROWS,
    SHARES,
    SIGNS,
    VARIANCES,
    A,
    B,
    C,
    assert_like,
    both,
    compare,
    tensor,
)
from looped import looped

import needle as ndl
from needle import ops
from needle.testing import check_gradients

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


SPECIAL = getattr(torch, "special", None)

IMAGES = RNG.normal(size=(2, 8, 6, 4))

VOLUMES = RNG.normal(size=(2, 2, 4, 3, 5))

OTHERS = [d for d in ndl.all_devices() if d.enabled() and d != ndl.default_device()]


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


@looped("name", CASES)
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

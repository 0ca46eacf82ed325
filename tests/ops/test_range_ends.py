"""Sums of many numbers, and numbers near the ends of their dtype's range, on every device.

References are float64, or the same function of ordinary numbers: a length of multiples is the
multiple of the length.
"""

from __future__ import annotations

import numpy as np
import pytest
from devices import DEVICES
from looped import looped

import needle as ndl
from needle import nn, ops, optim
from needle.ops.reduction.scan import cumprod_gradient, prod_gradient

MANY = 4096


def plain(values, kind, device):
    return ndl.Tensor(np.asarray(values), dtype=kind, device=device, requires_grad=False)


def gradient(function, x):
    """Return the gradient of the sum of a function as float64."""
    x.requires_grad = True
    ops.summation(function(x)).backward()
    return x.grad.astype("float64").numpy()


# ---- many numbers ------------------------------------------------------------------

AT = np.zeros(MANY, dtype="int64")
SUMS = {
    "scatter_add": lambda at, x: ops.scatter_add(at, x, 0, (1,)),
    "of rows": lambda at, x: ops.scatter_add(
        ops.reshape(at, (MANY, 1)), ops.broadcast_to(ops.reshape(x, (MANY, 1)), (MANY, 17)), 0,
        (2, 17),
    )[0],
    "of lines": lambda at, x: ops.scatter_add(
        ops.broadcast_to(at, (3, MANY)), ops.broadcast_to(x, (3, MANY)), 1, (3, 2)
    )[:, 0],
    "index_add": lambda at, x: ops.index_add(x[:1] * 0, 0, at, x),
    "bincount": lambda at, x: ops.bincount(at, weights=x),
    "scatter_reduce": lambda at, x: ops.scatter_reduce(x[:1] * 0, 0, at, x, "sum"),
    "mean": lambda at, x: MANY * ops.scatter_reduce(x[:1], 0, at, x, "mean", include_self=False),
    "embedding": lambda at, x: gradient(lambda w: ops.embedding(w, at), x[:2].reshape(2, 1))[0],
    "index": lambda at, x: gradient(lambda w: w[at], x[:2])[0],
    "gather": lambda at, x: gradient(lambda w: ops.gather(w, at, 0), x[:2])[0],
    "take": lambda at, x: gradient(lambda w: ops.take(w, at), x[:2])[0],
}  # fmt: skip


@looped("kind", ("float16", "bfloat16"))
@looped("name", SUMS)
@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_many_halves(device, name, kind):
    at, ones = plain(AT, "int64", device), plain(np.ones(MANY), kind, device)
    found = SUMS[name](at, ones)
    found = found if isinstance(found, np.ndarray | np.float64) else found.astype("float64").numpy()
    np.testing.assert_array_equal(found, MANY)


EXTREMES = {
    "max": lambda x: ops.amax(x),
    "min along an axis": lambda x: ops.amin(x.reshape(1, x.size), axis=1),
    "scatter_reduce": lambda x: ops.scatter_reduce(
        plain([0.0], x.dtype, x.device), 0, plain(np.zeros(x.size), "int64", x.device), x, "amax",
        include_self=False,
    ),
}  # fmt: skip


@looped("name", EXTREMES)
@pytest.mark.parametrize("device", DEVICES)
def test_many_ties_share_the_gradient(device, name):
    if (device, name) == ("cuda-emu", "scatter_reduce"):
        return  # the same ops, and a slow sort
    found = gradient(EXTREMES[name], plain(np.ones(70_000), "float16", device))
    np.testing.assert_allclose(found, 1 / 70_000, rtol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_long_sums_of_float32(device):
    size = 20_000 if device == "cuda-emu" else 200_000
    values = np.random.default_rng(0).random(size).astype("float32") + 1
    x = plain(values, "float32", device)
    exact = np.cumsum(values, dtype="float64")
    lines = ops.broadcast_to(x, (20, size)) if size > 20_000 else x.reshape(1, size)
    for found in (ops.cumsum(x, 0), ops.cumsum(lines, 1)[-1], ops.cumsum(lines.T, 0)[:, -1]):
        np.testing.assert_allclose(found.numpy(), exact, rtol=2e-7)
    found = ops.scatter_add(plain(np.zeros(size), "int64", device), x, 0, (2,)).numpy()
    np.testing.assert_allclose(found, [exact[-1], 0], rtol=2e-7)
    columns = plain(np.stack([values, -values], 1), "float32", device)
    np.testing.assert_allclose(ops.mean(columns, 0).numpy()[0], exact[-1] / size, rtol=2e-7)


# ---- lengths and deviations --------------------------------------------------------

SCALES = {"float32": (2.0**70, 2.0**-90), "float64": (2.0**700, 2.0**-700)}
OF_ORDER_ONE = {
    "norm": lambda x: ops.norm(x, axis=1),
    "norm of all": lambda x: ops.norm(x, keepdims=True),
    "norm 3": lambda x: ops.norm(x, 3, axis=1),
    "norm -2": lambda x: ops.norm(x, -2, axis=1),
    "std": lambda x: ops.std(x, 1),
    "std of columns": lambda x: ops.std(x, 0, correction=1),
    "distance": lambda x: ops.pairwise_distance(x, ops.flip(x), eps=0.0),
    "cdist": lambda x: ops.cdist(x[:2], x[1:]),
    "hypot": lambda x: ops.hypot(x[0], x[1]),
}
OF_ORDER_ZERO = {
    "normalize": lambda x: ops.normalize(x, eps=0.0),
    "cosine": lambda x: ops.cosine_similarity(x, ops.flip(x), eps=0.0),
    "corrcoef": lambda x: ops.corrcoef(x),
    "layer_norm": lambda x: ops.layer_norm(x, eps=0.0),
    "rms_norm": lambda x: ops.rms_norm(x, eps=0.0),
    "group_norm": lambda x: ops.group_norm(x.reshape(2, 4, -1), 2, eps=0.0)[0],
    "atan2": lambda x: ops.atan2(x[0], x[1]),
}
LARGE_ONLY = ("layer_norm", "rms_norm", "group_norm")
VALUES = np.random.default_rng(1).uniform(0.5, 2.0, (4, 6)) * [1, -1, 1, 1, -1, 1]


@looped("name", (*OF_ORDER_ONE, *OF_ORDER_ZERO))
@looped("kind", SCALES)
@pytest.mark.parametrize("device", DEVICES)
def test_scales_far_from_one(device, kind, name):
    order = 1 if name in OF_ORDER_ONE else 0
    function = (OF_ORDER_ONE if order else OF_ORDER_ZERO)[name]
    slopes = np.random.default_rng(2).uniform(0.5, 1.5, (2, 4, 6))

    def found(scale):
        x = plain(VALUES * scale, kind, device)
        x.requires_grad = True
        out = function(x)
        (out * plain(slopes.ravel()[: out.size].reshape(out.shape), kind, device)).sum().backward()
        return out.astype("float64").numpy() / scale**order, (x.grad / scale ** (order - 1)).numpy()

    value, slope = found(1.0)
    for scale in SCALES[kind][: 1 if name in LARGE_ONLY else 2]:
        for a, b in zip(found(scale), (value, slope), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@looped("kind", ("float32", "float64", "bfloat16"))
@pytest.mark.parametrize("device", DEVICES)
def test_clipping_gradients_far_from_one(device, kind):
    for scale in (2.0**70, 2.0**-90, 2.0**-100):
        params = [nn.Parameter(np.zeros(n), dtype=kind, device=device) for n in (7, 2)]
        for p in params:
            p.grad = plain(np.full(p.shape, scale), kind, device)
        norm = optim.clip_grad_norm(params, 1.0)
        np.testing.assert_allclose(float(norm), 3 * scale, rtol=1e-2)
        after = np.concatenate([p.grad.astype("float64").numpy() for p in params])
        np.testing.assert_allclose(after, min(1 / 3, scale), rtol=1e-2)


def test_zeros_have_no_slope_of_any_order():
    x = ndl.zeros((3,), dtype="float64")
    for function in (ops.norm, lambda x: ops.norm(x, 3),
                     lambda x: ops.norm(x, 1.5), lambda x: ops.hypot(x[0], x[1]), ops.std,
                     lambda x: ops.atan2(x[0], x[1]), lambda x: ops.norm(x, 1)):  # fmt: skip
        np.testing.assert_array_equal(ndl.hessian(function)(x).numpy(), np.zeros((3, 3)))
        np.testing.assert_array_equal(ndl.grad(function)(x).numpy(), np.zeros(3))


# ---- products ----------------------------------------------------------------------


def others(x, g):
    """Return the gradient of prod of one line, and that of cumprod, in longer numbers."""
    x, g, places = x.astype(np.longdouble), g.astype(np.longdouble), range(len(x))
    without = [np.where(np.arange(len(x)) == k, 1, x) for k in places]
    running = [sum(g[i] * np.prod(without[k][: i + 1]) for i in places if i >= k) for k in places]
    return np.array([g[k] * np.prod(without[k]) for k in places]), np.array(running)


@looped("seed", range(12))
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_products_out_of_range(device, seed):
    random = np.random.default_rng(seed)
    lines = 10.0 ** random.choice([-30, -12, 0, 12, 30], (20, 5)) * random.uniform(1, 2, (20, 5))
    lines[random.random(lines.shape) < 0.15] = 0
    g = random.uniform(1, 2, lines.shape)
    lines, g = (each.astype("float32").astype("float64") for each in (lines, g))
    most = np.finfo("float32").max
    for which, of in enumerate((prod_gradient, cumprod_gradient)):
        exact = np.array([others(*pair)[which] for pair in zip(lines, g, strict=True)])
        with np.errstate(over="ignore"):
            exact = np.where(np.abs(exact) > most, np.inf, exact).astype("float64")
        known = (np.abs(exact) > 1e-36) | (exact == 0)
        for axis, turn in ((1, np.asarray), (0, np.transpose)):
            x, slopes = (plain(turn(each), "float32", device) for each in (lines, g))
            found = turn(of(x, slopes, axis).numpy())
            np.testing.assert_allclose(found[known], exact[known], rtol=1e-5)

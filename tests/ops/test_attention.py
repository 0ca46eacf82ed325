"""Attention and rotary positions: what samples do not show."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import DtypeError, IndexRangeError, OptionError, ShapeError

sdpa = ops.scaled_dot_product_attention


def tensor(*shape, seed=0, dtype="float64"):
    return ndl.Tensor(np.random.default_rng([seed, *shape]).normal(size=shape), dtype=dtype)


def qkv(b=2, h=4, g=2, t=3, s=5, d=4, **how):
    return [tensor(b, n, m, d, seed=i, **how) for i, (n, m) in enumerate(((h, t), (g, s), (g, s)))]


# ---- attention ---------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "causal", "bools", "floats", "scale"])
def test_attention_is_pytorchs_with_gradients(case):
    torch = pytest.importorskip("torch")
    t = 5 if case == "causal" else 3  # where t and s differ the diagonals do
    mine = qkv(t=t)
    your = [torch.tensor(x.numpy(), requires_grad=True) for x in mine]
    mask = {"bools": np.random.default_rng(5).random((t, 5)) > 0.3,
            "floats": np.random.default_rng(6).normal(size=(2, 1, t, 5))}.get(case)  # fmt: skip
    scale = 0.3 if case == "scale" else None
    found = sdpa(*mine, mask if mask is None else ndl.Tensor(mask, dtype=str(mask.dtype)),
                 is_causal=case == "causal", scale=scale)  # fmt: skip
    exact = torch.nn.functional.scaled_dot_product_attention(
        *your, None if mask is None else torch.tensor(mask), is_causal=case == "causal",
        scale=scale, enable_gqa=True,
    )  # fmt: skip
    g = np.random.default_rng(9).normal(size=found.shape)
    found.backward(ndl.Tensor(g, dtype="float64"))
    exact.backward(torch.tensor(g))
    for a, b in [(found, exact), *((x.grad, y.grad) for x, y in zip(mine, your, strict=True))]:
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_the_gradients_op_is_the_gradient_of_the_expansion():
    """Samples weigh shift and rest too, so they always differentiate the expansion."""
    mask = ndl.Tensor(np.arange(15).reshape(1, 1, 3, 5) % 4 > 0)
    op, grads = ops.Attention.of(0.5, True), []
    for run in (op, op.expand):
        given = qkv()
        (run(*given, mask)[0] * tensor(2, 4, 3, 4, seed=8)).sum().backward()
        grads.append([x.grad.numpy() for x in given])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_axes_may_be_missing():
    q, k, v = qkv(1, 1, 1)
    whole = sdpa(q, k, v, is_causal=True).numpy()
    for cut in ((0,), (0, 0)):
        parts = [x[cut] for x in (q, k, v)]
        np.testing.assert_array_equal(sdpa(*parts, is_causal=True).numpy(), whole[cut])
    mask = ndl.Tensor(np.tri(3, 5, 2) > 0)
    np.testing.assert_array_equal(sdpa(q[0], k[0], v[0], mask).numpy(), whole[0])


def test_the_last_query_of_causal_attention_sees_all_keys():
    q, k, v = qkv()
    whole = sdpa(tensor(2, 4, 5, 4, seed=3), k, v, is_causal=True)
    last = sdpa(tensor(2, 4, 5, 4, seed=3)[:, :, -2:], k, v, is_causal=True)
    np.testing.assert_allclose(last.numpy(), whole.numpy()[:, :, -2:], rtol=1e-13)


def test_lengths_of_keys_are_a_view_of_the_cache():
    q, k, v = qkv()
    for causal in (False, True):
        found = sdpa(q, k, v, is_causal=causal, key_lengths=[4, 3]).numpy()
        for i, n in enumerate((4, 3)):
            own = slice(i, i + 1)
            one = sdpa(q[own], k[own, :, :n], v[own, :, :n], is_causal=causal).numpy()
            np.testing.assert_allclose(found[own], one, rtol=1e-13)


def test_rows_that_see_nothing_are_zeros_in_derivatives_of_any_order():
    q, k, v = qkv(1, 1, 1, 2, 2, 2)
    mask = ndl.Tensor([[False, False], [True, False]])

    def loss(q, k, v):
        return (sdpa(q, k, v, mask) ** 2).sum()

    def norm(*x):
        return sum((g**2).sum() for g in ndl.grad(loss, (0, 1, 2))(*x))

    out, tangent = ndl.jvp(lambda q: sdpa(q, k, v, mask), (q,), (tensor(1, 1, 2, 2, seed=4),))
    assert not out.numpy()[0, 0, 0].any() and not tangent.numpy()[0, 0, 0].any()
    for derivative in (ndl.grad(loss, (0, 1, 2)), ndl.grad(norm, (0, 1, 2))):
        for g in derivative(q, k, v):
            assert np.isfinite(g.numpy()).all()
    assert not ndl.grad(loss)(q, k, v).numpy()[0, 0, 0].any()


def test_dropout_is_the_draw_of_its_counter_and_goes_on_behind():
    q, k, v = qkv(dtype="float32")
    ndl.manual_seed(7)
    first, second = (sdpa(q, k, v, dropout=0.5).numpy() for _ in range(2))
    ndl.manual_seed(7)
    again = sdpa(q, k, v, dropout=0.5).numpy()
    assert (first == again).all() and (first != second).any()
    ndl.manual_seed(7)
    with ndl.lazy_mode():
        waiting = sdpa(q, k, v, dropout=0.5)
    assert (waiting.numpy() == first).all()
    plain = sdpa(q, k, v).numpy()
    assert (sdpa(q, k, v, dropout=0.5, training=False).numpy() == plain).all()
    assert not sdpa(q, k, v, dropout=1.0).numpy().any()


def test_dropout_keeps_its_share_and_means():
    ndl.manual_seed(0)
    q, k = ndl.zeros(1, 1, 50, 1), ndl.zeros(1, 1, 400, 1)
    out = sdpa(q, k, ndl.ones(1, 1, 400, 1), dropout=0.25).numpy()
    assert abs(out.mean() - 1) < 4 * (0.25 / 0.75 / 20_000) ** 0.5


def test_dropout_draws_from_numpys_stream_before_manual_seed():
    q, k, v = qkv()
    np.random.seed(3)
    out = sdpa(q, k, v, dropout=0.4).numpy()
    np.random.seed(3)
    kept = np.random.rand(2, 4, 3, 5).astype("float32") <= np.float32(0.6)
    k, v = (np.repeat(x.numpy(), 2, 1) for x in (k, v))
    p = np.exp(q.numpy() @ k.swapaxes(2, 3) / 2)
    p = p / p.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, (p * kept / 0.6) @ v, rtol=1e-12)


def test_wrong_operands_of_attention():
    q, k, v = qkv()
    cases = [
        (ShapeError, r"mask has shape \(1, 1, 3, 4\), expected \(2, 4, 3, 5\)",
         {"mask": ndl.Tensor(np.ones((3, 4), bool))}),
        (ShapeError, "mask has 5 axes", {"mask": ndl.Tensor(np.ones((1, 1, 1, 3, 5), bool))}),
        (DtypeError, "mask is int64", {"mask": ndl.Tensor(np.ones((3, 5), int))}),
        (OptionError, "dropout is 1.5", {"dropout": 1.5}),
        (IndexRangeError, "row 1 has length 6, there are 5 keys", {"key_lengths": [5, 6]}),
        (ShapeError, "lengths has shape", {"key_lengths": [5]}),
    ]  # fmt: skip
    for error, text, given in cases:
        with pytest.raises(error, match=text):
            sdpa(q, k, v, **given)
    with pytest.raises(ShapeError, match="q has 1 axes"):
        sdpa(q[0, 0, 0], k, v)
    with pytest.raises(ShapeError, match="do not fit together"):
        sdpa(q[:, :3], k, v)


# ---- rotary positions --------------------------------------------------------------


def test_products_of_turned_vectors_depend_on_the_difference_of_positions():
    q, k = tensor(1, 8), tensor(1, 8, seed=1)
    products = [
        (ops.rotary(q, i) * ops.rotary(k, i + 3)).sum().item() for i in (0, 5, 1000, 100_000)
    ]
    np.testing.assert_allclose(products, products[0], rtol=1e-9)
    assert abs((ops.rotary(q, 0) * ops.rotary(k, 4)).sum().item() - products[0]) > 1e-3


def test_positions_go_on_from_a_start_or_are_given():
    x = tensor(2, 5, 4)
    whole = ops.rotary(x).numpy()
    np.testing.assert_array_equal(ops.rotary(x[:, 2:], 2).numpy(), whole[:, 2:])
    np.testing.assert_array_equal(ops.rotary(x, ndl.arange(5)).numpy(), whole)
    with pytest.raises(ShapeError, match="even d"):
        ops.rotary(x[..., :3])

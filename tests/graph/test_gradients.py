"""Gradients of the graph: seeds, leaves, who gets one, and what the tensors know of it."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import constant, tensor

import needle as ndl
from needle import ops
from needle.errors import (
    DeviceError,
    DtypeError,
    GradientError,
    ShapeError,
)

# ---- gradients -----------------------------------------------------------------


def test_repeated_inputs_and_diamonds():
    x, y = tensor(3), tensor(3, seed=1)
    (x + x * y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 + y.numpy(), rtol=1e-6)
    np.testing.assert_allclose(y.grad.numpy(), x.numpy(), rtol=1e-6)
    (x / x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.zeros(3), atol=1e-6)
    a = x * 2.0
    left, right = a * 3.0, a * y
    ((left + right) * left).sum().backward()
    ax, yy = 2 * x.numpy(), y.numpy()
    np.testing.assert_allclose(x.grad.numpy(), 2 * (18 * ax + 6 * yy * ax), rtol=1e-5)


def test_non_scalar_results_and_seeds():
    x = tensor(2, 3)
    (x * x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy(), rtol=1e-6)
    seed = np.arange(6.0).reshape(2, 3)
    for given in (ndl.Tensor(seed), seed, seed.tolist()):
        (x * x).backward(given)
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() * seed, rtol=1e-6)
    with pytest.raises(ShapeError, match="out_grad has shape"):
        (x * x).backward(np.ones(3))


def test_gradients_of_gradients():
    third = ndl.grad(ndl.grad(ndl.grad(lambda x: x * x * x * x)))
    assert third(ndl.Tensor(2.0)).item() == pytest.approx(48.0)
    x = tensor(3)
    (x * x * x).sum().backward(create_graph=True)
    first = x.grad
    first.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.numpy(), rtol=1e-6)


def test_value_and_grad_takes_positions():
    x, y = tensor(3), tensor(3, seed=1)
    value, (gx, gy) = ndl.value_and_grad(lambda a, b: (a * b * b).sum(), (0, 1))(x, y)
    np.testing.assert_allclose(gx.numpy(), y.numpy() ** 2, rtol=1e-6)
    np.testing.assert_allclose(gy.numpy(), 2 * x.numpy() * y.numpy(), rtol=1e-6)
    assert value.shape == () and x.grad is None
    with pytest.raises(GradientError, match="expected a scalar"):
        ndl.grad(lambda a: a * 2.0)(x)


def test_the_same_tensor_at_two_positions():
    x = tensor(3)
    gx, gy = ndl.grad(lambda a, b: (a * b * b).sum(), (0, 1))(x, x)
    np.testing.assert_allclose(gx.numpy(), x.numpy() ** 2, rtol=1e-5)
    np.testing.assert_allclose(gy.numpy(), 2 * x.numpy() ** 2, rtol=1e-5)


def test_vjp_can_be_pulled_again():
    x = tensor(3)
    out, pull = ndl.vjp(lambda a: a * a, x)
    for factor in (1.0, 2.0):
        (found,) = pull(ndl.Tensor(np.full(3, factor)))
        np.testing.assert_allclose(found.numpy(), 2 * factor * x.numpy(), rtol=1e-6)
    assert out.shape == (3,)
    _, pull = ndl.vjp(lambda a: constant(3), x)
    np.testing.assert_array_equal(pull()[0].numpy(), np.zeros(3))


def test_no_grad_and_detach_make_no_graph():
    x = tensor(3)
    with ndl.no_grad():
        y = x * 2.0
    assert y.op is None and not y.requires_grad
    z = (x * 2.0).detach()
    assert z.op is None and not z.requires_grad
    with pytest.raises(GradientError, match="requires no gradient"):
        y.sum().backward()
    (x * (x * 2.0).detach()).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy(), rtol=1e-6)


def test_results_that_need_no_gradient_have_no_graph():
    y = constant(3) * 2.0
    assert y.op is None and y.inputs == [] and y.is_leaf()


def test_backward_replaces_or_accumulates():
    x = tensor(3)
    (x * 2.0).sum().backward()
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 3.0))
    (x * 3.0).sum().backward(accumulate=True)
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 6.0))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_what_is_done_to_one_gradient_in_place_is_done_to_no_other(lazy, create_graph, accumulate):
    """Both terms of a sum have the same gradient, and it was one tensor."""
    seed = ndl.Tensor([1.0, 2.0, 3.0], requires_grad=False)
    with ndl.lazy_mode(lazy):
        x, y = tensor(3), tensor(3, seed=1)
        out = x + y
        out.backward(seed, create_graph=create_graph, accumulate=accumulate)
        with ndl.no_grad():
            x.grad *= 10.0
            y.grad[0] = 7.0
        assert x.grad.tolist() == [10.0, 20.0, 30.0] and y.grad.tolist() == [7.0, 2.0, 3.0]
        assert out.grad.tolist() == seed.tolist() == [1.0, 2.0, 3.0]


def test_gradients_that_are_returned_are_tensors_of_their_own():
    x, y = tensor(3), tensor(3, seed=1)
    seed = ndl.Tensor([1.0, 2.0, 3.0], requires_grad=False)
    for dx, dy in (
        ndl.vjp(lambda x, y: x + y, x, y)[1](seed),
        ndl.grad(lambda x, y: ((x + y) * seed).sum(), (0, 1))(x, y),
        ndl.grad(lambda x, y: (x * seed).sum(), (0, 0))(x, y),
    ):
        with ndl.no_grad():
            dx *= 10.0
        assert dx.tolist() == [10.0, 20.0, 30.0] and dy.tolist() == seed.tolist()
    assert seed.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["float64", "float16", "int64"])
def test_a_seed_takes_the_dtype_of_the_result(kind):
    """As in PyTorch: gradients have the dtype of what they are gradients of."""
    x = tensor(3)
    seed = ndl.Tensor([1, 2, 3], dtype=kind, requires_grad=False)
    (x + 1.0).backward(seed)
    assert x.grad.dtype == "float32" and x.grad.tolist() == [1.0, 2.0, 3.0]
    (dx,) = ndl.vjp(lambda x: x * 2.0, x)[1](seed)
    assert dx.dtype == "float32" and dx.tolist() == [2.0, 4.0, 6.0]


def test_a_seed_is_where_the_result_is():
    x = tensor(3)
    with pytest.raises(DeviceError, match=r"backward: .*\n.*\n  out_grad: .* meta\(\)"):
        (x + 1.0).backward(ndl.ones(3, device=ndl.meta()))


@pytest.mark.parametrize("seed", ["one", {"a": 1}, [1j, 2j, 3j], [None] * 3])
def test_a_seed_or_a_tangent_is_made_of_numbers(seed):
    x = tensor(3)
    with pytest.raises(DtypeError, match="backward: .* for a float32 tensor"):
        (x * 2.0).backward(seed)
    with pytest.raises(DtypeError, match="vjp: .* for a float32 tensor"):
        ndl.vjp(lambda x: x * 2.0, x)[1](seed)
    with pytest.raises(DtypeError, match="jvp: .* for a float32 tensor"):
        ndl.jvp(lambda x: x * 2.0, (x,), (seed,))
    with pytest.raises(ShapeError, match="shapes"):
        (x * 2.0).backward([[1.0], [2.0, 3.0]])
    with pytest.raises(ShapeError, match="vjp: out_grad has shape"):
        ndl.vjp(lambda x: x * 2.0, x)[1]([1.0, 2.0])


def test_what_is_no_floating_scalar_has_no_gradient():
    x = tensor(3)
    for function, kind in ((lambda x: x.argmax(), "int64"), (lambda x: (x > 0.0).any(), "bool")):
        with pytest.raises(GradientError, match=f"a floating scalar .* got {kind}"):
            ndl.grad(function)(x)


def test_intermediates_that_are_held_get_their_gradient():
    x = tensor(3)
    y = x * 2.0
    (y * y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), 2 * y.numpy(), rtol=1e-6)


def test_requires_grad_can_be_changed():
    x = tensor(3)
    x.requires_grad = False
    assert not (x * 2.0).requires_grad
    x.requires_grad_()
    (x * 2.0).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("lazy", [False, True])
def test_a_result_without_gradient_becomes_a_leaf(lazy):
    x = ndl.Tensor([1.0, 2.0], requires_grad=False)
    with ndl.lazy_mode(lazy):
        for make in (lambda: x * 2.0, lambda: (ndl.Tensor([1.0, 2.0]) * 2.0).detach()):
            y = make().requires_grad_()
            assert y.requires_grad and y.is_leaf() and y.op is None
            (y * y).sum().backward()
            assert y.grad.tolist() == [4.0, 8.0] and x.grad is None
            y.requires_grad = False
            assert not (y * 2.0).requires_grad


@pytest.mark.parametrize("lazy", [False, True])
def test_a_result_with_gradient_cannot_be_told_to_need_none(lazy):
    with ndl.lazy_mode(lazy):
        y = ndl.Tensor([1.0, 2.0]) * 2.0
        y.requires_grad = True
        with pytest.raises(GradientError, match=r"the result of multiply\n[^$]*detach"):
            y.requires_grad = False
        assert y.requires_grad


def test_integers_and_bools_never_require_gradients():
    for kind in ("int32", "bool"):
        x = ndl.Tensor([0, 1], dtype=kind)
        x.requires_grad = True
        assert not x.requires_grad and not x.reshape(2, 1).requires_grad


def test_the_mode_is_a_setting_like_others():
    with ndl.config(mode="lazy"):
        waits = ndl.ones(3) + 1.0
        assert waits.array is None
        with ndl.config(mode="eager"), ndl.lazy_mode(), ndl.config(debug=1):
            assert (ndl.ones(3) + 1.0).array is None
        with ndl.config(mode="eager"):
            assert (ndl.ones(3) + 1.0).array is not None
        assert (ndl.ones(3) + 1.0).array is None
    assert (ndl.ones(3) + 1.0).array is not None
    assert waits.numpy().tolist() == [2.0, 2.0, 2.0]


def test_what_is_known_of_a_tensor_needs_no_value():
    with ndl.lazy_mode():
        x = ndl.ones(2, 3) + 1.0
        assert (x.shape, x.ndim, x.size) == ((2, 3), 2, 6) and x.array is None
        assert x.dtype is ndl.float32 and x.device == ndl.default_device()
        pair = ops.make_tuple(x, x)
    for name in ("shape", "dtype", "device", "ndim", "size"):
        assert not hasattr(pair, name)


def test_tuples_carry_gradients():
    x = tensor(3)
    pair = ops.make_tuple(x, x * 2.0)
    assert len(pair) == 2 and repr(pair).startswith("needle.TensorTuple")
    (pair[0] * pair[-1]).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.numpy(), rtol=1e-6)
    total = ops.make_tuple(x, x) + ops.make_tuple(x, x)
    np.testing.assert_allclose(total[1].numpy(), 2 * x.numpy(), rtol=1e-6)
    with pytest.raises(IndexError):
        pair[2]
    with ndl.lazy_mode():
        lazy = ops.make_tuple(x, x * 2.0)
        assert lazy.array is None and lazy[1].shape == (3,)
        (lazy[0] * lazy[1]).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.numpy(), rtol=1e-6)


# ---- tensors made of tensors ---------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_a_leaf_made_of_a_list_of_results_is_refused(lazy):
    """It was a constant, and the gradient silently lost."""
    makes = [
        lambda x: ndl.Tensor([x[0] * x[1], x[2]]), lambda x: ndl.Tensor((x * 2.0, x * x)),
        lambda x: ndl.Tensor([[1.0, 2.0], [3.0, x[0]]], dtype="float64"),
        lambda x: ndl.nn.Parameter([1, x.sum()]), lambda x: [2.0 * x[0], 1.0, 2.0] @ x,
    ]  # fmt: skip
    said = r"Tensor: the list holds a result(?s:.*)element: float32\[(?s:.*)ops\.stack"
    with ndl.lazy_mode(lazy):
        for make in makes:
            for call in (lambda: make(tensor(3)), lambda: ndl.jvp(make, constant(3), 1.0),  # noqa: B023
                         lambda: ndl.grad(lambda x: make(x).sum())(tensor(3))):  # noqa: B023  # fmt: skip
                with pytest.raises(GradientError, match=said):
                    call()


@pytest.mark.parametrize("lazy", [False, True])
def test_lists_of_leaves_and_of_what_needs_no_gradient_are_data(lazy):
    with ndl.lazy_mode(lazy):
        x = tensor(3)
        a, b = ndl.Tensor(1.0), ndl.Tensor(2.0)
        assert ndl.Tensor([a, b]).tolist() == [1.0, 2.0] and ndl.Tensor([a, b]).requires_grad
        assert ndl.Tensor([[a, 3], [b, 4.0]]).tolist() == [[1.0, 3.0], [2.0, 4.0]]
        assert ndl.Tensor([(a * b).detach(), a]).tolist() == [2.0, 1.0]
        assert ndl.Tensor([a * b, a], requires_grad=False).tolist() == [2.0, 1.0]
        assert ndl.Tensor([a * b, a], dtype="int64").tolist() == [2, 1]
        assert ndl.Tensor([[x.argmax(), x.argmax() + 1]]).dtype == "int64"
        with ndl.no_grad():
            assert ndl.Tensor([a * b, a]).requires_grad
        x.data = [a * b, a, b]  # detached, as its name says
        assert x.is_leaf() and x.tolist() == [2.0, 1.0, 2.0]
        half = ndl.Tensor(2.0, dtype="bfloat16")
        assert ndl.Tensor([[half, half]]).dtype == "bfloat16"
        still = ndl.jvp(lambda x: ndl.Tensor([ops.stop_gradient(x) * 2.0, 1.0]), b.detach(), 1.0)
        assert still[0].tolist() == [4.0, 1.0] and still[1].tolist() == [0.0, 0.0]
        assert ndl.Tensor(x * 2.0).is_leaf()
    with pytest.raises(ShapeError, match=r"of shapes \(\), \(3,\)"):
        ndl.Tensor([a, x])

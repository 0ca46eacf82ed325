"""Forward mode: values and tangents, in any order of nesting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from forward_mode import close, slope, tensor

import needle as ndl
from needle import ops

# ---- values --------------------------------------------------------------------------


def test_a_value_and_its_tangent(device, mode):
    x, v = tensor([0.5, 2.0], device), tensor([1.0, -3.0], device)
    out, tangent = ndl.jvp(lambda x: ops.sin(x) * x, (x,), (v,))
    assert out.spec == x.spec and tangent.spec == x.spec
    close(out, np.sin(x.numpy()) * x.numpy())
    close(tangent, (np.cos(x.numpy()) * x.numpy() + np.sin(x.numpy())) * v.numpy())
    assert not out.requires_grad and not tangent.requires_grad


def test_the_value_is_that_of_the_function_itself(device):
    """Also where a device computes an op as a whole and the tangent needs the expansion."""
    x = ndl.Tensor(np.linspace(-2, 2, 12).reshape(3, 4), device=device, requires_grad=False)
    weight = ops.ones_like(x)[0]
    for f in (ops.softmax, lambda x: ops.layer_norm(x, weight), ops.logsumexp):
        out, _ = ndl.jvp(f, (x,), (x,))
        assert out.numpy().tobytes() == f(x).numpy().tobytes()


def test_one_primal_needs_no_tuple_and_a_tangent_may_be_a_number_an_array_or_none():
    x = tensor([1.0, 2.0])
    close(ndl.jvp(ops.square, x, 1.0)[1], [2.0, 4.0])
    close(ndl.jvp(ops.square, [x], [np.array([0.5, 0.0])])[1], [1.0, 0.0])
    close(ndl.jvp(lambda x, y: x * y, (x, tensor(3.0)), (None, 1.0))[1], [1.0, 2.0])
    close(ndl.jvp(ops.square, (x,), (None,))[1], [0.0, 0.0])


def test_the_structure_of_the_result_is_kept():
    def f(x):
        return [x * 2.0, (ops.argmax(x), ops.split(x)), ops.stop_gradient(x)]

    x = tensor([1.0, 3.0])
    out, tangent = ndl.jvp(f, (x,), (tensor([5.0, 7.0]),))
    assert isinstance(out, list) and isinstance(tangent[1], tuple)
    close(tangent[0], [10.0, 14.0])
    assert tangent[1][0] is None and out[1][0].item() == 1
    close(tangent[1][1][1], 7.0)
    close(tangent[2], [0.0, 0.0])


class Pair(NamedTuple):
    value: Any
    twice: Any


def test_named_tuples_stay_what_they_are(mode):
    x, function = tensor([1.0, 2.0], requires_grad=True), lambda x: Pair(x, [x * 2.0])
    out, slope = ndl.jvp(function, x, 1.0)
    assert out.twice[0].tolist() == [2.0, 4.0] and slope.twice[0].tolist() == [2.0, 2.0]
    for found in (
        ndl.vjp(function, x)[0],
        ndl.linearize(function, x)[1](1.0),
        ndl.checkpoint(function)(x),
    ):
        assert type(found) is Pair and found.twice[0].shape == (2,)


def test_what_is_detached_or_rounded_has_no_tangent(device, mode):
    x = tensor([1.5, 2.0], device)
    for f in (lambda x: x.detach() * 2.0, ops.floor, ops.stop_gradient, lambda x: x * 0.0 + 1.0):
        close(ndl.jvp(f, (x,), (x,))[1], [0.0, 0.0])
    close(ndl.jvp(lambda x: x.detach() * x, (x,), (x,))[1], [2.25, 4.0])


def test_values_can_be_read_on_the_way(mode):
    def f(x):
        assert x.numpy().tolist() == [1.0, -2.0] and x[0].item() == 1.0
        assert str(x) and repr(x) and float(x.sum()) == -1.0
        return x * 3.0 if x.sum() < 0 else x

    close(ndl.jvp(f, (tensor([1.0, -2.0]),), (1.0,))[1], [3.0, 3.0])


def test_assignment_carries_the_tangent(mode):
    def f(x):
        y = ops.zeros((3,), dtype="float64")
        y[1] = x[0] * 2.0
        x = x * 1.0
        x[1] = 5.0
        return y, x

    _, (y, x) = ndl.jvp(f, (tensor([3.0, 4.0]),), (tensor([1.0, 10.0]),))
    close(y, [0.0, 2.0, 0.0])
    close(x, [1.0, 0.0])


def test_a_selection_ignores_what_it_leaves_out():
    def f(x):
        return ops.where(x > 0, ops.sqrt(x), 0.0)

    close(ndl.jvp(f, (tensor([4.0, 0.0]),), (1.0,))[1], [0.25, 0.0])


def test_dtypes(device):
    for kind in ("float32", "float16", "bfloat16"):
        x = ndl.Tensor([1.0, 2.0], dtype=kind, device=device, requires_grad=False)
        out, tangent = ndl.jvp(lambda x: ops.exp(x).astype("float32"), (x,), (x,))
        assert out.dtype == tangent.dtype == "float32"
        np.testing.assert_allclose(tangent.numpy(), np.exp([1, 2]) * [1, 2], rtol=2e-2)


# ---- nesting -------------------------------------------------------------------------


def test_derivatives_do_not_see_each_other(device, mode):
    """Siskind and Pearlmutter's example: d/dx (x * d/dy (x + y)) is 1, not 2."""
    x = tensor(1.0, device)

    def inner(x):
        return slope(lambda y: x + y)(ops.ones_like(x))

    close(slope(lambda x: x * inner(x))(x), 1.0)
    close(ndl.grad(lambda x: x * inner(x))(x), 1.0)

    def reverse(x):
        return ndl.grad(lambda y: x + y)(ops.ones_like(x))

    close(slope(lambda x: x * reverse(x))(x), 1.0)


DERIVATIVES = {
    "grad": lambda f, x: ndl.grad(lambda x: f(x).sum())(x).tolist(),
    "vjp": lambda f, x: ndl.vjp(f, x)[1]()[0].tolist(),
    "jacobian": lambda f, x: ndl.jacobian(f)(x).numpy().sum(0).tolist(),
    "linearize": lambda f, x: [ndl.linearize(f, x)[1](v).sum().item() for v in np.eye(3)],
    "jvp": lambda f, x: [ndl.jvp(f, x, v)[1].sum().item() for v in np.eye(3)],
    "checkpoint": lambda f, x: ndl.grad(lambda x: ndl.checkpoint(f)(x).sum())(x).tolist(),
    "checkpoint, backward": lambda f, x: _of_backward(ndl.checkpoint(f), x),
}


def _of_backward(function, x):
    x = x.detach().requires_grad_()
    function(x).sum().backward()
    return x.grad.tolist()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_function_may_assign_to_its_arguments(name, mode, requires_grad):
    """Derivatives are with respect to what it was given, not to what it has made of that."""

    def function(x):
        x[0] = 5.0
        x[1] = x[2] * x[2]
        return x * x

    x = tensor([1.0, 2.0, 3.0], requires_grad=requires_grad)
    assert DERIVATIVES[name](function, x) == [0.0, 0.0, 2 * 9 * 6 + 6.0]
    assert x.tolist() == [1.0, 2.0, 3.0] and x.is_leaf()


def test_a_function_may_assign_to_arguments_without_tangent(mode):
    def function(x, y):
        y[0] = x[0]
        return x * y

    x, y = tensor([1.0, 2.0]), tensor([4.0, 5.0])
    out, slope = ndl.jvp(function, (x, y), (1.0, None))
    close(out, [1.0, 10.0])
    close(slope, [2.0, 5.0])
    assert y.tolist() == [4.0, 5.0] and y.is_leaf()
    close(ndl.jvp(lambda x: x * y, x, 1.0)[1], [4.0, 5.0])


def test_a_result_may_be_assigned_to_before_its_gradient_is_pulled(mode):
    x = tensor([1.0, 2.0, 3.0])
    out, pull = ndl.vjp(lambda x: x * x, x)
    out[0] = 100.0
    assert pull(np.ones(3))[0].tolist() == [2.0, 4.0, 6.0]
    out, push = ndl.linearize(lambda x: x * x, x)
    out[0] = 100.0
    assert push(np.ones(3)).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("way", [ndl.grad, ndl.jacobian])
def test_a_position_may_be_asked_for_twice(way):
    x, y = tensor([2.0, 3.0], requires_grad=True), tensor([5.0, 7.0])
    first, second = way(lambda x, y: (x * y).sum(), (0, -2))(x, y)
    assert first.tolist() == second.tolist() == [5.0, 7.0]


def test_any_order_of_forward_and_reverse(device, mode):
    x = tensor(0.7, device)

    def f(x):
        return ops.sin(x) * ops.exp(x)

    sin, cos, exp = np.sin(0.7), np.cos(0.7), np.exp(0.7)
    exact = {1: exp * (sin + cos), 2: 2 * exp * cos, 3: 2 * exp * (cos - sin)}
    for order, expected in exact.items():
        for kinds in range(2**order):
            g = f
            for i in range(order):
                g = ndl.grad(g) if kinds >> i & 1 else slope(g)
            assert g(x).item() == pytest.approx(expected, rel=1e-12), f"{order} {kinds:b}"


def test_the_gradient_reaches_what_a_jvp_used():
    """Of a tangent with respect to the point, the direction and a captured tensor."""
    x, v, w = (tensor(np.array(n), requires_grad=True) for n in (2.0, 3.0, 5.0))
    _, tangent = ndl.jvp(lambda x: w * x * x, (x,), (v,))
    tangent.backward()
    assert (x.grad.item(), v.grad.item(), w.grad.item()) == (30.0, 20.0, 12.0)


def test_backward_inside():
    def f(w):
        w.requires_grad = True
        (w * w * w).sum().backward(create_graph=True)
        return w.grad

    close(ndl.jvp(f, (tensor([2.0]),), (1.0,))[1], [12.0])


def test_lower_levels_stay_constant():
    x, y = tensor(2.0), tensor(3.0)

    def f(x):
        return ndl.jvp(lambda y: x * y * y, (y,), (x,))[1]  # 2 x^2 y

    close(slope(f)(x), 4 * 2.0 * 3.0)

"""Forward mode: jvp, linearize, jacobian, hvp, in any order of nesting."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import pytest

import needle as ndl
from needle import graph, nn, ops, standard
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    IndexRangeError,
    OptionError,
    ShapeError,
)


@pytest.fixture(params=["eager", "lazy"])
def mode(request):
    with ndl.lazy_mode(request.param == "lazy"):
        yield request.param


def tensor(values, device=None, requires_grad=False):
    return ndl.Tensor(values, dtype="float64", device=device, requires_grad=requires_grad)


def slope(function):
    """The derivative of a scalar function of a scalar, by forward mode."""
    return lambda x: ndl.jvp(function, (x,), (ops.ones_like(x),))[1]


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


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


# ---- linearize, jacobian, hvp --------------------------------------------------------


def f_of_two(x, y):
    return ops.tanh(x @ y), (x * x).sum()


def test_linearize(device, mode):
    rng = np.random.default_rng(0)
    x, y, v, w = (tensor(rng.standard_normal(s), device) for s in [(2, 3), (3, 4)] * 2)
    calls = []
    out, push = ndl.linearize(lambda x, y: calls.append(1) or f_of_two(x, y), x, y)
    expected_out, expected = ndl.jvp(f_of_two, (x, y), (v, w))
    for a, b in zip((*out, *push(v, w)), (*expected_out, *expected), strict=True):
        close(a, b.numpy())
    close(push(v, None)[1], 2 * (x.numpy() * v.numpy()).sum())
    close(push(None, 0.0)[0], np.zeros((2, 4)))
    assert len(calls) == 1


def test_linearize_can_be_differentiated():
    x = tensor([2.0, 3.0], requires_grad=True)
    _, push = ndl.linearize(lambda x: x * x * x, x)
    push(tensor([1.0, 1.0])).sum().backward()
    close(x.grad, [12.0, 18.0])
    out, tangent = ndl.jvp(push, (tensor([1.0, 1.0]),), (tensor([0.0, 2.0]),))
    close(out.detach(), [12.0, 27.0])
    close(tangent.detach(), [0.0, 54.0])

    def inside(x):
        return ndl.linearize(lambda x: x * x * x, x)[1](1.0)

    close(ndl.jvp(inside, (x.detach(),), (1.0,))[1], [12.0, 18.0])


@pytest.mark.parametrize("way", ["forward", "reverse", None])
@pytest.mark.parametrize(
    "shapes", [((2, 3), (4,)), ((), (2, 2)), ((2,), ()), ((0,), (3,)), ((2,), (0, 3))]
)
def test_jacobian(device, way, shapes):
    (n, m), rng = shapes, np.random.default_rng(0)
    weight = rng.standard_normal((*m, *n))
    w = tensor(weight.reshape(int(np.prod(m)), int(np.prod(n))), device)

    def f(x):
        return (w @ ops.reshape(x * x, (int(np.prod(n)), 1))).reshape(m)

    x = rng.standard_normal(n)
    found = ndl.jacobian(f, mode=way)(tensor(x, device))
    assert found.shape == m + n
    close(found, 2 * weight * x)


def test_jacobian_takes_the_shorter_way_and_runs_the_function_once(monkeypatch):
    from needle import derivatives

    ways = []
    for name in ("_rows", "_columns"):
        kept = getattr(derivatives, name)
        monkeypatch.setattr(
            derivatives, name, lambda *a, name=name, kept=kept: ways.append(name) or kept(*a)
        )
    calls = []
    ndl.jacobian(lambda x: calls.append(1) or x.sum())(tensor([1.0, 2.0]))
    ndl.jacobian(lambda x: calls.append(1) or ops.stack([x, x, x]))(tensor([1.0, 2.0]))
    assert ways == ["_rows", "_columns"] and len(calls) == 2


def test_jacobians_of_several_arguments_and_of_jacobians(mode):
    x, y = tensor([1.0, 2.0]), tensor([3.0])
    a, b = ndl.jacobian(lambda x, y: x * x * y, (0, 1))(x, y)
    close(a, np.diag([6.0, 12.0]))
    close(b, [[1.0], [4.0]])
    for outer in ("forward", "reverse"):
        for inner in ("forward", "reverse"):
            hessian = ndl.jacobian(ndl.jacobian(lambda x: x * x * x, mode=inner), mode=outer)(x)
            assert hessian.shape == (2, 2, 2)
            close(hessian[0, 0, 0] + hessian[1, 1, 1], 6.0 + 12.0)
            close(ops.absolute(hessian).sum(), 18.0)


def test_hessian(mode):
    rng = np.random.default_rng(0)
    x, y = tensor(rng.standard_normal((2, 2))), tensor(rng.standard_normal(3))

    def f(x, y, scale=1.0):
        return scale * ops.exp(x).sum() * ops.sin(y).sum() + (x[0] * x[1]).sum()

    one = ndl.hessian(f)(x, y, scale=2.0)
    assert one.shape == (2, 2, 2, 2)
    close(one, ndl.jacobian(lambda x: ndl.grad(f)(x, y, scale=2.0))(x).numpy())
    ((xx, xy), (yx, yy)) = ndl.hessian(f, (0, 1))(x, y)
    close(xy, (ops.exp(x)[:, :, None] * ops.cos(y)).numpy())
    close(yx, xy.numpy().transpose(2, 0, 1))
    close(yy, np.diag(-np.sin(y.numpy()) * np.exp(x.numpy()).sum()))
    assert xx.shape == one.shape
    ((again,),) = ndl.hessian(f, (-1,))(x, y)
    close(again, yy.numpy())
    close(ndl.hessian(lambda x: x**3)(tensor(2.0)), 12.0)
    corner = tensor([0.0, 1.0])  # a length curves across its direction, where elements are 0 too
    for length in (ops.norm, standard.linalg.vector_norm):
        close(ndl.hessian(lambda x, length=length: length(x))(corner), [[1.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: ndl.hessian(lambda x: x)(x), GradientError, "scalar"),
        (lambda x: ndl.hessian(3), ArgumentError, "hessian: takes a function"),
        (lambda x: ndl.hessian(lambda x: x.sum(), 1)(x), IndexRangeError, "argument"),
    ],
)
def test_hessian_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call(tensor([1.0, 2.0]))


def test_hvp_is_the_hessian_times_the_vector(device, mode):
    rng = np.random.default_rng(0)
    x, y, v, w = (tensor(rng.standard_normal(n), device) for n in (3, 2, 3, 2))

    def f(x, y):
        return (ops.exp(x).sum() * ops.sin(y).sum()) ** 2

    xx, xy, yx, yy = (
        ndl.jacobian(lambda *z, k=k: ndl.grad(f, k)(*z), j)(x, y) for k in (0, 1) for j in (0, 1)
    )
    found = ndl.hvp(f, (x, y), (v, w))
    close(found[0], (xx @ v + xy @ w).numpy())
    close(found[1], (yx @ v + yy @ w).numpy())
    close(ndl.hvp(lambda x: f(x, y), x, v), (xx @ v).numpy())


# ---- memory --------------------------------------------------------------------------


def living(depth, requires_grad):
    """How many tensors live when a chain of this depth was pushed through."""
    count = 0

    def f(x):
        nonlocal count
        for _ in range(depth):
            x = ops.sin(x) * 1.5
        count = graph.live_tensors()
        return x

    x = tensor([0.3], requires_grad=requires_grad)
    before = graph.live_tensors()
    with ndl.no_grad():
        ndl.jvp(f, (x,), (x,))
    return count - before


@pytest.mark.parametrize("requires_grad", [False, True])
def test_memory_does_not_grow_with_depth(requires_grad):
    living(3, requires_grad)  # fills caches
    gc.collect()
    assert living(300, requires_grad) == living(30, requires_grad)


def test_nothing_is_recorded_where_no_input_requires_a_gradient(request):
    x = tensor([0.3])

    def compute():
        return ndl.jvp(lambda x: ops.softmax(ops.sort(x) @ ops.eye(1, dtype="float64")), (x,), (x,))

    compute()  # fills caches
    request.getfixturevalue("no_collector")
    before = graph.live_tensors()
    out, tangent = compute()
    assert graph.live_tensors() == before + 2
    assert out.op is None and tangent.op is None


# ---- regions, modules, random numbers -----------------------------------------------


def test_through_checkpoint(mode):
    x = tensor([0.5, 1.0])
    w = tensor([2.0, 3.0], requires_grad=True)

    def plain(x):
        return (ops.exp(x) * w * x).sum()

    region = ndl.checkpoint(plain)
    close(ndl.jvp(region, (x,), (x,))[1].detach(), ndl.jvp(plain, (x,), (x,))[1].item())
    close(ndl.hvp(region, x, x).detach(), ndl.hvp(plain, x, x).detach().numpy())
    close(ndl.grad(slope(lambda t: region(x * t)))(tensor(1.0)).detach(),
          ndl.grad(slope(lambda t: plain(x * t)))(tensor(1.0)).item())  # fmt: skip
    close(ndl.jacobian(region, mode="forward")(x).detach(), ndl.grad(plain)(x).detach().numpy())


def test_custom_gradient_is_transposed(mode):
    @ndl.custom_gradient
    def doubled_slope(x, y):
        e = ops.exp(x)
        return e * y, lambda g: (2.0 * g * e * y, g * e)

    x, y = tensor([0.5, 1.0]), tensor([2.0, 3.0])
    e = np.exp(x.numpy())
    close(ndl.jvp(doubled_slope, (x, y), (1.0, None))[1], 2 * e * y.numpy())
    close(ndl.jvp(doubled_slope, (x, y), (None, 1.0))[1], e)

    def total(x):
        return doubled_slope(x, y).sum()

    for second in (ndl.hvp(total, x, 1.0), ndl.grad(lambda x: ndl.grad(total)(x).sum())(x),
                   ndl.jvp(lambda x: ndl.jvp(doubled_slope, (x, y), (1.0, None))[1], x, 1.0)[1],
                   ndl.grad(lambda x: ndl.jvp(total, x, 1.0)[1])(x)):  # fmt: skip
        # the slope of the rule, 2 e y, by the rule's own ops
        close(second, 2 * e * y.numpy())
    close(ndl.linearize(lambda x: doubled_slope(x, y), x)[1](1.0), 2 * e * y.numpy())


RULES = [
    lambda g: ops.clip(g, -1.0, 1.0),
    ops.relu,
    lambda g: g + 1e-3,
    lambda g: g / ops.absolute(g).sum(),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_custom_gradient_that_is_not_linear_is_refused(rule):
    clipped = ndl.custom_gradient(lambda x: (x, rule))
    x = tensor([0.5])
    ndl.grad(lambda x: clipped(x).sum())(x)
    for call in (lambda: ndl.jvp(clipped, x, 1.0), lambda: ndl.linearize(clipped, x)):
        with pytest.raises(GradientError, match="not linear in out_grad"):
            call()


def test_dropout_draws_once():
    ndl.manual_seed(3)
    x = tensor(np.arange(1.0, 101.0))
    out, tangent = ndl.jvp(lambda x: ops.dropout(x, 0.5), (x,), (x,))
    assert 20 < np.count_nonzero(out.numpy()) < 80
    close(tangent, out.numpy())


def test_batch_norm_module_keeps_plain_statistics(mode):
    layer, plain = nn.BatchNorm1d(3, dtype="float64"), nn.BatchNorm1d(3, dtype="float64")
    x = tensor(np.random.default_rng(0).standard_normal((5, 3)))

    def f(x):
        return (layer(x) ** 2).sum(axis=0)

    out, tangent = ndl.jvp(f, (x,), (tensor(np.eye(5, 3)),))
    plain(x)
    close(layer.running_mean, plain.running_mean.numpy())
    close(layer.running_var, plain.running_var.numpy())
    step = 1e-6
    moved = [f(tensor(x.numpy() + s * np.eye(5, 3))).detach().numpy() for s in (step, -step)]
    np.testing.assert_allclose(tangent.detach().numpy(), (moved[0] - moved[1]) / 2e-6, atol=1e-8)
    layer.eval()
    close(ndl.jvp(layer, (x,), (x,))[0].detach(), layer(x).detach().numpy())


def test_a_model_of_layers():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2))
    x = ndl.Tensor(np.random.default_rng(0).standard_normal((4, 3)), requires_grad=False)

    def loss(x):
        return nn.SoftmaxLoss()(model(x), ndl.Tensor([0, 1, 1, 0], requires_grad=False))

    v = ops.ones_like(x)
    expected = (ndl.grad(loss)(x) * v).sum()
    np.testing.assert_allclose(ndl.jvp(loss, x, v)[1].item(), expected.item(), rtol=1e-4)


# ---- errors --------------------------------------------------------------------------


def test_errors():
    x = tensor([1.0, 2.0])
    whole = ndl.Tensor(np.array([1, 2]))
    with pytest.raises(GradientError, match="2 tangents for 1 primals"):
        ndl.jvp(ops.exp, (x,), (x, x))
    with pytest.raises(ShapeError, match="another shape"):
        ndl.jvp(ops.exp, (x,), (tensor([1.0]),))
    with pytest.raises(DtypeError, match="dtype or device"):
        ndl.jvp(ops.exp, (x,), (x.astype("float32"),))
    with pytest.raises(DtypeError, match="int64"):
        ndl.jvp(ops.exp, (whole,), (1.0,))
    with pytest.raises(DtypeError, match="int64"):
        ndl.jacobian(ops.exp)(whole)
    with pytest.raises(GradientError, match="primals are tensors, not list"):
        ndl.linearize(ops.exp, [1.0])
    with pytest.raises(GradientError, match="returned float"):
        ndl.jvp(lambda x: x.sum().item(), (x,), (x,))
    with pytest.raises(OptionError, match="mode 'sideways'"):
        ndl.jacobian(ops.exp, mode="sideways")
    with pytest.raises(GradientError, match="one tensor, not tuple"):
        ndl.jacobian(lambda x: (x, x))(x)
    with pytest.raises(GradientError, match="floating"):
        ndl.jacobian(ops.argmax)(x)
    with pytest.raises(GradientError, match="a scalar is"):
        ndl.hvp(ops.exp, x, x)
    _, push = ndl.linearize(ops.exp, x)
    with pytest.raises(GradientError, match="0 tangents for 1 primals"):
        push()
    with pytest.raises(ShapeError, match="matmul"):
        ndl.jvp(lambda x: x.reshape(2, 1) @ x.reshape(2, 1), (x,), (x,))


def test_an_integer_input_takes_none():
    x, index = tensor([[1.0, 2.0]]), ndl.Tensor(np.array([1]))
    out, tangent = ndl.jvp(lambda x, i: ops.take(x, i, 1), (x, index), (x, None))
    close(tangent, [[2.0]])


def test_a_result_may_outlive_its_jvp():
    """A tensor that a function puts aside still has its value, and can be computed with."""
    aside = []
    ndl.jvp(lambda x: aside.append(x * 2.0) or x, (tensor([3.0]),), (1.0,))
    assert aside[0].item() == 6.0 and (aside[0] + 1.0).numpy() == [7.0]
    close(ndl.jvp(lambda x: x * aside[0], (tensor([1.0]),), (1.0,))[1].detach(), [6.0])


def test_vjp_of_several_results(mode):
    x, u, v = tensor([2.0, 3.0]), tensor([1.0, -1.0]), tensor(5.0)
    out, pull = ndl.vjp(lambda x: (x * x, [x.sum(), ops.argmax(x)]), x)
    assert isinstance(out, tuple) and isinstance(out[1], list)
    expected = 2 * x.numpy() * u.numpy() + 5.0
    for found in (pull(u, [v, None]), pull((u, [v, None])), pull((u, (5.0, None)))):
        close(found[0], expected)
    close(pull()[0], 2 * x.numpy() + 1.0)
    close(pull(None, (v, None))[0], [5.0, 5.0])
    close(ndl.grad(lambda x: pull(u, (v, None))[0].sum() + x.sum())(x), [1.0, 1.0])
    _, pull = ndl.vjp(ops.split, x)
    close(pull((v, None))[0], [5.0, 0.0])
    close(pull(ops.split(u))[0], u.numpy())


def test_vjp_of_several_results_can_be_differentiated(mode):
    def norm_of_pulled(x):
        _, pull = ndl.vjp(lambda x: (x * x, x * x * x), x)
        return pull(x, ops.ones_like(x))[0].sum()  # 2 x^2 + 3 x^2

    close(ndl.grad(norm_of_pulled)(tensor([2.0])), [20.0])
    close(ndl.jvp(norm_of_pulled, tensor([2.0]), 1.0)[1], 20.0)


def test_keyword_arguments_are_passed_on():
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])

    def f(x, *, scale, other):
        return (x * x * scale * other).sum()

    close(ndl.grad(f)(x, scale=2.0, other=y), [12.0, 32.0])
    close(ndl.value_and_grad(f)(x, scale=2.0, other=y)[0], 38.0)
    close(ndl.jacobian(f)(x, scale=2.0, other=y), [12.0, 32.0])


def test_custom_gradient_of_several_results(mode):
    @ndl.custom_gradient
    def both(x, y):
        return (x * y, x.sum(), ops.argmax(x)), lambda g: (
            3.0 * g[0] * y + g[1],
            g[0] * x,
        )

    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    out = both(x, y)
    assert isinstance(out, tuple) and len(out) == 3 and out[2].item() == 1
    close(ndl.grad(lambda x: both(x, y)[0].sum())(x), 3 * y.numpy())
    close(ndl.grad(lambda x: both(x, y)[1])(x), [1.0, 1.0])
    gx, gy = ndl.grad(lambda x, y: both(x, y)[0].sum() + 2.0 * both(x, y)[1], (0, 1))(x, y)
    close(gx, 3 * y.numpy() + 2.0)
    close(gy, x.numpy())
    _, tangent = ndl.jvp(both, (x, y), (1.0, None))
    close(tangent[0], 3 * y.numpy())
    close(tangent[1], 2.0)
    assert tangent[2] is None
    push = ndl.linearize(lambda x: both(x, y)[0], x)[1]
    close(push(1.0), 3 * y.numpy())
    close(ndl.hvp(lambda x: (both(x, x)[0]).sum(), x, 1.0), [4.0, 4.0])


WRONG = {
    "pull of too few": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x), GradientError, "1 for a tuple of 2 results",
    ),
    "pull of too many": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x, x, x), GradientError, "3 for a tuple of 2",
    ),
    "pull of two for one": (
        lambda x: ndl.vjp(ops.exp, x)[1](x, x), GradientError, "2 gradients of one result",
    ),
    "pull of another shape": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x, x[0]), ShapeError, "shape",
    ),
    "vjp of no tensor": (
        lambda x: ndl.vjp(ops.exp, 3.0), GradientError, "argument 0 is float, not a tensor",
    ),
    "vjp to no tensor": (
        lambda x: ndl.vjp(lambda x: {"a": x}, x), GradientError, "vjp: the function returned dict",
    ),
    "grad of no such argument": (
        lambda x: ndl.grad(ops.exp, 3)(x), IndexRangeError, "argnums 3 of 1 positional",
    ),
    "jacobian of no such argument": (
        lambda x: ndl.jacobian(ops.exp, (0, 4))(x), IndexRangeError, r"argnums \(0, 4\) of 1",
    ),
    "grad of a named argument": (
        lambda x: ndl.grad(ops.exp, "x")(x), ArgumentError, "argnums 'x', not a whole number",
    ),
    "grad of no tensor": (
        lambda x: ndl.grad(ops.exp)(3.0), GradientError, "argument 0 is float, not a tensor",
    ),
    "grad of a list of tensors": (
        lambda x: ndl.grad(lambda xs: xs[0].sum())([x, x]), GradientError,
        r"argument 0 is list.*\n.*\n  try: an argument for each.*argnums=\(0, 1\)\)\(\*tensors\)",
    ),
    "grad to a number": (
        lambda x: ndl.grad(lambda x: 3.0)(x), GradientError, "returned float, a scalar tensor",
    ),
    "grad to a pair": (
        lambda x: ndl.value_and_grad(lambda x: (x.sum(), x))(x), GradientError, "returned tuple",
    ),
    "no rule": (
        lambda x: ndl.custom_gradient(lambda x: x)(x), GradientError, r"returned Tensor.*\n.*pull",
    ),
    "a rule for no tensor": (
        lambda x: ndl.custom_gradient(lambda x: ((x, 3.0), lambda g: g))(x), GradientError,
        r"\(tuple, function\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_functions_and_arguments_that_do_not_fit(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call(tensor([1.0, 2.0]))


# ---- integers and bools --------------------------------------------------------------


TABLE = ndl.Tensor([1.0, 4.0, 9.0])
TRUNCATED = {
    "cast and back": (lambda x: x.astype("int64").astype("float32").sum(), [0, 0]),
    "cast as a factor": (lambda x: (x * x.astype("int32").astype("float32")).sum(), [1, 2]),
    "cast to bool": (lambda x: (x * x.astype("bool").astype("float32")).sum(), [1, 1]),
    "table": (
        lambda x: (TABLE[x.astype("int64")] * (x - x.astype("int64") * 1.0)).sum(),
        [4, 9],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUNCATED)
@pytest.mark.parametrize("lazy", [False, True])
def test_no_gradient_flows_through_integers_in_either_mode(name, lazy):
    function, expected = TRUNCATED[name]
    x = ndl.Tensor([1.5, 2.25])
    with ndl.lazy_mode(lazy):
        if name == "cast and back":
            assert not x.astype("int64").requires_grad
            assert not x.astype("int64").astype("float32").requires_grad
            with pytest.raises(GradientError, match="requires no gradient"):
                function(x).backward()
        else:
            function(x).backward()
            np.testing.assert_array_equal(x.grad.numpy(), expected)
        np.testing.assert_array_equal(ndl.grad(function)(x).numpy(), expected)
        for i, v in enumerate(np.eye(2, dtype=np.float32)):
            tangent = ndl.jvp(function, (x,), (ndl.Tensor(v),))[1]
            assert (0.0 if tangent is None else tangent.item()) == expected[i]


def test_gradients_are_with_respect_to_floating_tensors():
    n = ndl.arange(3)
    for derivative in (ndl.grad, ndl.value_and_grad, ndl.jacobian):
        with pytest.raises(DtypeError, match=r"argument 0 is int64|int64"):
            derivative(lambda x: (x * 0.5).sum())(n)
    assert not ndl.arange(3).requires_grad_().requires_grad
    out, pull = ndl.vjp(
        lambda x, n: (x * n).sum(), ndl.Tensor([1.0, 2.0, 3.0]), n.astype("int64") * 1.0
    )
    assert pull(ndl.ones(()))[0].tolist() == [0.0, 1.0, 2.0]
    out, pull = ndl.vjp(lambda x, n: x[n].sum(), ndl.Tensor([1.0, 2.0, 3.0]), n)
    dx, dn = pull()
    assert dx.tolist() == [1.0, 1.0, 1.0] and dn.tolist() == [0, 0, 0]


def test_hvp_beside_integers():
    x, places = tensor([1.0, 2.0, 3.0]), ndl.Tensor(np.array([0, 0, 2]))

    def function(x, places):
        return (x[places] ** 3).sum()

    product, nothing = ndl.hvp(function, (x, places), (np.ones(3), None))
    assert product.tolist() == [12.0, 0.0, 18.0] and nothing is None
    with pytest.raises(DtypeError, match="a tangent was given for a int64 tensor"):
        ndl.hvp(function, (x, places), (np.ones(3), np.ones(3)))
    with pytest.raises(DtypeError, match="argument 0 is int64"):
        ndl.hvp(lambda n: n.sum(), places, None)
    with pytest.raises(GradientError, match="primals are tensors, not float"):
        ndl.hvp(lambda x, y: (x * y).sum(), (x, 2.0), (1.0, None))


@pytest.mark.parametrize(
    "name", ["grad", "value_and_grad", "vjp", "jvp", "jacobian", "linearize", "checkpoint"]
)
def test_a_result_in_the_place_of_a_function_is_named(name):
    x = tensor([1.0, 2.0], requires_grad=True)
    others = {"jvp": ((x,), (x,)), "vjp": (x,), "linearize": (x,)}.get(name, ())
    with pytest.raises(ArgumentError, match=f"{name}: takes a function, got Tensor(.|\n)*backward"):
        getattr(ndl, name)((x * x).sum(), *others)
    with pytest.raises(ArgumentError, match="custom_gradient: takes a function, got int"):
        ndl.custom_gradient(3)


def test_recording_within_no_grad(mode):
    x = tensor([1.0, 2.0], requires_grad=True)
    with ndl.no_grad():
        with ndl.enable_grad():
            y = (x * x).sum()
        with ndl.set_grad_enabled(True):
            assert (x * x).requires_grad
        assert not (x * x).requires_grad
    with ndl.set_grad_enabled(False):
        assert not (x * x).requires_grad
    y.backward()
    close(x.grad, [2.0, 4.0])


def test_ties_of_scatter_reduce_share_in_both_modes():
    """Forward mode moved with the value written last; reverse shares equally."""
    x, y = (ndl.Tensor([2.0, 2.0, 3.0], dtype="float64") for _ in range(2))
    index = ndl.Tensor([0, 0, 1], requires_grad=False, dtype="int64")
    for include in (True, False):

        def largest(x, y, include=include):
            return ndl.scatter_reduce(x, 0, index, y, "amax", include_self=include)

        forward, backward = (
            ndl.jacobian(largest, (0, 1), mode=mode)(x, y) for mode in ("forward", "reverse")
        )
        for a, b in zip(forward, backward, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-15)


def test_a_logarithm_of_no_probability_does_not_move():
    x = ndl.Tensor([-np.inf, -np.inf], dtype="float64")
    assert ndl.jvp(ndl.logsumexp, x, 1.0)[1].item() == 0.0
    np.testing.assert_array_equal(ndl.hvp(ndl.logsumexp, x, 1.0).numpy(), [0.0, 0.0])


def test_what_a_custom_gradient_closes_over_does_not_move():
    """Its inputs are the tensors among its arguments, in both modes."""
    x, w = (ndl.Tensor(values, dtype="float64") for values in ([1.0, 2.0], [0.5, -1.0]))

    def scaled(w):
        return ndl.custom_gradient(lambda a: (a * w, lambda g: g * w))(x)

    assert not ndl.jvp(scaled, w, 1.0)[1].numpy().any()
    assert not ndl.jvp(lambda v: ndl.jvp(scaled, v, 1.0)[1], w, 1.0)[1].numpy().any()
    assert not ndl.grad(lambda w: scaled(w).sum())(w).numpy().any()
    np.testing.assert_array_equal(scaled(w).numpy(), x.numpy() * w.numpy())


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: ndl.grad(f)(x),
        ndl.vjp,
        ndl.linearize,
        lambda f, x: ndl.jacobian(f)(x),
        lambda f, x: ndl.jvp(f, (x,), (1.0,)),
        lambda f, x: ndl.jvp(f, x, None),
    ],
)
def test_several_results_of_an_op_are_no_argument(call):
    several = ndl.split(ndl.ones((2, 3)), 0)
    with pytest.raises(GradientError, match="TensorTuple"):
        call(lambda x: x[0].sum(), several)

"""linearize, jacobian, hessian and hvp; the memory of forward mode."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from forward_mode import close, tensor

import needle as ndl
from needle import graph, ops, standard
from needle.errors import (
    ArgumentError,
    GradientError,
    IndexRangeError,
)

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
        (lambda x: ndl.hessian(3), ArgumentError, "hessian: expected a function"),
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

"""The graph: who owns values, what survives exceptions and threads, lazy mode, deep chains.

All of it holds for the native base types and for their definition in Python alike: the last test
runs this file again without the native module.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import itertools
import operator
import os
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from typing import ClassVar

import numpy as np
import pytest

import needle as ndl
from needle import core, executor, graph, ops, regions
from needle.backend.array import Array
from needle.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    NeedleError,
    ReleasedError,
    ShapeError,
)
from needle.ops.base import Op


def tensor(*shape: int, seed: int = 0) -> ndl.Tensor:
    return ndl.Tensor(np.random.default_rng(seed).normal(size=shape))


def constant(*shape: int) -> ndl.Tensor:
    return ndl.Tensor(np.ones(shape), requires_grad=False)


def live_values() -> int:
    """How many values are in memory."""
    if core.native is not None:
        return ndl.cpu().memory_info()["blocks"]
    return sum(issubclass(type(x), Array) for x in gc.get_objects())


def in_threads(*functions) -> None:
    """Run each function in a thread; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


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
    with pytest.raises(GradientError, match="a scalar is needed"):
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
        with pytest.raises(GradientError, match=f"returned {kind}, a floating scalar"):
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


# ---- checkpoint, custom_gradient -----------------------------------------------


def test_checkpoint_reaches_parameters_in_closures():
    w, x = tensor(4, 4), tensor(2, 4, seed=1)
    (x @ w).tanh().sum().backward()
    expected = x.grad.numpy(), w.grad.numpy()
    x.grad = w.grad = None
    block = ndl.checkpoint(lambda x: (x @ w).tanh())
    block(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), expected[1], rtol=1e-5)


def test_checkpoint_in_a_derivative_of_what_it_closes_over():
    """The argument of the outer function is no leaf: its aliases are what the region reaches."""
    w, ones = ndl.Tensor([2.0, 3.0]), ndl.Tensor([1.0, 1.0])

    def power(w):  # w ** 4, once directly and once by a value computed outside the region
        h = w * w
        outer = ndl.checkpoint(lambda x: ndl.checkpoint(lambda y: y * h)(x) * w)
        return (outer(ones) * w).sum()

    numbers = w.numpy()
    np.testing.assert_allclose(ndl.grad(power)(w).numpy(), 4 * numbers**3)
    np.testing.assert_allclose(ndl.vjp(power, w)[1](ndl.Tensor(1.0))[0].numpy(), 4 * numbers**3)
    np.testing.assert_allclose(ndl.hessian(power)(w).numpy(), np.diag(12 * numbers**2))
    np.testing.assert_allclose(ndl.hvp(power, w, ones).numpy(), 12 * numbers**2)
    with ndl.lazy_mode():
        np.testing.assert_allclose(ndl.grad(power)(w).numpy(), 4 * numbers**3)


def test_checkpoint_used_twice_closing_over_a_result():
    """The graph below the result belongs to both, and is walked after both."""
    w, x = ndl.Tensor([0.2, 0.3]), ndl.Tensor([1.0, 1.0])
    grads = []
    for wrapped in (lambda f: f, ndl.checkpoint):
        h = (w.exp() * w).exp()
        f = wrapped(lambda x, h=h: x * h)
        (f(f(x)) + f(2 * x) + h.sin()).sum().backward()
        grads.append(w.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=1e-6)


def _decrease(w):
    with ndl.no_grad():
        w -= 1.0


def _assign(w):
    with ndl.no_grad():
        w[...] = 0.0


def _replace(w):
    w.data = ndl.Tensor([5.0, 6.0])


def _freeze(w):
    w.requires_grad = False


@pytest.mark.parametrize("change", [_decrease, _assign, _replace, _freeze])
def test_what_a_checkpoint_closes_over_has_its_old_value_in_the_second_run(change):
    w, x = ndl.Tensor([2.0, 3.0]), ndl.Tensor([1.0, 1.0])
    h = w * 1.0
    out = ndl.checkpoint(lambda x: x * w * w * h)(x).sum()
    change(w)
    h[...] = 9.0
    after = w.numpy(), h.numpy()
    out.backward()
    assert w.is_leaf() and w.requires_grad == (change is not _freeze)
    np.testing.assert_array_equal(w.grad.numpy(), [12.0, 27.0])
    np.testing.assert_array_equal(x.grad.numpy(), [8.0, 27.0])
    np.testing.assert_array_equal((w.numpy(), h.numpy()), after)
    w.requires_grad = True
    (w * w).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 2 * after[0])


def test_a_checkpoint_of_many_tensors():
    """More than there are bits for what a gradient reads."""
    weights, places = ([ndl.Tensor([1.0 + i]) for i in range(70)] for _ in range(2))

    def function(*places):
        both = zip(weights, places, strict=True)
        return functools.reduce(lambda x, y: x + y, [w * w * p for w, p in both])

    out = ndl.checkpoint(function)(*places)
    with ndl.no_grad():
        for x in weights + places:
            x += 100.0
    out.backward()
    for i, (w, p) in enumerate(zip(weights, places, strict=True)):
        assert (w.grad.item(), p.grad.item()) == (2.0 * (1.0 + i) ** 2, (1.0 + i) ** 2)


def test_what_a_checkpointed_function_makes_may_stay():
    """On an object, in a result, or until the collector finds it."""
    x, kept = ndl.Tensor([1.0, 2.0]), []

    def keeps(x):
        kept.append(ndl.Tensor([3.0, 4.0]))
        return x * kept[-1], kept[-1]

    def returns(x):
        made = ndl.Tensor([3.0, 4.0])
        return x * made, made

    def recurses(x):
        made = ndl.Tensor([3.0, 4.0])

        def inner(n):
            return x * made if n == 0 else inner(n - 1)

        return inner(2), x

    for function in (keeps, returns, recurses):
        ndl.checkpoint(function)(x)[0].sum().backward()
        assert x.grad.tolist() == [3.0, 4.0]


def test_a_checkpoint_reaches_a_tensor_that_is_thawed_meanwhile():
    x, w = ndl.Tensor([1.0, 2.0]), ndl.Tensor([3.0, 4.0], requires_grad=False)
    out = ndl.checkpoint(lambda x: x * w)(x).sum()
    w.requires_grad = True
    out.backward()
    assert x.grad.tolist() == [3.0, 4.0] and w.grad is None


def test_a_checkpoint_that_computes_something_else_again():
    x, weights, kept = ndl.Tensor([1.0, 2.0]), [ndl.Tensor([3.0, 4.0]) for _ in range(2)], []

    def another(x):
        kept.append(x)
        return x * weights[len(kept) - 1]

    def fewer(x):
        kept.append(x)
        return (x, x * x)[: 3 - len(kept)]

    def cached(x):
        if not kept:
            kept.append(w.exp())
        return x * kept[0]

    w = weights[0]
    closed = "beside its arguments"
    for function, problem in ((another, closed), (fewer, "results"), (cached, closed)):
        kept.clear()
        out = ndl.checkpoint(function)(x)
        with pytest.raises(ndl.errors.GradientError, match=problem) as raised:
            (out[1] if function is fewer else out).sum().backward()
        assert f"checkpoint({function.__name__})" in str(raised.value)


def test_checkpoint_keeps_its_inputs_only():
    x = tensor(64, 64)

    def block(x):
        for _ in range(10):
            x = x.tanh()
        return x

    before = live_values()
    out = block(x)
    plain = live_values() - before
    del out
    out = ndl.checkpoint(block)(x)
    assert live_values() - before < plain / 3
    out.sum().backward()


@pytest.mark.parametrize("seeded", [False, True])
def test_checkpoint_draws_the_same_random_numbers_again(seeded):
    if seeded:
        ndl.manual_seed(3)
    x = tensor(5, 5)
    drawn = []

    def drop(x):
        mask = ndl.Tensor(ndl.ops.random.rand((5, 5)), requires_grad=False)
        drawn.append(mask.numpy())
        return x * mask

    out = ndl.checkpoint(drop)(x)
    after = ndl.ops.random.rand((3,)).numpy()
    out.sum().backward()
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_allclose(x.grad.numpy(), drawn[0])
    assert not np.array_equal(ndl.ops.random.rand((3,)).numpy(), after)


def test_checkpoint_leaves_running_statistics_as_the_first_run_did():
    """The second run, for the gradient, sees what the first saw and changes nothing."""

    class Counter(ndl.nn.Module):
        def __init__(self):
            self.register_buffer("seen", constant())

        def forward(self, x):
            before = self.seen.item()
            self.seen = self.seen + 1.0
            assert self.seen.item() == before + 1.0
            return x * 2.0

    for lazy in (False, True):
        norm, plain, counter = ndl.nn.BatchNorm1d(3), ndl.nn.BatchNorm1d(3), Counter()
        region = ndl.checkpoint(ndl.nn.Sequential(ndl.checkpoint(norm), counter))
        with ndl.lazy_mode(lazy):
            x = tensor(5, 3)
            region(x).sum().backward()
            plain(x)
        for name in ("running_mean", "running_var"):
            found, expected = getattr(norm, name).numpy(), getattr(plain, name).numpy()
            np.testing.assert_array_equal(found, expected)
        assert counter.seen.item() == constant().item() + 1.0


def _assign_buffer(module):
    module.u = module.u * 2.0


def _increase_buffer(module):
    module.u *= 2.0


def _write_to_buffer(module):
    module.u[0] = module.u[0] * 2.0


def _replace_buffer(module):
    module.u.data = module.u * 2.0


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "change", [_assign_buffer, _increase_buffer, _write_to_buffer, _replace_buffer]
)
def test_checkpoint_finds_buffers_again_that_the_first_run_read_and_changed(change, lazy):
    """As the power iteration of a spectral norm does. Two calls are two regions."""

    class Doubling(ndl.nn.Module):
        def __init__(self):
            self.w = ndl.nn.Parameter([3.0, 4.0])
            self.register_buffer("u", ndl.Tensor([1.0, 2.0], requires_grad=False))

        def forward(self, x):
            with ndl.no_grad():
                change(self)
            return x * self.w * self.u

    found = []
    x = ndl.Tensor([5.0, 6.0])
    with ndl.lazy_mode(lazy):
        for wrap in (
            lambda f: f,
            ndl.checkpoint,
            lambda f: ndl.checkpoint(lambda x: ndl.checkpoint(f)(x) * 1.0),
        ):
            module = Doubling()
            held, region = module.u, wrap(module)
            (region(x) + region(x)).sum().backward()
            found.append((module.w.grad.tolist(), module.u.tolist(), held.tolist()))
            assert (module.u is held) == (change is not _assign_buffer)
    assert found[1] == found[0] == found[2] and found[0][1][0] == 4.0


def test_checkpoint_of_checkpoint_and_second_order():
    x = tensor(3)
    inner = ndl.checkpoint(lambda x: x * x)
    outer = ndl.checkpoint(lambda x: inner(x) * x)
    outer(x).sum().backward(create_graph=True)
    first = x.grad
    np.testing.assert_allclose(first.numpy(), 3 * x.numpy() ** 2, rtol=1e-5)
    first.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.numpy(), rtol=1e-5)


@pytest.mark.parametrize("lazy", [False, True])
def test_checkpoint_takes_and_returns_what_the_function_does(lazy):
    def block(x, scale, *, shift=None, names=()):
        y = x * scale + (0.0 if shift is None else shift)
        return y.tanh(), [y.argmax(axis=0), (y * y).sum()], names and y

    x, b = tensor(4, 3), tensor(3, seed=1)
    for arguments in ({}, {"shift": b}, {"shift": b, "names": ["a"]}):
        if "names" not in arguments:
            arguments = {**arguments, "names": ["kept"]}
        found = []
        for function in (block, ndl.checkpoint(block)):
            x.grad = b.grad = None
            with ndl.lazy_mode(lazy):
                first, (place, second), third = function(x, 3.0, **arguments)
                (first.sum() + second * third.mean()).backward()
            values = [v.numpy() for v in (first, place, second, third, x.grad)]
            found.append(values + ([b.grad.numpy()] if "shift" in arguments else []))
        for plain, again in zip(*found, strict=True):
            np.testing.assert_array_equal(plain, again)
    first, (_, second), _ = ndl.checkpoint(block)(x, 3.0, names=["kept"])
    second.backward()  # of one result alone
    np.testing.assert_allclose(x.grad.numpy(), 18 * x.numpy(), rtol=1e-5)


def test_checkpoint_of_several_results_forward_and_twice():
    both = ndl.checkpoint(lambda x: (x * x, x.exp()))
    x, v = tensor(3), tensor(3, seed=1).detach()
    _, (a, b) = ndl.jvp(both, (x.detach(),), (v,))
    np.testing.assert_allclose(a.numpy(), 2 * x.numpy() * v.numpy(), rtol=1e-6)
    np.testing.assert_allclose(b.numpy(), np.exp(x.numpy()) * v.numpy(), rtol=1e-6)
    found = ndl.hvp(lambda x: (both(x)[0] * both(x)[1]).sum(), x.detach(), v)[-1]
    plain = ndl.hvp(lambda x: (x * x * x.exp()).sum(), x.detach(), v)[-1]
    np.testing.assert_allclose(found.numpy(), plain.numpy(), rtol=1e-5)
    with pytest.raises(ndl.errors.GradientError, match="checkpoint: the function returned dict"):
        ndl.checkpoint(lambda x: {"a": x})(x)


def test_what_a_rule_does_to_its_gradient_changes_no_other():
    @ndl.custom_gradient
    def doubled(x):
        def pull(out_grad):
            out_grad *= 2.0
            return out_grad

        return x * 1.0, pull

    for _ in range(2):
        x, y = tensor(), tensor()
        doubled(x).backward()
        np.asarray(x.grad)[...] = 5.0
        (y * 1.0).backward()
        assert y.grad.item() == 1.0


def test_custom_gradient():
    @ndl.custom_gradient
    def reversed_gradient(x, y):
        return x * y, lambda g: (-g * y, g * 0.0)

    x, y = tensor(3), tensor(3, seed=1)
    (reversed_gradient(x, y) * 2.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), -2 * y.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(y.grad.numpy(), np.zeros(3))
    with ndl.no_grad():
        assert reversed_gradient(x, y).op is None


@pytest.mark.parametrize("lazy", [False, True])
def test_a_custom_rule_reads_what_its_inputs_held(lazy):
    """Not what was assigned to them between the call and the gradient; nor are they changed."""

    @ndl.custom_gradient
    def squared(x, y):
        out = x * x * y
        y[0] = 100.0
        return out, lambda g: (2.0 * g * x * y, g * x * x)

    def total(w):
        x, y = w * 1.0, w * 2.0
        out = squared(x, y)
        x[1] = 50.0
        x += 1.0
        return out.sum() + 0.0 * x.sum() + 0.0 * y.sum()

    with ndl.lazy_mode(lazy):
        w = ndl.Tensor([1.0, 2.0, 3.0], dtype="float64")
        total(w).backward()
        np.testing.assert_array_equal(w.grad.numpy(), [2 * 100 + 2.0, 6 * 4.0, 6 * 9.0])
        x, y = ndl.Tensor([1.0, 2.0]), ndl.Tensor([3.0, 4.0])
        out = squared(x, y)
        with ndl.no_grad():
            x -= 1.0
            y[1] = 7.0
        out.sum().backward()
        assert x.grad.tolist() == [200.0, 16.0] and y.grad.tolist() == [1.0, 4.0]
        assert x.tolist() == [0.0, 1.0] and y.tolist() == [3.0, 7.0]


@pytest.mark.parametrize("lazy", [False, True])
def test_custom_gradient_takes_what_is_no_tensor(lazy):
    @ndl.custom_gradient
    def scaled(x, factor, names=(), *, shift=None):
        out = x * factor + (0.0 if shift is None else shift)
        if shift is None:
            return (out, out.sum()), lambda g: 2.0 * factor * (g[0] + g[1])
        return out, lambda g: (2.0 * factor * g, g * len(names))

    assert scaled.__name__ == "scaled"
    x, b = tensor(3), tensor(3, seed=1)
    with ndl.lazy_mode(lazy):
        scaled(x, 3.0)[1].backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 6.0))
        scaled(x, factor=3.0)[0].sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 6.0))
        out = scaled(shift=b, names="ab", x=x, factor=np.float32(3.0))
        with ndl.no_grad():
            np.testing.assert_allclose(out.numpy(), (x * 3.0 + b).numpy(), rtol=1e-6)
        out.sum().backward()  # in the order of the call: shift, then x
        np.testing.assert_array_equal(b.grad.numpy(), np.full(3, 6.0))
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))
        tangent = ndl.jvp(lambda x: scaled(x, 3.0)[0], x.detach(), 1.0)[1]
        np.testing.assert_array_equal(tangent.numpy(), np.full(3, 6.0))


MISFITS = {
    "shape": (lambda g: (g.sum(), None), r"input 0: float32\[3\] cpu.*\n  gradient: float32\[\] "),
    "dtype": (lambda g: (g.astype("float64"), g), r"float32\[3\].*\n  gradient: float64\[3\]"),
    "number": (lambda g: (0.0, g), r"gradient: float 0.0"),
    "few": (lambda g: g, "gave 1 gradients of 2 inputs"),
    "many": (lambda g: (g, g, g), "gave 3 gradients of 2 inputs"),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", MISFITS)
def test_a_custom_gradient_fits_its_input(name, lazy):
    def product(x, y):
        return x * y, rule

    rule, said = MISFITS[name]
    said = r"custom_gradient\(product\): (?s:.*)" + said
    function, x, y = ndl.custom_gradient(product), tensor(3), tensor(3, seed=1)
    with ndl.lazy_mode(lazy):
        calls = [lambda: function(x, y).sum().backward(),
                 lambda: ndl.grad(lambda x: function(x, y).sum())(x),
                 lambda: ndl.jvp(function, (x.detach(), y.detach()), (1.0, 1.0)),
                 lambda: ndl.linearize(lambda x: function(x, y), x)]  # fmt: skip
        for call in calls:
            with pytest.raises(GradientError, match=said):
                call()


def test_a_custom_gradient_that_nobody_needs_is_not_looked_at():
    function = ndl.custom_gradient(lambda x, y: (x * y, lambda g: (g * y, 0.0)))
    x, y = tensor(3), constant(3)
    function(x, y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    np.testing.assert_array_equal(ndl.jvp(function, (x, y), (1.0, None))[1].numpy(), y.numpy())


def test_custom_gradient_does_not_keep_its_inputs():
    double = ndl.custom_gradient(lambda x, factor: (x * factor, lambda g: factor * g))
    x = tensor(8, 8)
    double(x, 2.0)  # the number becomes a constant that is kept
    before = live_values()
    out = double(double(x, 2.0), 2.0)
    assert live_values() - before == 1
    out.backward()


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


# ---- who keeps values alive ----------------------------------------------------


def test_values_that_no_gradient_reads_are_freed():
    """10 x (matmul, add, relu): matmul saves its inputs, add nothing, relu its output."""
    x, ws = constant(8, 8), [tensor(8, 8, seed=i) for i in range(10)]
    b = tensor(8)
    before = live_values()
    h = x
    for w in ws:
        h = ops.relu(h @ w + b)
    assert live_values() - before == 10  # the relus; not the products, not the sums
    del h
    assert live_values() == before


def test_backward_frees_what_it_has_read():
    tensor().backward()  # makes the one that those of scalars are copied from
    x = tensor(8, 8)
    before = live_values()
    y = (x.tanh() * x.exp()).sum()
    assert live_values() - before == 3
    y.backward()
    assert live_values() - before == 3  # y, its gradient and x.grad
    with pytest.raises(ReleasedError, match=r"backward\(retain_graph=True\)"):
        y.backward()


def test_retained_graphs_run_again():
    x = tensor(3)
    y = (x.tanh() * x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)
    with pytest.raises(ReleasedError):
        y.backward()


def _step(x):
    x.grad = x.detach()
    ndl.optim.SGD([x], lr=0.1).step()


NEW_DATA = {
    "data": lambda x: setattr(x, "data", x * 0.5),
    "minus": lambda x: operator.isub(x, 1.0),
    "number": lambda x: operator.setitem(x, 0, 5.0),
    "all": lambda x: operator.setitem(x, ..., x * 0.5),
    "mask": lambda x: operator.setitem(x, x > 0, 2.0),
    "step": _step,
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", NEW_DATA)
def test_a_freed_graph_does_not_read_new_data(host_device, name, lazy):
    """As where the state of a recurrent net is kept beyond a step: its gradient is no longer."""
    x = ndl.Tensor([1.0, 2.0, 3.0], device=host_device)
    state = x * x
    state.sum().backward()
    with ndl.no_grad(), ndl.lazy_mode(lazy):
        NEW_DATA[name](x)
    with ndl.lazy_mode(lazy), pytest.raises(ReleasedError, match="retain_graph=True"):
        (state * 2.0).sum().backward()
        x.grad.numpy()
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * x.numpy())


def test_a_released_value_says_so():
    x = tensor(3)
    total = (x + 1.0).tanh().sum()
    dropped = total.inputs[0].inputs[0]  # x + 1.0, which tanh does not need
    assert dropped.shape == (3,)
    with pytest.raises(ReleasedError, match=r"the result of add, float32\[3\].*was released"):
        dropped.numpy()
    with pytest.raises(ReleasedError):
        dropped * 2.0
    with ndl.lazy_mode(), pytest.raises(ReleasedError):
        dropped * 2.0


def test_new_data_between_forward_and_backward():
    x = tensor(3)
    old = x.numpy()
    y = (x * x).sum()
    x.data = ndl.Tensor(np.zeros(3))
    x.data = ndl.Tensor(np.ones(3))
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * old, rtol=1e-6)
    np.testing.assert_array_equal(x.numpy(), np.ones(3))
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_of_old_and_new_data_of_one_tensor_add_up(turned, accumulate):
    x = tensor(3)
    old, new = x.numpy(), np.array([1.0, 2.0, 3.0], np.float32)
    x.grad = ndl.Tensor(np.full(3, 10.0))
    y = (x * x).sum()
    x.data = ndl.Tensor(new)
    z = (x * x * x).sum()
    (z + y if turned else y + z).backward(accumulate=accumulate)
    exact = 2 * old + 3 * new**2 + 10.0 * accumulate
    np.testing.assert_allclose(x.grad.numpy(), exact, rtol=1e-6)


def test_data_shares_and_keeps_the_dtype():
    x, y = tensor(3), tensor(3, seed=1)
    x.data = y
    x.realize_cached_data().fill(7)
    np.testing.assert_array_equal(y.numpy(), np.full(3, 7.0))
    with pytest.raises(ndl.errors.DtypeError, match="assigned"):
        x.data = ndl.Tensor(np.zeros(3), dtype="float64")


def test_augmented_assignment_rebinds():
    x = tensor(3)
    y = x
    old = x.numpy()
    x += 1.0
    np.testing.assert_array_equal(y.numpy(), old)
    assert x is not y


def train(steps: int, seed: int) -> np.ndarray:
    w, b = tensor(4, 4, seed=seed), tensor(4, seed=seed + 1)
    x = tensor(8, 4, seed=seed + 2)
    x.requires_grad = False
    for _ in range(steps):
        loss = ((ops.relu(x @ w + b) - 1.0) * (x @ w)).sum()
        loss.backward()
        for p in (w, b):
            p.data = p.detach() - 0.001 * p.grad.detach()
    return w.numpy()


def test_training_leaves_nothing_for_the_collector(no_collector):
    train(1000, 0)


def test_second_order_leaves_nothing_for_the_collector(no_collector):
    x = tensor(4)
    for _ in range(300):
        (x.tanh() * x).sum().backward(create_graph=True)
        (x.grad * x.grad).sum().backward()
        x.grad = None


def test_lazy_steps_leave_nothing_for_the_collector(no_collector):
    with ndl.lazy_mode():
        x = tensor(4)
        for _ in range(100):
            (x.tanh() * x).sum().backward()
            x.grad.numpy()


def test_memory_stays_constant_over_steps():
    train(5, 0)
    before = live_values(), graph.live_tensors()
    train(50, 0)
    assert (live_values(), graph.live_tensors()) == before


class Holder(Op):
    """A user's op that holds a Python object, and through it its own result: a cycle."""

    box: list

    def setup(self):
        self.opaque = True

    def compute(self, x):
        return x.copy()

    def gradient(self, out_grad, out):
        return (out_grad,)


def test_an_op_that_holds_its_own_result_is_collected():
    class Mark:
        pass

    mark = Mark()
    box = [mark]
    x = tensor(3)
    y = Holder(box)(x)
    box.append(y)
    box.append(y * 2.0)
    gone = weakref.ref(mark)
    del mark, box, y
    gc.collect()
    assert gone() is None


def test_a_gradient_that_is_its_own_gradient_is_collected():
    class Named(ndl.Tensor):
        pass

    x = Named(np.ones(3))
    x.grad = x
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


# ---- exceptions ----------------------------------------------------------------


def _add_shapes(x):
    ((x * 2.0).tanh() + tensor(5)).sum()


def _add_words(x):
    (x * 2.0).tanh() + "words"


def _take_beyond(x):
    """Fails where it is run, in lazy mode too."""
    ndl.take((x * 2.0).tanh(), ndl.Tensor(np.array([9])), axis=0).numpy()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("wrong", [_add_shapes, _add_words, _take_beyond])
def test_errors_in_expressions_leave_nothing_behind(no_collector, wrong, lazy):
    x = tensor(3, 4)

    def fail():
        with ndl.lazy_mode(lazy), pytest.raises(ndl.errors.NeedleError):
            wrong(x)

    fail()  # what only the first error needs is there from now on
    gc.collect()
    before = live_values(), graph.live_tensors()
    for _ in range(50):
        fail()
    assert (live_values(), graph.live_tensors()) == before


class Failing(Op):
    """x, unless told to fail."""

    switch: dict

    def compute(self, x):
        if self.switch.get("compute") and x.device != ndl.meta():
            raise ZeroDivisionError("compute")
        return x.copy()

    def gradient(self, out_grad, out):
        if self.switch.get("gradient"):
            raise ZeroDivisionError("gradient")
        return (out_grad,)


def test_an_error_in_a_gradient_restores_the_modes():
    x = tensor(3)
    y = Failing({"gradient": True})(x * 2.0).sum()
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert graph.recording() and not graph.lazy()
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))


def interrupt(function, place: int) -> bool:
    """Call a function with a signal at its n-th call. Return whether there are that many.

    Python handles signals where a function of its own begins, and where a native one has ended.
    Unlike a signal, what is raised here where a generator goes on skips its ``finally`` in 3.10.
    """
    left = place

    def watch(frame, event, arg):
        nonlocal left
        goes_on = frame.f_lasti >= 0 and sys.version_info < (3, 11)
        left -= event == "c_return" or (event == "call" and not goes_on)
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        sys.setprofile(watch)
        try:
            function()
        finally:
            sys.setprofile(None)
    return left <= 0


@pytest.mark.skipif(core.native is None, reason="Python's definition of modes can be interrupted")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_program_goes_on_in_the_modes_it_was_in():
    norm = ndl.nn.BatchNorm1d(2)
    optimizer = ndl.optim.SGD(norm.parameters(), lr=0.0)
    x = tensor(2, 2)

    def step():
        optimizer.minimize(ndl.checkpoint(norm)(x).sum())

    step()
    places = itertools.takewhile(lambda n: interrupt(step, n), itertools.count(1))
    for n in places:
        modes = graph.recording(), graph.lazy(), regions._watch.notes
        assert modes == (True, False, ()), f"after an interrupt at call {n}"
    assert n > 200


@pytest.mark.skipif(core.native is None, reason="Python's definition of modes can be interrupted")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_program_goes_on_with_the_settings_it_had():
    before = ndl.config.current()

    def change():
        with ndl.config(mode="lazy", memory_limit="1GiB", debug=1, threads=1):
            tensor(2)

    change()
    places = itertools.takewhile(lambda n: interrupt(change, n), itertools.count(1))
    for n in places:
        gc.collect()  # the block is left where the error goes, which holds it
        found = ndl.config.current(), graph.lazy(), ndl.cpu().memory_info()["limit"]
        assert found == (before, False, 0), f"after an interrupt at call {n}"
    assert n > 20


def test_a_failing_lazy_node_can_be_realised_again():
    x, switch = tensor(3), {"compute": True}
    with ndl.lazy_mode():
        before = x * 2.0
        y = (Failing(switch)(before) + before).sum()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                y.numpy()
        switch.clear()
        assert y.item() == pytest.approx(4 * x.numpy().sum(), rel=1e-5)
    assert graph.recording() and not graph.lazy()


def test_errors_name_the_tensors():
    w = ndl.Parameter(np.ones((10, 128)))
    w.name = "head.weight"
    with ndl.config(debug=1):
        h = ops.relu(tensor(32, 128))
        with pytest.raises(ShapeError) as caught:
            h @ w
    text = str(caught.value)
    assert text.splitlines()[0] == "matmul: inner sizes differ, 128 and 10"
    assert 'parameter "head.weight"' in text and "made by relu at" in text
    assert "test_graph.py:" in text and "rule: a[..., m, k] @ b[..., k, n]" in text
    assert "try: a @ b.transpose()" in text


def test_lazy_errors_come_on_the_line_of_the_call():
    with ndl.lazy_mode(), pytest.raises(ShapeError, match="inner sizes differ"):
        tensor(3, 4) @ tensor(3, 4)


def test_two_numbers_in_one_call():
    """The gate keeps numbers as tensors, in a small table where one takes another's place."""
    values = np.linspace(-60, 60, 50, dtype=np.float32)
    x = ndl.Tensor(values, requires_grad=False)
    for step in range(300):
        low, high = -0.25 * step, 0.125 * step + 1
        for limits in ((low, high), (low - 1, 1 - low)):
            np.testing.assert_array_equal(ops.clip(x, *limits).numpy(), np.clip(values, *limits))


@pytest.mark.parametrize(
    "change",
    [
        lambda number: setattr(number, "data", ndl.Tensor(7.0, dtype=number.dtype)),
        lambda number: number.__setitem__((), 7.0),
        lambda number: setattr(number, "requires_grad", True),
    ],
    ids=["data", "setitem", "requires_grad"],
)
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_number_that_was_given_other_data_is_no_later_number(change, kind):
    """The operands of a result are tensors, numbers too: who has one may write to it."""
    x = tensor(3).astype(kind)
    _, number = (x * 2.625).inputs
    change(number)
    y = x * 2.625
    np.testing.assert_array_equal(y.numpy(), x.numpy() * x.dtype.numpy.type(2.625))
    assert not y.inputs[1].requires_grad


def test_foreign_operands_are_type_errors():
    x = tensor(3)
    for bad in ("a", None, object(), {}):
        with pytest.raises(TypeError):
            x + bad
        with pytest.raises(TypeError):
            bad + x
    assert (1 - x).shape == (2.0 / x).shape == (np.ones(3, "float32") + x).shape == (3,)
    assert isinstance(np.ones(3, "float32") * x, ndl.Tensor)


# ---- copies --------------------------------------------------------------------


def test_deepcopy_copies_leaves():
    x = tensor(3)
    x.name = "x"
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    np.testing.assert_array_equal(y.grad.numpy(), x.grad.numpy())
    assert y.name == "x" and y.requires_grad and type(y) is ndl.Tensor
    y.realize_cached_data().fill(0)
    y.grad.realize_cached_data().fill(0)
    assert x.numpy().all() and x.grad.numpy().all()


def test_deepcopy_keeps_ties():
    shared = ndl.Parameter(np.ones(3))
    first, second = copy.deepcopy([shared, shared])
    assert first is second and first is not shared and isinstance(first, ndl.Parameter)


class Tagged(ndl.Tensor):
    """Has attributes, as classes of users' own do."""


@pytest.mark.parametrize("kind", [Tagged, ndl.nn.Parameter])
def test_copies_have_the_attributes_that_users_set(kind):
    x = kind([1.0, 2.0])
    x.tags, x.me = ["no decay"], x
    for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is kind and y.tags == x.tags and y.tags is not x.tags and y.me is y


def test_deepcopy_and_pickle_of_results_raise():
    y = tensor(3) * 2.0
    for action in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(GradientError, match=r"the result of multiply.*detach\(\)"):
            action(y)
    np.testing.assert_array_equal(copy.deepcopy(y.detach()).numpy(), y.numpy())


def test_lazy_results_without_gradient_are_as_eager_ones():
    norm = ndl.nn.BatchNorm1d(2)
    with ndl.lazy_mode():
        y = constant(3) * 2.0
        norm(tensor(4, 2))
        for result in (y, y * 3.0):  # waiting, and computed by the first one
            for found in (copy.deepcopy(y), copy.copy(y), pickle.loads(pickle.dumps(y))):
                assert found.numpy().tolist() == [2.0, 2.0, 2.0] and not found.requires_grad
            assert result.is_leaf() and "op=" not in repr(result)
        z = tensor(3) * 2.0
        assert not z.is_leaf() and "op=multiply" in repr(z)
        with pytest.raises(GradientError, match="the result of multiply"):
            copy.deepcopy(z)
    other = copy.deepcopy(norm)
    np.testing.assert_array_equal(other.running_mean.numpy(), norm.running_mean.numpy())


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("fast", ["on", "off"])
def test_results_that_change_under_no_grad_are_no_longer_part_of_the_graph(lazy, fast):
    def assign(y):
        y[...] = y[::-1]
        return y

    def assign_part(y):
        y[0] = 5.0
        return y

    for change in (assign, assign_part, lambda y: operator.imul(y, 2.0)):
        with ndl.config(fast=fast), ndl.lazy_mode(lazy):
            x = tensor(3)
            y = x * 2.0
            z = (y * y).sum()
            with ndl.no_grad():
                changed = change(y)
            assert not changed.requires_grad and changed.is_leaf()
            z.backward()
            np.testing.assert_allclose(x.grad.numpy(), 8 * x.numpy(), rtol=1e-6)


def test_pickle_keeps_values_and_settings():
    for kind in ("float32", "bfloat16", "int64", "bool"):
        x = ndl.Parameter(np.array([0, 1, 2]), dtype=kind, requires_grad=kind == "float32")
        x.name = "x"
        y = pickle.loads(pickle.dumps(x))
        assert type(y) is ndl.Parameter and y.dtype == kind and y.name == "x"
        assert y.requires_grad == x.requires_grad and y.device == x.device
        np.testing.assert_array_equal(y.numpy(), x.numpy())


EVERY_COPY = [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


class Activated(ndl.nn.Module):
    """Holds a function of Needle's."""

    def __init__(self, function):
        super().__init__()
        self.function = function


def test_functions_of_ops_are_copied_as_functions_of_python_are():
    functions = {f for f in vars(ops).values() if isinstance(f, functools.partial)}
    assert {ops.exp, ops.relu, ops.abs} <= functions
    for made in EVERY_COPY[1:]:
        for function in functions:
            assert made(function) is function
            assert made(Activated(function)).function is function


@pytest.mark.parametrize("op", [ops.Exp.of(), ops.LogSumExp.of((1,), True)])
def test_ops_and_specs_are_copied(op):
    for made in EVERY_COPY:
        assert made(op) is op
        assert made(constant(2).array.spec) == constant(2).array.spec


@pytest.mark.parametrize(
    "a, b", [(1, 1.0), (1, True), (0.0, -0.0), (np.float32(1), 1), ((1,), (1.0,)), (0, False)]
)
def test_attributes_that_are_equal_but_not_the_same(a, b):
    class Named(ops.Op):
        value: object

    assert Named.of(a) is Named.of(a) is not Named.of(b) and repr(Named.of(b).value) == repr(b)
    assert Named.of((0, (a,))) is Named.of((0, (a,))) is not Named.of((0, (b,)))


def test_a_number_is_added_as_it_is_whichever_was_added_before():
    zero, whole = tensor(1) * -0.0, ndl.Tensor([1], dtype="int32")
    for number in (0.0, -0.0, 0.0):
        assert np.signbit(ops.add_scalar(zero, number).numpy()) == np.signbit(number)
    for number, kind in ((1, "int32"), (1.0, "float32"), (1, "int32")):
        assert ops.add_scalar(whole, number).dtype == kind


@pytest.mark.parametrize("axes", [1.0, (1.0,), (0, 1.0)])
def test_a_float_is_no_axis_whichever_was_one_before(axes):
    x = ndl.Tensor(np.ones((2, 3)))
    for given in (1, (1,), (0, 1), axes):
        if given is axes:
            with pytest.raises(ArgumentError):
                x.sum(axes)
        else:
            x.sum(given)


def test_a_node_says_why_it_is_not_copied():
    for made in EVERY_COPY:
        with pytest.raises(GradientError, match="nodes are part of one graph"):
            made((tensor(2) * 2.0).node)
        with pytest.raises(GradientError, match="one by one"):
            made(ops.make_tuple(tensor(2)))


# ---- deep chains ---------------------------------------------------------------


DEEP = 20_000 if core.native is None else 100_000
"""Python's own recursion ends at 1,000, a thread's stack somewhere beyond 10,000."""


def chain(depth: int) -> None:
    x = tensor(2)
    h = x
    for _ in range(depth):
        h = h + 1.0
    h.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(2))
    del h


def test_a_deep_chain_is_built_run_backward_and_destroyed():
    chain(DEEP)


def test_the_same_in_a_thread_with_a_small_stack():
    old = threading.stack_size(256 * 1024)
    try:
        in_threads(lambda: chain(DEEP))
    finally:
        threading.stack_size(old)


def test_a_retained_chain_is_destroyed():
    x = tensor(2)
    h = x
    for _ in range(DEEP):
        h = h * 1.0
    h.sum().backward(retain_graph=True)
    del h


def test_a_lazy_chain_holds_one_value():
    x = constant(2)
    before = live_values()
    with ndl.lazy_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        h = x
        for _ in range(30_000):
            h = h + 1.0
        peak = live_values() - before
        np.testing.assert_allclose(h.numpy(), np.full(2, 30_001.0))
    assert peak <= 1 and live_values() - before <= 2  # the constant 1.0 may be among them


# ---- lazy mode -----------------------------------------------------------------


def test_lazy_mode_computes_when_a_value_is_read():
    x, y = tensor(3, 4), tensor(4, seed=1)
    with ndl.lazy_mode():
        z = ((x + y) * 2.0)[1:, ::2].mean(0)
        assert z.array is None
        assert z.shape == (2,) and z.dtype == "float32" and z.device == x.device and z.ndim == 1
        assert z.size == 2 and len(z) == 2 and z.array is None
        expected = ((x.numpy() + y.numpy()) * 2)[1:, ::2].mean(0)
        np.testing.assert_allclose(z.numpy(), expected, rtol=1e-5)
        assert z.array is not None


def test_lazy_gradients_wait_too():
    x = tensor(3)
    with ndl.lazy_mode():
        (x.tanh() * x).sum().backward()
        assert x.grad.array is None and x.grad.shape == (3,)
        lazy = x.grad.numpy()
    (x.tanh() * x).sum().backward()
    np.testing.assert_array_equal(lazy, x.grad.numpy())


def test_lazy_values_can_be_read_after_backward_in_any_order():
    x, w = tensor(4, 3), tensor(3, 3, seed=1)
    loss = ((x @ w).tanh() * x).sum()
    loss.backward()
    expected = loss.item(), x.grad.numpy(), w.grad.numpy()
    for order in ("lxw", "xlw", "wxl"):
        with ndl.lazy_mode():
            loss = ((x @ w).tanh() * x).sum()
            loss.backward()
            found = {"l": loss, "x": x.grad, "w": w.grad}
            values = {name: found[name].numpy() for name in order}
        for name, value in zip("lxw", expected, strict=True):
            np.testing.assert_array_equal(values[name], value)


def test_lazy_results_survive_the_end_of_the_mode():
    x = tensor(3)
    with ndl.lazy_mode():
        y = x * 2.0
    z = y + 1.0
    np.testing.assert_allclose(z.numpy(), 2 * x.numpy() + 1, rtol=1e-6)


def test_lazy_values_are_computed_once():
    calls = []

    class Counting(Op):
        """x, counting."""

        def compute(self, x):
            if x.device != ndl.meta():
                calls.append(1)
            return x.copy()

        def gradient(self, out_grad, out):
            return (out_grad,)

    x = tensor(3)
    with ndl.lazy_mode():
        y = Counting()(x)
        z = y + y
        z.numpy(), y.numpy(), (z * y).numpy()
    assert calls == [1]


def test_the_courses_switch():
    x = tensor(3)
    ndl.autograd.LAZY_MODE = True
    try:
        assert ndl.autograd.LAZY_MODE
        y = x + 1.0
        assert y.array is None
    finally:
        ndl.autograd.LAZY_MODE = False
    assert (x + 1.0).array is not None
    assert ndl.autograd.TENSOR_COUNTER >= 2
    np.testing.assert_allclose(y.numpy(), x.numpy() + 1)


def test_a_growing_lazy_graph_warns_with_the_line():
    x = constant(2)
    with ndl.lazy_mode(), pytest.warns(RuntimeWarning, match="wait to be computed") as caught:
        h = x
        for _ in range(executor.PENDING_LIMIT + 1):
            h = h + 1.0
    assert "test_graph.py:" in str(caught[0].message)
    h.numpy()
    assert graph.pending() < executor.PENDING_LIMIT / 2


def test_lazy_results_that_are_dropped_do_not_count_as_waiting():
    x = constant(2)
    before = graph.pending()
    with ndl.lazy_mode():
        for _ in range(1000):
            x + 1.0
        assert graph.pending() == before


def test_modes_belong_to_the_thread():
    seen = []
    with ndl.lazy_mode(), ndl.no_grad():
        in_threads(lambda: seen.append((graph.lazy(), graph.recording())))
    assert seen == [(False, True)]


def modes() -> tuple:
    """What blocks switch here, and whether checks are on."""
    limit = ndl.cpu().memory_info()["limit"]
    return graph.recording(), graph.lazy(), ndl.config.current(), limit


BLOCKS = {
    "lazy": lambda: ndl.config(mode="lazy"),
    "lazy_mode": ndl.lazy_mode,
    "eager": lambda: ndl.config(mode="eager"),
    "no_grad": ndl.no_grad,
    "enable_grad": ndl.enable_grad,
    "check_finite": ndl.check_finite,
    "debug": lambda: ndl.config(debug=0),
    "limit": lambda: ndl.config(memory_limit="1GiB"),
    "fast": lambda: ndl.config(fast="off"),
}


@pytest.mark.parametrize("first", BLOCKS)
@pytest.mark.parametrize("second", BLOCKS)
def test_after_the_blocks_of_all_tasks_the_modes_are_as_before(first, second):
    before = modes()

    async def both():
        entered, left = asyncio.Event(), asyncio.Event()

        async def one():
            with BLOCKS[first]():
                await entered.wait()
            left.set()

        async def other():
            with BLOCKS[second]():
                entered.set()
                await left.wait()

        await asyncio.gather(one(), other())

    asyncio.run(both())
    assert modes() == before
    assert (constant(2) * 2.0).array is not None


def test_blocks_are_left_in_any_order():
    """The one that was entered last and is not left yet rules."""
    lazy, eager, again = ndl.lazy_mode(), ndl.lazy_mode(False), ndl.lazy_mode()
    found = []
    for step in (lazy.__enter__, eager.__enter__, again.__enter__):
        step()
    for block in (lazy, again, eager):
        block.__exit__(None, None, None)
        found.append(graph.lazy())
    assert found == [True, False, False]


def test_a_task_does_not_switch_off_the_checks_of_another():
    async def both():
        checked = asyncio.Event()

        async def careless():
            with ndl.config(debug=0):
                await checked.wait()

        task = asyncio.create_task(careless())
        with ndl.check_finite():
            await asyncio.sleep(0)  # the other one enters its block
            with pytest.raises(ndl.errors.NonFiniteError):
                ndl.log(constant(2) - 2.0)
            checked.set()
            await task

    asyncio.run(both())


def test_a_thread_does_not_end_the_limit_of_another(device):
    def unrelated():
        with ndl.config(debug=0):
            pass
        with ndl.config(memory_limit=0, threads=1):
            pass

    with ndl.config(memory_limit=device.memory_info()["live"] + 4096):
        limit = device.memory_info()["limit"]
        in_threads(unrelated)
        assert device.memory_info()["limit"] == limit
        with pytest.raises(ndl.errors.OutOfMemoryError):
            ndl.zeros((4096,), device=device)
        in_threads(lambda: ndl.zeros((4096,), device=device))
    assert device.memory_info()["limit"] == 0


# ---- threads -------------------------------------------------------------------


def test_four_threads_train():
    expected = [train(100, seed) for seed in range(4)]
    found: dict[int, np.ndarray] = {}

    def run(seed):
        def work():
            found[seed] = train(100, seed)

        return work

    in_threads(*map(run, range(4)))
    for seed in range(4):
        np.testing.assert_array_equal(found[seed], expected[seed])


def test_four_threads_realise_one_lazy_graph():
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            x = tensor(4)
            with ndl.lazy_mode():
                h = x
                parts = []
                for _ in range(30):
                    h = (h * 0.5 + x).tanh()
                    parts.append(h)
            targets = (h, *parts[::10])
            in_threads(*[part.numpy for part in targets])
            reference = x.numpy()
            for _ in range(30):
                reference = np.tanh(reference * np.float32(0.5) + x.numpy())
            np.testing.assert_allclose(h.numpy(), reference, rtol=1e-5)
    finally:
        sys.setswitchinterval(old)


# ---- the other implementation ----------------------------------------------------


@pytest.mark.skipif(core.native is None, reason="this run is the one on the definitions")
def test_all_of_it_on_the_python_definitions():
    env = {**os.environ, "NEEDLE_NATIVE": "off", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_errors_are_of_one_family():
    for name in ("ShapeError", "DtypeError", "GradientError", "ReleasedError", "OptionError"):
        assert issubclass(getattr(ndl.errors, name), NeedleError)


# ---- the gate --------------------------------------------------------------------


def test_a_collection_in_the_midst_of_an_operation_that_computes():
    """What the collector calls may compute too, and change what the gate keeps of earlier calls."""
    rows, row = constant(3, 4), constant(4)
    expected = rows.numpy() + row.numpy()
    others = [(constant(n, m), constant(m)) for n in range(2, 16) for m in range(2, 16)]
    results = []

    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            kept.append([x * y for x, y in others])

    kept = []  # so that there are no objects to use again: new ones let the collector run
    before = gc.get_threshold()
    try:
        for _ in range(100):
            gc.set_threshold(0)
            results.append(rows + row)
            Garbage()
            gc.set_threshold(1)
            results.append(rows + row)
    finally:
        gc.set_threshold(*before)
    assert len(kept) > 10
    for found in results:
        np.testing.assert_array_equal(found.numpy(), expected)


class Raising(Op):
    """Raises what it is told to, and counts how often it was asked."""

    error: object
    asked: ClassVar[int] = 0

    def compute(self, x):
        Raising.asked += 1
        raise self.error


@pytest.mark.parametrize("fast", ["on", "off"])
@pytest.mark.parametrize(
    "error, kind, said",
    [
        (ValueError("no"), ValueError, "^no$"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (OverflowError("too big"), ShapeError, "raising: a size or a step"),
        (MemoryError(), ndl.errors.OutOfMemoryError, "raising: the system has no memory"),
        (ShapeError("as it is"), ShapeError, "^as it is$"),
    ],
)
def test_what_compute_raises_is_raised_and_compute_runs_once(fast, error, kind, said):
    Raising.asked = 0
    with ndl.config(fast=fast), pytest.raises(kind, match=said):
        Raising(error)(tensor(2))
    assert Raising.asked == 1


def test_errors_that_name_arrays_name_the_tensors_instead():
    weight = ndl.nn.Parameter(np.ones((2, 3), np.float32))
    weight.name = "weight"
    with pytest.raises(ShapeError, match='parameter "weight"'):
        weight @ weight


@pytest.mark.parametrize("fast", ["on", "off"])
def test_an_op_must_give_arrays_and_take_as_many_as_it_says(fast):
    class Wrong(Op):
        def compute(self, x):
            return x.numpy()

    class Second(Op):
        def compute(self, x, y):
            return y

    with ndl.config(fast=fast):
        with pytest.raises(TypeError, match=r"an op returned numpy\.ndarray, not an array"):
            Wrong()(tensor(2))
        for operands in ([tensor(2)], [tensor(2)] * 3):
            with pytest.raises(ndl.errors.ArgumentError, match="second: takes 2 operands"):
                Second()(*operands)
        assert Second()(tensor(2), 3.0).item() == 3.0
        many = [tensor(2)] * 20
        assert ndl.concat(many).shape == (40,)


@pytest.mark.parametrize(
    "rule", [lambda g: g.sum(), lambda g: np.ones(2), lambda g: 2.0, lambda g: g.astype("float64")]
)
def test_the_gradient_of_an_op_must_fit_its_input(rule):
    class Copy(Op):
        def compute(self, x):
            return x

        def gradient(self, out_grad, out):
            return rule(out_grad)

    x = tensor(2)
    for below in (x, x * 2.0):
        with pytest.raises(ndl.errors.GradientError, match=r"copy: gradient\(\) gave another"):
            Copy()(below).sum().backward()
    given = rule(tensor(2))
    if getattr(given, "shape", None) == (2,) and not isinstance(given, np.ndarray):
        with ndl.config(backend="np"):  # as NumPy infers them
            Copy()(x).sum().backward()


class CourseCube(ndl.TensorOp):
    """An op as the course has them: it says nothing about what its gradient reads."""

    def compute(self, a):
        return a**3

    def gradient(self, out_grad, node):
        (x,) = node.inputs
        return out_grad * 3 * x * x


@pytest.mark.parametrize("lazy", [False, True])
def test_an_op_in_the_course_s_form_keeps_what_its_gradient_reads(lazy):
    with ndl.lazy_mode(lazy):
        x = tensor(3)
        CourseCube()(x * 2.0).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 24 * x.numpy() ** 2)
        np.testing.assert_allclose(
            ndl.jacobian(CourseCube())(x).numpy(), np.diag(3 * x.numpy() ** 2)
        )

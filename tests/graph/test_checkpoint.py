"""checkpoint: a region that runs again, with what it closed over and drew."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from small_graphs import constant, live_values, tensor

import needle as ndl


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
    closed = "besides its arguments"
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

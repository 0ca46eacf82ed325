"""Calls of compiled functions: structures, cells, aliases, and what other compilers got wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, optim
from needle.errors import IndexRangeError, TraceError


@pytest.fixture(autouse=True)
def seeded():
    ndl.manual_seed(5)
    yield
    ndl.manual_seed(None)


def test_structures_go_in_and_come_out():
    @ndl.compile
    def f(pair, named, flag=True, *, scale=None):
        x, (y, z) = pair
        return {"sum": x + y, "list": [z * 2, named["w"]], "n": len(pair), "none": None}

    x, y, z, w = (ndl.Tensor([float(i)]) for i in range(4))
    for _ in range(2):
        out = f((x, [y, z]), {"w": w}, scale="wide")
        assert list(out) == ["sum", "list", "n", "none"]
        assert (out["n"], out["none"]) == (2, None)
        assert [out["sum"].item(), *(v.item() for v in out["list"])] == [1.0, 4.0, 3.0]
        assert out["list"][1] is not w


def test_static_arguments_make_programs():
    seen = []

    @ndl.compile(static=("n", "kind"))
    def f(x, n, *, kind="a"):
        seen.append((n, kind))
        return x * n

    x = ndl.ones(2)
    assert [f(x, 2).tolist(), f(x, n=3).tolist(), f(x, 2).tolist()] == [[2, 2], [3, 3], [2, 2]]
    f(x, 2, kind="b"), f(x, 2.0)
    assert seen == [(2, "a"), (3, "a"), (2, "b"), (2.0, "a")]


def test_equal_static_arguments_of_other_types_make_programs():
    f = ndl.compile(lambda x, n: x * n[0], static="n")
    x = ndl.Tensor([3], dtype="int64")
    assert [str(f(x, (n,)).dtype) for n in (1, 1.0, True)] == ["int64", "float32", "int64"]
    assert [np.signbit(f(ndl.ones(1), (n,)).numpy())[0] for n in (0.0, -0.0)] == [False, True]


def test_results_are_new_memory():
    """tinygrad 7020, 13364: the same buffer was returned again."""
    f = ndl.compile(lambda x: x + 1)
    first, second = f(ndl.Tensor([1.0])), f(ndl.Tensor([2.0]))
    assert (first.item(), second.item()) == (2.0, 3.0)


def test_a_result_that_is_an_argument_or_a_view_of_it():
    w = nn.Parameter(ndl.Tensor([5.0, 6.0]))
    f = ndl.compile(lambda x: (x, x.reshape((2, 1)), w, w[0]))
    x = ndl.Tensor([1.0, 2.0], requires_grad=False)
    out = f(x)
    x[0], w.data = 9.0, ndl.Tensor([7.0, 8.0])
    assert out[0].tolist() == [1.0, 2.0]
    assert out[1].tolist() == [[1.0], [2.0]]
    assert (out[2].tolist(), out[3].item()) == ([5.0, 6.0], 5.0)
    assert f(x)[2].tolist() == [7.0, 8.0]


def test_a_buffer_that_is_shifted_and_returned():
    """tinygrad 13364."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("past", ndl.zeros(3))

        def forward(self, x):
            self.past = ndl.ops.concat([self.past[1:], x])
            return self.past

    model = Shift()
    f = ndl.compile(model)
    kept = [f(ndl.Tensor([float(i)], requires_grad=False)) for i in range(1, 5)]
    assert [x.tolist() for x in kept] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert model.past.tolist() == [2, 3, 4]


def test_items_of_tensors_outside_are_assigned_in_each_call():
    w = ndl.Tensor([1.0, 1.0], requires_grad=False)

    def f(fails):
        w[0] = 3.0
        return w.item() if fails else w + 1

    run = ndl.compile(f, static="fails")
    with pytest.raises(TraceError):
        run(True)
    assert w.tolist() == [1.0, 1.0]
    for value in (1.0, 10.0):
        w.data = ndl.full((2,), value)
        assert run(False).tolist() == [4.0, value + 1]
        assert w.tolist() == [3.0, value]


def test_a_buffer_that_is_none_at_first():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", None)

        def forward(self, x):
            self.total = x if self.total is None else self.total + x
            return self.total * 1

    model = Sum()
    f = ndl.compile(model)
    x = ndl.Tensor([1.0], requires_grad=False)
    assert [f(x).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    model.total = None
    assert [f(x).item() for _ in range(2)] == [1.0, 2.0]


def test_lists_of_tensors_are_arguments():
    """tinygrad 10850: they were dropped."""
    f = ndl.compile(lambda xs: xs[0] * xs[1])
    results = [f([ndl.Tensor([a]), ndl.Tensor([b])]).item() for a, b in ((1.0, 2.0), (3.0, 4.0))]
    assert results == [2.0, 12.0]


def test_aliased_arguments_are_another_program():
    @ndl.compile
    def f(x, y):
        x += y
        x += y
        return x * 1

    x, y = (ndl.Tensor([v], requires_grad=False) for v in (1.0, 10.0))
    assert f(x, y).item() == 21.0
    assert x.item() == 21.0
    z = ndl.Tensor([1.0], requires_grad=False)
    assert f(z, z).item() == 4.0
    assert z.item() == 4.0


def test_an_argument_that_is_found_outside_too():
    w = ndl.Tensor([1.0], requires_grad=False)
    with pytest.raises(TraceError, match="argument"):
        ndl.compile(lambda x: x + w)(w)


def test_masks_differ_from_call_to_call():
    """MLX 4234."""
    drop = ndl.compile(nn.Dropout(0.5))
    x = ndl.ones(64, requires_grad=False)
    ndl.manual_seed(1)
    compiled = [drop(x).tolist() for _ in range(3)]
    ndl.manual_seed(1)
    assert compiled == [nn.Dropout(0.5)(x).tolist() for _ in range(3)]
    assert compiled[0] != compiled[1]


def test_a_parameter_that_is_replaced():
    """MLX 946."""
    layer = nn.Linear(1, 1, bias=False)
    f = ndl.compile(layer)
    x = ndl.ones(1, 1)
    layer.weight.data = ndl.Tensor([[2.0]])
    assert f(x).item() == 2.0
    layer.weight = nn.Parameter(ndl.Tensor([[3.0]]))
    assert f(x).item() == 3.0
    layer.load_state_dict({"weight": np.array([[4.0]])})
    assert f(x).item() == 4.0


def test_buffers_that_are_only_read():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    f, train, x = ndl.compile(model), ndl.compile(lambda x: model(x).sum()), ndl.randn(8, 3)
    for step in (model, train, train):
        for mode in (model.train, model.eval):
            mode()
            step(x)
        np.testing.assert_array_equal(f(x).numpy(), model(x).numpy())
    assert len(f.calls()) == 1


def test_parts_of_modules_that_are_replaced():
    one, layers = nn.Linear(1, 1), nn.ModuleList([nn.Identity()])
    table, several = nn.ParameterDict({"w": ndl.ones(1)}), nn.ParameterList([ndl.ones(1)])
    one.layers = layers

    def f(x):
        return layers[0](x * table["w"] * several[0] * one.weight) + sum(several[1:], 0)

    run, x = ndl.compile(f), ndl.ones(1)
    for change in (
        lambda: None,
        lambda: setattr(one, "weight", nn.Parameter(ndl.full((1, 1), 2.0))),
        lambda: layers.__setitem__(0, nn.Tanh()),
        lambda: table.__setitem__("w", nn.Parameter(ndl.full((1,), 3.0))),
        lambda: several.__setitem__(0, nn.Parameter(ndl.full((1,), 0.1))),
    ):
        change()
        for _ in range(3):
            assert run(x).item() == f(x).item()
    whole = nn.Sequential(one)
    whole.forward = lambda x: x * sum(several, 0)
    whole.several = several
    run = ndl.compile(whole)
    for _ in range(2):
        assert run(x).item() == whole(x).item()
        several.append(ndl.ones(1))


def test_hooks_and_settings_of_modules_are_seen():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factors = [2.0]

        def forward(self, x):
            return x * self.factors[0]

    model = Scaled()
    f = ndl.compile(model)
    x = ndl.ones(1, requires_grad=False)
    assert f(x).item() == 2.0
    model.factors = [3.0]
    assert f(x).item() == 3.0
    with model.register_forward_hook(lambda module, args, out: out + 1):
        assert f(x).item() == 4.0
    assert f(x).item() == 3.0


def test_modes_of_modules_are_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9), nn.BatchNorm1d(2))
    f = ndl.compile(model)
    x = ndl.randn(8, 2)
    f(x)
    model.eval()
    np.testing.assert_array_equal(f(x).numpy(), model(x).numpy())
    model.train()
    assert not np.array_equal(f(x).numpy(), f(x).numpy())
    assert "2 programs" in repr(f)
    with ndl.no_grad():
        assert not f(x).requires_grad


def test_the_last_smaller_batch():
    """MLX 1160."""
    layer = nn.Linear(3, 2)
    f = ndl.compile(lambda x: layer(x).sum())
    for n in (4, 4, 3, 4, 3):
        x = ndl.randn(n, 3)
        np.testing.assert_allclose(f(x).item(), layer(x).sum().item(), rtol=1e-5)


def test_gradients_are_delivered_or_accumulated():
    layer = nn.Linear(3, 2)
    x = ndl.randn(4, 3)

    def backward(x, accumulate):
        (layer(x) ** 2).sum().backward(accumulate=accumulate)

    backward(x, False)
    wanted = layer.weight.grad.numpy()
    layer.zero_grad()
    f = ndl.compile(backward, static=("accumulate",))
    f(x, True)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), wanted)
    f(x, True)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), wanted + wanted)
    f(x, False)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), wanted)
    x.requires_grad = True
    f(x, False)
    wanted = x.grad.numpy()
    for _ in range(2):
        f(x, True)
    np.testing.assert_array_equal(x.grad.numpy(), wanted + wanted + wanted)
    x.grad, held = None, ndl.compile(lambda x: x * 2 if x.grad is None else x.grad * 3)
    assert (held(x) == x * 2).all()
    x.grad = ndl.ones(*x.shape)
    assert (held(x) == 3).all()


def test_only_the_step_is_compiled():
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(layer.state_dict())
    made = [optim.Adam(m.parameters(), lr=0.1) for m in (layer, other)]
    f = ndl.compile(lambda: made[0].step())
    for _ in range(4):
        x = ndl.randn(4, 3)
        for m in (layer, other):
            (m(x) ** 2).sum().backward()
        f(), made[1].step()
        for opt in made:
            opt.reset_grad()
    for p, q in zip(layer.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_a_kept_alias_keeps_its_value():
    w = nn.Parameter(ndl.Tensor([1.0, 2.0]))
    opt = optim.SGD([w], lr=0.1)
    step = ndl.compile(lambda: opt.minimize((w * w).sum()))
    step()
    before, shown = w.detach(), np.from_dlpack(w.detach())
    values = before.tolist()
    step()
    assert before.tolist() == shown.tolist() == values
    assert w.tolist() != values


def test_an_optimizer_whose_state_is_loaded():
    w = nn.Parameter(ndl.Tensor([1.0, 2.0]))
    opt = optim.Adam([w], lr=0.1)
    step = ndl.compile(lambda: opt.minimize((w * w).sum()))
    step(), step()
    state, value = opt.state_dict(), w.numpy()
    step()
    wanted = w.numpy()
    opt.load_state_dict(state)
    w.data = ndl.Tensor(value)
    opt.lr = 0.1
    step()
    np.testing.assert_array_equal(w.numpy(), wanted)


def test_flags_of_an_optimizer_are_seen():
    found = []
    for wrap in (lambda f: f, ndl.compile):
        w = nn.Parameter(ndl.Tensor([1.0]))
        opt = optim.Adam([w], lr=0.1)
        step = wrap(lambda w=w, opt=opt: opt.minimize((w * 3.0).sum()))
        for name, value in (("lr", 0.2), ("maximize", True), ("amsgrad", True)):
            step(), setattr(opt, name, value), step()
        found.append(w.item())
    assert found[0] == found[1]


@looped("where", ["first", "third"])
def test_a_bad_label_changes_nothing(where):
    ndl.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
    opt, loss_of = optim.Adam(model.parameters()), nn.SoftmaxLoss()
    step = ndl.compile(lambda x, y: opt.minimize(loss_of(model(x), y)))
    good = ndl.Tensor([0, 1, 2], dtype="int64")
    x = ndl.randn(3, 3)
    for _ in range(2 if where == "third" else 0):
        step(x, good)

    def state():
        arrays = [v.numpy().tobytes() for v in model.state_dict().values()]
        moments = {k: str(v) for k, v in opt.state_dict().items()}
        return arrays, moments, ndl.ops.random.get_state(), opt.t

    before = state()
    with pytest.raises(IndexRangeError, match="7"):
        step(x, ndl.Tensor([0, 7, 2], dtype="int64"))
    assert state() == before
    step(x, good)


def test_threads_run_their_own_programs():
    layers = [nn.Linear(4, 4) for _ in range(2)]
    for layer in layers:
        layer.requires_grad_(False)
    programs = [ndl.compile(layer) for layer in layers]
    x = ndl.randn(3, 4)
    wanted = [layer(x).numpy() for layer in layers]
    wrong = []

    def run(i):
        for _ in range(50):
            if not np.array_equal(programs[i % 2](x).numpy(), wanted[i % 2]):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_methods_and_nested_programs():
    class Scaled:
        factor = 3

        @ndl.compile
        def times(self, x):
            return inner(x) * self.factor

    inner = ndl.compile(lambda x: x + 1)
    assert Scaled().times(ndl.Tensor([1.0])).item() == 6.0


def test_two_gradients_in_one_function():
    """tinygrad 16571."""
    w = nn.Parameter(ndl.Tensor([2.0]))

    @ndl.compile
    def f(x):
        (w * x).sum().backward()
        first = w.grad
        (w * w * x).sum().backward()
        return first, w.grad

    for _ in range(2):
        assert [g.item() for g in f(ndl.Tensor([3.0]))] == [3.0, 12.0]


def test_results_of_integers_need_no_gradient():
    f = ndl.compile(lambda x: ndl.vjp(ndl.ops.tanh, x)[0])
    assert not f(ndl.Tensor([1, 2], dtype="int64")).requires_grad
    assert f(ndl.Tensor([1.0, 2.0])).requires_grad

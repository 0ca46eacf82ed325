"""Ops that read values (linear algebra, integers at random) are steps of native programs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from steps import STEPS

import needle as ndl
from needle import config, core, executor, io, nn, ops, optim
from needle.compile import compile
from needle.errors import SingularError
from needle.ops import random
from needle.ops.core.op import Op

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")


def values(*shape, seed=0):
    made = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return ndl.Tensor(made, requires_grad=False)


def host_steps(function):
    """The kernels of the native program that run on the host."""
    (call,) = function.calls()
    assert call.why == ""
    return [row for row in call.program.rows() if row.kernel == "on the host"]


class Hook(Op):
    """Twice x, computed with NumPy; ``called`` runs in each computation that has values."""

    is_differentiable = False
    number: int

    def infer(self, x):
        return x

    def compute(self, x):
        found = x.numpy() * 2
        if Hook.hook is not None:
            Hook.hook()
        return ndl.Tensor(found).array

    hook = None


@pytest.fixture
def hook():
    def install(function):
        Hook.hook = staticmethod(function)

    yield install
    Hook.hook = None


@pytest.mark.parametrize("name", ["linear_algebra", "integer_draws"])
def test_a_training_step_with_them_is_native(name):
    ndl.manual_seed(1)
    step, _, arguments = STEPS[name](np.random.default_rng(0))
    run = compile(step)
    for i in range(2):
        run(*arguments(i))
    assert len(host_steps(run)) >= 2
    assert "on the host" in ndl.explain(run)
    ndl.manual_seed(None)


def test_every_call_draws_other_numbers_and_those_of_eager_mode():
    def draw():
        return ndl.permutation(50), ndl.randint((4, 5), -3, 1000), ndl.rand(3)

    run, found = compile(draw), []
    for function in (draw, run):
        ndl.manual_seed(3)
        found.append([[x.numpy() for x in function()] for _ in range(4)])
    ndl.manual_seed(None)
    assert len(host_steps(run)) == 2
    for eager, compiled in zip(*found, strict=True):
        for x, y in zip(eager, compiled, strict=True):
            np.testing.assert_array_equal(x, y)
    assert not np.array_equal(found[1][0][0], found[1][1][0])


def test_views_come_with_their_strides():
    def f(x):
        return ops.inv(x.T[1:, :3] + 3 * ndl.eye(3)), ops.qr(x[:, ::2].detach())[1]

    x, run = values(3, 4), compile(f)
    for x in (values(3, 4), values(3, 4, seed=1)):
        for a, b in zip(f(x), run(x), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    host_steps(run)


def test_a_singular_matrix_leaves_everything_as_before():
    model, good = nn.Linear(3, 3), ndl.Tensor(np.eye(3, dtype=np.float32) * 2)
    model.register_buffer("seen", ndl.zeros(1))
    opt = optim.Adam(model.parameters())

    def step(x):
        model.seen += 1
        noise = ndl.randint((3, 3), 0, 5)
        return opt.minimize((model(ops.solve(x, noise.astype("float32"))) ** 2).mean())

    ndl.manual_seed(0)
    run = compile(step)
    for _ in range(2):
        run(good)
    state = [x.numpy().copy() for x in (*model.state_dict().values(),)], opt.t, random.get_state()
    with pytest.raises(SingularError, match=r"solve(.|\n)*test_on_host"):
        run(ndl.ones(3, 3))
    assert len(run.calls()) == 1 and host_steps(run)
    for x, y in zip(state[0], model.state_dict().values(), strict=True):
        np.testing.assert_array_equal(x, y.numpy())
    assert state[1:] == (opt.t, random.get_state())
    run(good)
    assert opt.t == state[1] + 1
    ndl.manual_seed(None)


@pytest.mark.parametrize("stores", [False, True])
def test_ctrl_c_in_a_step_on_the_host(hook, stores):
    total = ndl.zeros(4, 4)

    def f(x):
        y = ops.tanh(x) + executor.apply(Hook.of(1), x * 2.0)
        if stores:
            total.data = total + y
        return y

    def stop():
        raise KeyboardInterrupt

    run, x = compile(f), values(4, 4)
    expected = [run(x).numpy() for _ in range(3)][0]
    before = total.numpy().copy()
    hook(stop)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    hook(None)
    np.testing.assert_array_equal(total.numpy(), before)
    np.testing.assert_array_equal(run(x).numpy(), expected)
    assert len(host_steps(run)) == 1


def test_a_step_on_the_host_may_run_programs(hook):
    """Its thread's memory for values is theirs then; the same program runs by its definition."""
    other = compile(lambda x: ops.exp(x * 100.0) @ x)
    big, x = values(300, 300), values(40, 40)

    def f(x):
        y = ops.tanh(x) * 3.0
        z = executor.apply(Hook.of(2), x)
        return (y @ z) + y

    run, expected = compile(f), f(x).numpy()
    run(x)
    depth = []

    def within():
        if not depth:
            depth.append(1)
            other(big)
            with executor.modes(recording=True):  # else it is another program
                np.testing.assert_array_equal(run(x).numpy(), expected)
            depth.clear()

    hook(within)
    for _ in range(3):
        np.testing.assert_array_equal(run(x).numpy(), expected)
    assert len(host_steps(run)) == 1


def test_a_result_of_another_shape_is_refused(hook):
    class Wrong(Hook):
        def compute(self, x):
            x.numpy()
            return ndl.zeros(7).array

    run = compile(lambda x: executor.apply(Wrong.of(3), x) + 1.0)
    with pytest.raises(TypeError, match=r"float32\[7\].*float32\[3\]"):
        run(values(3))


def test_no_value_is_read_late_and_threads_do_not_meet():
    def f(x):
        return ops.tanh(ops.inv(ops.exp(x * 0.1) + 9 * ndl.eye(20)) @ x) @ ops.qr(x)[0]

    arrays = [values(20, 20, seed=i) for i in range(4)]
    expected, wrong = [f(x).numpy() for x in arrays], []
    with config.override(check="poison"):
        run = compile(f)

        def work(i):
            with config.override(check="poison"):
                for _ in range(30):
                    if not np.array_equal(run(arrays[i]).numpy(), expected[i]):
                        wrong.append(i)

        run(arrays[0])
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong and len(host_steps(run)) == 2


def test_a_saved_program_has_them(tmp_path):
    def f(x):
        return ops.cholesky(x @ x.T + ndl.eye(4)) + ndl.randint((4, 4), 0, 9, dtype="float32")

    ndl.manual_seed(5)
    run, x = compile(f), values(4, 4)
    run(x)
    io.save_program(run, tmp_path / "f.needle")
    loaded = ndl.load_program(tmp_path / "f.needle")
    for _ in range(2):
        state = random.get_state()
        expected = f(x).numpy()
        random.set_state(state)
        np.testing.assert_array_equal(loaded(x).numpy(), expected)
    ndl.manual_seed(None)

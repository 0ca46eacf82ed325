"""Memory that runs out, wherever it does: a typed error, and the process goes on."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from devices import DEVICES

import needle as ndl
from needle import core, graph, nn, ops, optim
from needle.backend import memory
from needle.backend.cuda.emulator import COMPILERS
from needle.errors import OptionError, OutOfMemoryError
from needle.testing.checks import cases

KIB = 1 << 10
native = pytest.mark.skipif(core.native is None, reason="needs the native module")


def live(device) -> int:
    gc.collect()
    return device.memory_info()["live"]


def in_use(info) -> int:
    return info["live"] + info.get("workspaces", 0)


def room(device, nbytes: int, **changes):
    """Return a context in which a device gives that many bytes more than are in use."""
    used = in_use(device.memory_info())
    return ndl.config(memory_limit=max(1, used + nbytes), **changes)


def leaf(device, *shape: int, seed: int = 0) -> ndl.Tensor:
    return ndl.Tensor(np.random.default_rng(seed).normal(size=shape), device=device)


# ---- the setting -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("1.5 MiB", 3 << 19),
        ("2gib", 2 << 30),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254740993", 2**53 + 1),
        ("0.5KiB", 512),
        ("8388607.5TiB", 2**63 - 2**39),
    ],
)
def test_sizes(text, value):
    with ndl.config(memory_limit=text) as settings:
        assert settings.memory_limit == value


@pytest.mark.parametrize("wrong", ["", "x", "-1", "3 parsecs", "1e9999", -1, 2**63, 1.5, True])
def test_what_is_no_size(wrong):
    with pytest.raises(OptionError, match="NEEDLE_MEMORY_LIMIT="), ndl.config(memory_limit=wrong):
        pass


@pytest.mark.parametrize("large", ["9223372036854775808", "99999999TiB", 2**63, "9" * 99])
def test_sizes_have_63_bits(large):
    with pytest.raises(OptionError, match=r"less than 2\*\*63"), ndl.config(memory_limit=large):
        pass


@pytest.mark.parametrize("name", ["MEMORY_LIMIT", "DEBUG", "MODE"])
def test_an_empty_variable_is_as_none(name):
    code = f"import needle; print(needle.config.initial().{name.lower()})"
    empty = {**os.environ, **ndl.config.environment(**{name: ""})}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=empty)
    assert run.stdout.strip() in ("0", "eager"), run.stderr


def test_the_limit_ends_with_its_block(device):
    with room(device, 100):
        assert device.memory_info()["limit"] > 0
    assert device.memory_info()["limit"] == 0
    assert leaf(device, 1000).shape == (1000,)


def test_statistics(device):
    before = live(device)
    x = leaf(device, 256, 256)
    info = device.memory_info()
    assert info["live"] - before >= 256 * 256 * 4 and info["peak"] >= info["live"]
    del x
    assert live(device) == before


# ---- the error ---------------------------------------------------------------------


def test_the_message(device):
    x, w = leaf(device, 64, 64), ndl.Parameter(np.ones((64, 64)), device=device)
    w.name = "head.weight"
    y = (x @ w).tanh()
    with room(device, 8 * KIB), pytest.raises(OutOfMemoryError) as caught:
        y @ w
    text = str(caught.value)
    assert text.startswith(f"matmul: no memory for 16.0 KiB (16384 bytes) on {device.name}\n")
    assert re.search(r"in use: .*, cached: .*, limit: ", text)
    assert 'float32[64, 64]  parameter "head.weight"' in text
    assert "float32[64, 64]  made by tanh" in text
    assert "  x: float32[64, 64]" in text and "  y: float32[64, 64] " in text
    assert caught.value.requested == 16384 and caught.value.memory["limit"] > 0
    assert isinstance(caught.value, MemoryError)


def test_makers_lines_are_named_with_debug(device):
    with ndl.config(debug=1):
        x = leaf(device, 64, 64)
        y = x.tanh().exp().sin()  # the values in between are kept for gradients only
        gc.collect()  # not while memory is short: what others left would make room
        with room(device, KIB), pytest.raises(OutOfMemoryError) as caught:
            y.exp()
    for op in ("tanh", "exp"):
        assert re.search(
            rf"made by {op} at .*test_memory.py:\d+, kept for a gradient", str(caught.value)
        )
    assert re.search(r"made by sin at .*test_memory.py:\d+", str(caught.value))


def test_leaves_lines_are_named_with_debug(device):
    with ndl.config(debug=1):
        x = ndl.Tensor(np.ones((64, 64)), device=device)
        w = ndl.Parameter(np.ones((32, 64)), device=device)
        one = ndl.ones(16, 64, device=device)
        w.name = "head.weight"
        gc.collect()  # as above
        with room(device, KIB), pytest.raises(OutOfMemoryError) as caught:
            x.exp()
    for made in ("made by Tensor", 'parameter "head.weight", made by Parameter', "made by ones"):
        assert re.search(rf"{made} at .*test_memory.py:\d+", str(caught.value)), made
    assert "NEEDLE_DEBUG" not in str(caught.value)
    assert one.maker.startswith("ones at ") and leaf(device, 2).maker is None
    with room(device, KIB), pytest.raises(OutOfMemoryError, match="NEEDLE_DEBUG=1 names"):
        x.exp()


def test_what_numpy_raises_becomes_typed(device, monkeypatch):
    x = leaf(device, 3)

    def exhausted(self, *arrays):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(ops.Tanh, "compute", exhausted)
    with ndl.config(fast="off"), pytest.raises(OutOfMemoryError, match="tanh: the system has no"):
        x.tanh()


def test_more_than_any_machine_has(device):
    with pytest.raises(OutOfMemoryError):
        ndl.zeros(2**50, device=device)
    with pytest.raises(OutOfMemoryError):
        ndl.zeros(2**60, device=device)
    with pytest.raises(ndl.errors.ShapeError, match="63 bits"):
        ndl.zeros(2**40, 2**40, device=device)
    with pytest.raises(ndl.errors.ShapeError):
        ndl.zeros(0, 2**40, 2**40, device=device)
    with pytest.raises(ndl.errors.ShapeError):
        leaf(device, 1).broadcast_to((2**40, 2**40))


def repeated(device, *shape: int, dtype: str = "float16") -> ndl.Tensor:
    return ndl.Tensor(1.0, dtype=dtype, device=device, requires_grad=False).broadcast_to(shape)


@pytest.mark.parametrize("m, k", [(8, 2**58), (16, 2**57), (64, 2**52), (1, 2**61)])
def test_products_that_no_machine_computes(device, m, k):
    """Their number of multiplications, modulo 2**64, is 0, which is that of an empty product."""
    a, b = repeated(device, m, k), repeated(device, k, m)
    with pytest.raises(ndl.errors.ShapeError, match=r"matmul: \d+ multiplications"):
        a @ b


@native
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("name", ["logsumexp", "softmax"])
def test_rows_longer_than_any_workspace(name, rows, kind):
    size = 2 ** (61 if kind == "float32" else 62) // (4 * rows)
    x = repeated(ndl.cpu(), rows, size, dtype=kind)
    with pytest.raises(OutOfMemoryError, match="no memory for"):
        getattr(ops, name)(x if kind != "float32" else x[:, ::-1], -1)


@pytest.mark.parametrize("device", ["cpu", "cpu_numpy"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.cumsum(x, 1),
        lambda x: ops.cumprod(x, 1),
        lambda x: ops.pad(x, [(1, 1), (0, 0)], mode="edge"),
        lambda x: ops.pad(x, [(1, 1), (0, 0)]),
        lambda x: ops.flip(x, 0) + 1.0,
        lambda x: x.sum(axes=0),
    ],
)
def test_many_rows_without_elements_take_no_time(device, call):
    if device == "cpu" and core.native is None:
        device = "cpu_numpy"
    x = ndl.zeros(2**56, 0, device=device)
    assert call(x).numpy().size == 0


@native
@pytest.mark.parametrize("axis", [0, 1])
def test_long_lines_without_elements_are_sorted(axis):
    """On the native CPU: NumPy wants memory for them."""
    x = ndl.zeros(2**56, 0, device="cpu")
    assert ops.sort(x, axis).shape == ops.argsort(x, axis).shape == x.shape


def test_memory_that_ends_when_a_value_is_read_ends_in_the_op_that_waited(host_device):
    """Not in what reads it: numpy() has room to make for its own copy alone."""
    x = ndl.Tensor([1.0], device=host_device).broadcast_to((2**44,))
    with ndl.lazy_mode():
        out = (x + 1.0)[:3]
        with pytest.raises(OutOfMemoryError, match="^add: no memory for 65536.0 GiB"):
            out.numpy()


def test_points_that_have_no_room_are_not_worked_out(device):
    x = leaf(device, 1, 1, 2, 3)
    held = live(device)
    with room(device, 4 << 20), pytest.raises(OutOfMemoryError, match="no memory for 524288.0 GiB"):
        ops.upsample(x, size=(2**23, 2**24), mode="bilinear")
    assert live(device) == held


def test_text_of_sizes():
    found = [memory.size_text(n) for n in (5, 2048, 3 << 19, 5 << 30)]
    assert found == ["5 bytes", "2.0 KiB", "1.5 MiB", "5.0 GiB"]


# ---- every place where memory is asked for -----------------------------------------

FIRST = {
    op.__name__: next(
        (c for c in cases(op) if c.takes_floats() and any(x.size for x in c.arrays())), None
    )
    for op in ops.all_ops()
}


def until_it_fits(device, function, keeps: bool = False, fine: bool = False, **changes) -> int:
    """Call with more and more room until it returns. Return the number of failures.

    Each time what was asked for last fits, so every place that asks for more than any before it is
    where memory ends once; or, if it is to be ``fine``, 64 bytes more. Nothing may leak there,
    unless the function ``keeps`` what it has done.
    """
    nbytes, before = 0, live(device)
    for failures in itertools.count():
        try:
            with room(device, nbytes, **changes):
                function()
            return failures
        except OutOfMemoryError as error:
            assert error.requested > 0
            wanted = in_use(error.memory) + error.requested
            nbytes += 64 if fine else max(64, wanted - error.memory["limit"])
        if not keeps and device.memory_info()["live"] != before:  # in a cycle, or lost
            assert live(device) == before, "memory was lost"
        assert failures < 2000


GATES = [
    (name, gate)
    for name in DEVICES
    for gate in (("on",) if name == "cpu_numpy" else ("on", "off"))  # the gate knows no NumPy
]


@pytest.mark.parametrize("device, gate", GATES, indirect=["device"])
@pytest.mark.parametrize("name", [name for name, case in FIRST.items() if case is not None])
def test_an_op_and_its_gradient_where_memory_ends(name, gate, device):
    case = FIRST[name]
    kind = "float32" if "float32" in case.dtypes else case.dtypes[0]
    inputs, op = case.inputs(kind, device), case.make()

    def forward_and_backward():
        try:
            out = op(*inputs)
            for part in out.tuple() if isinstance(out.spec, tuple) else (out,):
                if case.has_gradient() and part.requires_grad:
                    part.backward(retain_graph=True)
        finally:
            for x in inputs:
                x.grad = None

    for fast in ("off", gate):  # where memory ends the gate asks the definition, on which it relies
        with ndl.config(fast=fast):
            forward_and_backward()  # constants and plans are kept from now on, by either
    until_it_fits(device, forward_and_backward, fast=gate)


def test_lazy_mode(device):
    x = leaf(device, 32, 32)
    exact = (x.tanh() @ x).sum().item()
    with ndl.lazy_mode():
        y = (x.tanh() @ x).sum()
        assert (
            until_it_fits(device, y.item, keeps=True) > 0
        )  # what was computed stays, the rest still waits
        assert y.item() == exact


@pytest.mark.parametrize("gate", ["on", "off"])
def test_a_backward_that_is_tried_again_adds_nothing_twice(device, gate):
    w, v = leaf(device, 16, 16), leaf(device, 16, 16, seed=1)
    middle = w.tanh()
    loss = (middle @ v).square().sum()
    loss.backward(retain_graph=True)
    once = [x.grad.numpy() for x in (w, v, middle)]
    refused = until_it_fits(
        device,
        lambda: loss.backward(retain_graph=True, accumulate=True),
        keeps=True,
        fine=True,
        fast=gate,
    )
    assert refused > 2 * 16  # in the middle, too: one gradient has 16 steps
    for x, grad in zip((w, v, middle), once, strict=True):
        np.testing.assert_array_equal(x.grad.numpy(), 2 * grad)


@native
def test_a_training_step_is_made_once_or_not_at_all():
    """The kernels of optimizers update all parameters at once; elsewhere one after the other."""
    device = ndl.cpu()
    data = np.random.default_rng(0).normal(size=(8, 8))

    def start():
        ndl.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(8, 8, device=device), nn.Tanh(), nn.Linear(8, 1, device=device)
        )
        return model, optim.Adam(model.parameters(), lr=0.1)

    def loss_of(model):
        return (model(ndl.Tensor(data, device=device, requires_grad=False)) ** 2).mean()

    model, optimizer = start()
    loss_of(model).backward()  # constants are kept from now on
    for _ in range(3):
        until_it_fits(device, lambda: loss_of(model).backward(), keeps=True)
        held = [p.data for p in model.parameters()]  # so that new parameters need memory
        assert until_it_fits(device, optimizer.step) > 0
        del held
    again, other = start()
    for _ in range(3):
        other.minimize(loss_of(again))
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


@native
def test_workspaces_of_kernels():
    """A kernel's workspace counts too, and is asked for before the kernel runs."""
    from test_graph import in_threads  # a new thread has no workspace yet

    x = leaf(ndl.cpu(), 2, 5000)

    def sort():
        refused = set()
        for kib in range(0, 4096, 4):
            try:
                with room(ndl.cpu(), kib * KIB):
                    out = ops.sort(x)
                break
            except OutOfMemoryError as error:
                refused.add(error.requested)
        assert refused - {40_000, 80_000}, "values and indices were refused, no workspace was"
        np.testing.assert_array_equal(out.numpy(), np.sort(x.numpy()))

    in_threads(sort)


@native
def test_cached_blocks_are_given_back_first():
    x = leaf(ndl.cpu(), 1000, 1000)
    del x
    assert ndl.cpu().memory_info()["cached"] >= 4_000_000
    with room(ndl.cpu(), 5_500_000):
        y = leaf(ndl.cpu(), 1000, 1100)
    assert y.shape == (1000, 1100)


# ---- small things of C++ and of Python -----------------------------------------------

FAILING_NEW = """
#include <cstdlib>
#include <new>
extern "C" { long needle_news = -1; }  // as many are given; all later ones fail
void* operator new(std::size_t n) {
  if (needle_news == 0) throw std::bad_alloc();
  if (needle_news > 0) needle_news--;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
"""

EVERY_NEW = """
import ctypes, gc, sys
import numpy as np
import needle as ndl
from needle import graph, nn, optim
given = ctypes.c_long.in_dll(ctypes.CDLL(None), "needle_news")

def leaf(*shape):
    return ndl.Tensor(np.arange(np.prod(shape), dtype="float32").reshape(shape) / 64)

def shapes():
    return [leaf(n, 3) + 1.0 for n in range(3, 9)]

def step():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    )
    for p in model.parameters():
        p.data = leaf(*p.shape)
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()(model(leaf(2, 2, 4, 4)), ndl.Tensor(np.array([1, 2])))
    loss.backward()
    optimizer.step()
    return [loss, *model.parameters()]

def lazy():
    with ndl.lazy_mode():
        x = leaf(8, 8)
        y = (ndl.exp(x) @ x).sum()
        y.backward()
        return [y, x.grad]

def picked():
    x = leaf(40, 3)
    return [ndl.argwhere(x > 1), x[x > 1], ndl.sort(x, axis=0), ndl.from_dlpack(np.ones(5))]

many = leaf(1000, 1000)
given.value = 0  # so the pool starts no thread
one = ndl.exp(-many)
given.value = -1
assert np.array_equal(ndl.exp(-many).numpy(), one.numpy())

for program in (shapes, step, lazy, picked):
    exact = [x.numpy() for x in program()]
    failures = 0
    for news in range(10_000):
        gc.collect()  # what no shape has any more makes room
        given.value = news
        try:
            found, left = program(), given.value
        except MemoryError:
            found, left = None, 0
            failures += 1
        given.value = -1
        assert graph.recording() and not graph.lazy()
        for again in [found] if found else [program()]:
            for x, y in zip(again, exact, strict=True):
                assert np.array_equal(x.numpy(), y), (program.__name__, news)
        if left:
            break
    print(program.__name__, failures)
"""


@pytest.fixture(scope="module")
def failing_new(tmp_path_factory):
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        pytest.skip("there is no other way to let C++ run out of memory here")
    folder = tmp_path_factory.mktemp("new")
    (folder / "new.cc").write_text(FAILING_NEW)
    command = [compiler, "-shared", "-fPIC", "-o", folder / "new.so", folder / "new.cc"]
    subprocess.run(command, check=True)
    return str(folder / "new.so")


@native
def test_cpp_that_runs_out_of_memory_ends_no_process(failing_new):
    environment = {**os.environ, "LD_PRELOAD": failing_new, "NEEDLE_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", EVERY_NEW], capture_output=True, text=True, env=environment
    )
    assert (run.returncode, run.stderr) == (0, "")
    failures = dict(line.split() for line in run.stdout.splitlines())
    assert all(int(failures[name]) > 0 for name in ("step", "lazy", "picked")), failures


def _tensors():
    x = ndl.Tensor(np.ones((3, 400), "float32"), device=ndl.cpu())
    return x, x.transpose() * 2.0


CALLS = {
    "a spec": lambda x, y: core.native.make_spec(x.dtype, x.device, (3, 1001, 2)).shape,
    "strides": lambda x, y: y.array.strides,
    "a leaf": lambda x, y: graph.leaf(x).spec.shape,
    "an order": lambda x, y: len(graph.topo([y.node])),
    "inputs": lambda x, y: [z.shape for z in y.inputs],
    "a slice": lambda x, y: x[1:3:2, ::-3].shape,
    "numbers of an op": lambda x, y: y.op.save_masks,
    "a product": lambda x, y: (x @ y).shape,
}


@native
@pytest.mark.parametrize("name", CALLS)
def test_python_that_runs_out_of_memory(name):
    """Whichever of the objects that a call makes is refused: what was there stays usable."""
    testcapi = pytest.importorskip("_testcapi")
    expected = CALLS[name](*_tensors())
    for made in range(60):
        x, y = _tensors()
        testcapi.set_nomemory(made, made + 1)
        try:
            found = CALLS[name](x, y)
        except MemoryError:
            found = None
        finally:
            testcapi.remove_mem_hooks()
        assert found in (None, expected)
        assert CALLS[name](x, y) == expected
        (x @ y).sum().backward()
        assert x.grad.shape == (3, 400)

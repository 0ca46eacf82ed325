"""Memory that runs out, wherever it is asked for: a typed error, and nothing is lost."""

from __future__ import annotations

import itertools

import changed
import numpy as np
import pytest
import turns
from devices import DEVICES
from looped import looped
from rooms import KIB, in_use, leaf, live, native, room
from threads import in_threads

import needle as ndl
from needle import nn, ops, optim
from needle.errors import OutOfMemoryError
from needle.testing.checks import cases

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


def is_due(name: str, device: str) -> bool:
    """Return whether memory ends in an op on a device: always on the first, else by turns."""
    place = DEVICES.index(device)
    return (
        place == 0
        or turns.everything()
        or turns.is_due(f"{name} memory", place)
        or changed.is_whole(FIRST[name].op, device)
    )


@pytest.mark.parametrize("name", [name for name, case in FIRST.items() if case is not None])
@looped("where, gate", GATES)
def test_an_op_and_its_gradient_where_memory_ends(name, gate, where):
    if not is_due(name, where):
        pytest.skip("another turn's")
    case, device = FIRST[name], ndl.devices.as_device(where)
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

    in_threads(sort)  # a new thread has no workspace yet


@native
def test_cached_blocks_are_given_back_first():
    x = leaf(ndl.cpu(), 1000, 1000)
    del x
    assert ndl.cpu().memory_info()["cached"] >= 4_000_000
    with room(ndl.cpu(), 5_500_000):
        y = leaf(ndl.cpu(), 1000, 1100)
    assert y.shape == (1000, 1100)

"""Memory of programs: gradients die early, and ``explain`` says what a call takes, and why."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from steps import floats, labels

import needle as ndl
from needle import config, core, nn, optim
from needle.compile import again, memory
from needle.errors import OutOfMemoryError

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")
WIDTH = 128
LARGE = WIDTH * WIDTH * 4
"""Bytes of a weight, beside which those of a batch are few."""


def deep_step(deep, **kinds):
    """A compiled step of a net of equal layers, which has run; its arguments; its parameters."""
    rng = np.random.default_rng(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(deep)])
    rule = optim.Adam(model.parameters(), lr=0.01)
    loss = nn.SoftmaxLoss()
    step = ndl.compile(lambda x, y: rule.minimize(loss(model(x), y)))
    given = floats(rng, 4, WIDTH), labels(rng, 4)
    step(*given)
    return step, given, list(model.parameters())


def program_of(step):
    (call,) = step.calls()
    assert call.why == ""
    return call.program


def test_a_gradient_dies_when_its_parameter_is_updated():
    step, *_ = deep_step(6)
    program = program_of(step)
    grads = [x for x in program.intervals() if x.nbytes == LARGE]
    assert len(grads) == 6
    assert all(x.last - x.first <= 4 for x in grads)
    assert program.arena_bytes < 2 * LARGE


def test_the_definition_updates_last():
    step, *_ = deep_step(2)
    (call,) = step.calls()
    kinds = [type(node.op).__name__ for node in call.listing.order]
    first = kinds.index("Update")
    assert set(kinds[first:]) <= {"Update", "TupleGetItem"}


def test_a_step_that_fails_behind_an_update_changes_nothing():
    rng = np.random.default_rng(0)
    model = nn.Linear(WIDTH, WIDTH)
    rule, loss = optim.SGD(model.parameters(), lr=0.1), nn.SoftmaxLoss()

    @ndl.compile
    def step(x, y, last):
        rule.minimize(loss(model(x), y))
        return loss(model(x), last)  # with the new parameters

    x, y = floats(rng, 4, WIDTH), labels(rng, 4)
    step(x, y, y)
    before = [p.numpy().copy() for p in model.parameters()]
    with pytest.raises(ndl.errors.IndexRangeError):
        step(x, y, ndl.Tensor(np.array([0, 1, WIDTH, 2])))
    for p, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), old)


def test_what_a_call_takes_is_what_was_forecast():
    step, given, _ = deep_step(6)
    (call,) = step.calls()
    arrays, exclusive = call.prepared(list(given), config.current())
    filled = [
        ndl.zeros(spec.shape, dtype=spec.dtype).array if x is None else x
        for x, spec in zip(arrays, call.bound.specs, strict=True)
    ]
    fits = []

    def run(nbytes):  # in a thread, which has no memory of its own yet
        info = ndl.cpu().backend.memory_info()
        most = info["live"] + info["workspaces"] + int(nbytes)
        try:
            with config.override(memory_limit=most):
                call.program.run(filled, exclusive)
            fits.append(True)
        except OutOfMemoryError:
            fits.append(False)

    for part in (0.97, 1.03):
        thread = threading.Thread(target=run, args=(part * memory.forecast(call.program),))
        thread.start()
        thread.join(60)
    assert fits == [False, True]


def test_cheap_results_are_computed_again_and_not_kept(monkeypatch):
    def trained():
        rng = np.random.default_rng(0)
        ndl.manual_seed(0)
        model = nn.Sequential(
            *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
        )
        rule, loss = optim.SGD(model.parameters(), lr=0.1), nn.SoftmaxLoss()
        step = ndl.compile(lambda x, y: rule.minimize(loss(model(x), y)))
        given = floats(rng, 512, WIDTH), labels(rng, 512)
        for _ in range(3):
            step(*given)
        return program_of(step), [p.numpy() for p in model.parameters()]

    kept, expected = trained()
    monkeypatch.setattr(again, "SMALLEST", 512 * WIDTH * 4)
    program, found = trained()
    assert program.arena_bytes < kept.arena_bytes - 3 * 512 * WIDTH * 4
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_explain_names_what_is_alive_at_the_peak():
    step, *_ = deep_step(3)
    most = memory.peak(program_of(step))
    assert most.nbytes <= program_of(step).arena_bytes
    assert sum(x.nbytes for x in most.alive) == most.nbytes
    assert most.alive[0].nbytes == LARGE
    assert "test_peak.py" in (most.alive[0].line or "")
    text = ndl.explain(step)
    assert f"peak: {most.nbytes:,} bytes" in text and "memory of a call" in text
    double = ndl.compile(lambda x: x * 2, mode="python")
    double(ndl.Tensor([1.0]))
    assert "peak:" not in ndl.explain(double)


def test_another_number_of_threads_is_another_program_with_the_same_bits():
    x = ndl.Tensor(np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32))
    product = ndl.compile(lambda x: ndl.nn.functional.softmax(x @ x, -1).sum(0))
    found = []
    for threads in (1, 2, 1):
        with ndl.config(threads=threads):
            found.append(product(x).numpy())
    assert len(product.calls()) == 2
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)

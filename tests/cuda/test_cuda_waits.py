"""On CUDA nobody waits but for values: late work and late errors."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import EMU, draw, train, waits

import needle as ndl
from needle import config, devices, nn
from needle.backend import kernels
from needle.backend.cuda import errors
from needle.backend.ndarray import array
from needle.errors import DtypeError, IndexRangeError


def test_work_runs_when_it_is_waited_for(late):
    x = ndl.Tensor(draw(3, 4), device=EMU)
    launches = late.launches
    event_before = EMU.record()
    y = (x * x).sum()
    event = EMU.record()
    assert late.launches > launches and not event_before.done() and not event.done()
    late.run(EMU.backend.streams.main, most=1)  # the clock moves by one piece of work
    assert not event.done()
    event.wait()
    assert event.done() and event_before.done()
    assert y.item() == pytest.approx(float((x.numpy() ** 2).sum()), rel=1e-5)


@pytest.mark.parametrize("labels", ["int64", "float32"])
def test_training_waits_for_nothing_but_its_losses(late, labels):
    run, read = train(EMU, labels=labels)
    launches = late.launches
    assert waits(run) == 0 and late.launches > launches + 50
    other, exact = train(devices.cpu_numpy(), labels=labels)
    other()
    np.testing.assert_allclose(read(), exact(), rtol=1e-3, atol=1e-4)


def test_indexing_waits_for_nothing(late):
    x = ndl.Tensor(draw(5, 6), device=EMU)
    i, j = (ndl.Tensor(n, device=EMU, dtype="int64") for n in ([0, -1, 3], [2, 0, 5]))
    results = []

    def run():
        results.append(x[i])
        results.append(x[i, j])
        results.append(x[[1, 2], 3])
        results.append(ndl.one_hot(i + 1, 5))
        results.append(ndl.gather(x, i.reshape(3, 1), 0))
        results.append(nn.Embedding(6, 2, device=EMU)(j))

    assert waits(run) == 0
    values = x.numpy()
    np.testing.assert_array_equal(results[0].numpy(), values[[0, -1, 3]])
    np.testing.assert_array_equal(results[1].numpy(), values[[0, -1, 3], [2, 0, 5]])
    np.testing.assert_array_equal(results[2].numpy(), values[[1, 2], 3])


BAD = {
    "index": (lambda x, bad: x[bad, bad], [0, 7], "index: the index at position 1 .* axis 0"),
    "one hot": (lambda x, bad: ndl.one_hot(bad, 5), [0, 5], r"label at position 1 .* 5 classes"),
    "gather": (lambda x, bad: ndl.gather(x, bad.reshape(2, 1), 0), [1, -6], r"position \(1, 0\)"),
    "whole": (lambda x, bad: ndl.one_hot(bad, 5), [0.0, 2.5], "position 1 is not an integer"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_told_at_the_next_wait(late, name):
    call, values, message = BAD[name]
    x = ndl.Tensor(draw(5, 5), device=EMU)
    bad = ndl.Tensor(values, device=EMU, dtype="float32" if name == "whole" else "int64")
    results = []
    assert waits(lambda: results.append(call(x, bad))) == 0
    kind = DtypeError if name == "whole" else IndexRangeError
    with pytest.raises(kind, match=message):
        results[0].numpy()
    x.numpy()  # told once


def test_an_error_names_the_line_that_asked(late):
    x = ndl.Tensor(draw(5, 5), device=EMU)
    with config(debug=1):
        y = ndl.gather(x, ndl.Tensor([[9]], device=EMU, dtype="int64"), 0)
    with pytest.raises(IndexRangeError, match=r"called at .*test_cuda_waits\.py:\d+"):
        y.numpy()


def test_calls_that_went_well_are_forgotten_while_nobody_waits(monkeypatch):
    monkeypatch.setattr(errors, "EVERY", 4)
    EMU.synchronize()
    x, index = array(draw(5), "float32", EMU), array([1, 2], "int64", EMU)
    for _ in range(40):
        kernels.gather(x, index, 0)
        assert len(EMU.backend.pending.calls) <= 8
    kernels.gather(x, array([5], "int64", EMU), 0)
    with pytest.raises(IndexRangeError, match="position 0 is out of range for 5"):
        for _ in range(10):  # found by a look that nobody asked for
            kernels.gather(x, index, 0)
    EMU.synchronize()


def test_tickets_begin_again(monkeypatch):
    monkeypatch.setattr(errors, "TICKETS", EMU.backend.pending.next + 2)
    x = array(draw(5), "float32", EMU)
    for _ in range(3):
        kernels.gather(x, array([1], "int64", EMU), 0)
    assert EMU.backend.pending.next == 1
    kernels.gather(x, array([7], "int64", EMU), 0)
    with pytest.raises(IndexRangeError):
        EMU.synchronize()

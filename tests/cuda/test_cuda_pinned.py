"""Copies between host and device pass through pinned memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from emulated import DRIVER, EMU, draw, waits

import needle as ndl
from needle.backend.cuda import pinned
from needle.backend.cuda.driver import NoMemory
from needle.backend.ndarray import array


def test_a_buffer_is_not_reused_before_its_copy(late):
    parts = [draw(700) for _ in range(5)]
    tensors = []
    assert waits(lambda: tensors.extend(array(part, "float32", EMU) for part in parts)) == 0
    pool = EMU.backend.pinned_buffers
    with pool.lock:
        places = [buffer.address for buffer in pool.busy]
    assert len(places) == len(set(places)) >= 5
    for x, part in zip(tensors, parts, strict=True):
        np.testing.assert_array_equal(x.numpy(), part)


def test_what_would_happen_without_its_event(late, monkeypatch):
    """So the test above can fail."""
    pool = EMU.backend.pinned_buffers
    give = pool.give
    monkeypatch.setattr(pool, "give", lambda buffer, *events: give(buffer))  # without events
    first, second = array(np.ones(700), "float32", EMU), array(np.zeros(700), "float32", EMU)
    assert first.numpy().tolist() != [1.0] * 700 and second.numpy().tolist() == [0.0] * 700


def test_the_source_may_be_changed_at_once(late):
    values = np.ones(1000, "float32")
    x = ndl.Tensor(values, device=EMU)
    values[:] = 7
    assert x.numpy().tolist() == [1.0] * 1000


def test_large_copies_pass_through_in_pieces(late, monkeypatch):
    monkeypatch.setattr(pinned, "PIECE", 4096)
    values = draw(9000)
    x = array(values, "float32", EMU)
    np.testing.assert_array_equal(x.numpy(), values)


def test_many_copies_wait_for_earlier_ones(late, monkeypatch):
    monkeypatch.setattr(pinned, "LIMIT", EMU.backend.pinned_buffers.total + (1 << 16))
    parts = [draw(4000) for _ in range(20)]
    tensors = [array(part, "float32", EMU) for part in parts]
    assert EMU.backend.pinned_buffers.total <= pinned.LIMIT
    for x, part in zip(tensors, parts, strict=True):
        np.testing.assert_array_equal(x.numpy(), part)


@pytest.mark.parametrize("kind", ["float32", "int64", "bfloat16", "bool"])
def test_arrays_in_pinned_memory_are_copied_as_they_are(late, kind):
    values = EMU.pinned((40, 30), kind)
    assert values.shape == (40, 30) and values.dtype == ndl.dtype.as_dtype(kind).numpy
    values[...] = exact = np.rint(draw(40, 30)).astype(values.dtype)
    pool = EMU.backend.pinned_buffers
    before = pool.total
    x = ndl.Tensor(values, device=EMU, dtype=kind, requires_grad=False)
    with pytest.raises(ValueError, match="read-only"):  # the copy is under way
        values[0] = 1
    place = values.ctypes.data
    del values
    gc.collect()
    assert EMU.pinned((40, 30), kind).ctypes.data != place and pool.total >= before
    np.testing.assert_array_equal(x.numpy(), exact)
    EMU.synchronize()
    gc.collect()
    assert place in {EMU.pinned((40, 30), kind).ctypes.data for _ in range(1)} | {
        buffer.address for kept in pool.free.values() for buffer in kept
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_pass_through_pinned_memory(late, workers):
    x = draw(12, 5)
    dataset = ndl.data.NDArrayDataset(x, np.arange(12))
    batches = []
    loader = ndl.data.DataLoader(dataset, 4, device=EMU, num_workers=workers, workers="thread")
    with EMU.stream("batches"):
        assert waits(lambda: batches.extend(loader)) == 0
    loader.close()
    for i, (inputs, labels) in enumerate(batches):
        np.testing.assert_array_equal(inputs.numpy(), x[4 * i : 4 * i + 4])
        assert labels.numpy().tolist() == list(range(4 * i, 4 * i + 4))


@pytest.fixture
def one_buffer(monkeypatch):
    """Let the host have one more pinned buffer."""
    EMU.synchronize()
    pool, pin, made = EMU.backend.pinned_buffers, DRIVER.pin, []
    with pool.lock:
        pool._collect()
        monkeypatch.setattr(pool, "free", {})

    def pin_once(nbytes):
        if made:
            raise NoMemory
        made.append(pin(nbytes))
        return made[0]

    monkeypatch.setattr(DRIVER, "pin", pin_once)
    return pool


@pytest.mark.parametrize("call", ["pinned", "upload", "download", "synchronize"])
def test_a_host_without_pinned_memory_says_so(call, one_buffer):
    x = ndl.ones(8, device=EMU)
    taken = ndl.take(x, ndl.arange(3, device=EMU))  # its check is a copy to the host, too
    held = EMU.pinned((2,), "float64")
    calls = {
        "pinned": lambda: EMU.pinned((1 << 20,), "float64"),
        "upload": lambda: ndl.Tensor(draw(700), device=EMU),
        "download": taken.numpy,
        "synchronize": EMU.synchronize,
    }
    with pytest.raises(ndl.errors.OutOfMemoryError, match="pinned memory left .* bytes were req"):
        calls[call]()
    del held
    assert taken.numpy().tolist() == [1.0] * 3


def test_a_copy_that_finds_no_buffer_gives_back_those_it_had(one_buffer, monkeypatch):
    monkeypatch.setattr(pinned, "PIECE", 4096)
    x, before = ndl.ones(3000, device=EMU), one_buffer.total
    with pytest.raises(ndl.errors.OutOfMemoryError, match="pinned"):
        x.numpy()
    assert one_buffer.total == before + 4096
    one_buffer._collect()
    assert [len(kept) for kept in one_buffer.free.values()] == [1]

"""Streams, events and several GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import EMU, draw, train, waits

import needle as ndl
from needle import config, devices
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.errors import DeviceError

# ---- streams ---------------------------------------------------------------------------


def test_a_result_of_another_stream_is_waited_for(late):
    x = ndl.Tensor(draw(50), device=EMU, requires_grad=False)
    with EMU.stream("one"):
        y = x * 2
        with EMU.stream("two"):
            z = y + 1
        y = y * y
    assert waits(lambda: None) == 0 and len({id(late.rows[s]) for s in late.rows}) >= 3
    np.testing.assert_allclose((z - y).numpy(), 2 * x.numpy() + 1 - 4 * x.numpy() ** 2, rtol=1e-5)


def test_without_the_wait_the_result_is_wrong(late, monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(EMU.backend.streams, "enter", lambda block: None)
    x = ndl.Tensor(np.ones(50), device=EMU, requires_grad=False)
    with EMU.stream("one"):
        y = x * 2
    assert (y + 1).numpy().tolist() != [3.0] * 50


def test_streams_by_random_programs(late):
    """Tensors made, changed and dropped in three streams are what one stream would make of them."""
    names, choose = (None, "one", "two"), np.random.default_rng(7)
    held = [ndl.Tensor(draw(8), device=EMU, requires_grad=False) for _ in range(4)]
    exact = [x.numpy() for x in held]
    for step in range(300):
        a, b, where = choose.integers(4), choose.integers(4), names[choose.integers(3)]
        with EMU.stream(where) if where else config():
            held[a] = held[a] * 0.5 + held[b] * 0.25
        exact[a] = exact[a] * np.float32(0.5) + exact[b] * np.float32(0.25)
        if step % 50 == 49:
            a = choose.integers(4)
            np.testing.assert_allclose(held[a].numpy(), exact[a], rtol=1e-5)
    for x, y in zip(held, exact, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-5)


def test_memory_that_another_stream_used_last_is_not_reused_before(late):
    x = array(draw(1000), "float32", EMU)
    x.numpy()
    place, expected = x.handle.address, 2 * x.numpy()
    with EMU.stream("side"):
        y = kernels.elementwise("add", x, x)
    del x
    EMU.backend.arena.collect()
    assert place in {gone.address for gone in EMU.backend.arena.waiting}
    again = [array(np.zeros(1000), "float32", EMU) for _ in range(3)]
    assert all(other.handle.address != place for other in again)
    np.testing.assert_array_equal(y.numpy(), expected)
    EMU.backend.arena.collect()
    assert not EMU.backend.arena.waiting  # now it may be


def test_events_order_streams(late):
    with EMU.stream("one"):
        ndl.Tensor(draw(9), device=EMU)
        event = EMU.record()
    EMU.wait(event)
    assert not event.done()
    ndl.Tensor([1.0], device=EMU).item()
    assert event.done()


def test_streams_on_devices_that_compute_at_once():
    for where in (devices.cpu(), devices.cpu_numpy()):
        with where.stream("side"):
            x = ndl.Tensor([1.0, 2.0], device=where) + 1
        where.wait(where.record())
        assert where.record().done() and x.numpy().tolist() == [2, 3]
        assert where.pinned((2, 3), "int32").shape == (2, 3)


def test_a_training_in_a_stream_of_its_own(late):
    run, read = train(EMU)
    with EMU.stream("training"):
        run()
    other, exact = train(devices.cpu_numpy())
    other()
    np.testing.assert_allclose(read(), exact(), rtol=1e-3, atol=1e-4)


# ---- several GPUs ----------------------------------------------------------------------


def test_a_second_gpu_has_memory_and_kernels_of_its_own():
    second = devices.as_device("cuda-emu:1")
    x = ndl.Tensor(draw(4, 5), device=second)
    assert x.device == "cuda-emu:1" != EMU and devices.as_device("cuda-emu:0") is EMU
    np.testing.assert_allclose(ndl.softmax(x, axis=1).sum(axis=1).numpy(), np.ones(4), rtol=1e-6)
    np.testing.assert_array_equal((x.to(EMU) + 1).to(second).numpy(), x.numpy() + 1)
    with pytest.raises(DeviceError, match=r"devices cuda-emu:1\(\) and cuda-emu\(\)"):
        x + x.to(EMU)


@pytest.mark.parametrize(
    "name, message",
    [("cuda-emu:2", "emulated GPU 2 does not exist: there are 2"), ("cuda:x", "device 'cuda:x'"),
     ("cuda:-1", "unknown device 'cuda:-1'"), ("cpu:1", "unknown device 'cpu:1'")],
)  # fmt: skip
def test_numbers_that_do_not_exist(name, message):
    with pytest.raises(DeviceError, match=message):
        ndl.Tensor([1.0], device=name)
    assert not ndl.cuda(77).enabled() and ndl.cuda(0) is ndl.cuda()

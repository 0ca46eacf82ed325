"""What an operation on CUDA asks of the driver: launches and memory, on a driver that only notes.

The driver's launch is a C function here, as a GPU's is, so the native way there is taken.
"""

from __future__ import annotations

import ctypes
import struct
import threading

import numpy as np
import pytest

import needle as ndl
from needle import config, core, devices
from needle.backend import memory
from needle.backend.cuda.backend import CudaBackend
from needle.backend.cuda.driver import Driver, NoMemory, Properties
from needle.errors import DeviceError, OutOfMemoryError, ShapeError

pytestmark = pytest.mark.skipif(core.native is None, reason="no native module")

CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


class Passed:
    """An event."""

    def __init__(self, passed=True):
        self.passed = passed

    def done(self):
        return self.passed

    def wait(self):
        self.passed = True


class Notes(Driver):
    """A driver that notes what it is asked for: memory is numbers only, and kernels do nothing."""

    def __init__(self, room=1 << 40):
        self.call = CALL(self._called)
        address = ctypes.cast(self.call, ctypes.c_void_p).value
        self.properties = Properties("notes", "none", room, 4, launcher=address)
        self.room, self.next, self.kernels, self.streams = room, 1 << 20, {}, 15
        self.calls, self.code, self.threads, self.waits = [], 0, set(), []

    def _called(self, function, *rest):
        *sizes, self.shared, stream, _, extra = rest
        words = ctypes.string_at(extra[1], ctypes.c_size_t.from_address(extra[3]).value)
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)
        numbers = struct.unpack(f"{len(words) // 8}Q", words)
        self.calls.append((self.kernels[function], tuple(sizes), stream, numbers))
        return self.code

    def launch(self, function, grid, block, shared, words, stream):
        self.asked = function, grid, block, shared, words, stream

    def enter(self):
        self.threads.add(threading.get_ident())
        core.native.set_entered(self)

    def refused(self, code):
        raise DeviceError(f"the driver said {code}")

    def allocate(self, nbytes):
        if nbytes > self.room:
            raise NoMemory
        self.room -= nbytes
        self.next += nbytes
        return self.next - nbytes

    def free(self, address):
        self.room += 2 << 20

    def pin(self, nbytes):
        self.host = ctypes.create_string_buffer(nbytes)
        return ctypes.addressof(self.host)

    def nothing(self, *_):
        pass

    lent = returned = copy = set_bytes = synchronize = nothing

    def load(self, unit):
        first = len(self.kernels) + 1
        found = {name: first + i for i, name in enumerate(unit.expressions)}
        self.kernels.update({number: name for name, number in found.items()})
        return found

    def create_stream(self):
        self.streams += 1
        return self.streams

    def record(self, stream):
        return Passed()

    def wait(self, stream, event):
        self.waits.append(stream)


@pytest.fixture
def device():
    """A device over such a driver, which no other test sees."""
    return devices.Device.loaded_by("notes", lambda: CudaBackend("notes", Notes()))


def tensor(device, *shape, **options):
    return ndl.Tensor(np.ones(shape, "float32"), device=device, **options)


def place(x):
    array = x.realize_cached_data()
    return array.handle.address + 4 * array.offset


def test_a_launch_and_its_repetition(device):
    x, driver = tensor(device, 16, requires_grad=False), device.backend.driver
    for _ in range(3):
        y = x + x
        expected = (place(y), place(x), place(x), 16, 0)
        name = "elementwise_dense<f_add, float, 4>"
        assert driver.calls.pop() == (name, (1, 1, 1, 256, 1, 1), 16, expected)
    assert not driver.calls


def test_operands_off_a_boundary_of_16_bytes_take_another_kernel(device):
    x, driver = tensor(device, 4, 8, requires_grad=False), device.backend.driver
    for _ in range(2):
        for part, name in ((x[1], "elementwise_dense<f_exp, float, 4>"),
                           (x.reshape((32,))[1:9], "elementwise<f_exp, float, i32>")):  # fmt: skip
            y = ndl.exp(part)
            found = driver.calls.pop()
            assert found[0] == name and found[3][:2] == (place(y), place(part))


@pytest.mark.parametrize(
    "call", [
        lambda x: x + 2.0, lambda x: x @ x, lambda x: x.sum(0), lambda x: x.transpose() * x,
        lambda x: x + x[0], lambda x: x == x, lambda x: x.transpose().reshape((64,)),
        lambda x: x.astype("float16"), lambda x: x[2:5, ::2] * 1.0,
    ],
)  # fmt: skip
def test_a_repetition_asks_for_the_same(device, call):
    x, driver = tensor(device, 8, 8, requires_grad=False), device.backend.driver
    seen = []
    for _ in range(4):
        before = len(driver.calls)
        call(x).realize_cached_data()
        seen.append([(name, sizes) for name, sizes, *_ in driver.calls[before:]])
    assert seen[0][-1:] == seen[1] == seen[2] == seen[3]  # the first may make a constant
    words = [c[3] for c in driver.calls[-2:]]
    assert words[0][1:] == words[1][1:]


def test_much_shared_memory_is_asked_of_the_driver(device):
    backend = device.backend
    function = backend.function("copy.cu", "random_bits")
    backend.launch(function, (3, 2, 1), 5, -1, 0.5, block=64, shared=48 << 10)
    words = (5, (1 << 64) - 1, *struct.unpack("Q", struct.pack("d", 0.5)))
    assert backend.driver.calls[-1] == ("random_bits", (3, 2, 1, 64, 1, 1), 16, words)
    assert backend.driver.shared == 48 << 10
    backend.launch(function, 7, b"12345678", shared=49 << 10)
    asked = function, (7, 1, 1), (256, 1, 1), 49 << 10, b"12345678", 16
    assert backend.driver.asked == asked and len(backend.driver.calls) == 1
    with pytest.raises(TypeError, match="launch: unexpected argument 'blocks'"):
        backend.launch(function, 1, blocks=2)
    with pytest.raises(TypeError, match="a number, bytes or an array .*, got str"):
        backend.launch(function, 1, "1")
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        backend.launch(function, 1, bytes(4104))


def test_what_was_prepared_is_for_the_same_strides_alone(device):
    x, driver = tensor(device, 8, 8, requires_grad=False), device.backend.driver
    dense, turned = (
        (lambda: x * x, "elementwise_dense<"),
        (lambda: x.transpose() * x, "elementwise<"),
    )
    for call, name in (dense, turned, dense, turned):
        call()
        assert driver.calls[-1][0].startswith(name)


def test_a_graph_is_recorded(device):
    x = tensor(device, 4, requires_grad=True)
    y = (x * x).sum()
    y.backward()
    assert x.grad.shape == (4,) and y.op is not None


def test_blocks_come_again_for_the_same_size_and_are_counted(device):
    x = tensor(device, 1000, requires_grad=False)
    live = memory_of(device)["live"]
    y = x + x
    here = place(y)
    assert memory_of(device)["live"] == live + 4000
    del y
    assert memory_of(device)["live"] == live
    assert place(x * x) == here
    assert memory_of(device)["peak"] >= live + 4000


def memory_of(device):
    return device.backend.memory_info()


def test_what_waits_for_its_size_gives_way_to_another():
    """Blocks of small sizes are joined before the device is asked for more, or says no."""
    device = devices.Device.loaded_by("notes", lambda: CudaBackend("notes", Notes(room=4 << 20)))
    small = [tensor(device, 100_000, requires_grad=False) for _ in range(4)]
    small = [x + x for x in small]
    slabs = len(device.backend.arena.slabs)
    del small
    assert memory_of(device)["live"] < 100
    large = tensor(device, 400_000, requires_grad=False)
    assert len(device.backend.arena.slabs) <= slabs and large.shape == (400_000,)


def test_memory_that_runs_out_is_told_with_the_op(device):
    x = tensor(device, 1000, requires_grad=False)
    several = [x + x for _ in range(4)]
    del several
    with config(memory_limit=9000):
        y = x + x
        with pytest.raises(OutOfMemoryError, match="add"):
            x + x
    assert len([x + x for _ in range(4)]) == 4 and y.shape == (1000,)


def test_a_launch_that_the_driver_refuses_is_an_error(device):
    x, driver = tensor(device, 16, requires_grad=False), device.backend.driver
    x + x
    for call in (lambda: x + x, lambda: x.sum()):
        driver.code = 719
        with pytest.raises(DeviceError, match="the driver said 719"):
            call()
        driver.code = 0
        call()


def test_shapes_that_do_not_fit_are_told_as_everywhere(device):
    x, y = tensor(device, 3), tensor(device, 4)
    with pytest.raises(ShapeError, match="do not broadcast"):
        x + y
    with pytest.raises(DeviceError, match="operands on devices"):
        x + tensor(ndl.cpu(), 3)


def test_each_thread_makes_the_device_its_own(device):
    x, driver = tensor(device, 16, requires_grad=False), device.backend.driver
    driver.threads.clear()
    other = threading.Thread(target=lambda: x + x)
    other.start()
    other.join()
    assert len(driver.threads) == 1 and driver.calls[-1][0].startswith("elementwise_dense<f_add")


def test_streams_keep_to_their_blocks_and_wait(device):
    x, driver = tensor(device, 16, requires_grad=False), device.backend.driver
    main = x + x
    with device.stream("other"):
        assert not driver.waits
        y = x + x
        assert driver.calls[-1][2] == 17 and driver.waits == [17]  # for x
        there = place(y)
    z = x + y
    assert driver.calls[-1][2] == 16 and driver.waits == [17, 16, 16]  # for x and for y
    del y, main
    assert place(x + x) != there and place(z) != there
    device.synchronize()
    with device.stream("other"):
        assert place(x + x) == there
    assert place(x * x) != there


def test_blocks_with_events_wait(device):
    x = tensor(device, 16, requires_grad=False)
    y, event = x + x, Passed(False)
    y.realize_cached_data().handle.used_by(event)
    here = place(y)
    del y
    others = [x + x for _ in range(3)]
    assert here not in map(place, others)
    event.passed = True
    device.synchronize()
    others += [x + x for _ in range(40)]
    assert here in map(place, others)


def test_memory_is_found_by_who_holds_it(device):
    x = tensor(device, 1000, requires_grad=False)
    y = x + x
    text = str(memory.exhausted(device.backend, 1 << 50))
    assert "float32[1000]" in text and y.shape == (1000,)

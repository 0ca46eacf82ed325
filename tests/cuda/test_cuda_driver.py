"""The driver of a real GPU, over stand-ins for cuda.core and cuda.bindings: what it asks of them.

And, where cuda.bindings is installed, that it has all that is asked for.
"""

from __future__ import annotations

import ctypes
import inspect
import struct
import threading
from types import SimpleNamespace

import pytest

from needle import core
from needle.backend import kernels
from needle.backend.cuda import driver as drivers
from needle.backend.cuda import jit
from needle.backend.cuda.arena import Arena
from needle.backend.cuda.backend import CudaBackend
from needle.backend.cuda.driver import CudaDriver, NoMemory
from needle.backend.cuda.jit import Unit
from needle.backend.cuda.streams import Streams
from needle.backend.ndarray import empty
from needle.devices import Device
from needle.errors import DeviceError

OK, NO_MEMORY, NOT_READY, BROKEN = 0, 2, 600, 700

CALLS = {
    "cuInit": 1, "cuDriverGetVersion": 0, "cuDeviceGetCount": 0, "cuMemGetInfo": 0,
    "cuMemAlloc": 1, "cuMemFree": 1, "cuMemHostAlloc": 2, "cuMemFreeHost": 1, "cuMemcpyAsync": 4,
    "cuMemsetD8Async": 4, "cuLaunchKernel": 11, "cuStreamCreate": 1, "cuEventCreate": 1,
    "cuEventRecord": 2, "cuEventQuery": 1, "cuEventSynchronize": 1, "cuEventDestroy": 1,
    "cuStreamWaitEvent": 3, "cuCtxSynchronize": 0, "cuGetErrorName": 1, "cuGetErrorString": 1,
    "cuKernelSetAttribute": 4,
}  # fmt: skip
"""What the driver calls, and with how many arguments."""


class Api:
    """cuda.bindings.driver: notes every call, and answers what it is told to."""

    CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=NO_MEMORY, CUDA_ERROR_NOT_READY=NOT_READY)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self, **answers):
        self.calls, self.next = [], 100
        self.answers = {
            "cuDriverGetVersion": (OK, 13010), "cuDeviceGetCount": (OK, 2),
            "cuMemGetInfo": (OK, 1 << 30, 2 << 30), "cuGetErrorName": (OK, b"CUDA_ERROR_X"),
            "cuGetErrorString": (OK, b"it went wrong"), **answers,
        }  # fmt: skip

    def __getattr__(self, name):
        if name not in CALLS:
            raise AttributeError(name)

        def call(*arguments):
            assert len(arguments) == CALLS[name], name
            self.calls.append((name, *arguments))
            if name in self.answers:
                return self.answers[name]
            if name in ("cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate"):
                self.next += 1
                return OK, self.next
            return (OK,)

        return call

    def CUfunction(self, handle):
        return ("function", handle)

    def CUkernel(self, handle):
        return ("kernel", handle)

    def CUdevice(self, number):
        return ("device", number)

    def names(self):
        return [name for name, *_ in self.calls]


class Gpu:
    """cuda.core.Device."""

    def __init__(self, number):
        self.device_id, self.entered = number, []
        self.name, self.compute_capability = "a GPU", (9, 0)
        self.properties = SimpleNamespace(multiprocessor_count=132)

    def set_current(self):
        self.entered.append(threading.get_ident())


class Core:
    """cuda.core."""

    Device = Gpu

    class ObjectCode:
        @staticmethod
        def from_cubin(cubin, symbol_mapping):
            assert all(type(symbol) is bytes for symbol in symbol_mapping.values())
            kernels = {name: 7 + i for i, name in enumerate(symbol_mapping)}
            return SimpleNamespace(get_kernel=lambda name: SimpleNamespace(handle=kernels[name]))


class Compiler:
    """NVRTC."""

    version = "nvrtc 13.5"
    compiled = 0

    def compile(self, unit, arch, *more):
        Compiler.compiled += 1
        return b"cubin", {name: f"_{name}" for name in unit.expressions}, ""


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Make a driver over stand-ins; also return the stand-in of the driver's calls."""

    def make(number=0, **answers):
        api = Api(**answers)
        monkeypatch.setattr(drivers, "_libraries", lambda: (Core, api))
        monkeypatch.setattr(drivers, "Nvrtc", Compiler)
        monkeypatch.setattr(drivers, "Cache", lambda: jit.Cache(tmp_path))
        return CudaDriver(number), api

    return make


def test_a_gpu_and_its_properties(made):
    driver, _ = made(1)
    found = driver.properties
    assert (found.name, found.arch, found.memory) == ("a GPU", "sm_90", 2 << 30)
    assert (found.multiprocessors, found.tensor_cores, found.dlpack) == (132, True, (2, 1))
    assert driver.version == "CUDA 13.1"


@pytest.mark.parametrize(
    "answers, number, message",
    [
        (
            {"cuDriverGetVersion": (OK, 12040)},
            0,
            "too old: it knows CUDA 12.4, nvrtc 13.5 needs",
        ),
        ({}, 5, "GPU 5 does not exist: this machine has 2"),
        ({"cuInit": (BROKEN,)}, 0, "the driver finds no GPU .CUDA_ERROR_X: it went wrong"),
    ],
)
def test_what_is_missing_is_said(made, answers, number, message):
    with pytest.raises(DeviceError, match=message):
        made(number, **answers)


def test_no_driver_at_all(made, monkeypatch):
    def missing(self, name):
        raise RuntimeError("Failed to load libcuda.so.1\nmore words")

    monkeypatch.setattr(Api, "__getattr__", missing)
    with pytest.raises(DeviceError, match=r"driver \(libcuda.so\) is missing \(Failed .*\.1\)$"):
        made()


def test_memory_and_copies(made):
    driver, api = made()
    place, host = driver.allocate(512), driver.pin(4096)
    driver.copy(place, host, 16, 9)
    driver.set_bytes(place, 0xFF, 8, 9)
    driver.free(place)
    driver.unpin(host)
    assert api.calls[-6:] == [
        ("cuMemAlloc", 512), ("cuMemHostAlloc", 4096, drivers.PORTABLE),
        ("cuMemcpyAsync", place, host, 16, 9), ("cuMemsetD8Async", place, 0xFF, 8, 9),
        ("cuMemFree", place), ("cuMemFreeHost", host),
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemHostAlloc"])
def test_memory_that_ends(made, call):
    driver, _ = made(**{call: (NO_MEMORY, None)})
    with pytest.raises(NoMemory):
        (driver.allocate if call == "cuMemAlloc" else driver.pin)(1 << 40)


def test_kernels_are_compiled_once_and_launched_with_packed_words(made):
    driver, api = made()
    before = Compiler.compiled
    unit = Unit("copy.cu", ("random_bits",))
    (function,) = driver.load(unit).values()
    driver.load(unit)
    assert Compiler.compiled == before + 1  # the second came from the cache
    driver.launch(function, (3, 2, 1), (256, 1, 1), 0, struct.pack("2q", 5, -1), 9)
    name, handle, *numbers, parameters, extra = api.calls[-1]
    assert (name, handle, parameters) == ("cuLaunchKernel", ("function", 7), 0)
    assert numbers == [3, 2, 1, 256, 1, 1, 0, 9]
    words = drivers._thread.extra
    assert extra == words.address and words.size.value == 16
    assert words.buffer.raw[:16] == struct.pack("2q", 5, -1)


def test_much_shared_memory_is_asked_for_once(made):
    driver, api = made(1)
    one, other = driver.load(Unit("copy.cu", ("one", "other"))).values()

    def launched(function, shared):
        before = len(api.calls)
        driver.launch(function, (1, 1, 1), (32, 1, 1), shared, b"", 9)
        assert api.calls[-1][0] == "cuLaunchKernel" and api.calls[-1][8] == shared
        return api.calls[before:-1]

    assert launched(one, 48 << 10) == []
    for function, handle in ((one, 7), (other, 8)):
        asked = launched(function, 96 << 10)
        assert asked == [("cuKernelSetAttribute", 8, 96 << 10, ("kernel", handle), ("device", 1))]
        assert launched(function, 96 << 10) == []
    api.answers["cuKernelSetAttribute"] = (BROKEN,)
    with pytest.raises(DeviceError, match="it went wrong"):
        launched(one, 200 << 10)


def test_streams_and_events(made):
    driver, api = made()
    one, two = driver.create_stream(), driver.create_stream()
    event = driver.record(one)
    driver.wait(two, event)
    event.wait()
    assert one != two and event.done()
    assert ("cuStreamWaitEvent", two, event.event, 0) in api.calls
    assert ("cuEventRecord", event.event, one) in api.calls
    api.answers["cuEventQuery"] = (NOT_READY,)
    assert not event.done()
    api.answers["cuEventQuery"] = (BROKEN,)
    with pytest.raises(DeviceError, match="CUDA_ERROR_X: it went wrong"):
        event.done()
    del event
    assert api.names()[-1] == "cuEventDestroy"
    driver.synchronize()
    assert api.names()[-1] == "cuCtxSynchronize"


def test_each_thread_enters_the_gpu_and_has_room_for_parameters_of_its_own(made):
    driver, api = made()
    other = CudaDriver(1)
    seen = []

    def work():
        driver.synchronize()
        driver.synchronize()
        seen.append((threading.get_ident(), drivers._thread.extra.address))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    (ident, address) = seen[0]
    assert driver.device.entered.count(ident) == 1 and address != drivers._thread.extra.address
    count = len(driver.device.entered)
    other.synchronize()
    driver.synchronize()
    other.synchronize()
    assert len(driver.device.entered) == count + 1  # after the other GPU was in use


def test_a_launch_that_fails_says_why(made):
    driver, _ = made(cuLaunchKernel=(BROKEN,))
    with pytest.raises(DeviceError, match="CUDA_ERROR_X"):
        driver.launch((1, None), (1, 1, 1), (1, 1, 1), 0, b"", 0)


class Function(int):
    """CUfunction: its number is the handle."""


class Result(int):
    """CUresult."""

    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_READY = NO_MEMORY, NOT_READY


@pytest.mark.skipif(core.native is None, reason="no native module")
def test_the_native_module_calls_the_driver_by_its_address(made, monkeypatch):
    seen, answer = [], [OK]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    def launch(function, *rest):
        seen.append((function, *rest[:8], threading.get_ident()))
        return answer[0]

    address = ctypes.cast(launch, ctypes.c_void_p).value
    monkeypatch.setattr(drivers, "_launcher", lambda: address)
    monkeypatch.setattr(Api, "CUfunction", lambda self, handle: Function(handle))
    monkeypatch.setattr(Api, "CUresult", Result)
    driver, api = made()
    device = Device.loaded_by("stand-in", lambda: CudaBackend("stand-in", driver))
    x = empty((16,), "float32", device)
    for _ in range(2):
        kernels.elementwise("add", x, x)
        stream = device.backend.streams.main
        assert seen.pop() == (7, 1, 1, 1, 256, 1, 1, 0, stream, threading.get_ident())
    assert "cuLaunchKernel" not in api.names()
    worker = threading.Thread(target=lambda: kernels.elementwise("add", x, x))
    worker.start()
    worker.join()
    assert driver.device.entered.count(seen.pop()[-1]) == 1
    CudaDriver(1).synchronize()
    count = len(driver.device.entered)
    kernels.elementwise("add", x, x)
    assert len(driver.device.entered) == count + 1  # after the other GPU was in use
    answer[0] = BROKEN
    with pytest.raises(DeviceError, match="CUDA_ERROR_X: it went wrong"):
        kernels.elementwise("add", x, x)


def test_the_arena_over_it(made):
    driver, api = made()
    streams = Streams(driver)
    arena = Arena(driver, streams)
    block = arena.allocate(1000)
    with streams.use("side"):
        streams.enter(block)
    waited = api.names().index("cuStreamWaitEvent")
    assert api.names()[waited - 1] == "cuEventRecord"
    api.answers["cuEventQuery"] = (NOT_READY,)
    place = block.address
    del block
    other = arena.allocate(1000)
    assert other.address != place
    api.answers["cuEventQuery"] = (OK,)
    assert arena.allocate(1000).address == place


def test_the_bindings_have_what_is_asked_for():
    api = pytest.importorskip("cuda.bindings.driver")
    for name, count in CALLS.items():
        assert len(inspect.signature(getattr(api, name)).parameters) == count, name
    assert int(api.CUresult.CUDA_ERROR_OUT_OF_MEMORY) == NO_MEMORY
    assert int(api.CUresult.CUDA_ERROR_NOT_READY) == NOT_READY
    assert int(api.CUstream_flags.CU_STREAM_NON_BLOCKING) == 1
    assert int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING) == 2
    assert int(api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) == 8
    assert int(api.CUkernel(9)) == 9 and int(api.CUdevice(1)) == 1
    core = pytest.importorskip("cuda.core")
    assert callable(core.ObjectCode.from_cubin) and callable(core.Device)
    assert hasattr(core.Device, "device_id")


@pytest.mark.parametrize(
    "missing, message",
    [("cuda.core", "cuda.core is missing: pip install"),
     ("cuda.bindings.driver", "cuda.bindings.driver is missing: pip install")],
)  # fmt: skip
def test_missing_wheels_are_named(monkeypatch, missing, message):
    def load(name):
        if name == missing:
            raise ImportError("no such module")
        return SimpleNamespace(__version__="1.2.0")

    monkeypatch.setattr(drivers, "import_module", load)
    with pytest.raises(DeviceError, match=message):
        drivers._libraries()


def test_wheels_of_a_wrong_version_are_named(monkeypatch):
    found = SimpleNamespace(__version__="2.0.1")
    monkeypatch.setattr(drivers, "import_module", lambda name: found)
    with pytest.raises(DeviceError, match=r"cuda-core is 2\.0\.1"):
        drivers._libraries()


def test_a_compiler_that_is_missing_is_named(monkeypatch):
    def load(name):
        raise ImportError("No module named cuda")

    monkeypatch.setattr(jit, "import_module", load)
    with pytest.raises(DeviceError, match=r"NVRTC is missing: pip install .* \(No module"):
        jit.Nvrtc()

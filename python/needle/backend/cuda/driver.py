"""The interface of drivers, and the driver of a real GPU.

cuda.core finds the GPU and loads kernels. They are launched by the driver's own function, because
cuda.core's launch accepts neither structures nor a packed buffer: by its address with the native
module (``Properties.launcher``), else through cuda.bindings.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from needle import core
from needle.backend.contract import Event
from needle.backend.cuda.jit import OPTIONS, Cache, Nvrtc, Unit, key, pack, unpack
from needle.errors import DeviceError

Triple = tuple[int, int, int]

KDL_CUDA = 2
"""DLPack's number of CUDA devices (dlpack.h: kDLCUDA)."""
PORTABLE = 1
"""Pinned memory that every context can use (cuda.h: CU_MEMHOSTALLOC_PORTABLE)."""
SHARED_LIMIT = 48 << 10
"""Bytes of shared memory that a block may have by default."""


class NoMemory(Exception):
    """The device has no memory left."""


@dataclass(frozen=True)
class Properties:
    """Properties of a device.

    Attributes:
        name: name of the device.
        arch: target of the compiler, for example ``sm_90``.
        memory: bytes of memory.
        multiprocessors: number of multiprocessors.
        guard: bytes between two blocks of memory, which show writes out of bounds.
        tensor_cores: whether the tensor-core kernels can run.
        whole_families: whether compiling many kernels at once costs little more than one.
        dlpack: DLPack's type and number of the device.
        launcher: address of a function like cuLaunchKernel, which takes the result of ``load`` (or
            its first item) as a number. ``refused`` raises its errors, and ``enter`` makes the
            device current. 0: only ``launch`` exists.
    """

    name: str
    arch: str
    memory: int
    multiprocessors: int
    guard: int = 0
    tensor_cores: bool = True
    whole_families: bool = False
    dlpack: tuple[int, int] = (2, 0)
    launcher: int = 0


class Driver(Protocol):
    """A device that runs kernels. Addresses and streams are integers.

    Work in a stream runs later, in order; only ``Event.wait`` and ``synchronize`` wait for it.
    Errors of kernels may be raised by any later call.
    """

    properties: Properties

    def allocate(self, nbytes: int) -> int:
        """Return new device memory; raise NoMemory if there is none."""

    def free(self, address: int) -> None:
        """Give device memory back, when all work is done."""

    def pin(self, nbytes: int) -> int:
        """Return new host memory that copies read and write; raise NoMemory if there is none."""

    def unpin(self, address: int) -> None:
        """Give host memory back, when all work is done."""

    def lent(self, address: int, nbytes: int, stream: int) -> None:
        """Record that the arena lends this block for use in a stream."""

    def returned(self, address: int, nbytes: int, stream: int) -> None:
        """Record that this block is free again in a stream."""

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes between device memory and pinned host memory, or within either."""

    def set_bytes(self, address: int, value: int, nbytes: int, stream: int) -> None:
        """Set bytes of device memory."""

    def load(self, unit: Unit) -> dict[str, Any]:
        """Return the functions of a unit by expression."""

    def launch(
        self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes, stream: int
    ) -> None:
        """Run a kernel; words: its parameters, 8 bytes each."""

    def create_stream(self) -> int:
        """Return a new stream."""

    def record(self, stream: int) -> Event:
        """Return an event for the work in a stream so far."""

    def wait(self, stream: int, event: Event) -> None:
        """Let later work in a stream wait for an event; the host does not wait."""

    def synchronize(self) -> None:
        """Wait until all work is done."""


class _Event:
    """An event of the driver (cuEventCreate), destroyed with this object."""

    def __init__(self, driver: CudaDriver, event: Any) -> None:
        self.driver, self.event = driver, event

    def done(self) -> bool:
        self.driver.enter()
        (code,) = self.driver.api.cuEventQuery(self.event)
        if code == self.driver.api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self.driver.check((code,))
        return True

    def wait(self) -> None:
        self.driver.enter()
        self.driver.check(self.driver.api.cuEventSynchronize(self.event))

    def __del__(self) -> None:
        self.driver.api.cuEventDestroy(self.event)  # legal before the event has passed


class _Thread(threading.local):
    """State of each thread: its current GPU, and a buffer for a kernel's parameters."""

    def __init__(self) -> None:
        self.driver: CudaDriver | None = None
        self.extra = _Extra()


class CudaDriver:
    """A GPU by cuda.core; kernels come from NVRTC, through the cache.

    Args:
        number: number of the GPU.

    Raises:
        DeviceError: naming the missing part: the wheels, the driver, or the GPU.
    """

    def __init__(self, number: int = 0) -> None:
        self.core, self.api = _libraries()
        self.compiler = Nvrtc()
        self.device = self._device(number)
        self.enter()
        self.cache = Cache()
        major, minor = self.device.compute_capability
        facts = self.device.properties
        free, total = self.check(self.api.cuMemGetInfo())
        self.properties = Properties(
            self.device.name, f"sm_{major}{minor}", int(total), facts.multiprocessor_count,
            tensor_cores=major >= 8, dlpack=(KDL_CUDA, number), launcher=_launcher(),
        )  # fmt: skip
        self._shared: dict[int, int] = {}

    def enter(self) -> None:
        """Make the GPU current in this thread, unless it is since the last call."""
        if _thread.driver is not self:
            self.device.set_current()
            _thread.driver = self
            if core.native is not None:
                core.native.set_entered(self)

    def refused(self, code: int) -> None:
        """Raise DeviceError for a code of the driver."""
        self.check((self.api.CUresult(code),))

    def _device(self, number: int) -> Any:
        try:
            self.check(self.api.cuInit(0))
            version = self.check(self.api.cuDriverGetVersion())
            self.count = count = int(self.check(self.api.cuDeviceGetCount()))
        except DeviceError as error:
            raise DeviceError(f"the driver finds no GPU ({error})") from None
        except Exception as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DeviceError(f"the NVIDIA driver (libcuda.so) is missing ({line})") from None
        self.version = f"CUDA {version // 1000}.{version % 1000 // 10}"
        needed = 1000 * int(self.compiler.version.split()[1].split(".")[0])
        if version < needed:
            raise DeviceError(
                f"the driver is too old: it knows {self.version}, "
                f"{self.compiler.version} needs {needed // 1000}.0 or newer"
            )
        if not 0 <= number < count:
            raise DeviceError(f"GPU {number} does not exist: this machine has {count}")
        return self.core.Device(number)

    # ---- memory ------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        self.enter()
        return self._memory(self.api.cuMemAlloc(nbytes))

    def free(self, address: int) -> None:
        self.enter()
        self.check(self.api.cuMemFree(address))

    def pin(self, nbytes: int) -> int:
        self.enter()
        return self._memory(self.api.cuMemHostAlloc(nbytes, PORTABLE))

    def unpin(self, address: int) -> None:
        self.enter()
        self.check(self.api.cuMemFreeHost(address))

    def _memory(self, result: tuple[Any, ...]) -> int:
        if result[0] == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise NoMemory
        return int(self.check(result))

    def lent(self, address: int, nbytes: int, stream: int) -> None:
        pass

    def returned(self, address: int, nbytes: int, stream: int) -> None:
        pass

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self.enter()
        self.check(self.api.cuMemcpyAsync(to, source, nbytes, stream))

    def set_bytes(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self.enter()
        self.check(self.api.cuMemsetD8Async(address, value, nbytes, stream))

    # ---- kernels -----------------------------------------------------------------------

    def load(self, unit: Unit) -> dict[str, Any]:
        cubin, names = self._compiled(unit)
        symbols = {expression: symbol.encode() for expression, symbol in names.items()}
        code = self.core.ObjectCode.from_cubin(cubin, symbol_mapping=symbols)
        found = {}
        for expression in unit.expressions:
            kernel = code.get_kernel(expression)
            found[expression] = (self.api.CUfunction(int(kernel.handle)), kernel)
        return found

    def _compiled(self, unit: Unit) -> tuple[bytes, dict[str, str]]:
        arch = self.properties.arch
        name = key(unit, *OPTIONS, arch, self.compiler.version) + ".cubin"
        known = self.cache.find(name)
        if known is not None:
            return unpack(known.read_bytes())
        cubin, names, _ = self.compiler.compile(unit, arch)
        self.cache.put(name, pack(cubin, names))
        return cubin, names

    def launch(
        self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes, stream: int
    ) -> None:
        self.enter()
        if shared > SHARED_LIMIT:
            self._allow_shared(function[1], shared)
        (code,) = self.api.cuLaunchKernel(
            function[0], *grid, *block, shared, stream, 0, _thread.extra.of(words)
        )
        if int(code):
            self.check((code,))

    def _allow_shared(self, kernel: Any, nbytes: int) -> None:
        """Allow a kernel's blocks this much shared memory, once."""
        handle = int(kernel.handle)
        if self._shared.get(handle, 0) < nbytes:
            most = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            place = self.api.CUdevice(self.device.device_id)
            self.check(
                self.api.cuKernelSetAttribute(most, nbytes, self.api.CUkernel(handle), place)
            )
            self._shared[handle] = nbytes

    # ---- order -------------------------------------------------------------------------

    def create_stream(self) -> int:
        self.enter()
        flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self.check(self.api.cuStreamCreate(flags)))

    def record(self, stream: int) -> Event:
        self.enter()
        flags = self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = _Event(self, self.check(self.api.cuEventCreate(flags)))
        self.check(self.api.cuEventRecord(event.event, stream))
        return event

    def wait(self, stream: int, event: Event) -> None:
        assert isinstance(event, _Event)
        self.enter()
        self.check(self.api.cuStreamWaitEvent(stream, event.event, 0))

    def synchronize(self) -> None:
        self.enter()
        self.check(self.api.cuCtxSynchronize())

    def check(self, result: tuple[Any, ...]) -> Any:
        """Return the results of a driver call, without its error code.

        Raises:
            DeviceError: with the driver's message, if the call failed.
        """
        code, *values = result
        if int(code):
            _, name = self.api.cuGetErrorName(code)
            _, text = self.api.cuGetErrorString(code)
            raise DeviceError(f"{(name or b'?').decode()}: {(text or b'?').decode()}")
        return values[0] if len(values) == 1 else tuple(values)


class _Extra:
    """The list by which cuLaunchKernel takes a kernel's parameters as one buffer (cuda.h)."""

    END, POINTER, SIZE = 0, 1, 2
    ROOM = 4096

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(self.ROOM)
        self.size = ctypes.c_size_t()
        self.list = (ctypes.c_void_p * 5)(
            self.POINTER, ctypes.addressof(self.buffer), self.SIZE, ctypes.addressof(self.size),
            self.END,
        )  # fmt: skip
        self.address = ctypes.addressof(self.list)

    def of(self, words: bytes) -> int:
        """Return the address of the list for these parameters; valid until the next call."""
        ctypes.memmove(self.buffer, words, len(words))
        self.size.value = len(words)
        return self.address


_thread = _Thread()


def _launcher() -> int:
    """Return the address of cuLaunchKernel, 0 where the driver's library is not found."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _libraries() -> tuple[Any, Any]:
    """Return cuda.core and the driver's bindings."""
    found = []
    for name in ("cuda.core", "cuda.bindings.driver"):
        try:
            found.append(import_module(name))
        except ImportError as error:
            raise DeviceError(
                f"{name} is missing: pip install 'needle-dl[cuda]' ({error})"
            ) from None
    version = getattr(found[0], "__version__", "0")
    if int(version.split(".")[0]) != 1:
        raise DeviceError(f"cuda-core is {version}, but Needle needs a version >= 1.0 and < 2")
    return found[0], found[1]

"""What the backend asks of a driver, and the driver of a real GPU, over cuda.core.

Everything is asked for in one stream's order and returns at once; only ``synchronize`` and copies
to the host wait.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from needle.backend.cuda.jit import OPTIONS, Cache, Nvrtc, Unit, key, pack, unpack
from needle.errors import DeviceError

Triple = tuple[int, int, int]


class NoMemory(Exception):
    """The device has no such memory left."""


@dataclass(frozen=True)
class Properties:
    """What a device is.

    Attributes:
        name: as its maker calls it.
        arch: target of the compiler, for example ``sm_90``.
        memory: bytes.
        multiprocessors: blocks run on so many.
        guard: bytes to leave between any two blocks of memory, where writes out of bounds show.
        tensor_cores: whether the tensor-core kernels can run.
        whole_families: whether compiling many kernels at once costs little more than one.
    """

    name: str
    arch: str
    memory: int
    multiprocessors: int
    guard: int = 0
    tensor_cores: bool = True
    whole_families: bool = False


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Return whether all work before it is done."""

    def wait(self) -> None:
        """Wait until it is."""


class Driver(Protocol):
    """A device that runs kernels. Addresses are integers."""

    properties: Properties

    def allocate(self, nbytes: int) -> int:
        """Return new device memory; raise NoMemory if there is none."""

    def release(self, address: int) -> None:
        """Give memory back."""

    def lent(self, address: int, nbytes: int) -> None:
        """Note that the arena hands out this block."""

    def returned(self, address: int, nbytes: int) -> None:
        """Note that this block is free again."""

    def to_device(self, to: int, source: int, nbytes: int) -> None:
        """Copy from the host; the source may be reused at once."""

    def to_host(self, to: int, source: int, nbytes: int) -> None:
        """Copy to the host, and wait for it."""

    def set_bytes(self, address: int, value: int, nbytes: int) -> None:
        """Set bytes of device memory."""

    def load(self, unit: Unit) -> dict[str, Any]:
        """Return the functions of a unit by expression."""

    def launch(self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes) -> None:
        """Run a kernel; words: its parameters, 8 bytes each."""

    def record(self) -> Event:
        """Return an event for all work asked for so far."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""


class _Event:
    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.is_done)

    def wait(self) -> None:
        self.event.sync()


class CudaDriver:
    """A GPU by cuda.core; kernels come from NVRTC, through the cache.

    Args:
        number: which GPU.

    Raises:
        DeviceError: saying which piece is missing: the wheels, the driver, or the GPU.
    """

    def __init__(self, number: int = 0) -> None:
        self.core, self.api = _libraries()
        self.compiler = Nvrtc()
        self.device = self._device(number)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.cache = Cache()
        major, minor = self.device.compute_capability
        facts = self.device.properties
        free, total = self._check(self.api.cuMemGetInfo())
        self.properties = Properties(
            self.device.name, f"sm_{major}{minor}", int(total), facts.multiprocessor_count,
            tensor_cores=major >= 8,
        )  # fmt: skip
        self._extra = _Extra()

    def _device(self, number: int) -> Any:
        try:
            self._check(self.api.cuInit(0))
            version = self._check(self.api.cuDriverGetVersion())
            count = self._check(self.api.cuDeviceGetCount())
        except DeviceError as error:
            raise DeviceError(f"the driver finds no GPU ({error})") from None
        except Exception as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DeviceError(f"the NVIDIA driver (libcuda.so) is missing ({line})") from None
        needed = 1000 * int(self.compiler.version.split()[1].split(".")[0])
        if version < needed:
            raise DeviceError(
                f"the driver is too old: it knows CUDA {version // 1000}.{version % 1000 // 10}, "
                f"{self.compiler.version} needs {needed // 1000}.0 or newer"
            )
        if not 0 <= number < count:
            raise DeviceError(f"there is no GPU {number}: this machine has {count}")
        return self.core.Device(number)

    # ---- memory ------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        code, address = self.api.cuMemAlloc(nbytes)
        if code == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise NoMemory
        return int(self._check((code, address)))

    def release(self, address: int) -> None:
        self._check(self.api.cuMemFree(address))

    def lent(self, address: int, nbytes: int) -> None:
        pass

    def returned(self, address: int, nbytes: int) -> None:
        pass

    def to_device(self, to: int, source: int, nbytes: int) -> None:
        # pageable memory is staged by the driver before the call returns
        self._check(self.api.cuMemcpyHtoDAsync(to, source, nbytes, self.stream.handle))

    def to_host(self, to: int, source: int, nbytes: int) -> None:
        self._check(self.api.cuMemcpyDtoHAsync(to, source, nbytes, self.stream.handle))
        self.stream.sync()

    def set_bytes(self, address: int, value: int, nbytes: int) -> None:
        self._check(self.api.cuMemsetD8Async(address, value, nbytes, self.stream.handle))

    # ---- kernels -----------------------------------------------------------------------

    def load(self, unit: Unit) -> dict[str, Any]:
        cubin, names = self._compiled(unit)
        code = self.core.ObjectCode.from_cubin(cubin, symbol_mapping=names)
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

    def launch(self, function: Any, grid: Triple, block: Triple, shared: int, words: bytes) -> None:
        (code,) = self.api.cuLaunchKernel(
            function[0], *grid, *block, shared, self.stream.handle, 0, self._extra.of(words)
        )
        if int(code):
            self._check((code,))

    # ---- order -------------------------------------------------------------------------

    def record(self) -> Event:
        return _Event(self.stream.record())

    def synchronize(self) -> None:
        self.stream.sync()

    def _check(self, result: tuple[Any, ...]) -> Any:
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


def _libraries() -> tuple[Any, Any]:
    """Return cuda.core and the driver's bindings."""
    found = []
    for name in ("cuda.core", "cuda.bindings.driver"):
        try:
            found.append(import_module(name))
        except ImportError as error:
            raise DeviceError(f"{name} is missing: pip install 'needle[cuda]' ({error})") from None
    version = getattr(found[0], "__version__", "0")
    if int(version.split(".")[0]) != 1:
        raise DeviceError(f"cuda-core is {version}, versions from 1.0 to below 2 are known to work")
    return found[0], found[1]

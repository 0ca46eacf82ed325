"""The ``Backend`` contract on CUDA: geometry, choice of kernels, launches.

An eager operation costs the host as much as its launch, so what all of them do is native
(src/core/device/port.cc): free blocks, the packing of parameters, the driver's call. ``_again``
keeps what a call launched as a ``Launch``, to be run for other arrays of the same specs and
strides; the gate runs it the next time without Python. Without the native module all of this is
arena.py and this file alone. A kernel's parameters are 8-byte words, so a launch is one packed
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any

import numpy as np

from needle.backend import memory
from needle.backend.contract import Backend, Describe
from needle.backend.cuda import dlpack, fused, indexing, products, reductions, sorting
from needle.backend.cuda.arena import Arena, Block, address
from needle.backend.cuda.driver import Driver, Event, NoMemory, Triple
from needle.backend.cuda.errors import Pending
from needle.backend.cuda.geometry import Geometry, geometry, pack
from needle.backend.cuda.jit import Unit
from needle.backend.cuda.launch import THREADS, Family, Launcher, aligned, blocks_for, dense
from needle.backend.cuda.pinned import Pinned
from needle.backend.cuda.streams import Streams
from needle.backend.cuda.table import BITS, CPP
from needle.backend.functions import functions
from needle.backend.fused import Places, Program
from needle.backend.ndarray import Arrays, NDArray, Rows, empty_of
from needle.dtype import ALL, DType
from needle.errors import DtypeError

MOST_PREPARED = 4096


class CudaBackend(Backend):
    """A device with a driver: a GPU or the emulator."""

    def __init__(self, name: str, driver: Driver) -> None:
        self.name = name
        self.driver = driver
        self.streams = Streams(driver)
        self.arena = Arena(driver, self.streams)
        self.port = self.arena.port
        self.launch: Callable[..., None] = self._launch if self.port is None else self.port.launch
        self.prepared: dict[tuple[Any, ...], Any] = {}
        self.pinned_buffers = Pinned(self)
        self.functions: dict[tuple[str, str], Any] = {}
        self.pending = Pending(self)
        self.lock = RLock()

    # ---- memory ------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Block:
        lent = None if self.port is None else self.port.lend(nbytes)
        if lent is not None:
            return lent
        try:
            return self.arena.allocate(nbytes)
        except NoMemory:
            raise memory.exhausted(self, nbytes) from None

    def upload(self, out: Any, values: Any) -> None:
        if not out.size:
            return
        if not out.is_dense():
            staged = empty_of(out.spec)
            self.upload(staged, values)
            self.copy(out, staged)
            return
        self.pinned_buffers.send(address(out), np.ascontiguousarray(values))

    def download(self, x: Any) -> Any:
        values = np.empty(x.shape, x.dtype.numpy)
        (whole,) = dense(x)
        source = address(whole)  # this stream waits for x's
        self.pending.look()
        if x.size:
            self.pinned_buffers.fetch(values, source)
        self.pending.check()
        return values

    def pinned(self, shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
        return self.pinned_buffers.array(tuple(shape), dtype)

    def dlpack_device(self) -> tuple[int, int]:
        return self.driver.properties.dlpack

    def to_dlpack(
        self, x: Any, stream: Any, max_version: tuple[int, int] | None, copy: bool | None
    ) -> Any:
        """Return a capsule; see ``dlpack.give``."""
        return dlpack.give(self, x, stream, max_version, copy)

    def from_dlpack(self, x: Any) -> Any:
        """Return an array over another library's memory on this device; see ``dlpack.take``."""
        return dlpack.take(self, x)

    # ---- order -------------------------------------------------------------------------

    def synchronize(self) -> None:
        self.driver.synchronize()
        self.arena.collect()
        self.pending.look()
        self.pending.check(everything=True)

    def stream(self, name: str) -> AbstractContextManager[Any]:
        return self.streams.use(name)

    def record(self) -> Event:
        return self.streams.record()

    def wait(self, event: Event) -> None:
        self.streams.wait(event)

    def memory_info(self) -> dict[str, int]:
        return self.arena.statistics()

    # ---- launches ----------------------------------------------------------------------

    def function(self, file: str, expression: str, family: Family | None = None) -> Any:
        """Return a kernel; compile it if needed.

        Args:
            file: file name in ``kernels/``.
            expression: the C++ expression of an instantiation.
            family: returns expressions to compile with it, if compiling many costs little more.
        """
        found = self.functions.get((file, expression))
        return self._load(file, expression, family) if found is None else found

    def _load(self, file: str, expression: str, family: Family | None) -> Any:
        with self.lock:  # one thread compiles, the others wait
            if (file, expression) in self.functions:
                return self.functions[file, expression]
            wanted = [expression]
            if family is not None and self.driver.properties.whole_families:
                wanted = list(dict.fromkeys([expression, *family()]))
            loaded = self.driver.load(Unit(file, tuple(wanted)))
            self.functions.update({(file, name): f for name, f in loaded.items()})
            return loaded[expression]

    def _launch(
        self, function: Any, grid: int | Triple, *parts: Any, block: int = THREADS, shared: int = 0
    ) -> None:
        """Run a kernel on blocks of ``block`` threads.

        Args:
            function: a result of ``function``.
            grid: number of blocks.
            parts: its parameters: numbers, bytes, or arrays, which pass their addresses.
            block: number of threads.
            shared: bytes of shared memory, in addition to those that the kernel declares.
        """
        blocks = (grid, 1, 1) if isinstance(grid, int) else grid
        words = pack(*[x if isinstance(x, (int, float, bytes)) else address(x) for x in parts])
        self.driver.launch(function, blocks, (block, 1, 1), shared, words, self.streams.current)

    # ---- elementwise -------------------------------------------------------------------

    def copy(self, out: Any, x: Any) -> Any:
        return self._again(CudaBackend._copy, None, out, x)

    def _copy(self, _: None, out: Any, x: Any) -> None:
        g = geometry(out.shape, out.strides, x.strides)
        if not g.count:
            return
        to, source = CPP[out.dtype], CPP[x.dtype]
        if out.dtype is x.dtype:
            to = source = BITS[out.dtype.itemsize]
        places = (address(out), address(x))
        width = 16 // max(out.dtype.itemsize, x.dtype.itemsize)
        if g.dense() == 0 and aligned(*places):
            function = self.function("copy.cu", f"copy_dense<{to}, {source}, {width}>", _copies(to))
            self.launch(function, blocks_for(g.count, width), *places, g.count)
        elif to == source and _is_transpose(g):
            _transpose(self, to, g, places)
        else:
            function = self.function("copy.cu", f"copy<{to}, {source}, {g.index}>", _copies(to))
            self.launch(function, blocks_for(g.count), *places, g.words)

    def fill(self, out: Any, value: float) -> None:
        g = geometry(out.shape, out.strides)
        if not g.count:
            return
        width = out.dtype.itemsize
        number = float(value) if out.dtype.kind == "f" else value  # of more than 64 bits too
        with np.errstate(over="ignore"):
            bits = int.from_bytes(np.asarray(number).astype(out.dtype.numpy).tobytes(), "little")
        function = self.function("copy.cu", f"fill<{BITS[width]}, {g.index}>", _fills)
        self.launch(function, blocks_for(g.count), address(out), bits, g.words)

    def elementwise(self, function: str, out: Any, *inputs: Any) -> Any:
        """See ``Backend``; return the launch for other arrays like these, or None."""
        return self._again(CudaBackend._elementwise, function, out, *inputs)

    def _again(self, call: Callable[..., None], what: Any, *arrays: Any) -> Any:
        """Call ``call(self, what, *arrays)``, or repeat its launch for similar arrays.

        Args:
            call: its launch must only depend on ``what``, the arrays' specs and strides, and
                whether the arrays are aligned to 16 bytes.
            what: a hashable argument.
            arrays: the result and the operands.
        """
        if self.port is None:
            call(self, what, *arrays)
            return None
        key = (call.__name__, what, *[y for x in arrays for y in (x.spec, x.strides)])
        launch = self.prepared.get(key)
        if launch is None or not launch(*arrays):
            before = self.port.launches
            call(self, what, *arrays)
            launch = self.port.again(before, arrays)
            if launch is not None:
                if len(self.prepared) >= MOST_PREPARED:
                    self.prepared.clear()
                self.prepared[key] = launch
        return launch

    def _elementwise(self, function: str, out: Any, *inputs: Any) -> None:
        kind = inputs[-1].dtype
        row = functions().get(function)
        if row is None or kind not in row.dtypes:
            raise DtypeError(f"{function}: not supported for {kind} on {self.name}")
        g = geometry(out.shape, out.strides, *[x.strides for x in inputs])
        if not g.count:
            return
        name, places = f"f_{function}", [address(out), *map(address, inputs)]
        scalars = g.dense()
        if scalars is not None and aligned(*places):
            width = 16 // kind.itemsize
            found = self.function(
                "elementwise.cu", f"elementwise_dense<{name}, {CPP[kind]}, {width}>", _all_of(kind)
            )
            self.launch(found, blocks_for(g.count, width), *places, g.count, scalars)
        else:
            found = self.function(
                "elementwise.cu", f"elementwise<{name}, {CPP[kind]}, {g.index}>", _all_of(kind)
            )
            self.launch(found, blocks_for(g.count), *places, g.words)

    # ---- the rest of the contract ------------------------------------------------------

    def reduce(self, function: str, out: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return self._again(reductions.reduce, (function, axes), out, x)

    def scan(self, function: str, out: Any, x: Any, axis: int) -> None:
        self._again(reductions.scan, (function, axis), out, x)

    def matmul(self, out: Any, a: Any, b: Any) -> Any:
        return self._again(products.matmul, None, out, a, b)

    def gather(self, out: Any, x: Any, index: Any, axis: int) -> int:
        return indexing.gather(self, out, x, index, axis)

    def scatter_add(self, out: Any, index: Any, updates: Any, axis: int) -> int:
        self.fill(out, 0)
        return indexing.scatter_add(self, out, index, updates, axis)

    def check_range(
        self, x: Any, low: int, high: int, kept: int | None, describe: Describe
    ) -> None:
        indexing.check_range(self, x, low, high, kept, describe)

    def check_whole(self, x: Any, describe: Describe) -> None:
        indexing.check_whole(self, x, describe)

    def sort(self, values: Any, indices: Any, x: Any, axis: int, descending: bool) -> None:
        sorting.sort(self, values, indices, x, axis, descending)

    def random_bits(self, out: Any, key: int, counter: int) -> None:
        words = out.size * (out.dtype.itemsize // 4)
        if words:
            function = self.function("copy.cu", "random_bits")
            self.launch(function, blocks_for(words, 4), address(out), words, key, counter)

    def update_kernel(self, name: str, dtype: Any) -> Any:
        return fused.kernel_of(self, name)

    def run_fused(
        self, program: Program, outs: Arrays, inputs: Arrays, results: Places = None
    ) -> None:
        fused.run(self, program, outs, inputs, results)

    def run_each(
        self, program: Program, outs: Rows, inputs: Rows, numbers: NDArray, results: Places = None
    ) -> None:
        fused.run_each(self, program, outs, inputs, numbers, results)


def _all_of(kind: DType) -> Family:
    """Return the family of all functions of a dtype."""
    name, width = CPP[kind], 16 // kind.itemsize

    def expressions() -> Iterable[str]:
        for function, row in functions().items():
            if kind in row.dtypes:
                yield f"elementwise<f_{function}, {name}, i32>"
                yield f"elementwise_dense<f_{function}, {name}, {width}>"

    return expressions


def _copies(to: str) -> Family:
    """Return the family of all copies into a type."""

    def expressions() -> Iterable[str]:
        sizes = {CPP[kind]: kind.itemsize for kind in ALL}
        if to not in sizes or to == "u8":
            for width, name in BITS.items():
                yield f"copy<{name}, {name}, i32>"
                yield f"copy_dense<{name}, {name}, {16 // width}>"
        for name, size in sizes.items():
            if to in sizes and name != to:
                yield f"copy<{to}, {name}, i32>"
                yield f"copy_dense<{to}, {name}, {16 // max(size, sizes[to])}>"

    return expressions


def _fills() -> Iterable[str]:
    return [f"fill<{name}, i32>" for name in BITS.values()]


def _is_transpose(g: Geometry) -> bool:
    """Return whether a copy swaps two long axes, the last of out and the last of x.

    Batches and tiles of rows are axes of the grid, whose sizes are limited.
    """
    if len(g.shape) not in (2, 3) or g.strides[0][-1] != 1 or g.shape[-1] < 16:
        return False
    rows = g.shape[-2]
    return g.strides[1][-2] == 1 and rows >= 16 and max(_batches(g), -(-rows // 32)) <= 65535


def _batches(g: Geometry) -> int:
    return g.shape[0] if len(g.shape) == 3 else 1


def _transpose(backend: Launcher, kind: str, g: Geometry, places: Sequence[int]) -> None:
    rows, columns = g.shape[-2:]
    out_batch, x_batch = ((row[0] if len(row) == 3 else 0) for row in g.strides)
    backend.launch(
        backend.function("copy.cu", f"transpose<{kind}>"),
        (-(-columns // 32), -(-rows // 32), _batches(g)),
        *places, rows, columns, g.strides[1][-1], g.strides[0][-2], x_batch, out_batch,
    )  # fmt: skip

"""The contract of compute backends, which own memory and kernels.

A backend implements ``Backend``. Every call takes ``(out, inputs...)``: arrays as kernels see
them (handle, dtype, shape, strides, offset), inputs with any strides, out fresh. Shapes and dtypes
were checked by the caller (``kernels.py``), once for all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from needle import config
from needle import dtype as dtypes
from needle.backend import fused, kernels
from needle.backend.fused import Places, Program
from needle.backend.ndarray import Arrays, NDArray, Rows, array, empty, full

Describe = Callable[..., Exception]
"""A function that makes the error for a position, and for the value there if it is known."""


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Return whether all earlier work is done."""

    def wait(self) -> None:
        """Wait until all earlier work is done."""


class Done:
    """The event of a device that computes immediately."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Do nothing."""


class Backend:
    """The functions of a device. Everything else is built from these, or may be overridden."""

    name: str

    # memory
    def allocate(self, nbytes: int) -> Any:
        """Return a handle to at least ``nbytes`` bytes, 64-byte aligned, not initialised.

        Raises:
            OutOfMemoryError: made by ``memory.exhausted``, if the limit or the system refuses.
        """
        raise NotImplementedError

    def upload(self, out: NDArray, values: Any) -> None:
        """Copy a NumPy array of out's shape and dtype into out."""
        raise NotImplementedError

    def download(self, x: NDArray) -> Any:
        """Return a NumPy array of x's values: a view of x's memory if possible."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until all work of the device is done."""

    def stream(self, name: str) -> AbstractContextManager[Any]:
        """Run this thread's work in a ``with`` block concurrently with work outside of it.

        Users of a result wait for it on the device, so this never changes results. It has no effect
        on a device that computes immediately.
        """
        return nullcontext()

    def record(self) -> Event:
        """Return an event for the work in this thread's stream so far."""
        return Done()

    def wait(self, event: Event) -> None:
        """Let later work in this thread's stream wait for an event.

        The host does not wait; ``event.wait()`` does that.
        """

    def pinned(self, shape: tuple[int, ...], dtype: Any = "float32") -> Any:
        """Return a new NumPy array that this device can copy from while the host continues.

        Its values are not set. The copy makes it read-only; use a new array for the next copy.
        """
        return np.empty(shape, dtypes.as_dtype(dtype).numpy)

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's type and number of the device."""
        return 1, 0  # host memory

    def memory_info(self) -> dict[str, int]:
        """Return bytes: ``live`` (in use), ``cached`` for reuse, ``peak``, ``limit`` (0: none)."""
        return {"live": 0, "cached": 0, "peak": 0, "limit": 0}

    # numbers
    def copy(self, out: NDArray, x: NDArray) -> Any:
        """Copy x to out, casting to out's dtype. out may have any strides."""
        raise NotImplementedError

    def fill(self, out: NDArray, value: float) -> None:
        """Set every element of out. out may have any strides."""
        raise NotImplementedError

    def filled(self, spec: Any, value: float) -> NDArray:
        """Return a new dense array of one value."""
        out = empty(spec.shape, spec.dtype, spec.device)
        self.fill(out, value)
        return out

    def elementwise(self, function: str, out: NDArray, *inputs: NDArray) -> Any:
        """Apply a function of functions.def; inputs are broadcast to out's shape already.

        This method, ``copy``, ``reduce`` and ``matmul`` may return a ``Launch``, which the native
        module runs again for other arrays of these specs and strides (src/core/device/port.h).
        """
        raise NotImplementedError

    def reduce(self, function: str, out: NDArray, x: NDArray, axes: tuple[int, ...]) -> Any:
        """Reduce over axes; out keeps them with size 1."""
        raise NotImplementedError

    def scan(self, function: str, out: NDArray, x: NDArray, axis: int) -> None:
        """Cumulate along axis: "cumsum", "cumprod"; for ``extremes``, "cummax" and "cummin"."""
        raise NotImplementedError

    def extremes(
        self, values: NDArray, positions: NDArray, x: NDArray, axis: int, largest: bool
    ) -> None:
        """Write the running maxima or minima along axis, and their positions (int64).

        The last of equal elements counts, and NaN beats any number. Both results are dense. This
        default uses scans; a backend may have a faster way.
        """
        self.scan("cummax" if largest else "cummin", values, x, axis)
        own = kernels.elementwise("equal", x, values, dtype=dtypes.bool_)
        if x.dtype.kind == "f":
            missing = kernels.elementwise("not_equal", x, x, dtype=dtypes.bool_)
            own = kernels.elementwise("bitwise_or", own, missing)
        places = array(np.arange(x.shape[axis]), dtypes.int64, x.device)
        places = places.reshape((x.shape[axis], *(1,) * (x.ndim - 1 - axis)))
        places = kernels.elementwise("where", own, places, full((), 0, dtypes.int64, x.device))
        self.scan("cummax", positions, places, axis)

    def matmul(self, out: NDArray, a: NDArray, b: NDArray) -> Any:
        """Batched matrix product; transposes are strides."""
        raise NotImplementedError

    def gather(self, out: NDArray, x: NDArray, index: NDArray, axis: int) -> int:
        """out[i, j, k] = x[i, index[i, j, k], k]; return the position of a bad index, or -1."""
        raise NotImplementedError

    def scatter_add(self, out: NDArray, index: NDArray, updates: NDArray, axis: int) -> int:
        """Zeros with updates[i, j, k] added at [i, index[i, j, k], k]; return as ``gather``."""
        raise NotImplementedError

    @property
    def records(self) -> bool:
        """Whether a dry run of the native module notes all kernels: programs run them natively."""
        return False

    puts: ClassVar[bool] = False
    """Whether ``put`` is there."""

    def put(self, out: NDArray, index: NDArray, values: NDArray, axis: int) -> int:
        """out[i, index[i, j, k], k] = values[i, j, k]; the last value wins at equal places.

        out may have any strides. Returns as ``gather``; a bad index leaves out unchanged.
        """
        raise NotImplementedError

    # False or None below means that the backend has no such function; the caller has another way.

    def linear_index(self, out: NDArray, indices: Sequence[NDArray], sizes: Sequence[int]) -> bool:
        """out = flat positions of indices, broadcast to out; False for indices out of range."""
        return False

    def nonzero(self, x: NDArray) -> NDArray | None:
        """Return the positions of true elements of bools, int64 [axes, count]."""
        return None

    def searchsorted(self, out: NDArray, edges: NDArray, values: NDArray, right: bool) -> bool:
        """out = insertion positions of values into edges, before or after equal ones."""
        return False

    def triangle(self, out: NDArray, x: NDArray, k: int, upper: bool) -> bool:
        """out = x where column - row <= k (upper: >= k), else zero."""
        return False

    def check_range(
        self, x: NDArray, low: int, high: int, kept: int | None, describe: Describe
    ) -> None:
        """Raise ``describe(position, value)`` for the first integer outside [low, high).

        Args:
            x: integers.
            low: smallest valid number.
            high: largest valid number plus 1.
            kept: another valid number.
            describe: makes the error. A device whose kernels run later raises it at the next wait,
                without the value.
        """
        values = self.download(x).reshape(-1)
        wrong = (values < low) | (values >= high)
        if kept is not None and wrong.any():
            wrong &= values.astype(np.int64) != kept
        _raise_first(wrong, values, describe)

    def check_whole(self, x: NDArray, describe: Describe) -> None:
        """Raise ``describe(position, value)`` for the first number that is not an integer."""
        values = self.download(x).reshape(-1).astype(np.float64)
        _raise_first(values != np.trunc(values), values, describe)

    def sort(
        self, values: NDArray, indices: NDArray, x: NDArray, axis: int, descending: bool
    ) -> None:
        """Sort along axis, stable, NaN last; indices are int64.

        If the results are shorter than x along the axis, they hold the first elements.
        """
        raise NotImplementedError

    draws_floats = False
    """Whether ``random_bits`` fills float32, too: with 2**-24 times the low 24 bits."""

    def random_bits(self, out: NDArray, key: int, counter: int) -> None:
        """Fill out (int32 or int64) with Philox4x32-10 bits: the same on every device."""
        raise NotImplementedError

    def random_bits_of(self, out: NDArray, stream: NDArray, offset: int) -> None:
        """Fill out as ``random_bits`` does, for a key and a counter that an array holds.

        Args:
            out: int32 or int64.
            stream: int64 [2], on the device: the key, and the counter of the stream's start; the
                bits of unsigned numbers.
            offset: added to the counter.
        """
        key, start = np.array(self.download(stream)).view(np.uint64).tolist()
        self.random_bits(out, key, start + offset)

    def update_kernel(self, name: str, dtype: dtypes.DType) -> Callable[..., None] | None:
        """Return the device's own kernel for an optimizer's formula, or None.

        It is called with (numbers, flags, outs, params, grads, *states): the numbers of the formula
        that are not flags, a list or float64 [n] on the device; the flags; and lists of dense
        arrays, or None for a state that is not there. outs may be the params; states change in
        place.

        Args:
            name: "adam", "sgd".
            dtype: of the parameters.
        """
        return None

    def run_each(
        self, program: Program, outs: Rows, inputs: Rows, numbers: NDArray, results: Places = None
    ) -> None:
        """Run one elementwise program for each of several tensors.

        Args:
            program: as for ``run_fused``; its inputs are those of a tensor, and then the elements
                of ``numbers``.
            outs: for each tensor its results, dense; one may be an input of the same tensor.
            inputs: for each tensor its operands, dense; dtypes are those of the first tensor.
            numbers: [n], on the device.
            results: as for ``run_fused``.
        """
        for made, given in zip(outs, inputs, strict=True):
            shape = made[0].shape
            scalars = [numbers[i].reshape(()).broadcast_to(shape) for i in range(numbers.size)]
            self.run_fused(program, made, [*given, *scalars], results)

    def matmul_epilogue(
        self, outs: Arrays, a: NDArray, b: NDArray, steps: Sequence[tuple[str, int]],
        others: Arrays, kept: int,
    ) -> bool:  # fmt: skip
        """Compute a product and elementwise functions on it; False: there is no such kernel.

        Args:
            outs: takes the last value; or the value before step ``kept``, then the last one.
            a: as in ``matmul``.
            b: as in ``matmul``.
            steps: functions, and the place of the value so far among the operands, or -1.
            others: the other operands, broadcast.
            kept: -1 if only the last value is kept.
        """
        return False

    def run_fused(
        self, program: Program, outs: Arrays, inputs: Arrays, results: Places = None
    ) -> None:
        """Run an elementwise program (``fused.py`` says what it looks like).

        This default runs each step by itself; a backend may have a faster way.

        Args:
            program: steps (function, arguments).
            outs: arrays of one shape, each with its register's dtype. One may be the same view as
                an input.
            inputs: arrays of that shape (stride 0 where they do not vary).
            results: the register of each output; None: the last ones.
        """
        found = fused.result_registers(program, len(outs), len(inputs), results)
        fused.run(self, program, outs, inputs, found)

    def reduce_fused(
        self, program: Program, outs: Arrays, inputs: Arrays, results: Sequence[int],
        function: str, axes: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Run an elementwise program, and reduce its last output, which nobody else needs.

        This default computes that output and then reduces it; a backend may have a kernel that
        does not store it, and gives the same bits.

        Args:
            program: as for ``run_fused``.
            outs: as for ``run_fused``; but the last one takes the reduction, with its dtype, and
                keeps the axes with size 1. It is dense.
            inputs: as for ``run_fused``.
            results: the register of each output, the last one being reduced.
            function: "sum", "mean", "max" or "min".
            axes: as for ``reduce``.
        """
        fused.reduce(self, program, outs, inputs, results, function, axes)


def _raise_first(wrong: Any, values: Any, describe: Describe) -> None:
    bad = np.flatnonzero(wrong)
    if bad.size:
        raise describe(int(bad[0]), values[bad[0]])


_Override = Callable[..., Any]
_F = TypeVar("_F", bound=_Override)
_overrides: dict[tuple[str, str], _Override] = {}


def override(device_name: str, op_name: str) -> Callable[[_F], _F]:
    """Register a device's own function for an op: ``(op, *arrays) -> array | NotImplemented``.

    NotImplemented means that the expansion must be used, for example for this dtype or stride. The
    choice may only depend on specs and static attributes, so that eager and lazy runs agree.
    """

    def register(function: _F) -> _F:
        _overrides[device_name, op_name] = function
        return function

    return register


def find_override(device_name: str, op_name: str) -> _Override | None:
    """Return the device's override of an op, or None (always, with overrides switched off)."""
    found = _overrides.get((device_name, op_name))
    if found is None and ":" in device_name:  # cuda:1
        found = _overrides.get((device_name.partition(":")[0], op_name))
    return found if found is not None and config.current().overrides == "on" else None

"""Compute backends: where bytes and kernels live. Everything structural is above.

A backend implements ``Backend``. Every call takes ``(out, inputs...)``: arrays as kernels see
them (handle, dtype, shape, strides, offset), inputs with any strides, out fresh. Shapes and dtypes
were checked by the caller (``kernels.py``), once for all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np

from needle import config, device
from needle import dtype as dtypes
from needle.backend import update
from needle.backend.course import CourseDevice
from needle.backend.update import Adadelta, Adagrad, Adam, NAdam, RMSprop, Sgd
from needle.errors import DeviceError

if TYPE_CHECKING:
    from needle.backend.ndarray import NDArray

__all__ = ["Backend", "find_override", "override"]


Describe = Callable[..., Exception]
"""Makes the error for a position, and the value there if it is known."""


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Return whether all work before it is done."""

    def wait(self) -> None:
        """Wait until it is."""


class Done:
    """The event of a device that computes at once."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Do nothing."""


class Backend(CourseDevice):
    """All that a device must know. Everything else is built from these, or overridden by choice."""

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
        """Return a NumPy array of x's values, a view of x's memory where that is possible."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until everything asked of the device is done."""

    def stream(self, name: str) -> AbstractContextManager[Any]:
        """Let what this thread asks for in a ``with`` block be done beside the work outside it.

        Who uses a result waits for it, on the device; so this changes when, never what. A device
        that computes at once has nothing to do.
        """
        return nullcontext()

    def record(self) -> Event:
        """Return an event for what was asked of this thread's stream so far."""
        return Done()

    def wait(self, event: Event) -> None:
        """Let what this thread's stream is asked for from now on wait for an event.

        The host does not wait: that is ``event.wait()``.
        """

    def pinned(self, shape: tuple[int, ...], dtype: Any = "float32") -> Any:
        """Return a new NumPy array that this device copies from while the host goes on.

        Its values are not set. With the copy it becomes read-only; take another for the next.
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
        from needle.backend.ndarray import empty

        out = empty(spec.shape, spec.dtype, spec.device)
        self.fill(out, value)
        return out

    def ramp(self, out: NDArray, start: float, step: float) -> None:
        """Set out[i] = start + i * step in C order, computed as NumPy does. out is dense."""
        with np.errstate(all="ignore"):
            values = start + step * np.arange(out.size)
            self.upload(out, values.astype(out.dtype.numpy, copy=False).reshape(out.shape))

    def elementwise(self, function: str, out: NDArray, *inputs: NDArray) -> Any:
        """Apply a function of functions.def; inputs are broadcast to out's shape already.

        This, ``copy``, ``reduce`` and ``matmul`` may return what was prepared for it: a
        ``Launch``, which the native module runs for other arrays of these specs and strides
        (src/core/port.h).
        """
        raise NotImplementedError

    def reduce(self, function: str, out: NDArray, x: NDArray, axes: tuple[int, ...]) -> Any:
        """Reduce over axes, which out keeps with size 1."""
        raise NotImplementedError

    def scan(self, function: str, out: NDArray, x: NDArray, axis: int) -> None:
        """Cumulate along axis: "cumsum", "cumprod"; for ``extremes``, "cummax" and "cummin"."""
        raise NotImplementedError

    def extremes(
        self, values: NDArray, positions: NDArray, x: NDArray, axis: int, largest: bool
    ) -> None:
        """The largest or smallest elements up to each along axis, and where they are (int64).

        Of equal ones the last; NaN is better than any number. Both results are dense. This default
        is made of scans; a backend may do better.
        """
        from needle.backend import kernels
        from needle.backend.ndarray import array, full

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

    puts: ClassVar[bool] = False
    """Whether ``put`` is there."""

    def put(self, out: NDArray, index: NDArray, values: NDArray, axis: int) -> int:
        """out[i, index[i, j, k], k] = values[i, j, k], of equal places the last one.

        out may have any strides. Returns as ``gather``; then nothing was written.
        """
        raise NotImplementedError

    # What is False or None below says: not here; the caller has another way.

    def linear_index(self, out: NDArray, indices: Sequence[NDArray], sizes: Sequence[int]) -> bool:
        """out = places of indices, broadcast to out, in axes of these sizes. False: wrong ones."""
        return False

    def nonzero(self, x: NDArray) -> NDArray | None:
        """Return the positions of true elements of bools, int64 [axes, count]."""
        return None

    def searchsorted(self, out: NDArray, edges: NDArray, values: NDArray, right: bool) -> bool:
        """out = where values go into dense edges, before equal ones or after; NaN last."""
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
            low: the smallest that is right.
            high: one more than the largest.
            kept: one more number that is right.
            describe: makes the error; a device whose kernels run later raises it when it is waited
                for, and does not know the value then.
        """
        values = self.download(x).reshape(-1)
        wrong = (values < low) | (values >= high)
        if kept is not None and wrong.any():
            wrong &= values.astype(np.int64) != kept
        _raise_first(wrong, values, describe)

    def check_whole(self, x: NDArray, describe: Describe) -> None:
        """Raise ``describe(position, value)`` for the first number that is not whole, likewise."""
        values = self.download(x).reshape(-1).astype(np.float64)
        _raise_first(values != np.trunc(values), values, describe)

    def sort(
        self, values: NDArray, indices: NDArray, x: NDArray, axis: int, descending: bool
    ) -> None:
        """Sort along axis, stable, NaN last; indices are int64.

        Results shorter than x along the axis are the first ones of the order.
        """
        raise NotImplementedError

    def random_bits(self, out: NDArray, key: int, counter: int) -> None:
        """Fill out (int32 or int64) with Philox4x32-10 bits: the same on every device."""
        raise NotImplementedError

    def adam(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        ms: Sequence[NDArray],
        vs: Sequence[NDArray],
        rule: Adam,
    ) -> None:
        """Step all params into outs (dense; may be the params); ms and vs change in place."""
        update.adam(outs, params, grads, ms, vs, rule)

    def amsgrad(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        ms: Sequence[NDArray],
        vs: Sequence[NDArray],
        tops: Sequence[NDArray],
        rule: Adam,
    ) -> None:
        """Step all params into outs (dense; may be the params); the others change in place."""
        update.amsgrad(outs, params, grads, ms, vs, tops, rule)

    def nadam(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        ms: Sequence[NDArray],
        vs: Sequence[NDArray],
        rule: NAdam,
    ) -> None:
        """Step all params into outs (dense; may be the params); ms and vs change in place."""
        update.nadam(outs, params, grads, ms, vs, rule)

    def adadelta(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        vs: Sequence[NDArray],
        ds: Sequence[NDArray],
        rule: Adadelta,
    ) -> None:
        """Step all params into outs (dense; may be the params); vs and ds change in place."""
        update.adadelta(outs, params, grads, vs, ds, rule)

    def sgd(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        velocities: Sequence[NDArray] | None,
        rule: Sgd,
    ) -> None:
        """Step all params into outs (dense; may be the params); velocities change in place."""
        update.sgd(outs, params, grads, velocities, rule)

    def rmsprop(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        vs: Sequence[NDArray],
        means: Sequence[NDArray] | None,
        us: Sequence[NDArray] | None,
        rule: RMSprop,
    ) -> None:
        """Step all params into outs (dense; may be the params); vs, means, us change in place."""
        update.rmsprop(outs, params, grads, vs, means, us, rule)

    def adagrad(
        self,
        outs: Sequence[NDArray],
        params: Sequence[NDArray],
        grads: Sequence[NDArray],
        sums: Sequence[NDArray],
        rule: Adagrad,
    ) -> None:
        """Step all params into outs (dense; may be the params); sums change in place."""
        update.adagrad(outs, params, grads, sums, rule)

    def run_fused(
        self,
        program: Sequence[tuple[str, tuple[int, ...]]],
        outs: Sequence[NDArray],
        inputs: Sequence[NDArray],
    ) -> None:
        """Run an elementwise program: instruction i writes register ``len(inputs) + i``.

        The last ``len(outs)`` instructions are the outputs. This default interprets it through
        ``elementwise``; a backend may do better.
        """
        from needle.backend.ndarray import empty

        registers = list(inputs)
        first_out = len(program) - len(outs)
        for i, (function, args) in enumerate(program):
            like = outs[0]
            out = (
                outs[i - first_out]
                if i >= first_out
                else empty(like.shape, like.dtype, like.device)
            )
            self.elementwise(function, out, *[registers[a] for a in args])
            registers.append(out)


def _raise_first(wrong: Any, values: Any, describe: Describe) -> None:
    bad = np.flatnonzero(wrong)
    if bad.size:
        raise describe(int(bad[0]), values[bad[0]])


_Override = Callable[..., Any]
_F = TypeVar("_F", bound=_Override)
_overrides: dict[tuple[str, str], _Override] = {}


def override(device_name: str, op_name: str) -> Callable[[_F], _F]:
    """Register a device's own way to compute an op: ``(op, *arrays) -> array | NotImplemented``.

    NotImplemented means "not this dtype or stride; use the expansion". The choice may depend on
    specs and static attributes alone, so that eager, lazy and compiled runs choose the same.
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


def _load_cpu() -> Backend:
    from needle import core

    if core.native is None:
        raise DeviceError(f"the native module is missing ({core.native_error})")
    from needle.backend.native import NativeBackend

    return NativeBackend(core.native)


def _load_numpy() -> Backend:
    from needle.backend.numpy import NumpyBackend

    return NumpyBackend()


def _load_meta() -> Backend:
    from needle.backend.meta import MetaBackend

    return MetaBackend()


def _load_cuda(number: int) -> Backend:
    from needle.backend.cuda import load_cuda

    return load_cuda(number)


def _load_emulator(number: int) -> Backend:
    from needle.backend.cuda import load_emulator

    return load_emulator(number, config.initial().emulator)


device.register("cpu", _load_cpu)
device.register_several("cuda", _load_cuda)
device.register("cpu_numpy", _load_numpy)
device.register("meta", _load_meta)
if config.initial().emulator != "off":
    device.register_several("cuda-emu", _load_emulator)


def _check_setting() -> None:
    if config.current().device:
        try:
            device.default_device()
        except DeviceError as error:
            config.refuse(error)


_check_setting()

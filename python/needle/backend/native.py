"""The native CPU: binds the compiled module to the ``Backend`` contract."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle.backend import convolution as convolution  # registers overrides
from needle.backend import fused, kernels, memory
from needle.backend import lengths as lengths
from needle.backend import overrides as overrides
from needle.backend import sequence as sequence
from needle.backend.contract import Backend, Describe
from needle.backend.fused import Places, Program
from needle.backend.ndarray import Arrays, NDArray, Rows
from needle.backend.numpy import view
from needle.core import numbers
from needle.errors import DtypeError

_EXACT = 2**53
"""Kernels take numbers as doubles, which represent integers up to this exactly."""


_SCANS = numbers("scan")


def _needs_bits(dtype: Any, value: Any) -> bool:
    """Return whether a number for an integer dtype would lose bits as a double."""
    return type(value) is int and dtype.kind != "f" and abs(value) > _EXACT


def _kernel(name: str) -> Any:
    """Return a method that is the compiled module's function of this name."""

    def run(self: NativeBackend, *args: Any) -> Any:
        return getattr(self.core, name)(*args)

    return run


class NativeBackend(Backend):
    """Call the compiled module. A handle is a ``_core.Storage``: aligned, cached memory."""

    name = "cpu"

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        core.on_exhausted(functools.partial(memory.exhausted, self))
        self._updates = {"adam": core.adam, "sgd": core.sgd}

    allocate, matmul, extremes, sort = map(_kernel, ("allocate", "matmul", "extremes", "sort"))
    gather, scatter_add, put = map(_kernel, ("gather", "scatter_add", "put"))
    random_bits, random_bits_of = map(_kernel, ("random_bits", "random_bits_of"))
    linear_index = _kernel("linear_index")
    puts = draws_floats = True

    def memory_info(self) -> dict[str, int]:
        return dict(self.core.memory_info())

    def upload(self, out: Any, values: Any) -> None:
        if values.dtype == out.dtype.numpy and self.core.upload(out, values):
            return
        if self.core.is_recording():  # which notes dense values only
            dense = np.broadcast_to(values, out.shape).astype(out.dtype.numpy, order="C")
            if self.core.upload(out, dense):
                return
        view(out)[...] = values

    def download(self, x: Any) -> Any:
        return view(x)

    def copy(self, out: Any, x: Any) -> None:
        self._check(self.core.copy(x, out, False), "copy", x)

    def fill(self, out: Any, value: float) -> None:
        if _needs_bits(out.dtype, value):
            self.upload(out, np.array(value, out.dtype.numpy))
        else:
            self.core.fill(out, value)

    def filled(self, spec: Any, value: float) -> Any:
        if _needs_bits(spec.dtype, value):
            return super().filled(spec, value)
        return self.core.full(spec, value)

    def elementwise(self, function: str, out: Any, *inputs: Any) -> None:
        made = self.core.elementwise(self._code(function), out, *inputs)
        self._check(made, function, inputs[-1])

    @staticmethod
    def _check(made: Any, operation: str, x: Any) -> None:
        if made is None:
            raise DtypeError(f"{operation}: not supported on the native CPU, {x.spec}")

    def _code(self, function: str) -> int:
        code = kernels.function_code(function)
        if code < 0:
            raise DtypeError(f"{function}: not supported on the native CPU")
        return code

    def reduce(self, function: str, out: Any, x: Any, axes: tuple[int, ...]) -> None:
        made = self.core.reduce(kernels.reduction_code(function), x, axes, out)
        self._check(made, function, x)

    def scan(self, function: str, out: Any, x: Any, axis: int) -> None:
        self.core.scan(_SCANS[function], out, x, axis)

    def matmul_epilogue(
        self, outs: Arrays, a: Any, b: Any, steps: Sequence[tuple[str, int]],
        others: Arrays, kept: int,
    ) -> bool:  # fmt: skip
        code = [(self._code(function), place) for function, place in steps]
        first, *last = outs
        return bool(self.core.matmul_epilogue(first, a, b, code, list(others), kept, *last))

    @property
    def records(self) -> bool:
        return type(self) is NativeBackend  # another class may do more than run its kernels

    def nonzero(self, x: Any) -> Any:
        return self.core.nonzero(x if x.is_dense() else x.copy())

    def searchsorted(self, out: Any, edges: Any, values: Any, right: bool) -> bool:
        if self.core.is_recording() or edges.dtype is dtypes.bfloat16:
            return False
        view(out)[...] = np.searchsorted(view(edges), view(values), "right" if right else "left")
        return True

    def triangle(self, out: Any, x: Any, k: int, upper: bool) -> bool:
        self.core.triangle(out, x, k, upper)
        return True

    def check_range(
        self, x: Any, low: int, high: int, kept: int | None, describe: Describe
    ) -> None:
        known = kept is not None and -(2**63) <= kept < 2**63
        if low >= high or self.core.check_range(x, low, high, kept if known else low) >= 0:
            super().check_range(x, low, high, kept, describe)

    def check_whole(self, x: Any, describe: Describe) -> None:
        if not self.core.is_recording():
            super().check_whole(x, describe)
            return
        whole = kernels.elementwise("trunc", x)
        broken = kernels.elementwise("not_equal", x, whole, dtype=dtypes.bool_)
        self.core.check_range(broken.astype(dtypes.int32), 0, 1, 0)

    def update_kernel(self, name: str, dtype: Any) -> Any:
        return self._updates.get(name) if dtype.itemsize > 2 else None

    def run_fused(
        self, program: Program, outs: Arrays, inputs: Arrays, results: Places = None
    ) -> None:
        self.core.run_fused(*_coded(program, len(outs), inputs, results), list(outs), list(inputs))

    def reduce_fused(
        self, program: Program, outs: Arrays, inputs: Arrays, results: Sequence[int],
        function: str, axes: tuple[int, ...],
    ) -> None:  # fmt: skip
        kinds = fused.register_dtypes(program, tuple(x.dtype for x in inputs))
        known = _coded(program, len(outs), inputs, results)
        reduction = (kernels.reduction_code(function), axes, kinds[results[-1]].code)
        if not self.core.reduce_fused(*known, reduction, list(outs), list(inputs)):
            super().reduce_fused(program, outs, inputs, results, function, axes)

    def run_each(
        self, program: Program, outs: Rows, inputs: Rows, numbers: NDArray, results: Places = None
    ) -> None:
        given = [*inputs[0], *[numbers] * numbers.size]
        known = _coded(program, len(outs[0]), given, results)
        self.core.run_each(*known, list(outs), list(inputs), numbers)

    def adopt(self, values: np.ndarray[Any, Any]) -> Any:
        """Return a handle over a flat NumPy array's memory, kept alive by the handle."""
        return self.core.adopt(values)


def _coded(
    program: Program, outs: int, inputs: Arrays, results: Places
) -> tuple[list[Any], list[Any], list[int]]:
    places = None if results is None else tuple(results)
    return _native_program(program, outs, tuple(x.dtype for x in inputs), places)


def _code(function: str) -> int:
    """Return the core's number of a step's function."""
    cast = fused.CASTS.get(function)
    return kernels.function_code(function) if cast is None else kernels.cast_code(cast)


@functools.lru_cache(maxsize=1024)
def _native_program(
    program: Program, outs: int, inputs: tuple[Any, ...], results: tuple[int, ...] | None
) -> tuple[list[Any], list[Any], list[int]]:
    """Return a program as the core takes it: instructions, numbers (value, dtype), results.

    The core's registers are the inputs, then the numbers, then the results of instructions.
    """
    kinds = fused.register_dtypes(program, inputs)
    places = fused.result_registers(program, outs, len(inputs), results)
    owns = [fused.operand_dtype(function, arguments, kinds) for function, arguments in program]
    texts = dict.fromkeys(
        (x, own) for (_, arguments), own in zip(program, owns, strict=True) for x in arguments
        if isinstance(x, str)
    )  # fmt: skip
    numbers = {x: i for i, x in enumerate(texts)}

    def register(x: int | str, own: Any) -> int:
        if isinstance(x, str):
            return len(inputs) + numbers[x, own]
        return x if x < len(inputs) else x + len(numbers)

    code = [
        (_code(function), [register(x, own) for x in arguments])
        for (function, arguments), own in zip(program, owns, strict=True)
    ]
    values = [(float(fused.value_of(text, own)), own.code) for text, own in texts if own]
    return code, values, [register(x, None) for x in places]

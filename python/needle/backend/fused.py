"""Fused programs: their format, and what they mean, as calls of single kernels.

A program is a tuple of steps (function, arguments). Registers 0 to n - 1 are the n inputs, and
step i writes register n + i. A function is a row of functions.def, or the name of a dtype: a cast
to it. An argument is a register, or a number as text, "0.5" or "-inf", of the other arguments'
dtype: text, because 1.0 equals 1 and -0.0 equals 0.0. Each register holds numbers of its own dtype,
rounded as if the step were a kernel.

>>> from needle.backend.fused import register_dtypes
>>> program = (("multiply", (0, "0.5")), ("tanh", (1,)), ("greater", (2, "0")), ("float32", (3,)))
>>> [str(kind) for kind in register_dtypes(program, (ndl.float32,))]
['float32', 'float32', 'float32', 'bool', 'float32']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from needle import dtype as dtypes
from needle.backend.functions import functions
from needle.backend.ndarray import Arrays, empty, full
from needle.dtype import DType
from needle.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from needle.backend.contract import Backend

Step = tuple[str, tuple[int | str, ...]]
Program = tuple[Step, ...]
Places = Sequence[int] | None
"""The register of each output of a program; None: the last ones."""
CASTS = {kind.name: kind for kind in dtypes.ALL}


@lru_cache(maxsize=1024)
def register_dtypes(program: Program, inputs: tuple[DType, ...]) -> tuple[DType, ...]:
    """Return the dtype of each register.

    Raises:
        ArgumentError: for a function or argument that there is not.
        DtypeError: for a function of dtypes for which it is not defined.
    """
    kinds = list(inputs)
    for function, arguments in program:
        used = registers_of(arguments)
        if not used or min(used) < 0 or max(used) >= len(kinds):
            raise ArgumentError(
                f"run_fused: {function}{arguments}: expected registers below {len(kinds)}"
            )
        own = operand_dtype(function, arguments, kinds)
        if function in CASTS and len(arguments) == 1:
            kinds.append(CASTS[function])
            continue
        row = functions().get(function)
        if row is None or row.arity != len(arguments):
            raise ArgumentError(f"run_fused: there is no {function} of {len(arguments)} arguments")
        chosen = function == "where" and arguments[0] == used[0]
        same = {kinds[i] for i in (used[1:] if chosen else used)} <= {own}
        if not same or own not in row.dtypes or (chosen and kinds[used[0]] is not dtypes.bool_):
            given = ", ".join(str(kinds[i]) for i in used)
            raise DtypeError(f"run_fused: {function} is not defined for {given}")
        kinds.append(dtypes.bool_ if row.gives_bool else own)
    return tuple(kinds)


def registers_of(arguments: Sequence[int | str]) -> list[int]:
    """Return the arguments that are registers."""
    return [x for x in arguments if not isinstance(x, str)]


def operand_dtype(
    function: str, arguments: Sequence[int | str], kinds: Sequence[DType]
) -> DType | None:
    """Return the dtype in which a step computes: of its numbers, too. None: nothing says it."""
    values = arguments[1:] if function == "where" else arguments
    used = registers_of(values)
    return kinds[used[-1]] if used else None


def result_registers(program: Program, outs: int, inputs: int, results: Places) -> tuple[int, ...]:
    """Return the registers of the outputs.

    Raises:
        ArgumentError: unless each is the register of a step, and no other output's.
    """
    end = inputs + len(program)
    found = tuple(range(end - outs, end)) if results is None else tuple(results)
    if len(found) != outs or len(set(found)) != outs or not all(inputs <= r < end for r in found):
        raise ArgumentError(
            f"run_fused: expected registers of {outs} different steps, {inputs} to {end - 1}, "
            f"got {found}"
        )
    return found


def value_of(text: str, kind: DType) -> float:
    """Return the number that an argument stands for."""
    return float(text) if kind.is_floating else int(text)


def run(
    backend: Backend, program: Program, outs: Arrays, inputs: Arrays, results: Sequence[int]
) -> None:
    """Run a program step by step: the definition of ``Backend.run_fused``."""
    shape, device = outs[0].shape, outs[0].device
    kinds = register_dtypes(program, tuple(x.dtype for x in inputs))
    registers = list(inputs)
    for function, arguments in program:
        out = empty(shape, kinds[len(registers)], device)
        own = operand_dtype(function, arguments, kinds)
        assert own is not None, "the dtypes were found"
        given = [
            full((), value_of(x, own), own, device).broadcast_to(shape)
            if isinstance(x, str)
            else registers[x]
            for x in arguments
        ]
        if function in CASTS:
            backend.copy(out, given[0])
        else:
            backend.elementwise(function, out, *given)
        registers.append(out)
    for out, register in zip(outs, results, strict=True):
        backend.copy(out, registers[register])


def reduce(
    backend: Backend, program: Program, outs: Arrays, inputs: Arrays, results: Sequence[int],
    function: str, axes: tuple[int, ...],
) -> None:  # fmt: skip
    """Run a program and then a reduction: the definition of ``Backend.reduce_fused``."""
    kind = register_dtypes(program, tuple(x.dtype for x in inputs))[results[-1]]
    whole = empty(inputs[0].shape, kind, inputs[0].device)
    backend.run_fused(program, [*outs[:-1], whole], inputs, results)
    backend.reduce(function, outs[-1], whole, axes)

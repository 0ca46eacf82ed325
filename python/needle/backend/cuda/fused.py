"""Fused programs: one kernel for several elementwise functions, generated from the program.

A program runs on one shape, or on many tensors in few launches; so do two optimizers' kernels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import Any

from needle import dtype as dtypes
from needle.backend.cuda.arena import address
from needle.backend.cuda.geometry import geometry, pack
from needle.backend.cuda.jit import Unit
from needle.backend.cuda.launch import Launcher, blocks_for
from needle.backend.cuda.table import CPP
from needle.backend.fused import (
    CASTS,
    Places,
    Program,
    operand_dtype,
    register_dtypes,
    result_registers,
    value_of,
)
from needle.backend.ndarray import Arrays, NDArray, Rows
from needle.dtype import DType

Kinds = tuple[DType, ...]

PIECE = 1024  # as in tensors.cuh
MOST_TENSORS, PARAMETERS = 48, 4096
"""Of a launch: tensors, and bytes of its parameters."""


def run(backend: Launcher, program: Program, outs: Arrays, inputs: Arrays, results: Places) -> None:
    """Run a program; see ``Backend.run_fused``. Results are those of its steps one by one."""
    g = geometry(outs[0].shape, *[x.strides for x in (*outs, *inputs)])
    places = result_registers(program, len(outs), len(inputs), results)
    name, text = source(
        program, tuple(x.dtype for x in inputs), tuple(x.dtype for x in outs), places
    )
    if not g.count:
        return
    found = _loaded(backend, name, f"{name}<{g.index}>", text)
    addresses = [address(x) for x in (*outs, *inputs)]
    backend.launch(found, blocks_for(g.count), *addresses, g.words)


def _loaded(backend: Launcher, name: str, expression: str, text: str) -> Any:
    found = backend.functions.get((name, expression))
    if found is None:
        found = backend.driver.load(Unit("elementwise.cu", (expression,), text))[expression]
        backend.functions[name, expression] = found
    return found


def _computed(
    program: Program, inputs: Kinds, outs: Kinds, results: tuple[int, ...], at: Callable[[int], str]
) -> str:
    """Return the statements of a program.

    Args:
        program: the program.
        inputs: dtypes of the inputs.
        outs: dtypes of the results.
        results: their registers.
        at: the element of an operand; the results are the first operands.

    Raises:
        DtypeError: if a function is not defined for the dtype of its operands.
    """
    kinds = register_dtypes(program, inputs)
    lines = [
        f"const auto r{i} = static_cast<const {CPP[kind]}*>({at(len(outs) + i)};"
        for i, kind in enumerate(inputs)
    ]
    for i, (function, arguments) in enumerate(program, len(inputs)):
        own = operand_dtype(function, arguments, kinds)
        assert own is not None, "the dtypes were found"
        values = [_literal(x, own) if isinstance(x, str) else f"r{x}" for x in arguments]
        if function in CASTS:
            call = f"cast<{CPP[kinds[i]]}>({values[0]})"
        else:
            values += [f"{CPP[own]}{{}}"] * (3 - len(arguments))
            call = f"apply<f_{function}, {CPP[own]}>({', '.join(values)})"
        lines.append(f"const auto r{i} = {call};")
    lines += [
        f"static_cast<{CPP[kind]}*>({at(i)} = cast<{CPP[kind]}>(r{register});"
        for i, (kind, register) in enumerate(zip(outs, results, strict=True))
    ]
    return "\n    ".join(lines)


def _named(what: str, body: str) -> str:
    return f"{what}_" + hashlib.sha256(body.encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def source(
    program: Program, inputs: Kinds, outs: Kinds, results: tuple[int, ...]
) -> tuple[str, str]:
    """Return the name and the text of a program's kernel.

    Raises:
        DtypeError: if a function is not defined for the dtype of its operands.
    """
    body = _computed(program, inputs, outs, results, lambda i: f"p.p[{i}])[at.at[{i}]]")
    n = len(inputs) + len(outs)
    name = _named("fused", f"{n}{body}")
    return name, (
        f"template <class Index>\n__global__ void __launch_bounds__(256) {name}(Pointers<{n}> p, "
        f"Geometry<{n}> g) {{\n  const Index i = position_in_grid<Index>();\n"
        f"  if (i >= static_cast<Index>(g.count)) return;\n"
        f"  const Offsets<{n}, Index> at(g, i);\n  {body}\n}}\n"
    )


def _literal(text: str, kind: DType) -> str:
    """Return a number of a program as C++."""
    value = value_of(text, kind)
    if math.isinf(value):
        return f"cast<{CPP[kind]}>({'-' if value < 0 else ''}1e308 * 10)"
    if math.isnan(value):
        return f"cast<{CPP[kind]}>(1e308 * 10 - 1e308 * 10)"
    return f"cast<{CPP[kind]}>({value.hex() if kind.is_floating else value})"


# ---- many tensors --------------------------------------------------------------------------


def run_each(
    backend: Launcher, program: Program, outs: Rows, inputs: Rows, numbers: NDArray, results: Places
) -> None:
    """Run a program for each of several tensors; see ``Backend.run_each``."""
    rows = [(*made, *given) for made, given in zip(outs, inputs, strict=True)]
    if not rows:
        return
    kinds, n = tuple(x.dtype for x in rows[0]), len(outs[0])
    scalars = (numbers.dtype,) * numbers.size
    places = result_registers(program, n, len(kinds) - n + numbers.size, results)
    name, text, tensors = each_source(program, kinds[n:], kinds[:n], scalars, places)
    found = _loaded(backend, name, name, text)
    for blocks, table in _tables(rows, tensors):
        backend.launch(found, blocks, *table, numbers)


@lru_cache(maxsize=1024)
def each_source(
    program: Program, inputs: Kinds, outs: Kinds, numbers: Kinds, results: tuple[int, ...]
) -> tuple[str, str, int]:
    """Return the name and the text of a kernel for many tensors, and for how many.

    Raises:
        DtypeError: if a function is not defined for the dtype of its operands.
    """
    n = len(inputs) + len(outs)
    tensors = min(MOST_TENSORS, (PARAMETERS - 16) // (16 + 8 * n))

    def at(i: int) -> str:
        return f"p[{i}])[i]" if i < n else f"numbers)[{i - n}]"

    body = _computed(program, (*inputs, *numbers), outs, results, at)
    name = _named("each", f"{n}{body}")
    return (
        name,
        (
            f'#include "tensors.cuh"\n__global__ void __launch_bounds__(256) {name}('
            f"Tensors<{tensors}, {n}> t, const void* numbers) {{\n  const Piece piece(t);\n"
            f"  void* const* p = t.p[piece.tensor];\n"
            f"  for (i64 i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) {{\n"
            f"    {body}\n  }}\n}}\n"
        ),
        tensors,
    )


def _tables(rows: Sequence[Sequence[Any]], tensors: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield a number of blocks and the struct ``Tensors`` for as many tensors as it can hold."""
    rows = [row for row in rows if row[0].size]
    head = Struct(f"{1 + 2 * tensors}q")
    for first in range(0, len(rows), tensors):
        part = rows[first : first + tensors]
        sizes = [row[0].size for row in part]
        starts, blocks = [], 0
        for size in sizes:
            starts.append(blocks)
            blocks += -(-size // PIECE)
        left = tensors - len(part)
        rest = (0,) * left
        table: list[Any] = [head.pack(len(part), *starts, *rest, *sizes, *rest)]
        for row in part:
            table += [0 if x is None else x for x in row]
        yield blocks, [*table, bytes(8 * left * len(part[0]))]


# ---- kernels of optimizers -----------------------------------------------------------------


def _adam(numbers: Sequence[float], flags: Sequence[bool]) -> bytes:
    lr, beta1, beta2, eps, weight_decay, correction1, correction2 = numbers
    decay, shrink = (0.0, 1 - lr * weight_decay) if flags[0] else (weight_decay, 1.0)
    return pack(beta1, beta2, eps, decay, float(shrink), lr / correction1, correction2**-0.5)


def _sgd(numbers: Sequence[float], flags: Sequence[bool]) -> bytes:
    lr, momentum, dampening, weight_decay = numbers
    return pack(lr, momentum, 1 - dampening, weight_decay, int(flags[0]))


RULES: dict[str, Callable[[Sequence[float], Sequence[bool]], bytes]] = {"adam": _adam, "sgd": _sgd}
"""What makes the struct of an optimizer's numbers in update.cu, from those of its formula."""


def kernel_of(backend: Launcher, name: str) -> Callable[..., None] | None:
    """Return an optimizer's kernel; see ``Backend.update_kernel``."""
    return partial(_update, backend, name) if name in RULES else None


def _family() -> Iterable[str]:
    return [f"{name}<{CPP[kind]}>" for name in RULES for kind in dtypes.FLOATS]


def _update(
    backend: Launcher, name: str, numbers: Any, flags: Sequence[bool], *columns: Any
) -> None:
    if hasattr(numbers, "handle"):
        numbers = backend.download(numbers).tolist()
    none = [None] * len(columns[0])
    rows = list(zip(*[none if x is None else x for x in columns], strict=True))
    found = backend.function("update.cu", f"{name}<{CPP[columns[0][0].dtype]}>", _family)
    for blocks, table in _tables(rows, MOST_TENSORS):
        backend.launch(found, blocks, *table, RULES[name](numbers, flags))

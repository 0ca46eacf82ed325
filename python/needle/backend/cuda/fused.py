"""Fused programs: one kernel for several elementwise functions, generated from the program."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from needle.backend.cuda.geometry import geometry
from needle.backend.cuda.jit import Unit
from needle.backend.cuda.table import CPP
from needle.backend.fused import (
    CASTS,
    Program,
    operand_dtype,
    register_dtypes,
    result_registers,
    value_of,
)
from needle.dtype import DType

if TYPE_CHECKING:
    from needle.backend.cuda.backend import CudaBackend


def run(
    backend: CudaBackend,
    program: Program,
    outs: Sequence[Any],
    inputs: Sequence[Any],
    results: Sequence[int] | None = None,
) -> None:
    """Run a program; see ``Backend.run_fused``. Results are those of its steps one by one."""
    from needle.backend.cuda.backend import address, blocks_for

    g = geometry(outs[0].shape, *[x.strides for x in (*outs, *inputs)])
    places = result_registers(program, len(outs), len(inputs), results)
    name, text = source(
        program, tuple(x.dtype for x in inputs), tuple(x.dtype for x in outs), places
    )
    if not g.count:
        return
    expression = f"{name}<{g.index}>"
    found = backend.functions.get((name, expression))
    if found is None:
        found = backend.driver.load(Unit("elementwise.cu", (expression,), text))[expression]
        backend.functions[name, expression] = found
    addresses = [address(x) for x in (*outs, *inputs)]
    backend.launch(found, blocks_for(g.count), *addresses, g.words)


@lru_cache(maxsize=1024)
def source(
    program: Program,
    inputs: tuple[DType, ...],
    outs: tuple[DType, ...],
    results: tuple[int, ...],
) -> tuple[str, str]:
    """Return the name and the text of a program's kernel.

    Raises:
        DtypeError: if a function is not defined for the dtype of its operands.
    """
    kinds = register_dtypes(program, inputs)
    lines = [
        f"  const auto r{i} = static_cast<const {CPP[kind]}*>(p.p[{len(outs) + i}])"
        f"[at.at[{len(outs) + i}]];"
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
        lines.append(f"  const auto r{i} = {call};")
    lines += [
        f"  static_cast<{CPP[kind]}*>(p.p[{i}])[at.at[{i}]] = cast<{CPP[kind]}>(r{register});"
        for i, (kind, register) in enumerate(zip(outs, results, strict=True))
    ]
    body, n = "\n".join(lines), len(inputs) + len(outs)
    name = "fused_" + hashlib.sha256(f"{n}{body}".encode()).hexdigest()[:16]
    return name, (
        f"template <class Index>\n__global__ void __launch_bounds__(256) {name}(Pointers<{n}> p, "
        f"Geometry<{n}> g) {{\n  const Index i = position_in_grid<Index>();\n"
        f"  if (i >= static_cast<Index>(g.count)) return;\n"
        f"  const Offsets<{n}, Index> at(g, i);\n{body}\n}}\n"
    )


def _literal(text: str, kind: DType) -> str:
    """Return a number of a program as C++."""
    value = value_of(text, kind)
    if math.isinf(value):
        return f"cast<{CPP[kind]}>({'-' if value < 0 else ''}1e308 * 10)"
    if math.isnan(value):
        return f"cast<{CPP[kind]}>(1e308 * 10 - 1e308 * 10)"
    return f"cast<{CPP[kind]}>({value.hex() if kind.is_floating else value})"

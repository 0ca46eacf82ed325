"""Fused programs: one kernel for several elementwise functions, generated from the program."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from needle import dtype as dtypes
from needle.backend.cuda.geometry import geometry
from needle.backend.cuda.jit import Unit
from needle.backend.cuda.table import CPP, functions
from needle.dtype import DType
from needle.errors import DtypeError

if TYPE_CHECKING:
    from needle.backend.cuda.backend import CudaBackend

Program = tuple[tuple[str, tuple[int, ...]], ...]


def run(backend: CudaBackend, program: Program, outs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Run a program; see ``Backend.run_fused``. Results are those of its steps one by one."""
    from needle.backend.cuda.backend import address, blocks_for

    g = geometry(outs[0].shape, *[x.strides for x in (*outs, *inputs)])
    if not g.count:
        return
    name, text = source(program, tuple(x.dtype for x in inputs), tuple(x.dtype for x in outs))
    expression = f"{name}<{g.index}>"
    found = backend.functions.get((name, expression))
    if found is None:
        found = backend.driver.load(Unit("elementwise.cu", (expression,), text))[expression]
        backend.functions[name, expression] = found
    places = [address(x) for x in (*outs, *inputs)]
    backend.launch(found, blocks_for(g.count), *places, g.words)


@lru_cache(maxsize=1024)
def source(program: Program, inputs: tuple[DType, ...], outs: tuple[DType, ...]) -> tuple[str, str]:
    """Return the name and the text of a program's kernel.

    Raises:
        DtypeError: if a function is not defined for the dtype of its operands.
    """
    kinds = list(inputs)
    lines = [
        f"  const auto r{i} = static_cast<const {CPP[kind]}*>(p.p[{len(outs) + i}])"
        f"[at.at[{len(outs) + i}]];"
        for i, kind in enumerate(inputs)
    ]
    for function, arguments in program:
        row, kind = functions()[function], kinds[arguments[-1]]
        if kind not in row.dtypes:
            raise DtypeError(f"{function}: not supported for {kind}")
        values = [f"r{i}" for i in arguments] + [f"{CPP[kind]}{{}}"] * (3 - len(arguments))
        lines.append(
            f"  const auto r{len(kinds)} = apply<f_{function}, {CPP[kind]}>({', '.join(values)});"
        )
        kinds.append(dtypes.bool_ if row.gives_bool else kind)
    first = len(kinds) - len(outs)
    lines += [
        f"  static_cast<{CPP[kind]}*>(p.p[{i}])[at.at[{i}]] = cast<{CPP[kind]}>(r{first + i});"
        for i, kind in enumerate(outs)
    ]
    body, n = "\n".join(lines), len(inputs) + len(outs)
    name = "fused_" + hashlib.sha256(f"{n}{body}".encode()).hexdigest()[:16]
    return name, (
        f"template <class Index>\n__global__ void __launch_bounds__(256) {name}(Pointers<{n}> p, "
        f"Geometry<{n}> g) {{\n  const Index i = position_in_grid<Index>();\n"
        f"  if (i >= static_cast<Index>(g.count)) return;\n"
        f"  const Offsets<{n}, Index> at(g, i);\n{body}\n}}\n"
    )
